"""`plan_memory` and `plan`: order, storages and offsets for the values of a module's entry."""

from __future__ import annotations

import difflib
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from relax_eg.accepted import BOUNDS, FLAG, STATEMENTS, Kind, accepts, one_of, shown
from relax_eg.errors import BoundsError, MemoryPlanError, OptionError
from relax_eg.ir import Module
from relax_eg.memory.check import Placement, PlanProblem, problems
from relax_eg.memory.greedy import GreedyPlan, greedy
from relax_eg.memory.liveness import Lifetime, Liveness, Results, liveness
from relax_eg.memory.offsets import OffsetPlan, offset_plan
from relax_eg.memory.proofs import SizeComparison, SizeProofs
from relax_eg.memory.schedule import Order, least_peak, peak_of
from relax_eg.memory.steps import MemoryProgram, Temporary, program_of, sizes_in
from relax_eg.memory.storages import Aliasing, RuntimePlan, runtime_plan
from relax_eg.memory.temporaries import NOT_COUNTED, Asked, Measurable, Temporaries, estimated, measured
from relax_eg.shapes import Dim, Scope, dim_max
from relax_eg.shapes.relation import as_statements

Bounds = Mapping[str, "tuple[int | None, int | None] | int"]

USUAL = 256  # chosen: value assumed for an unbounded size when sizes are compared
CHECKED = 16  # chosen: bindings at which a plan is checked


