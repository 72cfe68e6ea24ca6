"""`compare` compares any number of cost reports: what got better or worse, and by which rule or choice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_eg.argument_checks import FLAG, NONE, TEXT, accepts, sequence_of
from relax_eg.errors import OptionError
from relax_eg.extract.report import AS_WRITTEN
from relax_eg.figures import binding_text
from relax_eg.plain_data import Mismatch, read_record
from relax_eg.reports.align import AlignedRow, Column, rows_of
from relax_eg.reports.report import CostReport
from relax_eg.reports.serialization import check_schema, read_source, write_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SCHEMA = "relax_eg.comparison/1"
MOST_CHANGES = 3  # limit: changes that are reported
NOTHING = 1e-9  # chosen: seconds up to which a difference is ignored


@dataclass(frozen=True)
class Comparison:
    """A comparison of reports. `print` it, show it in a notebook, or call `to_html(path)` or `to_json(path)`.

    - `columns`: the programs; all others are compared with the first.
    - `by`: the key by which kernels are aligned, "line" or "operator".
    - `rows`: the kernels that do the same work in each program; rows that differ most come first.
    - `statements`: what can be compared and what cannot.
    """

    columns: tuple[Column, ...]
    by: str
    rows: tuple[AlignedRow, ...]
    statements: tuple[str, ...]

    @property
    def reports(self) -> tuple[CostReport, ...]:
        return tuple({id(c.report): c.report for c in self.columns}.values())

    def changes(self, column: int, most: int = MOST_CHANGES) -> list[AlignedRow]:
        """The `most` rows that differ most between the first column and `column`."""
        moved = [r for r in self.rows if abs(r.delta(column)) > NOTHING]
        return sorted(moved, key=lambda r: (-abs(r.delta(column)), r.where))[:most]

    def as_data(self) -> dict[str, Any]:
        """The comparison and its reports as plain data with a schema version."""
        places = {id(r): i for i, r in enumerate(self.reports)}
        columns = [
            {
                "label": c.label,
                "report": places[id(c.report)],
                "as_written": c.as_written,
                "seconds": c.cost.seconds,
                "flops": c.cost.flops,
                "bytes": c.cost.bytes,
                "launches": c.cost.launches,
                "measured": c.measured,
            }
            for c in self.columns
        ]
        rows = [
            {
                "where": r.where,
                "code": r.code,
                "seconds": [r.seconds(i) for i in range(len(self.columns))],
                "causes": r.causes,
                "kernels": [[asdict(p) for p in side] for side in r.parts],
            }
            for r in self.rows
        ]
        reports = [r.as_data() for r in self.reports]
        head = {"schema": SCHEMA, "by": self.by, "statements": list(self.statements)}
        return {**head, "columns": columns, "rows": rows, "reports": reports}

    def to_json(self, path: str | Path | None = None) -> str:
        """The comparison as JSON with a schema version; also written to `path` if given."""
        data = json.dumps(self.as_data(), indent=2)
        write_text(data + "\n", path)
        return data

    def to_html(self, path: str | Path | None = None, derivation: object = "") -> str:
        """The comparison as one self-contained HTML file; also written to `path` if given. `derivation`: the result of
        `best.explain()`, which the file then shows too."""
        from relax_eg.reports.html import page_of_comparison

        return page_of_comparison(self, path, str(derivation))

    def _repr_html_(self) -> str:
        from relax_eg.reports.html import notebook_of_comparison

        return notebook_of_comparison(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from relax_eg.reports.compare_text import comparison

        yield from comparison(self)

    def __str__(self) -> str:
        from relax_eg.reports.terminal import rendered_text

        return rendered_text(self, width=120)


@accepts(labels=sequence_of("a text for each report", TEXT) | NONE, against=TEXT | NONE, as_written=FLAG | NONE)
def compare(
    *reports: Any,
    labels: Sequence[str] | None = None,
    against: str | None = None,
    as_written: bool | None = None,
) -> Comparison:
    """Compares cost reports: before and after, devices, rule sets, sizes, releases.

    - `reports`: each a `CostReport`, a result of `optimize`, or the path of a report's JSON. The others are compared
      with the first; a single report is compared with its program as written. An earlier comparison, or the path of
      its JSON, stands for its programs.
    - `labels`: names of the programs; the default names reports by their differences, and keeps those of a comparison.
    - `against`: the label of the report with which the others are compared.
    - `as_written`: whether the program as written, of the first report, is a column. By default it is one only if there
      is a single report.

    The result states what cannot be compared (reports of different programs, no common kernel). OptionError for an
    argument that is not a report, for the wrong number of labels, and for an unknown `against`.
    """
    if not reports:
        raise OptionError("compare() takes one report or more: compare(before.report, after.report)")
    columns = [c for i, r in enumerate(reports) for c in _columns(r, i)]
    read = list({id(c.report): c.report for c in columns}.values())
    if labels is not None and len(labels) != len(columns):
        raise OptionError(f"labels={list(labels)!r}: one for each of the {len(columns)} reports is accepted")
    default = [c.label or label for c, label in zip(columns, _labels([c.report for c in columns]), strict=True)]
    called = labels if labels is not None else _numbered(default)
    columns = [replace(c, label=label) for c, label in zip(columns, called, strict=True)]
    if len(columns) == 1 if as_written is None else as_written and not any(c.as_written for c in columns):
        columns.insert(0, Column(AS_WRITTEN, read[0], True))
    if against is not None:
        first = next((c for c in columns if c.label == against), None)
        if first is None:
            raise OptionError(f"against={against!r}: one of {', '.join(repr(c.label) for c in columns)} is accepted")
        columns.remove(first)
        columns.insert(0, first)
    by, rows = rows_of(columns)
    return Comparison(tuple(columns), by, tuple(rows), tuple(_statements(read, by, rows)))


@dataclass(frozen=True)
class _StoredColumn:
    """A column in a comparison's JSON; `report` is the place of its report."""

    label: str
    report: int
    as_written: bool = False


