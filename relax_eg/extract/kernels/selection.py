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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from relax_eg.extract.costs.pricing import FREE, Pricing
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.anchors import merge_anchors
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.ilp import Overlap, solve_kernels
from relax_eg.extract.kernels.operations import Operation, operations_of
from relax_eg.extract.kernels.rows import Composed, WayRows, table_of
from relax_eg.extract.kernels.states import OVERSIZED, Kernel, Stage, State, StateTable, joined_states
from relax_eg.extract.kernels.ways import KernelSelection, Way, is_same_way, members_of
from relax_eg.extract.selection.clock import Clock
from relax_eg.extract.selection.greedy import dag_greedy
from relax_eg.extract.selection.problem import (
    Problem,
    choice_cost,
    repair_choice,
    tree_choice,
    tree_greedy,
    used_classes,
)
from relax_eg.extract.selection.search import best_of, swap_search
from relax_eg.extract.selection.select import check_executable
from relax_eg.extract.selection.sensitivity import sensitivity
from relax_eg.extract.selection.solve import Solved, SolverEffort
from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.logs import stage
from relax_eg.traversal import operands_first

# Seconds to dispatch kernels on devices that compute while the host dispatches further kernels.


def runs_ahead(models: Sequence[KernelCost]) -> bool:
    """Whether the host dispatches kernels while the device computes."""
    return all(m.cost is None and m.profile.platform != "cpu" and m.profile.dispatch > 0 for m in models)


def dispatch_seconds(
    graph: ExtractionGraph,
    models: Sequence[KernelCost],
    weights: Sequence[float],
    static: Sequence[bool],
    chosen: Iterable[tuple[int, Way]],
) -> float:
    """Seconds that the host takes to dispatch the kernels of `chosen`, summed over `models` with `weights`.

    - `static`: for each class, whether it is computed ahead of the calls and needs no dispatch; empty if none is.
    - `chosen`: pairs of a class and its way.
    """
    several: set[int] = set()
    total = 0.0
    for c, way in chosen:
        if (static and static[c]) or way.several in several:
            continue
        if way.several >= 0:
            several.add(way.several)
        site, annotation = graph.candidates[c][way.candidate].site, graph.annotations[c]
        one = way.state is not None or way.several >= 0
        for w, m in zip(weights, models, strict=True):
            total += w * m.profile.dispatch * (1 if one else m.price(site, annotation).launches)
    return total


# Reductions of a selection problem over kernels: to given operators, to the cheapest operators, and without free
# classes; and the operators that kernels contain.

_WAYS = 6  # limit: operators of a class that kernels may contain, those with the cheapest trees


def restrict_operators(ways: Sequence[Sequence[Way]], problem: Problem, allowed: Sequence[Sequence[int]]) -> Problem:
    """The problem in which ways with other than the `allowed` operators of each class have infinite costs."""

    def may(way: Way, c: int) -> bool:
        if way.state is None:
            return way.candidate in allowed[c]
        return all(k in allowed[x] for x, k in way.state.members.items())

    costs = [
        [x if may(w, c) else math.inf for w, x in zip(ways[c], row, strict=True)] for c, row in enumerate(problem.costs)
    ]
    return Problem(problem.reads, costs, problem.roots)


def without_free_classes(problem: Problem) -> Problem:
    """The problem without reads of classes that cost nothing and read nothing, such as parameters. Half of the reads
    are of this kind. Choices and their costs are unchanged."""
    free = {
        c for c, (row, costs) in enumerate(zip(problem.reads, problem.costs, strict=True))
        if any(not reads and cost == 0.0 for reads, cost in zip(row, costs, strict=True))
    }  # fmt: skip
    reads = [[tuple([x for x in reads if x not in free]) for reads in row] for row in problem.reads]
    return Problem(reads, problem.costs, problem.roots)


