"""Random programs with random memory limits: what the returned object calls keeps them, by XLA's own analysis.

Where nothing is found that does, the least that the error names is reached, and a search whose clock does not run finds
nothing that needs a tenth less. What is called gives the values as written: losses with their gradients (`gradients`)
are compared with JAX. `RELAX_EG_LIMITS=200 pytest -n0 -m slow -s tests/test_random_limits.py` tries so many programs,
each in both ways of running, and says what came of them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from gradients import Step, steps
from hypothesis import HealthCheck, Phase, given, settings
from programs import programs

import relax_eg as rx
from relax_eg.backend import accounting
from relax_eg.backend.footprint import avals, kernel_footprint, whole_footprint
from relax_eg.driver.limits.checkpointed import Checkpoints
from relax_eg.driver.limits.fissioned import Fissions
from relax_eg.errors import ExtractionError
from relax_eg.extract.footprint import Footprint
from relax_eg.ir import Module

pytestmark = pytest.mark.xla_defaults

LIMITS = int(os.environ.get("RELAX_EG_LIMITS", "200"))
LARGEST = 96
SHARES = (0.2, 1.1)  # of what the program takes without a limit
NEAR = 0.9  # of the least that is named: less is not to be found
# Applying rules goes on for three times as long as usual: a few programs have no end of equal ones.
UNTIMED = rx.Budget(seconds=30.0, extraction=1e6)
# For the search of which the error tells: where the clock stops it, the error says that more time may find less, and
# that depends on the machine.
LONG = rx.Budget(extraction=300.0)
# For losses with gradients: what is found matters less than that it is right.
SHORT = rx.Budget(nodes=2000, seconds=2.0, extraction=2.0)


def limited(module: Module, sizes: dict[str, int], execution: Any, limit: int, **options: Any) -> rx.types.Optimized:
    return rx.optimize(module, at=sizes, execution=execution, memory_limit=limit, **{"budget": LONG, **options})


def called(best: Any, sizes: dict[str, int]) -> int:
    """Bytes that what is called allocates beside its arguments, as XLA accounts for it when it is compiled."""
    shapes = avals(best.module.main, sizes)
    accounting._allocated_bytes.clear()  # pyright: ignore[reportPrivateUsage]  # XLA is asked anew
    if best.report.execution == "kernels":
        call = best.runner.call(sizes)
        values = call.plan.program.values
        results = sum(int(v.bytes.evaluate(sizes)) for v in values if v.role == "result" and v.bytes is not None)
        return call.planned_bytes + results + max(call.temporaries(shapes).values(), default=0)
    known = best.strategy.executable(0)
    analysis = known.run.lower(*known.leading(best.strategy.prepared_values), *shapes).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def outcome(module: Module, sizes: dict[str, int], execution: str, share: float) -> str:
    """What came of one limit; AssertionError where a limit or an error does not say what is so."""
    usual = limited(module, sizes, execution, 1 << 40).report.memory
    if usual is None or not usual.bytes:
        return "no memory"
    limit = max(1, int(share * usual.bytes))
    try:
        best = limited(module, sizes, execution, limit)
    except ExtractionError as e:
        said = re.search(r"accepted: memory_limit=(\d+)", str(e))
        assert said is not None, str(e)
        least = int(said[1])
        found = limited(module, sizes, execution, least)
        assert called(found, sizes) <= least, f"{called(found, sizes)} for the least, {least}"
        try:
            more = limited(module, sizes, execution, int(NEAR * least), budget=UNTIMED)
        except ExtractionError:
            return "refused"
        raise AssertionError(f"{least} was named, and {more.report.memory.bytes} fits without a clock") from e
    assert called(best, sizes) <= limit, f"{called(best, sizes)} of {limit} bytes"
    return "kept" if limit < usual.bytes else "kept anyway"


def tried(module: Module, sizes_seed: int, share: float, execution: str) -> str:
    rng = np.random.default_rng(sizes_seed)
    sizes = {v: int(rng.integers(8, LARGEST)) for v in module.main.size_variables}
    return outcome(module, sizes, execution, share)


def footprint(module: Module, execution: str) -> Footprint:
    if execution == "kernels":
        return kernel_footprint(module, set(), {}, accounting.FRUGAL).footprint
    return whole_footprint(module, set(), {}, accounting.FRUGAL)


def finest(module: Module, execution: str) -> int:
    """The bytes of the smallest of a program in loops over as many pieces as are tried, and in segments."""
    loops, segments = Fissions(module, {}), Checkpoints(module, {})
    made = [loops.cut(r, *way) for r in loops.regions for way in loops.ways(r)[-2:]]
    made += [segments.cut(ways[-1]) for ways in segments.ways() if ways and ways[-1]]
    return min(footprint(m, execution).bytes for m in (module, *made) if m is not None)


def tried_gradients(step: Step, seed: int, share: float, execution: str, beside_finest: bool = True) -> str:
    """What came of a limit on a loss with its gradients: what its results take, and a share of what it takes for other
    values as written. AssertionError where the limit is not kept, values differ from JAX's, or (`beside_finest`) the
    least that is named is far from what the finest loops need."""
    module, (weights, x) = rx.trace(step.fn, *step.specs), step.arguments(seed)
    written = footprint(module, execution)
    limit = written.results + int(share * (written.bytes - written.results))
    try:
        best = limited(module, {}, execution, limit, budget=SHORT)
    except ExtractionError as e:
        said = re.search(r"accepted: memory_limit=(\d+)", str(e))
        assert said is not None, str(e)
        least = int(said[1])
        needed = finest(module, execution) if beside_finest else least
        assert NEAR * least <= needed, f"{least} was named, and the finest loops need {needed}"
        return "refused"
    assert called(best, {}) <= limit, f"{called(best, {})} of {limit} bytes"
    ours, theirs = best(*jax.tree.leaves((weights, x))), jax.jit(step.fn)(weights, x)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        # In another order of sums, differences of large values are off by more than their own size says.
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3 * float(np.max(np.abs(b)))), "values differ"
    return "in pieces" if any("pieces" in rule for rule in best.report.rules) else "kept"


@pytest.mark.parametrize("execution", ["whole", pytest.param("kernels", marks=pytest.mark.slow)])
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(programs(), st.integers(0, 1000), st.floats(*SHARES))
def test_a_limit_is_kept_or_the_least_is_named(execution: str, module: Module, seed: int, share: float) -> None:
    tried(module, seed, share, execution)


@pytest.mark.slow
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(steps(most=1), st.integers(0, 1000), st.floats(*SHARES))
def test_gradients_within_a_limit_are_those_as_written(step: Step, seed: int, share: float) -> None:
    tried_gradients(step, seed, share, "whole", beside_finest=False)


@pytest.mark.slow
@pytest.mark.parametrize(("drawn", "tried"), [(programs(), tried), (steps(), tried_gradients)])
def test_limits_of_many_programs(drawn: Any, tried: Callable[[Any, int, float, str], str]) -> None:
    count = {"whole": Counter[str](), "kernels": Counter[str]()}
    wrong: list[str] = []

    @settings(max_examples=LIMITS, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(drawn, st.integers(0, 1000), st.floats(*SHARES))
    def each(program: Any, seed: int, share: float) -> None:
        for execution, found in count.items():
            try:
                found[tried(program, seed, share, execution)] += 1
            except Exception as e:
                wrong.append(f"{execution}, share {share}, sizes {seed}: {type(e).__name__}: {e}\n{program}")
                print(wrong[-1], flush=True)
        print({k: dict(v) for k, v in count.items()}, len(wrong), flush=True)

    each()
    assert not wrong, "\n\n".join(wrong)
