"""The object that runs a chosen program, made after a search as after loading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from relax_eg.backend.calls.known import UNSEEN
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.runtime import Serving, Strategy
from relax_eg.backend.calls.structured import structured
from relax_eg.backend.calls.whole import Whole
from relax_eg.backend.family import KERNELS, STEPS, Family, Solution, Variant
from relax_eg.backend.kernels import InKernels
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.backend.steps import InSteps, StepPrograms
from relax_eg.driver.clock.outcomes import Outcomes
from relax_eg.driver.clock.settling import MOST_TRIALS, OFF, Settle, Settling
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.dynamic.policy import Policy
from relax_eg.dynamic.runtime import Predict
from relax_eg.dynamic.steps import CapacityPrograms
from relax_eg.extract.report import AS_WRITTEN
from relax_eg.ir.annotations import dims_of

if TYPE_CHECKING:
    from relax_eg.explain.text import Explanation


def make_runnable(
    solution: Solution,
    explain: Callable[[], Explanation],
    policy: Policy,
    predict: Callable[[], Predict],
    settle: Settle = OFF,
) -> Optimized:
    """The optimized function: called like the one it came from, it runs as the solution and the policy say.

    - `explain`: makes the derivation.
    - `predict`: makes the predictor of the seconds of calls, which only sizes that vary need.
    - `settle`: how the first calls find out whether the chosen program is faster.
    """
    return structured(make_runnable_of_arrays(solution, explain, policy, predict, settle))


def make_runnable_of_arrays(
    solution: Solution,
    explain: Callable[[], Explanation],
    policy: Policy | None = None,
    predict: Callable[[], Predict] | None = None,
    settle: Settle = OFF,
) -> Optimized:
    """Like `make_runnable`, called with the arrays in tuples one by one. Without a policy it runs at exact sizes."""
    if solution.execution == KERNELS:
        return InKernels(solution, explain)
    if solution.execution == STEPS:
        make = StepPrograms if policy is None or not _is_sized(policy, solution) else partial(CapacityPrograms, policy)
        return Optimized(replace(solution, weights=()), InSteps(solution.program, make), explain)
    best = Optimized(solution, _strategy(solution, policy, predict), explain)
    chosen = [v.report for v in solution.variants if v.chosen is not None]
    if settle.doubts(chosen) and not solution.program.effectful:
        _let_settle(best, settle, policy, predict)
    return best


def _strategy(solution: Solution, policy: Policy | None, predict: Callable[[], Predict] | None) -> Whole:
    """How one XLA program runs, at exact sizes or at capacity."""
    family, pallas = Family(solution.program, solution.variants), Pallas.for_default_device(solution.pallas)
    if policy is None or predict is None or not _is_sized(policy, solution) or solution.program.effectful:
        return Whole(family, pallas=pallas)
    return AtCapacity(family, policy, predict(), pallas=pallas)


def _is_sized(policy: Policy, solution: Solution) -> bool:
    """Whether calls may run at capacity. Sums over a padded axis are taken in another order: with exact numerics,
    capacities must be asked for."""
    ways = ("capacity",) if solution.tolerance == 0 else ("capacity", "auto")
    return policy.mode in ways and (bool(policy.ladders) or solution.execution == STEPS)


@dataclass(frozen=True)
class _Served:
    """A program that takes turns.

    - `label`, `predicted`: its name, and predicted seconds of a call.
    - `serving`, `strategy`: what serves its calls.
    """

    label: str
    predicted: float
    serving: Serving
    strategy: Strategy

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.serving.call_known(args, kwargs)
        return self.serving.run(self.strategy.flat_arguments(args, kwargs)) if result is UNSEEN else result

    def compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
        self.strategy.compile_call(args, kwargs, key)


def _let_settle(best: Optimized, settle: Settle, policy: Policy | None, predict: Callable[[], Predict] | None) -> None:
    """Lets the first calls of an optimized function settle whether it is faster than the function as written."""
    solution = best.solution
    first = solution.variants[0]
    # The program as written runs where the chosen one does: exact or at capacity. It is the function itself at all
    # sizes, so it is not compared with it.
    program = replace(solution.program, module=None, find_difference=None)
    variant = Variant(None, first.written, first.report)
    at = replace(policy, mode="capacity") if policy is not None and isinstance(best.strategy, AtCapacity) else None
    written = _strategy(replace(solution, program=program, variants=(variant,)), at, predict)
    outcomes = Outcomes(solution, learns=at is None)
    varies = any(d.variables for p in program.params for d in dims_of(p.annotation))

    def settler(
        serving: Serving, strategy: Strategy, written: Strategy, settled: Callable[[Serving], None]
    ) -> Settling[_Served]:
        assert isinstance(strategy, Whole)
        ours = _Served(first.spec.label, first.report.after.seconds, serving, strategy)
        theirs = _Served(AS_WRITTEN, first.report.before.seconds, written, written)

        def sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, int]:
            bound = strategy.bound_family
            found = bound.sizes([np.shape(x) for x in bound.call_arrays(args, kwargs)])
            return {v: int(n) for v, n in found.items()}

        return Settling(
            ours,
            theirs,
            settle,
            serving.executable_key,
            sizes,
            lambda winner: settled(winner.serving),
            most=MOST_TRIALS if varies else 1,
            known=lambda: outcomes,
            is_bound=bool(strategy.bound_family.indices),
            straight_of=lambda winner, key: winner.serving.straight(lambda: key, closes=True),
        )

    best.let_settle(written, settler)
