"""A tensor program at many points at once: every buffer gets one more axis, the first, along which the points lie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from relax_eg.shapes import Dim
from relax_eg.tir.expr import Read, Scalar, loop
from relax_eg.tir.program import Buffer, Stage, TensorProgram
from relax_eg.tir.substitute import rebuilt, with_parts

# The size variable of the new axis: how many points there are. No size that anyone writes is named so.
POINTS = "points\u00b7of"
_AT = loop("point\u00b7of")


@lru_cache(1 << 12)
def at_points(program: TensorProgram) -> TensorProgram:
    """`program` with one more axis, of extent `POINTS`, in front of every buffer's; element by element along it, it
    computes what `program` does."""

    def buffer(b: Buffer) -> Buffer:
        return Buffer(b.name, (Dim.var(POINTS), *b.shape), b.dtype)

    def read(e: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
        if not isinstance(e, Read):
            return with_parts(e, done)
        return Read(e.buffer, (_AT, *(i if isinstance(i, Dim) else done[i] for i in e.indices)), e.dtype)

    stages = tuple(Stage(buffer(s.output), (_AT, *s.indices), rebuilt(s.value, read)) for s in program.stages)
    return TensorProgram(program.name, tuple(map(buffer, program.inputs)), stages, program.outputs)
