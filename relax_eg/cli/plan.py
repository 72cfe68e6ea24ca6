"""`relax-eg plan`: the memory of a program, for all sizes in bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import relax_eg as rx
from relax_eg.cli import shared_options
from relax_eg.cli.common import (
    CommandBounds,
    command,
    is_module_text,
    live_line,
    load_program,
    print_text,
    read_bounds,
    read_sizes,
    write_output,
)
from relax_eg.errors import MemoryPlanError
from relax_eg.extract.profiles.devices import profile
from relax_eg.measure.device import default_profile
from relax_eg.memory.files import load, save
from relax_eg.memory.lower import lower_plan
from relax_eg.memory.picture import draw
from relax_eg.plain_data import write_file


@command
def plan(
    model: shared_options.SavedToo,
    spec: shared_options.Spec = None,
    bounds: shared_options.Bounds = None,
    at: shared_options.At = None,
    results: Annotated[
        str, typer.Option("--results", help="apart: the caller's own; planned: in the planned memory.")
    ] = "apart",
    layout: Annotated[
        str, typer.Option("--layout", help="storages: as kernels run; arena: with offsets; greedy: TVM's planner.")
    ] = "storages",
    aliasing: Annotated[
        str, typer.Option("--aliasing", help="Storages that may be taken over: elements, dtype, bytes or fits.")
    ] = "elements",
    written: Annotated[
        bool, typer.Option("--as-written", help="Plan the operators as written, not the kernels optimize chooses.")
    ] = False,
    target: shared_options.Target = "",
    temporary: Annotated[
        str, typer.Option("--temporary", help="Kernels' own memory: measured (compiled here), estimated or none.")
    ] = "",
    json: Annotated[Path | None, typer.Option("--json", help="Write the plan here.")] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw the memory timeline: plan.svg, plan.png.")
    ] = None,
    explicit: Annotated[
        Path | None, typer.Option("--explicit", help="Write the program with its storages here, as module text.")
    ] = None,
    check: Annotated[Path | None, typer.Option("--check", help="Check this plan file against the model.")] = None,
) -> None:
    """Plan the memory of a program: whole storages or an arena, what makes the peak, and the proofs."""
    between = read_bounds(bounds or [])
    sizes = read_sizes(at or [])
    found = _load_program(model, spec or [], between, sizes, target, written)
    module = found if isinstance(found, rx.types.Module) else found.module
    if check is not None:
        load(check, module)
        print_text(f"{check}: holds")
        return
    made = rx.plan_memory(
        found,
        bounds=between,
        at=sizes or None,
        results=results,  # type: ignore[arg-type]
        layout=layout,  # type: ignore[arg-type]
        aliasing=aliasing,  # type: ignore[arg-type]
        temporary=temporary or _temporary_default(target),  # type: ignore[arg-type]
        check=True,
    )
    print_text(made)
    write_output("plan", json, lambda path: save(made, path))
    write_output("picture", picture, lambda path: draw(made, path))
    if explicit is not None:
        text = str(lower_plan(made, module))
        write_output("program", explicit, lambda path: write_file(path, text, MemoryPlanError, "the program"))


def _temporary_default(target: str) -> str | None:
    """Returns the default of `--temporary`: an estimate for another device, whose kernels cannot be compiled here;
    None, the default of `plan_memory`, for this one."""
    return "estimated" if target and profile(target).platform != default_profile().platform else None


def _load_program(
    model: str,
    specs: list[str],
    bounds: CommandBounds,
    at: dict[str, int],
    target: str,
    written: bool,
) -> rx.types.Module | rx.types.Optimized:
    """Returns the program that a command names: a saved program or module text as it is, any other program as
    `optimize` chooses its kernels, or as written if `written`."""
    found = load_program(model, saved=True)
    if isinstance(found, rx.types.Optimized):
        return found
    if written or is_module_text(model):
        return found if isinstance(found, rx.types.Module) else rx.trace(found, *specs)
    usual = {n: high for n, (_, high) in bounds[0].items() if high is not None}
    with live_line(model):
        return rx.optimize(
            found,
            *specs,
            target=target or None,
            at={**usual, **at} or None,
            bounds=bounds,
            execution="kernels",
        )
