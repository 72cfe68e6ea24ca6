"""`relax-eg view`: the e-graph as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relax_eg.cli import shared_options
from relax_eg.cli.common import command, err, load_program, out, read_rules
from relax_eg.driver.view import view as draw_egraph
from relax_eg.errors import OptionError
from relax_eg.plain_data import write_file


@command
def view(
    function: shared_options.Function,
    spec: shared_options.Spec = None,
    value: Annotated[str, typer.Option("--value", help="What to look around: model.py:31, or an operator.")] = "",
    depth: Annotated[int, typer.Option("--depth", help="Steps around the value.")] = 2,
    most: Annotated[int, typer.Option("--most", help="Classes to show.")] = 40,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    weights: shared_options.Weights = None,
    rules: shared_options.Rules = None,
    target: shared_options.Target = "",
    execution: shared_options.Execution = "whole",
    html: Annotated[Path, typer.Option("--html", help="The page to write.")] = Path("egraph.html"),
    dot: Annotated[Path | None, typer.Option("--dot", help="Write it for Graphviz, too.")] = None,
) -> None:
    """Draw the e-graph of a function, or what is around one of its values; chosen nodes are marked."""
    found = draw_egraph(
        load_program(function),
        *(spec or []),
        value=value,
        depth=depth,
        most=most,
        rules=read_rules(rules),
        **shared_options.search_options(at, bounds, weights, target),
        execution=execution,  # type: ignore[arg-type]
    )
    found.to_html(html)
    if dot is not None:
        write_file(dot, found.to_dot(), OptionError, "--dot")
    shown, more = len(found.picture.boxes), found.picture.left_out
    out.print(f"{found.picture.title}: {shown} classes" + (f", {more} more are not shown" if more else ""))
    err.print(f"picture written to {html}")
