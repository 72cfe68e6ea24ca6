"""Times of functions of JAX libraries under `rx.jit`, over those under `jax.jit`.

    python -m benchmarks.library_times [--only optax,"GRU"] [--quick] [--json out.json] [--resume] [--budget 280]
    python -m benchmarks.library_times --json out.json --resume --budget 0 --write     # the table into the document

Needs the packages of the extra `libraries`. The functions are those of `benchmarks.library_cases` at their real sizes,
each as it is and as its gradient, and each in a process of its own, without the disk cache. `rx.jit` runs with its
default options:

- *first call*: tracing, the search and compiling, over the same of `jax.jit`, with empty caches. Both have run
  `x + 1` before, so what a process does once, when it first calls either, is not in it; it is told apart.
- *in the background*: the same with `search="background"`, where the first call does not wait for the search.
- *warm*: once the first calls have settled which program runs, both take turns.

Wanted: no function below 0.97 of `jax.jit`, a geometric mean of 1.05, and first calls of at most 1.3 times as long.
`benchmarks.timing` says when that is kept, broken or unsure. With `--strict` the command fails unless all is kept.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from benchmarks import Quick, write_between
from benchmarks.library_cases import CASES, REAL, SMALL, Use
from benchmarks.timing import (
    BEYOND,
    QUICK_SECONDS,
    WITHIN,
    Estimate,
    Verdict,
    duration,
    geometric_mean,
    machine,
    settle,
    settled,
    tally,
    told,
)  # fmt: skip
from relax_eg.processor import cores

LOWEST, LOWEST_MEAN, LONGEST_FIRST = 0.97, 1.05, 1.3
TIMEOUT = 300.0  # limit: seconds of a process
DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- python -m benchmarks.library_times --write: from here -->", "<!-- to here -->"
QUICK_CASES = 1
JAX, OURS = "jax.jit", "rx.jit"
VERSION = 1


@dataclass(frozen=True)
class Row:
    """One function. Times in seconds; ratios above 1 are good for us.

    - `warm`: median seconds of a call of `jax.jit`.
    - `speedup`: how many times as fast a call of `rx.jit` is.
    - `first`, `our_first`: the first call of each.
    - `background`: the first call of `rx.jit(..., search="background")`.
    - `start`, `our_start`: the first call of `x + 1` in the process.
    - `search`: the seconds of the first call that tracing and the search take.
    - `predicted`: the predicted gain of the chosen program.
    - `found`: what decided which program runs.
    - `trial`: the speed-up that the first calls found; None if none was looked for.
    - `calls`: calls until that was decided.
    - `difference`: the largest difference of results, in units of what is accepted.
    - `error`: why there are no figures, or what `rx.jit` warned of.
    - `load`: the processes that ran on average when this one began, as the system counts them.
    """

    name: str
    warm: float = 0.0
    speedup: Estimate | None = None
    first: float = 0.0
    our_first: float = 0.0
    background: float = 0.0
    start: float = 0.0
    our_start: float = 0.0
    search: float = 0.0
    predicted: float = 1.0
    found: str = ""
    trial: float | None = None
    calls: int = 0
    difference: float = 0.0
    error: str = ""
    load: float = 0.0

    @property
    def verdict(self) -> Verdict | None:
        """Whether calls are at least `LOWEST` times as fast as those of `jax.jit`."""
        return None if self.speedup is None else self.speedup.inverse.against(1 / LOWEST)

    @property
    def longer(self) -> float:
        """How many times longer the first call takes."""
        return self.our_first / self.first if self.first else float("nan")

    @property
    def longer_in_background(self) -> float:
        """How many times longer the first call takes if the search is in the background."""
        return self.background / self.first if self.first and self.background else float("nan")


def functions() -> Iterator[str]:
    """The names of all functions."""
    for case in CASES:
        yield f"{case.library}: {case.name}"
        yield f"{case.library}: {case.name}, gradient"


def use_of(name: str, quick: bool) -> tuple[Use, Callable[..., Any]]:
    """The use of a library in which a function stands, and the function."""
    for case in CASES:
        if name.removesuffix(", gradient") == f"{case.library}: {case.name}":
            use = case.build(SMALL if quick else REAL)
            return use, use.gradient if name.endswith(", gradient") else use.fn
    raise SystemExit(f"no function {name!r}")


def first_call(jit: Callable[[Callable[..., Any]], Any], fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The jitted function, and the seconds of its first call."""
    jax.clear_caches()
    started = time.perf_counter()
    jitted = jit(fn)
    jax.block_until_ready(jitted(*args))
    return jitted, time.perf_counter() - started


