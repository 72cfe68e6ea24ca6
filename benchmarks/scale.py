"""How optimize time grows with the program: decoders of many layers, a long chain, a wide fan-out.

    python -m benchmarks.scale

XLA is not run. Each line is one `rx.optimize`, in one process; the first also builds the rules' instances.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import relax_eg as rx

WIDTH, HEADS, KV_HEADS, INNER, VOCABULARY = 256, 8, 4, 512, 1000
Params = dict[str, Any]


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def layer(p: Params, x: jax.Array, cos: jax.Array, sin: jax.Array, mask: jax.Array) -> jax.Array:
    b, s, _ = x.shape

    def heads(y: jax.Array, count: int) -> jax.Array:
        return y.reshape(b, s, count, WIDTH // HEADS).transpose(0, 2, 1, 3)

    h = rms_norm(x, p["norm1"])
    q = rotate(heads(h @ p["q"], HEADS), cos, sin)
    k = rotate(heads(h @ p["k"], KV_HEADS), cos, sin)
    k, v = (jnp.repeat(y, HEADS // KV_HEADS, axis=1) for y in (k, heads(h @ p["v"], KV_HEADS)))
    weights = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * (WIDTH // HEADS) ** -0.5 + mask, axis=-1)
    x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(b, s, WIDTH) @ p["o"]
    h = rms_norm(x, p["norm2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def decoder(params: Params, ids: jax.Array) -> jax.Array:
    """A Llama-shaped decoder: logits of the last token."""
    s = ids.shape[1]
    x = params["embedding"][ids]
    steps = jnp.arange(s)
    angle = steps[:, None] * jnp.exp(-jnp.arange(WIDTH // HEADS // 2) / 10.0)
    mask = jnp.where(steps[:, None] >= steps, 0.0, -1e9)
    for p in params["layers"]:
        x = layer(p, x, jnp.cos(angle), jnp.sin(angle), mask)
    return (rms_norm(x, params["norm"]) @ params["head"])[:, -1]


def decoder_specs(layers: int) -> Params:
    square, narrow = f"{WIDTH} {WIDTH}", f"{WIDTH} {WIDTH * KV_HEADS // HEADS}"
    one = {"norm1": str(WIDTH), "norm2": str(WIDTH), "q": square, "k": narrow, "v": narrow, "o": square}
    one |= {"gate": f"{WIDTH} {INNER}", "up": f"{WIDTH} {INNER}", "down": f"{INNER} {WIDTH}"}
    ends = {"embedding": f"{VOCABULARY} {WIDTH}", "norm": str(WIDTH), "head": f"{WIDTH} {VOCABULARY}"}
    return {**ends, "layers": [one] * layers}


def chain(length: int) -> Callable[..., jax.Array]:
    def run(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        for _ in range(length // 4):
            x = jnp.maximum(x @ w + b, 0.0) + x
        return x

    return run


def fan_out(x: jax.Array, ws: list[jax.Array]) -> list[jax.Array]:
    return [x @ w for w in ws]


def main() -> None:
    table = Table("program", "operators", "e-graph nodes", "stopped", "search s", "total s")
    programs: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        *((f"decoder, {n} layers", decoder, (decoder_specs(n), "b s @ int32")) for n in (2, 8, 32)),
        *((f"chain of {n}", chain(n), ("s 16", "16 16", "16")) for n in (1_000, 4_000, 10_000)),
        *((f"fan-out of {n}", fan_out, ("s 16", ["16 16"] * n)) for n in (500, 2_000)),
    ]
    for name, fn, specs in programs:
        started = time.perf_counter()
        report = rx.optimize(fn, *specs, budget=rx.Budget(seconds=60)).report
        spent = time.perf_counter() - started
        search = sum(s for phase, s in report.seconds.items() if phase != "total")
        table.add_row(name, f"{report.before.count}", f"{report.nodes}", report.stop, f"{search:.2f}", f"{spent:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
