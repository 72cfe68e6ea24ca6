"""Small programs where algebra decides: as written, rewritten by hand, and compiled by relax_eg.

    python -m benchmarks.patterns [--sizes 64,256] [--cases qkv,trace] [--quick] [--json out.json] [--strict]
                                  [--target here.json] [--measure 3] [--resume] [--budget 280]

All three run under `jax.jit`, in one process, taking turns, so that only the programs are compared; what our own call
costs on top of `jax.jit` is the line at the end. Speed-ups are over the program as written: above 1 is faster.

A case is MISSED where the best hand form wins by 1.5x or more and ours takes more than 1.10x its time, and SLOWER where
ours takes more than 1.05x the time of the program as written. Where the interval reaches across the limit, the case is
measured again, and is `unsure` if that does not decide it. `same` means that XLA compiled ours to exactly what it
compiled the program as written to, so that any difference is noise.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from benchmarks.cases import CASES, Case, Form
from benchmarks.timing import Ratio, Timings, duration, machine, measure

WORTH_FINDING = 1.5  # a hand form that wins by less is not held against us
NEAR_BEST = 1.10
NOT_SLOWER = 1.05
WRITTEN, OURS = "as written", "ours"


@dataclass(frozen=True)
class Row:
    """One case at one size. Times in seconds; speed-ups are over the program as written."""

    case: str
    n: int
    written: float
    forms: dict[str, float]
    best_form: str
    best: Ratio
    ours: Ratio | None
    ours_over_best: Ratio | None
    verdict: str
    compiled: str = ""  # how the weights lie in our program, and with what options it is compiled


@dataclass(frozen=True)
class Program:
    """A jitted function with the arguments it is timed on, and how it is compiled."""

    fn: Any
    args: tuple[Any, ...]
    compiled: str = ""

    def __call__(self) -> Any:
        return self.fn(*self.args)

    def compiled_text(self) -> str:
        # Source positions and the module's name differ between programs that are otherwise the same.
        text = self.fn.lower(*self.args).compile().as_text()
        return re.sub(r", metadata=\{[^}]*\}|^HloModule \S+", "", text, flags=re.MULTILINE)


def run_case(case: Case, n: int, with_ours: bool, seconds: float, options: dict[str, Any]) -> Row:
    args = case.arguments(n)
    programs = {WRITTEN: Program(jax.jit(case.written), tuple(args))}
    programs |= {name: by_hand(case, form, args) for name, form in case.forms.items()}
    if with_ours:
        programs[OURS] = compiled_by_us(case, n, args, options)
    expected = programs[WRITTEN]()
    for name, program in programs.items():
        check_equal(f"{case.name} at n={n}: {name}", expected, program())
    same = with_ours and programs[OURS].compiled_text() == programs[WRITTEN].compiled_text()
    timings = measure(programs, seconds)
    if judge(case, timings, with_ours, same) not in ("ok", "same", ""):
        timings += measure(programs, 4 * seconds, seed=1)
    return row(case, n, timings, with_ours, same, programs[OURS].compiled if with_ours else "")


def by_hand(case: Case, form: Form, args: list[Any]) -> Program:
    if not case.weights:
        return Program(jax.jit(form.fn), tuple(args))
    params, *others = args
    assert form.prepare is not None, f"{case.name}: a hand form of a case with weights says how to prepare them"
    return Program(jax.jit(form.fn), (jax.jit(form.prepare)(params), *others))


def compiled_by_us(case: Case, n: int, args: list[Any], options: dict[str, Any]) -> Program:
    import relax_eg as rx

    if not case.weights:
        best = rx.optimize(case.written, *case.specs, at=case.at(n), **options)
        return Program(jitted(best), tuple(args), how(best))
    params, *others = args
    best = rx.optimize(case.written, *case.specs, at=case.at(n), weights=("params",), **options)
    ready = best.prepare(params)
    return Program(jitted(ready), (ready.prepared, *others), how(best))


def jitted(made: Any) -> Any:
    return jax.jit(made.to_jax(), compiler_options=dict(made.compiler_options) or None)


def how(best: Any) -> str:
    """How the right-hand sides of products lie in the chosen program, and the options it is compiled with."""
    found = {r.op for r in best.report.after.rows}
    layouts = [name for op, name in (("matmul", "in x out"), ("linear", "out x in")) if op in found]
    told = [f"{k}={v!r}" for k, v in best.compiler_options.items()] or ["default options"]
    return ", ".join([*layouts, *told])


def check_equal(what: str, expected: Any, got: Any) -> None:
    """Refuses to time a program that computes something else, up to rounding on the scale of its output."""
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        scale = float(np.max(np.abs(want), initial=1.0))
        error = float(np.max(np.abs(np.asarray(want) - np.asarray(have)), initial=0.0))
        if want.shape != have.shape or not error <= 1e-4 * scale:
            raise SystemExit(f"{what} is wrong: off by {error:.2g} where values reach {scale:.2g}")


def judge(case: Case, timings: Timings, with_ours: bool, same: bool) -> str:
    if not with_ours:
        return ""
    if same:
        return "same"
    best = timings.fastest(case.forms)
    slower = timings.speedup(WRITTEN, over=OURS)  # how many times longer ours takes
    behind = timings.speedup(best, over=OURS)
    hand_wins = timings.speedup(best, over=WRITTEN).value >= WORTH_FINDING
    failures = [
        (name, ratio, limit)
        for name, ratio, limit, counts in (
            ("SLOWER", slower, NOT_SLOWER, True),
            ("MISSED", behind, NEAR_BEST, hand_wins),
        )
        if counts and ratio.value > limit
    ]
    if not failures:
        return "ok"
    return next((name for name, ratio, limit in failures if ratio.low > limit), "unsure")


def row(case: Case, n: int, timings: Timings, with_ours: bool, same: bool, compiled: str) -> Row:
    best = timings.fastest(case.forms)
    return Row(
        case=case.name,
        n=n,
        written=timings.median(WRITTEN),
        forms={name: timings.speedup(name, over=WRITTEN).value for name in case.forms},
        best_form=best,
        best=timings.speedup(best, over=WRITTEN),
        ours=timings.speedup(OURS, over=WRITTEN) if with_ours else None,
        ours_over_best=timings.speedup(best, over=OURS) if with_ours else None,
        verdict=judge(case, timings, with_ours, same),
        compiled=compiled,
    )


def call_cost() -> list[tuple[str, float]]:
    """Seconds per call of a function too small to matter, by way of calling it."""
    import relax_eg as rx

    def tiny(x: jax.Array) -> jax.Array:
        return x + 1.0

    x = jax.numpy.zeros(4)
    ways: dict[str, Callable[[jax.Array], Any]] = {
        "jax.jit(fn)": jax.jit(tiny),
        "rx.jit(fn)": rx.jit(tiny),
        "rx.optimize(fn, ...)": rx.optimize(tiny, "n", at={"n": 4}),
    }
    timings = measure({name: (lambda fn=fn: fn(x)) for name, fn in ways.items()})
    return [(name, timings.median(name)) for name in ways]


def table(rows: list[Row]) -> Table:
    out = Table(title="speed-up over the program as written", title_justify="left")
    for name in ("case", "n", "as written", "best by hand", "form", "ours", "ours / best", "verdict", "ours compiled"):
        out.add_column(name, justify="left" if name in ("case", "form", "verdict", "ours compiled") else "right")
    last = None
    for r in rows:
        style = {"MISSED": "red", "SLOWER": "red", "unsure": "yellow"}.get(r.verdict, "")
        out.add_row(
            escape(r.case) if r.case != last else "",
            str(r.n),
            duration(r.written),
            f"{r.best.value:.2f}",
            escape(r.best_form),
            str(r.ours) if r.ours else "",
            f"{r.ours_over_best.value:.2f}" if r.ours_over_best else "",
            f"[{style}]{r.verdict}[/]" if style else r.verdict,
            escape(r.compiled),
        )
        last = r.case
    return out


def load(path: Path) -> list[Row]:
    """Rows on file."""

    def read(name: str, value: Any) -> Any:
        return Ratio(**value) if name in ("best", "ours", "ours_over_best") and value else value

    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [Row(**{name: read(name, value) for name, value in r.items()}) for r in rows]


def save(path: Path, rows: list[Row], calls: list[tuple[str, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"version": 1, "machine": machine(), "rows": [asdict(r) for r in rows], "calls": dict(calls)}
    path.write_text(json.dumps(report, indent=1))


def main(
    sizes: Annotated[str, typer.Option(help="comma-separated values of n")] = "64,256,1024,2048",
    cases: Annotated[str, typer.Option(help="only cases whose name contains one of these words")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="n = 64 and 256 only, shorter samples")] = False,
    without_ours: Annotated[bool, typer.Option("--without-ours", help="only the hand forms")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="fail on MISSED or SLOWER")] = False,
    target: Annotated[str, typer.Option(help="device profile, or the file of one (relax-eg calibrate)")] = "cpu",
    choose: Annotated[int, typer.Option("--measure", help="programs that are timed to choose one; 0: by price")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="keep the rows of --json, time the rest")] = False,
    budget: Annotated[float, typer.Option(help="stop after so many seconds; --resume goes on")] = float("inf"),
) -> None:
    """As written, best by hand and ours, for small programs where algebra decides."""
    console = Console(width=None if sys.stdout.isatty() else 190)
    words = [word.strip().lower() for word in cases.split(",") if word.strip()]
    chosen = [c for c in CASES if not words or any(word in c.name.lower() for word in words)]
    ns = [64, 256] if quick else [int(n) for n in sizes.split(",")]
    console.print(f"{machine()}\nall forms under jax.jit, taking turns; medians, 95% intervals of paired ratios")
    options = {"target": target, "measure": choose}
    rows = load(json_out) if resume and json_out else []
    known, end = {(r.case, r.n) for r in rows}, time.perf_counter() + budget
    work = [(case, n) for n in ns for case in chosen if (case.name, n) not in known]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(work))
        for done, (case, n) in enumerate(work):
            if time.perf_counter() > end:
                console.print(f"{len(work) - done} left: go on with --resume")
                break
            progress.update(task, description=escape(f"{case.name}, n={n}"))
            rows.append(run_case(case, n, not without_ours, 0.3 if quick else 1.0, options))
            if json_out:
                save(json_out, rows, [])
            progress.advance(task)
    order = {c.name: i for i, c in enumerate(CASES)}
    rows.sort(key=lambda r: (order[r.case], r.n))
    console.print(table(rows))
    calls = [] if without_ours else call_cost()
    if calls:
        console.print("one call of x + 1.0:  " + ",  ".join(f"{name} {duration(s)}" for name, s in calls))
    failed = [r for r in rows if r.verdict in ("MISSED", "SLOWER")]
    if not without_ours:
        console.print(f"{len(rows) - len(failed)} of {len(rows)} within the limits")
    if json_out:
        save(json_out, rows, calls)
    if strict and failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
