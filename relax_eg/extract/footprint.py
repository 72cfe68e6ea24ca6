"""The memory that a call of a program needs besides its arguments, measured on the executables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.byte_units import format_bytes
from relax_eg.figures import binding_text


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a call needs at a binding.

    - `at`: the binding.
    - `planned`: bytes of the storages of intermediate values, which are kept from call to call; 0 for one XLA program.
    - `results`: bytes of the results.
    - `temporary`: the most bytes that one executable allocates while it runs.
    - `peak`: the largest values at the peak, each with its name and bytes.
    - `is_predicted`: whether all bytes are a prediction, as `temporary`, because the program was not compiled.
    """

    at: Mapping[str, int]
    planned: int
    results: int
    temporary: int
    peak: tuple[tuple[str, int], ...] = ()
    is_predicted: bool = False

    @property
    def bytes(self) -> int:
        """All bytes that a call needs at once, besides its arguments."""
        return self.planned + self.results + self.temporary


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """How `memory_limit` or `time_limit` was kept.

    - `limit`: the limit in bytes; None: of the time.
    - `bytes`: bytes of the chosen program, as `Footprint.bytes`, at the binding that needs most.
    - `without`: bytes of the program that would have been chosen without a limit.
    - `slower`: predicted time of a call over the predicted time of that program.
    - `tried`: number of programs considered.
    - `planned`, `results`, `temporary`: the parts of `bytes`, as in `Footprint`.
    - `time_limit`: the limit of the time, as it was given; "": of the bytes.
    - `largest`: the largest sizes in bounds, at which the bytes were determined as well; None: they have no bounds.
    - `not_shown`: a value that may have more bytes at other sizes in bounds; "": it is proved that none has, so that no
      call within the bounds has larger values.
    - `kept`: the values that the program keeps in the memory of the host for a while, each with its name and bytes.
    - `is_predicted`: whether `without` is a prediction, because that program was not compiled.
    """

    limit: int | None
    bytes: int
    without: int
    slower: float
    tried: int
    planned: int
    results: int
    temporary: int
    time_limit: str = ""
    kept: tuple[tuple[str, int], ...] = ()
    largest: Mapping[str, int] | None = None
    not_shown: str = ""
    is_predicted: bool = False

    def __str__(self) -> str:
        allowed = (
            f"least in a time of {self.time_limit}" if self.limit is None else f"of {format_bytes(self.limit)} allowed"
        )
        parts = (
            f"{format_bytes(self.planned)} planned, {format_bytes(self.results)} results, "
            f"{format_bytes(self.temporary)} in executables"
        )
        kept = f"; kept on the host: {', '.join(f'{v} ({format_bytes(n)})' for v, n in self.kept)}" if self.kept else ""
        predicted = " (predicted)" if self.is_predicted else ""
        where = ""
        if self.largest is not None:
            at = binding_text(self.largest)
            shown = "no size in bounds has larger values: proved"
            where = f"; at {at} as well ({f'`{self.not_shown}` may be larger elsewhere' if self.not_shown else shown})"
        return (
            f"memory: {format_bytes(self.bytes)} {allowed} ({parts}); without a limit "
            f"{format_bytes(self.without)}{predicted}; {self.slower:.2f}x the time predicted without, of {self.tried} "
            f"programs{where}{kept}"
        )
