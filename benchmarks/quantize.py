"""MiniLM-L6 with its real weights, quantized by `rx.quantize`: embeddings, bytes, and tokens per second.

    python -m benchmarks.quantize [--only dynamic,fp8] [--quick] [--write]

Calibrated on every other of the example's sentences; the cosines are of the embeddings of all of them with those of the
float32 program, and of those that calibration has not seen. Programs take turns on windows of real text: `jax.jit` of
the function as written in float32, what `rx.optimize` makes of it, and what it makes of each quantized module, at the
sizes that are timed. With --write the table goes into docs/quantization.md. Fails if a cosine is below what is wanted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console

from benchmarks import Quick, write_between
from benchmarks.minilm import windows
from benchmarks.timing import QUICK_SECONDS, machine, measure
from examples import minilm

DOCUMENT = Path(__file__).parent.parent / "docs" / "quantization.md"
BEGIN, END = "<!-- python -m benchmarks.quantize --write: from here -->", "<!-- to here -->"
WRITTEN, OURS = "float32, `jax.jit`", "float32, `rx.optimize`"
SIZES = (8, 64)  # batch and tokens that are timed
# Options of `rx.quantize`, and the least cosine that is wanted of the worst embedding; None: it is only shown.
SCHEMES: dict[str, tuple[dict[str, Any], float | None]] = {
    "int8 weights": ({"scheme": "int8"}, 0.99),
    "int8 weights and activations, dynamic": ({"scheme": "int8", "activations": "dynamic"}, 0.99),
    "int8 weights and activations, static": ({"scheme": "int8", "activations": "static"}, None),
    "int4 weights, groups of 32": ({"scheme": "int4", "group": 32}, None),
    "int4, groups of 32, calibrated rounding": ({"scheme": "int4", "group": 32, "rounding": "calibrated"}, 0.97),
    "int4, tables too, calibrated rounding": (
        {"scheme": "int4", "group": 32, "rounding": "calibrated", "tables": "int4"},
        0.97,
    ),
    "fp8 weights": ({"scheme": "fp8"}, None),
}


def main(
    seconds: Annotated[float, typer.Option(help="of timing, all programs together")] = 20.0,
    target: Annotated[str | None, typer.Option(help="a device profile, or its file; default: this machine")] = None,
    only: Annotated[str, typer.Option(help="parts of the names of schemes, by commas; all unless given")] = "",
    quick: Quick = False,
    write: Annotated[bool, typer.Option("--write", help="write the table of docs/quantization.md")] = False,
) -> None:
    """MiniLM-L6 quantized: cosines, bytes and tokens per second."""
    import relax_eg as rx

    console = Console(width=None if sys.stdout.isatty() else 160)
    params, tokenizer = minilm.load()
    sentences = minilm.sentences()
    b, s = SIZES
    ids, mask = minilm.tokens(tokenizer, sentences)
    written = jax.jit(minilm.encode)
    floats = np.asarray(written(params, ids, mask))
    data = [(params, *minilm.tokens(tokenizer, sentences[::2]))]
    timed = [jax.numpy.asarray(x) for x in windows(tokenizer, sentences, b, s)]
    calls: dict[str, Any] = {WRITTEN: lambda: written(params, *timed)}
    specs = "b s @ int32", "b s @ int32"
    options: dict[str, Any] = {"at": {"b": b, "s": s}, "target": target, "dynamic": "exact", "measure": "off"}
    ours = rx.optimize(minilm.encode, params, *specs, weights=("params",), **options).prepare(params)
    calls[OURS] = lambda: ours(*timed)
    rows: dict[str, list[str]] = {name: ["1", "1", ""] for name in calls}
    missed: list[str] = []
    chosen = [(n, x) for n, x in SCHEMES.items() if any(part in n for part in only.split(","))]
    for name, (scheme, wanted) in chosen[: 1 if quick else None]:
        made = rx.quantize(minilm.encode, data, params, *specs, weights=("params",), target=target, **scheme)
        cosines = np.sum(np.asarray(made(ids, mask)) * floats, axis=1)
        before, after = made.report.layer_bytes
        whole = made.report.before / made.report.after
        rows[name] = [f"{cosines.min():.4f}", f"{cosines[1::2].min():.4f}", f"{before / after:.2f}, whole {whole:.2f}"]
        console.print(
            f"{name}: {rows[name]}, predicted {made.report.seconds_before:.4f} -> {made.report.seconds_after:.4f}"
        )
        if wanted is not None and not cosines.min() >= wanted:
            missed.append(f"{name}: the worst cosine is {cosines.min():.4f}; {wanted} is wanted")
        best = rx.optimize(made, **options)
        calls[name] = lambda best=best: best(*timed)
        rows[name].append("bytes" if "integer_product" in best.report.rules else "floats")
    timings = measure(calls, QUICK_SECONDS if quick else seconds)
    lines = [
        "| program | worst cosine | of unseen text | bytes, times less | products of | tokens/s | over float32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        rate = b * s / timings.median(name)
        ratio = "" if name == WRITTEN else str(timings.speedup(name, over=WRITTEN))
        lines.append(
            "| " + " | ".join([name, *row, *([] if len(row) == 4 else ["floats"]), f"{rate:,.0f}", ratio]) + " |"
        )
    text = "\n".join([f"{machine()}; batch {b}, {s} tokens.", "", *lines])
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if write and not quick:
        write_between(DOCUMENT, BEGIN, END, text)
    for line in missed:
        console.print(line)
    raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    typer.run(main)
