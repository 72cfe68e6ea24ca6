"""Families against programs extracted for one size alone: is the dispatched variant as good everywhere?

    python -m benchmarks.families [--only chain] [--sizes 200] [--target cpu] [--measured 30] [--out families.json]

For each case a family is found once. Then at random sizes, none of which the family was made from (half drawn evenly by
how many times they differ, half evenly), `optimize(at=size)` searches anew, and its program's predicted seconds are
compared with those of the variant that the family dispatches to. With --measured both run in turns in one process at
the first so many of these sizes that take at most --longest seconds as predicted. Also told: variants, the proof of
cover, seconds to find the family, and microseconds to dispatch.
"""

from __future__ import annotations

import json
import math
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relax_eg as rx
from benchmarks.timing import measure
from relax_eg.driver import traced_program
from relax_eg.egraph import Budget
from relax_eg.families import allows
from relax_eg.measured import arguments
from relax_eg.options import Options, read_options
from relax_eg.prices import of_a_call, price
from relax_eg.shapes.guards import Dispatch, Guard

Bounds = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Case:
    """A program, a spec per argument, what its sizes may be, and the arguments that are weights."""

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    bounds: Bounds
    weights: tuple[str, ...] = ()


def lora(w: Any, a: Any, b: Any, x: Any) -> Any:
    return x @ (w + a @ b)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T * 0.125) @ v


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


_SHARED = GROUPS * WIDTH // HEADS
_LLAMA = {
    "norm1": f"{WIDTH}", "norm2": f"{WIDTH}", "q": f"{WIDTH} {WIDTH}", "k": f"{WIDTH} {_SHARED}",
    "v": f"{WIDTH} {_SHARED}", "o": f"{WIDTH} {WIDTH}", "gate": f"{WIDTH} {INNER}", "up": f"{WIDTH} {INNER}",
    "down": f"{INNER} {WIDTH}",
}  # fmt: skip

CASES = {
    "lora": Case(lora, ("768 768", "768 8", "8 768", "n 768"), {"n": (1, 8192)}),
    "attention": Case(attention, ("n 64", "m 64", "m 64"), {"n": (1, 4096), "m": (1, 4096)}),
    "chain": Case(chain, ("512 a", "a b", "b c", "c 64"), {v: (1, 1024) for v in "abc"}),
    "rows": Case(layer, ("2048 2048", "n 2048"), {"n": (1, 64)}, ("w",)),
    "llama": Case(llama, (_LLAMA, f"b s {WIDTH}"), {"b": (1, 64), "s": (1, 4096)}, ("p",)),
}


@dataclass(frozen=True)
class Outcome:
    """What a case came to: `regrets` as predicted, `slower` as measured (seconds of the family over those of the
    program for that size), one for each size."""

    case: str
    target: str
    variants: int
    cover: str
    seconds: float
    dispatch: float
    sizes: list[dict[str, int]]
    regrets: list[float]
    measured: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    slower: list[float] = field(default_factory=list[float])


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
        if allows(options.scope, point):
            found[tuple(point.values())] = point
    return list(found.values())


def run(name: str, count: int, target: str, timed: int, longest: float, quiet: bool = True) -> Outcome:
    """A case at `count` sizes, the first `timed` of them that are short enough on the clock."""
    case = CASES[name]
    more: dict[str, Any] = {"bounds": case.bounds, "weights": case.weights, "target": target, "cache": False}
    started = time.perf_counter()
    best = rx.optimize(case.fn, *case.specs, **more)
    seconds = time.perf_counter() - started
    traced = traced_program(case.fn, case.specs, {}, case.bounds, ())
    options = read_options(
        traced, None, target, None, case.bounds, case.weights, None, "reassociate", Budget(), None, "on", 0
    )
    weights = {leaf.name for leaf in traced.leaves if leaf.argument in options.weights}
    dispatch = Dispatch([Guard.read(v.guard) for v in best.variants])
    sizes, regrets = sizes_of(case, count, options), list[float]()
    alone: list[rx.Optimized] = []

    def predicted(module: Any, kept: bool, at: Mapping[str, int]) -> float:
        return of_a_call(price(module, options, at, None if kept else weights), options)

    for at in track(sizes, name, disable=quiet):
        one = rx.optimize(case.fn, *case.specs, at=at, **more)
        mine = best.variants[dispatch.at(at)]
        here = predicted(mine.module, mine.report.kept_as_written, at)
        regrets.append(here / predicted(one.module, one.report.kept_as_written, at) - 1)
        alone.append(one)
    took = [min(timeit.repeat(lambda at=at: dispatch.at(at), number=500, repeat=7)) / 500 for at in sizes[:50]]
    cover = best.report.family.cover if best.report.family else ""
    found = Outcome(name, target, len(best.variants), cover, seconds, max(took), sizes, regrets)
    for at, one in zip(sizes, alone, strict=True):
        if len(found.slower) >= timed:
            break
        mine = best.variants[dispatch.at(at)]
        if predicted(mine.module, mine.report.kept_as_written, at) > longest:
            continue
        same = mine.module == one.module and mine.report.kept_as_written == one.report.kept_as_written
        found.measured.append(at)
        found.slower.append(1.0 if same else _slower(traced, options, best, one, at))
    return found


def _slower(traced: Any, options: Options, best: Any, one: Any, at: Mapping[str, int]) -> float:
    """Seconds of a call of `best` over those of `one`, in turns."""
    args, _ = arguments(traced, dict(options.facts), at)
    calls: dict[str, Callable[[], Any]] = {}
    for label, found in (("family", best), ("alone", one)):
        run: Callable[..., Any] = found
        rest = args
        if options.weights:
            held = [a for n, a in zip(traced.arg_names, args, strict=True) if n in options.weights]
            rest = tuple(a for n, a in zip(traced.arg_names, args, strict=True) if n not in options.weights)
            run = found.prepare(*held)
        calls[label] = lambda run=run, rest=rest: run(*rest)
        jax.block_until_ready(calls[label]())
    return 1 / measure(calls, 1.0).speedup("family", "alone").value


def main(
    only: Annotated[str, typer.Option(help="cases, by name, with commas")] = ",".join(CASES),
    sizes: Annotated[int, typer.Option(help="random sizes for each case")] = 200,
    target: Annotated[str, typer.Option(help="a profile")] = "cpu",
    measured: Annotated[int, typer.Option(help="of the sizes so many are also timed")] = 0,
    longest: Annotated[float, typer.Option(help="seconds of a call as predicted; longer ones are not timed")] = 0.1,
    out: Annotated[Path | None, typer.Option(help="a JSON file for all figures")] = None,
) -> None:
    """Families against programs extracted for one size alone."""
    table = Table(box=None, header_style="dim")
    for column in ("case", "variants", "cover", "found in", "dispatch", "worst predicted", "beyond 2%", "slower by"):
        table.add_column(column)
    rows: list[Outcome] = []
    for name in only.split(","):
        row = run(name, sizes, target, measured, longest, quiet=False)
        rows.append(row)
        beyond = sum(r > 0.02 for r in row.regrets)
        slower = f"{max(row.slower) - 1:+.1%} of {len(row.slower)}" if row.slower else ""
        table.add_row(
            name, str(row.variants), row.cover, f"{row.seconds:.2f} s", f"{row.dispatch * 1e6:.1f} us",
            f"{max(row.regrets):.2%} of {len(row.regrets)}", str(beyond), slower,
        )  # fmt: skip
    Console().print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
