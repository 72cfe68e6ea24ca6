"""Compiles an optimized function for devices, and tells what XLA made of it for a GPU, or returns the executables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jaxlib

from relax_eg.argument_checks import short_repr
from relax_eg.backend.calls.checks import check_addressable
from relax_eg.backend.calls.runtime import CallPart, Strategy
from relax_eg.backend.family import KERNELS, Family, Solution
from relax_eg.backend.files.stored import (
    Stored,
    StoredArray,
    StoredExecutable,
    StoredProgram,
    device_key,
    settings_text,
)
from relax_eg.backend.files.trees import tree_as_data
from relax_eg.backend.gpu.devices import GPUS
from relax_eg.backend.gpu.hlo import launches, merged, unknown_loops
from relax_eg.backend.gpu.record import GpuCompilation, GpuExecutable, GpuProgram, Predicted, by_line
from relax_eg.backend.gpu.target import CompiledPart, GpuTarget, cpu_target, target_for
from relax_eg.byte_units import format_bytes
from relax_eg.errors import OptionError
from relax_eg.figures import binding_text
from relax_eg.ir.annotations import dims_of
from relax_eg.memory import plan

Progress = Callable[[str], None]
R = TypeVar("R")
_CPU = "cpu"  # the name of the CPU at hand


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
    bindings = _bindings(solution, at, "compile()")
    target = target_for(device)
    for sizes in bindings:  # before anything is compiled
        _check_memory(solution, sizes, target, "compile()")
    programs = tuple(
        _program(solution, _Compiling(solution, strategy(sizes), sizes, target, "compile()", ptx, progress))
        for sizes in bindings
    )
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


def store_for(
    solution: Solution,
    strategy: Callable[[Mapping[str, int]], Strategy],
    devices: Sequence[str | Path],
    at: Mapping[str, int] | Sequence[Mapping[str, int]] | None,
) -> Stored:
    """The executables that calls of a function run on each of these devices, at each binding of its sizes.

    - `devices`: names of GPUs, paths of target-config files, or "cpu" for the CPU at hand.

    All else is that of `compile_for`, and so are the errors.
    """
    asked = "save()"
    bindings = _bindings(solution, at, asked)
    targets = targets_for(devices)
    for target in targets:  # before anything is compiled
        for sizes in bindings:
            _check_memory(solution, sizes, target, asked)
    codes: dict[bytes, int] = {}
    programs = tuple(
        _stored(_Compiling(solution, strategy(sizes), sizes, target, asked), codes)
        for target in targets
        for sizes in bindings
    )
    return Stored(programs, tuple(codes))


def targets_for(devices: Sequence[str | Path]) -> list[GpuTarget]:
    """What to compile for, each once, GPUs first: `devices` as `store_for` takes them. OptionError as `target_for`."""
    names = dict.fromkeys(d.lower() if isinstance(d, str) and d.lower() in (*GPUS, _CPU) else d for d in devices)
    found = [target_for(name, (_CPU,)) for name in names if name != _CPU]
    return [*found, cpu_target()] if _CPU in names else found


def _bindings(
    solution: Solution, at: Mapping[str, int] | Sequence[Mapping[str, int]] | None, asked: str
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
                f"{asked}: {program.name}() has the sizes {', '.join(wanted) or 'in its signature only'}, and at="
                f"{short_repr(at)}; {accepted} is accepted"
            )
        program.scope.check(sizes, program.name)
        check_addressable(f"{asked}: {program.name}()", program.params, sizes)
    return list({tuple(s.items()): s for s in given}.values())


def _check_memory(solution: Solution, sizes: Mapping[str, int], target: GpuTarget, asked: str) -> None:
    """OptionError where arguments and results, and what is planned between kernels where calls run in kernels, do not
    fit into the device's memory. What one XLA program stores is XLA's choice."""
    variant = solution.variants[Family(solution.program, solution.variants).variant_at(sizes)]
    planned = plan(variant.module, dict(sizes))
    needs = {
        f"{role}s": sum(
            int(v.bytes.evaluate(sizes)) for v in planned.program.values if v.role == role and v.bytes is not None
        )
        for role in ("argument", "result")
    }
    if variant.execution == KERNELS:
        needs["what lies between its kernels, as planned"] = planned.bytes_at(dict(sizes))
    _check_fits(f"{asked}: {solution.program.name}", sizes, needs, target)


def _check_fits(what: str, sizes: Mapping[str, int], needs: Mapping[str, int], target: GpuTarget) -> None:
    memory, total = target.gpu.memory_bytes, sum(needs.values())
    if memory and total > memory:
        at = binding_text(sizes)
        parts = ", ".join(f"{format_bytes(n)} for {what}" for what, n in needs.items())
        raise OptionError(
            f"{what}(){f' at {at}' if at else ''} needs {format_bytes(total)} ({parts}); {target.gpu.name} "
            f"has {format_bytes(memory)}\n  accepted: sizes at which it fits"
        )


class _Compiling:
    """What calls of a function at some sizes run on a device: yields each part of a call with what XLA made of it.

    A part is compiled when it is asked for, and equal ones once.

    - `lowering`: what calls run.
    - `pallas`: chooses the kernels that are lowered through Pallas; None: none.
    - `asked`: the beginning of errors.
    """

    def __init__(
        self,
        solution: Solution,
        strategy: Strategy,
        sizes: Mapping[str, int],
        target: GpuTarget,
        asked: str,
        ptx: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.program, self.strategy, self.sizes, self.target = solution.program, strategy, sizes, target
        self.asked, self._ptx, self._progress = asked, ptx, progress
        self.pallas = target.pallas(self._compiled) if solution.pallas and not target.is_cpu else None
        self._absent = target.absent()
        try:
            self.lowering = self._within(lambda: strategy.lowering(sizes, target.place, self.pallas))
        except OptionError as e:
            raise OptionError(f"{asked}: {e}") from None

    @property
    def missing(self) -> Mapping[str, str]:
        """By name, the routines of other libraries in whose place their patterns were compiled, with the reason."""
        return self._absent.missing

    def __iter__(self) -> Iterator[tuple[CallPart, CompiledPart]]:
        parts = self._within(self.lowering.parts)
        while (part := self._within(lambda: next(parts, None))) is not None:
            if self._progress is not None:
                self._progress(part.name)
            yield part, self._within(lambda p=part: self.target.compile(p.lowered, p.options, self._ptx))

    def _compiled(self, lowered: Any) -> CompiledPart:
        return self.target.compile(lowered, {}, self._ptx)

    def _within(self, step: Callable[[], R]) -> R:
        """What `step` returns where programs are lowered for the device."""
        with self.program.width_context(), self.target.lowering_there(self._absent):
            return step()

    def check_memory(self, name: str, compiled: Any) -> tuple[int, int, int]:
        """Bytes of arguments, results and temporaries of an executable. OptionError where the device has fewer."""
        memory = compiled.memory_analysis()
        found = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
        arguments, results, temporaries = map(int, found)
        needs = {"arguments": arguments, "results": results, "temporaries": temporaries}
        _check_fits(f"{self.asked}: {name}", self.sizes, needs, self.target)
        return arguments, results, temporaries


def _program(solution: Solution, compiling: _Compiling) -> GpuProgram:
    compiled: dict[int, GpuExecutable] = {}
    for part, made in compiling:
        found = compiled.get(id(made))
        compiled[id(made)] = (
            _executable(part, made, compiling) if found is None else replace(found, times=found.times + 1)
        )
    sizes, lowering = compiling.sizes, compiling.lowering
    report = next((r for v in solution.variants for r in v.report.at_each() if dict(r.at) == dict(sizes)), None)
    predicted, lines = None, dict[str, str]()
    if report is not None and not lowering.capacities:  # a report's prices are those of exact sizes
        cost = report.after
        lines = {part.what: part.lines[0] for part in reversed(cost.parts) if part.lines}
        stored = None if cost.memory is None else cost.memory.temporary
        predicted = Predicted(cost.call or cost.seconds, cost.launches, cost.bytes, stored, by_line(
            (part.lines[0] if part.lines else "", part.launches, part.bytes) for part in cost.parts if not part.ahead
        ))  # fmt: skip
    return GpuProgram(
        dict(sizes),
        dict(lowering.capacities),
        lowering.execution,
        lowering.as_written,
        tuple(replace(e, line=lines.get(e.name, "")) for e in compiled.values()),
        lowering.storage_bytes,
        predicted,
        compiling.missing,
    )


def _executable(part: CallPart, made: CompiledPart, compiling: _Compiling) -> GpuExecutable:
    text, pallas = made.executable.as_text() or "", compiling.pallas
    arguments, results, temporaries = compiling.check_memory(part.name, made.executable)
    taken, left = ({}, {}) if pallas is None else (pallas.taken, pallas.left)
    return GpuExecutable(
        part.name,
        times=1,
        launches=tuple(merged(launches(text))),
        argument_bytes=arguments,
        result_bytes=results,
        temporary_bytes=temporaries,
        code_bytes=len(made.executable.runtime_executable().serialize()),
        compile_seconds=made.seconds,
        unknown_loops=unknown_loops(text),
        pallas=taken.get(part.program, ""),
        left=left.get(part.program, "") or made.default_tiles,
        ptx=made.ptx,
        resources=made.resources,
        graphs=made.graphs,
        options=dict(made.options),
    )


def _stored(compiling: _Compiling, codes: dict[bytes, int]) -> StoredProgram:
    """The executables of a call as a file keeps them; their machine code is added to `codes`, equal code once."""
    lowering, target = compiling.lowering, compiling.target
    with compiling.program.width_context():
        settings = settings_text()
    found: list[StoredExecutable] = []
    for part, made in compiling:
        compiling.check_memory(part.name, made.executable)
        inner, lowered = made.executable._executable, part.lowered  # JAX tells weak types of results nowhere else
        if len(inner.in_avals) != lowered.in_tree.num_leaves:
            raise OptionError(f"{compiling.asked}: `{part.name}` takes constants that are no arguments of a call")
        kinds: Counter[str] = Counter()
        for launch in () if target.is_cpu else launches(made.executable.as_text() or ""):
            kinds[launch.kind] += launch.times
        code = made.executable.runtime_executable().serialize()
        found.append(
            StoredExecutable(
                part.name,
                codes.setdefault(code, len(codes)),
                tuple(map(StoredArray.of, inner.in_avals)),
                tuple(map(StoredArray.of, inner.out_avals)),
                tree_as_data(lowered.in_tree, f"the arguments of `{part.name}`"),
                tree_as_data(lowered.out_tree, f"the results of `{part.name}`"),
                made.seconds,
                dict(kinds),
            )
        )
    return StoredProgram(
        device_key(target.device, _CPU if target.is_cpu else target.gpu.name),
        settings,
        dict(compiling.sizes),
        dict(lowering.capacities),
        lowering.execution,
        lowering.variant,
        tuple(sorted(compiling.strategy.bound)),
        tuple(found),
    )
