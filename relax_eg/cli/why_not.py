"""`relax-eg why-not`: the reason why a rule did not fire."""

from __future__ import annotations

from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli import shared_options
from relax_eg.cli.common import command, load_program, print_text, read_facts, read_rules


@command
def why_not(
    rule: Annotated[str, typer.Argument(help="The name of a rule.")],
    function: shared_options.Function,
    spec: shared_options.Spec = None,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    weights: shared_options.Weights = None,
    rules: shared_options.Rules = None,
    target: shared_options.Target = "",
    numerics: shared_options.Numerics = "reassociate",
    facts: shared_options.Facts = None,
) -> None:
    """Print why a rule did not fire in a function: the nearest match, and what failed there."""
    found = rx.debug.why_not(
        rule,
        load_program(function),
        *(spec or []),
        rules=read_rules(rules),
        **shared_options.search_options(at, bounds, weights, target),
        numerics=numerics,  # type: ignore[arg-type]
        facts=read_facts(facts),
    )
    print_text(found)
