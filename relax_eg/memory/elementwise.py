"""In-place operands of a kernel: the operands over which an output may be written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from relax_eg.dtypes import itemsize
from relax_eg.ir import Expr, Tensor, Tuple
from relax_eg.limits import KEPT
from relax_eg.memory.program import equations_of
from relax_eg.ops.fused import viewed_value
from relax_eg.shapes import Dim
from relax_eg.tir import Read, Stage, TensorProgram, walk


def overwritable(e: Expr) -> Iterator[tuple[int, Expr]]:
    """Pairs (number of the output, operand) of the kernel `e`. If nothing else needs the operand and both have equal
    bytes, the output may be written over it. The value stands for the operand if the operand is a view of it."""
    placed = equations_of(e)
    if placed is None:
        return
    program = placed.program
    buffers = program.parameters[: len(program.inputs)]
    fields = e.annotation.fields if isinstance(e.annotation, Tuple) else (e.annotation,)
    read_as: dict[Expr, list[str]] = {}
    for b, a in zip(buffers, e.args, strict=False):
        read_as.setdefault(viewed_value(a), []).append(b.name)
    for i, annotation in enumerate(fields):
        if not isinstance(annotation, Tensor) or annotation.shape is None or annotation.dtype is None:
            continue
        for operand, names in read_as.items():
            a = operand.annotation
            if not isinstance(a, Tensor) or a.dtype is None or itemsize(a.dtype) != itemsize(annotation.dtype):
                continue
            if all((program.outputs[i], name) in elementwise_pairs(program) for name in names):
                yield i, operand


@lru_cache(KEPT)
def elementwise_pairs(program: TensorProgram) -> frozenset[tuple[str, str]]:
    """Pairs (output, input) of buffer names such that the input has the output's shape, and each element of *any*
    output reads that input at most at the element's own index. Every reader of an input element then runs together with
    the output element that replaces it, in any order of the elements. Inputs that no output reads are in no pair."""
    inputs = [b.name for b in program.inputs]
    # For each buffer, by the inputs that it depends on: whether it reads the input at the same index only.
    same: dict[str, dict[str, bool]] = {}
    for stage in program.stages:
        own: dict[str, bool] = {}
        for read in (t for t in walk(stage.value) if isinstance(t, Read)):
            if read.buffer == stage.output.name:  # a scan, handled below
                continue
            at_place = _at_same_place(stage, read, program.buffers[read.buffer].shape)
            for name, was in {read.buffer: True}.items() if read.buffer in inputs else same[read.buffer].items():
                own[name] = own.get(name, True) and was and at_place
        if stage.scans:  # an element depends on those before it
            own = dict.fromkeys(own, False)
        same[stage.output.name] = own
    found: set[tuple[str, str]] = set()
    for name in inputs:
        shapes = program.buffers[name].shape
        ways = [same[o].get(name) for o in program.outputs]
        if False in ways or True not in ways:
            continue
        found |= {(o, name) for o in program.outputs if program.buffers[o].shape == shapes}
    return frozenset(found)


def _at_same_place(stage: Stage, read: Read, shape: tuple[Dim, ...]) -> bool:
    """Whether the read has the index of the element that the stage writes, in a buffer of the same shape."""
    if shape != stage.output.shape or len(read.indices) != len(stage.indices):
        return False
    return all(
        isinstance(i, Dim) and (i == w or (extent == 1 and i == 0))
        for i, w, extent in zip(read.indices, stage.indices, shape, strict=True)
    )
