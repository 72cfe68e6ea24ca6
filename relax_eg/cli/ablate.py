"""`relax-eg ablate`: what each set of rules is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from relax_eg.cli.common import err, load_object, out, read_bounds, read_sizes, run
from relax_eg.driver.ablation import SETS
from relax_eg.driver.ablation import ablate as ablated


def ablate(
    function: Annotated[str, typer.Argument(help="The function, as file.py:name.")],
    spec: Annotated[list[str] | None, typer.Option("--spec", help="One per argument, as for optimize.")] = None,
    at: Annotated[list[str] | None, typer.Option("--at", help="Sizes to be best at: s=128.")] = None,
    bounds: Annotated[list[str] | None, typer.Option("--bounds", help="What sizes may ever be: s=1:4096.")] = None,
    weights: Annotated[list[str] | None, typer.Option("--weights", help="Arguments known ahead of the calls.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help=f"{', '.join(SETS)}; all if left out.")] = None,
    target: Annotated[str, typer.Option("--target", help="Device profile, or the file of one (calibrate).")] = "",
    execution: Annotated[str, typer.Option("--execution", help="kernels: one by one, or whole.")] = "kernels",
    measure: Annotated[bool, typer.Option("--measure", help="Time every program too, on random arguments.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write one HTML file, with pictures.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the comparison as JSON.")] = None,
) -> None:
    """Optimize a function with all rules, then without one set of them at a time, and print what each is worth."""

    def action() -> None:
        fn = load_object(function)
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total}")
        with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bar:
            task = bar.add_task(function, total=None)

            def tell(what: str, done: int, of: int) -> None:
                bar.update(task, description=f"{function}: {what}", completed=done, total=of)

            found = ablated(
                fn,
                *(spec or []),
                sets=tuple(sets or SETS),
                timed=measure,
                tell=tell,
                target=target or None,
                at=read_sizes(at or [], "--at") or None,
                bounds=read_bounds(bounds or []) or None,
                weights=tuple(weights or ()),
                execution=execution,  # type: ignore[arg-type]
            )
        out.print(found.comparison)
        for path, write in ((html, found.comparison.to_html), (json, found.comparison.to_json)):
            if path is not None:
                write(path)
                err.print(f"ablation written to {path}")

    run(action)
