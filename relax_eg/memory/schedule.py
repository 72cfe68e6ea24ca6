"""Orders the kernels of a program for a low peak of memory.

The steps are cut into blocks at places that few values cross. A small block is ordered exactly, by a search over the
sets of steps that have run; of the orders of one set only that with the least peak is kept. A larger block is ordered
by beam search. Equal blocks, such as the layers of a model, are ordered once.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.memory.liveness import candidates, in_place, live_totals, liveness
from relax_eg.memory.program import MemoryProgram, leaves

BLOCK = 24  # limit: steps of a block that is ordered exactly
STATES = 10_000  # limit: sets of steps visited in a block
NARROW = 4  # limit: values that may cross a cut between blocks
WORK = 6_000  # limit: of the beam search: steps times prefixes kept
BEAM = 16  # limit: prefixes kept after each step, if WORK allows
READY = 24  # limit: ready steps tried for each prefix


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the steps of a program.

    - `steps`: the steps in their new order, by their old numbers.
    - `before`, `after`: the peaks of the old and the new order in bytes.
    - `blocks`: the number of blocks that were ordered.
    - `exact`: how many of them have a provably best order.
    """

    steps: tuple[int, ...]
    before: int
    after: int
    blocks: int
    exact: int

    @staticmethod
    def of_program(program: MemoryProgram, at: Mapping[str, int]) -> Order:
        """The present order of the program."""
        peak = peak_of(program, at)
        return Order(tuple(range(len(program.steps))), peak, peak, 0, 0)

    def with_peaks(self, program: MemoryProgram, at: Mapping[str, int]) -> Order:
        """The same order with its peaks for `program` at these sizes."""
        before = peak_of(program, at)
        moved = self.steps != tuple(range(len(self.steps)))
        after = peak_of(program.reordered(self.steps), at) if moved else before
        return replace(self, before=before, after=after)


@dataclass(frozen=True, slots=True)
class _Node:
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
class _Block:
    """Consecutive steps of a program as a problem of their own.

    - `nodes`: the steps.
    - `sizes`: bytes of each value.
    - `readers`: the nodes that read each value, as bits; 0 for a value that outlives the block or that no step of the
      program writes.
    """

    nodes: tuple[_Node, ...]
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


def best_order(program: MemoryProgram, bindings: Sequence[Mapping[str, int]]) -> Order:
    """An order of the steps of `program` with a low peak. For one binding it is never worse than the present order. For
    several bindings, the candidates are the orders for each; the one whose worst ratio to the best peak over all
    bindings is least is returned, with its peaks at the first."""
    orders = [_least_peak_order(program, at) for at in bindings]
    if len(orders) == 1:
        return orders[0]
    least = [max(o.after, 1) for o in orders]

    def worst(order: Order) -> float:
        moved = program.reordered(order.steps)
        return max(peak_of(moved, at) / best for at, best in zip(bindings, least, strict=True))

    return min(orders, key=worst).with_peaks(program, bindings[0])


def _least_peak_order(program: MemoryProgram, at: Mapping[str, int]) -> Order:
    """The order of low peak for one binding of sizes."""
    sizes = planned_bytes(program, at)
    ends = [0, *_cuts(program, sizes), len(program.steps)]
    order: list[int] = []
    known: dict[_Block, tuple[tuple[int, ...], bool]] = {}
    exact = blocks = 0
    for start, end in zip(ends, ends[1:], strict=False):
        if end - start < 2:
            order += range(start, end)
            continue
        block = _block(program, sizes, start, end)
        if block not in known:
            known[block] = _order_block(block)
        own, is_exact = known[block]
        order += [start + i for i in own]
        blocks, exact = blocks + 1, exact + is_exact
    as_it_is = tuple(range(len(order)))
    found = Order(tuple(order), 0, 0, blocks, exact).with_peaks(program, at)
    return found if found.after < found.before else replace(found, steps=as_it_is, after=found.before)


def peak_of(program: MemoryProgram, at: Mapping[str, int]) -> int:
    """The most bytes alive at once in the program's order at these sizes, results included."""
    return max(liveness(program, "planned", at.keys()).at(at), default=0)


def planned_bytes(program: MemoryProgram, at: Mapping[str, int]) -> list[int]:
    """The bytes of each value at these sizes; 0 for arguments and constants, and for values of unknown size."""
    ours = ("value", "workspace", "result")
    return [n or 0 if x.role in ours else 0 for x, n in zip(program.values, program.bytes_at(at), strict=True)]


