"""Real ONNX models from PyPI wheels under relax_eg, `jax.jit` of what was read, and onnxruntime on one and two threads.

    python -m benchmarks.onnx [--only detector,classifier] [--json out.json] [--write] [--strict] [--quick]

The models are the three networks of `rapidocr_onnxruntime`, which see a picture of text, and the voice detector of
`silero_vad`, which hears a vowel (`pip install --no-deps rapidocr_onnxruntime silero-vad`). What is not installed is
left out. Every way has a process of its own for each model; the processes take turns, and those whose turn it is not
are stopped (`benchmarks.peer_turns`).
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import Quick, write_between
from benchmarks.peer_programs import JAX, OCR, OURS, folder_of
from benchmarks.peer_turns import Worker, serve
from benchmarks.timing import Estimate, duration, machine
from relax_eg.ops import counts, site_of
from relax_eg.ops.record import operators_run_as

ONE, TWO = "onnxruntime, 1 thread", "onnxruntime, 2 threads"
WAYS = (OURS, JAX, ONE, TWO)
ROUNDS, QUICK_ROUNDS = 15, 6  # chosen: turns of each way; fewer enclose no median
LONGEST = 600.0  # limit: seconds of an answer
OVER_JAX, OVER_ORT = 2.0, 1.5  # given: wanted: times as fast as `jax.jit`; times as long as onnxruntime's better way
TOLERANCE = 1e-3  # given: of results, relative to the largest magnitude of onnxruntime's
_CONTRACTIONS = operators_run_as("conv", "matmul", "transposed_matmul")
DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- python -m benchmarks.onnx --write: from here -->", "<!-- onnx: to here -->"


@dataclass(frozen=True)
class Model:
    """A model file and its inputs. `specs`: the shapes of inputs, by name, for which it is read."""

    name: str
    path: Path
    specs: Mapping[str, str]
    inputs: Callable[[], dict[str, np.ndarray]]


# Letters of 5 x 7 points, a row of five bits each.
_LETTERS = {
    "R": (30, 17, 17, 30, 20, 18, 17), "E": (31, 16, 16, 30, 16, 16, 31), "L": (16, 16, 16, 16, 16, 16, 31),
    "A": (14, 17, 17, 31, 17, 17, 17), "X": (17, 17, 10, 4, 10, 17, 17), "G": (14, 17, 16, 23, 17, 17, 14),
}  # fmt: skip


def written(word: str, height: int, width: int, scale: int = 5) -> np.ndarray:
    """A picture (1, 3, height, width) in -1 to 1: dark rows of `word` on light ground, `scale` pixels a point."""
    rows = [[(r >> (4 - c)) & 1 for c in range(5)] + [0] for letter in word for r in _LETTERS[letter]]
    line = np.concatenate(np.array(rows).reshape(len(word), 7, 6), 1)
    ink = np.kron(line, np.ones((scale, scale), int))
    page = np.ones((height, width), np.float32)
    step = ink.shape[0] + 3 * scale
    for top in range(2 * scale, height - ink.shape[0] + 1, step):
        part = ink[:, : width - 2 * scale]
        page[top : top + ink.shape[0], 2 * scale : 2 * scale + part.shape[1]] -= 1.8 * part
    return np.broadcast_to(page, (1, 3, height, width)).copy()


def spoken(samples: int) -> np.ndarray:
    """A vowel at 16 kHz, (1, samples): a train of pulses at 120 Hz through three formants."""
    t = np.arange(4 * samples) / 16_000
    pulses = (np.diff(np.floor(120 * t), prepend=0) > 0).astype(float)
    sound = np.zeros(len(t))
    for formant, width, loudness in ((700, 80, 1.0), (1_200, 90, 0.5), (2_600, 120, 0.25)):
        sound += loudness * np.convolve(pulses, np.exp(-width * np.pi * t) * np.sin(2 * np.pi * formant * t))[: len(t)]
    return (0.5 * sound / np.abs(sound).max())[None, -samples:].astype(np.float32)


def models() -> Iterator[Model]:
    """The models of what is installed."""
    if folder := folder_of("rapidocr_onnxruntime"):
        for name, (part, shape) in OCR.items():
            (path,) = (folder / "models").glob(f"*{part}_infer.onnx")

            def picture(shape: str = shape) -> dict[str, np.ndarray]:
                return {"x": written("RELAXEGRELAX", *map(int, shape.split()[2:]))}

            yield Model(name, path, {"x": shape}, picture)
    if folder := folder_of("silero_vad"):
        inputs = {"input": "1 576", "state": "2 1 128"}

        def sound() -> dict[str, np.ndarray]:
            return {"input": spoken(576), "state": np.zeros((2, 1, 128), np.float32)}

        yield Model("voice detector", folder / "data" / "silero_vad_openvino_16k.onnx", inputs, sound)


# -- one process each


def work(way: str) -> None:
    named = {m.name: m for m in models()}
    if way in (OURS, JAX):
        jax.block_until_ready(jax.jit(lambda x: x + 1.0)(jnp.zeros(4)))
    make = {OURS: _ours, JAX: _jitted, ONE: lambda m: _onnxruntime(m, 1), TWO: lambda m: _onnxruntime(m, 2)}[way]
    package = {OURS: "relax-eg", JAX: "jax"}.get(way, "onnxruntime")
    serve(lambda name: make(named[name]), lambda found: [np.asarray(x) for x in jax.tree.leaves(found)], package)


def _read(model: Model) -> tuple[Any, list[Any]]:
    """The module, and its inputs as arrays of JAX, in its order."""
    import relax_eg as rx

    module, given = rx.from_onnx(str(model.path), inputs=dict(model.specs)), model.inputs()
    names = [str(p.attr("name")) for p in module.main.params if str(p.attr("name")) not in module.weights]
    return module, [jnp.asarray(given[n]) for n in names]


def _ours(model: Model) -> Callable[[], Any]:
    import relax_eg as rx

    module, given = _read(model)
    best = rx.optimize(module, weights=tuple(module.weights)).prepare(**module.weights)
    return lambda: jax.block_until_ready(best(*given))


def _jitted(model: Model) -> Callable[[], Any]:
    from relax_eg.backend.lowering.lower import run_function

    module, given = _read(model)
    weights = [jnp.asarray(w) for w in module.weights.values()]
    run = jax.jit(lambda *xs: run_function(module, module.main, xs))
    return lambda: jax.block_until_ready(run(*given, *weights))


def _onnxruntime(model: Model, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    wanted = {x.name for x in session.get_inputs()}
    given = {n: x for n, x in model.inputs().items() if n in wanted}
    return lambda: session.run(None, given)


# -- the table


SIDE, TRIES = 1024, 20  # chosen: side of the matmul of which the rate is taken, and how often it is timed


def contracted_flops(model: Model) -> float:
    """The flops of the convolutions and matmuls of a model as it is written."""
    module, _ = _read(model)
    nodes = [e for e in module.main.expressions() if e.op in _CONTRACTIONS]
    return sum(counts(site_of(e)).flops.evaluate({}) for e in nodes)


def matmul_rate() -> float:
    """The flop/s of XLA's float32 matmul of `SIDE`, on all cores."""
    x = jnp.ones((SIDE, SIDE))
    run = jax.jit(jnp.matmul)
    jax.block_until_ready(run(x, x))
    taken = list[float]()
    for _ in range(TRIES):
        start = time.perf_counter()
        jax.block_until_ready(run(x, x))
        taken.append(time.perf_counter() - start)
    return 2.0 * SIDE**3 / min(taken)


