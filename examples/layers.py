"""Layers that the models of the examples share, as plain JAX functions, and random weights for them.

Nothing in them knows of a compiler. Heads stand before positions: queries are (b, heads, s, d), keys and values
(b, groups, t, d), where each group of keys serves heads / groups heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]
Cache = tuple[jax.Array, jax.Array]  # keys and values of a layer
# How keys and values of new tokens join those of a layer's cache: (index of the layer, keys, values) -> all of them.
Join = Callable[[int, jax.Array, jax.Array], Cache]

HIDDEN = -1e9  # the score of a place that must not be seen: exp of it is zero
EPS = 1e-5


class Weights:
    """Random weights, reproducible by their seed and the order in which they are asked for.

    - `dtype`: the dtype of all of them.
    - `shapes_only`: give only shapes and dtypes, of which `rx.optimize` makes programs for weights that are not here.
    """

    def __init__(self, seed: int = 0, dtype: str = "float32", shapes_only: bool = False) -> None:
        self.random, self.dtype, self.shapes_only = np.random.default_rng(seed), dtype, shapes_only

    def array(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Any:
        """Normal numbers of the standard deviation `scale` around `mean`."""
        if self.shapes_only:
            return jax.ShapeDtypeStruct(shape, self.dtype)
        return jnp.asarray(self.random.standard_normal(shape, np.float32) * scale + mean, self.dtype)

    def matrix(self, inputs: int, outputs: int) -> Any:
        """(inputs, outputs), so scaled that a product has about the size of its operand."""
        return self.array(inputs, outputs, scale=inputs**-0.5)

    def linear(self, inputs: int, outputs: int) -> Params:
        """The parameters of `linear`, with the weight stored as checkpoints have it, (outputs, inputs)."""
        return {"weight": self.array(outputs, inputs, scale=inputs**-0.5), "bias": self.array(outputs, scale=0.02)}

    def norm(self, width: int) -> Params:
        """The parameters of `layer_norm`."""
        return {"weight": self.array(width, scale=0.02, mean=1.0), "bias": self.array(width, scale=0.02)}


def linear(p: Params, x: jax.Array) -> jax.Array:
    return x @ p["weight"].T + p["bias"]  # checkpoints store weights as (outputs, inputs)


def layer_norm(p: Params, x: jax.Array, eps: float = EPS) -> jax.Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + eps) * p["weight"] + p["bias"]


def rms_norm(weight: jax.Array, x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """(b, s, width) -> (b, heads, s, width / heads)."""
    b, s, width = x.shape
    return x.reshape(b, s, heads, width // heads).transpose(0, 2, 1, 3)


def merge_heads(x: jax.Array) -> jax.Array:
    """(b, heads, s, d) -> (b, s, heads * d)."""
    b, heads, s, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, s, heads * d)


def rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """(b, heads, s, d), turned by the angles of their positions (s,)."""
    half = x.shape[-1] // 2
    angles = positions[:, None].astype(jnp.float32) * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def causal(positions: jax.Array) -> jax.Array:
    """(s, s) to be added to scores, so that no position sees a later one."""
    return jnp.where(positions[None, :] > positions[:, None], HIDDEN, 0.0)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | float = 0.0) -> jax.Array:
    """(b, s, heads * d), what queries find. `bias` is added to scores (..., s, t)."""
    b, heads, s, d = q.shape
    groups = k.shape[1]
    shared = q.reshape(b, groups, heads // groups, s, d)
    scores = jnp.einsum("bghsd,bgtd->bghst", shared, k) * d**-0.5 + bias
    found = jnp.einsum("bghst,bgtd->bghsd", jax.nn.softmax(scores, axis=-1), v)
    return merge_heads(found.reshape(b, heads, s, d))


def first(_: int, k: jax.Array, v: jax.Array) -> Cache:
    """A `Join`: nothing came before."""
    return k, v


def grown(caches: list[Cache]) -> Join:
    """A `Join`: arrays that are longer by the new tokens, as somebody writes who does not think of a compiler."""

    def join(layer: int, k: jax.Array, v: jax.Array) -> Cache:
        keys, values = caches[layer]
        return jnp.concatenate([keys, k], axis=2), jnp.concatenate([values, v], axis=2)

    return join


def stored(caches: list[Cache], position: jax.Array) -> Join:
    """A `Join`: arrays of a fixed length, into which new tokens are written at a position, as `jax.jit` wants it."""

    def join(layer: int, k: jax.Array, v: jax.Array) -> Cache:
        start = (0, 0, position, 0)
        keys, values = caches[layer]
        return jax.lax.dynamic_update_slice(keys, k, start), jax.lax.dynamic_update_slice(values, v, start)

    return join


def unfilled(length: int, position: jax.Array) -> jax.Array:
    """(length,) to be added to scores over arrays of `stored`: what is behind `position` was not written yet."""
    return jnp.where(jnp.arange(length) > position, HIDDEN, 0.0)


def generate(read: Callable[..., Any], more: Callable[..., Any], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest `count` tokens (b, count), and the logits (b, count, vocabulary) that chose them.

    `read()` gives the logits (b, s, vocabulary) of a prompt and its caches; `more(token (b,), caches)` the logits
    (b, vocabulary) after one token more, and the caches with it."""
    logits, caches = read()
    return continued(np.asarray(logits)[:, -1], caches, more, count)


def continued(
    logits: np.ndarray, caches: list[Cache], more: Callable[..., Any], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """`generate` after a prompt that was read: `logits` (b, vocabulary) are those of its last token."""
    found = [logits]
    for _ in range(count - 1):
        after, caches = more(found[-1].argmax(-1).astype(np.int32), caches)
        found.append(np.asarray(after))
    chosen = np.stack(found, axis=1)
    return chosen.argmax(-1).astype(np.int32), chosen
