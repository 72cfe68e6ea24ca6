"""How well predicted times tell which program is faster: candidates of one program and size, priced and timed.

    python -m benchmarks.fidelity out.json [--target here.json] [--only conv,sort] [--resume] [--budget 280]
    python -m benchmarks.fidelity out.json --target here.json --reprice     # no timing: what is on file, priced anew

For each program and size the candidates are the one as written, the one chosen (by price: nothing is measured when
choosing), what is chosen when a rule that it needs is missing, and what would be chosen on other devices. All run under
`jax.jit`, in one process, taking turns; times are lower quartiles, and what seems to be chosen wrongly is timed four
times as long before it counts. Where two candidates differ by more than 10%, the prices
should say which is the faster one: Kendall's tau is the share of such pairs that are in order, less the share that are
not. The chosen one is `behind` by its time over that of the fastest.

What was timed is kept in the file, programs as text, so that another cost model can be tried on it with --reprice.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from benchmarks.fidelity_programs import PROGRAMS, Program
from benchmarks.timing import duration, machine, measure

DIFFERENT = 1.10  # pairs of candidates whose times differ by less say nothing
WANTED_TAU, NEAR, WANTED_NEAR, WORST = 0.6, 1.10, 0.95, 1.5
CHOSEN, OTHERS = "by price", ("laptop", "h100")
COUNT, SECONDS = 5, 0.25
QUANTILE = 0.25  # of a candidate's samples, as in calibration: what others do on the machine is in the upper ones


@dataclass(frozen=True)
class Timed:
    """A candidate: predicted seconds, seconds of a call (the lower quartile), and the program as text."""

    label: str
    predicted: float
    seconds: float
    text: str


@dataclass(frozen=True)
class Row:
    """A program at one size. `weights`: parameters that are prepared in candidates other than the one as written."""

    program: str
    at: dict[str, int]
    weights: tuple[str, ...]
    timed: tuple[Timed, ...]

    @property
    def key(self) -> str:
        return f"{self.program}, {', '.join(f'{k}={v}' for k, v in self.at.items())}"

    @property
    def tau(self) -> float | None:
        """Kendall's tau over the pairs that differ; None where none does."""
        signs: list[float] = []
        for a, b in itertools.combinations(self.timed, 2):
            if max(a.seconds, b.seconds) > DIFFERENT * min(a.seconds, b.seconds):
                signs.append(float(np.sign((a.seconds - b.seconds) * (a.predicted - b.predicted))))
        return sum(signs) / len(signs) if signs else None

    @property
    def chosen(self) -> Timed:
        """What `optimize` would run: the cheapest where it is predicted to gain more than 5%."""
        # Of equal prices that of the search's own choice: what is priced here lacks its last digits.
        written, best = self.timed[0], min(self.timed, key=lambda t: t.predicted * (1 - 1e-3 * (t.label == CHOSEN)))
        return best if written.predicted > 1.05 * best.predicted else written

    @property
    def behind(self) -> float:
        return self.chosen.seconds / min(t.seconds for t in self.timed)


def timed(program: Program, at: Mapping[str, int], target: str) -> Row:
    from relax_eg.driver.measured import AS_WRITTEN, Candidate, Entry, Search, arguments
    from relax_eg.driver.optimize import optimized, traced_program
    from relax_eg.driver.options import read_options
    from relax_eg.egraph import Budget
    from relax_eg.extract.devices import PROFILES
    from relax_eg.extract.profile import AS_USUAL

    traced = traced_program(program.fn, program.specs, {}, None, ())
    options = read_options(
        traced, None, target, at, None, program.weights, program.facts, "reassociate", Budget(), None, "on", 0
    )
    search = Search(traced, options)
    entries = search.alternatives(COUNT)
    for name in OTHERS:
        other = Search(traced, replace(options, profile=PROFILES[name])).entry()
        entries.append(Entry(f"for {name}", other.units, other.module, other.seconds))
    distinct = {e.module: e for e in reversed(entries) if e.module != traced.module or search.weights}
    candidates = [Candidate(None, AS_USUAL), *(Candidate(e, AS_USUAL) for e in reversed(distinct.values()))]
    args, _ = arguments(traced, dict(options.facts), options.bindings[0])
    calls: dict[str, Any] = {}
    for c in candidates:
        best = optimized(search, c)
        if c.entry is None or not program.weights:
            calls[c.label] = functools.partial(jax.jit(best.to_jax()), *args)
        else:
            held = [a for n, a in zip(traced.arguments.names, args, strict=True) if n in options.weights]
            rest = [a for n, a in zip(traced.arguments.names, args, strict=True) if n not in options.weights]
            ready = best.prepare(*held)
            calls[c.label] = functools.partial(jax.jit(ready.to_jax()), ready.prepared, *rest)
    times = measure(calls, SECONDS * len(calls))

    def row() -> Row:
        rows = tuple(
            Timed(
                c.label,
                search.predicted(c, at),
                float(np.quantile(times.seconds[c.label], QUANTILE)),
                str(traced.module if c.entry is None else c.entry.module),
            )
            for c in candidates
        )
        assert rows[0].label == AS_WRITTEN
        return Row(program.name, dict(at), tuple(sorted(search.weights)), rows)

    if row().behind > NEAR:  # an accident of a loaded machine is gone in more rounds
        times += measure(calls, 3 * SECONDS * len(calls), seed=1)
    return row()


