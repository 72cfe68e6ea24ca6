"""Large neighbourhood search: most of a choice stays as it is, what lies around one class is chosen anew, exactly."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from relax_eg.extract.problem import Part, Problem, choice_cost, repaired, restricted, used_classes

_SMALLEST, _LARGEST = 250, 3000  # candidates of a neighbourhood
_GROWTH = 1.5
_MISSES = 6  # neighbourhoods of one size without a gain before they grow

# Solves a problem from a choice, until a time.
Solver = Callable[[Part, Sequence[int], float], list[int]]


def improve_around(
    problem: Problem,
    choice: list[int],
    solver: Solver,
    deadline: float,
    rounds: int,
    enough: float,
    tell: Callable[[float], None],
    seed: int = 0,
) -> list[int]:
    """`choice` (acyclic over all classes) improved until the time or the `rounds` are out, the cost is down to
    `enough`, or the largest neighbourhoods no longer help. The same for the same problem
    and `seed` as long as the clock does not decide."""
    rng = random.Random(seed)
    near = _near(problem)
    cost = choice_cost(problem, choice)
    size, misses = float(_SMALLEST), 0
    for _ in range(rounds):
        now = time.monotonic()
        if now >= deadline or cost <= enough:
            break
        # Around a class that is used, or around any: that one may have to be used by several at once.
        starts = sorted(used_classes(problem, choice)) if rng.random() < 0.5 else range(len(problem.reads))
        open_ = _around(problem, near, starts, int(size), rng)
        ways = {c: [k for k, r in enumerate(problem.reads[c]) if all(choice[x] >= 0 for x in r)] for c in open_}
        part = restricted(problem, lambda c, choice=choice, ways=ways: ways.get(c) or (choice[c],))
        found = solver(part, part.into(choice), deadline)
        new = choice_cost(part.problem, found)
        if new < cost * (1 - 1e-9):
            better = part.out(found)
            choice = repaired(problem, [better.get(c, k) for c, k in enumerate(choice)])
            cost, misses = new, 0
            tell(cost)
            continue
        misses += 1
        if misses >= _MISSES:
            if size >= min(_LARGEST, problem.node_count):
                break
            size, misses = min(size * _GROWTH, _LARGEST), 0
    return choice


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
