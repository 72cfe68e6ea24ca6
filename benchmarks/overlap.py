"""What XLA makes of a matmul whose operand has to be gathered, for eight described H100s: the collectives, and the
kernels that it launches beside each, so that sending overlaps with computing.

    python -m benchmarks.overlap [--quick]

The rows of the one operand and the columns of the other are split. *whole* gathers the rows, then multiplies.
*windowed* is the same, with XLA's options for matmuls in pieces. *unrolled* multiplies the rows that a device has,
sends them on to its neighbour, and goes on with those that it got, eight times. *loop* does so in a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

from benchmarks import Quick
from relax_eg.backend.gpu.hlo import collectives
from relax_eg.backend.gpu.target import described_devices

DEVICES = 8
ROWS, DEPTH, COLUMNS = 16384, 8192, 28672  # chosen: the first dense layer of Llama-3-70B, with 16384 tokens
SMALL = 32  # chosen: by which all of these are divided with --quick
WINDOWED = {"xla_gpu_threshold_for_windowed_einsum_mib": 0, "xla_gpu_multi_streamed_windowed_einsum": True}


def forms(mesh: Mesh) -> dict[str, Callable[[jax.Array, jax.Array], jax.Array]]:
    n = DEVICES

    def on(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))

    def pieces(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows, columns = x.reshape(n, -1, x.shape[1]), w.reshape(w.shape[0], n, -1).transpose(1, 0, 2)
        return on(rows, "x"), on(columns, "x")

    def joined(y: jax.Array) -> jax.Array:
        """The result, from its columns on each device in pieces of rows."""
        return on(y.transpose(1, 2, 0, 3).reshape(n * y.shape[2], -1), None, "x")

    def product(rows: jax.Array, columns: jax.Array) -> jax.Array:
        return on(jnp.einsum("nrk,nkc->nrc", rows, columns), "x")

    def whole(x: jax.Array, w: jax.Array) -> jax.Array:
        return on(x @ w, None, "x")

    def unrolled(x: jax.Array, w: jax.Array) -> jax.Array:
        rows, columns = pieces(x, w)
        made: list[jax.Array] = []
        for _ in range(n):
            made.append(product(rows, columns))
            rows = on(jnp.roll(rows, 1, 0), "x")
        at = (jnp.arange(n)[:, None] - jnp.arange(n)) % n  # when a device multiplies which rows
        return joined(jnp.take_along_axis(jnp.stack(made, 1), at[:, :, None, None], axis=1))

    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        rows, columns = pieces(x, w)

        def tick(carry: Any, t: jax.Array) -> Any:
            rows, y = carry
            place = (jnp.arange(n) - t) % n
            write = jax.vmap(lambda y, m, i: jax.lax.dynamic_update_slice(y, m[None], (i, 0, 0)))
            y = on(write(y, product(rows, columns), place), "x")
            return (on(jnp.roll(rows, 1, 0), "x"), y), None

        empty = jnp.zeros((n, n, rows.shape[1], columns.shape[2]), x.dtype)
        return joined(jax.lax.scan(tick, (rows, on(empty, "x")), jnp.arange(n))[0][1])

    return {"whole": whole, "windowed": whole, "unrolled": unrolled, "loop": loop}


def main(quick: Quick = False) -> None:
    """Collectives of each form, with the kernels that are launched beside each."""
    mesh = Mesh(np.array(described_devices("h100", DEVICES)), ("x",))
    r, k, c = (n // (SMALL if quick else 1) for n in (ROWS, DEPTH, COLUMNS))
    x = jax.ShapeDtypeStruct((r, k), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("x")))
    w = jax.ShapeDtypeStruct((k, c), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(None, "x")))
    table = Table("form", "collectives", "MB each", "runs", "kernels beside each", "temporary, MB")
    for name, fn in forms(mesh).items():
        options: dict[str, Any] = {"xla_gpu_autotune_level": 0, **(WINDOWED if name == "windowed" else {})}
        made = jax.jit(fn).lower(x, w).compile(compiler_options=options)
        found, memory = collectives(made.as_text() or ""), made.memory_analysis()
        table.add_row(
            name, ", ".join(dict.fromkeys(c.kind for c in found)), f"{found[0].bytes / 1e6:.3g}",
            str(sum(c.times for c in found)), ", ".join(str(c.beside) for c in found),
            f"{(memory.temp_size_in_bytes if memory else 0) / 1e6:.4g}",
        )  # fmt: skip
    Console(width=120).print(table)


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    app()
