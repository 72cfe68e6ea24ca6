"""Programs on a GPU: as written under `jax.jit`, and ours as one XLA program and in kernels.

    python -m benchmarks.gpu --search build/gpu                     # anywhere: chooses the programs and saves them
    python -m benchmarks.gpu --run --programs build/gpu [--budget 220] [--dtype bfloat16] [--only attention]
                             [--json out.json]                      # on a machine with a GPU

With `--run`, on a machine with a GPU, all three take turns, each called several times in a row and then waited for, as
a device is kept busy. Ratios are medians over the rounds with their intervals. Results are compared with those of the
function as written in float32 at the highest precision of matmuls: ours must not be more than twice as far from these
as the function as written (norm of the difference over norm; up to the rounding of its dtype).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.gpu_cases import DTYPES, Subject, subjects
from benchmarks.timing import QUICK_SECONDS, Estimate, duration, machine, measure
from relax_eg.measure.device import default_profile

WRITTEN, WHOLE, KERNELS = "as written", "whole", "kernels"
IN_A_ROW = 8  # calls that are queued before they are waited for
ROUNDED = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-3}  # differences up to these are not judged
AS_FAR = 2.0  # a result may be so many times as far from the precise one as that of the function as written
QUICK_SUBJECTS = 1


@dataclass(frozen=True)
class Measured:
    """A program on the device at hand.

    - `written`: seconds of a call as written.
    - `whole`, `kernels`: speed-ups over it; None where the program was not timed.
    - `errors`: by way, the distance from the precise result, over its norm.
    - `pallas`, `left`: numbers of kernels lowered through Pallas, and of those meant for it that XLA compiled.
    - `wrong`: what is wrong; "" if nothing is.
    """

    name: str
    dtype: str
    written: float | None = None
    whole: Estimate | None = None
    kernels: Estimate | None = None
    errors: Mapping[str, float] | None = None
    pallas: int = 0
    left: tuple[str, ...] = ()
    wrong: str = ""

    def __str__(self) -> str:
        took = duration(self.written) if self.written is not None else "not timed"
        ratios = [f"{way} {found}" for way, found in ((WHOLE, self.whole), (KERNELS, self.kernels)) if found]
        far = ", ".join(f"{x:.1e}" for x in (self.errors or {}).values())
        notes = [f"{self.pallas} through Pallas"] * bool(self.pallas) + [f"left to XLA: {x}" for x in self.left]
        line = f"{self.name}, {self.dtype}: {took}; {'; '.join(ratios)}; off by {far}; {'; '.join(notes)}"
        return f"{line}  WRONG: {self.wrong}" if self.wrong else line


def search(chosen: list[Subject], target: str, folder: Path) -> None:
    """Chooses the programs for a device, and saves them."""
    folder.mkdir(parents=True, exist_ok=True)
    for subject in chosen:
        for way in (WHOLE, KERNELS):
            started = time.perf_counter()
            best = subject.optimize(way, target)
            best.save(saved(folder, subject, way))
            took = time.perf_counter() - started
            print(f"{subject.name}, {subject.dtype}, {way}: {best.report.predicted_gain:.2f}, {took:.1f} s", flush=True)


def saved(folder: Path, subject: Subject, way: str) -> Path:
    return folder / f"{subject.file_name}-{way}.rxe"


def chosen_program(subject: Subject, way: str, programs: Path | None) -> rx.types.Optimized:
    """What `search` saved, or else what a search for the device at hand finds now."""
    if programs is not None and (path := saved(programs, subject, way)).exists():
        return rx.load(path, settle="off")
    return subject.optimize(way, default_profile())


def run_subject(subject: Subject, seconds: float, programs: Path | None) -> Measured:
    """Times a program in the three ways, and compares its results."""
    written = jax.jit(subject.fn)
    whole, kernels = (chosen_program(subject, way, programs) for way in (WHOLE, KERNELS))
    args = subject.arguments()
    calls: dict[str, Callable[[], Any]] = {WRITTEN: lambda: written(*args)}
    for way, best in ((WHOLE, whole), (KERNELS, kernels)):
        calls[way] = _prepared(best, subject, args)
    precise = jax.tree.map(lambda x: x.astype("float32") if jnp.issubdtype(x.dtype, jnp.floating) else x, args)
    with jax.default_matmul_precision("highest"):
        expected = [np.asarray(x, np.float64) for x in jax.tree.leaves(jax.jit(subject.fn)(*precise))]
    del precise
    with ThreadPoolExecutor() as pool:  # XLA compiles outside of Python's lock
        results = dict(zip(calls, pool.map(lambda call: _host(call()), calls.values()), strict=True))
    errors = {way: distance(found, expected) for way, found in results.items()}
    allowed = max(AS_FAR * errors[WRITTEN], ROUNDED[subject.dtype])
    wrong = ", ".join(f"{way} is off by {e:.1e}" for way, e in errors.items() if way != WRITTEN and not e <= allowed)
    found = measure({way: _in_a_row(call) for way, call in calls.items()}, seconds)
    pallas = [r.pallas for r in getattr(kernels.strategy, "runners", {}).values() if r.pallas is not None]
    return Measured(
        subject.name,
        subject.dtype,
        found.median(WRITTEN) / IN_A_ROW,
        found.speedup(WHOLE, WRITTEN),
        found.speedup(KERNELS, WRITTEN),
        errors,
        sum(len(p.taken) for p in pallas),
        tuple(reason for p in pallas for reason in p.left.values() if reason.startswith("Pallas failed")),
        wrong,
    )


def _prepared(best: Any, subject: Subject, args: list[Any]) -> Callable[[], Any]:
    if not subject.weights:
        return lambda: best(*args)
    ready, others = best.prepare(args[0]), args[1:]  # the weights are the first argument
    return lambda: ready(*others)


def _in_a_row(call: Callable[[], Any]) -> Callable[[], Any]:
    def several() -> Any:
        for _ in range(IN_A_ROW - 1):
            call()
        return call()

    return several


def _host(result: Any) -> list[np.ndarray]:
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(result)]


def distance(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest, over the results, of the norm of the difference over the norm; NaN where one holds NaN."""
    each = [
        np.linalg.norm((a - b).ravel()) / (np.linalg.norm(b.ravel()) or 1.0)
        for a, b in zip(found, expected, strict=True)
    ]
    return float(np.max(each))


