"""`relax-eg run`: runs a saved program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relax_eg.cli.common import command, print_text
from relax_eg.run import ARGUMENTS, run_file


@command
def run(
    file: Annotated[Path, typer.Argument(help="m.rxe: what best.save or --save wrote.")],
    arguments: Annotated[list[str] | None, typer.Argument(help=ARGUMENTS)] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print what each instruction took.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print each instruction when it has run.")] = False,
) -> None:
    """Run a saved program on arguments, and print its result."""
    for line in run_file(file, arguments or [], profile, print_text if trace else None):
        print_text(line)
