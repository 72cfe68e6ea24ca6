"""`relax-eg compare`: cost reports side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli.common import command, out, write_output


@command
def compare(
    reports: Annotated[list[Path], typer.Argument(help="JSON files of reports, the first to hold the others against.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write one HTML file, which opens offline.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the comparison as JSON.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="What to call them, one for each.")] = None,
) -> None:
    """Compare cost reports: what got better or worse, at which source line, and which rule or choice did it."""
    found = rx.compare(*reports, labels=label or None)
    out.print(found)
    write_output("comparison", html, found.to_html)
    write_output("comparison", json, found.to_json)
