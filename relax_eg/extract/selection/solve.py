"""Selection with a lower bound: prune, split into parts, relax, search.

A pruned problem falls into parts that share no class. For each part, swap search improves greedy choices, and
annealing improves those of large parts. The linear relaxation of a part gives a lower bound, prices that lead to
another choice, and the candidates that no better choice uses, which are dropped. If that shrinks the part, the rest is
solved in the same way. If not, HiGHS solves the part; if HiGHS does not finish, the choice is improved without a bound
(`neighbours`) until the time is over. A partner may improve choices meanwhile (`helper`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relax_eg.extract.costs.numbers import gap
from relax_eg.extract.selection import ilp
from relax_eg.extract.selection.ascent import ascent
from relax_eg.extract.selection.greedy import dag_greedy
from relax_eg.extract.selection.loops import Loop, loops_within
from relax_eg.extract.selection.neighbours import Improver
from relax_eg.extract.selection.problem import (
    Problem,
    Subproblem,
    choice_cost,
    repair_choice,
    tree_choice,
    used_classes,
)
from relax_eg.extract.selection.prune import Pruned, cheap_enough, prune
from relax_eg.extract.selection.search import GAIN, best_of, swap_search
from relax_eg.traversal import connected

PROVED = 1e-6  # chosen: smaller gaps count as none, because costs and bounds are sums of rounded numbers
# chosen: share of the candidates left after fixing, below which the rest is solved as a new problem
_SHRUNK = 0.8
_DEPTH = 4  # limit: depth of nested searches
_FIRST = 0.4  # chosen: share of the time for the first search of HiGHS, which finishes most problems early
_AROUND = 0.85  # chosen: share of the remaining time for neighbourhoods
_INNER_NODES = 100  # limit: nodes of HiGHS in a nested search
_INNER_ROUNDS = 40  # limit: rounds of cuts in a nested search
_RELAX = 0.4  # chosen: share of the time for the relaxation, at most
_FAR = 0.2  # chosen: gap after the relaxation, as a share of the cost, above which HiGHS is not run
_ALWAYS = 400  # limit: candidates of a part for which HiGHS is run whatever the gap; with more it takes all the time
_ASCEND = 0.1  # chosen: share of the time for the first bound, at most
# chosen: shares of the gap: targets above the bound that the first searches are restricted to
_TARGETS = (0.0, 0.05, 0.2)
_NARROW = 0.1  # chosen: share of the time for each of these searches

Progress = Callable[[str, float, float], None]


@dataclass(frozen=True, slots=True)
class SolverEffort:
    """The limits of a search.

    - `seconds`: seconds after which the search ends.
    - `nodes`: nodes of HiGHS per part.
    - `gap`: gap, as a share of the cost, at which the search ends.
    - `candidates`: a part with more candidates is not relaxed, but only chosen greedily.
    - `cut_rounds`: rounds of cuts of the relaxation.
    - `neighbourhoods`: neighbourhoods searched per part.
    - `seed`: random seed of the neighbourhoods.
    """

    seconds: float = 60.0
    nodes: int = 20_000
    gap: float = 1e-5
    candidates: int = 60_000
    cut_rounds: int = 400
    neighbourhoods: int = 5_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Solved:
    """The result of a search.

    - `choice`: an acyclic choice for every class that can be computed.
    - `cost`: its cost.
    - `bound`: a lower bound on the cost of any choice.
    - `how`: "greedy" (greedy choices and a bound), "ilp" (the exact search stopped early) or "proved optimal".
    - `timed_out`: whether the search ended because its seconds were over.
    """

    choice: list[int]
    cost: float
    bound: float
    how: str
    timed_out: bool = False

    @staticmethod
    def of(choice: list[int], cost: float, bound: float, searched: bool, deadline: float) -> Solved:
        """The result of a search with this `deadline`. `searched`: whether it did more than make greedy choices."""
        how = "proved optimal" if gap(cost, bound) <= PROVED else "ilp" if searched else "greedy"
        return Solved(choice, cost, bound, how, time.monotonic() >= deadline)

    @property
    def gap(self) -> float:
        """The largest possible saving of another choice, as a share of the cost."""
        return gap(self.cost, self.bound)


class Partner:
    """A process that improves choices of the same parts at the same time. This class stands for no process."""

    def received(self, part: int) -> list[int] | None:
        """The partner's last choice of a part; None if there is none."""
        return None

    def send(self, part: int, choice: Sequence[int] | None) -> None:
        """Sends a choice of a part to the partner; None: the part needs no more work."""


