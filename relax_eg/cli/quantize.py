"""`relax-eg quantize`: a program with weights of fewer bits, its errors by layer, and a file that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import relax_eg as rx
from relax_eg.cli import shared_options
from relax_eg.cli.common import PROGRAMS, command, err, live_line, load_object, load_program, out
from relax_eg.errors import OptionError
from relax_eg.frontends.model import ModelModule

_ARRAYS = (".npz", ".npy")


@command
def quantize(
    program: Annotated[str, typer.Argument(help=f"{PROGRAMS}.")],
    data: Annotated[
        list[str],
        typer.Option(
            "--data", help="Calibration calls: x.npz or x.npy, a call each, or file.py:name, a list of calls."
        ),
    ],
    spec: shared_options.Spec = None,
    inputs: shared_options.Inputs = None,
    weights: shared_options.Weights = None,
    scheme: Annotated[str, typer.Option("--scheme", help="int8, int4 or fp8.")] = "int8",
    per: Annotated[str, typer.Option("--per", help="What has a scale of its own: channel or tensor.")] = "channel",
    symmetric: Annotated[bool, typer.Option(help="Whether 0 is code 0.")] = True,
    group: Annotated[int, typer.Option("--group", help="With int4: weights in a row that share a scale.")] = 32,
    tables: Annotated[str, typer.Option("--tables", help="Codes of tables with int4: int8 or int4.")] = "int8",
    activations: Annotated[
        str, typer.Option("--activations", help="int8 for what weights are multiplied with: none, dynamic or static.")
    ] = "none",
    rounding: Annotated[str, typer.Option("--rounding", help="nearest, or calibrated: on the data.")] = "nearest",
    calibration: Annotated[
        str, typer.Option("--calibration", help="Static ranges: minmax, percentile or entropy.")
    ] = "minmax",
    percentile: Annotated[float, typer.Option("--percentile", help="The share of a hundred that is in range.")] = 99.99,
    max_error: Annotated[
        float | None, typer.Option("--max-error", help="Layers with a larger relative error stay in float.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="Layers that stay in float, which may have * in them.")
    ] = None,
    at: shared_options.At = None,
    bounds: shared_options.Bounds = None,
    target: shared_options.Target = "",
    save: Annotated[Path | None, typer.Option("--save", help="Optimize the result and write it here: m.rxe.")] = None,
) -> None:
    """Quantize the weights of an ONNX model or a JAX function, and print errors, bytes and predicted time by layer."""
    if (at or bounds) and save is None:
        raise OptionError(
            f"{'--at' if at else '--bounds'}: --save, for which the result is optimized, is needed with it"
        )
    read = load_program(program, inputs)
    names: list[str] = []
    if isinstance(read, ModelModule):
        names = [n for p in read.main.params if (n := str(p.attr("name"))) not in read.weights]
    calls = [call for given in data for call in _calls(given, names)]
    with live_line(program):
        made = rx.quantize(
            read,
            calls,
            *(spec or []),
            weights=tuple(weights or ()),
            scheme=scheme,  # type: ignore[arg-type]
            per=per,  # type: ignore[arg-type]
            symmetric=symmetric,
            group=group,
            tables=tables,  # type: ignore[arg-type]
            activations=activations,  # type: ignore[arg-type]
            rounding=rounding,  # type: ignore[arg-type]
            calibration=calibration,  # type: ignore[arg-type]
            percentile=percentile,
            max_error=max_error,
            keep=tuple(keep or ()),
            target=target or None,
        )
    out.print(made.report)
    if save is not None:
        options = shared_options.search_options(at, bounds, None, target)
        with live_line(program):
            best = rx.optimize(made, **{k: v for k, v in options.items() if k != "weights"})
        best.save(save)
        err.print(f"program written to {save}: rx.load({str(save)!r}), relax-eg optimize {save}")


def _calls(given: str, names: Sequence[str]) -> list[Any]:
    """The calls that an option names. `names`: the inputs of a model, by which arrays of a file are found."""
    path = Path(given)
    if path.suffix not in _ARRAYS:
        found = load_object(given)
        found = found() if callable(found) else found
        if not isinstance(found, (list, tuple)):
            raise OptionError(f"--data {given!r}: a list of calls, or a function that returns one, is accepted")
        return list(found)  # type: ignore[reportUnknownArgumentType]
    try:
        arrays: Any = np.load(path)  # without pickles, so that a file runs nothing
        held = arrays if isinstance(arrays, np.ndarray) else {n: arrays[n] for n in arrays.files}
    except (OSError, ValueError) as e:
        raise OptionError(f"--data {given!r} is not read: {e}") from None
    if not isinstance(held, dict):
        return [held]
    if not names:
        return [tuple(held.values())]
    if missing := [n for n in names if n not in held]:
        raise OptionError(
            f"--data {given!r} has no array {', '.join(missing)}; it has {', '.join(held) or 'none'}\n  accepted: an "
            f"array for each of {', '.join(names)}"
        )
    return [tuple(held[n] for n in names)]
