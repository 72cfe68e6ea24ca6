"""Memory against time: what a program takes as written, with `jax.checkpoint`, with one phase after another, and along
the front that `rx.pareto` finds.

    python -m benchmarks.tradeoff [--only attention] [--no-timed] [--write]

Bytes are those beside the arguments. Those of the program as written and with `jax.checkpoint` are of executables
compiled with XLA's memory scheduler and without library fusions, whose account is exact, so "as written" is what XLA
itself does; their times are those of `jax.jit` with its usual options. "One phase after another" is the program chosen
without a limit, of which values are then computed again and whose steps are then brought into an order: the smallest.
Both figures of a program of the front are of the executable that it runs; compiled as usual, its bytes are an upper
bound. Times are medians of calls in turns, as shares of the time of the program as written.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, write_between
from relax_eg.backend.accounting import FRUGAL
from relax_eg.byte_units import format_bytes
from relax_eg.measure.choice import fastest

BEGIN, END = "<!-- python -m benchmarks.tradeoff --write: from here -->", "<!-- to here -->"
PAGE = Path("docs/memory.md")
HEADINGS = ("program", "way", "bytes beside arguments", "of as written", "time, predicted", "time, measured")


@dataclass(frozen=True)
class Case:
    """A program with the shapes of its arguments, float32, and the same program with `jax.checkpoint`, if it has
    gradients."""

    fn: Callable[..., Any]
    shapes: tuple[Any, ...]
    checkpointed: Callable[..., Any] | None = None


def perceptron(ps: Any, x: Any, y: Any, block: Callable[..., Any] = lambda w, x: jnp.tanh(x @ w)) -> Any:
    """The loss of a perceptron of four layers."""
    for w in ps[:-1]:
        x = block(w, x)
    return jnp.mean((x @ ps[-1] - y) ** 2)


def attention(q: Any, k: Any, v: Any) -> Any:
    """One head."""
    return jax.nn.softmax(q @ k.T / 8) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    n = q.shape[0]
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), q @ k.T / 8, -1e30)
    return jax.nn.softmax(scores) @ v


def squared(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(f(*args) ** 2)


def block(ps: Any, x: Any) -> Any:
    """A transformer's block over sequences of 128 tokens, 4 heads of width 64."""
    wq, wk, wv, wo, up, down = ps
    b, s, d = x.shape

    def heads(w: Any) -> Any:
        return (x @ w).reshape(b, s, 4, d // 4)

    scores = jnp.einsum("bqhd,bkhd->bhqk", heads(wq), heads(wk)) / 8
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), heads(wv)).reshape(b, s, d)
    x = x + mixed @ wo
    return x + jax.nn.gelu(x @ up) @ down


def block_loss(ps: Any, x: Any, y: Any) -> Any:
    return jnp.mean((block(ps, x) - y) ** 2)


def convolutions(ps: Any, x: Any) -> Any:
    for w in ps:
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"))
    return jnp.mean(x**2)


def layers(ps: Any, x: Any, y: Any, block: Callable[..., Any] = block) -> Any:
    """The loss of some blocks."""
    for p in ps:
        x = block(p, x)
    return jnp.mean((x - y) ** 2)


_LAYER = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))
_HIDDEN = 512
_WEIGHTS = ((_HIDDEN, _HIDDEN),) * 4
_BLOCK = ((256, 256),) * 4 + ((256, 1024), (1024, 256))
_KERNELS = ((16, 3, 3, 3), (32, 16, 3, 3), (32, 32, 3, 3))
CASES = {
    "perceptron, training step, batch 2,048": Case(
        jax.value_and_grad(perceptron), (_WEIGHTS, (2048, _HIDDEN), (2048, _HIDDEN)),
        jax.value_and_grad(lambda ps, x, y: perceptron(ps, x, y, _LAYER)),
    ),
    "perceptron, training step, batch 65,536": Case(
        jax.value_and_grad(perceptron), (((128, 128),) * 4, (65536, 128), (65536, 128)),
        jax.value_and_grad(lambda ps, x, y: perceptron(ps, x, y, _LAYER)),
    ),
    "attention over 2,048 places": Case(attention, ((2048, 64),) * 3),
    "attention over 8,192 places": Case(attention, ((8192, 64),) * 3),
    "causal attention over 2,048 places, gradients": Case(
        jax.grad(squared(causal), (0, 1, 2)), ((2048, 64),) * 3, jax.grad(squared(jax.checkpoint(causal)), (0, 1, 2)),
    ),
    "transformer block, training step, 16 x 128 tokens": Case(
        jax.value_and_grad(block_loss), (_BLOCK, (16, 128, 256), (16, 128, 256)),
        jax.value_and_grad(lambda ps, x, y: jnp.mean((jax.checkpoint(block)(ps, x) - y) ** 2)),
    ),
    "four transformer blocks, training step, 16 x 128 tokens": Case(
        jax.value_and_grad(layers), ((_BLOCK,) * 4, (16, 128, 256), (16, 128, 256)),
        jax.value_and_grad(lambda ps, x, y: layers(ps, x, y, jax.checkpoint(block))),
    ),
    "three convolutions, training step, 32 images": Case(
        jax.value_and_grad(convolutions), (_KERNELS, (32, 3, 32, 32)),
        jax.value_and_grad(jax.checkpoint(convolutions)),
    ),
}  # fmt: skip
_SAVING = ("computed_one_by_one", "computed_again", "kept_on_host")
_IN_PIECES = ("computed_in_pieces", "accumulated_over_pieces", "computed_one_by_one")
AGAIN_ALONE = functools.reduce(operator.sub, _IN_PIECES, rx.rules.pieces)  # no rule of the search
QUICK_CASE = "causal attention over 2,048 places, gradients"


