"""Prices along one axis of a mesh, given the choices for its other axes, and what is possible there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from relax_eg.extract.links import Link
from relax_eg.extract.profile import Profile
from relax_eg.ir.placements import REPLICATED, Part
from relax_eg.meshes.choices import AxisChoice, change_of
from relax_eg.meshes.program import SpreadProgram, ValueWay
from relax_eg.meshes.strategies import SplitStrategy
from relax_eg.shapes import Dim, Scope


class AxisPrices:
    """Prices along one axis.

    - `program`: the program.
    - `axis`: the number of the axis.
    - `size`, `link`: the number of devices along the axis, and the link over which they send.
    - `profile`: of one device.
    - `binding`, `scope`: the sizes at which prices hold, and what is known of all sizes.
    - `others`: the choices for the other axes, with their sizes; None where one is not made yet.
    - `later`: those of them that come after this axis in the mesh.
    - `links`: the links of the other axes; none: they are not known.
    """

    def __init__(
        self,
        program: SpreadProgram,
        axis: int,
        size: int,
        link: Link,
        profile: Profile,
        binding: Mapping[str, int],
        scope: Scope,
        others: Sequence[tuple[AxisChoice | None, int]],
        later: Sequence[tuple[AxisChoice | None, int]] = (),
        links: Sequence[Link] = (),
    ) -> None:
        self.program, self.axis, self.n, self.link, self.profile = program, axis, size, link, profile
        self.binding, self.scope, self.others, self.later = binding, scope, others, later
        self.links = links

    # --- prices, given the other axes ---

    def divided(self, v: int, part: Part | None = None) -> float:
        """Into how many pieces the other axes split a value where it comes about."""
        found = 1.0
        for choice, n in self.others:
            if choice is None or isinstance(choice.part(v), int):
                found *= n
        return found

    def strategy_seconds(self, v: int, way: ValueWay, s: SplitStrategy) -> float:
        """Seconds of one run of a way by a strategy, on each device."""
        if not way.cost.seconds:
            return 0.0
        value = self.program.values[v]
        split = 1.0
        pieces = [1.0] * (len(way.children) + 1)  # of the operands, then of the result
        for choice, n in self.others:
            chosen = None if choice is None else choice.chosen.get(v)
            if choice is None or (chosen is not None and not chosen.strategy.whole):
                split *= n
            parts = s.operands if chosen is None else chosen.strategy.operands
            for i, p in enumerate((*parts, s.result if chosen is None else chosen.strategy.result)[: len(pieces)]):
                if choice is None or isinstance(p, int):
                    pieces[i] *= n
        if not s.whole:
            split *= self.n / self._imbalance(s)
            for i, p in enumerate((*s.operands, s.result)):
                pieces[i] *= self.n if isinstance(p, int) else 1
        sizes = [*(self.program.values[c].bytes for c in way.children), value.bytes]
        here = sum(b / d for b, d in zip(sizes, pieces, strict=True)) / max(1.0, sum(sizes))
        cost, launch = way.cost, float(way.cost.launches) * self.profile.launch
        work = max(0.0, float(cost.seconds) - launch)
        moving = min(work, float(cost.bytes) / self.profile.bandwidth)
        return min(float(cost.seconds), launch) + max(work / split, moving * here)

    def _imbalance(self, s: SplitStrategy) -> float:
        """How much more the device with most places has than an equal share."""
        return self._padded(s.extents[0]) if s.extents else 1.0

    def _padded(self, size: Dim) -> float:
        """How much longer a dimension of this size is if it is padded to equal pieces."""
        d = float(size.evaluate(self.binding))
        return math.ceil(d / self.n) * self.n / max(1.0, d)

    def change_bytes(self, v: int, *parts: Part) -> float:
        """Bytes of a value over one group of this axis, with those that pad it where it is split in these parts."""
        full = self.program.values[v].bytes / self.divided(v)
        for p in set(parts):
            if isinstance(p, int):
                full *= self._padded(self.program.values[v].shape[p])
        return full

    def change_seconds(self, v: int, before: Part, after: Part) -> float:
        """Seconds of one change of the part of a value."""
        kind, full = change_of(before, after), self.change_bytes(v, before, after)
        if kind is None:  # a slice, or the whole value on one device and zeros on the others
            return full / (self.n if isinstance(after, int) else 1) / self.profile.bandwidth
        seconds = self.link.seconds(kind, self.n, full)
        if kind == "all-reduce":  # XLA sums over all axes at once; each axis has its share
            also = [
                (n, link) for (choice, n), link in zip(self.others, self.links, strict=False)
                if choice is not None and choice.part(v) == before and after in choice.needed.get(v, ())
            ]  # fmt: skip
            alone = seconds + sum(link.seconds(kind, n, full) for n, link in also)
            slowest = min((self.link, *(link for _, link in also)), key=lambda x: x.bandwidth)
            together = slowest.seconds(kind, self.n * math.prod(n for n, _ in also), full)
            return seconds * min(1.0, together / alone) if alone > 0 else seconds
        # XLA's partitioner gathers what is split over a faster axis too, and takes the new part of that.
        around = math.prod(
            n for choice, n in self.later if choice is not None and choice.part(v) in (before, after)
            and isinstance(choice.part(v), int)
        )  # fmt: skip
        return seconds if around == 1 else seconds + self.link.seconds("all-gather", self.n * around, full * around)

    def halo_bytes(self, way: ValueWay, s: SplitStrategy) -> float:
        """Bytes that each device gets from a neighbour to compute a value by a strategy."""
        if not s.halo:
            return 0.0
        rows = float(s.extents[0].evaluate(self.binding))
        return self.program.values[way.children[0]].bytes / self.divided(way.children[0]) * s.halo / rows

    def halo_seconds(self, way: ValueWay, s: SplitStrategy) -> float:
        """Seconds of what neighbours send for one run of a way by a strategy."""
        return self.link.seconds("collective-permute", self.n, self.halo_bytes(way, s))

    # --- what is possible ---

    def fits(self, v: int, s: SplitStrategy) -> bool:
        """Whether every device gets a place along each size that a strategy splits, and merged axes are divided
        without rest, as is proved for all sizes."""
        n = self.n
        for choice, k in self.others:
            chosen = None if choice is None else choice.chosen.get(v)
            n *= k if chosen is not None and chosen.strategy == s else 1
        if s.merged is not None and not self.scope.equal(s.merged % n, 0):
            return False
        if s.halo and s.halo * n > int(s.extents[0].evaluate(self.binding)):
            return False  # more than the neighbour has
        return all(int(d.evaluate(self.binding)) >= n and self._at_least(d, n) for d in s.extents)

    def keeps_sum(self, v: int, way: ValueWay, s: SplitStrategy) -> bool:
        """Whether the partial sum that a strategy makes of a value may stay one: it does not depend on padding."""
        n = self.n
        for choice, k in self.others:
            chosen = None if choice is None else choice.chosen.get(v)
            n *= k if chosen is not None and chosen.strategy == s else 1
        return way.candidate >= 0 and all(not d.variables and int(d) % n == 0 for d in s.extents)

    def _at_least(self, d: Dim, n: int) -> bool:
        low, _ = self.scope.interval(d)
        return not d.variables or (low is not None and low >= n) or self.scope.equal(d % n, 0) is True

    def has_room(self, v: int, part: Part) -> bool:
        """Whether a value has a place for every device in a part, with the other axes that split the same dimension."""
        if not isinstance(part, int):
            return True
        n = self.n
        for choice, k in self.others:
            n *= k if choice is not None and (choice.part(v) == part or part in choice.needed.get(v, ())) else 1
        return int(self.program.values[v].shape[part].evaluate(self.binding)) >= n

    def divides(self, v: int, part: Part) -> bool:
        """Whether the pieces of an input or output are equal for all sizes, as JAX needs."""
        if not isinstance(part, int):
            return part == REPLICATED
        n = self.n
        for choice, k in self.others:
            n *= k if choice is not None and choice.part(v) == part else 1
        d = self.program.values[v].shape[part]
        return self.scope.equal(d % n, 0) is True and int(d.evaluate(self.binding)) >= n


def cost_along(prices: AxisPrices, choice: AxisChoice) -> float:
    """Seconds of a choice: all computation, and the collectives along this axis."""
    total = 0.0
    for v, chosen in choice.chosen.items():
        value = prices.program.values[v]
        way = value.ways[chosen.way]
        total += value.times * prices.strategy_seconds(v, way, chosen.strategy)
        total += value.times * prices.halo_seconds(way, chosen.strategy)
        for part in choice.needed.get(v, ()):
            before = choice.source(v, part)
            if before is not None:
                total += value.times * prices.change_seconds(v, before, part)
    return total
