"""Families against programs extracted for one size alone: the slowdown of the dispatched variant at random sizes.

    python -m benchmarks.families [--only chain] [--sizes 200] [--target cpu] [--measured 30] [--json families.json]

For each case a family is found once. Then at random sizes, none of which the family was made from (half drawn evenly by
how many times they differ, half evenly), `optimize(at=size)` searches anew, and its program's predicted seconds are
compared with those of the variant that the family dispatches to. With --measured both run in turns in one process at
the first so many of these sizes that take at most --longest seconds as predicted; where both are the same program there
is nothing to time. Of the others the family takes at most 10% longer, or more, or that is unsure (`benchmarks.timing`,
which says when a size is timed again). Also told: variants, the proof of cover, seconds to find the family,
microseconds to dispatch.

With --json the figures are in a file after every size, and a later call goes on from there: --seconds 250 makes pieces.
"""

from __future__ import annotations

import json
import math
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.timing import BEYOND, QUICK_SECONDS, UNSURE, WITHIN, Estimate, Timings, settled
from relax_eg.driver.clock.measured import random_arguments
from relax_eg.driver.families import scope_allows
from relax_eg.driver.options import Execution, Options, read_options
from relax_eg.driver.prices import MODE_DOUBT, call_seconds, price_at
from relax_eg.driver.program_ends import traced_program
from relax_eg.extract.profiles.profile import AS_USUAL
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import Guard

Bounds = Mapping[str, tuple[int, int]]
NEAR = 1.10  # a variant is as good if it takes at most this many times as long as the program for one size alone
SAME = Estimate(1.0, 1.0, 1.0)  # of two programs that are one
QUICK_SIZES = 2


@dataclass(frozen=True)
class Case:
    """A program.

    - `fn`, `specs`: the function, and a spec for each argument.
    - `bounds`: the bounds of its sizes.
    - `weights`: the arguments that are weights.
    - `target`: a data sheet for which the program is planned in kernels and never timed; None: one program for the
      device that the command line names.
    """

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    bounds: Bounds
    weights: tuple[str, ...] = ()
    target: str | None = None

    @property
    def execution(self) -> Execution:
        return "whole" if self.target is None else "kernels"


def lora(w: Any, a: Any, b: Any, x: Any) -> Any:
    return x @ (w + a @ b)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T * 0.125) @ v


def heads(q: Any, k: Any, v: Any) -> Any:
    """Attention of twelve heads, whose scores are as written where they are small and in pieces where they are not."""
    weights = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) * 0.125)
    return jnp.einsum("hqk,hkd->hqd", weights, v)


