"""The seconds of memory planning for whole models, operator by operator as they are traced.

    python -m benchmarks.planning [--only unet] [--json out.json]

Seconds are processor time. *free* plans for all sizes, so that offsets are expressions; *bounded* plans with bounds
that equal the sizes, so that the arena is one number; *one call* is the plan of a call in kernels at its sizes.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, llama, models
from relax_eg.byte_units import format_bytes

QUICK_CASE = "resnet-50"
SIZES = {"b": 4, "s": 512, "t": 1024}


@dataclass(frozen=True)
class Row:
    """A model.

    - `name`: its name.
    - `kernels`, `tensors`: their numbers.
    - `arena`, `bound`: bytes of the arena, and the maximum of the bytes that are live at once.
    - `free`, `bounded`, `one_call`: seconds of planning.
    """

    name: str
    kernels: int
    tensors: int
    arena: int
    bound: int
    free: float
    bounded: float
    one_call: float


def decoder() -> rx.types.Module:
    sizes = llama.MODELS["llama3-8b"]
    return rx.trace(functools.partial(llama.decoder, sizes=sizes), *llama.specs(sizes, "b s"))


def traced(name: str) -> rx.types.Module:
    case = models.cases()[name]
    return rx.trace(case.fn, *case.specs)


PROGRAMS: dict[str, Callable[[], rx.types.Module]] = {
    "llama3-8b, 32 layers": decoder,
    **{name: functools.partial(traced, name) for name in ("resnet-50", "unet, nearest", "gpt-2 training step")},
}


def row(name: str, module: rx.types.Module) -> Row:
    at = {v: SIZES[v] for v in module.main.size_variables}

    def timed(plan: Callable[[], rx.types.Plan]) -> tuple[rx.types.Plan, float]:
        started = time.process_time()
        return plan(), time.process_time() - started

    bounds = {v: (1, n) for v, n in at.items()}
    free, first = timed(lambda: rx.plan_memory(module, at=at, layout="arena"))
    _, second = timed(lambda: rx.plan_memory(module, at=at, bounds=bounds, layout="arena"))
    _, third = timed(lambda: rx.memory.plan(module, at))
    tensors = len(free.places)
    return Row(name, len(free.program.steps), tensors, free.bytes_at(at), free.bound_at(at), first, second, third)


def main(
    only: Annotated[str, typer.Option(help="models whose names contain this")] = "",
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
) -> None:
    """Seconds of planning."""
    chosen = {name: make for name, make in PROGRAMS.items() if only in name}
    if not chosen:
        raise typer.BadParameter(f"no model has {only!r} in its name: {', '.join(PROGRAMS)}", param_hint="--only")
    if quick:
        chosen = {n: make for n, make in chosen.items() if n == QUICK_CASE} or chosen
    rows = [row(name, make()) for name, make in chosen.items()]
    table = Table("model", "kernels", "tensors", "arena", "needed at once", "free, s", "bounded, s", "one call, s")
    for r in rows:
        seconds = (f"{x:.2f}" for x in (r.free, r.bounded, r.one_call))
        table.add_row(r.name, str(r.kernels), str(r.tensors), format_bytes(r.arena), format_bytes(r.bound), *seconds)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if json_out is not None:
        written: Mapping[str, Any] = {"version": 1, "rows": [asdict(r) for r in rows]}
        json_out.write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    typer.run(main)
