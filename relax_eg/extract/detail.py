"""A program's cost in detail: by kernel, the user's source line and the rule that made it; and what is alive when.

Only reports ask for this. It is linear in the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from relax_eg.extract.cost import NodeCost, WholeCost, priced
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL, CALL_DPS_LIBRARY, CALL_TIR, CONSTANT, CONTROL, FUNCTION, TUPLE, TUPLE_GET, VAR, Expr
from relax_eg.ir.module import Function
from relax_eg.ops import bytes_of, site_of
from relax_eg.ops.fused import VIEWS, called_program

_MOST_HELD = 32  # operands that one kernel reads; XLA stores a value rather than read more again
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
    several; `ahead`: computed once from the weights, and in no total; `dtype`: that of what it reads first, which says
    how fast it multiplies.
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
class Memory:
    """Values that live between kernels, in the order of the program text, each until its last reader has run; inputs,
    weights and what is prepared from them are not counted. `peak`: the most at a time; `peak_at`: while what ran;
    `workspace`: the largest temporary that a kernel allocates for itself; `moments`: bytes over the program.

    An estimate: how far XLA reuses and aliases is its own to decide."""

    peak: int
    peak_at: str
    workspace: int
    moments: tuple[Moment, ...]


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
            what, result, where, lines, rule, int(s.count), int(s.flops), int(s.bytes), int(s.launches), s.seconds,
            within, ahead, dtype,
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
    for e, cost in priced(function, model, skip):
        origin = mine.get(e, Origin())
        lines = origin.lines or around
        rest = cost
        for callee, n, inner in model.trips(site_of(e)):
            within = [c for _, c in priced(callee, inner)]
            _add_parts(sums, callee, inner, origins, lines, operators, None, times * n, ahead)
            rest = _less(rest, within, n)
        if rest.seconds <= 0 and not rest.launches:
            continue
        what = label_of(e)
        key = (what, str(e.annotation), function.name, lines, origin.rule, operators.get(what, ()), ahead, _dtype(e))
        sums.setdefault(key, _Sum()).add(1, rest, times)


def _dtype(e: Expr) -> str:
    """The dtype of the first array that a node reads, else of what it gives; "" where there is none."""
    found = (a.dtype for a in (*(x.annotation for x in e.args), e.annotation) if isinstance(a, Tensor))
    return next((str(d) for d in found if d is not None), "")


def _less(cost: NodeCost, inside: list[NodeCost], times: float) -> NodeCost:
    """What is left of a loop's or a call's cost without that of what it runs."""
    return NodeCost(
        max(0, cost.flops - int(times * sum(c.flops for c in inside))),
        max(0, cost.bytes - int(times * sum(c.bytes for c in inside))),
        max(0, cost.launches - int(times * sum(c.launches for c in inside))),
        max(0.0, cost.seconds - times * sum(c.seconds for c in inside)),
    )


@dataclass(slots=True)
class _Timeline:
    moments: list[Moment] = field(default_factory=list[Moment])
    workspace: int = 0


def memory_of(function: Function, model: WholeCost, origins: Origins, skip: set[Expr] | None = None) -> Memory:
    """What is alive while each kernel of `function` runs. A call shows what its function holds meanwhile."""
    found = _Timeline()
    _live(found, function, model, origins, skip or set(), 0)
    peak = max(found.moments, key=lambda m: m.bytes, default=Moment(0, "", ""))
    at = f"{peak.what} at {peak.line}" if peak.line else peak.what
    return Memory(peak.bytes, at, found.workspace, tuple(_thinned(found.moments)))


def _live(
    found: _Timeline, function: Function, model: WholeCost, origins: Origins, skip: set[Expr], below: int
) -> None:
    prices = {e: c for e, c in priced(function, model, skip)}
    expressions = [e for e in function.expressions() if e not in skip]
    results = {b.value for block in function.blocks for b in block.bindings} | {function.result}
    outer = {e for e in expressions if e.op in (VAR, CONSTANT, FUNCTION)} | skip
    holds = _holders(expressions, prices, results, outer)
    last: dict[Expr, int] = {}
    for i, e in enumerate(expressions):
        for a in e.args:
            for kept in holds.get(a, ()):
                last[kept] = i
    end = len(expressions)
    last |= {kept: end for e in results for kept in holds.get(e, ())}
    ends: dict[int, list[Expr]] = {}
    for kept, i in last.items():
        ends.setdefault(i, []).append(kept)
    sizes = {e: model.number(bytes_of(e.annotation), {}) for e in last}
    mine = origins.get(function.name, {})
    alive = below
    for i, e in enumerate(expressions):
        if e in sizes and holds.get(e) == (e,):
            alive += sizes[e]
        cost = prices.get(e)
        runs = model.trips(site_of(e)) if cost is not None and e.op in (CALL, *CONTROL) else []
        for callee, _, inner in runs:
            _live(found, callee, inner, origins, set(), alive)
        if not runs and cost is not None and cost.launches:
            found.moments.append(Moment(alive + _workspace(found, e, model), label_of(e), _line(mine.get(e))))
        alive -= sum(sizes[kept] for kept in ends.get(i, ()))


def _workspace(found: _Timeline, e: Expr, model: WholeCost) -> int:
    """Bytes of the temporaries that a kernel allocates for itself."""
    if e.op != CALL_TIR:
        return 0
    site = site_of(e)
    placed = called_program(site.operands, site.attrs)
    if placed is None or not placed.program.workspaces:
        return 0
    total = 0
    for name in placed.program.workspaces:
        buffer = placed.program.buffers[name]
        total += model.number(bytes_of(Tensor(buffer.shape, buffer.dtype)), placed.sizes)
    found.workspace = max(found.workspace, total)
    return total


def _line(origin: Origin | None) -> str:
    return origin.lines[0] if origin is not None and origin.lines else ""


def _holders(
    expressions: list[Expr], prices: Mapping[Expr, NodeCost], results: set[Expr], outer: set[Expr]
) -> dict[Expr, tuple[Expr, ...]]:
    """For each expression the stored values that must be alive for it to be read: itself if a kernel stores it, what it
    shows if it is a view, and the operands of what its reader computes anew."""
    holds: dict[Expr, tuple[Expr, ...]] = {}
    for e in expressions:
        if e in outer:
            continue
        cost = prices.get(e)
        stored = e.op == CALL or (cost is not None and cost.launches > 0) or (e in results and e.op not in VIEWS)
        below = tuple(dict.fromkeys(kept for a in e.args for kept in holds.get(a, ())))
        stored = stored or (len(below) > _MOST_HELD and e.op != TUPLE)
        holds[e] = (e,) if stored and e.op not in (TUPLE, TUPLE_GET) else below
    return holds


def _thinned(moments: list[Moment]) -> Iterator[Moment]:
    step = max(1, -(-len(moments) // MOST_MOMENTS))
    for i in range(0, len(moments), step):
        yield max(moments[i : i + step], key=lambda m: m.bytes)
