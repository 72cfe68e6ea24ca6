"""Orders the kernels of a program for a low peak of memory.

The steps are cut into blocks at places that few values cross, and each block is ordered (`memory.blocks`). Equal
blocks, such as the layers of a model, are ordered once. After a local change of a program (`Schedule.replaced`) only
blocks are ordered again that have a step of the change, or a value whose last reader it moved. No step leaves its
block, so long programs are also tried with steps that free memory as early as possible (`freeing_first`): the text of a
training step may have all gradients of weights at its end, which keeps what they read until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush

from relax_eg.memory.blocks import BLOCK, BlockStep, StepBlock, order_block
from relax_eg.memory.liveness import candidates, live_totals, liveness
from relax_eg.memory.program import MemoryProgram, leaves

LONGEST = 375  # limit: steps of a block, so that BEAM prefixes are kept
NARROW = 4  # limit: values that may cross a cut between blocks


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
    made = Schedule.of(program, at)
    as_it_is = tuple(range(len(program.steps)))
    found = [Order(made.order, 0, 0, made.blocks, made.exact)]
    if len(as_it_is) > LONGEST:
        early = freeing_first(made.steps, made.sizes, made.results)
        then = made.changed([made.steps[i] for i in early], made.sizes, made.results)
        found.append(Order(tuple(early[i] for i in then.order), 0, 0, then.blocks, then.exact))
    best = min((o.with_peaks(program, at) for o in found), key=lambda o: o.after)
    return best if best.after < best.before else replace(best, steps=as_it_is, after=best.before)


def freeing_first(steps: Sequence[PlannedStep], sizes: Mapping[int, int], results: frozenset[int]) -> list[int]:
    """The places of steps in an order in which each that frees at least the bytes that it makes runs as soon as it can,
    and the others in the order of the text. Of a value whose last readers can all run, each frees its share. Steps keep
    to their regions. Takes near linear time."""
    written = {v for s in steps for v in s.writes}
    reads = [{v for v in s.reads if v in written} for s in steps]
    unread: dict[int, set[int]] = {v: set() for v in written}  # the steps that are still to read a value
    for i, of_step in enumerate(reads):
        for v in of_step:
            unread[v].add(i)
    missing = [len(of_step) for of_step in reads]
    waiting = {v: sum(missing[i] > 0 for i in unread[v]) for v in written}  # how many of those cannot run yet
    order: list[int] = []
    done: set[int] = set()
    queues: dict[int, list[tuple[int, int]]] = {s.region: [] for s in steps}

    def grows(i: int) -> int:
        made = sum(sizes[v] for v in steps[i].writes if unread[v] or v in results)
        return made - sum(sizes[v] // len(unread[v]) for v in reads[i] if not waiting[v] and v not in results)

    def offer(i: int) -> None:
        if not missing[i] and i not in done and (growth := grows(i)) <= 0:
            heappush(queues[steps[i].region], (growth, i))

    def able(i: int) -> None:
        offer(i)
        for v in reads[i]:
            waiting[v] -= 1
            if not waiting[v]:
                for j in unread[v]:
                    offer(j)

    def run(i: int) -> None:
        done.add(i)
        order.append(i)
        for v in reads[i]:
            unread[v].discard(i)
            if len(unread[v]) == 1:
                offer(*unread[v])
        for v in steps[i].writes:
            for j in unread[v]:
                missing[j] -= 1
                if not missing[j]:
                    able(j)

    for i, s in enumerate(steps):
        if i not in done:
            run(i)
        while queue := queues[s.region]:
            _, j = heappop(queue)
            if j not in done:
                run(j)
    return order


def peak_of(program: MemoryProgram, at: Mapping[str, int]) -> int:
    """The most bytes alive at once in the program's order at these sizes, results included."""
    return max(liveness(program, "planned", at.keys()).at(at), default=0)


