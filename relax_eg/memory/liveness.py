"""Lifetimes of values over the steps of a program, and the least memory they need."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Literal, TypeVar

from relax_eg.memory.program import MemoryProgram, Step
from relax_eg.shapes import Dim

Results = Literal["apart", "planned"]
Amount = TypeVar("Amount", int, Dim)


def live_totals(spans: Iterable[tuple[int, int, Amount]], steps: int, zero: Amount) -> list[Amount]:
    """For each of `steps` steps, the sum of the amounts of the spans that contain it. A span is a triple of its first
    step, its last step, and an amount. `zero` is the empty sum."""
    change = [zero] * (steps + 1)
    for start, end, amount in spans:
        change[start] = change[start] + amount
        change[end + 1] = change[end + 1] - amount
    found: list[Amount] = []
    for c in change[:-1]:
        zero = zero + c
        found.append(zero)
    return found


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A chain of values in one range of memory, usually a single value. Each value is written over the previous one, in
    the step that reads the previous one for the last time.

    - `number`: its index in `Liveness.lifetimes`.
    - `values`: the numbers of its values, in the order in which they are written.
    - `start`, `end`: the steps during which the range is needed, both included.
    - `bytes`: the bytes of the range, the same for all values.
    - `itemsize`: bytes of an element, the same in all values.
    - `role`: "value", "workspace" or "result".
    """

    number: int
    values: tuple[int, ...]
    start: int
    end: int
    bytes: Dim
    itemsize: int
    role: str


@dataclass(frozen=True)
class Liveness:
    """The lifetimes in a program.

    - `results`: whether the results of the call are among them ("planned"), or in memory of the caller ("apart").
    - `lifetimes`: in the order in which they begin.
    - `unsized`: values whose size is unknown before they are computed.
    """

    program: MemoryProgram
    results: Results
    lifetimes: tuple[Lifetime, ...]
    unsized: tuple[int, ...]

    @cached_property
    def sums(self) -> tuple[Dim, ...]:
        """The bytes of all that is alive at each step."""
        spans = ((x.start, x.end, x.bytes) for x in self.lifetimes)
        return tuple(live_totals(spans, len(self.program.steps), Dim.of(0)))

    def at(self, sizes: Mapping[str, int], without: str = "", also: Collection[Lifetime] = ()) -> list[int]:
        """The bytes alive at each step at these sizes. No plan of this order needs less than the largest.

        - `without`: the role of values that are left out.
        - `also`: further ones that are.
        """
        known = {d: int(d.evaluate(sizes)) for d in {x.bytes for x in self.lifetimes}}
        spans = ((x.start, x.end, known[x.bytes]) for x in self.lifetimes if x.role != without and x not in also)
        return live_totals(spans, len(self.program.steps), 0)

    def within_results(self, sizes: Mapping[str, int]) -> set[Lifetime]:
        """The lifetimes that fit into the ranges of results before these are written, as XLA puts them there: each, the
        largest first, into the smallest range in which nothing else is at the time. A step with a workspace has read
        its operands before it writes its result."""
        in_parts = {x.start for x in self.lifetimes if x.role == "workspace"}

        def is_before(x: Lifetime, y: Lifetime) -> bool:
            return x.end < y.start or (x.end == y.start and x.role == "value" and y.start in in_parts)

        known = {x: int(x.bytes.evaluate(sizes)) for x in self.lifetimes}
        results = sorted((x for x in self.lifetimes if x.role == "result"), key=known.__getitem__)
        rooms = [(known[x], [x]) for x in results]
        found: set[Lifetime] = set()
        for x in sorted((x for x in self.lifetimes if x.role != "result"), key=lambda x: -known[x]):
            for size, room in rooms:
                # What is in a room follows each other: in the way is at most what begins at the time, or beside it.
                i, j = (find(room, x.start, key=attrgetter("start")) for find in (bisect_left, bisect_right))
                near = room[max(i - 1, 0) : j + 1]
                if known[x] <= size and all(is_before(x, y) or is_before(y, x) for y in near):
                    insort(room, x, key=attrgetter("start", "end"))
                    found.add(x)
                    break
        return found

    def peak_step(self, sizes: Mapping[str, int]) -> int:
        """The first step at which most bytes are alive; 0 if there is no step."""
        needed = self.at(sizes)
        return max(range(len(needed)), key=lambda i: (needed[i], -i), default=0)

    def peak(self, sizes: Mapping[str, int]) -> tuple[Lifetime, ...]:
        """The lifetimes that are alive at the peak step, largest first."""
        found = self.needed_at(self.peak_step(sizes))
        return tuple(sorted(found, key=lambda x: -int(x.bytes.evaluate(sizes))))

    def needed_at(self, step: int) -> tuple[Lifetime, ...]:
        """The lifetimes that are alive at a step."""
        return tuple(x for x in self.lifetimes if x.start <= step <= x.end)


def in_place(pairs: Iterable[tuple[int, int]], dying: Collection[int]) -> dict[int, int]:
    """The pairs (output, operand) that a step computes in place, by output. The operand must be one of `dying`, which
    the step reads for the last time. Each value is in at most one pair."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for w, r in pairs:
        if r in dying and not taken & {w, r}:
            taken |= {w, r}
            found[w] = r
    return found


def candidates(program: MemoryProgram, step: Step) -> list[tuple[int, int]]:
    """The pairs (output, operand) of a step that may be computed in place: both have equal sizes, and the operand is a
    planned value."""
    values = program.values
    return [
        (w, r)
        for w, r in step.overwritable
        if values[r].role == "value" and values[w].bytes is not None and values[w].bytes is values[r].bytes
    ]


def liveness(
    program: MemoryProgram,
    results: Results = "apart",
    known: Collection[str] | None = None,
    overwriting: bool = True,
) -> Liveness:
    """The lifetimes of all values that a plan gives memory to. Takes time linear in the program.

    - `known`: the size variables that have a value before the call runs (default: all). Values with other sizes are
      unsized.
    - `overwriting`: whether values may be computed in place; if not, each value has a lifetime of its own.
    """
    planned = ("value", "workspace", "result") if results == "planned" else ("value", "workspace")
    size_of = [x.bytes for x in program.values]
    if known is not None:
        size_of = [None if d is None or not d.variables.issubset(known) else d for d in size_of]
    last = program.last_uses
    first: dict[int, int] = {}  # for each value, the first value of its chain
    chains: dict[int, list[int]] = {}
    unsized: list[int] = []
    for s in program.steps:
        pairs = candidates(program, s) if overwriting else ()
        over = in_place(pairs, [r for r in s.reads if last[r] == s.number])
        for v in (*s.writes, *s.workspaces):
            if size_of[v] is None:
                unsized.append(v)
            elif program.values[v].role in planned:
                first[v] = first.get(over[v], v) if v in over else v
                chains.setdefault(first[v], []).append(v)
    found: list[Lifetime] = []
    for start, values in chains.items():
        size, writer = size_of[start], program.writer[start]
        assert size is not None and writer is not None
        role = "result" if program.values[values[-1]].role == "result" else program.values[start].role
        itemsize = program.values[start].itemsize
        found.append(Lifetime(len(found), tuple(values), writer, last[values[-1]], size, itemsize, role))
    return Liveness(program, results, tuple(found), tuple(unsized))
