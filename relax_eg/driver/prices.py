"""What a program costs beside the one as written, and whether that is reason enough to choose it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Protocol

import numpy as np

from relax_eg.backend.program import Program
from relax_eg.driver.alive import memory_of
from relax_eg.driver.options import Execution, Options, Sizes
from relax_eg.extract.cost import WholeCost, priced
from relax_eg.extract.cost_model import CostModel
from relax_eg.extract.detail import Origins, parts_of
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.numbers import Number
from relax_eg.extract.profile import Profile
from relax_eg.extract.report import OperatorRow, ProgramCost, price_program
from relax_eg.extract.totals import total_amounts
from relax_eg.extract.weights import prepared_bytes
from relax_eg.ir.module import Module
from relax_eg.ir.partition import split, static_expressions
from relax_eg.ops import bytes_of
from relax_eg.shapes import Dim

WAITING = "waiting for dispatch"
NEVER_SLOWER = 1.05  # without measuring, a program replaces the one as written only above this predicted gain

Columns = Mapping[str, np.ndarray]
Prices = tuple[ProgramCost, ProgramCost]  # of the program as written, and of another


class Pricing(Protocol):
    """Of the options, what prices depend on."""

    @property
    def profile(self) -> Profile: ...
    @property
    def execution(self) -> Execution: ...
    @property
    def cost(self) -> CostModel | None: ...


def price(module: Module, options: Pricing, binding: Sizes, weights: set[str] | None = None) -> ProgramCost:
    """A program at a binding, on the profile of `options` or by their cost model. `weights`: parameters known ahead of
    the calls: what depends on them alone is computed once, and costs nothing; None: all of it at every call."""
    model = _model(module, options, binding)
    if weights is None:
        return _with_waits(price_program(module.main, model), options)
    cut = split(module.main, weights).prepare.result.args if weights else ()
    prepared = (len(cut), prepared_bytes(cut, binding))
    found = price_program(module.main, model, static_expressions(module.main, weights), prepared)
    return _with_waits(found, options)


def _with_waits(cost: ProgramCost, options: Pricing) -> ProgramCost:
    """With a row of what a device waits for the host, which dispatches its kernels."""
    if options.execution == "whole" or options.cost is not None:
        return cost
    waits = options.profile.run(cost.seconds, cost.launches) - cost.seconds
    return replace(cost, rows=(*cost.rows, OperatorRow(WAITING, 0, 0, 0, 0, waits))) if waits > 0 else cost


def closed_forms(module: Module, options: Options, binding: Sizes, weights: set[str] | None = None) -> dict[str, str]:
    """Flops, bytes, launches and bytes of workspace of a program as text, expressions in its sizes; and of what is
    prepared from `weights`. At a binding they are what `price` has there, as far as the profile's own model prices."""
    skip = None if weights is None else static_expressions(module.main, weights)
    done = total_amounts(module.main, _model(module, options, binding), skip)
    cut = split(module.main, weights).prepare.result.args if weights else ()
    prepared = sum((bytes_of(e.annotation) for e in cut), Dim.of(0))
    found = {"flops": done.flops, "bytes": done.bytes, "launches": done.launches, "workspace": done.workspace}
    return {k: str(d) for k, d in (found | {"prepared": prepared}).items()}


def _model(module: Module, options: Pricing, binding: Mapping[str, Number]) -> WholeCost:
    kind = KernelCost if options.execution == "kernels" else WholeCost
    return kind(options.profile, binding, {f.name: f for f in module}, options.cost)


def detailed(
    cost: ProgramCost,
    module: Module,
    options: Options,
    binding: Sizes,
    origins: Origins,
    kernels: Mapping[str, tuple[str, ...]] | None = None,
    weights: set[str] | None = None,
) -> ProgramCost:
    """`cost`, which `price` gave for these, with all that a report tells of it. `origins`: where expressions come from;
    `kernels`: the operators inside of composed programs, by name."""
    model = _model(module, options, binding)
    once = static_expressions(module.main, weights) if weights else None
    return replace(
        cost,
        parts=parts_of(module.main, model, origins, once, kernels),
        memory=memory_of(module, model, binding, origins, once or set(), options.execution == "kernels"),
        call=of_a_call(cost, options),
    )


def prices(written: Module, candidate: Module, weights: set[str], binding: Sizes, options: Options) -> Prices:
    """The program as written and the candidate at a binding. As written, what depends on the weights alone is computed
    at every call; the candidate computes it once."""
    return price(written, options, binding), price(candidate, options, binding, weights)


def of_a_call(cost: ProgramCost, options: Pricing) -> float:
    """Seconds of a call of a program: where it is one executable, and the profile prices it, also of its dispatch and
    of waking other cores."""
    return _of_a_call(cost.seconds, cost.launches, cost.wakes, options)


def _of_a_call(seconds: Number, launches: Number, wakes: Number, options: Pricing) -> Number:
    if options.cost is not None:
        return seconds
    if options.execution == "whole":
        return options.profile.call(seconds, wakes)
    return options.profile.run(seconds, launches)


def call_predictor(
    program: Program, modules: Sequence[Module | None], weights: Sequence[str], options: Pricing
) -> Callable[[int, Sizes], float]:
    """Gives the seconds of a call of one of `modules` at given sizes, as its price says. None is the function as
    written. `weights`: the arguments that are bound ahead."""
    held = {str(p.attr("name")) for p, a in zip(program.params, program.arguments, strict=True) if a in weights}

    def predicted(which: int, sizes: Sizes) -> float:
        module = modules[which]
        if module is None:
            return of_a_call(price(program.written(), options, sizes), options)
        return of_a_call(price(module, options, sizes, held), options)

    return predicted


def seconds_at(module: Module, options: Options, columns: Columns, weights: set[str] | None = None) -> np.ndarray:
    """Seconds of a call of a program at many bindings at once: `of_a_call` of `price` at each. `columns`: of each size
    variable its values, one for each binding."""
    # Products of large sizes pass 64 bits.
    model = _model(module, options, {v: np.asarray(c, np.float64) for v, c in columns.items()})
    skip = None if weights is None else static_expressions(module.main, weights)
    seconds: Number = 0.0
    launches: Number = 0
    wakes: Number = False
    for p in priced(module.main, model, skip):
        cost = p.cost
        seconds, launches, wakes = seconds + cost.seconds, launches + cost.launches, wakes | cost.wakes
    found = _of_a_call(seconds, launches, wakes, options)
    return np.broadcast_to(np.asarray(found, np.float64), len(next(iter(columns.values())))).copy()


def pays(found: Sequence[Prices], options: Options) -> bool:
    """Whether calls of the candidate are predicted to gain more than 5% over those of the program as written.

    Over several bindings that is the geometric mean; or one of them, if none loses.
    """
    calls = [(of_a_call(before, options), of_a_call(after, options)) for before, after in found]
    gains = [before / after if after > 0 else 1.0 for before, after in calls]
    return geometric_mean(gains) > NEVER_SLOWER or (max(gains) > NEVER_SLOWER and min(gains) >= 1.0)


def moves_less(found: Sequence[Prices]) -> bool:
    """Whether the candidate launches fewer kernels, moves no more bytes and takes no longer, at every binding: a gain
    that does not hang on how well times are predicted."""
    return all(
        after.launches < before.launches and after.bytes <= before.bytes and after.seconds <= before.seconds
        for before, after in found
    )
