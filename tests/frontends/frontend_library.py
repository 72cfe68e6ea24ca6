"""Small functions of convolutions, positions, order, linear algebra, bits and complex numbers; more of `CASES`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from frontend_random import CASES, Case, case
from jax import lax

NHWC = ("NHWC", "HWIO", "NHWC")


# --- windows ---


@case("1 3 8 8", "2 3 3 3", tolerance=1e-4)
def convolution(x, w):
    return lax.conv(x, w, (1, 1), "SAME"), lax.conv(x, w, (2, 3), "VALID")


@case("b h+2 h+3 4", "3 3 2 6", tolerance=1e-4)
def convolution_groups(x, w):
    return (
        lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2),
        lax.conv_general_dilated(
            x, w, (2, 1), [(1, 2), (2, 2)], (1, 2), (2, 1), dimension_numbers=NHWC, feature_group_count=2
        ),
    )


@case("b 5 4", "3 4 2", tolerance=1e-4)
def convolution_transposed(x, w):
    return lax.conv_transpose(x, w, (2,), "SAME"), jnp.convolve(x[0, :, 0], w[:, 0, 0])


@case("2 6 6 4", "3 3 2 4", tolerance=1e-4)
def convolution_gradient(x, w):
    def loss(x, w):
        y = lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2)
        return (y**2).sum()

    return jax.grad(loss, (0, 1))(x, w)


@case("2 5 @ bf16", "1 1 3 @ bf16", tolerance=1e-2)
def convolution_accumulates(x, w):
    return lax.conv_general_dilated(x[:, None], w, (1,), "VALID", preferred_element_type=jnp.float32)


@case("b h+3 w 2")
def pooling(x):
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    return (
        lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID"),
        lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 2, 1), "SAME") / 9,
        lax.reduce_window(x, jnp.inf, lax.min, window, (1, 1, 1, 1), "VALID", window_dilation=(1, 2, 1, 1)),
        lax.reduce_window(x[0, 0], 1.0, lax.mul, (2, 1), (1, 1), "VALID"),
    )


@case("2 4 6 2")
def pooling_gradient(x):
    def loss(x):
        y = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        z = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 2, 1), "SAME")
        return (y**2).sum() + (z**3).sum()

    return jax.grad(loss)(x)


# --- positions ---


@case("b 6", "@ int32", "@ int32")
def dynamic(x, i, j):
    y = lax.dynamic_slice(x, (i, j), (1, 3))
    return y, lax.dynamic_update_slice(x, y * 2, (j, i)), x[i], x.at[i].set(0.0), lax.dynamic_index_in_dim(x, j, 1)


@case("b 6 5", "b 3 @ int32", "4 @ int32")
def gathers(x, i, j):
    i, j = i % 2, j % 2  # XLA moves what is out of range inside; to the reference it is an error
    return (
        x[:, j, j], x[j, 1:3, j], jnp.take_along_axis(x, i[:, :, None], 1), jax.vmap(lambda r, k: r[k])(x, i),
        jnp.take_along_axis(x, i[:, :, None], 1, mode="clip"), x.at[j, j].get(mode="fill", fill_value=2.0),
    )  # fmt: skip


@case("b 6", "3 @ int32", "3")
def scatters(x, i, v):
    return (
        x.at[:, i].add(v), x.at[i % 2, i].multiply(2.0), x.at[0, i].max(v), x.at[..., i].min(v[0]),
        x.at[0].set(1.0), x.at[:, 1:3].subtract(1.0), jnp.zeros(6).at[i].add(v, mode="drop"),
    )  # fmt: skip


@case("20 3", "b s @ int32")
def embedding_gradient(table, i):
    return jax.grad(lambda t: (t[i] ** 2).sum())(table), jax.ops.segment_sum(table, jnp.arange(20) // 3, 7)


# --- order ---


@case("b s")
def running(x):
    return lax.cumprod(x, 1), lax.cummax(x, 0, reverse=True), lax.cummin(x, 1), lax.cumlogsumexp(x, 1)


@case("b s")
def sorts(x):
    return (
        jnp.sort(x), jnp.argsort(x, axis=0), jnp.sort(x, descending=True), jnp.median(x, axis=1),
        lax.sort((x, -x), num_keys=2),
    )  # fmt: skip


@case("b 6", "6 5 @ int32")
def top_k(x, i):
    return lax.top_k(x, 2), lax.top_k(i.T, 3), jnp.searchsorted(jnp.sort(i[0]), i[0], method="compare_all")


@case("9 @ int32")
def bins(i):
    return jnp.bincount(i, length=7), jnp.unique(i, size=6, fill_value=0), jnp.nonzero(i, size=9)[0]


# --- linear algebra ---


def _definite(x):
    return x @ x.swapaxes(-1, -2) + 4 * jnp.eye(x.shape[-1])


@case("b 4 4", tolerance=1e-3)
def factorisations(x):
    a = _definite(x)
    return jnp.linalg.cholesky(a), jnp.linalg.qr(a), jnp.linalg.eigh(a)[0], jnp.linalg.svd(x, compute_uv=False)


@case("4 4", "4 2", tolerance=1e-3)
def systems(x, b):
    a = _definite(x)
    return (
        jnp.linalg.solve(a, b), jnp.linalg.inv(a), jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b),
        jax.scipy.linalg.solve_triangular(a, b, lower=True), jnp.linalg.pinv(b), jnp.linalg.norm(b),
        jnp.linalg.det(a), jnp.linalg.slogdet(a), jnp.diagonal(a),
    )  # fmt: skip


@case("4 3", "3 2", tolerance=1e-4)
def reflectors(a, c):
    return jax.scipy.linalg.qr_multiply(a, c, mode="left")[0]


@case("b s+2", tolerance=1e-4)
def ffts(x):
    return jnp.abs(jnp.fft.fft(x)), jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x[:, :2]), 2), jnp.fft.fft2(x)


# --- numbers ---


@case("b s", "b s", tolerance=1e-4)
def complex_numbers(x, y):
    z = lax.complex(x, y)
    return jnp.abs(z), jnp.conj(z) * z, z.real + z.imag, jnp.exp(1j * x), jnp.angle(z)


@case("b 5", "b 5 @ int32")
def arrays_combined_apart(x, i):
    def both(a, b):
        return lax.max(a[0], b[0]), lax.add(a[1], b[1])

    starts = np.float32(0.5), np.int32(2)
    windows = lax.reduce_window((x, i), starts, both, (1, 3), (1, 2), "VALID")
    z = lax.conj(x)
    return *lax.reduce((x, i), starts, both, (1,)), *windows, z, lax.bitcast_convert_type(z, jnp.complex64)


@case("b 3 @ int8", "3 s @ int32", "3 2", "3 2 @ bfloat16")
def products_of_other_dtypes(i, j, x, h):
    mixed = [lax.dot_general(a, b, (((1,), (0,)), ((), ()))) for a, b in ((i, j), (i, x), (i, lax.conj(x)), (i, h))]
    return *mixed, lax.dot_general(i, j.astype(jnp.uint16), (((1,), (0,)), ((), ())))


@case("s @ int32", "s @ uint8")
def bits(i, j):
    return (
        lax.shift_right_logical(i - 3, jnp.int32(2)), lax.population_count(i), lax.clz(j), i % 3, jnp.bitwise_count(j),
        lax.bitcast_convert_type(i, jnp.float32), lax.rem(i - 3, jnp.int32(2)), jnp.left_shift(j, j),
    )  # fmt: skip


@case("b s", tolerance=1e-4)
def special_functions(x):
    p = jnp.abs(x) + 0.5
    return [
        jax.scipy.special.gammaln(p), jax.scipy.special.digamma(p), jnp.nextafter(x, p), lax.reduce_precision(x, 8, 7),
        jax.scipy.special.gammainc(p, p), jax.scipy.special.i0e(x), lax.clamp(-0.5, x, 0.5),
    ]  # fmt: skip


@case("b s", "@ int32")
def cases_by_number(x, i):
    return lax.select_n(jnp.full(x.shape, i % 4, jnp.int32), x, -x, 2 * x, x + 1), jnp.select([x > 1, x > 0], [x, -x])


@case("b 4 @ bf16", "4 3", "2 4 @ int8", "4 2 @ int8", "4 5 @ bool", tolerance=1e-2)
def mixed_products(x, w, i, j, chosen):
    return (
        lax.dot_general(w, chosen, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32),
        lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32),
        jnp.matmul(i, j, preferred_element_type=jnp.int32),
    )


# --- models ---


@case("b s 2 4", "b s 2 4", "b s 2 4", tolerance=1e-4)
def dot_product_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v), jax.nn.dot_product_attention(q, k, v, is_causal=True)


@case("b 4 6 3", tolerance=1e-4)
def resize(x):
    b = x.shape[0]
    return (
        jax.image.resize(x, (b, 8, 12, 3), "bilinear"), jax.image.resize(x, (b, 8, 3, 3), "nearest"),
        jax.image.resize(x, (b, 2, 3, 3), "cubic"),
    )  # fmt: skip


@case("n n")
def masks(x):
    causal = jnp.tril(jnp.ones(x.shape, bool))
    return jnp.where(causal, x, -jnp.inf), jnp.triu(x, 1), jnp.where(jnp.tri(x.shape[0]) > 0, x, 0.0)


def _convolve(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC)


def _normalise(x, p):
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[0] + p[1]


@case(
    "b h+4 8 3", {"stem": "3 3 3 4", "one": "3 3 4 4", "two": "3 3 4 4", "norm": "2 4", "head": "4 5"}, tolerance=1e-3
)
def resnet_block(x, p):
    x = jax.nn.relu(_normalise(_convolve(x, p["stem"], 2), p["norm"]))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    y = jax.nn.relu(_normalise(_convolve(x, p["one"]), p["norm"]))
    x = jax.nn.relu(x + _normalise(_convolve(y, p["two"]), p["norm"]))
    return x.mean((1, 2)) @ p["head"]


@case("b 8 8 3", {"down": "3 3 3 4", "middle": "3 3 4 4", "up": "3 3 8 2"}, tolerance=1e-3)
def unet_block(x, p):
    a = jax.nn.silu(_convolve(x, p["down"]))
    b = lax.reduce_window(a, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    b = jax.nn.silu(_convolve(b, p["middle"]))
    b = jax.image.resize(b, a.shape, "nearest")
    return _convolve(jnp.concatenate([a, b], -1), p["up"])


GPT2 = {
    "ln1": "2 8", "qkv": "8 24", "qkv_b": "24", "out": "8 8", "out_b": "8", "ln2": "2 8", "up": "8 32", "up_b": "32",
    "down": "32 8", "down_b": "8",
}  # fmt: skip


def _layer_norm(x, p):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * p[0] + p[1]


@case("20 8", "32 8", GPT2, "b s @ int32", tolerance=1e-3)
def gpt2_layer(tokens, positions, p, ids):
    b, s = ids.shape
    x = tokens[ids] + positions[jnp.arange(s)]
    q, k, v = jnp.split(_layer_norm(x, p["ln1"]) @ p["qkv"] + p["qkv_b"], 3, -1)
    q, k, v = (t.reshape(b, s, 2, 4).transpose(0, 2, 1, 3) for t in (q, k, v))
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), q @ k.swapaxes(-1, -2) / 2, -1e9)
    mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, s, 8)
    x = x + mixed @ p["out"] + p["out_b"]
    return (x + jax.nn.gelu(_layer_norm(x, p["ln2"]) @ p["up"] + p["up_b"]) @ p["down"] + p["down_b"]) @ tokens.T


@case({"one": "6 8", "b": "8", "two": "8 3"}, "b 6", "b @ int32", tolerance=1e-4)
def mlp_training_step(p, x, labels):
    def loss(p):
        logits = jnp.tanh(x @ p["one"] + p["b"]) @ p["two"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None] % 3, 1).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)


__all__ = ["CASES", "Case"]
