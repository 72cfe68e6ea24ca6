"""A module's entry as a memory program: values, and the kernels that read and write them, in order.

Calls of module functions are inlined, so that liveness reaches through them: a layer that is called 32 times is in the
list 32 times. What moves no data (a reshape, a tuple, a match_cast) has no memory of its own. Branches and loops are
one kernel each; their functions are planned separately, and the most that they need is the kernel's workspace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias, cast

from relax_eg.errors import MemoryPlanError
from relax_eg.ir import (
    CALL,
    CALL_DPS_LIBRARY,
    CALL_TIR,
    COND,
    CONSTANT,
    CONTROL,
    FUNCTION,
    MATCH_CAST,
    SHAPE,
    TUPLE,
    TUPLE_GET,
    VAR,
    Annotation,
    Expr,
    Function,
    Module,
    Tensor,
    Tuple,
    dims_of,
    impure_functions,
    itemsize,
    substitute,
)
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.memory import first_explicit
from relax_eg.ir.scopes import runs
from relax_eg.ir.steps import effect_of
from relax_eg.memory.elementwise import overwritable
from relax_eg.ops.fused import VIEWS, called_program
from relax_eg.shapes import Dim, dim_max
from relax_eg.tir import TensorProgram

Role = Literal["argument", "constant", "value", "workspace", "result"]
# An operand in memory: the number of a value, a tuple of trees, or None (a shape, a function, an object).
Tree: TypeAlias = "int | tuple[Tree, ...] | None"

# chosen: values that a kernel may read for a recomputed operand; beyond that XLA is assumed to store the operand
MOST_READ = 32
WORKSPACE_BYTES = "workspace_bytes"  # the attribute of a library call with the bytes of its workspace


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in memory.

    - `role`: an "argument" and a "constant" exist before and after the call, and are not planned; a "result" is
      returned; a "workspace" is used by one kernel only.
    - `bytes`, `elements`: sizes over the entry's variables; None if unknown before the kernel has run.
    """

    number: int
    name: str
    annotation: Tensor
    role: Role

    @property
    def elements(self) -> Dim | None:
        shape = self.annotation.shape
        if shape is None or self.annotation.dtype is None:
            return None
        count = Dim.of(1)
        for d in shape:
            count = count * d
        return count

    @property
    def itemsize(self) -> int:
        return itemsize(self.annotation.dtype or "uint8")

    @property
    def bytes(self) -> Dim | None:
        count = self.elements
        return None if count is None else count * self.itemsize


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel that runs.

    - `kernel`: the expression, in the terms of `function`.
    - `sizes`: the size variables of `function`, in the entry's terms.
    - `operands`: what it reads, one tree for each of `operands_of(kernel)`.
    - `writes`: its outputs in order.
    - `workspaces`: memory that only it uses; those passed to it are in `operands`, too.
    - `overwritable`: pairs (output, operand) of values: the output may be written in place of the operand, which is
      read element for element.
    - `region`: steps may be reordered within a region only; between regions is an effect or a check.
    """

    number: int
    name: str
    kernel: Expr
    function: str
    sizes: Mapping[str, Dim]
    operands: tuple[Tree, ...]
    writes: tuple[int, ...]
    workspaces: tuple[int, ...] = ()
    overwritable: tuple[tuple[int, int], ...] = ()
    region: int = 0

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that it reads, each once, without its workspaces."""
        own = {*self.workspaces}
        return tuple(dict.fromkeys(v for t in self.operands for v in leaves(t) if v not in own))

    @property
    def result(self) -> Tree:
        """The kernel's result in memory."""
        single = not isinstance(self.kernel.annotation, Tuple)
        return self.writes[0] if single and self.writes else tuple(self.writes)