def timed(name: str, quick: bool) -> Row:
    import relax_eg as rx

    load = os.getloadavg()[0]
    use, fn = use_of(name, quick)
    args = use.arguments()
    ways = {JAX: jax.jit, OURS: rx.jit}
    start = {who: first_call(jit, lambda x: x + 1.0, (jnp.zeros(4),))[1] for who, jit in ways.items()}
    jax.eval_shape(fn, *args)  # what the function imports when it is first run
    made, first = {}, {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for who, jit in ways.items():  # ours is last, since the next one's empty caches would make it search again
            made[who], first[who] = first_call(jit, fn, args)
        calls = settle(made[OURS], lambda: made[OURS](*args))
    warned = next((str(w.message) for w in caught if "relax_eg" in str(w.message) or "relax_eg" in w.filename), "")
    wanted, got = made[JAX](*args), made[OURS](*args)
    timings = settled(
        {who: lambda jitted=jitted: jitted(*args) for who, jitted in made.items()},
        QUICK_SECONDS if quick else 1.0,
        lambda t: [(t.speedup(OURS, over=JAX).inverse, 1 / LOWEST)],
    )
    report = made[OURS].report
    trial = next((m.speedup for m in report.measured if m.label != "as written"), None) if report else None
    # Last, since it empties the caches.
    late, background = first_call(functools.partial(rx.jit, search="background"), fn, args)
    late.wait()
    return Row(
        name, timings.median(JAX), timings.speedup(OURS, over=JAX), first[JAX], first[OURS], background,
        start[JAX], start[OURS],
        search=sum(report.seconds.values()) if report else 0.0,
        predicted=report.predicted_gain if report else 1.0,
        found=found_by(report), trial=trial, calls=calls, difference=difference(got, wanted, use.tolerance),
        error=warned.strip().split("\n")[0], load=load,
    )  # fmt: skip


def found_by(report: Any) -> str:
    """What decided which program runs."""
    if report is None:
        return "not optimized"
    if report.kept_as_written:
        return "as written, by price"
    kept = next((m.label for m in report.measured if m.chosen), None)
    return "chosen, by price" if kept is None else "as written, settled" if kept == "as written" else "chosen, settled"


def difference(got: Any, wanted: Any, tolerance: float) -> float:
    """The largest difference of two results in units of what is accepted: of `tolerance` times the largest magnitude in
    an array, or a thousandth of that in the whole result; integers must be equal. Infinity where shapes or dtypes
    differ."""

    def data(x: Any) -> np.ndarray:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    def largest(x: np.ndarray) -> float:
        return float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))

    mine, theirs = ([data(x) for x in jax.tree.leaves(t)] for t in (got, wanted))
    if [(x.shape, x.dtype) for x in mine] != [(x.shape, x.dtype) for x in theirs]:
        return float("inf")
    is_float = [jnp.issubdtype(x.dtype, jnp.floating) for x in theirs]
    mine, theirs = ([x.astype(np.float64) for x in xs] for xs in (mine, theirs))
    least = 1e-3 * max((largest(x) for x, f in zip(theirs, is_float, strict=True) if f), default=0.0)
    worst = 0.0
    for x, y, f in zip(mine, theirs, is_float, strict=True):
        differs = (x != y) & ~(np.isnan(x) & np.isnan(y))
        apart = np.abs(x[differs] - y[differs])
        accepted = tolerance * (max(largest(y), least) if f else 1.0)
        found = float(np.max(apart, initial=0.0)) / (accepted or 1.0)
        worst = max(worst, float("inf") if np.isnan(found) else found)
    return worst


def in_a_process(name: str, quick: bool) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.library_times", "--run", name, "--json", str(out)]
        command += ["--quick"] if quick else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            return Row(name, error=f"no result in {TIMEOUT:g} s")
        if out.exists():
            return load(out)[0]
        return Row(name, error=(done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])


