"""Programs on a GPU: as written under `jax.jit`, and ours as one XLA program, in kernels, and as one without cuDNN.

    python -m benchmarks.gpu [--device h100] [--dtype bfloat16] [--only attention] [--json rows.json] [--resume]
    python -m benchmarks.gpu --search build/gpu                     # chooses the programs and saves them; nothing more
    python -m benchmarks.gpu --fidelity [--way whole]               # what is predicted beside what XLA compiles
    python -m benchmarks.gpu --fidelity --functions                 # the same of small functions (`gpu_functions`)
    python -m benchmarks.gpu --run [--programs build/gpu] [--budget 220] [--json out.json]  # on a machine with a GPU

`--write` puts the tables of a run into the documentation; with `--read` of the rows that `--json` kept. With `--resume`
the rows that its file has are kept, and programs that are in none of them are compiled. A row tells the commit of it.
XLA's matmuls have its default tiles here: others change none of the figures, and take twice as long to compile.

Without `--run` XLA compiles them for GPUs that need not be there (`pip install 'relax-eg[cuda]'`). A row has kernels
(launches of a call), temporary bytes, and XLA's own estimate of the time of the kernels that it estimates, the same
models on all sides (`relax_eg.backend.gpu.hlo`). Kernels through Pallas, and routines but matmuls, have no estimate;
where there are any, the estimate is a lower bound and no ratio is formed; nor where XLA says of a kernel that it takes
less than `SHORTEST` of the time in which its bytes pass through memory. The small patterns have forms by hand too,
of which the one with the least estimate counts; ours is to reach it within `NEAR_BEST` where it wins by
`WORTH_FINDING` over as written (`benchmarks.patterns`).

With `--run` all take turns, each called several times in a row and then waited for, as a device is kept busy. Ratios
are medians over the rounds with their intervals. Results are compared with those of the function as written in float32
at the highest precision of matmuls: ours must not be more than twice as far from these as the function as written (norm
of the difference over norm; up to the rounding of its dtype).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.gpu_cases import DTYPES, KERNELS, OWN, WAYS, WHOLE, Subject, subjects
from benchmarks.gpu_fidelity import FUNCTIONS, WRITTEN, FidelityRow, as_written, fidelity_summary, rows_of_fidelity
from benchmarks.gpu_functions import functions
from benchmarks.gpu_pages import NO_WORSE, SHORTEST, CompiledRow, Made, write_compiled, write_fidelity
from benchmarks.patterns import WORTH_FINDING
from benchmarks.timing import QUICK_SECONDS, Estimate, commit, duration, machine, measure
from relax_eg.backend.gpu.hlo import Launch, launches
from relax_eg.backend.gpu.target import GpuTarget, target_for
from relax_eg.errors import OptionError
from relax_eg.extract.profiles.devices import profile
from relax_eg.measure.device import default_profile

IN_A_ROW = 8  # calls that are queued before they are waited for
ROUNDED = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-3}  # differences up to these are not judged
AS_FAR = 2.0  # a result may be so many times as far from the precise one as that of the function as written
QUICK_SUBJECTS = 1
VERSION = 2  # of the file of rows; 1 had no forms by hand


def search(chosen: list[Subject], target: str, folder: Path) -> None:
    """Chooses the programs for a device, and saves them."""
    folder.mkdir(parents=True, exist_ok=True)
    for subject in chosen:
        started = time.perf_counter()
        found = searched(subject, target)
        for way, best in found.items():
            best.save(saved(folder, subject, way))
        gains = ", ".join(f"{way} {best.report.predicted_gain:.2f}" for way, best in found.items())
        print(f"{subject.name}, {subject.dtype}: {gains}; {time.perf_counter() - started:.1f} s", flush=True)


def searched(subject: Subject, target: Any) -> dict[str, rx.types.Optimized]:
    """What is chosen for a device, by way; without the way that leaves cuDNN out, where that is the same program."""
    found = {way: subject.optimize(way, target) for way in (WHOLE, KERNELS)}
    if "cudnn." in str(found[WHOLE].module):
        found[OWN] = subject.optimize(OWN, target)
    return found


def saved(folder: Path, subject: Subject, way: str) -> Path:
    return folder / f"{subject.file_name}-{way}.rxe"


def chosen_programs(subject: Subject, programs: Path | None, target: Any) -> dict[str, rx.types.Optimized]:
    """By way, what `search` saved, or else what searches find now."""
    if programs is None or not saved(programs, subject, WHOLE).exists():
        return searched(subject, target)
    paths = {way: saved(programs, subject, way) for way in WAYS}
    return {way: rx.load(path, measure="off") for way, path in paths.items() if path.exists()}


def program_of(subject: Subject, programs: Path | None, target: str, way: str) -> rx.types.Optimized:
    """A program as written, or what `search` saved of it, or else what a search finds now."""
    if way in (WRITTEN, FUNCTIONS):
        return as_written(subject, target)
    path = None if programs is None else saved(programs, subject, way)
    return subject.optimize(way, target) if path is None or not path.exists() else rx.load(path, measure="off")


# --- compiled ---


def compiled_row(subject: Subject, device: str, programs: Path | None) -> CompiledRow:
    """What XLA makes of a program as written, of its forms by hand, and of ours."""
    started, target = time.perf_counter(), target_for(device)
    specs = list(jax.eval_shape(subject.arguments))
    made, by_hand = {WRITTEN: made_of(subject.fn, specs, device)}, dict[str, Made]()
    for name, form in subject.forms.items():
        ready = specs if form.prepare is None else [jax.eval_shape(form.prepare, specs[0]), *specs[1:]]
        by_hand[name] = made_of(form.fn, ready, device)
    left: list[str] = []
    for way, best in chosen_programs(subject, programs, device).items():
        (found,) = best.compile(device, at=subject.at or None).programs
        kernels = [(e.times * k.times, k) for e in found.executables for k in e.launches]
        made[way] = made_from(kernels, found.temporary_bytes, device, target)
        left += [f"{way}: {why}" for why in found.missing.values()]
        left += [f"{way}: {name}: {why}" for name, why in found.left.items() if why.startswith("Pallas failed")]
    took = time.perf_counter() - started
    return CompiledRow(subject.name, subject.dtype, device, made, tuple(left), by_hand, took, commit())


def made_of(fn: Callable[..., Any], specs: list[Any], device: str) -> Made:
    """What XLA makes of a function under `jax.jit`."""
    target = target_for(device)
    compiled = target.compile(target.lowered(fn, jax.tree.map(target.place, specs)), {}, tiles=False).executable
    temporary = int(compiled.memory_analysis().temp_size_in_bytes)
    return made_from([(k.times, k) for k in launches(compiled.as_text())], temporary, device, target)


def made_from(kernels: list[tuple[int, Launch]], temporary: int, device: str, target: GpuTarget) -> Made:
    """What is told of kernels, each with how often it is launched."""
    fastest = SHORTEST / profile(device).bandwidth
    return Made(
        sum(n for n, _ in kernels),
        sum(n for n, k in kernels if k.kind == "Pallas"),
        temporary,
        None if target.why_no_estimates else sum(n * (k.seconds or 0.0) for n, k in kernels),
        sum(n for n, k in kernels if k.seconds is None),
        sum(n for n, k in kernels if k.seconds is not None and k.seconds < fastest * k.bytes),
    )


def summary(rows: list[CompiledRow]) -> str:
    """What of the goals is not reached."""
    worse = [f"  {r.name}, {r.dtype}, {r.device}: {text}" for r in rows for text in r.worse()]
    count = sum(len(r.made) - 1 for r in rows if not r.wrong)
    lines = [f"worse than as written by more than {NO_WORSE - 1:.0%}: {len(worse)} of {count}", *worse]
    winning = [r for r in rows if r.by_hand_wins]
    missed = [f"  {r.name}, {r.dtype}, {r.device}: {text}" for r in winning for text in r.missed()]
    lines += [f"forms by hand that win by {WORTH_FINDING:g}: {len(winning)}; not reached in {len(missed)}", *missed]
    return "\n".join(lines)


# --- measured ---


@dataclass(frozen=True)
class MeasuredRow:
    """A program on the device at hand.

    - `written`: seconds of a call as written; None where nothing was timed.
    - `speedups`: by way, over it.
    - `errors`: by way, the distance from the precise result, over its norm.
    - `pallas`: by way, the number of kernels lowered through Pallas.
    - `left`: why kernels that were to be lowered through Pallas were left to XLA.
    - `wrong`: what is wrong; "" if nothing is.
    """

    name: str
    dtype: str
    written: float | None = None
    speedups: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    pallas: Mapping[str, int] = field(default_factory=dict[str, int])
    left: tuple[str, ...] = ()
    wrong: str = ""

    def __str__(self) -> str:
        took = duration(self.written) if self.written is not None else "not timed"
        ratios = [f"{way} {found}" for way, found in self.speedups.items()]
        far = ", ".join(f"{x:.1e}" for x in self.errors.values())
        notes = [f"{way}: {n} through Pallas" for way, n in self.pallas.items() if n]
        notes += [f"left to XLA: {x}" for x in self.left]
        line = f"{self.name}, {self.dtype}: {took}; {'; '.join(ratios)}; off by {far}; {'; '.join(notes)}"
        return f"{line}  WRONG: {self.wrong}" if self.wrong else line


def measured_row(subject: Subject, seconds: float, programs: Path | None) -> MeasuredRow:
    """Times a program in all ways, and compares its results."""
    written = jax.jit(subject.fn)
    ours = chosen_programs(subject, programs, default_profile())
    args = subject.arguments()
    calls: dict[str, Callable[[], Any]] = {WRITTEN: lambda: written(*args)}
    calls |= {way: _prepared(best, subject, args) for way, best in ours.items()}
    precise = jax.tree.map(lambda x: x.astype("float32") if jnp.issubdtype(x.dtype, jnp.floating) else x, args)
    with jax.default_matmul_precision("highest"):
        expected = _host(jax.jit(subject.fn)(*precise))
    del precise
    with ThreadPoolExecutor() as pool:  # XLA compiles outside of Python's lock
        results = dict(zip(calls, pool.map(lambda call: _host(call()), calls.values()), strict=True))
    errors = {way: distance(found, expected) for way, found in results.items()}
    allowed = max(AS_FAR * errors[WRITTEN], ROUNDED[subject.dtype])
    wrong = ", ".join(f"{way} is off by {e:.1e}" for way, e in errors.items() if way != WRITTEN and not e <= allowed)
    found = measure({way: in_a_row(call) for way, call in calls.items()}, seconds)
    pallas = {
        way: [r.pallas for r in getattr(best.strategy, "runners", {}).values() if r.pallas is not None]
        for way, best in ours.items()
    }
    left = [reason for each in pallas.values() for p in each for reason in p.left.values()]
    return MeasuredRow(
        subject.name,
        subject.dtype,
        found.median(WRITTEN) / IN_A_ROW,
        {way: found.speedup(way, WRITTEN) for way in ours},
        errors,
        {way: sum(len(p.taken) for p in each) for way, each in pallas.items()},
        tuple(reason for reason in left if reason.startswith("Pallas failed")),
        wrong,
    )


def _prepared(best: Any, subject: Subject, args: list[Any]) -> Callable[[], Any]:
    if not subject.weights:
        return lambda: best(*args)
    ready, others = best.prepare(args[0]), args[1:]  # the weights are the first argument
    return lambda: ready(*others)


def in_a_row(call: Callable[[], Any]) -> Callable[[], Any]:
    def several() -> Any:
        for _ in range(IN_A_ROW - 1):
            call()
        return call()

    return several


def _host(result: Any) -> list[np.ndarray]:
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(result)]


def distance(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest, over the results, of the norm of the difference over the norm; NaN where one holds NaN."""
    pairs = zip(found, expected, strict=True)
    return float(np.max([np.linalg.norm((a - b).ravel()) / (np.linalg.norm(b.ravel()) or 1.0) for a, b in pairs]))