def measured(chosen: list[Subject], seconds: float, end: float, programs: Path | None) -> Iterator[Measured]:
    """Yields what is measured until the clock says `end`; a program that fails is a row that says so."""
    for subject in chosen:
        if time.perf_counter() > end:
            print("out of time: what is left was not measured", flush=True)
            return
        try:
            yield run_subject(subject, seconds, programs)
        except Exception as e:  # one program that fails must not take the others along
            first = str(e).strip().splitlines()[0] if str(e).strip() else ""
            yield Measured(subject.name, subject.dtype, wrong=f"{type(e).__name__}: {first[:200]}")


def save(path: Path, rows: list[Measured]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "machine": machine(), "rows": [asdict(r) for r in rows]}, indent=1))


def main(
    run: Annotated[bool, typer.Option("--run", help="time the programs on the GPU at hand")] = False,
    searched: Annotated[Path | None, typer.Option("--search", help="choose the programs, save them here")] = None,
    programs: Annotated[Path | None, typer.Option(help="with --run: what --search saved; else it searches")] = None,
    device: Annotated[str, typer.Option(help="h100, h200, a100, rtx4090")] = "h100",
    only: Annotated[str, typer.Option(help="programs whose names contain one of these words, by commas")] = "",
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="this dtype; may be given again")] = None,
    seconds: Annotated[float, typer.Option(help="of timing, for each program")] = 0.5,
    budget: Annotated[float, typer.Option(help="stop after so many seconds")] = 220.0,
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
) -> None:
    """Programs on a GPU: as written, and ours."""
    end = time.perf_counter() + budget
    words = [w.strip().lower() for w in only.split(",") if w.strip()]
    chosen = [s for s in subjects(tuple(dtypes or DTYPES)) if not words or any(w in s.name.lower() for w in words)]
    chosen = chosen[:QUICK_SUBJECTS] if quick else chosen
    if searched is not None:
        search(chosen, device, searched)
    if not run:
        return
    if jax.default_backend() != "gpu":
        raise SystemExit(f"--run: JAX runs on {jax.default_backend()} here, not on a GPU")
    print(f"{machine()}\nratios over as written, above 1 is faster; distances as written, whole, kernels", flush=True)
    rows: list[Measured] = []
    for row in measured(chosen, QUICK_SECONDS if quick else seconds, end, programs):
        rows.append(row)
        print(f"{row}  [{end - time.perf_counter():.0f} s left]", flush=True)
        if json_out:
            save(json_out, rows)
    if any(row.wrong for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
