"""MiniLM-L6 as written under `jax.jit`, against ours, at several batch sizes and lengths.

    python -m benchmarks.minilm [--lengths 16,64,128] [--batches 1,8,64] [--quick] [--json out.json] [--strict]

Both are one jitted program with its weights passed as arguments, timed in turns on windows of real text. With --strict
it fails where the geometric mean is below 1.0 or a single setting below 0.95.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Ratio, duration, geometric_mean, machine, measure
from examples import minilm

LOWEST_MEAN, LOWEST = 1.0, 0.95
WRITTEN, OURS = "as written", "ours"


def windows(tokenizer: Any, sentences: list[str], batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """A full batch of real text: consecutive stretches of the sentences, each between the model's two markers."""
    start, *_, end = tokenizer.encode("").ids
    words = cycle([i for row in tokenizer.encode_batch(sentences) for i in row.ids[1:-1]])
    rows = [[start, *islice(words, length - 2), end] for _ in range(batch)]
    return np.array(rows, np.int32), np.ones((batch, length), np.int32)


def main(
    lengths: Annotated[str, typer.Option(help="comma-separated token counts")] = "16,64,128",
    batches: Annotated[str, typer.Option(help="comma-separated batch sizes")] = "1,8,64",
    quick: Annotated[bool, typer.Option("--quick", help="one length, 32")] = False,
    without_ours: Annotated[bool, typer.Option("--without-ours", help="time the program as written only")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="fail below the limits")] = False,
) -> None:
    """MiniLM-L6: speed-up over the program as written."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    params, tokenizer = minilm.load()
    sentences = minilm.sentences()
    settings = [(int(b), int(s)) for s in ("32" if quick else lengths).split(",") for b in batches.split(",")]
    console.print(machine())
    written = jax.jit(minilm.encode)
    if not without_ours:
        import relax_eg as rx

        sizes = [{"b": b, "s": s} for b, s in settings]
        best = rx.optimize(minilm.encode, params, "b s @ int32", "b s @ int32", weights=("params",), at=sizes)
        ready = best.prepare(params)
        ours = jax.jit(ready.to_jax())
    rows: list[dict[str, Any]] = []
    table = Table("batch", "tokens", "as written", "ours", "speed-up")
    for b, s in settings:
        ids, mask = map(jax.numpy.asarray, windows(tokenizer, sentences, b, s))
        calls = {WRITTEN: lambda ids=ids, mask=mask: written(params, ids, mask)}
        if not without_ours:
            calls[OURS] = lambda ids=ids, mask=mask: ours(ready.prepared, ids, mask)
            cosine = float(np.min(np.sum(np.asarray(calls[WRITTEN]()) * np.asarray(calls[OURS]()), axis=1)))
            if not cosine >= 0.99999:
                raise SystemExit(f"batch {b}, {s} tokens: the embeddings differ (worst cosine {cosine:.7f})")
        timings = measure(calls, seconds=2.0)
        speedup = None if without_ours else timings.speedup(OURS, over=WRITTEN)
        rows.append({"batch": b, "tokens": s, "written": timings.median(WRITTEN), "speedup": speedup})
        table.add_row(
            str(b),
            str(s),
            duration(timings.median(WRITTEN)),
            "" if without_ours else duration(timings.median(OURS)),
            str(speedup or ""),
        )
    console.print(table)
    ratios = [row["speedup"].value for row in rows if row["speedup"]]
    if ratios:
        console.print(f"geometric mean {geometric_mean(ratios):.2f}, lowest {min(ratios):.2f}")
    if json_out:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        plain = [{k: asdict(v) if isinstance(v, Ratio) else v for k, v in row.items()} for row in rows]
        json_out.write_text(json.dumps({"version": 1, "machine": machine(), "rows": plain}, indent=1))
    if strict and ratios and (geometric_mean(ratios) < LOWEST_MEAN or min(ratios) < LOWEST):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
