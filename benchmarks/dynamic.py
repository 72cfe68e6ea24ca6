"""MiniLM-L6 over 200 texts of some 70 lengths, one at a time: what a stream of sizes costs.

    python -m benchmarks.dynamic [--who ours,jit] [--json out.json]     # first pass, each in a process of its own
    python -m benchmarks.dynamic --steady [--seconds 150]               # later passes, taking turns in one process
    python -m benchmarks.dynamic --torch-python other/bin/python        # torch and onnxruntime from another environment

The first pass starts with nothing but the weights loaded: optimizing, tracing and compiling count. `jit` is `jax.jit`
of the function as written, which compiles for each length; `hand` the same with ids and mask padded by hand to powers
of two; `ours` is one `optimize` at those capacities, `written` the same without any rule (what predication alone
costs), `finer` at multiples of 8, `auto` with executables of their own for hot lengths. `torch`
(torch.compile(dynamic=True)) and `onnxruntime` are left out where they are not installed. With --strict it fails where
a limit of ours is missed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Timings, machine
from examples import minilm

TEXTS, LONGEST, FEWEST = 200, 128, 6  # passes that --steady takes at least
OTHERS = ("torch", "onnxruntime")
FASTER_THAN_JIT, OF_HAND, OF_EXACT = 5.0, 1.05, 1.15  # what --strict asks of ours


def texts(tokenizer: Any) -> list[np.ndarray]:
    """Token ids, (1, length) int32 each: the sentences of the example, then two, three and four consecutive ones, in a
    fixed random order."""
    topics: list[list[str]] = []
    for line in (Path(minilm.__file__).parent / "data" / "sentences.txt").read_text().splitlines():
        if line.startswith("#"):
            topics.append([])
        elif line:
            topics[-1].append(line)
    runs = [" ".join(t[i : i + k]) for k in (1, 2, 3, 4) for t in topics for i in range(len(t) - k + 1)]
    ids = [row.ids for row in tokenizer.encode_batch(runs)]
    chosen = [np.array([row], np.int32) for row in ids if len(row) <= LONGEST][:TEXTS]
    random.Random(0).shuffle(chosen)
    return chosen


Encode = Callable[[np.ndarray], Any]


def as_jitted(params: Any) -> tuple[Encode, Callable[[], int]]:
    fast = jax.jit(minilm.encode)
    return lambda ids: fast(params, ids, np.ones_like(ids)), fast._cache_size


def by_hand(params: Any) -> tuple[Encode, Callable[[], int]]:
    fast = jax.jit(minilm.encode)

    def encode(ids: np.ndarray) -> Any:
        n = ids.shape[1]
        padded, mask = np.zeros((2, 1, 1 << (n - 1).bit_length()), np.int32)
        padded[:, :n], mask[:, :n] = ids, 1
        return fast(params, padded, mask)

    return encode, fast._cache_size


def ours(params: Any, **options: Any) -> tuple[Encode, Callable[[], int]]:
    import relax_eg as rx

    if "rules" in options:
        options["rules"] = rx.RuleSet("none", options["rules"])
    best = rx.optimize(
        minilm.encode, params, "1 s @ int32", "1 s @ int32", weights=("params",), at={"s": 32}, bounds={"s": (1, 256)},
        **{"dynamic": "capacity", **options},
    )  # fmt: skip
    ready = best.prepare(params)
    return lambda ids: ready(ids, np.ones_like(ids)), lambda: best.statistics().compilations


WAYS: dict[str, Callable[[Any], tuple[Encode, Callable[[], int]]]] = {
    "jit": as_jitted,
    "hand": by_hand,
    "ours": ours,
    "written": lambda params: ours(params, rules=[]),
    "finer": lambda params: ours(params, capacities=8),
    "auto": lambda params: ours(params, dynamic="auto"),
}


def first_pass(who: str) -> dict[str, Any]:
    """Seconds from having weights and ids to having all embeddings, and executables."""
    params, tokenizer = minilm.load()
    stream = texts(tokenizer)
    jax.block_until_ready(jax.numpy.zeros(()) + 1)  # starting JAX is not a matter of who
    started = time.perf_counter()
    encode, executables = WAYS[who](params)
    found = [np.asarray(encode(ids)) for ids in stream]
    seconds = time.perf_counter() - started
    later = min(timed_pass(encode, stream) for _ in range(2))
    return {
        "who": who, "first": seconds, "later": later, "executables": executables(),
        "lengths": len({x.shape[1] for x in stream}), "embeddings": np.concatenate(found).tolist(),
    }  # fmt: skip


def timed_pass(encode: Encode, stream: list[np.ndarray]) -> float:
    started = time.perf_counter()
    for ids in stream:
        np.asarray(encode(ids))
    return time.perf_counter() - started


def in_a_process(who: str, torch_python: str) -> dict[str, Any] | str:
    """What `first_pass` gives in a process of its own, or why there is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "benchmarks.dynamic", "--run", who, "--json", str(out)]
        if who in OTHERS:
            _, tokenizer = minilm.load()
            given = Path(folder) / "ids.json"
            given.write_text(json.dumps([x[0].tolist() for x in texts(tokenizer)]))
            script = str(Path(__file__).with_name("dynamic_torch.py"))
            model = str(minilm._model_folder() / "model.safetensors")
            command = [torch_python or sys.executable, script, who, model, str(given), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if out.exists():
            return json.loads(out.read_text())
        lines = done.stderr.strip().splitlines() or ["no output"]
        return lines[-1]


def steady(seconds: float, who: list[str], console: Console) -> dict[str, Any]:
    """Whole passes over the stream once all is compiled, taking turns."""
    params, tokenizer = minilm.load()
    stream = texts(tokenizer)
    made = {name: WAYS[name](params) for name in who}
    for name, (encode, executables) in made.items():
        for _ in range(2):
            timed_pass(encode, stream)
        console.print(f"{name}: warm, {executables()} executables")
    samples: dict[str, list[float]] = {name: [] for name in made}
    order, end = list(made), time.perf_counter() + seconds
    while len(samples[order[0]]) < FEWEST or time.perf_counter() < end:
        random.shuffle(order)
        for name in order:
            samples[name].append(timed_pass(made[name][0], stream))
    timings = Timings({name: np.array(taken) for name, taken in samples.items()})
    table = Table("later passes", "a pass", "of hand padding", "of exact shapes")
    found: dict[str, Any] = {}
    for name in who:
        # How many times longer it takes: the speed-up of the other over it.
        by = {o: timings.speedup(o, over=name) for o in ("hand", "jit") if o in made}
        row = {o: r.value for o, r in by.items()}
        found[name] = {"seconds": timings.median(name), **row}
        table.add_row(name, f"{timings.median(name):.3f} s", *(str(by.get(o, "")) for o in ("hand", "jit")))
    console.print(table)
    return found


def main(
    who: Annotated[str, typer.Option(help="comma-separated: " + ", ".join((*WAYS, *OTHERS)))] = "",
    run: Annotated[str, typer.Option(hidden=True)] = "",
    steadily: Annotated[bool, typer.Option("--steady", help="time later passes instead")] = False,
    seconds: Annotated[float, typer.Option(help="of timing, with --steady")] = 120.0,
    torch_python: Annotated[str, typer.Option(help="the Python that has torch and onnxruntime")] = "",
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the figures here")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="fail where a limit is missed")] = False,
) -> None:
    """MiniLM-L6 over a stream of texts of many lengths."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    if run:
        assert json_out is not None
        json_out.write_text(json.dumps(first_pass(run)))
        return
    names = who.split(",") if who else [*WAYS, *([] if steadily else OTHERS)]
    console.print(machine())
    missed: list[str] = []
    if steadily:
        figures: dict[str, Any] = steady(seconds, names, console)
        if "ours" in figures and figures["ours"].get("hand", 0) > OF_HAND:
            missed.append(f"ours takes {figures['ours']['hand']:.2f} of hand padding; {OF_HAND} is allowed")
        exact = [row["jit"] for n, row in figures.items() if n not in ("jit", "hand") and "jit" in row]
        if exact and min(exact) > OF_EXACT:
            missed.append(f"the best policy takes {min(exact):.2f} of exact shapes; {OF_EXACT} is allowed")
    else:
        figures = first_passes(names, torch_python, console)
        if "ours" in figures and "jit" in figures:
            ratio = figures["jit"]["first"] / figures["ours"]["first"]
            if ratio < FASTER_THAN_JIT:
                missed.append(f"ours is {ratio:.1f} times faster than jit; {FASTER_THAN_JIT} are asked")
        if "ours" in figures and "hand" in figures:
            mine, theirs = figures["ours"]["executables"], figures["hand"]["executables"]
            if mine > theirs:
                missed.append(f"ours has {mine} executables, hand padding {theirs}")
    if json_out:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(json.dumps({"version": 1, "machine": machine(), "figures": figures}, indent=1))
    for line in missed:
        console.print(line)
    if strict and missed:
        raise typer.Exit(1)


def first_passes(names: list[str], torch_python: str, console: Console) -> dict[str, Any]:
    """The first pass of each, with the embeddings compared to the first one's."""
    table = Table("first pass", "in all", "executables", "later passes", "worst cosine")
    figures: dict[str, Any] = {}
    known: np.ndarray | None = None
    for name in names:
        row = in_a_process(name, torch_python)
        if isinstance(row, str):
            console.print(f"{name} is left out: {row}")
            continue
        mine = np.array(row.pop("embeddings"))
        known = mine if known is None else known
        cosine = float(np.min(np.sum(mine * known, axis=1)))
        if not cosine >= 0.9999:
            raise SystemExit(f"{name}: the embeddings differ (worst cosine {cosine:.7f})")
        figures[name] = {**row, "cosine": cosine}
        count = str(row["executables"]) if row["executables"] else ""
        table.add_row(name, f"{row['first']:.1f} s", count, f"{row['later']:.2f} s", f"{cosine:.7f}")
        console.print(f"{name}: {row['first']:.1f} s")
    console.print(table)
    return figures


if __name__ == "__main__":
    typer.run(main)
