"""`relax-eg compile`: what XLA makes of a program for a GPU, which need not be present."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.backend.gpu.target import target_for
from relax_eg.cli import shared_options
from relax_eg.cli.common import (
    command,
    live_line,
    load_program,
    out,
    read_rules,
    read_sizes,
    refuse_options_of_saved,
    write_output,
)
from relax_eg.errors import OptionError
from relax_eg.extract.profiles.devices import PROFILES
from relax_eg.plain_data import write_file


@command
def compile(
    function: shared_options.SavedToo,
    device: Annotated[
        str, typer.Option("--device", help="h100, h200, a100, b200, rtx4090, l4, or a file; default: the GPU here.")
    ] = "",
    spec: shared_options.Spec = None,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    weights: shared_options.Weights = None,
    rules: shared_options.Rules = None,
    target: Annotated[
        str, typer.Option("--target", help="Device profile to choose for; default: that of --device, if it has one.")
    ] = "",
    numerics: shared_options.Numerics = "reassociate",
    execution: shared_options.AnyExecution = "whole",
    html: Annotated[Path | None, typer.Option("--html", help="Write what is printed here, as a page.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write all of it here.")] = None,
    ptx: Annotated[Path | None, typer.Option("--ptx", help="Write the kernels in PTX here.")] = None,
) -> None:
    """Compile a program for a GPU, and print its kernels, bytes and XLA's estimates."""
    target_for(device or None)  # before JAX looks for devices, and before anything is searched
    options = shared_options.search_options(at, bounds, weights, target or (device if device in PROFILES else ""))
    with live_line(function) as show:
        if function.endswith(".rxe"):
            given = {"--spec": spec, "--bounds": bounds, "--weights": weights, "--rules": rules, "--target": target}
            refuse_options_of_saved(function, given)
            best = rx.load(function)
        else:
            best = rx.optimize(
                load_program(function, saved=True),
                *(spec or []),
                rules=read_rules(rules),
                **options,
                numerics=numerics,  # type: ignore[arg-type]
                execution=execution,  # type: ignore[arg-type]
            )
        sizes = read_sizes(at or []) or None
        made = best.compile(
            device or None, at=sizes, ptx=ptx is not None, progress=lambda name: show(f"compiling {name}", 0, 0)
        )
    out.print(made)
    write_output("page", html, made.to_html)
    write_output("compilation", json, made.to_json)
    write_output("PTX", ptx, lambda path: write_file(path, made.ptx, OptionError, "the PTX"))
