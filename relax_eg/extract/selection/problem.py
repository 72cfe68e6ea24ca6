"""The selection problem: classes, their candidates, and the costs of these, as numbers only.

An extraction graph (`graph`) and a foreign e-graph (`foreign`) both become such a problem. A *choice* is a list with
the index of a candidate for each class, or -1 if the class has none. The classes that the roots need under a choice
must not depend on themselves. The cost of a choice is the sum over these classes, each counted once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from relax_eg.traversal import derived, reached


@dataclass(frozen=True, slots=True)
class Problem:
    """A selection problem.

    - `reads[c][k]`: the distinct classes that candidate `k` of class `c` needs.
    - `costs[c][k]`: its cost, a number >= 0; infinite if it cannot be chosen.
    - `roots`: classes that must be computed.
    """

    reads: Sequence[Sequence[tuple[int, ...]]]
    costs: Sequence[Sequence[float]]
    roots: tuple[int, ...]

    @property
    def node_count(self) -> int:
        return sum(map(len, self.reads))


def tree_choice(
    problem: Problem, costs: Sequence[Sequence[float]] | None = None, settled: Mapping[int, int] | None = None
) -> list[int]:
    """The choice of every class's candidate with the cheapest tree, in which each use of a class counts; -1 for a class
    that cannot be computed. The choice is acyclic.

    It is found by Knuth's generalisation of Dijkstra's algorithm, in O(candidates log candidates).

    - `costs`: replace the problem's costs.
    - `settled`: the candidates of classes whose trees are free, whatever the costs say; none of them reads a class
      that is not settled.
    """
    return tree_greedy(problem, costs, settled)[0]


def tree_greedy(
    problem: Problem,
    costs: Sequence[Sequence[float]] | None = None,
    settled: Mapping[int, int] | None = None,
    together: Callable[[Iterable[float]], float] = sum,
) -> tuple[list[int], list[float]]:
    """The result of `tree_choice`, and the cost of every class's tree: infinite if the class cannot be computed.

    - `together`: the cost of a candidate's operands from theirs; `max` gives, in place of a tree's cost, that of the
      dearest path in it.
    """
    costs, settled = costs or problem.costs, settled or {}
    users: list[list[tuple[int, int]]] = [[] for _ in problem.reads]
    waiting: list[list[int]] = [[]] * len(problem.reads)
    heap: list[tuple[float, int, int]] = []
    total = [math.inf] * len(problem.reads)
    choice = [-1] * len(problem.reads)
    for c, k in settled.items():
        choice[c], total[c] = k, 0.0
    for c, row in enumerate(problem.reads):
        if c in settled:
            continue
        prices, waiting[c] = costs[c], list(map(len, row))
        for k, children in enumerate(row):
            if prices[k] == math.inf:
                continue
            if settled:
                children = [x for x in children if x not in settled]
                waiting[c][k] = len(children)
            user = c, k
            for child in children:
                users[child].append(user)
            if not children:
                heap.append((prices[k], c, k))
    heapq.heapify(heap)
    while heap:
        cost, c, k = heapq.heappop(heap)
        if choice[c] >= 0:
            continue
        choice[c], total[c] = k, cost
        for u, j in users[c]:
            left = waiting[u]
            left[j] -= 1
            if left[j] == 0 and choice[u] < 0:
                heapq.heappush(heap, (costs[u][j] + together([total[x] for x in problem.reads[u][j]]), u, j))
    return choice, total


def impossible_classes(problem: Problem, choice: Sequence[int]) -> list[int]:
    """The classes under the roots that cannot be computed, roots first. `choice`: a choice that is -1 for a class if
    and only if the class cannot be computed."""

    def below(c: int) -> list[int]:
        return [x for row in problem.reads[c] for x in row] if choice[c] < 0 else []

    return [c for c in reached(problem.roots, below) if choice[c] < 0]


def used_classes(problem: Problem, choice: Sequence[int]) -> set[int]:
    """The classes that the roots need under `choice`."""
    return set(reached(problem.roots, lambda c: problem.reads[c][choice[c]]))


def choice_cost(problem: Problem, choice: Sequence[int]) -> float:
    """The cost of `choice`: the sum over the distinct classes that the roots need."""
    return math.fsum(problem.costs[c][choice[c]] for c in used_classes(problem, choice))


def repair_choice(problem: Problem, choice: Sequence[int]) -> list[int]:
    """An acyclic choice for every class that can be computed, which differs from `choice` only where that has cycles or
    no finite cost."""
    kept = _computed(problem, choice)
    if len(kept) == len(choice):
        return list(choice)
    # Chosen candidates are free and all others are not, so others are taken only to break cycles.
    costs = [
        row if c in kept else [0.0 if k == choice[c] and x < math.inf else 1.0 + x for k, x in enumerate(row)]
        for c, row in enumerate(problem.costs)
    ]
    return tree_choice(problem, costs, kept)


def _computed(problem: Problem, choice: Sequence[int]) -> dict[int, int]:
    """The classes that `choice` computes without a cycle and at a finite cost, operands first, with their
    candidates."""
    chosen = ((c, problem.reads[c][k]) for c, k in enumerate(choice) if k >= 0 and problem.costs[c][k] < math.inf)
    return {c: choice[c] for c in derived(chosen)}


@dataclass(slots=True)
class Subproblem:
    """A part of a problem as a problem of its own.

    - `problem`: the part.
    - `classes`: the number of each class in the whole problem.
    - `places`: the index of each candidate in the whole problem.
    """

    problem: Problem
    classes: list[int]
    places: list[list[int]]

    def lift(self, choice: Sequence[int]) -> dict[int, int]:
        """The classes that `choice` uses and their candidates, in the numbers of the whole problem."""
        return {self.classes[i]: self.places[i][choice[i]] for i in used_classes(self.problem, choice)}

    def project(self, choice: Sequence[int]) -> list[int]:
        """The part of a choice of the whole problem; -1 for a candidate that the part does not have."""
        inside: list[int] = []
        for c, places in zip(self.classes, self.places, strict=True):
            inside.append(places.index(choice[c]) if choice[c] in places else -1)
        return inside


def restrict(problem: Problem, keep: Callable[[int], Iterable[int]]) -> Subproblem:
    """The subproblem that the roots can reach by the candidates `keep(c)` of each class `c`."""
    places: dict[int, list[int]] = {}

    def below(c: int) -> list[int]:
        places[c] = list(keep(c))
        return [x for k in places[c] for x in problem.reads[c][k]]

    reached(problem.roots, below)
    number = {c: i for i, c in enumerate(places)}
    reads = [[tuple(number[x] for x in problem.reads[c][k]) for k in ks] for c, ks in places.items()]
    costs = [[problem.costs[c][k] for k in ks] for c, ks in places.items()]
    return Subproblem(
        Problem(reads, costs, tuple(number[r] for r in problem.roots)), list(places), list(places.values())
    )
