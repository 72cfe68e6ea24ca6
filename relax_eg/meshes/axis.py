"""Placements along one axis of a mesh, chosen together with the algebra: an integer program for HiGHS.

Each value is computed in at most one way and by one strategy, so it comes about in one part. A collective brings it
into other parts, each paid once however many operators read it; to slice a replicated value costs no collective.

The objective is that of the whole mesh with the choice for its other axes fixed. Where that is not made yet, they are
taken to divide everything and to send nothing, so the value is a lower bound on what any choice for them can reach.
"""

from __future__ import annotations

import time

import numpy as np

from relax_eg.errors import ExtractionError
from relax_eg.extract.ilp import branch, relaxation
from relax_eg.ir.placements import REPLICATED, Part
from relax_eg.meshes.alike import alike
from relax_eg.meshes.axis_prices import AxisPrices
from relax_eg.meshes.axis_program import AxisProgram
from relax_eg.meshes.choices import AxisChoice, ChosenWay, Demands
from relax_eg.meshes.strategies import SplitStrategy

_GAP = 5e-3  # limit: prices are not accurate to a thousandth
_NODES = 2000  # limit: nodes of one search of HiGHS
_CUTS = 20  # limit: searches repeated because a value depended on itself
_MANY_COLUMNS = 20_000  # chosen: columns from which on repeated layers are taken to be alike first
# limit: the gap of what is found so; the linear relaxation leaves about a hundredth (GPT-2's training step)
_GAP_OF_LAYERS = 0.02


class AxisSearch(AxisPrices):
    """The search along one axis."""

    def run(self, demands: Demands, seconds: float, start: AxisChoice | None = None) -> AxisChoice:
        """The cheapest choice found. ExtractionError if there is none.

        For a large program that repeats itself, the layers are taken to be alike first. The search among all choices
        begins with what is found so, and gives the bound."""

        def with_bound(choice: AxisChoice) -> AxisChoice:
            choice.bound = 0.0 if demands.byte_price else max(0.0, min(found.bound * model.unit, choice.cost))
            choice.ran_out = choice.ran_out or found.ran_out
            return choice

        deadline = time.monotonic() + seconds
        model, gap, layered = AxisProgram(self, demands), _GAP, None
        if start is None and len(model.costs) > _MANY_COLUMNS:
            start = layered = self._run_alike(demands, model, deadline)
            gap = _GAP if layered is None else _GAP_OF_LAYERS
        for _ in range(_CUTS):
            solver = relaxation(model.costs, model.rows, model.upper)
            first = model.columns_of(start) if start is not None else np.zeros(len(model.costs))
            found = branch(solver, model.integers, first, gap, _NODES, deadline)
            if layered is not None and (found.values is None or model.choice_of(found.values).cost >= layered.cost):
                return with_bound(layered)
            if found.values is None:  # HiGHS may need long for a first solution; that nothing is split is one
                first = model.columns_of(self._whole(demands))
                found = branch(solver, model.integers, first, _GAP, _NODES, max(deadline, time.monotonic() + seconds))
            if found.values is None:
                raise ExtractionError(
                    f"no placement over {self.n} devices keeps what is demanded\n  accepted: other given placements, a "
                    "larger memory_limit, or more devices"
                )
            choice = model.choice_of(found.values)
            circle = self._circle(choice)
            if not circle:
                return with_bound(choice)
            model.forbid(circle, choice)
        raise ExtractionError("every choice found computes a value from itself; please report this")

    def _run_alike(self, demands: Demands, whole: AxisProgram, deadline: float) -> AxisChoice | None:
        """The cheapest choice found for which alike values come about alike; None if few values are alike, or none is
        found. `whole`: the integer program for all choices."""
        inputs, outputs = set(self.program.inputs), dict[int, list[Part | None]]()
        for i, v in enumerate(self.program.outputs):
            outputs.setdefault(v, []).append(demands.outputs.get(i))
        others = [c for c, _ in self.others if c is not None]
        asked = [
            (
                v in inputs, demands.inputs.get(v), demands.way is not None and demands.way.get(v), v in demands.priced,
                tuple(outputs.get(v, ())), *((c.chosen.get(v), frozenset(c.needed.get(v, ()))) for c in others),
            )
            for v in range(len(self.program.values))
        ]  # fmt: skip
        like = alike(self.program, asked, demands.state)
        model = AxisProgram(self, demands, like)
        if len(model.costs) > len(whole.costs) / 2:
            return None
        solver = relaxation(model.costs, model.rows, model.upper)
        found = branch(solver, model.integers, np.zeros(len(model.costs)), _GAP, _NODES, deadline)
        if found.values is None:
            return None
        choice = model.choice_of(found.values)
        choice.ran_out = found.ran_out
        return None if self._circle(choice) else choice

    def _whole(self, demands: Demands) -> AxisChoice:
        """The choice that splits only what has to be split: every value is computed as on one device."""
        program, found = self.program, AxisChoice()
        tied: dict[int, list[int]] = {}
        for a, b in program.tied:
            tied.setdefault(a, []).append(b)
        stack = [*program.outputs, *program.inputs]
        while stack:
            v = stack[-1]
            if v in found.chosen:
                stack.pop()
                continue
            value = program.values[v]
            taken = program.graphs[value.function].taken.get(value.number, -1)
            j = next((i for i, w in enumerate(value.ways) if w.candidate == taken), 0)
            j = j if demands.way is None else demands.way.get(v, j)
            way = value.ways[j] if 0 <= j < len(value.ways) else None
            if way is None or value.is_free:
                found.chosen[v] = ChosenWay(0, SplitStrategy((), REPLICATED))
                stack.pop()
                continue
            waiting = [c for c in way.children if c not in found.chosen and c not in stack]
            if waiting:
                stack += waiting
                continue
            given = demands.inputs.get(v)
            if v in program.staying and way.children:  # as its argument is
                made = found.part(way.children[0])
                given = next((s.result for s in way.strategies if s.operands[:1] == (made,)), None)
            every = way.strategies_along(self.axis)
            found.chosen[v] = ChosenWay(j, next((s for s in every if s.result == given), every[0]))
            stack.pop()
            stack += [b for b in tied.get(v, ()) if b not in found.chosen]
        return found

    def _circle(self, choice: AxisChoice) -> list[int]:
        """Values that depend on each other in a circle under a choice; empty if there are none."""
        state: dict[int, int] = {}
        for start in choice.chosen:
            path, stack = list[int](), [start]
            while stack:
                v = stack[-1]
                if state.get(v, 0) == 0:
                    state[v] = 1
                    path.append(v)
                    for c in self.program.values[v].ways[choice.chosen[v].way].children if v in choice.chosen else ():
                        if state.get(c, 0) == 1:
                            return path[path.index(c) :]
                        if c not in state:
                            stack.append(c)
                else:
                    stack.pop()
                    if state[v] == 1:
                        state[v] = 2
                        path.pop()
        return []
