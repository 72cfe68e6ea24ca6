"""The offset plan: one arena, and the offset of every lifetime in it.

If every size is bounded, the plan is *static*: each tensor has its maximal bytes, and the offsets and the arena's size
are numbers. Otherwise offsets are expressions over the sizes: a packing at the sizes of interest decides which of two
tensors that are alive together is below the other, and each is placed above all those below it, at any sizes. Proofs of
`<=` keep the maxima short. That nothing overlaps needs no proof; `check` verifies it again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from relax_eg.memory.liveness import Lifetime, Liveness
from relax_eg.memory.packing import Packing, Span, pack
from relax_eg.memory.proofs import Reuse, SizeProofs
from relax_eg.shapes import Dim, ceildiv, dim_max
from relax_eg.shapes.dim import product


@dataclass(frozen=True)
class OffsetPlan:
    """The place of each of `live.lifetimes` in an arena of `bytes`.

    - `offsets`, `reserved`: each lifetime's offset and reserved bytes, at least what it needs.
    - `bound`: sums whose largest is needed at some step, so that no arena for this order is smaller.
    - `optimal`: whether the packing is known to be the lowest at the sizes it was made for.
    """

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
        """The number of the lifetime of each planned value."""
        return {v: x.number for x in self.live.lifetimes for v in x.values}

    def bytes_at(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena at these sizes of the entry."""
        return int(self.bytes.evaluate(sizes))

    def bound_at(self, sizes: Mapping[str, int]) -> int:
        """The least bytes of any plan of this order at these sizes."""
        return max((int(d.evaluate(sizes)) for d in self.bound), default=0)


def offset_plan(live: Liveness, sizes: SizeProofs, align: int | None = None) -> OffsetPlan:
    """The arena for `live`: static if all of its sizes are bounded in the scope of `sizes`. Offsets are multiples of
    `align` bytes (default: the size of the largest element)."""
    step = align or max((x.itemsize for x in live.lifetimes), default=1)
    most = {d: _most(d, sizes) for d in {x.bytes for x in live.lifetimes}}
    static = all(n is not None for n in most.values())
    known = {d: n if static and n is not None else sizes.estimate(d) for d, n in most.items()}
    room = {d: -(-n // step) * step for d, n in known.items()}
    packing = pack([Span(x.start, x.end, room[x.bytes]) for x in live.lifetimes])
    if static:
        offsets = tuple(map(Dim.of, packing.offsets))
        reserved = tuple(Dim.of(room[x.bytes]) for x in live.lifetimes)
        height = Dim.of(packing.height)
    else:
        reserved = tuple(_rounded(x.bytes, step) for x in live.lifetimes)
        offsets, height = _raised(live, reserved, packing, sizes)
    bound = tuple(sizes.largest(live.sums))
    reuses = _reuses(live, packing, room, sizes)
    return OffsetPlan(live, static, offsets, reserved, height, bound, packing.optimal, reuses)


def _rounded(d: Dim, step: int) -> Dim:
    """`d` rounded up to a multiple of `step`; `d` itself if it is one."""
    whole = ceildiv(d, step) * step
    return d if d % step == 0 else whole


def _most(d: Dim, sizes: SizeProofs) -> int | None:
    """An upper bound of a size; None if it is unbounded."""
    if d.is_const:
        return d.value
    if sizes.only_there:
        return sizes.estimate(d)
    return sizes.scope.interval(d)[1]


def _raised(
    live: Liveness, reserved: Sequence[Dim], packing: Packing, sizes: SizeProofs
) -> tuple[tuple[Dim, ...], Dim]:
    """Symbolic offsets, each above the ends of everything that `packing` puts below, and the height. An offset is the
    maximum of a few sums."""
    # Of lifetimes that share an offset, at most one has bytes at these sizes, so each is put above those before it in
    # any order. The top at a step lies above all else alive then, so only the tops are compared.
    ends: list[list[Dim]] = [[]] * len(live.lifetimes)
    offsets = [Dim.of(0)] * len(live.lifetimes)
    top = Tops(len(live.program.steps))
    for n in sorted(range(len(offsets)), key=lambda n: (packing.offsets[n], n)):
        x = live.lifetimes[n]
        below = _few({d for m in top.put(n, x.start, x.end + 1) for d in ends[m]}, sizes) or [Dim.of(0)]
        offsets[n] = _maximum(below)
        ends[n] = [d + reserved[n] for d in below]
    highest = {d for m in top.all for d in ends[m]}
    return tuple(offsets), _maximum(_few(highest, sizes) or [Dim.of(0)])


class Tops:
    """The topmost lifetime at each step, as ranges of steps."""

    def __init__(self, steps: int) -> None:
        self._starts = [0]  # of the ranges; each ends where the next begins, the last at `steps`
        self._tops: list[int | None] = [None]
        self._end = steps

    def put(self, n: int, start: int, end: int) -> set[int]:
        """Put `n` on top from `start` until `end`; returns what was on top there. All calls together are linear in
        their number, apart from moving list elements."""
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


def _few(sums: set[Dim], sizes: SizeProofs) -> list[Dim]:
    """A few sums whose maximum is at least that of `sums`, and usually equal to it."""
    kept = sizes.largest(sums)
    while len(kept) > SUMS:
        # Two sums of products are replaced by the sum with the larger coefficient of each product, which is at least
        # both; the pair with the least such sum at the sizes of interest is chosen.
        pairs = [(a, b) for i, a in enumerate(kept) for b in kept[:i]]
        joined = [(d, a, b) for a, b in pairs if (d := _joined(a, b, sizes)) is not None]
        if not joined:
            break
        best, a, b = min(joined, key=lambda j: (sizes.estimate(j[0]), j[0].sort_key()))
        kept = sizes.largest([best, *(d for d in kept if d not in (a, b))])
    return kept


def _joined(a: Dim, b: Dim, sizes: SizeProofs) -> Dim | None:
    """A sum that is at least `a` and at least `b`; None if a product in them may be negative."""
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


def _maximum(dims: Sequence[Dim]) -> Dim:
    found = dims[0]
    for d in dims[1:]:
        found = dim_max(found, d)
    return found


def _reuses(live: Liveness, packing: Packing, known: Mapping[Dim, int], sizes: SizeProofs) -> tuple[Reuse, ...]:
    """For each lifetime the earlier one whose bytes it reuses, with the proof that it fits there; if that is not
    proved, a refusal (the arena then has room for both). Of equal pairs of sizes only the first is reported."""
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


SUMS = 12  # limit: sums in the maximum of an offset
_BACK = 64  # limit: latest ended lifetimes that are searched