def planned_bytes(program: MemoryProgram, at: Mapping[str, int]) -> list[int]:
    """The bytes of each value at these sizes; 0 for arguments and constants, and for values of unknown size."""
    ours = ("value", "workspace", "result")
    return [n or 0 if x.role in ours else 0 for x, n in zip(program.values, program.bytes_at(at), strict=True)]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of a schedule.

    - `reads`, `writes`: the numbers of its values.
    - `inside`: the bytes that it needs beside these.
    - `pairs`: pairs (output, operand) that may be computed in place.
    - `region`: the number of its region. Steps keep to their region.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inside: int = 0
    pairs: tuple[tuple[int, int], ...] = ()
    region: int = 0


@dataclass(frozen=True, slots=True)
class _Ordered:
    """An ordered block: its steps by their places in it, whether the order is provably best, and the peak beside what
    is alive when the block begins, as it is and as ordered."""

    order: tuple[int, ...]
    is_exact: bool
    before: int
    after: int


@dataclass
class _Known:
    """The blocks ordered so far: by their steps and the values that end in them, and by their structure."""

    by_steps: dict[tuple[object, ...], _Ordered] = field(default_factory=dict[tuple[object, ...], _Ordered])
    by_form: dict[StepBlock, _Ordered] = field(default_factory=dict[StepBlock, _Ordered])


