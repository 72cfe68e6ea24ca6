"""The accuracy of predicted times: candidates of one program and size, priced and timed.

    python -m benchmarks.fidelity out.json [--target here.json] [--only conv,sort] [--resume] [--budget 280]
    python -m benchmarks.fidelity out.json --target here.json --reprice     # no timing: what is on file, priced anew
    python -m benchmarks.fidelity out.json --reprice --learn [--wrong]      # and what prices learn from it
    python -m benchmarks.fidelity out.json --kernels                        # predicted kernels, and those XLA compiles
    python -m benchmarks.fidelity out.json --settle [--wrong] [--only conv] # what the first calls choose, timed

For each program and size the candidates are the one as written, the one found by price (nothing is measured when
choosing), what is found when a rule that it needs is missing, and what would be found for other devices. The *chosen*
one is what `optimize` returns, whatever else has a lower price. All run under `jax.jit`, in one process, taking turns;
times are lower quartiles. Where two candidates differ by more than 10%, the prices should say which is the faster one:
Kendall's tau is the share of such pairs that are in order, less the share that are not. The chosen one is `behind` by
its time over that of the fastest: the median of paired ratios, which is within 10%, beyond, or unsure, and measured
again where it is unsure (`benchmarks.timing`).

With --learn, half of the programs correct prices (`relax_eg.extract.profiles.learned`), and the errors and choices of
the other half are shown before and after; then those of all programs, learned from all. The regret of a choice by
prices alone is the time of the candidate of lowest price over that of the fastest. A choice is settled where its
interval contains 1; the clock then takes the faster one of it and the program as written. With --wrong the profile is
wrong on purpose: its rates by 4 times, in both directions, and that of transposes by 10.

With --settle each program is optimized and called until it is settled, and then timed beside `jax.jit` of the program
as written.

With --kernels the launches and bytes of the candidates on file, at the last sizes of each program, are compared with
those of the kernels that XLA compiles for this CPU. Loops of XLA's own inside an operator are not kernels of ours.

What was timed is kept in the file, programs as text, so that another cost model can be tried on it with --reprice. What
`optimize` would return at other prices takes a search, so of those nothing is said of the chosen one.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
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
from benchmarks.fidelity_kernels import compare_kernels
from benchmarks.fidelity_programs import PROGRAMS, Program
from benchmarks.timing import (
    QUICK_SECONDS,
    WITHIN,
    Estimate,
    Timings,
    Verdict,
    duration,
    machine,
    settle,
    settled,
    tally,
    told,
)  # fmt: skip
from relax_eg.backend.family import SearchSpec
from relax_eg.driver.clock.measured import CandidateProgram, Entry, Search, random_arguments
from relax_eg.driver.optimize import optimized
from relax_eg.driver.options import read_options
from relax_eg.driver.prices import NEVER_SLOWER, ByProfile, kinds_at
from relax_eg.driver.program_ends import traced_program
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.profiles.devices import PROFILES, profile
from relax_eg.extract.profiles.learned import PROGRAMS as OF_PROGRAMS
from relax_eg.extract.profiles.learned import UNKNOWN, TimedProgram, corrected, expect, learn
from relax_eg.extract.profiles.profile import AS_USUAL, Profile
from relax_eg.extract.report import AS_WRITTEN, price_program
from relax_eg.ir.partition import static_expressions
from relax_eg.measure.device import this_machine

DIFFERENT = 1.10  # pairs of candidates whose times differ by less say nothing
WANTED_TAU, NEAR, WANTED_NEAR, WORST = 0.6, 1.10, 0.95, 1.5
OTHERS = ("laptop", "h100")
COUNT, SECONDS = 5, 0.25
QUICK_PROGRAMS = 1
NEVER_BELOW = 0.97  # of the speed of `jax.jit`, which a settled program keeps
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


def timed(program: Program, at: Mapping[str, int], target: str | Profile, seconds: float) -> Row:
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


def returned(
    program: Program, at: Mapping[str, int], target: str | Profile, search: Search
) -> tuple[Any, CandidateProgram]:
    """Returns the result of `optimize`, and the candidate that it is."""
    given: Any = {"at": at, "target": target, "weights": program.weights, "facts": program.facts}
    best = rx.optimize(program.fn, *program.specs, **given)
    mode = next(m for m in (AS_USUAL, *search.options.profile.modes) if dict(m.options) == dict(best.compiler_options))
    entry = None if best.report.kept_as_written else search.entry(SearchSpec(mode=mode.name))
    assert entry is None or entry.module == best.module, "two searches for one program differ"
    return best, CandidateProgram(entry, mode)


def repriced(row: Row, target: str | Profile) -> Row:
    """Returns a row on file with the prices of the present cost model; what `optimize` returns at these is unknown."""
    p, new = profile(target), list[Timed]()
    for i, t in enumerate(row.timed):
        module = rx.parse(t.text)
        once = static_expressions(module.main, set(row.weights)) if i else None
        inside = p.in_mode(next(m for m in (AS_USUAL, *p.modes) if m.name == t.mode))
        cost = price_program(module.main, WholeCost(inside, row.at, {f.name: f for f in module}), once)
        new.append(replace(t, predicted=inside.call(cost.seconds, cost.wakes)))
    return replace(row, timed=tuple(new), returned=None, behind=None)


def wrong(p: Profile) -> Profile:
    """A profile that is wrong on purpose: rates by 4 times, that of transposes by 10."""

    def times(rates: Mapping[str, float], factor: float) -> dict[str, float]:
        return {name: factor * rate for name, rate in rates.items()}

    return replace(
        p,
        matmul_rate=times(p.matmul_rate, 4.0),
        vector_rate=p.vector_rate / 4,
        bandwidth=4 * p.bandwidth,
        cache_bandwidth=4 * p.cache_bandwidth,
        scalar_rate=times(p.scalar_rate, 0.25),
        transpose_rate=10 * p.transpose_rate,
        launch=p.launch / 4,
        dispatch=4 * p.dispatch,
    )


@functools.lru_cache(None)
def kinds_of(
    text: str, at: tuple[tuple[str, int], ...], weights: frozenset[str] | None, target: str
) -> dict[str, float]:
    """Predicted seconds by kind of kernel of a program on file. `target`: the JSON of a profile."""
    held = None if weights is None else set(weights)
    return kinds_at(rx.parse(text), ByProfile(Profile.from_json(target)), dict(at), held)


def row_kinds(row: Row, p: Profile) -> list[dict[str, float]]:
    """The kinds of each candidate of a row, without corrections."""
    bare, at = replace(p, corrections={}, doubts={}).to_json(), tuple(row.at.items())
    return [kinds_of(t.text, at, frozenset(row.weights) if i else None, bare) for i, t in enumerate(row.timed)]


def lessons(rows: Sequence[Row], p: Profile) -> list[TimedProgram]:
    """What the candidates of rows teach, without those in other modes."""
    pairs = ((r, t, kinds) for r in rows for t, kinds in zip(r.timed, row_kinds(r, p), strict=True))
    return [TimedProgram(r.key, kinds, t.seconds) for r, t, kinds in pairs if not t.mode]


def learned(rows: Sequence[Row], p: Profile) -> Profile:
    """A profile with what rows teach."""
    found = learn(lessons(rows, p), {**UNKNOWN, **p.doubts})
    return replace(p, corrections=found.corrections, doubts=found.doubts)


@dataclass(frozen=True)
class Regret:
    """Choices by a profile, for one program and size.

    - `errors`: absolute logarithms of predicted over measured seconds, of all candidates.
    - `alone`: the time of the candidate of lowest price over that of the fastest.
    - `kept`: how many times faster than the program as written the call is that is left after settling.
    - `is_settled`: whether the choice is settled by the clock.
    """

    errors: tuple[float, ...]
    alone: float
    kept: float
    is_settled: bool


def regret(row: Row, p: Profile) -> Regret:
    """What a profile would choose among the candidates of a row that XLA compiles as usual."""
    kinds = [(t, k) for t, k in zip(row.timed, row_kinds(row, p), strict=True) if not t.mode]
    predicted = [corrected(k, p.corrections) for _, k in kinds]
    errors = tuple(abs(float(np.log(c / t.seconds))) for c, (t, _) in zip(predicted, kinds, strict=True))
    best = min(range(len(kinds)), key=predicted.__getitem__)
    fastest_seconds = min(t.seconds for t, _ in kinds)
    alone, (written, before), (chosen, after) = kinds[best][0].seconds / fastest_seconds, kinds[0], kinds[best]
    gain = predicted[0] / predicted[best]
    if gain <= NEVER_SLOWER:
        return Regret(errors, alone, 1.0, False)
    settles = expect(gain, before, after, p.corrections, p.doubts).low < 1
    faster = written.seconds / chosen.seconds
    return Regret(errors, alone, max(1.0, faster) if settles else faster, settles)


def teach(console: Console, rows: Sequence[Row], p: Profile) -> None:
    """Shows errors and choices before and after learning, on programs that were held out and on all."""
    names = list(dict.fromkeys(r.program for r in rows))
    halves = [[r for r in rows if names.index(r.program) % 2 == i] for i in (0, 1)]
    table = Table(title="what prices learn", title_justify="left")
    for name in ("", "error", "nine in ten", "regret alone", "worst", "settled", "slowest kept", "below 0.97"):
        table.add_column(name, justify="right" if name else "left")
    held_out = [(r, learned(halves[1 - i], p)) for i, half in enumerate(halves) for r in half]
    of_all = learned(rows, p)
    for label, found in (
        ("before", [regret(r, p) for r in rows]),
        ("learned from the other half", [regret(r, q) for r, q in held_out]),
        ("learned from all", [regret(r, of_all) for r in rows]),
    ):
        errors = [e for f in found for e in f.errors]
        alone, kept = [f.alone for f in found], [f.kept for f in found]
        table.add_row(
            label,
            f"{np.exp(np.median(errors)):.2f}",
            f"{np.exp(np.quantile(errors, 0.9)):.2f}",
            f"{np.exp(np.mean(np.log(alone))):.3f}",
            f"{max(alone):.2f}",
            f"{sum(f.is_settled for f in found)} of {len(found)}",
            f"{min(kept):.2f}",
            str(sum(k < NEVER_BELOW for k in kept)),
        )
    console.print(table)
    factors = ", ".join(f"{f} {x:.2f}" for f, x in sorted(of_all.corrections.items()))
    console.print(
        f"factors: {factors or 'none'}; doubt about programs of the same kinds: {of_all.doubts[OF_PROGRAMS]:.2f}"
    )


def show_settled(console: Console, work: Sequence[tuple[Program, dict[str, int]]], p: Profile, end: float) -> None:
    """Shows what is left after settling, timed beside `jax.jit` of the programs as written."""
    table = Table(title="after settling, times as fast as jax.jit", title_justify="left")
    for name in ("program", "predicted", "settled", "calls", "seconds", "times as fast", f"at least {NEVER_BELOW}"):
        table.add_column(name, justify="left" if name in ("program", "settled") else "right")
    verdicts: list[Verdict] = []
    for program, at in work:
        if time.perf_counter() > end:
            console.print(f"{len(work) - len(verdicts)} programs are left out: the budget is spent")
            break
        given: Any = {"at": at, "target": p, "weights": program.weights, "facts": program.facts}
        best = rx.optimize(program.fn, *program.specs, measure="auto", **given)
        traced = traced_program(program.fn, program.specs)
        options = read_options(traced, **given)
        args, kwargs = random_arguments(traced, dict(options.facts), options.bindings[0])
        as_written, started = jax.jit(program.fn), time.perf_counter()
        jax.block_until_ready(as_written(*args, **kwargs))
        calls = settle(best, lambda: best(*args, **kwargs))  # noqa: B023
        spent = time.perf_counter() - started
        both = {"ours": lambda: best(*args, **kwargs), "jax.jit": lambda: as_written(*args, **kwargs)}  # noqa: B023
        times = settled(both, 2 * SECONDS, lambda t: [(t.speedup("jax.jit", over="ours"), 1 / NEVER_BELOW)])
        found = times.speedup("ours", over="jax.jit")
        verdicts.append(times.speedup("jax.jit", over="ours").against(1 / NEVER_BELOW))
        chosen = next((r.runs for r in best.settled), "by prediction")
        predicted = str(best.report.expected or "kept as written")
        row = Row(program.name, at, (), ())
        cells = predicted, chosen, str(calls), f"{spent:.1f}", str(found), told(verdicts[-1], "slower")
        table.add_row(escape(row.key), *cells)
    console.print(table)
    console.print(f"at least {NEVER_BELOW} times as fast as jax.jit: {tally(verdicts, 'slower')}")


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
    learns: Annotated[
        bool, typer.Option("--learn", help="show what prices learn from the programs in the file")
    ] = False,
    is_wrong: Annotated[bool, typer.Option("--wrong", help="a profile that is wrong on purpose")] = False,
    compiles: Annotated[
        bool, typer.Option("--kernels", help="compare predicted kernels with those that XLA compiles")
    ] = False,
    settles: Annotated[bool, typer.Option("--settle", help="time what the first calls choose, beside jax.jit")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="fail where the figures are not as wanted")] = False,
) -> None:
    """Predicted against measured times of candidates."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    console.print(machine())
    device = wrong(profile(target)) if is_wrong else profile(target)
    words = [w.strip().lower() for w in only.split(",") if w.strip()]
    reprice = reprice or compiles
    rows = load(out) if resume or reprice else []
    if reprice and not rows:
        raise typer.BadParameter(f"{out} has no programs: without --reprice they are timed", param_hint="--reprice")
    known = {r.key for r in rows}
    work = [(p, dict(b)) for p in PROGRAMS for b in p.at if not words or any(w in p.name.lower() for w in words)]
    work = work[:QUICK_PROGRAMS] if quick else work
    work = [] if reprice else [(p, b) for p, b in work if Row(p.name, b, (), ()).key not in known]
    end = time.perf_counter() + budget
    if settles:
        everything = [
            (p, dict(b)) for p in PROGRAMS for b in p.at if not words or any(w in p.name.lower() for w in words)
        ]
        show_settled(
            console, everything[:QUICK_PROGRAMS] if quick else everything, replace(device, machine=this_machine()), end
        )
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(work))
        for program, binding in work:
            if time.perf_counter() > end:
                console.print(f"{len(work) - int(progress.tasks[0].completed)} left: go on with --resume")
                break
            progress.update(task, description=escape(program.name))
            rows.append(timed(program, binding, device, QUICK_SECONDS if quick else SECONDS))
            save(out, rows, target)
            progress.advance(task)
    if reprice:
        rows = [repriced(r, device) for r in rows if not words or any(w in r.program.lower() for w in words)]
    fine = show(console, rows, most)
    if compiles:
        last = {r.program: r for r in rows}.values()
        texts = [(f"{r.key}: {t.label}", t.text, r.at) for r in last for t in r.timed if not t.mode]
        compare_kernels(console, texts, device, most)
    if learns:
        teach(console, rows, device)
    if picture is not None:
        draw(picture, rows)
    if strict and not fine:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