def cheap_ways(
    problem: Problem, ways: Sequence[Sequence[Way]], total: Sequence[float], *always: Sequence[Sequence[int]]
) -> list[list[int]]:
    """For each class of the graph, the operators that kernels may contain: those of `always`, then those whose trees
    cost least.

    - `total`: the cost of the tree of each class.
    """
    found: list[list[int]] = []
    for c in range(len(always[0])):
        dear: dict[int, float] = {}
        for w, reads, cost in zip(ways[c], problem.reads[c], problem.costs[c], strict=True):
            x = cost + sum(total[r] for r in reads)
            dear[w.candidate] = min(x, dear.get(w.candidate, math.inf))
        cheap = sorted((k for k in dear if dear[k] < math.inf), key=lambda k: (dear[k], k))[:_WAYS]
        found.append(list(dict.fromkeys([*(k for a in always for k in a[c]), *cheap])))
    return found


def overlap_of(graph: ExtractionGraph, ways: Sequence[Sequence[Way]], several: Sequence[Kernel]) -> Overlap:
    """The operators in each way of the problem. A way that reads one result of a kernel with several contains none."""
    members: list[list[Mapping[int, int]]] = []
    for c, row in enumerate(ways):
        if c >= len(graph.candidates):
            members.append([several[c - len(graph.candidates)].members])
            continue
        members.append([members_of(c, way) for way in row])
    inside = {member for row in members for held in row for member in held.items()}
    return Overlap(members, {(c, k): graph.candidates[c][k].children for c, k in inside})


# Kernels with several outputs, made by merging kernels with one.

_OUTPUTS = 4  # limit: outputs of one kernel


def sibling_kernels(
    graph: ExtractionGraph,
    table: StateTable,
    operations: Mapping[tuple[int, int], Operation],
    states: Mapping[int, State],
) -> Iterator[Kernel]:
    """The kernels with several outputs into which kernels of a program can be merged.

    Either a kernel reads another kernel's result of the same shape: the merged kernel computes and stores both. Or
    several kernels read the same class and have results of one shape.

    - `states`: the kernels of the program, by the class that each stores.
    """
    annotations = graph.annotations
    for c, s in states.items():
        for x in s.loads:
            if x in states and annotations[x] == annotations[c] and s.local.phase <= 1:
                inner = table.with_inlined_loads(c, s, {x: states[x]})
                made = _merge_states(operations, (x, c), [inner]) if inner is not None else None
                if made is not None:
                    yield made
    groups: dict[tuple[int, object], list[int]] = {}
    for c, s in states.items():
        for x in s.loads:
            if annotations[x] == annotations[c] or s.loads[x] >= table.bytes[c]:
                groups.setdefault((x, annotations[c]), []).append(c)
    for group in groups.values():
        apart = [c for c in group[:_OUTPUTS] if not any(o in states[c].loads for o in group)]
        made = _merge_states(operations, tuple(apart), [states[c] for c in apart]) if len(apart) > 1 else None
        if made is not None:
            yield made