def solve(
    problem: Problem,
    seeds: Sequence[Sequence[int]],
    effort: SolverEffort | None = None,
    progress: Progress | None = None,
    partner: Partner | None = None,
) -> Solved:
    """The cheapest choice found, which never costs more than a seed. The roots must be computable, and the seeds
    acyclic.

    - `progress`: called after each step as `progress(step, cost, bound)`.
    - `partner`: the process that improves choices meanwhile.
    """
    effort = effort or SolverEffort()
    deadline = time.monotonic() + effort.seconds
    best = min(seeds, key=lambda s: choice_cost(problem, s))
    search = _Search(effort, progress, partner or Partner())
    # A partner has parts of its own, of all candidates.
    pruned, parts = ordered_parts(problem, cheap_enough(problem, best) if partner is None else None)
    choice, bound = search.solve_parts(pruned, parts, best, deadline, 0, ())
    cost, least = choice_cost(problem, choice), choice_cost(problem, best)
    if cost > least:
        choice, cost = list(best), least
    bound = min(bound, cost)
    return Solved.of(repair_choice(problem, choice), cost, bound, search.searched, deadline)


def initial_choice(problem: Problem, seed: Sequence[int]) -> tuple[list[int], float]:
    """The best of the greedy choices and `seed`, each improved by swap search, and its cost. A class that is -1 in
    `seed` may take any candidate."""
    return best_of(problem, (tree_choice(problem), repair_choice(problem, seed), dag_greedy(problem)))[:2]


def ordered_parts(problem: Problem, keep: Sequence[Sequence[int]] | None = None) -> tuple[Pruned, list[Subproblem]]:
    """The pruned `problem` and the parts into which it falls, smallest first. With `keep`, class `c` may only use the
    candidates `keep[c]`."""
    pruned = prune(problem, keep)
    return pruned, sorted(parts_of(pruned), key=lambda part: part.problem.node_count)


@dataclass(slots=True)
class _Search:
    effort: SolverEffort
    progress: Progress | None
    partner: Partner
    searched: bool = False

    def solve_parts(
        self,
        pruned: Pruned,
        parts: Sequence[Subproblem],
        seed: Sequence[int],
        deadline: float,
        depth: int,
        known: Sequence[Loop],
    ) -> tuple[list[int], float]:
        """The best choice found for the pruned problem, and a lower bound on the cost of any choice.

        - `known`: cuts of the problem that are already known.
        """
        sizes = [part.problem.node_count for part in parts]
        found: list[list[int]] = []
        bound = pruned.offset
        for i, part in enumerate(parts):
            left = deadline - time.monotonic()
            until = time.monotonic() + max(0.0, left) * sizes[i] / max(1, sum(sizes[i:]))
            loops = loops_within(known, part.classes)
            inner = _Part(self, part.problem, i if depth == 0 else None, until, depth)
            bound += inner.search(part.project(seed), loops)
            found.append(inner.best)
        choice: dict[int, int] = {}
        for i, part in enumerate(parts):
            received = self.partner.received(i) if depth == 0 else None
            if received is not None and choice_cost(part.problem, received) < choice_cost(part.problem, found[i]):
                found[i] = received
            choice |= part.lift(found[i])
        return pruned.complete(choice), bound


