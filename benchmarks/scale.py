"""The growth of optimize time with the program: decoders and encoders of many layers, a long chain, a wide fan-out.

    python -m benchmarks.scale [--only decoder]

XLA is not run. Each program has a process of its own, so that peak memory is that of the program alone. The first run
of `rx.optimize` in the process also builds the instances of the rules; the second (`again`) reuses them.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from examples import minilm
from relax_eg.logs import clock

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


def _encoder(layers: int) -> Case:
    """MiniLM's encoder with so many layers, for a GPU: kernels through Pallas are considered."""
    params, _ = minilm.load()
    params["layers"] = (2 * params["layers"])[:layers]
    at = {"b": 1, "s": 16}
    options = {"weights": ("params",), "at": at, "target": "a100"}
    return Case(minilm.encode, (params, "b s @ int32", "b s @ int32"), options)


def cases() -> dict[str, Case]:
    """Programs by name."""
    square = "16 16"
    return {
        **{f"decoder, {n} layers": Case(decoder, (decoder_specs(n), "b s @ int32")) for n in (2, 8, 32)},
        "decoder, 32 layers, no sharing": Case(decoder, (decoder_specs(32), "b s @ int32"), sharing=False),
        **{f"chain of {n}": Case(chain(n), ("s 16", square, "16")) for n in (1_000, 4_000, 10_000)},
        **{f"fan-out of {n}": Case(fan_out, ("s 16", [square] * n)) for n in (500, 2_000)},
        **{f"encoder, {n} layers, on an A100": _encoder(n) for n in (1, 2, 6, 12)},
    }


@dataclass(frozen=True)
class Case:
    """A program to optimize.

    - `fn`, `specs`: a JAX function, and the specs of its arguments.
    - `options`: options of `rx.optimize`.
    - `sharing`: whether repeated blocks are optimized once.
    """

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sharing: bool = True

    def optimize(self) -> rx.types.Optimized:
        with rx.debug.options(cache=False, sharing=self.sharing):
            return rx.optimize(self.fn, *self.specs, **self.options)


@dataclass(frozen=True)
class Row:
    """The cost of optimizing a program.

    - `name`, `operators`: the program, and its operators as written.
    - `nodes`, `stop`: e-graph nodes, and the reason why saturation stopped.
    - `stages`, `total`, `cpu`, `again`: seconds by stage, in all, of processor time, and of the second run.
    - `peak`: peak memory of the process, MiB.
    """

    name: str
    operators: int
    nodes: int
    stop: str
    stages: Mapping[str, float]
    total: float
    cpu: float
    again: float
    peak: float


STAGES = ("trace", "share", "insert", "saturate", "dump", "select", "check")


def measured(module: str, name: str) -> Row:
    """Case `name` of a benchmark module, in this process."""
    case: Case = importlib.import_module(module).cases()[name]
    started, busy = time.perf_counter(), time.process_time()
    with clock() as stages:
        report = case.optimize().report
    total, cpu = time.perf_counter() - started, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    started = time.perf_counter()
    case.optimize()
    again = time.perf_counter() - started
    return Row(name, report.before.count, report.nodes, report.stop, dict(stages), total, cpu, again, peak)


def show(module: str, only: str, quick: bool) -> None:
    """A table of the cases of a benchmark module whose names contain `only`; of the first where it is to be `quick`."""
    table = Table(
        "program", "operators", "nodes", "stopped", *STAGES, "rest", "total s", "cpu s", "again s", "peak MiB"
    )
    chosen = [name for name in importlib.import_module(module).cases() if only in name]
    for name in chosen[:1] if quick else chosen:
        # A process of its own, started afresh: what a fork would bring along has been used already.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            r = pool.submit(measured, module, name).result()
        stages = [r.stages.get(s, 0.0) for s in STAGES]
        seconds = [f"{s:.2f}" for s in (*stages, r.total - sum(stages), r.total, r.cpu, r.again)]
        table.add_row(r.name, f"{r.operators}", f"{r.nodes}", r.stop, *seconds, f"{r.peak:.0f}")
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "", quick: Quick = False
) -> None:
    """Optimize time by program size."""
    show("benchmarks.scale", only, quick)


if __name__ == "__main__":
    from benchmarks.scale import main  # under this name what processes exchange is the same class in all of them

    typer.run(main)
