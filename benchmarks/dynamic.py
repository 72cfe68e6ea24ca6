"""The cost of a stream of sizes: MiniLM-L6 over 200 texts of some 70 lengths, one at a time.

    python -m benchmarks.dynamic [--who ours,jit] [--json out.json]     # first pass, each in a process of its own
    python -m benchmarks.dynamic --steady [--seconds 150]               # later passes, taking turns in one process
    python -m benchmarks.dynamic --torch-python other/bin/python        # torch and onnxruntime from another environment

The first pass starts with the weights loaded; optimizing, tracing and compiling count. Seconds of processors, of all
threads together, say more on a machine that does other work as well.

- `jit`: `jax.jit` of the function as written, which compiles for each length.
- `hand`: the same, with ids and mask padded by hand to powers of two.
- `ours`: one `optimize` at these capacities.
- `cached`: `ours` in a process that finds the search in the disk cache, as the second process of a program does.
- `trusted`: `ours` with `trust=True`, so without the trace for each length that checks the symbolic trace.
- `written`: `ours` without rules, which shows the cost of predication alone.
- `finer`: `ours` at multiples of 8.
- `auto`: `ours`, with executables of their own for hot lengths.
- `torch` (torch.compile(dynamic=True)) and `onnxruntime`: left out where they are not installed.

A first pass is compared with those of `hand`, which a user would write, and of `jit`. With --strict the command fails
unless `ours` keeps all its limits; the limits on later passes may be unsure (`benchmarks.timing`).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import Quick
from benchmarks.timing import BEYOND, WITHIN, Estimate, Timings, Verdict, machine, told
from examples import minilm

PADDED_OR_EXACT = ("hand", "jit")  # the ways that `ours` is compared with
TEXTS, LONGEST, FEWEST = 200, 128, 6  # passes that --steady takes at least
OTHERS = ("torch", "onnxruntime")
FASTER_THAN_JIT, FASTER_THAN_HAND, OF_HAND, OF_EXACT = 5.0, 1.0, 1.05, 1.15  # the limits of --strict
QUICK_TEXTS, QUICK_WAYS = 3, ("hand", "ours")


def texts(tokenizer: Any, quick: bool) -> list[np.ndarray]:
    """Token ids, (1, length) int32 each: the sentences of the example, then two, three and four consecutive ones, in a
    fixed random order; a few of them where it is to be `quick`."""
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
    return chosen[:QUICK_TEXTS] if quick else chosen


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


def ours(params: Any, how: Mapping[str, Any] | None = None, **options: Any) -> tuple[Encode, Callable[[], int]]:
    import relax_eg as rx

    if "rules" in options:
        options["rules"] = rx.RuleSet("none", options["rules"])
    best = rx.optimize(
        minilm.encode, params, "1 s @ int32", "1 s @ int32", weights=("params",), at={"s": 32}, bounds={"s": (1, 256)},
        dynamic=rx.Dynamic(**{"mode": "capacity", **(how or {})}), **options,
    )  # fmt: skip
    ready = best.prepare(params)
    return lambda ids: ready(ids, np.ones_like(ids)), lambda: best.statistics().compilations


WAYS: dict[str, Callable[[Any], tuple[Encode, Callable[[], int]]]] = {
    "jit": as_jitted,
    "hand": by_hand,
    "ours": ours,
    "cached": ours,
    "trusted": lambda params: ours(params, {"trust": True}),
    "written": lambda params: ours(params, rules=[]),
    "finer": lambda params: ours(params, {"capacities": 8}),
    "auto": lambda params: ours(params, {"mode": "auto"}),
}


def first_pass(who: str, quick: bool) -> dict[str, Any]:
    """Seconds from having weights and ids to having all embeddings, those of processors, and executables."""
    params, tokenizer = minilm.load()
    stream = texts(tokenizer, quick)
    jax.block_until_ready(jax.numpy.zeros(()) + 1)  # start JAX before the clock
    started, worked = time.perf_counter(), time.process_time()
    encode, executables = WAYS[who](params)
    found = [np.asarray(encode(ids)) for ids in stream]
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    later = min(timed_pass(encode, stream) for _ in range(2))
    return {
        "who": who, "first": seconds, "processor": worked, "later": later, "executables": executables(),
        "lengths": len({x.shape[1] for x in stream}), "embeddings": np.concatenate(found).tolist(),
    }  # fmt: skip


def timed_pass(encode: Encode, stream: list[np.ndarray]) -> float:
    started = time.perf_counter()
    for ids in stream:
        np.asarray(encode(ids))
    return time.perf_counter() - started


def in_a_process(who: str, torch_python: str, quick: bool) -> dict[str, Any] | str:
    """Returns the result of `first_pass` in a process of its own, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        environment = dict(os.environ)
        if who == "cached":
            environment |= {"RELAX_EG_CACHE": "1", "RELAX_EG_CACHE_DIR": folder}
        command = [sys.executable, "-m", "benchmarks.dynamic", "--run", who, "--json", str(out)]
        command += ["--quick"] if quick else []
        if who in OTHERS:
            _, tokenizer = minilm.load()
            given = Path(folder) / "ids.json"
            given.write_text(json.dumps([x[0].tolist() for x in texts(tokenizer, quick)]))
            script = str(Path(__file__).with_name("dynamic_torch.py"))
            model = str(minilm._model_folder() / "model.safetensors")
            command = [torch_python or sys.executable, script, who, model, str(given), str(out)]
        if who == "cached":
            subprocess.run(command, capture_output=True, check=True, env=environment)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if out.exists():
            return json.loads(out.read_text())
        lines = done.stderr.strip().splitlines() or ["no output"]
        return lines[-1]


