"""What a call of a program needs in memory beside its arguments, measured on what runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import OptionError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


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
        parts = f"{shown(self.planned)} planned, {shown(self.results)} results, {shown(self.temporary)} in executables"
        return (
            f"memory: {shown(self.bytes)} of {shown(self.limit)} allowed ({parts}); without a limit "
            f"{shown(self.without)}; {self.slower:.2f}x the time predicted without, of {self.tried} programs"
        )


def bytes_of_text(value: Any) -> int:
    """A number of bytes: an integer, or a text such as "512 MiB" or "1.5 GB". OptionError."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    if found is not None and found[2].lower() in _UNITS:
        count = int(float(found[1]) * _UNITS[found[2].lower()])
        if count > 0:
            return count
    raise OptionError(f"memory_limit={value!r}: bytes, or a text such as '512 MiB' or '2 GB', is accepted")


def shown(count: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"
