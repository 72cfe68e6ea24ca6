"""`relax-eg cache`: what earlier searches found, on disk."""

from __future__ import annotations

import typer

import relax_eg as rx
from relax_eg.cli.common import out, run

app = typer.Typer(help="What earlier searches found, on disk.", no_args_is_help=True)


@app.command()
def info() -> None:
    """Print where the cache is, and how full."""
    run(lambda: out.print(str(rx.cache.info()), markup=False, highlight=False, soft_wrap=True))


@app.command()
def clear() -> None:
    """Remove everything in the cache."""

    def action() -> None:
        folder, count = rx.cache.info().folder, rx.cache.clear()
        text = f"{folder}: {count} {'entry' if count == 1 else 'entries'} removed"
        out.print(text, markup=False, highlight=False, soft_wrap=True)

    run(action)
