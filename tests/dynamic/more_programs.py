"""Programs of loops, calls and library functions whose sizes vary."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def nested(x: Any) -> Any:
    """A loop over rows, in it one over all rows."""

    def outer(carry: Any, row: Any) -> Any:
        def inner(d: Any, y: Any) -> Any:
            d = d + jnp.sum(y) * jnp.mean(row)
            return d, d

        d, ys = lax.scan(inner, carry[0], x)
        return (d, jnp.max(-jnp.abs(ys)) + carry[1]), ys

    (a, b), ys = lax.scan(outer, (jnp.float32(0), jnp.float32(0)), x)
    return a, b, ys, ys.sum(0)


@jax.jit
def _sorted_and_summed(y: Any, k: Any) -> Any:
    return jnp.sort(y, 0)[::-1], jnp.sum(y * k, 0)


def calls(x: Any, y: Any) -> Any:
    """One function, called at two lengths."""
    a, b = _sorted_and_summed(x, jnp.float32(2))
    c, d = _sorted_and_summed(y, jnp.float32(3))
    return jnp.concatenate([a, c]), b + d


def layers(x: Any, weights: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(jax.nn.softmax(x @ w @ x.T, -1) @ x), None

    return lax.scan(layer, x, weights)[0]


def merged_loop(x: Any) -> Any:
    b, s = x.shape
    flat = x.reshape(b * s)
    return lax.scan(lambda c, t: (c + t * jnp.sum(flat), c), jnp.float32(0), flat)


def segments(x: Any, i: Any) -> Any:
    return jax.ops.segment_sum(x, i, 5), jax.nn.one_hot(i, 7).sum(0)


def table_gradient(p: Any, x: Any) -> Any:
    """Of the first rows of a table, as many as there are: they get a sum each, the others none."""
    return jax.grad(lambda p: (jnp.sin(p[: x.shape[0]] + x) ** 2).sum())(p)


def windows_added(x: Any, y: Any, at: Any) -> Any:
    """Windows of `m` of 12 rows at given places; those that reach beyond the end are left out, or moved inside."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    places = jnp.stack([at, at + 5, at - 1])[:, None]
    added = lax.scatter_add(x, places, jnp.stack([y, y + 1, y * 2]), numbers, mode="fill")
    return added, lax.scatter_min(x, places, jnp.stack([y, y + 1, y * 2]), numbers, mode="clip")


def updated(x: Any, y: Any, at: Any) -> Any:
    return lax.dynamic_update_slice(x, y, (at, jnp.int32(0)))


def sliced(x: Any, at: Any) -> Any:
    rows = lax.dynamic_slice(x, (at, jnp.int32(0)), (2, x.shape[1]))
    return rows, lax.dynamic_slice_in_dim(x, at, x.shape[0] - 1, 0)


def gradient(x: Any, w: Any) -> Any:
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


def rematerialised(x: Any, w: Any) -> Any:
    """The derivative computes the layers again, behind a barrier."""
    layer = jax.checkpoint(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w))
    return jax.grad(lambda w: jnp.mean(layer(w) ** 2))(w)


def quantiles(x: Any) -> Any:
    q = jnp.round(x * 10).astype(jnp.int8)
    return q @ q.T, jnp.median(x, 0), jnp.percentile(x, 25, axis=0)


def signals(x: Any) -> Any:
    return jnp.diff(x), jnp.unwrap(x), jnp.std(x), jnp.cov(x), x / jnp.linalg.norm(x)


def noise(key: Any, x: Any) -> Any:
    return jax.random.normal(jax.random.wrap_key_data(key), (x.shape[0], 3)) + x


def systems(a: Any, b: Any) -> Any:
    """Solved by Cholesky, by LU and by both triangles."""
    n = a.shape[0]
    c = a + a.T + 20 * jnp.eye(n)
    factor = jnp.linalg.cholesky(c)
    upper = jax.scipy.linalg.solve_triangular(jnp.triu(c), b, lower=False)
    right = lax.linalg.triangular_solve(factor, b.T, lower=True, transpose_a=True)
    return jax.scipy.linalg.cho_solve((factor, True), b), jnp.linalg.solve(a + 9 * jnp.eye(n), b), upper, right


def orthogonal(a: Any, b: Any) -> Any:
    q, r = jnp.linalg.qr(a)
    return r, q, q.T @ b


def three_diagonals(x: Any, b: Any) -> Any:
    return lax.linalg.tridiagonal_solve(x, x + 9, 2 * x, b)


def same_windows(x: Any, w: Any) -> Any:
    most = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3), (1, 1, 2), "SAME")
    return most, lax.conv_general_dilated(x, w, (3,), "SAME"), jnp.sum(most, -1)


def whole_windows(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, x.shape[1]), (1, 1), "VALID")


def odd_length(x: Any) -> Any:
    """Of 2*n + 1 elements, the pairs and the one in the middle."""
    n = (x.shape[0] - 1) // 2
    pairs = x[1:].reshape(n, 2)
    return (
        jnp.sum(x),
        jnp.cumsum(x)[::-1],
        jnp.argmax(x),
        x[n : n + 1],
        pairs.max(0),
        jnp.concatenate([pairs, pairs[:1]]),
    )
