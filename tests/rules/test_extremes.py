"""NaN wins in maxima that rules put in the place of other operators, also where XLA for CPUs loses it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import relax_eg as rx


@pytest.mark.parametrize(
    ("fn", "law"),
    [
        (lambda x: jnp.sort(x, 1)[:, -1], "last_of_sort"),
        (lambda x: lax.top_k(x, 1)[0], "greatest_one"),
        (lambda x: lax.cummax(x, 1)[:, -1], "last_of_running"),
        (lambda x: lax.cummin(x, 1)[:, -1], "last_of_running"),
    ],
)
def test_nan_wins_in_large_arrays(fn: Any, law: str) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(np.where(rng.random((240, 256)) < 0.01, np.nan, rng.normal(size=(240, 256))), "float32")
    best = rx.optimize(fn, "240 256", rules=rx.rules.orders, target="cpu")
    assert law in best.report.rules
    np.testing.assert_array_equal(best(x), jax.jit(fn)(x))
    assert np.isnan(best(x)).any() and not np.isnan(best(x)).all()


def test_there_is_no_test_of_integers() -> None:
    best = rx.optimize(lambda x: jnp.sort(x, 1)[:, -1], "240 256 @ int32", rules=rx.rules.orders, target="cpu")
    assert not {"any", "where"} & {e.op for e in best.module.main.expressions()}
