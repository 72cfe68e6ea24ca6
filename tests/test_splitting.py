"""Products over a long axis in parts (split-K): chosen where few blocks of results leave a GPU idle."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx

OPTIONS: dict[str, Any] = {"target": "h100", "execution": "kernels"}


def surrounded(x: Any, w: Any, b: Any) -> Any:
    """What no library takes in: a function of the first operand."""
    return jax.nn.gelu((jax.nn.relu(x) * 2.0) @ w + b)


def plain(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ w + b)


def rules(fn: Any, m: int, k: int, n: int, **options: Any) -> Any:
    return rx.optimize(fn, f"m {k}", f"{k} {n}", f"{n}", at={"m": m}, **OPTIONS | options).report.rules


def test_a_thin_deep_product_with_a_function_of_its_own_before_it_is_split() -> None:
    best = rx.optimize(surrounded, f"m {1 << 20}", f"{1 << 20} 64", "64", at={"m": 64}, **OPTIONS)
    assert "matmul_splits" in best.report.rules
    without = rx.optimize(
        surrounded, f"m {1 << 20}", f"{1 << 20} 64", "64", at={"m": 64}, rules=rx.rules.default - "splitting", **OPTIONS
    )
    # Without parts the operand is stored before the library's matmul: written, and read again.
    assert best.report.after.seconds < 0.6 * without.report.after.seconds
    assert "matmul_splits" not in without.report.rules


@pytest.mark.parametrize("fn", [surrounded, plain])
def test_a_square_product_is_not_split(fn: Any) -> None:
    assert "matmul_splits" not in rules(fn, 2048, 2048, 2048)


def test_a_plain_product_is_left_to_the_library_which_splits_it() -> None:
    assert "matmul_splits" not in rules(plain, 64, 1 << 20, 64)


def test_a_cpu_gains_nothing_from_parts() -> None:
    assert "matmul_splits" not in rules(surrounded, 16, 1 << 17, 16, target="cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_add_up(dtype: str) -> None:
    """The chosen program computed on the device at hand; partial sums of half precision are not rounded."""
    k, rng = 1 << 20, np.random.default_rng(0)
    specs = [f"{s} @ {dtype}" for s in (f"m {k}", f"{k} 8", "8")]
    best = rx.optimize(surrounded, *specs, at={"m": 64}, **OPTIONS)
    assert "matmul_splits" in best.report.rules
    args = [jax.numpy.asarray(rng.standard_normal(s) * 0.1, dtype) for s in ((3, k), (k, 8), (8,))]
    found, wanted = (np.asarray(f(*args), np.float32) for f in (best, surrounded))
    loose = dtype == "bfloat16"
    np.testing.assert_allclose(found, wanted, rtol=3e-2 if loose else 1e-4, atol=0.1 if loose else 1e-2)