@dataclass
class Row:
    """A model's figures: by way, the seconds of a call, of the first results, MiB, and the largest difference from
    onnxruntime's results, relative to their largest magnitude.

    - `load`: processes that ran on average before.
    - `bound`: seconds that the model's contractions take at the rate of a large matmul.
    """

    name: str
    seconds: dict[str, float]
    first: dict[str, float]
    peak: dict[str, float]
    difference: dict[str, float]
    over_jax: Estimate
    over_ort: Estimate
    load: float
    bound: float

    @property
    def kept(self) -> bool:
        same = all(d <= TOLERANCE for d in self.difference.values())
        return same and self.over_jax.value >= OVER_JAX and self.over_ort.value >= 1 / OVER_ORT


def measured(model: Model, rounds: int) -> Row:
    """The row of a model. RuntimeError if a way gives no result."""
    with tempfile.TemporaryDirectory() as place:
        folder, load = Path(place), os.getloadavg()[0]
        command = [sys.executable, "-m", "benchmarks.onnx", "--run"]
        workers = {w: Worker([*command, w], folder / f"{i}.log", LONGEST) for i, w in enumerate(WAYS)}
        try:
            first, results = dict[str, float](), dict[str, list[np.ndarray]]()
            for i, (way, worker) in enumerate(workers.items()):
                answer = _asked(worker, make=model.name, to=str(folder / f"{i}.npz"))
                first[way] = answer["seconds"]
                with np.load(folder / f"{i}.npz") as file:
                    results[way] = [file[n] for n in file.files]
            taken: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way in random.sample(WAYS, len(WAYS)):
                    taken[way].append(_asked(workers[way], turn=True)["seconds"])
            bound = contracted_flops(model) / matmul_rate()
            peak = {way: _asked(w, peak=True)["peak"] for way, w in workers.items()}
        finally:
            for w in workers.values():
                w.end()
    times = {way: np.array(s) for way, s in taken.items()}
    better = min((ONE, TWO), key=lambda way: float(np.median(times[way])))
    return Row(
        model.name, {way: float(np.median(s)) for way, s in times.items()}, first, peak,
        {way: _difference(found, results[ONE]) for way, found in results.items()},
        Estimate.of(times[JAX] / times[OURS]), Estimate.of(times[better] / times[OURS]), load, bound,
    )  # fmt: skip