def drawn(shapes: Any) -> Any:
    """Random arguments of these shapes."""
    rng = np.random.default_rng(0)
    if isinstance(shapes[0], int):
        return jnp.asarray(rng.standard_normal(shapes) * min(1.0, shapes[0] ** -0.5), jnp.float32)
    return tuple(drawn(s) for s in shapes)


def bytes_of(fn: Callable[..., Any], args: Any) -> int:
    """Bytes beside the arguments of a function compiled by `jax.jit` for little memory."""
    analysis = jax.jit(fn).lower(*args).compile(dict(FRUGAL))
    found: Any = analysis.memory_analysis()
    return found.temp_size_in_bytes + found.output_size_in_bytes


def rows_of(name: str, case: Case, timed: bool) -> list[tuple[str, ...]]:
    """The rows of one program. `timed`: whether the programs run."""
    args = tuple(drawn(s) for s in case.shapes)
    front = rx.pareto(case.fn, *args)
    compiled = {"as written": jax.jit(case.fn)}
    sizes = {"as written": bytes_of(case.fn, args)}
    predicted = {"as written": front.written[1]}
    if case.checkpointed is not None:
        compiled["jax.checkpoint"] = jax.jit(case.checkpointed)
        sizes["jax.checkpoint"] = bytes_of(case.checkpointed, args)
    least = front.points[0].program.report.after.call
    phases = rx.pareto(rx.optimize(case.fn, *args).module, rules=AGAIN_ALONE).points[-1]
    flat = jax.tree.leaves(args)
    label = "one phase after another"
    compiled[label], sizes[label] = (lambda *_: phases.program(*flat)), phases.bytes  # type: ignore[assignment]
    predicted[label] = phases.program.report.after.call / least
    for i, p in enumerate(front.points):
        rules = ", ".join(r for r in p.program.report.rules if "pieces" in r or r in _SAVING) or "algebra"
        label = f"front {i + 1}: {'as written' if not p.program.report.rules else rules}"
        compiled[label], sizes[label], predicted[label] = p.program, p.bytes, p.slower  # type: ignore[assignment]
    calls = {label: (lambda f=f: f(*args), 1.0) for label, f in compiled.items()}
    times = {r.label: r for r in fastest(calls, time_all=True)} if timed else {}
    return [
        (
            name if label == "as written" else "",
            label,
            format_bytes(sizes[label]),
            f"{100 * sizes[label] / sizes['as written']:.0f}%",
            f"{predicted[label]:.2f}" if label in predicted else "",
            ""
            if not timed
            else f"{1 / times[label].speedup:.2f} ({1 / times[label].high:.2f} to {1 / times[label].low:.2f})"
            if label != "as written"
            else "1.00",
        )
        for label in compiled
    ]


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "",
    quick: Quick = False,
    timed: Annotated[bool, typer.Option(help="run the programs and time them, or determine their bytes alone")] = True,
    write: Annotated[bool, typer.Option("--write", help=f"also write the whole table into {PAGE}")] = False,
) -> None:
    """Bytes beside the arguments against time, as written, with jax.checkpoint, and along the front."""
    chosen = [n for n in CASES if only in n and (not quick or n == QUICK_CASE)]
    if not chosen:
        raise typer.BadParameter(f"no program has {only!r} in its name: {', '.join(CASES)}", param_hint="--only")
    console, progress = Console(width=None if sys.stdout.isatty() else 160), Console(stderr=True)
    table = Table(*HEADINGS)
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    for i, name in enumerate(chosen):
        progress.print(f"{i + 1} of {len(chosen)}: {name}", highlight=False)
        for row in rows_of(name, CASES[name], timed):
            table.add_row(*row)
            lines.append(f"| {' | '.join(row)} |")
    console.print(table)
    if write and timed and not quick and not only:  # a part of the programs is no table
        write_between(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    typer.run(main)
