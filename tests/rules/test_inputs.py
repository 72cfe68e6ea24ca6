"""Values without inputs: literals in their place, where XLA would compute them at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir.expr import CONSTANT, constant_value

RULES = rx.rules.inputs


def transformed(x: jax.Array) -> jax.Array:
    n = x.shape[-1]
    k = jnp.arange(n)
    return x @ jnp.cos(jnp.pi * (k[None] + 0.5) * k[:, None] / n).T


def projected(x: jax.Array) -> jax.Array:
    return x @ jax.random.normal(jax.random.key(0), (256, 32))


def masked(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(64)[:, None] >= jnp.arange(64), x, 0.0)


KERNEL = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)


def folded(x: jax.Array) -> jax.Array:
    """XLA computes the cosines of a literal when it compiles."""
    return x @ jnp.cos(KERNEL)


@pytest.mark.parametrize("fn", [transformed, projected])
def test_a_value_without_inputs_is_a_literal(fn: Callable[..., Any]) -> None:
    best = rx.optimize(fn, "8 256", rules=RULES, measure="off")
    assert best.report.rules == {"value_of_no_input": 1}
    (literal,) = (e for e in best.module.main.expressions() if e.op == CONSTANT and e.ndim)
    assert literal.shape[1] == 256 and np.isfinite(constant_value(literal)).all()
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    np.testing.assert_allclose(best(x), fn(x), rtol=1e-4, atol=1e-4)
    assert [s.rule for s in best.explain().steps] == ["value_of_no_input"]


@pytest.mark.parametrize(("fn", "spec"), [(masked, "64 64"), (folded, "8 64"), (transformed, "8 n")])
def test_cheap_values_what_xla_folds_and_sizes_that_vary_stay(fn: Callable[..., Any], spec: str) -> None:
    at = {"n": 64} if "n" in spec else None
    assert not rx.optimize(fn, spec, rules=RULES, at=at, measure="off").report.rules
