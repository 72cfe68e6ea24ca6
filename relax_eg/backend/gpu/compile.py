"""Compiles an optimized function for a GPU, and tells what XLA made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jaxlib

from relax_eg.argument_checks import short_repr
from relax_eg.backend.checks import check_addressable
from relax_eg.backend.family import KERNELS, Family, Solution, Variant
from relax_eg.backend.gpu.hlo import launches, merged, unknown_loops
from relax_eg.backend.gpu.record import GpuCompilation, GpuExecutable, GpuProgram
from relax_eg.backend.gpu.target import CompiledPart, GpuTarget, target_for
from relax_eg.backend.libraries import AbsentDevice, lowering_for
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.backend.runtime import CallPart, CallParts, Strategy
from relax_eg.byte_units import format_bytes
from relax_eg.errors import OptionError
from relax_eg.ir.annotations import dims_of
from relax_eg.memory import plan
from relax_eg.ops.library_needs import RoutinePlace

Progress = Callable[[str], None]


def compile_for(
    solution: Solution,
    strategy: Callable[[Mapping[str, int]], Strategy],
    device: str | Path | None,
    at: Mapping[str, int] | Sequence[Mapping[str, int]] | None,
    ptx: bool,
    progress: Progress | None = None,
) -> GpuCompilation:
    """What XLA makes of a function for a GPU, at each binding of its sizes.

    - `strategy`: how the function runs at given sizes, once its weights are bound.
    - `device`: the name of a GPU, or the path of a target-config file; None: the GPU that JAX runs on.
    - `at`: the sizes, one binding or several; None: those for which the function was optimized.
    - `ptx`: whether the kernels in PTX are kept.
    - `progress`: called with the name of each program before it is compiled.

    OptionError for the device, for sizes that are missing and for programs larger than the device's memory;
    BoundsError for sizes out of bounds; DeviceError where XLA does not compile a program.
    """
    bindings = _bindings(solution, at)
    target = target_for(device)
    for sizes in bindings:  # before anything is compiled
        _check_memory(solution, sizes, target)
    programs = tuple(_program(solution, strategy(sizes), sizes, target, ptx, progress) for sizes in bindings)
    report = solution.variants[0].report
    return GpuCompilation(
        solution.program.name,
        (target.gpu.name, target.gpu.kind),
        target.is_present,
        report.target,
        {"jax": jax.__version__, "jaxlib": jaxlib.__version__},
        target.why_no_estimates,
        programs,
    )


def _bindings(
    solution: Solution, at: Mapping[str, int] | Sequence[Mapping[str, int]] | None
) -> list[Mapping[str, int]]:
    """The bindings of all sizes for which to compile."""
    program = solution.program
    wanted = list(dict.fromkeys(v for p in program.params for d in dims_of(p.annotation) for v in sorted(d.variables)))
    if at is None:
        reports = [r for v in solution.variants if not v.report.assumed_at for r in v.report.at_each()]
        given = [{v: r.at[v] for v in wanted} for r in reports if set(wanted) <= set(r.at)] or [{}]
    else:
        given = [at] if isinstance(at, Mapping) else list(at)
    example = ", ".join(f"{v!r}: 128" for v in wanted)
    for sizes in given:
        good = isinstance(sizes, Mapping) and set(sizes) == set(wanted)
        if not good or any(not isinstance(n, int) or isinstance(n, bool) for n in sizes.values()):
            accepted = f"at={{{example}}}" if wanted else "no `at`"
            raise OptionError(
                f"compile(): {program.name}() has the sizes {', '.join(wanted) or 'in its signature only'}, and at="
                f"{short_repr(at)}; {accepted} is accepted"
            )
        program.scope.check(sizes, program.name)
        check_addressable(f"compile(): {program.name}()", program.params, sizes)
    return list({tuple(s.items()): s for s in given}.values())


def _variant(solution: Solution, sizes: Mapping[str, int]) -> Variant:
    return solution.variants[Family(solution.program, solution.variants).variant_at(sizes)]


def _check_memory(solution: Solution, sizes: Mapping[str, int], target: GpuTarget) -> None:
    """OptionError where arguments and results, and what is planned between kernels where calls run in kernels, do not
    fit into the device's memory. What one XLA program stores is XLA's choice."""
    variant = _variant(solution, sizes)
    planned = plan(variant.module, dict(sizes))
    needs = {
        f"{role}s": sum(
            int(v.bytes.evaluate(sizes)) for v in planned.program.values if v.role == role and v.bytes is not None
        )
        for role in ("argument", "result")
    }
    if variant.execution == KERNELS:
        needs["what lies between its kernels, as planned"] = planned.bytes_at(dict(sizes))
    _check_fits(solution.program.name, sizes, needs, target)


def _check_fits(name: str, sizes: Mapping[str, int], needs: Mapping[str, int], target: GpuTarget) -> None:
    memory, total = target.gpu.memory_bytes, sum(needs.values())
    if memory and total > memory:
        at = ", ".join(f"{v}={n}" for v, n in sizes.items())
        parts = ", ".join(f"{format_bytes(n)} for {what}" for what, n in needs.items())
        raise OptionError(
            f"compile(): {name}(){f' at {at}' if at else ''} needs {format_bytes(total)} ({parts}); {target.gpu.name} "
            f"has {format_bytes(memory)}\n  accepted: sizes at which it fits"
        )


def _program(
    solution: Solution,
    strategy: Strategy,
    sizes: Mapping[str, int],
    target: GpuTarget,
    ptx: bool,
    progress: Progress | None,
) -> GpuProgram:
    compiled: dict[int, GpuExecutable] = {}

    def compiles(lowered: Any) -> Any:
        return target.compile(lowered, {}, ptx)

    pallas = Pallas(compiles=compiles, device=target.gpu.multiprocessors) if solution.pallas else None
    absent = AbsentDevice(RoutinePlace("gpu", target.gpu.kind), target.lacking)
    described = nullcontext() if target.is_present else lowering_for(absent)
    with solution.program.width_context(), target.lowering(), described:
        lowering: CallParts = strategy.lowering(sizes, target.place, pallas)
        for part in lowering.parts():
            if progress is not None:
                progress(part.name)
            made = target.compile(part.lowered, part.options, ptx)
            found = compiled.get(id(made))
            compiled[id(made)] = (
                _executable(part, made, pallas) if found is None else replace(found, times=found.times + 1)
            )
    for e in compiled.values():
        needs = {"arguments": e.argument_bytes, "results": e.result_bytes, "temporaries": e.temporary_bytes}
        _check_fits(e.name, sizes, needs, target)
    report = next((r for v in solution.variants for r in v.report.at_each() if dict(r.at) == dict(sizes)), None)
    return GpuProgram(
        dict(sizes),
        dict(lowering.capacities),
        lowering.execution,
        lowering.as_written,
        tuple(compiled.values()),
        lowering.storage_bytes,
        None if report is None else report.after.call or report.after.seconds,
        None if report is None else report.after.launches,
        absent.missing,
    )


def _executable(part: CallPart, made: CompiledPart, pallas: Pallas | None) -> GpuExecutable:
    text, memory = made.executable.as_text() or "", made.executable.memory_analysis()
    taken, left = ({}, {}) if pallas is None else (pallas.taken, pallas.left)
    return GpuExecutable(
        part.name,
        times=1,
        launches=tuple(merged(launches(text))),
        argument_bytes=int(memory.argument_size_in_bytes),
        result_bytes=int(memory.output_size_in_bytes),
        temporary_bytes=int(memory.temp_size_in_bytes),
        code_bytes=len(made.executable.runtime_executable().serialize()),
        compile_seconds=made.seconds,
        unknown_loops=unknown_loops(text),
        pallas=taken.get(part.program, ""),
        left=left.get(part.program, ""),
        ptx=made.ptx,
        resources=made.resources,
    )
