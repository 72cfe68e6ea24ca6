"""The problem of selecting kernels: the ways to compute each class, what each reads and its price. What neither new
kernels nor new prices change is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.extract.costs.numbers import LEAST_SECONDS
from relax_eg.extract.costs.pricing import Pricing
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.operations import Operation
from relax_eg.extract.kernels.states import Kernel, State, StateTable
from relax_eg.extract.kernels.ways import Way, is_single_operator
from relax_eg.extract.selection.problem import Problem, used_classes
from relax_eg.ir.expr import CALL_TIR, CONSTANT, VAR
from relax_eg.ops.fused import VIEWS

_AS_ESTIMATED = 1.02  # chosen: factor over its estimate from which a kernel gets the price of its composed program
_PART = 1e-12  # chosen: seconds: the price of reading one result of a kernel with several

Row = tuple[list[Way], list[tuple[int, ...]], list[float]]  # ways, the classes that each reads, the cost of each
Priced = tuple[Way, tuple[int, ...], float]  # a way, the classes that it reads, its cost
# By the ids of states: seconds of kernels that are not those of the state; and the states whose composed program was
# priced.
Timed = tuple[dict[int, float], set[int]]

# A function from the classes that a kernel stores, its members and its loads to its seconds at each binding.
Composed = Callable[[tuple[int, ...], Mapping[int, int], Mapping[int, int]], Sequence[float]]


def table_of(graph: ExtractionGraph, model: KernelCost, steps: frozenset[str]) -> StateTable:
    """The table that makes the kernels of a graph: that of the last selection, if kernels have the same prices now."""
    found = graph.table
    if not (isinstance(found, StateTable) and found.steps == steps and _prices_alike(found, model)):
        found = graph.table = StateTable(graph, model, steps)
    found.model = model
    return found


def _prices_alike(table: StateTable, model: KernelCost) -> bool:
    """Whether the states of a table have the prices that this model gives them."""
    before = table.model
    if (table.waits, before.own_share) != (model.waits, model.own_share):
        return False
    return before.cost is model.cost and before.binding == model.binding and before.profile == model.profile


@dataclass
class WayRows:
    """The ways to compute each class of a graph, with their prices.

    - `graph`, `models`, `pricing`, `composed`, `as_written`: as in `selection.select_kernels`.
    - `table`: makes the kernels.
    - `views`: whether views are views outside of kernels too.
    - `operations`: the candidates that kernels may contain.
    - `pool`: for each class, the kernels made so far.
    - `several`: the kernels with several outputs.
    - `weights`: the weight of each binding.
    - `made`: the ways and the problem; None after kernels or prices changed.
    """

    graph: ExtractionGraph
    models: Sequence[KernelCost]
    pricing: Pricing
    composed: Composed | None
    as_written: bool
    table: StateTable
    views: bool
    operations: dict[tuple[int, int], Operation]
    pool: list[dict[tuple[frozenset[int], frozenset[tuple[int, int]]], State]] = field(init=False)
    several: list[Kernel] = field(default_factory=list[Kernel])
    weights: list[float] = field(init=False)
    made: tuple[list[list[Way]], Problem] | None = None
    _known: set[int] = field(default_factory=set[int])  # the ids of the states in the pool
    _rows: dict[int, Row] = field(default_factory=dict[int, Row])  # of the classes whose ways and prices are unchanged
    _operators: dict[int, Row] = field(default_factory=dict[int, Row])  # the ways that are no kernels of the table
    _states: dict[int, Priced] = field(default_factory=dict[int, Priced])  # by the id of the state
    _timed: Timed = field(default_factory=lambda: ({}, set()))
    _timed_at: dict[float, Timed] = field(default_factory=dict[float, Timed])  # by the share of waiting charged
    _inside: dict[frozenset[tuple[int, int]], int] = field(default_factory=dict[frozenset[tuple[int, int]], int])

    def __post_init__(self) -> None:
        self.pool = [{} for _ in self.graph.candidates]
        self.weights = [1.0] * len(self.models)
        self.add_single_operators(self.operations)

    # --- the ways ---

    def add(self, c: int, state: State) -> None:
        """Adds a kernel that stores class `c`."""
        if id(state) in self._known:
            return
        self._known.add(id(state))
        key = frozenset(state.loads), frozenset(state.members.items())
        if key not in self.pool[c]:
            self.pool[c][key] = state
            self._invalidate(c)

    def add_several(self, kernel: Kernel) -> None:
        """Adds a kernel with several outputs."""
        self.several.append(kernel)
        self._invalidate(*kernel.outputs)

    def add_operations(self, more: Mapping[tuple[int, int], Operation]) -> None:
        """Adds operators that kernels may contain."""
        fresh = {place: more[place] for place in more if place not in self.operations}
        self.operations.update(fresh)
        self._invalidate()
        self.add_single_operators(fresh)

    def add_single_operators(self, operations: Iterable[tuple[int, int]]) -> None:
        for c, k in operations:
            alone = self.table.single_operator_state(c, k)
            if alone is not None and not self.is_view(c, k):
                self.add(c, alone)

    def is_view(self, c: int, k: int) -> bool:
        """Whether a candidate is a view outside of kernels."""
        return self.views and (o := self.operations.get((c, k))) is not None and o.is_view

    def _invalidate(self, *classes: int) -> None:
        """Drops the rows of these classes, because their ways or prices changed; without classes, all prices."""
        self.made = None
        for c in classes:
            self._rows.pop(c, None)
        if not classes:
            self._rows, self._operators, self._states = {}, {}, {}

    def problem(self) -> tuple[list[list[Way]], Problem]:
        """All ways to compute each class, then those to compute each kernel with several outputs; and the problem with
        their reads and costs."""
        if self.made is None:
            self.made = self._make_problem()
        return self.made

    def _make_problem(self) -> tuple[list[list[Way]], Problem]:
        for c in range(len(self.graph.candidates)):
            if c not in self._rows:
                self._rows[c] = self._row(c)
        rows = [self._rows[c] for c in range(len(self.graph.candidates))]
        ways, reads, costs = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
        for several in self.several:
            ways.append([Way(-1)])
            reads.append([tuple(several.loads)])
            costs.append([self._price(several, self._kernel_seconds(several))])
        return ways, Problem(reads, costs, tuple(dict.fromkeys(self.graph.roots)))

    def _row(self, c: int) -> Row:
        """All ways to compute a class, with their reads and costs."""
        if c not in self._operators:
            self._operators[c] = self._operators_of(c)
        operators = self._operators[c]
        mine, needs, prices = list(operators[0]), list(operators[1]), list(operators[2])
        for state in self.pool[c].values():
            found = self._states.get(id(state))
            if found is None:
                price = self._price(state.kernel(c), self.state_seconds(c, state))
                found = self._states[id(state)] = Way(state.members[c], state), state.reads, price
            mine.append(found[0])
            needs.append(found[1])
            prices.append(found[2])
        for i, several in enumerate(self.several):
            if c in several.outputs:
                mine.append(Way(several.members[c], None, i))
                needs.append((len(self.graph.candidates) + i,))
                prices.append(_PART)
        return mine, needs, prices

    def _operators_of(self, c: int) -> Row:
        """The candidates of a class that are no kernels of the table."""
        found: Row = [], [], []
        for k, candidate in enumerate(self.graph.candidates[c]):
            if (c, k) not in self.operations or self.is_view(c, k):
                reads = tuple(dict.fromkeys(candidate.children))
                size = self.table.bytes[c] if self._is_new(c, k) else 0
                found[0].append(Way(k))
                found[1].append(reads)
                found[2].append(self.pricing.price_of((c,), reads, self._candidate_seconds(c, k), (size,)))
        return found

    def single_operator_choice(
        self, ways: Sequence[Sequence[Way]], candidates: Sequence[int], tree: Sequence[int]
    ) -> list[int]:
        """A choice in which every operator is a kernel of its own.

        - `candidates`: for each class, the candidate of the graph, or -1.
        - `tree`: the choice for classes where this is not possible.
        """
        choice: list[int] = []
        for c, row in enumerate(ways):
            k = candidates[c] if c < len(candidates) else -1
            mine = [i for i, w in enumerate(row) if k >= 0 and w.candidate == k and is_single_operator(w)]
            choice.append(mine[0] if mine else tree[c])
        return choice

    # --- prices ---

    def _price(self, kernel: Kernel, seconds: float) -> float:
        """The price of a kernel that takes `seconds`."""
        sizes = [self.table.bytes[c] for c in kernel.outputs]
        inside = self._private_bytes(kernel)
        return self.pricing.price_of(kernel.outputs, tuple(kernel.loads), seconds, sizes, inside)

    def _private_bytes(self, kernel: Kernel) -> int:
        """The private bytes of a kernel, which only its executable has in memory: measured, or else estimated."""
        if not self.pricing.held or len(kernel.members) == 1:
            return 0
        members = frozenset(kernel.members.items())
        if members not in self._inside:
            measured = self.pricing.inside.get(members)
            self._inside[members] = self.table.private_bytes(kernel) if measured is None else measured
        return self._inside[members]

    def _is_new(self, c: int, k: int) -> bool:
        """Whether the candidate adds a value to memory: it is no input, constant or inner view."""
        op = self.graph.candidates[c][k].op
        return op not in (VAR, CONSTANT) and (op not in VIEWS or c in self.graph.roots)

    def _candidate_seconds(self, c: int, k: int) -> float:
        if self.as_written and self.graph.as_written[c] != k:
            return math.inf
        site, annotation = self.graph.candidates[c][k].site, self.graph.annotations[c]
        if site.op in VIEWS and c in self.graph.roots:  # a result must not be a view, so it is copied
            return self._weighed(m.kernel((), 0.0, 2 * m.bytes(annotation)) for m in self.models)
        return self._weighed(m.price(site, annotation).seconds for m in self.models)

    def state_seconds(self, c: int, state: State) -> float:
        """Seconds of the kernel of a state of class `c`, weighed."""
        found = self._timed[0].get(id(state))
        if found is None:
            alone = self.models[0] if len(self.models) == 1 else None
            if alone is not None and alone.cost is None and alone.waits == self.table.waits:
                return self.weights[0] * state.kernel_seconds
            found = self._timed[0][id(state)] = self._kernel_seconds(state.kernel(c))
        return found

    def _kernel_seconds(self, kernel: Kernel) -> float:
        # The user's model prices programs, not their parts.
        if self.composed is not None and self.models[0].cost is not None:
            return self._weighed(self.composed(kernel.outputs, kernel.members, kernel.loads))
        return self._weighed(self.table.seconds(kernel, m) for m in self.models)

    def _weighed(self, each: Iterable[float]) -> float:
        """The sum over the bindings of the seconds, times the weight of the binding."""
        return sum(w * s for w, s in zip(self.weights, each, strict=True))

    def weigh(self, ways: Sequence[Sequence[Way]], written: Sequence[int]) -> None:
        """Sets the weight of each binding to 1 over the cost of the program as written at that binding."""
        used = [c for c in used_classes(self.problem()[1], written) if c < len(self.graph.candidates)]
        weights: list[float] = []
        for i in range(len(self.models)):
            self.weights, self._timed = [float(i == j) for j in range(len(self.models))], ({}, set())
            total = sum(self._way_seconds(c, ways[c][written[c]]) for c in used)
            weights.append(1.0 / max(total, LEAST_SECONDS))
        self.weights, self._timed = weights, ({}, set())
        self._invalidate()

    def _way_seconds(self, c: int, way: Way) -> float:
        return self._candidate_seconds(c, way.candidate) if way.state is None else self.state_seconds(c, way.state)

    def set_waits(self, waits: float) -> None:
        """Sets the share `waits` of dispatch time beyond a kernel's own time that kernels are charged."""
        if self.models[0].waits != waits:
            self._timed_at[self.models[0].waits] = self._timed
            self._timed = self._timed_at.get(waits, ({}, set()))
            self._invalidate()
            for m in self.models:
                m.set_waits(waits)

    def correct_price(self, c: int, state: State) -> bool:
        """Raises the price of a kernel to that of its composed program, if that is higher and not known yet; returns
        whether it was raised."""
        seconds, checked = self._timed
        if self.composed is None or id(state) in checked:
            return False
        ops = [self.graph.candidates[x][k].op for x, k in state.members.items()]
        # An operator is priced as it is, but for what is compiled of it; a program may hold several.
        if len(ops) == 1 and ops != [CALL_TIR] and not self.models[0].knows_compiled:
            return False
        checked.add(id(state))
        found = self._weighed(self.composed((c,), state.members, state.loads))
        if found <= self.state_seconds(c, state) * _AS_ESTIMATED:
            return False
        seconds[id(state)] = found
        self._states.pop(id(state), None)
        self._invalidate(c)
        return True
