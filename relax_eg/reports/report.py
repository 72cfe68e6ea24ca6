"""The cost report: the chosen program, its cost, and why the search stopped; as text for people and JSON for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from relax_eg.argument_checks import PATH, accepts
from relax_eg.errors import OptionError
from relax_eg.extract.family_rows import FamilyRow, VariantRow
from relax_eg.extract.footprint import MemoryRow
from relax_eg.extract.learned import Expected
from relax_eg.extract.report import (
    AtSizes,
    Curve,
    DeviceRow,
    GrowthRow,
    KernelRow,
    LibraryRow,
    MeasuredRow,
    OpaqueCall,
    ProgramCost,
    RuleRow,
    RunnerUp,
    SelectedRow,
)
from relax_eg.plain_data import Mismatch, read_record
from relax_eg.reports.roofline import Roofline, roofline
from relax_eg.reports.serialization import check_schema, read_source, restore_unknown_fields, unknown_fields, write_text
from relax_eg.reports.spread import SpreadReport

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

SCHEMA = "relax_eg.report/1"  # given: name and version of the format


@dataclass(frozen=True)
class CostReport:
    """What `optimize` did to a program. `print` it, show it in a notebook, write it with `to_html` or `to_json`, or
    compare it with others (`relax_eg.compare`). `to_json` and `from_json` keep fields of newer releases.

    - `before`, `after`: costs of the program as written and of the chosen program, priced by the same model at `at`.
    - `rules`: for each rule that made nodes of the chosen program, their number.
    - `matches`: for each rule, its matches during saturation.
    - `searched`: what each rule did during saturation.
    - `nodes`: e-nodes of all e-graphs at the end.
    - `peak`: e-nodes of the largest e-graph at its largest.
    - `cached`: whether the report comes from the disk cache; only `seconds` is then from this run.
    - `selected`: for each function, how its program was chosen, and how near it is to the best of its candidates.
    - `runner_up`: the program that came closest to the chosen one; None if there is no other program.
    - `searched_for`: the search that found the program, and how the program is compiled.
    - `compiler_options`: options with which XLA compiles the program, besides the usual ones.
    - `measured`: times from `measure=k` at each binding of this report, or of the first calls (`measure`) at their
      sizes; the program as written first.
    - `execution`: how the program is executed: "whole", "kernels" or "in steps".
    - `kernels`: the kernels that hold several operators, if the program is executed in kernels.
    - `libraries`: the library routines that the program calls, and those that were missing.
    - `device`: the parameters of the device for a roofline.
    - `growth`: the e-graphs by round.
    - `unproved`: guards that were neither proved nor refuted, so that their rules did not fire.
    - `others`: the costs of both programs at the other bindings of `at=[...]`.
    - `curves`: cost over a size, by variant.
    - `signature`: parameters and result of the function, which distinguish reports of different programs.
    - `rule_set`: the allowed rules, by the name of their set.
    - `code`: the text of the source lines, as far as it is known.
    - `at_exact_sizes`: the parts of a function with symbolic sizes that cannot run at capacity, with the reasons.
    - `family`, `variants`: how a family of programs was found, and which of its programs serves which sizes.
    - `extracted_at`: the sizes for which this variant was chosen.
    - `expressions`: for both programs: flops, bytes, launches, bytes of workspace and prepared bytes as expressions of
      the sizes.
    - `memory`: how `memory_limit` was kept.
    - `executions`: with `execution="auto"`: by execution, the least predicted seconds of a call among the programs that
      were compared.
    - `expected`: the predicted gain of a call with its interval; None if the program is kept as written.
    - `not_proved`: the user's rules among `rules` that no proof covers, each with its line and what is known of it.
    - `language`: what became of recursion, function values and data, by function.
    - `spread`: how the program is spread over a mesh of devices; None on one device. `after` is then that of a device,
      computing and sending.
    - `more`: the fields of a newer release that this release does not know; None if there are none.
    """

    name: str
    target: str
    execution: str
    at: Mapping[str, int]
    before: ProgramCost
    after: ProgramCost
    rules: Mapping[str, int]
    matches: Mapping[str, int]
    numerics: tuple[str, ...]
    stop: str
    nodes: int
    rounds: int
    seconds: Mapping[str, float]
    kept_as_written: bool
    assumed_at: bool = False
    opaque: tuple[OpaqueCall, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    searched: tuple[RuleRow, ...] = ()
    peak: int = 0
    cached: bool = False
    selected: tuple[SelectedRow, ...] = ()
    runner_up: RunnerUp | None = None
    measured: tuple[MeasuredRow, ...] = ()
    searched_for: str = ""
    compiler_options: Mapping[str, str] = field(default_factory=dict[str, str])
    kernels: tuple[KernelRow, ...] = ()
    libraries: tuple[LibraryRow, ...] = ()
    device: DeviceRow | None = None
    growth: tuple[GrowthRow, ...] = ()
    unproved: tuple[str, ...] = ()
    others: tuple[AtSizes, ...] = ()
    curves: tuple[Curve, ...] = ()
    signature: str = ""
    rule_set: str = ""
    at_exact_sizes: Mapping[str, str] = field(default_factory=dict[str, str])
    code: Mapping[str, str] = field(default_factory=dict[str, str])
    family: FamilyRow | None = None
    variants: tuple[VariantRow, ...] = ()
    extracted_at: Mapping[str, int] = field(default_factory=dict[str, int])
    expressions: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    memory: MemoryRow | None = None
    executions: Mapping[str, float] = field(default_factory=dict[str, float])
    not_proved: Mapping[str, str] = field(default_factory=dict[str, str])
    language: Mapping[str, str] = field(default_factory=dict[str, str])
    expected: Expected | None = None
    spread: SpreadReport | None = None
    more: Any = field(default=None, compare=False, repr=False)

    @property
    def predicted_gain(self) -> float:
        """The predicted time of the program as written divided by that of the chosen program. With `execution="auto"`
        it is the time of a call, because the two may be dispatched in different ways."""
        before, after = self.before, self.after
        times = (before.call, after.call) if self.executions else (before.seconds, after.seconds)
        return times[0] / times[1] if times[1] > 0 else 1.0

    @property
    def roofline(self) -> Roofline | None:
        """The chosen program in the roofline model; None if the report has no parameters of the device."""
        return roofline(self.after, self.device) if self.device is not None else None

    def at_each(self) -> list[CostReport]:
        """One report for each binding of `at=[...]`; the first is this report without `others`. All share the data of
        the search."""
        here = replace(self, others=())
        return [here, *(replace(here, at=o.at, before=o.before, after=o.after) for o in self.others)]

    def kernel_table(self) -> RenderableType:
        """A table of the kernels that a call runs with their operators: library calls, fused kernels and the savings of
        fusion, and kernels of one operator. The views are below it."""
        from relax_eg.reports.kernels import kernel_table

        return kernel_table(self)

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for JSON, with a schema version (the schema is in `relax_eg.reports.schema`)."""
        data: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        del data["more"]
        for side in ("before", "after"):
            data[side]["total"] = _total(getattr(self, side))
        data["predicted_gain"] = self.predicted_gain
        return restore_unknown_fields(data, self.more)

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
        from relax_eg.reports.compare import compare

        return compare(self).to_html(path, derivation)

    def _repr_html_(self) -> str:
        from relax_eg.reports.compare import compare
        from relax_eg.reports.html import notebook_of_comparison

        return notebook_of_comparison(compare(self))

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


def _total(cost: ProgramCost) -> dict[str, float]:
    return {k: getattr(cost, k) for k in ("count", "flops", "bytes", "launches", "seconds")}
