"""Cost reports of published language models' decode steps on data-sheet devices, without running them.

    python -m benchmarks.decoders [--only llama3-8b] [--target h100] [--out build/decoders]

One step of a decoder: a token for each of b sequences, with keys and values of t tokens before. Parameters are specs,
so there are no weights anywhere. Every report covers batch 1 to 64.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.llama import MODELS, Sizes
from relax_eg import figures

Params = dict[str, Any]
BATCHES, CACHED, DTYPE = (1, 2, 4, 8, 16, 32, 64), 1024, "bfloat16"
TARGETS = ("rtx4090", "a100", "h100", "h200")


# The base of the angles by which queries and keys are turned.
THETA = {"llama3-8b": 5e5, "gemma1.1-7b": 1e4, "qwen2-7b": 1e6}


def rms_norm(x: jax.Array, weight: jax.Array, offset: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * (offset + weight.astype(jnp.float32))).astype(x.dtype)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """One token's attention to those before, (b, t, kv_heads, head_width) each, and to itself."""
    b, heads, width = q.shape
    grouped = q.reshape(b, k.shape[1], heads // k.shape[1], width) * width**-0.5
    before = jnp.einsum("bkgd,btkd->bkgt", grouped, keys)
    itself = jnp.sum(grouped * k[:, :, None], axis=-1, keepdims=True)
    weights = jax.nn.softmax(jnp.concatenate([before, itself], axis=-1).astype(jnp.float32), axis=-1).astype(q.dtype)
    mixed = jnp.einsum("bkgt,btkd->bkgd", weights[..., :-1], values) + weights[..., -1:] * v[:, :, None]
    return mixed.reshape(b, heads * width)


def layer(p: Params, cache: Any, x: jax.Array, cos: jax.Array, sin: jax.Array, m: Sizes) -> tuple[jax.Array, Any]:
    offset = 1.0 if m.tied else 0.0  # Gemma's norms hold what to add to one
    b = x.shape[0]
    h = rms_norm(x, p["norm1"], offset)
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    if m.bias:
        q, k, v = q + p["q_bias"], k + p["k_bias"], v + p["v_bias"]
    q = rotate(q.reshape(b, m.heads, m.head_width), cos, sin)
    k = rotate(k.reshape(b, m.kv_heads, m.head_width), cos, sin)
    v = v.reshape(b, m.kv_heads, m.head_width)
    x = x + attend(q, k, v, *cache) @ p["out"]
    h = rms_norm(x, p["norm2"], offset)
    act = jax.nn.silu if m.act == "silu" else jax.nn.gelu
    return x + (act(h @ p["gate"]) * (h @ p["up"])) @ p["down"], (k, v)


def decode(
    params: Params, caches: Any, ids: jax.Array, position: jax.Array, m: Sizes, theta: float
) -> tuple[jax.Array, Any]:
    """Logits (b, vocabulary), and each layer's keys and values of the token `ids` (b,) at `position`."""
    x = params["embedding"][ids]
    if m.tied:
        x = x * jnp.asarray(m.width**0.5, x.dtype)
    angle = position.astype(jnp.float32) * theta ** (-jnp.arange(0, m.head_width, 2) / m.head_width)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    new: list[Any] = []
    for p, cache in zip(params["layers"], caches, strict=True):
        x, made = layer(p, cache, x, cos, sin, m)
        new.append(made)
    last = rms_norm(x, params["norm"], 1.0 if m.tied else 0.0)
    return last @ (params["embedding"].T if m.tied else params["head"]), new


def specs(m: Sizes, layers: int | None = None) -> tuple[Any, ...]:
    """Specs of the arguments of `decode`, for any batch b and any number t of tokens before."""
    n = layers or m.layers
    wide, narrow = m.heads * m.head_width, m.kv_heads * m.head_width

    def weight(*shape: int) -> str:
        return f"{' '.join(map(str, shape))} @ {DTYPE}"

    one = {"norm1": weight(m.width), "norm2": weight(m.width), "out": weight(wide, m.width)}
    one |= {"q": weight(m.width, wide), "k": weight(m.width, narrow), "v": weight(m.width, narrow)}
    one |= {"gate": weight(m.width, m.inner), "up": weight(m.width, m.inner), "down": weight(m.inner, m.width)}
    if m.bias:
        one |= {"q_bias": weight(wide), "k_bias": weight(narrow), "v_bias": weight(narrow)}
    ends = {"embedding": weight(m.vocabulary, m.width), "norm": weight(m.width)}
    if not m.tied:
        ends["head"] = weight(m.width, m.vocabulary)
    cache = f"b t {m.kv_heads} {m.head_width} @ {DTYPE}"
    return {**ends, "layers": [one] * n}, [(cache, cache)] * n, "b @ int32", "@ int32"


def cost_report(
    name: str, target: str, batches: tuple[int, ...] = BATCHES, layers: int | None = None, **options: Any
) -> rx.types.CostReport:
    """Returns the cost report of a model's decode step at these batch sizes, after `CACHED` tokens. `layers`: the
    number of layers, if fewer than the model has."""
    m = MODELS[name]

    def step(params: Params, caches: Any, ids: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
        return decode(params, caches, ids, position, m, THETA[name])

    step.__name__ = name.replace("-", "_").replace(".", "_")
    at = [{"b": b, "t": CACHED} for b in batches]
    return rx.optimize(step, *specs(m, layers), target=target, at=at, weights=("params",), **options).report


def main(
    only: Annotated[str, typer.Option(help="models whose names contain this")] = "",
    target: Annotated[str, typer.Option(help="device profiles; all if left out")] = "",
    quick: Quick = False,
    out: Annotated[Path | None, typer.Option(help="write reports and a comparison for each model here")] = None,
) -> None:
    """Cost reports of decode steps, without running them."""
    table = Table("model", "device", "b", "as written", "chosen", "faster", "limit", "reached", "seconds to report")
    console = Console(width=None if sys.stdout.isatty() else 120)
    chosen, devices = [n for n in MODELS if only in n], [t for t in TARGETS if target in t]
    if quick:
        chosen, devices = chosen[:1], devices[:1]
    for name in chosen:
        reports: list[rx.types.CostReport] = []
        for device in devices:
            started = time.perf_counter()
            with rx.debug.options(cache=False):
                report = cost_report(name, device)
            took = time.perf_counter() - started
            reports.append(report)
            for r in report.at_each():
                roof = r.roofline
                assert roof is not None
                figure = figures.time(r.before.seconds), figures.time(r.after.seconds), f"{r.predicted_gain:.2f}"
                limit = roof.bound, f"{100 * roof.share:.0f}%"
                table.add_row(name, device, str(r.at["b"]), *figure, *limit, f"{took:.1f}" if r.at["b"] == 1 else "")
            if out is not None:
                report.to_json(out / f"{name}_{device}.json")
        if out is not None and reports:
            rx.compare(*reports).to_html(out / f"{name}.html")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
