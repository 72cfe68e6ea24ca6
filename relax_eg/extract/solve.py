"""Selection with a proof of how near it is: prune, take apart, relax, search.

A problem is pruned and falls into parts that share nothing; each part has its greedy choices, the best improved by swap
search; its linear relaxation gives a lower bound, a hint for another choice, and candidates that no better choice
uses, which go. What then falls apart is solved part by part in the same way; what does not goes to HiGHS, and what
that does not finish is improved neighbourhood by neighbourhood until the time is out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relax_eg.extract import ilp
from relax_eg.extract.greedy import dag_greedy
from relax_eg.extract.loops import Loop, loops_within
from relax_eg.extract.neighbours import improve_around
from relax_eg.extract.problem import Part, Problem, choice_cost, operands_first, repaired, tree_choice, used_classes
from relax_eg.extract.prune import Pruned, prune
from relax_eg.extract.search import swap_search

PROVED = 1e-6  # a gap below this is none: costs and bounds are sums of rounded numbers
_SHRUNK = 0.8  # of the candidates: what is left after fixing is looked at as a new problem only if it is this small
_DEPTH = 4
_BOUND_ROUNDS = 4
_FIRST = 0.12  # of the time for HiGHS, which ends most problems early, and then
_AROUND = 0.85  # of what is left for neighbourhoods
_INNER_NODES = 100  # of HiGHS, for a neighbourhood, and
_INNER_ROUNDS = 40  # of its cuts
_RELAX = 0.5  # of the time for the relaxation, at most
_FAR = 0.2  # open after that, as a share of the cost: HiGHS alone will not close it
_SWAP_WORK = 1_500_000  # classes looked at by one swap search

Progress = Callable[[str, float, float], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try. `seconds`: when to stop at the latest; `nodes`: of HiGHS, for each part; `gap`: near enough, as
    a share of the cost; `candidates`: a part of more is not relaxed, only greedy; `cut_rounds`: of
    the relaxation; `neighbourhoods`: chosen anew, for each part; `seed`: of which ones."""

    seconds: float = 60.0
    nodes: int = 20_000
    gap: float = 1e-5
    candidates: int = 60_000
    cut_rounds: int = 400
    neighbourhoods: int = 5_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Solved:
    """A choice (of every class that can be computed; acyclic), its cost, a lower bound on any choice's, and how it was
    found: "greedy" (nothing is known but the bound), "ilp" (searched, not to the end) or "proved optimal"."""

    choice: list[int]
    cost: float
    bound: float
    how: str

    @property
    def gap(self) -> float:
        """How much cheaper a choice could be at best, as a share of the cost."""
        return gap(self.cost, self.bound)


def gap(cost: float, bound: float) -> float:
    return max(0.0, (cost - bound) / cost) if cost > 0 else 0.0


def solve(
    problem: Problem, seeds: Sequence[Sequence[int]], effort: Effort | None = None, progress: Progress | None = None
) -> Solved:
    """The cheapest choice found, never dearer than a seed. The roots must be computable, and a seed acyclic.

    `progress`: called now and then with what is done, the cost so far and the bound so far."""
    effort = effort or Effort()
    deadline = time.monotonic() + effort.seconds
    best = min(seeds, key=lambda s: choice_cost(problem, s))
    search = _Search(effort, deadline, progress, choice_cost(problem, best))
    choice, bound = search.whole(prune(problem), best, deadline, 0, ())
    cost = choice_cost(problem, choice)
    if cost > search.cost:
        choice, cost = list(best), search.cost
    bound = min(bound, cost)
    how = "proved optimal" if gap(cost, bound) <= PROVED else "ilp" if search.searched else "greedy"
    return Solved(repaired(problem, choice), cost, bound, how)


