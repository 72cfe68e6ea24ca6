"""Exact selection: an integer program over what pruning leaves, solved by HiGHS.

A column for each candidate, and one for each class that may or may not be used. Of a class that is used exactly one
candidate is; a class is used where a candidate that reads it is. Candidates of one class that read the same class share
one constraint, since at most one of them is taken; that makes fractional solutions dearer than a constraint each.

Circles are cut off, and classes that several halves of a solution share are paid in full, by the cuts of `loops`, which
are found for the linear relaxation, and for integer solutions that run in circles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from relax_eg.errors import ExtractionError
from relax_eg.extract.loops import VIOLATED, Loop, Loops
from relax_eg.extract.problem import Problem

if TYPE_CHECKING:
    import highspy

SCALE = 1e3  # what the program at hand costs in the units that HiGHS gets: its tolerances are absolute
_CUTS = 150  # of one round, and
_PAIRS = 300  # of those of two classes,
_FEW = 2500  # where there are not so few that all of them are there from the start
_TIGHT = 1e-6
_STALL = 12  # rounds
_SLOW = 0.03  # of what is open between bound and cost: gained in that many rounds, it is not enough

Row = tuple[list[int], list[float], float]  # columns, coefficients, at least this


@dataclass(slots=True)
class Exact:
    """What came out: the places chosen, for the classes used (None: nothing better than what was known), a lower
    bound on any choice, and the nodes of the search."""

    choice: dict[int, int] | None
    bound: float
    nodes: int


@dataclass
class Model:
    """The integer program of `problem`, every class of which is needed by some choice. `unit`: what is 1 to HiGHS;
    `loops`: the cuts so far."""

    problem: Problem
    unit: float
    loops: list[Loop] = field(default_factory=list[Loop])
    first: list[int] = field(default_factory=list[int])  # column of a class' first candidate
    used: dict[int, int] = field(default_factory=dict[int, int])  # column that says a class is used; none: it is

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
        self.finder = Loops(self.problem)
        starts = np.array(self.first, dtype=np.int64)
        self.candidates = np.arange(len(self.finder.owner)) + (starts - self.finder.first[:-1])[self.finder.owner]
        known, self.loops = self.loops, []
        self.add(known)
        rows = [(loop, row) for loop in _pairs(self.problem) if (row := self.row(loop)) is not None]
        if len(rows) <= _FEW:
            self.add(loop for loop, _ in rows)
            rows.clear()
        self.pairs = [loop for loop, _ in rows]
        columns = [c for _, row in rows for c in row[0]]
        starts = np.cumsum([0, *(len(row[0]) for _, row in rows)])
        entries = [x for _, row in rows for x in row[1]]
        self.pair_rows = csr_matrix((entries, columns, starts), shape=(len(rows), self.columns))
        self.pair_least = np.array([row[2] for _, row in rows])

    def add(self, loops: Iterable[Loop]) -> list[Row]:
        """Cut off what `loops` say; the rows of those that say something."""
        rows: list[Row] = []
        for loop in loops:
            row = self.row(loop)
            if row is not None:
                self.loops.append(loop)
                rows.append(row)
        return rows

    def row(self, loop: Loop) -> Row | None:
        """The cut as a row; None where it holds in any case."""
        columns = self.candidates[self.finder.supports(loop.classes)].tolist()
        use = self.used.get(loop.target)
        if use in columns:
            return None
        if use is None:
            return columns, [1.0] * len(columns), 1.0
        return [*columns, use], [1.0] * len(columns) + [-1.0], 0.0

    def violated(self, values: Sequence[float], most: int = _CUTS) -> list[Loop]:
        """Cuts that a solution violates: those of two classes that it violates most, which are all looked at, and
        others that are searched for."""
        x = np.array(values)
        short = self.pair_least - self.pair_rows @ x
        pairs = [self.pairs[i] for i in np.argsort(-short, kind="stable")[:_PAIRS] if short[i] > VIOLATED]
        used = np.array([x[self.used[c]] if c in self.used else 1.0 for c in range(len(self.first))])
        return list(dict.fromkeys([*pairs, *self.finder.violated(x[self.candidates], used, most)]))

    def forget(self, values: Sequence[float]) -> None:
        """Drop the cuts that hold with room to spare."""
        x = np.array(values)
        rows = [(loop, self.row(loop)) for loop in self.loops]
        self.loops = [loop for loop, row in rows if row is not None and x[row[0]] @ np.array(row[1]) < row[2] + _TIGHT]

    def linear(self) -> highspy.Highs:
        """The linear relaxation, with the cuts so far."""
        cost = np.zeros(self.columns)
        entries: list[Row] = []
        upper: list[float] = []
        for c, row in enumerate(self.problem.reads):
            start = self.first[c]
            cost[start : start + len(row)] = [x / self.unit for x in self.problem.costs[c]]
            own = list(range(start, start + len(row)))
            if c not in self.used:
                entries.append((own, [1.0] * len(own), 1.0))
                upper.append(1.0)
            elif len(row) > 1:
                entries.append(([*own, self.used[c]], [1.0] * len(own) + [-1.0], 0.0))
                upper.append(0.0)
            readers: dict[int, list[int]] = {}
            for k, reads in enumerate(row):
                for x in reads:
                    if x in self.used:
                        readers.setdefault(x, []).append(start + k)
            for x, reading in readers.items():
                entries.append(([*reading, self.used[x]], [-1.0] * len(reading) + [1.0], 0.0))
                upper.append(math.inf)
        entries += [row for loop in self.loops if (row := self.row(loop)) is not None]
        upper += [math.inf] * (len(entries) - len(upper))
        return relaxation(cost, entries, upper)

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


def _pairs(problem: Problem) -> list[Loop]:
    """Two classes that may read each other, whichever is used."""
    below = [set[int]().union(*row) for row in problem.reads]
    both = [frozenset((c, x)) for c, reads in enumerate(below) for x in sorted(reads) if x > c and c in below[x]]
    return [Loop(pair, c) for pair in both for c in sorted(pair)]


def relaxation(
    cost: Sequence[float] | np.ndarray[Any, Any], entries: Sequence[Row], upper: Sequence[float]
) -> highspy.Highs:
    """HiGHS with this linear program: a column for each cost, between 0 and 1; a row for each entry, at least
    what it says and at most `upper`."""
    import highspy

    solver: Any = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 1), ("parallel", "off")):
        solver.setOptionValue(option, value)
    lp: Any = highspy.HighsLp()
    n = len(cost)
    lp.num_col_, lp.num_row_ = n, len(entries)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.array(cost), np.zeros(n), np.ones(n)
    lp.row_lower_, lp.row_upper_ = np.array([e[2] for e in entries]), np.array(upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(e[0]) for e in entries)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([i for e in entries for i in e[0]], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([v for e in entries for v in e[1]])
    if solver.passModel(lp) == highspy.HighsStatus.kError:
        raise ExtractionError("HiGHS refuses the program of a selection; please report this")
    return solver


@dataclass
class Relaxed:
    """The linear relaxation solved: a lower bound, the solution, and each column's reduced cost (of `unit`s)."""

    bound: float
    values: Sequence[float]
    reduced: Sequence[float]


def relax(model: Model, rounds: int, cost: float, deadline: float) -> Relaxed | None:
    """The linear relaxation of `model`, cut as long as that helps to close what is open to `cost`; None where the time
    is out before. The cuts that hold with room to spare at the end are forgotten."""
    import highspy

    solver: Any = model.linear()
    result: Relaxed | None = None
    bounds: list[float] = []
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
        bounds.append(bound)
        result = Relaxed(max(bound, result.bound if result is not None else -math.inf), values, list(solution.col_dual))
        if cost - bound <= 0 or (
            len(bounds) > _STALL and bound - bounds[-1 - _STALL] < _SLOW * (cost - bounds[-1 - _STALL])
        ):
            break
        fresh = model.add(model.violated(values))
        if not fresh:
            break
        for columns, coefficients, least in fresh:
            solver.addRow(least, math.inf, len(columns), np.array(columns, dtype=np.int32), np.array(coefficients))
    if result is not None:
        model.forget(result.values)
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
    circles = model.add(model.violated([float(round(v)) for v in values]))
    return Exact(choice, bound, searched), bool(circles)
