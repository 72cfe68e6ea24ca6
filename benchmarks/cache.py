"""The time that the disk cache saves: `rx.optimize` in a process that searches, and in processes that find its entry.

    python -m benchmarks.cache [--processes 3]

Each run is a process of its own; imports are not counted. The first process searches, the others read the cache. A last
process finds the answers of rules alone, as after an edit of the program that changes none of the questions, and
searches again. XLA is not run. The table shows seconds of wall time, and in brackets of processor time, which a busy
machine changes less; for the processes that read the cache, the median. The machine is not calibrated.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.scale import decoder, decoder_specs
from relax_eg.logs import clock
from relax_eg.rules.answer_cache import ANSWERS


@dataclass(frozen=True)
class Run:
    """One call of `rx.optimize`.

    - `seconds`, `cpu`, `trace`: seconds of wall time, of processor time, and of wall time for tracing.
    - `cached`: whether the cache served the call.
    - `operators`: operators of the program as written.
    - `kept`: whether the program as written was kept.
    - `entry`: bytes of the cache entries.
    """

    seconds: float
    cpu: float
    trace: float
    cached: bool
    operators: int
    kept: bool
    entry: int


def low_rank(x: Any, w: Any, down: Any, up: Any) -> Any:
    return x @ (w + down @ up)


def encoder() -> rx.types.Optimized:
    from examples import minilm

    params, _ = minilm.load()
    started.append((time.perf_counter(), time.process_time()))  # reading the weights is not optimizing
    return rx.optimize(minilm.encode, params, "b s @ int32", "b s @ int32", weights=("params",), at={"b": 1, "s": 16})


PROGRAMS: dict[str, Callable[[], rx.types.Optimized]] = {
    "adapted layer": lambda: rx.optimize(low_rank, "b 1024", "1024 1024", "1024 16", "16 1024", at={"b": 8}),
    "MiniLM-L6": encoder,
    "decoder, 32 layers": lambda: rx.optimize(decoder, decoder_specs(32), "b s @ int32"),
    "decoder, 32 layers, weights": lambda: rx.optimize(
        decoder, decoder_specs(32), "b s @ int32", weights=("params",), at={"b": 1, "s": 16}
    ),
}
started: list[tuple[float, float]] = []


def run(name: str, folder: str) -> Run:
    """Optimize a program in this process, with the cache in `folder`."""
    os.environ |= {"RELAX_EG_CACHE": "1", "RELAX_EG_CACHE_DIR": folder, "RELAX_EG_CALIBRATE": "off"}
    started.append((time.perf_counter(), time.process_time()))
    with clock() as stages:
        report = PROGRAMS[name]().report
    seconds, cpu = time.perf_counter() - started[-1][0], time.process_time() - started[-1][1]
    left = rx.debug.cache.info().bytes
    return Run(seconds, cpu, stages["trace"], report.cached, report.before.count, report.kept_as_written, left)


def main(
    processes: Annotated[int, typer.Option(min=1, help="how many are served from the cache")] = 3,
    quick: Quick = False,
) -> None:
    """Seconds of `rx.optimize`: searched, and served from the cache."""
    table = Table(
        "program",
        "operators",
        "outcome",
        "searched s",
        "with the answers s",
        "served s",
        "of these traced",
        "entries kB",
    )
    if quick:
        processes = 1
    for name in list(PROGRAMS)[:1] if quick else PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            runs: list[Run] = []
            for _ in range(1 + processes):
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    runs.append(pool.submit(run, name, folder).result())
            for entry in Path(folder).glob("*.entry"):
                if not entry.name.startswith(ANSWERS):
                    entry.unlink()
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                again = pool.submit(run, name, folder).result()
        first, served = runs[0], runs[1:]
        if first.cached or again.cached or not all(r.cached for r in served):
            raise SystemExit(f"{name}: searched or served when it was not to be: {[r.cached for r in runs]}")
        table.add_row(
            name,
            f"{first.operators}",
            "as written" if first.kept else "optimized",
            f"{first.seconds:.2f} ({first.cpu:.2f})",
            f"{again.seconds:.2f} ({again.cpu:.2f})",
            f"{median(r.seconds for r in served):.3f} ({median(r.cpu for r in served):.3f})",
            f"{median(r.trace for r in served):.3f}",
            f"{first.entry / 1000:.1f}",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    from benchmarks.cache import main  # under this name what processes exchange is the same class in all of them

    typer.run(main)
