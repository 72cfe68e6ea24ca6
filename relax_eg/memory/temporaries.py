"""The memory that kernels allocate themselves while they run, as workspaces of their steps: measured on executables, or
estimated from equations."""

from __future__ import annotations

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

Asked = Literal["measured", "estimated", "none"]


@runtime_checkable
class Measurable(Protocol):
    """Kernels that can be compiled: what `optimize(execution="kernels")` returns."""

    @property
    def module(self) -> Module: ...

    def temporary_bytes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """What each executable allocates itself at these sizes, by the kernel's name in the plan."""
        ...


@dataclass(frozen=True)
class Temporaries:
    """What kernels allocate beside what their module states, by the name of the step, over the entry's sizes.

    - `source`: "measured" at the sizes `at`, and in proportion to the estimate at others; "estimated" from the
      equations; "given" by the caller; "none": not counted.
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


def estimated(program: MemoryProgram, at: Mapping[str, int]) -> Temporaries:
    """What XLA is likely to allocate inside each kernel, from its equations; `at`: sizes used to decide when most is
    needed. Kernels without equations have none: a library must state its needs itself."""
    known: dict[tuple[Expr, tuple[tuple[str, Dim], ...]], Dim] = {}
    found: dict[str, Dim] = {}
    for s in program.steps:
        key = s.kernel, tuple(s.sizes.items())
        if key not in known:
            placed = equations_of(s.kernel)
            known[key] = Dim.of(0) if placed is None else _kept_inside(placed, s.sizes, at)
        found[s.name] = known[key]
    return Temporaries("estimated", {}, found)


def measure_temporaries(
    program: MemoryProgram, bytes_of: Mapping[str, int], at: Mapping[str, int], *, only: bool = False
) -> Temporaries:
    """What executables were found to allocate at the sizes `at`, by kernel, minus the workspaces that the module
    states. At other sizes it is scaled with the estimate; with `only` there are no other sizes."""
    likely = estimated(program, at).of_step
    found: dict[str, Dim] = {}
    for s in program.steps:
        extra = bytes_of[s.name] - _stated(program, s, at)
        if extra <= 0:
            continue
        guess = likely[s.name]
        there = int(guess.evaluate(at))
        apart = only or guess.is_const or there == 0
        found[s.name] = Dim.of(extra) if apart else guess if there == extra else ceildiv(guess * extra, there)
    return Temporaries("measured", dict(at), found)


def _stated(program: MemoryProgram, s: Step, at: Mapping[str, int]) -> int:
    """Bytes of the workspaces that a kernel allocates according to its module."""
    spaces = [program.values[v].bytes for v in s.hidden]
    return sum(int(d.evaluate(at)) for d in spaces if d is not None)


def _kept_inside(placed: ProgramUse, sizes: Mapping[str, Dim], at: Mapping[str, int]) -> Dim:
    """The most bytes alive between the loops of a kernel. XLA computes elements where they are read if they are read
    once, and writes a result over a value that is read for the last time."""
    program = placed.program
    stages = {made.output.name: n for n, made in enumerate(program.stages)}
    readers: dict[str, list[int]] = {}
    for n, made in enumerate(program.stages):
        for name in dict.fromkeys(t.buffer for t in walk(made.value) if isinstance(t, Read) if t.buffer in stages):
            readers.setdefault(name, []).append(n)
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


def _reduces(made: Stage) -> bool:
    return any(isinstance(t, Reduce) for t in walk(made.value))


def _bytes(buffer: Buffer, placed: ProgramUse, sizes: Mapping[str, Dim]) -> Dim:
    count = Dim.of(itemsize(buffer.dtype))
    for d in buffer.shape:
        count = count * d.substitute(placed.sizes)
    return count.substitute(sizes)
