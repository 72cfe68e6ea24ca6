"""Selection over kernels: it chooses, together with the algebra, the values in memory and the kernel that computes
each.

The problem is that of `select` with kernels (`states`) as candidates: a class that is used is a value in memory, a
kernel reads its loads, and its price is that of the whole kernel. Kernels are made in rounds, at prices that the best
program so far determines. There are rounds with the operators as written only, with those of the best algebra only,
with those of the best algebra without library calls, and with all. Kernels are kept from round to round, so the result
never costs more than fusion alone, or than algebra first and fusion after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from relax_eg.extract.clock import Clock
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.greedy import dag_greedy
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.dispatch import dispatch_seconds, runs_ahead
from relax_eg.extract.kernels.ilp import solve_kernels
from relax_eg.extract.kernels.narrowing import cheap_ways, overlap_of, restrict_operators, without_free_classes
from relax_eg.extract.kernels.operations import Operation, operations_of
from relax_eg.extract.kernels.siblings import sibling_kernels
from relax_eg.extract.kernels.states import OVERSIZED, Kernel, State, StateTable
from relax_eg.extract.kernels.ways import KernelSelection, Way, is_same_way, is_single_operator
from relax_eg.extract.numbers import LEAST_SECONDS
from relax_eg.extract.pricing import FREE, Pricing
from relax_eg.extract.problem import (
    Problem,
    choice_cost,
    operands_first,
    repair_choice,
    tree_choice,
    tree_greedy,
    used_classes,
)
from relax_eg.extract.search import best_of
from relax_eg.extract.select import check_executable
from relax_eg.extract.sensitivity import sensitivity
from relax_eg.extract.solve import Solved, SolverEffort
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, CONSTANT, VAR
from relax_eg.logs import stage
from relax_eg.ops.fused import VIEWS

FUSE_SIBLINGS = "fuse_siblings"
VIEW_OF_RESHAPE = "view_of_reshape"
STEPS = frozenset(
    ("inline_elementwise", "inline_prologue", "inline_epilogue", "fuse_stages", FUSE_SIBLINGS, VIEW_OF_RESHAPE)
)
_ROUNDS = 3  # limit: rounds of making kernels at new prices
_EFFORT = SolverEffort(seconds=20.0, nodes=20, gap=1e-3, candidates=2000)  # limit: of one search for kernels
# limit: of one search for kernels if bytes have a price, because there are several searches then
_QUICK = SolverEffort(seconds=5.0, nodes=1, gap=1e-2, candidates=500)
_CORRECTIONS = 12  # limit: rounds in which the prices of kernels are corrected by those of their composed programs
# chosen: factor over its estimate: a kernel whose composed program takes longer gets the price of that program
_AS_ESTIMATED = 1.02
_FAR = 2.0  # chosen: factor over its estimate: the other kernels of the same value are not believed then either
_PART = 1e-12  # chosen: seconds: the price of reading one result of a kernel with several
_HELPS = 1e-6  # chosen: share of a program's cost that a round has to gain to be followed by another

Row = tuple[list[Way], list[tuple[int, ...]], list[float]]  # ways, the classes that each reads, the cost of each

# A function from the classes that a kernel stores, its members and its loads to its seconds at each binding.
Composed = Callable[[tuple[int, ...], Mapping[int, int], Mapping[int, int]], Sequence[float]]


@stage("select kernels")
def select_kernels(
    graph: ExtractionGraph,
    models: Sequence[KernelCost],
    steps: frozenset[str],
    composed: Composed | None = None,
    pricing: Pricing = FREE,
    clock: Clock | None = None,
    as_written: bool = False,
) -> KernelSelection:
    """The cheapest program of kernels found.

    - `models`: one per binding; each is weighed by the cost of the program as written there.
    - `steps`: the allowed fusion steps (`STEPS`).
    - `composed`: the seconds of a kernel's composed tensor program at each binding. They count if they exceed the
      estimate from the kernel's parts.
    - `pricing`: the prices of bytes and of work ahead of the calls.
    - `clock`: when it runs out, no further round, correction or integer program begins.
    - `as_written`: whether kernels contain the operators of the program as written only.
    """
    return KernelSearch(graph, models, steps, composed, pricing, clock or Clock(), as_written).run()


@dataclass
class KernelSearch:
    """The search for the kernels of one graph.

    - `graph`, `models`, `steps`, `composed`, `pricing`, `clock`, `as_written`: as in `select_kernels`.
    - `operations`: the candidates that kernels may contain.
    - `table`: makes the kernels.
    - `pool`: for each class, the kernels made so far.
    - `several`: the kernels with several outputs.
    - `weights`: the weight of each binding.
    - `memo`: the seconds of kernels, by the id of the state.
    - `checked`: the ids of the states whose composed program was priced.
    - `priced`: `memo` and `checked` by the share of waiting that is charged.
    - `inside`: the private bytes of kernels, by their members.
    - `made`: the ways and the problem; None after kernels or prices changed.
    - `rows`: the ways of each class, without classes whose ways or prices changed.
    """

    graph: ExtractionGraph
    models: Sequence[KernelCost]
    steps: frozenset[str]
    composed: Composed | None = None
    pricing: Pricing = FREE
    clock: Clock = field(default_factory=Clock)
    as_written: bool = False
    operations: dict[tuple[int, int], Operation] = field(init=False)
    table: StateTable = field(init=False)
    pool: list[dict[tuple[frozenset[int], frozenset[tuple[int, int]]], State]] = field(init=False)
    several: list[Kernel] = field(default_factory=list[Kernel])
    weights: list[float] = field(default_factory=list[float])
    memo: dict[int, float] = field(default_factory=dict[int, float])
    checked: set[int] = field(default_factory=set[int])
    priced: dict[float, tuple[dict[int, float], set[int]]] = field(
        default_factory=dict[float, tuple[dict[int, float], set[int]]]
    )
    inside: dict[frozenset[tuple[int, int]], int] = field(default_factory=dict[frozenset[tuple[int, int]], int])
    made: tuple[list[list[Way]], Problem] | None = None
    rows: dict[int, Row] = field(default_factory=dict[int, Row])

    def run(self) -> KernelSelection:
        """The cheapest program of kernels found."""
        graph = self.graph
        if runs_ahead(self.models):
            self._set_waits(1.0)
        written_only = graph.as_written if self.as_written or graph.node_count > OVERSIZED else None
        self.operations = operations_of(graph, self.models[0], written_only)
        self.table = StateTable(graph, self.models[0], self.steps, self.operations)
        self.table.prices = [0.0] * len(graph.candidates)
        self.weights = [1.0] * len(self.models)
        self.pool = [{} for _ in graph.candidates]
        self._add_single_operators(self.operations)
        ways, problem = self._problem()
        choice, total = tree_greedy(problem)
        check_executable(graph, problem, choice)
        classes = [c for c in range(len(graph.candidates)) if total[c] < math.inf]
        written = self._single_operator_choice(ways, graph.as_written, choice)
        written_cost = choice_cost(problem, written)
        if len(self.models) > 1:
            self._weigh(ways, written)
            ways, problem = self._problem()
            written_cost = choice_cost(problem, written)
        algebra = self._best(problem, [repair_choice(problem, written)] if written_cost < math.inf else [])
        as_written = [[k] if k >= 0 else [] for k in graph.as_written]
        chosen = [ways[c][k].candidate if k >= 0 else -1 for c, k in enumerate(algebra[: len(graph.candidates)])]
        by_algebra = [[k] if k >= 0 else [] for k in chosen]
        if written_only is not None and not self.as_written:
            more = operations_of(graph, self.models[0], chosen)
            fresh = {place: more[place] for place in more if place not in self.operations}
            self.operations.update(fresh)
            self._invalidate()
            self._add_single_operators(fresh)
            ways, problem = self._problem()
            choice, total = tree_greedy(problem)
            written = self._single_operator_choice(ways, graph.as_written, choice)
            algebra = self._single_operator_choice(ways, chosen, choice)
        starts = [(as_written, self._ways_of(ways, written))]
        if not self.as_written:
            starts.append((by_algebra, self._ways_of(ways, algebra)))
        own = None if self.as_written else self._without_libraries(ways, problem)
        if own is not None:
            starts.append(([[w.candidate] if w is not None else [] for w in own], own))
        everything = cheap_ways(problem, ways, total, *(allowed for allowed, _ in starts))
        found = [self._rounds(classes, allowed, start, only=True) for allowed, start in starts]
        best = self._rounds(classes, everything, self._cheapest(found), only=False)
        if FUSE_SIBLINGS in self.steps:
            for program in (best, *found):
                self._add_siblings(program)
        return self._exact(best, found, written_cost)

    # --- the problem ---

    def _add(self, c: int, state: State) -> None:
        key = frozenset(state.loads), frozenset(state.members.items())
        if key not in self.pool[c]:
            self.pool[c][key] = state
            self._invalidate(c)

    def _invalidate(self, *classes: int) -> None:
        """Drops the rows of these classes, because their ways or prices changed; without classes, all rows."""
        self.made = None
        for c in classes or tuple(self.rows):
            self.rows.pop(c, None)

    def _add_single_operators(self, operations: Iterable[tuple[int, int]]) -> None:
        for c, k in operations:
            alone = self.table.single_operator_state(c, k)
            if alone is not None and not self._is_view(c, k):
                self._add(c, alone)

    def _is_view(self, c: int, k: int) -> bool:
        return VIEW_OF_RESHAPE in self.steps and (o := self.operations.get((c, k))) is not None and o.is_view

    def _problem(self) -> tuple[list[list[Way]], Problem]:
        """All ways to compute each class, then those to compute each kernel with several outputs; and the problem with
        their reads and costs."""
        if self.made is None:
            self.made = self._make_problem()
        return self.made

    def _make_problem(self) -> tuple[list[list[Way]], Problem]:
        for c in range(len(self.graph.candidates)):
            if c not in self.rows:
                self.rows[c] = self._row(c)
        rows = [self.rows[c] for c in range(len(self.graph.candidates))]
        ways, reads, costs = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
        for several in self.several:
            ways.append([Way(-1)])
            reads.append([tuple(several.loads)])
            costs.append([self._price(several, self._seconds(several))])
        return ways, Problem(reads, costs, tuple(dict.fromkeys(self.graph.roots)))

    def _row(self, c: int) -> Row:
        """All ways to compute a class, with their reads and costs."""
        mine, needs, prices = list[Way](), list[tuple[int, ...]](), list[float]()
        for k, candidate in enumerate(self.graph.candidates[c]):
            if (c, k) not in self.operations or self._is_view(c, k):
                mine.append(Way(k))
                needs.append(tuple(dict.fromkeys(candidate.children)))
                size = self.table.bytes[c] if self._is_new(c, k) else 0
                prices.append(self.pricing.price_of((c,), needs[-1], self._candidate_seconds(c, k), (size,)))
        for state in self.pool[c].values():
            mine.append(Way(state.members[c], state))
            needs.append(state.reads)
            prices.append(self._price(state.kernel(c), self._state_seconds(c, state)))
        for i, several in enumerate(self.several):
            if c in several.outputs:
                mine.append(Way(several.members[c], None, i))
                needs.append((len(self.graph.candidates) + i,))
                prices.append(_PART)
        return mine, needs, prices

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
        if members not in self.inside:
            measured = self.pricing.inside.get(members)
            self.inside[members] = self.table.private_bytes(kernel) if measured is None else measured
        return self.inside[members]

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

    def _state_seconds(self, c: int, state: State) -> float:
        found = self.memo.get(id(state))
        if found is None:
            found = self.memo[id(state)] = self._seconds(state.kernel(c))
        return found

    def _seconds(self, kernel: Kernel) -> float:
        # The user's model prices programs, not their parts.
        if self.composed is not None and self.models[0].cost is not None:
            return self._weighed(self.composed(kernel.outputs, kernel.members, kernel.loads))
        return self._weighed(self.table.seconds(kernel, m) for m in self.models)

    def _weighed(self, each: Iterable[float]) -> float:
        """The sum over the bindings of the seconds, times the weight of the binding."""
        return sum(w * s for w, s in zip(self.weights, each, strict=True))

    def _weigh(self, ways: Sequence[Sequence[Way]], written: Sequence[int]) -> None:
        """Sets the weight of each binding to 1 over the cost of the program as written at that binding."""
        problem = self._problem()[1]
        used = [c for c in used_classes(problem, written) if c < len(self.graph.candidates)]
        weights: list[float] = []
        for i in range(len(self.models)):
            self.weights, self.memo = [float(i == j) for j in range(len(self.models))], {}
            total = sum(self._way_seconds(c, ways[c][written[c]]) for c in used)
            weights.append(1.0 / max(total, LEAST_SECONDS))
        self.weights, self.memo = weights, {}
        self._invalidate()

    def _way_seconds(self, c: int, way: Way) -> float:
        return self._candidate_seconds(c, way.candidate) if way.state is None else self._state_seconds(c, way.state)

    def _single_operator_choice(
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

    # --- the search ---

    def _without_libraries(self, ways: Sequence[Sequence[Way]], problem: Problem) -> list[Way | None] | None:
        """The best algebra without library calls, in which every operator is a kernel of its own; None if the graph has
        no library call, or cannot do without one.

        Without fusion, a call may be cheaper than operators that would be cheaper than the call when fused."""
        candidates = self.graph.candidates
        if all(k.op != CALL_DPS_LIBRARY for row in candidates for k in row):
            return None
        own = [[k for k, x in enumerate(row) if x.op != CALL_DPS_LIBRARY] for row in candidates]
        problem = restrict_operators(ways, problem, own)
        total = tree_greedy(problem)[1]
        if any(total[c] == math.inf for c in problem.roots):
            return None
        return self._ways_of(ways, self._best(problem, []))

    def _best(self, problem: Problem, seeds: Sequence[Sequence[int]]) -> list[int]:
        problem = without_free_classes(problem)
        return best_of(problem, (*seeds, tree_choice(problem), dag_greedy(problem)), self.clock.is_over)[0]

    def _rounds(
        self, classes: Sequence[int], allowed: Sequence[Sequence[int]], start: list[Way | None], only: bool
    ) -> list[Way | None]:
        """The best program after rounds of making kernels. The best program of one round sets the prices of the next.
        Rounds end when one gains nothing. Arguments are as in `_round`."""
        # The order follows reads, not prices: an operand may cost more than its reader if the reader has other ways.
        below = [[x for k in allowed[c] for x in row[k].children] for c, row in enumerate(self.graph.candidates)]
        order = operands_first((*self.graph.roots, *classes), below.__getitem__)
        best, afresh = start, False
        for _ in range(_ROUNDS if only else _ROUNDS + 1):
            if self.clock.is_over():
                break
            before = self._cost(best)
            best = self._cheapest([best, self._round(order, allowed, best, only, afresh)])
            if self._cost(best) < before * (1 - _HELPS):
                afresh = False
            elif only or afresh:
                break
            else:  # at the prices that a program sets itself, other programs rarely cost less
                afresh = True
        return best

    def _round(
        self,
        order: Sequence[int],
        allowed: Sequence[Sequence[int]],
        start: Sequence[Way | None],
        only: bool,
        afresh: bool,
    ) -> list[Way | None]:
        """Makes kernels of the `allowed` operators and returns the best program with them.

        - `order`: the classes in the order in which kernels are made.
        - `allowed`: for each class, the operators that kernels may contain.
        - `start`: the program that sets the prices.
        - `only`: whether the program may contain only the `allowed` operators.
        - `afresh`: whether prices are as if no value were in memory.
        """
        ways, problem = self._problem()
        choice = self._indices_of(ways, start)
        total = tree_greedy(problem)[1]
        used = set[int]() if afresh else used_classes(problem, choice)
        readers: dict[int, int] = {}
        for c in used:
            for x in problem.reads[c][choice[c]]:
                readers[x] = readers.get(x, 0) + 1
        # The price of a class in memory: 0 if it also stays there for other readers, else the reader's share.
        prices = [
            0.0 if c in used and readers.get(c, 0) > 1 and not only
            else problem.costs[c][choice[c]] / max(1, readers.get(c, 1)) if c in used
            else total[c]
            for c in range(len(self.graph.candidates))
        ]  # fmt: skip
        self.table.fill(order, allowed, prices)
        for c, states in enumerate(self.table.states):
            for s in states:
                if not (self._is_view(c, s.members[c]) and len(s.members) == 1):
                    self._add(c, s)
        ways, problem = self._problem()
        seed = self._indices_of(ways, start)
        if only:
            problem = restrict_operators(ways, problem, allowed)
        choice = self._best(problem, [repair_choice(problem, seed)])
        return self._ways_of(ways, choice)

    def _ways_of(self, ways: Sequence[Sequence[Way]], choice: Sequence[int]) -> list[Way | None]:
        n = len(self.graph.candidates)
        return [ways[c][k] if k >= 0 else None for c, k in enumerate(choice[:n])]

    def _indices_of(self, ways: Sequence[Sequence[Way]], chosen: Sequence[Way | None]) -> list[int]:
        """The indices of the `chosen` ways among `ways`, to which ways may have been added; -1 for none."""
        places = [
            next((i for i, w in enumerate(row) if w is x or is_same_way(w, x)), -1)
            for row, x in zip(ways, chosen, strict=False)
        ]
        return [*places, *(0 for _ in self.several)]

    def _cost(self, chosen: Sequence[Way | None]) -> float:
        ways, problem = self._problem()
        return choice_cost(problem, self._indices_of(ways, chosen))

    def _cheapest(self, found: Sequence[list[Way | None]]) -> list[Way | None]:
        ways, problem = self._problem()
        return min(found, key=lambda f: choice_cost(problem, self._indices_of(ways, f)))

    def _add_siblings(self, program: Sequence[Way | None]) -> None:
        """Adds the kernels with several outputs into which kernels of this program can be merged."""
        ways, problem = self._problem()
        used = used_classes(problem, self._indices_of(ways, program))
        states = {c: w.state for c in sorted(used) if (w := program[c]) is not None and w.state is not None}
        for made in sibling_kernels(self.graph, self.table, self.operations, states):
            if all(set(o.outputs) != set(made.outputs) or o.members != made.members for o in self.several):
                self.several.append(made)
                self._invalidate(*made.outputs)

    # --- the outcome ---

    def _exact(
        self, best: Sequence[Way | None], others: Sequence[Sequence[Way | None]], written_cost: float
    ) -> KernelSelection:
        ways, problem = self._problem()
        seeds = [repair_choice(problem, self._indices_of(ways, x)) for x in (best, *others)]
        solved = self._solve(seeds)
        if runs_ahead(self.models):
            solved, written_cost = self._solve_without_waits(solved, seeds, written_cost)
        ways, problem = self._problem()
        n = len(self.graph.candidates)
        order = operands_first(problem.roots, lambda c: problem.reads[c][solved.choice[c]])
        used = {c: ways[c][solved.choice[c]] for c in order if c < n}
        found = solved.cost, written_cost, solved.bound, solved.how, problem.node_count
        return KernelSelection(used, self.several, self.operations, *found, sensitivity(problem, solved.cost))

    def _solve_without_waits(
        self, solved: Solved, seeds: Sequence[Sequence[int]], written_cost: float
    ) -> tuple[Solved, float]:
        """The best program if no waiting is charged, and the price of the program as written then.

        `solved` and `written_cost` are returned unchanged if the host takes longer to dispatch than the device to
        compute, or if the new program is slower on the device or on the host."""
        before = self._device_and_host_seconds(solved.choice)
        if before[0] < before[1]:
            self._set_waits(1.0)
            return solved, written_cost
        # The kernels stay the same; their prices change.
        faster = self._solve([solved.choice, *seeds])
        busy, dispatching = self._device_and_host_seconds(faster.choice)
        if max(busy, dispatching) > before[0]:
            self._set_waits(1.0)
            return solved, written_cost
        ways, problem = self._problem()
        written = self._single_operator_choice(ways, self.graph.as_written, tree_choice(problem))
        return faster, choice_cost(problem, written)

    def _device_and_host_seconds(self, choice: Sequence[int]) -> tuple[float, float]:
        """The seconds that the device and the host take for a program. Sets the prices to the device's seconds."""
        self._set_waits(0.0)
        ways, problem = self._problem()
        used = [c for c in sorted(used_classes(problem, choice)) if c < len(self.graph.candidates)]
        chosen = ((c, ways[c][choice[c]]) for c in used)
        host = dispatch_seconds(self.graph, self.models, self.weights, self.pricing.static, chosen)
        return choice_cost(problem, choice), host

    def _set_waits(self, waits: float) -> None:
        """Sets the share `waits` of dispatch time beyond a kernel's own time that kernels are charged."""
        if self.models[0].waits != waits:
            self.priced[self.models[0].waits] = self.memo, self.checked
            self.memo, self.checked = self.priced.get(waits, ({}, set()))
            self._invalidate()
            for m in self.models:
                m.set_waits(waits)

    def _solve(self, seeds: Sequence[Sequence[int]]) -> Solved:
        """The best choice found from the seeds. The kernels in it have the prices of their composed programs."""
        ways, problem = self._problem()
        effort = _QUICK if self.pricing.held else _EFFORT
        choice = self._best(problem, seeds)
        for _ in range(_CORRECTIONS):  # before the integer program, which takes longer
            if self.clock.is_over() or not self._correct_prices(ways, problem, choice):
                break
            ways, problem = self._problem()
            choice = self._best(problem, [choice, *seeds[:1]])
        overlap = overlap_of(self.graph, ways, self.several)
        solved = self.clock.run_search(partial(solve_kernels, problem, overlap, choice), effort)
        for _ in range(_CORRECTIONS):
            if self.clock.is_over() or not self._correct_prices(ways, problem, solved.choice):
                break
            ways, problem = self._problem()
            # The indices of ways are unchanged, so the choice with the higher price remains one of the seeds.
            choice = self._best(problem, [solved.choice, *seeds[:1]])
            overlap = overlap_of(self.graph, ways, self.several)
            known = solved.bound  # prices only rise
            solved = self.clock.run_search(partial(solve_kernels, problem, overlap, choice, known=known), effort)
        return solved

    def _correct_prices(self, ways: Sequence[Sequence[Way]], problem: Problem, choice: Sequence[int]) -> bool:
        """Raises the prices of chosen kernels to those of their composed programs if these are higher; returns whether
        any price was raised. Where one is far off, those of the other kernels of the same value are too."""
        found = False
        for c in sorted(used_classes(problem, choice)):
            state = ways[c][choice[c]].state if c < len(self.graph.candidates) else None
            if state is None:
                continue
            estimate, found = self._state_seconds(c, state), self._correct_price(c, state) or found
            if self._state_seconds(c, state) > estimate * _FAR:
                for other in self.pool[c].values():
                    self._correct_price(c, other)
        return found

    def _correct_price(self, c: int, state: State) -> bool:
        """Raises the price of a kernel to that of its composed program, if that is higher and not known yet; returns
        whether it was raised."""
        if self.composed is None or id(state) in self.checked:
            return False
        ops = [self.graph.candidates[x][k].op for x, k in state.members.items()]
        if len(ops) == 1 and ops != [CALL_TIR]:  # an operator is priced as it is; a program may hold several
            return False
        self.checked.add(id(state))
        seconds = self._weighed(self.composed((c,), state.members, state.loads))
        if seconds <= self._state_seconds(c, state) * _AS_ESTIMATED:
            return False
        self.memo[id(state)] = seconds
        self._invalidate(c)
        return True