def repriced(row: Row, target: str) -> Row:
    """What is on file with the prices of today's cost model."""
    import relax_eg as rx
    from relax_eg.extract.cost import WholeCost
    from relax_eg.extract.devices import profile
    from relax_eg.extract.report import price_program
    from relax_eg.ir.partition import static_expressions

    p, new = profile(target), list[Timed]()
    for i, t in enumerate(row.timed):
        module = rx.parse(t.text)
        once = static_expressions(module.main, set(row.weights)) if i else None
        cost = price_program(module.main, WholeCost(p, row.at, {f.name: f for f in module}), once)
        new.append(replace(t, predicted=p.call(cost.seconds, cost.wakes)))
    return replace(row, timed=tuple(new))


def load(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["rows"]
    return [Row(r["program"], r["at"], tuple(r["weights"]), tuple(Timed(**t) for t in r["timed"])) for r in rows]


def save(path: Path, rows: list[Row], target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"version": 1, "machine": machine(), "target": target, "rows": [asdict(r) for r in rows]}
    path.write_text(json.dumps(data, indent=1))


def show(console: Console, rows: list[Row], most: int) -> bool:
    """Tables of what is wrong most, and the figures that count; whether these are as wanted."""
    table = Table(title="chosen, but not the fastest; and pairs in the wrong order", title_justify="left")
    for name in ("program", "candidates", "tau", "behind", "chosen", "fastest"):
        table.add_column(name, justify="right" if name in ("candidates", "tau", "behind") else "left")
    order = sorted(rows, key=lambda r: (-r.behind, 0.0 if r.tau is None else r.tau))
    for r in [r for r in order if r.behind > NEAR or (r.tau or 1.0) < WANTED_TAU][:most]:
        fastest = min(r.timed, key=lambda t: t.seconds)
        cells = [f"{t.label}: {duration(t.predicted)}, took {duration(t.seconds)}" for t in (r.chosen, fastest)]
        tau = "" if r.tau is None else f"{r.tau:.2f}"
        table.add_row(escape(r.key), str(len(r.timed)), tau, f"{r.behind:.2f}", *map(escape, cells))
    console.print(table)
    taus = [r.tau for r in rows if r.tau is not None]
    near = sum(r.behind <= NEAR for r in rows) / len(rows)
    worst = max(rows, key=lambda r: r.behind)
    off = [abs(np.log(t.predicted / t.seconds)) for r in rows for t in r.timed]
    console.print(
        f"{len(rows)} programs x sizes, {sum(len(r.timed) for r in rows)} candidates; {len(taus)} with candidates that "
        f"differ by more than 10%: median tau {np.median(taus):.2f}, mean {np.mean(taus):.2f}\n"
        f"chosen within 10% of the fastest: {100 * near:.1f}%, worst {worst.behind:.2f} ({escape(worst.key)})\n"
        f"predicted times are off by a factor of {np.exp(np.median(off)):.2f} (median), "
        f"{np.exp(np.quantile(off, 0.9)):.2f} (nine in ten)"
    )
    return bool(np.median(taus) >= WANTED_TAU and near >= WANTED_NEAR and worst.behind <= WORST)


def draw(path: Path, rows: list[Row]) -> None:
    """Predicted against measured times of all candidates, the chosen ones apart."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 6))
    every = [x for r in rows for t in r.timed for x in (t.predicted, t.seconds)]
    ends = [min(every) / 1.5, max(every) * 1.5]
    axes.plot(ends, ends, "k-", linewidth=0.8, label="as predicted")
    for factor in (0.5, 2.0):
        axes.plot(ends, [factor * e for e in ends], "k:", linewidth=0.8, label="twice, half" if factor > 1 else None)
    for label, marker, color in (("chosen", "^", "tab:orange"), ("another candidate", "o", "tab:blue")):
        found = [t for r in rows for t in r.timed if (t is r.chosen) == (label == "chosen")]
        axes.plot([t.predicted for t in found], [t.seconds for t in found], marker, color=color, label=label,
                  markersize=4, markeredgewidth=0, alpha=0.6)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.set(xlabel="predicted seconds of a call", ylabel="measured seconds of a call")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main(
    out: Annotated[Path, typer.Argument(help="where the figures are kept, as JSON")],
    target: Annotated[str, typer.Option(help="device profile, or the file of one (relax-eg calibrate)")] = "cpu",
    only: Annotated[str, typer.Option(help="only programs whose name contains one of these words")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="keep what is in the file, time the rest")] = False,
    reprice: Annotated[bool, typer.Option("--reprice", help="time nothing, price what is in the file")] = False,
    budget: Annotated[float, typer.Option(help="stop after so many seconds; --resume goes on")] = float("inf"),
    most: Annotated[int, typer.Option(help="rows of the table")] = 25,
    picture: Annotated[
        Path | None, typer.Option(help="draw predicted against measured times here (matplotlib)")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="fail where the figures are not as wanted")] = False,
) -> None:
    """Predicted against measured times of candidates."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    console.print(machine())
    words = [w.strip().lower() for w in only.split(",") if w.strip()]
    rows = load(out) if resume or reprice else []
    known = {r.key for r in rows}
    work = [(p, dict(b)) for p in PROGRAMS for b in p.at if not words or any(w in p.name.lower() for w in words)]
    work = [] if reprice else [(p, b) for p, b in work if Row(p.name, b, (), ()).key not in known]
    end = time.perf_counter() + budget
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(work))
        for program, binding in work:
            if time.perf_counter() > end:
                console.print(f"{len(work) - int(progress.tasks[0].completed)} left: go on with --resume")
                break
            progress.update(task, description=escape(program.name))
            rows.append(timed(program, binding, target))
            save(out, rows, target)
            progress.advance(task)
    if reprice:
        rows = [repriced(r, target) for r in rows if not words or any(w in r.program.lower() for w in words)]
    fine = show(console, rows, most)
    if picture is not None:
        draw(picture, rows)
    if strict and not fine:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