class _Part:
    """The search in a problem that does not split further.

    - `number`: the part's number for the partner; None if the partner does not know the part.
    - `best`, `cost`, `bound`: the best choice so far, its cost, and a lower bound.
    """

    def __init__(self, search: _Search, problem: Problem, number: int | None, deadline: float, depth: int) -> None:
        self.parent = search
        self.effort = search.effort
        self.problem = problem
        self.number = number
        self.deadline = deadline
        self.depth = depth
        self.best: list[int] = []
        self.cost = self.bound = 0.0
        self.sent_cost = math.inf  # cost of the best choice that the partner knows
        self.improver: Improver | None = None

    def report_progress(self, what: str) -> None:
        if self.parent.progress is not None:
            self.parent.progress(what, self.cost, self.bound)

    def offer(self, choice: list[int], cost: float) -> None:
        if cost < self.cost:
            self.best, self.cost = choice, cost

    @property
    def closed(self) -> bool:
        return gap(self.cost, self.bound) <= self.effort.gap

    def exchange(self) -> None:
        """Takes the partner's choice if it is better; if not, sends the best choice to the partner, unless the partner
        has it."""
        if self.number is None:
            return
        received = self.parent.partner.received(self.number)
        cost = math.inf if received is None else choice_cost(self.problem, received)
        if received is not None and cost < self.cost:
            self.offer(repair_choice(self.problem, received), cost)
        elif self.cost < min(cost, self.sent_cost) * (1 - GAIN):
            self.sent_cost = self.cost
            self.parent.partner.send(self.number, self.best)

    def search(self, seed: Sequence[int], known: Sequence[Loop]) -> float:
        """Finds `best`; returns a lower bound on any choice."""
        self.best, self.cost = initial_choice(self.problem, seed)
        self.bound, found = ascent(self.problem, self._until(_ASCEND))
        known = list(dict.fromkeys([*known, *found]))
        self.report_progress("greedy")
        if not self.closed and self.problem.node_count <= self.effort.candidates:
            self.parent.searched = True
            self._relax_and_search(known)
            self.exchange()
        if self.number is not None and self.closed:
            self.parent.partner.send(self.number, None)
        return self.bound

    def _until(self, share: float) -> float:
        return time.monotonic() + share * (self.deadline - time.monotonic())

    def _relax_and_search(self, known: Sequence[Loop]) -> None:
        """Relaxes the problem, and searches for choices better than the best so far."""
        problem = self.problem
        if self.effort.neighbourhoods:
            self.improver = improver_of(problem, self.best, self.effort)
        model = ilp.Model(problem, max(self.cost / ilp.SCALE, math.ulp(0.0)), list(known))
        relaxed = ilp.relax(model, self.effort.cut_rounds, self.cost, self._until(_RELAX))
        self.exchange()
        if relaxed is None:
            self._search_around(self.effort.neighbourhoods, self.deadline)
            return
        self.bound = max(self.bound, relaxed.bound - GAIN * self.cost)
        self.report_progress("relaxed")
        for costs in _hints(problem, model, relaxed):
            self.offer(*swap_search(problem, tree_choice(problem, costs)))
        if self.improver is not None:
            self._near_bound(model, relaxed)
        if self.closed:
            return
        keep = model.candidates_below(relaxed, self.cost, self.best)
        if sum(map(len, keep)) >= _SHRUNK * problem.node_count or self.depth >= _DEPTH:
            self._search_integer(model)
            return
        pruned, parts = ordered_parts(problem, keep)
        choice, low = self.parent.solve_parts(pruned, parts, self.best, self.deadline, self.depth + 1, model.loops)
        # Any choice cheaper than the best known uses only the kept candidates.
        self.bound = max(self.bound, min(self.cost, low))
        cost = choice_cost(problem, choice)
        if cost < self.cost:
            self.offer(repair_choice(problem, choice), cost)

    def _near_bound(self, model: ilp.Model, relaxed: ilp.Relaxed) -> None:
        """Searches among the candidates that a choice near the relaxation's bound may use, for each of `_TARGETS`."""
        for share in _TARGETS:
            if self.closed:
                break
            target = relaxed.bound + share * (self.cost - relaxed.bound)
            pruned, parts = ordered_parts(self.problem, model.candidates_below(relaxed, target, self.best))
            inner = _Search(_inner(self.effort), None, Partner())
            choice, low = inner.solve_parts(pruned, parts, self.best, self._until(_NARROW), _DEPTH - 1, model.loops)
            # Any choice cheaper than the target uses only the kept candidates.
            self.bound = max(self.bound, min(target, low))
            self.offer(repair_choice(self.problem, choice), choice_cost(self.problem, choice))
            self.report_progress("near the bound")
            self.exchange()

    def _search_integer(self, model: ilp.Model) -> None:
        """Runs HiGHS for a share of the time. If it does not finish, improves the choice without a bound, and runs
        HiGHS again from the improved choice."""
        is_far = gap(self.cost, self.bound) > _FAR
        if self.improver is None:
            # Nested searches have few nodes of HiGHS.
            if not is_far or self.depth > 0 or self.problem.node_count <= _ALWAYS:
                self._search_exactly(model, self.effort.nodes, self.deadline)
        elif is_far:
            self._search_around(self.effort.neighbourhoods, self.deadline)
        else:
            left = self._search_exactly(model, self.effort.nodes, self._until(_FIRST))
            if not self.closed:
                self._search_around(self.effort.neighbourhoods, self._until(_AROUND))
                self._search_exactly(model, left, self.deadline)

    def _search_exactly(self, model: ilp.Model, nodes: int, until: float) -> int:
        """Runs HiGHS, and again as long as its solutions have cycles; returns the number of nodes that are left."""
        while time.monotonic() < until and nodes > 0 and not self.closed:
            known = {c: self.best[c] for c in used_classes(self.problem, self.best)}
            found, again = ilp.solve_integer(model, known, self.effort.gap, nodes, until)
            self.bound = max(self.bound, min(found.bound, self.cost))
            nodes -= found.nodes + 1
            if found.choice is not None:
                start = [found.choice.get(c, -1) for c in range(len(self.problem.reads))]
                self.offer(*swap_search(self.problem, repair_choice(self.problem, start)))
            self.report_progress("searched")
            if not again:
                break
        return nodes

    def _search_around(self, steps: int, until: float) -> None:
        """Improves the choice without a bound until the steps or the time are over."""
        if self.improver is None:
            return
        for _ in range(steps):
            if time.monotonic() >= until or self.closed:
                break
            self.improver.offer(self.best)
            self.improver.step(until)
            self.offer(self.improver.best, self.improver.cost)
            self.exchange()
            self.report_progress("around")


