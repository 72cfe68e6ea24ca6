"""The plan of a call's memory: one record for every layout, and its text."""

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
from relax_eg.memory.placement import Laid, Layout, Place, Placement, Storage
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
    """What a plan is to be like.

    - `layout`: how values are given memory.
    - `results`: whether results are in that memory ("planned"), or the caller has them ("apart").
    - `aliasing`: which storages may be taken over, for the layout "storages".
    - `align`: offsets are multiples of so many bytes, for an arena; default: the size of the largest element.
    """

    layout: Layout = "storages"
    results: Results = "apart"
    aliasing: Aliasing = "elements"
    align: int | None = None


@dataclass(frozen=True)
class Plan:
    """The memory plan of a call of a module's entry.

    - `written`: its kernels in the module's order.
    - `program`: the same in the planned order.
    - `order`: how the order was found.
    - `live`: the lifetimes.
    - `placement`: the storages, and where in them every value lies.
    - `options`: the layout and its options.
    - `sizes`: the possible sizes, those for which order and layout were made, and what was proved of sizes.
    - `temporaries`: what kernels allocate themselves. It counts as needed. An arena has room for it; it comes on top of
      whole storages.
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
        """Which value was given whose memory, with the proof, and which was not, with the reason."""
        return self.placement.reuses

    @property
    def static(self) -> bool:
        """Whether the storages are one number of bytes for all sizes in bounds."""
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
        """For each kernel the bytes that its executable allocates and frees: workspaces that are not passed to it."""
        values = self.program.values
        own = [[d for v in s.hidden if (d := values[v].bytes) is not None] for s in self.program.steps]
        return [sum(int(d.evaluate(sizes)) for d in space) for space in own]

    def peak_at(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all storages, which a call holds from its beginning, plus, where they have no room for it, the most
        that an executable allocates."""
        has_room = any(v in self.places for s in self.program.steps for v in s.hidden)
        return self.bytes_at(sizes) + (0 if has_room else max(self.inside_at(sizes), default=0))

    @cached_property
    def bound(self) -> tuple[Dim, ...]:
        """Sums of which the largest is needed at some step, so that no plan of this order has fewer bytes."""
        return tuple(self.sizes.largest(self.live.sums))

    def bound_at(self, sizes: Mapping[str, int]) -> int:
        """The most bytes alive at once at these sizes in this order; no plan has less."""
        return max(self.live.at(self.allowed(sizes)), default=0)

    @property
    def gap(self) -> float:
        """How much more a call takes than the bytes alive at once: 0.01 is one percent. At the sizes `at`; for a static
        plan, at the largest sizes."""
        sizes = self.largest
        bound = self.bound_at(sizes)
        return self.peak_at(sizes) / bound - 1 if bound else 0.0

    @property
    def largest(self) -> Mapping[str, int]:
        """For a static plan the upper bounds, if they are allowed together; else the sizes `at`."""
        return (corner_of(self.scope, self.at) if self.static else None) or self.at

    def allowed(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """`sizes`, if all are given and within bounds. BoundsError names the one that is not, before anything runs."""
        for name in sorted(self.program.sizes):
            if name not in sizes:
                raise BoundsError(f"{self.program.name}(): no value for the size `{name}`; accepted: one for each size")
        self.scope.check(sizes, self.program.name)
        return sizes

    @cached_property
    def peak(self) -> tuple[Lifetime, ...]:
        """What is alive at the peak step at the sizes `at`, largest first."""
        return self.live.peak(self.at)

    @cached_property
    def lower_everywhere(self) -> SizeComparison:
        """Whether the planned order needs at most what the order as written needs, for all sizes in bounds."""
        written = liveness(self.written, self.live.results, self.at.keys())
        planned, before = (dim_max(0, *self.sizes.largest(live.sums)) for live in (self.live, written))
        return self.sizes.compare(planned, "<=", before)

    def check(self, bindings: Iterable[Mapping[str, int]] | None = None, seed: int = 0) -> list[PlanProblem]:
        """The problems that the checker finds, none if the plan holds: at the given sizes, or at some allowed ones that
        include the largest."""
        points = bindings_of(self.scope, self.program.variables, seed) if bindings is None else bindings
        return problems(self.written, self.placement, points)

    def laid_out(self, layout: Layout, results: Results | None = None) -> Plan:
        """The plan of the same kernels in the same order in another layout. `results`: as in `PlanOptions`; default: as
        here."""
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
    """The plan for the kernels of a program in that order. `temporaries`: those that `written` has as workspaces."""
    program = written.reordered(order.steps)
    live = liveness(program, options.results, sizes.at.keys())
    placement = Placement(order.steps, *_laid(live, sizes, options))
    return Plan(written, program, order, live, placement, options, sizes, temporaries)


def _laid(live: Liveness, sizes: SizeProofs, options: PlanOptions) -> Laid:
    """Memory for the lifetimes of `live` in the layout that is asked for."""
    if options.layout == "arena":
        return arena(live, sizes, options.align)
    return greedy(live, sizes) if options.layout == "greedy" else storages(live, sizes, options.aliasing)


def usual_size(scope: Scope, name: str) -> int:
    """The upper bound of a size; a usual value where it has none."""
    low, high = scope.bounds(name)
    return high if high is not None else max(low or 0, USUAL)


def corner_of(scope: Scope, at: Mapping[str, int]) -> Mapping[str, int] | None:
    """The upper bound of each size, or that of `at` where it has none; None if they are not allowed together."""
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


def bindings_of(scope: Scope, names: Sequence[str], seed: int = 0, most: int = CHECKED) -> list[dict[str, int]]:
    """Allowed sizes: the largest, and random others that depend only on `seed`."""
    rng = random.Random(seed)
    found = [{n: usual_size(scope, n) for n in names}, *scope.points(names, most // 2)]
    while len(found) < most:
        sides = {n: scope.bounds(n) for n in names}
        found.append(
            {n: rng.randint(low or 0, 4 * USUAL if high is None else high) for n, (low, high) in sides.items()}
        )
    return [sizes for sizes in found if is_allowed(scope, sizes)]


def _total(sizes: Iterable[Dim]) -> Dim:
    return sum(sizes, Dim.of(0))


# --- text ---


def plan_text(plan: Plan) -> str:
    """The text that `print(plan)` shows: bytes, what is needed at once and the gap, other layouts; the tensors at the
    peak; which values reuse whose memory, with the proofs."""
    at, here = _at(plan.at), _shown_sizes(plan.at)
    planned, tensors = len(plan.live.lifetimes), sum(len(x.values) for x in plan.live.lifetimes)
    count = f", in {len(plan.storages)} of them ({plan.options.aliasing})" if plan.layout == "storages" else ""
    size = ", fixed for all sizes in bounds" if plan.static else f"{at} = {_shown(plan.bytes)} bytes"
    lines = [
        f"memory of {plan.program.name}(): {len(plan.program.steps)} kernels, {planned} allocations"
        + (f" for {tensors} tensors" if tensors > planned else ""),
        f"  {plan.layout:<14} {format_bytes(plan.bytes_at(plan.at))}{size}{count}",
        f"  needed at once {format_bytes(plan.bound_at(plan.largest))}{_at(plan.largest)}: gap {plan.gap:.2%}"
        + (", and no packing is lower" if plan.placement.lowest else ""),
        f"  other layouts  {_others(plan)}{at}",
        f"  order          {_order(plan)}",
        f"  temporaries    {_temporaries(plan)}",
    ]
    if plan.results != 0:
        beside = "arena" if plan.layout == "arena" else "storages"
        lines.append(f"  handed out     {_bytes_of(plan.results, plan)} beside the {beside}")
    if plan.live.unsized:
        names = ", ".join(plan.program.values[v].name for v in plan.live.unsized[:_LINES])
        lines.append(f"  not planned    {names}: their sizes are known only when they are there")
    lines += ["", f"  at the peak{f' ({here})' if here else ''}:"] if plan.peak else []
    lines += [
        f"    {format_bytes(int(x.bytes.evaluate(plan.at))):>12}  {_names(plan.program, x.values)}"
        for x in plan.peak[:_LINES]
    ]
    lines += [f"    and {len(plan.peak) - _LINES} more"] if len(plan.peak) > _LINES else []
    return "\n".join([*lines, *_proofs(plan)])


def _at(sizes: Mapping[str, int]) -> str:
    return f" at {_shown_sizes(sizes)}" if sizes else ""


def _shown_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in sizes.items())


def _others(plan: Plan) -> str:
    """What a call takes in each of the other layouts."""
    found = (plan.laid_out(name) for name in LAYOUTS if name != plan.layout)
    return ", ".join(f"{p.layout} {format_bytes(p.peak_at(plan.at))} (gap {p.gap:.2%})" for p in found)


def _proofs(plan: Plan) -> list[str]:
    """Which values reuse whose memory, with the proofs, and which do not, with the counterexamples; each pair of sizes
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
        out += [f"    {_reuse(plan.program, r)}" for r in rows[:_LINES]]
        out += [f"    and {len(rows) - _LINES} more"] if len(rows) > _LINES else []
    return out


def _reuse(program: MemoryProgram, r: Reuse) -> str:
    taker, before = program.values[r.value].name, program.values[r.before].name
    c = r.comparison
    why = f"not proved: {c.verdict}" if not c.holds and not isinstance(c.verdict, Refuted) else str(c.verdict)
    return f"{taker} after {before}: {_shown(c.left)} {c.op} {_shown(c.right)} {why}"


def _temporaries(plan: Plan) -> str:
    """What executables allocate themselves, and how that is known."""
    how = {
        "measured": f"measured{_at(plan.temporaries.at)}",
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
    return f"{format_bytes(most)} at most{_at(plan.at)}, inside {kernel} ({how}); {total}"


def _order(plan: Plan) -> str:
    o = plan.order
    searched = f"{o.exact} of {o.blocks} blocks ordered exactly" if o.blocks else "nothing to choose"
    if o.after < o.before:
        always = f"never more, whatever the sizes: {plan.lower_everywhere.verdict}"
        return f"{format_bytes(o.after)} at once instead of {format_bytes(o.before)} as written ({searched}; {always})"
    return f"as written ({searched})"


def _bytes_of(d: Dim, plan: Plan) -> str:
    if d.variables <= plan.at.keys():
        return format_bytes(int(d.evaluate(plan.at)))
    return f"{_shown(d)} bytes"


def _names(program: MemoryProgram, values: Iterable[int]) -> str:
    named = [program.values[v] for v in values]
    shape = named[-1].annotation.short
    return f"{' then '.join(x.name for x in named[-2:])} {shape}"


def _shown(d: Dim) -> str:
    text = str(d)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
