"""The small programs of `benchmarks.patterns`: each as a user might write it, and rewritten by hand.

A case is a function, the specs of its arguments in a size `n`, and one or more better forms. Where there are several
forms, which one is best depends on size and machine, so all are measured. A case with `weights=True` takes a dict
`params` first, which is known at load time: its hand forms may prepare it once, outside the measured call, just as the
compiler may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from benchmarks.forms_on_cpus import (
    by_numpy,
    median_by_integers,
    places_by_blocks,
    places_by_numpy,
    product_first,
    product_in_int32,
    quotients_of_floats,
    reversed_first,
    row_by_row,
    sine_by_two_polynomials,
    sums_along_axes,
    uniform_by_hand,
    with_order_of_integers,
)

Function = Callable[..., Any]


@dataclass(frozen=True)
class Form:
    """A rewritten program. `prepare(params)` makes its first argument, once, if the case has weights."""

    fn: Function
    prepare: Function | None = None


@dataclass(frozen=True)
class Case:
    name: str
    written: Function
    specs: tuple[Any, ...]
    forms: Mapping[str, Form]
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])  # sizes besides n
    weights: bool = False

    def at(self, n: int) -> dict[str, int]:
        """The binding of this case's size names at `n`."""
        return {"n": n, **self.sizes}

    def arguments(self, n: int) -> list[Any]:
        """Random arguments: standard normal, row numbers below n where the spec says int32, and any bytes for int8."""
        rng = np.random.default_rng(n)
        return jax.tree.map(lambda spec: array(spec, self.at(n), rng), list(self.specs))


def array(spec: str, sizes: Mapping[str, int], rng: np.random.Generator) -> jax.Array:
    dims, _, dtype = spec.partition("@")
    shape = tuple(sizes[d] if d in sizes else int(d) for d in dims.split())
    if dtype.strip() == "int32":
        return jnp.asarray(rng.integers(0, sizes["n"], shape), jnp.int32)
    if dtype.strip() == "int8":
        return jnp.asarray(rng.integers(-128, 128, shape), jnp.int8)
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


# -- association


def product_times_vector(a, b, v):
    return (a @ b) @ v


def chain_of_five(a, b, c, d, e):
    return (((a @ b) @ c) @ d) @ e


def graph_convolution(adj, x, w):
    return (adj @ x) @ w


def linear_attention(q, k, v):
    return (q @ k.T) @ v


def scaled_outer_times_vector(x, y, z):
    return (x[:, None] * y) @ z


def identity_plus_low_rank(u, v, x):
    return (jnp.eye(u.shape[0]) + u @ v.T) @ x


# -- distribution and merging


def residual_of_two(x, a, y, b):
    return x @ a + y - x @ b


def two_products(a, b, c):
    return a @ b + a @ c


def lora(x, w, a, b):
    return x @ (w + a @ b)


def lora_bound(params, x):
    return x @ (params["w"] + params["a"] @ params["b"])


def qkv(params, x):
    return x @ params["q"], x @ params["k"], x @ params["v"]


def rms_norm_linear(params, x):
    normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return (normed * params["scale"]) @ params["w"]


# -- reductions, selections and movement


def trace_of_product(a, b):
    return jnp.trace(a @ b)


def sum_of_product(a, b):
    return jnp.sum(a @ b)


def sum_over_rows(a, b):
    return jnp.sum(a @ b, axis=0)


def sum_over_columns(a, b):
    return jnp.sum(a @ b, axis=1)


def diagonal_times_matrix(d, a):
    return jnp.diag(d) @ a


def product_of_transposes(a, b):
    return (a.T @ b.T).T


def weight_transposed(x, w, b):
    return x @ w.T + b


def transpose_times_vector(a, v):
    return a.T @ v


def transpose_of_product(x, w):
    return (x @ w).T


def product_of_two_transposes(x, w):
    return x.T @ w.T


def sorted_rows(x):
    return jnp.sort(x, axis=1)


def places_of_sorted_rows(x):
    return jnp.argsort(x, axis=1)


def median_of_rows(x):
    return jnp.median(x, axis=1)


def random_numbers(x, seed):
    return x + jax.random.uniform(jax.random.key(seed), x.shape)


