"""Improves a choice without a bound: by annealing, by combining two choices, and by large neighbourhood search.

Large neighbourhood search keeps most of a choice and solves the problem of the classes around one class exactly. The
combination of two choices is also a small problem, in which every class may use the candidate of either.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from relax_eg.extract.selection.anneal import Annealer
from relax_eg.extract.selection.problem import Problem, Subproblem, choice_cost, repair_choice, restrict, used_classes
from relax_eg.extract.selection.search import GAIN

_TINY, _SMALL, _LARGEST = 40, 250, 3000  # chosen: candidates of a neighbourhood
_GROWTH = 1.5  # chosen: factor from one neighbourhood size to the next
_MISSES = 6  # chosen: neighbourhoods of one size without a gain before the size grows
_AROUND = 30  # chosen: neighbourhoods after the first round of annealing
_LONGER = 1.4  # chosen: factor on their number after each further round
_SECONDS = 2.0  # limit: seconds of one neighbourhood; if they do not suffice, smaller ones are searched
_USED = 0.5  # chosen: share of the neighbourhoods around a used class; the others are around any class
# chosen: share of the steps by which a neighbourhood grows from a random class of its border; the others start from the
# first class of the border
_ASTRAY = 0.3
_WIDE = 24  # limit: neighbours of a class that are considered

# Solves a problem, starting at a choice, until a time.
Solver = Callable[[Subproblem, Sequence[int], float], list[int]]


class Improver:
    """The state of a search that improves a choice of `problem` step by step. All classes must be computable.

    A cycle consists of a round of annealing, the combination of its result with the best choice, and neighbourhoods.
    Runs with the same `seed` have the same result unless a time limit ends one.

    - `best`, `cost`: the cheapest choice so far (acyclic over all classes), and its cost.
    """

    def __init__(self, problem: Problem, choice: Sequence[int], solver: Solver, seed: int) -> None:
        self.problem = problem
        self.solver = solver
        self.rng = random.Random(seed)
        self.adjacent = _adjacent_classes(problem)
        self.annealer = Annealer(problem, choice, self.rng)
        self.best, self.cost = self.annealer.best, self.annealer.cost
        self.turns, self.left = float(_AROUND), 0
        self.size, self.misses = float(_SMALL), 0

    def offer(self, choice: Sequence[int]) -> None:
        """Takes a choice that was found elsewhere if it is better. It must be acyclic on its used classes."""
        cost = choice_cost(self.problem, choice)
        if cost < self.cost * (1 - GAIN):
            self.best, self.cost = repair_choice(self.problem, choice), cost
            self.annealer.best, self.annealer.cost = self.best, cost

    def step(self, until: float) -> None:
        """Runs one round of annealing, or searches one neighbourhood."""
        if self.left > 0:
            self.left -= 1
            self._search_neighbourhood(until)
            return
        self.left = int(self.turns)
        self.turns *= _LONGER
        before = self.best
        found = self.annealer.round(until)
        self.offer(found)
        self.combine(before if found is self.best else found, until)

    def combine(self, other: Sequence[int], until: float) -> None:
        """Searches for the best combination of the best choice and `other`, which has a candidate for every class."""
        if other != self.best and time.monotonic() < until:
            best = self.best
            self._solve(lambda c: sorted({best[c], other[c]}), until)

    def _solve(self, keep: Callable[[int], Sequence[int]], until: float) -> bool:
        """Solves the problem with only the candidates `keep(c)` of each class; returns whether the best choice
        improved."""
        part = restrict(self.problem, keep)
        found = self.solver(part, part.project(self.best), min(until, time.monotonic() + _SECONDS))
        if choice_cost(part.problem, found) >= self.cost * (1 - GAIN):
            return False
        better = part.lift(found)
        self.offer([better.get(c, k) for c, k in enumerate(self.best)])
        return True

    def _search_neighbourhood(self, until: float) -> None:
        # Half of the starts are any class, because several readers may have to switch to an unused class at once.
        rng, problem, best, before = self.rng, self.problem, self.best, time.monotonic()
        starts = sorted(used_classes(problem, best)) if rng.random() < _USED else range(len(problem.reads))
        open_ = _neighbourhood(problem, self.adjacent, starts, int(self.size), rng)
        if self._solve(lambda c: range(len(problem.reads[c])) if c in open_ else (best[c],), until):
            self.misses = 0
            return
        self.misses += 1
        if time.monotonic() - before > _SECONDS:
            self.size, self.misses = max(_TINY, self.size / _GROWTH), 0
        elif self.misses >= _MISSES:
            largest = min(_LARGEST, problem.node_count)
            self.size = _SMALL if self.size >= largest else min(self.size * _GROWTH, largest)
            self.misses = 0


def _adjacent_classes(problem: Problem) -> list[list[int]]:
    """For each class, the classes that may read it or that it may read."""
    near: list[dict[int, None]] = [{} for _ in problem.reads]
    for c, row in enumerate(problem.reads):
        for reads in row:
            for x in reads:
                near[c][x] = None
                near[x][c] = None
    return [list(n) for n in near]


def _neighbourhood(
    problem: Problem, near: list[list[int]], starts: Sequence[int], size: int, rng: random.Random
) -> set[int]:
    """Classes around one of `starts`, collected outwards in random order, with about `size` candidates in all."""
    start = rng.choice(starts)
    found = {start}
    border = [start]
    left = size - len(problem.reads[start])
    while border and left > 0:
        i = rng.randrange(len(border)) if rng.random() < _ASTRAY else 0
        c = border.pop(i)
        below = near[c][:]
        rng.shuffle(below)
        for x in below[:_WIDE]:
            if x not in found and left > 0:
                found.add(x)
                border.append(x)
                left -= len(problem.reads[x])
    return found
