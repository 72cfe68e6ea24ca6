"""Comparisons of reports as HTML: one page, or a fragment for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from relax_eg.figures import binding_text, si, time
from relax_eg.reports import compare_text, plots, text
from relax_eg.reports.align import AlignedPrograms, Column
from relax_eg.reports.pages import css, template
from relax_eg.reports.plots import curves_over_bindings
from relax_eg.reports.record import ReportRecord
from relax_eg.reports.roofline import roofline
from relax_eg.reports.serialization import write_text
from relax_eg.reports.short import highlights, measured_seconds, ratio

MOST_BARS = 10  # limit: rows of the chart by source line; the table has all
MOST_STEPS = 200  # limit: lines of a derivation
AT_PEAK = 3  # limit: tensors named among those alive at the memory peak


@dataclass(frozen=True)
class PlotFigure:
    """A plot on a page.

    - `heading`: the heading above it.
    - `svg`: the plot.
    - `key`: the key of its colours.
    - `note`: how to read it.
    """

    heading: str
    svg: Markup
    key: Markup
    note: str


@dataclass(frozen=True)
class Section:
    """A comparison on a page.

    - `heading`: the heading above it; not shown if the page has a single section.
    - `comparison`: the comparison.
    """

    heading: str
    comparison: AlignedPrograms


def page(title: str, sections: Sequence[Section], path: str | Path | None = None, derivation: str = "") -> str:
    """The HTML of a page with comparisons, also written to `path` if given. `derivation`: the derivation of the program
    as text; "" for none."""
    every = [_comparison_data(s.comparison, s.heading if len(sections) > 1 else "", n) for n, s in enumerate(sections)]
    reports = {id(r): r for s in sections for r in s.comparison.reports}
    steps = derivation.splitlines()
    html = template("page.html").render(
        title=title,
        wide=False,
        sections=every,
        css=css(),
        derivation="\n".join(steps[:MOST_STEPS]),
        more_steps=max(0, len(steps) - MOST_STEPS),
        versions=_versions(reports.values()),
    )
    write_text(html, path)
    return html


def page_of_comparison(c: AlignedPrograms, path: str | Path | None = None, derivation: str = "") -> str:
    """A page with one comparison."""
    return page(compare_text.headline(c), [Section("", c)], path, derivation)


def notebook_of_comparison(c: AlignedPrograms) -> str:
    """The notebook form of a comparison: totals and changes, without the plots."""
    shown = _comparison_data(c, "", 0, with_figures=False)
    return template("notebook.html").render(section=shown, css=css())


def _versions(reports: Iterable[ReportRecord]) -> str:
    found = dict.fromkeys(", ".join(f"{k} {v}" for k, v in r.versions.items()) for r in reports)
    return "; ".join(x for x in found if x)


def _comparison_data(c: AlignedPrograms, heading: str, number: int, with_figures: bool = True) -> dict[str, Any]:
    """The data of a comparison for the templates."""
    longest = max((x.cost.seconds for x in c.columns), default=0.0) or 1.0
    measured = measured_seconds(c.columns)
    here = measured or [x.cost.seconds for x in c.columns]
    columns = [
        {
            "label": x.label,
            "colour": f"c{i % plots.COLOURS}",
            "cost": x.cost,
            "measured": x.measured,
            "share": x.cost.seconds / longest,
            "seconds": here[i],
            "kind": "predicted" if measured is None else f"measured; predicted: {time(x.cost.seconds)}",
            "summary": compare_text.summary(c, i) if i else "",
            "rules": compare_text.rule_changes(c, i) if i else "",
            "gain": f"{ratio(here[0], here[i])} than {c.columns[0].label}" if _differs(here, i) else "",
            "changes": [
                {
                    "where": r.where,
                    "code": r.code,
                    "before": r.seconds(0),
                    "after": r.seconds(i),
                    "better": r.delta(i) < 0,
                    "old": compare_text.kernels_of(r.parts[0]),
                    "new": compare_text.kernels_of(r.parts[i]),
                    "causes": r.causes[i],
                }
                for r in (c.changes(i) if i else [])
            ],
            "roof": _roofline_text(x),
        }
        for i, x in enumerate(c.columns)
    ]
    dearest = max((r.seconds(i) for r in c.rows for i in range(len(c.columns))), default=0.0) or 1.0
    by_cost = sorted(c.rows, key=lambda r: -max(r.seconds(i) for i in range(len(c.columns))))
    return {
        "heading": heading,
        "number": number,
        "headline": compare_text.headline(c),
        "short": highlights(c),
        "statements": c.statements,
        "unchanged": [x.label for i, x in enumerate(c.columns) if i and not c.changes(i)],
        "columns": columns,
        "by": c.by,
        "rows": c.rows,
        "bars": by_cost[:MOST_BARS],
        "dearest": dearest,
        "slowest": max([x.measured for x in c.columns if x.measured is not None], default=1.0),
        "left_out": len(by_cost) - MOST_BARS,
        "key": plots.key([(i, x.label) for i, x in enumerate(c.columns)]),
        "figures": _figures(c) if with_figures else [],
        "notes": [
            {"label": f"{r.name}, {r.target}, {binding_text(r.at)}", "lines": text.note_lines(r)} for r in c.reports
        ],
        "kernels": [{"label": x.label, "parts": x.cost.parts, "rows": x.cost.rows} for x in c.columns],
        "has": {
            "measured": any(x.measured is not None for x in c.columns),
            "memory": any(x.cost.memory is not None for x in c.columns),
            "workspace": any(x.cost.memory is not None and x.cost.memory.workspace for x in c.columns),
            "prepared": any(x.cost.prepared_bytes for x in c.columns),
            "device": any(x.report.device is not None for x in c.columns),
        },
    }


def _roofline_text(x: Column) -> str:
    """The limit of a program in the roofline model, and the share of the roof that it reaches; "" without a device."""
    if x.report.device is None:
        return ""
    found = roofline(x.cost, x.report.device)
    return f"{found.bound}, {100 * found.share:.3g}%"


def _differs(seconds: Sequence[float], i: int) -> bool:
    return i > 0 and seconds[0] > 0 and seconds[i] > 0 and ratio(seconds[0], seconds[i]) != "as fast"


def _at_peak(x: Column) -> str:
    """The names and bytes of the largest tensors that are alive at the memory peak."""
    held = x.cost.memory.tensors if x.cost.memory is not None else ()
    return ", ".join(f"{t.name} {t.tensor} ({si(t.bytes)}B)" for t in held[:AT_PEAK])


def _figures(c: AlignedPrograms) -> list[PlotFigure]:
    numbered = list(enumerate(c.columns))
    labels = [(i, x.label) for i, x in numbered]
    found: list[tuple[str, Markup | None, Markup, str]] = []
    devices = {x.report.device.name: x.report.device for x in c.columns if x.report.device is not None}
    for name, device in devices.items():
        here = [(i, x) for i, x in numbered if x.report.device is not None and x.report.device.name == name]
        memory, cache = (f"{si(speed)}B/s" for speed in (device.bandwidth, device.cache_bandwidth))
        note = (
            "Large dots are programs, small ones their dearest kernels; higher is better. The solid line is what the "
            f"device allows for bytes from memory ({memory}), the dashed one for bytes from cache ({cache}): a dot "
            "between them reads what is still in cache. Above both, bytes never leave a kernel's registers."
        )
        svg = plots.roofline_plot(device, here)
        found.append((f"Roofline of {name}", svg, plots.key([(i, x.label) for i, x in here]), note))
    note = "Values between kernels and results, each until its last reader has run, without inputs and weights."
    note += "".join(f" At the peak of {x.label}: {_at_peak(x)}." for x in c.columns if _at_peak(x))
    found.append(("Memory over the program", plots.memory_plot(numbered), plots.key(labels), note))
    for curve in [*(x for r in c.reports for x in r.curves), *curves_over_bindings(c.columns)]:
        series = plots.key([(i, s.label) for i, s in enumerate(curve.series)])
        others = binding_text(curve.at)
        heading = f"Cost over {curve.variable}" + (f", at {others}" if others else "")
        crossings = "; ".join(f"from {curve.variable}={x.size} on {x.after}" for x in curve.crossovers)
        found.append((heading, plots.curve_plot(curve), series, crossings or "The order is the same at all sizes."))
    searches = [(i, x) for i, x in numbered if not x.as_written]
    key = plots.key([(i, x.label) for i, x in searches])
    note = "Nodes of the largest e-graph of each search, after every round."
    found.append(("Growth of the search", plots.growth_plot(searches), key, note))
    return [PlotFigure(heading, svg, key, note) for heading, svg, key, note in found if svg is not None]