# --- the command ---


def _first_line(e: Exception) -> str:
    text = str(e).strip().splitlines()
    return f"{type(e).__name__}: {text[0][:300] if text else ''}"


def rows_of_run(chosen: list[Subject], seconds: float, end: float, programs: Path | None) -> Iterator[MeasuredRow]:
    """Yields what is measured until the clock says `end`; a program that fails is a row that says so."""
    for subject in chosen:
        if time.perf_counter() > end:
            print("out of time: what is left was not measured", flush=True)
            return
        try:
            yield measured_row(subject, seconds, programs)
        except Exception as e:  # one program that fails must not take the others along
            yield MeasuredRow(subject.name, subject.dtype, wrong=_first_line(e))


def rows_of_compiling(each: Iterable[tuple[Subject, str]], programs: Path | None) -> Iterator[CompiledRow]:
    """Yields what XLA makes of programs for devices; a program that fails is a row that says so."""
    for subject, device in each:
        try:
            yield compiled_row(subject, device, programs)
        except Exception as e:  # as above
            yield CompiledRow(subject.name, subject.dtype, device, wrong=_first_line(e), commit=commit())


def save(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"version": VERSION, "machine": machine(), "date": str(date.today())}
    path.write_text(json.dumps({**about, "rows": [asdict(r) for r in rows]}, indent=1))