@dataclass(frozen=True)
class MemoryProgram:
    """What a call of a module's entry does to memory. `result`: what it returns; `constants`: the value of each
    constant."""

    name: str
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    result: Tree
    variables: tuple[str, ...]
    constants: Mapping[Expr, int] = field(default_factory=dict[Expr, int])

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the numbers of the steps that read it."""
        found: list[list[int]] = [[] for _ in self.values]
        for s in self.steps:
            for v in s.reads:
                found[v].append(s.number)
        return tuple(map(tuple, found))

    @cached_property
    def writer(self) -> tuple[int | None, ...]:
        """For each value, the step that writes it or whose workspace it is; None for arguments and constants."""
        found: list[int | None] = [None] * len(self.values)
        for s in self.steps:
            for v in (*s.writes, *s.workspaces):
                found[v] = s.number
        return tuple(found)

    def reordered(self, order: Sequence[int]) -> MemoryProgram:
        """The program with its steps in another order, given by their numbers here; the steps are renumbered."""
        steps = tuple(replace(self.steps[old], number=new) for new, old in enumerate(order))
        return replace(self, steps=steps)


def leaves(tree: Tree) -> Iterator[int]:
    """The values in a tree, in order."""
    todo = [tree]
    while todo:
        t = todo.pop()
        if isinstance(t, tuple):
            todo.extend(reversed(t))
        elif t is not None:
            yield t


def operands_of(e: Expr) -> tuple[Expr, ...]:
    """The arrays that a kernel reads: its operands, seen through views, each once, without functions and shapes."""
    return tuple(dict.fromkeys(b for b in map(behind, e.args) if b.op not in (FUNCTION, SHAPE)))


def behind(e: Expr) -> Expr:
    """What `e` is a view of, or `e`."""
    while e.op in VIEWS:
        e = e.args[0]
    return e


def kernel_name(e: Expr) -> str:
    """The name of a kernel in reports."""
    if e.op == CALL_TIR:
        return str(e.attr("program").value.name)
    return str(e.attr("name")) if e.op == CALL_DPS_LIBRARY else e.op


# Bytes that a kernel needs beside its operands and results; None if unknown.
Temporary = Callable[[Step], "Dim | int | None"]


# By function name, the expressions whose values are stored.
Stored = Mapping[str, Collection[Expr]]


def program_of(
    module: Module,
    temporary: Temporary | None = None,
    function: str | None = None,
    stored: Stored | None = None,
    ahead: Collection[Expr] = (),
) -> MemoryProgram:
    """The memory program of a module's entry, or of another `function` of it, in the order of its text. Linear in what
    it runs.

    - `temporary`: tells what a kernel allocates itself (as from `memory_analysis`), beside what the module states.
    - `stored`: the expressions that a fusing compiler stores. All others but results are recomputed inside the kernels
      that read them, which then read their operands. By default each expression is a kernel.
    - `ahead`: expressions of the entry that are computed before the call and have no memory in it.

    MemoryPlanError for a module that allocates its memory itself.
    """
    if (name := first_explicit(module)) is not None:
        raise MemoryPlanError(f"{name}() allocates its memory itself; accepted: the module that it was lowered from")
    f = module.main if function is None else module[function]
    return _Tracer(module, temporary, impure_functions(module), stored).run(f, (f.name,), ahead)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A function that is being followed.

    - `env`: its expressions in memory.
    - `known`: callable variables, with the functions they stand for.
    - `sizes`: its size variables in the entry's terms.
    - `prefix`: prefix of the names in it.
    - `calls`: the functions that lead here, including itself as the last.
    """

    function: Function
    env: dict[Expr, Tree]
    known: dict[Expr, Expr]
    sizes: Mapping[str, Dim]
    prefix: str
    calls: tuple[str, ...]


