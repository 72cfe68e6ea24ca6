"""Predicted kernels of programs beside those that XLA compiles for the CPU at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import relax_eg as rx
from relax_eg.backend.gpu.hlo import launches
from relax_eg.backend.lowering.lower import run_at
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.profiles.profile import Profile
from relax_eg.extract.report import price_program

KERNEL_BYTES = 0.15  # relative error up to which predicted bytes of kernels agree with those compiled


@dataclass(frozen=True)
class Kernels:
    """Launches and bytes of a candidate on file, each predicted and compiled."""

    name: str
    launches: tuple[int, int]
    bytes: tuple[int, int]

    @property
    def agrees(self) -> tuple[bool, bool]:
        """Whether launches are equal, and bytes closer than `KERNEL_BYTES`."""
        predicted, compiled = self.bytes
        return self.launches[0] == self.launches[1], abs(predicted - compiled) <= KERNEL_BYTES * max(compiled, 1)


def kernels_of(name: str, text: str, at: Mapping[str, int], p: Profile) -> Kernels:
    """The kernels of a program, the text of a module, at sizes; all of it is computed at every call."""
    module = rx.parse(text)
    main = module.main
    cost = price_program(main, WholeCost(p, at, {f.name: f for f in module}))
    shapes = [jax.ShapeDtypeStruct([int(d.evaluate(at)) for d in v.shape], v.dtype) for v in main.params]
    lowered = jax.jit(lambda *args: run_at(module, main, args, at)).lower(*shapes)
    made = launches(lowered.compile().as_text() or "")
    compiled = sum(k.times for k in made), sum(k.times * k.bytes for k in made)
    return Kernels(name, (cost.launches, compiled[0]), (cost.bytes, compiled[1]))


def compare_kernels(
    console: Console, programs: Sequence[tuple[str, str, Mapping[str, int]]], p: Profile, most: int
) -> None:
    """Shows predicted and compiled kernels of programs (name, text, sizes) where they differ, and how many agree."""
    found = [kernels_of(*program, p) for program in programs]
    table = Table(title="kernels that are predicted otherwise than XLA compiles them", title_justify="left")
    for name in ("program", "launches", "compiled", "MB", "compiled MB"):
        table.add_column(name, justify="left" if name == "program" else "right")
    for k in [k for k in found if not all(k.agrees)][:most]:
        cells = [*map(str, k.launches), *(f"{n / 1e6:.2f}" for n in k.bytes)]
        table.add_row(escape(k.name), *cells)
    console.print(table)
    equal, near = (sum(k.agrees[i] for k in found) / len(found) for i in (0, 1))
    console.print(
        f"{len(found)} candidates: launches equal in {equal:.0%}, bytes within {KERNEL_BYTES:.0%} in {near:.0%}"
    )
