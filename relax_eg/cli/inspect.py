"""`relax-eg inspect`: what is in an ONNX model, and what of it is not read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from relax_eg.byte_units import format_bytes
from relax_eg.cli import shared_options
from relax_eg.cli.common import command, out, read_inputs
from relax_eg.frontends.onnx.graph import contents
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.reports.terminal import plain_table
from relax_eg.shapes.prover import Prover


@command
def inspect(file: Annotated[Path, typer.Argument(help="model.onnx")], inputs: shared_options.Inputs = None) -> None:
    """List the operators of an ONNX model with counts, its inputs and outputs, and all that is missing."""
    found = contents(file, inputs=read_inputs(inputs))

    def line(text: str) -> None:
        out.print(text, markup=False, highlight=False, soft_wrap=True)

    count = sum(len(u.places) for u in found.operators.values())
    line(f"{found.name}: {count} nodes, {found.weights} initializers of {format_bytes(found.weight_bytes)}")
    module = found.module
    if module is None:
        rows = [("input", found.inputs.items()), ("output", found.outputs.items())]
    else:
        params = {str(p.attr("name")): _text(p.annotation) for p in module.main.params}
        result = module.main.annotation
        fields = result.fields if isinstance(result, Tuple) and len(module.outputs) > 1 else (result,)
        given = [(k, v) for k, v in params.items() if k not in module.weights]
        rows = [("input", given), ("output", zip(module.outputs, map(_text, fields), strict=True))]
    for kind, values in rows:
        for name, text in values:
            line(f"  {kind} {name}: {text}")
    table = plain_table(["operator"], ["nodes"])
    table.add_column("read", overflow="fold")
    for name, use in sorted(found.operators.items(), key=lambda pair: -len(pair[1].places)):
        said = "yes" if use.why is None else f"no{': ' if use.why else ''}{use.why}"
        table.add_row(*map(Text, (name, str(len(use.places)), said)))  # texts of a file are no markup
    out.print(table)
    line("it is read" if module is not None else f"it is not read: {found.problem}")
    if module is None:
        raise typer.Exit(1)


def _text(annotation: Annotation) -> str:
    if not isinstance(annotation, Tensor) or annotation.shape is None:
        return str(annotation)
    shown = Prover({}, ()).simplify  # sizes are at least 1
    return f"{annotation.dtype} ({', '.join(str(shown(d)) for d in annotation.shape)})"