def main(
    run: Annotated[bool, typer.Option("--run", help="time the programs on the GPU at hand")] = False,
    search_into: Annotated[
        Path | None, typer.Option("--search", help="choose the programs, and save them here")
    ] = None,
    programs: Annotated[Path | None, typer.Option(help="what --search saved; without it, searches")] = None,
    devices: Annotated[list[str] | None, typer.Option("--device", help="h100 or another; may be given again")] = None,
    only: Annotated[str, typer.Option(help="programs whose names contain one of these words, by commas")] = "",
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="this dtype; may be given again")] = None,
    fidelity: Annotated[bool, typer.Option("--fidelity", help="what is predicted beside what XLA compiles")] = False,
    ways: Annotated[list[str] | None, typer.Option("--way", help=f"with --fidelity: {', '.join(WAYS)}")] = None,
    small: Annotated[bool, typer.Option("--functions", help="with --fidelity: small functions, as written")] = False,
    seconds: Annotated[float, typer.Option(help="of timing, for each program")] = 0.5,
    budget: Annotated[float, typer.Option(help="with --run: stop after so many seconds")] = 220.0,
    quick: Quick = False,
    strict: Annotated[bool, typer.Option("--strict", help="fail where ours is worse than as written")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep the rows that the file of --json has")] = False,
    read: Annotated[list[Path] | None, typer.Option("--read", help="compile nothing; rows of --json")] = None,
    write: Annotated[bool, typer.Option("--write", help="put the tables into the documentation")] = False,
) -> None:
    """Programs on a GPU: as written, and ours."""
    end = time.perf_counter() + budget
    if read:
        kept = [rows_of_file(path, fidelity) for path in read]
        _tell([row for _, rows in kept for row in rows], fidelity, max(when for when, _ in kept) if write else "")
        return
    words = [w.strip().lower() for w in only.split(",") if w.strip()]
    if not run and search_into is None:
        try:  # before JAX looks for devices, and before anything is searched
            for device in devices or ["h100"]:
                target_for(device).chooses_tiles = False
        except OptionError as e:
            print(f"nothing is compiled: {e}")
            return
    if run and jax.default_backend() != "gpu":
        print(f"nothing is timed: JAX runs on {jax.default_backend()} here, not on a GPU")
        return
    listed = (functions if small else subjects)(tuple(dtypes or DTYPES))
    chosen = [s for s in listed if not words or any(w in s.name.lower() for w in words)]
    chosen = chosen[:QUICK_SUBJECTS] if quick else chosen
    if search_into is not None:
        search(chosen, (devices or ["h100"])[0], search_into)
        return
    print(machine(), flush=True)
    rows: list[Any] = []
    if resume and json_out and json_out.exists() and not run:
        rows = [r for r in rows_of_file(json_out, fidelity)[1] if not r.wrong]
    if run:
        print("ratios over as written, above 1 is faster; distances of as written and of ours", flush=True)
        found: Iterator[Any] = rows_of_run(chosen, QUICK_SECONDS if quick else seconds, end, programs)
    elif fidelity:
        here = {(r.name, r.dtype, r.device, r.way) for r in rows}
        wanted = itertools.product(devices or ["h100"], chosen, [FUNCTIONS] if small else ways or [WRITTEN, WHOLE])
        missing = ((d, s, w) for d, s, w in wanted if (s.name, s.dtype, d, w) not in here)
        found = rows_of_fidelity(missing, programs, program_of)
    else:
        kept = {(r.name, r.dtype, r.device) for r in rows}
        each = ((s, d) for d in devices or ["h100"] for s in chosen if (s.name, s.dtype, d) not in kept)
        found = rows_of_compiling(each, programs)
    for row in found:
        rows.append(row)
        print(f"{row}  [{end - time.perf_counter():.0f} s left]" if run else row, flush=True)
        if json_out:
            save(json_out, rows)
    if not run:
        _tell(rows, fidelity, str(date.today()) if write and not quick else "")
    compared = strict and not run and not fidelity
    if any(row.wrong for row in rows) or (compared and any(row.worse() for row in rows)):
        sys.exit(1)


def rows_of_file(path: Path, fidelity: bool) -> tuple[str, list[Any]]:
    """The day of a run, and its rows, as `save` wrote them."""
    data = json.loads(path.read_text())
    if data["version"] != VERSION:
        sys.exit(f"{path}: version {data['version']}; {VERSION} is accepted")
    if fidelity:
        return data["date"], [FidelityRow(**{k: tuple(v) if isinstance(v, list) else v for k, v in r.items()})
                              for r in data["rows"]]  # fmt: skip
    return data["date"], [row_of_data(r) for r in data["rows"]]


def row_of_data(data: Mapping[str, Any]) -> CompiledRow:
    """A row of programs compiled, as `save` wrote it."""
    made = {key: {name: Made(**m) for name, m in data[key].items()} for key in ("made", "by_hand")}
    return CompiledRow(**{**data, **made, "left": tuple(data["left"])})


def _tell(rows: list[Any], fidelity: bool, written_on: str) -> None:
    """Prints the summary; with a day also puts the tables into the documentation."""
    print(fidelity_summary(rows) if fidelity else summary(rows))
    if written_on:
        (write_fidelity if fidelity else write_compiled)(rows, written_on)


if __name__ == "__main__":
    typer.run(main)
