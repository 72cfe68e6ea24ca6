"""Products over a long axis in parts (split-K): chosen where few blocks of results leave a GPU idle."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx

OPTIONS: dict[str, Any] = {"target": "h100", "execution": "kernels"}


def surrounded(x: Any, y: Any, w: Any, b: Any) -> Any:
    """What no library takes in, nor a matmul of XLA's: a function of two operands."""
    return jax.nn.gelu((jax.nn.relu(x) * y + x * x) @ w + b)


def plain(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ w + b)


@cache
def optimized(fn: Any, m: int, k: int, n: int, dtype: str = "float32", **options: Any) -> Any:
    """`surrounded`, or another function of a product of m x k and k x n, with as many operands."""
    rows = [f"m {k} @ {dtype}"] * (2 if fn is surrounded else 1)
    return rx.optimize(fn, *rows, f"{k} {n} @ {dtype}", f"{n} @ {dtype}", at={"m": m}, **OPTIONS | options)


def rules(fn: Any, m: int, k: int, n: int, **options: Any) -> Any:
    return optimized(fn, m, k, n, **options).report.rules


def test_a_thin_deep_product_with_a_function_of_its_own_before_it_is_split() -> None:
    best = optimized(surrounded, 64, 1 << 20, 8, "bfloat16")
    assert "matmul_splits" in best.report.rules
    # As written, the operand is stored before the library's matmul: written, and read again.
    assert best.report.after.seconds < 0.6 * best.report.before.seconds


@pytest.mark.parametrize("fn", [surrounded, plain])
def test_a_square_product_is_not_split(fn: Any) -> None:
    assert "matmul_splits" not in rules(fn, 2048, 2048, 2048)


def test_a_plain_product_is_left_to_the_library_which_splits_it() -> None:
    assert "matmul_splits" not in rules(plain, 64, 1 << 20, 64)


def test_a_cpu_gains_nothing_from_parts() -> None:
    assert "matmul_splits" not in rules(surrounded, 16, 1 << 17, 16, target="cpu")


def test_parts_add_up() -> None:
    """The chosen program computed on the device at hand; partial sums of half precision are not rounded."""
    k, rng, dtype = 1 << 20, np.random.default_rng(0), "bfloat16"
    best = optimized(surrounded, 64, k, 8, dtype)
    assert "matmul_splits" in best.report.rules
    args = [jax.numpy.asarray(rng.standard_normal(s) * 0.1, dtype) for s in ((3, k), (3, k), (k, 8), (8,))]
    found, wanted = (np.asarray(f(*args), np.float32) for f in (best, surrounded))
    np.testing.assert_allclose(found, wanted, rtol=3e-2, atol=0.1)