def random_dropout(x, seed):
    kept = jax.random.bernoulli(jax.random.key(seed), 0.9, x.shape)
    return jnp.where(kept, x / 0.9, 0)


def softmax_of_float16(x):
    return jax.nn.softmax(x.astype(jnp.float16))


def sine_of_elements(x):
    return jnp.sin(x)


def angles_of_points(y, x):
    return jnp.arctan2(y, x)


def left_of_periods(x, y):
    return x % y


def quotients_of_integers(i, j):
    return i // (j + 1)


def product_of_bytes(a, b):
    return a @ b


def sums_of_windows(x):
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (3, 3), (1, 1), "SAME")


def running_sums(x):
    return jnp.cumsum(x, axis=1)


def places_of_greatest(x):
    return jnp.argmax(x, axis=1)


def last_token_logits(h, w):
    return (h @ w)[:, -1]


def rows_of_product(a, b, rows):
    return (a @ b)[rows]


def split_of_concat(x, y):
    left, right = jnp.split(jnp.concatenate([x, y], axis=1), 2, axis=1)
    return left * right


# -- hand forms that need more than a line


def _merged_weights(p):
    return jnp.concatenate([p["q"], p["k"], p["v"]], axis=1)


def _norm(x):
    return jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _scaled_weight(p):
    return p["scale"][:, None] * p["w"]


def _lora_forms() -> dict[str, Form]:
    return {"x@W + (x@A)@B": Form(lambda x, w, a, b: x @ w + (x @ a) @ b)}


def _lora_bound_forms() -> dict[str, Form]:
    return {
        "merged": Form(lambda m, x: x @ m, lambda p: p["w"] + p["a"] @ p["b"]),
        "merged, stored transposed": Form(lambda m, x: x @ m.T, lambda p: (p["w"] + p["a"] @ p["b"]).T),
    }


def _qkv_forms() -> dict[str, Form]:
    return {
        "one product": Form(lambda m, x: tuple(jnp.split(x @ m, 3, axis=1)), _merged_weights),
        "one product, stored transposed": Form(
            lambda m, x: tuple(jnp.split(x @ m.T, 3, axis=1)), lambda p: _merged_weights(p).T
        ),
        "three, stored transposed": Form(
            lambda m, x: tuple(x @ w.T for w in m), lambda p: (p["q"].T, p["k"].T, p["v"].T)
        ),
    }


_LORA_WEIGHTS = {"w": "n n", "a": "n 16", "b": "16 n"}


def _filtered(product: Function) -> Function:
    """A Kalman filter of one observed value, with matrices multiplied by `product`."""

    def filtered(f, h, observed):
        n = f.shape[0]
        move, noise = 0.9 * jnp.eye(n) + 0.05 * f, 0.1 * jnp.eye(n)

        def step(state, z):
            x, p = state
            x = product(move, x[:, None])
            p = product(product(move, p), move.T) + noise
            gain = product(p, h.T) / (product(product(h, p), h.T) + 1.0)
            x = x + product(gain, z[:, None] - product(h, x))
            p = p - product(product(gain, h), p)
            return (x[:, 0], p), x[:, 0]

        return jax.lax.scan(step, (jnp.zeros(n), jnp.eye(n)), observed)[1]

    return filtered


def in_one_kernel(fn: Function) -> Function:
    """A function that XLA for CPUs compiles as one kernel, with all loops in it; an error for what needs a library."""

    def called(*args):
        with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
            return jax.jit(fn)(*args)

    return called


def by_elements(a, b):
    return jnp.sum(a[:, :, None] * b[None], 1)


_QKV_WEIGHTS = {"q": "n n", "k": "n n", "v": "n n"}

