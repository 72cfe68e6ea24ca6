"""Temporaries: the memory that kernels allocate themselves while they run. It is measured on executables or estimated
from equations, and added to the steps as workspaces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

from relax_eg.dtypes import itemsize
from relax_eg.ir import Expr, Module, Tensor
from relax_eg.memory.liveness import live_totals
from relax_eg.memory.program import MemoryProgram, Step, Value, equations_of
from relax_eg.ops.fused import ProgramUse
from relax_eg.shapes import Dim, ceildiv
from relax_eg.tir import Buffer, Read, Reduce, Stage, walk
from relax_eg.traversal import grouped

TemporarySource = Literal["measured", "estimated", "none"]


@runtime_checkable
class Measurable(Protocol):
    """Kernels that can be compiled: what `optimize(execution="kernels")` returns."""

    @property
    def module(self) -> Module: ...

    def temporary_bytes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """The bytes that each executable allocates itself at these sizes, by the kernel's name in the plan."""
        ...


@dataclass(frozen=True)
class Temporaries:
    """The bytes that kernels allocate in addition to the workspaces that their module states.

    - `source`: "measured" at the sizes `at`, and in proportion to the estimate at others; "estimated" from the
      equations; "given" by the caller; "none": not counted.
    - `at`: the sizes of the measurement.
    - `of_step`: the bytes over the entry's sizes, by the name of the step; a step without an entry has none.
    """

    source: Literal["measured", "estimated", "given", "none"] = "none"
    at: Mapping[str, int] = field(default_factory=dict[str, int])
    of_step: Mapping[str, Dim] = field(default_factory=dict[str, Dim])

    def of(self, program: MemoryProgram) -> MemoryProgram:
        """The program with these temporaries as workspaces of its kernels."""
        values, steps = list(program.values), list[Step]()
        for s in program.steps:
            size = self.of_step.get(s.name, Dim.of(0))
            if size != 0:
                space = Value(len(values), f"{s.name}.temporary", Tensor((size,), "uint8"), "workspace")
                values.append(space)
                s = replace(s, workspaces=(*s.workspaces, space.number))
            steps.append(s)
        return replace(program, values=tuple(values), steps=tuple(steps))


NOT_COUNTED = Temporaries()


def estimate_temporaries(program: MemoryProgram, at: Mapping[str, int]) -> Temporaries:
    """The bytes that XLA is likely to allocate inside each kernel, from its equations. `at`: the sizes at which the
    peak inside a kernel is determined. A kernel without equations has none: a library must state its workspaces."""
    known: dict[tuple[Expr, tuple[tuple[str, Dim], ...]], Dim] = {}
    found: dict[str, Dim] = {}
    for s in program.steps:
        key = s.kernel, tuple(s.sizes.items())
        if key not in known:
            placed = equations_of(s.kernel)
            known[key] = Dim.of(0) if placed is None else _internal_bytes(placed, s.sizes, at)
        found[s.name] = known[key]
    return Temporaries("estimated", {}, found)


def measure_temporaries(
    program: MemoryProgram, bytes_of: Mapping[str, int], at: Mapping[str, int], *, at_only: bool = False
) -> Temporaries:
    """The bytes that executables allocate, minus the workspaces that the module states.

    - `bytes_of`: the measured bytes at the sizes `at`, by kernel. At other sizes they are scaled with the estimate.
    - `at_only`: whether there are no other sizes.
    """
    likely = estimate_temporaries(program, at).of_step
    found: dict[str, Dim] = {}
    for s in program.steps:
        extra = bytes_of[s.name] - _declared_bytes(program, s, at)
        if extra <= 0:
            continue
        guess = likely[s.name]
        there = int(guess.evaluate(at))
        apart = at_only or guess.is_const or there == 0
        found[s.name] = Dim.of(extra) if apart else guess if there == extra else ceildiv(guess * extra, there)
    return Temporaries("measured", dict(at), found)


def _declared_bytes(program: MemoryProgram, s: Step, at: Mapping[str, int]) -> int:
    """The bytes of the workspaces that a kernel, according to the module, allocates itself."""
    spaces = [program.values[v].bytes for v in s.hidden]
    return sum(int(d.evaluate(at)) for d in spaces if d is not None)


def _internal_bytes(placed: ProgramUse, sizes: Mapping[str, Dim], at: Mapping[str, int]) -> Dim:
    """The most bytes of intermediate buffers alive at once inside a kernel. XLA stores a stage if it reduces or if
    several stages read it, and computes all other stages where they are read. It writes a stage over a buffer that is
    read for the last time."""
    program = placed.program
    stages = {stage.output.name: n for n, stage in enumerate(program.stages)}
    reads = [{t.buffer for t in walk(stage.value) if isinstance(t, Read)} for stage in program.stages]
    readers = grouped((name, n) for n, names in enumerate(reads) for name in stages if name in names)
    apart = {*program.outputs, *program.workspaces, *program.lifted}
    stored = {
        name for name, n in stages.items()
        if name not in apart and (_reduces(program.stages[n]) or len(readers.get(name, ())) > 1)
    }  # fmt: skip
    spans: list[tuple[int, int, Dim]] = []
    gone_on: set[str] = set()  # written over another buffer, whose bytes they continue to use
    for name, n in stages.items():
        if name not in stored or name in gone_on:
            continue
        size = _bytes(program.buffers[name], placed, sizes)
        end = max(readers.get(name, [n]))
        last, after = name, program.stages[end].output
        while after.name != last and after.name in stored and _bytes(after, placed, sizes) == size:
            gone_on.add(after.name)
            end = max(readers.get(after.name, [end]))
            last, after = after.name, program.stages[end].output
        if after.name in program.outputs and _bytes(after, placed, sizes) == size:
            continue  # it lies in the memory of the result
        spans.append((n, end, size))
    none = Dim.of(0)
    return max((none, *live_totals(spans, len(program.stages), none)), key=lambda d: int(d.evaluate(at)))


def _reduces(stage: Stage) -> bool:
    return any(isinstance(t, Reduce) for t in walk(stage.value))


def _bytes(buffer: Buffer, placed: ProgramUse, sizes: Mapping[str, Dim]) -> Dim:
    shape = (d.substitute(placed.sizes) for d in buffer.shape)
    return math.prod(shape, start=Dim.of(itemsize(buffer.dtype))).substitute(sizes)
