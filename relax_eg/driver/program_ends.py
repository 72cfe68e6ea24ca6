"""Both ends of a call of `optimize`: what a user gives as a traced program, and what was chosen as an `Optimized`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.program import Program, module_check
from relax_eg.backend.family import Solution
from relax_eg.backend.lowering.lower import run_function
from relax_eg.driver.cache import CachedResult
from relax_eg.driver.clock.settling import OFF, Settle
from relax_eg.driver.explaining import explain_choice
from relax_eg.driver.options import Options
from relax_eg.driver.prices import call_predictor
from relax_eg.driver.running import make_runnable, make_runnable_of_arrays
from relax_eg.dynamic.at_capacity import REASSOCIATED
from relax_eg.dynamic.policy import Policy
from relax_eg.errors import OptionError
from relax_eg.frontends import Source
from relax_eg.frontends.jax.trace import Traced, trace_function
from relax_eg.frontends.modules import PreparedModule, prepare_module
from relax_eg.frontends.trace_check import TraceCheck
from relax_eg.ir.module import Module
from relax_eg.logs import log_at
from relax_eg.shapes.relation import Bounds, split_bounds

# chosen: relative; 4-bit weights are within an eighth of the largest of their group
_TOLERANCES = {"exact": 0.0, "reassociate": REASSOCIATED, "approximate": 1e-2, "quantised": 0.25}


def traced_program(
    program: Callable[..., Any] | Module,
    specs: tuple[Any, ...],
    kwspecs: Mapping[str, Any] | None = None,
    bounds: Bounds | None = None,
) -> Source:
    """The program to optimize, from a function or a module. TraceError, SpecError, OptionError, BoundsError."""
    ranges, assume = split_bounds(bounds)
    # JAX uses bounds with both sides only; the scope handles the others and rejects wrong ones.
    decided = {k: (b[0] or 1, b[1]) for k, b in ranges.items() if isinstance(b, tuple) and _is_pair(b)}
    if isinstance(program, Module):
        if specs or kwspecs:
            named = f", got the keyword argument {next(iter(kwspecs))!r}" if kwspecs else ""
            raise OptionError(f"optimize(module) takes no specs{named}: a module's parameters say their own shapes")
        return prepare_module(program, run_function, assume)
    if not callable(program):
        raise OptionError(f"optimize takes a function or a module, got {type(program).__name__}")
    pairs = {k: (a, b) for k, (a, b) in decided.items() if b is not None}
    return trace_function(program, specs, kwspecs or {}, bounds=pairs, assume=assume)


def _is_pair(b: Any) -> bool:
    return isinstance(b, tuple) and len(b) == 2 and all(x is None or isinstance(x, int) for x in b)  # type: ignore[reportUnknownVariableType]


def optimized_of(
    traced: Source,
    options: Options,
    found: CachedResult,
    policy: Policy | None = None,
    trust: bool = True,
    settle: Settle = OFF,
) -> Optimized:
    """The optimized program. Without a policy, as `measure` times it: a function of arrays, at exact sizes."""
    looks = bool(traced.size_variables) and not trust
    own = TraceCheck(traced, options.is_exact).difference if looks and isinstance(traced, Traced) else None
    program = Program(
        traced.fn,
        traced.identifier,
        traced.params,
        found.variants[0].chosen,
        traced.leaf_names,
        tuple(leaf.argument for leaf in traced.leaves),
        traced.in_tree,
        traced.out_tree,
        traced.arguments.signature,
        tuple(leaf.weak_type for leaf in traced.leaves),
        tuple(bool(getattr(a, "weak_type", False)) for a in traced.out_avals),
        options.scope,
        found.effectful,
        tuple(tuple(sorted(dict(options.facts).get(leaf.name, ()))) for leaf in traced.leaves),
        lambda: traced.module,
        isinstance(traced, Traced),
        traced.wide,
        {} if policy is None else {**policy.as_data(), "profile": options.profile.as_data()},
        traced.entry if isinstance(traced, PreparedModule) else (),
        own,
    )
    if looks and isinstance(traced, PreparedModule) and not traced.in_steps:
        program = replace(program, find_difference=module_check(program))
    source = ", from the cache" if found.report.cached else ""
    seconds = found.report.seconds.get("total", 0.0)
    log_at(1, f"{traced.name}: {found.report.predicted_gain:.2f}x predicted, {seconds:.2f} s{source}")
    tolerance = _TOLERANCES[options.numerics[-1]]
    first, at = found.variants[0], found.report.extracted_at  # at: a variant of a family was extracted for these sizes
    explain = functools.partial(explain_choice, traced, options, first.spec, first.chosen, at)
    pallas = options.profile.pallas and not options.is_exact  # Pallas sums in blocks, softmax in one pass
    solution = Solution(program, found.variants, options.weights, tolerance, pallas)
    if policy is None:
        return make_runnable_of_arrays(solution, explain)
    chosen = [v.chosen for v in found.variants]
    predict = functools.partial(call_predictor, program, chosen, options.weights, options)
    return make_runnable(solution, explain, policy, predict, settle)