def _merge_states(
    operations: Mapping[tuple[int, int], Operation], outputs: tuple[int, ...], states: Sequence[State]
) -> Kernel | None:
    """The kernel of all `states` that stores `outputs`; None if the states cannot be combined."""
    joined = joined_states(states)
    if joined is None:
        return None
    loads, members = joined
    anchors = frozenset[Stage]().union(*(s.local.anchors for s in states))
    if len(anchors) > max(len(s.local.anchors) for s in states) or not members.keys().isdisjoint(loads):
        return None
    efforts = [operations[x, k].effort for x, k in members.items()]
    other = sum(e.other for e in efforts) + sum(s.repeated for s in states)
    return Kernel(outputs, loads, members, merge_anchors(s.anchors for s in states), other)


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
_FAR = 2.0  # chosen: factor over its estimate: the other kernels of the same value are not believed then either
_HELPS = 1e-6  # chosen: share of a program's cost that a round has to gain to be followed by another


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
    - `rows`: the ways to compute each class, and the problem.
    """

    graph: ExtractionGraph
    models: Sequence[KernelCost]
    steps: frozenset[str]
    composed: Composed | None = None
    pricing: Pricing = FREE
    clock: Clock = field(default_factory=Clock)
    as_written: bool = False
    rows: WayRows = field(init=False)

    def run(self) -> KernelSelection:
        """The cheapest program of kernels found."""
        graph = self.graph
        if runs_ahead(self.models):
            for m in self.models:
                if m.waits != 1.0:
                    m.set_waits(1.0)
        written_only = graph.as_written if self.as_written or graph.node_count > OVERSIZED else None
        table = table_of(graph, self.models[0], self.steps)
        operations = operations_of(graph, self.models[0], written_only, table.operations)
        table.operations.update(operations)
        views = VIEW_OF_RESHAPE in self.steps
        self.rows = WayRows(graph, self.models, self.pricing, self.composed, self.as_written, table, views, operations)
        ways, problem = self.rows.problem()
        choice, total = tree_greedy(problem)
        check_executable(graph, problem, choice)
        classes = [c for c in range(len(graph.candidates)) if total[c] < math.inf]
        written = self.rows.single_operator_choice(ways, graph.as_written, choice)
        written_cost = choice_cost(problem, written)
        if len(self.models) > 1:
            self.rows.weigh(ways, written)
            ways, problem = self.rows.problem()
            written_cost = choice_cost(problem, written)
        algebra = self._best(problem, [repair_choice(problem, written)] if written_cost < math.inf else [])
        as_written = [[k] if k >= 0 else [] for k in graph.as_written]
        chosen = [ways[c][k].candidate if k >= 0 else -1 for c, k in enumerate(algebra[: len(graph.candidates)])]
        by_algebra = [[k] if k >= 0 else [] for k in chosen]
        if written_only is not None and not self.as_written:
            more = operations_of(graph, self.models[0], chosen, table.operations)
            table.operations.update(more)
            self.rows.add_operations(more)
            ways, problem = self.rows.problem()
            choice, total = tree_greedy(problem)
            written = self.rows.single_operator_choice(ways, graph.as_written, choice)
            algebra = self.rows.single_operator_choice(ways, chosen, choice)
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
        ways, problem = self.rows.problem()
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
        self.rows.table.fill(order, allowed, prices, self.rows.operations)
        for c, states in enumerate(self.rows.table.states):
            for s in states:
                if not (self.rows.is_view(c, s.members[c]) and len(s.members) == 1):
                    self.rows.add(c, s)
        ways, problem = self.rows.problem()
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
        return [*places, *(0 for _ in self.rows.several)]

    def _cost(self, chosen: Sequence[Way | None]) -> float:
        ways, problem = self.rows.problem()
        return choice_cost(problem, self._indices_of(ways, chosen))

    def _cheapest(self, found: Sequence[list[Way | None]]) -> list[Way | None]:
        ways, problem = self.rows.problem()
        return min(found, key=lambda f: choice_cost(problem, self._indices_of(ways, f)))

    def _add_siblings(self, program: Sequence[Way | None]) -> None:
        """Adds the kernels with several outputs into which kernels of this program can be merged."""
        ways, problem = self.rows.problem()
        used = used_classes(problem, self._indices_of(ways, program))
        states = {c: w.state for c in sorted(used) if (w := program[c]) is not None and w.state is not None}
        for made in sibling_kernels(self.graph, self.rows.table, self.rows.operations, states):
            if all(set(o.outputs) != set(made.outputs) or o.members != made.members for o in self.rows.several):
                self.rows.add_several(made)

    # --- the outcome ---

    def _exact(
        self, best: Sequence[Way | None], others: Sequence[Sequence[Way | None]], written_cost: float
    ) -> KernelSelection:
        ways, problem = self.rows.problem()
        seeds = [repair_choice(problem, self._indices_of(ways, x)) for x in (best, *others)]
        solved = self._solve(seeds)
        if runs_ahead(self.models):
            solved, written_cost = self._solve_without_waits(solved, seeds, written_cost)
        ways, problem = self.rows.problem()
        n = len(self.graph.candidates)
        order = operands_first(problem.roots, lambda c: problem.reads[c][solved.choice[c]])
        used = {c: ways[c][solved.choice[c]] for c in order if c < n}
        found = solved.cost, written_cost, solved.bound, solved.how, problem.node_count
        return KernelSelection(used, self.rows.several, self.rows.operations, *found, sensitivity(problem, solved.cost))

    def _solve_without_waits(
        self, solved: Solved, seeds: Sequence[Sequence[int]], written_cost: float
    ) -> tuple[Solved, float]:
        """The best program if no waiting is charged, and the price of the program as written then.

        `solved` and `written_cost` are returned unchanged if the host takes longer to dispatch than the device to
        compute, or if the new program is slower on the device or on the host."""
        before = self._device_and_host_seconds(solved.choice)
        if before[0] < before[1]:
            self.rows.set_waits(1.0)
            return solved, written_cost
        # The kernels stay the same; their prices change.
        faster = self._solve([solved.choice, *seeds])
        busy, dispatching = self._device_and_host_seconds(faster.choice)
        if max(busy, dispatching) > before[0]:
            self.rows.set_waits(1.0)
            return solved, written_cost
        ways, problem = self.rows.problem()
        written = self.rows.single_operator_choice(ways, self.graph.as_written, tree_choice(problem))
        return faster, choice_cost(problem, written)

    def _device_and_host_seconds(self, choice: Sequence[int]) -> tuple[float, float]:
        """The seconds that the device and the host take for a program. Sets the prices to the device's seconds."""
        self.rows.set_waits(0.0)
        ways, problem = self.rows.problem()
        used = [c for c in sorted(used_classes(problem, choice)) if c < len(self.graph.candidates)]
        chosen = ((c, ways[c][choice[c]]) for c in used)
        host = dispatch_seconds(self.graph, self.models, self.rows.weights, self.pricing.static, chosen)
        return choice_cost(problem, choice), host

    def _solve(self, seeds: Sequence[Sequence[int]]) -> Solved:
        """The best choice found from the seeds. The kernels in it have the prices of their composed programs."""
        ways, problem = self.rows.problem()
        effort = _QUICK if self.pricing.held else _EFFORT
        choice = self._best(problem, seeds)
        for _ in range(_CORRECTIONS):  # before the integer program, which takes longer
            if (settled := self._at_composed_prices(choice)) is choice:
                break
            choice = self._best(self.rows.problem()[1], [settled, *seeds[:1]])
        ways, problem = self.rows.problem()
        overlap = overlap_of(self.graph, ways, self.rows.several)
        solved = self.clock.run_search(partial(solve_kernels, problem, overlap, choice), effort)
        for _ in range(_CORRECTIONS):
            if (settled := self._at_composed_prices(solved.choice)) is solved.choice:
                break
            ways, problem = self.rows.problem()
            choice = self._best(problem, [settled, *seeds[:1]])
            overlap = overlap_of(self.graph, ways, self.rows.several)
            known = solved.bound  # prices only rise
            solved = self.clock.run_search(partial(solve_kernels, problem, overlap, choice, known=known), effort)
        return solved

    def _at_composed_prices(self, choice: list[int]) -> list[int]:
        """`choice`, improved by switches until all kernels in it have the prices of their composed programs; itself if
        no price was raised. Each step prices a kernel anew, so this ends; it takes less than a search from all
        seeds."""
        ways, problem = self.rows.problem()
        # Prices change, and ways do not, so the choice with the higher price is where the next search begins.
        reads = without_free_classes(problem).reads
        while not self.clock.is_over() and self._correct_prices(ways, problem, choice):
            ways, problem = self.rows.problem()
            choice = swap_search(Problem(reads, problem.costs, problem.roots), choice)[0]
        return choice

    def _correct_prices(self, ways: Sequence[Sequence[Way]], problem: Problem, choice: Sequence[int]) -> bool:
        """Raises the prices of chosen kernels to those of their composed programs if these are higher; returns whether
        any price was raised. Where one is far off, those of the other kernels of the same value that seem to take less
        are too."""
        found = False
        for c in sorted(used_classes(problem, choice)):
            state = ways[c][choice[c]].state if c < len(self.graph.candidates) else None
            if state is None:
                continue
            estimate, found = self.rows.state_seconds(c, state), self.rows.correct_price(c, state) or found
            seconds = self.rows.state_seconds(c, state)
            if seconds > estimate * _FAR:
                for other in self.rows.pool[c].values():
                    if self.rows.state_seconds(c, other) < seconds:  # others are asked about if they are chosen
                        self.rows.correct_price(c, other)
        return found
