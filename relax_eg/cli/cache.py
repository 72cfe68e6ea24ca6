"""`relax-eg cache`: the disk cache of earlier searches."""

from __future__ import annotations

import typer

import relax_eg as rx
from relax_eg.cli.common import command, print_text

app = typer.Typer(help="What earlier searches found, on disk.", no_args_is_help=True)


@app.command()
@command
def info() -> None:
    """Print where the cache is, and how full."""
    print_text(rx.debug.cache.info())


@app.command()
@command
def clear() -> None:
    """Remove everything in the cache."""
    folder, count = rx.debug.cache.info().folder, rx.debug.cache.clear()
    text = f"{folder}: {count} {'entry' if count == 1 else 'entries'} removed"
    print_text(text)