def _columns(given: Any, i: int) -> list[Column]:
    """The programs for which an argument of `compare` stands. Those of reports have no label yet."""
    found: Any = getattr(given, "report", given)
    if isinstance(found, str | Path):
        data, where = read_source(found)
        if isinstance(data, Mapping) and str(data.get("schema", "")).startswith("relax_eg.comparison/"):  # type: ignore[reportUnknownMemberType]
            return _stored_columns(data, f"{where}: " if where else "")  # type: ignore[reportUnknownArgumentType]
        found = CostReport.from_data(data, where)
    if isinstance(found, CostReport):
        return [Column("", found)]
    if isinstance(found, Comparison):
        return list(found.columns)
    raise OptionError(
        f"compare(): argument {i + 1} is a {type(given).__name__}; a CostReport, what optimize returned, or the path "
        "of a report's JSON is accepted, or a comparison of these"
    )


def _stored_columns(data: Mapping[str, Any], named: str) -> list[Column]:
    """The columns of a comparison's JSON. Its rows are not read: they follow from the reports."""
    check_schema(data, SCHEMA, named)
    try:
        stored: Sequence[_StoredColumn] = read_record(tuple[_StoredColumn, ...], data.get("columns"), "columns")
        every: Sequence[Any] = read_record(tuple[Any, ...], data.get("reports"), "reports")
        if not stored or any(not 0 <= c.report < len(every) for c in stored):
            raise Mismatch(f"columns name reports other than the {len(every)} that there are")
    except Mismatch as e:
        raise OptionError(f"{named}a damaged comparison: {e}") from None
    reports = [CostReport.from_data(r, f"{named}reports[{i}]") for i, r in enumerate(every)]
    return [Column(c.label, reports[c.report], c.as_written) for c in stored]


def _labels(reports: Sequence[CostReport]) -> list[str]:
    """A label for each report, made of the properties in which the reports differ."""
    facets: list[list[str]] = [
        [r.name for r in reports],
        [r.target for r in reports],
        [binding_text(r.at) for r in reports],
        [r.execution for r in reports],
        [r.rule_set for r in reports],
        [f"release {r.versions.get('relax-eg', 'unknown')}" for r in reports],
    ]
    differing = [f for f in facets if len(set(f)) > 1] or [facets[1]]
    found = [", ".join(f[i] for f in differing if f[i]) or f"report {i + 1}" for i in range(len(reports))]
    if len(reports) == 1:
        return ["chosen"]
    return found


def _numbered(labels: Sequence[str]) -> list[str]:
    """The labels, with a number after those that several have."""
    every, seen, found = Counter(labels), Counter[str](), list[str]()
    for label in labels:
        seen[label] += 1
        found.append(f"{label} ({seen[label]})" if every[label] > 1 else label)
    return found


def _statements(reports: Sequence[CostReport], by: str, rows: Sequence[AlignedRow]) -> list[str]:
    """Statements about what can be compared and what cannot."""
    found: list[str] = []
    names = list(dict.fromkeys(r.name for r in reports))
    signatures = list(dict.fromkeys(r.signature for r in reports if r.signature))
    if len(names) > 1:
        shown = " and ".join(names) if len(names) == 2 else f"{len(names)} programs"
        found.append(
            f"these are reports of different programs ({shown}): totals can be compared, and kernels only where they "
            "share a source line"
        )
    elif len(signatures) > 1:
        found.append(f"{names[0]} has {len(signatures)} signatures in these reports: other shapes, or another function")
    if by == "operator":
        old = [r for r in reports if r.before.rows and not r.before.parts]
        releases = ", ".join(dict.fromkeys(r.versions.get("relax-eg", "unknown") for r in old))
        why = f"a report of release {releases} has none" if old else "a report has none"
        found.append(f"compared by operator, not by source line: {why}")
    common = [r for r in rows if all(r.parts)]
    if not common and len(reports) > 1 and rows:
        found.append(
            f"no kernel is for the same {'source line' if by == 'line' else 'operator'} in all of them: only totals "
            "can be compared"
        )
    execution = list(dict.fromkeys(r.execution for r in reports))
    if len(execution) > 1:
        ways = ", ".join(execution)
        found.append(f"prices are of different ways to execute ({ways}): times can be compared, launches cannot")
    assumed = [r for r in reports if r.assumed_at]
    if assumed:
        found.append(
            f"sizes were assumed, not given, in {len(assumed)} of {len(reports)}: {binding_text(assumed[0].at)}"
        )
    if unproved := [r for r in reports if r.not_proved]:
        from relax_eg.reports.text import not_proved

        found += dict.fromkeys(f"{r.name} {not_proved(r)}" for r in unproved)
    newer = [r for r in reports if r.more is not None]
    if newer:
        found.append(f"{len(newer)} of {len(reports)} hold fields that this release does not know; they are kept as is")
    return found
