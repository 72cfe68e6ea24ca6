"""A program's cost in detail: by kernel, the user's source line and the rule that made it; and rows of what is alive.

Only reports ask for this. It is linear in the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.extract.cost import WholeCost, priced
from relax_eg.extract.cost_model import NodeCost
from relax_eg.extract.numbers import whole
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, CORE, Expr, postorder
from relax_eg.ir.module import Function
from relax_eg.ops.fused import VIEWS
from relax_eg.ops.libraries import LIBRARIES

_ROUNDING = 1e-6  # launches that rounding errors leave
MOST_MOMENTS = 240  # of a timeline; of neighbouring moments the fullest is kept


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an expression comes from: the user's lines that it computes, and the rule that made it ("" as written)."""

    lines: tuple[str, ...] = ()
    rule: str = ""


Origins = Mapping[str, Mapping[Expr, Origin]]  # by function's name


@dataclass(frozen=True, slots=True)
class Part:
    """What a kernel of the program costs, or an operator that XLA puts into one: equal ones of a source line together.

    `what`: the operator, library routine or tensor program; `result`: what it computes, with sizes by name; `lines`:
    the user's lines that it stands for, first that of its result; `rule`: the rule that made it, "" as written;
    `count`: how often the program text has it, all else as often as it runs; `operators`: those inside a kernel of
    several, and those that a library routine stands for; `ahead`: computed once from the weights, and in no total;
    `dtype`: that of what it reads first, which says how fast it multiplies.
    """

    what: str
    result: str
    function: str
    lines: tuple[str, ...]
    rule: str
    count: int
    flops: int
    bytes: int
    launches: int
    seconds: float
    operators: tuple[str, ...] = ()
    ahead: bool = False
    dtype: str = ""

    @property
    def line(self) -> str:
        return self.lines[0] if self.lines else ""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is alive while one kernel runs: bytes, the kernel, and its source line."""

    bytes: int
    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that is there when most is: its name in the module, shape and dtype, bytes, and its source line."""

    name: str
    tensor: str
    bytes: int
    line: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Tensors that live between kernels, each until its last reader has run; inputs, weights and what is prepared from
    them are not counted, results are. In kernels that is the plan that they run by; of one XLA program it is the same
    for what XLA is predicted to store, and an estimate: order and aliasing are its own to decide.

    `peak`: the most bytes at a time; `peak_at`: while what ran; `workspace`: the largest that a kernel needs for
    itself; `moments`: bytes over the program; `tensors`: the largest at the peak."""

    peak: int
    peak_at: str
    workspace: int
    moments: tuple[Moment, ...]
    tensors: tuple[Held, ...] = ()


def label_of(e: Expr) -> str:
    """What a node is called in reports."""
    if e.op == CALL_DPS_LIBRARY:
        return str(e.attr("name"))
    if e.op == CALL_TIR:
        return str(e.attr("program").value.name)
    return e.op


@dataclass(slots=True)
class _Sum:
    count: float = 0
    flops: float = 0
    bytes: float = 0
    launches: float = 0
    seconds: float = 0.0

    def add(self, count: float, c: NodeCost, times: float) -> None:
        self.count += count
        self.flops += c.flops * times
        self.bytes += c.bytes * times
        self.launches += c.launches * times
        self.seconds += c.seconds * times


_Key = tuple[str, str, str, tuple[str, ...], str, tuple[str, ...], bool, str]


def parts_of(
    function: Function,
    model: WholeCost,
    origins: Origins,
    skip: set[Expr] | None = None,
    operators: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[Part, ...]:
    """`function` by kernel, source line and rule, dearest first. `skip`: nodes that run once, ahead of the calls;
    `operators`: by name of a tensor program, those it was composed of."""
    sums: dict[_Key, _Sum] = {}
    inside = operators or {}
    _add_parts(sums, function, model, origins, (), inside, skip, 1.0, False)
    if skip:
        _add_parts(sums, function, model, origins, (), inside, set(function.expressions()) - skip, 1.0, True)
    made = [
        Part(
            what, result, where, lines, rule, int(s.count), whole(s.flops), whole(s.bytes), whole(s.launches),
            s.seconds, within, ahead, dtype,
        )
        for (what, result, where, lines, rule, within, ahead, dtype), s in sums.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda p: (p.ahead, -p.seconds, p.what, p.lines, p.result, p.dtype)))


def _add_parts(
    sums: dict[_Key, _Sum],
    function: Function,
    model: WholeCost,
    origins: Origins,
    around: tuple[str, ...],
    operators: Mapping[str, tuple[str, ...]],
    skip: set[Expr] | None,
    times: float,
    ahead: bool,
) -> None:
    """`around`: the lines of the call, for what has none of its own."""
    mine = origins.get(function.name, {})
    for node in priced(function, model, skip):
        e, rest = node.node, node.cost
        origin = mine.get(e, Origin())
        lines = origin.lines or around
        for callee, n, inner in node.runs:
            within = [p.cost for p in priced(callee, inner)]
            _add_parts(sums, callee, inner, origins, lines, operators, None, times * n, ahead)
            rest = _less(rest, within, n)
        if rest.seconds <= 0 and rest.launches < _ROUNDING:
            continue
        what = label_of(e)
        within = operators.get(what, ()) if e.op == CALL_TIR else _of_library(e)
        key = (what, str(e.annotation), function.name, lines, origin.rule, within, ahead, _dtype(e))
        sums.setdefault(key, _Sum()).add(1, rest, times)


def _of_library(e: Expr) -> tuple[str, ...]:
    """The operators that a call of a registered routine stands for."""
    if e.op != CALL_DPS_LIBRARY or e.attr("name") not in LIBRARIES:
        return ()
    definition = LIBRARIES[e.attr("name")].definition([a.annotation for a in e.args], dict(e.attr("attrs")))
    return tuple(x.op for x in postorder(definition.results) if x.op not in CORE and x.op not in VIEWS)


def _dtype(e: Expr) -> str:
    """The dtype of the first array that a node reads, else of what it gives; "" where there is none."""
    found = (a.dtype for a in (*(x.annotation for x in e.args), e.annotation) if isinstance(a, Tensor))
    return next((str(d) for d in found if d is not None), "")


def _less(cost: NodeCost, inside: list[NodeCost], times: float) -> NodeCost:
    """What is left of a loop's or a call's cost without that of what it runs."""
    return NodeCost(
        max(0, cost.flops - times * sum(c.flops for c in inside)),
        max(0, cost.bytes - times * sum(c.bytes for c in inside)),
        max(0, cost.launches - times * sum(c.launches for c in inside)),
        max(0.0, cost.seconds - times * sum(c.seconds for c in inside)),
    )
