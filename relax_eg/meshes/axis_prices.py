"""Prices along one axis of a mesh, given the choices for its other axes, and what is possible there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.profiles.links import Collective, Link
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.placements import PARTIAL, PARTIAL_SUM, REPLICATED, Part
from relax_eg.meshes.choices import AxisChoice, change_of, turns
from relax_eg.meshes.program import SpreadProgram, ValueWay
from relax_eg.meshes.strategies import SplitStrategy
from relax_eg.meshes.sums import JOINED
from relax_eg.shapes import Dim, Scope


@dataclass(frozen=True, slots=True)
class AxisChange:
    """A collective that brings a value from one part into another.

    - `kind`: which.
    - `axes`: the axes of the mesh over which it runs at once.
    - `bytes`: of its result on a device.
    - `seconds`: one axis' share.
    """

    kind: Collective
    axes: tuple[int, ...]
    bytes: float
    seconds: float


class AxisPrices:
    """Prices along one axis.

    - `program`: the program.
    - `axis`: the number of the axis.
    - `sizes`, `links`: the number of devices along each axis of the mesh, and the links over which they send.
    - `profile`: of one device.
    - `binding`, `scope`: the sizes at which prices hold, and what is known of all sizes.
    - `choices`: the choice for each axis; None where one is not made yet. That for this axis is not read.
    """

    def __init__(
        self,
        program: SpreadProgram,
        axis: int,
        sizes: Sequence[int],
        links: Sequence[Link],
        profile: Profile,
        binding: Mapping[str, int],
        scope: Scope,
        choices: Sequence[AxisChoice | None],
    ) -> None:
        self.program, self.axis, self.sizes, self.links, self.profile = program, axis, sizes, links, profile
        self.binding, self.scope, self.choices = binding, scope, choices
        self.n, self.link = sizes[axis], links[axis]
        each = list(zip(choices, sizes, strict=True))
        self.others, self.later = each[:axis] + each[axis + 1 :], each[axis + 1 :]

    def along(self, axis: int, choice: AxisChoice) -> Self:
        """The prices along another axis, with a choice for this one."""
        choices = [choice if b == self.axis else c for b, c in enumerate(self.choices)]
        return type(self)(
            self.program, axis, self.sizes, self.links, self.profile, self.binding, self.scope, choices
        )  # fmt: skip

    # --- prices, given the other axes ---

    def divided(self, v: int) -> float:
        """Into how many pieces the other axes split a value where it comes about."""
        found = 1.0
        for choice, n in self.others:
            if choice is None or isinstance(choice.part(v), int):
                found *= n
        return found

    def strategy_seconds(self, v: int, way: ValueWay, s: SplitStrategy) -> float:
        """Seconds of one run of a way by a strategy, on each device, without what is sent meanwhile."""
        return float(self.strategy_cost(v, way, s).seconds) if way.cost.seconds else 0.0

    def strategy_cost(self, v: int, way: ValueWay, s: SplitStrategy) -> NodeCost:
        """The cost of one run of a way by a strategy, on each device, without what is sent meanwhile."""
        work, moving, split, pieces = self._shares(v, way, s)
        sizes = self._sizes(v, way)
        here = sum(b / d for b, d in zip(sizes, pieces, strict=True)) / max(1.0, sum(sizes))
        seconds = float(way.cost.seconds) - work + max(work / split, moving * here)
        moved = moving * here * self.profile.bandwidth  # less than is read and written where an operator is fused
        return replace(way.cost, flops=way.cost.flops / split, bytes=moved, seconds=seconds)

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

    def _padded(self, size: Dim, n: int = 0) -> float:
        """How much longer a dimension of this size is if it is padded to `n` equal pieces; 0: those of this axis."""
        d, n = float(size.evaluate(self.binding)), n or self.n
        return math.ceil(d / n) * n / max(1.0, d)

    def change_bytes(self, v: int, *parts: Part) -> float:
        """Bytes of a value over one group of this axis, with those that pad it where it is split in these parts."""
        return self._group_bytes(v, self.divided(v), self.n, parts)

    def _group_bytes(self, v: int, pieces: float, n: int, parts: Iterable[Part]) -> float:
        full = self.program.values[v].bytes / pieces
        for p in set(parts):
            if isinstance(p, int):
                full *= self._padded(self.program.values[v].shape[p], n)
        return full

    def change_seconds(self, v: int, before: Part, after: Part) -> float:
        """Seconds of one change of the part of a value."""
        seconds = sum(c.seconds for c in self.changes(v, before, after))
        if change_of(before, after) is None:  # a slice, or the whole value on one device and zeros on the others
            full = self.change_bytes(v, before, after)
            pieces = self.n if isinstance(after, int) else 1
            seconds += full / pieces * self.program.share / self.profile.bandwidth
        return seconds

    def beside_seconds(self, v: int, before: Part, after: Part) -> float:
        """Seconds of what is sent along other axes to change their parts of a value, while this axis changes from
        `before` to `after`: that depends on what each of its groups has then."""
        if all(c is None or _target(c, v, after) == c.part(v) for c, _ in self.others):
            return 0.0
        order, was, goes = self._order(v, before, after)
        return sum(
            c.seconds for b, p in was.items() if b != self.axis and p != goes[b]
            for c in self._changes_along(b, v, order, was, goes)
        )  # fmt: skip

    def changes(self, v: int, before: Part, after: Part) -> list[AxisChange]:
        """What is sent for one change of the part of a value, this axis' share of it: the other axes change theirs in
        turn (`choices.turns`)."""
        if change_of(before, after) is None and not isinstance(after, int):
            return []
        return self._changes_along(self.axis, v, *self._order(v, before, after))

    def _order(self, v: int, before: Part, after: Part) -> tuple[list[list[int]], dict[int, Part], dict[int, Part]]:
        """The axes that change their parts of a value, in turn, and the parts before and after along each axis that has
        a choice."""
        was, goes = {self.axis: before}, {self.axis: after}
        for b, choice in enumerate(self.choices):
            if choice is not None and b != self.axis:
                was[b], goes[b] = choice.part(v), _target(choice, v, after)
        if not any(was[b] != goes[b] for b in was if b != self.axis):
            return [[self.axis]], was, goes
        axes = sorted(was)
        order = turns([was[b] for b in axes], [goes[b] for b in axes], self.sums_apart(v))
        return [[axes[i] for i in group] for group in order], was, goes

    def _changes_along(
        self, axis: int, v: int, order: Sequence[Sequence[int]], was: Mapping[int, Part], goes: Mapping[int, Part]
    ) -> list[AxisChange]:
        """What is sent along an axis of the mesh when a value changes its parts in this order."""
        before, after, n, link = was[axis], goes[axis], self.sizes[axis], self.links[axis]
        kind = change_of(before, after)
        place = next(i for i, group in enumerate(order) if axis in group)
        done = {b for group in order[:place] for b in group}
        mine = [axis] if kind == "all-to-all" else order[place]
        now = {b: goes[b] if b in done else was[b] for b in was if b not in mine}
        pieces = math.prod(k for b, k in enumerate(self.sizes) if b not in mine and isinstance(now.get(b, 0), int))
        full = self._group_bytes(v, pieces, n, (before, after))
        if kind == "reduce-scatter" and len({goes[b] for b in mine}) > 1:
            kind = "all-reduce"  # of which each device takes a slice
        if kind == "reduce-scatter" and self.profile.platform == "cpu":
            kind = "all-reduce"  # XLA for CPUs has no other sums
        faster = (b for b, p in now.items() if b > axis and isinstance(p, int) and p in (before, after))
        around = math.prod(self.sizes[b] for b in faster)
        # Where a faster axis splits the same dimension, what one group of this axis has does not lie together.
        piece = full / n
        turned = AxisChange("collective-permute", (axis,), piece, link.seconds("collective-permute", n, piece))
        if kind is None:
            return [turned] if around > 1 else []
        joined = min(self.program.joined.get(v, 1), max(1.0, JOINED / full)) if was[axis] in PARTIAL.values() else 1.0
        seconds = link.seconds(kind, n, full, joined)
        if len(mine) > 1:  # at once: each axis has its share
            alone = sum(self.links[b].seconds(kind, self.sizes[b], full, joined) for b in mine)
            slowest = min((self.links[b] for b in mine), key=lambda x: x.bandwidth)
            together = slowest.seconds(kind, math.prod(self.sizes[b] for b in mine), full, joined)
            seconds *= min(1.0, together / alone) if alone > 0 else 1.0
        here = full if kind in ("all-reduce", "all-gather") else full / math.prod(self.sizes[b] for b in mine)
        if around > 1 and kind == "all-gather":
            return [turned, AxisChange(kind, (axis,), here, seconds)]
        if around > 1:  # the partitioner gathers all, and takes the new part of that
            seconds += link.seconds("all-gather", n * around, full * around)
        return [AxisChange(kind, tuple(mine), here, seconds)]

    def sums_apart(self, v: int) -> bool:
        """Whether the sum of a value over this axis may be taken apart from those over others: no piece is padded."""
        every = [(c.chosen[v], n) for c, n in self.others if c is not None and c.part(v) in PARTIAL.values()]
        n = self.n * math.prod(n for _, n in every)
        ways = self.program.values[v].ways
        return all(is_even(ways[c.way], c.strategy, n) and c.strategy.result == PARTIAL_SUM for c, _ in every)

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
        chosen = ((None if choice is None else choice.chosen.get(v), k) for choice, k in self.others)
        return is_even(way, s, self.n * math.prod(k for c, k in chosen if c is not None and c.strategy == s))

    def _at_least(self, d: Dim, n: int) -> bool:
        low, _ = self.scope.interval(d)
        return not d.variables or (low is not None and low >= n) or self.scope.equal(d % n, 0) is True

    def has_room(self, v: int, part: Part) -> bool:
        """Whether a value has a place for every device in a part, with the other axes that split the same dimension."""
        if not isinstance(part, int):
            return True
        others = ((c, k) for c, k in self.others if c is not None)
        n = self.n * math.prod(k for c, k in others if c.part(v) == part or part in c.needed.get(v, ()))
        return int(self.program.values[v].shape[part].evaluate(self.binding)) >= n

    def divides(self, v: int, part: Part) -> bool:
        """Whether the pieces of an input or output are equal for all sizes, as JAX needs."""
        if not isinstance(part, int):
            return part == REPLICATED
        n = self.n * math.prod(k for c, k in self.others if c is not None and c.part(v) == part)
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


def is_even(way: ValueWay, s: SplitStrategy, n: int) -> bool:
    """Whether `n` devices divide all that a strategy splits, for all sizes, so that the parts of a sum can be told
    apart."""
    return way.candidate >= 0 and all(not d.variables and int(d) % n == 0 for d in s.extents)


def _target(choice: AxisChoice, v: int, other: Part) -> Part:
    """The part into which a choice brings a value, while another axis brings it into `other`."""
    needed = choice.needed.get(v) or {choice.part(v)}
    return next((p for p in (REPLICATED, other) if p in needed), min(needed, key=str))


def cost_along(prices: AxisPrices, choice: AxisChoice) -> float:
    """Seconds of a choice: all computation, and the collectives along this axis."""
    computing = 0.0
    for v, chosen in choice.chosen.items():
        value = prices.program.values[v]
        computing += value.times * prices.strategy_seconds(v, value.ways[chosen.way], chosen.strategy)
    return computing + sending_along(prices, choice)


def sending_along(prices: AxisPrices, choice: AxisChoice) -> float:
    """Seconds of the collectives of a choice along this axis."""
    total = 0.0
    for v, chosen in choice.chosen.items():
        value = prices.program.values[v]
        total += value.times * prices.passed(v, value.ways[chosen.way], chosen.strategy)[2]
        for part in choice.needed.get(v, ()):
            before = choice.source(v, part)
            if before is not None:
                total += value.times * prices.change_seconds(v, before, part)
    return total


def cost_of(prices: AxisPrices, choice: AxisChoice) -> float:
    """Seconds of a choice: all computation, and the collectives along all axes that have a choice."""
    total = cost_along(prices, choice)
    for b, other in enumerate(prices.choices):
        if other is not None and b != prices.axis:
            total += sending_along(prices.along(b, choice), other)
    return total
