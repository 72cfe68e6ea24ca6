"""The object that runs a chosen program, made after a search as after loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from relax_eg.backend.family import KERNELS, STEPS, Family, Solution
from relax_eg.backend.kernels import InKernels
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.runtime import Strategy
from relax_eg.backend.steps import InSteps
from relax_eg.backend.structured import structured
from relax_eg.backend.whole import Whole
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.dynamic.policy import Policy
from relax_eg.dynamic.runtime import Predict
from relax_eg.explain.text import Explanation


def make_runnable(
    solution: Solution, explain: Callable[[], Explanation], policy: Policy, predict: Callable[[], Predict]
) -> Optimized:
    """The optimized function: called like the one it came from, it runs as the solution and the policy say.

    - `explain`: makes the derivation.
    - `predict`: makes the predictor of the seconds of calls, which only sizes that vary need.
    """
    return structured(make_runnable_of_arrays(solution, explain, policy, predict))


def make_runnable_of_arrays(
    solution: Solution,
    explain: Callable[[], Explanation],
    policy: Policy | None = None,
    predict: Callable[[], Predict] | None = None,
) -> Optimized:
    """Like `make_runnable`, called with the arrays in tuples one by one. Without a policy it runs at exact sizes."""
    if solution.execution == KERNELS:
        return InKernels(solution, explain)
    program = solution.program
    strategy: Strategy
    if solution.execution == STEPS:
        solution = replace(solution, weights=())
        strategy = InSteps(program)
    else:
        family = Family(program, solution.variants)
        # Sums over a padded axis are taken in another order: with exact numerics, capacities must be asked for.
        ways = ("capacity",) if solution.tolerance == 0 else ("capacity", "auto")
        if policy is None or predict is None or policy.mode not in ways or not policy.ladders or program.effectful:
            strategy = Whole(family)
        else:
            strategy = AtCapacity(family, policy, predict())
    return Optimized(solution, strategy, explain)
