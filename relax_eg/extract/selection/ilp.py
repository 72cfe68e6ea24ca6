"""Exact selection: an integer program over the pruned problem, solved by HiGHS.

There is a column for each candidate, and for each class that may be unused. A used class takes exactly one candidate. A
class is used if a taken candidate reads it. Candidates of one class that read the same class share one constraint,
because at most one of them is taken; this raises the bound more than a constraint for each would.

Cuts (`loops`) exclude cycles. They also make a class cost its full price if several fractions of a solution read it.
Cuts are found for the linear relaxation, and for integer solutions with cycles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_eg.extract.selection.loops import VIOLATED, Loop, Loops
from relax_eg.extract.selection.problem import Problem
from relax_eg.integer_program import LinearProgram, Row, branch, relaxation
from relax_eg.traversal import grouped, reached

if TYPE_CHECKING:
    import highspy

SCALE = 1e3  # chosen: cost of the present program in the units that HiGHS gets, because its tolerances are absolute
_CUTS = 150  # limit: cuts per round that are found by search
_PAIRS = 300  # limit: cuts of two classes per round
_FEW = 2500  # limit: cuts of two classes up to which all are in the program from the start
_TIGHT = 1e-6  # chosen: in units: a cut whose left side exceeds its right side by less is kept
_STALL = 12  # limit: rounds of cuts after which a small gain ends the relaxation
_SLOW = 0.03  # chosen: share of the gap between bound and cost; a smaller gain in `_STALL` rounds is too small
_ALIKE = 1e-6  # chosen: share of SCALE: margin by which a candidate must be too expensive to be left out


@dataclass(slots=True)
class Exact:
    """The result of one search of HiGHS.

    - `choice`: index of the chosen candidate of each used class; None if nothing better than the known choice was
      found.
    - `bound`: a lower bound on the cost of any choice.
    - `nodes`: nodes of the search.
    """

    choice: dict[int, int] | None
    bound: float
    nodes: int


@dataclass
class Model:
    """The integer program of `problem`, in which every class is needed by some choice.

    - `unit`: the cost that HiGHS gets as 1.
    - `loops`: the cuts so far.
    - `first`: for each class, the column of its first candidate.
    - `used`: the column that says whether a class is used; a class without one is always used.
    """

    problem: Problem
    unit: float
    loops: list[Loop] = field(default_factory=list[Loop])
    first: list[int] = field(default_factory=list[int])
    used: dict[int, int] = field(default_factory=dict[int, int])

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
        from scipy.sparse import csr_matrix  # which loading a program never needs

        self.pair_rows = csr_matrix((entries, columns, starts), shape=(len(rows), self.columns))
        self.pair_least = np.array([row[2] for _, row in rows])

    def add(self, loops: Iterable[Loop]) -> list[Row]:
        """Adds the cuts `loops`, without those that always hold; returns the rows of the added ones."""
        rows: list[Row] = []
        for loop in loops:
            row = self.row(loop)
            if row is not None:
                self.loops.append(loop)
                rows.append(row)
        return rows

    def row(self, loop: Loop) -> Row | None:
        """The cut as a row; None if it always holds."""
        columns = self.candidates[self.finder.supports(loop.classes)].tolist()
        use = self.used.get(loop.target)
        if use in columns:
            return None
        if use is None:
            return columns, [1.0] * len(columns), 1.0
        return [*columns, use], [1.0] * len(columns) + [-1.0], 0.0

    def violated(self, values: Sequence[float], most: int = _CUTS) -> list[Loop]:
        """Cuts that a solution violates: of all cuts of two classes the most violated ones, and others found by
        search."""
        x = np.array(values)
        short = self.pair_least - self.pair_rows @ x
        pairs = [self.pairs[i] for i in np.argsort(-short, kind="stable")[:_PAIRS] if short[i] > VIOLATED]
        used = np.array([x[self.used[c]] if c in self.used else 1.0 for c in range(len(self.first))])
        return list(dict.fromkeys([*pairs, *self.finder.violated(x[self.candidates], used, most)]))

    def drop_slack_cuts(self, values: Sequence[float]) -> None:
        """Drops the cuts that hold with slack."""
        x = np.array(values)
        rows = [(loop, self.row(loop)) for loop in self.loops]
        self.loops = [loop for loop, row in rows if row is not None and x[row[0]] @ np.array(row[1]) < row[2] + _TIGHT]

    def linear(self) -> highspy.Highs:
        """The linear relaxation, with the cuts so far."""
        program = LinearProgram()
        program.costs = [0.0] * self.columns
        for c, row in enumerate(self.problem.reads):
            start = self.first[c]
            program.costs[start : start + len(row)] = [x / self.unit for x in self.problem.costs[c]]
            own = list(range(start, start + len(row)))
            if c not in self.used:
                program.row(own, [1.0] * len(own), 1.0, 1.0)
            elif len(row) > 1:
                program.row([*own, self.used[c]], [1.0] * len(own) + [-1.0], 0.0, 0.0)
            readers = grouped((x, start + k) for k, reads in enumerate(row) for x in reads if x in self.used)
            for x, reading in readers.items():
                program.row([*reading, self.used[x]], [-1.0] * len(reading) + [1.0], 0.0)
        for loop in self.loops:
            if (cut := self.row(loop)) is not None:
                program.row(*cut)
        return relaxation(program)

    def columns_of(self, choice: Mapping[int, int]) -> np.ndarray[Any, Any]:
        """The values of the columns for `choice`, by used class."""
        values = np.zeros(self.columns)
        for c, k in choice.items():
            values[self.first[c] + k] = 1.0
            if c in self.used:
                values[self.used[c]] = 1.0
        return values

    def choice_of(self, values: Sequence[float]) -> dict[int, int]:
        """The candidates that an integer solution takes, for the classes that the roots need."""
        choice: dict[int, int] = {}

        def below(c: int) -> Sequence[int]:
            row, start = self.problem.reads[c], self.first[c]
            choice[c] = max(range(len(row)), key=lambda k: values[start + k])
            return row[choice[c]]

        reached(self.problem.roots, below)
        return choice

    def candidates_below(self, relaxed: Relaxed, cost: float, choice: Sequence[int]) -> list[list[int]]:
        """For each class, the candidates that a choice cheaper than `cost` may use, by their reduced costs, and the
        candidate of `choice`."""
        left = (cost - relaxed.bound) / self.unit + _ALIKE * SCALE
        keep: list[list[int]] = []
        for c, row in enumerate(self.problem.reads):
            start = self.first[c]
            out = len(row) > 1 and c in self.used and relaxed.reduced[self.used[c]] > left
            kept = [k for k in range(len(row)) if k == choice[c] or (not out and relaxed.reduced[start + k] <= left)]
            keep.append(kept)
        return keep


def _pairs(problem: Problem) -> list[Loop]:
    """The cuts for pairs of classes that may read each other, one for each class of a pair."""
    below = [set[int]().union(*row) for row in problem.reads]
    both = [frozenset((c, x)) for c, reads in enumerate(below) for x in sorted(reads) if x > c and c in below[x]]
    return [Loop(pair, c) for pair in both for c in sorted(pair)]


@dataclass
class Relaxed:
    """The solved linear relaxation.

    - `bound`: a lower bound on the cost of any choice.
    - `values`: the solution.
    - `reduced`: the reduced cost of each column, in `unit`s.
    """

    bound: float
    values: Sequence[float]
    reduced: Sequence[float]


def relax(model: Model, rounds: int, cost: float, deadline: float) -> Relaxed | None:
    """The solved linear relaxation of `model`. Up to `rounds` times, violated cuts are added and the program is solved
    again, while cuts close enough of the gap to `cost`. Cuts that hold with slack at the end are dropped.

    None if `deadline` (`time.monotonic`) passes before the first solution."""
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
        model.drop_slack_cuts(result.values)
    return result


def solve_integer(
    model: Model, known: Mapping[int, int], gap: float, nodes: int, deadline: float
) -> tuple[Exact, bool]:
    """The result of one search of HiGHS from the choice `known`, and whether its solution had cycles. Cuts against
    these cycles are then in the model."""
    found = branch(model.linear(), range(model.columns), model.columns_of(known), gap, nodes, deadline)
    bound = found.bound * model.unit
    if found.values is None:
        return Exact(None, bound, found.nodes), False
    choice = model.choice_of(found.values)
    circles = model.add(model.violated([float(round(v)) for v in found.values]))
    return Exact(choice, bound, found.nodes), bool(circles)