def load(path: Path) -> list[Row]:
    """Rows on file."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [Row(**{**r, "speedup": Estimate(**r["speedup"]) if r["speedup"] else None}) for r in rows]


def save(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"version": VERSION, "machine": machine(), "rows": [asdict(r) for r in rows]}
    path.write_text(json.dumps(report, indent=1))


COLUMNS = (
    "function",
    "jax.jit",
    "speed-up",
    "",
    "runs",
    "predicted",
    "in the trial",
    "first call, jax.jit",
    "ours / jax",
    "in the background",
)


def cells(row: Row, verdict: str) -> tuple[str, ...]:
    if row.speedup is None:
        return (row.name, "", "", verdict or row.error, *[""] * 6)
    wrong = f"DIFFERS by {row.difference:.3g}" if not row.difference <= 1 else ""
    return (
        row.name, duration(row.warm), str(row.speedup), wrong or verdict, row.found, f"{row.predicted:.2f}",
        "" if row.trial is None else f"{row.trial:.2f}", duration(row.first), f"{row.longer:.2f}",
        f"{row.longer_in_background:.2f}" if row.background else "",
    )  # fmt: skip


def table(rows: Sequence[Row]) -> Table:
    left = {"function", "runs", ""}
    out = Table()
    for name in COLUMNS:
        out.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        name, warm, speedup, _, *rest = map(escape, cells(row, ""))
        out.add_row(name, warm, speedup, told(row.verdict, "SLOWER") or escape(row.error), *rest)
    return out


def summary(rows: Sequence[Row]) -> str:
    """What is wanted, and what was found."""
    timed = [r for r in rows if r.speedup is not None]
    if not timed:
        return "no function was timed"
    mean = geometric_mean(r.speedup for r in timed if r.speedup)
    firsts = np.array([r.longer for r in timed])
    gained = [r for r in timed if r.speedup and r.speedup.low > 1.05]
    starts = [np.median([s for r in timed if (s := getattr(r, field))]) for field in ("start", "our_start")]
    verdicts = [r.verdict for r in timed if r.verdict]
    few = int(np.sum(firsts <= LONGEST_FIRST))
    late = np.array([r.longer_in_background for r in timed if r.background])
    ours, theirs = (sum(getattr(r, name) for r in timed) for name in ("our_first", "first"))
    lines = [
        f"calls at least {LOWEST:g} times as fast as jax.jit: {tally(verdicts, 'SLOWER')}",
        f"geometric mean {mean}, wanted {LOWEST_MEAN:g}; {len(gained)} are more than 1.05 times as fast",
        f"first calls: median {np.median(firsts):.2f} times as long as jax.jit's, longest {np.max(firsts):.1f};"
        f" {few} of {len(firsts)} at most {LONGEST_FIRST:g}; all together {ours:.0f} s against {theirs:.0f} s",
        *(
            [
                f"first calls with the search in the background: median {np.median(late):.2f} times as long, longest"
                f" {np.max(late):.1f}; {int(np.sum(late <= LONGEST_FIRST))} of {len(late)} at most {LONGEST_FIRST:g}"
            ]
            if len(late)
            else []
        ),
        f"before the first, once a process: {duration(starts[1])} against {duration(starts[0])}",
        f"results differ by more than is accepted: {sum(not r.difference <= 1 for r in timed)};"
        f" no result: {len(rows) - len(timed)}",
    ]
    if loads := [r.load for r in timed if r.load]:
        lines.append(f"other work on the machine: {np.median(loads):.1f} processes on average, for {cores()} cores")
    return "\n".join(lines)


def markdown(rows: Sequence[Row], on: str) -> str:
    """The summary and the table as Markdown."""
    lines = [COLUMNS, ["---", "--:", "--:", "---", "---", "--:", "--:", "--:", "--:", "--:"]]
    lines += [cells(r, {BEYOND: "SLOWER", WITHIN: ""}.get(r.verdict or "", r.verdict or "")) for r in rows]
    bullets = "\n".join(f"- {line}" for line in summary(rows).splitlines())
    return f"{on}.\n\n{bullets}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write(text: str) -> None:
    """Put a text between the marks in `DOCUMENT`."""
    write_between(DOCUMENT, BEGIN, END, text)


def main(
    only: Annotated[str, typer.Option(help="functions whose name contains one of these words, comma-separated")] = "",
    run: Annotated[str, typer.Option(hidden=True)] = "",
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep the other rows of --json; time those without")] = False,
    budget: Annotated[float, typer.Option(help="stop after so many seconds; --resume goes on")] = float("inf"),
    write_document: Annotated[bool, typer.Option("--write", help="put the table into docs/benchmarks.md")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="fail unless all limits are kept")] = False,
) -> None:
    """Functions of JAX libraries at real sizes: calls and first calls of rx.jit over jax.jit."""
    console = Console(width=None if sys.stdout.isatty() else 190)
    if run:
        assert json_out is not None
        save(json_out, [timed(run, quick)])
        return
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    names = [n for n in functions() if not words or any(w in n.lower() for w in words)]
    names = names[:QUICK_CASES] if quick else names
    rows = {r.name: r for r in load(json_out)} if resume and json_out else {}
    work = [n for n in names if n not in rows]
    end = time.perf_counter() + budget
    console.print(machine())
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(work))
        for done, name in enumerate(work):
            if time.perf_counter() > end:
                console.print(f"{len(work) - done} left: go on with --resume")
                break
            progress.update(task, description=escape(name))
            rows[name] = in_a_process(name, quick)
            if json_out:
                save(json_out, list(rows.values()))
            progress.advance(task)
    found = [rows[n] for n in functions() if n in rows]
    console.print(table(found))
    console.print(summary(found))
    if write_document and not quick:
        write(markdown(found, machine()))
    speedups = [r.speedup for r in found if r.speedup]
    kept = (
        all(r.verdict == WITHIN and r.longer <= LONGEST_FIRST and r.difference <= 1 for r in found)
        and geometric_mean(speedups).inverse.against(1 / LOWEST_MEAN) == WITHIN
    )
    if strict and not kept:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
