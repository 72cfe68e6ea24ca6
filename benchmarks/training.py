"""Training steps of models at their published widths: losses with their specs, and the same losses with
`jax.checkpoint` around each block. A step is a loss with its gradients; an optimizer keeps nothing for the backward
pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import models
from benchmarks.models import gpt2_block, layer_norm, linear
from benchmarks.scale import Params

BERT_HEADS = VIT_HEADS = 12
BERT_WORDS, BERT_PLACES = 30522, 512
WIDTH, INNER = 768, 3072  # of BERT-base and ViT-B
PATCH, CLASSES = 16, 1000  # of ViT-B/16

Loss = Callable[..., jax.Array]


def _dense(a: int, b: int) -> Params:
    return {"w": f"{a} {b}", "b": str(b)}


def _norm(width: int) -> Params:
    return {"scale": str(width), "bias": str(width)}


def encoder_specs(layers: int) -> list[Params]:
    """The specs of layers of a transformer of width 768."""
    block = {"norm1": _norm(WIDTH), "qkv": _dense(WIDTH, 3 * WIDTH), "out": _dense(WIDTH, WIDTH)}
    block |= {"norm2": _norm(WIDTH), "up": _dense(WIDTH, INNER), "down": _dense(INNER, WIDTH)}
    return [block] * layers


def bert_block(p: Params, x: jax.Array, heads: int) -> jax.Array:
    """A layer of BERT, which normalises after each residual."""
    b, s, d = x.shape
    qkv = linear(p["qkv"], x).reshape(b, s, 3, heads, d // heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    attended = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (d // heads) ** 0.5, axis=-1) @ v
    x = layer_norm(p["norm1"], x + linear(p["out"], attended.transpose(0, 2, 1, 3).reshape(b, s, d)))
    return layer_norm(p["norm2"], x + linear(p["down"], jax.nn.gelu(linear(p["up"], x))))


def bert_loss(
    params: Params, ids: jax.Array, places: jax.Array, wanted: jax.Array, block: Callable[..., jax.Array] = bert_block
) -> jax.Array:
    """Mean cross-entropy of the words `wanted` (batch, masked) at the masked `places` (batch, masked) of sequences."""
    x = params["words"][ids] + params["places"][jnp.arange(ids.shape[1])]
    x = layer_norm(params["norm"], x)
    for p in params["blocks"]:
        x = block(p, x, BERT_HEADS)
    masked = jnp.take_along_axis(x, places[..., None], axis=1)
    logits = layer_norm(params["head_norm"], jax.nn.gelu(linear(params["head"], masked))) @ params["words"].T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], axis=-1))


def bert(layers: int, batch: int, tokens: int) -> tuple[Any, ...]:
    """The specs of a step of BERT-base: 15% of the words are masked."""
    ends = {"words": f"{BERT_WORDS} {WIDTH}", "places": f"{BERT_PLACES} {WIDTH}", "norm": _norm(WIDTH)}
    ends |= {"head": _dense(WIDTH, WIDTH), "head_norm": _norm(WIDTH)}
    masked = f"{batch} {round(0.15 * tokens)} @ int32"
    return {**ends, "blocks": encoder_specs(layers)}, f"{batch} {tokens} @ int32", masked, masked


def vit_block(p: Params, x: jax.Array, heads: int) -> jax.Array:
    every = jnp.ones((), bool)
    return gpt2_block(p, x, every, heads)


def vit_loss(
    params: Params, images: jax.Array, wanted: jax.Array, block: Callable[..., jax.Array] = vit_block
) -> jax.Array:
    """Mean cross-entropy of the classes `wanted` (batch,) of images (batch, height, width, 3)."""
    x = lax.conv_general_dilated(
        images, params["patches"], (PATCH, PATCH), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = x.reshape(x.shape[0], -1, WIDTH)
    first = jnp.broadcast_to(params["first"], (x.shape[0], 1, WIDTH))
    x = jnp.concatenate([first, x], axis=1) + params["places"]
    for p in params["blocks"]:
        x = block(p, x, VIT_HEADS)
    logits = linear(params["head"], layer_norm(params["norm"], x[:, 0]))
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[:, None], axis=-1))


def vit(layers: int, batch: int, side: int) -> tuple[Any, ...]:
    """The specs of a step of ViT-B/16 with images of `side` pixels."""
    ends = {"patches": f"{PATCH} {PATCH} 3 {WIDTH}", "first": f"1 1 {WIDTH}", "norm": _norm(WIDTH)}
    ends |= {"places": f"{(side // PATCH) ** 2 + 1} {WIDTH}", "head": _dense(WIDTH, CLASSES)}
    return {**ends, "blocks": encoder_specs(layers)}, f"{batch} {side} {side} 3", f"{batch} @ int32"


def batch_norm(p: Params, x: jax.Array) -> jax.Array:
    """Batch normalisation by the moments of the batch."""
    mean = jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.mean(jnp.square(x - mean), axis=(0, 1, 2))
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * p["scale"]) + p["bias"]


def resnet_loss(
    params: Params, images: jax.Array, wanted: jax.Array, block: Callable[..., jax.Array] = models.bottleneck
) -> jax.Array:
    """Mean cross-entropy of the classes `wanted` (batch,)."""
    logits = models.resnet(params, images, batch_norm, block)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[:, None], axis=-1))


def resnet(batch: int, side: int, blocks: int | None = None) -> tuple[Any, ...]:
    """The specs of a step of ResNet-50; `blocks`: of each stage, fewer than published."""
    stages = [(n if blocks is None else blocks, inner) for n, inner in models.RESNET_50]
    return _trained(models.resnet_specs(stages)), f"{batch} {side} {side} 3", f"{batch} @ int32"


def _trained(specs: Any) -> Any:
    """Specs without moments, which a step of training takes from its batch."""
    if isinstance(specs, dict):
        return {k: _trained(v) for k, v in specs.items() if k not in ("mean", "variance")}  # type: ignore[reportUnknownVariableType]
    return [_trained(x) for x in specs] if isinstance(specs, list) else specs  # type: ignore[reportUnknownVariableType]


def unet_loss(
    params: Params,
    images: jax.Array,
    times: jax.Array,
    noise: jax.Array,
    block: Callable[..., jax.Array] = models.residual,
) -> jax.Array:
    """Mean square of the error of the noise that is predicted."""
    return jnp.mean((models.unet(params, images, times, block=block) - noise) ** 2)


def unet(batch: int, side: int, channels: int = models.CHANNELS) -> tuple[Any, ...]:
    images = f"{batch} {side} {side} 3"
    return models.unet_specs(channels), images, str(batch), images


def gpt2(layers: int, batch: int, tokens: int) -> tuple[Any, ...]:
    """The specs of a step of GPT-2 small."""
    return models.gpt2_specs(layers=layers), f"{batch} {tokens + 1} @ int32"


def _gpt2_loss(params: Params, ids: jax.Array, block: Callable[..., jax.Array] = gpt2_block) -> jax.Array:
    return models.gpt2_loss(params, ids, block=block)


def step(loss: Loss, block: Callable[..., jax.Array] | None = None) -> Callable[..., Any]:
    """A loss with its gradients. `block`: the block to be used, computed again in the backward pass."""
    if block is None:
        return jax.value_and_grad(loss)
    static = {gpt2_block: (3,), bert_block: (2,), vit_block: (2,), models.bottleneck: (2, 3), models.residual: (3,)}
    return jax.value_and_grad(functools.partial(loss, block=jax.checkpoint(block, static_argnums=static[block])))


# By name: the loss, and its block.
LOSSES: dict[str, tuple[Loss, Callable[..., jax.Array]]] = {
    "GPT-2 small": (_gpt2_loss, gpt2_block),
    "BERT-base": (bert_loss, bert_block),
    "ViT-B/16": (vit_loss, vit_block),
    "ResNet-50": (resnet_loss, models.bottleneck),
    "U-Net": (unet_loss, models.residual),
}
