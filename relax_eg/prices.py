"""What a program costs beside the one as written, and whether that is reason enough to choose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean

from relax_eg.extract.cost import WholeCost
from relax_eg.extract.detail import Origins, memory_of, parts_of
from relax_eg.extract.kernel_cost import KernelCost
from relax_eg.extract.report import ProgramCost, price_program
from relax_eg.extract.weights import prepared_bytes
from relax_eg.ir.module import Module
from relax_eg.ir.partition import split, static_expressions
from relax_eg.options import Options, Sizes

NEVER_SLOWER = 1.05  # without measuring, a program replaces the one as written only above this predicted gain

Prices = tuple[ProgramCost, ProgramCost]  # of the program as written, and of another


def price(module: Module, options: Options, binding: Sizes, weights: set[str] | None = None) -> ProgramCost:
    """A program at a binding, on the profile of `options` or by their cost model. `weights`: parameters known ahead of
    the calls: what depends on them alone is computed once, and costs nothing; None: all of it at every call."""
    kind = KernelCost if options.execution == "kernels" else WholeCost
    model = kind(options.profile, binding, {f.name: f for f in module}, options.cost)
    if weights is None:
        return price_program(module.main, model)
    cut = split(module.main, weights).prepare.result.args if weights else ()
    prepared = (len(cut), prepared_bytes(cut, binding))
    return price_program(module.main, model, static_expressions(module.main, weights), prepared)


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
    kind = KernelCost if options.execution == "kernels" else WholeCost
    model = kind(options.profile, binding, {f.name: f for f in module}, options.cost)
    once = static_expressions(module.main, weights) if weights else None
    return replace(
        cost,
        parts=parts_of(module.main, model, origins, once, kernels),
        memory=memory_of(module.main, model, origins, once),
        call=of_a_call(cost, options),
    )


def prices(written: Module, candidate: Module, weights: set[str], binding: Sizes, options: Options) -> Prices:
    """The program as written and the candidate at a binding. As written, what depends on the weights alone is computed
    at every call; the candidate computes it once."""
    return price(written, options, binding), price(candidate, options, binding, weights)


def of_a_call(cost: ProgramCost, options: Options) -> float:
    """Seconds of a call of a program: where it is one executable, and the profile prices it, also of its dispatch and
    of waking other cores."""
    if options.execution != "whole" or options.cost is not None:
        return cost.seconds
    return options.profile.call(cost.seconds, cost.wakes)


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
