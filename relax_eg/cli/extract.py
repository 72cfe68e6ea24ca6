"""`relax-eg extract`: extraction from an e-graph of another tool."""

from __future__ import annotations

import json as json_format
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from relax_eg.cli.common import command, err, out, print_text
from relax_eg.errors import ExtractionError, OptionError
from relax_eg.extract.selection.check_choice import check_choice
from relax_eg.extract.selection.foreign import METHODS, Extracted, egraph_of, read_json
from relax_eg.extract.selection.foreign import extract as choose
from relax_eg.plain_data import write_file


@command
def extract(
    graph: Annotated[Path, typer.Argument(help="An e-graph in the egraph-serialize format.")],
    method: Annotated[str, typer.Option("--method", help="tree, dag, ilp or all.")] = "all",
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for reading and searching, about.")] = 50.0,
    save: Annotated[Path | None, typer.Option("--save", help="Write the best choice here.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the neighbourhoods that the search looks at.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes; 1: the same choice each time.")] = 2,
    check: Annotated[Path | None, typer.Option("--check", help="Recompute this saved choice instead.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Choose the cheapest node of each class of a foreign e-graph; say how near the best the choice is."""
    if method not in METHODS:
        raise OptionError(f"--method {method!r}: {', '.join(METHODS)} are accepted")
    if not time_limit >= 0:
        raise OptionError(f"--time-limit {time_limit}: a number of seconds >= 0 is accepted")
    if jobs not in (1, 2):
        raise OptionError(f"--jobs {jobs}: 1 or 2 is accepted")
    started = time.perf_counter()
    data = read_json(graph)
    read = egraph_of(data, str(graph))
    if check is not None:
        _print_check(data, graph, check)
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(graph.name, total=max(time_limit, 1e-3), state="reading")

        def show_progress(what: str, cost: float, bound: float) -> None:
            bar.update(task, completed=time.perf_counter() - started, state=f"{what}: {cost:.6g}")

        left = max(0.0, time_limit - (time.perf_counter() - started))
        results = choose(read, method, left, show_progress, seed, jobs)  # type: ignore[arg-type]
    best = min(results, key=lambda r: r.cost)
    if json:
        rows = [{k: v for k, v in r.as_data().items() if k not in ("schema", "choice")} for r in results]
        shown = {"nodes": read.node_count, "classes": len(read.classes), "results": rows}
        out.print_json(json_format.dumps(shown))
    else:
        out.print(_extraction_table(graph.name, read.node_count, len(read.classes), results))
    if save is not None:
        write_file(save, json_format.dumps(best.as_data(), indent=1) + "\n", OptionError, "--save")
        err.print(f"choice of {best.method} written to {save}")


def _extraction_table(name: str, nodes: int, classes: int, results: list[Extracted]) -> Table:
    table = Table(title=f"{name}: {nodes} nodes, {classes} classes", box=None, title_justify="left")
    table.add_column("method")
    for column in ("cost", "classes used", "lower bound", "gap", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("how")
    for r in results:
        known = ["", ""] if r.bound is None or r.gap is None else [f"{r.bound:.8g}", f"{100 * r.gap:.3f}%"]
        table.add_row(r.method, f"{r.cost:.8g}", str(len(r.choice)), *known, f"{r.seconds:.2f}", r.how)
    return table


def _print_check(data: Any, graph: Path, path: Path) -> None:
    saved = read_json(path)
    if not isinstance(saved, dict):
        raise ExtractionError(f"{path} is not a choice; an object with `choice` and `cost` is accepted")
    checked = check_choice(data, saved)
    if not checked.ok:
        raise ExtractionError(f"{path} is not a choice for {graph}: " + "; ".join(checked.faults[:5]))
    text = f"{path}: complete, acyclic, {checked.classes} classes, cost {checked.cost:.8g}"
    print_text(text)
