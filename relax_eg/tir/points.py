"""Runs a tensor program at many points at once: every buffer gets a new first axis, which indexes the points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from relax_eg.limits import KEPT
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Read, Scalar, loop
from relax_eg.tir.program import Buffer, Stage, TensorProgram
from relax_eg.tir.substitute import rebuild, with_parts

# Size variable of the new axis: the number of points. The name is not used for other sizes.
POINTS = "points\u00b7of"
_AT = loop("point\u00b7of")


@lru_cache(KEPT)
def batch_over_points(program: TensorProgram) -> TensorProgram:
    """Returns `program` with a new first axis of extent `POINTS` on every buffer. It computes `program` at each index
    of that axis."""

    def buffer(b: Buffer) -> Buffer:
        return Buffer(b.name, (Dim.var(POINTS), *b.shape), b.dtype)

    def read(e: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
        if not isinstance(e, Read):
            return with_parts(e, done)
        return Read(e.buffer, (_AT, *(i if isinstance(i, Dim) else done[i] for i in e.indices)), e.dtype)

    stages = tuple(Stage(buffer(s.output), (_AT, *s.indices), rebuild(s.value, read)) for s in program.stages)
    return TensorProgram(program.name, tuple(map(buffer, program.inputs)), stages, program.outputs)
