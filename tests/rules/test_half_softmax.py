"""Softmax of float16, as JAX traces it, is computed in float32 on CPUs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx


def units(found: Any, x: jax.Array) -> float:
    """The greatest error of a softmax in units in the last place of float16."""
    e = np.exp(np.asarray(x, np.float64) - np.asarray(x, np.float64).max(-1, keepdims=True))
    wanted = e / e.sum(-1, keepdims=True)
    last = np.spacing(np.maximum(wanted, np.finfo("float16").tiny).astype(np.float16)).astype(np.float64)
    return float(np.max(np.abs(np.asarray(found, np.float64) - wanted) / last))


def test_it_is_chosen_and_rounded_once() -> None:
    x = 4 * jax.random.normal(jax.random.key(0), (256, 512), jnp.float16)
    best = rx.optimize(jax.nn.softmax, x, target="cpu")
    assert best.report.predicted_gain > 1.3 and "softmax_of_float16_as_traced" in best.report.rules
    assert units(best(x), x) < 0.6 < units(jax.jit(jax.nn.softmax)(x), x)
    ends = x.at[:, 0].set(-jnp.inf).at[0, 1].set(jnp.inf).at[1, 2].set(jnp.nan)
    np.testing.assert_array_equal(jnp.isnan(best(ends)), jnp.isnan(jax.nn.softmax(ends)))
    assert (best(ends)[2:, 0] == 0).all()


@pytest.mark.parametrize(("dtype", "options"), [("float16", {"numerics": "exact"}), ("bfloat16", {}), ("float32", {})])
def test_it_stays_as_written(dtype: str, options: dict[str, Any]) -> None:
    best = rx.optimize(jax.nn.softmax, f"256 512 @ {dtype}", target="cpu", **options)
    assert "softmax_of_float16_as_traced" not in best.report.rules
