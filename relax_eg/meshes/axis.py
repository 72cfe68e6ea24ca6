"""Placements along one axis of a mesh, chosen together with the algebra: an integer program for HiGHS.

Each value is computed in at most one way and by one strategy, so it comes about in one part. A collective brings it
into other parts, each paid once however many operators read it; to slice a replicated value costs no collective.

The objective is that of the whole mesh with the choice for its other axes fixed. Where that is not made yet, they are
taken to divide everything and to send nothing, so the value is a lower bound on what any choice for them can reach.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from relax_eg.errors import ExtractionError
from relax_eg.integer_program import branch, relaxation
from relax_eg.ir.placements import REPLICATED
from relax_eg.meshes.axis_prices import AxisPrices
from relax_eg.meshes.axis_program import AxisProgram
from relax_eg.meshes.choices import AxisChoice, ChosenWay, Demands
from relax_eg.meshes.descent import Descent
from relax_eg.meshes.strategies import SplitStrategy
from relax_eg.traversal import grouped

_GAP = 5e-3  # limit: prices are not accurate to a thousandth
_NODES = 2000  # limit: nodes of one search of HiGHS
MOST_TREES = 30  # limit: trees in turn without a gain, where it is the last descent
_CUTS = 20  # limit: searches repeated because a value depended on itself


class AxisSearch(AxisPrices):
    """The search along one axis."""

    def run(self, model: AxisProgram, seconds: float, start: AxisChoice | None = None) -> AxisChoice | None:
        """The cheapest choice found by an integer program that begins with `descended`; None if there is none."""
        deadline = time.monotonic() + seconds
        first = self.descended(model, start, MOST_TREES, deadline)
        for _ in range(_CUTS):
            solver = relaxation(model)
            columns = np.zeros(len(model.costs)) if first is None else model.columns_of(first)
            found = branch(solver, model.integers, columns, _GAP, _NODES, deadline)
            choice = first if found.values is None else model.choice_of(found.values)
            if choice is None:
                return None
            if first is not None and model.priced(first) < model.priced(choice):
                choice = first
            circle = self._circle(choice)
            if not circle:
                bound = 0.0 if model.demands.byte_price else max(0.0, min(found.bound * model.unit, choice.cost))
                return replace(choice, bound=bound, ran_out=found.ran_out)
            model.forbid(circle)
        raise ExtractionError("every choice found computes a value from itself; please report this")

    def descended(self, model: AxisProgram, start: AxisChoice | None, trees: int, deadline: float) -> AxisChoice | None:
        """The cheapest choice found from `start` (None: from the program as it is on one device) without an integer
        program, with the ways of that; None if nothing that is possible was found. `trees`: as of `Descent.run`."""
        for first in [start, None] if start is not None else [None]:
            columns = Descent(model, first or self.whole(model.demands)).run(trees, deadline)
            if columns is not None:
                return model.choice_of(columns)
        return None

    def least(self, model: AxisProgram, deadline: float) -> float:
        """A lower bound on the seconds of any choice, without an integer program; 0 where values may be computed in
        several ways."""
        if model.demands.byte_price or any(len(v.ways) > 1 for v in self.program.values):
            return 0.0
        return max(0.0, Descent(model, self.whole(model.demands)).bound(deadline)) * model.unit

    def whole(self, demands: Demands) -> AxisChoice:
        """The choice that splits only what has to be split: every value is computed as on one device."""
        program, found = self.program, AxisChoice()
        tied = grouped(program.tied)
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
            given = demands.parts.get(v)
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
