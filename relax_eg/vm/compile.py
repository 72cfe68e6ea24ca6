"""Compiles the functions of a module to instructions.

Dataflow blocks become compiled programs (`RunRegion`). The functions of an `if` or `match` stand in the place where
they run, so a call that is the last step of a branch is the last step of its function. Such a call replaces the frame
of its caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from relax_eg.ir import heads
from relax_eg.ir.annotations import Annotation, Data, Tensor, Tuple, dims_of, substitute
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.control import functions_of, group_arguments, runs_of
from relax_eg.ir.data import all_sizes, sizes_in_data
from relax_eg.ir.devices import copied_to, mesh_in, mesh_of
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.lattice import covers
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.shapes import Dim
from relax_eg.vm import instructions as ins
from relax_eg.vm.folds import Fold, RunsFold, folds_of
from relax_eg.vm.storages import Branch, Planned, PlannedRegion, with_kills, with_storages

Advances = Callable[[list[Any], Mapping[str, int]], tuple[list[Any], Mapping[str, int]]]
Bind = Callable[[list[Any], Mapping[str, int]], Mapping[str, int]]


@dataclass(frozen=True)
class RegionProgram:
    """A compiled dataflow block.

    - `run(values, sizes)`: returns the values of the block's bindings.
    - `reads`: the variables whose values it takes, in order.
    - `sizes`: the size variables that it reads.
    - `planned`: the same program as its function's plan of memory asks (`vm.storages`); None where it cannot be.
    """

    run: Callable[[list[Any], Mapping[str, int]], Sequence[Any]]
    reads: Sequence[Expr]
    sizes: Sequence[str]
    planned: Planned | None = None


class Programs(Protocol):
    """Makes what instructions run."""

    def region(
        self, function: Function, block: Block, known: Sequence[str], device: str | None = None
    ) -> RegionProgram: ...

    def whole(self, function: Function) -> Callable[[list[Any], Mapping[str, int]], Any]: ...

    def constant(self, e: Expr) -> Any: ...

    def fit(self, function: Function) -> Callable[[Sequence[Any]], Mapping[str, int]]: ...

    def cast(self, function: Function, bound: Expr) -> Bind: ...

    def data_check(self, call: Expr) -> Bind: ...

    def advance(self, function: Function) -> Advances | None:
        """Takes steps of a function that ends in a call of itself; None where it is run by its instructions."""
        ...

    def fold(self, fold: Fold) -> RunsFold: ...


class ModuleCompiler:
    """Compiles the functions of `module`, each when it is asked for.

    - `stepped`: the functions that are no XLA programs.
    - `programs`: makes what instructions run.
    """

    def __init__(self, module: Module, stepped: frozenset[str], programs: Programs) -> None:
        self.functions = {f.name: f for f in module}
        self.stepped = stepped
        self.programs = programs
        self.folds = folds_of(module)
        self.mentions = Counter(e.attr("name") for f in module for e in f.expressions() if e.op == heads.FUNCTION)
        self.meshes = {f.name: m for f in module if (m := mesh_in(f))}  # of functions that place values on one
        copies = (copied_to(e) is not None for f in module for e in f.expressions())
        self.is_placed = bool(self.meshes) or any(copies)
        names = {v for f in module for v in (*f.size_variables, *f.cast_variables)}
        self.mark = "_"  # begins the numbered suffix of new names of sizes; no name of the module contains it
        while any(self.mark in v for v in names):
            self.mark += "_"
        self.unchecked = {f.name for f in module if not f.size_variables} - set(_checked_functions(module))

    def code(self, name: str) -> ins.Code:
        """Returns the instructions of a function."""
        f = self.functions[name]
        fit = None if name in self.unchecked else self.programs.fit(f)
        if name not in self.stepped:
            n = len(f.params)
            sizes = tuple((v, v) for v in f.size_variables)
            run = ins.RunProgram(n, self.programs.whole(f), name, tuple(range(n)), sizes)
            return ins.Code(name, n, (None,) * (n + 1), (run, ins.Return(-1, n)), self.programs.fit(f))
        made = _FunctionCompiler(self, f)
        planned = with_storages(made.instructions(), made.regions, made.new_register)
        code = with_kills(planned, made.constants.values())
        return ins.Code(name, len(f.params), tuple(made.registers), code, fit)


def _checked_functions(module: Module) -> Iterable[str]:
    """Yields the functions that check their arguments at a call: the entry, functions that are values, and functions
    with an argument that is not known to fit."""
    yield module.main.name
    named = {f.name: f for f in module}
    for f in module:
        roots = [f.result, *f.values]
        yield from (e.attr("name") for e in roots if e.op == heads.FUNCTION)
        for e in f.expressions():
            runs = functions_of(e)
            yield from (a.attr("name") for a in e.args if a.op == heads.FUNCTION and a.attr("name") not in runs)
            if e.op not in heads.RUNNING:
                continue
            for run in runs_of(e.op, e.args, dict(e.attrs)):
                name = run.function.attr("name") if run.function.op == heads.FUNCTION else None
                if name not in named:
                    continue
                params = named[name].params
                given = [*run.constants, *run.carry]
                if run.slices or not all(
                    covers(p.annotation, a.annotation) for p, a in zip(params, given, strict=False)
                ):
                    yield name


@dataclass(slots=True)
class _Scope:
    """A function that is being compiled, alone or inside of another.

    - `function`: the function.
    - `registers`: the registers of its variables.
    - `fields`: the registers of the fields of tuples that are not made.
    - `sizes`: the frame's names of its size variables.
    - `suffix`: what distinguishes the frame's names.
    """

    function: Function
    registers: dict[Expr, int]
    fields: dict[Expr, tuple[int, ...]]
    sizes: dict[str, str]
    suffix: str


class _FunctionCompiler:
    def __init__(self, module: ModuleCompiler, function: Function) -> None:
        self.module = module
        self.programs = module.programs
        self.registers: list[Any] = []
        self.constants: dict[Expr, int] = {}
        self.code: list[ins.Instruction] = []
        self.labels: list[int] = []  # the index of the instruction at each label
        self.regions: dict[int, PlannedRegion] = {}  # by the index of the instruction
        self.branch: Branch = ()  # the labels of the branches that are being compiled
        self.inlined = 0
        self.places: dict[Expr, str] = {}  # the devices of variables, where they are known
        self.running = [function.name]
        scope = _Scope(function, {}, {}, {v: v for v in function.size_variables}, "")
        for p in function.params:
            scope.registers[p] = self.new_register()
        if not module.is_placed and (advance := self.programs.advance(function)) is not None:
            args = tuple(scope.registers.values())
            self.code.append(ins.Advance(-1, advance, function.name, args, tuple(scope.sizes.items())))
        self._body(scope)
        self.code.append(ins.Return(-1, self._operand(function.result, scope)))

    def instructions(self) -> tuple[ins.Instruction, ...]:
        """The instructions, with places in place of labels, and with the calls that are last steps marked."""
        placed: list[ins.Instruction] = []
        for i in self.code:
            if isinstance(i, (ins.BranchOn, ins.Switch)):
                placed.append(replace(i, places=tuple(self.labels[p] for p in i.places)))
            else:
                placed.append(replace(i, place=self.labels[i.place]) if isinstance(i, ins.Jump) else i)
        return tuple(
            replace(i, is_tail=True) if isinstance(i, (ins.CallFunction, ins.CallValue)) and _is_last(placed, k) else i
            for k, i in enumerate(placed)
        )

    def new_register(self, value: Any = None) -> int:
        self.registers.append(value)
        return len(self.registers) - 1

    def _label(self) -> int:
        self.labels.append(-1)
        return len(self.labels) - 1

    def _place(self, label: int) -> None:
        self.labels[label] = len(self.code)

    def _body(self, scope: _Scope) -> None:
        for block in scope.function.blocks:
            if block.dataflow:
                self._dataflow(block.bindings, scope)
                continue
            for b in block.bindings:
                self._step(b, scope)

    def _dataflow(self, bindings: Sequence[Binding], scope: _Scope) -> None:
        computed: list[Binding] = []
        for b in bindings:
            if all(e.op in heads.PASSIVE for e in postorder([b.value])):
                scope.registers[b.var] = self._operand(b.value, scope)
            else:
                computed.append(b)
        if not self.module.is_placed:
            return self._region(computed, scope) if computed else None
        # Bindings of one device together, if none of them reads, by way of another device, what a later one computes.
        groups: list[tuple[str, list[Binding]]] = []
        group: dict[Expr, int] = {}
        for b in computed:
            device = self._device(b)
            first = max((group.get(e, 0) for e in postorder([b.value])), default=0)
            i = next((i for i in range(first, len(groups)) if groups[i][0] == device), len(groups))
            groups += [(device, [])] if i == len(groups) else []
            groups[i][1].append(b)
            group[b.var] = i
        for device, bindings in groups:
            self._region(bindings, scope, device)
        return None

    def _device(self, b: Binding) -> str:
        """The device, or the mesh, on which a block's binding runs: where it places a value, or else that of what it
        reads; "" where that is not known."""
        found = next((d for e in reversed(postorder([b.value])) if (d := self._device_of(e))), "")
        self.places[b.var] = found
        return found

    def _device_of(self, e: Expr) -> str:
        function = self.module.meshes.get(str(e.attr("name")), "") if e.op == heads.FUNCTION else ""
        return mesh_of(e) or function or self.places.get(e, "")

    def _region(self, bindings: Sequence[Binding], scope: _Scope, device: str | None = None) -> None:
        program = self.programs.region(scope.function, Block(tuple(bindings)), tuple(scope.sizes), device)
        reads = tuple(self._operand(e, scope) for e in program.reads)
        outputs = tuple(self.new_register() for _ in bindings)
        sizes = tuple((v, scope.sizes[v]) for v in program.sizes if v in scope.sizes)
        name = ", ".join(b.name for b in bindings)
        kinds = tuple(_in_frame(b.var.annotation, scope.sizes) for b in bindings)
        self.regions[len(self.code)] = PlannedRegion(kinds, self.branch, program.planned)
        self.code.append(ins.RunRegion(-1, program.run, name, reads, sizes, outputs))
        scope.registers.update(zip((b.var for b in bindings), outputs, strict=True))

    def _operand(self, e: Expr, scope: _Scope) -> int:
        """The register of a value, with the instructions that compute it."""
        if e in scope.registers:
            return scope.registers[e]
        if e in scope.fields:
            found = self._made(ins.MakeTuple, scope.fields[e])
            scope.registers[e] = found
            return found
        if e.op in (heads.CONSTANT, heads.FUNCTION):
            if e not in self.constants:
                value = e.attr("name") if e.op == heads.FUNCTION else self.programs.constant(e)
                self.constants[e] = self.new_register(value)
            return self.constants[e]
        if e.op == heads.TUPLE_GET and e.args[0] in scope.fields:
            return scope.fields[e.args[0]][e.attr("index")]
        if e.op in _SIMPLE or e.op == heads.SHAPE:
            return self._simple(e, scope)
        made = Binding(e, e)
        self._region([made], scope)
        return scope.registers.pop(e)

    def _made(self, kind: Callable[..., ins.Instruction], *parts: Any) -> int:
        into = self.new_register()
        self.code.append(kind(into, *parts))
        return into

    def _simple(self, e: Expr, scope: _Scope) -> int:
        """The register of the value of a node for which a single instruction exists."""
        if e.op == heads.SHAPE:
            dims = e.attr("dims")
            names = sorted({v for d in dims for v in d.variables})
            known = tuple((v, scope.sizes[v]) for v in names)
            return self._made(ins.MakeShape, lambda sizes: tuple(int(d.evaluate(sizes)) for d in dims), known)  # type: ignore[reportUnknownLambdaType]
        args = [self._operand(a, scope) for a in e.args]
        if e.op == heads.TUPLE:
            return self._made(ins.MakeTuple, tuple(args))
        if e.op == heads.TUPLE_GET:
            return self._made(ins.Field, args[0], e.attr("index"))
        if e.op == heads.CONSTRUCT:
            assert isinstance(e.annotation, Data)
            definition = e.annotation.definition
            return self._made(ins.Construct, definition, definition.index(e.attr("constructor")), tuple(args))
        if e.op == heads.CLOSURE:
            return self._made(ins.MakeClosure, args[0], tuple(args[1:]))
        if e.op == heads.NEW_REF:
            return self._made(ins.NewRef, args[0])
        return (
            self._made(ins.ReadRef, args[0]) if e.op == heads.READ_REF else self._made(ins.WriteRef, args[0], args[1])
        )

    def _step(self, b: Binding, scope: _Scope) -> None:
        e = b.value
        if e.op in (heads.COND, heads.MATCH):
            self._choice(b, scope)
            return
        if e.op == heads.MATCH_CAST:
            value = self._operand(e.args[0], scope)
            new = all_sizes(e) - scope.sizes.keys()
            bound = tuple((v, v + scope.suffix) for v in sorted(new))
            bind = self.programs.cast(scope.function, b.var)
            self.code.append(ins.BindSizes(-1, bind, (value,), tuple(scope.sizes.items()), bound))
            scope.sizes.update(bound)
            scope.registers[b.var] = value
            return
        if e.op == heads.CALL and e.args[0].op == heads.FUNCTION:
            args, name = tuple(self._operand(a, scope) for a in e.args[1:]), e.args[0].attr("name")
            self._check_data(e, args)
            fold = self.module.folds.get(name) if name not in self.running else None
            # The function itself runs node by node: its cases call it as any function.
            if fold is not None and not any(c.body.name == f"{self.running[0]}_body" for c in fold.cases):
                made = self._made(ins.RunFold, self.programs.fold(fold), name, fold.place, args)
            else:
                made = self._made(ins.CallFunction, name, args)
            scope.registers[b.var] = made
        elif e.op == heads.CALL:
            callee, *args = [self._operand(a, scope) for a in e.args]
            self._check_data(e, tuple(args))
            scope.registers[b.var] = self._made(ins.CallValue, callee, tuple(args))
        elif (device := copied_to(e)) is not None:
            self.places[b.var] = device
            scope.registers[b.var] = self._made(ins.CopyTo, self._operand(e.args[0], scope), device)
        elif e.op in heads.CONTROL or e.op == heads.CALL_DPS_LIBRARY:
            args = tuple(self._operand(a, scope) for a in e.args)
            kind = ins.RunLoop if e.op in heads.CONTROL else ins.CallLibrary
            scope.registers[b.var] = self._made(kind, e, args, tuple(scope.sizes.items()))
        else:
            scope.registers[b.var] = self._operand(e, scope)

    def _check_data(self, e: Expr, args: tuple[int, ...]) -> None:
        """Adds the check of data whose tensors may have other sizes than the function that is called says."""
        callee, given = e.args[0].annotation, [a.annotation for a in e.args[1:]]
        if not isinstance(callee, Signature) or not any(map(sizes_in_data, callee.params)):
            return
        told = call_sizes(callee.params, given)
        if not all(
            covers(substitute(p, told), a) for p, a in zip(callee.params, given, strict=False) if sizes_in_data(p)
        ):
            bind = self.programs.data_check(e)
            self.code.append(ins.BindSizes(-1, bind, args, (), ()))

    def _choice(self, b: Binding, scope: _Scope) -> None:
        """Compiles a `cond` or `match`: each branch, and where it is one function's own, its function in place."""
        e = b.value
        parts = group_arguments(e.op, e.args, dict(e.attrs))
        value = self._operand(parts.index, scope)
        given = [self._operand(a, scope) for a in parts.constants]
        known: list[Annotation] = [a.annotation for a in parts.constants]
        assert isinstance(e.annotation, Tuple)
        outputs = tuple(self.new_register() for _ in e.annotation.fields)
        labels = tuple(self._label() for _ in parts.functions)
        end = self._label()
        fields: list[tuple[int, ...]] = [()] * len(labels)
        more: list[tuple[Annotation, ...]] = [()] * len(labels)
        if e.op == heads.MATCH:
            assert isinstance(parts.index.annotation, Data)
            more = [parts.index.annotation.fields(i) for i in range(len(labels))]
            fields = [tuple(self.new_register() for _ in m) for m in more]
            self.code.append(ins.Switch(-1, value, labels, tuple(fields)))
        else:
            self.code.append(ins.BranchOn(-1, value, labels))
        for label, function, own, kinds in zip(labels, parts.functions, fields, more, strict=True):
            self._place(label)
            self.branch = (*self.branch, label)
            self._branch(function.attr("name"), [*given, *own], [*known, *kinds], scope, outputs)
            self.branch = self.branch[:-1]
            self.code.append(ins.Jump(-1, end))
        self._place(end)
        scope.fields[b.var] = outputs

    def _branch(
        self, name: str, args: list[int], known: list[Annotation], scope: _Scope, outputs: tuple[int, ...]
    ) -> None:
        if name in self.running or self.module.mentions[name] > 1:
            whole = self._made(ins.CallFunction, name, tuple(args))
            self.code += [ins.Field(into, whole, i) for i, into in enumerate(outputs)]
            return
        inner = self._inside(self.module.functions[name], args, known, scope)
        self.running.append(name)
        self._body(inner)
        result = inner.function.result
        if result.op == heads.TUPLE:
            sources = [self._operand(a, inner) for a in result.args]
            self.code += [ins.Move(into, s) for into, s in zip(outputs, sources, strict=True)]
        else:
            whole = self._operand(result, inner)
            self.code += [ins.Field(into, whole, i) for i, into in enumerate(outputs)]
        self.running.pop()

    def _inside(self, f: Function, args: list[int], known: list[Annotation], outer: _Scope) -> _Scope:
        """The scope of a function that stands in place of its call."""
        self.inlined += 1
        suffix = f"{self.module.mark}{self.inlined}"
        inner = _Scope(f, dict(zip(f.params, args, strict=True)), {}, {}, suffix)
        same = all(p.annotation == a for p, a in zip(f.params, known, strict=True))
        if same and set(f.size_variables) <= outer.sizes.keys():
            inner.sizes.update((v, outer.sizes[v]) for v in f.size_variables)
        elif f.size_variables:
            bound: ins.Sizes = tuple((v, v + suffix) for v in f.size_variables)
            fit = self.programs.fit(f)
            self.code.append(ins.BindSizes(-1, lambda values, _: fit(values), tuple(args), (), bound))
            inner.sizes.update(bound)
        return inner


def _in_frame(a: Annotation, sizes: Mapping[str, str]) -> Tensor | None:
    """The annotation of a tensor in the frame's names of sizes; None where a size is not known when it is computed."""
    if not isinstance(a, Tensor) or not {v for d in dims_of(a) for v in d.variables} <= sizes.keys():
        return None
    renamed = substitute(a, {v: Dim.var(own) for v, own in sizes.items() if v != own})
    return renamed if isinstance(renamed, Tensor) else None


_SIMPLE = frozenset(
    (heads.TUPLE, heads.TUPLE_GET, heads.CONSTRUCT, heads.CLOSURE, heads.NEW_REF, heads.READ_REF, heads.WRITE_REF)
)


def _is_last(code: Sequence[ins.Instruction], place: int) -> bool:
    """Whether the result of the instruction at `place` is returned, and nothing else happens after it."""
    register, at = code[place].into, place + 1
    while True:
        i = code[at]
        if isinstance(i, ins.Jump):
            at = i.place
        elif isinstance(i, ins.Move) and i.source == register:
            register, at = i.into, at + 1
        else:
            return isinstance(i, ins.Return) and i.source == register
