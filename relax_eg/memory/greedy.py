"""TVM's planner, for comparison: greedy in program order (Relax, Algorithm 3, as in TVM 0.27).

There is a pool of storages for each dtype. A tensor takes the smallest free storage that is at least as large, up to 16
times as large; else the largest free one that is smaller, down to a sixteenth, which grows. Symbolic sizes take a
storage of equal size. Outputs are allocated before operands are released, so nothing is done in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.memory.liveness import Results, last_use
from relax_eg.memory.steps import MemoryProgram
from relax_eg.shapes import Dim

RANGE = 16  # chosen: how many times larger or smaller a storage may be


@dataclass
class _Token:
    bytes: int | Dim
    dtype: str


@dataclass(frozen=True, slots=True)
class GreedyPlan:
    """The storages of TVM's planner, in bytes, and the storage of each value."""

    storages: tuple[int | Dim, ...]
    of_value: Mapping[int, int]

    @property
    def bytes(self) -> Dim:
        total = Dim.of(0)
        for b in self.storages:
            total = total + b
        return total


def greedy(program: MemoryProgram, most: Mapping[Dim, int], results: Results = "apart") -> GreedyPlan:
    """The plan that TVM's algorithm makes for the steps of `program` in their order. `most`: the largest values of
    bounded sizes; other sizes stay symbolic."""
    last = last_use(program)
    tokens: list[_Token] = []
    free: list[int] = []
    of_value: dict[int, int] = {}
    for s in program.steps:
        for v in (*s.writes, *s.workspaces):
            value = program.values[v]
            if value.bytes is None or (value.role == "result" and results == "apart"):
                continue
            size = value.bytes.value if value.bytes.is_const else most.get(value.bytes, value.bytes)
            of_value[v] = _requested(tokens, free, size, value.annotation.dtype or "")
        gone = [v for v in (*s.reads, *s.writes, *s.workspaces) if last[v] == s.number and v in of_value]
        free += [of_value[v] for v in gone if program.values[v].role != "result"]
    return GreedyPlan(tuple(t.bytes for t in tokens), of_value)


def _requested(tokens: list[_Token], free: list[int], size: int | Dim, dtype: str) -> int:
    pool = [n for n in free if tokens[n].dtype == dtype]
    if isinstance(size, Dim):
        fitting = [n for n in pool if tokens[n].bytes is size]
    else:
        known = [(b, n) for n in pool if isinstance(b := tokens[n].bytes, int) and size // RANGE <= b <= size * RANGE]
        larger = sorted(x for x in known if x[0] >= size)
        smaller = sorted(x for x in known if x[0] < size)
        fitting = [larger[0][1]] if larger else [smaller[-1][1]] if smaller else []
    if not fitting:
        tokens.append(_Token(size, dtype))
        return len(tokens) - 1
    chosen = fitting[0]
    free.remove(chosen)
    if isinstance(size, int):
        now = tokens[chosen].bytes
        tokens[chosen].bytes = max(now, size) if isinstance(now, int) else now
    return chosen
