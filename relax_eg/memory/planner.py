"""`plan_memory` and `plan`: order and layout for the values of a module's entry."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relax_eg.argument_checks import BOUNDS, FLAG, Kind, accepts, did_you_mean, one_of, short_repr
from relax_eg.errors import BoundsError, MemoryPlanError, OptionError
from relax_eg.ir import Expr, Module
from relax_eg.memory.liveness import Liveness, Results, liveness
from relax_eg.memory.placement import Layout
from relax_eg.memory.plan import LAYOUTS, Plan, PlanOptions, corner_of, is_allowed, plan_in_order, usual_size
from relax_eg.memory.program import MemoryProgram, StoredValues, Temporary
from relax_eg.memory.proofs import SizeProofs
from relax_eg.memory.schedule import Order, best_order
from relax_eg.memory.steps import program_of
from relax_eg.memory.storages import Aliasing
from relax_eg.memory.temporaries import (
    NOT_COUNTED,
    Measurable,
    Temporaries,
    TemporarySource,
    estimate_temporaries,
    measure_temporaries,
)
from relax_eg.shapes import Scope
from relax_eg.shapes.relation import Bounds, split_bounds


def plan(module: Module, at: Mapping[str, int], ahead: Collection[Expr] = ()) -> Plan:
    """The plan that a runtime follows in a call of the entry at the sizes `at`. Only sizes that a `match_cast` binds
    may be missing; values with such sizes are not planned. `ahead`: as in `program_of`."""
    started = time.perf_counter()
    scope = Scope({name: (size, size) for name, size in at.items()})
    sizes = SizeProofs(scope, at, at_only=True)
    return make_plan(program_of(module, ahead=ahead), sizes, started=started)


def lifetimes(
    module: Module,
    at: Mapping[str, int],
    *,
    stored: StoredValues | None = None,
    ahead: Collection[Expr] = (),
    temporary: Temporary | None = None,
) -> Liveness:
    """The lifetimes in a call at the sizes `at`, results included, as reports show them. Takes time nearly linear in
    the kernels that run.

    - `stored`: what the compiler of one program stores. Its kernels run in the order of the text, but those that are a
      part of an earlier one follow that one. Without it each kernel is a program, and they run in an order of low peak.
    - `ahead`: as in `program_of`.
    - `temporary`: as in `program_of`; default: as `stored` says, or estimated from equations.
    """
    program = program_of(module, temporary, stored=stored, ahead=ahead)
    if stored is None:
        program = program if temporary is not None else estimate_temporaries(program, at).of(program)
        program = program.reordered(best_order(program, [at]).steps)
    elif stored.beside:
        program = program.reordered(_joined_order(program, stored))
    return liveness(program, "planned", at.keys())


def _joined_order(program: MemoryProgram, stored: StoredValues) -> list[int]:
    """The steps in an order in which those beside an earlier one of their region follow it, if it is after all that
    they read."""
    numbers = {(s.function, s.kernel): s.number for s in program.steps}
    following: dict[int, list[int]] = {}
    for s in program.steps:
        first = stored.beside.get((s.function, s.kernel))
        after = None if first is None else numbers.get((s.function, first))
        if after is None or program.steps[after].region != s.region:
            continue
        if all((w := program.writer[v]) is None or w < after for v in s.reads):
            following.setdefault(after, []).append(s.number)
    moved = {n for found in following.values() for n in found}
    return [n for s in program.steps if s.number not in moved for n in (s.number, *following.get(s.number, ()))]


_ALIASING = ("elements", "dtype", "bytes", "fits")


@accepts(
    bounds=BOUNDS,
    at=Kind(
        lambda x: x is None or all(isinstance(b, Mapping) for b in (x if isinstance(x, (list, tuple)) else [x])),  # type: ignore[reportUnknownVariableType]
        "{'n': 128}, or a list of such,",
    ),
    results=one_of("apart", "planned"),
    layout=one_of(*LAYOUTS),
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
    results: Results = "apart",
    layout: Layout = "storages",
    aliasing: Aliasing = "elements",
    temporary: Temporary | TemporarySource | None = None,
    reorder: bool = True,
    align: int | None = None,
    check: bool = False,
) -> Plan:
    """The memory plan of a call of a module's entry, for all sizes in `bounds`, with proofs.

    - `module`: a Module, or what `optimize` returns; or what `prepare` returns, without what is prepared from weights.
    - `bounds`: the range of each size, `(low, high)`, or one integer that fixes it; statements about sizes, such as
      "s % 8 == 0"; or a list of both. If all sizes are bounded, an arena is one number of bytes.
    - `at`: the sizes for which the plan is optimized, one binding or a list; default: the upper bounds. The order is
      chosen for all of them, the layout for the first.
    - `results`: whether the results are in the planned memory ("planned": valid until the next call) or in memory of
      the caller ("apart").
    - `layout`: "storages", by which `execution="kernels"` runs; "arena", for a backend with offsets; or "greedy", TVM's
      planner, for comparison.
    - `aliasing`: which storages the backend lets a kernel take over.
    - `temporary`: the source of the bytes that kernels allocate themselves, which are planned as workspaces.
      "measured": the kernels are compiled at the largest sizes, or, if those are unbounded, at the first of `at`; this
      is the default only for results of `optimize(execution="kernels")`. "estimated": from their equations. "none":
      such bytes are not counted. Or a function of a step (see `program_of`).
    - `reorder`: whether kernels may be reordered.
    - `align`: offsets in an arena are multiples of this number of bytes; default: the size of the largest element.
    - `check`: whether to replay the plan at many sizes; MemoryPlanError if a value in use is destroyed.
    """
    started = time.perf_counter()
    executables = module if isinstance(module, Measurable) else None
    module = getattr(module, "module", module)
    if not isinstance(module, Module):
        raise OptionError(f"plan_memory() takes a Module or what optimize() returns, got {type(module).__name__}")
    if align is not None and (isinstance(align, bool) or not isinstance(align, int) or align < 1):
        raise OptionError(f"align={short_repr(align)}: a number of bytes from 1 on is accepted")
    temporary = _check_temporary(temporary, executables)
    program = program_of(module, temporary if callable(temporary) else None)
    scope = _scope(module, bounds, program.variables)
    bindings = [at] if isinstance(at, Mapping) else list(at or ()) or [{}]
    first, *also = (_sizes_of_interest(scope, program.variables, given) for given in bindings)
    temporaries = Temporaries("given") if callable(temporary) else NOT_COUNTED
    if temporary == "estimated":
        temporaries = estimate_temporaries(program, first)
    elif temporary == "measured":
        assert executables is not None
        bounded = all(scope.bounds(n)[1] is not None for n in first)
        sizes = (corner_of(scope, first) if bounded else None) or first
        temporaries = measure_temporaries(program, executables.temporary_bytes(sizes), sizes)
    options = PlanOptions(layout, results, aliasing, align)
    made = make_plan(program, SizeProofs(scope, first), options, reorder, also, started, temporaries)
    if check and (found := made.check()):
        raise MemoryPlanError(f"{program.name}(): the plan does not hold: {found[0]}")
    return made


def _check_temporary(
    temporary: Temporary | TemporarySource | None, executables: Measurable | None
) -> Temporary | TemporarySource:
    """The argument `temporary`, or its default. OptionError for an unknown text, and for "measured" without
    `executables`."""
    if temporary is None:
        return "none" if executables is None else "measured"
    if not isinstance(temporary, str) or temporary in ("estimated", "none"):
        return temporary
    if temporary != "measured":
        raise OptionError(
            f"temporary={short_repr(temporary)}: 'measured', 'estimated', 'none' or a function of a step is accepted"
        )
    if executables is None:
        raise OptionError(
            "temporary='measured': there are no executables to look at; accepted: what optimize(execution='kernels') "
            "returned, or temporary='estimated'"
        )
    return temporary


def make_plan(
    written: MemoryProgram,
    sizes: SizeProofs,
    options: PlanOptions | None = None,
    reorder: bool = True,
    also: Sequence[Mapping[str, int]] = (),
    started: float | None = None,
    temporaries: Temporaries = NOT_COUNTED,
) -> Plan:
    """The plan for a memory program; see `plan_memory`.

    - `also`: further sizes for which the order is chosen.
    - `started`: the value of `time.perf_counter` when planning began; default: now.
    - `temporaries`: what kernels allocate in addition to the workspaces of the program.
    """
    started = time.perf_counter() if started is None else started
    written = temporaries.of(written)
    order = best_order(written, [sizes.at, *also]) if reorder else Order.of_program(written, sizes.at)
    made = plan_in_order(written, order, sizes, options or PlanOptions(), temporaries)
    return replace(made, seconds=time.perf_counter() - started)


def with_measured_temporaries(made: Plan, bytes_of: Mapping[str, int]) -> Plan:
    """The plan `made` by `plan`, with the same order and storages, that also counts the bytes that its executables
    allocate: `bytes_of`, by the name of the kernel."""
    temporaries = measure_temporaries(made.written, bytes_of, made.at, at_only=True)
    written = temporaries.of(made.written)
    order = made.order.with_peaks(written, made.at)
    return replace(plan_in_order(written, order, made.sizes, made.options, temporaries), seconds=made.seconds)


def _scope(module: Module, bounds: Bounds | None, names: Sequence[str]) -> Scope:
    """The scope of the sizes. BoundsError for bounds that name an unknown size, are no integers, are below 0 or
    contradict each other."""
    ranges, statements = split_bounds(bounds)
    for name in ranges:
        if name not in names:
            known = f"{', '.join(names) or 'none'}{did_you_mean(name, names)}"
            raise BoundsError(f"{module.main.name}(): bounds name `{name}`, which is no size; its sizes: {known}")
    scope = Scope(assume=module.main.assume)
    for name, bound in ranges.items():
        scope.bound(name, bound, "plan_memory(bounds=...)")
        low, _ = scope.bounds(name)
        if low is not None and low < 0:
            raise BoundsError(f"{module.main.name}(): the lower bound of `{name}` is {low}; a size is at least 0")
    scope.assume(*statements)
    return scope


def _sizes_of_interest(scope: Scope, names: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """The sizes of interest: those `given`, for the others `usual_size`, or an allowed example if these are not allowed
    together."""
    for name, size in given.items():
        if name not in names:
            raise BoundsError(f"at names `{name}`, which is no size; the sizes: {', '.join(names) or 'none'}")
        if isinstance(size, bool) or not isinstance(size, int):
            raise BoundsError(f"at: {name} = {short_repr(size)}; an integer is accepted")
    scope.check(given, "plan_memory(at=...)")
    corner = {n: given.get(n, usual_size(scope, n)) for n in names}
    return corner if is_allowed(scope, corner) else scope.example(names, max(corner.values(), default=1), given)