def steady(seconds: float, who: list[str], quick: bool, console: Console) -> Timings:
    """Whole passes over the stream once all is compiled, taking turns."""
    params, tokenizer = minilm.load()
    stream = texts(tokenizer, quick)
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
    for name in who:
        by = {o: str(longer(timings, name, o)) for o in PADDED_OR_EXACT if o in made}
        table.add_row(name, f"{timings.median(name):.3f} s", *(by.get(o, "") for o in PADDED_OR_EXACT))
    console.print(table)
    return timings


def longer(timings: Timings, name: str, than: str) -> Estimate:
    """Returns the time of a pass of `name` over that of `than`."""
    return timings.speedup(than, over=name)


def limits_of_steady(timings: Timings) -> dict[str, Verdict]:
    """Returns whether `ours` keeps each of its limits on later passes."""
    found: dict[str, Verdict] = {}
    if {"ours", "hand"} <= timings.seconds.keys():
        found[f"ours at most {OF_HAND} of hand padding"] = longer(timings, "ours", "hand").against(OF_HAND)
    policies = timings.seconds.keys() - {"hand", "jit"}
    if policies and "jit" in timings.seconds:
        best = timings.fastest(policies)
        found[f"the best policy ({best}) at most {OF_EXACT} of exact shapes"] = longer(timings, best, "jit").against(
            OF_EXACT
        )
    return found


def limits_of_first(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, Verdict]:
    """Returns whether `ours` keeps each of its limits on first passes. Each is one sample, so no verdict is unsure."""

    def is_kept(kept: bool) -> Verdict:
        return WITHIN if kept else BEYOND

    found: dict[str, Verdict] = {}
    if {"ours", "jit"} <= figures.keys():
        ratio = figures["jit"]["first"] / figures["ours"]["first"]
        found[f"ours at least {FASTER_THAN_JIT} times as fast as jit"] = is_kept(ratio >= FASTER_THAN_JIT)
    if {"ours", "hand"} <= figures.keys():
        ratio = figures["hand"]["first"] / figures["ours"]["first"]
        found[f"ours at least {FASTER_THAN_HAND} times as fast as hand padding"] = is_kept(ratio >= FASTER_THAN_HAND)
        mine, theirs = (figures[who]["executables"] for who in ("ours", "hand"))
        found[f"ours no more executables ({mine}) than hand padding ({theirs})"] = is_kept(mine <= theirs)
    return found


def main(
    who: Annotated[str, typer.Option(help="comma-separated: " + ", ".join((*WAYS, *OTHERS)))] = "",
    run: Annotated[str, typer.Option(hidden=True)] = "",
    steadily: Annotated[bool, typer.Option("--steady", help="time later passes instead")] = False,
    seconds: Annotated[float, typer.Option(help="of timing, with --steady")] = 120.0,
    torch_python: Annotated[str, typer.Option(help="the Python that has torch and onnxruntime")] = "",
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the figures here")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="fail unless all limits are kept")] = False,
) -> None:
    """MiniLM-L6 over a stream of texts of many lengths."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    if run:
        assert json_out is not None
        json_out.write_text(json.dumps(first_pass(run, quick)))
        return
    names = who.split(",") if who else list(QUICK_WAYS) if quick else [*WAYS, *([] if steadily else OTHERS)]
    console.print(machine())
    figures: dict[str, Any]
    if steadily:
        timings = steady(0.0 if quick else seconds, names, quick, console)
        verdicts = limits_of_steady(timings)
        beside = [o for o in PADDED_OR_EXACT if o in names]
        figures = {
            n: {"seconds": timings.median(n), **{o: asdict(longer(timings, n, o)) for o in beside}} for n in names
        }
    else:
        figures = first_passes(names, torch_python, quick, console)
        verdicts = limits_of_first(figures)
    if json_out:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(json.dumps({"version": 2, "machine": machine(), "figures": figures}, indent=1))
    for wanted, verdict in verdicts.items():
        console.print(f"{wanted}: {told(verdict)}")
    if strict and any(v != WITHIN for v in verdicts.values()):
        raise typer.Exit(1)


def first_passes(names: list[str], torch_python: str, quick: bool, console: Console) -> dict[str, Any]:
    """Returns the first pass of each way, with its embeddings compared to those of the first way."""
    figures: dict[str, Any] = {}
    known: np.ndarray | None = None
    for name in names:
        row = in_a_process(name, torch_python, quick)
        if isinstance(row, str):
            console.print(f"{name} is left out: {row}")
            continue
        mine = np.array(row.pop("embeddings"))
        known = mine if known is None else known
        cosine = float(np.min(np.sum(mine * known, axis=1)))
        if not cosine >= 0.9999:
            raise SystemExit(f"{name}: the embeddings differ (worst cosine {cosine:.7f})")
        figures[name] = {**row, "cosine": cosine}
        console.print(f"{name}: {row['first']:.1f} s")
    table = Table(
        "first pass", "in all", "of processors", "times as fast as hand padding", "as jit", "executables",
        "later passes", "worst cosine",
    )  # fmt: skip
    for name, row in figures.items():
        count = str(row["executables"]) if row["executables"] else ""
        beside = (f"{figures[o]['first'] / row['first']:.1f}" if o in figures else "" for o in PADDED_OR_EXACT)
        table.add_row(
            name, f"{row['first']:.1f} s", f"{row['processor']:.1f} s", *beside, count, f"{row['later']:.2f} s",
            f"{row['cosine']:.7f}",
        )  # fmt: skip
    console.print(table)
    return figures


if __name__ == "__main__":
    typer.run(main)
