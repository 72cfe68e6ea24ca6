"""Forms by hand of operators that XLA computes slowly on CPUs: sorts, functions, random numbers and others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def uniform_by_hand(shape, seed):
    """`jax.random.uniform` of float32 with the rounds of its hash, Threefry-2x32, written out."""
    k0, k1 = jax.random.key_data(jax.random.key(seed))
    keys = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
    y = jax.lax.iota(jnp.uint32, shape[0] * shape[1]).reshape(shape) + k1
    x = jnp.full(shape, k0)
    for i in range(5):
        for n in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = x + y
            y = x ^ ((y << n) | (y >> (32 - n)))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return jax.lax.bitcast_convert_type(((x ^ y) >> 9) | jnp.uint32(0x3F800000), jnp.float32) - 1


def sine_by_two_polynomials(x):
    """Cephes' sine of float32: a quarter turn in three parts, and the polynomial of the quadrant."""
    k = jnp.round(x * np.float32(2 / np.pi))
    for part in (1.5703125, 4.837512969970703125e-4, 7.54978995489188e-8):
        x = x - k * np.float32(part)
    square, quadrant = x * x, k.astype(jnp.int32)
    sine = x + x * square * ((-1.9515296e-4 * square + 8.3321609e-3) * square - 1.6666655e-1)
    cosine = ((2.4433157e-5 * square - 1.3887316e-3) * square + 4.1666646e-2) * square * square - 0.5 * square + 1
    found = jnp.where(quadrant & 1 == 1, cosine, sine)
    return jnp.where(quadrant & 2 == 2, -found, found)


def by_numpy(function):
    return lambda x, y: jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x, y)


def quotients_of_floats(i, j):
    """Of integers below 2²⁴, whose quotients in float32 are exact once they are floored."""
    return jnp.floor((i + np.float32(0.5)) / (j + 1)).astype(i.dtype)


def with_order_of_integers(x):
    """Floats as integers in the same order, and back."""
    sign = jnp.int32(0x7FFFFFFF)
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    order = jnp.sort(jnp.where(bits < 0, bits ^ sign, bits), axis=1)
    return jax.lax.bitcast_convert_type(jnp.where(order < 0, order ^ sign, order), jnp.float32)


def places_by_numpy(x):
    places = jax.ShapeDtypeStruct(x.shape, jnp.int32)
    return jax.pure_callback(lambda x: np.argsort(x, axis=1, kind="stable").astype(np.int32), places, x)


def median_by_integers(x):
    order, n = with_order_of_integers(x), x.shape[1]
    return (order[:, (n - 1) // 2] + order[:, n // 2]) / 2


def product_first(x, w):
    return jax.lax.optimization_barrier(x @ w).T


def reversed_first(x, w):
    return jax.lax.optimization_barrier(w @ x).T


def row_by_row(x):
    return jax.lax.scan(lambda total, column: (total + column,) * 2, jnp.zeros_like(x[:, 0]), x.T)[1].T


def places_by_blocks(x):
    blocks = x.reshape(x.shape[0], -1, 32)
    block = blocks.max(2).argmax(1)
    return block * 32 + jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0].argmax(1)


def product_in_int32(a, b):
    return jnp.matmul(a, b, preferred_element_type=jnp.int32).astype(a.dtype)


def sums_along_axes(x):
    for window in (3, 1), (1, 3):
        x = jax.lax.reduce_window(x, 0.0, jax.lax.add, window, (1, 1), "SAME")
    return x
