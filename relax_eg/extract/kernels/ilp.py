"""Exact selection of kernels: an integer program that also chooses the operators that derive each value.

Kernels overlap: one matmul is in many of them, and a linear relaxation over kernels alone takes a fraction of each
without ever computing the matmul in full. Therefore a second layer of columns chooses the operators that derive the
results: at most one per value, whose operands are derived too, without cycles. An operator derives its value at most to
the share to which kernels that contain it are taken. There are further rows for the values that every derivation of a
value needs. With both layers the bound of the relaxation is within a few percent of the optimum, and the search mostly
ends at its root.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_eg.extract.costs.numbers import gap
from relax_eg.extract.selection.ascent import ascent
from relax_eg.extract.selection.ilp import SCALE
from relax_eg.extract.selection.problem import Problem, choice_cost, repair_choice, used_classes
from relax_eg.extract.selection.prune import strong_components, undominated_candidates
from relax_eg.extract.selection.solve import PROVED, Solved, SolverEffort
from relax_eg.integer_program import SHORTEST, LinearProgram, branch, relaxation
from relax_eg.traversal import grouped, operands_first

# chosen: in units of SCALE: smaller costs, such as those of views, become 0, because HiGHS cannot distinguish them
_NEGLIGIBLE = 1e-4

Members = Mapping[int, int]  # the candidate of each class that a kernel computes, operands before their readers
Operator = tuple[int, int]  # class and candidate


@dataclass(frozen=True, slots=True)
class Overlap:
    """The operators that the kernels of a problem contain.

    - `members[c][k]`: the operators in way `k` of class `c`.
    - `operands`: for each operator, the classes that it reads.
    """

    members: Sequence[Sequence[Members]]
    operands: Mapping[Operator, tuple[int, ...]]


def solve_kernels(
    problem: Problem, overlap: Overlap, seed: Sequence[int], effort: SolverEffort, known: float = 0.0
) -> Solved:
    """The cheapest choice found, which never costs more than the acyclic `seed`, and a lower bound on all choices. The
    search ends after about `effort.seconds`.

    - `known`: a lower bound from an earlier search in which no price was higher.
    """
    deadline = time.monotonic() + effort.seconds
    cost, best = choice_cost(problem, seed), list(seed)
    most = problem.node_count > effort.candidates
    bound = known
    if gap(cost, bound) > effort.gap and not (most and known > 0.0):
        bound = max(known, ascent(problem, deadline)[0])
    if gap(cost, bound) <= effort.gap or most or time.monotonic() >= deadline:
        return Solved.of(best, cost, bound, False, deadline)
    choice, low = _Program(problem, overlap, cost / SCALE).run(best, effort, deadline)
    bound = max(bound, low)
    if choice is not None:
        found = repair_choice(problem, choice)
        c = choice_cost(problem, found)
        best, cost = (found, c) if c < cost * (1 - PROVED) else (best, cost)
    bound = min(bound, cost)
    return Solved.of(best, cost, bound, True, deadline)


@dataclass
class _Program(LinearProgram):
    """The integer program.

    - `unit`: the cost that HiGHS gets as 1.
    - `ways`, `used`, `derived`: the columns of ways, of the use of classes, and of deriving operators.
    - `levels`: for both layers, by class on a cycle: its column, its strong component, and the size of that.
    """

    problem: Problem
    overlap: Overlap
    unit: float
    ways: dict[Operator, int] = field(default_factory=dict[Operator, int])  # columns
    used: dict[int, int] = field(default_factory=dict[int, int])
    derived: dict[Operator, int] = field(default_factory=dict[Operator, int])
    levels: list[dict[int, tuple[int, int, int]]] = field(default_factory=list[dict[int, tuple[int, int, int]]])

    def __post_init__(self) -> None:
        super().__init__()

    def run(self, seed: Sequence[int], effort: SolverEffort, deadline: float) -> tuple[list[int] | None, float]:
        """A choice that costs no more than `seed`, or None if none is found before `deadline`; and a lower bound."""
        import highspy

        self._kernels(seed)
        whole = len(self.costs)
        self._derivations()
        solver: Any = relaxation(self)
        solver.setOptionValue("time_limit", max(SHORTEST, deadline - time.monotonic()))
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None, 0.0
        bound = solver.getInfo().objective_function_value
        if gap(SCALE, bound) <= effort.gap:
            return None, bound * self.unit
        solver = relaxation(self)
        # The kernels determine the derivations, but branching on a derivation decides more kernels at once.
        columns = [*range(whole), *self.derived.values()]
        for option, value in (
            # On the halves of a layer, presolve costs a quarter more time than it saves, with equal results.
            ("presolve", "off"),
            # With these heuristics HiGHS did not return from the root of some programs, whatever its limits.
            ("mip_heuristic_run_rins", False),
            ("mip_heuristic_run_rens", False),
            ("mip_heuristic_run_root_reduced_cost", False),
        ):
            solver.setOptionValue(option, value)
        found = branch(solver, columns, self._values(seed), effort.gap, effort.nodes, deadline)
        bound = max(bound, found.bound) * self.unit
        if found.values is None:
            return None, bound
        choice = list(seed)
        for (c, k), column in self.ways.items():
            if found.values[column] > 0.5:
                choice[c] = k
        return choice, bound

    def column(self, cost: float = 0.0) -> int:
        scaled = cost / self.unit
        return super().column(scaled if scaled >= _NEGLIGIBLE else 0.0)

    def _kernels(self, seed: Sequence[int]) -> None:
        """Adds a column for each way and each class. A used class has exactly one way, and the classes that a way reads
        are used."""
        rows = undominated_candidates(self.problem)
        for c in used_classes(self.problem, seed):  # the seed's ways stay, even if others dominate them
            entry = (seed[c], self.problem.costs[c][seed[c]], frozenset(self.problem.reads[c][seed[c]]))
            if entry not in rows.setdefault(c, []):
                rows[c].append(entry)
        for c, row in rows.items():
            for k, x, _ in row:
                self.ways[c, k] = self.column(x)
        self.used = {c: self.column() for c in rows}
        reading: dict[tuple[int, int], list[int]] = {}
        for c, row in rows.items():
            own = [self.ways[c, k] for k, _, _ in row]
            self.row([*own, self.used[c]], [1.0] * len(own) + [-1.0], 0.0, 0.0)
            for k, _, reads in row:
                for x in reads:
                    reading.setdefault((c, x), []).append(self.ways[c, k])
        for (_, x), columns in reading.items():
            self.at_most(columns, [self.used[x]])
        for r in self.problem.roots:
            self.row([self.used[r]], [1.0], 1.0, 1.0)
        self._exclude_cycles(reading, {c: [column] for c, column in self.used.items()})

    def _derivations(self) -> None:
        """Adds a column for each operator in a kernel: whether the operator derives its class."""
        members = self.overlap.members
        holding = grouped((m, column) for (c, k), column in self.ways.items() for m in members[c][k].items())
        by_class: dict[int, list[int]] = {}
        reading: dict[tuple[int, int], list[int]] = {}
        for member, columns in holding.items():
            self.derived[member] = column = self.column()
            by_class.setdefault(member[0], []).append(column)
            self.at_most([column], columns)
            for x in dict.fromkeys(self.overlap.operands[member]):
                reading.setdefault((member[0], x), []).append(column)
        always = _always_derived(self.derived, self.overlap.operands)
        required = set[int]().union(*(always[r] for r in self.problem.roots))
        for c, columns in by_class.items():
            self.row(columns, [1.0] * len(columns), 1.0 if c in required else -math.inf, 1.0)
            for x in always[c]:
                if x != c and x not in required and (c, x) not in reading:
                    self.at_most(columns, by_class[x])
        for (_, x), columns in reading.items():
            self.at_most(columns, by_class[x])
        self._exclude_cycles(reading, by_class)

    def _exclude_cycles(self, reading: Mapping[tuple[int, int], list[int]], whole: Mapping[int, list[int]]) -> None:
        """Adds levels for classes that may read one another: the level of a reader is above those of its operands.

        - `reading`: for each pair (reader, operand), the columns of the reader's ways that read the operand.
        - `whole`: for each class, the columns whose sum says whether the class is computed.
        """
        below: dict[int, set[int]] = {c: set() for c in whole}
        for c, x in reading:
            below[c].add(x)
        component = strong_components(below)
        size: dict[int, int] = {}
        for c in component:
            size[component[c]] = size.get(component[c], 0) + 1
        level = {c: (self.column(), component[c], size[component[c]]) for c in component if size[component[c]] > 1}
        for (c, x), columns in reading.items():
            if component[c] != component[x]:
                continue
            coefficients = [1.0, -1.0] + [1.0] * len(columns)
            self.row([level[x][0], level[c][0], *columns], coefficients, high=1 - 1 / size[component[c]])
            back = reading.get((x, c))
            if back is not None:
                self.at_most([*columns, *back], whole[c])
        self.levels.append(level)

    def _values(self, choice: Sequence[int]) -> list[float]:
        """The values of all columns for a choice."""
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


def _always_derived(operators: Iterable[Operator], operands: Mapping[Operator, tuple[int, ...]]) -> dict[int, set[int]]:
    """For each class, the classes that every derivation of it derives, itself included. They are the greatest fixed
    point."""
    ways = grouped((c, operands[c, k]) for c, k in operators)
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
