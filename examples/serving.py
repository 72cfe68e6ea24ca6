"""What the examples of generating models show: what was chosen, the memory it takes, and how fast tokens come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks.timing import duration
from examples.layers import Cache, continued
from relax_eg.memory.picture import draw

MIB = 1 << 20
NAMED_RULES = 4  # chosen: rules named of a program, those used most
PASSES = 4  # chosen: times that each way generates; the first compiles, the others count


@dataclass(frozen=True)
class Part:
    """An optimized function of a model.

    - `best`: what `rx.optimize` returned.
    - `ready`: it with the weights prepared, or, where there are only shapes of weights, itself.
    - `at`: the sizes of a typical call.
    - `bounds`: the sizes that are allowed.
    """

    best: rx.types.Optimized
    ready: rx.types.Ready | rx.types.Optimized
    at: Mapping[str, int]
    bounds: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Way:
    """A way to run a model.

    - `read`, `more`: as `layers.generate` wants them.
    - `count`: how many tokens it generates.
    - `executables`: how many executables of the decoding step were compiled so far.
    """

    read: Callable[[], tuple[jax.Array, list[Cache]]]
    more: Callable[[np.ndarray, list[Cache]], tuple[jax.Array, list[Cache]]]
    count: int
    executables: Callable[[], int]


def with_fixed_caches(
    read: Callable[..., Any],
    more: Callable[..., Any],
    filled: int,
    count: int,
    room: int,
    executables: Callable[[], int],
) -> Way:
    """`jax.jit` as it is used where nothing may be compiled again. The caches of `read()`, of `filled` positions, are
    padded to a multiple of `room`, and `more(token, position, caches)` uses them up in place."""
    length = -(-(filled + count) // room) * room
    positions = iter(range(0))

    def prompt() -> tuple[jax.Array, list[Cache]]:
        nonlocal positions
        positions = iter(range(filled, length))
        logits, caches = read()
        free = ((0, 0), (0, 0), (0, length - filled), (0, 0))
        return logits, [(jnp.pad(k, free), jnp.pad(v, free)) for k, v in caches]

    return Way(prompt, lambda token, caches: more(token, np.int32(next(positions)), caches), count, executables)


def table(title: str, *columns: str) -> Table:
    """A table whose first column is of text and whose others are of figures."""
    made = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left")
    return made


def show_choices(console: Console, parts: Mapping[str, Part]) -> None:
    """Prints what the compiler chose for each function, at which price, and by which rules."""
    made = table("what was chosen: predicted time of a call", "function", "at", "as written", "chosen", "gain")
    for name, part in parts.items():
        report = part.best.report
        figures = duration(report.before.seconds), duration(report.after.seconds), f"{report.predicted_gain:.2f}"
        made.add_row(name, ", ".join(f"{v}={n}" for v, n in part.at.items()), *figures)
    console.print(made)
    for name, part in parts.items():
        rules = sorted(part.best.report.rules.items(), key=lambda r: -r[1])
        more = f", and {len(rules) - NAMED_RULES} more" if len(rules) > NAMED_RULES else ""
        named = ", ".join(f"{rule} x{count}" for rule, count in rules[:NAMED_RULES])
        allowed = ", ".join(f"{low} <= {v} <= {high}" for v, (low, high) in part.bounds.items())
        console.print(f"{name} for {allowed}: {named + more if rules else 'kept as written'}")


def show_memory(console: Console, parts: Mapping[str, Part], folder: Path | None) -> None:
    """Prints the memory of intermediate values and results at the largest sizes, and draws it where there is a folder.

    Without a plan every value has memory of its own. The size of the arena is fixed before the first call."""
    title = "MiB beside arguments, at the largest sizes"
    made = table(title, "function", "values", "without a plan", "whole storages", "an arena", "needed at once")
    for name, part in parts.items():
        plan = rx.plan_memory(part.ready, bounds=part.bounds, layout="arena", results="planned", temporary="estimated")
        largest = plan.at
        alone = sum(int(x.bytes.evaluate(largest)) for x in plan.live.lifetimes)
        whole = plan.laid_out("storages", results="planned").bytes_at(largest)
        figures = (alone, whole, plan.bytes_at(largest), plan.bound_at(largest))
        made.add_row(name, str(len(plan.live.lifetimes)), *(f"{n / MIB:.2f}" for n in figures))
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            draw(plan, folder / f"{name}.svg")
    console.print(made)
    if folder is not None:
        console.print(f"pictures of the arenas: {folder}/*.svg")


def show_speed(console: Console, title: str, ways: Mapping[str, Way]) -> None:
    """Lets all ways generate, in turns, and prints how fast they are. SystemExit if they disagree on a token.

    All are compared with the first. The first pass compiles; of the others the medians are shown."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    tokens: dict[str, np.ndarray] = {}
    logits: dict[str, np.ndarray] = {}
    for _ in range(PASSES):
        for name, way in ways.items():
            started = time.perf_counter()
            scores, caches = way.read()
            last = np.asarray(scores)[:, -1]
            read = time.perf_counter()
            tokens[name], logits[name] = continued(last, caches, way.more, way.count)
            seconds[name].append((read - started, time.perf_counter() - read))
    first, *_ = ways
    made = table(title, "", "tokens", "steps compiled", "first pass", "prompt", "tokens/s")
    for name, way in ways.items():
        if not np.array_equal(tokens[name], tokens[first][:, : way.count]):
            raise SystemExit(f"{name} generates other tokens than {first}: this is a bug, please report it")
        prompt, step = np.median(seconds[name][1:], axis=0)
        rate = f"{(way.count - 1) / step:.1f}"
        made.add_row(
            name, str(way.count), str(way.executables()), duration(sum(seconds[name][0])), duration(prompt), rate
        )
    console.print(made)
    worst = max(float(np.abs(logits[n] - logits[first][:, : logits[n].shape[1]]).max()) for n in ways)
    console.print(f"all tokens are equal; logits differ by {worst:.1g} at most, of {np.abs(logits[first]).max():.2g}")
