"""Small functions as users write them, by which it is checked how general the prices of GPUs' kernels are.

`python -m benchmarks.gpu --fidelity --functions` compiles them as written: softmaxes and norms of many shapes, what is
computed after a reduction, gathers and scatters, running sums and sorts, convolutions with what follows them, loops,
gradients. Rules of the model of XLA's fusions were made by some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.gpu_cases import Subject

_EPS = 1e-5
Case = tuple[Callable[..., Any], tuple[str, ...]]


def functions(dtypes: tuple[str, ...]) -> Iterator[Subject]:
    """Yields the functions whose first argument has one of `dtypes`; float32 where a spec names none."""
    for name, (fn, specs) in _cases().items():
        dtype = specs[0].partition("@")[2].strip() or "float32"
        if dtype in dtypes:
            yield Subject(name, dtype, fn, specs)


def _cases() -> dict[str, Case]:
    return {
        **_softmaxes(), **_norms(), **_reductions(), **_indexing(), **_running(), **_convolutions(), **_products(),
        **_loops(), **_steps(),
    }  # fmt: skip


# --- functions of several lines ---


def _attention(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _windowed(q: Any, k: Any, v: Any) -> Any:
    scores, at = q @ k.T * 0.125, jnp.arange(q.shape[0])
    seen = (at[:, None] >= at[None]) & (at[:, None] - at[None] < 256)
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1) @ v


def _entropy(x: Any, w: Any, label: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ w), label[:, None], 1).mean()


def _unit(x: Any) -> Any:
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


def _pooled(x: Any, mask: Any) -> Any:
    return _unit((x * mask[:, :, None]).sum(1) / jnp.maximum(mask.sum(1)[:, None], 1e-9))


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + _EPS) * weight + bias


def _batch_norm(x: Any, weight: Any, bias: Any) -> Any:
    mean, spread = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(spread + _EPS) * weight + bias


def _rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    return jnp.concatenate([-x[..., half:], x[..., :half]], -1) * jnp.cos(jnp.arange(2.0 * half)) + x


def _conv(x: Any, w: Any, step: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (step, step), "SAME")


def _channels(b: Any) -> Any:
    return b[:, None, None]


def _small_network(x: Any, w: Any, b: Any, v: Any, c: Any, last: Any) -> Any:
    for weight, bias in ((w, b), (v, c)):
        x = lax.conv_general_dilated(x, weight, (2, 2), ((1, 1), (1, 1)))
        x = jax.nn.relu(x + _channels(bias))
    return x.reshape(x.shape[0], -1) @ last


def _recurrent(x: Any, h: Any, w: Any) -> Any:
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, h, x)


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


# --- the list ---


def _softmaxes() -> dict[str, Case]:
    qkv, row, long = ("1024 64 @ bfloat16",) * 3, ("256 3200",), ("256 32000",)
    return {
        "softmax": (jax.nn.softmax, row),
        "softmax of long rows": (jax.nn.softmax, long),
        "softmax of quotients": (lambda x, c: jax.nn.softmax(x / jnp.maximum(c, 1e-9)), ("64 384", "64 1")),
        "softmax and its column sums": (lambda x: (s := jax.nn.softmax(x), s.sum(0)), row),
        "log-softmax": (jax.nn.log_softmax, row),
        "log-softmax of long rows": (jax.nn.log_softmax, long),
        "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), row),
        "sum of exponentials below the maximum": (lambda x: jnp.exp(x - x.max(-1, keepdims=True)).sum(-1), row),
        "attention of heads": (_attention, ("2 300 4 64",) * 3),
        "windowed attention": (_windowed, ("2048 64 @ bfloat16",) * 3),
        "weights by a logsumexp": (
            lambda q, k, v: jnp.exp((s := q @ k.T * 0.125) - jax.nn.logsumexp(s, -1, keepdims=True)) @ v, qkv,
        ),
        "cross-entropy": (_entropy, ("256 512", "512 32000", "256 @ int32")),
        "gradient of a cross-entropy": (
            jax.value_and_grad(_entropy, argnums=1), ("256 512", "512 3200", "256 @ int32"),
        ),
    }  # fmt: skip


def _norms() -> dict[str, Case]:
    return {
        "unit rows": (_unit, ("64 384",)),
        "unit rows of means": (lambda x: _unit(x.mean(1)), ("64 128 384",)),
        "unit rows of masked means": (_pooled, ("64 128 384", "64 128")),
        "layer norm": (_layer_norm, ("512 768", "768", "768")),
        "layer norm, matmul": (lambda x, g, b, w: _layer_norm(x, g, b) @ w, ("512 768", "768", "768", "768 768")),
        "RMS norm": (lambda x, g: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + _EPS) * g, ("64 384", "384")),
        "batch norm": (_batch_norm, ("8 32 32 64", "64", "64")),
        "matrix over its norm": (lambda x: x / jnp.linalg.norm(x), ("512 512",)),
        "variance": (lambda x: x.var(), ("256 3200",)),
    }


def _reductions() -> dict[str, Case]:
    x = ("256 3200",)
    return {
        "norms of rows": (lambda x: jnp.sqrt((x * x).sum(-1)), x),
        "root of one more than a sum": (lambda x: jnp.sqrt((x * x).sum(-1) + 1.0), x),
        "norm": (lambda x: jnp.sqrt((x * x).sum()), x),
        "tanh of norms of columns": (lambda x: jnp.tanh(jnp.sqrt((x * x).sum(0))), x),
        "mean": (lambda x: (x * x).mean(), x),
        "roots of means of columns": (lambda x: jnp.sqrt(x.mean(0)), ("512 1024",)),
        "decay by sums": (lambda x, y: x * jnp.exp(-y.sum(0)), ("256 3200", "100 3200")),
        "sums of long rows": (lambda x: x.sum(-1), ("16 33000",)),
        "maxima of long rows": (lambda x: jnp.abs(x).max(-1), ("16 20011",)),
        "sums of long columns": (lambda x: x.sum(0), ("40000 64",)),
        "argmax": (lambda x: x.argmax(-1), x),
        "sum of joined columns": (lambda x, y: jnp.concatenate([x * 2, y], 1).sum(0), ("1024 512", "1024 64")),
        "squared distances": (lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1), ("256 64", "512 64")),
    }


def _indexing() -> dict[str, Case]:
    table, at, picked = "5000 256", "512 @ int32", ("256 3200", "256 @ int32")
    return {
        "sums of looked-up rows": (lambda t, i: t[i].sum(-1), (table, at)),
        "mean of looked-up rows": (lambda t, i: t[i].mean(), (table, at)),
        "lookup, matmul": (lambda t, i, w: jax.nn.relu(t[i]) @ w, (table, at, "256 128")),
        "picked elements": (lambda t, i: jnp.take_along_axis(t * 2, i[:, None], 1)[:, 0] * 3, picked),
        "mean of picked elements": (lambda t, i: jnp.take_along_axis(t * 2, i[:, None], 1).mean(), picked),
        "sum of many looked-up": (lambda t, i: t[i].sum(), ("5000", "100000 @ int32")),
        "gradient of a lookup": (jax.grad(lambda t, i: (t[i] ** 2).sum()), (table, at)),
        "sums by segments": (lambda x, i: jnp.zeros((128, 64), x.dtype).at[i].add(x * 2), ("4096 64", "4096 @ int32")),
        "rows set": (lambda t, i, x: t.at[i].set(x), ("5000 64", "40 @ int32", "40 64")),
        "rows added to": (lambda t, i, x: (t * 2).at[i].add(x) + 1, ("5000 64", "40 @ int32", "40 64")),
        "slice set": (lambda t, x: lax.dynamic_update_slice(t * 2, x, (5, 0)), ("5000 64", "40 64")),
        "one-hot product": (lambda x, i: jax.nn.one_hot(i, 100) @ x, ("100 64", at)),
        "rotated": (_rotated, ("4 128 8 64",)),
    }  # fmt: skip


def _running() -> dict[str, Case]:
    return {
        "running sums": (lambda x: jnp.cumsum(x, 0), ("256 4096",)),
        "running sums of long rows": (lambda x: jnp.cumsum(x, 1), ("256 4096",)),
        "running means": (lambda x: jnp.cumsum(x, 0) / jnp.arange(1, x.shape[0] + 1)[:, None], ("2048 256",)),
        "running sums of few": (lambda x: jnp.cumsum(x, 1) * 2, ("256 16",)),
        "running sum of a million": (jnp.cumsum, ("1000000",)),
        "exponentials of running sums": (lambda x: jnp.exp(jnp.cumsum(x * 2, -1)) + x, ("64 2048",)),
        "sorted rows": (lambda x: jnp.sort(x, -1), ("256 1024",)),
        "order of rows": (lambda x: jnp.argsort(x, -1), ("256 1024",)),
        "largest first": (lambda x: -jnp.sort(-x, axis=-1)[:, :8], ("64 1000",)),
        "sum of every second": (lambda x: jnp.sort(x, -1)[:, ::2].sum(-1), ("256 1024",)),
        "eight largest": (lambda x: lax.top_k(x, 8), ("64 4096",)),
    }


def _convolutions() -> dict[str, Case]:
    x, w, b = "4 16 32 32", "32 16 3 3", "32"
    last = ("NHWC", "HWIO", "NHWC")
    return {
        "convolution": (_conv, (x, w)),
        "convolution, channels last": (
            lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=last),
            ("4 32 32 16", "3 3 16 32"),
        ),
        "pointwise convolution": (_conv, (x, "32 16 1 1")),
        "convolution of one channel": (_conv, ("4 1 28 28", "8 1 3 3")),
        "convolution of a scaled image": (lambda x, w: _conv(x * 2 + 1, w), (x, w)),
        "convolution, bias": (lambda x, w, b: _conv(x, w) + _channels(b), (x, w, b)),
        "convolution, ReLU": (lambda x, w: jax.nn.relu(_conv(x, w)), tuple(f"{s} @ bfloat16" for s in (x, w))),
        "convolution, ReLU, means": (lambda x, w: jax.nn.relu(_conv(x, w)).mean((2, 3)), (x, w)),
        "strided convolution, bias, ReLU": (lambda x, w, b: jax.nn.relu(_conv(x, w, 2) + _channels(b)), (x, w, b)),
        "convolution, bias, SiLU": (lambda x, w, b: jax.nn.silu(_conv(x, w) + _channels(b)), (x, w, b)),
        "convolution, scale, bias, ReLU": (
            lambda x, w, g, b: jax.nn.relu(_conv(x, w) * _channels(g) + _channels(b)), (x, w, b, b),
        ),
        "residual convolution": (
            lambda x, w, b: jax.nn.relu(_conv(x, w) + _channels(b) + x), (x, "16 16 3 3", "16"),
        ),
        "two convolutions": (lambda x, w, v: _conv(jax.nn.relu(_conv(x, w)), v), (x, w, "32 32 3 3")),
        "small convolutional network": (
            _small_network, ("8 3 32 32", "32 3 3 3", "32", "64 32 3 3", "64", "4096 10"),
        ),
        "largest of windows": (
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), (x,),
        ),
    }  # fmt: skip


def _products() -> dict[str, Case]:
    half = tuple(f"{s} @ bfloat16" for s in ("256 512", "512 2048", "2048", "2048 512"))
    return {
        "MLP": (lambda x, w, b, v: jax.nn.gelu(x @ w + b) @ v + x, half),
        "gated MLP": (
            lambda x, a, b, c: (jax.nn.silu(x @ a) * (x @ b)) @ c, ("64 512", "512 2048", "512 2048", "2048 512"),
        ),
        "8-bit weight": (
            lambda x, w, s: x @ (w.astype(x.dtype) * s), ("16 4096 @ bfloat16", "4096 4096 @ int8", "4096 @ bfloat16"),
        ),
        "norm of a Gram matrix": (lambda x: jnp.linalg.norm(x @ x.T), ("512 256",)),
        "product where positive": (lambda x, y: jnp.where(x > 0, x @ y, 0.0), ("256 256",) * 2),
        "transpose": (lambda x: x.T * 2, ("1024 512",)),
        "solve": (jnp.linalg.solve, ("64 64", "64 8")),
        "Fourier transform": (lambda x: jnp.abs(jnp.fft.rfft(x)), ("64 1024",)),
    }  # fmt: skip


def _loops() -> dict[str, Case]:
    return {
        "recurrent network": (_recurrent, ("64 8 128", "8 128", "128 128")),
        "scan with sums": (lambda x, h: lax.scan(lambda h, x: (h * 0.9 + x, h.sum()), h, x), ("64 8 128", "8 128")),
        "repeated layer": (lambda x, w: lax.fori_loop(0, 10, lambda _, x: jnp.tanh(x @ w), x), ("8 128", "128 128")),
    }


def _steps() -> dict[str, Case]:
    return {
        "gradients of an MLP": (
            jax.value_and_grad(lambda w, v, x: (jax.nn.relu(x @ w) @ v).var(), (0, 1)),
            ("256 512", "512 64", "128 256"),
        ),
        "Adam": (_adam, ("512 512",) * 4),
    }