@dataclass(slots=True)
class _Search:
    effort: Effort
    deadline: float
    progress: Progress | None
    cost: float  # of the best seed
    searched: bool = False

    def tell(self, what: str, cost: float, bound: float) -> None:
        if self.progress is not None:
            self.progress(what, cost, bound)

    def whole(
        self, pruned: Pruned, seed: Sequence[int], deadline: float, depth: int, known: Sequence[Loop]
    ) -> tuple[list[int], float]:
        """The best choice found of what was pruned, and a bound on it. `known`: cuts that may help."""
        parts = sorted(parts_of(pruned), key=lambda part: part.problem.node_count)
        sizes = [part.problem.node_count for part in parts]
        choice: dict[int, int] = {}
        bound = pruned.offset
        for i, part in enumerate(parts):
            left = deadline - time.monotonic()
            until = time.monotonic() + max(0.0, left) * sizes[i] / max(1, sum(sizes[i:]))
            loops = loops_within(known, part.classes)
            inner, low = self.part(part.problem, part.into(seed), until, depth, loops)
            choice |= part.out(inner)
            bound += low
        return pruned.complete(choice), bound

    def part(
        self, problem: Problem, seed: Sequence[int], deadline: float, depth: int, known: Sequence[Loop]
    ) -> tuple[list[int], float]:
        """The best choice found of a problem that does not fall apart, and a bound on it."""
        tree = tree_choice(problem)
        best, cost = self.swapped(problem, tree)
        for start in (repaired(problem, seed), dag_greedy(problem)):
            choice, c = self.swapped(problem, start)
            if c < cost:
                best, cost = choice, c
        bound = shared_bound(problem)
        self.tell("greedy", cost, bound)
        if gap(cost, bound) <= self.effort.gap or problem.node_count > self.effort.candidates:
            return best, bound
        self.searched = True
        model = ilp.Model(problem, cost / ilp.SCALE, list(known))
        relaxed = ilp.relax(
            model, self.effort.cut_rounds, cost, time.monotonic() + _RELAX * (deadline - time.monotonic())
        )
        if relaxed is None:
            return self._around(problem, model, best, bound, deadline), bound
        bound = max(bound, relaxed.bound - 1e-9 * cost)
        self.tell("relaxed", cost, bound)
        for costs in _hints(problem, model, relaxed):
            choice, c = self.swapped(problem, tree_choice(problem, costs))
            if c < cost:
                best, cost = choice, c
        if gap(cost, bound) <= self.effort.gap:
            return best, bound
        keep = model.within(relaxed, cost, best)
        kept = sum(map(len, keep))
        if kept < _SHRUNK * problem.node_count and depth < _DEPTH:
            smaller = prune(problem, keep)
            choice, low = self.whole(smaller, best, deadline, depth + 1, model.loops)
            c = choice_cost(problem, choice)
            # A choice cheaper than the best known is within what was kept.
            bound = max(bound, min(cost, low))
            return (repaired(problem, choice), bound) if c < cost else (best, bound)
        return self._integer(problem, model, best, cost, bound, deadline)

    def _integer(
        self, problem: Problem, model: ilp.Model, best: list[int], cost: float, bound: float, deadline: float
    ) -> tuple[list[int], float]:
        """HiGHS for a while; where that does not end it, neighbourhoods, and HiGHS again from what they found."""
        nodes = self.effort.nodes
        first = 0.0 if gap(cost, bound) > _FAR else _FIRST
        for share in (first, 1.0) if self.effort.neighbourhoods else (1.0,):
            until = time.monotonic() + share * (deadline - time.monotonic())
            while time.monotonic() < until and nodes > 0 and gap(cost, bound) > self.effort.gap:
                known = {c: best[c] for c in used_classes(problem, best)}
                found, again = ilp.integer(model, known, self.effort.gap, nodes, until)
                bound = max(bound, min(found.bound, cost))
                nodes -= found.nodes + 1
                if found.choice is not None:
                    start = [found.choice.get(c, -1) for c in range(len(problem.reads))]
                    choice, c = self.swapped(problem, repaired(problem, start))
                    if c < cost:
                        best, cost = choice, c
                self.tell("searched", cost, bound)
                if not again:
                    break
            if gap(cost, bound) <= self.effort.gap:
                break
            if share < 1.0:
                until = time.monotonic() + _AROUND * (deadline - time.monotonic())
                best = self._around(problem, model, best, bound, until)
                cost = choice_cost(problem, best)
        return best, bound

    def swapped(self, problem: Problem, choice: Sequence[int]) -> tuple[list[int], float]:
        return swap_search(problem, choice, choice, _SWAP_WORK)

    def _around(self, problem: Problem, model: ilp.Model, best: list[int], bound: float, deadline: float) -> list[int]:
        effort = replace(self.effort, nodes=_INNER_NODES, cut_rounds=_INNER_ROUNDS, neighbourhoods=0)
        rounds = self.effort.neighbourhoods

        def solver(part: Part, seed: Sequence[int], until: float) -> list[int]:
            loops = loops_within(model.loops, part.classes)
            return _Search(effort, until, None, math.inf).whole(prune(part.problem), seed, until, _DEPTH - 1, loops)[0]

        enough = bound / (1 - self.effort.gap)

        def tell(cost: float) -> None:
            self.tell("around", cost, bound)

        return improve_around(problem, best, solver, deadline, rounds, enough, tell, self.effort.seed)