@dataclass(frozen=True)
class Schedule:
    """An order of low peak of the steps of a program, and of programs that differ from it locally.

    - `steps`: the steps in the order of the text; the number of a step is its place there.
    - `sizes`: the bytes of each value; 0 for those that are not planned.
    - `results`: the values that outlive the program.
    """

    steps: tuple[PlannedStep, ...]
    sizes: Mapping[int, int]
    results: frozenset[int]
    _known: _Known = field(default_factory=_Known, repr=False, compare=False)

    @staticmethod
    def of(program: MemoryProgram, at: Mapping[str, int]) -> Schedule:
        sizes = planned_bytes(program, at)
        steps = tuple(
            PlannedStep(s.reads, s.writes, sum(sizes[v] for v in s.workspaces), tuple(candidates(program, s)), s.region)
            for s in program.steps
        )
        return Schedule(steps, dict(enumerate(sizes)), frozenset(leaves(program.result)))

    def replaced(
        self, start: int, end: int, steps: Sequence[PlannedStep], sizes: Mapping[int, int] | None = None
    ) -> Schedule:
        """The schedule of the program with `steps` in the place of those from `start` up to `end`. `sizes`: the bytes
        of new values. Blocks that the change does not touch are not ordered again."""
        changed = (*self.steps[:start], *steps, *self.steps[end:])
        return self.changed(changed, {**self.sizes, **sizes} if sizes else self.sizes, self.results)

    def changed(self, steps: Sequence[PlannedStep], sizes: Mapping[int, int], results: frozenset[int]) -> Schedule:
        """The schedule of another program. Blocks of equal structure are not ordered again; where values have the
        numbers and bytes that they have here, neither are those whose steps are the same."""
        same = all(sizes.get(v) == n for v, n in self.sizes.items()) and results == self.results
        known = self._known if same else _Known(by_form=self._known.by_form)
        return Schedule(tuple(steps), sizes, results, known)

    @cached_property
    def _spans(self) -> tuple[dict[int, int], dict[int, int]]:
        """For each value that a step writes, that step and the last one that reads it."""
        writer: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, s in enumerate(self.steps):
            for v in s.reads:
                last[v] = i
            for v in s.writes:
                writer[v] = last[v] = i
        n = len(self.steps)
        for v in self.results:
            if v in last:
                last[v] = n - 1
        return writer, last

    @cached_property
    def _ordered(self) -> list[tuple[int, int, _Ordered]]:
        writer, last = self._spans
        ends = [0, *_cuts(self.steps, self.sizes, writer, last), len(self.steps)]
        return [(a, b, self._block(a, b, writer, last)) for a, b in zip(ends, ends[1:], strict=False) if b > a]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The steps, by their places in the text."""
        return tuple(start + i for start, _, found in self._ordered for i in found.order)

    @property
    def blocks(self) -> int:
        """The number of blocks of several steps."""
        return sum(end - start > 1 for start, end, _ in self._ordered)

    @property
    def exact(self) -> int:
        """The number of these with a provably best order."""
        return sum(end - start > 1 and found.is_exact for start, end, found in self._ordered)

    @cached_property
    def peak(self) -> int:
        """The most bytes alive at once in this order."""
        writer, last = self._spans
        spans = ((w + 1, last[v], self.sizes[v]) for v, w in writer.items() if w < last[v])
        alive = live_totals(spans, len(self.steps), 0)  # before each step
        return max((alive[start] + found.after for start, _, found in self._ordered), default=0)

    def _block(self, start: int, end: int, writer: Mapping[int, int], last: Mapping[int, int]) -> _Ordered:
        steps = self.steps[start:end]
        ending = tuple(
            v for s in steps for v in (*s.reads, *s.writes) if v in writer and last[v] < end and v not in self.results
        )
        key = (steps, ending, tuple(v for s in steps for v in s.reads if v in writer))
        found = self._known.by_steps.get(key)
        if found is None:
            block = _block_of(steps, start, end, self.sizes, writer, last, self.results)
            found = self._known.by_form.get(block)
            if found is None:
                own, is_exact = (tuple(range(len(steps))), True) if len(steps) < 2 else order_block(block)
                found = _Ordered(own, is_exact, block.peak(range(len(steps))), block.peak(own))
                self._known.by_form[block] = found
            self._known.by_steps[key] = found
        return found


def _cuts(
    steps: Sequence[PlannedStep], sizes: Mapping[int, int], writer: Mapping[int, int], last: Mapping[int, int]
) -> list[int]:
    """The numbers of the steps before which the program is cut into blocks: between regions, and inside large regions
    where fewest values cross."""
    n = len(steps)
    always = [i for i in range(1, n) if steps[i].region != steps[i - 1].region]
    regions = list(zip([0, *always], [*always, n], strict=True))
    # Values that cross before step i. In a long region those that end long after it do not count, because it has no
    # narrow places otherwise: a backward pass reads most of what its forward pass made.
    is_long = any(end - start > LONGEST for start, end in regions)
    spans = ((w, last[v]) for v, w in writer.items() if sizes[v] and w < last[v])
    crossing = live_totals(((max(w + 1, end - BLOCK + 1) if is_long else w + 1, end, 1) for w, end in spans), n, 0)
    out: list[int] = []
    for start, end in regions:
        out.append(start)
        while end - out[-1] > BLOCK:
            a = out[-1]
            # Prefer a cut within an exactly ordered length; where many values cross, ordering a part alone gains
            # nothing.
            near = range(a + BLOCK // 2, a + BLOCK + 1)
            best = min(near, key=lambda i: (crossing[i], -i))
            if crossing[best] > NARROW:
                far = range(a + BLOCK + 1, min(a + LONGEST + 1, end))
                narrow = next((i for i in far if crossing[i] <= NARROW), None)
                least = min((*near, *far), key=lambda i: (crossing[i], -i))
                best = narrow or (least if end - a > LONGEST else end)
            if best == end:
                break
            out.append(best)
    return [a for a in out if a > 0]


def _block_of(
    steps: Sequence[PlannedStep],
    start: int,
    end: int,
    sizes: Mapping[int, int],
    writer: Mapping[int, int],
    last: Mapping[int, int],
    results: frozenset[int],
) -> StepBlock:
    """The steps from `start` up to `end` as a block; equal layers give equal blocks."""
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
        if v not in writer or last[v] >= end or v in results:
            readers[k] = 0
    nodes: list[BlockStep] = []
    for i, s in enumerate(steps, start):
        after = 0
        for v in s.reads:
            after |= 1 << made[v] if v in made else 0
        stays = [v for v in s.writes if last[v] > i or v in results]
        nodes.append(
            BlockStep(
                tuple(number[v] for v in s.reads),
                sum(sizes[v] for v in stays),
                sum(sizes[v] for v in s.writes) + s.inside,
                tuple((number[w], number[r]) for w, r in s.pairs),
                after,
            )
        )
    return StepBlock(tuple(nodes), tuple(bytes_of), tuple(readers))
