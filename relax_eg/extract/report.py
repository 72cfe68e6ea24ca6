"""What reports are made of: rows on operators, kernels, libraries, rules and choices; and the price of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from relax_eg.debug import stage
from relax_eg.extract import figures
from relax_eg.extract.cost import WholeCost, priced
from relax_eg.extract.detail import Memory, Part
from relax_eg.extract.numbers import whole
from relax_eg.extract.profile import Profile
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr
from relax_eg.ir.module import Function


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
    is paid once a call, and is in no row. In reports also `parts`, the same cost by kernel, source line and rule;
    `memory`, what is alive when; and `call`, seconds of a whole call with its dispatch."""

    rows: tuple[OperatorRow, ...]
    prepared_values: int = 0
    prepared_bytes: int = 0
    wakes: bool = False
    parts: tuple[Part, ...] = ()
    memory: Memory | None = None
    call: float = 0.0

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
class DeviceRow:
    """What a roofline needs of the device: peak flop/s of matmuls by dtype and of elementwise code, bytes/s of memory
    and of cache, seconds to launch a kernel and to dispatch a call."""

    name: str
    platform: str
    calibrated: bool
    matmul_rate: Mapping[str, float]
    vector_rate: float
    bandwidth: float
    cache_bandwidth: float
    cache_bytes: float
    launch: float
    dispatch: float

    @staticmethod
    def of(p: Profile) -> DeviceRow:
        rates = dict(p.matmul_rate), p.vector_rate, p.bandwidth, p.cache_bandwidth, p.cache_bytes
        return DeviceRow(p.name, p.platform, p.calibrated, *rates, p.launch, p.dispatch)

    def rate(self, dtype: str) -> float:
        """Peak flop/s of a matmul of this dtype."""
        return self.matmul_rate.get(dtype, self.matmul_rate["float32"])


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """One round of a search: the function whose e-graph it was, the phase, nodes after it, and its matches. Round 0 is
    the e-graph as it was made."""

    function: str
    round: int
    phase: str
    nodes: int
    matches: int


@dataclass(frozen=True, slots=True)
class AtSizes:
    """The program as written and the chosen one, priced at a binding."""

    at: Mapping[str, int]
    before: ProgramCost
    after: ProgramCost


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of one program over the sizes of a curve; None outside of the sizes it serves."""

    label: str
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Crossover:
    """From `size` on, another program is the cheaper one."""

    size: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Predicted cost over one size variable, all others as in `at`, for several programs: the variants of a family, or
    the program as written beside the chosen one."""

    variable: str
    at: Mapping[str, int]
    sizes: tuple[int, ...]
    series: tuple[Series, ...]
    crossovers: tuple[Crossover, ...] = ()


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
        replaced = figures.counted(self.operators, "operator")
        return f"library {self.name}{version}: {figures.counted(self.calls, 'call')}, in place of {replaced}"


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
    or, where several bindings are weighed, the sum over them in units of the program as written. `fewer`: how much the
    choice owes to how many candidates were kept: (of each value so many, the share that the best program found among
    these costs more); empty where that was not looked into."""

    function: str
    how: str
    cost: float
    bound: float
    candidates: int
    fewer: tuple[tuple[int, float], ...] = ()

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
        return f"{self.label} {figures.time(self.seconds)}, {ratio}" + (", chosen" if self.chosen else "")


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
        shown = figures.time if self.in_seconds else figures.share
        reasons = ", ".join(f"{op} {shown(y)} in place of {shown(x)}" for op, x, y in self.why)
        if reasons and not self.in_seconds:
            reasons += " of the program as written"
        return f"runner-up in {self.function}: {how}, {costs}" + (f": {reasons}" if reasons else "")


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
    made = [OperatorRow(op, int(r[0]), whole(r[1]), whole(r[2]), whole(r[3]), r[4]) for op, r in rows.items()]
    return ProgramCost(tuple(sorted(made, key=lambda r: (-r.seconds, r.op))), *prepared, wakes)


def _add_rows(
    rows: dict[str, list[float]], function: Function, model: WholeCost, skip: set[Expr] | None, times: float
) -> bool:
    """Adds what a function costs to `rows`; whether it wakes other cores."""
    wakes = False
    for node in priced(function, model, skip):
        e, cost = node.node, node.cost
        wakes = wakes or cost.wakes
        total = (1, cost.flops * times, cost.bytes * times, cost.launches * times, cost.seconds * times)
        inside: dict[str, list[float]] = {}
        for callee, n, inner in node.runs:
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