class _Tracer:
    def __init__(
        self, module: Module, temporary: Temporary | None, impure: frozenset[str], stored: Stored | None = None
    ) -> None:
        self.module = module
        self.stored = stored
        self.handed_on: dict[str, frozenset[Expr]] = {}  # by name, of functions followed so far
        self.functions = {f.name: f for f in module}
        self.temporary = temporary
        self.impure = impure
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.constants: dict[Expr, int] = {}
        self.names: dict[str, int] = {}
        self.inside: dict[str, tuple[Dim, ...]] = {}  # bytes at each step of functions that control nodes run
        self.region = 0
        self.pairs: dict[Expr, tuple[tuple[int, Expr], ...]] = {}

    def run(self, f: Function, calls: tuple[str, ...], ahead: Collection[Expr] = ()) -> MemoryProgram:
        sizes = {v: Dim.var(v) for v in (*f.size_variables, *f.cast_variables)}
        args = [self._new(p.annotation, str(p.attr("name")), "argument") for p in f.params]
        result = self._function(f, args, sizes, "", calls, ahead)
        for v in leaves(result):  # a returned argument or constant keeps its role
            if self.values[v].role == "value":
                self.values[v] = replace(self.values[v], role="result")
        return MemoryProgram(f.name, tuple(self.values), tuple(self.steps), result, tuple(sizes), self.constants)

    def _new(self, annotation: Annotation, name: str, role: Role) -> Tree:
        if isinstance(annotation, Tuple):
            return tuple(self._new(a, f"{name}[{i}]", role) for i, a in enumerate(annotation.fields))
        if not isinstance(annotation, Tensor):
            return None
        self.values.append(Value(len(self.values), name, annotation, role))
        return len(self.values) - 1

    def _fresh(self, name: str) -> str:
        n = self.names[name] = self.names.get(name, 0) + 1
        return name if n == 1 else f"{name}.{n}"

    def _function(
        self,
        f: Function,
        args: Sequence[Tree],
        sizes: Mapping[str, Dim],
        prefix: str,
        calls: tuple[str, ...],
        ahead: Collection[Expr] = (),
    ) -> Tree:
        env: dict[Expr, Tree] = {**dict.fromkeys(ahead), **dict(zip(f.params, args, strict=True))}
        frame = _Frame(f, env, {}, sizes, prefix, calls)
        for block in f.blocks:
            for b in block.bindings:
                if not block.dataflow and b.value.op != VAR:
                    frame.env.pop(b.value, None)  # a step runs each time it is written
                is_step = effect_of(b.value, self.impure) is not None
                self.region += is_step
                self._visit(b.value, frame, b.name)
                self.region += is_step
                frame.env[b.var] = frame.env[b.value]
                if b.value.op == FUNCTION:
                    frame.known[b.var] = b.value
        self._visit(f.result, frame)
        return frame.env[f.result]

    def _visit(self, root: Expr, frame: _Frame, name: str | None = None) -> None:
        """Puts `root`'s memory into the frame; `name`: that of the variable it is bound to."""
        env, calls = frame.env, frame.calls
        todo = [root]
        while todo:
            e = todo[-1]
            needs = () if e in env else self._needs(e)
            missing = [a for a in needs if a not in env]
            if missing:
                todo += reversed(missing)
                continue
            todo.pop()
            if e in env:
                continue
            if e.op == TUPLE:
                env[e] = tuple(env[a] for a in e.args)
            elif e.op == TUPLE_GET:
                whole = env[e.args[0]]
                env[e] = whole[e.attr("index")] if isinstance(whole, tuple) else None
            elif e.op in (FUNCTION, SHAPE):
                env[e] = None
            elif e.op == CONSTANT:
                if e not in self.constants:
                    self.constants[e] = cast(int, self._new(e.annotation, self._fresh("constant"), "constant"))
                env[e] = self.constants[e]
            elif e.op in VIEWS or e.op == MATCH_CAST:
                env[e] = env[behind(e) if e.op in VIEWS else e.args[0]]
            elif (callee := self._callee(e, frame.known, calls)) is not None:
                inner = call_sizes([p.annotation for p in callee.params], [a.annotation for a in e.args[1:]])
                env[e] = self._function(
                    callee,
                    [env[a] for a in e.args[1:]],
                    {v: d.substitute(frame.sizes) for v, d in inner.items()},
                    f"{self._fresh(frame.prefix + callee.name)}/",
                    (*calls, callee.name),
                )
            else:
                held = self._held(frame.function, e, env)
                own = name if e is root else None
                env[e] = self._kernel(e, frame, own) if held is None else held

    def _held(self, f: Function, e: Expr, env: Mapping[Expr, Tree]) -> Tree:
        """The values that must be kept for an expression that is recomputed where it is read; None for one that is
        stored."""
        if self.stored is None or e.op in CONTROL or e in self.stored.get(f.name, ()):
            return None
        if f.name not in self.handed_on:
            self.handed_on[f.name] = _handed_on(f)
        read = tuple(dict.fromkeys(v for a in operands_of(e) for v in leaves(env.get(a))))
        if e in self.handed_on[f.name] or len(read) > MOST_READ:
            return None
        return tuple(read for _ in e.annotation.fields) if isinstance(e.annotation, Tuple) else read

    def _needs(self, e: Expr) -> tuple[Expr, ...]:
        if e.op in VIEWS:
            return (behind(e),)
        if e.op in (TUPLE, TUPLE_GET, CALL, MATCH_CAST):
            return e.args
        spaces = _passed_workspaces(e)
        return tuple(a for a in operands_of(e) if a not in spaces)

    def _callee(self, e: Expr, known: Mapping[Expr, Expr], calls: tuple[str, ...]) -> Function | None:
        """The function to inline for a call; None if it has effects or is recursive."""
        if e.op != CALL:
            return None
        called = known.get(e.args[0], e.args[0])
        f = self.functions.get(called.attr("name")) if called.op == FUNCTION else None
        return None if f is None or f.name in calls or f.name in self.impure else f

    def _kernel(self, e: Expr, frame: _Frame, name: str | None) -> Tree:
        prefix, env = frame.prefix, frame.env
        label = self._fresh(prefix + kernel_name(e))
        spaces = _passed_workspaces(e)
        at = dict(frame.sizes)
        own: list[int] = []
        operands: list[Tree] = []
        for a in operands_of(e):
            if a in spaces:
                space = self._new(substitute(a.annotation, at), f"{label}.{spaces[a]}", "workspace")
                own += leaves(space)
                operands.append(space)
            else:
                operands.append(env[a])
        made = self._new(substitute(e.annotation, at), f"{prefix}{name}" if name else label, "value")
        writes = tuple(leaves(made))
        for space, annotation in _hidden_workspaces(e):
            own += leaves(self._new(substitute(annotation, at), f"{label}.{space}", "workspace"))
        most = self._inside(e, at, frame.calls)
        if most != 0:
            own += leaves(self._new(Tensor((most,), "uint8"), f"{label}.inside", "workspace"))
        pairs = self._overwritable(e, operands, writes)
        step = Step(
            len(self.steps), label, e, frame.function.name, at, tuple(operands), writes, tuple(own), pairs, self.region
        )
        extra = None if self.temporary is None else self.temporary(step)
        if extra is not None and not (isinstance(extra, int) and extra <= 0):
            space = self._new(Tensor((Dim.of(extra),), "uint8"), f"{label}.temporary", "workspace")
            step = replace(step, workspaces=(*step.workspaces, *leaves(space)))
        self.steps.append(step)
        return made

    def _overwritable(self, e: Expr, operands: Sequence[Tree], writes: Sequence[int]) -> tuple[tuple[int, int], ...]:
        if e not in self.pairs:
            self.pairs[e] = tuple(overwritable(e, behind))
        by_operand = dict(zip(operands_of(e), operands, strict=True))
        # Two operands may be the same value, if a function is called with it twice.
        times = Counter(v for t in operands for v in leaves(t))
        found = [(i, by_operand.get(a)) for i, a in self.pairs[e]]
        return tuple((writes[i], v) for i, v in found if isinstance(v, int) and times[v] == 1)

    def _inside(self, e: Expr, sizes: Mapping[str, Dim], calls: tuple[str, ...]) -> Dim:
        """The most bytes that the functions run by a control node need, beside its operands and results."""
        from relax_eg.memory.liveness import liveness  # which imports this module

        most = Dim.of(0)
        for name, args in runs(e) if e.op in CONTROL else ():
            if name in calls or name not in self.functions:
                continue
            f = self.functions[name]
            if name not in self.inside:
                inner = _Tracer(self.module, self.temporary, self.impure, self.stored).run(f, (*calls, name))
                # A branch writes its result where the caller wants it; a loop holds the next carry beside the last.
                sums = liveness(inner, "apart" if e.op == COND else "planned").sums
                self.inside[name] = tuple(dict.fromkeys(sums))
            passed = call_sizes([p.annotation for p in f.params], args)
            told = {v: d.substitute(sizes) for v, d in passed.items()}
            for total in self.inside[name]:
                if total.variables <= told.keys() and total != 0:
                    here = total.substitute(told)
                    most = here if most == 0 else dim_max(most, here)
        return most


