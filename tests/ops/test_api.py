"""The operator functions against jax.numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, var
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.record import TABLE
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
    "like": lambda x, v, m: m.ones_like(x) + 2 * x + m.zeros_like(x),
    "clip": lambda x, v, m: m.clip(x, -0.5, 0.5) + m.round(x) + m.abs(x) + m.sqrt(m.square(x)),
}  # fmt: skip


# With their own spelling in jax.
OTHERS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "running": (
        lambda x, v: op.cumprod(x, -1) + op.cummax(x, 0) + op.cummin(x, 1, reverse=True) + op.cumlogsumexp(x, 2),
        lambda x, v: jnp.cumprod(x, -1) + lax.cummax(x, 0) + lax.cummin(x, 1, True) + lax.cumlogsumexp(x, 2),
    ),
    "conv": (
        lambda x, v: op.conv(x, op.reshape(v, (1, 3, 1)), padding="same", strides=3),
        lambda x, v: lax.conv(x, v.reshape(1, 3, 1), (3,), "SAME"),
    ),
    "conv_dilated": (
        lambda x, v: op.conv(x, op.reshape(v, (3, 1, 1)), groups=3, padding=[(1, 2)], dilation=2, input_dilation=2),
        lambda x, v: lax.conv_general_dilated(x, v.reshape(3, 1, 1), (1,), [(1, 2)], (2,), (2,), feature_group_count=3),
    ),
    "pools": (
        lambda x, v: op.max_pool(x, 2) + op.avg_pool(x, 3, 2, "same"),
        lambda x, v: (
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2), (1, 1, 2), "VALID")
            + lax.reduce_window(x, 0.0, lax.add, (1, 1, 3), (1, 1, 2), "SAME") / 3
        ),
    ),
    "order": (
        lambda x, v: op.sort(x, 0) + op.astype(op.argsort(x, 1), "float32") + op.top_k(x, 3, 1)[0],
        lambda x, v: jnp.sort(x, 0) + jnp.argsort(x, 1) + lax.top_k(x, 3, axis=1)[0],
    ),
    "positions": (
        lambda x, v: (
            op.dynamic_update_slice(x, op.dynamic_slice(x, [0, 1, 0], (1, 2, 3)), [1, 0, 9])
            + op.take_along_axis(x, op.argsort(x, 2), 2)
        ),
        lambda x, v: lax.dynamic_update_slice(x, x[:1, 1:, :3], (1, 0, 9)) + jnp.sort(x, 2),
    ),
    "scatter": (
        lambda x, v: op.scatter(x[0], np.array([2, 0, 2, 7]), x[1, 0] * op.ones((4, 1))),
        lambda x, v: x[0].at[jnp.array([2, 0, 2, 7])].add(x[1, 0] * jnp.ones((4, 1))),
    ),
    "factors": (
        lambda x, v: (
            op.cholesky(x[0] @ x[0].T + 9 * op.eye(3)) + op.qr(x[0])[0] + op.svd(x[0])[0] + op.lu(x[0])[0][:, :3]
        ),
        lambda x, v: (
            jnp.linalg.cholesky(x[0] @ x[0].T + 9 * jnp.eye(3))
            + jnp.linalg.qr(x[0])[0]
            + jnp.linalg.svd(x[0])[0]
            + lax.linalg.lu(x[0])[0][:, :3]
        ),
    ),
    "symmetric": (
        lambda x, v: op.eigh(x[0] @ x[0].T)[0] + op.triangular_solve(x[0, :, :3] + op.eye(3) * 4, op.expand_dims(v, 1)),
        lambda x, v: (
            jnp.linalg.eigh(x[0] @ x[0].T)[0]
            + lax.linalg.triangular_solve(x[0, :, :3] + jnp.eye(3) * 4, v[:, None], left_side=True)
        ),
    ),
    "numbers": (
        lambda x, v: op.abs(op.complex(x, x + 1)) + op.real(op.fft(x, "rfft", (4,)))[..., :1] + op.lgamma(x + 2),
        lambda x, v: jnp.abs(x + 1j * (x + 1)) + jnp.fft.rfft(x).real[..., :1] + jax.scipy.special.gammaln(x + 2),
    ),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_as_in_jax(name: str) -> None:
    x, v = var("x", Tensor("2 3 4")), var("v", Tensor("3"))
    data = np.sin(np.arange(24, dtype=np.float32)).reshape(2, 3, 4)
    built, want = OTHERS[name][0](x, v), OTHERS[name][1](jnp.asarray(data), jnp.asarray(V))
    got = evaluate_expr(built, {x: data, v: V}, {})
    assert built.shape == got.shape == want.shape
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-4)


def test_sizes_of_windows() -> None:
    x, w = var("x", Tensor("n 3 h w")), var("w", Tensor("8 3 3 3"))
    n, h = Dim.of("n"), Dim.of("h")
    assert op.conv(x, w, padding="same").shape == (n, 8, h, Dim.of("w"))
    assert op.conv(x, w, strides=2, padding=[(1, 1), (1, 1)]).shape[2] == Dim.of("(h - 1)//2 + 1")
    assert op.max_pool(x, 2).shape == (n, 3, h // 2, Dim.of("w//2"))
    assert op.max_pool(x, 3, 1, padding="same").shape == x.shape


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


def test_one_row_times_a_weight_stored_output_axis_first_reads_it_in_place() -> None:
    """XLA would transpose the weight at each call where something is added to the product."""
    lower = TABLE["linear"].jax_function()
    arrays = [jnp.ones(s) for s in ((1, 8), (16, 8), (16,))]
    compiled = jax.jit(lambda x, w, b: lower(x, w) + b).lower(*arrays).compile()
    assert "transpose" not in compiled.as_text()
    np.testing.assert_allclose(compiled(*arrays), np.full((1, 16), 9.0))
