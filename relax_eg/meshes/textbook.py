"""The placements that follow from where the data are: weights split so that what is split already stays where it is.

Of data that are whole on each device, a weight is split along its columns; what it computes is split then, and the next
weight is split along its rows, whose sums are whole again: Megatron's placements. Experts follow a batch of weights,
heads what a reshape keeps. Of data that are split, along tokens or sequences, weights are whole. Nothing is priced: the
search begins with these, as one start of several.
"""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.ir.placements import PARTIAL, REPLICATED, Part
from relax_eg.meshes.choices import AxisChoice
from relax_eg.meshes.program import SpreadProgram, ValueWay
from relax_eg.meshes.strategies import SplitStrategy


def following_parts(
    program: SpreadProgram, data: Mapping[int, Part], whole: AxisChoice, n: int, binding: Mapping[str, int]
) -> dict[int, Part]:
    """The parts along one axis in which values come about where the data are in these parts, with those of the inputs
    that are computed with the data. A sum is sent where it comes about.

    - `data`: the parts of the inputs that are given, by value; all others follow.
    - `whole`: a choice along this axis, whose ways are followed.
    - `n`: the number of devices along the axis.
    - `binding`: the sizes."""
    follows = _Following(program, dict(data), whole, n, binding)
    for start in (*program.outputs, *program.inputs):
        follows.reach(start)
    return {v: part for v, part in follows.parts.items() if v not in data}


class _Following:
    """The parts found so far. What depends on nothing but inputs whose parts are not known yet has none in `parts`."""

    def __init__(
        self, program: SpreadProgram, parts: dict[int, Part], whole: AxisChoice, n: int, binding: Mapping[str, int]
    ) -> None:
        self.program, self.parts, self.whole, self.n, self.binding = program, parts, whole, n, binding
        self.tied = {a: b for a, b in reversed(program.tied)}  # what a loop carries, with what it is at first
        self.reached = set[int]()

    def reach(self, start: int) -> None:
        """Visits a value, after what it comes from: of what a loop carries, what that is at first."""
        stack = [start]
        while stack:
            v = stack[-1]
            if v not in self.reached:
                self.reached.add(v)
                first = (self.tied[v],) if v in self.tied else ()
                stack += [c for c in reversed((*first, *self._way(v).children)) if c not in self.reached]
            else:
                stack.pop()
                self.visit(v)

    def visit(self, v: int) -> None:
        """Finds the part of a value from those of its operands, and theirs where only others are known."""
        first = self.tied.get(v)
        if first in self.parts and v not in self.parts:
            self.parts[v] = self.parts[first]
        way = self._way(v)
        if v in self.parts or self.program.values[v].is_free:
            return
        for c in way.children:  # whose operands may have become known since
            if c not in self.parts and any(x in self.parts for x in self._way(c).children):
                self._take(c, self._way(c))
        if any(c in self.parts for c in way.children):
            self._take(v, way)

    def _take(self, v: int, way: ValueWay) -> None:
        possible = [s for s in way.strategies_along(0) if s.ring is None and not s.halo and self._fits(s)]
        if possible:
            best = min(possible, key=lambda s: self._loss(way, s))
            self.parts[v] = REPLICATED if best.result in PARTIAL.values() else best.result
            self._settle(way, best)

    def _settle(self, way: ValueWay, s: SplitStrategy) -> None:
        """Gives operands without a part that in which a strategy takes them, and so on for what they come from."""
        stack = [(way, s)]
        while stack:
            way, s = stack.pop()
            for c, part in zip(way.children, s.operands, strict=False):
                if c in self.parts or part in PARTIAL.values() or self.program.values[c].is_free:
                    continue
                self.parts[c] = part
                inner = self._way(c)
                same = next((t for t in inner.strategies_along(0) if t.result == part and t.ring is None), None)
                if same is not None:
                    stack.append((inner, same))

    def _loss(self, way: ValueWay, s: SplitStrategy) -> tuple[float, int, int]:
        """What is least for the best strategy: bytes of split operands that have to change, operands of which only a
        slice would be used, and whether all is computed on each device, or a sum has to be sent."""
        changed, sliced = 0.0, 0
        for c, part in zip(way.children, s.operands, strict=False):
            known = self.parts.get(c, part)
            if known != part:
                changed += self.program.values[c].bytes if known != REPLICATED else 0.0
                sliced += known == REPLICATED
        return changed, sliced, 0 if isinstance(s.result, int) else 1 if not s.whole else 2

    def _fits(self, s: SplitStrategy) -> bool:
        divided = s.merged is None or int(s.merged.evaluate(self.binding)) % self.n == 0
        return divided and all(int(d.evaluate(self.binding)) >= self.n for d in s.extents)

    def _way(self, v: int) -> ValueWay:
        chosen = self.whole.chosen.get(v)
        return self.program.values[v].ways[0 if chosen is None else chosen.way]
