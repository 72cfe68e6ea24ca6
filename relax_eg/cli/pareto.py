"""`relax-eg pareto`: programs between the fastest and the one that needs least memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli import shared_options
from relax_eg.cli.common import command, err, live_line, load_program, out


@command
def pareto(
    function: shared_options.Function,
    spec: shared_options.Spec = None,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    weights: shared_options.Weights = None,
    target: shared_options.Target = "",
    numerics: shared_options.Numerics = "reassociate",
    execution: shared_options.Execution = "whole",
    measure: shared_options.Timed = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw bytes over time here: front.svg, front.png.")
    ] = None,
) -> None:
    """Find programs between the fastest and the one that needs least memory, and print what less memory costs."""
    fn = load_program(function)
    options = shared_options.search_options(at, bounds, weights, target)
    with live_line(function):
        front = rx.pareto(fn, *(spec or []), **options, numerics=numerics, execution=execution, timed=measure)
    out.print(front)
    if plot is not None:
        front.plot(plot)
        err.print(f"plot written to {plot}")
