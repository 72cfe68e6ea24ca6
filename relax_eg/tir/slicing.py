"""Dimensions of a tensor program: the axes of its inputs that have the same places as one axis of the output, or as one
axis that is reduced. Along a dimension a program can be computed in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from relax_eg.limits import MANY_KEPT
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Read, Reduce, ReduceKind, Scalar, loop_of, walk
from relax_eg.tir.program import Stage, TensorProgram, dims_of

Axes = tuple[int | None, ...]

# Reductions whose result follows from the results for the pieces.
COMBINED: tuple[ReduceKind, ...] = ("sum", "prod", "max", "min")


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a program with one output.

    - `inputs`: for each input, the axis that has the same places; None for an input that is read whole.
    - `output`: the output's axis; None if the dimension is reduced.
    - `kind`: how the dimension is reduced; None if it is an axis of the output.
    - `loop`: the loop variable of the reduction; empty if there is none.
    - `is_product`: whether what is reduced is one operand, or what is summed is a product of operands, all of them read
      along the dimension. Where the operands are the reduction's identity, nothing is added then.
    """

    inputs: Axes
    output: int | None = None
    kind: ReduceKind | None = None
    loop: str = ""
    is_product: bool = False


@lru_cache(MANY_KEPT)
def dimensions(program: TensorProgram) -> tuple[Dimension, ...]:
    """The dimensions along which a program with one output can be computed in pieces."""
    (output,) = program.outputs
    rank = len(program.buffers[output].shape)
    along = ((axis, sliced_input_axes(program, axis)) for axis in range(rank))
    kept = [Dimension(inputs, axis) for axis, inputs in along if inputs is not None]
    return (*kept, *_reduced(program, output))


def sliced_input_axes(program: TensorProgram, axis: int) -> Axes | None:
    """Returns, for each input, the axis to slice when the output is sliced along `axis`; None for an input read whole.

    Returns None altogether if slicing is impossible: an element depends on its position, or on other positions of the
    axis, or the axis of an input has another extent. `program` must have one output.
    """
    (output,) = program.outputs
    return _axes_of_inputs(program, {output: axis}, program.stages)


def _reduced(program: TensorProgram, output: str) -> list[Dimension]:
    """The dimensions that the last stage of a program reduces."""
    found: list[Dimension] = []
    last = program.stages[-1]
    if (
        last.scans
        or last.output.name != output
        or not isinstance(last.value, Reduce)
        or last.value.kind not in COMBINED
    ):
        return found
    body = last.value.body
    factors = _factors(body)
    for variable, extent in last.value.over:
        asked = _axes_read(program, last.value.body, variable, extent)
        if asked is None or all(place is None for place in asked.values()):
            continue
        inputs = _axes_of_inputs(program, dict(asked), program.stages[:-1])
        if inputs is not None:
            name = loop_of(variable) or ""
            cut = bool(factors) and all(asked[r.buffer] is not None for r in factors)
            cut = cut and (last.value.kind == "sum" or len(factors) == 1)
            found.append(Dimension(inputs, None, last.value.kind, name, cut))
    return found


def _factors(body: Scalar) -> list[Read]:
    """The operands of a product; empty if it is no product of operands."""
    terms = [x for x in walk(body) if not isinstance(x, Read)]
    if any(getattr(x, "fn", "") != "multiply" for x in terms):
        return []
    return [x for x in walk(body) if isinstance(x, Read)]


def _axes_of_inputs(program: TensorProgram, axes: dict[str, int | None], stages: Sequence[Stage]) -> Axes | None:
    """Returns the axes of the inputs that follow from `axes` of buffers, through `stages`; None if there are none."""
    for made in reversed(stages):
        if made.output.name not in axes:
            continue
        if made.scans:
            return None
        axis = axes[made.output.name]
        index = None if axis is None else made.indices[axis]
        asked = _axes_read(program, made.value, index, None if axis is None else made.output.shape[axis])
        if asked is None:
            return None
        for name, place in asked.items():
            if axes.setdefault(name, place) != place:
                return None
    return tuple(axes.get(b.name) for b in program.inputs)


def _axes_read(
    program: TensorProgram, value: Scalar, index: Dim | None, extent: Dim | None
) -> dict[str, int | None] | None:
    """Returns, for each buffer that a value reads, the axis read at `index`, or None if it is read whole.

    Returns None altogether if a read is of neither kind, or if an axis read at `index` has another extent.
    """
    name = "" if index is None else loop_of(index)
    if name is None:
        return None
    found: dict[str, int | None] = {}
    for term in walk(value):
        if not isinstance(term, Read):
            if any(name in d.variables for d in dims_of(term)):
                return None
            continue
        place: int | None = None
        for p, at in enumerate(term.indices):
            if index is None or at != index:
                if name in (at.variables if isinstance(at, Dim) else at.free):
                    return None
            elif place is not None or program.buffers[term.buffer].shape[p] != extent:
                return None
            else:
                place = p
        if found.setdefault(term.buffer, place) != place:
            return None
    return found
