"""Which axes of inputs are sliced where an output is: what equations tell of computing something in pieces."""

from __future__ import annotations

from relax_eg.shapes import Dim
from relax_eg.tir.expr import Read, loop_of, walk
from relax_eg.tir.program import Stage, TensorProgram, dims_of

Axes = tuple[int | None, ...]


def sliced_with(program: TensorProgram, axis: int) -> Axes | None:
    """What a slice of the output along `axis` is computed from: for each input the axis that is sliced likewise, None
    where all of it is read. None altogether where that cannot be: an element then depends on its place, on what is at
    other places of the axis, or the axis of an input has another extent.

    A program of one output."""
    (output,) = program.outputs
    axes: dict[str, int | None] = {output: axis}
    for made in reversed(program.stages):
        if made.output.name not in axes:
            continue
        if made.scans:
            return None
        asked = _asked(program, made, axes[made.output.name])
        if asked is None:
            return None
        for name, place in asked.items():
            if axes.setdefault(name, place) != place:
                return None
    return tuple(axes.get(b.name) for b in program.inputs)


def _asked(program: TensorProgram, made: Stage, axis: int | None) -> dict[str, int | None] | None:
    """For each buffer that a stage reads the axis along which it is read at the place that is written, None for all of
    it; None altogether where a read is of neither kind."""
    index = None if axis is None else made.indices[axis]
    name = "" if index is None else loop_of(index)
    if name is None:
        return None
    found: dict[str, int | None] = {}
    for term in walk(made.value):
        if not isinstance(term, Read):
            if any(name in d.variables for d in dims_of(term)):
                return None
            continue
        place: int | None = None
        for p, at in enumerate(term.indices):
            if axis is None or at != index:
                if name in (at.variables if isinstance(at, Dim) else at.free):
                    return None
            elif place is not None or program.buffers[term.buffer].shape[p] != made.output.shape[axis]:
                return None
            else:
                place = p
        if found.setdefault(term.buffer, place) != place:
            return None
    return found
