"""Sums of products of other semirings: largest sums, smallest sums and conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx


def largest_sums(a: Any, b: Any) -> Any:
    return jnp.max(a[:, :, None] + b[None], 1)


def smallest_sums(a: Any, b: Any) -> Any:
    return jnp.min(a[:, :, None] + b[None], 1)


def widest(a: Any, b: Any) -> Any:
    return jnp.max(jnp.minimum(a[:, :, None], b[None]), 1)


def some(a: Any, b: Any) -> Any:
    return jnp.any(a[:, :, None] & b[None], 1)


def every(a: Any, b: Any) -> Any:
    return jnp.all(a[:, :, None] | b[None], 1)


CASES: list[tuple[str, Callable[..., Any], str, float]] = [
    ("a vector of largest sums", lambda a, b, v: jnp.max(largest_sums(a, b) + v, 1), "float32", 20),
    ("a vector of smallest sums", lambda a, b, v: jnp.min(smallest_sums(a, b) + v, 1), "float32", 20),
    ("the widest path", lambda a, b, v: jnp.max(jnp.minimum(widest(a, b), v), 1), "float32", 20),
    ("largest of a sum", lambda a, b, v: jnp.max(v[:, None] + v[None]), "float32", 1.2),
    ("conditions", lambda a, b, v: some(a, b), "bool", 5),
    ("conditions, all", lambda a, b, v: every(a, b), "bool", 5),
    ("who is reached", lambda a, b, v: jnp.any(some(a, b) & v, 1), "bool", 30),
    ("a common condition", lambda a, b, v: some(a, b) | some(a, b.T), "bool", 5),
]


@pytest.mark.parametrize(("f", "dtype", "gain"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_is_the_same_mathematics_costs_the_same(f: Callable[..., Any], dtype: str, gain: float) -> None:
    """The forms are those of sums of products; they compute the same at other sizes too, and with infinities."""
    best = rx.optimize(f, *(rx.Tensor(s, dtype) for s in ("n n", "n n", "n")), at={"n": 128}, target="cpu")
    assert best.report.before.seconds > gain * best.report.after.seconds
    rng = np.random.default_rng(0)
    for n in (1, 7):
        a, b, v = (rng.normal(size=shape).astype("float32") for shape in ((n, n), (n, n), (n,)))
        if dtype == "bool":
            a, b, v = (x > 1.0 for x in (a, b, v))
        else:
            a[0], v[-1] = -np.inf, 3.0
        np.testing.assert_allclose(np.asarray(best(a, b, v)), np.asarray(f(a, b, v)), rtol=1e-6)


def test_integers_are_left_as_they_are() -> None:
    """Sums of integers wrap, so that a largest sum is not the sum of the largest."""
    ints = rx.Tensor("n", "int32")
    best = rx.optimize(lambda v, w: jnp.max(v[:, None] + w[None]), ints, ints, at={"n": 128}, target="cpu")
    high = np.full(3, 2**31 - 1, "int32")
    low = np.asarray([1, 2, -5], "int32")
    assert np.asarray(best(high, low)) == jnp.max(high[:, None] + low[None])
    assert "same_sum_in_semiring" not in str(best.explain())


def test_complex_numbers_have_the_laws_of_sums_of_products() -> None:
    specs = [rx.Tensor("n n", "complex64")] * 2
    best = rx.optimize(lambda a, b: jnp.trace(a.conj().T @ b), *specs, at={"n": 128}, target="cpu")
    assert best.report.before.flops > 50 * best.report.after.flops
    rng = np.random.default_rng(0)
    a, b = ((rng.normal(size=(5, 5)) + 1j * rng.normal(size=(5, 5))).astype("complex64") for _ in range(2))
    np.testing.assert_allclose(np.asarray(best(a, b)), np.trace(a.conj().T @ b), rtol=1e-5)
