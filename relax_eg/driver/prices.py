"""Prices of a program and of the one as written, and whether the difference is enough to replace the latter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import geometric_mean
from typing import TYPE_CHECKING, Protocol

import numpy as np

from relax_eg.backend.accounting import FRUGAL, is_on_cpu
from relax_eg.backend.calls.program import Program
from relax_eg.backend.family import KERNELS, WHOLE
from relax_eg.backend.lowering.convolutions import slower_in_loops
from relax_eg.backend.lowering.transposed_products import copied_by_jax
from relax_eg.backend.pallas.plan import own_kernels
from relax_eg.driver.inside_kernels import operators_inside
from relax_eg.driver.liveness import memory_of
from relax_eg.extract.costs.by_jax import AS_OURS, ByJax
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.cost_model import CostModel, NodeCost
from relax_eg.extract.costs.detail import parts_of
from relax_eg.extract.costs.numbers import Number
from relax_eg.extract.costs.priced import PricedModule, PricedModules
from relax_eg.extract.costs.totals import total_amounts
from relax_eg.extract.costs.transfers import waiting_seconds
from relax_eg.extract.costs.walk import own_costs, walk
from relax_eg.extract.kernels.cost import KernelCost, WithOwnKernels, without_dispatch
from relax_eg.extract.profiles.kinds import CALL
from relax_eg.extract.profiles.learned import Expected, expect
from relax_eg.extract.profiles.profile import AS_USUAL, Mode, Profile
from relax_eg.extract.report import OperatorRow, ProgramCost, price_program
from relax_eg.extract.selection.weights import prepared_bytes
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function, Module
from relax_eg.ir.partition import split, static_expressions
from relax_eg.ops import bytes_of, site_of
from relax_eg.ops.partial_annotations import is_partial
from relax_eg.ops.record import TABLE
from relax_eg.shapes import Dim

if TYPE_CHECKING:
    from relax_eg.driver.options import Options, Sizes

WAITING, WAITING_FOR_HOST = "waiting for dispatch", "waiting for copies to and from the host"
# given: predicted speedup needed to replace the program as written unmeasured, as users are told. Predictions of a call
# are off by 1.19 times in the median (`python -m benchmarks.fidelity`).
NEVER_SLOWER = 1.05
# given: seconds and temporary bytes of kernels on a GPU, over those of the function as written as one XLA program
NO_WORSE = 1.03
_FEW_BYTES = 1 << 16  # chosen: temporary bytes that are not compared
# given: times fewer temporary bytes with which a program replaces the one as written if it takes no longer
SPARING = 16
# chosen: predicted speedup from which on one XLA program may need more temporary bytes on a GPU than the one as written
PAYS_MEMORY = 1.5
_BY_OWN_MODEL = 1.0001  # chosen: the same by a cost model of the user's own, whose prices are exact but for rounding

# measured: factor on seconds in another execution than that of the program as written, where programs are compared. On
# a CPU, 13 programs in kernels took 0.6 to 2.5 times as long, beside one XLA program, as predicted; the median is 1.2,
# and one took more than 1.5 times (`python -m benchmarks.kernels`).
EXECUTION_DOUBT = 1.5

# measured: factor on seconds with kernels through Pallas in one XLA program, where programs are compared. On an H200,
# six programs of attention were 1.6 to 3.2 times as fast; predicted were 1.5 to 2.3 (`python -m benchmarks.gpu --run`).
OWN_KERNELS_DOUBT = 1.05

# measured: factor on seconds in a mode of the profile where programs are compared. Prices in two modes differ by a
# larger error than prices of two programs in one mode: of 149 choices, 12 were over 10% behind the fastest candidate
# where a mode had to gain 5%, and 5 where it has to gain 18% to 25% (`benchmarks.fidelity`, on a calibrated profile).
MODE_DOUBT = 1.2

_LEAST_OF_A_KIND = 1e-8  # chosen: seconds; prices below it are those of what does nothing

Columns = Mapping[str, np.ndarray]
Prices = tuple[ProgramCost, ProgramCost]  # of the program as written, and of a candidate


class PriceOptions(Protocol):
    """The part of the options that prices depend on."""

    @property
    def priced(self) -> PricedModules: ...

    @property
    def profile(self) -> Profile: ...
    @property
    def execution(self) -> str: ...
    @property
    def cost(self) -> CostModel | None: ...
    @property
    def least_gain(self) -> float | None: ...


@dataclass(frozen=True)
class ByProfile:
    """Prices by a profile alone, as of a saved function."""

    profile: Profile
    execution: str = WHOLE
    cost: CostModel | None = None
    least_gain: float | None = None
    priced: PricedModules = field(default_factory=PricedModules, compare=False, repr=False)


def price_at(module: Module, options: PriceOptions, binding: Sizes, weights: set[str] | None = None) -> ProgramCost:
    """The cost of a program at a binding, by the profile of `options` or by their cost model. `weights`: parameters
    known ahead of the calls; what depends on them alone is computed once and costs nothing. None: it is the program as
    written, which JAX lowers, and all of it is computed at every call."""
    priced = _priced(module, options, binding, weights is None)
    key = None if weights is None else frozenset(weights)
    if key not in priced.costs:
        priced.costs[key] = _price_anew(module, options, binding, weights, priced.model)
    return priced.costs[key]


def _price_anew(
    module: Module, options: PriceOptions, binding: Sizes, weights: set[str] | None, model: WholeCost
) -> ProgramCost:
    cut = split(module.main, weights).prepare.result.args if weights else ()
    once = None if weights is None else static_expressions(module.main, weights)
    found = price_program(module.main, model, once, (len(cut), prepared_bytes(cut, binding)))
    if options.cost is not None:
        return found
    found = _with_row(found, WAITING_FOR_HOST, waiting_seconds(module.main, model, once))
    if options.execution != KERNELS:
        return found
    return _with_row(found, WAITING, options.profile.run(found.seconds, found.dispatches) - found.seconds)


def _with_row(cost: ProgramCost, name: str, seconds: float) -> ProgramCost:
    """Adds a row for the time that the device waits."""
    return replace(cost, rows=(*cost.rows, OperatorRow(name, 0, 0, 0, 0, seconds))) if seconds > 0 else cost


def closed_forms(module: Module, options: Options, binding: Sizes, weights: set[str] | None = None) -> dict[str, str]:
    """Flops, bytes, launches and workspace bytes of a program, and the bytes prepared from `weights`, as text:
    expressions in the sizes. At a binding they equal those of `price_at` where the profile's own model prices."""
    skip = None if weights is None else static_expressions(module.main, weights)
    done = total_amounts(module.main, cost_model(module, options, binding), skip)
    cut = split(module.main, weights).prepare.result.args if weights else ()
    prepared = sum((bytes_of(e.annotation) for e in cut), Dim.of(0))
    found = {"flops": done.flops, "bytes": done.bytes, "launches": done.launches, "workspace": done.workspace}
    return {k: str(d) for k, d in (found | {"prepared": prepared}).items()}


