"""Measurements of the compiled programs: `python -m benchmarks.patterns`, `python -m benchmarks.minilm`.

Every search is made: what is measured here is never what an earlier run left in the cache.
"""

import os
from typing import Annotated

import typer

os.environ.setdefault("RELAX_EG_CACHE", "0")

Quick = Annotated[
    bool, typer.Option("--quick", help="a small part, in seconds, to see that it runs; its figures mean little")
]
