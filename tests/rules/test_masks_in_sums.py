"""Masks keep the digits of what they mask: what is exactly zero as written is no difference of large numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir.expr import CONSTANT, constant_value

FAR = 1e6
Scores = Callable[[Any, Any], Any]
# Scores s of which a mask m, truth values as floats, pushes some away.
MASKED: dict[str, Scores] = {
    "chosen": lambda s, m: s * m - FAR * (1 - m),
    "added": lambda s, m: s + (1 - m) * -FAR,
    "shifted": lambda s, m: s + (m * FAR - FAR),
    "both axes": lambda s, m: s + (1 - m) * -FAR + (1 - m.T) * -FAR,
    "pairs": lambda s, m: s - FAR * (1 - m * m.T),
}


@pytest.mark.parametrize("is_float", [False, True], ids=["truth values", "floats"])
@pytest.mark.parametrize("name", MASKED)
def test_scores_keep_their_digits(name: str, is_float: bool) -> None:
    def largest(q: Any, k: Any, m: Any, b: Any) -> Any:
        scores = q @ k.T / np.float32(8**0.5) + b[None, :]
        return MASKED[name](scores, m.astype(q.dtype)[None, :]).max(-1)

    mask = "16 @ float32" if is_float else "16 @ bool"
    with rx.debug.options(cache=False, least_gain=1):
        best = rx.optimize(largest, "16 8", "16 8", mask, "16", numerics="reassociate", target="cpu", measure="off")
    rng = np.random.default_rng(0)
    q, k, b = (rng.standard_normal(s).astype(np.float32) for s in ((16, 8), (16, 8), 16))
    m = (rng.random(16) < 0.6).astype(np.float32 if is_float else np.bool_)
    written = jax.jit(largest)(q, k, m, b)
    np.testing.assert_allclose(best(q, k, m, b), written, rtol=1e-5, atol=1e-5)


def test_sums_of_masked_scores_keep_their_digits() -> None:
    """Found by random programs: the sum of the masked numbers was taken apart from that of the scores."""

    def mean(q: Any, k: Any, m: Any) -> Any:
        mask = m.astype(q.dtype)
        scores = q @ k.T
        scores = scores - scores.mean(-1, keepdims=True) + (mask[None, :] * FAR - FAR)
        return (scores * mask[None, :]).sum(-1) / mask.sum()

    with rx.debug.options(cache=False, least_gain=1):
        best = rx.optimize(mean, "16 8", "16 8", "16 @ bool", numerics="reassociate", target="cpu", measure="off")
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((16, 8)).astype(np.float32) for _ in range(2))
    m = rng.random(16) < 0.6
    np.testing.assert_allclose(best(q, k, m), jax.jit(mean)(q, k, m), rtol=1e-5, atol=1e-5)


def test_a_divisor_is_one_number() -> None:
    """1 / sqrt(8) is no float32, sqrt(8) as a float32 is."""

    def scores(q: Any, k: Any, v: Any) -> Any:
        return jnp.trace((q @ k.T / np.float32(8**0.5)) @ v)

    best = rx.optimize(scores, "64 8", "64 8", "64 64", numerics="reassociate", target="cpu")
    assert best.report.rules
    constants = [float(constant_value(e)) for e in best.module.main.expressions() if e.op == CONSTANT]
    assert constants == [pytest.approx(8**0.5)]
