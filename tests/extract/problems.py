"""Small random selection problems, and their optimum by exhaustive search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import strategies as st

from relax_eg.extract.selection.problem import Problem
from relax_eg.traversal import operands_first


@st.composite
def problems(draw: st.DrawFn, most_classes: int = 6, most_candidates: int = 3) -> Problem:
    """Any class may read any: the roots are computable or not, and many choices run in circles. Some cost nothing,
    some cannot be had."""
    n = draw(st.integers(1, most_classes))
    price = st.one_of(st.integers(0, 9).map(float), st.just(0.0), st.just(math.inf))
    reads: list[list[tuple[int, ...]]] = []
    costs: list[list[float]] = []
    for _ in range(n):
        row = draw(st.lists(st.lists(st.integers(0, n - 1), max_size=3), min_size=1, max_size=most_candidates))
        reads.append([tuple(dict.fromkeys(r)) for r in row])
        costs.append([draw(price) for _ in row])
    roots = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3, unique=True))
    return Problem(reads, costs, tuple(roots))


def needed(problem: Problem, choice: tuple[int, ...]) -> list[int] | None:
    """The classes that the roots need, operands first; None where one depends on itself."""
    order: list[int] = []
    path: set[int] = set()

    def visit(c: int) -> bool:
        if c in order:
            return True
        if c in path:
            return False
        path.add(c)
        ok = all(visit(x) for x in problem.reads[c][choice[c]])
        path.discard(c)
        order.append(c)
        return ok

    return order if all(visit(r) for r in problem.roots) else None


def optimum(problem: Problem) -> float:
    """The cheapest of all choices; infinite where there is none."""
    best = math.inf
    for choice in itertools.product(*(range(len(row)) for row in problem.reads)):
        order = needed(problem, choice)
        if order is not None:
            best = min(best, math.fsum(problem.costs[c][choice[c]] for c in order))
    return best


def is_acyclic(problem: Problem, choice: Sequence[int]) -> bool:
    """Whether no class that the roots need depends on itself."""
    place: dict[int, int] = {}

    def below(c: int) -> tuple[int, ...]:
        return problem.reads[c][choice[c]]

    for i, c in enumerate(operands_first(problem.roots, below)):
        place[c] = i
    return all(place[x] < i for c, i in place.items() for x in below(c))
