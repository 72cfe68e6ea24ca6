"""An order of least peak: the same kernels, so that as little as possible is needed at once.

The steps are cut into blocks where few values cross. A block is ordered exactly, by a search over the sets of steps
that have run (of which the peak so far is all that matters), where it is small enough; beyond, steps are listed one by
one, keeping the best few beginnings. Equal blocks, as the layers of a model, are ordered once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from relax_eg.memory.liveness import candidates, last_use, overwrites
from relax_eg.memory.steps import Program, leaves

BLOCK = 24  # steps that are ordered exactly, at most
STATES = 10_000  # sets of steps looked at in a block
NARROW = 4  # values that cross where blocks are cut, at most
WORK = 6_000  # of the list: steps times beginnings kept
BEAM = 16
READY = 24  # steps that may be next, looked at


@dataclass(frozen=True, slots=True)
class Order:
    """Steps in their new order, by their numbers before. `before`, `after`: the peaks in bytes; `exact`: of the
    `blocks` in which the steps were ordered, those whose order is the best there is."""

    steps: tuple[int, ...]
    before: int
    after: int
    blocks: int
    exact: int

    @staticmethod
    def as_written(program: Program, sizes: Sequence[int]) -> Order:
        """The order that the program has."""
        peak = peak_of(program, sizes)
        return Order(tuple(range(len(program.steps))), peak, peak, 0, 0)


@dataclass(frozen=True, slots=True)
class _Node:
    """A step of a block, its values numbered anew. `stays`: bytes of its outputs that somebody reads later; `during`:
    bytes that it writes, workspaces included."""

    reads: tuple[int, ...]
    stays: int
    during: int
    pairs: tuple[tuple[int, int, int], ...]  # output, operand, bytes
    after: int  # the steps that must have run, as bits


@dataclass(frozen=True, slots=True)
class _Block:
    """Nodes, and of each value its bytes and which nodes read it (bits); 0 readers: it outlives the block."""

    nodes: tuple[_Node, ...]
    sizes: tuple[int, ...]
    readers: tuple[int, ...]

    def run(self, i: int, done: int, live: int) -> tuple[int, int]:
        """Bytes needed while node `i` runs after the nodes `done`, with `live` bytes there, and those left after it."""
        node = self.nodes[i]
        ran = done | 1 << i
        dying = [v for v in node.reads if self.readers[v] and not self.readers[v] & ~ran]
        taken: set[int] = set()
        saved = 0
        for w, r, size in node.pairs:
            if r in dying and not taken & {w, r}:
                taken |= {w, r}
                saved += size
        return live + node.during - saved, live + node.stays - sum(self.sizes[v] for v in dying)

    def ready(self, done: int) -> list[int]:
        return [i for i, n in enumerate(self.nodes) if not done >> i & 1 and not n.after & ~done]

    def peak(self, order: Sequence[int]) -> int:
        done = live = most = 0
        for i in order:
            needed, live = self.run(i, done, live)
            most, done = max(most, needed), done | 1 << i
        return most


def least_peak(program: Program, sizes: Sequence[int]) -> Order:
    """An order of the steps of `program` whose peak is small; `sizes`: the bytes of each value, 0 where it is not
    counted. Never worse than the order it has."""
    last = last_use(program)
    ends = [0, *_cuts(program, sizes, last), len(program.steps)]
    order: list[int] = []
    known: dict[_Block, tuple[tuple[int, ...], bool]] = {}
    exact = blocks = 0
    for start, end in zip(ends, ends[1:], strict=False):
        if end - start < 2:
            order += range(start, end)
            continue
        block = _block(program, sizes, last, start, end)
        if block not in known:
            known[block] = _ordered(block)
        own, is_exact = known[block]
        order += [start + i for i in own]
        blocks, exact = blocks + 1, exact + is_exact
    before = peak_of(program, sizes)
    after = peak_of(program.reordered(order), sizes) if order != list(range(len(order))) else before
    if after >= before:
        return Order(tuple(range(len(order))), before, before, blocks, exact)
    return Order(tuple(order), before, after, blocks, exact)


def peak_of(program: Program, sizes: Sequence[int]) -> int:
    """The bytes that the program needs at most at once, in its order."""
    last = last_use(program)
    live = most = 0
    for s in program.steps:
        dying = [r for r in s.reads if last[r] == s.number]
        saved = sum(sizes[w] for w, _ in overwrites(program, s, dying))
        written = sum(sizes[v] for v in s.writes)
        most = max(most, live + written + sum(sizes[v] for v in s.workspaces) - saved)
        unread = sum(sizes[v] for v in s.writes if last[v] == s.number)
        gone = sum(sizes[v] for v in dying if program.writer[v] is not None)
        live += written - unread - gone
    return most


def _cuts(program: Program, sizes: Sequence[int], last: Sequence[int]) -> list[int]:
    """Where the steps are cut: between regions, and where fewest values cross, so that blocks are small."""
    n = len(program.steps)
    change = [0] * (n + 1)
    for v, w in enumerate(program.writer):
        if w is not None and sizes[v] and w < last[v]:
            change[w + 1] += 1
            change[last[v] + 1] -= 1
    crossing: list[int] = []  # before step i
    total = 0
    for c in change[:n]:
        total += c
        crossing.append(total)
    always = [i for i in range(1, n) if program.steps[i].region != program.steps[i - 1].region]
    out: list[int] = []
    for start, end in zip([0, *always], [*always, n], strict=True):
        out.append(start)
        while end - out[-1] > BLOCK:
            a = out[-1]
            # As far as is ordered exactly; where everything crosses, nothing is gained by looking at a part alone.
            inside = [*range(a + BLOCK // 2, a + BLOCK + 1), *range(a + BLOCK + 1, end)]
            best = min(inside[: BLOCK // 2 + 1], key=lambda i: (crossing[i], -i))
            if crossing[best] > NARROW:
                best = next((i for i in inside if i > best and crossing[i] <= NARROW), end)
            if best == end:
                break
            out.append(best)
    return [a for a in out if a > 0]


def _block(program: Program, sizes: Sequence[int], last: Sequence[int], start: int, end: int) -> _Block:
    """The steps from `start` to `end` as a problem of its own, equal for equal blocks."""
    steps = program.steps[start:end]
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
                tuple((number[w], number[r], sizes[w]) for w, r in candidates(program, s)),
                after,
            )
        )
    return _Block(tuple(nodes), tuple(bytes_of), tuple(readers))


def _ordered(block: _Block) -> tuple[tuple[int, ...], bool]:
    """The best order that was found, and whether there is none better."""
    as_it_is = tuple(range(len(block.nodes)))
    most = block.peak(as_it_is)
    found = _exactly(block, most) if len(block.nodes) <= BLOCK else None
    is_exact = found is not None
    if found is None:
        found = _listed(block)
    return (found if block.peak(found) < most else as_it_is), is_exact


def _exactly(block: _Block, limit: int) -> tuple[int, ...] | None:
    """An order of least peak, best first over the sets of steps that have run; None where there are too many. Orders
    with peaks of `limit` and more are not looked for: the order as it is has that."""
    full = (1 << len(block.nodes)) - 1
    queue: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]  # peak, steps to do, set, bytes there
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
        # What needs no more than was needed and leaves no more can be done now, whatever else.
        free = next(((i, needed, left) for i, needed, left in moves if needed <= peak and left <= live), None)
        for i, needed, left in moves if free is None else [free]:
            ran, most = done | 1 << i, max(peak, needed)
            if most < limit and most < best.get(ran, limit):
                best[ran], came[ran] = most, (done, i)
                heapq.heappush(queue, (most, -ran.bit_count(), ran, left))
        if len(best) > STATES:
            return None
    return tuple(range(len(block.nodes)))


def _listed(block: _Block) -> tuple[int, ...]:
    """An order made step by step, of which the best beginnings are kept: those of least peak, then of fewest bytes."""
    n = len(block.nodes)
    width = max(1, min(BEAM, WORK // n))
    behind: list[list[int]] = [[] for _ in range(n)]
    for i, node in enumerate(block.nodes):
        rest = node.after
        while rest:
            behind[rest.bit_length() - 1].append(i)
            rest ^= 1 << (rest.bit_length() - 1)
    kept = [_Beginning(0, 0, 0, tuple(block.ready(0)), None, -1)]
    for _ in range(n):
        found: dict[int, _Beginning] = {}
        for b in kept:
            # Of many that may be next, those that could be for longest, and those that have just become so.
            few = b.ready if len(b.ready) <= READY else (*b.ready[: READY // 2], *b.ready[-READY // 2 :])
            for i in few:
                needed, left = block.run(i, b.done, b.live)
                ran = b.done | 1 << i
                peak = max(b.peak, needed)
                if ran not in found or (peak, left) < (found[ran].peak, found[ran].live):
                    fresh = [j for j in behind[i] if not block.nodes[j].after & ~ran]
                    ready = (*(j for j in b.ready if j != i), *fresh)
                    found[ran] = _Beginning(peak, left, ran, ready, b, i)
        kept = sorted(found.values(), key=lambda b: (b.peak, b.live))[:width]
    order: list[int] = []
    at = kept[0]
    while at.before is not None:
        order.append(at.step)
        at = at.before
    return tuple(reversed(order))


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Steps that have run: the peak so far, bytes there, the set, the steps that may be next, and the last one."""

    peak: int
    live: int
    done: int
    ready: tuple[int, ...]
    before: _Beginning | None
    step: int
