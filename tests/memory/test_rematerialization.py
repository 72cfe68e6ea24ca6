"""Values computed again, and orders stated in programs: random programs compute the same, and need no more."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from programs import programs

import relax_eg as rx
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import whole_footprint
from relax_eg.backend.lowering.lower import run_at
from relax_eg.driver.limits.arranging import Arranger
from relax_eg.driver.prices import ByProfile, modes_under_limit
from relax_eg.errors import MemoryPlanError
from relax_eg.extract.profiles.devices import profile
from relax_eg.extract.selection.clock import Clock
from relax_eg.ir import Module
from relax_eg.ir.calls import without_calls
from relax_eg.ir.wellformed import check
from relax_eg.memory import rematerialization
from relax_eg.memory.pinned import without_order
from relax_eg.memory.rematerialization import ArrangementProblem, arrange
from relax_eg.memory.steps import program_of
from relax_eg.ops import TABLE
from relax_eg.ops import api as op

pytestmark = pytest.mark.xla_defaults

LAYERS, ROWS, WIDTH = 8, 1024, 128


def loss(ws: Any, x: Any, y: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def traced() -> Module:
    specs = [f"{WIDTH} {WIDTH}"] * LAYERS
    return rx.trace(jax.value_and_grad(loss), specs, f"{ROWS} {WIDTH}", f"{ROWS} {WIDTH}")


def arranger(module: Module) -> Arranger:
    return Arranger(module, ByProfile(profile("cpu")), {}, set())


def problem(module: Module) -> ArrangementProblem:
    program = program_of(module)
    return ArrangementProblem.of(program, {}, [1.0] * len(program.steps), False)


def by_hand(p: ArrangementProblem, runs: tuple[int, ...]) -> int:
    """The peak of an order, from what each run reads and what is read later."""
    most = 0
    made: dict[int, int] = {}
    versions: list[list[tuple[int, int]]] = []
    for at, s in enumerate(runs):
        versions.append([(v, made[v]) for v in p.reads[s]])
        made |= dict.fromkeys(p.writes[s], at)
    final = {(v, made[v]) for v in p.results}
    for at, s in enumerate(runs):
        now = {(v, at) for v in p.writes[s]}
        for later in versions[at:]:
            now |= {x for x in later if x[1] <= at}
        now |= {x for x in final if x[1] <= at}
        over: set[int] = set()
        saved = 0
        for w, r in p.pairs[s]:
            last = next((x for x in versions[at] if x[0] == r), None)
            read_later = last in final or any(last in later for later in versions[at + 1 :])
            if last is not None and not read_later and not {w, r} & over:
                over |= {w, r}
                saved += p.sizes[w]
        most = max(most, sum(p.sizes[v] for v, _ in now) + p.inside[s] - saved)
    return most


@given(programs(), st.integers(1, 9), st.floats(0.0, 1.0), st.sampled_from((0.0, 4.0, 1e3)))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_peaks_of_arrangements_are_those_of_their_runs(module: Module, size: int, share: float, rate: float) -> None:
    sizes = dict.fromkeys(module.main.size_variables, size)
    try:
        program = program_of(module)
    except MemoryPlanError:
        return
    with patch.object(rematerialization, "_LEAST_KEPT", 1):  # all of these programs' values are small
        p = ArrangementProblem.of(program, sizes, [float(s.number % 3 + 1) for s in program.steps], False, rate)
    order = tuple(range(len(program.steps)))
    before = p.timeline(order).peak
    found = arrange(p, order, int(share * before))
    assert found.peak == p.timeline(found.runs).peak == by_hand(p, found.runs) <= before
    own = [s for s in found.runs if p.is_own(s)]
    assert {*own} == {*order}
    made: set[int] = set()
    for s in found.runs:  # what a step reads was made before
        assert made.issuperset(p.reads[s])
        made.update(p.writes[s])
    assert found.again == len(own) - len(order)
    assert (found.again == 0 and not found.kept) or found.peak < before
    assert (len(found.runs) > len(own)) == bool(found.kept) and (rate > 0 or not found.kept)
    assert found.seconds >= sum(p.seconds[s] for s in own) - sum(p.seconds[s] for s in order) - 1e-9


def test_chains_are_computed_again_in_segments() -> None:
    """Backward passes read the values of forward passes in reverse order: few are kept, and others computed again."""
    p = problem(traced())
    order = tuple(range(len(p.program.steps)))
    peaks = [p.timeline(order).peak]
    for share in (0.8, 0.6, 0.4):
        found = arrange(p, order, int(share * peaks[0]))
        assert found.peak <= share * peaks[0] and found.again > 0
        peaks.append(found.peak)
    assert peaks == sorted(peaks, reverse=True)


def test_what_a_library_call_does_is_not_done_again() -> None:
    def fn(x: Any) -> Any:
        noise = jax.lax.rng_uniform(0.0, 1.0, (256, 256))  # no key: another run would draw others
        y = x @ noise
        return jnp.sum(jnp.sin(y) @ y) * noise

    p = problem(rx.trace(fn, "256 256"))
    library = [s.number for s in p.program.steps if not p.may_run_again(s.number)]
    assert library
    found = arrange(p, tuple(range(len(p.program.steps))), 0)
    assert all(found.runs.count(s) == 1 for s in library)


def test_xla_keeps_the_stated_order() -> None:
    """The bytes as XLA allocates them are near those of the arrangement, and far below those as written."""
    module = traced()
    made = arranger(module)
    written = whole_footprint(module, set(), {}, FRUGAL).bytes
    needed = []
    for share in (1.0, 0.75, 0.6):
        found = made.within(int(share * made.peak), Clock())
        assert found is not None and without_order(found.module) == without_order(made.module)
        check(found.module)
        assert rx.parse(str(found.module)) == found.module
        bytes_ = whole_footprint(found.module, set(), {}, FRUGAL).bytes
        assert bytes_ <= 1.35 * found.peak  # XLA computes cheap values twice
        needed.append(bytes_)
    assert needed[0] < 0.8 * written and needed[2] < 0.75 * needed[0]
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(s) / 11, jnp.float32) for s in ((WIDTH, WIDTH),) * LAYERS]
    args += [jnp.asarray(rng.standard_normal((ROWS, WIDTH)), jnp.float32) for _ in range(2)]
    found = made.within(int(0.6 * made.peak), Clock())
    assert found is not None and found.again > 0
    expected, got = (run_at(m, m.main, args, {}) for m in (module, found.module))
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        assert np.array_equal(a, b)  # the same computations


def normalised(ws: Any, x: Any) -> Any:
    """A loss of convolutions, each with the moments of the batch."""
    for w in ws:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        scaled = (y - jnp.mean(y, (0, 1, 2))) * jax.lax.rsqrt(jnp.var(y, (0, 1, 2)) + 1e-5)
        x = jax.nn.relu(scaled)
    return jnp.mean(x**2)


def test_loops_over_elements_keep_no_values_that_they_compute_again() -> None:
    """Behind convolutions XLA stores their results alone: what follows is computed again by all that read it. The bytes
    that are predicted are those of XLA, in the stated order and with convolutions computed again."""
    module = rx.trace(jax.value_and_grad(normalised), ["3 3 8 8"] * 8, "16 16 16 8")
    made = Arranger(module, ByProfile(profile("cpu").in_mode(modes_under_limit(profile("cpu"))[-1])), {}, set())
    written = whole_footprint(module, set(), {}, FRUGAL).bytes
    for share, most in ((1.0, 0.95), (0.75, 0.7)):
        found = made.within(int(share * made.peak), Clock())
        assert found is not None and (found.again > 0) is (share < 1)
        bytes_ = whole_footprint(found.module, set(), {}, FRUGAL).bytes
        assert bytes_ <= most * written and bytes_ == pytest.approx(found.peak, rel=0.05)


DTYPES = ("float32", "float16", "bfloat16", "int8", "uint32", "bool", "complex64")


@pytest.mark.parametrize(("dtype", "other"), [*itertools.product(DTYPES, DTYPES)])
def test_after_is_its_operand(dtype: str, other: str) -> None:
    lowered = jax.jit(TABLE["after"].jax_function())
    x = jnp.asarray([[1, 0, 3]], dtype)
    for value in (0, 1, -1) if other not in ("uint32", "bool") else (0, 1):
        found = lowered(x, jnp.full((2, 2), value, other))
        assert found.dtype == x.dtype and np.array_equal(found, x)
    assert np.array_equal(lowered(x, jnp.zeros((0, 3), other)), x)  # nothing to wait for


def test_after_not_a_number_is_its_operand() -> None:
    lowered = jax.jit(TABLE["after"].jax_function())
    for value in (jnp.nan, -jnp.nan, jnp.inf, -0.0):
        assert np.array_equal(lowered(jnp.ones(3), jnp.full(2, value)), jnp.ones(3))


def test_searches_drop_the_order() -> None:
    """A program whose order is stated is optimized as one without."""
    x = rx.ir.var("x", rx.ir.Tensor("n 64"))
    t = op.sum(op.sin(x))
    module = Module((rx.ir.pure_function("main", [x], [op.after(op.exp(op.log(x)), t)]),))
    best = rx.optimize(module, at={"n": 512}, memory_limit="1 MiB", rules=rx.rules.default - "computed_again")
    assert best.check(jnp.ones((512, 64))).passed and "after(" not in str(best.module)


def test_calls_become_their_bodies() -> None:
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) + x

    def fn(x: Any, *ws: Any) -> Any:
        for w in ws:
            x = layer(x, w)
        return x

    module = rx.optimize(fn, "n 16", *["16 16"] * 80, at={"n": 64}).module
    flat = without_calls(module)
    assert all(e.op != "call" for f in flat for e in f.expressions())
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s).astype(np.float32) / 4 for s in ((5, 16), *((16, 16),) * 80)]
    assert np.allclose(run_at(flat, flat.main, args, {"n": 5}), fn(*args), rtol=1e-4, atol=1e-4)


def test_orders_of_arrangements_are_planned() -> None:
    """Where values that die late were made early, the planner's order needs less than the text's."""

    def fn(x: Any) -> Any:
        wide = [jnp.exp(x * float(i + 1)) for i in range(5)]
        return sum(jnp.sum(w @ w) for w in wide)

    p = problem(rx.trace(fn, "64 64"))
    steps = p.program.steps
    late = sorted(range(len(steps)), key=lambda i: (bool(p.reads[i]), i))  # all of what reads arguments alone first
    found = arrange(p, late, p.timeline(late).peak - 1)
    assert found.peak < p.timeline(late).peak and found.again == 0
