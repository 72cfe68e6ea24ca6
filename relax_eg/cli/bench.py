"""`relax-eg bench`: programs on the clock, in turns."""

from __future__ import annotations

from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli import shared_options
from relax_eg.cli.common import (
    PROGRAMS,
    SAVED,
    command,
    live_line,
    load_program,
    print_text,
    read_rules,
    read_sizes,
    refuse_options_of_saved,
)
from relax_eg.driver.clock.turns import time_in_turns
from relax_eg.figures import binding_text


@command
def bench(
    programs: Annotated[list[str], typer.Argument(help=f"{PROGRAMS}{SAVED}; several take the same arguments.")],
    spec: shared_options.Spec = None,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    weights: shared_options.Weights = None,
    rules: shared_options.Rules = None,
    target: shared_options.Target = "",
    numerics: shared_options.Numerics = "reassociate",
    execution: shared_options.Execution = "whole",
) -> None:
    """Time programs and the first one as written, in turns, on random arguments."""
    if all(name.endswith(".rxe") for name in programs):
        given = {"--spec": spec, "--bounds": bounds, "--weights": weights, "--rules": rules, "--target": target}
        refuse_options_of_saved(programs[0], given)
    found: dict[str, rx.types.Optimized] = {}
    for name in programs:
        if name.endswith(".rxe"):
            found[name] = rx.load(name)
            continue
        with live_line(name):
            found[name] = rx.optimize(
                load_program(name),
                *(spec or []),
                **shared_options.search_options(at, bounds, weights, target),
                rules=read_rules(rules),
                numerics=numerics,  # type: ignore[arg-type]
                execution=execution,  # type: ignore[arg-type]
            )
    rows = time_in_turns(found, read_sizes(at or []))
    name = found[programs[0]].report.name
    print_text(f"{name}() at {binding_text(rows[0].at)}: seconds, and how many times faster than as written")
    for row in rows:
        print_text(row)
