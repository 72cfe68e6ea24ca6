"""The accuracy of predicted times: candidates of one program and size, priced and timed.

    python -m benchmarks.fidelity out.json [--target here.json] [--only conv,sort] [--resume] [--budget 280]
    python -m benchmarks.fidelity out.json --target here.json --reprice     # no timing: what is on file, priced anew

For each program and size the candidates are the one as written, the one found by price (nothing is measured when
choosing), what is found when a rule that it needs is missing, and what would be found for other devices. The *chosen*
one is what `optimize` returns, whatever else has a lower price. All run under `jax.jit`, in one process, taking turns;
times are lower quartiles. Where two candidates differ by more than 10%, the prices should say which is the faster one:
Kendall's tau is the share of such pairs that are in order, less the share that are not. The chosen one is `behind` by
its time over that of the fastest: the median of paired ratios, which is within 10%, beyond, or unsure, and measured
again where it is unsure (`benchmarks.timing`).

What was timed is kept in the file, programs as text, so that another cost model can be tried on it with --reprice. What
`optimize` would return at other prices takes a search, so of those nothing is said of the chosen one.
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

import relax_eg as rx
from benchmarks import Quick
from benchmarks.fidelity_programs import PROGRAMS, Program
from benchmarks.timing import (
    QUICK_SECONDS,
    WITHIN,
    Estimate,
    Timings,
    duration,
    machine,
    settled,
    tally,
    told,
)  # fmt: skip
from relax_eg.backend.family import SearchSpec
from relax_eg.driver.measured import AS_WRITTEN, CandidateProgram, Entry, Search, random_arguments
from relax_eg.driver.optimize import optimized, traced_program
from relax_eg.driver.options import read_options
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.devices import PROFILES, profile
from relax_eg.extract.profile import AS_USUAL
from relax_eg.extract.report import price_program
from relax_eg.ir.partition import static_expressions

DIFFERENT = 1.10  # pairs of candidates whose times differ by less say nothing
WANTED_TAU, NEAR, WANTED_NEAR, WORST = 0.6, 1.10, 0.95, 1.5
OTHERS = ("laptop", "h100")
COUNT, SECONDS = 5, 0.25
QUICK_PROGRAMS = 1
VERSION = 2  # of the file; 1 did not say what `optimize` returned
SAME = Estimate(1.0, 1.0, 1.0)  # of the chosen one, where it is the fastest
QUANTILE = 0.25  # of a candidate's samples, as in calibration: what others do on the machine is in the upper ones


@dataclass(frozen=True)
class Timed:
    """A candidate.

    - `label`: its name.
    - `predicted`: predicted seconds of a call.
    - `seconds`: measured seconds of a call, the lower quartile.
    - `text`: the program as module text.
    - `mode`: the compilation mode among those of the profile.
    """

    label: str
    predicted: float
    seconds: float
    text: str
    mode: str = ""


@dataclass(frozen=True)
class Row:
    """A program at one size.

    - `program`, `at`: the program and the sizes.
    - `weights`: the parameters that candidates other than the program as written prepare.
    - `timed`: the candidates.
    - `returned`: the label of the candidate that `optimize` returned; None after --reprice.
    - `behind`: the time of this candidate over that of the fastest one.
    """

    program: str
    at: dict[str, int]
    weights: tuple[str, ...]
    timed: tuple[Timed, ...]
    returned: str | None = None
    behind: Estimate | None = None

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
    def chosen(self) -> Timed | None:
        return next((t for t in self.timed if t.label == self.returned), None)


def fastest(row: Row) -> Timed:
    return min(row.timed, key=lambda t: t.seconds)


def timed(program: Program, at: Mapping[str, int], target: str, seconds: float) -> Row:
    """A row, each candidate timed for about `seconds`."""
    traced = traced_program(program.fn, program.specs)
    options = read_options(traced, target=target, at=at, weights=program.weights, facts=program.facts)
    search = Search(traced, options)
    entries = search.alternatives(COUNT)
    for name in OTHERS:
        other = Search(traced, replace(options, profile=PROFILES[name])).entry()
        entries.append(Entry(SearchSpec(mode=name), other.units, other.found, other.seconds))
    distinct = {e.module: e for e in reversed(entries) if e.module != traced.module or search.weights}
    candidates = [
        CandidateProgram(None),
        *(CandidateProgram(e) for e in reversed(distinct.values())),
    ]
    best, chosen = returned(program, at, target, search)
    if all(c.label != chosen.label for c in candidates):
        candidates.append(chosen)
    args, _ = random_arguments(traced, dict(options.facts), options.bindings[0])
    calls: dict[str, Any] = {}
    for c in candidates:
        made = best if c.label == chosen.label else optimized(search, c)
        compiled = {"compiler_options": dict(made.compiler_options) or None}
        if c.entry is None or not program.weights:
            calls[c.label] = functools.partial(jax.jit(made.to_jax(), **compiled), *args)
        else:
            held = [a for n, a in zip(traced.arguments.names, args, strict=True) if n in options.weights]
            rest = [a for n, a in zip(traced.arguments.names, args, strict=True) if n not in options.weights]
            ready = made.prepare(*held)
            calls[c.label] = functools.partial(jax.jit(ready.to_jax(), **compiled), ready.prepared, *rest)

    def row(times: Timings) -> Row:
        rows = tuple(
            Timed(
                c.label,
                search.predicted_seconds(c, at),
                float(np.quantile(times.seconds[c.label], QUANTILE)),
                str(traced.module if c.entry is None else c.entry.module),
                c.mode.name,
            )
            for c in candidates
        )
        assert rows[0].label == AS_WRITTEN
        found = Row(program.name, dict(at), tuple(sorted(search.weights)), rows, chosen.label)
        first = fastest(found).label
        return replace(found, behind=SAME if first == chosen.label else times.speedup(first, over=chosen.label))

    def judged(times: Timings) -> list[tuple[Estimate, float]]:
        behind = row(times).behind
        return [] if behind is None else [(behind, NEAR)]

    return row(settled(calls, seconds * len(calls), judged))


def returned(program: Program, at: Mapping[str, int], target: str, search: Search) -> tuple[Any, CandidateProgram]:
    """Returns the result of `optimize`, and the candidate that it is."""
    given: Any = {"at": at, "target": target, "weights": program.weights, "facts": program.facts}
    best = rx.optimize(program.fn, *program.specs, **given)
    mode = next(m for m in (AS_USUAL, *search.options.profile.modes) if dict(m.options) == dict(best.compiler_options))
    entry = None if best.report.kept_as_written else search.entry(SearchSpec(mode=mode.name))
    assert entry is None or entry.module == best.module, "two searches for one program differ"
    return best, CandidateProgram(entry, mode)


def repriced(row: Row, target: str) -> Row:
    """Returns a row on file with the prices of the present cost model; what `optimize` returns at these is unknown."""
    p, new = profile(target), list[Timed]()
    for i, t in enumerate(row.timed):
        module = rx.parse(t.text)
        once = static_expressions(module.main, set(row.weights)) if i else None
        inside = p.in_mode(next(m for m in (AS_USUAL, *p.modes) if m.name == t.mode))
        cost = price_program(module.main, WholeCost(inside, row.at, {f.name: f for f in module}), once)
        new.append(replace(t, predicted=inside.call(cost.seconds, cost.wakes)))
    return replace(row, timed=tuple(new), returned=None, behind=None)


def load(path: Path) -> list[Row]:
    """Rows on file. SystemExit where another version wrote them."""
    if not path.exists():
        return []
    data = json.loads(path.read_text())
    if data["version"] != VERSION:
        raise SystemExit(f"{path} is of version {data['version']}; {VERSION} is accepted: time the programs anew")
    found: list[Row] = []
    for r in data["rows"]:
        timed, behind = tuple(Timed(**t) for t in r["timed"]), r["behind"]
        found.append(
            Row(r["program"], r["at"], tuple(r["weights"]), timed, r["returned"], behind and Estimate(**behind))
        )
    return found


def save(path: Path, rows: list[Row], target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"version": VERSION, "machine": machine(), "target": target, "rows": [asdict(r) for r in rows]}
    path.write_text(json.dumps(data, indent=1))


def show(console: Console, rows: list[Row], most: int) -> bool:
    """Print tables of the largest errors, and the key figures; return whether these keep their limits."""
    table = Table(title="chosen, but not the fastest; and pairs in the wrong order", title_justify="left")
    for name in ("program", "candidates", "tau", "behind", "", "chosen", "fastest"):
        table.add_column(name, justify="right" if name in ("candidates", "tau", "behind") else "left")
    judged = [(r, r.behind, r.behind.against(NEAR)) for r in rows if r.behind is not None]
    verdicts = {r.key: v for r, _, v in judged}

    def behind(r: Row) -> float:
        return 1.0 if r.behind is None else r.behind.value

    order = sorted(rows, key=lambda r: (-behind(r), 0.0 if r.tau is None else r.tau))
    wrong = [r for r in order if verdicts.get(r.key, WITHIN) != WITHIN or (r.tau is not None and r.tau < WANTED_TAU)]
    for r in wrong[:most]:
        pair = (r.chosen, fastest(r))
        cells = [f"{t.label}: {duration(t.predicted)}, took {duration(t.seconds)}" if t else "" for t in pair]
        tau = "" if r.tau is None else f"{r.tau:.2f}"
        verdict = told(verdicts.get(r.key))
        table.add_row(escape(r.key), str(len(r.timed)), tau, str(r.behind or ""), verdict, *map(escape, cells))
    console.print(table)
    taus = [r.tau for r in rows if r.tau is not None]
    off = [abs(np.log(t.predicted / t.seconds)) for r in rows for t in r.timed]
    in_order = f"median tau {np.median(taus):.2f}, mean {np.mean(taus):.2f}" if taus else "nothing to put in order"
    console.print(
        f"{len(rows)} programs x sizes, {sum(len(r.timed) for r in rows)} candidates; {len(taus)} with candidates that "
        f"differ by more than 10%: {in_order}\n"
        f"predicted times are off by a factor of {np.exp(np.median(off)):.2f} (median), "
        f"{np.exp(np.quantile(off, 0.9)):.2f} (nine in ten)"
    )
    is_in_order = bool(not taus or np.median(taus) >= WANTED_TAU)
    if not judged:
        return is_in_order
    worst, most_behind, _ = max(judged, key=lambda found: found[1].value)
    share = sum(v == WITHIN for _, _, v in judged) / len(judged)
    console.print(
        f"chosen at most {NEAR:g}x the time of the fastest: {tally(v for _, _, v in judged)} ({100 * share:.1f}% "
        f"within), worst {most_behind} ({escape(worst.key)})"
    )
    return is_in_order and share >= WANTED_NEAR and most_behind.against(WORST) == WITHIN


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
    quick: Quick = False,
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
    if reprice and not rows:
        raise typer.BadParameter(f"{out} has no programs: without --reprice they are timed", param_hint="--reprice")
    known = {r.key for r in rows}
    work = [(p, dict(b)) for p in PROGRAMS for b in p.at if not words or any(w in p.name.lower() for w in words)]
    work = work[:QUICK_PROGRAMS] if quick else work
    work = [] if reprice else [(p, b) for p, b in work if Row(p.name, b, (), ()).key not in known]
    end = time.perf_counter() + budget
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(work))
        for program, binding in work:
            if time.perf_counter() > end:
                console.print(f"{len(work) - int(progress.tasks[0].completed)} left: go on with --resume")
                break
            progress.update(task, description=escape(program.name))
            rows.append(timed(program, binding, target, QUICK_SECONDS if quick else SECONDS))
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
