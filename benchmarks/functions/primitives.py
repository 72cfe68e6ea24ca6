"""jax.lax, by what its functions are about, and what is built on it: attention, images."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.functions.named import Functions, named

NHWC = ("NHWC", "HWIO", "NHWC")


def convolution(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC, feature_group_count=groups)


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


LAX: Functions = named(
    lax,
    """bessel_i0e bessel_i1e cbrt ceil cosh cumlogsumexp cummax cummin cumprod cumsum digamma erf erf_inv exp2 is_finite
    lgamma logistic rsqrt sign""",
    "n 4",
) | {
    "clamp": (lambda x: lax.clamp(-1.0, x, 1.0), ("n",)),
    "clz, population_count": (lambda i: lax.clz(i) + lax.population_count(i), ("n @ int32",)),
    "conv_general_dilated": (convolution, ("n h w 3", "3 3 3 8")),
    "conv, grouped": (lambda x, w: convolution(x, w, 2, 4), ("n h w 4", "3 3 1 8")),
    "conv_transpose": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), ("2 8 8 3", "3 3 3 8")),
    "conv, gradient": (
        lambda x, w: jax.grad(lambda x, w: (convolution(x, w) ** 2).sum(), (0, 1))(x, w), ("2 8 8 3", "3 3 3 8"),
    ),
    "reduce_window": (max_pool, ("n h+3 w+3 2",)),
    "reduce_window, gradient": (jax.grad(lambda x: max_pool(x).sum()), ("2 4 4 2",)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 2)), ("4 4", "@ int32")),
    "dynamic_update_slice": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)), ("4 4", "2 2", "@ int32")),
    "select_n": (lambda i, x: lax.select_n(i, x, -x, x * 2), ("n @ int32", "n")),
    "sort": (lambda x: lax.sort((x, -x), num_keys=1), ("n m",)),
    "top_k": (lambda x: lax.top_k(x, 2), ("n 5",)),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2), ("4 8",)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), ("n",)),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, jnp.int32), ("n",)),
    "dot_general, mixed": (
        lambda x, w: lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32),
        ("n 4 @ bf16", "4 m"),
    ),
    "rng_bit_generator": (lambda k: lax.rng_bit_generator(k, (4,)), ("4 @ uint32",)),
    "random.normal": (lambda k: jax.random.normal(k, (4,)), ("@ key",)),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), ("n",)),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(x.shape[1:]), x), ("n m",)),
    "while_loop": (lambda x: lax.fori_loop(0, 9, lambda i, c: c * 2, x), ("n",)),
}  # fmt: skip
