"""The record of a cost report: the data that texts, tables and pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from relax_eg.extract.family_rows import FamilyRow, VariantRow
from relax_eg.extract.footprint import MemoryRow
from relax_eg.extract.profiles.learned import Expected
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
from relax_eg.reports.roofline import Roofline, roofline
from relax_eg.reports.serialization import restore_unknown_fields
from relax_eg.reports.spread import SpreadReport

SCHEMA = "relax_eg.report/1"  # given: name and version of the format


@dataclass(frozen=True)
class ReportRecord:
    """The data of a `CostReport`.

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
    - `refused`: by rule, the candidates that were refused because the program would have lost accuracy.
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
    refused: Mapping[str, int] = field(default_factory=dict[str, int])
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

    def at_each(self) -> list[Self]:
        """One report for each binding of `at=[...]`; the first is this report without `others`. All share the data of
        the search."""
        here = replace(self, others=())
        return [here, *(replace(here, at=o.at, before=o.before, after=o.after) for o in self.others)]

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for JSON, with a schema version (the schema is docs/report.schema.json)."""
        data: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        del data["more"]
        for side in ("before", "after"):
            data[side]["total"] = _total(getattr(self, side))
        data["predicted_gain"] = self.predicted_gain
        return restore_unknown_fields(data, self.more)


def _total(cost: ProgramCost) -> dict[str, float]:
    return {k: getattr(cost, k) for k in ("count", "flops", "bytes", "launches", "seconds")}
