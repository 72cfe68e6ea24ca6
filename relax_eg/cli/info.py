"""`relax-eg info`: what is in a saved file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relax_eg.backend.files.artifact import VERSION, Saved, read
from relax_eg.backend.steps import InSteps
from relax_eg.byte_units import format_bytes
from relax_eg.cli.common import command, out
from relax_eg.driver.loading import load
from relax_eg.figures import binding_text
from relax_eg.reports.terminal import plain_table


@command
def info(
    file: Annotated[Path, typer.Argument(help="m.rxe: what best.save or --save wrote.")],
    instructions: Annotated[
        bool, typer.Option("--instructions", help="Also list the instructions of a program that runs in steps.")
    ] = False,
) -> None:
    """List the parts of a saved file: the program, and executables by device. Nothing in it is run."""
    print_parts(file, out)
    if instructions:
        strategy = load(file).strategy
        codes = strategy.instructions() if isinstance(strategy, InSteps) else []
        out.print("", *map(str, codes), sep="\n", markup=False, highlight=False, soft_wrap=True)
        if not codes:
            out.print("it is one XLA program, or a list of kernels, and has no instructions")


def print_parts(file: Path, print_to: Console) -> None:
    """Prints the parts of a saved file. ArtifactError for a file that is none."""
    found = read(file)
    program, programs = found.solution.program, found.stored.programs

    def line(text: str) -> None:
        print_to.print(text, markup=False, highlight=False, soft_wrap=True)

    line(f"{file}: artifact of version {VERSION}, {format_bytes(file.stat().st_size)}")
    line(f"{program.name}({', '.join(dict.fromkeys(program.arguments))})")
    line(f"\nprogram for any device: {format_bytes(found.program_bytes)}")
    print_to.print(_variants(found))
    if found.held is not None:
        line(f"\nweights: {format_bytes(found.held.bytes)} in {len(found.held.arrays)} arrays")
    if not programs:
        line("\nno executables: it is compiled where it is called")
        return
    code = format_bytes(sum(map(len, found.stored.codes)))
    line(f"\nexecutables: {code}; rx.load(path, executables='trust') runs those that fit the machine")
    print_to.print(_executables(found))
    for versions in dict.fromkeys(_versions(p.key.versions) for p in programs):
        line(f"made by {versions}")


def _variants(found: Saved) -> Table:
    table = plain_table(("variant", "serves", "execution", "chosen for", "as written"), ["predicted gain"])
    for i, v in enumerate(found.solution.variants):
        gain = "" if v.chosen is None else f"{v.report.predicted_gain:.2f}"
        row = str(i), v.guard, v.execution, v.report.target, "yes" if v.chosen is None else "no", gain
        table.add_row(*map(Text, row))
    return table


def _executables(found: Saved) -> Table:
    table = plain_table(("device", "kind", "platform", "sizes", "variant"), ("executables", "launches", "bytes"))
    for p in found.stored.programs:
        padded = f", padded to {binding_text(p.capacities)}" if p.capacities else ""
        row = (
            p.key.device,
            p.key.kind,
            f"{p.key.platform} {p.key.capability}".strip(),
            f"{binding_text(p.at) or 'its own'}{padded}",
            str(p.variant),
            str(len(p.executables)),
            str(p.launches) if p.key.platform == "gpu" else "",
            format_bytes(found.stored.code_bytes(p)),
        )
        table.add_row(*map(Text, row))  # texts of a file are no markup
    return table


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
