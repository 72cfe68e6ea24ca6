"""Measurements of the compiled programs: `python -m benchmarks.patterns`, `python -m benchmarks.minilm`.

Every search is made: what is measured here is never what an earlier run left in the cache. Programs that are timed
(`benchmarks.timing`) are priced by the profile of the machine at hand, as a user's are; all others by that which ships.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

CHOSEN = "RELAX_EG_CACHE" in os.environ  # whether the caller has chosen what is cached
os.environ.setdefault("RELAX_EG_CACHE", "0")

Quick = Annotated[
    bool, typer.Option("--quick", help="a small part, in seconds, to see that it runs; its figures mean little")
]


def write_between(document: Path, begin: str, end: str, text: str) -> None:
    """Puts a text between two marks in a document, in place of what is there."""
    before, _, rest = document.read_text().partition(begin)
    document.write_text(f"{before}{begin}\n\n{text.rstrip()}\n\n{end}{rest.partition(end)[2]}")
