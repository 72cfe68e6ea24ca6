"""Kernels through Pallas, compiled for GPUs that need not be there: what compiles, and what it takes.

    python -m benchmarks.gpu_kernels [--device l4] [--only causal,4-bit] [--dtype bfloat16] [--json out.json] [--write]
    python -m benchmarks.gpu_kernels --search build/kernels --size 64           # chooses the kernels and saves them
    python -m benchmarks.gpu_kernels --run build/kernels --size 64 [--budget 120] # on a machine with a GPU

A case is a form of attention, of a matmul with a weight that is decoded, or of a split sum (`gpu_kernel_cases`), at a
dtype and a size of heads or weights, with lengths that blocks divide and that they do not. It is searched for in
kernels without cuDNN, at prices at which no kernel of ours loses, then compiled for each GPU. A row tells whether all
of a call is ours, the registers of a thread, spilled bytes and shared memory of each launch, and the seconds of the
compiler; or why the kernel is left to XLA. The command fails if a kernel does not compile that the room of Pallas took.
Needs `pip install 'relax-eg[cuda]'`.

With `--run` each kernel takes turns with the function as written under `jax.jit`, both called several times in a row
and then waited for, and their results are compared.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick, write_between
from benchmarks.gpu import IN_A_ROW, in_a_row
from benchmarks.gpu_cases import OWN_RULES
from benchmarks.gpu_kernel_cases import DTYPES, Form, forms
from benchmarks.timing import duration, machine, measure
from relax_eg.backend.gpu.devices import GPUS
from relax_eg.backend.gpu.hlo import PALLAS
from relax_eg.backend.gpu.record import GpuProgram
from relax_eg.backend.gpu.resources import KernelResources
from relax_eg.backend.gpu.target import target_for
from relax_eg.backend.lowering.lower import run_at
from relax_eg.backend.pallas.choice import Pallas, lowering_through
from relax_eg.backend.pallas.tuning import random_array
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.extract.profiles.devices import profile

DOCUMENT = Path(__file__).parent.parent / "docs" / "gpu.md"
BEGIN, END = "<!-- python -m benchmarks.gpu_kernels --write: from here -->", "<!-- to here -->"
VERSION = 1  # of the file of rows
QUICK_FORMS = 2
TIMED = 0.08  # seconds of timing, for each case
OURS, IN_PART, REFUSED, FAILED = "ours", "in part", "refused", "failed"
OURS_ALONE = replace(profile("h100"), pallas_share=100.0, fused_share=1.0)  # at whose prices no kernel of ours loses


@dataclass(frozen=True)
class Row:
    """A case for a device.

    - `form`, `dtype`, `size`, `at`: the case.
    - `outcome`: whether all launches are ours, or some; or the room of Pallas refused it, or what it took failed.
    - `why`: why it was refused or failed.
    - `kernels`: what the launches take.
    - `seconds`: of the compiler.
    """

    form: str
    dtype: str
    size: str
    at: Mapping[str, int]
    device: str
    outcome: str
    why: str = ""
    kernels: tuple[KernelResources, ...] = ()
    seconds: float = 0.0

    @property
    def spilled_bytes(self) -> int:
        return sum(k.spilled_bytes or 0 for k in self.kernels)

    def __str__(self) -> str:
        at = " ".join(f"{v}={n}" for v, n in self.at.items())
        taken = "; ".join(
            f"{k.registers} registers, {k.spilled_bytes} B spilled, {k.shared_bytes / 1024:.0f} KiB, {k.blocks} blocks "
            f"of {k.threads}"
            for k in self.kernels
        )
        found = f"{taken}; {self.seconds:.1f} s" if self.outcome == OURS else self.why
        return f"{self.form}, {self.dtype}, {self.size}, {at}, {self.device}: {self.outcome}: {found}"


def rows_of(form: Form, devices: Sequence[str]) -> Iterator[Row]:
    """Yields what becomes of a case for each device."""
    best = searched(form)
    for device in devices:
        for at in form.at:
            try:
                (made,) = best.compile(device, at=at, ptx=True).programs
                yield _row(form, at, device, made)
            except RelaxEgError as e:
                yield Row(form.name, form.dtype, form.size, at, device, FAILED, str(e).splitlines()[0])


def _row(form: Form, at: Mapping[str, int], device: str, made: GpuProgram) -> Row:
    left = dict(made.left)
    failed = {name: why for name, why in left.items() if why.startswith("Pallas failed")}
    is_ours = set(made.kinds) == {PALLAS}
    outcome = FAILED if failed else OURS if is_ours else IN_PART if PALLAS in made.kinds else REFUSED
    why = "; ".join((failed or left).values()) or f"launches of other kinds: {dict(made.kinds)}"
    taken = tuple(k for e in made.executables for k in e.resources)
    return Row(
        form.name, form.dtype, form.size, at, device, outcome, "" if is_ours else why, taken, made.compile_seconds
    )


def searched(form: Form) -> rx.types.Optimized:
    """A case in kernels without cuDNN, at prices at which no kernel of ours loses."""
    return rx.optimize(
        form.fn, *form.specs, rules=OWN_RULES, execution="kernels", target=OURS_ALONE, at=form.at[0], measure="off",
        dynamic="exact",
    )  # fmt: skip


def saved(folder: Path, form: Form) -> Path:
    return folder / f"{re.sub(r'[^a-z0-9]+', '-', form.label.lower())}.rxe"


@dataclass(frozen=True)
class Timed:
    """A case on the GPU at hand.

    - `form`, `dtype`, `size`, `at`: the case.
    - `written`: seconds of a call as written.
    - `speedup`: over it, as text with its interval.
    - `ratio`: the same as a number.
    - `far`: the distance of the results over their norm.
    - `launches`: why the kernel was lowered through Pallas, or left to XLA.
    """

    form: str
    dtype: str
    size: str
    at: Mapping[str, int]
    written: float
    speedup: str
    ratio: float
    far: float
    launches: str

    def __str__(self) -> str:
        at = " ".join(f"{v}={n}" for v, n in self.at.items())
        return (
            f"{self.form}, {self.dtype}, {self.size}, {at}: {duration(self.written)}, {self.speedup}, off by "
            f"{self.far:.1e}; {self.launches}"
        )


def timed(chosen: Sequence[Form], folder: Path, seconds: float, end: float) -> Iterator[Timed]:
    """Yields the cases that were saved, until the clock says `end`. What is needed is compiled ahead, beside the
    timing of other cases."""
    pairs = [(form, at) for form in chosen if saved(folder, form).exists() for at in form.at]
    with ThreadPoolExecutor(8) as pool:
        prepared = [pool.submit(_compiled_pair, form, at, saved(folder, form)) for form, at in pairs]
        wait(prepared, timeout=max(0.0, end - time.perf_counter()))
        for (form, at), job in zip(pairs, prepared, strict=True):
            if time.perf_counter() > end or not job.done():
                job.cancel()
                continue
            try:
                calls, pallas = job.result()
            except Exception as e:  # a case that fails must not take the others along
                print(f"{form.label}: FAILED: {type(e).__name__}: {str(e).splitlines()[0][:200]}", flush=True)
                continue
            results = {name: np.asarray(jax.tree.leaves(call())[0], np.float64) for name, call in calls.items()}
            theirs, ours = results["as written"], results["ours"]
            found = measure({name: in_a_row(call) for name, call in calls.items()}, seconds)
            ratio = found.speedup("ours", "as written")
            why = "; ".join([*pallas.taken.values(), *(f"left to XLA: {x}" for x in pallas.left.values())])
            far = float(np.linalg.norm((ours - theirs).ravel()) / (np.linalg.norm(theirs.ravel()) or 1.0))
            took = found.median("as written") / IN_A_ROW
            yield Timed(form.name, form.dtype, form.size, at, took, str(ratio), ratio.value, far, why)


def _compiled_pair(form: Form, at: Mapping[str, int], path: Path) -> tuple[dict[str, Callable[[], Any]], Pallas]:
    module = rx.load(path, measure="off").module
    pallas = Pallas.for_default_device(True)
    assert pallas is not None
    args = [_argument(p.annotation, at, n) for n, p in enumerate(module.main.params)]

    def ours(*arrays: Any) -> Any:
        with lowering_through(pallas):
            return run_at(module, module.main, arrays, at)

    fn = form.fn
    written = jax.jit(fn) if not isinstance(fn, rx.types.Module) else jax.jit(lambda *xs: run_at(fn, fn.main, xs, at))
    calls = {"as written": functools.partial(written, *args), "ours": functools.partial(jax.jit(ours), *args)}
    for call in calls.values():  # compiled here; what `compile` returns would be called through Python
        jax.block_until_ready(call())
    return calls, pallas


def _argument(annotation: Any, at: Mapping[str, int], seed: int) -> jax.Array:
    """A random array of an annotation; a mask is causal."""
    shape = [int(d.evaluate(at)) for d in annotation.shape]
    return (
        jnp.tril(jnp.ones(shape, bool)) if annotation.dtype == "bool" else random_array(annotation.dtype, shape, seed)
    )


def table(rows: Iterable[Row]) -> str:
    """A line for each form and dtype, a column for each device: cases that are ours of all, most registers of a thread,
    most shared memory of a block in KiB; spilled bytes where there are any."""
    cells: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        cells.setdefault((row.form, row.dtype), {}).setdefault(row.device, []).append(row)
    devices = list(dict.fromkeys(d for found in cells.values() for d in found))
    lines = [f"| form | dtype | {' | '.join(devices)} |", f"| --- | --- |{' --- |' * len(devices)}"]
    for (form, dtype), found in cells.items():
        lines.append(f"| {form} | {dtype} | {' | '.join(_cell(found.get(d, [])) for d in devices)} |")
    reasons = dict.fromkeys(f"- {r.form}, {r.dtype}: {r.why}" for each in cells.values() for found in each.values()
                            for r in found if r.outcome != OURS)  # fmt: skip
    return "\n".join([*lines, *(["", "Left to XLA:", "", *reasons] if reasons else [])])


def _cell(rows: Sequence[Row]) -> str:
    kernels = [k for r in rows if r.outcome == OURS for k in r.kernels]
    ours = sum(r.outcome == OURS for r in rows)
    if not kernels:
        return f"0 of {len(rows)}" if rows else ""
    registers, shared = max(k.registers or 0 for k in kernels), max(k.shared_bytes for k in kernels)
    spilled = max(k.spilled_bytes or 0 for k in kernels)
    return f"{ours} of {len(rows)}: {registers}, {-(-shared // 1024)}" + (f", {spilled} B spilled" if spilled else "")


def write(text: str) -> None:
    """Put a text between the marks in `DOCUMENT`."""
    write_between(DOCUMENT, BEGIN, END, text)


def main(
    devices: Annotated[list[str] | None, typer.Option("--device", help="h100 or another; may be given again")] = None,
    only: Annotated[str, typer.Option(help="forms whose labels contain one of these words, by commas")] = "",
    dtypes: Annotated[list[str] | None, typer.Option("--dtype", help="this dtype; may be given again")] = None,
    quick: Quick = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="also write the rows here")] = None,
    read: Annotated[list[Path] | None, typer.Option("--read", help="compile nothing; rows of --json")] = None,
    write_document: Annotated[bool, typer.Option("--write", help="put the table into docs/gpu.md")] = False,
    search_into: Annotated[Path | None, typer.Option("--search", help="choose the kernels, and save them here")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="time what --search saved here, on the GPU at hand")] = None,
    sizes: Annotated[list[str] | None, typer.Option("--size", help="this size; may be given again")] = None,
    budget: Annotated[float, typer.Option(help="with --run: stop after so many seconds")] = 120.0,
) -> None:
    """Kernels through Pallas, compiled for GPUs that need not be there, or timed on one that is."""
    end = time.perf_counter() + budget
    if read:
        rows = [row_of(r) for path in read for r in json.loads(path.read_text())["rows"]]
        _tell(rows, write_document)
        return
    words = [w.strip() for w in only.split(",") if w.strip()]
    chosen = [f for f in forms() if f.dtype in (dtypes or DTYPES) and (not words or any(w in f.label for w in words))]
    chosen = [f for f in chosen if not sizes or f.size in sizes]
    if search_into is not None:
        search_into.mkdir(parents=True, exist_ok=True)
        for form in chosen:
            searched(form).save(saved(search_into, form))
            print(form.label, flush=True)
        return
    if run is not None:
        print(machine(), flush=True)
        times: list[Timed] = []
        for row in timed(chosen, run, TIMED, end):
            times.append(row)
            print(row, flush=True)
            if json_out:
                data = {"version": VERSION, "machine": machine(), "rows": [asdict(r) for r in times]}
                json_out.write_text(json.dumps(data, indent=1))
        return
    try:  # before JAX looks for devices, and before anything is searched
        target_for((devices or list(GPUS))[0])
    except OptionError as e:
        print(f"nothing is compiled: {e}")
        return
    wanted = devices or (["l4"] if quick else list(GPUS))
    chosen = chosen[:QUICK_FORMS] if quick else chosen
    rows: list[Row] = []
    started = time.perf_counter()
    for n, form in enumerate(chosen, 1):
        for row in rows_of(form, wanted):
            rows.append(row)
            if row.outcome != OURS or row.spilled_bytes or quick:
                print(row, flush=True)
        print(f"{n} of {len(chosen)} forms, {form.label}; {time.perf_counter() - started:.0f} s", flush=True)
        if json_out:
            data = {"version": VERSION, "machine": machine(), "rows": [asdict(r) for r in rows]}
            json_out.write_text(json.dumps(data, indent=1))
    _tell(rows, write_document and not quick)


def row_of(data: dict[str, Any]) -> Row:
    """The row that was written as JSON."""
    kernels = tuple(KernelResources(**k) for k in data["kernels"])
    return replace(Row(**{k: v for k, v in data.items() if k != "kernels"}), kernels=kernels)


def _tell(rows: Sequence[Row], write_document: bool) -> None:
    print(table(rows))
    if write_document:
        write(table(rows))
    failed = [r for r in rows if r.outcome == FAILED]
    print(f"{len(rows)} cases: {sum(r.outcome == OURS for r in rows)} ours, {len(failed)} failed, "
          f"{sum(r.spilled_bytes > 0 for r in rows)} with spilled registers")  # fmt: skip
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
