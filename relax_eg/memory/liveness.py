"""Lifetimes of values over the steps of a program, and the least memory they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from relax_eg.memory.steps import MemoryProgram, Step, leaves
from relax_eg.shapes import Dim

Results = Literal["apart", "planned"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A chain of values that share one memory range, each written over the previous one while that is read for the last
    time; usually it is a single value.

    - `start`, `end`: the steps during which `bytes` are needed, both included.
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
    """The lifetimes in a program, in the order in which they begin.

    - `results`: whether the results of the call are among them ("planned"), or the caller has them ("apart").
    - `unsized`: values whose size is unknown before they are computed.
    """

    program: MemoryProgram
    results: Results
    lifetimes: tuple[Lifetime, ...]
    unsized: tuple[int, ...]

    @cached_property
    def of_value(self) -> Mapping[int, Lifetime]:
        return {v: x for x in self.lifetimes for v in x.values}

    @cached_property
    def sums(self) -> tuple[Dim, ...]:
        """The bytes of all that is alive at each step."""
        change = [Dim.of(0)] * (len(self.program.steps) + 1)
        for x in self.lifetimes:
            change[x.start] = change[x.start] + x.bytes
            change[x.end + 1] = change[x.end + 1] - x.bytes
        found: list[Dim] = []
        total = Dim.of(0)
        for c in change[:-1]:
            total = total + c
            found.append(total)
        return tuple(found)

    def at(self, sizes: Mapping[str, int]) -> list[int]:
        """`sums` at these sizes of the entry. No plan of this order needs less than the largest."""
        known = {d: int(d.evaluate(sizes)) for d in {x.bytes for x in self.lifetimes}}
        change = [0] * (len(self.program.steps) + 1)
        for x in self.lifetimes:
            change[x.start] += known[x.bytes]
            change[x.end + 1] -= known[x.bytes]
        return list(accumulate(change[:-1]))

    def needed_at(self, step: int) -> tuple[Lifetime, ...]:
        """The lifetimes that are alive at a step."""
        return tuple(x for x in self.lifetimes if x.start <= step <= x.end)


def last_use(program: MemoryProgram) -> list[int]:
    """For each value the last step that reads it, else the one that writes it. Results are needed to the end; an input
    that is never read has -1."""
    last = [r[-1] if r else (-1 if w is None else w) for r, w in zip(program.readers, program.writer, strict=True)]
    for v in leaves(program.result):
        last[v] = len(program.steps) - 1
    return last


def overwrites(program: MemoryProgram, step: Step, dying: Collection[int]) -> list[tuple[int, int]]:
    """The pairs (output, operand) that a step computes in place, if the values `dying` are read for the last time; each
    value is in at most one pair."""
    taken: set[int] = set()
    found: list[tuple[int, int]] = []
    for w, r in candidates(program, step):
        if r in dying and not taken & {w, r}:
            taken |= {w, r}
            found.append((w, r))
    return found


def candidates(program: MemoryProgram, step: Step) -> list[tuple[int, int]]:
    """The pairs (output, operand) of a step that may be computed in place: equal sizes, and the operand is a planned
    value."""
    values = program.values
    return [
        (w, r)
        for w, r in step.overwritable
        if values[r].role == "value" and values[w].bytes is not None and values[w].bytes is values[r].bytes
    ]


def liveness(program: MemoryProgram, results: Results = "apart", known: Collection[str] | None = None) -> Liveness:
    """The lifetimes of all values that a plan gives memory to. Linear in the program.

    `known`: the size variables that have a value before the call runs (default: all). Values with other sizes are
    unsized.
    """
    planned = ("value", "workspace", "result") if results == "planned" else ("value", "workspace")
    size_of = [x.bytes for x in program.values]
    if known is not None:
        size_of = [None if d is None or not d.variables.issubset(known) else d for d in size_of]
    last = last_use(program)
    first: dict[int, int] = {}  # of each value, the first value of its chain
    chains: dict[int, list[int]] = {}
    unsized: list[int] = []
    for s in program.steps:
        over = dict(overwrites(program, s, [r for r in s.reads if last[r] == s.number]))
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
