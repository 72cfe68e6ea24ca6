"""A module's entry as a memory program: values, and the kernels that read and write them, in order.

Calls of module functions are inlined, so that liveness reaches through them: a layer that is called 32 times is in the
list 32 times. An expression that moves no data (a reshape, a tuple, a match_cast) has no memory of its own. A branch or
loop is one kernel. The functions that it runs are planned separately; the most that one of them needs is the kernel's
workspace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from relax_eg.dtypes import itemsize
from relax_eg.errors import MemoryPlanError
from relax_eg.ir import CONTROL, Annotation, Expr, Function, Module, Tensor, Tuple, heads, impure_functions, substitute
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.memory import first_explicit
from relax_eg.ir.scopes import called_functions
from relax_eg.ir.steps import effect_of
from relax_eg.limits import KEPT
from relax_eg.memory.liveness import liveness
from relax_eg.memory.program import (
    MemoryProgram,
    Role,
    Step,
    StoredValues,
    Temporary,
    Tree,
    Value,
    equations_of,
    leaves,
    operands_of,
)
from relax_eg.ops.fused import VIEWS, viewed_value
from relax_eg.ops.transfers import ON_HOST
from relax_eg.shapes import Dim, dim_max
from relax_eg.tir import Read, Stage, TensorProgram, walk
from relax_eg.traversal import operands_first, reached

# In-place operands of a kernel: the operands over which an output may be written.


def overwritable(e: Expr) -> Iterator[tuple[int, Expr]]:
    """Pairs (number of the output, operand) of the kernel `e`. If nothing else needs the operand and both have equal
    bytes, the output may be written over it. The value stands for the operand if the operand is a view of it."""
    placed = equations_of(e)
    if placed is None:
        return
    program = placed.program
    buffers = program.parameters[: len(program.inputs)]
    fields = e.annotation.fields if isinstance(e.annotation, Tuple) else (e.annotation,)
    read_as: dict[Expr, list[str]] = {}
    for b, a in zip(buffers, e.args, strict=False):
        read_as.setdefault(viewed_value(a), []).append(b.name)
    for i, annotation in enumerate(fields):
        if not isinstance(annotation, Tensor) or annotation.shape is None or annotation.dtype is None:
            continue
        for operand, names in read_as.items():
            a = operand.annotation
            if not isinstance(a, Tensor) or a.dtype is None or itemsize(a.dtype) != itemsize(annotation.dtype):
                continue
            if all((program.outputs[i], name) in elementwise_pairs(program) for name in names):
                yield i, operand


@lru_cache(KEPT)
def elementwise_pairs(program: TensorProgram) -> frozenset[tuple[str, str]]:
    """Pairs (output, input) of buffer names such that the input has the output's shape, and each element of *any*
    output reads that input at most at the element's own index. Every reader of an input element then runs together with
    the output element that replaces it, in any order of the elements. Inputs that no output reads are in no pair."""
    inputs = [b.name for b in program.inputs]
    # For each buffer, by the inputs that it depends on: whether it reads the input at the same index only.
    same: dict[str, dict[str, bool]] = {}
    for stage in program.stages:
        own: dict[str, bool] = {}
        for read in (t for t in walk(stage.value) if isinstance(t, Read)):
            if read.buffer == stage.output.name:  # a scan, handled below
                continue
            at_place = _at_same_place(stage, read, program.buffers[read.buffer].shape)
            for name, was in {read.buffer: True}.items() if read.buffer in inputs else same[read.buffer].items():
                own[name] = own.get(name, True) and was and at_place
        if stage.scans:  # an element depends on those before it
            own = dict.fromkeys(own, False)
        same[stage.output.name] = own
    found: set[tuple[str, str]] = set()
    for name in inputs:
        shapes = program.buffers[name].shape
        ways = [same[o].get(name) for o in program.outputs]
        if False in ways or True not in ways:
            continue
        found |= {(o, name) for o in program.outputs if program.buffers[o].shape == shapes}
    return frozenset(found)


def _at_same_place(stage: Stage, read: Read, shape: tuple[Dim, ...]) -> bool:
    """Whether the read has the index of the element that the stage writes, in a buffer of the same shape."""
    if shape != stage.output.shape or len(read.indices) != len(stage.indices):
        return False
    return all(
        isinstance(i, Dim) and (i == w or (extent == 1 and i == 0))
        for i, w, extent in zip(read.indices, stage.indices, shape, strict=True)
    )


# chosen: values that a kernel may read for a recomputed operand; beyond that XLA is assumed to store the operand
MOST_READ = 64
WORKSPACE_BYTES = "workspace_bytes"  # the attribute of a library call with the bytes of its workspace


def program_of(
    module: Module,
    temporary: Temporary | None = None,
    function: str | None = None,
    stored: StoredValues | None = None,
    ahead: Collection[Expr] = (),
) -> MemoryProgram:
    """The memory program of a module's entry, or of another `function` of it, in the order of its text. Takes time
    linear in the kernels that run.

    - `temporary`: a function from a step to the bytes that its executable allocates (as from `memory_analysis`) besides
      the workspaces that the module states; default: as `stored` says.
    - `stored`: what a fusing compiler stores. By default each expression is a kernel.
    - `ahead`: the expressions that are computed before the call and have no memory in it.

    MemoryPlanError for a module that allocates its memory itself.
    """
    if (name := first_explicit(module)) is not None:
        raise MemoryPlanError(f"{name}() allocates its memory itself; accepted: the module that it was lowered from")
    f = module.main if function is None else module[function]
    temporary = stored.temporary if temporary is None and stored is not None else temporary
    return _Tracer(module, temporary, impure_functions(module), stored).run(f, (f.name,), ahead)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A function whose expressions are being traced.

    - `env`: the values in memory of each expression visited so far.
    - `known`: for each variable that is bound to a function, the function.
    - `sizes`: its size variables in the entry's terms.
    - `prefix`: the prefix of the names of its values and kernels.
    - `calls`: the names of the functions on the call stack, this one last.
    """

    function: Function
    env: dict[Expr, Tree]
    known: dict[Expr, Expr]
    sizes: Mapping[str, Dim]
    prefix: str
    calls: tuple[str, ...]


