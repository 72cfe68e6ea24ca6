"""The cost report: what was chosen, what it costs, and why the search stopped. Text for people, JSON for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

from relax_eg.accepted import PATH, accepts
from relax_eg.errors import OptionError
from relax_eg.extract.family_rows import FamilyRow, VariantRow
from relax_eg.extract.footprint import MemoryRow
from relax_eg.extract.report import (
    AtSizes,
    Curve,
    DeviceRow,
    GrowthRow,
    KernelRow,
    LibraryRow,
    MeasuredRow,
    Opaque,
    ProgramCost,
    RuleRow,
    RunnerUp,
    SelectedRow,
)
from relax_eg.plain_data import is_count, read_json
from relax_eg.reports import text
from relax_eg.reports.kernels import kernel_table
from relax_eg.reports.plain import Mismatch, left_over, put_back, read, written
from relax_eg.reports.roofline import Roofline, roofline

FAMILY, VERSION = "relax_eg.report", 1
SCHEMA = f"{FAMILY}/{VERSION}"


@dataclass(frozen=True)
class CostReport:
    """What `optimize` did to a program. `print` it, look at it in a notebook, `to_html` or `to_json` it, and compare it
    with others (`relax_eg.compare`).

    `before` and `after` are priced by the same model at `at`; `rules` counts, for each rule that made a node of the
    chosen program, how many; `matches` all matches during saturation, and `searched` what each rule did there. `nodes`:
    of all e-graphs at the end; `peak`: of the largest at its largest. `cached`: all this comes from the disk cache,
    and only `seconds` is of this run. `selected`: how each function's program was chosen, and how near the best of its
    candidates it is; `runner_up`: the program that came closest to it (None: there is no other);
    `searched_for`: what search found the program, and how it is compiled; `compiler_options`: what XLA compiles it with
    beside its usual options; `measured`: what `measure=k` timed at each of the bindings that this report is for, the
    program as written first; `kernels`: with `execution="kernels"`, those that hold several operators; `libraries`: the
    routines that it calls, and those that were missing; `device`: what a roofline needs of it; `growth`: the e-graphs
    round by round; `unproved`: guards of rules that were neither proved nor refuted, so that the rule did not fire;
    `others`: the same prices at the other bindings of `at=[...]`; `curves`: cost over a size, by variant; `signature`:
    parameters and result of the function, by which reports of different programs are told apart; `rule_set`: the rules
    that were allowed, by the name of their set; `code`: what stands at the source lines, as far as is known;
    `at_exact_sizes`: what cannot run at capacity, and why, where the function has symbolic sizes and was asked to.
    Where several programs share the sizes, `family` and `variants` tell how they were found and which serves which,
    and `extracted_at` for which sizes this one was chosen. `expressions`: what both programs do, in the sizes (flops,
    bytes, launches, bytes of workspace and of what is prepared). `memory`: how `memory_limit` was kept. `not_proved`:
    those of `rules` that a user wrote and no proof covers, with the line and what is known of each.

    `to_json` and `from_json` keep fields of newer releases.
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
    opaque: tuple[Opaque, ...] = ()
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
    not_proved: Mapping[str, str] = field(default_factory=dict[str, str])
    more: Any = field(default=None, compare=False, repr=False)

    @property
    def predicted_gain(self) -> float:
        """Predicted time before, divided by after."""
        return self.before.seconds / self.after.seconds if self.after.seconds > 0 else 1.0

    @property
    def roofline(self) -> Roofline | None:
        """Where the chosen program stands between the device's arithmetic and its memory; None where the report does
        not say what the device can do."""
        return roofline(self.after, self.device) if self.device is not None else None

    def at_each(self) -> list[CostReport]:
        """One report for each binding of `at=[...]`, that of the first as it is. What was searched is the same."""
        here = replace(self, others=())
        return [here, *(replace(here, at=o.at, before=o.before, after=o.after) for o in self.others)]

    def kernel_table(self) -> RenderableType:
        """Every kernel that a call runs and the operators in it: library calls, kernels of several operators and what
        putting them together saves, kernels of one; and the views."""
        return kernel_table(self)

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for JSON, with a schema version (`relax_eg.reports.schema` has the schema)."""
        data: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        del data["more"]
        for side in ("before", "after"):
            data[side]["total"] = _total(getattr(self, side))
        data["predicted_gain"] = self.predicted_gain
        return put_back(data, self.more)

    @staticmethod
    def from_data(data: Any, where: str = "") -> CostReport:
        """The report that gave this `as_data`; fields that this release does not know are kept. OptionError where it is
        no report, or one that this release cannot read; `where`: what the error calls it."""
        named = f"{where}: " if where else ""
        if not isinstance(data, Mapping) or "schema" not in data:
            raise OptionError(
                f"{named}no report; what `report.to_json` or `relax-eg optimize --json` wrote is accepted"
            )
        given = cast("Mapping[str, Any]", data)
        family, _, version = str(given["schema"]).partition("/")
        if family == FAMILY and is_count(version) and int(version) > VERSION:
            raise OptionError(
                f"{named}a report of schema {given['schema']!r}, which a newer release of relax-eg wrote; {SCHEMA!r} "
                "is accepted: upgrade relax-eg, or write the report again with this release"
            )
        if given["schema"] != SCHEMA:
            raise OptionError(f"{named}a report of schema {given['schema']!r}; {SCHEMA!r} is accepted")
        try:
            report: CostReport = read(CostReport, {k: v for k, v in given.items() if k != "more"}, "report")
            for curve in report.curves:
                if any(len(s.seconds) != len(curve.sizes) for s in curve.series):
                    raise Mismatch(f"a curve over {curve.variable} has other numbers of sizes and of costs")
            _check_amounts(report)
        except Mismatch as e:
            raise OptionError(f"{named}a damaged report: {e}") from None
        return replace(report, more=left_over(given, report.as_data()))

    @staticmethod
    @accepts(source=PATH)
    def from_json(source: str | Path) -> CostReport:
        """The report in a JSON text (it begins with `{`), or in a file. OptionError where there is none."""
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        where = "" if is_text else str(source)
        try:
            found = read_json(str(source) if is_text else Path(source).read_bytes())
        except OSError as e:
            raise OptionError(f"{where} cannot be read: {e.strerror or e}") from None
        except ValueError as e:
            named = where or "the text"
            raise OptionError(f"{named} is not whole JSON ({e}); was it cut off? Write the report again") from None
        return CostReport.from_data(found, where)

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON with a schema version; also written to `path` if given."""
        told = json.dumps(self.as_data(), indent=2)
        written(told + "\n", path)
        return told

    def to_html(self, path: str | Path | None = None, derivation: object = "") -> str:
        """The report as one HTML file that needs nothing else; also written to `path` if given. `derivation`: what
        `best.explain()` returned, to be shown too."""
        from relax_eg.reports.html import page_of_report

        return page_of_report(self, path, str(derivation))

    def _repr_html_(self) -> str:
        from relax_eg.reports.html import notebook_of_report

        return notebook_of_report(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from text.report(self)

    def __str__(self) -> str:
        return text.printed(self)


def _check_amounts(report: CostReport) -> None:
    """Mismatch unless costs are amounts, and the device does something in a second."""
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
