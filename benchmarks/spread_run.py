"""Small programs on eight CPU devices: spread, beside `jax.jit` with the same shardings of the inputs.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.spread_run [--quick] [--only mlp] [--write]
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.spread_run --collectives

`jax.jit` leaves everything but the inputs to XLA's own propagation. The inputs are where `rx.spread` places them, or,
in the cases "given", where data parallel training has them, or whole on every device. Both sides take turns
(`benchmarks.timing`); a ratio below 1 says that the spread program is faster. `--write` puts the table into
docs/spread.md. `--collectives` times single collectives, beside the price that `rx.spread` gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax import lax
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, write_between
from benchmarks.spread import DOCUMENT, block, mixture, mlp, training, weights
from benchmarks.timing import BEYOND, QUICK_SECONDS, Estimate, measure, settled, tally
from relax_eg.extract.profiles.devices import profile
from relax_eg.extract.profiles.links import Collective, link_for

DEVICES = 8
BEGIN, END = "<!-- python -m benchmarks.spread_run --write: from here -->", "<!-- runs: to here -->"
SECONDS = 4.0  # chosen: of timing a case
SEARCH = 10.0  # limit: seconds of a search
D, F = 256, 1024  # chosen: width and inner width of the layers


@dataclass(frozen=True)
class Run:
    """A program, its specs, and options of `rx.spread`."""

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def cases() -> dict[str, Run]:
    layer = {name: spec.partition("@")[0] for name, spec in weights(D, F).items()}
    stack = {name: spec.partition("@")[0] for name, spec in weights(D, F, "4").items()}
    step: dict[str, Any] = {"state": ("ps",), "pipeline": False}
    data = {"x": "S[0]", "y": "S[0]", "ps": "R"}
    dense = (f"512 {D}", f"{D} {F}", f"{F} {D}")
    train = (stack, f"8 64 {D}", f"8 64 {D}")
    return {
        "mlp": Run(mlp, dense),
        "mlp, few rows": Run(mlp, (f"8 {D}", f"{D} {4 * F}", f"{4 * F} {D}")),
        "block": Run(lambda x, p: block(x, p, 8), (f"8 64 {D}", layer)),
        "mixture": Run(mixture, (f"256 {D}", f"{D} 8", f"8 {D} {F}", f"8 {F} {D}")),
        "training step": Run(training(8), train, step),
        "mlp, given whole": Run(mlp, dense, {"inputs": {"x": "R", "wi": "R", "wo": "R"}, "outputs": "R"}),
        "block, given whole": Run(
            lambda x, p: block(x, p, 8), (f"8 64 {D}", layer), {"inputs": {"x": "R", "p": "R"}, "outputs": "R"}
        ),
        "training step, given data parallel": Run(training(8), train, {**step, "inputs": data}),
    }


@dataclass(frozen=True)
class Row:
    """A case that ran: where its inputs are, milliseconds of both ways, and the ratio of the spread program's time to
    that of `jax.jit`."""

    name: str
    inputs: str
    ours: float
    theirs: float
    ratio: Estimate


def timed(name: str, run: Run, seconds: float) -> Row:
    rng = np.random.default_rng(0)

    def drawn(spec: str) -> jax.Array:
        return jnp.asarray(rng.normal(size=[int(n) for n in spec.split()]) / 16, jnp.float32)

    arrays = jax.tree.map(drawn, run.specs)
    best: Any = rx.spread(run.fn, *arrays, mesh={"x": DEVICES}, seconds=SEARCH, **run.options)
    placed, where = best.place(*arrays)[0], {"in_shardings": best.in_shardings}
    ways = {
        "spread": jax.jit(best.to_jax(), **where, out_shardings=best.out_shardings),
        "jax.jit": jax.jit(run.fn, **where),
    }
    calls = {way: (lambda fn=fn: fn(*placed)) for way, fn in ways.items()}
    for one, two in zip(*(jax.tree.leaves(call()) for call in calls.values()), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
    timings = settled(calls, seconds, lambda t: [(t.speedup("jax.jit", "spread"), 1.0)])
    inputs = ", ".join(dict.fromkeys(map(str, best.input_placements)))
    ratio = timings.speedup("jax.jit", "spread")
    return Row(name, inputs, 1e3 * timings.median("spread"), 1e3 * timings.median("jax.jit"), ratio)


# Each kind of collective, as a function of an array on every device whose result has the array's shape. What gives it
# that shape is timed, too.
COLLECTIVES: dict[Collective, Callable[[jax.Array], jax.Array]] = {
    "all-reduce": lambda x: lax.psum(x, "x") / DEVICES,
    "reduce-scatter": lambda x: jnp.tile(lax.psum_scatter(x, "x", tiled=True) / DEVICES, DEVICES),
    "all-gather": lambda x: lax.all_gather(x, "x", tiled=True)[: x.size],
    "all-to-all": lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
    "collective-permute": lambda x: lax.ppermute(x, "x", [(i, (i + 1) % DEVICES) for i in range(DEVICES)]),
}
REPEATED = 20  # chosen: collectives in a call, one after the other
BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)  # chosen: of the array on every device


def collectives(quick: bool) -> Table:
    """Microseconds of collectives among the threads of this process, and those that they are priced at."""
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    link = link_for(profile("cpu"), DEVICES, DEVICES)
    table = Table("collective", "KiB on a device", "us", "priced, us")
    for kind, fn in COLLECTIVES.items():
        for size in BYTES[:1] if quick else BYTES:
            array = jnp.ones((DEVICES * size // 4,), jnp.float32)

            def repeated(x: jax.Array, fn: Callable[[jax.Array], jax.Array] = fn) -> jax.Array:
                return lax.fori_loop(0, REPEATED, lambda _, y: fn(y) + 1.0, x)

            run = jax.jit(jax.shard_map(repeated, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
            calls = {kind: lambda run=run, array=array: run(array)}
            seconds = measure(calls, QUICK_SECONDS).median(kind) / REPEATED
            full = size * DEVICES if kind in ("all-gather", "all-to-all") else size
            priced = link.seconds(kind, DEVICES, full)
            table.add_row(kind, f"{size >> 10}", f"{1e6 * seconds:.0f}", f"{1e6 * priced:.0f}")
    return table


def markdown(rows: list[Row]) -> str:
    lines = [
        "| program on 8 CPU devices | placements of inputs | spread, ms | `jax.jit`, ms | ratio of times |",
        "|---|---|--:|--:|--:|",
        *(f"| {r.name} | {r.inputs} | {r.ours:.3g} | {r.theirs:.3g} | {r.ratio} |" for r in rows),
    ]
    return f"{date.today().isoformat()}; slower beyond doubt: {slower(rows)}.\n\n" + "\n".join(lines)


def slower(rows: list[Row]) -> int:
    return sum(r.ratio.against(1.0) == BEYOND for r in rows)


def main(
    only: Annotated[str, typer.Option("--only", help="Cases whose names have this in them.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Put the table into docs/spread.md.")] = False,
    single: Annotated[bool, typer.Option("--collectives", help="Time single collectives instead.")] = False,
    quick: Quick = False,
) -> None:
    """Milliseconds of spread programs and of `jax.jit` with the same shardings of inputs; fails where one is slower
    beyond doubt."""
    if len(jax.devices()) < DEVICES:
        raise SystemExit(
            f"{DEVICES} devices are needed; JAX has {len(jax.devices())}\n  accepted: "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={DEVICES}"
        )
    if single:
        Console(width=140).print(collectives(quick))
        return
    rows = [timed(n, r, QUICK_SECONDS if quick else SECONDS) for n, r in cases().items() if only in n]
    table = Table("program", "placements of inputs", "spread, ms", "jax.jit, ms", "ratio of times")
    for r in rows:
        table.add_row(r.name, r.inputs.replace("[", "\\["), f"{r.ours:.3g}", f"{r.theirs:.3g}", str(r.ratio))
    console = Console(width=140)
    console.print(table)
    console.print(tally((r.ratio.against(1.0) for r in rows), "slower beyond doubt"))
    if write and not quick and not only:
        write_between(DOCUMENT, BEGIN, END, markdown(rows))
    if slower(rows) and not quick:
        raise SystemExit("slower beyond doubt than jax.jit")


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    app()
