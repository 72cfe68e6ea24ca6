"""`pareto`: programs between the fastest and the one that needs least memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table

from relax_eg.argument_checks import FLAG, accepts, one_of
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.width import width_context
from relax_eg.byte_units import format_bytes, parse_bytes
from relax_eg.driver.clock.measured import CandidateProgram, Search, random_arguments
from relax_eg.driver.limits.bounds import bound_of
from relax_eg.driver.limits.limited import TriedProgram, front
from relax_eg.driver.optimize import holding_weights, optimized, weights_of
from relax_eg.driver.options import KINDS, Sizes, read_options
from relax_eg.driver.prices import NEVER_SLOWER
from relax_eg.driver.program_ends import traced_program
from relax_eg.errors import OptionError
from relax_eg.extract.footprint import Footprint
from relax_eg.extract.least_memory import RESULTS, LeastBytes
from relax_eg.extract.report import AS_WRITTEN, MeasuredRow
from relax_eg.figures import binding_text
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.ir.module import Module
from relax_eg.measure.choice import fastest
from relax_eg.memory.picture import picture
from relax_eg.ops.libraries import EXECUTIONS
from relax_eg.reports.terminal import rendered_text
from relax_eg.shapes.relation import Bounds

_MIB = float(1 << 20)  # bytes
_WIDTH = 160  # chosen: columns of a front as text


@dataclass(frozen=True)
class ParetoPoint:
    """One program of a front.

    - `program`: what a call runs.
    - `footprint`: what a call needs beside its arguments, of the executable that runs.
    - `slower`: predicted time of a call over that of the fastest program of the front.
    - `measured`: measured seconds of a call, beside those of the program as written; None if not timed.
    """

    program: Optimized
    footprint: Footprint
    slower: float
    measured: MeasuredRow | None = None

    @property
    def bytes(self) -> int:
        """Bytes that a call needs beside its arguments."""
        return self.footprint.bytes


@dataclass(frozen=True)
class ParetoFront:
    """Programs of which none is both faster, as predicted, and smaller than another one.

    - `name`: the function.
    - `at`: the sizes.
    - `points`: the programs, fastest first.
    - `written`: the bytes and the time of the program as written, as in `ParetoPoint`, compiled for little memory.
    - `tried`: number of programs whose memory was determined.
    - `bound`: bytes that no program of the search needs less than.
    - `bound_by`: what needs them.
    """

    name: str
    at: Mapping[str, int]
    points: tuple[ParetoPoint, ...]
    written: tuple[int, float]
    tried: int
    bound: int
    bound_by: str = RESULTS

    def within_bytes(self, limit: int | str) -> ParetoPoint:
        """The fastest program that needs at most `limit` bytes, a number or a text such as "2 GiB". OptionError if
        there is none."""
        most = parse_bytes(limit, "limit")
        found = next((p for p in self.points if p.bytes <= most), None)
        if found is None:
            least = self.points[-1].bytes
            raise OptionError(
                f"{self.name}(): no program found needs {format_bytes(most)} or less; accepted: {least} "
                f"({format_bytes(least)}) or more"
            )
        return found

    def within_time(self, share: float) -> ParetoPoint:
        """The program that needs least memory among those predicted to take at most `share` times as long as the
        fastest one (1.1: at most 10% longer). OptionError for a share below 1."""
        if not share >= 1:
            raise OptionError(f"share={share!r}: 1, the time of the fastest program, or more is accepted")
        return [p for p in self.points if p.slower <= share][-1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        sizes = binding_text(self.at)
        table = Table(title=f"{self.name}({sizes}): memory against time", title_justify="left")
        timed = any(p.measured for p in self.points)
        table.add_column("program")
        for heading in ("bytes beside arguments", "of as written", "predicted time", *["measured"] * timed):
            table.add_column(heading, justify="right")
        table.add_column("rules")
        size, slower = self.written
        rows = [(AS_WRITTEN, size, slower, None, "")]
        rows += [
            (str(i + 1), p.bytes, p.slower, p.measured, ", ".join(p.program.report.rules) or AS_WRITTEN)
            for i, p in enumerate(self.points)
        ]
        for name, count, time, measured, rules in rows:
            share = f"{100 * count / size:.0f}%" if size else ""
            taken = [f"{1 / measured.speedup:.2f}x" if measured else "1.00x"] if timed else []
            table.add_row(name, format_bytes(count), share, f"{time:.2f}x", *taken, rules)
        yield table
        yield f"{len(self.points)} of {self.tried} programs; predicted times are shares of the fastest program's" + (
            ", measured ones of the one as written." if timed else "."
        )
        text = str(LeastBytes(self.bound, self.bound_by))
        yield f"{text[0].upper()}{text[1:]}."

    def __str__(self) -> str:
        return rendered_text(self, width=_WIDTH)

    def plot(self, path: str | Path) -> None:
        """Draws the front, and the program as written, to a PNG, SVG or PDF file. OptionError without matplotlib, and
        for another suffix."""
        xs, (size, slower) = [p.slower for p in self.points], self.written
        with picture(path, OptionError, figsize=(6.4, 4.0)) as axes:  # chosen: inches
            axes.step(xs, [p.bytes / _MIB for p in self.points], where="post", marker="o", label="found")
            axes.plot([slower], [size / _MIB], "x", label=AS_WRITTEN)
            axes.set(
                xlabel="predicted time of a call, as a share of the fastest program's",
                ylabel="MiB beside the arguments",
                title=f"{self.name}: memory against time",
                yscale="log",
            )
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            axes.legend()
            axes.grid(alpha=0.3)


@explain_clashes
@accepts(**{**KINDS, "execution": one_of(*EXECUTIONS)}, timed=FLAG)
def pareto(
    program: Callable[..., Any] | Module,
    /,
    *args: Any,
    specs: Mapping[str, Any] | None = None,
    at: Sizes | None = None,
    bounds: Bounds | None = None,
    timed: bool = False,
    execution: Any = "whole",
    **options: Any,
) -> ParetoFront:
    """Programs between the fastest and the one that needs least memory: what a memory limit would cost.

    - `at`: the sizes; needed if the program has size variables.
    - `timed`: whether the programs are also timed, on random arguments.

    The other arguments, `rules`, `target`, `weights`, `numerics`, `facts`, `execution` and `budget`, are those of
    `optimize`, and so are its errors. Each program is compiled, and its bytes are those of the executable
    (`docs/memory.md`).
    """
    weights = options.pop("weights", ())
    chosen = {k: options.pop(k) for k in ("rules", "target", "numerics", "facts", "budget") if k in options}
    traced = traced_program(program, args, specs_by_name(specs, options), bounds)
    read = read_options(
        traced, at=at, bounds=bounds, weights=weights_of(program, traced, weights), execution=execution,
        memory_limit=1, **chosen,
    )  # fmt: skip
    search = Search(traced, read)

    def runs(candidate: CandidateProgram) -> Optimized:
        return holding_weights(optimized(search, candidate), program)

    with width_context(traced.wide):
        tried = front(search, lambda tried: (*_front(tried), _written(tried)))
        best = _front(tried)
        least = best[0].seconds
        points = [
            ParetoPoint(runs(CandidateProgram(t.entry, t.mode)), t.footprint, t.seconds / least) for t in best
        ]  # fmt: skip
        if timed:
            given = random_arguments(traced, dict(read.facts), read.bindings[0])
            points = _timed(runs(CandidateProgram(None)), points, *given)
    written = _written(tried)
    as_written = written.footprint.bytes, written.seconds / least
    bound = bound_of(search, [t.footprint for t in tried])
    return ParetoFront(
        traced.name, dict(read.bindings[0]), tuple(points), as_written, len(tried), bound.bytes, bound.why
    )


def _timed(
    usual: Optimized, points: Sequence[ParetoPoint], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[ParetoPoint]:
    """The programs with their measured seconds, in turns with the program as written."""
    calls = {str(i): (functools.partial(p.program, *args, **kwargs), p.slower) for i, p in enumerate(points)}
    written = functools.partial(usual, *args, **kwargs), 1.0
    rows = {r.label: r for r in fastest({AS_WRITTEN: written, **calls}, time_all=True)}
    return [replace(p, measured=rows[str(i)]) for i, p in enumerate(points)]


def _written(tried: Sequence[TriedProgram]) -> TriedProgram:
    """The program as written, in the mode in which it needs least."""
    return min((t for t in tried if t.entry is None), key=lambda t: t.footprint.bytes)


def _front(tried: Sequence[TriedProgram]) -> list[TriedProgram]:
    """The programs that no other one beats in both seconds and bytes, fastest first. The program as written gives way
    only to a program that is predicted to be faster by `NEVER_SLOWER`, or needs less."""
    written = [t for t in tried if t.entry is None]
    kept: list[TriedProgram] = []
    for t in sorted(tried, key=lambda t: (t.seconds, t.footprint.bytes)):
        if t.entry is not None and any(
            w.seconds <= NEVER_SLOWER * t.seconds and w.footprint.bytes <= t.footprint.bytes for w in written
        ):
            continue
        if not kept or t.footprint.bytes < kept[-1].footprint.bytes:
            kept.append(t)
    return kept
