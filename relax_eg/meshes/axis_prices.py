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
        """Seconds of one run of a way by a strategy, on each device, without what is sent meanwhile."""
        if not way.cost.seconds:
            return 0.0
        work, moving, split, pieces = self._shares(v, way, s)
        sizes = self._sizes(v, way)
        here = sum(b / d for b, d in zip(sizes, pieces, strict=True)) / max(1.0, sum(sizes))
        return float(way.cost.seconds) - work + max(work / split, moving * here)

    def _sizes(self, v: int, way: ValueWay) -> list[float]:
        """Bytes of the operands of a way, then of its result, on one device."""
        return [*(self.program.values[c].bytes for c in way.children), self.program.values[v].bytes]

    def _shares(self, v: int, way: ValueWay, s: SplitStrategy) -> tuple[float, float, float, list[float]]:
        """Seconds of a way on one device without launches, those that its bytes take alone, and into how many parts a
        strategy splits the work, each operand and the result."""
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
        work = max(0.0, float(way.cost.seconds) - float(way.cost.launches) * self.profile.launch)
        return work, min(work, float(way.cost.bytes) / self.profile.bandwidth), split, pieces

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

    def passed(self, v: int, way: ValueWay, s: SplitStrategy) -> tuple[float, int, float]:
        """What each device sends to a neighbour in one run of a way by a strategy: the bytes of each time, how often,
        and the seconds that this takes beyond those of computing."""
        if s.ring is not None:
            piece, times = self._in_ring(v, way, s), self.n - 1
            return piece, times, self._ring_seconds(v, way, s, piece) - self.strategy_seconds(v, way, s)
        if not s.halo:
            return 0.0, 0, 0.0
        rows = float(s.extents[0].evaluate(self.binding))
        here = self.program.values[way.children[0]].bytes / self.divided(way.children[0]) * s.halo / rows
        return here, 1, self.link.seconds("collective-permute", self.n, here)

    def _in_ring(self, v: int, way: ValueWay, s: SplitStrategy) -> float:
        """Bytes of a piece that goes round."""
        assert s.ring is not None
        pieces = self._shares(v, way, s)[3]
        of = -1 if s.ring.passed is None else s.ring.passed
        return self._sizes(v, way)[of] / pieces[of]

    def _ring_seconds(self, v: int, way: ValueWay, s: SplitStrategy, piece: float) -> float:
        """Seconds of one run of a strategy by pieces: each is computed while the one before is sent. Then, or before,
        what does not go round is brought from the order of the pieces into its own."""
        assert s.ring is not None
        n, bandwidth = self.n, self.profile.bandwidth
        work, moving, split, pieces = self._shares(v, way, s)
        sizes = self._sizes(v, way)
        each = [b / d for b, d in zip(sizes, pieces, strict=True)]
        if s.ring.passed is None:
            turned = sum(b for b, axis in zip(each, s.ring.axes, strict=False) if axis is not None)
            read = [b / (n if axis is not None else 1) for b, axis in zip(each, s.ring.axes, strict=False)]
            added = 3 * piece / bandwidth  # given: two operands and a sum
            read.append(piece)
        else:
            turned, added = each[-1], 0.0
            read = [*each[:-1], each[-1] / n]
        computing = max(work / split / n, moving * sum(read) / max(1.0, sum(sizes)))
        computing += float(way.cost.launches) * self.profile.launch + added
        sending = self.link.seconds("collective-permute", n, piece)
        return computing + (n - 1) * max(computing, sending) + 2 * turned / bandwidth  # given: read, and written

    # --- what is possible ---

    def fits(self, v: int, s: SplitStrategy) -> bool:
        """Whether every device gets a place along each size that a strategy splits, and merged axes are divided
        without rest, as is proved for all sizes."""
        n, earlier = self.n, len(self.others) - len(self.later)
        for i, (choice, k) in enumerate(self.others):
            chosen = None if choice is None else choice.chosen.get(v)
            n *= k if chosen is not None and chosen.strategy == s else 1
            ordered = (s,) if chosen is None else (chosen.strategy, s) if i < earlier else (s, chosen.strategy)
            if not _go_together(*ordered):
                return False
        if s.merged is not None and not self.scope.equal(s.merged % n, 0):
            return False
        if s.ring is not None:  # equal pieces, whatever else splits them
            every = self.n * math.prod(k for _, k in self.others)
            return all(not d.variables and int(d) % every == 0 for d in s.extents)
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


def _go_together(*each: SplitStrategy) -> bool:
    """Whether a value may be computed by these strategies along axes in the order of the mesh. Beside one by pieces
    others split axes of the result; where a faster axis of the mesh splits the axis of the pieces too, the parts that
    devices have would have to be exchanged."""
    rings = [i for i, s in enumerate(each) if s.ring is not None]
    if not rings or len(each) == 1:
        return True
    (first, *more), ring = rings, each[rings[0]].ring
    assert ring is not None
    return (
        not more
        and all(isinstance(s.result, int) for s in each)
        and ring.axis not in (s.result for s in each[first + 1 :])
    )


def cost_along(prices: AxisPrices, choice: AxisChoice) -> float:
    """Seconds of a choice: all computation, and the collectives along this axis."""
    total = 0.0
    for v, chosen in choice.chosen.items():
        value = prices.program.values[v]
        way = value.ways[chosen.way]
        total += value.times * prices.strategy_seconds(v, way, chosen.strategy)
        total += value.times * prices.passed(v, way, chosen.strategy)[2]
        for part in choice.needed.get(v, ()):
            before = choice.source(v, part)
            if before is not None:
                total += value.times * prices.change_seconds(v, before, part)
    return total
