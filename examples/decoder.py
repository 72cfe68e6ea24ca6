"""A small decoder shaped like Llama, with a key/value cache that grows by one position a step.

Nothing in it knows of capacities or padding: `prefill` reads a prompt of any length, `step` one token more, and their
arrays are as long as what they hold. `generate` is what a server does with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]
Cache = tuple[jax.Array, jax.Array]

LAYERS, WIDTH, HEADS, GROUPS, SIZE, HIDDEN, VOCABULARY = 2, 32, 4, 2, 8, 64, 50  # SIZE: of a head; GROUPS: of keys
SPECS = {"tokens": "b s @ int32", "token": "b @ int32", "cache": f"{LAYERS} b t {GROUPS} {SIZE}"}


def params(seed: int = 0) -> Params:
    """Random weights."""
    random = np.random.default_rng(seed)

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape) / shape[0] ** 0.5, jnp.float32)

    def layer() -> Params:
        return {
            "q": array(WIDTH, HEADS * SIZE), "k": array(WIDTH, GROUPS * SIZE), "v": array(WIDTH, GROUPS * SIZE),
            "o": array(HEADS * SIZE, WIDTH), "gate": array(WIDTH, HIDDEN), "up": array(WIDTH, HIDDEN),
            "down": array(HIDDEN, WIDTH), "norm1": jnp.ones(WIDTH), "norm2": jnp.ones(WIDTH),
        }  # fmt: skip

    layers = [layer() for _ in range(LAYERS)]
    return {"embedding": array(VOCABULARY, WIDTH) * 5, "layers": layers, "norm": jnp.ones(WIDTH)}


def rms_norm(w: jax.Array, x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w


def rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """(b, s, heads, SIZE) turned by the angles of their positions, (s,)."""
    angles = positions[:, None].astype(jnp.float32) * 10000.0 ** (-jnp.arange(SIZE // 2) / (SIZE // 2))
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    a, b = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | float) -> jax.Array:
    b, s = q.shape[:2]
    grouped = q.reshape(b, s, GROUPS, HEADS // GROUPS, SIZE)
    scores = jnp.einsum("bsghd,btgd->bghst", grouped, k) * SIZE**-0.5 + bias
    return jnp.einsum("bghst,btgd->bsghd", jax.nn.softmax(scores, axis=-1), v).reshape(b, s, HEADS * SIZE)


def block(p: Params, x: jax.Array, positions: jax.Array, past: Cache | None, bias: jax.Array | float) -> Any:
    b, s, _ = x.shape
    y = rms_norm(p["norm1"], x)
    q = rotated((y @ p["q"]).reshape(b, s, HEADS, SIZE), positions)
    k = rotated((y @ p["k"]).reshape(b, s, GROUPS, SIZE), positions)
    v = (y @ p["v"]).reshape(b, s, GROUPS, SIZE)
    if past is not None:
        k, v = jnp.concatenate([past[0], k], axis=1), jnp.concatenate([past[1], v], axis=1)
    x = x + attention(q, k, v, bias) @ p["o"]
    y = rms_norm(p["norm2"], x)
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], k, v


def prefill(params: Params, tokens: jax.Array) -> tuple[jax.Array, Cache]:
    """Logits (b, s, VOCABULARY) at every position of prompts (b, s), and the cache."""
    positions = jnp.arange(tokens.shape[1])
    bias = jnp.where(positions[None, :] > positions[:, None], -1e9, 0.0)
    x, keys, values = params["embedding"][tokens], [], []
    for layer in params["layers"]:
        x, k, v = block(layer, x, positions, None, bias)
        keys.append(k)
        values.append(v)
    return rms_norm(params["norm"], x) @ params["embedding"].T, (jnp.stack(keys), jnp.stack(values))


def step(params: Params, token: jax.Array, keys: jax.Array, values: jax.Array) -> tuple[jax.Array, Cache]:
    """Logits (b, VOCABULARY) after one token more (b,); the cache, (LAYERS, b, t, GROUPS, SIZE) each, one longer."""
    positions = jnp.arange(keys.shape[2], keys.shape[2] + 1)
    x, new_keys, new_values = params["embedding"][token][:, None], [], []
    for i, layer in enumerate(params["layers"]):
        x, k, v = block(layer, x, positions, (keys[i], values[i]), 0.0)
        new_keys.append(k)
        new_values.append(v)
    return (rms_norm(params["norm"], x) @ params["embedding"].T)[:, 0], (jnp.stack(new_keys), jnp.stack(new_values))


def generate(read: Callable[..., Any], more: Callable[..., Any], prompts: np.ndarray, count: int) -> Any:
    """The likeliest `count` tokens after prompts (b, s): tokens (b, count), and the logits that chose them."""
    logits, cache = read(prompts)
    found = [np.asarray(logits)[:, -1]]
    for _ in range(count - 1):
        logits, cache = more(found[-1].argmax(-1).astype(np.int32), *cache)
        found.append(np.asarray(logits))
    chosen = np.stack(found, axis=1)
    return chosen.argmax(-1).astype(np.int32), chosen
