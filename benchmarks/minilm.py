"""MiniLM-L6 as written under `jax.jit` against our program, at several batch sizes and lengths.

    python -m benchmarks.minilm [--lengths 16,64,128] [--batches 1,8,64] [--quick] [--json out.json] [--strict]
    python -m benchmarks.minilm --execution kernels --lengths 16,128,512 --batches 1 --strict
    python -m benchmarks.minilm --short [--measure 3] [--json out.json --resume --budget 280]
                                                                      # batch 1, lengths 5 to 32, and up to 512

Both have their weights passed as arguments, and take turns on windows of real text: `jax.jit` of the function as
written at XLA's default options, and one `optimize` for all sizes (with --measure, for a few of them, at which it times
programs and options of XLA). At each setting ours is called until its first calls have settled which program runs
there, before anything is timed. What is wanted of a setting: that ours takes at most 1/0.95 times as long; with --short
that a length up to 32 gains 1.15, and a longer one loses at most 5%; in kernels, each an executable of its own, at most
1.15 times as long, up to 16 tokens 1.5 times. `benchmarks.timing` says when that is kept, broken (MISSED) or unsure.
With --strict it fails unless all is kept, without --short a geometric mean of 1.0 included.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import Quick
from benchmarks.timing import (
    QUICK_SECONDS,
    WITHIN,
    Estimate,
    Verdict,
    duration,
    geometric_mean,
    machine,
    measure,
    settle,
    tally,
    told,
)  # fmt: skip
from examples import minilm

LOWEST_MEAN, LOWEST = 1.0, 0.95
SHORT, LONG = tuple(range(5, 33)), (40, 48, 64, 96, 128, 192, 256, 384, 512)
# Sizes that are no multiples of 4 or 8: at 24 rows programs win that lose at 25.
SHORT_GAIN, MEASURED_AT = 1.15, (6, 11, 17, 23, 30, 60, 200)
FEW, LONGER_IN_KERNELS, LONGER_OF_FEW = 16, 1.15, 1.5
WRITTEN, OURS = "as written", "ours"


def windows(tokenizer: Any, sentences: list[str], batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """A full batch of real text: consecutive stretches of the sentences, each between the model's two markers."""
    start, *_, end = tokenizer.encode("").ids
    words = cycle([i for row in tokenizer.encode_batch(sentences) for i in row.ids[1:-1]])
    rows = [[start, *islice(words, length - 2), end] for _ in range(batch)]
    return np.array(rows, np.int32), np.ones((batch, length), np.int32)


def allowed(tokens: int, short: bool, execution: str) -> float:
    """Returns the limit on the time of our program over that of the program as written."""
    if execution == "kernels":
        return LONGER_OF_FEW if tokens <= FEW else LONGER_IN_KERNELS
    return 1 / (SHORT_GAIN if short and tokens <= SHORT[-1] else LOWEST)


