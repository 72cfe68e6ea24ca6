"""Joint against phased: kernels chosen together with the algebra, or algebra first and fusion after.

    python -m benchmarks.joint [--only norm] [--seconds 3] [--measured] [--quick]

Both ways run in kernels (`execution="kernels"`). Phased is the best of what a compiler in two phases can be. The first
chooses the algebra by prices, of every operator as a kernel and, since such a compiler knows that it will fuse, of one
program in which XLA's fusion is part of the price; of either it keeps up to `KEPT` programs, and the one as written.
The second fuses each of them, with library calls but with no other rule. The cheapest then stands here, and *first
phase* says where it is from. Predicted times are those of the selection; with --measured both programs run in turns in
one process: joint is better or worse where the whole interval of the ratio says so, else that is unsure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.timing import BEYOND, QUICK_SECONDS, UNSURE, WITHIN, Verdict, settled
from relax_eg.driver.clock.measured import Search
from relax_eg.driver.options import Execution, read_options
from relax_eg.driver.program_ends import traced_program
from relax_eg.extract.report import AS_WRITTEN

KEPT = 5  # programs of the first phase, for each way to price
PRICED: dict[Execution, str] = {"kernels": "every operator a kernel", "whole": "fusion in the price"}
SAID: dict[Verdict, str] = {WITHIN: "worse", UNSURE: "unsure", BEYOND: "better"}  # of how many times faster joint is
QUICK_CASES = 1


@dataclass(frozen=True)
class Case:
    """A program, a spec per argument, the sizes to be best at."""

    fn: Callable[..., Any]
    specs: tuple[str, ...]
    at: Mapping[str, int]


def rms_norm(x: Any, g: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g


def norm_matmul(x: Any, g: Any, w: Any) -> Any:
    return rms_norm(x, g) @ w


def gated(x: Any, g: Any, gate: Any, up: Any) -> Any:
    h = rms_norm(x, g)
    return jax.nn.silu(h @ gate) * (h @ up)


def softmax_matmul(x: Any, v: Any) -> Any:
    return jax.nn.softmax(x) @ v


def scaled_softmax(x: Any, g: Any, v: Any) -> Any:
    return jax.nn.softmax(x * g) @ v


def two_products(x: Any, a: Any, b: Any) -> Any:
    return jnp.tanh(x @ a) + jnp.exp(-jnp.abs(x @ b))


def scaled_columns(x: Any, g: Any, w: Any) -> Any:
    return jnp.tanh(jnp.exp(x) * g) @ w + (jnp.exp(x) * g) @ w


def concatenated(x: Any, y: Any, w: Any) -> Any:
    return jax.nn.relu(jnp.concatenate([jnp.tanh(x), jnp.exp(y)], -1) @ w)


def row_scaled(x: Any, r: Any, w: Any) -> Any:
    return jax.nn.gelu((x * r[:, None]) @ w)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T * 0.125) @ v


def centred(x: Any, w: Any) -> Any:
    return (x - jnp.mean(x, -1, keepdims=True)) @ w


def distance(x: Any, y: Any) -> Any:
    return jnp.exp(-(jnp.sum(x * x, -1)[:, None] + jnp.sum(y * y, -1) - 2.0 * x @ y.T))


def divided(x: Any, w: Any) -> Any:
    e = jnp.exp(x)
    return (e / jnp.sum(e, -1, keepdims=True)) @ w + x @ w


CASES: dict[str, Case] = {
    "norm, matmul": Case(norm_matmul, ("n 512", "512", "512 512"), {"n": 512}),
    "norm, small matmul": Case(norm_matmul, ("n 1024", "1024", "1024 16"), {"n": 4096}),
    "norm, gated": Case(gated, ("n 512", "512", "512 1024", "512 1024"), {"n": 64}),
    "softmax, matmul": Case(softmax_matmul, ("n 2048", "2048 64"), {"n": 2048}),
    "scaled softmax, matmul": Case(scaled_softmax, ("n 2048", "2048", "2048 64"), {"n": 1024}),
    "two products": Case(two_products, ("n 256", "256 256", "256 256"), {"n": 1024}),
    "scaled columns": Case(scaled_columns, ("n 512", "512", "512 32"), {"n": 4096}),
    "concatenated": Case(concatenated, ("n 256", "n 256", "512 64"), {"n": 4096}),
    "row scaled": Case(row_scaled, ("n 512", "n", "512 64"), {"n": 4096}),
    "attention": Case(attention, ("s 64", "t 64", "t 64"), {"s": 1024, "t": 1024}),
    "centred": Case(centred, ("n 1024", "1024 32"), {"n": 4096}),
    "distance": Case(distance, ("n 64", "m 64"), {"n": 1024, "m": 1024}),
    "softmax and product": Case(divided, ("n 512", "512 64"), {"n": 4096}),
}


def both(case: Case) -> tuple[rx.types.Optimized, rx.types.Optimized, str]:
    """The program chosen jointly, the best of algebra first and fusion after, and where its algebra is from."""
    options: Any = {"execution": "kernels", "at": case.at}
    joint = rx.optimize(case.fn, *case.specs, **options)
    second = rx.rules.fusion + rx.rules.libraries
    fused = [(rx.optimize(m, rules=second, **options), name) for m, name in first_phase(case).items()]
    phased, name = min(fused, key=lambda found: found[0].report.after.seconds)
    return joint, phased, name


def first_phase(case: Case) -> dict[rx.types.Module, str]:
    """Programs that algebra alone chooses, and how it came to them; what several ways come to has the first one."""
    traced = traced_program(case.fn, case.specs)
    found: dict[rx.types.Module, str] = {traced.module: AS_WRITTEN}
    for execution, priced in PRICED.items():
        options = read_options(traced, rules=rx.rules.default - "fusion", at=case.at, execution=execution)
        for entry in Search(traced, options).alternatives(KEPT):
            found.setdefault(entry.module, f"{priced}, {entry.label}")
    return found


def arguments(case: Case) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = ([case.at.get(d) or int(d) for d in spec.split()] for spec in case.specs)
    return [jnp.asarray(0.1 * rng.standard_normal(s), jnp.float32) for s in shapes]


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "",
    seconds: Annotated[float, typer.Option(help="of timing, for each program")] = 3.0,
    measured: Annotated[bool, typer.Option("--measured", help="run them as well")] = False,
    quick: Quick = False,
) -> None:
    """Joint against phased extraction of kernels."""
    columns = ("program", "kernels", "phased", "bytes", "phased", "predicted", "first phase")
    table = Table(*columns, *(("measured", "joint is") if measured else ()))
    chosen = {name: case for name, case in CASES.items() if only in name}
    for name in list(chosen)[:QUICK_CASES] if quick else chosen:
        case = chosen[name]
        joint, phased, origin = both(case)
        a, b = joint.report.after, phased.report.after
        row = [name, a.launches, b.launches, f"{a.bytes:.3g}", f"{b.bytes:.3g}", f"{b.seconds / a.seconds:.3f}", origin]
        if measured and joint.module == phased.module:
            row += ["", "the same"]
        elif measured:
            args = arguments(case)
            calls = {"joint": lambda: joint(*args), "phased": lambda: phased(*args)}  # noqa: B023
            timings = settled(
                calls, QUICK_SECONDS if quick else seconds, lambda t: [(t.speedup("joint", "phased"), 1.0)]
            )
            ratio = timings.speedup("joint", "phased")
            row += [ratio, SAID[ratio.against(1.0)]]
        table.add_row(*map(str, row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    typer.run(main)
