"""The memory plan of a call: one record for every layout, and its text."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from relax_eg.byte_units import format_bytes
from relax_eg.errors import BoundsError
from relax_eg.memory.arena import arena
from relax_eg.memory.check import PlanProblem, problems
from relax_eg.memory.liveness import Lifetime, Liveness, Results, liveness
from relax_eg.memory.placement import Layout, Place, Placement, Storage, StorageLayout
from relax_eg.memory.program import MemoryProgram
from relax_eg.memory.proofs import Reuse, SizeComparison, SizeProofs
from relax_eg.memory.schedule import Order
from relax_eg.memory.storages import Aliasing, greedy, storages
from relax_eg.memory.temporaries import NOT_COUNTED, Temporaries
from relax_eg.shapes import Dim, Refuted, Scope, dim_max

USUAL = 256  # chosen: value assumed for an unbounded size when sizes are compared
CHECKED = 16  # chosen: bindings at which a plan is checked
LAYOUTS: tuple[Layout, ...] = ("storages", "arena", "greedy")

_LINES = 12  # limit: tensors, and proofs, that are listed
_WIDTH = 80  # limit: characters of an expression


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of a plan.

    - `layout`: how values are given memory.
    - `results`: whether results are in that memory ("planned"), or in memory of the caller ("apart").
    - `aliasing`: which storages a value may take over, for the layout "storages".
    - `align`: offsets in an arena are multiples of this number of bytes; default: the size of the largest element.
    """

    layout: Layout = "storages"
    results: Results = "apart"
    aliasing: Aliasing = "elements"
    align: int | None = None