@dataclass(frozen=True)
class Plan:
    """The memory plan of a call of a module's entry.

    - `written`: its kernels in the module's order.
    - `program`: the same in the planned order.
    - `order`: how the order was found.
    - `live`: the lifetimes.
    - `offsets`: the plan with one arena.
    - `runtime`: the plan with whole storages.
    - `scope`: the possible sizes.
    - `at`: the sizes for which order and packing were made.
    - `temporaries`: what kernels allocate themselves; it counts as needed, lies in the arena, and comes on top of the
      storages.
    """

    written: MemoryProgram
    program: MemoryProgram
    order: Order
    live: Liveness
    offsets: OffsetPlan
    runtime: RuntimePlan
    scope: Scope
    at: Mapping[str, int]
    temporaries: Temporaries = NOT_COUNTED
    seconds: float = field(default=0.0, compare=False)

    @property
    def static(self) -> bool:
        """Whether the arena is one number of bytes for all sizes in bounds."""
        return self.offsets.static

    @property
    def bytes(self) -> Dim:
        """Bytes of the arena."""
        return self.offsets.bytes

    @property
    def results(self) -> Dim:
        """Bytes of the results that have no place in the arena."""
        total = Dim.of(0)
        for x in self.program.values:
            if x.role == "result" and x.number not in self.offsets.of_value and x.bytes is not None:
                total = total + x.bytes
        return total

    def bytes_at(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the arena for a call at these sizes. BoundsError if they are outside the bounds."""
        return self.offsets.bytes_at(self.allowed(sizes))

    def bound_at(self, sizes: Mapping[str, int]) -> int:
        """The most bytes alive at once at these sizes in this order; no plan has less."""
        return max(self.live.at(self.allowed(sizes)), default=0)

    @property
    def gap(self) -> float:
        """How much larger the arena is than the bytes alive at once: 0.01 is one percent. At the sizes `at`; for a
        static arena, at the largest sizes."""
        sizes = self.largest
        bound = self.bound_at(sizes)
        return self.bytes_at(sizes) / bound - 1 if bound else 0.0

    @property
    def largest(self) -> Mapping[str, int]:
        """For a static arena the upper bounds, if they are allowed together; else the sizes `at`."""
        corner = {n: self.scope.bounds(n)[1] or v for n, v in self.at.items()}
        try:
            self.scope.check(corner, self.program.name)
        except BoundsError:
            return self.at
        return corner if self.static else self.at

    def allowed(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """`sizes`, if all are given and within bounds. BoundsError names the one that is not, before anything runs."""
        for name in sorted(sizes_in(self.program)):
            if name not in sizes:
                raise BoundsError(f"{self.program.name}(): no value for the size `{name}`; accepted: one for each size")
        self.scope.check(sizes, self.program.name)
        return sizes

    @cached_property
    def peak(self) -> tuple[Lifetime, ...]:
        """What is alive at the peak step at the sizes `at`, largest first."""
        needed = self.live.at(self.at)
        if not needed:
            return ()
        step = max(range(len(needed)), key=lambda i: (needed[i], -i))
        return tuple(sorted(self.live.needed_at(step), key=lambda x: -int(x.bytes.evaluate(self.at))))

    @cached_property
    def lower_everywhere(self) -> SizeComparison:
        """Whether the planned order needs at most what the order as written needs, for all sizes in bounds."""
        sizes = SizeProofs(self.scope, self.at)
        peaks: list[Dim] = []
        for live in (self.live, liveness(self.written, self.live.results, self.at.keys())):
            largest = Dim.of(0)
            for d in sizes.largest(live.sums):
                largest = dim_max(largest, d)
            peaks.append(largest)
        return sizes.compare(peaks[0], "<=", peaks[1])

    @cached_property
    def placement(self) -> Placement:
        """The plan as plain data, over the values of `written`."""
        offsets = {v: self.offsets.offsets[n] for v, n in self.offsets.of_value.items()}
        storages = tuple(s.bytes for s in self.runtime.storages)
        return Placement(self.order.steps, self.bytes, offsets, storages, self.runtime.of_value)

    def check(self, bindings: Iterable[Mapping[str, int]] | None = None, seed: int = 0) -> list[PlanProblem]:
        """The problems that the checker finds, none if the plan holds: at the given sizes, or at some allowed ones that
        include the largest."""
        points = bindings_of(self.scope, self.program.variables, seed) if bindings is None else bindings
        return problems(self.written, self.placement, points)

    def greedy(self) -> GreedyPlan:
        """The plan of TVM's planner for the same kernels in the same order."""
        known = {x.bytes for x in self.program.values if x.bytes is not None}
        high = {d: self.scope.interval(d)[1] for d in known}
        return greedy(self.program, {d: n for d, n in high.items() if n is not None}, self.live.results)

    def __str__(self) -> str:
        from relax_eg.memory.report import plan_text

        return plan_text(self)


def plan(
    module: Module,
    at: Mapping[str, int],
    *,
    aliasing: Aliasing = "elements",
    temporary: Temporary | None = None,
    reorder: bool = True,
) -> Plan:
    """The plan of a call of the entry at the sizes `at`, which must be complete: what a runtime follows. Only sizes
    that a `match_cast` binds may be missing; values with such sizes are not planned."""
    started = time.perf_counter()
    scope = Scope({name: (size, size) for name, size in at.items()})
    sizes = SizeProofs(scope, at, only_there=True)
    return planned(program_of(module, temporary), sizes, aliasing=aliasing, reorder=reorder, started=started)


_ALIASING = ("elements", "dtype", "bytes", "fits")


@accepts(
    bounds=BOUNDS,
    at=Kind(
        lambda x: x is None or all(isinstance(b, Mapping) for b in (x if isinstance(x, (list, tuple)) else [x])),  # type: ignore[reportUnknownVariableType]
        "{'n': 128}, or a list of such,",
    ),
    assume=STATEMENTS,
    results=one_of("apart", "planned"),
    aliasing=one_of(*_ALIASING),
    temporary=Kind(
        lambda x: x is None or isinstance(x, str) or callable(x),
        "'measured', 'estimated', 'none' or a function of a step",
    ),
    reorder=FLAG,
    check=FLAG,
)
def plan_memory(
    module: Any,
    *,
    bounds: Bounds | None = None,
    at: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    assume: Iterable[str] = (),
    results: Results = "apart",
    aliasing: Aliasing = "elements",
    temporary: Temporary | Asked | None = None,
    reorder: bool = True,
    align: int | None = None,
    check: bool = False,
) -> Plan:
    """The memory plan of a call of a module's entry, for all sizes in `bounds`, with proofs.

    - `module`: a Module, or what `optimize` returns.
    - `bounds`: the range of each size, `(low, high)`, or one integer that fixes it. If all sizes are bounded, the arena
      is one number of bytes.
    - `at`: the sizes to be best at, one binding or a list; default: the upper bounds. The order is chosen for all of
      them, the packing for the first.
    - `assume`: further statements about sizes.
    - `results`: whether the results are in the arena ("planned": valid until the next call) or the caller's own
      ("apart").
    - `aliasing`: which storages the backend lets a kernel take over.
    - `temporary`: what kernels allocate themselves, planned as workspaces. "measured": they are compiled at the largest
      sizes, or, if those are unbounded, at the first of `at`; this is the default only for results of
      `optimize(execution="kernels")`. "estimated": from their equations. "none". Or a function of a step (see
      `program_of`).
    - `reorder`: whether kernels may be reordered.
    - `align`: offsets are multiples of so many bytes; default: the size of the largest element.
    - `check`: replay the plan at many sizes; MemoryPlanError if anything is destroyed.
    """
    started = time.perf_counter()
    executables = module if isinstance(module, Measurable) else None
    module = getattr(module, "module", module)
    if not isinstance(module, Module):
        raise OptionError(f"plan_memory() takes a Module or what optimize() returns, got {type(module).__name__}")
    if align is not None and (isinstance(align, bool) or not isinstance(align, int) or align < 1):
        raise OptionError(f"align={shown(align)}: a number of bytes from 1 on is accepted")
    temporary = _checked(temporary, executables)
    program = program_of(module, temporary if callable(temporary) else None)
    scope = _scope(module, bounds or {}, assume, program.variables)
    bindings = [at] if isinstance(at, Mapping) else list(at or ()) or [{}]
    first, *also = (_chosen(scope, program.variables, given) for given in bindings)
    temporaries = Temporaries("given") if callable(temporary) else NOT_COUNTED
    if temporary == "estimated":
        temporaries = estimated(program, first)
    elif temporary == "measured":
        assert executables is not None
        sizes = _corner_of(scope, first) or first
        temporaries = measured(program, executables.temporary_bytes(sizes), sizes)
    made = planned(
        program, SizeProofs(scope, first), results, aliasing, reorder, align, also, started, temporaries=temporaries
    )  # fmt: skip
    if check and (found := made.check()):
        raise MemoryPlanError(f"{program.name}(): the plan does not hold: {found[0]}")
    return made


def _checked(temporary: Temporary | Asked | None, executables: Measurable | None) -> Temporary | Asked:
    """The value of `temporary`, checked, or its default for what is planned."""
    if temporary is None:
        return "none" if executables is None else "measured"
    if not isinstance(temporary, str) or temporary in ("estimated", "none"):
        return temporary
    if temporary != "measured":
        raise OptionError(
            f"temporary={shown(temporary)}: 'measured', 'estimated', 'none' or a function of a step is accepted"
        )
    if executables is None:
        raise OptionError(
            "temporary='measured': there are no executables to look at; accepted: what optimize(execution='kernels') "
            "returned, or temporary='estimated'"
        )
    return temporary


def _corner_of(scope: Scope, at: Mapping[str, int]) -> Mapping[str, int] | None:
    """The upper bounds of all sizes; None if one is missing or they are not allowed together."""
    sides = {n: scope.bounds(n)[1] for n in at}
    corner = {n: high for n, high in sides.items() if high is not None}
    try:
        scope.check(corner, "the largest sizes")
    except BoundsError:
        return None
    return corner if len(corner) == len(at) else None


def planned(
    written: MemoryProgram,
    sizes: SizeProofs,
    results: Results = "apart",
    aliasing: Aliasing = "elements",
    reorder: bool = True,
    align: int | None = None,
    also: Sequence[Mapping[str, int]] = (),
    started: float | None = None,
    temporaries: Temporaries = NOT_COUNTED,
) -> Plan:
    """The plan for a memory program; see `plan_memory`. `also`: further sizes that its order should be good at;
    `started`: when planning began; `temporaries`: what kernels allocate beside what the program has."""
    started = time.perf_counter() if started is None else started
    written = temporaries.of(written)
    amounts = [counted(written, at) for at in (sizes.at, *also)]
    order = _best_order(written, amounts) if reorder else Order.as_written(written, amounts[0])
    made = _in_order(written, order, sizes, results, aliasing, align)
    return replace(made, temporaries=temporaries, seconds=time.perf_counter() - started)


def as_it_runs(made: Plan, bytes_of: Mapping[str, int]) -> Plan:
    """A plan made by `plan`, with the same order and storages, that also counts what its executables were found to
    allocate, by kernel."""
    temporaries = measured(made.written, bytes_of, made.at, only=True)
    written = temporaries.of(made.written)
    before, after = (peak_of(p, counted(p, made.at)) for p in (written, written.reordered(made.order.steps)))
    order = replace(made.order, before=before, after=after)
    sizes = SizeProofs(made.scope, made.at, only_there=True)
    counting = _in_order(written, order, sizes, made.live.results, made.runtime.aliasing)
    return replace(counting, temporaries=temporaries, seconds=made.seconds)


def _in_order(
    written: MemoryProgram,
    order: Order,
    sizes: SizeProofs,
    results: Results = "apart",
    aliasing: Aliasing = "elements",
    align: int | None = None,
) -> Plan:
    """Arena and storages for the kernels of a program in that order."""
    program, known = written.reordered(order.steps), sizes.at.keys()
    live = liveness(program, results, known)
    offsets = offset_plan(live, sizes, align)
    # Results have no storage, because a later call would overwrite it.
    apart = live if results == "apart" else liveness(program, "apart", known)
    runtime = runtime_plan(apart, sizes, aliasing)
    return Plan(written, program, order, live, offsets, runtime, sizes.scope, dict(sizes.at))


def counted(program: MemoryProgram, at: Mapping[str, int]) -> list[int]:
    """The bytes of each value at these sizes; 0 for arguments and constants, and for values of unknown size."""
    sized = {d for x in program.values if (d := x.bytes) is not None and d.variables <= at.keys()}
    known = {d: int(d.evaluate(at)) for d in sized}
    ours = ("value", "workspace", "result")
    return [known.get(x.bytes, 0) if x.bytes is not None and x.role in ours else 0 for x in program.values]


def _best_order(program: MemoryProgram, amounts: Sequence[Sequence[int]]) -> Order:
    """Among the best orders for each binding, the one whose worst ratio to the best peak over all bindings is least."""
    orders = [least_peak(program, sizes) for sizes in amounts]
    if len(orders) == 1:
        return orders[0]
    least = [max(o.after, 1) for o in orders]

    def worst(order: Order) -> float:
        moved = program.reordered(order.steps)
        return max(peak_of(moved, sizes) / best for sizes, best in zip(amounts, least, strict=True))

    chosen = min(orders, key=worst)
    moved = program.reordered(chosen.steps)
    before, after = peak_of(program, amounts[0]), peak_of(moved, amounts[0])
    return Order(chosen.steps, before, after, chosen.blocks, chosen.exact)


def _scope(module: Module, bounds: Bounds, assume: Iterable[str], names: Sequence[str]) -> Scope:
    """The scope of the sizes. BoundsError for bounds that name no size, are no integers, are below 0 or contradict each
    other; OptionError for values that are no bounds."""
    if not isinstance(bounds, Mapping):  # type: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"bounds={shown(bounds)}: {{'n': (1, 4096)}} is accepted")
    for name in bounds:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            known = ", ".join(names) or "none"
            raise BoundsError(f"{module.main.name}(): bounds name `{name}`, which is no size; its sizes: {known}{hint}")
    scope = Scope(assume=module.main.assume)
    for name, bound in bounds.items():
        scope.bound(name, bound, "plan_memory(bounds=...)")
        low, _ = scope.bounds(name)
        if low is not None and low < 0:
            raise BoundsError(f"{module.main.name}(): the lower bound of `{name}` is {low}; a size is at least 0")
    scope.assume(*as_statements(assume))
    return scope


def _chosen(scope: Scope, names: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """The sizes of interest: those given, upper bounds for others, else a usual size."""
    for name, size in given.items():
        if name not in names:
            raise BoundsError(f"at names `{name}`, which is no size; the sizes: {', '.join(names) or 'none'}")
        if isinstance(size, bool) or not isinstance(size, int):
            raise BoundsError(f"at: {name} = {shown(size)}; an integer is accepted")
    scope.check(given, "plan_memory(at=...)")
    corner = {n: given.get(n, _corner(scope, n)) for n in names}
    try:
        scope.check(corner, "at")
    except BoundsError:
        return scope.example(names, max(corner.values(), default=1), given)
    return corner


def _corner(scope: Scope, name: str) -> int:
    low, high = scope.bounds(name)
    return high if high is not None else max(low or 0, USUAL)


def bindings_of(scope: Scope, names: Sequence[str], seed: int = 0, most: int = CHECKED) -> list[dict[str, int]]:
    """Allowed sizes: the largest, and random others that depend only on `seed`."""
    rng = random.Random(seed)
    found = [{n: _corner(scope, n) for n in names}, *scope.points(names, most // 2)]
    while len(found) < most:
        sides = {n: scope.bounds(n) for n in names}
        found.append(
            {n: rng.randint(low or 0, 4 * USUAL if high is None else high) for n, (low, high) in sides.items()}
        )
    kept: list[dict[str, int]] = []
    for sizes in found:
        try:
            scope.check(sizes, "check")
        except BoundsError:
            continue
        kept.append(sizes)
    return kept
