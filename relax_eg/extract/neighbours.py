"""Improving a choice without a bound: annealing, the best of two choices, exact search around one class.

Large neighbourhood search: most of a choice stays as it is, what lies around one class is chosen anew, exactly. Two
good choices make a small problem, too: every class may use what either uses.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from relax_eg.extract.anneal import Annealer
from relax_eg.extract.problem import Part, Problem, choice_cost, repaired, restricted, used_classes

_TINY, _SMALL, _LARGEST = 40, 250, 3000  # candidates of a neighbourhood
_GROWTH = 1.5
_MISSES = 6  # neighbourhoods of one size without a gain before they grow
_AROUND = 30  # neighbourhoods after the first round of annealing, and
_LONGER = 1.4  # times as many after each next
_SECONDS = 2.0  # for one; where they do not suffice, smaller ones are looked at

# Solves a problem from a choice, until a time.
Solver = Callable[[Part, Sequence[int], float], list[int]]


class Improver:
    """Improves a choice of `problem`, all of whose classes can be computed, step by step: a round of annealing, what it
    found crossed with the best, then neighbourhoods. The same for the same `seed` as long as the clock does not decide.

    `best`, `cost`: the cheapest choice so far, acyclic over all classes."""

    def __init__(self, problem: Problem, choice: Sequence[int], solver: Solver, seed: int) -> None:
        self.problem = problem
        self.solver = solver
        self.rng = random.Random(seed)
        self.near = _near(problem)
        self.annealer = Annealer(problem, choice, self.rng)
        self.best, self.cost = self.annealer.best, self.annealer.cost
        self.turns, self.left = float(_AROUND), 0
        self.size, self.misses = float(_SMALL), 0

    def offer(self, choice: Sequence[int]) -> None:
        """A choice, acyclic where it is used, that somebody else found."""
        cost = choice_cost(self.problem, choice)
        if cost < self.cost * (1 - 1e-9):
            self.best, self.cost = repaired(self.problem, choice), cost
            self.annealer.best, self.annealer.cost = self.best, cost

    def step(self, until: float) -> None:
        """One round of annealing or one neighbourhood."""
        if self.left > 0:
            self.left -= 1
            self._look_around(until)
            return
        self.left = int(self.turns)
        self.turns *= _LONGER
        before = self.best
        found = self.annealer.round(until)
        self.offer(found)
        self.cross(before if found is self.best else found, until)

    def cross(self, other: Sequence[int], until: float) -> None:
        """The best of what the best choice and `other`, which has a candidate for every class, have between them."""
        if other != self.best and time.monotonic() < until:
            best = self.best
            self._solve(lambda c: sorted({best[c], other[c]}), until)

    def _solve(self, keep: Callable[[int], Sequence[int]], until: float) -> bool:
        """Choose anew among the candidates `keep(c)` of each class; whether that helped."""
        part = restricted(self.problem, keep)
        found = self.solver(part, part.into(self.best), min(until, time.monotonic() + _SECONDS))
        if choice_cost(part.problem, found) >= self.cost * (1 - 1e-9):
            return False
        better = part.out(found)
        self.offer([better.get(c, k) for c, k in enumerate(self.best)])
        return True

    def _look_around(self, until: float) -> None:
        # Around a class that is used, or around any: that one may have to be used by several at once.
        rng, problem, best, before = self.rng, self.problem, self.best, time.monotonic()
        starts = sorted(used_classes(problem, best)) if rng.random() < 0.5 else range(len(problem.reads))
        open_ = _around(problem, self.near, starts, int(self.size), rng)
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


def _near(problem: Problem) -> list[list[int]]:
    """For each class those that read it or that it may read."""
    near: list[dict[int, None]] = [{} for _ in problem.reads]
    for c, row in enumerate(problem.reads):
        for reads in row:
            for x in reads:
                near[c][x] = None
                near[x][c] = None
    return [list(n) for n in near]


def _around(problem: Problem, near: list[list[int]], starts: Sequence[int], size: int, rng: random.Random) -> set[int]:
    """Classes around one of `starts`, in random order outwards, with about `size` candidates together."""
    start = rng.choice(starts)
    found = {start}
    border = [start]
    left = size - len(problem.reads[start])
    while border and left > 0:
        i = rng.randrange(len(border)) if rng.random() < 0.3 else 0
        c = border.pop(i)
        below = near[c][:]
        rng.shuffle(below)
        for x in below[:24]:
            if x not in found and left > 0:
                found.add(x)
                border.append(x)
                left -= len(problem.reads[x])
    return found
