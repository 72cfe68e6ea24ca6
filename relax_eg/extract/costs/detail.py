"""The cost of a program by kernel, source line and rule, and the record of the tensors that are alive, for reports.
Takes time linear in the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.walk import Visit, figures_by_key, own_costs
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL_TIR, Expr, postorder
from relax_eg.ir.heads import CORE, label_of
from relax_eg.ir.module import Function
from relax_eg.ir.origin import UNKNOWN
from relax_eg.ops.fused import VIEWS
from relax_eg.ops.libraries import library_of

_ROUNDING = 1e-6  # chosen: launches that rounding errors leave
MOST_MOMENTS = 240  # limit: moments of a timeline; of neighbouring moments the one with most bytes is kept


@dataclass(frozen=True, slots=True)
class KernelPart:
    """The cost of a kernel of the program, or of an operator that XLA fuses into one. Equal parts of a source line are
    one row.

    - `what`: the operator, library routine or tensor program.
    - `result`: the annotation of its result, with sizes by name.
    - `function`: the function that contains it.
    - `lines`: the source lines that it computes, that of its result first.
    - `rule`: the rules that made it, as text; "" if it is as written.
    - `count`: how often the program text has it; the figures below count each run.
    - `flops`, `bytes`, `launches`, `seconds`: flops, bytes moved, kernel launches, and predicted seconds.
    - `operators`: the operators in a kernel of several, or in the pattern of a library routine.
    - `ahead`: whether it is computed once from the weights; no total includes it then.
    - `dtype`: the dtype of the first array that it reads, which determines its matmul rate.
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
        """The source line of its result; "" if unknown."""
        return self.lines[0] if self.lines else ""

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that made it."""
        return tuple(r for r in self.rule.split(", ") if r)  # reports hold them as one text


@dataclass(frozen=True, slots=True)
class Moment:
    """The bytes that are alive while one kernel runs.

    - `bytes`: the bytes.
    - `what`, `line`: the kernel, and its source line.
    """

    bytes: int
    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that is alive at the peak of memory.

    - `name`: its name in the module.
    - `tensor`: shape and dtype.
    - `bytes`: its size.
    - `line`: the source line of the kernel that makes it; "" if unknown.
    """

    name: str
    tensor: str
    bytes: int
    line: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of tensors that live between kernels, each until its last reader has run. Results are counted; inputs,
    weights and values prepared from weights are not.

    With `execution="kernels"` the figures are those of the plan that the kernels follow. For one XLA program they are
    estimated from the values that XLA is predicted to store, because XLA decides order and aliasing.

    - `peak`: the most bytes alive at a time.
    - `peak_at`: the kernel that runs at the peak.
    - `workspace`: bytes of the largest workspace of a kernel.
    - `moments`: the bytes alive over the program.
    - `tensors`: the largest tensors at the peak.
    - `temporary`: the most bytes alive at a time without results; None in reports of earlier versions.
    """

    peak: int
    peak_at: str
    workspace: int
    moments: tuple[Moment, ...]
    tensors: tuple[Held, ...] = ()
    temporary: int | None = None


# The key of a part: operator, result, function, lines, rule, operators inside, whether it is ahead of calls, dtype.
_Key = tuple[str, str, str, tuple[str, ...], str, tuple[str, ...], bool, str]


def parts_of(
    function: Function,
    model: WholeCost,
    skip: set[Expr] | None = None,
    operators: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[KernelPart, ...]:
    """The cost of `function` by kernel, source line and rule, dearest first.

    - `skip`: nodes that run once, ahead of the calls.
    - `operators`: per name of a tensor program, the operators that it was composed of.
    """
    costs = [(v, c, False) for v, c in own_costs(function, model, skip)]
    if skip:
        costs += [(v, c, True) for v, c in own_costs(function, model, set(function.expressions()) - skip)]

    def key(v: Visit, ahead: bool) -> _Key:
        e, what = v.node, label_of(v.node)
        origins = [x.function.origins.get(x.node, UNKNOWN) for x in (v, *reversed(v.path))]
        lines = tuple(
            map(str, next((o.lines for o in origins if o.lines), ()))
        )  # a node without lines has those of the call around it
        inside = (operators or {}).get(what, ()) if e.op == CALL_TIR else _library_operators(e)
        return what, str(e.annotation), v.function.name, lines, ", ".join(origins[0].rules), inside, ahead, _dtype(e)

    rows = figures_by_key((key(v, ahead), c) for v, c, ahead in costs if c.seconds > 0 or c.launches >= _ROUNDING)
    made = (
        KernelPart(what, result, where, lines, rule, *figures, inside, once, dtype)
        for (what, result, where, lines, rule, inside, once, dtype), figures in rows.items()
    )
    return tuple(sorted(made, key=lambda p: (p.ahead, -p.seconds, p.what, p.lines, p.result, p.dtype)))


def _library_operators(e: Expr) -> tuple[str, ...]:
    """The operators in the pattern of a registered routine; empty if the node is no call of one."""
    library = library_of(e)
    if library is None:
        return ()
    definition = library.definition([a.annotation for a in e.args], dict(e.attr("attrs")))
    return tuple(x.op for x in postorder(definition.results) if x.op not in CORE and x.op not in VIEWS)


def _dtype(e: Expr) -> str:
    """The dtype of the first array that a node reads, else of its result; "" if there is none."""
    found = (a.dtype for a in (*(x.annotation for x in e.args), e.annotation) if isinstance(a, Tensor))
    return next((str(d) for d in found if d is not None), "")
