"""Memory against time: what a program takes as written, with `jax.checkpoint`, with one phase after another, and along
the front that `rx.pareto` finds.

    python -m benchmarks.tradeoff [--only attention] [--no-timed] [--write]

Bytes are those beside the arguments. Those of the program as written and with `jax.checkpoint` are of executables
compiled with XLA's memory scheduler and without library fusions, whose account is exact, so "as written" is what XLA
itself does; their times are those of `jax.jit` with its usual options. "One phase after another" is the program chosen
without a limit, of which values are then computed again and whose steps are then brought into an order: the smallest.
Both figures of a program of the front are of the executable that it runs; compiled as usual, its bytes are an upper
bound. Times are medians of calls in turns, as shares of the time of the program as written. Programs that take more
memory than a small machine has are compiled, but do not run; of whole models no e-graph is made. `--write` replaces the
rows of the programs that were tried, holds all rows against the goals, and draws their fronts.
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
from benchmarks import Quick, training, write_between
from benchmarks.tradeoff_goals import HEADINGS as GOALS
from benchmarks.tradeoff_goals import Row, goals, points
from relax_eg.backend.accounting import FRUGAL, compiled_for_account
from relax_eg.byte_units import format_bytes
from relax_eg.measure.choice import fastest
from relax_eg.shapes import parse_spec

BEGIN, END = "<!-- python -m benchmarks.tradeoff --write: from here -->", "<!-- to here -->"
GOALS_BEGIN, GOALS_END = "<!-- goals of benchmarks.tradeoff: from here -->", "<!-- goals: to here -->"
PAGE, PLOT = Path("docs/memory.md"), Path("docs/tradeoff.svg")
HEADINGS = ("program", "way", "bytes beside arguments", "of as written", "time, predicted", "time, measured")


@dataclass(frozen=True)
class Case:
    """A program with specs of its arguments, and the same program with `jax.checkpoint`, if it has gradients. `runs`:
    whether it is small enough to be timed. `budget`: limits of the search."""

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    checkpointed: Callable[..., Any] | None = None
    runs: bool = True
    budget: rx.Budget | None = None


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


def lstm(ps: Any, xs: Any, around: Callable[..., Any] = lambda step: step) -> Any:
    """A loss of the last state of a loop over `xs`. `around`: what is made of a step."""

    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ ps[0] + h @ ps[1], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros(xs.shape[1:])
    return jnp.mean(jax.lax.scan(around(step), (zero, zero), xs)[0][0] ** 2)


def layers(ps: Any, x: Any, y: Any, block: Callable[..., Any] = block) -> Any:
    """The loss of some blocks."""
    for p in ps:
        x = block(p, x)
    return jnp.mean((x - y) ** 2)


def _attentions() -> dict[str, Case]:
    made: dict[str, Case] = {}
    for places in (2048, 8192, 32768):
        specs, runs = (f"{places} 64",) * 3, places <= _MOST_PLACES
        made[f"attention over {places:,} places"] = Case(attention, specs, runs=runs)
        made[f"causal attention over {places:,} places"] = Case(causal, specs, runs=runs)
    made["causal attention over 2,048 places, gradients"] = Case(
        jax.grad(squared(causal), (0, 1, 2)), ("2048 64",) * 3, jax.grad(squared(jax.checkpoint(causal)), (0, 1, 2))
    )
    return made


def _model(name: str, what: str, specs: tuple[Any, ...], runs: bool) -> dict[str, Case]:
    loss, block = training.LOSSES[name]
    case = Case(training.step(loss), specs, training.step(loss, block), runs, None if runs else WITHOUT_SEARCH)
    return {f"{name}, training step, {what}": case}


# Of whole models: loops and orders of the program as written alone, of which so much is compiled.
WITHOUT_SEARCH = rx.Budget(nodes=0, extraction=90.0)
_MOST_PLACES = 8192  # limit: of attentions that run: the scores of more take several GiB
_LAYER = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))
_BLOCK = ("256 256",) * 4 + ("256 1024", "1024 256")
_TOKENS = ("16 128 256",) * 2
_KERNELS = ("16 3 3 3", "32 16 3 3", "32 32 3 3")
_PERCEPTRON = (
    jax.value_and_grad(perceptron),
    jax.value_and_grad(lambda ps, x, y: perceptron(ps, x, y, _LAYER)),
)
CASES = {
    "perceptron, training step, batch 2,048": Case(
        _PERCEPTRON[0], (("512 512",) * 4, "2048 512", "2048 512"), _PERCEPTRON[1]
    ),
    "perceptron, training step, batch 65,536": Case(
        _PERCEPTRON[0], (("128 128",) * 4, "65536 128", "65536 128"), _PERCEPTRON[1]
    ),
    **_attentions(),
    "transformer block, training step, 16 x 128 tokens": Case(
        jax.value_and_grad(block_loss), (_BLOCK, *_TOKENS),
        jax.value_and_grad(lambda ps, x, y: jnp.mean((jax.checkpoint(block)(ps, x) - y) ** 2)),
    ),
    "four transformer blocks, training step, 16 x 128 tokens": Case(
        jax.value_and_grad(layers), ((_BLOCK,) * 4, *_TOKENS),
        jax.value_and_grad(lambda ps, x, y: layers(ps, x, y, jax.checkpoint(block))),
    ),
    "three convolutions, training step, 32 images": Case(
        jax.value_and_grad(convolutions), (_KERNELS, "32 3 32 32"),
        jax.value_and_grad(jax.checkpoint(convolutions)),
    ),
    "LSTM, training step, 256 steps of 64 sequences": Case(
        jax.value_and_grad(lstm), (("128 512",) * 2, "256 64 128"),
        jax.value_and_grad(lambda ps, xs: lstm(ps, xs, jax.checkpoint)),
    ),
    **_model("GPT-2 small", "2 of 12 layers, 4 x 128 tokens", training.gpt2(2, 4, 128), True),
    **_model("GPT-2 small", "12 layers, 8 x 1,024 tokens", training.gpt2(12, 8, 1024), False),
    **_model("BERT-base", "2 of 12 layers, 8 x 128 tokens", training.bert(2, 8, 128), True),
    **_model("BERT-base", "12 layers, 32 x 512 tokens", training.bert(12, 32, 512), False),
    **_model("ViT-B/16", "2 of 12 layers, 8 images", training.vit(2, 8, 224), True),
    **_model("ViT-B/16", "12 layers, 32 images", training.vit(12, 32, 224), False),
    **_model("ResNet-50", "4 of 16 blocks, 8 images of 64 x 64", training.resnet(8, 64, 1), True),
    **_model("ResNet-50", "32 images", training.resnet(32, 224), False),
    **_model("U-Net", "32 channels, 4 images of 32 x 32", training.unet(4, 32, 32), True),
    **_model("U-Net", "32 images of 64 x 64", training.unet(32, 64), False),
}  # fmt: skip
_SAVING = ("computed_one_by_one", "computed_again", "kept_on_host")
_WORDS = 1000  # limit: random whole numbers, below all vocabularies and numbers of classes
_IN_PIECES = ("computed_in_pieces", "accumulated_over_pieces", "computed_one_by_one")
AGAIN_ALONE = functools.reduce(operator.sub, _IN_PIECES, rx.rules.pieces)  # no rule of the search
QUICK_CASE = "causal attention over 2,048 places, gradients"


def shape_of(spec: str) -> jax.ShapeDtypeStruct:
    dims, _, dtype = spec.partition("@")
    shape = tuple(int(str(d)) for d in parse_spec(dims.strip()).dims)
    return jax.ShapeDtypeStruct(shape, dtype.strip() or "float32")


def drawn(spec: str, rng: np.random.Generator) -> jax.Array:
    """A random argument: whole numbers below all sizes of vocabularies, floats small enough for a softmax."""
    at = shape_of(spec)
    if jnp.issubdtype(at.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, min(at.shape[-1], _WORDS), at.shape), at.dtype)
    return jnp.asarray(rng.standard_normal(at.shape) * min(1.0, max(at.shape[0], 1) ** -0.5), at.dtype)


def result_bytes(case: Case) -> int:
    """The bytes of the results of a program."""
    results = jax.eval_shape(case.fn, *jax.tree.map(shape_of, case.specs))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(results))


def bytes_of(fn: Callable[..., Any], shapes: Any) -> int:
    """Bytes beside the arguments of a function compiled by `jax.jit` for little memory."""
    compiled = compiled_for_account(jax.jit(fn, compiler_options=dict(FRUGAL)).lower(*shapes))
    found: Any = compiled.memory_analysis()
    return found.temp_size_in_bytes + found.output_size_in_bytes


def rows_of(name: str, case: Case, timed: bool) -> list[tuple[str, ...]]:
    """The rows of one program. `timed`: whether the programs run."""
    shapes = jax.tree.map(shape_of, case.specs)
    front = rx.pareto(case.fn, *case.specs, budget=case.budget)
    compiled = {"as written": jax.jit(case.fn)}
    sizes = {"as written": bytes_of(case.fn, shapes)}
    predicted = {"as written": front.written[1]}
    if case.checkpointed is not None:
        compiled["jax.checkpoint"] = jax.jit(case.checkpointed)
        sizes["jax.checkpoint"] = bytes_of(case.checkpointed, shapes)
    least = front.points[0].program.report.after.call
    if case.budget is None:
        phases = rx.pareto(rx.optimize(case.fn, *case.specs).module, rules=AGAIN_ALONE).points[-1]
        label = "one phase after another"
        compiled[label], sizes[label] = (lambda *args: phases.program(*jax.tree.leaves(args))), phases.bytes  # type: ignore[assignment]
        predicted[label] = phases.program.report.after.call / least
    for i, p in enumerate(front.points):
        rules = ", ".join(r for r in p.program.report.rules if "pieces" in r or r in _SAVING) or "algebra"
        label = f"front {i + 1}: {'as written' if not p.program.report.rules else rules}"
        compiled[label], sizes[label], predicted[label] = p.program, p.bytes, p.slower  # type: ignore[assignment]
    times: dict[str, Any] = {}
    if timed and case.runs:
        rng = np.random.default_rng(0)
        args = jax.tree.map(lambda spec: drawn(spec, rng), case.specs)
        calls = {label: (lambda f=f: f(*args), 1.0) for label, f in compiled.items()}
        times = {r.label: r for r in fastest(calls, time_all=True)}

    def measured(label: str) -> str:
        if label not in times:
            return ""
        r = times[label]
        return "1.00" if label == "as written" else f"{1 / r.speedup:.2f} ({1 / r.high:.2f} to {1 / r.low:.2f})"

    return [
        (
            name if label == "as written" else "",
            label,
            format_bytes(sizes[label]),
            f"{100 * sizes[label] / sizes['as written']:.0f}%",
            f"{predicted[label]:.2f}" if label in predicted else "",
            measured(label),
        )
        for label in compiled
    ]


def rows_on(page: str) -> dict[str, list[Row]]:
    """The rows of the table on a page, by program."""
    found: dict[str, list[Row]] = {}
    _, _, rest = page.partition(BEGIN)
    for line in rest.partition(END)[0].splitlines():
        cells = tuple(c.strip() for c in line.strip("|").split("|"))
        if len(cells) != len(HEADINGS) or cells == HEADINGS or set(line) <= set("|-"):
            continue
        if cells[0]:
            found[cells[0]] = []
        found[next(reversed(found))].append(cells)
    return found


def plot(rows: dict[str, list[Row]], path: Path) -> None:
    """Draws the fronts, bytes against time as shares of those of the program as written: measured, or predicted where
    there is a program that was not timed."""
    from matplotlib import pyplot, ticker  # only for plots

    pyplot.switch_backend("Agg")
    columns = 3
    with pyplot.rc_context({"font.size": 7, "svg.hashsalt": "relax_eg", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(
            -(-len(rows) // columns), columns, layout="constrained", squeeze=False,
            figsize=(9, 2.3 * -(-len(rows) // columns)),
        )  # fmt: skip
        for ax in axes.flat[len(rows) :]:
            ax.set_axis_off()
        shown: dict[str, Any] = {}  # for the legend, as not every program has all ways
        for ax, (name, of_program) in zip(axes.flat, rows.items(), strict=False):
            known, is_timed = points(of_program)
            size = known["as written"].bytes
            at = {label: (p.time, 100 * p.bytes / size) for label, p in known.items() if p.time is not None}
            front = sorted(xy for label, xy in at.items() if label.startswith("front"))
            line = "" if is_timed else "-"  # measured times are not in the order of predicted ones
            (shown["front"],) = ax.plot(*zip(*front, strict=True), marker="o", markersize=3, linestyle=line)
            for label, marker in (("as written", "x"), ("jax.checkpoint", "+"), ("one phase after another", "^")):
                if label in at:
                    (shown[label],) = ax.plot(*at[label], marker, color="black", markersize=5)
            ax.set_title(name, fontsize=7)
            ax.set(yscale="log", xlabel="time, measured" if is_timed else "time, predicted")
            ax.set_ylabel("bytes, %")
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter(ticker.LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.5)))
            ax.grid(alpha=0.3)
        figure.legend(shown.values(), shown.keys(), fontsize=7, loc="outside lower right")
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def as_table(headings: Row, rows: list[Row]) -> str:
    """Rows as a table of a page."""
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join((lines[0], "|" + "---|" * len(headings), *lines[1:]))


def main(
    only: Annotated[str, typer.Option(help="the program of this name, or those whose names contain it")] = "",
    quick: Quick = False,
    timed: Annotated[bool, typer.Option(help="run the programs and time them, or determine their bytes alone")] = True,
    write: Annotated[bool, typer.Option("--write", help=f"also write the rows into {PAGE}, and draw {PLOT}")] = False,
) -> None:
    """Bytes beside the arguments against time, as written, with jax.checkpoint, and along the front."""
    named = [only] if only in CASES else [n for n in CASES if only in n]
    chosen = [n for n in named if not quick or n == QUICK_CASE]
    if not chosen:
        raise typer.BadParameter(f"no program has {only!r} in its name: {', '.join(CASES)}", param_hint="--only")
    console, progress = Console(width=None if sys.stdout.isatty() else 160), Console(stderr=True)
    table = Table(*HEADINGS)
    for i, name in enumerate(chosen):
        progress.print(f"{i + 1} of {len(chosen)}: {name}", highlight=False)
        rows = rows_of(name, CASES[name], timed)
        for row in rows:
            table.add_row(*row)
        if write and not quick:
            known = rows_on(PAGE.read_text()) | {name: rows}
            kept = {n: known[n] for n in CASES if n in known}
            write_between(PAGE, BEGIN, END, as_table(HEADINGS, [r for of in kept.values() for r in of]))
            results = {n: result_bytes(CASES[n]) for n in kept}
            write_between(PAGE, GOALS_BEGIN, GOALS_END, as_table(GOALS, goals(kept, results)))
            plot(kept, PLOT)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
