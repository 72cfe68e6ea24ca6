"""The cost of explanations: the time of `explain`, the number of steps and of whole programs between them, and the
bytes and the checking time of the certificate.

    python -m benchmarks.explanations [--only decoder] [--minilm]

The programs are the patterns, decoders, and with --minilm the sentence encoder; `nodes` counts those of the program as
written. The candidate of a large decoder is explained even if it gains too little to be chosen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any
from unittest.mock import patch

import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, scale
from benchmarks.cases import CASES
from relax_eg.driver import prices

Programs = Iterator[tuple[str, Any, tuple[Any, ...], Mapping[str, Any]]]


def programs(with_minilm: bool) -> Programs:
    """Name, function, specs and options of each program."""
    for case in CASES:
        weights = {"weights": ("params",)} if case.weights else {}
        yield case.name, case.written, tuple(case.specs), {"at": case.at(256), **weights}
    for layers, sharing in ((4, "on"), (32, "on"), (32, "off")):
        options = {"weights": ("params",), "at": {"b": 1, "s": 16}, "sharing": sharing}
        yield (
            f"decoder, {layers} layers, sharing {sharing}",
            scale.decoder,
            (scale.decoder_specs(layers), "b s @ int32"),
            options,
        )
    if with_minilm:
        from examples import minilm

        params, _ = minilm.load()
        options = {"weights": ("params",), "at": {"b": 1, "s": 32}}
        yield "MiniLM-L6", minilm.encode, (params, "b s @ int32", "b s @ int32"), options


def measured(fn: Any, specs: tuple[Any, ...], options: Mapping[str, Any]) -> list[str]:
    """The columns of a program's row after its name."""
    times = [time.perf_counter()]
    gain = 0.0 if fn is scale.decoder else prices.NEVER_SLOWER
    with patch.object(prices, "NEVER_SLOWER", gain), rx.debug.options(cache=False):
        best = rx.optimize(fn, *specs, **options)
    times.append(time.perf_counter())
    try:
        found = best.explain()
    except rx.errors.ExplanationError as e:
        return [f"{times[1] - times[0]:.2f}", *[""] * 6, f"GAP: {e}"]
    times.append(time.perf_counter())
    nodes = str(sum(len(f.expressions()) for f in found.derivation.written))
    spent = [f"{b - a:.2f}" for a, b in zip(times, times[1:], strict=False)]
    if found.replayed is None:
        return [*spent, nodes, *[""] * 4, "kept as written"]
    data = json.dumps(best.certificate().data)
    started = time.perf_counter()
    rx.types.Certificate(json.loads(data)).verify(rx.rules.default)
    checked = time.perf_counter() - started
    left = "; ".join(found.replayed.not_evaluated)
    counts = [str(len(found.steps)), str(found.replayed.programs)]
    return [*spent, nodes, *counts, f"{len(data):,}", f"{checked:.2f}", left]


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "",
    minilm: Annotated[bool, typer.Option("--minilm", help="the sentence encoder, too")] = False,
    quick: Quick = False,
) -> None:
    """Explain programs and check their certificates."""
    table = Table("program", "optimize s", "explain s", "nodes", "steps", "programs", "bytes", "verify s", "")
    chosen = (p for p in programs(minilm) if only in p[0])
    for name, fn, specs, options in islice(chosen, 1) if quick else chosen:
        table.add_row(name, *measured(fn, specs, options))
    Console(width=150).print(table, markup=False)


if __name__ == "__main__":
    typer.run(main)
