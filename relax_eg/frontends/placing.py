"""The devices of the values of a module that names several devices, and the copies between these devices.

A device that the text names is a constraint (`ir.devices`): a copy puts its result there, and a function runs there.
An operator reads its operands on its own device. Operators that are connected to values of one device only run on that
device, as by unification (Nimble, Section 4.4). An integer program chooses the devices of the others, so that the
fewest bytes are copied. A value is copied to a device at most once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from relax_eg.errors import WellFormedError
from relax_eg.integer_program import LinearProgram, branch, relaxation
from relax_eg.ir.annotations import Annotation, Ref, inside
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.control import functions_of
from relax_eg.ir.devices import ATTRIBUTE, copied_to, device_of, is_copied, to_device
from relax_eg.ir.expr import (
    CALL,
    CLOSURE,
    FUNCTION,
    MATCH_CAST,
    TUPLE,
    TUPLE_GET,
    VAR,
    Expr,
    fresh_name,
    postorder,
    tuple_get,
    var,
)
from relax_eg.ir.heads import LEAVES, with_operands
from relax_eg.ir.host_calls import is_host_call
from relax_eg.ir.memory import outputs_of, tensor_bytes
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.placements import device_name
from relax_eg.ir.steps import calls_value, is_data_dependent, passed_functions, stepped_functions
from relax_eg.traversal import connected, grouped

TYPICAL = 128  # chosen: elements of a size that is not known; only the ratios of bytes count


def default_device() -> str:
    """Returns the name of JAX's default device."""
    return device_name(jax.default_backend())


def with_copies(module: Module) -> Module:
    """Returns `module` with copies of values to the devices on which they are read. Pure bindings of the result are in
    dataflow blocks. If `module` names the default device only, the result names none.

    WellFormedError for a mutable cell that a function on another device reads.
    """
    declared = {f.name: d for f in module if (d := device_of(f)) is not None}
    copies = {d for f in module for e in f.expressions() if (d := copied_to(e)) is not None}
    if not declared and not copies:
        return module
    usual = default_device()
    if {*declared.values(), *copies} <= {usual}:
        return _without_devices(module)
    homes = _homes(module, declared, usual)
    values = passed_functions(module)
    returned = {f.name: _returned_on(f, homes[f.name]) for f in module}
    stepped = stepped_functions(module) | {module.main.name}
    named = {e.attr("name") for f in module for e in f.expressions() if e.op == FUNCTION}
    placed = {
        f.name: _Placement(
            f, homes, usual, f.name in values, returned, f.name == module.main.name and f.name not in named
        ).placed()
        for f in module
        if f.name in stepped
    }
    made = [placed.get(f.name, f) for f in module]
    main = next(f for f in made if f.name == module.main.name)
    kept = tuple((k, v) for k, v in main.attributes if k != ATTRIBUTE)
    entry = replace(main, attributes=(*kept, (ATTRIBUTE, homes[main.name])))
    return Module(tuple(entry if f is main else f for f in made))


def _returned_on(f: Function, home: str) -> tuple[str, ...]:
    """The devices of a function's result, one for each field of a tuple: the function's own, or that of a copy."""
    copies = {b.var: d for b in f.bindings if (d := copied_to(b.value)) is not None}
    return tuple(copies.get(e, home) for e in (f.result.args if f.result.op == TUPLE else (f.result,)))


def _without_devices(module: Module) -> Module:
    def plain(f: Function) -> Function:
        env: dict[Expr, Expr] = {}
        blocks: list[Block] = []
        for block in f.blocks:
            bindings: list[Binding] = []
            for b in block.bindings:
                (value,) = substitute_exprs([b.value], env)
                if copied_to(value) is not None:
                    env[b.var] = value.args[0]
                else:
                    bindings.append(Binding(b.var, value))
            blocks += [replace(block, bindings=tuple(bindings))] if bindings else []
        (result,) = substitute_exprs([f.result], env)
        kept = tuple((k, v) for k, v in f.attributes if k != ATTRIBUTE)
        return replace(f, blocks=tuple(blocks), result=result, attributes=kept)

    return Module(tuple(map(plain, module)))


def _homes(module: Module, declared: Mapping[str, str], usual: str) -> Mapping[str, str]:
    """The device of each function: the declared one; otherwise that of its callers, if they share one."""
    callers: dict[str, set[str]] = {f.name: set() for f in module}
    for f in module:
        for e in f.expressions():
            if e.op == FUNCTION:
                callers[e.attr("name")].add(f.name)
    homes = {module.main.name: usual, **declared}
    waiting = list(homes)
    named_by = grouped((f, g) for g, names in callers.items() for f in names)
    while waiting:
        for g in named_by.get(waiting.pop(), ()):
            found = {homes[f] for f in callers[g] if f in homes}
            new = declared.get(g) or (found.pop() if len(found) == 1 else usual)
            if homes.get(g) != new and not (g in homes and homes[g] == usual):
                homes[g] = new
                waiting.append(g)
    return {f.name: homes.get(f.name, usual) for f in module}


