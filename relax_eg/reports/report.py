"""The cost report: the chosen program, its cost, and why the search stopped; as text for people and JSON for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from relax_eg.argument_checks import PATH, accepts
from relax_eg.errors import OptionError
from relax_eg.plain_data import Mismatch, read_record
from relax_eg.reports.record import SCHEMA, ReportRecord
from relax_eg.reports.serialization import check_schema, read_source, unknown_fields, write_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


@dataclass(frozen=True)
class CostReport(ReportRecord):
    """What `optimize` did to a program. `print` it, show it in a notebook, write it with `to_html` or `to_json`, or
    compare it with others (`relax_eg.compare`). `to_json` and `from_json` keep fields of newer releases.
    """

    def kernel_table(self) -> RenderableType:
        """A table of the kernels that a call runs with their operators: library calls, fused kernels and the savings of
        fusion, and kernels of one operator. The views are below it."""
        from relax_eg.reports.kernels import kernel_table

        return kernel_table(self)

    @staticmethod
    def from_data(data: Any, where: str = "") -> CostReport:
        """The report from the plain data that `as_data` returned; keeps fields that this release does not know.

        OptionError if the data is not a report or this release cannot read it; `where` names the data in the message.
        """
        named = f"{where}: " if where else ""
        if not isinstance(data, Mapping) or "schema" not in data:
            raise OptionError(
                f"{named}no report; what `report.to_json` or `relax-eg optimize --json` wrote is accepted"
            )
        given = cast("Mapping[str, Any]", data)
        check_schema(given, SCHEMA, named)
        try:
            report: CostReport = read_record(CostReport, {k: v for k, v in given.items() if k != "more"}, "report")
            for curve in report.curves:
                if any(len(s.seconds) != len(curve.sizes) for s in curve.series):
                    raise Mismatch(f"a curve over {curve.variable} has other numbers of sizes and of costs")
            _check_amounts(report)
        except Mismatch as e:
            raise OptionError(f"{named}a damaged report: {e}") from None
        return replace(report, more=unknown_fields(given, report.as_data()))

    @staticmethod
    @accepts(source=PATH)
    def from_json(source: str | Path) -> CostReport:
        """The report from a JSON text (it begins with `{`) or from a file. OptionError if it cannot be read."""
        return CostReport.from_data(*read_source(source))

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON with a schema version; also written to `path` if given."""
        data = json.dumps(self.as_data(), indent=2)
        write_text(data + "\n", path)
        return data

    def to_html(self, path: str | Path | None = None, derivation: object = "") -> str:
        """The chosen program beside the one as written, as `Comparison.to_html`."""
        from relax_eg.reports.align import Column, aligned
        from relax_eg.reports.html import page_of_comparison

        return page_of_comparison(aligned([Column("", self)]), path, str(derivation))

    def _repr_html_(self) -> str:
        from relax_eg.reports.align import Column, aligned
        from relax_eg.reports.html import notebook_of_comparison

        return notebook_of_comparison(aligned([Column("", self)]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from relax_eg.reports.text import report

        yield from report(self)

    def __str__(self) -> str:
        from relax_eg.reports.terminal import rendered_text

        return rendered_text(self)


def _check_amounts(report: CostReport) -> None:
    """Mismatch if a cost is negative, if a rate of the device is not positive, or if the device has no float32 rate."""
    for cost in (report.before, report.after, *(c for o in report.others for c in (o.before, o.after))):
        for row in (*cost.rows, *cost.parts):
            if min(row.flops, row.bytes, row.launches, row.seconds) < 0:
                raise Mismatch(f"a row of costs has less than nothing: {row!r:.200}")
    d = report.device
    if d is not None and (
        "float32" not in d.matmul_rate
        or min(d.vector_rate, d.bandwidth, d.cache_bandwidth, d.cache_bytes, *d.matmul_rate.values()) <= 0
    ):
        raise Mismatch("report.device: rates > 0 are accepted, and one of float32 among those of matmuls")