@dataclass(frozen=True)
class Plan:
    """The memory plan of a call of a module's entry.

    - `written`: the memory program in the module's order.
    - `program`: the memory program in the planned order.
    - `order`: the planned order, and how it was found.
    - `live`: the lifetimes in the planned order.
    - `placement`: the storages, and the place of every value in them.
    - `options`: the layout and its options.
    - `sizes`: the possible sizes, the sizes for which order and layout were made, and the proved comparisons.
    - `temporaries`: the memory that kernels allocate themselves. It counts as needed. An arena has room for it; whole
      storages do not, so it is added to them.
    - `seconds`: the time that planning took.
    """

    written: MemoryProgram
    program: MemoryProgram
    order: Order
    live: Liveness
    placement: Placement
    options: PlanOptions
    sizes: SizeProofs = field(compare=False)
    temporaries: Temporaries = NOT_COUNTED
    seconds: float = field(default=0.0, compare=False)

    @property
    def scope(self) -> Scope:
        """The possible sizes."""
        return self.sizes.scope

    @property
    def at(self) -> Mapping[str, int]:
        """The sizes for which order and layout were made."""
        return self.sizes.at

    @property
    def layout(self) -> Layout:
        """How values are given memory."""
        return self.options.layout

    @property
    def storages(self) -> tuple[Storage, ...]:
        """The storages; an arena is a single one."""
        return self.placement.storages

    @property
    def places(self) -> Mapping[int, Place]:
        """The place of each value that has one."""
        return self.placement.places

    @property
    def reuses(self) -> tuple[Reuse, ...]:
        """The decisions whether a value reuses another's memory, each with its proof or the reason of its refusal."""
        return self.placement.reuses

    @property
    def static(self) -> bool:
        """Whether the storages have the same number of bytes at all sizes in bounds."""
        return self.bytes.is_const

    @property
    def bytes(self) -> Dim:
        """Bytes of all storages together."""
        return _total(s.bytes for s in self.storages)

    @property
    def results(self) -> Dim:
        """Bytes of the results that have no place in the storages."""
        apart = (x.bytes for x in self.program.values if x.role == "result" and x.number not in self.places)
        return _total(d for d in apart if d is not None)

    def bytes_at(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all storages for a call at these sizes. BoundsError if they are outside the bounds."""
        at = self.allowed(sizes)
        return sum(int(s.bytes.evaluate(at)) for s in self.storages)

    def inside_at(self, sizes: Mapping[str, int]) -> list[int]:
        """For each kernel, the bytes of the workspaces that its executable allocates and frees itself."""
        values = self.program.values
        own = [[d for v in s.hidden if (d := values[v].bytes) is not None] for s in self.program.steps]
        return [sum(int(d.evaluate(sizes)) for d in space) for space in own]

    def peak_at(self, sizes: Mapping[str, int]) -> int:
        """The most bytes that a call holds: those of all storages, plus, unless the storages have room for workspaces,
        the most that one executable allocates."""
        has_room = any(v in self.places for s in self.program.steps for v in s.hidden)
        return self.bytes_at(sizes) + (0 if has_room else max(self.inside_at(sizes), default=0))

    @cached_property
    def bound(self) -> tuple[Dim, ...]:
        """The sums of bytes alive whose maximum is a lower bound on the bytes of every plan of this order."""
        return tuple(self.sizes.largest(self.live.sums))

    def bound_at(self, sizes: Mapping[str, int]) -> int:
        """The most bytes alive at once at these sizes in this order, a lower bound on the bytes of every plan."""
        return max(self.live.at(self.allowed(sizes)), default=0)

    @property
    def gap(self) -> float:
        """The share by which the peak exceeds the bytes alive at once: 0.01 is one percent. It is computed at the sizes
        `at`, or for a static plan at the largest sizes."""
        sizes = self.largest
        bound = self.bound_at(sizes)
        return self.peak_at(sizes) / bound - 1 if bound else 0.0

    @property
    def largest(self) -> Mapping[str, int]:
        """The upper bounds of the sizes, if the plan is static and they are allowed together; else the sizes `at`."""
        return (corner_of(self.scope, self.at) if self.static else None) or self.at

    def allowed(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """`sizes`, if all are given and within bounds. BoundsError names the first that is not."""
        for name in sorted(self.program.sizes):
            if name not in sizes:
                raise BoundsError(f"{self.program.name}(): no value for the size `{name}`; accepted: one for each size")
        self.scope.check(sizes, self.program.name)
        return sizes

    @cached_property
    def peak(self) -> tuple[Lifetime, ...]:
        """The lifetimes that are alive at the peak step at the sizes `at`, largest first."""
        return self.live.peak(self.at)

    @cached_property
    def lower_everywhere(self) -> SizeComparison:
        """The comparison of the peaks of the planned order and of the order as written, over all sizes in bounds."""
        written = liveness(self.written, self.live.results, self.at.keys())
        planned, before = (dim_max(0, *self.sizes.largest(live.sums)) for live in (self.live, written))
        return self.sizes.compare(planned, "<=", before)

    def check(self, bindings: Iterable[Mapping[str, int]] | None = None, seed: int = 0) -> list[PlanProblem]:
        """The problems that the checker finds; empty if the plan holds. The checker replays the plan at `bindings`, by
        default at allowed sizes that include the largest and depend on `seed`."""
        points = bindings_of(self.scope, self.program.variables, seed) if bindings is None else bindings
        return problems(self.written, self.placement, points)

    def laid_out(self, layout: Layout, results: Results | None = None) -> Plan:
        """The plan of the same kernels in the same order with another layout. `results`: as in `PlanOptions`; default:
        those of this plan."""
        options = replace(self.options, layout=layout, results=results or self.options.results)
        return plan_in_order(self.written, self.order, self.sizes, options, self.temporaries)

    def __str__(self) -> str:
        return plan_text(self)


def plan_in_order(
    written: MemoryProgram,
    order: Order,
    sizes: SizeProofs,
    options: PlanOptions,
    temporaries: Temporaries = NOT_COUNTED,
) -> Plan:
    """The plan for the kernels of a program in this order. `temporaries`: those that `written` has as workspaces."""
    program = written.reordered(order.steps)
    live = liveness(program, options.results, sizes.at.keys())
    placement = Placement(order.steps, *_lay_out(live, sizes, options))
    return Plan(written, program, order, live, placement, options, sizes, temporaries)


def _lay_out(live: Liveness, sizes: SizeProofs, options: PlanOptions) -> StorageLayout:
    """The storages and places of the lifetimes of `live` in the layout of `options`."""
    if options.layout == "arena":
        return arena(live, sizes, options.align)
    return greedy(live, sizes) if options.layout == "greedy" else storages(live, sizes, options.aliasing)


def usual_size(scope: Scope, name: str) -> int:
    """The upper bound of a size; if it has none, the larger of `USUAL` and its lower bound."""
    low, high = scope.bounds(name)
    return high if high is not None else max(low or 0, USUAL)


def corner_of(scope: Scope, at: Mapping[str, int]) -> Mapping[str, int] | None:
    """The upper bound of each size, or the size in `at` where there is none; None if they are not allowed together."""
    highs = {n: scope.bounds(n)[1] for n in at}
    corner = {n: at[n] if high is None else high for n, high in highs.items()}
    return corner if is_allowed(scope, corner) else None


def is_allowed(scope: Scope, sizes: Mapping[str, int]) -> bool:
    """Whether sizes are within the scope."""
    try:
        scope.check(sizes, "the sizes")
    except BoundsError:
        return False
    return True


def bindings_of(scope: Scope, names: Sequence[str], seed: int = 0) -> list[dict[str, int]]:
    """At most `CHECKED` allowed bindings: the largest sizes, points of the scope, and random sizes, which depend only
    on `seed`."""
    rng = random.Random(seed)
    found = [{n: usual_size(scope, n) for n in names}, *scope.points(names, CHECKED // 2)]
    while len(found) < CHECKED:
        sides = {n: scope.bounds(n) for n in names}
        found.append(
            {n: rng.randint(low or 0, 4 * USUAL if high is None else high) for n, (low, high) in sides.items()}
        )
    return [sizes for sizes in found if is_allowed(scope, sizes)]


def _total(sizes: Iterable[Dim]) -> Dim:
    return sum(sizes, Dim.of(0))


# --- text ---


def plan_text(plan: Plan) -> str:
    """The text that `print(plan)` shows: the bytes, the bytes alive at once and the gap, the other layouts, the tensors
    at the peak, and the reuses with their proofs."""
    at, here = _at_text(plan.at), _sizes_text(plan.at)
    planned, tensors = len(plan.live.lifetimes), sum(len(x.values) for x in plan.live.lifetimes)
    count = f", in {len(plan.storages)} of them ({plan.options.aliasing})" if plan.layout == "storages" else ""
    size = ", fixed for all sizes in bounds" if plan.static else f"{at} = {_dim_text(plan.bytes)} bytes"
    lines = [
        f"memory of {plan.program.name}(): {len(plan.program.steps)} kernels, {planned} allocations"
        + (f" for {tensors} tensors" if tensors > planned else ""),
        f"  {plan.layout:<14} {format_bytes(plan.bytes_at(plan.at))}{size}{count}",
        f"  needed at once {format_bytes(plan.bound_at(plan.largest))}{_at_text(plan.largest)}: gap {plan.gap:.2%}"
        + (", and no packing is lower" if plan.placement.lowest else ""),
        f"  other layouts  {_other_layouts(plan)}{at}",
        f"  order          {_order_text(plan)}",
        f"  temporaries    {_temporaries_text(plan)}",
    ]
    if plan.results != 0:
        beside = "arena" if plan.layout == "arena" else "storages"
        lines.append(f"  handed out     {_bytes_text(plan.results, plan)} beside the {beside}")
    if plan.live.unsized:
        names = ", ".join(plan.program.values[v].name for v in plan.live.unsized[:_LINES])
        lines.append(f"  not planned    {names}: their sizes are known only when they are there")
    lines += ["", f"  at the peak{f' ({here})' if here else ''}:"] if plan.peak else []
    lines += [
        f"    {format_bytes(int(x.bytes.evaluate(plan.at))):>12}  {_values_text(plan.program, x.values)}"
        for x in plan.peak[:_LINES]
    ]
    lines += [f"    and {len(plan.peak) - _LINES} more"] if len(plan.peak) > _LINES else []
    return "\n".join([*lines, *_proof_lines(plan)])


def _at_text(sizes: Mapping[str, int]) -> str:
    return f" at {_sizes_text(sizes)}" if sizes else ""


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in sizes.items())


def _other_layouts(plan: Plan) -> str:
    """The peak bytes and the gap of a call in each of the other layouts."""
    found = (plan.laid_out(name) for name in LAYOUTS if name != plan.layout)
    return ", ".join(f"{p.layout} {format_bytes(p.peak_at(plan.at))} (gap {p.gap:.2%})" for p in found)


def _proof_lines(plan: Plan) -> list[str]:
    """The lines on granted reuses with their proofs, then on refused ones with counterexamples; each pair of sizes
    once."""
    out: list[str] = []
    for granted in (True, False):
        chosen = {
            (r.comparison.left, r.comparison.op, r.comparison.right): r
            for r in reversed(plan.reuses)
            if r.granted == granted
        }
        rows = list(reversed(chosen.values()))
        if not rows:
            continue
        out += ["", f"  {plan.layout}: {'memory taken over' if granted else 'not taken over'}"]
        out += [f"    {_reuse_text(plan.program, r)}" for r in rows[:_LINES]]
        out += [f"    and {len(rows) - _LINES} more"] if len(rows) > _LINES else []
    return out


def _reuse_text(program: MemoryProgram, r: Reuse) -> str:
    taker, before = program.values[r.value].name, program.values[r.before].name
    c = r.comparison
    why = f"not proved: {c.verdict}" if not c.holds and not isinstance(c.verdict, Refuted) else str(c.verdict)
    return f"{taker} after {before}: {_dim_text(c.left)} {c.op} {_dim_text(c.right)} {why}"


def _temporaries_text(plan: Plan) -> str:
    """The most that an executable allocates itself, and the source of that figure."""
    how = {
        "measured": f"measured{_at_text(plan.temporaries.at)}",
        "estimated": "estimated from the equations",
        "given": "as given",
        "none": "only what the module states",
    }[plan.temporaries.source]
    inside = plan.inside_at(plan.at)
    most = max(inside, default=0)
    if not most:
        return f"none ({how})"
    kernel = plan.program.steps[inside.index(most)].name
    total = f"{format_bytes(plan.peak_at(plan.at))} with the {plan.layout}"
    if plan.layout != "storages":
        total = f"there is room for it in the {plan.layout}"
    return f"{format_bytes(most)} at most{_at_text(plan.at)}, inside {kernel} ({how}); {total}"


def _order_text(plan: Plan) -> str:
    o = plan.order
    searched = f"{o.exact} of {o.blocks} blocks ordered exactly" if o.blocks else "nothing to choose"
    if o.after < o.before:
        always = f"never more, whatever the sizes: {plan.lower_everywhere.verdict}"
        return f"{format_bytes(o.after)} at once instead of {format_bytes(o.before)} as written ({searched}; {always})"
    return f"as written ({searched})"


def _bytes_text(d: Dim, plan: Plan) -> str:
    if d.variables <= plan.at.keys():
        return format_bytes(int(d.evaluate(plan.at)))
    return f"{_dim_text(d)} bytes"


def _values_text(program: MemoryProgram, values: Iterable[int]) -> str:
    named = [program.values[v] for v in values]
    shape = named[-1].annotation.short
    return f"{' then '.join(x.name for x in named[-2:])} {shape}"


def _dim_text(d: Dim) -> str:
    text = str(d)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
