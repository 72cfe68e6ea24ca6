"""Small functions, one or more for every family of primitives. A case is a function, its specs, and the names of the
library routines that are expected to stay (none: all are operators; "any": unspecified)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass
class Case:
    name: str
    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    opaque: frozenset[str] = frozenset()
    kwspecs: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5


CASES: list[Case] = []


def case(*specs: Any, opaque: str = "", tolerance: float = 1e-5, **kwspecs: Any) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        CASES.append(Case(fn.__name__, fn, specs, frozenset(opaque.split()), kwspecs, tolerance))
        return fn

    return add


class Layer(NamedTuple):
    w: Any
    b: Any


# --- elementwise ---


@case("b s", "b s")
def arithmetic(x, y):
    return (x + y) * (x - y) / (1 + jnp.abs(y)), -x, jnp.maximum(x, y), jnp.minimum(x, 0.5), x % (jnp.abs(y) + 1)


@case("b s")
def unary(x):
    p = jnp.abs(x) + 0.5
    return [
        jnp.exp(x), jnp.exp2(x), jnp.expm1(x), jnp.log(p), jnp.log1p(p), jnp.sqrt(p), lax.rsqrt(p), jnp.cbrt(x),
        jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.tanh(x), jnp.sinh(x), jnp.cosh(x), jnp.arcsin(x / 9), jnp.arctan(x),
        jnp.arcsinh(x), jnp.floor(x), jnp.ceil(x), jnp.sign(x), lax.erf(x), lax.erfc(x), jnp.square(x), 1 / p,
    ]  # fmt: skip


@case("b s", "@ int32")
def powers(x, n):
    return x**3, x**-2, jnp.abs(x) ** 1.5, lax.integer_pow(x, 5), lax.pow(0.5, n), lax.pow(x, x.astype(jnp.int8))


@case("4 s")
def gradient_of_a_loop(x):
    return jax.grad(lambda x: lax.map(jnp.sin, x).sum())(x), lax.empty((3, 2), jnp.int32)


@case("4 s", "4 s @ int32")
def collectives(x, i):
    def one(x, i):
        summed, counted = lax.psum((x, i), "rows")
        return x - lax.pmean(x, "rows"), summed * counted, lax.pmax(x, "rows") - lax.pmin(x, "rows")

    return jax.vmap(one, axis_name="rows")(x, i)


@case("b s @ bf16", 0.5, tolerance=1e-2)
def gradient_of_conversions(x, scale):
    return jax.grad(lambda x, scale: (x.astype(jnp.float32) ** 2 * jnp.exp(scale)).sum(), (0, 1))(x, scale)


@case("b s")
def rounding(x):
    return jnp.round(x), lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), jnp.trunc(x)


@case("b s", "b s")
def comparisons(x, y):
    return x < y, x <= y, x > y, x >= y, x == y, x != y, (x < y) & (x > 0) | ~(y > 1)


@case("s @ int32", "s @ int32")
def integers(i, j):
    return i & j, i | j, i ^ j, ~i, i << 2, i >> 1, i // (j * j + 1), i * j - 3


@case("s @ uint32")
def unsigned(i):
    return i >> 3, i << 1, i + 1


@case("b s", "b s")
def select(x, y):
    return jnp.where(x > y, x, y), jnp.where(x > 0, x, 0.0), jnp.where(x.sum() > 0, x, y), jnp.clip(x, -1, 1)


@case("b s")
def casts(x):
    return x.astype(jnp.int32), (x > 0).astype(jnp.float32), x.astype(jnp.bfloat16).astype(jnp.float32)


@case("b s")
def finite(x):
    return jnp.isfinite(x), jnp.isnan(x / 0.0), jnp.nan_to_num(x)


@case("b s", "s", "b")
def mixed_ranks(x, v, u):
    return x + v, x * u[:, None], 2 * x + 1


# --- reductions ---


@case("b s 4")
def reductions(x):
    return (
        x.sum(),
        x.sum(1),
        x.max(-1),
        x.min((0, 2)),
        x.prod(1),
        x.mean(-1, keepdims=True),
        jnp.var(x, axis=1),
        x.std(-1),
    )


@case("b s")
def arg_reductions(x):
    return jnp.argmax(x, -1), jnp.argmin(x, 0), jnp.argmax(x), jnp.any(x > 0, 1), jnp.all(x > 0)


@case("b s")
def scans_of_sums(x):
    return jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True)


@case("b s")
def logsumexp(x):
    return jax.nn.logsumexp(x, axis=-1)


# --- movement ---


@case("b s 4")
def reshapes(x):
    return (
        x.reshape(-1, 4),
        x.reshape(x.shape[0], -1),
        x.reshape(*x.shape[:2], 2, 2),
        x[:, None],
        x[None, ..., None],
        x.ravel(),
    )


@case("b s 4")
def transposes(x):
    return x.T, x.transpose(0, 2, 1), jnp.swapaxes(x, 0, 1), jnp.moveaxis(x, -1, 0), x.transpose(0, 1, 2)


@case("b 1 s")
def squeezes(x):
    return jnp.squeeze(x, 1), x[0, 0], jnp.expand_dims(x, (0, 2))


@case("b s")
def broadcasts(x):
    return (
        jnp.broadcast_to(x, (3, *x.shape)), jnp.broadcast_to(x[:, None, :], (x.shape[0], 2, x.shape[1])),
        jnp.zeros(x.shape), jnp.ones((2, x.shape[1])), jnp.full(x.shape, 2.5),
        lax.broadcast_in_dim(x[0], (x.shape[1], 2), (0,)),
    )  # fmt: skip


@case("b s", "b s")
def joins(x, y):
    return jnp.concatenate([x, y], 0), jnp.concatenate([x, y, x], -1), jnp.stack([x, y], 1), jnp.hstack([x, y])


@case("b 6")
def splits(x):
    a, b, c = jnp.split(x, 3, -1)
    d, e = jnp.split(x, [2], 1)
    return a, b + c, d, e, [*jnp.unstack(x, axis=1)][2]


@case("b s 6")
def slices(x):
    return x[:, -1], x[:, 0], x[1:, :, 2:4], x[:, 1:-1, ::2], x[0], x[..., 3], x[:, :, -2:], x[:, ::2]


@case("4 6")
def static_slices(x):
    return x[1, 2], x[-1], x[::-1], x[1:3, ::3], lax.slice(x, (0, 1), (4, 5), (2, 2))


@case("b s")
def reversals(x):
    return x[::-1], jnp.flip(x, 1), x[:, ::-1], jnp.flip(x)


@case("b s")
def half(x):
    return x[:, : x.shape[1] // 2], x[: x.shape[0] - 1]


@case("b 6")
def dynamic_slices(x):
    return (
        lax.dynamic_slice(x, (0, 2), (x.shape[0], 3)),
        lax.dynamic_slice_in_dim(x, 5, 3, 1),
        lax.dynamic_index_in_dim(x, 1, 1),
    )


@case("b s")
def pads(x):
    return jnp.pad(x, ((1, 2), (0, 3))), lax.pad(x, 0.5, ((1, 0, 0), (-1, 1, 0))), jnp.pad(x, 1, constant_values=3)


@case("3 4")
def dilated_pads(x):
    return lax.pad(x, 0.5, ((0, 0, 1), (-1, 1, 2))), jnp.pad(x, 1, mode="edge")


@case("b s")
def tiles(x):
    return jnp.tile(x, (2, 1)), jnp.tile(x, 3), jnp.repeat(x, 2, axis=0)


# --- indexing ---


@case("20 3", "b s @ int32")
def embedding(table, i):
    return table[i], jnp.take(table, i, axis=0), jnp.take(table, i, axis=0, mode="clip")


@case("b 20 3", "s @ int32")
def inner_take(x, i):
    return x[:, i], jnp.take(x, i, axis=1), x[0][i]


@case("b s", "@ int32")
def one_row(x, i):
    return x[i % 2]


@case("20 3")
def constant_rows(x):
    return x[jnp.array([3, 0, -1])], x[np.array([1, 1])]


@case("b 6", "b 2 @ int32")
def along_axis(x, i):
    return jnp.take_along_axis(x, i, 1)


@case("b s")
def updates(x):
    return x.at[0].set(1.0), x.at[:, 0].add(2.0)


# --- contractions ---


@case("b s 4", "4 5")
def linear(x, w):
    return x @ w, jnp.dot(x, w), x @ w + jnp.arange(5.0)


@case("s 4", "4", "5 4")
def vectors(a, v, w):
    return a @ v, v @ v, v @ a.T, a @ w.T, jnp.dot(v, w.T)


@case("b 4 s 6", "b s 4 6")
def attention_scores(q, k):
    return jnp.einsum("bhqd,bkhd->bhqk", q, k), jnp.einsum("bhqd,bkhd->hqk", q, k)


@case("b s 4", "b s 5", "6 4")
def einsums(x, y, w):
    return (
        jnp.einsum("bsi,bsj->bij", x, y), jnp.einsum("bsi,bsj->ij", x, y), jnp.einsum("bsi,oi->bos", x, w),
        jnp.einsum("bsi,bsi->bs", x, x), jnp.einsum("bsi->bi", x), jnp.einsum("bsi,bsj->bsij", x, y),
        jnp.einsum("i,o->io", x[0, 0], w[:, 0]), jnp.einsum("bsi,bti->st", x, x),
    )  # fmt: skip


@case("4 6", "6 3 2")
def tensordots(x, y):
    return (
        jnp.tensordot(x, y, 1),
        jnp.outer(x[0], x[1]),
        jnp.inner(x, x),
        jnp.tensordot(x, x, 2),
        jnp.kron(x[:2, :2], x),
    )


@case("b 4", "4 5")
def precisions(x, w):
    low = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    return jnp.matmul(x, w, precision="highest"), jnp.matmul(*low, preferred_element_type=jnp.float32)


# --- creation ---


@case("n n")
def diagonals(x):
    return jnp.eye(x.shape[0]) * x, jnp.trace(x), jnp.diag(x[0]), jnp.triu(x), jnp.tril(x, -1)


@case("s @ int32")
def one_hots(i):
    return jax.nn.one_hot(i, 7), jnp.arange(i.shape[0]), jnp.arange(5) + 1


@case("b s")
def sizes_as_values(x):
    return x / x.shape[1], x.sum() + x.shape[0] * x.shape[1], x.size * 1.0


# --- models ---


@case("b s")
def softmaxes(x):
    return jax.nn.softmax(x), jax.nn.log_softmax(x, 0), jax.nn.softmax(x, where=x > 0, axis=-1)


@case("b s 8", "8", "8")
def layer_norm(x, g, b):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6) * g + b


@case("b s")
def activations(x):
    return [
        jax.nn.relu(x), jax.nn.gelu(x), jax.nn.gelu(x, approximate=False), jax.nn.silu(x), jax.nn.sigmoid(x),
        jax.nn.softplus(x), jax.nn.elu(x), jax.nn.leaky_relu(x), jax.nn.relu6(x), jax.nn.swish(x), jax.nn.hard_tanh(x),
    ]  # fmt: skip


@case("b s 8", "b s @ bool", {"q": "8 8", "k": "8 8", "v": "8 8", "o": "8 8"})
def attention(x, mask, p):
    def heads(w):
        return (x @ w).reshape(*x.shape[:2], 2, 4).transpose(0, 2, 1, 3)

    scores = heads(p["q"]) @ heads(p["k"]).swapaxes(-1, -2) / 2
    weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, -1e9), axis=-1)
    return (weights @ heads(p["v"])).transpose(0, 2, 1, 3).reshape(x.shape) @ p["o"]


@case([Layer("6 6", "6"), Layer("6 6", "6")], "b 6")
def pytree_mlp(layers, x):
    for layer in layers:
        x = jnp.tanh(x @ layer.w + layer.b)
    return {"out": x, "none": None, "nested": (x.sum(), [x.mean()])}


@case("b 6")
def gradient(x):
    return jax.grad(lambda y: (jax.nn.gelu(y) @ jnp.ones((6, 2))).sum())(x)


@case("b 6", "6 6")
def vmapped(x, w):
    return jax.vmap(lambda row: jnp.tanh(row @ w))(x)
