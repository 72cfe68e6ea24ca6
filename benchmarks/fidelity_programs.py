"""Programs on which predicted and measured times are compared, beside the cases of `benchmarks.patterns`.

They are about what those leave out: convolutions, normalisation, attention, adapters, sorting, linear systems, loops,
elementwise chains. None of them, at none of these sizes, is among the programs that calibration times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.cases import CASES

Function = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A function, the specs of its arguments, the sizes it is timed at, and what is known of it."""

    name: str
    fn: Function
    specs: tuple[Any, ...]
    at: tuple[Mapping[str, int], ...]
    weights: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


def gated_mlp(p, x):
    return (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]


def adapters(p, x):
    q = x @ p["q"] + (x @ p["a1"]) @ p["b1"]
    v = x @ p["v"] + (x @ p["a2"]) @ p["b2"]
    return jnp.tanh(q) * v


def attention(p, x):
    b, s, d = x.shape
    q, k, v = ((x @ p[n]).reshape(b, s, 4, d // 4).transpose(0, 2, 1, 3) for n in ("q", "k", "v"))
    weights = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (d // 4) ** 0.5, axis=-1)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(b, s, d) @ p["o"]


def conv_bn(p, x):
    y = lax.conv_general_dilated(x, p["k"], (1, 1), "SAME")
    y = (y - p["mean"][:, None, None]) * lax.rsqrt(p["var"][:, None, None] + 1e-5)
    return jax.nn.relu(y * p["scale"][:, None, None] + p["shift"][:, None, None])


def two_convs(x, k1, k2):
    a = lax.conv_general_dilated(x, k1, (1, 1), "SAME")
    return jnp.tanh(a) + jax.nn.sigmoid(lax.conv_general_dilated(x, k2, (1, 1), "SAME"))


def pointwise_conv(x, k):
    return lax.conv_general_dilated(x, k, (1, 1), "SAME")


def separable_conv(x, k1, k2):
    y = lax.conv_general_dilated(x, k1, (1, 1), "SAME", feature_group_count=x.shape[1])
    return lax.conv_general_dilated(y, k2, (1, 1), "SAME")


def sum_of_convs(x, y, k):
    return lax.conv_general_dilated(x, k, (1, 1), "SAME") + lax.conv_general_dilated(y, k, (1, 1), "SAME")


def layer_norm_linear(p, x):
    mean = jnp.mean(x, -1, keepdims=True)
    var = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return ((x - mean) * lax.rsqrt(var + 1e-5) * p["scale"] + p["shift"]) @ p["w"]


def inverse_times_vector(a, b):
    return jnp.linalg.inv(a) @ b


def definite_solve(a, b):
    return jnp.linalg.solve(a, b)


def mahalanobis(s, x):
    return x @ jnp.linalg.inv(s) @ x


def smallest(x):
    return jnp.sort(x, axis=-1)[:, 0]


def sorted_scaled(x):
    return jnp.max(jnp.sort(2.0 * x, axis=-1), axis=-1)


def softmax_twice(x):
    return jnp.log(jax.nn.softmax(x, axis=-1)) * 2.0 + jnp.exp(x) * jnp.exp(-x * 0.5)


def mean_of_products(x, y, w):
    return jnp.mean(x @ w, axis=0) + jnp.mean(y @ w, axis=0)


def distances(x, y):
    return jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1)


def recurrent(w, u, xs, h):
    def step(h, x):
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    return lax.scan(step, h, xs)


def invariant_loop(a, b, x):
    return lax.fori_loop(0, 8, lambda i, x: jnp.tanh((a @ b) @ x), x)


def bilinear(x, a, b):
    return jnp.sum((x @ a) * (x @ b), axis=-1)


def gram_times(x, v):
    return (x.T @ x) @ v


def scaled_by_diagonals(a, d, e):
    return jnp.diag(d) @ a @ jnp.diag(e)


def concat_products(x, y, w):
    return jnp.concatenate([x @ w, y @ w], axis=0)


def embedded(table, w, ids):
    return (table @ w)[ids]


def cumulative(x, w):
    return jnp.cumsum(x, axis=0) @ w


def low_rank_sum(x, a, b, c, d):
    return x @ (a @ b + c @ d)


def kronecker(a, b, x):
    return jnp.kron(a, b) @ x


def trace_of_three(a, b, c):
    return jnp.trace(a @ b @ c)


def sigmoid_gate(x, y):
    return x / (1.0 + jnp.exp(-x)) + y * jax.nn.sigmoid(x) - y


def one_sum(x, y):
    return x + y


def two_tanhs(x):
    return jnp.tanh(x) + jnp.tanh(2.0 * x)


def chain_of_eight(x, y):
    for _ in range(4):
        x = jnp.maximum(x * y, 0.5) - y
    return x


def three_readers(x, y):
    e = jnp.exp(-(x * x))
    return e + y, e * y, jnp.sum(e, axis=-1)


def halves_of_a_chain(x):
    y = jnp.exp(x) * x
    return y[: y.shape[0] // 2] - y[y.shape[0] // 2 :]


def rows_of_a_chain(x, ids):
    return (jnp.sin(x) * x)[ids]


def part_of_a_chain(x):
    return jnp.exp(x * x + 1.0)[:, :8]


def transposed_matvec(a, v):
    return a.T @ v


def times_ones(a):
    return a @ jnp.ones(a.shape[1])


def sums_of_a_product(x, y):
    return jnp.sum(x * y, axis=0)


def row_sums_of_a_product(x, y):
    return jnp.sum(x * y, axis=1)


def sum_of_weighted_columns(p, f, x):
    return jnp.sum(p[:, None] * f[:, None] * x, axis=0)


def variances(x):
    return jnp.var(x, axis=-1), jnp.var(x, axis=0)


def added_transposed(x, y):
    return jnp.tanh(x) + y.T * 2.0


def joined_chains(x, y):
    return jnp.concatenate([jnp.exp(x), y * y + 1.0], axis=0) * 0.5


def softmax_rows(x):
    return jax.nn.softmax(x, axis=-1)


def scaled_rows(x, d, e):
    return (x * d[:, None] + e) / (1.0 + d * d)[:, None]


def running_loss(p, y):
    return -jnp.mean(y * jnp.log(p) + (1.0 - y) * jnp.log1p(-p))


def largest_of_distances(x, y):
    return jnp.max(jnp.abs(x[:, None, :] - y[None, :, :]), axis=-1)


def masked_mean(x, m):
    return jnp.sum(jnp.where(m[:, None] > 0, x, 0.0), axis=0) / jnp.sum(m)


def at(**sizes: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    """Bindings of the sizes, each taking its values in step."""
    (count,) = {len(v) for v in sizes.values()}
    return tuple({k: v[i] for k, v in sizes.items()} for i in range(count))


_SQUARES = at(n=(88, 300, 600))
_GRIDS = at(m=(60, 700, 2800), n=(90, 1100, 1500))
PROGRAMS = [
    *(
        Program(
            c.name, c.written, c.specs, tuple(c.at(n) for n in (112, 352, 720)), ("params",) if c.weights else ()
        )
        for c in CASES
    ),
    Program("gated MLP", gated_mlp, ({"gate": "288 768", "up": "288 768", "down": "768 288"}, "b 288"),
            at(b=(1, 6, 40, 300)), ("p",)),
    Program("adapters", adapters, ({"q": "640 640", "v": "640 640", "a1": "640 16", "b1": "16 640", "a2": "640 16",
                                    "b2": "16 640"}, "b 640"), at(b=(1, 6, 300))),
    Program("adapters bound", adapters, ({"q": "640 640", "v": "640 640", "a1": "640 16", "b1": "16 640",
                                          "a2": "640 16", "b2": "16 640"}, "b 640"), at(b=(1, 6, 300)), ("p",)),
    Program("attention", attention, ({k: "320 320" for k in "qkvo"}, "b s 320"), at(b=(1, 1, 4), s=(12, 100, 200)),
            ("p",)),
    Program("conv and batch norm", conv_bn, ({"k": "48 24 3 3", **dict.fromkeys(("mean", "var", "scale", "shift"),
            "48")}, "2 24 h h"), at(h=(20, 48)), ("p",)),
    Program("two convs of one image", two_convs, ("1 24 h h", "40 24 3 3", "40 24 3 3"), at(h=(20, 48))),
    Program("pointwise conv", pointwise_conv, ("2 96 h h", "80 96 1 1"), at(h=(12, 40))),
    Program("separable conv", separable_conv, ("1 40 h h", "40 1 3 3", "56 40 1 1"), at(h=(20, 48))),
    Program("sum of convs", sum_of_convs, ("1 24 h h", "1 24 h h", "40 24 3 3"), at(h=(20, 48))),
    Program("layer norm and linear", layer_norm_linear, ({"scale": "n", "shift": "n", "w": "n n"}, "b n"),
            at(b=(6, 100), n=(400, 640)), ("p",)),
    Program("inv(A)@b", inverse_times_vector, ("n n", "n"), _SQUARES),
    Program("solve, A definite", definite_solve, ("n n", "n 3"), _SQUARES, (), {"a": "positive definite"}),
    Program("x'inv(S)x, S definite", mahalanobis, ("n n", "n"), _SQUARES, (), {"s": "positive definite"}),
    Program("first of a sort", smallest, ("m n",), at(m=(40, 200), n=(90, 1500))),
    Program("max of a sort", sorted_scaled, ("m n",), at(m=(40, 200), n=(90, 1500))),
    Program("log of softmax", softmax_twice, ("m n",), at(m=(40, 200), n=(90, 1500))),
    Program("means of products", mean_of_products, ("m n", "m n", "n n"), at(m=(50, 500), n=(160, 400))),
    Program("distances", distances, ("m 24", "n 24"), at(m=(50, 500), n=(60, 400))),
    Program("recurrent net", recurrent, ("96 160", "160 160", "t b 96", "b 160"), at(t=(12, 60), b=(3, 20))),
    Program("loop with a constant product", invariant_loop, ("n n", "n n", "n"), _SQUARES),
    Program("sum of (xA)*(xB)", bilinear, ("m n", "n 48", "n 48"), at(m=(50, 500), n=(160, 400))),
    Program("x'x v", gram_times, ("m n", "n"), at(m=(50, 800), n=(160, 400))),
    Program("diag(d) A diag(e)", scaled_by_diagonals, ("n n", "n", "n"), _SQUARES),
    Program("concat of products", concat_products, ("m n", "m n", "n n"), at(m=(6, 300), n=(320, 400))),
    Program("rows of table@W", embedded, ("3000 n", "n n", "k @ int32"), at(n=(64, 320), k=(10, 500))),
    Program("cumsum and product", cumulative, ("m n", "n 24"), at(m=(50, 500), n=(160, 400))),
    Program("x@(AB + CD)", low_rank_sum, ("m n", "n 12", "12 n", "n 12", "12 n"), at(m=(6, 1500), n=(320, 400))),
    Program("kron(A, B)@x", kronecker, ("m m", "n n", "m*n"), at(m=(12, 24), n=(12, 40))),
    Program("trace of three", trace_of_three, ("n n", "n n", "n n"), _SQUARES),
    Program("gates", sigmoid_gate, ("m n", "m n"), at(m=(40, 500), n=(90, 1500))),
    # What XLA fuses, and what it stores in between.
    Program("x+y", one_sum, ("m n", "m n"), _GRIDS),
    Program("two tanhs", two_tanhs, ("m n",), _GRIDS),
    Program("chain of eight", chain_of_eight, ("m n", "m n"), _GRIDS),
    Program("three readers", three_readers, ("m n", "m n"), _GRIDS),
    Program("halves of a chain", halves_of_a_chain, ("2*m n",), _GRIDS),
    Program("rows of a chain", rows_of_a_chain, ("m n", "k @ int32"), at(m=(60, 700, 2800), n=(90, 1100, 1500),
            k=(12, 50, 200))),
    Program("part of a chain", part_of_a_chain, ("m n",), _GRIDS),
    Program("A'v", transposed_matvec, ("n n", "n"), at(n=(130, 900, 3100))),
    Program("A@ones", times_ones, ("m n",), _GRIDS),
    Program("sum(x*y, 0)", sums_of_a_product, ("m n", "m n"), _GRIDS),
    Program("sum(x*y, 1)", row_sums_of_a_product, ("m n", "m n"), _GRIDS),
    Program("sum of p f x", sum_of_weighted_columns, ("m", "m", "m n"), _GRIDS),
    Program("variances", variances, ("m n",), _GRIDS),
    Program("tanh(x) + 2y'", added_transposed, ("n n", "n n"), at(n=(90, 700, 2200))),
    Program("joined chains", joined_chains, ("m n", "m n"), _GRIDS),
    Program("softmax of rows", softmax_rows, ("m n",), _GRIDS),
    Program("scaled rows", scaled_rows, ("m n", "m", "n"), _GRIDS),
    Program("cross entropy", running_loss, ("m n", "m n"), _GRIDS),
    Program("largest distances", largest_of_distances, ("m 24", "n 24"), at(m=(50, 500), n=(60, 400))),
    Program("masked mean", masked_mean, ("m n", "m"), _GRIDS),
]  # fmt: skip