def cost_model(module: Module, options: PriceOptions, binding: Sizes, is_written: bool = False) -> WholeCost:
    """The model that prices a module at a binding; the one made before, if the module was priced there. `is_written`:
    whether JAX lowers it, as it is written."""
    return _priced(module, options, binding, is_written).model


def is_lowered_otherwise(module: Module, options: PriceOptions) -> bool:
    """Whether what JAX makes of a program, as it is written, takes longer than what `backend.lowering.lower` makes of
    it."""
    if options.profile.platform != "cpu" or options.cost is not None or options.execution == KERNELS:
        return False
    nodes = ((e, f is not module.main) for f in module for e in f.expressions())
    return any(_as_jax_lowers(e, is_in_loop, lambda size: math.inf) != AS_OURS for e, is_in_loop in nodes)


def _as_jax_lowers(e: Expr, is_in_loop: bool, size: Callable[[Dim], float]) -> ByJax:
    operator = TABLE.get(e.op)
    slower = 1.0
    if operator is not None and operator.slower is not None and not any(is_partial(a.annotation) for a in e.args):
        slower = operator.slower(site_of(e), size)
    if is_in_loop:
        slower *= slower_in_loops(e)
    return ByJax(slower, copied_by_jax(e, size))


def _priced(module: Module, options: PriceOptions, binding: Sizes, is_written: bool) -> PricedModule:
    by_jax = is_written and is_lowered_otherwise(module, options)
    make = partial(_model_anew, module, options, binding, by_jax)
    return options.priced.of(module, options.profile, options.execution, options.cost, by_jax, binding, make)


def _model_anew(module: Module, options: PriceOptions, binding: Mapping[str, Number], by_jax: bool) -> WholeCost:
    """`by_jax`: whether JAX lowers the program, as it is written, and what it makes of it takes longer than ours."""
    functions = {f.name: f for f in module}
    if options.execution != KERNELS:
        if not options.profile.pallas:
            model = WholeCost(options.profile, binding, functions, options.cost)
            if by_jax:
                model.as_jax_lowers = _as_jax_lowers
            return model
        model = WithOwnKernels(options.profile, binding, functions, options.cost)
        model.own_blocks = own_kernels
        return model
    return kernel_cost(options, binding, functions)


