"""`relax-eg prove`: a statement on sizes, proved or refuted."""

from __future__ import annotations

from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli.common import command, print_text, read_bounds


@command
def prove(
    statement: Annotated[str, typer.Argument(help='A comparison of sizes: "n*4 == 4*n", "n % 8 == 0".')],
    bounds: Annotated[
        list[str] | None, typer.Option("--bounds", help='What sizes may be: n=1:4096, "n >= 2", "n == 2*m".')
    ] = None,
    timeout: Annotated[int, typer.Option("--timeout", help="Milliseconds for z3; 0 leaves it out.")] = 500,
) -> None:
    """Prove a statement for all sizes, or print a counterexample; ends with status 1 if it is not proved."""
    verdict = rx.prove(statement, bounds=read_bounds(bounds or []), timeout_ms=timeout)
    print_text(verdict)
    if not isinstance(verdict, rx.types.Proved):
        raise typer.Exit(1)
