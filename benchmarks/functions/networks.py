"""Small models in plain JAX, and their training steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.functions.named import Functions
from benchmarks.functions.primitives import convolution, max_pool


def _mlp(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["a"]) @ p["b"]


def _step(p: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(lambda p: ((_mlp(p, x) - y) ** 2).mean())(p)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)


def _adam(p: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
    value, g = jax.value_and_grad(lambda p: ((_mlp(p, x) - y) ** 2).mean())(p)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
    return value, jax.tree.map(lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v


def _normalise(x: Any) -> Any:
    return (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)


def _resnet(p: Any, x: Any) -> Any:
    x = max_pool(jax.nn.relu(_normalise(convolution(x, p["stem"], 2))))
    for w in p["blocks"]:
        x = jax.nn.relu(x + _normalise(convolution(x, w)))
    return x.mean((1, 2)) @ p["head"]


def _unet(p: Any, x: Any) -> Any:
    a = jax.nn.silu(convolution(x, p["stem"]))
    b = jax.nn.silu(convolution(max_pool(a), p["middle"]))
    return convolution(jnp.concatenate([a, jax.image.resize(b, a.shape, "bilinear")], -1), p["up"])


def _norm(x: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _rotary(x: Any) -> Any:
    at = jnp.arange(x.shape[1])[:, None] / 10000.0 ** (jnp.arange(x.shape[-1] // 2) / x.shape[-1])
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(at)[:, None], jnp.sin(at)[:, None]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def _llama(p: Any, ids: Any) -> Any:
    x = p["tokens"][ids]
    b, s = ids.shape
    for layer in p["layers"]:
        q, k, v = (((_norm(x) @ w).reshape(b, s, 2, 4)) for w in layer["qkv"])
        mixed = jax.nn.dot_product_attention(_rotary(q), _rotary(k), v, is_causal=True)
        x = x + mixed.reshape(b, s, 8) @ layer["out"]
        x = x + (jax.nn.silu(_norm(x) @ layer["gate"]) * (_norm(x) @ layer["up"])) @ layer["down"]
    return _norm(x) @ p["tokens"].T


def _language_step(p: Any, ids: Any) -> Any:
    def loss(p: Any) -> Any:
        scores = jax.nn.log_softmax(_llama(p, ids)[:, :-1])
        return -jnp.take_along_axis(scores, ids[:, 1:, None], 2).mean()

    return jax.value_and_grad(loss)(p)


def _experts(p: Any, x: Any) -> Any:
    weight, chosen = lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
    hidden = jax.nn.silu(jnp.einsum("bd,edh->beh", x, p["up"]))
    out = jnp.einsum("beh,ehd->bed", hidden, p["down"])
    return (jnp.take_along_axis(out, chosen[..., None], 1) * weight[..., None]).sum(1)


def _gaussian_process(x: Any, y: Any, z: Any) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        return jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))

    factor = jax.scipy.linalg.cho_factor(kernel(x, x) + 0.1 * jnp.eye(x.shape[0]), lower=True)
    return kernel(z, x) @ jax.scipy.linalg.cho_solve(factor, y)


_MLP = {"a": "6 8", "b": "8 3"}
_LAYER = {"qkv": ["8 8", "8 8", "8 8"], "out": "8 8", "gate": "8 16", "up": "8 16", "down": "16 8"}
_DECODER = {"tokens": "20 8", "layers": [_LAYER, _LAYER]}

MODELS: Functions = {
    "mlp": (_mlp, (_MLP, "b 6")),
    "mlp, gradient step": (_step, (_MLP, "b 6", "b 3")),
    "mlp, adam step": (_adam, (_MLP, _MLP, _MLP, "b 6", "b 3")),
    "resnet": (_resnet, ({"stem": "3 3 3 4", "blocks": ["3 3 4 4", "3 3 4 4"], "head": "4 5"}, "b 16 16 3")),
    "resnet, gradient": (
        jax.grad(lambda p, x: _resnet(p, x).sum()),
        ({"stem": "3 3 3 4", "blocks": ["3 3 4 4"], "head": "4 5"}, "2 16 16 3"),
    ),
    "u-net": (_unet, ({"stem": "3 3 3 4", "middle": "3 3 4 4", "up": "3 3 8 2"}, "b 8 8 3")),
    "llama": (_llama, (_DECODER, "b s @ int32")),
    "llama, gradient": (_language_step, (_DECODER, "b 6 @ int32")),
    "mixture of experts": (_experts, ({"router": "8 4", "up": "4 8 16", "down": "4 16 8"}, "b 8")),
    "gaussian process": (_gaussian_process, ("6 2", "6", "b 2")),
}
