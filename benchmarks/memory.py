"""The memory of a call beside its arguments: our plans, XLA's own assignment, a pool without a plan, TVM's greedy.

    python -m benchmarks.memory [--only minilm] [--sizes 16,128,64] [--json out.json]
    python -m benchmarks.memory --limits [--execution whole]    # `memory_limit` at shares of what programs need

Every program runs in kernels (`execution="kernels"`), called at the given sizes one after the other, then once more. A
column is a number of bytes for all those calls: *live* is what the arrays of the process were seen to take, most at
once after any kernel of a call, beside arguments and results; *planned* what the plan says; *arena* what it
says in that layout; *bound* is what is needed at once in that order. *inside* is the most that one kernel allocates for
itself, which no array shows and no other column but *XLA* has; *XLA* is its assignment for the program as one
executable. Both are of executables compiled for that in the accounting mode that leaves nothing out, not of those
that run. A *pool* gives every value of the kernels a block of its own size, kept for the next value that fits
without waste and never given back; *greedy* is the algorithm of TVM's planner on our kernels in our order, *tvm* its
planner itself on the same, where TVM is installed.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick, memory_tvm, models, scale
from benchmarks.timing import QUICK_SECONDS, measure
from relax_eg import figures
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import kernel_footprint, whole_footprint
from relax_eg.backend.kernel_calls import Call
from relax_eg.backend.kernels import InKernels
from relax_eg.byte_units import format_bytes
from relax_eg.memory import Plan

QUICK_CASE = "resnet block"
SHARES = (0.8, 0.6, 0.4)
LARGEST_MISS = 0.05  # of what is seen over what is planned


@dataclass(frozen=True)
class Case:
    """A program, its specs, and the sizes at which it is called, one after the other."""

    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    sizes: tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class Row:
    """The bytes of a program over its calls. The fields are the columns of the table, as the module describes them."""

    name: str
    kernels: int
    live: int
    planned: int
    arena: int
    bound: int
    inside: int
    xla: int
    pool: int
    greedy: int
    tvm: int | None

    @property
    def miss(self) -> float:
        """The relative difference between the bytes seen and the bytes planned."""
        return abs(self.live - self.planned) / self.planned if self.planned else 0.0


def minilm(lengths: Sequence[int]) -> Case:
    from examples import minilm as model

    params, _ = model.load()
    specs = jax.tree.map(lambda x: " ".join(map(str, x.shape)), params)
    ids = "b s @ int32"
    return Case(model.encode, (specs, ids, ids), tuple({"b": 1, "s": s} for s in lengths))


def llama(lengths: Sequence[int]) -> Case:
    specs = scale.decoder_specs(1)["layers"][0]
    head = scale.WIDTH // scale.HEADS

    def layer(p: Any, x: Any, cos: Any, sin: Any, mask: Any) -> Any:
        return scale.layer(p, x, cos, sin, mask)

    rotation = f"s {head // 2}"
    return Case(
        layer, (specs, f"b s {scale.WIDTH}", rotation, rotation, "s s"), tuple({"b": 1, "s": s} for s in lengths)
    )


def resnet_block(lengths: Sequence[int]) -> Case:
    specs = models.resnet_specs(((1, 32),))["stages"][0][0]

    def block(p: Any, x: Any) -> Any:
        return models.bottleneck(p, x, 1)

    return Case(block, (specs, "b 28 28 32"), tuple({"b": max(1, s // 16)} for s in lengths))


def unet_block(lengths: Sequence[int]) -> Case:
    def specs_of(width: int) -> Any:
        norm = {"scale": str(width), "bias": str(width)}
        return {
            "norm1": norm, "conv1": f"3 3 {width} {width}", "bias1": str(width),
            "time": {"w": f"64 {width}", "b": str(width)},
            "norm2": norm, "conv2": f"3 3 {width} {width}", "bias2": str(width),
        }  # fmt: skip

    def block(p: Any, x: Any, time: Any) -> Any:
        return models.residual(p, x, time, 8)

    return Case(block, (specs_of(64), "b 16 16 64", "b 64"), tuple({"b": max(1, s // 16)} for s in lengths))


CASES: dict[str, Callable[[Sequence[int]], Case]] = {
    "minilm": minilm, "llama layer": llama, "resnet block": resnet_block, "u-net block": unet_block,
}  # fmt: skip


def features(x: jax.Array) -> jax.Array:
    """Cheap values that are read twice: for a sum, and again once the sum is known."""
    hs = [jnp.exp(jnp.sin(x * float(i + 1))) for i in range(4)]
    total = sum(jnp.sum(h) for h in hs)
    return sum((jnp.sum(h * h / total, axis=1) for h in hs), jnp.zeros(x.shape[0]))


def two_passes(x: jax.Array, ws: list[jax.Array]) -> jax.Array:
    """Like `features`, with a matmul for each value."""
    hs = [jnp.tanh(x @ w) for w in ws]
    total = sum(jnp.sum(h * h, axis=1, keepdims=True) for h in hs)
    return sum((jnp.sum(h * jax.lax.rsqrt(total + 1.0), axis=1) for h in hs), jnp.zeros(x.shape[0]))


def attention(x: jax.Array, ws: list[jax.Array]) -> jax.Array:
    """Attention of eight heads of width 32, whose scores take most of the memory."""
    q, k, v = (jnp.swapaxes((x @ w).reshape(x.shape[0], 8, 32), 0, 1) for w in ws[:3])
    scores = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 6.0)
    return jnp.swapaxes(jnp.einsum("hqk,hkd->hqd", scores, v), 0, 1).reshape(x.shape) @ ws[3]


def limited_rows(only: str, execution: Any, quick: bool = False) -> list[tuple[str, ...]]:
    """Returns rows of programs under limits, as shares of the bytes that they need without a limit: bytes, and the
    predicted and measured slowdown."""
    layer = llama([128])
    cases = {
        "features": Case(features, ("n 1024",), ({"n": 1024},)),
        "two passes": Case(two_passes, ("n 64", ["64 1024"] * 3), ({"n": 1024},)),
        "attention": Case(attention, ("n 256", ["256 256"] * 4), ({"n": 512},)),
        "llama layer": layer,
    }
    rows: list[tuple[str, ...]] = []
    for name, case in cases.items():
        if only not in name or (quick and rows):
            continue
        (at,) = case.sizes

        def best(limit: int, case: Case = case, at: Mapping[str, int] = at) -> rx.types.Optimized:
            return rx.optimize(case.fn, *case.specs, at=at, execution=execution, memory_limit=limit)

        usual = best(1 << 50)
        assert usual.report.memory is not None
        full = usual.report.memory.bytes
        rows.append((name, "none", format_bytes(full), "", ""))
        given = iter(arguments(usual, at))
        args = jax.tree.map(lambda _: next(given), case.specs)  # noqa: B023
        for share in SHARES:
            try:
                found = best(int(share * full))
            except rx.errors.ExtractionError as e:
                rows.append((name, f"{share:.0%}", str(e).split("arguments is ")[1].split(":")[0], "not kept", ""))
                continue
            m = found.report.memory
            assert m is not None
            calls = {"usual": lambda: usual(*args), "limited": lambda found=found: found(*args)}  # noqa: B023
            slower = measure(calls, QUICK_SECONDS if quick else 2.0).speedup("usual", over="limited")
            rows.append((name, f"{share:.0%}", format_bytes(m.bytes), f"{m.slower:.2f}", str(slower)))
    return rows


def arguments(best: rx.types.Optimized, sizes: Mapping[str, int]) -> list[Any]:
    rng = np.random.default_rng(0)
    made: list[Any] = []
    for p in best.module.main.params:
        a = p.tensor
        shape = [int(d.evaluate(sizes)) for d in a.shape or ()]
        made.append(jnp.ones(shape, a.dtype) if a.dtype == "int32" else jnp.asarray(0.1 * rng.random(shape), a.dtype))
    return made


def live_bytes() -> int:
    """Returns the bytes of all arrays of the process, after a garbage collection. The collection is short, because the
    objects that existed before the measurement are frozen (`settled`)."""
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays())


@contextmanager
def settled() -> Generator[None]:
    """Freezes all objects that exist now, so that garbage collections skip them."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def row(name: str, case: Case, tell: Callable[[str], None]) -> Row:
    """Returns the row of a program: searches, calls it at each of the sizes and at the first once more, and counts
    bytes. `tell` is called with the name of each step."""
    written = rx.trace(case.fn, *case.specs)
    best = rx.optimize(case.fn, *case.specs, at=list(case.sizes), execution="kernels")
    assert isinstance(best, InKernels)
    tell("searched")
    live = planned = inside = xla = 0
    plans: list[tuple[Plan, Mapping[str, int]]] = []
    calls: dict[str, Call] = {}
    for sizes in (*case.sizes, case.sizes[0]):
        at = figures.binding_text(sizes)
        is_new = at not in calls
        with settled():
            call, seen = watched(best, sizes)
        calls[at] = call
        # The storages of bindings that were called before are kept, as far as they were not let go of.
        kept = [c for c in calls.values() if c is call or c.held_bytes]
        live, planned = max(live, seen), max(planned, sum(c.plan.bytes_at(c.sizes) for c in kept))
        if is_new:
            inside = max(inside, kernel_footprint(best.module, set(), sizes, FRUGAL).footprint.temporary)
            xla = max(xla, whole_footprint(written, set(), sizes, FRUGAL).temporary)
        plans.append((call.plan, sizes))
        tell(f"called at {at}")
    found = Row(
        name,
        len(plans[0][0].program.steps),
        live,
        planned,
        max(p.laid_out("arena").bytes_at(s) for p, s in plans),
        max(p.bound_at(s) for p, s in plans),
        inside,
        xla,
        pool(plans),
        max(greedy_bytes(p, s) for p, s in plans),
        max(memory_tvm.planned_bytes(p.program, s) for p, s in plans) if memory_tvm.is_there() else None,
    )
    tell("planned by others")
    return found