@dataclass
class ValueGraph:
    """The values of a function, and the reads between them.

    - `pinned`: the devices of the values whose device is given.
    - `reads`: the operands of each other value.
    - `bytes`: the bytes of each value.
    - `needs`: the values that steps read, each with the device on which they read it.
    """

    pinned: dict[Expr, str] = field(default_factory=dict[Expr, str])
    reads: dict[Expr, list[Expr]] = field(default_factory=dict[Expr, "list[Expr]"])
    bytes: dict[Expr, float] = field(default_factory=dict[Expr, float])
    needs: list[tuple[Expr, str]] = field(default_factory=list[tuple[Expr, str]])


class _Placement:
    """The placement of one function on its device, `homes[function]`.

    - `is_value`: whether the function is called as a value. Its callers do not know its device, so it copies its
      arguments.
    - `returned`: the devices of the results of each function.
    - `is_entry`: whether only users call the function. Its results are not copied.
    """

    def __init__(
        self,
        function: Function,
        homes: Mapping[str, str],
        usual: str,
        is_value: bool,
        returned: Mapping[str, tuple[str, ...]],
        is_entry: bool,
    ) -> None:
        self.function, self.homes, self.usual = function, homes, usual
        self.is_value, self.returned, self.is_entry = is_value, returned, is_entry
        self.home = homes[function.name]
        self.alias: dict[Expr, Expr] = {}  # the value of each variable of a binding
        self.graph = ValueGraph()
        self.taken = {b.name for b in function.bindings}
        self.taken |= {str(p.attr("name")) for p in function.params}
        self.copies: dict[tuple[Expr, str], Expr] = {}
        self.blocks: list[Block] = []

    def placed(self) -> Function:
        self._collect()
        self.device = chosen_devices(self.graph)
        arrived = [p for p in self.function.params if self.is_value and is_copied(p.annotation)]
        params = {p: var(fresh_name(f"{p.attr('name')}_given", self.taken), p.annotation) for p in arrived}
        self._steps([Binding(p, to_device(given, self.home)) for p, given in params.items()])
        for block in self.function.blocks:
            if block.dataflow:
                self._dataflow(block)
                continue
            for b in block.bindings:
                made = self._step(b.var, b.value)
                if calls_value(made) and is_copied(b.var.annotation):  # the device of the callee is not known
                    found = var(fresh_name(b.name, self.taken), b.var.annotation)
                    self._steps([Binding(found, made), Binding(b.var, to_device(found, self.home))])
                else:
                    self._steps([Binding(b.var, made)])
        (result,) = substitute_exprs(
            [self.function.result], {e: self._reads_at(e, self.home) for e in self._own_results()}
        )
        own = tuple(params.get(p, p) for p in self.function.params)
        return replace(self.function, params=own, blocks=tuple(self.blocks), result=result)

    # --- constraints ---

    def _needed_at(self, e: Expr) -> str | None:
        """The device on which a step reads its operands; None for a step that reads them on any device."""
        if copied_to(e) is not None or is_host_call(e) or is_data_dependent(e) or e.op == MATCH_CAST:
            return None
        names = functions_of(e)
        found = {self.homes[n] for n in names} if names else {self.home}
        return found.pop() if len(found) == 1 else self.home

    def _collect(self) -> None:
        g, f = self.graph, self.function
        for p in f.params:
            self._pin(p, self.home)
        for block in f.blocks:
            for b in block.bindings:
                if block.dataflow:
                    self._collect_value(b.value)
                    self.alias[b.var] = b.value
                    continue
                at = self._needed_at(b.value)
                self._check_cells(b)
                for a in b.value.args:
                    self._collect_value(a)
                    if at is not None:
                        g.needs.append((a, at))
                if b.value.op == MATCH_CAST:
                    self.alias[b.var] = b.value.args[0]
                    continue
                device = copied_to(b.value)
                if b.value.op == CALL and b.value.args[0].op == FUNCTION:
                    self._pin_result(b.var, self.returned[b.value.args[0].attr("name")])
                    continue
                is_host = device is None and (is_host_call(b.value) or is_data_dependent(b.value))
                self._pin(b.var, device or (self.usual if is_host else at or self.home))
                if device is not None:
                    g.needs.append((b.value.args[0], device))
        self._collect_value(f.result)
        g.needs += [(e, self.home) for e in self._own_results()]
        g.needs = [(self._source(e), d) for e, d in g.needs]
        g.reads = {e: [self._source(a) for a in reads] for e, reads in g.reads.items()}
        g.pinned = {e: d for e, d in g.pinned.items() if e not in self.alias}

    def _pin(self, e: Expr, device: str) -> None:
        self.graph.pinned[e] = device
        self.graph.bytes[e] = _bytes(e.annotation)

    def _pin_result(self, e: Expr, devices: tuple[str, ...]) -> None:
        """Pins the result of a call, and its fields if they are on several devices."""
        self._pin(e, devices[0])
        if len(set(devices)) > 1:
            for i, d in enumerate(devices):
                self._pin(tuple_get(e, i), d)

    def _own_results(self) -> list[Expr]:
        """The results that callers expect on the device of the function: those that it does not copy."""
        r = self.function.result
        copies = {b.var for b in self.function.bindings if copied_to(b.value) is not None}
        found = [e for e in (r.args if r.op == TUPLE else (r,)) if e not in copies and is_copied(e.annotation)]
        return [] if self.is_entry else found

    def _collect_value(self, value: Expr) -> None:
        for e in postorder([value]):
            if e.op not in LEAVES and e not in self.graph.reads and e not in self.graph.pinned:
                self.graph.reads[e] = list(e.args)
                self.graph.bytes[e] = _bytes(e.annotation)

    def _source(self, e: Expr) -> Expr:
        while e in self.alias:
            e = self.alias[e]
        return e

    def _check_cells(self, b: Binding) -> None:
        made = functions_of(b.value) if b.value.op == CALL else ()
        if b.value.op == CLOSURE and b.value.args[0].op == FUNCTION:
            made = (b.value.args[0].attr("name"),)
        for name in made:
            for a in b.value.args[1:]:
                if self.homes[name] != self.home and _has_cell(a.annotation):
                    what = f"`{a.attr('name')}`" if a.op == VAR else f"<{a.op}>"
                    raise WellFormedError(
                        f"{self.function.name}(), binding `{b.name}`: {what} has a mutable cell on {self.home}, and "
                        f"{name}() is on {self.homes[name]}\n"
                        "  accepted: the value in the cell, R.read_ref(...), or a function on the same device"
                    )

    def _place(self, e: Expr) -> str:
        return self.device.get(self._source(e), self.home)

    # --- the blocks of the result ---

    def _steps(self, bindings: list[Binding]) -> None:
        if not bindings:
            return
        if self.blocks and not self.blocks[-1].dataflow:
            bindings = [*self.blocks.pop().bindings, *bindings]
        self.blocks.append(Block(tuple(bindings), dataflow=False))

    def _at(self, v: Expr, device: str, place: str) -> Expr:
        """A variable, or its copy on a device."""
        if place == device or not is_copied(v.annotation):
            return v
        if (v, device) not in self.copies:
            name = fresh_name(f"{v.attr('name')}_on_{device.replace(':', '')}", self.taken)
            made = self.copies[v, device] = var(name, v.annotation)
            self._steps([Binding(made, to_device(v, device))])
        return self.copies[v, device]

    def _reads_at(self, e: Expr, device: str) -> Expr:
        """An operand of a step, or the result, in which every variable is on `device`."""
        env = {v: self._at(v, device, self._place(v)) for v in postorder([e]) if v.op == VAR}
        return substitute_exprs([e], env)[0]

    def _step(self, bound: Expr, e: Expr) -> Expr:
        device = copied_to(e)
        if device is not None and e.args[0].op == VAR and self._place(e.args[0]) == device:
            return e.args[0]  # no copy is needed
        if device is not None and e.args[0].op == VAR:
            self.copies.setdefault((e.args[0], device), bound)
        at = self._needed_at(e)
        return e if at is None else with_operands(e, [self._reads_at(a, at) for a in e.args])

    def _dataflow(self, block: Block) -> None:
        """Writes a block as blocks of one device each, with the copies between them."""
        order = [e for e in postorder(block.values) if e.op not in LEAVES]
        level: dict[Expr, int] = {}
        for e in order:
            own = self.device.get(e, self.home)
            level[e] = max((level[a] + (self.device.get(a, self.home) != own) for a in e.args if a in level), default=0)
        group = {e: (level[e], self.device.get(e, self.home)) for e in order}
        bound: dict[Expr, Expr] = {b.value: b.var for b in block.bindings if b.value in group}
        for e in order:
            for a in e.args:
                if a in group and group[a] != group[e] and a not in bound:
                    bound[a] = var(fresh_name("lv", self.taken), a.annotation)
                    self.alias[bound[a]] = a
        for key in sorted(set(group.values())):
            made: dict[Expr, Expr] = {}
            for e in (e for e in order if group[e] == key):
                is_there = e.op == TUPLE_GET and e in self.graph.pinned
                operands = e.args if is_there else [self._operand(a, key, group, bound, made) for a in e.args]
                made[e] = with_operands(e, operands)
            bindings = [Binding(bound[e], made[e]) for e in made if e in bound]
            if bindings:
                self.blocks.append(Block(tuple(bindings)))
        rest = [Binding(b.var, bound.get(b.value, b.value)) for b in block.bindings if bound.get(b.value) is not b.var]
        if rest:
            self.blocks.append(Block(tuple(rest)))

    def _operand(
        self,
        a: Expr,
        key: tuple[int, str],
        group: Mapping[Expr, tuple[int, str]],
        bound: Mapping[Expr, Expr],
        made: Mapping[Expr, Expr],
    ) -> Expr:
        if a in made:
            return made[a]
        if a in group:
            return self._at(bound[a], key[1], group[a][1])
        return self._at(a, key[1], self._place(a)) if a.op == VAR else a


