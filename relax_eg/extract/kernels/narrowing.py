"""Reductions of a selection problem over kernels: to given operators, to the cheapest operators, and without free
classes; and the operators that kernels contain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.ilp import Overlap
from relax_eg.extract.kernels.states import Kernel
from relax_eg.extract.kernels.ways import Way, members_of
from relax_eg.extract.problem import Problem

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
