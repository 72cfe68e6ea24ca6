"""`compare` compares any number of cost reports: what got better or worse, and by which rule or choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_eg.argument_checks import FLAG, NONE, TEXT, accepts, sequence_of
from relax_eg.errors import OptionError
from relax_eg.plain_data import Mismatch, read_record
from relax_eg.reports.align import AlignedPrograms, Column, aligned
from relax_eg.reports.report import CostReport
from relax_eg.reports.serialization import check_schema, read_source, write_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SCHEMA = "relax_eg.comparison/1"


@dataclass(frozen=True)
class Comparison(AlignedPrograms):
    """A comparison of reports. `print` it, show it in a notebook, or call `to_html(path)` or `to_json(path)`."""

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
    found = aligned([c for i, r in enumerate(reports) for c in _columns(r, i)], labels, against, as_written)
    return Comparison(found.columns, found.by, found.rows, found.statements)


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
