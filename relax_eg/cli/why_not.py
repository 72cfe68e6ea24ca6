"""`relax-eg why-not`: why a rule did not fire."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli.common import load_object, out, read_bounds, read_rules, read_sizes, run


def why_not(
    rule: Annotated[str, typer.Argument(help="The name of a rule.")],
    function: Annotated[str, typer.Argument(help="The function, as file.py:name.")],
    spec: Annotated[list[str] | None, typer.Option("--spec", help="One per argument, as for optimize.")] = None,
    at: Annotated[list[str] | None, typer.Option("--at", help="Sizes to be best at: s=128.")] = None,
    bounds: Annotated[list[str] | None, typer.Option("--bounds", help="What sizes may ever be: s=1:4096.")] = None,
    weights: Annotated[list[str] | None, typer.Option("--weights", help="Arguments known ahead of the calls.")] = None,
    rules: Annotated[Path | None, typer.Option("--rules", help="A file with rule sets to add.")] = None,
    target: Annotated[str, typer.Option("--target", help="Device profile.")] = "",
    numerics: Annotated[str, typer.Option("--numerics", help="exact, reassociate or approximate.")] = "reassociate",
) -> None:
    """Print why a rule did not fire in a function: the nearest match, and what failed there."""

    def action() -> None:
        found = rx.why_not(
            rule,
            load_object(function),
            *(spec or []),
            rules=read_rules(rules),
            target=target or None,
            at=read_sizes(at or [], "--at") or None,
            bounds=read_bounds(bounds or []) or None,
            weights=tuple(weights or ()),
            numerics=numerics,  # type: ignore[arg-type]
        )
        out.print(str(found), markup=False, highlight=False, soft_wrap=True)

    run(action)
