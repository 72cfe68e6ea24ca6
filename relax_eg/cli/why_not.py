"""`relax-eg why-not`: why a rule did not fire."""

from __future__ import annotations

from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli import given
from relax_eg.cli.common import command, load_object, print_text, read_rules


@command
def why_not(
    rule: Annotated[str, typer.Argument(help="The name of a rule.")],
    function: given.Function,
    spec: given.Spec = None,
    at: given.At = None,
    bounds: given.Bounds = None,
    weights: given.Weights = None,
    rules: given.Rules = None,
    target: given.Target = "",
    numerics: given.Numerics = "reassociate",
) -> None:
    """Print why a rule did not fire in a function: the nearest match, and what failed there."""
    found = rx.why_not(
        rule,
        load_object(function),
        *(spec or []),
        rules=read_rules(rules),
        **given.search_options(at, bounds, weights, target),
        numerics=numerics,  # type: ignore[arg-type]
    )
    print_text(found)
