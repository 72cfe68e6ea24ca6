"""Small programs that algebra makes faster: as written, rewritten by hand, and compiled by relax_eg.

    python -m benchmarks.patterns [--set sums] [--sizes 64,256] [--cases qkv,trace] [--quick] [--json out.json]
                                  [--strict] [--target here.json] [--measure 3] [--resume] [--budget 280] [--mine]

All three run under `jax.jit`, in one process, taking turns, so that only the programs are compared; what our own call
costs on top of `jax.jit` is the line at the end. Speed-ups are over the program as written: above 1 is faster.

`--mine`: ours also uses the laws that `relax_eg.driver.laws.mining` finds for the costliest fragments of each program.

Two limits are checked separately (`benchmarks.timing` says when a limit is kept, broken or unsure, and which cases are
measured again). *slower*: ours takes at most 1.05x the time of the program as written, else it is SLOWER; `same` means
that XLA compiled ours to exactly what it compiled the program as written to, so that any difference is noise. *missed*:
ours takes at most 1.10x the time of the best form by hand, else it is MISSED where that form wins by 1.5x or more, and
`missed` in a column of its own where it wins by less.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from benchmarks import Quick, slow_kernels, sum_cases
from benchmarks import cases as pattern_cases
from benchmarks.cases import Case, Form
from benchmarks.timing import (
    QUICK_SECONDS,
    WITHIN,
    Estimate,
    Timings,
    Verdict,
    duration,
    geometric_mean,
    machine,
    measure,
    settled,
    tally,
    told,
)  # fmt: skip

WORTH_FINDING = 1.5  # what is missed of a hand form that wins by less is counted apart
NEAR_BEST = 1.10
NOT_SLOWER = 1.05
WRITTEN, OURS = "as written", "ours"
QUICK_CASES = 2
SETS = {"patterns": pattern_cases.CASES, "sums": sum_cases.CASES, "kernels": slow_kernels.CASES}
VERSION = 2  # of the file of rows; 1 had one verdict for both limits


@dataclass(frozen=True)
class Row:
    """One case at one size. Times in seconds; speed-ups are over the program as written."""

    case: str
    n: int
    written: float
    forms: dict[str, float]
    best_form: str
    best: Estimate
    ours: Estimate | None
    ours_over_best: Estimate | None  # how many times longer ours takes
    same: bool = False  # XLA compiled ours to what it compiled the program as written to
    compiled: str = ""  # how the weights lie in our program, and with what options it is compiled

    @property
    def slower(self) -> Verdict | None:
        """Whether ours takes at most `NOT_SLOWER` times as long as the program as written."""
        if self.ours is None:
            return None
        return WITHIN if self.same else self.ours.inverse.against(NOT_SLOWER)

    @property
    def missed(self) -> Verdict | None:
        """Whether ours takes at most `NEAR_BEST` times as long as the best form by hand."""
        return None if self.ours_over_best is None else self.ours_over_best.against(NEAR_BEST)

    @property
    def is_worth_finding(self) -> bool:
        """Whether the best form by hand wins by `WORTH_FINDING` or more."""
        return self.best.value >= WORTH_FINDING


@dataclass(frozen=True)
class Program:
    """A jitted function.

    - `fn`, `args`: the function, and the arguments of the timed call.
    - `compiled`: the layouts and compiler options, as text.
    """

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
        programs[OURS] = compiled_by_us(case, n, args, dict(options))
    expected = programs[WRITTEN]()
    for name, program in programs.items():
        check_equal(f"{case.name} at n={n}: {name}", expected, program())
    same = with_ours and programs[OURS].compiled_text() == programs[WRITTEN].compiled_text()
    compiled = programs[OURS].compiled if with_ours else ""

    def judged(timings: Timings) -> list[tuple[Estimate, float]]:
        found = row(case, n, timings, with_ours, same, compiled)
        over_written = [] if found.ours is None or same else [(found.ours.inverse, NOT_SLOWER)]
        return over_written + ([] if found.ours_over_best is None else [(found.ours_over_best, NEAR_BEST)])

    return row(case, n, settled(programs, seconds, judged), with_ours, same, compiled)


def by_hand(case: Case, form: Form, args: list[Any]) -> Program:
    if not case.weights:
        return Program(jax.jit(form.fn), tuple(args))
    params, *others = args
    assert form.prepare is not None, f"{case.name}: a hand form of a case with weights says how to prepare them"
    return Program(jax.jit(form.fn), (jax.jit(form.prepare)(params), *others))


def compiled_by_us(case: Case, n: int, args: list[Any], options: dict[str, Any]) -> Program:
    import relax_eg as rx

    if options.pop("mine"):
        from relax_eg.driver.laws.mining import mine

        options["rules"] = rx.rules.default + mine(case.written, *case.specs, at=case.at(n)).rules
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
    """Returns the layouts of the right-hand sides of products in the chosen program, and its compiler options."""
    found = {r.op for r in best.report.after.rows}
    layouts = [name for op, name in (("matmul", "in x out"), ("linear", "out x in")) if op in found]
    told = [f"{k}={v!r}" for k, v in best.compiler_options.items()] or ["default options"]
    return ", ".join([*layouts, *told])


def check_equal(what: str, expected: Any, got: Any) -> None:
    """Refuses to time a program that computes something else, up to rounding on the scale of its output."""
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        scale = float(np.max(np.abs(want), initial=1.0))
        error = float(np.max(np.abs(np.asarray(want) - np.asarray(have)), initial=0.0))
        step = float(jnp.finfo(want.dtype).eps) if jnp.issubdtype(want.dtype, jnp.floating) else 0.0
        if want.shape != have.shape or not error <= max(1e-4, step) * scale:
            raise SystemExit(f"{what} is wrong: off by {error:.2g} where values reach {scale:.2g}")


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
        same=same,
        compiled=compiled,
    )


def call_cost() -> list[tuple[str, float]]:
    """Returns the seconds per call of a negligible function, for each way to call it."""
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
    above, below = f"from {WORTH_FINDING}x", f"below {WORTH_FINDING}x"
    words = ("case", "form", "slower", above, below, "ours compiled")
    for name in ("case", "n", "as written", "best by hand", "form", "ours", "ours / best", *words[2:]):
        out.add_column(name, justify="left" if name in words else "right")
    last = None
    for r in rows:
        slower = "same" if r.same else told(r.slower, "SLOWER")
        missed = [told(r.missed, "MISSED"), ""] if r.is_worth_finding else ["", told(r.missed, "missed")]
        out.add_row(
            escape(r.case) if r.case != last else "",
            str(r.n),
            duration(r.written),
            f"{r.best.value:.2f}",
            escape(r.best_form),
            str(r.ours) if r.ours else "",
            f"{r.ours_over_best.value:.2f}" if r.ours_over_best else "",
            slower,
            *missed,
            escape(r.compiled),
        )
        last = r.case
    return out


def summary(rows: list[Row]) -> str:
    """Returns the number of rows that keep each limit, are unsure, and break it."""
    slower = tally((r.slower for r in rows if r.slower), "SLOWER")
    above = tally((r.missed for r in rows if r.missed and r.is_worth_finding), "MISSED")
    below = tally((r.missed for r in rows if r.missed and not r.is_worth_finding), "missed")
    means = [geometric_mean(e for r in rows if (e := getattr(r, kind)) is not None) for kind in ("best", "ours")]
    return (
        f"geometric mean of the speed-ups: best by hand {means[0]}, ours {means[1]}\n"
        f"at most {NOT_SLOWER:g}x the time as written: {slower}\n"
        f"at most {NEAR_BEST:g}x the time of the best form by hand, where that wins by {WORTH_FINDING:g}x: {above}\n"
        f"    and where it wins by less: {below}"
    )


def load(path: Path) -> list[Row]:
    """Rows on file. SystemExit where another version wrote them."""

    def read(name: str, value: Any) -> Any:
        return Estimate(**value) if name in ("best", "ours", "ours_over_best") and value else value

    data = json.loads(path.read_text()) if path.exists() else {"version": VERSION, "rows": []}
    if data["version"] != VERSION:
        raise SystemExit(f"{path} is of version {data['version']}; {VERSION} is accepted: time the rows anew")
    return [Row(**{name: read(name, value) for name, value in r.items()}) for r in data["rows"]]


def save(path: Path, rows: list[Row], calls: list[tuple[str, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"version": VERSION, "machine": machine(), "rows": [asdict(r) for r in rows], "calls": dict(calls)}
    path.write_text(json.dumps(report, indent=1))


def timed(
    console: Console,
    chosen: list[Case],
    ns: list[int],
    json_out: Path | None,
    resume: bool,
    budget: float,
    with_ours: bool,
    quick: bool,
    options: dict[str, Any],
) -> list[Row]:
    """Returns the rows of cases at sizes; arguments as of `main`, `options` those of `compiled_by_us`."""
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
            rows.append(run_case(case, n, with_ours, QUICK_SECONDS if quick else 1.0, options))
            if json_out:
                save(json_out, rows, [])
            progress.advance(task)
    return rows


def main(
    cases_of: Annotated[Literal["patterns", "sums", "kernels"], typer.Option("--set", help="which cases")] = "patterns",
    sizes: Annotated[str, typer.Option(help="comma-separated values of n")] = "64,256,1024,2048",
    cases: Annotated[str, typer.Option(help="only cases whose name contains one of these words")] = "",
    quick: Quick = False,
    without_ours: Annotated[bool, typer.Option("--without-ours", help="only the hand forms")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="fail unless both limits are kept everywhere")] = False,
    target: Annotated[str | None, typer.Option(help="a device profile, or its file; default: this machine")] = None,
    choose: Annotated[int, typer.Option("--measure", help="programs that are timed to choose one; 0: by price")] = 0,
    mined: Annotated[bool, typer.Option("--mine", help="also use laws that are mined from each program")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="keep the rows of --json, time the rest")] = False,
    budget: Annotated[float, typer.Option(help="stop after so many seconds; --resume goes on")] = float("inf"),
) -> None:
    """As written, best by hand and ours, for small programs where algebra decides."""
    console = Console(width=None if sys.stdout.isatty() else 190)
    words = [word.strip().lower() for word in cases.split(",") if word.strip()]
    chosen = [c for c in SETS[cases_of] if not words or any(word in c.name.lower() for word in words)]
    ns = [int(n) for n in sizes.split(",")]
    if quick:
        chosen, ns = chosen[:QUICK_CASES], [min(ns)]
    console.print(f"{machine()}\nall forms under jax.jit, taking turns; medians, 95% intervals of paired ratios")
    options = {"target": target, "measure": choose, "mine": mined}
    rows = timed(console, chosen, ns, json_out, resume, budget, not without_ours, quick, options)
    order = {c.name: i for i, c in enumerate(chain.from_iterable(SETS.values()))}
    rows.sort(key=lambda r: (order[r.case], r.n))
    console.print(table(rows))
    calls = [] if without_ours else call_cost()
    if calls:
        console.print("one call of x + 1.0:  " + ",  ".join(f"{name} {duration(s)}" for name, s in calls))
    if not without_ours:
        console.print(summary(rows))
    if json_out:
        save(json_out, rows, calls)
    kept = all(r.slower == WITHIN and (r.missed == WITHIN or not r.is_worth_finding) for r in rows)
    if strict and not without_ours and not kept:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
