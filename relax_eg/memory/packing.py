"""Packing: the lowest possible offsets in one arena for tensors of known sizes and lifetimes.

Tensors that are alive at the same time must not overlap. Every packing in which no tensor can be moved down corresponds
to an order of the tensors: each tensor lies on the highest of those before it that are alive at the same time. Small
problems are solved exactly by a search over such orders. Large ones are packed in five orders, each tensor in its
lowest gap. Then the tensor on top is moved to the front of the order, and all are packed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relax_eg.memory.liveness import live_totals

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
