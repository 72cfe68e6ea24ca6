"""Statistics of a function: what its first calls settled; at many sizes executables, compile seconds and padding."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from relax_eg.figures import binding_text, count_text, time

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_MOST_SIZES = 20  # limit: sizes shown in the text; the JSON has all


class Tally:
    """A counter that several threads increment without a lock: `tick()` is one step of C."""

    def __init__(self) -> None:
        self._steps = itertools.count()
        self.tick = self._steps.__next__
        self._reads, self._lock = 0, threading.Lock()

    @property
    def total(self) -> int:
        """Number of ticks so far."""
        with self._lock:  # a read calls `tick`, too, and is subtracted
            self._reads += 1
            return self.tick() - self._reads + 1

    def ticking(self, other: Tally) -> Callable[[], object]:
        """Increments this counter and another one, also in one step of C."""
        return zip(self._steps, other._steps, strict=False).__next__


@dataclass(frozen=True, slots=True)
class ExecutableRow:
    """An executable that is kept.

    - `at`: the sizes of its buffers.
    - `kind`: "capacity" or "exact".
    - `why`: what it was made for: a "call", sizes "named" in `optimize(at=...)`, "ahead" of calls, or "hot" sizes; or
      "file", where it was loaded from one.
    - `calls`: the number of calls it served.
    - `compile_seconds`: wall time of its compilation.
    - `seconds`: the fastest timed call; None if none was timed.
    - `memory`: bytes of arguments, outputs and temporaries, known before the first call.
    """

    at: Mapping[str, int]
    kind: str
    why: str
    calls: int
    compile_seconds: float
    seconds: float | None
    memory: tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class SizeRow:
    """A combination of sizes that was called.

    - `sizes`: the sizes.
    - `calls`: the number of calls.
    - `capacities`: the capacities at which they run.
    - `exact`: whether they run at exact sizes.
    - `waste`: the share of padding in the capacities; 0 at exact sizes.
    """

    sizes: Mapping[str, int]
    calls: int
    capacities: Mapping[str, int]
    exact: bool
    waste: float


@dataclass(frozen=True, slots=True)
class SettledRow:
    """What the first calls found out about the chosen program and the one as written (`measure`).

    - `at`: the sizes of the calls.
    - `runs`: the name of the program that runs from then on.
    - `how`: how it was found: "timed", "known" of an earlier process, or "failed", if one could not be run.
    - `calls`: number of timed calls.
    - `seconds`: the seconds that these took more than if all had run the faster program.
    - `speedup`, `low`, `high`: how many times faster the chosen program is, and the interval of this ratio.
    """

    at: Mapping[str, int]
    runs: str
    how: str
    calls: int
    seconds: float
    speedup: float
    low: float
    high: float

    def __str__(self) -> str:
        where = f"settled at {binding_text(self.at)}" if self.at else "settled"
        which = "the program as written" if self.runs == "as written" else "the chosen program"
        if self.how == "failed":
            return f"{where}: {which} runs; the other program could not be run"
        how = f"in {self.calls} calls and {time(self.seconds)}" if self.how == "timed" else "by an earlier process"
        ratio = f"{self.speedup:.2f} times as fast ({self.low:.2f} to {self.high:.2f})"
        return f"{where} {how}: {which} runs; the chosen one is {ratio} as the one as written"


@dataclass(frozen=True, slots=True)
class StoredRow:
    """What a file has for calls at some sizes.

    - `device`: the name of the device that it is for.
    - `at`: the sizes of the calls.
    - `capacities`: the sizes of the buffers, where calls run padded to these; otherwise empty.
    - `executables`: the number of executables that a call runs.
    - `code_bytes`: bytes of machine code.
    - `calls`: the number of calls that it served.
    - `why_not`: why it serves none; "" where it does.
    """

    device: str
    at: Mapping[str, int]
    capacities: Mapping[str, int]
    executables: int
    code_bytes: int
    calls: int
    why_not: str

    def __str__(self) -> str:
        where = f" at {binding_text(self.at)}" if self.at else ""
        padded = f", padded to {binding_text(self.capacities)}" if self.capacities else ""
        made = f"{count_text(self.executables, 'executable')} of the file for {self.device}{where}{padded}"
        return f"{made}: {f'not used: {self.why_not}' if self.why_not else count_text(self.calls, 'call')}"


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of one function from its first call on.

    - `name`: the name of the function.
    - `dynamic`: how it runs at many sizes: "exact", "capacity" or "auto".
    - `capacities`: how the capacities of each size variable are chosen.
    - `executables`: the executables kept now.
    - `sizes`: the combinations of sizes that were called.
    - `compilations`: the number of executables that were ever compiled.
    - `compile_seconds`: wall time of all compilations.
    - `evicted`: number of executables that were dropped.
    - `exact`: what cannot run at capacity, by operator and source line, program, or sizes, with the reason.
    - `settled`: what the first calls found out, by combination of sizes (`measure`).
    - `is_settling`: whether calls still find out which program is faster.
    - `stored`: the executables of the file that the function was loaded from.
    """

    name: str
    dynamic: str
    capacities: Mapping[str, str]
    executables: tuple[ExecutableRow, ...]
    sizes: tuple[SizeRow, ...]
    compilations: int
    compile_seconds: float
    evicted: int
    exact: Mapping[str, str]
    settled: tuple[SettledRow, ...] = ()
    is_settling: bool = False
    stored: tuple[StoredRow, ...] = ()

    @property
    def calls(self) -> int:
        return sum(r.calls for r in self.sizes)

    @property
    def waste(self) -> float:
        """The share of padding, averaged over all calls."""
        return sum(r.calls * r.waste for r in self.sizes) / self.calls if self.calls else 0.0

    def to_json(self) -> str:
        """All of it as JSON, with a schema version."""
        return json.dumps({"schema": "relax_eg.dynamic/1", **asdict(self)}, indent=2)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        from relax_eg.reports.terminal import plain_table

        chosen = "; ".join(f"{v}: {c}" for v, c in self.capacities.items())
        yield Text(f"{self.name}   dynamic={self.dynamic!r}" + (f", capacities {chosen}" if chosen else ""), "bold")
        for row in (*self.stored, *self.settled):
            yield Text(str(row))
        if self.is_settling:
            calls = "calls at other sizes" if self.settled else "calls"
            yield Text(f"{calls} still find out which program is faster")
        if self.dynamic == "exact" and not self.executables:
            other = "other " if any(not row.why_not for row in self.stored) else ""
            yield Text(f"JAX compiles it for each {other}combination of sizes that is called")
            return
        calls = f"{count_text(self.calls, 'call')} of {count_text(len(self.sizes), 'size')}"
        yield Text(
            f"{calls}, {100 * self.waste:.0f}% padding; "
            f"{count_text(self.compilations, 'executable')} compiled in {self.compile_seconds:.2f} s"
            + (f", {self.evicted} of them dropped" if self.evicted else "")
        )
        for what, why in self.exact.items():
            yield Text(f"runs at its very sizes: {what}: {why}")
        if self.executables:
            figures = ("calls", "compile", "a call", "arguments", "outputs", "temporaries")
            table = plain_table(("executable", "made for"), figures)
            for r in self.executables:
                seconds = "" if r.seconds is None else f"{r.seconds * 1e3:.3g} ms"
                memory = [f"{n / 1e6:.3g} MB" for n in r.memory] if r.memory else [""] * 3
                made = f"{r.kind} {binding_text(r.at)}", r.why, str(r.calls), f"{r.compile_seconds:.2f} s", seconds
                table.add_row(*made, *memory)
            yield table
        if self.sizes:
            table = plain_table(("sizes", "runs at"), ("calls", "padding"))
            most = sorted(self.sizes, key=lambda r: -r.calls)
            for r in most[:_MOST_SIZES]:
                where = "exactly" if r.exact else binding_text(r.capacities)
                table.add_row(binding_text(r.sizes), where, str(r.calls), f"{100 * r.waste:.0f}%")
            if len(most) > _MOST_SIZES:
                table.add_row(f"and {len(most) - _MOST_SIZES} more", "", "", "", style="dim")
            yield table

    def __str__(self) -> str:
        from relax_eg.reports.terminal import rendered_text

        return rendered_text(self, width=120)
