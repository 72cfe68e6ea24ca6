"""Exact selection of kernels: an integer program that also says by which operators each value is derived.

Kernels overlap: one matmul is in many of them, and a linear relaxation that only knows kernels takes a little of each
without ever computing the matmul in full. So a second layer of columns says which operators derive the results (one
for each value at most, its operands derived as well, in no circle), and an operator derives only as far as kernels
that hold it are taken. What every derivation of a value needs is a row of its own. With both, the relaxation is within
a few percent, and the search mostly ends at its root.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relax_eg.extract.ascent import ascent
from relax_eg.extract.ilp import SCALE, Row, relaxation
from relax_eg.extract.problem import Problem, choice_cost, operands_first, repaired, used_classes
from relax_eg.extract.prune import strong_components, undominated
from relax_eg.extract.solve import PROVED, Effort, Solved, gap

_NEGLIGIBLE = 1e-4  # of SCALE: prices of views are far below what HiGHS can tell apart
_SHORTEST = 0.01  # seconds that HiGHS is given at least: it takes 0.0 for no limit

Members = Mapping[int, int]  # the candidate of each class that a kernel computes, operands before what reads them
Operator = tuple[int, int]  # class and candidate


@dataclass(frozen=True, slots=True)
class Overlap:
    """What the kernels of a problem have in common: `members[c][k]` the operators inside way `k` of class `c`;
    `operands`: of each operator the classes that it reads."""

    members: Sequence[Sequence[Members]]
    operands: Mapping[Operator, tuple[int, ...]]


def solve_kernels(
    problem: Problem, overlap: Overlap, seed: Sequence[int], effort: Effort, known: float = 0.0
) -> Solved:
    """The cheapest choice found, never dearer than the acyclic `seed`, and a lower bound on any. `known`: a lower bound
    already, of the problem when its prices were no higher. Ends within `effort.seconds`, about."""
    deadline = time.monotonic() + effort.seconds
    cost, best = choice_cost(problem, seed), list(seed)
    most = problem.node_count > effort.candidates
    bound = known
    if gap(cost, bound) > effort.gap and not (most and known > 0.0):
        bound = max(known, ascent(problem, deadline)[0])
    timed_out = time.monotonic() >= deadline
    if gap(cost, bound) <= effort.gap or most or timed_out:
        return Solved(best, cost, bound, "proved optimal" if gap(cost, bound) <= PROVED else "greedy", timed_out)
    choice, low = _Program(problem, overlap, cost / SCALE).run(best, effort, deadline)
    bound = max(bound, low)
    if choice is not None:
        found = repaired(problem, choice)
        c = choice_cost(problem, found)
        best, cost = (found, c) if c < cost * (1 - PROVED) else (best, cost)
    bound = min(bound, cost)
    how = "proved optimal" if gap(cost, bound) <= PROVED else "ilp"
    return Solved(best, cost, bound, how, time.monotonic() >= deadline)


@dataclass
class _Program:
    problem: Problem
    overlap: Overlap
    unit: float
    costs: list[float] = field(default_factory=list[float])
    entries: list[Row] = field(default_factory=list[Row])
    upper: list[float] = field(default_factory=list[float])
    ways: dict[Operator, int] = field(default_factory=dict[Operator, int])  # columns
    used: dict[int, int] = field(default_factory=dict[int, int])
    derived: dict[Operator, int] = field(default_factory=dict[Operator, int])
    levels: list[dict[int, tuple[int, int, int]]] = field(default_factory=list[dict[int, tuple[int, int, int]]])

    def run(self, seed: Sequence[int], effort: Effort, deadline: float) -> tuple[list[int] | None, float]:
        """A choice, where one was found that is no dearer, and the lower bound; found before the `deadline`."""
        import highspy

        self._kernels(seed)
        whole = len(self.costs)
        self._derivations()
        solver: Any = relaxation(self.costs, self.entries, self.upper)
        solver.setOptionValue("time_limit", max(_SHORTEST, deadline - time.monotonic()))
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None, 0.0
        bound = solver.getInfo().objective_function_value
        if gap(SCALE, bound) <= effort.gap:
            return None, bound * self.unit
        solver = relaxation(self.costs, self.entries, self.upper)
        # Derivations are settled by kernels, but branching on them is what decides much at once.
        columns = [*range(whole), *self.derived.values()]
        kinds = np.array([highspy.HighsVarType.kInteger] * len(columns))
        solver.changeColsIntegrality(len(columns), np.array(columns, dtype=np.int32), kinds)
        for option, value in (
            # Presolve takes a quarter longer than it saves on the halves of a layer, with equal outcomes.
            ("presolve", "off"),
            # With these HiGHS did not come back from the root of some programs, whatever its limits.
            ("mip_heuristic_run_rins", False),
            ("mip_heuristic_run_rens", False),
            ("mip_heuristic_run_root_reduced_cost", False),
            ("time_limit", max(_SHORTEST, deadline - time.monotonic())),
            ("mip_max_nodes", effort.nodes),
            ("mip_rel_gap", effort.gap),
            ("mip_abs_gap", 0.0),
        ):
            solver.setOptionValue(option, value)
        start = highspy.HighsSolution()
        start.col_value = self._values(seed)
        solver.setSolution(start)
        solver.run()
        info = solver.getInfo()
        bound = max(bound, info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else 0.0) * self.unit
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None, bound
        values = list(solver.getSolution().col_value)
        choice = list(seed)
        for (c, k), column in self.ways.items():
            if values[column] > 0.5:
                choice[c] = k
        return choice, bound

    def _row(self, entry: tuple[list[int], list[float], float], low: float = -math.inf) -> None:
        """A row: columns, coefficients, at most this; and at least `low`. A column may be said twice."""
        columns, coefficients, high = entry
        total: dict[int, float] = {}
        for column, x in zip(columns, coefficients, strict=True):
            total[column] = total.get(column, 0.0) + x
        # HiGHS does not survive, or come back from, some programs in which a row has a column twice.
        said = [(column, x) for column, x in total.items() if x]
        if said:
            self.entries.append(([column for column, _ in said], [x for _, x in said], low))
            self.upper.append(high)

    def _column(self, cost: float = 0.0) -> int:
        scaled = cost / self.unit
        self.costs.append(scaled if scaled >= _NEGLIGIBLE else 0.0)
        return len(self.costs) - 1

    def _implies(self, these: Sequence[int], those: Sequence[int]) -> None:
        """No more of `these` than of `those`."""
        self._row(([*these, *those], [1.0] * len(these) + [-1.0] * len(those), 0.0))

    def _kernels(self, seed: Sequence[int]) -> None:
        """A column for each way and each class; a class that is used has one way, what a way reads is used."""
        rows = undominated(self.problem)
        for c in used_classes(self.problem, seed):  # the seed stays, though others may be as good
            entry = (seed[c], self.problem.costs[c][seed[c]], frozenset(self.problem.reads[c][seed[c]]))
            if entry not in rows.setdefault(c, []):
                rows[c].append(entry)
        for c, row in rows.items():
            for k, x, _ in row:
                self.ways[c, k] = self._column(x)
        self.used = {c: self._column() for c in rows}
        reading: dict[tuple[int, int], list[int]] = {}
        for c, row in rows.items():
            own = [self.ways[c, k] for k, _, _ in row]
            self._row(([*own, self.used[c]], [1.0] * len(own) + [-1.0], 0.0), 0.0)
            for k, _, reads in row:
                for x in reads:
                    reading.setdefault((c, x), []).append(self.ways[c, k])
        for (_, x), columns in reading.items():
            self._implies(columns, [self.used[x]])
        for r in self.problem.roots:
            self._row(([self.used[r]], [1.0], 1.0), 1.0)
        self._no_circles(reading, {c: [column] for c, column in self.used.items()})

    def _derivations(self) -> None:
        """A column for each operator that a kernel holds: whether it is the one that derives its class."""
        holding: dict[Operator, list[int]] = {}
        for (c, k), column in self.ways.items():
            for member in self.overlap.members[c][k].items():
                holding.setdefault(member, []).append(column)
        by_class: dict[int, list[int]] = {}
        reading: dict[tuple[int, int], list[int]] = {}
        for member, columns in holding.items():
            self.derived[member] = column = self._column()
            by_class.setdefault(member[0], []).append(column)
            self._implies([column], columns)
            for x in dict.fromkeys(self.overlap.operands[member]):
                reading.setdefault((member[0], x), []).append(column)
        always = _always(self.derived, self.overlap.operands)
        required = set[int]().union(*(always[r] for r in self.problem.roots))
        for c, columns in by_class.items():
            self._row((columns, [1.0] * len(columns), 1.0), 1.0 if c in required else -math.inf)
            for x in always[c]:
                if x != c and x not in required and (c, x) not in reading:
                    self._implies(columns, by_class[x])
        for (_, x), columns in reading.items():
            self._implies(columns, by_class[x])
        self._no_circles(reading, by_class)

    def _no_circles(self, reading: Mapping[tuple[int, int], list[int]], whole: Mapping[int, list[int]]) -> None:
        """Levels for classes that may read one another: who reads is a step above. `whole`: what says that a class is
        there at all."""
        below: dict[int, set[int]] = {c: set() for c in whole}
        for c, x in reading:
            below[c].add(x)
        component = strong_components(below)
        size: dict[int, int] = {}
        for c in component:
            size[component[c]] = size.get(component[c], 0) + 1
        level = {c: (self._column(), component[c], size[component[c]]) for c in component if size[component[c]] > 1}
        for (c, x), columns in reading.items():
            if component[c] != component[x]:
                continue
            entry = [level[x][0], level[c][0], *columns], [1.0, -1.0, *(1.0 for _ in columns)]
            self._row((*entry, 1 - 1 / size[component[c]]))
            back = reading.get((x, c))
            if back is not None:
                self._implies([*columns, *back], whole[c])
        self.levels.append(level)

    def _values(self, choice: Sequence[int]) -> list[float]:
        """The solution that stands for a choice."""
        values = [0.0] * len(self.costs)
        order = operands_first(self.problem.roots, lambda c: self.problem.reads[c][choice[c]])
        derived: dict[int, int] = {}
        for c in order:
            values[self.used[c]] = values[self.ways[c, choice[c]]] = 1.0
            for x, k in self._operands_first(self.overlap.members[c][choice[c]]):
                derived.setdefault(x, k)
        for member in derived.items():
            values[self.derived[member]] = 1.0
        for level, places in zip(self.levels, (order, list(derived)), strict=True):
            below: dict[int, int] = {}
            for column, circle, size in (level[c] for c in places if c in level):
                values[column] = below.get(circle, 0) / size
                below[circle] = below.get(circle, 0) + 1
        return values

    def _operands_first(self, members: Members) -> list[Operator]:
        def inside(x: int) -> list[int]:
            return [y for y in self.overlap.operands[x, members[x]] if y in members]

        return [(x, members[x]) for x in operands_first(members, inside)]


def _always(operators: Iterable[Operator], operands: Mapping[Operator, tuple[int, ...]]) -> dict[int, set[int]]:
    """For each class what every derivation of it derives, itself included: the largest sets that fit together."""
    ways: dict[int, list[tuple[int, ...]]] = {}
    for c, k in operators:
        ways.setdefault(c, []).append(operands[c, k])
    order = operands_first(ways, lambda c: [x for reads in ways[c] for x in reads])
    bit = {c: 1 << i for i, c in enumerate(order)}
    sets = dict.fromkeys(order, (1 << len(order)) - 1)
    changed = True
    while changed:
        changed = False
        for c in order:
            common = -1
            for reads in ways[c]:
                one = 0
                for x in reads:
                    one |= sets[x]
                common &= one
            common |= bit[c]
            if common != sets[c]:
                sets[c], changed = common, True
    return {c: {order[i] for i in range(found.bit_length()) if found >> i & 1} for c, found in sets.items()}