def _inner(effort: SolverEffort) -> SolverEffort:
    """The effort of a nested search."""
    return replace(effort, nodes=_INNER_NODES, cut_rounds=_INNER_ROUNDS, neighbourhoods=0)


def improver_of(problem: Problem, choice: Sequence[int], effort: SolverEffort) -> Improver:
    """An improver of `choice`, which must be acyclic over all classes. It solves neighbourhoods exactly."""

    def solver(part: Subproblem, start: Sequence[int], until: float) -> list[int]:
        search = _Search(_inner(effort), None, Partner())
        return search.solve_parts(*ordered_parts(part.problem), start, until, _DEPTH - 1, ())[0]

    return Improver(problem, choice, solver, effort.seed)


def _hints(problem: Problem, model: ilp.Model, relaxed: ilp.Relaxed) -> list[list[list[float]]]:
    """Two sets of costs under which the tree-greedy choice prefers the candidates that the relaxation takes."""
    values = relaxed.values
    taken = [[values[model.first[c] + k] for k in range(len(row))] for c, row in enumerate(problem.costs)]
    return [
        [[x * (1.0 - v) for x, v in zip(row, t, strict=True)] for row, t in zip(problem.costs, taken, strict=True)],
        [[1.0 - v for v in t] for t in taken],
    ]


def parts_of(pruned: Pruned) -> list[Subproblem]:
    """The connected parts of the pruned problem: no candidate of one part reads a class of another."""
    parts: list[Subproblem] = []
    for classes in connected(pruned.rows, ((c, x) for c, row in pruned.rows.items() for e in row for x in e[2])):
        number = {c: i for i, c in enumerate(classes)}
        rows = [pruned.rows[c] for c in classes]
        reads = [[tuple(sorted(number[x] for x in r)) for _, _, r in row] for row in rows]
        costs = [[x for _, x, _ in row] for row in rows]
        roots = tuple(number[c] for c in classes if c in pruned.required)
        parts.append(Subproblem(Problem(reads, costs, roots), classes, [[k for k, _, _ in row] for row in rows]))
    return parts
