"""How the stages of a tensor program read earlier values. This decides whether these values may stay inside a kernel.

The kind of a stage, and for every read the axis of the output that each axis of the buffer follows, are derived from
the index equations. `tir.classify` reads the same equations for a whole program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from relax_eg.shapes import Dim
from relax_eg.tir import Read, Reduce, TensorProgram, loop_names, loop_of, walk
from relax_eg.tir.analyze import is_multiply_add
from relax_eg.tir.program import Buffer, Stage

FREE = -1  # given: an axis that follows no axis of the output: it is reduced or computed
UNIT = -2  # given: an axis of extent 1


class StageKind(IntEnum):
    """The kind of a stage: a function of single elements, a reduction such as a sum or maximum, or a contraction, which
    is a sum of products (matmul)."""

    POINTWISE = 0
    REDUCTION = 1
    CONTRACTION = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """A read of `buffer` by a stage.

    - `axes`: for each axis of the buffer, the axis of the output that it follows, or FREE or UNIT.
    - `loops`: extents of the loops that the indices depend on.
    - `identity`: whether the element read has the indices of the element written.
    - `injective`: whether no element is read at two points of those loops.
    """

    buffer: str
    axes: tuple[int, ...]
    loops: tuple[Dim, ...]
    identity: bool
    injective: bool


@dataclass(frozen=True, slots=True)
class StageAccess:
    """The accesses of a stage.

    - `kind`: the kind of the stage.
    - `output`: the buffer that it writes.
    - `readings`: its reads, each once.
    """

    kind: StageKind
    output: Buffer
    readings: tuple[Reading, ...]


def accesses(program: TensorProgram) -> tuple[StageAccess, ...] | None:
    """The accesses of the stages of `program`; None if the program has a scan or a workspace in memory."""
    if program.workspaces or any(made.scans for made in program.stages):
        return None
    return tuple(_access(made, program.buffers) for made in program.stages)


def _access(made: Stage, buffers: Mapping[str, Buffer]) -> StageAccess:
    extents = made.loops
    place = {name: axis for axis, name in enumerate(extents)}
    kind = StageKind.POINTWISE
    readings: dict[Reading, None] = {}
    terms = list(walk(made.value))
    for term in terms:
        if isinstance(term, Reduce):
            extents |= {str(loop_of(var)): extent for var, extent in term.over}
            if any(extent != 1 for _, extent in term.over):
                kind = max(kind, StageKind.CONTRACTION if is_multiply_add(made, term) else StageKind.REDUCTION)
    for term in terms:
        if isinstance(term, Read):
            readings[_reading(term, buffers[term.buffer], extents, place)] = None
    return StageAccess(kind, made.output, tuple(readings))


def _reading(read: Read, buffer: Buffer, extents: Mapping[str, Dim], place: Mapping[str, int]) -> Reading:
    axes: list[int] = []
    names = frozenset[str]()
    for index, size in zip(read.indices, buffer.shape, strict=True):
        names |= loop_names(index) if isinstance(index, Dim) else index.free
        name = loop_of(index) if isinstance(index, Dim) else None
        axes.append(UNIT if size == 1 else place.get(name, FREE) if name is not None else FREE)
    if len({a for a in axes if a >= 0}) < sum(a >= 0 for a in axes):  # a diagonal: two axes follow one
        axes = [FREE if a >= 0 else a for a in axes]
    whole = [extents[n] for n in place]
    identity = len(axes) == len(place) and all(
        a in (i, UNIT) and whole[i] == size for i, (a, size) in enumerate(zip(axes, buffer.shape, strict=True))
    )
    each = [loop_names(i) if isinstance(i, Dim) else None for i in read.indices]
    alone = [e for e in each if e is not None and len(e) <= 1]
    injective = len(alone) == len(each) and sum(map(len, alone)) == len(names)
    return Reading(buffer.name, tuple(axes), tuple(extents[n] for n in sorted(names)), identity, injective)
