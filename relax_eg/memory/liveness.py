"""Which bytes are needed when: lifetimes of values over the steps of a program, and what that needs at least."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from relax_eg.memory.steps import Program, Step, leaves
from relax_eg.shapes import Dim

Results = Literal["apart", "planned"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Values that have the same memory one after the other, each written over the one before while that is read for the
    last time; mostly it is one. They need `bytes` from step `start` to step `end`, both included. `itemsize`: bytes of
    an element, the same in all. `role`: "value", "workspace" or "result"."""

    number: int
    values: tuple[int, ...]
    start: int
    end: int
    bytes: Dim
    itemsize: int
    role: str


@dataclass(frozen=True)
class Liveness:
    """The lifetimes in a program in the order in which they begin. `results`: whether what is handed out is among them
    ("planned"), or the caller has it ("apart"). `unsized`: values whose size is not known before they are there."""

    program: Program
    results: Results
    lifetimes: tuple[Lifetime, ...]
    unsized: tuple[int, ...]

    @cached_property
    def of_value(self) -> Mapping[int, Lifetime]:
        return {v: x for x in self.lifetimes for v in x.values}

    @cached_property
    def sums(self) -> tuple[Dim, ...]:
        """For each step the bytes of all that is needed then."""
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
        """`sums` where the entry's sizes are these. No plan of this order needs less than the largest."""
        known = {d: int(d.evaluate(sizes)) for d in {x.bytes for x in self.lifetimes}}
        change = [0] * (len(self.program.steps) + 1)
        for x in self.lifetimes:
            change[x.start] += known[x.bytes]
            change[x.end + 1] -= known[x.bytes]
        return list(accumulate(change[:-1]))

    def needed_at(self, step: int) -> tuple[Lifetime, ...]:
        """The lifetimes that are needed at a step."""
        return tuple(x for x in self.lifetimes if x.start <= step <= x.end)


def last_use(program: Program) -> list[int]:
    """For each value the last step that reads it, or else the one that writes it; what is handed out is needed to the
    end, what is there before and never read has -1."""
    last = [r[-1] if r else (-1 if w is None else w) for r, w in zip(program.readers, program.writer, strict=True)]
    for v in leaves(program.result):
        last[v] = len(program.steps) - 1
    return last


def overwrites(program: Program, step: Step, dying: Collection[int]) -> list[tuple[int, int]]:
    """The pairs (output, operand) of a step that are done in place where the values `dying` are read for the last time:
    each value once."""
    taken: set[int] = set()
    found: list[tuple[int, int]] = []
    for w, r in candidates(program, step):
        if r in dying and not taken & {w, r}:
            taken |= {w, r}
            found.append((w, r))
    return found


def candidates(program: Program, step: Step) -> list[tuple[int, int]]:
    """The pairs (output, operand) of a step that may be done in place, of equal sizes, where the operand is ours."""
    values = program.values
    return [
        (w, r)
        for w, r in step.overwritable
        if values[r].role == "value" and values[w].bytes is not None and values[w].bytes is values[r].bytes
    ]


def liveness(program: Program, results: Results = "apart", known: Collection[str] | None = None) -> Liveness:
    """The lifetimes of all that a plan gives memory to. Linear in the program.

    `known`: the size variables that have a value before the call runs, all if left out; what has others is unsized.
    """
    planned = ("value", "workspace", "result") if results == "planned" else ("value", "workspace")
    size_of = [x.bytes for x in program.values]
    if known is not None:
        size_of = [None if d is None or not d.variables.issubset(known) else d for d in size_of]
    last = last_use(program)
    first: dict[int, int] = {}  # of a value, the first of those that have its memory one after the other
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