def _asked(worker: Worker, **request: Any) -> dict[str, Any]:
    answer = worker.ask(**request)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def _difference(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    return max(
        float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.shape == b.shape else float("inf")
        for a, b in zip(found, wanted, strict=True)
    )


HEAD = (
    "model", "ours", "jax.jit", "ort, 1 thread", "ort, 2 threads", "over jax.jit", "over ort", "first, ours / ort",
    "MiB, ours / ort", "differs by", "bound",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    times = [duration(row.seconds[way]) for way in WAYS]
    first = f"{duration(row.first[OURS])} / {duration(row.first[TWO])}"
    peak = f"{row.peak[OURS]:.0f} / {row.peak[TWO]:.0f}"
    bound = f"{duration(row.bound)} ({row.bound / row.seconds[OURS]:.0%})"
    differs = f"{max(row.difference.values()):.0e}"
    return [row.name, *times, str(row.over_jax), str(row.over_ort), first, peak, differs, bound]


def markdown(rows: Sequence[Row]) -> str:
    lines = [list(HEAD), ["---", *["--:"] * (len(HEAD) - 1)], *map(cells, rows)]
    load = max(r.load for r in rows)
    return f"{machine()}; other processes that ran: up to {load:.1f} on average.\n\n" + "\n".join(
        f"| {' | '.join(line)} |" for line in lines
    )


def main(
    only: Annotated[str, typer.Option(help="models whose name contains one of these words, comma-separated")] = "",
    run: Annotated[str, typer.Option(hidden=True)] = "",
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    write: Annotated[bool, typer.Option("--write", help="put the table into docs/benchmarks.md")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="fail unless all limits are kept")] = False,
    quick: Quick = False,
) -> None:
    """Real ONNX models: calls of ours over jax.jit and onnxruntime."""
    if run:
        work(run)
        return
    words = [w.strip() for w in only.split(",") if w.strip()]
    wanted = [m for m in models() if not words or any(w in m.name for w in words)]
    rows = [measured(m, QUICK_ROUNDS if quick else ROUNDS) for m in wanted]
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else 190).print(table)
    if json_out:
        json_out.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n")
    if write and rows and not quick:
        write_between(DOCUMENT, BEGIN, END, markdown(rows))
    if strict and not all(row.kept for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
