"""`relax-eg optimize`: search, print the cost report, write what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from relax_eg.backend.gpu.compile import targets_for
from relax_eg.byte_units import parse_bytes
from relax_eg.cli import shared_options
from relax_eg.cli.common import (
    command,
    err,
    live_line,
    load_program,
    out,
    print_text,
    read_facts,
    read_rules,
    refuse_options_of_saved,
    write_output,
)
from relax_eg.driver.optimize import check_with_mesh
from relax_eg.errors import OptionError


def _placement(text: str) -> tuple[str, str]:
    """An argument and its placement, of `x=S[0], R`."""
    name, equals, placement = text.partition("=")
    if not equals:
        raise OptionError(f"--placed {text!r}: an argument and its placement, 'x=S[0], R', is accepted")
    return name.strip(), placement.strip()


@command
def optimize(
    function: shared_options.SavedToo,
    spec: shared_options.Spec = None,
    inputs: shared_options.Inputs = None,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    weights: shared_options.Weights = None,
    rules: shared_options.Rules = None,
    without: Annotated[list[str] | None, typer.Option("--without", help="Rules, tags or classes to leave out.")] = None,
    target: shared_options.Target = "",
    numerics: shared_options.Numerics = "reassociate",
    facts: shared_options.Facts = None,
    nodes: Annotated[int, typer.Option("--nodes", help="E-graph node budget.")] = 200_000,
    seconds: Annotated[float, typer.Option("--seconds", help="Search time budget.")] = 10.0,
    measure: Annotated[int, typer.Option("--measure", help="Programs to time; 0: price decides.")] = 0,
    sharing: Annotated[bool, typer.Option(help="Optimize repeated blocks once, or each on its own.")] = True,
    execution: shared_options.AnyExecution = "whole",
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", help="Bytes of a call beside its arguments, at --at: 80MiB, 2GB.")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", help="Least memory within a predicted time: +10%, 2ms.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", help="Spread over a mesh of devices: 'data=4, model=2' (docs/spread.md).")
    ] = None,
    placed: Annotated[
        list[str] | None, typer.Option("--placed", help="With --mesh: where an argument is: 'x=S[0], R'.")
    ] = None,
    cache: Annotated[bool, typer.Option(help="Take what an earlier run found, and keep what this one finds.")] = True,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report as one HTML file.")] = None,
    module: Annotated[bool, typer.Option("--module", help="Print the chosen module.")] = False,
    show: Annotated[
        str | None, typer.Option("--show", help="kernels: which operators went where, and what that saves.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write what was found here: m.rxe.")] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", help="With --save: keep executables for h100, a file, or cpu.")
    ] = None,
) -> None:
    """Optimize a function or a model and print the cost report; or print that of a saved one."""
    if device and save is None:
        raise OptionError(f"--device {device[0]}: --save, whose file keeps executables for it, is needed with it")
    if device:
        targets_for(device)  # before JAX looks for devices, and before anything is searched

    def search() -> rx.types.Optimized:
        if show is not None and (show != "kernels" or execution == "whole"):
            raise OptionError(f"--show {show!r}: 'kernels' is accepted, together with --execution kernels or auto")
        fn = load_program(function, inputs, saved=True)
        chosen = read_rules(rules)
        for name in without or []:
            chosen -= name
        with live_line(function), rx.debug.options(cache=None if cache else False, sharing=sharing):
            options: dict[str, Any] = {
                "rules": chosen,
                **shared_options.search_options(at, bounds, weights, target),
                "numerics": numerics,
                "facts": read_facts(facts),
                "budget": rx.Budget(nodes=nodes, seconds=seconds),
                "memory_limit": None if memory_limit is None else parse_bytes(memory_limit, "--memory-limit"),
            }
            if placed:
                if mesh is None:
                    raise OptionError(f"--placed {placed[0]!r}: it is accepted together with --mesh")
                check_with_mesh(options.pop("weights"), execution, time_limit, measure)
                return rx.spread(fn, *(spec or []), mesh=mesh, inputs=dict(_placement(p) for p in placed), **options)
            return rx.optimize(
                fn,
                *(spec or []),
                measure=measure,
                execution=execution,  # type: ignore[arg-type]
                time_limit=time_limit,
                mesh=mesh,
                **options,
            )

    def load_saved() -> rx.types.Optimized:
        options = {"--spec": spec, "--input": inputs, "--at": at, "--bounds": bounds, "--weights": weights}
        options |= {"--rules": rules, "--without": without, "--measure": measure, "--target": target}
        options |= {"--memory-limit": memory_limit, "--time-limit": time_limit, "--facts": facts}
        refuse_options_of_saved(function, options)
        return rx.load(function)

    best = load_saved() if function.endswith(".rxe") else search()
    out.print(best.report if best.report.spread is None else best.report.spread)
    if show is not None:
        out.print(best.report.kernel_table())
    if module:
        print_text(best.module)
    write_output("report", json, best.report.to_json)
    write_output("report", html, best.report.to_html)
    if save is not None:
        best.save(save, devices=device or ())
        err.print(f"program written to {save}: rx.load({str(save)!r}), relax-eg optimize {save}")
