"""Extraction from hard e-graphs: greedy choices, ours, how near the best it is, and how long it takes.

    python -m benchmarks.extraction [--kind tensors] [--size 3000] [--time-limit 60] [--save folder]

The e-graphs are made here (`benchmarks.egraphs`), the same ones for the same size and seed. `--save` writes them as
JSON for `relax-eg extract`. Every choice is recomputed by the checker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.egraphs import KINDS
from relax_eg.extract.check_choice import check_choice
from relax_eg.extract.foreign import egraph_of, extract

SIZES = (1000, 3000, 10_000, 20_000)


def main(
    kind: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(KINDS)}.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Nodes.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for each e-graph.")] = 60.0,
    seed: Annotated[int, typer.Option()] = 0,
    save: Annotated[Path | None, typer.Option(help="A folder for the e-graphs as JSON.")] = None,
) -> None:
    unknown = [k for k in kind or () if k not in KINDS]
    if unknown:
        raise typer.BadParameter(f"--kind {unknown[0]}: {', '.join(KINDS)} are accepted")
    console = Console()
    table = Table(box=None)
    for column in ("kind", "nodes", "classes", "tree", "DAG-greedy", "ours", "bound", "gap %", "s", "how"):
        table.add_column(column, justify="left" if column in ("kind", "how") else "right")
    for name in kind or KINDS:
        for n in size or SIZES:
            data = KINDS[name](n, seed)
            if save is not None:
                save.mkdir(parents=True, exist_ok=True)
                (save / f"{name}_{n}.json").write_text(json.dumps(data))
            graph = egraph_of(data)
            with console.status(f"{name}, {graph.node_count} nodes"):
                results = {r.method: r for r in extract(graph, "all", time_limit)}
            for r in results.values():
                checked = check_choice(data, r.as_data())
                assert checked.ok, checked.faults
            ours = results["ilp"]
            assert ours.cost <= results["dag"].cost and ours.bound is not None and ours.gap is not None
            costs = (results["tree"].cost, results["dag"].cost, ours.cost, ours.bound)
            figures = [f"{x:.6g}" for x in costs] + [f"{100 * ours.gap:.2f}", f"{ours.seconds:.1f}"]
            row = (name, str(graph.node_count), str(len(graph.classes)), *figures, ours.how)
            table.add_row(*row)
            console.log(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
