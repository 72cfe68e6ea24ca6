"""`relax-eg ablate`: the cost of a program without each set of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from relax_eg.cli import shared_options
from relax_eg.cli.common import command, load_program, out, progress_bar, write_output
from relax_eg.driver.ablation import SETS
from relax_eg.driver.ablation import ablate as run_ablation


@command
def ablate(
    function: shared_options.Function,
    spec: shared_options.Spec = None,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    weights: shared_options.Weights = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help=f"{', '.join(SETS)}; all if left out.")] = None,
    target: shared_options.Target = "",
    execution: Annotated[str, typer.Option("--execution", help="kernels: one by one, or whole.")] = "kernels",
    measure: shared_options.Timed = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write one HTML file, with pictures.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the comparison as JSON.")] = None,
) -> None:
    """Optimize a function with all rules, then without one set of them at a time, and print what each is worth."""
    fn = load_program(function)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
    with progress_bar(function, *columns, TimeElapsedColumn()) as tell:
        found = run_ablation(
            fn,
            *(spec or []),
            sets=tuple(sets or SETS),
            timed=measure,
            tell=tell,
            **shared_options.search_options(at, bounds, weights, target),
            execution=execution,  # type: ignore[arg-type]
        )
    out.print(found.comparison)
    write_output("ablation", html, found.comparison.to_html)
    write_output("ablation", json, found.comparison.to_json)
