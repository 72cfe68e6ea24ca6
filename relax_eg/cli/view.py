"""`relax-eg view`: the e-graph as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relax_eg.cli.common import err, load_object, out, read_bounds, read_rules, read_sizes, run
from relax_eg.driver.view import view as viewed


def view(
    function: Annotated[str, typer.Argument(help="The function, as file.py:name.")],
    spec: Annotated[list[str] | None, typer.Option("--spec", help="One per argument, as for optimize.")] = None,
    value: Annotated[str, typer.Option("--value", help="What to look around: model.py:31, or an operator.")] = "",
    depth: Annotated[int, typer.Option("--depth", help="Steps around the value.")] = 2,
    most: Annotated[int, typer.Option("--most", help="Classes to show.")] = 40,
    at: Annotated[list[str] | None, typer.Option("--at", help="Sizes to be best at: s=128.")] = None,
    bounds: Annotated[list[str] | None, typer.Option("--bounds", help="What sizes may ever be: s=1:4096.")] = None,
    weights: Annotated[list[str] | None, typer.Option("--weights", help="Arguments known ahead of the calls.")] = None,
    rules: Annotated[Path | None, typer.Option("--rules", help="A file with rule sets to add.")] = None,
    target: Annotated[str, typer.Option("--target", help="Device profile, or the file of one (calibrate).")] = "",
    execution: Annotated[str, typer.Option("--execution", help="whole, or kernels: one by one.")] = "whole",
    html: Annotated[Path, typer.Option("--html", help="The page to write.")] = Path("egraph.html"),
    dot: Annotated[Path | None, typer.Option("--dot", help="Write it for Graphviz, too.")] = None,
) -> None:
    """Draw the e-graph of a function, or what is around one of its values; chosen nodes are marked."""

    def action() -> None:
        found = viewed(
            load_object(function),
            *(spec or []),
            value=value,
            depth=depth,
            most=most,
            rules=read_rules(rules),
            target=target or None,
            at=read_sizes(at or [], "--at") or None,
            bounds=read_bounds(bounds or []) or None,
            weights=tuple(weights or ()),
            execution=execution,  # type: ignore[arg-type]
        )
        found.to_html(html)
        if dot is not None:
            dot.write_text(found.to_dot(), encoding="utf-8")
        shown, more = len(found.picture.boxes), found.picture.left_out
        out.print(f"{found.picture.title}: {shown} classes" + (f", {more} more are not shown" if more else ""))
        err.print(f"picture written to {html}")

    run(action)
