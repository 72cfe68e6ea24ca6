"""Exact selection: an integer program over what pruning leaves, solved by HiGHS.

A column for each candidate, and one for each class that may or may not be used. Of a class that is used exactly one
candidate is; a class is used where a candidate that reads it is. Candidates of one class that read the same class share
one constraint, since at most one of them is taken; that makes fractional solutions dearer than a constraint each.

Circles are cut off when they turn up: in the linear relaxation, where a shortest path finds every cut that it violates,
and in integer solutions. A circle c1 -> c2 -> ... -> c1 is cut by

    sum of (candidates of ci that read ci+1)  <=  sum of (ci is used), one class of the circle left out.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_eg.extract.problem import Problem
from relax_eg.extract.prune import strong_components

if TYPE_CHECKING:
    import highspy

SCALE = 1e3  # what the program at hand costs in the units that HiGHS gets: its tolerances are absolute
_CUTS = 400  # of one round
_VIOLATED = 1e-3
_TAKEN = 1e-6

Cut = tuple[list[int], list[float], float]  # columns, coefficients, at most this


@dataclass(slots=True)
class Exact:
    """What came out: the places chosen, for the classes used (None: nothing better than what was known), a lower
    bound on any choice, and the nodes of the search."""

    choice: dict[int, int] | None
    bound: float
    nodes: int


@dataclass
class Model:
    """The integer program of `problem`, every class of which is needed by some choice. `unit`: what is 1 to HiGHS."""

    problem: Problem
    unit: float
    first: list[int] = field(default_factory=list[int])  # column of a class' first candidate
    used: dict[int, int] = field(default_factory=dict[int, int])  # column that says a class is used; none: it is
    arcs: dict[int, dict[int, list[int]]] = field(default_factory=dict[int, dict[int, list[int]]])
    cuts: list[Cut] = field(default_factory=list[Cut])

    def __post_init__(self) -> None:
        columns = 0
        required = set(self.problem.roots)
        for c, row in enumerate(self.problem.reads):
            self.first.append(columns)
            columns += len(row)
            if c not in required:
                self.used[c] = columns if len(row) > 1 else columns - 1
                columns += len(row) > 1
        self.columns = columns
        component = strong_components({c: set().union(*row) for c, row in enumerate(self.problem.reads)})
        for c, row in enumerate(self.problem.reads):
            for k, reads in enumerate(row):
                for x in reads:
                    if component[x] == component[c]:
                        self.arcs.setdefault(c, {}).setdefault(x, []).append(self.first[c] + k)
        for c, below in self.arcs.items():
            for x in below:
                if x > c and c in self.arcs.get(x, ()):
                    self.cuts += [self.cut((c, x), c), self.cut((c, x), x)]

    def cut(self, circle: Sequence[int], left_out: int) -> Cut:
        """No choice runs through `circle`."""
        entries: dict[int, float] = {}
        limit = 0.0
        for c, x in zip(circle, (*circle[1:], circle[0]), strict=True):
            for column in self.arcs[c][x]:
                entries[column] = entries.get(column, 0.0) + 1.0
            if c == left_out:
                continue
            if c in self.used:
                entries[self.used[c]] = entries.get(self.used[c], 0.0) - 1.0
            else:
                limit += 1.0
        return list(entries), list(entries.values()), limit

    def linear(self) -> highspy.Highs:
        """The linear relaxation, with the cuts so far."""
        cost = np.zeros(self.columns)
        entries: list[Cut] = []
        lower: list[float] = []
        for c, row in enumerate(self.problem.reads):
            start = self.first[c]
            cost[start : start + len(row)] = [x / self.unit for x in self.problem.costs[c]]
            own = list(range(start, start + len(row)))
            if c not in self.used:
                entries.append((own, [1.0] * len(own), 1.0))
                lower.append(1.0)
            elif len(row) > 1:
                entries.append(([*own, self.used[c]], [1.0] * len(own) + [-1.0], 0.0))
                lower.append(0.0)
            readers: dict[int, list[int]] = {}
            for k, reads in enumerate(row):
                for x in reads:
                    if x in self.used:
                        readers.setdefault(x, []).append(start + k)
            for x, reading in readers.items():
                entries.append(([*reading, self.used[x]], [1.0] * len(reading) + [-1.0], 0.0))
                lower.append(-math.inf)
        entries += self.cuts
        lower += [-math.inf] * len(self.cuts)
        return relaxation(cost, entries, lower)

    def columns_of(self, choice: Mapping[int, int]) -> np.ndarray[Any, Any]:
        """The solution that stands for `choice`, by class used."""
        values = np.zeros(self.columns)
        for c, k in choice.items():
            values[self.first[c] + k] = 1.0
            if c in self.used:
                values[self.used[c]] = 1.0
        return values

    def choice_of(self, values: Sequence[float]) -> dict[int, int]:
        """What an integer solution takes, for the classes it needs."""
        choice: dict[int, int] = {}
        stack = list(self.problem.roots)
        while stack:
            c = stack.pop()
            if c not in choice:
                row, start = self.problem.reads[c], self.first[c]
                choice[c] = max(range(len(row)), key=lambda k: values[start + k])
                stack.extend(row[choice[c]])
        return choice

    def within(self, relaxed: Relaxed, cost: float, choice: Sequence[int]) -> list[list[int]]:
        """For each class the candidates that a choice cheaper than `cost` may use, and `choice`'s."""
        left = (cost - relaxed.bound) / self.unit + 1e-6 * SCALE
        keep: list[list[int]] = []
        for c, row in enumerate(self.problem.reads):
            start = self.first[c]
            out = len(row) > 1 and c in self.used and relaxed.reduced[self.used[c]] > left
            kept = [k for k in range(len(row)) if k == choice[c] or (not out and relaxed.reduced[start + k] <= left)]
            keep.append(kept)
        return keep

    def circles(self, values: Sequence[float]) -> list[tuple[Sequence[int], int]]:
        """Circles that `values` violates, and the class to leave out for that. For each class the shortest path back
        to it, where an arc is as long as its class is used otherwise."""
        length: dict[int, list[tuple[int, float]]] = {}
        use: dict[int, float] = {}
        for c, below in self.arcs.items():
            use[c] = values[self.used[c]] if c in self.used else 1.0
            if use[c] < _TAKEN:
                continue
            flows = ((x, sum(values[i] for i in columns)) for x, columns in below.items())
            length[c] = [(x, max(0.0, use[c] - flow)) for x, flow in flows if flow > _TAKEN]
        component = strong_components({c: {x for x, _ in arcs if x in length} for c, arcs in length.items()})
        length = {c: [a for a in arcs if component.get(a[0]) == component[c]] for c, arcs in length.items()}
        found: dict[frozenset[int], tuple[Sequence[int], int]] = {}
        seen = dict.fromkeys(length, 0)
        for start in sorted(length, key=lambda c: -use[c]):
            if seen[start] >= 2 or not length[start]:
                continue
            if len(found) >= _CUTS:
                break
            path = _shortest_back(start, length, use[start] - _VIOLATED)
            if path is not None:
                found.setdefault(frozenset(path), (path, start))
                for c in path:
                    seen[c] += 1
        return list(found.values())


