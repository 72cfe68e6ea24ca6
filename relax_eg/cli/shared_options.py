"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from relax_eg.cli.common import PROGRAMS, SAVED, read_bounds, read_sizes

Texts = list[str] | None
Spec = Annotated[Texts, typer.Option("--spec", help='One per argument, in order: "b s 768", "b s @ int32".')]
At = Annotated[Texts, typer.Option("--at", help="Sizes to be best at: s=128.")]
Bounds = Annotated[Texts, typer.Option("--bounds", help='What sizes may ever be: s=1:4096, "s % 8 == 0".')]
Weights = Annotated[Texts, typer.Option("--weights", help="Arguments known ahead of the calls.")]
Facts = Annotated[Texts, typer.Option("--facts", help="What is known of an argument: 'a=positive definite'.")]
Inputs = Annotated[
    Texts,
    typer.Option("--input", help='An input of an ONNX model: its value, sr=16000, or its spec, "x=n 3 32*h 32*w".'),
]
Rules = Annotated[Path | None, typer.Option("--rules", help="A file with rule sets to add.")]
Target = Annotated[str, typer.Option("--target", help="Device profile, or the file of one (calibrate).")]
Numerics = Annotated[str, typer.Option("--numerics", help="exact, reassociate, approximate or quantised.")]
Execution = Annotated[str, typer.Option("--execution", help="whole, or kernels: one by one.")]
AnyExecution = Annotated[
    str, typer.Option("--execution", help="whole; kernels: one by one; or auto: what is predicted to be faster.")
]
Timed = Annotated[bool, typer.Option("--measure", help="Time every program too, on random arguments.")]
Function = Annotated[str, typer.Argument(help=f"{PROGRAMS}.")]
SavedToo = Annotated[str, typer.Argument(help=f"{PROGRAMS}{SAVED}.")]


def search_options(at: Texts, bounds: Texts, weights: Texts, target: str) -> dict[str, Any]:
    """Returns these options of a command as keyword arguments of `optimize`."""
    return {
        "at": read_sizes(at or []) or None,
        "bounds": read_bounds(bounds or []),
        "weights": tuple(weights or ()),
        "target": target or None,
    }
