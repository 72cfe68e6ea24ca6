"""Powers with constant exponents, of what is known to be positive: short terms of roots, quotients and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relax_eg as rx


def operators(fn: Any) -> list[str]:
    return [e.op for e in rx.optimize(fn, "512 512", target="cpu").module.main.expressions()]


@pytest.mark.parametrize("exponent", [1.5, -1.5, 2.5, -2.5, -0.5, -2.0, -3.0, -6.0])
def test_powers_of_positive_values_are_short_terms(exponent: float) -> None:
    def fn(x: Any) -> Any:
        return (x * x + 0.01) ** exponent

    best = rx.optimize(fn, "512 512", target="cpu")
    assert "power" not in [e.op for e in best.module.main.expressions()]
    x = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    expected = (x.astype(np.float64) ** 2 + 0.01) ** exponent
    # The power multiplies the error of the base, 2 half ulps, by the exponent, and that of `rsqrt`, up to 2.6 half ulps
    # where XLA refines a processor's estimate (AVX-512), by twice the exponent.
    np.testing.assert_allclose(best(x), expected, rtol=(7.2 * abs(exponent) + 2) * 2.0**-24)


@pytest.mark.parametrize("exponent", [1.5, 2.5, -0.5])
def test_powers_of_other_values_stay(exponent: float) -> None:
    """The power of minus infinity is infinite, its root is no number."""
    assert "power" in operators(lambda x: x**exponent)