def chain(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a @ b @ c @ d


def layer(w: Any, x: Any) -> Any:
    return jax.nn.relu(x @ w.T)


WIDTH, HEADS, GROUPS, INNER = 512, 8, 2, 1408


def _norm(x: Any, g: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g


def llama(p: Any, x: Any) -> Any:
    """One layer of a decoder as Llama's: root mean square norms, grouped attention under a causal mask, gated MLP."""
    b, s, _ = x.shape
    each = WIDTH // HEADS
    h = _norm(x, p["norm1"])
    q = (h @ p["q"]).reshape(b, s, GROUPS, HEADS // GROUPS, each)
    k, v = ((h @ p[n]).reshape(b, s, GROUPS, each) for n in "kv")
    scores = jnp.einsum("bsghd,btgd->bghst", q, k) / math.sqrt(each)
    seen = jnp.tril(jnp.ones((s, s), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    x = x + jnp.einsum("bghst,btgd->bsghd", weights, v).reshape(b, s, WIDTH) @ p["o"]
    h = _norm(x, p["norm2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def gated(p: Any, x: Any) -> Any:
    """The gated MLP of a decoder's layer with its norm."""
    h = x.astype(jnp.float32)
    h = (h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5)).astype(x.dtype) * p["norm"]
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


# Of Llama 3 8B.
_GATED = {
    name: f"{spec} @ bfloat16"
    for name, spec in {"norm": "4096", "gate": "4096 14336", "up": "4096 14336", "down": "14336 4096"}.items()
}
_SHARED = GROUPS * WIDTH // HEADS
_LLAMA = {
    "norm1": f"{WIDTH}", "norm2": f"{WIDTH}", "q": f"{WIDTH} {WIDTH}", "k": f"{WIDTH} {_SHARED}",
    "v": f"{WIDTH} {_SHARED}", "o": f"{WIDTH} {WIDTH}", "gate": f"{WIDTH} {INNER}", "up": f"{WIDTH} {INNER}",
    "down": f"{INNER} {WIDTH}",
}  # fmt: skip

CASES = {
    "lora": Case(lora, ("768 768", "768 8", "8 768", "n 768"), {"n": (1, 8192)}),
    "attention": Case(attention, ("n 64", "m 64", "m 64"), {"n": (1, 4096), "m": (1, 4096)}),
    "heads": Case(heads, ("12 n 64",) * 3, {"n": (1, 4096)}),
    "chain": Case(chain, ("512 a", "a b", "b c", "c 64"), {v: (1, 1024) for v in "abc"}),
    "rows": Case(layer, ("2048 2048", "n 2048"), {"n": (1, 64)}, ("w",)),
    "llama": Case(llama, (_LLAMA, f"b s {WIDTH}"), {"b": (1, 64), "s": (1, 4096)}, ("p",)),
    **{
        f"batch {gpu}": Case(gated, (_GATED, "b 4096 @ bfloat16"), {"b": (1, 64)}, target=gpu)
        for gpu in ("rtx4090", "a100", "h100")
    },
}


@dataclass
class Point:
    """The comparison at some sizes.

    - `at`: the sizes.
    - `regret`: the predicted slowdown of the variant against the program for these sizes alone.
    - `same`: whether both are the same program.
    - `slower`: the measured time of the variant over that of the other program (`SAME` if they are the same); None if
      not timed.
    """

    at: dict[str, int]
    regret: float
    same: bool
    slower: Estimate | None = None


@dataclass
class Outcome:
    """The results of a case.

    - `case`, `target`: the case, and the device.
    - `guards`: the guards of the variants.
    - `cover`: the proof that the guards cover all sizes.
    - `seconds`: seconds to find the family.
    - `dispatch`: seconds of a dispatch, the maximum over 50 sizes.
    - `points`: the comparisons at single sizes.
    """

    case: str
    target: str
    guards: list[str]
    cover: str
    seconds: float
    dispatch: float
    points: list[Point] = field(default_factory=list[Point])

    @property
    def regrets(self) -> list[float]:
        return [p.regret for p in self.points]

    @property
    def timed(self) -> list[Estimate]:
        return [p.slower for p in self.points if p.slower is not None]


def sizes_of(case: Case, count: int, options: Options, seed: int = 20) -> list[dict[str, int]]:
    """Different sizes within the bounds, every other one drawn evenly."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, ...], dict[str, int]] = {}
    while len(found) < min(count, math.prod(high - low + 1 for low, high in case.bounds.values())):
        even = len(found) % 2 == 1
        point = {
            v: int(rng.integers(low, high + 1) if even else math.exp(rng.uniform(math.log(low), math.log(high + 1))))
            for v, (low, high) in case.bounds.items()
        }
        if scope_allows(options.scope, point):
            found[tuple(point.values())] = point
    return list(found.values())


def run(
    name: str, count: int, target: str, timed: int, longest: float, *, earlier: Outcome | None = None,
    until: float = math.inf, told: Callable[[Outcome], None] | None = None, seconds: float = 1.0,
) -> Outcome:  # fmt: skip
    """A case at `count` sizes, the first `timed` of them that are short enough on the clock. Goes on from an `earlier`
    outcome of the same family; begins nothing new after `until` (as `time.perf_counter`); `told`: is given the outcome
    after every size; `seconds`: of timing, at each."""
    case = CASES[name]
    if case.target is not None:
        target, timed = case.target, 0
    # An executable for each combination of sizes on both sides: what padding costs is not asked here.
    more: dict[str, Any] = {"bounds": case.bounds, "weights": case.weights, "target": target, "dynamic": "exact"}
    more["execution"] = case.execution
    started = time.perf_counter()
    with rx.debug.options(cache=False):
        best = rx.optimize(case.fn, *case.specs, **more)
    took = time.perf_counter() - started
    traced = traced_program(case.fn, case.specs, {}, case.bounds)
    options = read_options(traced, target=target, bounds=case.bounds, weights=case.weights, execution=case.execution)
    weights = {leaf.name for leaf in traced.leaves if leaf.argument in options.weights}
    guards = [v.guard for v in best.variants]
    dispatch = Dispatch([Guard.read(g) for g in guards])
    sizes = sizes_of(case, count, options)

    def predicted(found: Any, at: Mapping[str, int]) -> float:
        """Seconds by which programs are chosen, of `found` as it is compiled."""
        kept, modes = found.report.kept_as_written, (AS_USUAL, *options.profile.modes)
        mode = next(m for m in modes if dict(m.options) == dict(found.compiler_options))
        inside = replace(options, profile=options.profile.in_mode(mode))
        doubt = MODE_DOUBT if mode.name else 1.0
        return call_seconds(price_at(found.module, inside, at, None if kept else weights), inside) * doubt

    calls = [min(timeit.repeat(lambda at=at: dispatch.index_of(at), number=500, repeat=7)) / 500 for at in sizes[:50]]
    cover = best.report.family.cover if best.report.family else ""
    known = earlier.points if earlier is not None and (earlier.target, earlier.guards) == (target, guards) else []
    found = Outcome(name, target, guards, cover, took, max(calls))
    before = {tuple(p.at.values()): p for p in known}
    for at in sizes:
        mine = best.variants[dispatch.index_of(at)]
        here = predicted(mine, at)
        is_timed = len(found.timed) < timed and here <= longest
        point = before.get(tuple(at.values()))
        if point is None or (is_timed and point.slower is None):
            if time.perf_counter() > until:
                continue
            one = rx.optimize(case.fn, *case.specs, at=at, **more)
            (alone,) = one.variants
            regret = here / predicted(alone, at) - 1
            same = (mine.module, mine.report.kept_as_written, dict(mine.compiler_options)) == (
                alone.module, alone.report.kept_as_written, dict(alone.compiler_options),
            )  # fmt: skip
            point = Point(at, regret, same)
            if is_timed:
                point.slower = SAME if same else _slower(traced, options, best, one, at, seconds)
        found.points.append(point)
        if told is not None:
            told(found)
    return found


def _slower(traced: Any, options: Options, best: Any, one: Any, at: Mapping[str, int], seconds: float) -> Estimate:
    """Seconds of a call of `best` over those of `one`, in turns."""
    args, _ = random_arguments(traced, dict(options.facts), at)
    calls: dict[str, Callable[[], Any]] = {}
    for label, found in (("family", best), ("alone", one)):
        run: Callable[..., Any] = found
        rest = args
        if options.weights:
            held = [a for n, a in zip(traced.arguments.names, args, strict=True) if n in options.weights]
            rest = tuple(a for n, a in zip(traced.arguments.names, args, strict=True) if n not in options.weights)
            run = found.prepare(*held)
        calls[label] = lambda run=run, rest=rest: run(*rest)
        jax.block_until_ready(calls[label]())

    def slower(timings: Timings) -> Estimate:
        return timings.speedup("alone", over="family")

    return slower(settled(calls, seconds, lambda timings: [(slower(timings), NEAR)]))


def main(
    only: Annotated[str, typer.Option(help="cases, by name, with commas")] = ",".join(CASES),
    sizes: Annotated[int, typer.Option(help="random sizes for each case")] = 200,
    target: Annotated[str, typer.Option(help="a profile")] = "cpu",
    measured: Annotated[int, typer.Option(help="of the sizes so many are also timed")] = 0,
    longest: Annotated[float, typer.Option(help="seconds of a call as predicted; longer ones are not timed")] = 0.1,
    seconds: Annotated[float, typer.Option(help="stop then; the same call with --json goes on")] = math.inf,
    quick: Quick = False,
    path: Annotated[Path | None, typer.Option("--json", help="all figures; read first, written after each")] = None,
) -> None:
    """Families against programs extracted for one size alone."""
    console, until = Console(width=None if sys.stdout.isatty() else 140), time.perf_counter() + seconds
    rows: dict[str, Outcome] = {}
    if path is not None and path.exists():
        for row in json.loads(path.read_text(encoding="utf-8")):
            read: dict[str, Any] = {**row, "points": [_point(p, path) for p in row["points"]]}
            rows[row["case"]] = Outcome(**read)

    def told(row: Outcome, status: Any) -> None:
        rows[row.case] = row
        status.update(f"{row.case}: {len(row.points)} of {sizes} sizes, {len(row.timed)} timed")
        _write(rows, path)

    names = only.split(",")
    if unknown := [n for n in names if n not in CASES]:
        raise typer.BadParameter(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if quick:
        names, sizes, measured = names[:1], QUICK_SIZES, min(measured, QUICK_SIZES)
    for name in names:
        with console.status(name) as status:
            more: dict[str, Any] = {"earlier": rows.get(name), "until": until}
            more |= {"seconds": QUICK_SECONDS} if quick else {}
            told(run(name, sizes, target, measured, longest, **more, told=lambda row, s=status: told(row, s)), status)
    console.print(_table([rows[n] for n in names]))


def _point(data: Mapping[str, Any], path: Path) -> Point:
    """A point on file. SystemExit where it has no interval, as earlier versions wrote it."""
    slower = data["slower"]
    if isinstance(slower, float):
        raise SystemExit(f"{path} has times without intervals, of an earlier version: move it away and time anew")
    read: dict[str, Any] = {**data, "slower": None if slower is None else Estimate(**slower)}
    return Point(**read)


def _write(rows: Mapping[str, Outcome], path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(r) for r in rows.values()], indent=1) + "\n", encoding="utf-8")


def _table(rows: Sequence[Outcome]) -> Table:
    table = Table(box=None, header_style="dim")
    for column in ("case", "variants", "cover", "found in", "dispatch", "sizes", "worst predicted", "beyond 2%"):
        table.add_column(column)
    for column in ("timed", "other programs", "worst timed", "within 10%", "unsure", "beyond 10%"):
        table.add_column(column)
    for row in rows:
        others = [p.slower for p in row.points if p.slower is not None and not p.same]
        verdicts = [e.against(NEAR) for e in others]
        table.add_row(
            row.case, str(len(row.guards)), row.cover, f"{row.seconds:.2f} s", f"{row.dispatch * 1e6:.2f} us",
            str(len(row.points)), f"{max(row.regrets, default=0.0):.2%}", str(sum(r > 0.02 for r in row.regrets)),
            str(len(row.timed)), str(len(others)), str(max(others, key=lambda e: e.value)) if others else "",
            *(str(verdicts.count(v)) for v in (WITHIN, UNSURE, BEYOND)),
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