def _cuts(program: MemoryProgram, sizes: Sequence[int]) -> list[int]:
    """The numbers of the steps before which the program is cut into blocks: between regions, and inside large regions
    where fewest values cross."""
    n, last = len(program.steps), program.last_uses
    kept = ((v, w) for v, w in enumerate(program.writer) if w is not None and sizes[v] and w < last[v])
    crossing = live_totals(((w + 1, last[v], 1) for v, w in kept), n, 0)  # values that cross before step i
    always = [i for i in range(1, n) if program.steps[i].region != program.steps[i - 1].region]
    out: list[int] = []
    for start, end in zip([0, *always], [*always, n], strict=True):
        out.append(start)
        while end - out[-1] > BLOCK:
            a = out[-1]
            # Prefer a cut within an exactly ordered length; where many values cross, ordering a part alone gains
            # nothing.
            inside = [*range(a + BLOCK // 2, a + BLOCK + 1), *range(a + BLOCK + 1, end)]
            best = min(inside[: BLOCK // 2 + 1], key=lambda i: (crossing[i], -i))
            if crossing[best] > NARROW:
                best = next((i for i in inside if i > best and crossing[i] <= NARROW), end)
            if best == end:
                break
            out.append(best)
    return [a for a in out if a > 0]


def _block(program: MemoryProgram, sizes: Sequence[int], start: int, end: int) -> _Block:
    """The steps from `start` up to `end` as a block; equal layers give equal blocks."""
    steps, last = program.steps[start:end], program.last_uses
    handed_out = set(leaves(program.result))
    number: dict[int, int] = {}
    readers: list[int] = []
    bytes_of: list[int] = []
    made: dict[int, int] = {}
    for i, s in enumerate(steps):
        for v in (*s.reads, *s.writes):
            if v not in number:
                number[v] = len(readers)
                readers.append(0)
                bytes_of.append(sizes[v])
        for v in s.reads:
            readers[number[v]] |= 1 << i
        made.update(dict.fromkeys(s.writes, i))
    for v, k in number.items():
        if last[v] >= end or v in handed_out or program.writer[v] is None:
            readers[k] = 0
    nodes: list[_Node] = []
    for s in steps:
        after = 0
        for v in s.reads:
            after |= 1 << made[v] if v in made else 0
        stays = [v for v in s.writes if last[v] > s.number or v in handed_out]
        nodes.append(
            _Node(
                tuple(number[v] for v in s.reads),
                sum(sizes[v] for v in stays),
                sum(sizes[v] for v in (*s.writes, *s.workspaces)),
                tuple((number[w], number[r]) for w, r in candidates(program, s)),
                after,
            )
        )
    return _Block(tuple(nodes), tuple(bytes_of), tuple(readers))


def _order_block(block: _Block) -> tuple[tuple[int, ...], bool]:
    """The best order found for a block, and whether it is provably the best."""
    as_it_is = tuple(range(len(block.nodes)))
    most = block.peak(as_it_is)
    found = _exact_order(block, most) if len(block.nodes) <= BLOCK else None
    is_exact = found is not None
    if found is None:
        found = _beam_order(block)
    return (found if block.peak(found) < most else as_it_is), is_exact


def _exact_order(block: _Block, limit: int) -> tuple[int, ...] | None:
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


def _beam_order(block: _Block) -> tuple[int, ...]:
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
        found: dict[int, _Prefix] = {}
        for b in kept:
            # Of many ready steps, try those that have been ready longest and those that became ready last.
            few = b.ready if len(b.ready) <= READY else (*b.ready[: READY // 2], *b.ready[-READY // 2 :])
            for i in few:
                needed, left = block.run(i, b.done, b.live)
                ran = b.done | 1 << i
                peak = max(b.peak, needed)
                if ran not in found or (peak, left) < (found[ran].peak, found[ran].live):
                    fresh = [j for j in behind[i] if not block.nodes[j].after & ~ran]
                    ready = (*(j for j in b.ready if j != i), *fresh)
                    found[ran] = _Prefix(peak, left, ran, ready, b, i)
        kept = sorted(found.values(), key=lambda b: (b.peak, b.live))[:width]
    order: list[int] = []
    at = kept[0]
    while at.before is not None:
        order.append(at.step)
        at = at.before
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
