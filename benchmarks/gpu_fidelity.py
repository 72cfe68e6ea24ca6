"""Launches, bytes and temporaries of programs on a GPU: predicted, and as XLA compiles them.

`python -m benchmarks.gpu --fidelity` shows them for its programs as written (optimized without rules), and as chosen
for one XLA program; with `--way kernels` also in kernels. Bytes are what kernels read and write: their operands and
results, of which slices and gathers only what they take. Temporaries are XLA's bytes beside arguments and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import relax_eg as rx
from benchmarks.gpu_cases import WHOLE, Subject
from relax_eg.backend.gpu.record import GpuProgram
from relax_eg.byte_units import format_bytes

WRITTEN = "as written"
FUNCTIONS = "small functions"  # as written, too
BYTES, TEMPORARIES = 0.15, 0.10  # relative errors up to which a prediction agrees with what is compiled
_NOISE = 1 << 16  # bytes: differences up to these are not judged, because XLA aligns arrays


@dataclass(frozen=True)
class FidelityRow:
    """A program: what is predicted, and what XLA made of it.

    - `launches`, `bytes`, `temporaries`: pairs of predicted and compiled.
    - `kinds`: compiled kernels by kind, as text.
    - `wrong`: why there is no more; "" if there is all.
    """

    name: str
    dtype: str
    device: str
    way: str
    launches: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    temporaries: tuple[int, int] = (0, 0)
    kinds: str = ""
    wrong: str = ""

    @property
    def misses(self) -> list[str]:
        """What is further from what was compiled than it may be."""
        close = {"launches": self.launches[0] == self.launches[1]}
        close |= {"bytes": error(self.bytes) <= BYTES, "temporaries": error(self.temporaries) <= TEMPORARIES}
        return [what for what, holds in close.items() if not holds]

    @property
    def missed(self) -> list[str]:
        """The misses, each with what was predicted and what was compiled."""
        sizes = {"launches": str, "bytes": format_bytes, "temporaries": format_bytes}
        return [f"{what} {' / '.join(map(sizes[what], getattr(self, what)))}" for what in self.misses if not self.wrong]

    def __str__(self) -> str:
        if self.wrong:
            return f"{self.name}, {self.dtype}, {self.device}, {self.way}: FAILED: {self.wrong}"
        moved, stored = (" / ".join(map(format_bytes, pair)) for pair in (self.bytes, self.temporaries))
        missed = f"  misses {', '.join(self.misses)}" if self.misses else ""
        return (
            f"{self.name}, {self.dtype}, {self.device}, {self.way}: {self.launches[0]} / {self.launches[1]} launches "
            f"({self.kinds}), {moved} moved, {stored} stored{missed}"
        )


def error(pair: tuple[int, int]) -> float:
    """The relative error of a predicted number of bytes."""
    predicted, compiled = pair
    return abs(predicted - compiled) / max(compiled, 1) if abs(predicted - compiled) > _NOISE else 0.0


def fidelity_row(subject: Subject, device: str, way: str, best: rx.types.Optimized) -> FidelityRow:
    """What is predicted for a program, and what XLA makes of it."""
    (made,) = best.compile(device, at=subject.at or None).programs
    told = made.predicted
    if told is None:
        return FidelityRow(subject.name, subject.dtype, device, way, wrong="the report does not cover these sizes")
    return FidelityRow(
        subject.name, subject.dtype, device, way, (told.launches, made.launches), (told.bytes, made.bytes),
        (told.temporary_bytes or 0, made.temporary_bytes), _kinds(made),
    )  # fmt: skip


def _kinds(made: GpuProgram) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in made.kinds.items())


def rows_of_fidelity(
    each: Iterable[tuple[str, Subject, str]],
    programs: Path | None,
    found: Callable[[Subject, Path | None, str, str], rx.types.Optimized],
) -> Iterator[FidelityRow]:
    """Yields a row for each device, program and way; one that fails is a row that says so. `found`: the program of a
    subject for a device."""
    for device, subject, way in each:
        try:
            yield fidelity_row(subject, device, way, found(subject, programs, device, way))
        except Exception as e:  # one program that fails must not take the others along
            text = str(e).strip().splitlines() or [""]
            wrong = f"{type(e).__name__}: {text[0][:300]}"
            yield FidelityRow(subject.name, subject.dtype, device, way, wrong=wrong)


def as_written(subject: Subject, device: str) -> rx.types.Optimized:
    """A program as written, with its prices."""
    return subject.optimize(WHOLE, device, rx.RuleSet("none"))


def shares_of(rows: Sequence[FidelityRow]) -> tuple[float, float, float, float]:
    """The shares of rows whose launches, bytes and temporaries agree, and the median error of bytes."""
    agree = [sum(what not in r.misses for r in rows) / len(rows) for what in ("launches", "bytes", "temporaries")]
    return agree[0], agree[1], agree[2], median(error(r.bytes) for r in rows)


def fidelity_summary(rows: Sequence[FidelityRow]) -> str:
    """How many predictions agree with what was compiled."""
    good = [r for r in rows if not r.wrong]
    if not good:
        return "nothing was compiled"
    launches, moved, stored, middle = shares_of(good)
    return (
        f"of {len(good)} programs agree: launches {launches:.0%}, bytes {moved:.0%}, temporaries {stored:.0%}; "
        f"median error of bytes {middle:.1%}"
    )
