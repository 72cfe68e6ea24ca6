"""What a call of a program needs in memory beside its arguments, measured on what runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.byte_units import format_bytes


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a call at a binding. `planned`: storages of values in between, which are kept from call to call (in one
    XLA program: none); `results`: what is handed out; `temporary`: what executables allocate while they run, the most
    of one; `peak`: what is largest when most is needed, by name."""

    at: Mapping[str, int]
    planned: int
    results: int
    temporary: int
    peak: tuple[tuple[str, int], ...] = ()

    @property
    def bytes(self) -> int:
        """All that a call needs at once, beside its arguments."""
        return self.planned + self.results + self.temporary


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """How `memory_limit` was kept: `bytes` of the chosen program in all that `Footprint` counts, and of the one that
    would have been chosen without a limit; how much longer a call is predicted to take than that one; how many programs
    were looked at; and what the chosen one needs, part by part, where it needs most."""

    limit: int
    bytes: int
    without: int
    slower: float
    tried: int
    planned: int
    results: int
    temporary: int

    def __str__(self) -> str:
        parts = (
            f"{format_bytes(self.planned)} planned, {format_bytes(self.results)} results, "
            f"{format_bytes(self.temporary)} in executables"
        )
        return (
            f"memory: {format_bytes(self.bytes)} of {format_bytes(self.limit)} allowed ({parts}); without a limit "
            f"{format_bytes(self.without)}; {self.slower:.2f}x the time predicted without, of {self.tried} programs"
        )