def chosen_devices(graph: ValueGraph) -> Mapping[Expr, str]:
    """Returns the device of every value, such that the fewest bytes are copied."""
    free = [e for e in graph.reads if e not in graph.pinned]
    near = {e: {graph.pinned[a] for a in graph.reads[e] if a in graph.pinned} for e in free}
    for e, d in graph.needs:
        if e in near:
            near[e].add(d)
    found = dict(graph.pinned)
    hard: dict[Expr, set[str]] = {}
    for part in connected(free, ((e, a) for e in free for a in graph.reads[e] if a in near)):
        devices = set[str]().union(*(near[e] for e in part))
        if len(devices) == 1:
            found.update(dict.fromkeys(part, *devices))
        elif devices:
            hard.update(dict.fromkeys(part, devices))
    if hard:
        found.update(_solved(graph, [e for e in free if e in hard], sorted(set[str]().union(*hard.values()))))
    return found


def _solved(graph: ValueGraph, free: Sequence[Expr], devices: Sequence[str]) -> Mapping[Expr, str]:
    """The devices of `free` by an integer program. Its variables are x[e, d], 1 if e is on d, and c[v, d], 1 if v is
    copied to d."""
    program, n, k = LinearProgram(), len(free), len(devices)
    for _ in free:
        for j in range(k):
            program.column(1e-6 * j)  # given: of equal choices, that of the first device
    x = {e: i * k for i, e in enumerate(free)}
    copies: dict[tuple[Expr, int], int] = {}
    made = {*graph.needs}  # copies that steps need in any case

    def reads(value: Expr, reader: int | None, j: int) -> None:
        """Adds the constraint: if the reader is on device j, so is the value, or a copy of it. `reader`: the variable
        that is 1 if it is there; None for a reader that is."""
        place = graph.pinned.get(value)
        if place == devices[j] or (place is None and value not in x) or (place and (value, devices[j]) in made):
            return
        if (value, j) not in copies:
            copies[value, j] = program.column(max(graph.bytes[value], 1.0))
        there = [copies[value, j], *([x[value] + j] if place is None else [])]
        if reader is None:
            program.row(there, [1.0] * len(there), 1.0)
        else:
            program.at_most([reader], there)

    for e in free:
        for a in dict.fromkeys(graph.reads[e]):
            for j in range(k):
                reads(a, x[e] + j, j)
    for value, d in graph.needs:
        if value in x and d in devices:
            reads(value, None, devices.index(d))
    for i in range(n):
        program.row(range(i * k, i * k + k), [1.0] * k, 1.0, 1.0)
    solution = branch(relaxation(program), range(n * k), None, gap=0.0)
    assert solution.values is not None  # all values on one device are a solution
    chosen = np.asarray(solution.values)[: n * k].reshape(n, k).argmax(1)
    return {e: devices[int(j)] for e, j in zip(free, chosen, strict=True)}


def _bytes(a: Annotation) -> float:
    return float(sum(_tensor_bytes(t) for t in outputs_of(a)))


def _tensor_bytes(a: Annotation) -> float:
    size = tensor_bytes(a)
    return 1.0 if size is None else float(size.evaluate(dict.fromkeys(size.variables, TYPICAL)))


def _has_cell(a: Annotation) -> bool:
    return isinstance(a, Ref) or any(map(_has_cell, inside(a)))