CASES = [
    Case("(A@B)@v", product_times_vector, ("n n", "n n", "n"), {"A@(B@v)": Form(lambda a, b, v: a @ (b @ v))}),
    Case(
        "chain of five",
        chain_of_five,
        ("n n", "n n", "n 16", "16 n", "n n"),
        {
            "(A(BC))(DE)": Form(lambda a, b, c, d, e: (a @ (b @ c)) @ (d @ e)),
            "((A(BC))D)E": Form(lambda a, b, c, d, e: ((a @ (b @ c)) @ d) @ e),
        },
    ),
    Case(
        "x@A + y - x@B",
        residual_of_two,
        ("n n", "n n", "n n", "n n"),
        {"x@(A-B) + y": Form(lambda x, a, y, b: x @ (a - b) + y)},
    ),
    Case("A@B + A@C", two_products, ("n n", "n n", "n n"), {"A@(B+C)": Form(lambda a, b, c: a @ (b + c))}),
    *(Case(f"x@(W+A@B), batch {b}", lora, ("b n", "n n", "n 16", "16 n"), _lora_forms(), {"b": b}) for b in (8, 4096)),
    *(
        Case(f"x@(W+A@B) bound, batch {b}", lora_bound, (_LORA_WEIGHTS, "b n"), _lora_bound_forms(), {"b": b}, True)
        for b in (8, 4096)
    ),
    *(Case(f"QKV bound, batch {b}", qkv, (_QKV_WEIGHTS, "b n"), _qkv_forms(), {"b": b}, True) for b in (1, 8, 24, 64)),
    Case(
        "trace(A@B)",
        trace_of_product,
        ("n n", "n n"),
        {
            "sum(A*B')": Form(lambda a, b: jnp.sum(a * b.T)),
            "sum(A'*B)": Form(lambda a, b: jnp.sum(a.T * b)),
            "einsum": Form(lambda a, b: jnp.einsum("ij,ji->", a, b)),
        },
    ),
    Case(
        "sum(A@B)",
        sum_of_product,
        ("n n", "n n"),
        {
            "sums first": Form(lambda a, b: jnp.sum(a, axis=0) @ jnp.sum(b, axis=1)),
            "sum(A@sum(B))": Form(lambda a, b: jnp.sum(a @ jnp.sum(b, axis=1))),
            "sum(sum(A)@B)": Form(lambda a, b: jnp.sum(jnp.sum(a, axis=0) @ b)),
        },
    ),
    Case("sum(A@B, 0)", sum_over_rows, ("n n", "n n"), {"sum(A,0)@B": Form(lambda a, b: jnp.sum(a, axis=0) @ b)}),
    Case("sum(A@B, 1)", sum_over_columns, ("n n", "n n"), {"A@sum(B,1)": Form(lambda a, b: a @ jnp.sum(b, axis=1))}),
    Case("diag(d)@A", diagonal_times_matrix, ("n", "n n"), {"d[:,None]*A": Form(lambda d, a: d[:, None] * a)}),
    Case("(Q@K')@V", linear_attention, ("n 64",) * 3, {"Q@(K'@V)": Form(lambda q, k, v: q @ (k.T @ v))}),
    Case("(A'@B')'", product_of_transposes, ("n n", "n n"), {"B@A": Form(lambda a, b: b @ a)}),
    Case(
        "transposed weight, one row, x@W'+b",
        weight_transposed,
        ("1 n", "n n", "n"),
        {"W@x": Form(lambda x, w, b: (w @ x[0])[None] + b)},
    ),
    Case("transpose times vector, A'@v", transpose_times_vector, ("n n", "n"), {"v@A": Form(lambda a, v: v @ a)}),
    *(
        Case(
            f"transpose of a product, (X@W)', {b} rows",
            transpose_of_product,
            ("b n", "n n"),
            {"product, then its transpose": Form(product_first)},
            {"b": b},
        )
        for b in (8, 256)
    ),
    *(
        Case(
            f"product of two transposes, X'@W', {b} rows",
            product_of_two_transposes,
            ("n b", "n n"),
            {"(W@X)'": Form(reversed_first)},
            {"b": b},
        )
        for b in (8, 256)
    ),
    Case("functions: sin(x)", sine_of_elements, ("n n",), {"Cephes": Form(sine_by_two_polynomials)}),
    Case(
        "functions: atan2(y, x)", angles_of_points, ("n n",) * 2, {"by numpy on the host": Form(by_numpy(np.arctan2))}
    ),
    Case("functions: x % y", left_of_periods, ("n n",) * 2, {"by numpy on the host": Form(by_numpy(np.mod))}),
    Case(
        "functions: i // j",
        quotients_of_integers,
        ("n n @ int32",) * 2,
        {"of floats": Form(quotients_of_floats)},
    ),
    Case("sorted rows", sorted_rows, ("n n",), {"as integers": Form(with_order_of_integers)}),
    Case(
        "argsort of rows",
        places_of_sorted_rows,
        ("n n",),
        {"by numpy on the host": Form(places_by_numpy)},
    ),
    Case(
        "median of rows",
        median_of_rows,
        ("n n",),
        {"of the rows sorted as integers": Form(median_by_integers)},
    ),
    Case("product of small integers, A@B", product_of_bytes, ("n n @ int8",) * 2, {"in int32": Form(product_in_int32)}),
    Case("running sums of rows", running_sums, ("n n",), {"a loop over columns": Form(row_by_row)}),
    Case("places of the greatest of rows", places_of_greatest, ("n n",), {"by blocks": Form(places_by_blocks)}),
    Case("sums of windows of 3 by 3", sums_of_windows, ("n n",), {"along each axis": Form(sums_along_axes)}),
    Case(
        "random numbers",
        random_numbers,
        ("n n", "@ int32"),
        {"hash written out": Form(lambda x, seed: x + uniform_by_hand(x.shape, seed))},
    ),
    Case(
        "random dropout",
        random_dropout,
        ("n n", "@ int32"),
        {"hash written out": Form(lambda x, seed: jnp.where(uniform_by_hand(x.shape, seed) < 0.9, x / 0.9, 0))},
    ),
    Case(
        "softmax of float16",
        softmax_of_float16,
        ("n n",),
        {"in float32": Form(lambda x: jax.nn.softmax(x.astype(jnp.float16).astype(jnp.float32)).astype(jnp.float16))},
    ),
    Case(
        "last-token logits",
        last_token_logits,
        ("2 n 256", "256 4096"),
        {"h[:,-1]@W": Form(lambda h, w: h[:, -1] @ w)},
    ),
    Case(
        "(A@B)[rows]",
        rows_of_product,
        ("n n", "n n", "16 @ int32"),
        {"A[rows]@B": Form(lambda a, b, rows: a[rows] @ b)},
    ),
    Case("split of concat", split_of_concat, ("n n", "n n"), {"x, y": Form(lambda x, y: x * y)}),
    Case(
        "(x[:,None]*y)@z, y vector",
        scaled_outer_times_vector,
        ("n", "n", "n"),
        {"x*(y@z)": Form(lambda x, y, z: x * (y @ z))},
    ),
    Case(
        "(x[:,None]*Y)@z, Y matrix",
        scaled_outer_times_vector,
        ("n", "n n", "n"),
        {"x*(Y@z)": Form(lambda x, y, z: x * (y @ z))},
    ),
    Case(
        "RMSNorm scale, W bound, batch 8",
        rms_norm_linear,
        ({"scale": "n", "w": "n n"}, "b n"),
        {
            "scale in W": Form(lambda w, x: (x * _norm(x)) @ w, _scaled_weight),
            "scale in W, norm after": Form(lambda w, x: (x @ w) * _norm(x), _scaled_weight),
            "scale in W, stored transposed": Form(lambda w, x: (x * _norm(x)) @ w.T, lambda p: _scaled_weight(p).T),
        },
        {"b": 8},
        True,
    ),
    Case("A@X@W", graph_convolution, ("n n", "n 512", "512 16"), {"A@(X@W)": Form(lambda a, x, w: a @ (x @ w))}),
    Case(
        "(I+U@V')x",
        identity_plus_low_rank,
        ("n 4", "n 4", "n"),
        {"x + U@(V'@x)": Form(lambda u, v, x: x + u @ (v.T @ x))},
    ),
    *(
        Case(
            f"Kalman filter, {n} states",
            _filtered(jnp.matmul),
            (f"{n} {n}", f"1 {n}", "n 1"),
            {"products of elements": Form(_filtered(by_elements))} | more,
        )
        for n, more in ((4, {"one kernel": Form(in_one_kernel(_filtered(jnp.matmul)))}), (8, {}))
    ),
]