def _handed_on(f: Function) -> frozenset[Expr]:
    """The values of the bindings and the result of a function, through tuples."""
    found: set[Expr] = set()
    todo = [f.result, *(b.value for block in f.blocks for b in block.bindings)]
    while todo:
        e = behind(todo.pop())
        if e not in found:
            found.add(e)
            todo += e.args if e.op in (TUPLE, TUPLE_GET) else ()
    return frozenset(found)


def _passed_workspaces(e: Expr) -> dict[Expr, str]:
    """The arguments of a `call_tir` that are workspaces allocated by its caller, with the buffer's name. Only a value
    without content (a `full`, as lifting makes it) is one."""
    if e.op != CALL_TIR:
        return {}
    program: TensorProgram = e.attr("program").value
    lifted = e.args[len(program.inputs) :]
    return {a: name for a, name in zip(lifted, program.lifted, strict=True) if a.op == "full" and not _is_read(e, a)}


def _is_read(e: Expr, a: Expr) -> bool:
    program: TensorProgram = e.attr("program").value
    return a in e.args[: len(program.inputs)]


def _hidden_workspaces(e: Expr) -> Iterator[tuple[str, Annotation]]:
    """The workspaces that a kernel states it allocates itself."""
    if e.op == CALL_TIR:
        placed = called_program([a.annotation for a in e.args], dict(e.attrs))
        program: TensorProgram = e.attr("program").value
        for name in program.workspaces:
            if name not in program.lifted and placed is not None:
                b = program.buffers[name]
                yield name, substitute(Tensor(b.shape, b.dtype), dict(placed.sizes))
    elif e.op == CALL_DPS_LIBRARY:
        size = dict(e.attr("attrs")).get(WORKSPACE_BYTES)
        if isinstance(size, (int, Dim)) and not (isinstance(size, int) and size <= 0):
            yield "workspace", Tensor((Dim.of(size),), "uint8")


def sizes_in(program: MemoryProgram) -> frozenset[str]:
    """The size variables in the sizes of values."""
    return frozenset(v for x in program.values for d in dims_of(x.annotation) for v in d.variables)
