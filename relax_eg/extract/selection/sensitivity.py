"""The sensitivity of a choice to the number of candidates kept: the same selection among the best few of each class."""

from __future__ import annotations

import math

from relax_eg.extract.selection.problem import Problem, restrict, tree_greedy
from relax_eg.extract.selection.solve import initial_choice

KEPT = (1, 2, 4)  # limit: candidates per class
MOST = 2000  # limit: candidates in all; larger problems are not examined


def sensitivity(problem: Problem, cost: float) -> tuple[tuple[int, float], ...]:
    """Pairs (n, additional cost as a share of `cost`) for the n in `KEPT`: the cost of a program that is chosen among
    only n candidates per class.

    These candidates are those whose trees cost least. Greedy choices and swap search find the program. A number at
    which no candidate is left out has no pair. The result is empty for a problem of more than `MOST` candidates. The
    roots must be computable."""
    if cost <= 0 or problem.node_count > MOST:
        return ()
    _, total = tree_greedy(problem)
    ranked: list[list[int]] = []
    for row, costs in zip(problem.reads, problem.costs, strict=True):
        trees = [x + sum(total[r] for r in reads) for reads, x in zip(row, costs, strict=True)]
        ranked.append(sorted((k for k, x in enumerate(trees) if x < math.inf), key=lambda k, t=trees: (t[k], k)))
    found: list[tuple[int, float]] = []
    for n in KEPT:
        if all(len(row) <= n for row in ranked):
            break
        part = restrict(problem, lambda c, n=n: ranked[c][:n])
        _, least = initial_choice(part.problem, [-1] * len(part.classes))
        found.append((n, least / cost - 1.0))
    return tuple(found)
