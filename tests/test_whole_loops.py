"""Whole programs in loops over pieces of a dimension, such as training steps over micro-batches: found without an
e-graph, so that a large program keeps a limit soon."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import whole_footprint
from relax_eg.backend.lower import run_at
from relax_eg.driver.fissioned import Fissions
from relax_eg.errors import ExtractionError
from relax_eg.ir.wellformed import check as check_module

RULE = "accumulated_over_pieces"
LAYERS, WIDTH, BATCH, PLACES = 6, 32, 16, 24
NO_SEARCH = rx.Budget(nodes=0)


def block(p: Any, x: jax.Array) -> jax.Array:
    q, k, v = (x @ p[name] for name in ("q", "k", "v"))
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), q @ k.transpose(0, 2, 1) / 5, -1e9)
    x = x + jax.nn.softmax(scores) @ v
    mean = jnp.mean(x, -1, keepdims=True)
    return x + jnp.tanh((x - mean) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) @ p["up"]) @ p["down"]


def loss(ps: Any, words: jax.Array, ids: jax.Array) -> jax.Array:
    x = words[ids[:, :-1]]
    for p in ps:
        x = block(p, x)
    picked = jnp.take_along_axis(jax.nn.log_softmax(x @ words.T), ids[:, 1:, None], axis=-1)
    return -jnp.mean(picked)


STEP = jax.value_and_grad(loss, (0, 1))
_LAYER = {name: f"{WIDTH} {WIDTH}" for name in "qkv"} | {"up": f"{WIDTH} {4 * WIDTH}", "down": f"{4 * WIDTH} {WIDTH}"}


def specs(batch: Any = BATCH, layers: int = LAYERS) -> tuple[Any, ...]:
    return [_LAYER] * layers, f"64 {WIDTH}", f"{batch} {PLACES + 1} @ int32"


def arguments(batch: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(batch)

    def drawn(spec: str) -> jax.Array:
        shape = [int(d) for d in spec.split()]
        return jnp.asarray(0.1 * rng.standard_normal(shape), jnp.float32)

    ids = jnp.asarray(rng.integers(0, 64, (batch, PLACES + 1)), jnp.int32)
    return [{k: drawn(s) for k, s in _LAYER.items()} for _ in range(LAYERS)], drawn(f"64 {WIDTH}"), ids


def assert_equal(ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3 * float(jnp.max(jnp.abs(b))))


def bytes_as_written(layers: int = LAYERS) -> int:
    return whole_footprint(rx.trace(STEP, *specs(layers=layers)), set(), {}, FRUGAL).bytes


@pytest.mark.parametrize(("batch", "at"), [(BATCH, {}), ("n", {"n": BATCH}), ("n", {"n": 7})])
def test_a_step_is_cut_along_its_batch(batch: Any, at: dict[str, int]) -> None:
    """Every number of pieces gives the results as written, at sizes that it divides and at others, in less memory."""
    module = rx.trace(STEP, *specs(batch))
    found = Fissions(module, at)
    (region, *_) = found.regions
    count = at.get("n", BATCH)
    assert str(region.extent) == str(batch)
    assert found.counts(region)[0] == 2 and found.counts(region)[-1] == count
    args = arguments(count)
    leaves = [jnp.asarray(a) for a in jax.tree.leaves(args)]
    before = whole_footprint(module, set(), at, FRUGAL).bytes
    sizes: list[int] = []
    for pieces in found.counts(region):
        made = found.cut(region, pieces)
        assert made is not None and found.cut(region, pieces) is made
        check_module(made)
        assert "R.scan" in str(made)
        assert_equal(run_at(made, made.main, leaves, at), jax.tree.leaves(STEP(*args)))
        sizes.append(whole_footprint(made, set(), at, FRUGAL).bytes)
    assert sizes[-1] < 0.7 * before and sizes[-1] <= min(sizes)


def test_a_step_keeps_a_limit_without_any_search() -> None:
    """A loop that no e-graph has is a program like others: it is named by its rule, compiled, and kept in the cache."""
    limit = int(0.6 * bytes_as_written())
    rules = rx.rules.default - "computed_again"
    best = rx.optimize(STEP, *specs(), memory_limit=limit, budget=NO_SEARCH, rules=rules)
    assert best.report.memory is not None and best.report.memory.bytes <= limit and RULE in best.report.rules
    args = arguments(BATCH)
    assert_equal(best(*args), STEP(*args))


def test_an_interrupted_search_has_a_program_within_the_limit() -> None:
    """A loop is found before rules are applied."""

    def stop(stage: str, *_: Any) -> None:
        if stage == "annotate":
            raise KeyboardInterrupt

    limit = int(0.6 * bytes_as_written(layers=2))
    with rx.debug.options(progress=stop):
        best = rx.optimize(STEP, *specs(layers=2), memory_limit=limit)
    assert best.report.memory is not None and best.report.memory.bytes <= limit and RULE in best.report.rules


@pytest.mark.slow
def test_a_front_has_loops_of_several_numbers_of_pieces() -> None:
    front = rx.pareto(STEP, *specs(), budget=NO_SEARCH)
    assert sum(RULE in p.program.report.rules for p in front.points) > 1
    assert front.points[-1].bytes < 0.6 * front.written[0]


@pytest.mark.parametrize(
    "options", [{"numerics": "exact"}, pytest.param({"rules": rx.rules.default - RULE}, marks=pytest.mark.slow)]
)
def test_a_loop_needs_its_rule(options: dict[str, Any]) -> None:
    limit = int(0.6 * bytes_as_written())
    try:
        best = rx.optimize(STEP, *specs(), memory_limit=limit, budget=NO_SEARCH, **options)
    except ExtractionError:
        return
    assert RULE not in best.report.rules and "R.scan" not in str(best.module)
