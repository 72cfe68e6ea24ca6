"""`make demo`: a real model and three small programs, optimized, checked against the originals, and measured; and a
page that compares before and after, three devices, and the model without one set of rules at a time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import typer
from rich.console import Console

import relax_eg as rx
from benchmarks.timing import Estimate, duration, geometric_mean, machine, measure, settle
from examples import minilm
from examples.algebra import PROGRAMS, Program
from relax_eg.extract.report import MeasuredRow
from relax_eg.reports.html import Section, page

OUT = Path("build/demo")
DEVICES = ("cpu", "a100", "h100")  # the devices of the comparison of chosen programs on the page
EQUAL = 0.99999  # the least cosine between an embedding of ours and the same embedding as written
WORTHWHILE = 1.5  # the least speed-up of the small programs
QUERIES = ["How do I get a crisp crust on bread?", "Will it be wet tomorrow?", "The match was decided late."]
WRITTEN, CHOSEN = "as written", "chosen"

console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def main() -> None:
    """A real model and three small programs: optimized, checked and measured."""
    OUT.mkdir(parents=True, exist_ok=True)
    console.print(f"relax_eg demo on {machine()}\n")
    model, failures, best, measured = sentence_encoder()
    programs = [small_program(program) for program in PROGRAMS]
    report = {"version": 1, "machine": machine(), "minilm": model, "programs": programs}
    (OUT / "report.json").write_text(json.dumps(report, indent=1))
    with step("deriving the chosen encoder, step by step"):
        try:
            derivation = str(best.explain())
        except rx.errors.ExplanationError as e:  # on a busy machine the clock may have stopped one of the searches
            derivation = str(e)
    write_page(replace(best.report, measured=measured), derivation, OUT / "report.html")
    console.print(f"full report: {OUT / 'report.html'} (as data: {OUT / 'report.json'})")
    raise typer.Exit(1 if failures else 0)


def write_page(report: rx.types.CostReport, derivation: str, path: Path) -> None:
    """One page on the sentence encoder: before and after, on three devices, and without one set of rules at a time."""
    params, _ = minilm.load()
    specs = (params, "b s @ int32", "b s @ int32")
    at = report.at
    devices: list[rx.types.CostReport] = []
    for target in DEVICES:
        with step(f"optimizing for {target}, at {at_text([dict(at)])}"):
            options = {"weights": ("params",), "at": at, "target": target}
            devices.append(rx.optimize(minilm.encode, *specs, **options).report)
    with step("optimizing kernel by kernel, without one set of rules at a time"):
        ablation = rx.debug.ablate(minilm.encode, *specs, at=at, target="a100")
    sections = [
        Section("Before and after, on this machine", rx.compare(report)),
        Section("Three devices", rx.compare(*devices)),
        Section("What each set of rules is worth: kernel by kernel on an A100, predicted", ablation.comparison),
    ]
    page("MiniLM-L6 sentence encoder", sections, path, derivation)


def sentence_encoder() -> tuple[dict[str, Any], int, rx.types.Optimized, tuple[MeasuredRow, ...]]:
    """The main job. Returns its part of the report, how many embeddings came out wrong, the optimized encoder, and what
    was measured of it."""
    with step("MiniLM-L6: reading weights and tokenizer"):
        params, tokenizer = minilm.load()
        sentences = minilm.sentences()
    chosen = {b: middle_batch(tokenizer, sentences, b) for b in (1, 8, 64)}
    sizes = [{"b": b, "s": ids.shape[1]} for b, (ids, _) in chosen.items()]
    with step("optimizing encode(params, ids, mask) for any batch and length"):
        specs = (params, "b s @ int32", "b s @ int32")
        best = rx.optimize(minilm.encode, *specs, weights=("params",), at=sizes)
    with step("preparing the weights, once"):
        ready = best.prepare(params)
    written = jax.jit(minilm.encode)

    embeddings = np.zeros((len(sentences), 384))
    cosines = np.zeros(len(sentences))
    with step(f"encoding {len(sentences)} sentences, ours and as written"):
        for rows, ids, mask in minilm.batches(tokenizer, sentences, 8):
            embeddings[rows] = ready(ids, mask)
            cosines[rows] = cosine(embeddings[rows], np.asarray(written(params, ids, mask), np.float64))
        queries = np.asarray(ready(*minilm.tokens(tokenizer, QUERIES)))
    wrong = int(np.sum(~(cosines >= EQUAL)))  # `not >=`, so that NaN counts as wrong

    console.print("\nnearest sentences")
    for query, scores in zip(QUERIES, queries @ embeddings.T, strict=True):
        console.print(f"  {query}")
        for i in np.argsort(-scores)[:2]:
            console.print(f"    {scores[i]:.2f}  {shorten(sentences[i])}")

    lengths = len({len(row.ids) for row in tokenizer.encode_batch(sentences)})
    console.print(f"\nMiniLM-L6, {len(sentences)} sentences, {lengths} lengths")
    predicted = {tuple(r.at.items()): r.predicted_gain for r in best.report.at_each()}
    with step("calling until it is settled which program runs"):
        for ids, mask in chosen.values():
            arrays = jax.numpy.asarray(ids), jax.numpy.asarray(mask)
            settle(best, lambda: ready(*arrays), dict(zip("bs", ids.shape, strict=True)))  # noqa: B023
    measured = [compare_batch(written, ready, params, predicted, *batch) for batch in chosen.values()]
    mean = geometric_mean(Estimate(**row["speedup"]) for row in measured)
    console.print(f"geometric mean over the batch sizes: {mean}")
    for row in best.report.measured:
        if row.label != WRITTEN:
            which = "the chosen program" if row.chosen else "the program as written"
            ratio = f"{row.speedup:.2f} ({row.low:.2f} to {row.high:.2f})"
            where = at_text([dict(row.at)])
            console.print(f"settled at {where}: {which} runs; the chosen one is {ratio} times as fast")
    console.print(best.report)
    equal = f"{len(sentences) - wrong} of {len(sentences)} embeddings equal"
    console.print(f"check: {equal} (worst cosine {np.min(cosines):.7f})")
    if wrong:
        console.print("[red]the optimized program computes something else: this is a bug, please report it[/]")
    report = {
        "report": json.loads(best.report.to_json(OUT / "minilm.json")),
        "measured": measured,
        "check": {"sentences": len(sentences), "wrong": wrong, "worst_cosine": float(np.min(cosines))},
    }
    return report, wrong, best, best.report.measured or rows_of(measured)


def rows_of(measured: list[dict[str, Any]]) -> tuple[MeasuredRow, ...]:
    """Returns the measurements of `compare_batch` in the form of reports."""
    rows: list[MeasuredRow] = []
    for row in measured:
        at, ratio = {"b": row["batch"], "s": row["tokens"]}, row["speedup"]
        rows.append(MeasuredRow(WRITTEN, 0.0, row["written"], 1.0, 1.0, 1.0, at=at))
        rows.append(MeasuredRow(CHOSEN, 0.0, row["chosen"], ratio["value"], ratio["low"], ratio["high"], True, at))
    return tuple(rows)


def compare_batch(
    written: Any, ready: Any, params: Any, predicted: dict[Any, float], ids: np.ndarray, mask: np.ndarray
) -> dict[str, Any]:
    ids, mask = jax.numpy.asarray(ids), jax.numpy.asarray(mask)
    b, s = ids.shape
    timings = measure({WRITTEN: lambda: written(params, ids, mask), CHOSEN: lambda: ready(ids, mask)}, seconds=3.0)
    ratio = timings.speedup(CHOSEN, over=WRITTEN)
    before, after = timings.median(WRITTEN), timings.median(CHOSEN)
    told = predicted.get((("b", b), ("s", s)))
    figures = f"{duration(before):>8} -> {duration(after):>8}   {ratio}"
    beside = "" if told is None else f"   (predicted: {told:.2f})"
    console.print(f"measured, paired, b={b:<2} s={s:<3} {figures}{beside}")
    return {"batch": b, "tokens": s, "written": before, "chosen": after, "speedup": asdict(ratio)}


def small_program(program: Program) -> dict[str, Any]:
    """Optimizes one of the small programs, checks and measures it, and prints a few lines on it."""
    console.print(f"\n{program.title}: {program.fn.__doc__}")
    with step(f"optimizing at {at_text([program.at])}"):
        best = rx.optimize(program.fn, *program.specs, at=program.at)
    args = program.arguments()
    written = jax.jit(program.fn)
    error = relative_error(written(*args), best(*args))
    if not error <= 1e-4:
        raise SystemExit(f"{program.title}: the optimized program computes something else (error {error:.2g})")
    timings = measure({WRITTEN: lambda: written(*args), CHOSEN: lambda: best(*args)})
    ratio = timings.speedup(CHOSEN, over=WRITTEN)
    before, after = timings.median(WRITTEN), timings.median(CHOSEN)
    report = json.loads(best.report.to_json(OUT / f"{program.fn.__name__}.json"))
    told = f"(predicted: {best.report.predicted_gain:.2f})"
    console.print(f"  measured, paired: {duration(before)} -> {duration(after)}   {ratio}   {told}")
    console.print(f"  {report_line(report)}")
    if ratio.value < WORTHWHILE:
        console.print(f"  [yellow]below the {WORTHWHILE} that was hoped for[/]")
    return {"title": program.title, "report": report, "written": before, "chosen": after, "speedup": asdict(ratio)}


def middle_batch(tokenizer: Any, sentences: list[str], size: int) -> tuple[np.ndarray, np.ndarray]:
    """The `size` sentences of middling length, as one batch."""
    by_length = sorted(sentences, key=lambda sentence: len(tokenizer.encode(sentence).ids))
    start = (len(by_length) - size) // 2
    return minilm.tokens(tokenizer, by_length[start : start + size])


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sum(a * b, axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


def relative_error(expected: jax.Array, got: jax.Array) -> float:
    expected = np.asarray(expected, np.float64)
    return float(np.max(np.abs(expected - np.asarray(got))) / np.max(np.abs(expected)))


def report_line(report: dict[str, Any]) -> str:
    """What a report comes to: flops and predicted time, before and after, and the rules that did it."""
    before, after = report["before"]["total"], report["after"]["total"]
    rules = ", ".join(f"{name} x{count}" for name, count in report["rules"].items()) or "none"
    return (
        f"flops {before['flops']:.3g} -> {after['flops']:.3g}, predicted {duration(before['seconds'])} -> "
        f"{duration(after['seconds'])}; rules: {rules}"
    )


def at_text(sizes: list[dict[str, int]]) -> str:
    return ", ".join(" ".join(f"{name}={value}" for name, value in size.items()) for size in sizes)


def shorten(sentence: str, width: int = 90) -> str:
    return sentence if len(sentence) <= width else sentence[: width - 4].rsplit(" ", 1)[0] + " ..."


@contextmanager
def step(title: str) -> Iterator[None]:
    """Says what is going on while it goes on, with how far a search is behind the title, and then how long it took."""
    start = time.perf_counter()

    def show(phase: str, nodes: int, matches: int) -> None:
        status.update(f"{title}: {phase}, {nodes} nodes, {matches} rule matches")

    with console.status(title) as status, rx.debug.options(progress=show):
        yield
    console.print(f"{title} ... {duration(time.perf_counter() - start)}")


if __name__ == "__main__":
    typer.run(main)
