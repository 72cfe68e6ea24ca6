"""The arena: one storage, and the offset of every lifetime in it.

If every size is bounded, offsets are numbers and the arena is *static*: each tensor has its maximal bytes. Otherwise
offsets are expressions over the sizes. A packing at the sizes of interest decides which of two tensors that are alive
together is below the other. At any sizes, each tensor is placed above all those below it, so tensors cannot overlap.
Proofs of `<=` keep the maxima short. `check` verifies the result independently.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from relax_eg.memory.liveness import Lifetime, Liveness
from relax_eg.memory.packing import Packing, Span, pack
from relax_eg.memory.placement import Place, Storage, StorageLayout
from relax_eg.memory.proofs import Reuse, SizeProofs
from relax_eg.shapes import Dim, ceildiv, dim_max
from relax_eg.shapes.dim import product


def arena(live: Liveness, sizes: SizeProofs, align: int | None = None) -> StorageLayout:
    """The layout of `live` in one arena, which is static if all sizes are bounded in the scope of `sizes`. Offsets are
    multiples of `align` bytes (default: the size of the largest element)."""
    step = align or max((x.itemsize for x in live.lifetimes), default=1)
    most = {d: sizes.upper_bound(d) for d in {x.bytes for x in live.lifetimes}}
    static = None not in most.values()
    known = {d: n if static and n is not None else sizes.estimate(d) for d, n in most.items()}
    room = {d: -(-n // step) * step for d, n in known.items()}
    packing = pack([Span(x.start, x.end, room[x.bytes]) for x in live.lifetimes])
    if static:
        offsets, height = tuple(map(Dim.of, packing.offsets)), Dim.of(packing.height)
    else:
        reserved = [_round_up(x.bytes, step) for x in live.lifetimes]
        offsets, height = _symbolic_offsets(live, reserved, packing, sizes)
    places = {v: Place(0, offsets[x.number]) for x in live.lifetimes for v in x.values}
    return (Storage(height),), places, _reuses(live, packing, room, sizes), packing.optimal


def _round_up(d: Dim, step: int) -> Dim:
    """`d` rounded up to a multiple of `step`; `d` itself if it is one."""
    whole = ceildiv(d, step) * step
    return d if d % step == 0 else whole


def _symbolic_offsets(
    live: Liveness, reserved: Sequence[Dim], packing: Packing, sizes: SizeProofs
) -> tuple[tuple[Dim, ...], Dim]:
    """The symbolic offset of each lifetime, and the height of the arena. An offset is a maximum of sums: the ends of
    the lifetimes that `packing` puts below this one."""
    # Of several lifetimes with one offset, at most one has bytes at these sizes, so their order does not matter. The
    # top at a step lies above all other lifetimes of the step, so only the tops are compared.
    ends: list[list[Dim]] = [[]] * len(live.lifetimes)
    offsets = [Dim.of(0)] * len(live.lifetimes)
    top = Tops(len(live.program.steps))
    for n in sorted(range(len(offsets)), key=lambda n: (packing.offsets[n], n)):
        x = live.lifetimes[n]
        below = _bounding_sums({d for m in top.put(n, x.start, x.end + 1) for d in ends[m]}, sizes) or [Dim.of(0)]
        offsets[n] = dim_max(*below)
        ends[n] = [d + reserved[n] for d in below]
    highest = {d for m in top.all for d in ends[m]}
    return tuple(offsets), dim_max(*(_bounding_sums(highest, sizes) or [Dim.of(0)]))


class Tops:
    """The topmost lifetime at each step, as ranges of steps."""

    def __init__(self, steps: int) -> None:
        self._starts = [0]  # of the ranges; each ends where the next begins, the last at `steps`
        self._tops: list[int | None] = [None]
        self._end = steps

    def put(self, n: int, start: int, end: int) -> set[int]:
        """Puts lifetime `n` on top of the steps from `start` until `end`, and returns the lifetimes that were on top
        there. All calls together are linear in their number, apart from moving list elements."""
        first = bisect_right(self._starts, start) - 1
        after = bisect_left(self._starts, end)
        covered = self._tops[first:after]
        starts, tops = [start], [n]
        if self._starts[first] < start:
            starts, tops = [self._starts[first], *starts], [covered[0], *tops]
        if (self._starts[after] if after < len(self._starts) else self._end) > end:
            starts, tops = [*starts, end], [*tops, covered[-1]]
        self._starts[first:after], self._tops[first:after] = starts, tops
        return {m for m in covered if m is not None}

    @property
    def all(self) -> set[int]:
        return {m for m in self._tops if m is not None}


def _bounding_sums(sums: set[Dim], sizes: SizeProofs) -> list[Dim]:
    """At most `SUMS` sums whose maximum is at least that of `sums`, and usually equal to it. More than `SUMS` are
    returned if no pair of them has a common bound."""
    kept = sizes.largest(sums)
    while len(kept) > SUMS:
        # Two sums of products are replaced by the sum with the larger coefficient of each product, which is at least
        # both; the pair with the least such sum at the sizes of interest is chosen.
        pairs = [(a, b) for i, a in enumerate(kept) for b in kept[:i]]
        bounds = [(d, a, b) for a, b in pairs if (d := _common_bound(a, b, sizes)) is not None]
        if not bounds:
            break
        best, a, b = min(bounds, key=lambda j: (sizes.estimate(j[0]), j[0].sort_key()))
        kept = sizes.largest([best, *(d for d in kept if d not in (a, b))])
    return kept


def _common_bound(a: Dim, b: Dim, sizes: SizeProofs) -> Dim | None:
    """The sum with the larger coefficient of each product in `a` and `b`, an upper bound of both; None if a product may
    be negative."""
    shares = {m: (c, 0) for m, c in a.terms}
    for m, c in b.terms:
        shares[m] = (shares.get(m, (0, 0))[0], c)
    total = Dim.of(max(a.const, b.const))
    for m, (one, other) in shares.items():
        term = product(m)
        low = sizes.scope.interval(term)[0]
        if low is None or low < 0:
            return None
        total = total + term * max(one, other)
    return total


def _reuses(live: Liveness, packing: Packing, known: Mapping[Dim, int], sizes: SizeProofs) -> tuple[Reuse, ...]:
    """For each lifetime, the earlier lifetime whose bytes it reuses, with the proof that it fits there. If that is not
    proved, the entry is a refusal, and the arena has room for both. Of equal pairs of sizes only the first is
    reported."""
    found: list[Reuse] = []
    reported: set[tuple[Dim, Dim]] = set()
    ended: list[Lifetime] = []
    ends = sorted(live.lifetimes, key=lambda x: (x.end, x.number))
    next_end = 0
    for x in live.lifetimes:
        while next_end < len(ends) and ends[next_end].end < x.start:
            ended.append(ends[next_end])
            next_end += 1
        low, high = packing.offsets[x.number], packing.offsets[x.number] + known[x.bytes]
        for y in reversed(ended[-_BACK:]):
            if packing.offsets[y.number] <= low < packing.offsets[y.number] + max(known[y.bytes], 1):
                fits = high <= packing.offsets[y.number] + known[y.bytes]
                why = sizes.compare(x.bytes, "==" if x.bytes is y.bytes else "<=", y.bytes)
                if (x.bytes, y.bytes) not in reported:
                    reported.add((x.bytes, y.bytes))
                    found.append(Reuse(x.values[0], y.values[-1], why.holds and fits, why))
                break
    return tuple(found)


SUMS = 12  # limit: sums in the maximum of an offset
_BACK = 64  # limit: lifetimes, those that ended last, among which a reuse is searched
