"""Programs spread over meshes of described devices: the placements found beside the textbook ones.

    python -m benchmarks.spread [--quick] [--only mlp] [--seconds 60] [--compile] [--run]

A textbook spreading is given by the placements of its inputs; everything else is chosen as well as the search can, so
its figures are those of its best form. *data* splits the batch, *zero-3* the batch and the state, *tensor* the weights
as Megatron has them, *sequence* the tokens, *expert* the experts of a mixture, *pipeline* the layers. `--compile` lets
XLA compile the found spreading for eight described GPUs, where there are as many, and counts the collectives that it
inserts. `--run` runs small programs on eight CPU devices instead, beside `jax.jit` with the same input shardings, which
leaves all else to XLA's own propagation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.models import gpt2_arguments, gpt2_step, resnet, resnet_specs
from relax_eg.errors import RelaxEgError

DTYPE = "bfloat16"
MOST_COMPILED = 8  # described devices for which programs are compiled here
QUICK = ("mlp on 8", "block on 8")
MESHES = ({"x": 8}, {"data": 8, "model": 8}, {"pod": 8, "data": 8, "model": 8})

Textbook = Mapping[str, Mapping[str, str]]  # placements of inputs by the name of the spreading


@dataclass(frozen=True)
class Case:
    """A program with its specs, and textbook placements of its inputs by the name of the spreading, one part for each
    axis of the mesh. `microbatches`: those of the textbook pipeline over the slowest axis; 0: there is none."""

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    textbook: Textbook
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    microbatches: int = 0
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])


def mlp(x: jax.Array, wi: jax.Array, wo: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ wi) @ wo


def normed(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def block(x: jax.Array, p: Mapping[str, jax.Array], heads: int = 32) -> jax.Array:
    """A layer of Llama, without the rotation of positions, which costs next to nothing."""
    b, s, d = x.shape
    h = normed(x, p["g1"])
    q, k, v = ((h @ p[n]).reshape(b, s, heads, -1).transpose(0, 2, 1, 3) for n in ("wq", "wk", "wv"))
    scores = q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(d / heads).astype(x.dtype)
    x = x + (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, s, d) @ p["wo"]
    h = normed(x, p["g2"])
    return x + (jax.nn.silu(h @ p["w1"]) * (h @ p["w3"])) @ p["w2"]


def weights(d: int, f: int, layers: str = "") -> dict[str, str]:
    shapes = {"g1": f"{d}", "g2": f"{d}", **{f"w{n}": f"{d} {d}" for n in "qkvo"}}
    shapes |= {"w1": f"{d} {f}", "w3": f"{d} {f}", "w2": f"{f} {d}"}
    return {name: f"{layers} {shape} @{DTYPE}".strip() for name, shape in shapes.items()}


def training(heads: int) -> Callable[..., Any]:
    """A step of gradient descent through all layers, each computed again in the backward pass."""

    def loss(ps: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def layer(c: jax.Array, p: Any) -> tuple[jax.Array, None]:
            return jax.checkpoint(lambda c, p: block(c, p, heads))(c, p), None

        return jnp.mean((jax.lax.scan(layer, x, ps)[0] - y).astype(jnp.float32) ** 2)

    def train(ps: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(ps, x, y)
        return jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), ps, gradient), value

    return train


def mixture(x: jax.Array, gate: jax.Array, wi: jax.Array, wo: jax.Array) -> jax.Array:
    """A dense mixture of experts: every expert computes, the gate weighs."""
    share = jax.nn.softmax(x @ gate, -1)
    inner = jax.nn.relu(jnp.einsum("td,edf->etf", x, wi))
    return jnp.einsum("te,etd->td", share, jnp.einsum("etf,efd->etd", inner, wo))


def decoding(ps: Any, x: jax.Array, k_cache: jax.Array, v_cache: jax.Array) -> Any:
    """One token of each sequence through all layers of Llama, with grouped queries; returns what the caches grow by."""

    def layer(x: jax.Array, xs: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        p, ks, vs = xs  # caches: sequence, head, place, element
        b, heads, _, width = ks.shape
        h = normed(x, p["g1"])
        q = (h @ p["wq"]).reshape(b, heads, -1, width)
        k, v = ((h @ p[n]).reshape(b, heads, 1, width) for n in ("wk", "wv"))
        scores = jnp.concatenate([q @ ks.transpose(0, 1, 3, 2), q @ k.transpose(0, 1, 3, 2)], -1)
        share = jax.nn.softmax(scores * (1 / width**0.5), -1)
        attended = share[..., :-1] @ vs + share[..., -1:] @ v
        x = x + attended.reshape(b, -1) @ p["wo"]
        h = normed(x, p["g2"])
        return x + (jax.nn.silu(h @ p["w1"]) * (h @ p["w3"])) @ p["w2"], (k, v)

    return jax.lax.scan(layer, x, (ps, k_cache, v_cache))


def _tensor(prefix: str) -> dict[str, str]:
    """Megatron's placements of a layer's weights; those of a training step have an axis of layers in front."""
    split = {"wq": 1, "wk": 1, "wv": 1, "wo": 0, "w1": 1, "w3": 1, "w2": 0}
    return {f"{prefix}['{n}']": f"S[{d + (prefix == 'ps')}]" for n, d in split.items()}


def _on(mesh: Mapping[str, int], textbook: Textbook) -> Textbook:
    """Textbook placements over the axes of a mesh, from those over one: data and state are split over all of them, all
    else over the last, whose devices are neighbours, with the data split over the others."""
    slow = len(mesh) - 1
    data = textbook.get("data", {})

    def along(label: str, name: str, part: str) -> str:
        if label in ("data", "zero-3"):
            return ", ".join([part] * len(mesh))
        return ", ".join([*[data.get(name, data.get(name.partition("[")[0], "R"))] * slow, part])

    named = {label: label if label in ("data", "zero-3") or not slow else f"data, {label}" for label in textbook}
    return {named[x]: {n: along(x, n, p) for n, p in given.items()} for x, given in textbook.items()}


def _programs(devices: int) -> dict[str, Case]:
    """The programs for a mesh of so many devices: batches grow with it. Textbook placements are along one axis."""
    d, f, k = 4096, 14336, devices // 8
    batch, large = f"{64 * k} 4096 {d} @{DTYPE}", f"{devices} 4096 8192 @{DTYPE}"
    step = {"state": ("ps",)}
    tensor = {"x": "R", "y": "R", **_tensor("ps")}
    split = {"x": "S[0]", "y": "S[0]"}
    training_books = {
        "data": {**split, "ps": "R"}, "zero-3": split, "tensor": tensor, "sequence": {"x": "S[1]", "y": "S[1]"},
    }  # fmt: skip
    grouped = weights(8192, 28672, "80") | dict.fromkeys(("wk", "wv"), f"80 8192 1024 @{DTYPE}")
    cache = f"80 {64 * k} 8 4096 128 @{DTYPE}"
    adam = gpt2_arguments()[:-1]
    held = {"params": "R", "first": "R", "second": "R"}
    one = {"data": {"x": "S[0]", "p": "R"}, "tensor": {"x": "R", **_tensor("p")}}
    found = {
        "mlp": Case(
            mlp, (f"{4096 * k} {d} @{DTYPE}", f"{d} {f} @{DTYPE}", f"{f} {d} @{DTYPE}"),
            {"data": {"x": "S[0]", "wi": "R", "wo": "R"}, "tensor": {"x": "R", "wi": "S[1]", "wo": "S[0]"}},
        ),
        "block": Case(
            block, (f"{8 * k} 2048 {d} @{DTYPE}", weights(d, f)), {**one, "sequence": {"x": "S[1]", "p": "R"}}
        ),
        "decode": Case(block, (f"{8 * k} 1 {d} @{DTYPE}", weights(d, f)), one),
        "mixture": Case(
            mixture,
            (f"{8192 * k} 1024 @{DTYPE}", f"1024 16 @{DTYPE}", f"16 1024 4096 @{DTYPE}", f"16 4096 1024 @{DTYPE}"),
            {"data": {"x": "S[0]", "wi": "R", "wo": "R"}, "expert": {"x": "R", "wi": "S[0]", "wo": "S[0]"}},
        ),
        "resnet-50": Case(
            resnet, (resnet_specs(), f"{256 * k} 224 224 3"), {"data": {"images": "S[0]", "params": "R"}}
        ),
        "gpt-2": Case(
            gpt2_step, (*adam, f"{64 * k} 1025 @ int32"), {"data": {"ids": "S[0]", **held}, "zero-3": {"ids": "S[0]"}},
            {"state": {"params": 1, "first": 2, "second": 3}},
        ),
        "llama-3-8b": Case(training(32), (weights(d, f, "32"), batch, batch), training_books, step, 64),
        "llama-3-70b decode": Case(
            decoding, (grouped, f"{64 * k} 8192 @{DTYPE}", cache, cache),
            {"tensor": {"x": "R", "k_cache": "S[2]", "v_cache": "S[2]", **_tensor("ps")},
             "data": {"x": "S[0]", "k_cache": "S[1]", "v_cache": "S[1]", "ps": "R"}},
        ),
        "llama-3-70b": Case(training(64), (weights(8192, 28672, "80"), large, large), training_books, step, 64),
    }  # fmt: skip
    return found if devices > MOST_COMPILED else {n: c for n, c in found.items() if n != "llama-3-70b"}


def _cases() -> dict[str, Case]:
    return {
        f"{name} on {math.prod(mesh.values())}": replace(case, mesh=mesh, textbook=_on(mesh, case.textbook))
        for mesh in MESHES
        for name, case in _programs(math.prod(mesh.values())).items()
    }


def timed(rounds: int) -> Table:
    """Median seconds of small programs on eight CPU devices, of both ways in turns, and the ratio."""
    if len(jax.devices()) < MOST_COMPILED:
        raise SystemExit(
            f"--run needs {MOST_COMPILED} devices; JAX has {len(jax.devices())}\n  accepted: "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={MOST_COMPILED}"
        )
    d, f = 256, 1024
    small = {name: spec.partition("@")[0] for name, spec in weights(d, f).items()}
    stack = {name: spec.partition("@")[0] for name, spec in weights(d, f, "4").items()}
    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
        "mlp": (mlp, (f"512 {d}", f"{d} {f}", f"{f} {d}"), {}),
        "mlp, few rows": (mlp, (f"8 {d}", f"{d} {4 * f}", f"{4 * f} {d}"), {}),
        "block": (lambda x, p: block(x, p, 8), (f"8 64 {d}", small), {}),
        "mixture": (mixture, (f"256 {d}", f"{d} 8", f"8 {d} {f}", f"8 {f} {d}"), {}),
        "training step": (training(8), (stack, f"8 64 {d}", f"8 64 {d}"), {"state": ("ps",)}),
    }
    table = Table("program", "placements of inputs", "spread, ms", "jax.jit, ms", "ratio of medians")
    rng = np.random.default_rng(0)

    def drawn(spec: str) -> jax.Array:
        return jnp.asarray(rng.normal(size=[int(n) for n in spec.split()]) / 16, jnp.float32)

    for name, (fn, specs, options) in cases.items():
        arrays = jax.tree.map(drawn, specs)
        best: Any = rx.spread(fn, *arrays, mesh={"x": MOST_COMPILED}, **options)
        placed = best.place(*arrays)[0]
        where = {"in_shardings": best.in_shardings}
        ways = jax.jit(best.to_jax(), **where, out_shardings=best.out_shardings), jax.jit(fn, **where)
        seconds: tuple[list[float], list[float]] = ([], [])
        for way in ways:
            jax.block_until_ready(way(*placed))
        for _ in range(rounds):
            for way, into in zip(ways, seconds, strict=True):
                started = time.perf_counter()
                jax.block_until_ready(way(*placed))
                into.append(time.perf_counter() - started)
        ours, theirs = (median(s) for s in seconds)
        inputs = ", ".join(dict.fromkeys(map(str, best.input_placements)))
        table.add_row(
            name, inputs.replace("[", "\\["), f"{1e3 * ours:.3g}", f"{1e3 * theirs:.3g}", f"{ours / theirs:.2f}"
        )
    return table


def main(
    only: Annotated[str, typer.Option("--only", help="Cases whose names have this in them.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="Seconds of a search for placements.")] = 60.0,
    compiles: Annotated[bool, typer.Option("--compile", help="Let XLA compile for eight described GPUs.")] = False,
    runs: Annotated[bool, typer.Option("--run", help="Run small programs on eight CPU devices.")] = False,
    quick: Quick = False,
) -> None:
    """Found and textbook placements: predicted seconds, memory of a device, bound and seconds of the search."""
    console = Console(width=140)
    if runs:
        console.print(timed(7 if quick else 31))
        return
    table = Table("program", "mesh", "spreading", "seconds a call", "sending", "GB a device", "gap", "search, s")
    behind: list[str] = []
    for name, case in _cases().items():
        if (quick and name not in QUICK) or only not in name:
            continue
        best: dict[str, float] = {}
        tried: dict[str, dict[str, Any]] = {
            label: {"inputs": given, "pipeline": False} for label, given in case.textbook.items()
        }
        if case.microbatches:
            tried["pipeline"] = {"pipeline": {next(iter(case.mesh)): case.microbatches}}
        for label, options in {**tried, "found": {}}.items():
            started = time.perf_counter()
            try:
                made: Any = rx.spread(
                    case.fn, *case.specs, mesh=case.mesh, target="h100", seconds=seconds, **case.options, **options
                )
            except RelaxEgError as e:
                table.add_row(name, str(case.mesh), label, str(e).splitlines()[0][:60], "", "", "", "")
                continue
            r = made.spreading
            best[label] = r.total
            table.add_row(
                name, r.mesh, label, f"{r.total:.4g}", f"{r.sending:.3g}", f"{r.memory / 1e9:.3g}", f"{r.gap:.1%}",
                f"{time.perf_counter() - started:.1f}",
            )  # fmt: skip
            if label == "found" and compiles and r.devices <= MOST_COMPILED:
                compiled = made.compile_spread("h100", donate=tuple(case.options.get("state", ())))
                console.print(f"{name}: priced {r.sent_bytes()}, inserted {compiled.bytes_by_kind()}")
                console.print(f"{name}: memory predicted {r.memory / 1e9:.3g} GB, XLA {compiled.memory / 1e9:.3g} GB")
        textbook = min((s for label, s in best.items() if label != "found"), default=float("inf"))
        if best.get("found", float("inf")) > textbook * 1.005:  # given: the gap at which a search ends
            behind.append(name)
    console.print(table)
    if behind:
        raise SystemExit(f"behind the best textbook spreading: {', '.join(behind)}")


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    app()
