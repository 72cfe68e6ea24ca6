"""Linear and integer programs, solved by HiGHS."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_eg.errors import ExtractionError

if TYPE_CHECKING:
    import highspy

MOST_NODES = 2**31 - 1  # limit: nodes that HiGHS counts
SHORTEST = 0.01  # limit: least seconds that HiGHS is given, because it takes 0.0 for no limit

Row = tuple[list[int], list[float], float]  # columns, coefficients, lower bound of the row


@lru_cache(1)
def _silent_solver() -> type[highspy.Highs]:
    """The class of solvers that print nothing. From version 1.16 on, the first solver of a process prints its licence
    when callbacks are enabled in its constructor, so an option that is set afterwards is too late."""
    import highspy

    class SilentHighs(highspy.Highs):
        def enableCallbacks(self) -> None:
            self.silent()
            super().enableCallbacks()

    return SilentHighs


class LinearProgram:
    """A linear program while it is made. Each column is between 0 and 1.

    - `costs`: the costs of the columns.
    - `rows`: the rows, each with its lower bound.
    - `upper`: the upper bounds of the rows.
    """

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.rows: list[Row] = []
        self.upper: list[float] = []

    def column(self, cost: float = 0.0) -> int:
        """Adds a column of this cost, and returns its number."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def row(
        self, columns: Collection[int], coefficients: Iterable[float], low: float = -math.inf, high: float = math.inf
    ) -> None:
        """Adds a row: the sum of columns times coefficients is from `low` to `high`. A column may occur twice."""
        entry = dict(zip(columns, coefficients, strict=True))
        if len(entry) < len(columns):  # HiGHS crashes or hangs on some programs in which a row has a column twice
            entry = dict.fromkeys(columns, 0.0)
            for column, x in zip(columns, coefficients, strict=True):
                entry[column] += x
            entry = {column: x for column, x in entry.items() if x}
        if entry or not low <= 0.0 <= high:
            self.rows.append(([*entry], [*entry.values()], low))
            self.upper.append(high)

    def at_most(self, these: Sequence[int], those: Sequence[int]) -> None:
        """Adds a row: the sum of the columns `these` is at most that of the columns `those`."""
        self.row([*these, *those], [1.0] * len(these) + [-1.0] * len(those), high=0.0)


def relaxation(program: LinearProgram) -> highspy.Highs:
    """A solver of HiGHS with this linear program. ExtractionError if HiGHS refuses the program."""
    import highspy

    solver: Any = _silent_solver()()
    for option, value in (("threads", 1), ("random_seed", 1), ("parallel", "off")):
        solver.setOptionValue(option, value)
    lp: Any = highspy.HighsLp()
    n, rows = len(program.costs), program.rows
    lp.num_col_, lp.num_row_ = n, len(rows)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.array(program.costs), np.zeros(n), np.ones(n)
    lp.row_lower_, lp.row_upper_ = np.array([row[2] for row in rows]), np.array(program.upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in rows)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([i for row in rows for i in row[0]], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([v for row in rows for v in row[1]])
    if solver.passModel(lp) == highspy.HighsStatus.kError:
        raise ExtractionError("HiGHS refuses an integer program; please report this")
    return solver


@dataclass(frozen=True, slots=True)
class Branched:
    """The result of branch and bound.

    - `values`: the columns of the best solution; None if there is none.
    - `bound`: a lower bound, in units; 0.0 if there is none.
    - `nodes`: nodes of the search.
    - `ran_out`: whether the clock ended it.
    """

    values: list[float] | None
    bound: float
    nodes: int
    ran_out: bool


def branch(
    solver: Any,
    columns: Sequence[int],
    start: Sequence[float] | np.ndarray[Any, Any] | None,
    gap: float,
    nodes: int = MOST_NODES,
    deadline: float = math.inf,
) -> Branched:
    """Branch and bound of HiGHS.

    - `columns`: the columns that take integers.
    - `start`: a known solution; None: none is known.
    - `gap`: relative gap at which the search ends.
    - `nodes`: limit of the nodes of the search.
    - `deadline`: latest end (`time.monotonic`).
    """
    import highspy

    kinds = np.array([highspy.HighsVarType.kInteger] * len(columns))
    solver.changeColsIntegrality(len(columns), np.array(columns, dtype=np.int32), kinds)
    for option, value in (
        ("time_limit", max(SHORTEST, deadline - time.monotonic())),
        ("mip_max_nodes", nodes),
        ("mip_rel_gap", gap),
        ("mip_abs_gap", 0.0),
    ):
        solver.setOptionValue(option, value)
    if start is not None:
        first = highspy.HighsSolution()
        first.col_value = list(start)
        solver.setSolution(first)
    solver.run()
    info = solver.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = list(solver.getSolution().col_value) if found else None
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else 0.0
    ran_out = solver.getModelStatus() == highspy.HighsModelStatus.kTimeLimit
    return Branched(values, bound, max(0, int(info.mip_node_count)), ran_out)
