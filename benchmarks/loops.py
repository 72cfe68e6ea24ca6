"""Loops on this CPU without any limit: convolutions in a user's own loops, and attention in pieces.

    python -m benchmarks.loops [--quick] [--convolutions] [--write]

XLA's compiler for CPUs brings convolutions into the order of its library, channels last, outside of loops only.
`--convolutions` times single ones in `lax.map`, in both orders. Otherwise programs are timed as `jax.jit` and
`rx.optimize` make them. Calls take turns. `--write` puts these rows into docs/memory.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax import lax
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, write_between
from benchmarks.timing import QUICK_SECONDS, Estimate, measure

PAGE, BEGIN, END = (
    Path("docs/memory.md"),
    "<!-- python -m benchmarks.loops --write: from here -->",
    "<!-- end -->",
)
SECONDS = 2.0  # chosen: of timing a program
STEPS = 8  # chosen: of the loops
LAST = ("NHWC", "HWIO", "NHWC")
# Batch, input channels, output channels, places along an edge, window, groups.
SINGLE = [
    (4, 1, 8, 28, 5, 1), (4, 2, 16, 32, 3, 1), (4, 3, 16, 32, 3, 1), (4, 4, 16, 32, 3, 1), (4, 8, 16, 32, 3, 1),
    (4, 16, 32, 32, 3, 1), (4, 32, 32, 32, 3, 1), (1, 64, 64, 16, 3, 1), (1, 64, 64, 56, 3, 1), (1, 64, 256, 32, 1, 1),
    (1, 128, 128, 28, 3, 1), (4, 16, 16, 16, 3, 2), (4, 16, 16, 16, 3, 4), (1, 64, 64, 32, 3, 64),
]  # fmt: skip


def convolved(x: Any, w: Any, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=groups)


def channels_last(x: Any, w: Any, groups: int) -> Any:
    x, w = jnp.transpose(x, (0, 2, 3, 1)), jnp.transpose(w, (2, 3, 1, 0))
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAST, feature_group_count=groups)
    return jnp.transpose(y, (0, 3, 1, 2))


def mapped(w: Any, images: Any) -> Any:
    """A layer, some images after the other."""
    return lax.map(lambda x: jax.nn.relu(convolved(x, w)), images)


def refined(w: Any, x: Any) -> Any:
    """Images that the same layer refines step by step."""
    return lax.scan(lambda y, _: (jnp.tanh(convolved(y, w) + x), None), x, None, length=STEPS)[0]


def loss(w: Any, x: Any) -> Any:
    return jnp.mean(refined(w, x) ** 2)


def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """Heads first."""
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / 8
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(hidden(scores) if causal else scores), v)


def causal_places_first(q: Any, k: Any, v: Any) -> Any:
    """As libraries of models write it."""
    scores = hidden(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def hidden(scores: Any) -> Any:
    """Scores of which each place sees itself and those before it."""
    return jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)


PROGRAMS: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a layer of 16 to 32 channels, 4 images of 32 x 32 a step": (mapped, ("32 16 3 3", f"{STEPS} 4 16 32 32")),
    "4 images of 16 channels refined in 8 steps": (refined, ("16 16 3 3", "4 16 32 32")),
    "the gradients of that": (jax.value_and_grad(loss), ("16 16 3 3", "4 16 32 32")),
    "the same in groups of one channel": (
        lambda w, x: lax.scan(lambda y, _: (jnp.tanh(convolved(y, w, 16) + x), None), x, None, length=STEPS)[0],
        ("16 1 3 3", "4 16 32 32"),
    ),
    "attention, 12 heads over 2,048 places": (attention, ("12 2048 64",) * 3),
    "causal attention, 12 heads over 2,048 places": (functools.partial(attention, causal=True), ("12 2048 64",) * 3),
    "the same, places before heads": (causal_places_first, ("1 2048 12 64",) * 3),
    "attention, 12 heads over 4,096 places": (attention, ("12 4096 64",) * 3),
}


def drawn(shape: tuple[int, ...]) -> jax.Array:
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal(shape) / max(1.0, float(np.prod(shape[1:])) ** 0.5), jnp.float32)


def ratio(a: Callable[[], Any], b: Callable[[], Any], seconds: float) -> Estimate:
    """How many times as long `a` takes as `b`."""
    return measure({"a": a, "b": b}, seconds).speedup("b", over="a")


def in_both_orders(cases: Sequence[tuple[int, ...]], seconds: float) -> Table:
    """Single convolutions in loops, with their channels first and last."""
    single = Table("convolution", "products of an element", "channels first, times as long")
    for batch, inputs, outputs, edge, window, groups in cases:
        x, w = drawn((STEPS, batch, inputs, edge, edge)), drawn((outputs, inputs // groups, window, window))
        first, last = (
            jax.jit(lambda x, w, f=f, g=groups: lax.map(lambda part: f(part, w, g), x))
            for f in (convolved, channels_last)
        )
        found = ratio(lambda: first(x, w), lambda: last(x, w), seconds)  # noqa: B023
        what = f"{batch} x {inputs} to {outputs} channels, {edge} x {edge}, window {window}, groups {groups}"
        single.add_row(what, str(inputs // groups * window**2), f"{found.value:.1f}")
    return single


def main(
    quick: Quick = False,
    convolutions: Annotated[bool, typer.Option("--convolutions", help="single ones, in both orders")] = False,
    write: Annotated[bool, typer.Option("--write", help=f"also write the programs into {PAGE}")] = False,
) -> None:
    """Programs with loops as written and as optimized, or single convolutions in loops."""
    console, seconds = Console(), QUICK_SECONDS if quick else SECONDS
    if convolutions:
        console.print(in_both_orders(SINGLE[: 2 if quick else None], seconds))
        return
    rows: list[tuple[str, ...]] = []
    for name, (fn, specs) in list(PROGRAMS.items())[: 1 if quick else None]:
        best, written = rx.optimize(fn, *specs, measure="off"), jax.jit(fn)
        args = [drawn(tuple(int(d) for d in s.split())) for s in specs]
        found = ratio(lambda: written(*args), lambda: best(*args), seconds)  # noqa: B023
        rows.append(
            (name, f"{best.report.predicted_gain:.1f}", f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})")
        )
    headings = ("program", "times as fast as `jax.jit`, predicted", "measured")
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if write:
        lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
        write_between(PAGE, BEGIN, END, "\n".join((lines[0], "|---" * len(headings) + "|", *lines[1:])))


if __name__ == "__main__":
    typer.run(main)