def kernel_cost(
    options: PriceOptions,
    binding: Mapping[str, Number],
    functions: Mapping[str, Function],
    unusable: frozenset[str] = frozenset(),
) -> KernelCost:
    """The model of a program in kernels, which knows what the room of Pallas leaves to XLA, and the operators that XLA
    gets."""
    model = KernelCost(options.profile, binding, functions, options.cost, unusable)
    model.own_blocks = own_kernels
    model.as_compiled = options.priced.kernels(without_dispatch(options.profile), operators_inside)
    return model


def with_details(
    cost: ProgramCost,
    module: Module,
    options: Options,
    binding: Sizes,
    kernels: Mapping[str, tuple[str, ...]] | None = None,
    weights: set[str] | None = None,
) -> ProgramCost:
    """`cost`, as `price_at` gave it for these arguments, with all the details of a report. `kernels`: the operators
    inside composed programs, by name."""
    model = cost_model(module, options, binding, weights is None)
    once = static_expressions(module.main, weights) if weights else None
    return replace(
        cost,
        parts=parts_of(module.main, model, once, kernels),
        memory=memory_of(module, model, binding, once or set(), options.execution == KERNELS),
        call=call_seconds(cost, options),
        kinds=_kinds(module, options, model, once),
    )


def prices(written: Module, candidate: Module, weights: set[str], binding: Sizes, options: Options) -> Prices:
    """The costs of the program as written and of the candidate at a binding. What depends on the weights alone is
    computed at every call by the former, and once by the latter."""
    return price_at(written, options, binding), price_at(candidate, options, binding, weights)


def call_seconds(cost: ProgramCost | NodeCost, options: PriceOptions, straight: Number = 0) -> Number:
    """Seconds of a call of a program that costs so much. For one executable priced by the profile this includes its
    dispatch and waking other cores. `straight`: of a NodeCost, the launches outside of loops, choices and calls."""
    if options.cost is not None:
        return cost.seconds
    if options.execution == KERNELS:
        dispatches = cost.dispatches if isinstance(cost, ProgramCost) else cost.launches
        return options.profile.run(cost.seconds, dispatches)
    in_a_row = cost.in_a_row if isinstance(cost, ProgramCost) else straight
    return options.profile.call(cost.seconds, cost.wakes, in_a_row)


def kinds_at(
    module: Module, options: PriceOptions, binding: Sizes, weights: set[str] | None = None
) -> dict[str, float]:
    """The predicted seconds of a call at a binding by kind of kernel (`extract.profiles.kinds`), without corrections;
    empty in kernels and for a cost model. `weights`: as in `price_at`."""
    skip = None if weights is None else static_expressions(module.main, weights)
    return _kinds(module, options, cost_model(module, options, binding, weights is None), skip)


def _kinds(module: Module, options: PriceOptions, model: WholeCost, skip: set[Expr] | None) -> dict[str, float]:
    if options.execution == KERNELS or options.cost is not None:
        return {}
    p, found, wakes, in_a_row = options.profile, dict[str, float](), False, 0.0
    for v, cost in own_costs(module.main, model, skip):
        wakes = wakes or (bool(cost.wakes) and not v.path)
        in_a_row += 0.0 if v.path or v.runs_functions else float(cost.launches)
        if v.site is None or cost.seconds <= _LEAST_OF_A_KIND:
            continue
        kind = v.model.kind(v.site, v.model.price(v.site, v.node.annotation))
        part = float(cost.seconds / (1.0 if v.runs_functions else kind.factor(model.corrections)))
        found[str(kind)] = found.get(str(kind), 0.0) + part
    return {**found, CALL: float(p.around(wakes, in_a_row))}


def held_parameters(program: Program, weights: Sequence[str]) -> set[str]:
    """The parameters of the arguments that are bound ahead."""
    return {str(p.attr("name")) for p, a in zip(program.params, program.arguments, strict=True) if a in weights}


def call_predictor(
    program: Program, modules: Sequence[Module | None], weights: Sequence[str], options: PriceOptions
) -> Callable[[int, Sizes], float]:
    """A function that predicts the seconds of a call of one of `modules` at given sizes. None in `modules` is the
    function as written. `weights`: the arguments that are bound ahead."""
    held = held_parameters(program, weights)

    def predicted(which: int, sizes: Sizes) -> float:
        module = modules[which]
        if module is None:
            return call_seconds(price_at(program.written(), options, sizes), options)
        return call_seconds(price_at(module, options, sizes, held), options)

    return predicted


