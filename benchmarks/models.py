"""The seconds of `rx.optimize` for whole models: ResNet-50, a GPT-2 training step, a U-Net.

    python -m benchmarks.models [--only unet]

XLA is not run; every model has a process of its own (see `benchmarks.scale`). The models are plain JAX functions of a
tree of parameters; the trees here hold specs, at the published sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from jax import lax

from benchmarks import Quick
from benchmarks.scale import Case, Params, show

# ResNet-50, inference: (blocks, inner width) of each stage; a block's output is four times as wide.
RESNET_50 = ((3, 64), (4, 128), (6, 256), (3, 512))


def conv(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def batch_norm(p: Params, x: jax.Array) -> jax.Array:
    """Batch normalization at inference, with the moments from training."""
    return (x - p["mean"]) * (lax.rsqrt(p["variance"] + 1e-5) * p["scale"]) + p["bias"]


def bottleneck(
    p: Params, x: jax.Array, stride: int, norm: Callable[[Params, jax.Array], jax.Array] = batch_norm
) -> jax.Array:
    y = jax.nn.relu(norm(p["norm1"], conv(x, p["conv1"])))
    y = jax.nn.relu(norm(p["norm2"], conv(y, p["conv2"], stride)))
    y = norm(p["norm3"], conv(y, p["conv3"]))
    if "skip" in p:
        x = norm(p["skip_norm"], conv(x, p["skip"], stride))
    return jax.nn.relu(x + y)


def resnet(
    params: Params,
    images: jax.Array,
    norm: Callable[[Params, jax.Array], jax.Array] = batch_norm,
    block: Callable[..., jax.Array] = bottleneck,
) -> jax.Array:
    """Logits of images (n, height, width, 3)."""
    x = jax.nn.relu(norm(params["norm"], conv(images, params["stem"], 2)))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for i, stage in enumerate(params["stages"]):
        for j, p in enumerate(stage):
            x = block(p, x, 2 if i > 0 and j == 0 else 1, norm)
    return jnp.mean(x, axis=(1, 2)) @ params["head"] + params["bias"]


def resnet_specs(stages: Sequence[tuple[int, int]] = RESNET_50, classes: int = 1000) -> Params:
    def norm(width: int) -> Params:
        return dict.fromkeys(("mean", "variance", "scale", "bias"), str(width))

    width = first = stages[0][1]
    made: list[list[Params]] = []
    for blocks, inner in stages:
        made.append([])
        for _ in range(blocks):
            out = 4 * inner
            p: Params = {
                "conv1": f"1 1 {width} {inner}",
                "conv2": f"3 3 {inner} {inner}",
                "conv3": f"1 1 {inner} {out}",
            }
            p |= {"norm1": norm(inner), "norm2": norm(inner), "norm3": norm(out)}
            if width != out:
                p |= {"skip": f"1 1 {width} {out}", "skip_norm": norm(out)}
            made[-1].append(p)
            width = out
    ends = {"stem": f"7 7 3 {first}", "norm": norm(first), "head": f"{width} {classes}", "bias": str(classes)}
    return {**ends, "stages": made}


# GPT-2 small: one step of Adam on the mean cross-entropy of the next token.
HEADS = 12


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def linear(p: Params, x: jax.Array) -> jax.Array:
    return x @ p["w"] + p["b"]


def gpt2_block(p: Params, x: jax.Array, mask: jax.Array, heads: int) -> jax.Array:
    b, s, d = x.shape
    qkv = linear(p["qkv"], layer_norm(p["norm1"], x)).reshape(b, s, 3, heads, d // heads)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / (d // heads) ** 0.5
    attended = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1) @ v
    x = x + linear(p["out"], attended.transpose(0, 2, 1, 3).reshape(b, s, d))
    return x + linear(p["down"], jax.nn.gelu(linear(p["up"], layer_norm(p["norm2"], x))))


def gpt2_loss(
    params: Params, ids: jax.Array, heads: int = HEADS, block: Callable[..., jax.Array] = gpt2_block
) -> jax.Array:
    """Mean cross-entropy of ids[:, 1:] given what stands before; ids (batch, length)."""
    given, wanted = ids[:, :-1], ids[:, 1:]
    steps = jnp.arange(given.shape[1])
    x = params["tokens"][given] + params["places"][steps]
    for p in params["blocks"]:
        x = block(p, x, steps[:, None] >= steps, heads)
    logits = layer_norm(params["norm"], x) @ params["tokens"].T
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], axis=-1)
    return -jnp.mean(picked)


def gpt2_step(
    params: Params, first: Params, second: Params, count: jax.Array, ids: jax.Array, heads: int = HEADS
) -> tuple[jax.Array, Params, Params, Params]:
    """The loss, then parameters and both moments after one step of Adam; `count`: steps taken, this one included."""
    loss, grads = jax.value_and_grad(gpt2_loss)(params, ids, heads)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    step = 3e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - step * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return loss, params, first, second


def gpt2_specs(layers: int = 12, width: int = 768, vocabulary: int = 50257, places: int = 1024) -> Params:
    norm = {"scale": str(width), "bias": str(width)}

    def dense(a: int, b: int) -> Params:
        return {"w": f"{a} {b}", "b": str(b)}

    block = {"norm1": norm, "qkv": dense(width, 3 * width), "out": dense(width, width)}
    block |= {"norm2": norm, "up": dense(width, 4 * width), "down": dense(4 * width, width)}
    ends = {"tokens": f"{vocabulary} {width}", "places": f"{places} {width}", "norm": norm}
    return {**ends, "blocks": [block] * layers}


def gpt2_arguments(**sizes: int) -> tuple[Any, ...]:
    params = gpt2_specs(**sizes)
    return params, params, params, "", "b s+1 @ int32"


# A U-Net that predicts the noise in an image, as diffusion models use: two residual blocks a level, attention at the
# bottom, time as sines and cosines.
CHANNELS, MULTIPLES, GROUPS = 128, (1, 2, 3, 4), 32


def group_norm(p: Params, x: jax.Array, groups: int) -> jax.Array:
    n, h, w, c = x.shape
    y = x.reshape(n, h, w, groups, c // groups)
    mean = jnp.mean(y, axis=(1, 2, 4), keepdims=True)
    variance = jnp.mean(jnp.square(y - mean), axis=(1, 2, 4), keepdims=True)
    return ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(n, h, w, c) * p["scale"] + p["bias"]


def residual(p: Params, x: jax.Array, time: jax.Array, groups: int) -> jax.Array:
    y = conv(jax.nn.silu(group_norm(p["norm1"], x, groups)), p["conv1"]) + p["bias1"]
    y = y + linear(p["time"], jax.nn.silu(time))[:, None, None]
    y = conv(jax.nn.silu(group_norm(p["norm2"], y, groups)), p["conv2"]) + p["bias2"]
    return y + (conv(x, p["skip"]) if "skip" in p else x)


def attention(p: Params, x: jax.Array, groups: int) -> jax.Array:
    n, h, w, c = x.shape
    y = group_norm(p["norm"], x, groups).reshape(n, h * w, c)
    q, k, v = (linear(p[name], y) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("nqc,nkc->nqk", q, k) * c**-0.5, axis=-1)
    return x + linear(p["out"], jnp.einsum("nqk,nkc->nqc", weights, v)).reshape(n, h, w, c)


def enlarge(x: jax.Array, w: jax.Array, method: str) -> jax.Array:
    """Twice as high and wide: by a transposed convolution, or resized and then convolved."""
    if method == "transposed":
        return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    n, h, w_, c = x.shape
    return conv(jax.image.resize(x, (n, 2 * h, 2 * w_, c), method), w)


def unet(
    params: Params,
    images: jax.Array,
    times: jax.Array,
    groups: int = GROUPS,
    method: str = "nearest",
    block: Callable[..., jax.Array] = residual,
) -> jax.Array:
    """The noise in `images` (n, height, width, 3) at `times` (n,). `method`: how `enlarge` enlarges."""
    half = params["stem"].shape[-1] // 2
    angle = times[:, None] * jnp.exp(-jnp.log(10000.0) * jnp.arange(half) / half)
    time = linear(params["time1"], jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1))
    time = linear(params["time2"], jax.nn.silu(time))
    x = conv(images, params["stem"])
    kept = [x]
    for level in params["down"]:
        for p in level["blocks"]:
            x = block(p, x, time, groups)
            kept.append(x)
        if "shrink" in level:
            x = conv(x, level["shrink"], 2)
            kept.append(x)
    x = block(params["middle1"], x, time, groups)
    x = block(params["middle2"], attention(params["attention"], x, groups), time, groups)
    for level in params["up"]:
        for p in level["blocks"]:
            x = block(p, jnp.concatenate([x, kept.pop()], axis=-1), time, groups)
        if "grow" in level:
            x = enlarge(x, level["grow"], method)
    return conv(jax.nn.silu(group_norm(params["norm"], x, groups)), params["head"])


def unet_specs(channels: int = CHANNELS, multiples: Sequence[int] = MULTIPLES, blocks: int = 2) -> Params:
    def norm(width: int) -> Params:
        return {"scale": str(width), "bias": str(width)}

    def dense(a: int, b: int) -> Params:
        return {"w": f"{a} {b}", "b": str(b)}

    def block(a: int, b: int) -> Params:
        p: Params = {"norm1": norm(a), "conv1": f"3 3 {a} {b}", "bias1": str(b), "time": dense(4 * channels, b)}
        p |= {"norm2": norm(b), "conv2": f"3 3 {b} {b}", "bias2": str(b)}
        return p if a == b else {**p, "skip": f"1 1 {a} {b}"}

    widths = [channels * m for m in multiples]
    kept, width = [channels], channels
    down: list[Params] = []
    for i, out in enumerate(widths):
        down.append({"blocks": [block(width, out), *[block(out, out)] * (blocks - 1)]})
        width = out
        kept += [out] * blocks
        if i + 1 < len(widths):
            down[-1]["shrink"] = f"3 3 {out} {out}"
            kept.append(out)
    up: list[Params] = []
    for i, out in reversed(list(enumerate(widths))):
        made: list[Params] = []
        for _ in range(blocks + 1):
            made.append(block(width + kept.pop(), out))
            width = out
        up.append({"blocks": made, **({"grow": f"3 3 {out} {out}"} if i else {})})
    bottom = widths[-1]
    return {
        "time1": dense(channels, 4 * channels),
        "time2": dense(4 * channels, 4 * channels),
        "stem": f"3 3 3 {channels}",
        "down": down,
        "middle1": block(bottom, bottom),
        "attention": {"norm": norm(bottom), **{name: dense(bottom, bottom) for name in ("q", "k", "v", "out")}},
        "middle2": block(bottom, bottom),
        "up": up,
        "norm": norm(channels),
        "head": f"3 3 {channels} 3",
    }


def cases() -> dict[str, Case]:
    """Models by name."""
    bound = {"weights": ("params",)}
    images, latents = ("b 224 224 3",), ("b 64 64 3", "b")
    methods = {m: functools.partial(unet, method=m) for m in ("nearest", "bilinear", "transposed")}
    return {
        "resnet-50": Case(resnet, (resnet_specs(), *images)),
        "resnet-50, weights bound": Case(resnet, (resnet_specs(), *images), bound),
        "gpt-2 training step": Case(gpt2_step, gpt2_arguments()),
        "gpt-2 training step, 8 x 1024": Case(gpt2_step, (*gpt2_arguments()[:-1], "8 1025 @ int32")),
        **{f"unet, {method}": Case(fn, (unet_specs(), *latents)) for method, fn in methods.items()},
        "unet, nearest, weights bound": Case(unet, (unet_specs(), *latents), bound),
    }


def main(only: Annotated[str, typer.Option(help="models whose names contain this")] = "", quick: Quick = False) -> None:
    """Optimize time of whole models."""
    show("benchmarks.models", only, quick)


if __name__ == "__main__":
    typer.run(main)