def load(path: Path) -> list[dict[str, Any]]:
    """Rows on file."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [{**row, "speedup": Estimate(**row["speedup"]) if row["speedup"] else None} for row in rows]


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = [{k: asdict(v) if isinstance(v, Estimate) else v for k, v in row.items()} for row in rows]
    path.write_text(json.dumps({"version": 1, "machine": machine(), "rows": plain}, indent=1))


def main(
    lengths: Annotated[str, typer.Option(help="comma-separated token counts")] = "",
    batches: Annotated[str, typer.Option(help="comma-separated batch sizes")] = "",
    short: Annotated[bool, typer.Option("--short", help="batch 1, short texts and some long ones")] = False,
    execution: Annotated[str, typer.Option(help="whole, or kernels")] = "whole",
    choose: Annotated[int, typer.Option("--measure", help="programs timed ahead; 0: the first calls choose")] = 0,
    target: Annotated[str | None, typer.Option(help="a device profile, or its file; default: this machine")] = None,
    seconds: Annotated[float, typer.Option(help="of timing, for each setting")] = 2.0,
    quick: Quick = False,
    without_ours: Annotated[bool, typer.Option("--without-ours", help="time the program as written only")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="keep the rows of --json, time the rest")] = False,
    budget: Annotated[float, typer.Option(help="stop after so many seconds; --resume goes on")] = float("inf"),
    strict: Annotated[bool, typer.Option("--strict", help="fail unless all limits are kept")] = False,
) -> None:
    """MiniLM-L6: speed-up over the program as written."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    params, tokenizer = minilm.load()
    sentences = minilm.sentences()
    lengths = lengths or ",".join(map(str, (*SHORT, *LONG) if short else (16, 64, 128)))
    settings = [
        (int(b), int(s)) for s in lengths.split(",") for b in (batches or ("1" if short else "1,8,64")).split(",")
    ]
    if quick:
        settings, seconds = settings[:1], QUICK_SECONDS
    console.print(machine())
    written, best = jax.jit(minilm.encode), None
    if not without_ours:
        import relax_eg as rx

        sizes = [{"b": b, "s": s} for b, s in ([(1, s) for s in MEASURED_AT] if short and not quick else settings)]
        # Lengths between those of `at` are timed too, beside a `jax.jit` that compiles for each.
        best = rx.optimize(
            minilm.encode, params, "b s @ int32", "b s @ int32",
            weights=("params",), at=sizes, target=target, dynamic="exact" if short else "auto",
            measure=choose or "auto", execution=execution,  # type: ignore[arg-type]
        )  # fmt: skip
        ours = best.prepare(params)
        for v in best.variants:
            options = ", ".join(f"{k}={x!r}" for k, x in v.compiler_options.items()) or "default compile options"
            written_or = (
                "as written" if v.report.kept_as_written else f"{v.report.after.prepared_values} prepared values"
            )
            console.print(f"{v.guard}: {written_or}, {options}")
    rows = load(json_out) if resume and json_out else []
    known, end = {(r["batch"], r["tokens"]) for r in rows}, time.perf_counter() + budget
    # The order spreads the lengths, so that a run that ends early covers all of them.
    left = [at for k in range(4) for at in settings[k::4] if at not in known]
    for n, (b, s) in enumerate(left):
        if time.perf_counter() > end:
            console.print(f"{len(left) - n} left: go on with --resume")
            break
        ids, mask = map(jax.numpy.asarray, windows(tokenizer, sentences, b, s))
        calls = {WRITTEN: lambda ids=ids, mask=mask: written(params, ids, mask)}
        if best:
            calls[OURS] = lambda ids=ids, mask=mask: ours(ids, mask)
            cosine = float(np.min(np.sum(np.asarray(calls[WRITTEN]()) * np.asarray(calls[OURS]()), axis=1)))
            if not cosine >= 0.99999:
                raise SystemExit(f"batch {b}, {s} tokens: the embeddings differ (worst cosine {cosine:.7f})")
            if not quick:
                settle(best, calls[OURS], {"b": b, "s": s})
        timings = measure(calls, seconds)
        speedup = None if without_ours else timings.speedup(OURS, over=WRITTEN)
        median = {"written": timings.median(WRITTEN), "ours": None if without_ours else timings.median(OURS)}
        rows.append({"batch": b, "tokens": s, **median, "speedup": speedup})
        if json_out:
            save(json_out, rows)
    table = Table("batch", "tokens", "as written", "ours", "speed-up", "wanted", "")
    verdicts: list[Verdict] = []
    for row in sorted(rows, key=lambda r: (r["tokens"], r["batch"])):
        times = [duration(row[who]) if row[who] else "" for who in ("written", "ours")]
        cells = [str(row["batch"]), str(row["tokens"]), *times]
        if row["speedup"]:
            limit = allowed(row["tokens"], short, execution)
            verdicts.append(row["speedup"].inverse.against(limit))
            cells += [str(row["speedup"]), f"{1 / limit:.2f}", told(verdicts[-1], "MISSED")]
        table.add_row(*cells)
    console.print(table)
    if best:
        console.print(*map(str, best.statistics().settled), sep="\n")
    if not verdicts:
        return
    ratios = [row["speedup"] for row in rows if row["speedup"]]
    mean = geometric_mean(ratios)
    console.print(f"geometric mean {mean}, lowest {min(r.value for r in ratios):.2f}; {tally(verdicts, 'MISSED')}")
    is_slow = not short and execution == "whole" and mean.inverse.against(1 / LOWEST_MEAN) != WITHIN
    if strict and (is_slow or any(v != WITHIN for v in verdicts)):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
