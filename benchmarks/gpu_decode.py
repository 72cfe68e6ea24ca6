"""Latency of a decode step of Llama-3-8B's sizes on a GPU: under `jax.jit`, ours, and torch.

    python -m benchmarks.gpu_decode --search build/gpu                    # chooses the programs and saves them
    python -m benchmarks.gpu_decode --run --programs build/gpu [--batch 1] [--torch python3] [--json out.json]

Weights are random, in bfloat16. Keys and values are kept in arrays of 1,024 places, which a step writes at its position
and which are donated; attention is to all places up to that position, the last one. Ours and `jax.jit` take turns in
one process, each called several times in a row and then waited for. Torch runs in a process of its own before
(`gpu_decode_torch`): eager, compiled, and compiled and recorded as one CUDA graph. Its weights are other random ones,
and its attention is `scaled_dot_product_attention`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.decoders import CACHED, THETA, rms_norm, rotate, specs
from benchmarks.gpu import AS_FAR, IN_A_ROW, ROUNDED, WRITTEN, distance, in_a_row, saved
from benchmarks.gpu_cases import WHOLE, Subject
from benchmarks.llama import MODELS, Sizes
from benchmarks.timing import duration, machine, measure

MODEL = "llama3-8b"
BATCHES = (1, 64, 8)
SECONDS = 1.0  # of timing, for each batch and for each way of torch
TORCH_LIMIT = 120.0  # seconds that torch may take in all
OURS = (WHOLE,)


def attend(q: jax.Array, keys: jax.Array, values: jax.Array, position: jax.Array) -> jax.Array:
    """Attention of a query (b, heads, width) to the places up to `position` of (b, t, kv_heads, width)."""
    b, heads, width = q.shape
    grouped = q.reshape(b, keys.shape[2], heads // keys.shape[2], width)
    scores = jnp.einsum("bkgd,btkd->bkgt", grouped, keys, preferred_element_type=jnp.float32) * width**-0.5
    seen = jnp.arange(keys.shape[1]) <= position
    weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(jnp.float32).min), axis=-1).astype(q.dtype)
    return jnp.einsum("bkgt,btkd->bkgd", weights, values).reshape(b, heads * width)


def step(params: Any, caches: Any, ids: jax.Array, position: jax.Array, m: Sizes, theta: float) -> Any:
    """Logits (b, vocabulary) of the token `ids` (b,) at `position`, and the caches with its keys and values."""
    x, b = params["embedding"][ids], ids.shape[0]
    angle = position.astype(jnp.float32) * theta ** (-jnp.arange(0, m.head_width, 2) / m.head_width)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    new: list[Any] = []
    for p, (keys, values) in zip(params["layers"], caches, strict=True):
        h = rms_norm(x, p["norm1"], 0.0)
        q = rotate((h @ p["q"]).reshape(b, m.heads, m.head_width), cos, sin)
        k = rotate((h @ p["k"]).reshape(b, 1, m.kv_heads, m.head_width), cos, sin)
        v = (h @ p["v"]).reshape(b, 1, m.kv_heads, m.head_width)
        keys = jax.lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
        values = jax.lax.dynamic_update_slice(values, v, (0, position, 0, 0))
        new.append((keys, values))
        x = x + attend(q, keys, values, position) @ p["out"]
        h = rms_norm(x, p["norm2"], 0.0)
        x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
    return rms_norm(x, params["norm"], 0.0) @ params["head"], new


def subject(batch: int, sizes: Sizes) -> Subject:
    """The step at a batch size, as a program of `benchmarks.gpu`."""

    def made(params: Any, caches: Any, ids: jax.Array, position: jax.Array) -> Any:
        return step(params, caches, ids, position, sizes, THETA[MODEL])

    name = f"{MODEL}, {sizes.layers} layers, decode of {batch}"
    return Subject(name, "bfloat16", made, specs(sizes), {"b": batch, "t": CACHED}, weights=("params",))


def search(batches: tuple[int, ...], sizes: Sizes, target: str, folder: Path) -> None:
    """Chooses the programs for a device, and saves them."""
    folder.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        asked = subject(batch, sizes)
        for way in OURS:
            best = asked.optimize(way, target)
            best.save(saved(folder, asked, way))
            print(f"{asked.name}, {way}: {best.report.predicted_gain:.2f} predicted", flush=True)


def with_torch(python: str, batches: tuple[int, ...], sizes: Sizes) -> dict[str, Any]:
    """The rows of `gpu_decode_torch`, or why there are none."""
    script = str(Path(__file__).with_name("gpu_decode_torch.py"))
    asked = {**asdict(sizes), "batches": batches, "cached": CACHED, "theta": THETA[MODEL], "seconds": SECONDS}
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "sizes.json", Path(folder) / "out.json"
        given.write_text(json.dumps({**asked, "in_a_row": IN_A_ROW}))
        try:  # -P: `benchmarks/triton.py` is not the module of that name
            subprocess.run([python, "-P", script, given, out], check=True, capture_output=True, timeout=TORCH_LIMIT)
        except subprocess.TimeoutExpired:
            return {"wrong": f"torch took longer than {TORCH_LIMIT:.0f} s"}
        except subprocess.CalledProcessError as e:
            return {"wrong": " | ".join(e.stderr.decode(errors="replace").strip().splitlines()[-12:])[:1500]}
        return json.loads(out.read_text())


def drawn(spec: Any, key: jax.Array) -> jax.Array:
    """A random array of a spec without symbolic sizes, matrices small enough for a softmax of a product."""
    dims, _, dtype = spec.partition("@")
    shape = tuple(int(d) for d in dims.split())
    scale = shape[0] ** -0.5 if len(shape) == 2 else 1.0
    return (scale * jax.random.normal(key, shape, "bfloat16")).astype(dtype.strip())


def measured(batch: int, sizes: Sizes, params: Any, programs: Path) -> dict[str, Any]:
    """Times a batch size in all ways that were saved, and compares their logits."""
    asked = subject(batch, sizes)
    cache = f"{batch} {CACHED} {sizes.kv_heads} {sizes.head_width} @ bfloat16"
    keys = iter(jax.random.split(jax.random.key(1), 2 * sizes.layers))
    caches = [(drawn(cache, next(keys)), drawn(cache, next(keys))) for _ in range(sizes.layers)]
    ids = jax.random.randint(jax.random.key(2), (batch,), 0, sizes.vocabulary)
    position = jnp.int32(CACHED - 1)
    calls = {WRITTEN: _stepping(functools.partial(jax.jit(asked.fn, donate_argnums=1), params), caches, ids, position)}
    for way in OURS:
        if saved(programs, asked, way).exists():
            best = rx.load(saved(programs, asked, way), measure="off")
            first = len(jax.tree.leaves(params))
            best.donate(range(first, first + len(jax.tree.leaves(caches))))
            calls[way] = _stepping(best.prepare(params), caches, ids, position)
    wide = jax.jit(functools.partial(_precise, asked.fn))
    with jax.default_matmul_precision("highest"):
        expected = [jax.device_get(wide(params, caches, ids, position)).astype("float64")]
    del caches
    errors = {w: distance([jax.device_get(call()).astype("float64")], expected) for w, call in calls.items()}
    found = measure({way: in_a_row(call) for way, call in calls.items()}, SECONDS)
    return {
        "batch": batch,
        "seconds": {way: found.median(way) / IN_A_ROW for way in calls},
        "speedups": {way: str(found.speedup(way, WRITTEN)) for way in calls if way != WRITTEN},
        "errors": errors,
        "wrong": [way for way, e in errors.items() if not e <= max(AS_FAR * errors[WRITTEN], ROUNDED["bfloat16"])],
    }


def _precise(fn: Any, *args: Any) -> jax.Array:
    """The logits of a step computed in float32."""
    wide = jax.tree.map(lambda x: x.astype("float32") if jnp.issubdtype(x.dtype, jnp.floating) else x, args)
    return fn(*wide)[0]


def _stepping(run: Any, caches: Any, ids: jax.Array, position: jax.Array) -> Any:
    """A function that makes a step at a position, each on the caches that the one before left. Returns logits."""
    held = [jax.tree.map(jnp.copy, caches)]

    def again() -> jax.Array:
        logits, held[0] = run(held[0], ids, position)
        return logits

    return again


def told(row: dict[str, Any], torch: dict[str, Any]) -> str:
    """A line for a batch size."""
    ours = "; ".join(f"{way} {found}" for way, found in row["speedups"].items())
    ours += f"; off by {', '.join(f'{e:.1e}' for e in row['errors'].values())}"
    theirs = next((r for r in torch.get("rows", ()) if r["batch"] == row["batch"]), {})
    beside = ", ".join(f"{way} {duration(theirs[way])}" for way in ("eager", "compiled", "graph") if way in theirs)
    took = ", ".join(f"{way} {duration(s)}" for way, s in row["seconds"].items())
    wrong = f"  WRONG: {row['wrong']}" if row["wrong"] else ""
    return f"batch {row['batch']}: {took}; {ours}; torch: {beside or torch.get('wrong', 'not asked')}{wrong}"


def main(
    run: Annotated[bool, typer.Option("--run", help="time the programs on the GPU at hand")] = False,
    search_into: Annotated[Path | None, typer.Option("--search", help="choose the programs, save them here")] = None,
    programs: Annotated[Path, typer.Option(help="what --search saved")] = Path("build/gpu"),
    batches: Annotated[list[int] | None, typer.Option("--batch", help="this batch; may be given again")] = None,
    layers: Annotated[int, typer.Option(help="layers, of 32")] = 32,
    device: Annotated[str, typer.Option(help="for --search")] = "h100",
    torch: Annotated[str, typer.Option(help="a Python that has torch; none is asked without it")] = "",
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
) -> None:
    """Latency of a decode step on a GPU."""
    sizes, chosen = replace(MODELS[MODEL], layers=1 if quick else layers), tuple(batches or BATCHES)
    if search_into is not None:
        search(chosen, sizes, device, search_into)
    if not run:
        return
    theirs = with_torch(torch, chosen, sizes) if torch else {}
    if jax.default_backend() != "gpu":
        print(f"nothing is timed: JAX runs on {jax.default_backend()} here, not on a GPU")
        return
    print(machine(), flush=True)
    given, _, _, _ = specs(sizes)
    leaves, tree = jax.tree.flatten(given)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    params = jax.tree.unflatten(tree, [drawn(s, k) for s, k in zip(leaves, keys, strict=True)])
    rows: list[dict[str, Any]] = []
    for batch in chosen:
        rows.append(measured(batch, sizes, params, programs))
        print(told(rows[-1], theirs), flush=True)
        if json_out is not None:
            json_out.write_text(json.dumps({"machine": machine(), "torch": theirs, "rows": rows}, indent=1))
    if any(row["wrong"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
