"""Extraction from hard e-graphs: the cost of greedy choices and of ours, its gap to the best, and the seconds taken.

    python -m benchmarks.extraction [--kind tensors] [--size 3000] [--seconds 10 --seconds 60] [--save folder]

The e-graphs are generated (`benchmarks.egraphs`), the same ones for the same size. `--save` writes them as JSON for
`relax-eg extract`. The checker recomputes every choice. `best_known.json` holds the best known cost of each e-graph;
`--remember` writes lower costs into it, for example from a long run with another `--search-seed`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import Quick
from benchmarks.egraphs import KINDS
from relax_eg.extract.selection.check_choice import check_choice
from relax_eg.extract.selection.foreign import Extracted, egraph_of, extract

SIZES = (3000, 10_000, 20_000)
QUICK_SIZE, QUICK_LIMIT = 300, 1.0  # nodes, seconds
BEST_KNOWN = Path(__file__).parent / "egraphs" / "best_known.json"


def main(
    kind: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(KINDS)}.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Nodes.")] = None,
    seconds: Annotated[list[float] | None, typer.Option(help="For each e-graph; several: one run each.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    search_seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    remember: Annotated[bool, typer.Option(help="Keep costs that are better than the best known.")] = False,
    save: Annotated[Path | None, typer.Option(help="A folder for the e-graphs as JSON.")] = None,
    quick: Quick = False,
) -> None:
    unknown = [k for k in kind or () if k not in KINDS]
    if unknown:
        raise typer.BadParameter(f"--kind {unknown[0]}: {', '.join(KINDS)} are accepted")
    kinds, sizes, limits = kind or list(KINDS), size or SIZES, seconds or [10.0, 60.0]
    if quick:
        kinds, sizes, limits = kinds[:1], (QUICK_SIZE,), [QUICK_LIMIT]
    known: dict[str, float] = json.loads(BEST_KNOWN.read_text())
    console = Console()
    table = Table(box=None)
    ours_at = [f"ours, {x:g} s" for x in limits]
    after = ("best known", "off %", "bound", "gap %", "s")
    for column in ("kind", "nodes", "tree-greedy", "DAG-greedy", *ours_at, *after):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for name in kinds:
        for n in sizes:
            data = KINDS[name](n, 0)
            if save is not None:
                save.mkdir(parents=True, exist_ok=True)
                (save / f"{name}_{n}.json").write_text(json.dumps(data))
            graph = egraph_of(data)
            runs: list[dict[str, Extracted]] = []
            for limit in limits:
                with console.status(f"{name}, {graph.node_count} nodes, {limit:g} s"):
                    found = extract(graph, "all", limit, seed=search_seed, jobs=jobs)
                runs.append({r.method: r for r in found})
                for r in found:
                    checked = check_choice(data, r.as_data())
                    assert checked.ok, checked.faults
                assert runs[-1]["ilp"].cost <= runs[-1]["dag"].cost
            last = runs[-1]["ilp"]
            assert last.bound is not None and last.gap is not None
            key = f"{name} {n}"
            best = min(known.get(key, math.inf), *(run["ilp"].cost for run in runs))
            if remember:
                known[key] = best
                BEST_KNOWN.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
            costs = [runs[0]["tree"].cost, runs[0]["dag"].cost, *(run["ilp"].cost for run in runs), best]
            off = 100 * (last.cost / best - 1) if best > 0 else 0.0
            figures = [*(f"{x:.6g}" for x in costs), f"{off:.2f}", f"{last.bound:.6g}", f"{100 * last.gap:.2f}"]
            row = (name, f"{graph.node_count:,}", *figures, f"{last.seconds:.1f}")
            table.add_row(*row)
            console.log(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