def _shortest_back(start: int, length: Mapping[int, list[tuple[int, float]]], limit: float) -> list[int] | None:
    """The shortest circle through `start`, if shorter than `limit`."""
    distance = {start: 0.0}
    before: dict[int, int] = {}
    heap = [(0.0, start)]
    last, shortest = start, limit
    while heap:
        d, c = heapq.heappop(heap)
        if d >= shortest:
            break
        if d > distance[c]:
            continue
        for x, further in length.get(c, ()):
            far = d + further
            if far >= shortest:
                continue
            if x == start:
                last, shortest = c, far
            elif far < distance.get(x, math.inf):
                distance[x], before[x] = far, c
                heapq.heappush(heap, (far, x))
    if shortest >= limit:
        return None
    path = [last]
    while path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


def relaxation(
    cost: Sequence[float] | np.ndarray[Any, Any], entries: Sequence[Cut], lower: Sequence[float]
) -> highspy.Highs:
    """HiGHS with this linear program: a column for each cost, between 0 and 1; a row for each entry, at least `lower`
    and at most what the entry says."""
    import highspy

    solver: Any = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 1), ("parallel", "off")):
        solver.setOptionValue(option, value)
    lp: Any = highspy.HighsLp()
    n = len(cost)
    lp.num_col_, lp.num_row_ = n, len(entries)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.array(cost), np.zeros(n), np.ones(n)
    lp.row_lower_, lp.row_upper_ = np.array(lower), np.array([e[2] for e in entries])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(e[0]) for e in entries)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([i for e in entries for i in e[0]], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([v for e in entries for v in e[1]])
    solver.passModel(lp)
    return solver


@dataclass
class Relaxed:
    """The linear relaxation solved: a lower bound, the solution, and each column's reduced cost (of `unit`s)."""

    bound: float
    values: Sequence[float]
    reduced: Sequence[float]


def relax(model: Model, rounds: int, deadline: float) -> Relaxed | None:
    """The linear relaxation of `model`, circles cut off as long as they show; None where the time is out before."""
    import highspy

    solver: Any = model.linear()
    result: Relaxed | None = None
    for _ in range(max(1, rounds)):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        solver.setOptionValue("time_limit", solver.getRunTime() + left)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            break
        solution = solver.getSolution()
        values = list(solution.col_value)
        bound = solver.getInfo().objective_function_value * model.unit
        last = result.bound if result is not None else -math.inf
        result = Relaxed(max(bound, last), values, list(solution.col_dual))
        fresh = [model.cut(circle, left_out) for circle, left_out in model.circles(values)]
        if not fresh:
            break
        model.cuts += fresh
        for columns, coefficients, limit in fresh:
            solver.addRow(-math.inf, limit, len(columns), np.array(columns, dtype=np.int32), np.array(coefficients))
    return result


def integer(model: Model, known: Mapping[int, int], gap: float, nodes: int, deadline: float) -> tuple[Exact, bool]:
    """One search of HiGHS from the choice `known`, and whether what it found runs in a circle, which is cut off now."""
    import highspy

    solver: Any = model.linear()
    kind = np.array([highspy.HighsVarType.kInteger] * model.columns)
    solver.changeColsIntegrality(model.columns, np.arange(model.columns, dtype=np.int32), kind)
    for option, value in (
        ("time_limit", max(0.01, deadline - time.monotonic())),
        ("mip_max_nodes", nodes),
        ("mip_rel_gap", gap),
        ("mip_abs_gap", 0.0),
    ):
        solver.setOptionValue(option, value)
    start = highspy.HighsSolution()
    start.col_value = list(model.columns_of(known))
    solver.setSolution(start)
    solver.run()
    info = solver.getInfo()
    bound = info.mip_dual_bound * model.unit if math.isfinite(info.mip_dual_bound) else 0.0
    searched = max(0, int(info.mip_node_count))
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Exact(None, bound, searched), False
    values = list(solver.getSolution().col_value)
    choice = model.choice_of(values)
    circles = model.circles([round(v) for v in values])
    for circle, _ in circles:
        model.cuts += [model.cut(circle, c) for c in dict.fromkeys(circle)][:4]
    return Exact(choice, bound, searched), bool(circles)
