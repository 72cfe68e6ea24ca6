"""What XLA makes of the programs of `benchmarks.gpu`, and the tables of the documentation (`--write`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import write_between
from benchmarks.gpu_cases import KERNELS, OWN, WHOLE
from benchmarks.gpu_fidelity import BYTES, TEMPORARIES, WRITTEN, FidelityRow, shares_of
from benchmarks.patterns import NEAR_BEST, WORTH_FINDING
from benchmarks.timing import duration
from relax_eg.byte_units import format_bytes

NO_WORSE = 1.03  # temporaries and estimates may be so many times those of the program as written
# chosen: share of the time in which a kernel's bytes pass through memory; an estimate below is not believed. A half
# leaves room for what a cache holds.
SHORTEST = 0.5
_DOCS = Path(__file__).parent.parent / "docs"
_MOST_MISSES = 12  # limit: misses of one group of rows that are listed


@dataclass(frozen=True)
class Made:
    """What XLA made of a program.

    - `launches`, `pallas`: kernels that a call launches, and those of them through Pallas.
    - `temporary_bytes`: bytes beside arguments and results.
    - `seconds`: XLA's estimates added up; None where it has none for this device.
    - `unpriced`: launches without an estimate.
    - `too_short`: launches whose estimate is shorter than memory allows (`SHORTEST`).
    """

    launches: int
    pallas: int
    temporary_bytes: int
    seconds: float | None
    unpriced: int
    too_short: int = 0

    @property
    def estimate(self) -> float | None:
        """Seconds; None where a kernel has no estimate, or one that is too short."""
        return None if self.unpriced or self.too_short else self.seconds or None

    def __str__(self) -> str:
        estimate = f", {duration(self.seconds)}" if self.seconds else ""
        rest = f", {self.unpriced} not estimated" if self.unpriced and self.seconds is not None else ""
        rest += f", {self.too_short} too short" if self.too_short else ""
        pallas = f" ({self.pallas} Pallas)" if self.pallas else ""
        return f"{self.launches} kernels{pallas}, {format_bytes(self.temporary_bytes)}{estimate}{rest}"


@dataclass(frozen=True)
class CompiledRow:
    """A program for a device.

    - `made`: what XLA made of it, by way, as written first.
    - `left`: why kernels were not lowered through Pallas as meant, or not compiled by a routine as meant.
    - `by_hand`: what XLA made of the forms by hand, by name.
    - `took`: seconds of searching and compiling.
    - `commit`: the commit that made the row.
    - `wrong`: why there is no more; "" if there is all.
    """

    name: str
    dtype: str
    device: str
    made: Mapping[str, Made] = field(default_factory=dict[str, Made])
    left: tuple[str, ...] = ()
    by_hand: Mapping[str, Made] = field(default_factory=dict[str, Made])
    took: float = 0.0
    commit: str = ""
    wrong: str = ""

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.dtype}, {self.device}  [{self.took:.1f} s]"]
        lines += [f"    {way:<10} {found}{self._beside(way)}" for way, found in self.made.items()]
        lines += [f"    by hand    {made}: {name}" for name, made in self.by_hand.items()]
        lines += [f"    {text}" for text in self.left]
        return "\n".join([*lines, *([f"    FAILED: {self.wrong}"] if self.wrong else [])])

    def _beside(self, way: str) -> str:
        ratio = self.speedup(way)
        return "" if ratio is None or way == WRITTEN else f"  {ratio:.2f}x"

    def speedup(self, way: str) -> float | None:
        """The estimate as written over that of `way`; None where a kernel of either has none."""
        ours, theirs = self.made[way].estimate, self.made[WRITTEN].estimate
        return None if ours is None or theirs is None else theirs / ours

    @property
    def best_by_hand(self) -> str:
        """The form by hand with the least estimate; "" where none is estimated."""
        known = {name: x for name, made in self.by_hand.items() if (x := made.estimate) is not None}
        return min(known, key=known.__getitem__, default="")

    @property
    def by_hand_wins(self) -> bool:
        """Whether a form by hand is estimated `WORTH_FINDING` times as fast as the program as written."""
        best, written = self.best_by_hand, self.made[WRITTEN].estimate if self.made else None
        return bool(best) and written is not None and written >= WORTH_FINDING * (self.by_hand[best].estimate or 0.0)

    def missed(self) -> list[str]:
        """The ways that take more than `NEAR_BEST` times as long as the best form by hand, by the estimates."""
        best = self.by_hand[self.best_by_hand].estimate or 0.0
        ratios = {way: made.estimate / best for way, made in self.made.items() if way != WRITTEN and made.estimate}
        return [f"{way}: {x:.2f} times as long as {self.best_by_hand}" for way, x in ratios.items() if x > NEAR_BEST]

    def worse(self) -> list[str]:
        """The ways with more temporary bytes or a longer estimate than as written, beyond `NO_WORSE`."""
        theirs, found = self.made.get(WRITTEN), list[str]()
        for way, ours in self.made.items() if theirs is not None else ():
            if ours.temporary_bytes > NO_WORSE * theirs.temporary_bytes + (1 << 10):
                found.append(f"{way}: {format_bytes(ours.temporary_bytes)}, {format_bytes(theirs.temporary_bytes)}")
            if (ratio := self.speedup(way)) is not None and ratio * NO_WORSE < 1:
                found.append(f"{way}: {ratio:.2f}x")
        return found


def write_fidelity(rows: Sequence[FidelityRow], when: str) -> None:
    """Puts what is predicted beside what was compiled into docs/gpu.md."""
    groups: dict[tuple[str, str, str], list[FidelityRow]] = {}
    for r in rows:
        groups.setdefault((r.way, r.device, r.dtype), []).append(r)
    lines = [
        f"| programs, {when} | | launches equal | bytes within {BYTES:.0%} | temporaries within {TEMPORARIES:.0%} | "
        "median error of bytes |",
        "|---|---|---|---|---|---|",
    ]
    for (way, device, dtype), found in sorted(groups.items()):
        good = [r for r in found if not r.wrong]
        launches, moved, stored, median = shares_of(good)
        lines.append(
            f"| {way}, {device}, {dtype} | {len(good)} | {launches:.0%} | {moved:.0%} | {stored:.0%} | {median:.1%} |"
        )
    lines += ["", "Misses (predicted / compiled):", ""]
    for (way, device, dtype), found in sorted(groups.items()):
        missed = [f"{r.name} ({', '.join(r.missed)})" for r in found if r.missed]
        missed += [f"{r.name} (not compiled: {r.wrong})" for r in found if r.wrong]
        more = f"; {len(missed) - _MOST_MISSES} more" if len(missed) > _MOST_MISSES else ""
        if missed:
            lines.append(f"- {way}, {device}, {dtype}: {'; '.join(missed[:_MOST_MISSES])}{more}")
    write_between(_DOCS / "gpu.md", *_marks("--fidelity "), "\n".join(lines))


def write_compiled(rows: Sequence[CompiledRow], when: str) -> None:
    """Puts programs as written and by hand beside ours into docs/benchmarks.md."""
    lines: list[str] = []
    for device, dtype in dict.fromkeys((r.device, r.dtype) for r in rows):
        here = [r for r in rows if (r.device, r.dtype) == (device, dtype)]
        lines += [f"| {device}, {dtype}, {when} | as written | by hand | whole | kernels |", "|---|---|---|---|---|"]
        same = [r.name for r in here if not r.wrong and _is_same(r)]
        for r in here:
            if r.wrong:
                lines.append(f"| {r.name} | not compiled: {r.wrong} | | | |")
            elif not _is_same(r):
                ours = " | ".join(_cell(r, way) for way in (WHOLE, KERNELS))
                lines.append(f"| {r.name} | {r.made[WRITTEN]} | {_hand(r)} | {ours} |")
        compared = [r for r in here if not r.wrong]
        lines += ["", f"Of {len(compared)} programs worse than as written by more than {NO_WORSE - 1:.0%}: "
                  f"{_by_way(compared, CompiledRow.worse)}."]  # fmt: skip
        if winning := [r for r in compared if r.by_hand_wins]:
            lines.append(f"Of {len(winning)} whose form by hand wins by {WORTH_FINDING:g}, not within "
                         f"{NEAR_BEST:g} of it: {_by_way(winning, CompiledRow.missed)}.")  # fmt: skip
        lines.append(f"The same figures as written in both ways: {', '.join(same)}." if same else "")
        of = {c: [r.name for r in here if r.commit == c] for c in dict.fromkeys(r.commit for r in here)}
        most = max(of, key=lambda c: len(of[c]))
        told = [f"{c}: {', '.join(names)}" for c, names in of.items() if c != most]
        lines += [f"Commits: {'; '.join([*told, f'all others {most}' if told else most])}.", ""]
    write_between(_DOCS / "benchmarks.md", *_marks(""), "\n".join(lines).strip())


def _by_way(rows: Sequence[CompiledRow], told: Callable[[CompiledRow], list[str]]) -> str:
    """How many of the rows tell something of each way, and which."""
    found = {way: [r.name for r in rows if any(t.startswith(way) for t in told(r))] for way in (WHOLE, KERNELS)}
    return "; ".join(f"{way} {len(x)}" + (f" ({', '.join(x)})" if x else "") for way, x in found.items())


def _hand(r: CompiledRow) -> str:
    """The best form by hand, or, where nothing is estimated, the one with the fewest temporary bytes."""
    known = r.best_by_hand or min(r.by_hand, key=lambda n: r.by_hand[n].temporary_bytes, default="")
    return f"{known}: {r.by_hand[known]}".replace("|", "\\|") if known else ""


def _is_same(r: CompiledRow) -> bool:
    return all(r.made[way] == r.made[WRITTEN] for way in (WHOLE, KERNELS))


def _cell(r: CompiledRow, way: str) -> str:
    ratio = r.speedup(way)
    beside = "" if ratio is None else f", {ratio:.2f}x"
    own = f"; without cuDNN {r.made[OWN]}" if way == WHOLE and OWN in r.made else ""
    return "the same" if r.made[way] == r.made[WRITTEN] else f"{r.made[way]}{beside}{own}"


def _marks(option: str) -> tuple[str, str]:
    return f"<!-- python -m benchmarks.gpu {option}--write: from here -->", "<!-- to here -->"
