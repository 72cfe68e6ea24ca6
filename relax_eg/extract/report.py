"""The cost report: what was chosen, what it costs, and why saturation stopped. Text for people, JSON for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from relax_eg.debug import stage
from relax_eg.errors import OptionError
from relax_eg.extract.cost import WholeCost, priced
from relax_eg.extract.footprint import MemoryRow
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr
from relax_eg.ir.module import Function
from relax_eg.ops import site_of

SCHEMA = "relax_eg.report/1"
MOST_RULES = 3  # rules whose work in the search is told in the text; the JSON has all


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator's share of a program: how often it occurs, flops, bytes moved, kernel launches, seconds."""

    op: str
    count: int
    flops: int
    bytes: int
    launches: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """A program priced at a binding, by operator (dearest first) and in total. `prepared_values` and `prepared_bytes`:
    what is computed once from the weights, and is not in the rows; `wakes`: whether a kernel wakes other cores, which
    is paid once a call, and is in no row."""

    rows: tuple[OperatorRow, ...]
    prepared_values: int = 0
    prepared_bytes: int = 0
    wakes: bool = False

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> ProgramCost:
        rows = tuple(OperatorRow(**row) for row in data["rows"])
        return ProgramCost(rows, data["prepared_values"], data["prepared_bytes"], data["wakes"])

    @property
    def count(self) -> int:
        return sum(r.count for r in self.rows)

    @property
    def flops(self) -> int:
        return sum(r.flops for r in self.rows)

    @property
    def bytes(self) -> int:
        return sum(r.bytes for r in self.rows)

    @property
    def launches(self) -> int:
        return sum(r.launches for r in self.rows)

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.rows)


@dataclass(frozen=True, slots=True)
class Opaque:
    """A call the optimizer cannot see into, and the user's line it came from ("" where unknown)."""

    name: str
    source: str
    count: int


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """A library routine that the program calls, or one that it might call but for `why`: its version, how many calls,
    and how many operators these stand for."""

    name: str
    version: str
    calls: int
    operators: int
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"library {self.name} is not used: {self.why}"
        version = f" ({self.version})" if self.version else ""
        return f"library {self.name}{version}: {self.calls} calls, in place of {self.operators} operators"


@dataclass(frozen=True, slots=True)
class RuleRow:
    """What a rule did in the search: matches, nodes it was the first to make, milliseconds (to about one). `left_out`:
    why it was not let loose any more; "" for a rule that always ran."""

    rule: str
    matches: int
    nodes: int
    milliseconds: float
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class SelectedRow:
    """How a function's program was chosen: "greedy" (greedy choices and swap search), "ilp" (the exact search stopped
    early) or "proved optimal". `cost`, and `bound` below which no choice of the `candidates` kept can cost: seconds,
    or, where several bindings are weighed, the sum over them in units of the program as written."""

    function: str
    how: str
    cost: float
    bound: float
    candidates: int

    @property
    def gap(self) -> float:
        """How much cheaper a choice could be at best, as a share of the cost."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel that holds several operators, and `times` how often its function has it. `steps`: how often each fusion
    step was used for it. `bytes` it moves, and `saved_bytes`, `saved_launches` what its operators one by one would
    move and launch besides, at the first of `at`."""

    function: str
    name: str
    operators: tuple[str, ...]
    steps: Mapping[str, int]
    times: int
    bytes: int
    saved_bytes: int
    saved_launches: int

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> KernelRow:
        """The row that `asdict` gave as plain data."""
        given: dict[str, Any] = {**data, "operators": tuple(data["operators"])}
        return KernelRow(**given)


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A program that was timed: predicted seconds, median seconds of a call, and how many times faster it is than the
    program as written, with its interval: those of all rows at `at` hold the true medians with 95%."""

    label: str
    predicted: float
    seconds: float
    speedup: float
    low: float
    high: float
    chosen: bool = False
    at: Mapping[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        ratio = f"{self.speedup:.2f} ({self.low:.2f} to {self.high:.2f})"
        return f"{self.label} {_time(self.seconds)}, {ratio}" + (", chosen" if self.chosen else "")


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The program that came second, in one function, and why it lost: it does `without` a rule that the chosen one
    needs, or computes one value more by `with_rule` (both "": one value more as written); or, where the program was
    kept as written, what the search found, `with_rule` all its rules. `extra`: what it costs more, a share of the
    chosen one's cost. `why`: the operators whose cost differs most, each with its cost in the chosen
    program and in this one, in the units of `SelectedRow`: `in_seconds`, or as a share of the program as written."""

    function: str
    without: str
    with_rule: str
    extra: float
    why: tuple[tuple[str, float, float], ...] = ()
    in_seconds: bool = True

    def __str__(self) -> str:
        how = f"without {self.without}" if self.without else f"with {self.with_rule or 'one value more as written'}"
        if self.extra < 0:
            costs = f"{-100 * self.extra:.3g}% cheaper as predicted, which is less than is asked for"
        else:
            costs = f"{100 * self.extra:.3g}% dearer"
        shown = _time if self.in_seconds else _share
        reasons = ", ".join(f"{op} {shown(y)} in place of {shown(x)}" for op, x, y in self.why)
        if reasons and not self.in_seconds:
            reasons += " of the program as written"
        return f"runner-up in {self.function}: {how}, {costs}" + (f": {reasons}" if reasons else "")


