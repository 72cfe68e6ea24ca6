"""In-place operands: the operands that every output of a kernel reads element for element."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from relax_eg.dtypes import itemsize
from relax_eg.ir import Expr, Tensor, Tuple
from relax_eg.limits import KEPT
from relax_eg.memory.program import equations_of, viewed_value
from relax_eg.shapes import Dim
from relax_eg.tir import Read, Stage, TensorProgram, walk


def overwritable(e: Expr) -> Iterator[tuple[int, Expr]]:
    """Pairs (output, operand) of the kernel `e`: the output may be written over that operand, of the same size in
    bytes, if nothing else needs the operand. An operand that is a view is replaced by what it is a view of."""
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
    """Pairs (output, input) such that the input has the output's shape, and each element of *any* output depends on
    that input, if at all, only through the element at the same place. Then everything that needs an element is computed
    together with the output's element, whatever the order of elements. Inputs that no output reads are in no pair."""
    inputs = [b.name for b in program.inputs]
    # For each buffer and input: no entry if the input plays no part, else whether it is read only at the same place.
    same: dict[str, dict[str, bool]] = {}
    for made in program.stages:
        own: dict[str, bool] = {}
        for read in (t for t in walk(made.value) if isinstance(t, Read)):
            if read.buffer == made.output.name:  # a scan, handled below
                continue
            at_place = _at_same_place(made, read, program.buffers[read.buffer].shape)
            for name, was in {read.buffer: True}.items() if read.buffer in inputs else same[read.buffer].items():
                own[name] = own.get(name, True) and was and at_place
        if made.scans:  # an element depends on those before it
            own = dict.fromkeys(own, False)
        same[made.output.name] = own
    found: set[tuple[str, str]] = set()
    for name in inputs:
        shapes = program.buffers[name].shape
        ways = [same[o].get(name) for o in program.outputs]
        if False in ways or True not in ways:
            continue
        found |= {(o, name) for o in program.outputs if program.buffers[o].shape == shapes}
    return frozenset(found)


def _at_same_place(made: Stage, read: Read, shape: tuple[Dim, ...]) -> bool:
    """Whether the read is of the element at the place that is written, in a buffer of the same shape."""
    if shape != made.output.shape or len(read.indices) != len(made.indices):
        return False
    return all(
        isinstance(i, Dim) and (i == w or (extent == 1 and i == 0))
        for i, w, extent in zip(read.indices, made.indices, shape, strict=True)
    )
