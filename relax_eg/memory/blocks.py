"""Orders the steps of a block for a low peak of memory.

A small block is ordered exactly, by a search over the sets of steps that have run; of the orders of one set only that
with the least peak is kept. A larger block is ordered by beam search.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from relax_eg.memory.liveness import in_place

BLOCK = 24  # limit: steps of a block that is ordered exactly
STATES = 10_000  # limit: sets of steps visited in a block
WORK = 6_000  # limit: of the beam search: steps times prefixes kept
BEAM = 16  # limit: prefixes kept after each step, if WORK allows
READY = 24  # limit: ready steps tried for each prefix


@dataclass(frozen=True, slots=True)
class BlockStep:
    """A step of a block, with values renumbered.

    - `reads`: the values that it reads.
    - `stays`: bytes of its outputs that are read later.
    - `during`: bytes that it writes, including workspaces.
    - `pairs`: pairs (output, operand) that may be computed in place.
    - `after`: the steps that must have run before it, as bits.
    """

    reads: tuple[int, ...]
    stays: int
    during: int
    pairs: tuple[tuple[int, int], ...]
    after: int


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Consecutive steps of a program as a problem of their own.

    - `nodes`: the steps.
    - `sizes`: bytes of each value.
    - `readers`: the nodes that read each value, as bits; 0 for a value that outlives the block or that no step of the
      program writes.
    """

    nodes: tuple[BlockStep, ...]
    sizes: tuple[int, ...]
    readers: tuple[int, ...]

    def run(self, i: int, done: int, live: int) -> tuple[int, int]:
        """The bytes needed while node `i` runs, and the bytes alive after it, if the nodes `done` have run and `live`
        bytes are alive."""
        node = self.nodes[i]
        ran = done | 1 << i
        dying = [v for v in node.reads if self.readers[v] and not self.readers[v] & ~ran]
        saved = sum(self.sizes[w] for w in in_place(node.pairs, dying)) if node.pairs else 0
        return live + node.during - saved, live + node.stays - sum(self.sizes[v] for v in dying)

    def ready(self, done: int) -> list[int]:
        return [i for i, n in enumerate(self.nodes) if not done >> i & 1 and not n.after & ~done]

    def peak(self, order: Sequence[int]) -> int:
        done = live = most = 0
        for i in order:
            needed, live = self.run(i, done, live)
            most, done = max(most, needed), done | 1 << i
        return most


def order_block(block: StepBlock) -> tuple[tuple[int, ...], bool]:
    """The best order found for a block, and whether it is provably the best."""
    as_it_is = tuple(range(len(block.nodes)))
    most = block.peak(as_it_is)
    found = _exact_order(block, most) if len(block.nodes) <= BLOCK else None
    is_exact = found is not None
    if found is None:
        found = _beam_order(block)
    return (found if block.peak(found) < most else as_it_is), is_exact


def _exact_order(block: StepBlock, limit: int) -> tuple[int, ...] | None:
    """An order of least peak, by best-first search over the sets of steps that have run; None if there are more than
    `STATES` sets. Orders with peaks of `limit` or more are not searched, because the present order has that peak."""
    full = (1 << len(block.nodes)) - 1
    queue: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]  # peak, minus the steps done, set of steps, live bytes
    best = {0: 0}
    came: dict[int, tuple[int, int]] = {}
    while queue:
        peak, _, done, live = heapq.heappop(queue)
        if done == full:
            order: list[int] = []
            while done:
                done, i = came[done]
                order.append(i)
            return tuple(reversed(order))
        if peak > best[done]:
            continue
        moves = [(i, *block.run(i, done, live)) for i in block.ready(done)]
        # A step that neither raises the peak nor leaves more bytes alive can safely run now.
        free = next(((i, needed, left) for i, needed, left in moves if needed <= peak and left <= live), None)
        for i, needed, left in moves if free is None else [free]:
            ran, most = done | 1 << i, max(peak, needed)
            if most < limit and most < best.get(ran, limit):
                best[ran], came[ran] = most, (done, i)
                heapq.heappush(queue, (most, -ran.bit_count(), ran, left))
        if len(best) > STATES:
            return None
    return tuple(range(len(block.nodes)))


def _beam_order(block: StepBlock) -> tuple[int, ...]:
    """An order found by beam search. After each step the prefixes with the least peak are kept; among equal peaks,
    those with the fewest live bytes."""
    n = len(block.nodes)
    width = max(1, min(BEAM, WORK // n))
    behind: list[list[int]] = [[] for _ in range(n)]
    for i, node in enumerate(block.nodes):
        rest = node.after
        while rest:
            behind[rest.bit_length() - 1].append(i)
            rest ^= 1 << (rest.bit_length() - 1)
    kept = [_Prefix(0, 0, 0, tuple(block.ready(0)), None, -1)]
    for _ in range(n):
        found: dict[int, tuple[int, int, _Prefix, int]] = {}  # by steps that ran: peak, live bytes, and the last step
        for b in kept:
            # Of many ready steps, try those that have been ready longest and those that became ready last.
            few = b.ready if len(b.ready) <= READY else (*b.ready[: READY // 2], *b.ready[-READY // 2 :])
            for i in few:
                needed, left = block.run(i, b.done, b.live)
                ran, figures = b.done | 1 << i, (max(b.peak, needed), left)
                if ran not in found or figures < found[ran][:2]:
                    found[ran] = *figures, b, i
        kept = []
        for ran, (peak, live, b, i) in sorted(found.items(), key=lambda f: f[1][:2])[:width]:
            fresh = [j for j in behind[i] if not block.nodes[j].after & ~ran]
            at = b.ready.index(i)
            kept.append(_Prefix(peak, live, ran, (*b.ready[:at], *b.ready[at + 1 :], *fresh), b, i))
    order: list[int] = []
    last = kept[0]
    while last.before is not None:
        order.append(last.step)
        last = last.before
    return tuple(reversed(order))


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The first steps of an order.

    - `peak`: the peak so far in bytes.
    - `live`: bytes alive after these steps.
    - `done`: the steps, as bits.
    - `ready`: the steps that may run next.
    - `before`: the prefix without the last step; None for the empty prefix.
    - `step`: the last step; -1 for the empty prefix.
    """

    peak: int
    live: int
    done: int
    ready: tuple[int, ...]
    before: _Prefix | None
    step: int
