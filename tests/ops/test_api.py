"""The operator functions against jax.numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, var
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.shapes import Dim

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1
V = np.arange(3, dtype=np.float32) + 1

# Each function is built once with expressions and `op`, once with arrays and jax.numpy.
SAME: dict[str, Callable[[Any, Any, Any], Any]] = {
    "arithmetic": lambda x, v, m: 2 - x * 3 + 1 / (x + 5) - (-x) ** 2 + x @ (x[0].T @ v)[:, None],
    "comparison": lambda x, v, m: m.where((x < 1) & True if m is jnp else x < 1, x, 0.5 * x),
    "power": lambda x, v, m: v**2.0 + v**-1 + v**3,
    "sum": lambda x, v, m: m.sum(x, axis=(0, -1), keepdims=True) + x.sum() + x.sum(axis=-2, keepdims=True),
    "mean": lambda x, v, m: m.mean(x, axis=-1) + m.max(x) + m.min(x, axis=(0, 2)) + m.prod(v),
    "positions": lambda x, v, m: m.argmax(x, axis=-2) + m.argmin(x, axis=1),
    "cumsum": lambda x, v, m: m.cumsum(x, axis=-1),
    "slices": lambda x, v, m: x[0, 1:, ::2] + x[1, :-1, 1::2] + x[:, -1, None, 0:2],
    "ellipsis": lambda x, v, m: x[..., None, -1] + x[None, 0, ..., 2, None],
    "backwards": lambda x, v, m: x[::-1, :, ::-1] + m.flip(x, axis=1) + x[:, 5:2] .sum(),
    "beyond": lambda x, v, m: x[:, 1:100] + x[:, :2],
    "transpose": lambda x, v, m: m.transpose(x, (-1, 0, 1)).reshape(4, -1) + x.T.reshape((4, 6)),
    "reshape": lambda x, v, m: x.reshape(-1)[3] + m.reshape(x, (3, -1, 2)) + m.squeeze(m.expand_dims(x, (0, -1))).sum(),
    "join": lambda x, v, m: m.concatenate([x, x * 2, x[:, :1]], axis=-2) + m.stack([v, v], axis=-1).sum(),
    "pad": lambda x, v, m: m.pad(x, ((1, 0), (0, 2), (1, 1))) + m.triu(x[0], 1).sum() + m.tril(x[0]).sum(),
    "take": lambda x, v, m: m.take(x, np.array([[0, -1], [2, 9]]), axis=1) + m.take(x, np.array([5, 23], np.int32))[0],
    "diagonal": lambda x, v, m: m.diag(v) + m.eye(3) * m.trace(x[0, :, :3]) + m.eye(3, 3, 1) + m.outer(v, v),
    "ranges": lambda x, v, m: m.arange(5).sum() + m.arange(1, 12, 2) + m.arange(9, 0, -3).sum(),
    "full": lambda x, v, m: m.full((2, 3), 1.5) + m.ones(3) + m.zeros((2, 1)),
    "clip": lambda x, v, m: m.clip(x, -0.5, 0.5) + m.round(x) + m.abs(x) + m.sqrt(m.square(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SAME))
def test_as_in_jax_numpy(name: str) -> None:
    x, v = var("x", Tensor("2 3 4")), var("v", Tensor("3"))
    want = SAME[name](jnp.asarray(X), jnp.asarray(V), jnp)
    built = SAME[name](x, v, op)
    assert isinstance(built, Expr)
    got = evaluate_expr(built, {x: X, v: V}, {})
    assert built.shape == got.shape == want.shape
    np.testing.assert_allclose(got, np.asarray(want), rtol=2e-5, atol=2e-5)


def test_split() -> None:
    x = var("x", Tensor("2 3 4"))
    for parts, axis in ((2, -1), ([1, 3], 2)):
        for got, want in zip(op.split(x, parts, axis), jnp.split(X, parts, axis), strict=True):
            np.testing.assert_array_equal(evaluate_expr(got, {x: X}, {}), want)


def test_networks() -> None:
    x, v = var("x", Tensor("2 4 3")), var("v", Tensor("3"))
    data = X.reshape(2, 4, 3)
    for built, want in [
        (op.softmax(x), jax.nn.softmax(data)),
        (op.log_softmax(x, 1), jax.nn.log_softmax(data, 1)),
        (op.gelu(x), jax.nn.gelu(data)),
        (op.gelu(x, approximate=False), jax.nn.gelu(data, approximate=False)),
        (op.silu(x), jax.nn.silu(data)),
        (op.one_hot(op.argmax(x), 3), jax.nn.one_hot(data.argmax(-1), 3)),
        (op.layer_norm(x, v, 0 * v), jax.nn.standardize(data) * V),
    ]:
        np.testing.assert_allclose(evaluate_expr(built, {x: data, v: V}, {}), want, rtol=1e-4, atol=1e-5)


def test_symbolic_sizes() -> None:
    n = Dim.of("n")
    x = var("x", Tensor("n m 4"))
    assert op.reshape(x, (n, -1)).shape == (n, Dim.of("4*m"))
    assert x.reshape(-1).shape == (Dim.of("4*n*m"),)
    assert op.reshape(x, ("2*n", -1, 2)).shape == (Dim.of("2*n"), Dim.of("m"), 2)
    assert x[1:, -1].shape == (n - 1, 4)
    assert x[: n - 2, ::2, 1].shape == (n - 2, Dim.of("(m+1)//2"))
    assert op.eye(n).shape == (n, n)
    assert op.split(x, 2, 2).annotation.fields[0] == Tensor("n m 2")  # type: ignore[union-attr]
    assert (x * n).dtype == "float32"
    got = evaluate_expr(op.sum(x) / n, {x: np.ones((3, 2, 4), np.float32)}, {"n": 3, "m": 2})
    assert got == 8


def test_numbers_take_the_dtype_beside_them() -> None:
    x = var("x", Tensor("3 @ bfloat16"))
    assert (x + 1).dtype == (2.5 * x).dtype == (np.float64(2) * x).dtype == "bfloat16"
    assert (x + 1).args[1] is const(1, "bfloat16")
    assert (x < 1).dtype == "bool"
    assert op.where(op.isnan(x), 0, x).dtype == "bfloat16"


def test_nothing_is_built_for_nothing() -> None:
    x = var("x", Tensor("n 3"))
    assert op.astype(x, "float32") is x
    assert x[:] is x
    assert x[..., 0:3] is x
