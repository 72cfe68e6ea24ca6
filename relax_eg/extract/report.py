"""Rows of reports on operators, kernels, libraries, rules and choices, and the price of a program by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from relax_eg import figures
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.detail import KernelPart, Memory
from relax_eg.extract.costs.numbers import gap, truncate
from relax_eg.extract.costs.walk import figures_by_key, own_costs
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr
from relax_eg.ir.module import Function
from relax_eg.logs import stage

AS_WRITTEN = "as written"  # the label of a user's program among the programs of a report


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """The share of one operator in a program.

    - `op`: the name of the operator.
    - `count`: how often the operator occurs.
    - `flops`: flops.
    - `bytes`: bytes moved.
    - `launches`: kernel launches.
    - `seconds`: predicted seconds.
    """

    op: str
    count: int
    flops: int
    bytes: int
    launches: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """The price of a program at a binding, by operator (dearest first) and in total.

    - `rows`: the prices by operator.
    - `prepared_values`, `prepared_bytes`: number and bytes of the values computed once from the weights, which the rows
      do not include.
    - `wakes`: whether a kernel wakes other cores. This costs once per call, and no row includes it.
    - `in_a_row`: launches outside of loops, choices and calls.
    - `dispatches`: nodes that launch kernels, which in kernels are executables.
    - `parts`: the same cost by kernel, source line and rule; set in reports.
    - `memory`: the bytes of the tensors that are alive; set in reports.
    - `call`: seconds of a whole call with its dispatch; set in reports.
    - `kinds`: seconds of a call by kind of kernel, without what was learned; set in reports.
    """

    rows: tuple[OperatorRow, ...]
    prepared_values: int = 0
    prepared_bytes: int = 0
    wakes: bool = False
    parts: tuple[KernelPart, ...] = ()
    memory: Memory | None = None
    call: float = 0.0
    kinds: Mapping[str, float] = field(default_factory=dict[str, float])
    in_a_row: int = 0
    dispatches: int = 0

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
    """The rates of a device that a roofline needs.

    - `name`, `platform`, `calibrated`: as in the device's profile.
    - `matmul_rate`: peak flop/s of matmuls by dtype.
    - `vector_rate`: flop/s of elementwise code.
    - `bandwidth`, `cache_bandwidth`: bytes/s of memory and of the cache.
    - `cache_bytes`: bytes of the cache.
    - `launch`, `dispatch`: seconds to launch a kernel and to dispatch a call.
    """

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
    """One round of a search; round 0 is the e-graph as it was made.

    - `function`: the function whose e-graph it is.
    - `round`: the number of the round.
    - `phase`: the phase of the search to which the round belongs.
    - `nodes`: nodes of the e-graph after the round.
    - `matches`: matches of the round.
    """

    function: str
    round: int
    phase: str
    nodes: int
    matches: int


@dataclass(frozen=True, slots=True)
class AtSizes:
    """The prices of both programs at a binding.

    - `at`: the binding.
    - `before`, `after`: the prices of the program as written and of the chosen program.
    """

    at: Mapping[str, int]
    before: ProgramCost
    after: ProgramCost


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds of one program over the sizes of a curve.

    - `label`: the name of the program.
    - `seconds`: by size; None at sizes that it does not serve.
    """

    label: str
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Crossover:
    """A size from which on another program is the cheapest.

    - `size`: the size.
    - `before`, `after`: the cheapest programs below and from this size.
    """

    size: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Curve:
    """The predicted cost of several programs over one size variable. The programs are the variants of a family, or the
    program as written and the chosen one.

    - `variable`: the size variable.
    - `at`: the values of all other variables.
    - `sizes`: the values of the variable.
    - `series`: the seconds of each program.
    - `crossovers`: the sizes at which another program becomes the cheapest.
    """

    variable: str
    at: Mapping[str, int]
    sizes: tuple[int, ...]
    series: tuple[Series, ...]
    crossovers: tuple[Crossover, ...] = ()


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """A call of code that the optimizer cannot read.

    - `name`: the name of the primitive.
    - `source`: its source line; "" if unknown.
    - `count`: how often the program has it.
    """

    name: str
    source: str
    count: int


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """A library routine that the program calls, or that is missing.

    - `name`, `version`: the routine, and the version of its library ("" if unknown).
    - `calls`: number of calls.
    - `operators`: number of operators that the calls replace.
    - `why`: why the routine is not used; "" if it is.
    """

    name: str
    version: str
    calls: int
    operators: int
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"library {self.name} is not used: {self.why}"
        version = f" ({self.version})" if self.version else ""
        replaced = figures.count_text(self.operators, "operator")
        return f"library {self.name}{version}: {figures.count_text(self.calls, 'call')}, in place of {replaced}"


