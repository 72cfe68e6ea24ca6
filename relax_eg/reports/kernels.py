"""The table of a program's kernels for a terminal: the operators in each kernel, and the savings of each fusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relax_eg.extract.costs.detail import KernelPart
from relax_eg.figures import integer_text, si, time
from relax_eg.reports.record import ReportRecord
from relax_eg.reports.terminal import plain_table


def kernel_table(report: ReportRecord) -> RenderableType:
    """A table of the kernels that a call runs, with equal kernels in one row: library calls, fused kernels with the
    bytes and launches that fusion saves, and kernels of one operator. The views, which run nothing, are below it."""
    now = [p for p in report.after.parts if not p.ahead]
    run = [p for p in now if p.launches]
    names = {r.name for r in report.libraries} | {p.what for p in run if "." in p.what}
    libraries = [p for p in run if p.what in names]
    fused = [p for p in run if p.what not in names and p.operators]
    single = [p for p in run if p.what not in names and not p.operators]
    table = plain_table(["kernel"], ["runs", "time", "bytes", "bytes\nsaved", "launches\nsaved"], no_wrap=True)
    _section(table, "library calls", report, libraries)
    _section(table, "fused kernels", report, fused)
    _section(table, "single operators", report, single)
    views = Counter[str]()
    for p in now:
        if not p.launches and not p.bytes:
            views[p.what] += p.count
    shown: list[RenderableType] = [table] if run else [Text("no kernel runs")]
    if views:
        shown.append(Text(f"views, which move nothing: {_listed(views)}"))
    return Group(*shown)


def _section(table: Table, title: str, report: ReportRecord, parts: Sequence[KernelPart]) -> None:
    if not parts:
        return
    runs = sum(p.launches for p in parts)
    inside = sum(len(p.operators) * p.launches for p in parts)
    table.add_row(Text(f"{title}: {runs}" + (f" ({inside} operators)" if inside else ""), style="bold"))
    saved = {r.name: (r.saved_bytes, r.saved_launches) for r in report.kernels}
    groups: dict[tuple[str, tuple[str, ...]], list[KernelPart]] = {}
    for p in parts:
        groups.setdefault((p.what, p.operators), []).append(p)
    for (what, operators), same in groups.items():
        runs, seconds, moved = (sum(x) for x in zip(*((p.launches, p.seconds, p.bytes) for p in same), strict=True))
        spared = (
            [f(runs * n) for f, n in zip((si, integer_text), saved[what], strict=True)] if what in saved else ["", ""]
        )
        table.add_row(Padding(what, (0, 0, 0, 2)), str(runs), time(seconds), si(moved), *spared)
        if operators:
            table.add_row(Padding(Text(_listed(Counter(operators)), style="dim"), (0, 0, 0, 4)))


def _listed(found: Counter[str]) -> str:
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in found.items())