class _Tracer:
    def __init__(
        self,
        module: Module,
        temporary: Temporary | None,
        impure: frozenset[str],
        stored: StoredValues | None = None,
    ) -> None:
        self.module = module
        self.stored = stored
        self.computed_from: dict[int, tuple[int, ...]] = {}  # for a stored value, what its kernel reads
        self.bound_values: dict[str, frozenset[Expr]] = {}  # by the name of the function
        self.functions = {f.name: f for f in module}
        self.temporary = temporary
        self.impure = impure
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.constants: dict[Expr, int] = {}
        self.names: dict[str, int] = {}
        self.live_bytes: dict[str, tuple[Dim, ...]] = {}  # for functions that control nodes run: the bytes at each step
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
                if not block.dataflow and b.value.op != heads.VAR:
                    frame.env.pop(b.value, None)  # a step runs each time it is written
                is_step = effect_of(b.value, self.impure) is not None
                self.region += is_step
                self._visit(b.value, frame, b.name)
                self.region += is_step
                frame.env[b.var] = frame.env[b.value]
                if b.value.op == heads.FUNCTION:
                    frame.known[b.var] = b.value
        self._visit(f.result, frame)
        return frame.env[f.result]

    def _visit(self, root: Expr, frame: _Frame, name: str | None = None) -> None:
        """Adds the values of `root` and of all that it needs to the frame. `name`: the variable that it is bound to."""
        env, calls = frame.env, frame.calls
        for e in operands_first((root,), lambda e: () if e in env else self._needs(e)):
            if e in env:
                continue
            if e.op == heads.TUPLE:
                env[e] = tuple(env[a] for a in e.args)
            elif e.op == heads.TUPLE_GET:
                whole = env[e.args[0]]
                env[e] = whole[e.attr("index")] if isinstance(whole, tuple) else None
            elif e.op in heads.STATIC or e.op == ON_HOST:
                env[e] = None
            elif e.op == heads.CONSTANT:
                if e not in self.constants:
                    self.constants[e] = cast(int, self._new(e.annotation, self._fresh("constant"), "constant"))
                env[e] = self.constants[e]
            elif e.op in VIEWS or e.op == heads.MATCH_CAST:
                env[e] = env[viewed_value(e) if e.op in VIEWS else e.args[0]]
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
                held = self._recomputation_reads(frame.function, e, env)
                own = name if e is root else None
                env[e] = self._kernel(e, frame, own) if held is None else held

    def _recomputation_reads(self, f: Function, e: Expr, env: Mapping[Expr, Tree]) -> Tree:
        """The values that readers of an expression read in its place, if it is recomputed inside them; None if the
        expression is stored."""
        if self.stored is None or e.op in CONTROL or (f.name, e) in self.stored.nodes:
            return None
        if f.name not in self.bound_values:
            self.bound_values[f.name] = _bound_values(f)
        held = (self._read_of(f, e, env.get(a), env) for a in operands_of(e))
        read = tuple(dict.fromkeys(v for tree in held for v in leaves(tree)))
        if e in self.bound_values[f.name] or len(read) > MOST_READ:
            return None
        return tuple(read for _ in e.annotation.fields) if isinstance(e.annotation, Tuple) else read

    def _read_of(self, f: Function, e: Expr, operand: Tree, env: Mapping[Expr, Tree]) -> Tree:
        """What an expression reads of an operand: in the place of values that it computes again, what these read."""
        anew = set[Tree]() if self.stored is None else {env.get(x) for x in self.stored.anew.get((f.name, e), ())}
        if anew.isdisjoint(leaves(operand)):
            return operand
        read = (self.computed_from.get(v, (v,)) if v in anew else (v,) for v in leaves(operand))
        return tuple(dict.fromkeys(v for each in read for v in each))

    def _needs(self, e: Expr) -> tuple[Expr, ...]:
        if e.op in VIEWS:
            return (viewed_value(e),)
        if e.op in heads.TUPLES or e.op in (heads.CALL, heads.MATCH_CAST):
            return e.args
        spaces = _passed_workspaces(e)
        return tuple(a for a in operands_of(e) if a not in spaces)

    def _callee(self, e: Expr, known: Mapping[Expr, Expr], calls: tuple[str, ...]) -> Function | None:
        """The function to inline for a call; None if the function has effects or is recursive, or if `e` is no call."""
        if e.op != heads.CALL:
            return None
        called = known.get(e.args[0], e.args[0])
        f = self.functions.get(called.attr("name")) if called.op == heads.FUNCTION else None
        return None if f is None or f.name in calls or f.name in self.impure else f

    def _kernel(self, e: Expr, frame: _Frame, name: str | None) -> Tree:
        prefix, env = frame.prefix, frame.env
        label = self._fresh(prefix + heads.label_of(e))
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
                operands.append(self._read_of(frame.function, e, env[a], env))
        kept = None if self.stored is None else self.stored.nodes.get((frame.function.name, e))
        annotation = e.annotation if kept is None else Tensor((kept,), "uint8")
        made = self._new(substitute(annotation, at), f"{prefix}{name}" if name else label, "value")
        writes = tuple(leaves(made))
        for space, annotation in _hidden_workspaces(e):
            own += leaves(self._new(substitute(annotation, at), f"{label}.{space}", "workspace"))
        most = self._control_workspace(e, at, frame.calls)
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
        if isinstance(made, int) and len(step.reads) <= MOST_READ:
            self.computed_from[made] = step.reads
        return made

    def _overwritable(self, e: Expr, operands: Sequence[Tree], writes: Sequence[int]) -> tuple[tuple[int, int], ...]:
        if e not in self.pairs:
            self.pairs[e] = tuple(overwritable(e))
        by_operand = dict(zip(operands_of(e), operands, strict=True))
        # Two operands may be the same value, if a function is called with it twice.
        times = Counter(v for t in operands for v in leaves(t))
        found = [(i, by_operand.get(a)) for i, a in self.pairs[e]]
        return tuple((writes[i], v) for i, v in found if isinstance(v, int) and times[v] == 1)

    def _control_workspace(self, e: Expr, sizes: Mapping[str, Dim], calls: tuple[str, ...]) -> Dim:
        """The most bytes that the functions run by a control node need besides the node's operands and results."""
        most = Dim.of(0)
        for name, args in called_functions(e) if e.op in CONTROL else ():
            if name in calls or name not in self.functions:
                continue
            f = self.functions[name]
            if name not in self.live_bytes:
                inner = _Tracer(self.module, self.temporary, self.impure, self.stored).run(f, (*calls, name))
                # A branch writes its result where the caller wants it; a loop holds the next carry beside the last.
                sums = liveness(inner, "apart" if e.op == heads.COND else "planned").sums
                self.live_bytes[name] = tuple(dict.fromkeys(sums))
            passed = call_sizes([p.annotation for p in f.params], args)
            callee_sizes = {v: d.substitute(sizes) for v, d in passed.items()}
            for total in self.live_bytes[name]:
                if total.variables <= callee_sizes.keys() and total != 0:
                    here = total.substitute(callee_sizes)
                    most = here if most == 0 else dim_max(most, here)
        return most