def seconds_at(module: Module, options: Options, columns: Columns, weights: set[str] | None = None) -> np.ndarray:
    """Seconds of a call of a program at many bindings at once: `call_seconds` of `price_at` at each.

    `columns`: the values of each size variable, one for each binding.
    """
    # float64, because products of large sizes overflow 64-bit integers.
    at = {v: np.asarray(c, np.float64) for v, c in columns.items()}
    model = _model_anew(module, options, at, weights is None and is_lowered_otherwise(module, options))
    skip = None if weights is None else static_expressions(module.main, weights)
    found = function_seconds(module.main, model, options, skip)
    return np.broadcast_to(np.asarray(found, np.float64), len(next(iter(columns.values())))).copy()


def function_seconds(
    function: Function, model: WholeCost, options: PriceOptions, skip: set[Expr] | None = None
) -> Number:
    """Seconds of a call of a function by a model, at its binding or its bindings. `skip`: nodes that run ahead."""
    visits = [(v, v.cost) for v in walk(function, model, skip, deep=False)]
    total = sum((cost for _, cost in visits), NodeCost())
    straight = sum(cost.launches for v, cost in visits if not v.runs_functions)
    return call_seconds(total, options, straight)


def least_gain(options: PriceOptions) -> float:
    """The predicted speedup above which a candidate replaces the program as written."""
    if options.least_gain is not None:
        return options.least_gain
    return NEVER_SLOWER if options.cost is None else _BY_OWN_MODEL


def is_worthwhile(calls: Sequence[tuple[float, float]], least: float) -> bool:
    """Whether calls of a candidate are predicted to be faster than those of the program as written by more than the
    factor `least`.

    Over several bindings this must hold for the geometric mean; or for one binding, if none gets slower. `calls`: for
    each binding the seconds of the program as written, and of the candidate times the doubt about it.
    """
    gains = [before / after if after > 0 else 1.0 for before, after in calls]
    return geometric_mean(gains) > least or (max(gains) > least and min(gains) >= 1.0)


def device_cost(
    module: Module, options: Options, execution: str, binding: Sizes, weights: set[str] | None = None
) -> tuple[float, int]:
    """Seconds of a program on the device, without dispatching kernels, and its bytes of temporary memory."""
    there = replace(options, execution=execution, profile=without_dispatch(options.profile))
    once = static_expressions(module.main, weights) if weights else set[Expr]()
    memory = memory_of(module, cost_model(module, there, binding), binding, once, execution == KERNELS)
    return price_at(module, there, binding, weights).seconds, 0 if memory is None else memory.temporary or 0


def is_no_dearer(candidate: tuple[float, int], written: tuple[float, int], in_kernels: bool) -> bool:
    """Whether a program takes no longer on a GPU than the function as written as one XLA program, and needs no more
    temporary memory; both as `device_cost`. One program may need a few bytes more, such as for products that it merges;
    one `in_kernels` only if it needs few altogether."""
    most = NO_WORSE * written[1]
    most = max(most, _FEW_BYTES) if in_kernels else most + _FEW_BYTES
    return candidate[0] <= NO_WORSE * written[0] and candidate[1] <= most


def is_sparing(temporary: int, written: int) -> bool:
    """Whether a program needs a small part of the temporary bytes that the function as written needs."""
    return written > _FEW_BYTES and SPARING * temporary <= written


def moves_less(found: Sequence[Prices]) -> bool:
    """Whether the candidate launches fewer kernels, moves no more bytes and takes no longer, at every binding: a gain
    that does not depend on how accurate predicted times are."""
    return all(
        after.launches < before.launches and after.bytes <= before.bytes and after.seconds <= before.seconds
        for before, after in found
    )


def expected_of(before: ProgramCost, after: ProgramCost, p: Profile) -> Expected:
    """What is expected of a call of the chosen program, by what is known of the errors of a profile."""
    gain = before.call / after.call if after.call > 0 else 1.0
    return expect(gain, before.kinds, after.kinds, p.corrections, p.doubts)


def modes_under_limit(profile: Profile) -> tuple[Mode, ...]:
    """The compilation modes tried under a limit: as usual and, on CPUs, the one in which all memory is XLA's own and
    little, unless the caller compiles the program (a profile without modes). The time of the latter is predicted by the
    profile's mode without XLA's library fusions."""
    if profile.platform != "cpu" or not is_on_cpu() or not profile.modes:
        return (AS_USUAL,)
    changes = next((m.changes for m in profile.modes if m.options.items() <= FRUGAL.items()), {})
    return AS_USUAL, Mode("for memory", FRUGAL, changes)