def watched(best: InKernels, sizes: Mapping[str, int]) -> tuple[Call, int]:
    """A second call at these sizes, and the most bytes of arrays after any of its kernels, beside arguments and
    results."""
    args = arguments(best, sizes)
    jax.block_until_ready(best.runner.run(args, sizes))  # constants and storages are made
    call = best.runner.call(sizes)
    # Storages of other sizes that are kept count, results of this call do not.
    outside = live_bytes() - best.runner.held_bytes
    results = {v.number for v in call.plan.program.values if v.role == "result"}
    handed_out = {
        s.name: sum(_bytes(call.plan, w, sizes) for w in s.writes if w in results) for s in call.plan.program.steps
    }
    made, most = 0, 0

    def after(step: str) -> None:
        nonlocal made, most
        made += handed_out.get(step, 0)
        most = max(most, live_bytes() - outside - made)

    jax.block_until_ready(call.run(args, after))
    return call, most


def greedy_bytes(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Returns the bytes that TVM's planner needs for one call at known sizes."""
    return plan.laid_out("greedy").bytes_at(sizes)


def pool(plans: Sequence[tuple[Plan, Mapping[str, int]]]) -> int:
    """Returns the final bytes of a pool: blocks of exactly the requested sizes, free again after the last reader of
    their value, and kept for later calls."""
    free: Counter[int] = Counter()
    total = 0
    for plan, sizes in plans:
        begin: dict[int, list[int]] = {}
        end: dict[int, list[int]] = {}
        for x in plan.live.lifetimes:
            size = int(x.bytes.evaluate(sizes))
            for v in x.values:  # no value is written over another
                last = max([x.start if plan.program.writer[v] is None else int(plan.program.writer[v] or 0),
                            *plan.program.readers[v]])  # fmt: skip
                begin.setdefault(int(plan.program.writer[v] or 0), []).append(size)
                end.setdefault(last, []).append(size)
        for step in range(len(plan.program.steps)):
            for size in begin.get(step, ()):
                if free[size]:
                    free[size] -= 1
                else:
                    total += size
            free.update(end.get(step, ()))
    return total


def _bytes(plan: Plan, v: int, sizes: Mapping[str, int]) -> int:
    size = plan.program.values[v].bytes
    return 0 if size is None else int(size.evaluate(sizes))


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "",
    sizes: Annotated[str, typer.Option(help="tokens (or images, 16 tokens each) of successive calls")] = "64,16,128,64",
    execution: Annotated[str, typer.Option(help="with --limits: kernels or whole")] = "kernels",
    limits: Annotated[bool, typer.Option("--limits", help="limits of memory in place of plans")] = False,
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="fail where live is off the plan by over 5%")] = False,
) -> None:
    """Bytes that calls need beside their arguments and results."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    if limits:
        table = Table("program", "limit", "bytes", "times longer, predicted", "measured")
        for cells in limited_rows(only, execution, quick):
            table.add_row(*cells)
        console.print(table)
        return
    lengths = lengths_of(sizes)
    chosen = {name: make for name, make in CASES.items() if only in name}
    if quick:
        lengths, chosen = lengths[:1], {n: make for n, make in chosen.items() if n == QUICK_CASE} or chosen
    if not chosen:
        raise typer.BadParameter(f"no program has {only!r} in its name: {', '.join(CASES)}", param_hint="--only")
    progress = Console(stderr=True)
    rows: list[Row] = []
    for name, make in chosen.items():
        started = time.perf_counter()

        def tell(what: str) -> None:
            progress.print(f"{name}: {what}, {time.perf_counter() - started:.0f} s", highlight=False)  # noqa: B023

        rows.append(row(name, make(lengths), tell))
        if json_out is not None:
            json_out.write_text(json.dumps({"version": 2, "rows": [asdict(r) for r in rows]}, indent=1))
    columns = ("live", "planned", "arena", "bound", "inside", "xla", "pool", "greedy", "tvm")
    table = Table("program", "kernels", *columns, "live over planned")
    for r in rows:
        cells = (getattr(r, c) for c in columns)
        shares = f"{r.live / r.planned:.3f}" if r.planned else ""
        table.add_row(r.name, str(r.kernels), *("" if b is None else format_bytes(b) for b in cells), shares)
    console.print(table)
    if strict and any(r.miss > LARGEST_MISS for r in rows):
        raise typer.Exit(1)


def lengths_of(sizes: str) -> list[int]:
    """The sizes of successive calls from text."""
    parts = [s.strip() for s in sizes.split(",")]
    if not all(s.isdecimal() and int(s) > 0 for s in parts):
        raise typer.BadParameter(f"{sizes!r}: positive integers with commas between are accepted", param_hint="--sizes")
    return [int(s) for s in parts]


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    app()