def _bound_values(f: Function) -> frozenset[Expr]:
    """The values of the bindings and the result of a function, through tuples."""
    values = (f.result, *f.values)
    fields = reached(map(viewed_value, values), lambda e: map(viewed_value, e.args) if e.op in heads.TUPLES else ())
    return frozenset(fields)


def _passed_workspaces(e: Expr) -> dict[Expr, str]:
    """The arguments of a `call_tir` that are workspaces allocated by its caller, with the name of the buffer. Only a
    `full` that the program does not read is one; lifting makes such arguments."""
    if e.op != heads.CALL_TIR:
        return {}
    program: TensorProgram = e.attr("program").value
    lifted = e.args[len(program.inputs) :]
    return {a: name for a, name in zip(lifted, program.lifted, strict=True) if a.op == "full" and not _is_read(e, a)}


def _is_read(e: Expr, a: Expr) -> bool:
    program: TensorProgram = e.attr("program").value
    return a in e.args[: len(program.inputs)]


def _hidden_workspaces(e: Expr) -> Iterator[tuple[str, Annotation]]:
    """The name and annotation of each workspace that a kernel, according to the module, allocates itself."""
    if e.op == heads.CALL_TIR:
        placed = equations_of(e)
        for name in placed.program.workspaces if placed is not None else ():
            if placed is not None and name not in placed.program.lifted:
                b = placed.program.buffers[name]
                yield name, substitute(Tensor(b.shape, b.dtype), dict(placed.sizes))
    elif e.op == heads.CALL_DPS_LIBRARY:
        size = dict(e.attr("attrs")).get(WORKSPACE_BYTES)
        if isinstance(size, (int, Dim)) and not (isinstance(size, int) and size <= 0):
            yield "workspace", Tensor((Dim.of(size),), "uint8")
