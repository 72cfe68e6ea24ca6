"""The arena: one storage, and the offset of every lifetime in it.

If every size is bounded, offsets are numbers and the arena is *static*: each tensor has its maximal bytes. Otherwise
offsets are expressions over the sizes. A packing at the sizes of interest decides which of two tensors that are alive
together is below the other. At any sizes, each tensor is placed above all those below it, so tensors cannot overlap.
Proofs of `<=` keep the maxima short. `check` verifies the result independently.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax_eg.memory.liveness import Lifetime, Liveness, live_totals
from relax_eg.memory.placement import Place, Storage, StorageLayout
from relax_eg.memory.proofs import Reuse, SizeProofs
from relax_eg.shapes import Dim, ceildiv, dim_max
from relax_eg.shapes.dim import product

# Packing: the lowest possible offsets in one arena for tensors of known sizes and lifetimes.
#
# Tensors that are alive at the same time must not overlap. Every packing in which no tensor can be moved down
# corresponds to an order of the tensors: each tensor lies on the highest of those before it that are alive at the
# same time. Small problems are solved exactly by a search over such orders. Large ones are packed in five orders,
# each tensor in its lowest gap. Then the tensor on top is moved to the front of the order, and all are packed again.

EXACT = 12  # limit: tensors of a problem that is solved exactly
NODES = 20_000  # limit: nodes of the exact search
PLACED = 20_000  # limit: tensors placed while a packing is improved
_STRIDE = 7919  # chosen: a prime; makes the escape moves pseudo-random but the same in every run
_UPHILL = 5  # chosen: one turn in so many may raise the height


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor of `size` bytes, alive from step `start` to step `end`, both included."""

    start: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets of spans in bytes.

    - `height`: bytes of the arena.
    - `bound`: the most bytes alive at one step, a lower bound of every packing.
    - `optimal`: whether the height is known to be minimal.
    """

    offsets: tuple[int, ...]
    height: int
    bound: int
    optimal: bool


def pack(spans: Sequence[Span]) -> Packing:
    """A low packing of `spans`, minimal if they are few. Deterministic."""
    bound = liveness_bound(spans)
    used = [i for i, s in enumerate(spans) if s.size]
    overlaps = _overlapping_spans(spans, used)
    best = _pack_in_orders(spans, used, overlaps, bound)
    optimal = best[1] == bound
    if not optimal and len(used) <= EXACT:
        best, optimal = _pack_exactly(spans, used, overlaps, best)
    offsets = [0] * len(spans)
    for i, offset in best[0].items():
        offsets[i] = offset
    return Packing(tuple(offsets), best[1], bound, optimal)


def liveness_bound(spans: Sequence[Span]) -> int:
    """The most bytes alive at one step."""
    steps = max((s.end + 1 for s in spans), default=0)
    return max(live_totals(((s.start, s.end, s.size) for s in spans), steps, 0), default=0)


_Placed = tuple[dict[int, int], int]  # offsets, height


def _overlapping_spans(spans: Sequence[Span], used: Sequence[int]) -> dict[int, list[int]]:
    """For each of the spans `used`, those that are alive at the same time."""
    found: dict[int, list[int]] = {i: [] for i in used}
    now: list[int] = []
    for i in sorted(used, key=lambda i: (spans[i].start, i)):
        now = [j for j in now if spans[j].end >= spans[i].start]
        for j in now:
            found[i].append(j)
            found[j].append(i)
        now.append(i)
    return found


def _pack_in_orders(spans: Sequence[Span], used: Sequence[int], overlaps: dict[int, list[int]], bound: int) -> _Placed:
    """The lowest packing that five orders give, improved by `_improve`."""
    size, length = (lambda i: spans[i].size), (lambda i: spans[i].end - spans[i].start + 1)
    orders = [
        sorted(used, key=lambda i: (-size(i), -length(i), i)),
        sorted(used, key=lambda i: (-size(i) * length(i), i)),
        sorted(used, key=lambda i: (-length(i), -size(i), i)),
        sorted(used, key=lambda i: (spans[i].start, -size(i), i)),
        sorted(used, key=lambda i: (-spans[i].end, -size(i), i)),
    ]
    best: _Placed | None = None
    chosen = orders[0]
    for order in orders:
        found = _pack_in_gaps(spans, order, overlaps)
        if best is None or found[1] < best[1]:
            best, chosen = found, order
        if best[1] == bound:
            return best
    assert best is not None
    return _improve(spans, chosen, overlaps, bound, best)


def _improve(
    spans: Sequence[Span], order: Sequence[int], overlaps: dict[int, list[int]], bound: int, best: _Placed
) -> _Placed:
    """The lowest of repeated packings. Each moves the topmost span, and sometimes spans directly below it, to the front
    of the order."""
    current, last = list(order), best
    seen = {tuple(current)}
    for turn in range(PLACED // max(len(order), 1)):
        offsets, height = last
        on_top = next(i for i in current if offsets[i] + spans[i].size == height)
        raised = [on_top]
        if turn % 3:  # together with spans directly below it
            below = [j for j in overlaps[on_top] if offsets[j] + spans[j].size == offsets[on_top]]
            raised = below[: turn % 3] + raised if turn % 2 else raised + below[: turn % 3]
        moved = [*raised, *(i for i in current if i not in raised)]
        if tuple(moved) in seen:
            # This order was tried: make an escape move, the same in every run.
            k = (turn * _STRIDE) % len(current)
            moved = [*current[k : k + 1], *current[:k], *current[k + 1 :]]
            if tuple(moved) in seen:
                continue
        seen.add(tuple(moved))
        found = _pack_in_gaps(spans, moved, overlaps)
        if found[1] <= last[1] or turn % _UPHILL == _UPHILL - 1:
            current, last = moved, found
        if found[1] < best[1]:
            best, current, last = found, moved, found
            if best[1] == bound:
                break
    return best


def _pack_in_gaps(spans: Sequence[Span], order: Sequence[int], overlaps: dict[int, list[int]]) -> _Placed:
    """The packing that puts each span, in this order, in the lowest gap that it fits in."""
    offsets: dict[int, int] = {}
    height = 0
    for i in order:
        size = spans[i].size
        at = 0
        for low, high in sorted((offsets[j], offsets[j] + spans[j].size) for j in overlaps[i] if j in offsets):
            if at + size <= low:
                break
            at = max(at, high)
        offsets[i] = at
        height = max(height, at + size)
    return offsets, height


def _pack_exactly(
    spans: Sequence[Span], used: Sequence[int], overlaps: dict[int, list[int]], best: _Placed
) -> tuple[_Placed, bool]:
    """The lowest packing that a depth-first search finds, and whether the search was complete. The search adds spans in
    the order of their offsets. It drops a partial packing if, at some step, the placed height plus the bytes still to
    be placed reach the best height."""
    steps = sorted({spans[i].start for i in used})
    at_step = {t: [i for i in used if spans[i].start <= t <= spans[i].end] for t in steps}
    by_size = sorted(used, key=lambda i: (-spans[i].size, i))
    nodes = 0
    seen: set[tuple[frozenset[int], tuple[int, ...]]] = set()
    # Offsets placed so far, their height at each step, and the offset and index of the last one.
    todo = [(dict[int, int](), (0,) * len(steps), (0, -1))]
    while todo:
        placed, sky, last = todo.pop()
        if len(placed) == len(used):
            height = max(placed[i] + spans[i].size for i in used)
            if height < best[1]:
                best = placed, height
            continue
        nodes += 1
        if nodes > NODES:
            return best, False
        ahead: list[tuple[dict[int, int], tuple[int, ...], tuple[int, int]]] = []
        for i in by_size:
            if i in placed:
                continue
            at = max((placed[j] + spans[j].size for j in overlaps[i] if j in placed), default=0)
            if (at, i) < last:  # each packing is built in the order of its offsets only
                continue
            now = {**placed, i: at}
            top = at + spans[i].size
            over = tuple(
                max(h, top) if spans[i].start <= t <= spans[i].end else h for t, h in zip(steps, sky, strict=True)
            )
            needs = (
                max(h, at) + sum(spans[j].size for j in at_step[t] if j not in now)
                for t, h in zip(steps, over, strict=True)
                if any(j not in now for j in at_step[t])
            )
            if max(max(needs, default=0), top) >= best[1]:
                continue
            key = frozenset(now), (*over, at)
            if key not in seen:
                seen.add(key)
                ahead.append((now, over, (at, i)))
        todo += reversed(ahead)
    return best, True


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
