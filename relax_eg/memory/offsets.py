"""The offset plan: one arena, and where in it everything lies.

Where every size is bounded the plan is *static*: each tensor has the bytes that it needs at most, offsets are numbers,
and so is the arena. Else offsets are expressions over the sizes: the packing at sizes of interest says which of two
tensors that are needed at once lies below the other, and each lies above all that are below it, at whatever sizes.
Proofs of `<=` make the maxima short; that nothing overlaps needs none, and is looked at by `check` again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from relax_eg.memory.liveness import Lifetime, Liveness
from relax_eg.memory.packing import Packing, Span, pack
from relax_eg.memory.proofs import Reuse, Sizes
from relax_eg.shapes import Dim, dim_max


@dataclass(frozen=True)
class OffsetPlan:
    """Where each of `live.lifetimes` lies in an arena of `bytes`: from `offsets` on it has `reserved` bytes, at least
    what it needs. `bound`: sizes of which the largest is needed at some step, so that no arena for this order is
    smaller. `optimal`: whether the packing (at the sizes it was made for) is known to be the lowest."""

    live: Liveness
    static: bool
    offsets: tuple[Dim, ...]
    reserved: tuple[Dim, ...]
    bytes: Dim
    bound: tuple[Dim, ...]
    optimal: bool
    reuses: tuple[Reuse, ...]

    @cached_property
    def of_value(self) -> Mapping[int, int]:
        """The lifetime of each value that is planned."""
        return {v: x.number for x in self.live.lifetimes for v in x.values}

    def bytes_at(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena where the entry's sizes are these."""
        return int(self.bytes.evaluate(sizes))

    def bound_at(self, sizes: Mapping[str, int]) -> int:
        """What any plan of this order needs at least, at these sizes."""
        return max((int(d.evaluate(sizes)) for d in self.bound), default=0)


def offset_plan(live: Liveness, sizes: Sizes) -> OffsetPlan:
    """The arena for `live`: static where all of its sizes are bounded in the scope of `sizes`."""
    most = {d: _most(d, sizes) for d in {x.bytes for x in live.lifetimes}}
    static = all(n is not None for n in most.values())
    known = {d: n if static and n is not None else sizes.estimate(d) for d, n in most.items()}
    packing = pack([Span(x.start, x.end, known[x.bytes]) for x in live.lifetimes])
    if static:
        offsets = tuple(map(Dim.of, packing.offsets))
        reserved = tuple(Dim.of(known[x.bytes]) for x in live.lifetimes)
        height = Dim.of(packing.height)
    else:
        offsets, height = _raised(live, packing, sizes)
        reserved = tuple(x.bytes for x in live.lifetimes)
    bound = tuple(sizes.largest(live.sums))
    reuses = _reuses(live, packing, known, sizes)
    return OffsetPlan(live, static, offsets, reserved, height, bound, packing.optimal, reuses)


def _most(d: Dim, sizes: Sizes) -> int | None:
    """The largest value of a size in bounds, or what it cannot exceed; None where it is not bounded."""
    if d.is_const:
        return d.value
    if sizes.only_there:
        return sizes.estimate(d)
    return sizes.scope.interval(d)[1]


def _raised(live: Liveness, packing: Packing, sizes: Sizes) -> tuple[tuple[Dim, ...], Dim]:
    """Offsets as expressions, each above the ends of all that `packing` has below, and the height."""
    offsets = [Dim.of(0)] * len(live.lifetimes)
    now: list[Lifetime] = []
    meets: list[list[int]] = [[] for _ in live.lifetimes]
    for x in live.lifetimes:  # by start
        now = [y for y in now if y.end >= x.start]
        for y in now:
            meets[x.number].append(y.number)
            meets[y.number].append(x.number)
        now.append(x)
    bytes_of = [x.bytes for x in live.lifetimes]
    # Of those at one place at most one has any bytes at these sizes; whatever the order, each lies above those before.
    placed: set[int] = set()
    for n in sorted(range(len(offsets)), key=lambda n: (packing.offsets[n], n)):
        ends = {offsets[m] + bytes_of[m] for m in meets[n] if m in placed}
        offsets[n] = _maximum(ends, sizes)
        placed.add(n)
    return tuple(offsets), _maximum({o + b for o, b in zip(offsets, bytes_of, strict=True)}, sizes)


def _maximum(dims: set[Dim], sizes: Sizes) -> Dim:
    kept = sizes.largest(dims)
    if not kept:
        return Dim.of(0)
    found = kept[0]
    for d in kept[1:]:
        found = dim_max(found, d)
    return found


def _reuses(live: Liveness, packing: Packing, known: Mapping[Dim, int], sizes: Sizes) -> tuple[Reuse, ...]:
    """For each lifetime the one before whose bytes it is in, with the proof that it fits there; where it is not proved
    to fit, that this was refused (the arena then leaves room for both). Of equal pairs of sizes the first is told."""
    found: list[Reuse] = []
    told: set[tuple[Dim, Dim]] = set()
    gone: list[Lifetime] = []
    ends = sorted(live.lifetimes, key=lambda x: (x.end, x.number))
    next_end = 0
    for x in live.lifetimes:
        while next_end < len(ends) and ends[next_end].end < x.start:
            gone.append(ends[next_end])
            next_end += 1
        low, high = packing.offsets[x.number], packing.offsets[x.number] + known[x.bytes]
        for y in reversed(gone[-_BACK:]):
            if packing.offsets[y.number] <= low < packing.offsets[y.number] + max(known[y.bytes], 1):
                fits = high <= packing.offsets[y.number] + known[y.bytes]
                why = sizes.compare(x.bytes, "==" if x.bytes is y.bytes else "<=", y.bytes)
                if (x.bytes, y.bytes) not in told:
                    told.add((x.bytes, y.bytes))
                    found.append(Reuse(x.values[0], y.values[-1], why.holds and fits, why))
                break
    return tuple(found)


_BACK = 64  # of those that are gone, the latest that are looked at