@dataclass(frozen=True)
class CostReport:
    """What `optimize` did to a program. `print` it, or `to_json` it.

    `before` and `after` are priced by the same model at `at`; `rules` counts, for each rule that made a node of the
    chosen program, how many; `matches` all matches during saturation, and `searched` what each rule did there. `nodes`:
    of all e-graphs at the end; `peak`: of the largest at its largest. `cached`: all this comes from the disk cache,
    and only `seconds` is of this run. `selected`: how each function's program was chosen, and how near the best of its
    candidates it is; `runner_up`: the program that came closest to it (None: there is no other);
    `searched_for`: what search found the program, and how it is compiled; `compiler_options`: what XLA compiles it with
    beside its usual options; `measured`: what `measure=k` timed at each of the bindings that this report is for, the
    program as written first; `kernels`: with `execution="kernels"`, those that hold several operators; `libraries`: the
    routines that it calls, and those that were missing; `memory`: how `memory_limit` was kept.
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
    memory: MemoryRow | None = None

    @property
    def predicted_gain(self) -> float:
        """Predicted time before, divided by after."""
        return self.before.seconds / self.after.seconds if self.after.seconds > 0 else 1.0

    def kernel_table(self) -> Table:
        """The kernels that hold several operators: which, and what putting them together saves."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("kernel", overflow="fold")
        table.add_column("operators", overflow="fold")
        for column in ("times", "bytes", "bytes saved", "launches saved"):
            table.add_column(column, justify="right")
        for r in self.kernels:
            name = r.name if r.function == self.name else f"{r.name} in {r.function}"
            figures = str(r.times), _si(r.bytes), _si(r.saved_bytes), str(r.saved_launches)
            table.add_row(name, ", ".join(r.operators), *figures)
        return table

    def as_data(self) -> dict[str, Any]:
        """The report as plain data for JSON, with a schema version."""
        data: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        for side in ("before", "after"):
            cost: ProgramCost = getattr(self, side)
            totals = {k: getattr(cost, k) for k in ("count", "flops", "bytes", "launches", "seconds")}
            data[side] = {**asdict(cost), "total": totals}
        return data | {"predicted_gain": self.predicted_gain}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> CostReport:
        """The report that gave this `as_data`. OptionError where it is of another schema."""
        if data.get("schema") != SCHEMA:
            raise OptionError(f"a report of schema {data.get('schema')!r}; {SCHEMA!r} is accepted")
        known = {f.name for f in fields(CostReport)}
        more: dict[str, Any] = {k: ProgramCost.from_data(data[k]) for k in ("before", "after")}
        more["opaque"] = tuple(Opaque(**row) for row in data["opaque"])
        more["numerics"] = tuple(data["numerics"])
        more["searched"] = tuple(RuleRow(**row) for row in data.get("searched", ()))
        more["libraries"] = tuple(LibraryRow(**row) for row in data.get("libraries", ()))
        more["selected"] = tuple(SelectedRow(**row) for row in data.get("selected", ()))
        more["measured"] = tuple(MeasuredRow(**row) for row in data.get("measured", ()))
        more["kernels"] = tuple(KernelRow.from_data(row) for row in data.get("kernels", ()))
        more["memory"] = MemoryRow(**data["memory"]) if data.get("memory") else None
        if data.get("runner_up") is not None:
            second: dict[str, Any] = dict(data["runner_up"])
            second["why"] = tuple((op, x, y) for op, x, y in second["why"])
            more["runner_up"] = RunnerUp(**second)
        return CostReport(**{k: v for k, v in data.items() if k in known} | more)

    @staticmethod
    def from_json(text: str) -> CostReport:
        """The report of this JSON text. OptionError where it is of another schema."""
        return CostReport.from_data(json.loads(text))

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON with a schema version; also written to `path` if given."""
        text = json.dumps(self.as_data(), indent=2)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text + "\n")
        return text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sizes = ", ".join(f"{k}={v}" for k, v in self.at.items())
        title = f"{self.name}   {self.target}, {self.execution}" + (f", at {sizes}" if sizes else "")
        yield Text(title + (" (sizes assumed: none were given)" if self.assumed_at else ""), style="bold")
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("")
        for column in ("as written", "chosen", "ratio"):
            table.add_column(column, justify="right")
        b, a = self.before, self.after
        for label, x, y, show in (
            ("operators", b.count, a.count, _plain),
            ("kernel launches", b.launches, a.launches, _plain),
            ("flops", b.flops, a.flops, _si),
            ("bytes moved", b.bytes, a.bytes, _si),
            ("predicted time", b.seconds, a.seconds, _time),
        ):
            table.add_row(label, show(x), show(y), f"{x / y:.2f}" if y else "")
        if a.prepared_bytes:
            table.add_row("prepared from weights", "", f"{_si(a.prepared_bytes)}B", "")
        yield table
        yield _operators(b, a)
        for line in self._notes():
            yield Text(line)

    def _notes(self) -> list[str]:
        fired = ", ".join(f"{k} x{v}" for k, v in self.rules.items()) or "none that the chosen program needs"
        lines = [f"rules used: {fired}"]
        if self.kept_as_written:
            why = "was measured to be faster" if self.measured else "was predicted to be more than 5% faster"
            lines.append(f"kept as written: no program {why}")
        bindings = list({str(r.at): r.at for r in self.measured}.values())
        for at in bindings:
            sizes = f" at {', '.join(f'{v}={n}' for v, n in at.items())}" if len(bindings) > 1 else ""
            lines.append(f"measured{sizes}: " + "; ".join(str(r) for r in self.measured if r.at == at))
        if self.measured or self.compiler_options:
            told = ", ".join(f"{k}={v!r}" for k, v in self.compiler_options.items()) or "as usual"
            lines.append(f"compiler options: {told}")
        if self.selected:
            lines.append(_selection(self.selected))
        if self.memory is not None:
            lines.append(str(self.memory))
        if self.runner_up is not None:
            lines.append(str(self.runner_up))
        if self.after.prepared_values:
            lines.append(
                f"weights: {self.after.prepared_values} values are computed from them once, ahead of the calls"
            )
        if self.kernels:
            lines.append(_fused(self.kernels))
        if self.cached:
            lines.append("served from the disk cache; the search was made earlier:")
        total = sum(self.matches.values())
        lines.append(
            f"e-graph: {self.nodes} nodes, {total} rule matches, {self.rounds} rounds, stopped: {self.stop}; "
            f"numerics: {', '.join(self.numerics) or 'exact'}"
        )
        busiest = sorted(self.searched, key=lambda r: (-r.nodes, -r.matches, r.rule))[:MOST_RULES]
        if busiest:
            lines.append("busiest rules: " + ", ".join(map(_figures, busiest)))
        lines += [r.left_out for r in self.searched if r.left_out]
        lines += map(str, self.libraries)
        for o in self.opaque:
            where = f" at {o.source}" if o.source else ""
            lines.append(f"opaque: {o.name}{where}" + (f" x{o.count}" if o.count > 1 else "") + " is not looked into")
        return lines

    def __str__(self) -> str:
        console = Console(width=100, no_color=True, highlight=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _selection(rows: Sequence[SelectedRow]) -> str:
    """One line on all functions; those that are not proved optimal by name, the widest gap first."""
    candidates = sum(r.candidates for r in rows)
    open_ = sorted((r for r in rows if r.how != "proved optimal"), key=lambda r: (-r.gap, r.function))
    proved = f"selection among the {candidates} candidates kept: {len(rows) - len(open_)} of {len(rows)} proved optimal"
    shown = [f"{r.function} {r.how}, gap {100 * r.gap:.2g}%" for r in open_[:MOST_RULES]]
    rest = [f"{len(open_) - MOST_RULES} more below"] if len(open_) > MOST_RULES else []
    return "; ".join((proved, *shown, *rest))


def _fused(rows: Sequence[KernelRow]) -> str:
    """One line on all kernels: how many operators are where, what that saves, and how often each step was used."""
    steps: dict[str, int] = {}
    for r in rows:
        for step, n in r.steps.items():
            steps[step] = steps.get(step, 0) + n * r.times
    operators = sum(len(r.operators) * r.times for r in rows)
    saved = sum(r.saved_bytes * r.times for r in rows), sum(r.saved_launches * r.times for r in rows)
    used = ", ".join(f"{step} x{n}" for step, n in sorted(steps.items(), key=lambda kv: (-kv[1], kv[0])))
    return (
        f"fused: {operators} operators in {sum(r.times for r in rows)} kernels, {_si(saved[0])}B and {saved[1]} "
        f"launches less; {used}"
    )


def _figures(r: RuleRow) -> str:
    spent = f", {r.milliseconds:.0f} ms" if r.milliseconds >= 1 else ""
    return f"{r.rule} ({r.matches} matches, {r.nodes} new nodes{spent})"


def _operators(before: ProgramCost, after: ProgramCost, most: int = 8) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("operator")
    for column in ("count", "flops", "bytes", "launches", "time"):
        table.add_column(column, justify="right")
    old = {r.op: r for r in before.rows}
    new = {r.op: r for r in after.rows}
    none = OperatorRow("", 0, 0, 0, 0, 0.0)
    ops = sorted(old.keys() | new.keys(), key=lambda o: (-_dearest(old.get(o), new.get(o)), o))
    for op in ops[:most]:
        x, y = old.get(op, none), new.get(op, none)
        table.add_row(
            op,
            _pair(x.count, y.count, _plain),
            _pair(x.flops, y.flops, _si),
            _pair(x.bytes, y.bytes, _si),
            _pair(x.launches, y.launches, _plain),
            _pair(x.seconds, y.seconds, _time),
        )
    if len(ops) > most:
        table.add_row(f"and {len(ops) - most} more", *[""] * 5, style="dim")
    return table


def _dearest(*rows: OperatorRow | None) -> float:
    return max((r.seconds for r in rows if r is not None), default=0.0)


def _pair(x: float, y: float, show: Any) -> str:
    return show(x) if x == y else f"{show(x)} -> {show(y)}"


def _plain(x: float) -> str:
    return str(int(x))


def _si(x: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(x) >= scale:
            return f"{x / scale:.3g}{unit}"
    return f"{x:.3g}"


def _share(x: float) -> str:
    return f"{100 * x:.3g}%"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


@stage("price")
def price_program(
    function: Function, model: WholeCost, skip: set[Expr] | None = None, prepared: tuple[int, int] = (0, 0)
) -> ProgramCost:
    """`function` priced by operator; nodes in `skip` (run once, on weights) cost nothing. `prepared`: how many values
    the weights phase leaves, and their bytes.

    What a loop or a call runs is in the rows of the operators that do the work, as often as it runs; a row of its own
    has what is left.
    """
    rows: dict[str, list[float]] = {}
    wakes = _add_rows(rows, function, model, skip, 1.0)
    made = [OperatorRow(op, int(r[0]), int(r[1]), int(r[2]), int(r[3]), r[4]) for op, r in rows.items()]
    return ProgramCost(tuple(sorted(made, key=lambda r: (-r.seconds, r.op))), *prepared, wakes)


def _add_rows(
    rows: dict[str, list[float]], function: Function, model: WholeCost, skip: set[Expr] | None, times: float
) -> bool:
    """Adds what a function costs to `rows`; whether it wakes other cores."""
    wakes = False
    for e, cost in priced(function, model, skip):
        wakes = wakes or cost.wakes
        total = (1, cost.flops * times, cost.bytes * times, cost.launches * times, cost.seconds * times)
        inside: dict[str, list[float]] = {}
        for callee, n, inner in model.trips(site_of(e)):
            _add_rows(inside, callee, inner, None, times * n)
        for label, row in inside.items():
            _add_to(rows, label, row)
        rest = [x - sum(row[i] for row in inside.values()) for i, x in enumerate(total)]
        label = str(e.attr("name")) if e.op == CALL_DPS_LIBRARY else e.op
        _add_to(rows, label, [1, *(max(0.0, x) for x in rest[1:])])
    return wakes


def _add_to(rows: dict[str, list[float]], label: str, more: list[float]) -> None:
    row = rows.setdefault(label, [0, 0, 0, 0, 0.0])
    for i, x in enumerate(more):
        row[i] += x