def _hints(problem: Problem, model: ilp.Model, relaxed: ilp.Relaxed) -> list[list[list[float]]]:
    """Prices under which the tree-greedy choice follows the relaxation."""
    values = relaxed.values
    taken = [[values[model.first[c] + k] for k in range(len(row))] for c, row in enumerate(problem.costs)]
    return [
        [[x * (1.0 - v) for x, v in zip(row, t, strict=True)] for row, t in zip(problem.costs, taken, strict=True)],
        [[1.0 - v for v in t] for t in taken],
    ]


def shared_bound(problem: Problem) -> float:
    """A lower bound on any choice's cost: of what a class costs at least, each class that may read it is asked for an
    equal share; a root pays for itself. No more is asked in all than is paid, so what is asked of the roots is a
    bound.

    O(rounds x problem)."""
    readers = [0] * len(problem.reads)
    for row in problem.reads:
        for x in set[int]().union(*row):
            readers[x] += 1
    roots = set(problem.roots)
    share = [0.0] * len(problem.reads)
    least = [0.0] * len(problem.reads)
    order = operands_first(problem.roots, lambda c: list(set[int]().union(*problem.reads[c])))
    for _ in range(_BOUND_ROUNDS):
        for c in order:
            ways = zip(problem.costs[c], problem.reads[c], strict=True)
            least[c] = min(x + sum(share[y] for y in reads) for x, reads in ways)
            if c not in roots:
                share[c] = least[c] / readers[c]
    return math.fsum(least[r] for r in problem.roots)


def parts_of(pruned: Pruned) -> list[Part]:
    """What pruning left, taken apart where no candidate reads across."""
    group = {c: c for c in pruned.rows}

    def find(c: int) -> int:
        while group[c] != c:
            group[c] = group[group[c]]
            c = group[c]
        return c

    for c, row in pruned.rows.items():
        for _, _, reads in row:
            for x in reads:
                group[find(x)] = find(c)
    members: dict[int, list[int]] = {}
    for c in pruned.rows:
        members.setdefault(find(c), []).append(c)
    parts: list[Part] = []
    for classes in members.values():
        number = {c: i for i, c in enumerate(classes)}
        rows = [pruned.rows[c] for c in classes]
        reads = [[tuple(sorted(number[x] for x in r)) for _, _, r in row] for row in rows]
        costs = [[x for _, x, _ in row] for row in rows]
        roots = tuple(number[c] for c in classes if c in pruned.required)
        parts.append(Part(Problem(reads, costs, roots), classes, [[k for k, _, _ in row] for row in rows]))
    return parts
