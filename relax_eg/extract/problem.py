"""What every selection works on: classes, the ways to compute each, what they cost. Numbers only.

An extraction graph (`graph`) and a foreign e-graph (`foreign`) both become one of these. A *choice* is a list with the
place of a candidate for each class, -1 where the class has none; the classes that the roots need under it must not
depend on themselves, and its cost is the sum over them, each once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`reads[c][k]`: the distinct classes that candidate `k` of class `c` needs; `costs[c][k]`: its cost, a number
    >= 0, infinite where it cannot be had; `roots`: classes that must be computed."""

    reads: Sequence[Sequence[tuple[int, ...]]]
    costs: Sequence[Sequence[float]]
    roots: tuple[int, ...]

    @property
    def node_count(self) -> int:
        return sum(map(len, self.reads))


def tree_choice(problem: Problem, costs: Sequence[Sequence[float]] | None = None) -> list[int]:
    """For every class its cheapest candidate when every use is paid in full; -1 where there is none. Acyclic.

    Knuth's generalisation of Dijkstra's algorithm. O(candidates log candidates). `costs`: in place of the problem's.
    """
    return tree_greedy(problem, costs)[0]


def tree_greedy(problem: Problem, costs: Sequence[Sequence[float]] | None = None) -> tuple[list[int], list[float]]:
    """`tree_choice`, and for every class what its tree costs (infinite where there is none)."""
    costs = costs or problem.costs
    users: list[list[tuple[int, int]]] = [[] for _ in problem.reads]
    waiting = [list(map(len, row)) for row in problem.reads]
    heap: list[tuple[float, int, int]] = []
    for c, row in enumerate(problem.reads):
        prices = costs[c]
        for k, children in enumerate(row):
            if prices[k] == math.inf:
                continue
            user = c, k
            for child in children:
                users[child].append(user)
            if not children:
                heap.append((prices[k], c, k))
    heapq.heapify(heap)
    total = [math.inf] * len(problem.reads)
    choice = [-1] * len(problem.reads)
    while heap:
        cost, c, k = heapq.heappop(heap)
        if choice[c] >= 0:
            continue
        choice[c], total[c] = k, cost
        for u, j in users[c]:
            left = waiting[u]
            left[j] -= 1
            if left[j] == 0 and choice[u] < 0:
                heapq.heappush(heap, (costs[u][j] + sum([total[x] for x in problem.reads[u][j]]), u, j))
    return choice, total


def used_classes(problem: Problem, choice: Sequence[int]) -> set[int]:
    """Classes the roots need under `choice`."""
    seen: set[int] = set()
    stack = list(problem.roots)
    while stack:
        c = stack.pop()
        if c not in seen:
            seen.add(c)
            stack.extend(problem.reads[c][choice[c]])
    return seen


def choice_cost(problem: Problem, choice: Sequence[int]) -> float:
    """Sum over the distinct classes the roots need."""
    return math.fsum(problem.costs[c][choice[c]] for c in used_classes(problem, choice))


def operands_first(starts: Iterable[int], children: Callable[[int], Sequence[int]]) -> list[int]:
    """The classes under `starts`, each after those it reads; a cycle is cut where it is closed."""
    done: dict[int, None] = {}
    open_: set[int] = set()
    for start in starts:
        stack = [(start, 0)]
        while stack:
            c, i = stack.pop()
            if c in done or (i == 0 and c in open_):
                continue
            open_.add(c)
            below = children(c)
            while i < len(below) and (below[i] in done or below[i] in open_):
                i += 1
            if i < len(below):
                stack += [(c, i + 1), (below[i], 0)]
            else:
                done[c] = None
    return list(done)


def is_acyclic(problem: Problem, choice: Sequence[int]) -> bool:
    """Whether no class that the roots need depends on itself."""
    place: dict[int, int] = {}

    def below(c: int) -> tuple[int, ...]:
        return problem.reads[c][choice[c]]

    for i, c in enumerate(operands_first(problem.roots, below)):
        place[c] = i
    return all(place[x] < i for c, i in place.items() for x in below(c))


def repaired(problem: Problem, choice: Sequence[int]) -> list[int]:
    """An acyclic choice for every class that can be computed: `choice` itself wherever that leads to no circle."""
    # What was chosen is free and all else is not: others come in only where the chosen ones run in circles.
    costs = [
        [0.0 if k == choice[c] and x < math.inf else 1.0 + x for k, x in enumerate(row)]
        for c, row in enumerate(problem.costs)
    ]
    return tree_choice(problem, costs)


@dataclass(slots=True)
class Part:
    """A problem on its own: the classes, numbered anew, and their numbers and places before."""

    problem: Problem
    classes: list[int]
    places: list[list[int]]

    def out(self, choice: Sequence[int]) -> dict[int, int]:
        """What `choice` uses, in the numbers of before."""
        return {self.classes[i]: self.places[i][choice[i]] for i in used_classes(self.problem, choice)}

    def into(self, choice: Sequence[int]) -> list[int]:
        """The part of a choice from before; -1 for a candidate that is not there any more."""
        inside: list[int] = []
        for c, places in zip(self.classes, self.places, strict=True):
            inside.append(places.index(choice[c]) if choice[c] in places else -1)
        return inside


def restricted(problem: Problem, keep: Callable[[int], Iterable[int]]) -> Part:
    """What the roots can reach by the candidates `keep(c)` of each class `c`."""
    places: dict[int, list[int]] = {}
    stack = list(problem.roots)
    while stack:
        c = stack.pop()
        if c not in places:
            places[c] = list(keep(c))
            for k in places[c]:
                stack.extend(problem.reads[c][k])
    number = {c: i for i, c in enumerate(places)}
    reads = [[tuple(number[x] for x in problem.reads[c][k]) for k in ks] for c, ks in places.items()]
    costs = [[problem.costs[c][k] for k in ks] for c, ks in places.items()]
    return Part(Problem(reads, costs, tuple(number[r] for r in problem.roots)), list(places), list(places.values()))