@dataclass(frozen=True, slots=True)
class RuleRow:
    """The effect of a rule in the search.

    - `rule`: the name of the rule.
    - `matches`: its matches.
    - `nodes`: nodes that the rule was the first to make.
    - `milliseconds`: time of the rule, to about one millisecond.
    - `left_out`: why the rule stopped running; "" for a rule that always ran.
    """

    rule: str
    matches: int
    nodes: int
    milliseconds: float
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class SelectedRow:
    """How a function's program was chosen.

    - `function`: the function.
    - `how`: "greedy" (greedy choices and swap search), "ilp" (the exact search stopped early) or "proved optimal".
    - `cost`: seconds; with several weighed bindings, the sum over them in units of the program as written.
    - `bound`: lower bound on the cost of any choice of the kept candidates, in the same units.
    - `candidates`: number of candidates kept.
    - `fewer`: pairs (candidates kept per value, share by which the best program found among these costs more); empty
      if this was not computed.
    """

    function: str
    how: str
    cost: float
    bound: float
    candidates: int
    fewer: tuple[tuple[int, float], ...] = ()

    @property
    def gap(self) -> float:
        """The largest possible saving of another choice, as a share of the cost."""
        return gap(self.cost, self.bound)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel of several operators; figures are at the first of `at`.

    - `function`: the function that has the kernel.
    - `name`: the name of its program.
    - `operators`: its operators.
    - `steps`: how often each fusion step was used for the kernel.
    - `times`: how often the function has the kernel.
    - `bytes`: bytes that it moves.
    - `saved_bytes`, `saved_launches`: the bytes and launches that its operators as separate kernels would need in
      addition.
    """

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
    """A timed program.

    - `label`: its name.
    - `predicted`: predicted seconds.
    - `seconds`: median seconds of a call.
    - `speedup`: how many times faster it is than the program as written.
    - `low`, `high`: the interval of `speedup`. All intervals at `at` contain their true medians together with 95%.
    - `chosen`: whether it was chosen.
    - `at`: the binding.
    """

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
    """The second best program of one function, and why it lost.

    It lacks a rule that the chosen program needs, or computes one value in another way. If the program was kept as
    written, the second best program is the one that the search found.

    - `function`: the function.
    - `without`: the rule that it lacks; "" if it lacks none.
    - `with_rule`: the rule by which it computes the other value; "" if it computes the value as written. If the program
      was kept as written, all its rules.
    - `extra`: additional cost, as a share of the chosen program's cost.
    - `why`: operators whose cost differs most, each with its cost in the chosen program and in this one.
    - `in_seconds`: whether these costs are seconds; if not, they are shares of the program as written.
    """

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
    """The price of `function` by operator.

    - `skip`: nodes that run once, on weights; they cost nothing.
    - `prepared`: number and bytes of the values that the weights phase computes.

    Operators that a loop or a call runs are in their own rows, counted as often as they run. The row of the loop or
    call has the rest of its cost.
    """
    costs = list(own_costs(function, model, skip))
    rows = figures_by_key(
        (str(v.node.attr("name")) if v.node.op == CALL_DPS_LIBRARY else v.node.op, c) for v, c in costs
    )
    made = sorted((OperatorRow(op, *figures) for op, figures in rows.items()), key=lambda r: (-r.seconds, r.op))
    alone = [(v, c) for v, c in costs if not v.path]
    in_a_row = sum(truncate(c.launches) for v, c in alone if not v.runs_functions)
    dispatches = sum(truncate(v.times) for v, c in costs if c.launches > 0)
    return ProgramCost(tuple(made), *prepared, any(c.wakes for _, c in alone), in_a_row=in_a_row, dispatches=dispatches)
