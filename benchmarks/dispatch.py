"""The cost of a call on the host: microseconds over `jax.jit` of the same function, for each way to call our programs.

    python -m benchmarks.dispatch [--only jit] [--rounds 400] [--strict]

The arguments are a few small arrays, so that nearly all time of a call is spent before the executable runs. In each
round every way is timed, in a new order, next to `jax.jit` of the same function; the cost is the median over the rounds
of the difference. "warm": the same call came just before. "cold": 64 MB were read since then, so that Python is not in
the processor's caches, as after a large kernel. The limit for a warm call of known sizes without padding is 2 us over
`jax.jit`; it is kept, broken or unsure (`benchmarks.timing`), and --strict requires that all are kept.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
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
from benchmarks.timing import BEYOND, WITHIN, Estimate, Verdict, machine, tally, told

FEWEST = 6  # rounds: fewer give no interval
ALLOWED = 2.0  # us over `jax.jit`, warm
ROWS, OTHER, HELD = 8, 6, 8
PADDED = "dynamic='capacity', padded"

uncached = rx.debug.options(cache=False)(rx.optimize)


def scaled(w: Any, x: Any) -> Any:
    """A function whose chosen program is the one as written at all sizes."""
    return jnp.tanh(x * w)


def adapted(w: Any, a: Any, b: Any, x: Any) -> Any:
    """A function with two chosen programs: for few rows the adapter is applied separately, for many it is merged into
    the weight."""
    return x @ (w + a @ b)


def ways() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Returns, by name, the call of `jax.jit` and ours for the same function and arrays."""
    w, x, odd = jnp.ones(HELD), jnp.ones((ROWS, HELD)), jnp.ones((OTHER, HELD))
    plain: Any = jax.jit(scaled)
    specs, bounds = (f"{HELD}", f"n {HELD}"), {"n": (1, 64)}
    made: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}

    def optimized(**options: Any) -> Any:
        return uncached(scaled, *specs, bounds=bounds, **options)

    def add(name: str, ours: Any, *args: Any, written: Any = plain, given: Any = (), **named: Any) -> None:
        given = given or args
        made[name] = (lambda: written(*given, **named)), (lambda: ours(*args, **named))

    fixed = uncached(scaled, f"{HELD}", f"{ROWS} {HELD}")
    add("fixed sizes", fixed, w, x)
    named = optimized(at={"n": ROWS})
    add("named in at", named, w, x)
    add("named in at, by keyword", named, w, x=x)
    on_host = np.asarray(x)
    add("named in at, numpy", named, w, on_host)
    add("first sizes", optimized(), w, x)
    several = optimized(at=[{"n": n} for n in (ROWS, OTHER)])
    for given in (x, odd) * 8:
        several(w, given)
    add("one of several sizes", several, w, x)
    add("dynamic='exact'", optimized(dynamic="exact"), w, x)
    capacity = optimized(dynamic="capacity")
    add("dynamic='capacity'", capacity, w, x)
    add(PADDED, capacity, w, odd)
    kept = optimized(at={"n": ROWS}, weights=("w",))
    add("prepared", kept.prepare(w), x, given=(w, x))
    add("weights as arguments", kept, w, x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scaled.rxe"
        named.save(path)
        add("loaded", rx.load(path), w, x)

    small = [jnp.ones(shape) for shape in ((32, 32), (32, 2), (2, 32), (4, 32))]
    dims: Any = "32 32", "32 2", "2 32", "n 32"
    for how in ("auto", "exact"):
        options: dict[str, Any] = {"at": [{"n": 4}, {"n": 4096}], "weights": ("w", "a", "b"), "dynamic": how}
        family = uncached(adapted, *dims, bounds={"n": (1, 4096)}, target="cpu", **options)
        ready = family.prepare(*small[:3])
        whole: Any = jax.jit(ready.to_jax())
        same: dict[str, Any] = {"written": whole, "given": (ready.prepared, small[-1])}
        add(f"a family of {len(family.variants)}, {how}, prepared", ready, small[-1], **same)
        add(f"a family of {len(family.variants)}, {how}, weights as arguments", family, *small, **same)

    add("rx.jit", rx.jit(scaled), w, x)
    varied = rx.jit(scaled)
    for n in (ROWS, 3, 4):
        varied(w, jnp.ones((n, HELD)))
    add("rx.jit that met other sizes, the first", varied, w, x)
    add("rx.jit that met other sizes, at capacity", varied, w, jnp.ones((4, HELD)))
    add("rx.jit with dims", rx.jit(scaled, dims=list(specs), bounds=bounds, at={"n": ROWS}), w, x)
    return made


def measure(
    made: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], rounds: int, disturb: Callable[[], Any] | None
) -> dict[str, tuple[float, Estimate]]:
    """Of each way, microseconds of `jax.jit` and of ours more than that."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for calls in made.values():
        for call in calls:
            for _ in range(8):  # the first calls of an executable are timed
                jax.block_until_ready(call())
    shuffle, order = random.Random(0).shuffle, list(made)
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            written, ours = (_once(call, disturb) for call in made[name])
            found[name].append((written, ours - written))
    return {
        name: (statistics.median(w for w, _ in taken), Estimate.of(np.array([d for _, d in taken])))
        for name, taken in found.items()
    }


def _once(call: Callable[[], Any], disturb: Callable[[], Any] | None) -> float:
    """Microseconds of one call, which is waited for."""
    if disturb is None:
        jax.block_until_ready(call())
    else:
        disturb()
    started = time.perf_counter()
    jax.block_until_ready(call())
    return (time.perf_counter() - started) * 1e6


def main(
    only: Annotated[str, typer.Option(help="ways whose names contain this")] = "",
    rounds: Annotated[int, typer.Option(min=FEWEST, help="of warm calls; of cold ones a quarter")] = 800,
    quick: Quick = False,
    strict: Annotated[bool, typer.Option("--strict", help="fail unless all limits are kept")] = False,
) -> None:
    """Microseconds over `jax.jit`."""
    rounds = FEWEST if quick else rounds
    made = {name: calls for name, calls in ways().items() if only in name}
    memory = np.ones(8 << 20)
    warm = measure(made, rounds, None)
    cold = measure(made, max(rounds // 4, FEWEST), memory.sum)
    table = Table("a call", "jax.jit, warm", "ours more", "", "jax.jit, cold", "ours more")
    verdicts: dict[str, Verdict] = {n: more.against(ALLOWED) for n, (_, more) in warm.items() if n != PADDED}
    for name in made:
        (jit, more), (cold_jit, cold_more) = warm[name], cold[name]
        verdict = told(verdicts.get(name), BEYOND)
        table.add_row(name, f"{jit:.1f} us", f"{more}", verdict, f"{cold_jit:.1f} us", f"{cold_more.value:+.1f}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(machine())
    console.print(table)
    console.print(f"at most {ALLOWED} us over jax.jit, padding aside: {tally(verdicts.values())}")
    if strict and any(v != WITHIN for v in verdicts.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
