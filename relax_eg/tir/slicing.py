"""Slicing: which input axes are sliced when an output is computed in pieces."""

from __future__ import annotations

from relax_eg.shapes import Dim
from relax_eg.tir.expr import Read, loop_of, walk
from relax_eg.tir.program import Stage, TensorProgram, dims_of

Axes = tuple[int | None, ...]


def sliced_input_axes(program: TensorProgram, axis: int) -> Axes | None:
    """Returns, for each input, the axis to slice when the output is sliced along `axis`; None for an input read whole.

    Returns None altogether if slicing is impossible: an element depends on its position, or on other positions of the
    axis, or the axis of an input has another extent. `program` must have one output.
    """
    (output,) = program.outputs
    axes: dict[str, int | None] = {output: axis}
    for made in reversed(program.stages):
        if made.output.name not in axes:
            continue
        if made.scans:
            return None
        asked = _axes_read(program, made, axes[made.output.name])
        if asked is None:
            return None
        for name, place in asked.items():
            if axes.setdefault(name, place) != place:
                return None
    return tuple(axes.get(b.name) for b in program.inputs)


def _axes_read(program: TensorProgram, made: Stage, axis: int | None) -> dict[str, int | None] | None:
    """Returns, for each buffer that a stage reads, the axis read at the written position, or None if it is read whole.

    Returns None altogether if a read is of neither kind.
    """
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
