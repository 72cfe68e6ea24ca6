"""Dimensions of a tensor program: the axes of its inputs that have the same places as one axis of the output, or as one
axis that is reduced. Along a dimension a program can be computed in pieces, and along an axis of which each place reads
a window of an axis of an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from relax_eg.limits import MANY_KEPT
from relax_eg.shapes import Dim
from relax_eg.tir.expr import (
    Apply,
    Cast,
    Const,
    Index,
    Number,
    Read,
    Reduce,
    ReduceKind,
    Scalar,
    Select,
    joined_by,
    loop_of,
    walk,
)
from relax_eg.tir.notation import less, less_equal
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
    read = factors(body)
    for variable, extent in last.value.over:
        asked = _axes_read(program, last.value.body, variable, extent)
        if asked is None or all(place is None for place in asked.values()):
            continue
        inputs = _axes_of_inputs(program, dict(asked), program.stages[:-1])
        if inputs is not None:
            name = loop_of(variable) or ""
            cut = bool(read) and all(asked[r.buffer] is not None for r in read)
            cut = cut and (last.value.kind == "sum" or isinstance(body, Read))
            found.append(Dimension(inputs, None, last.value.kind, name, cut))
    return found


def factors(body: Scalar) -> list[Read]:
    """The operands of a product, which is 0 where one of them is; empty if it is no product of operands. An operand may
    be read in some places only, and be 0 in others."""
    if isinstance(body, Select) and body.other == Const(0, body.other.dtype):
        return factors(body.then)
    if isinstance(body, Apply) and body.fn == "multiply":
        each = [factors(a) for a in body.args]
        return [r for of in each for r in of] if all(each) else []
    return [body] if isinstance(body, Read) else []


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
                # What an index reads at that place is a term of its own here.
                if isinstance(at, Dim) and name in at.variables:
                    return None
            elif place is not None or program.buffers[term.buffer].shape[p] != extent:
                return None
            else:
                place = p
        if found.setdefault(term.buffer, place) != place:
            return None
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """The places of an axis of an input that place `i` of an axis of the output reads: `span` of them, from `i * step +
    first`.

    - `beyond`: what it reads instead outside of the axis; None if it reads nothing there.
    """

    axis: int
    step: int
    first: int
    span: int
    beyond: Number | None = None


@lru_cache(MANY_KEPT)
def windows(program: TensorProgram, along: int | str) -> tuple[Window | None, ...] | None:
    """Returns, for each input of a program of one stage, the window that an axis of the output reads, or that a step of
    a reduction reads for all elements of the output; None for an input that is read whole. Returns None altogether if
    an element depends on its position otherwise. `along`: the axis, or the loop variable of the reduction."""
    found: dict[str, Window] = {}
    return None if _unguarded(program, along, found) is None else tuple(found.get(b.name) for b in program.inputs)


def without_padding(program: TensorProgram, along: int | str) -> Scalar | None:
    """Returns the value of a program of one stage, where windows `along` an axis of the output, or a loop variable,
    start with place 0 and nothing is read outside of the inputs; None if it has no such windows. Programs for which
    this is equal compute the same of the same windows."""
    return _unguarded(program, along, {})


def _unguarded(program: TensorProgram, along: int | str, found: dict[str, Window]) -> Scalar | None:
    if len(program.stages) != 1 or program.stages[0].scans:
        return None
    (made,) = program.stages
    whole = made.value
    over = dict(whole.over) if isinstance(whole, Reduce) else {}
    if isinstance(along, str):
        name = along
        if not isinstance(whole, Reduce) or whole.kind not in COMBINED:
            return None
        over = {v: n for v, n in over.items() if loop_of(v) != name}
        over |= {i: n for i, n in zip(made.indices, made.output.shape, strict=True) if loop_of(i) is not None}
    else:
        name = loop_of(made.indices[along])
    if name is None or any(name in size.variables for size in over.values()):
        return None

    def read(term: Read, beyond: Number | None) -> Scalar | None:
        places = [p for p, at in enumerate(term.indices) if name in (at.variables if isinstance(at, Dim) else at.free)]
        at = term.indices[places[0]] if places else Dim.of(0)
        w = _window(at, name, over, beyond, places[0]) if len(places) == 1 and isinstance(at, Dim) else None
        if w is None or not isinstance(at, Dim) or found.setdefault(term.buffer, w) != w:
            return None
        indices = tuple(at - w.first if p == w.axis else i for p, i in enumerate(term.indices))
        return Read(term.buffer, indices, term.dtype)

    def without(term: Scalar) -> Scalar | None:
        if name not in term.free:
            return term
        if isinstance(term, Read):
            return read(term, None)
        if isinstance(term, Select):
            return guarded(term)
        children = [without(c) for c in term.children]
        made = [c for c in children if c is not None]
        if len(made) < len(children):
            return None
        if isinstance(term, Apply):
            return Apply(term.fn, tuple(made))
        if isinstance(term, Cast):
            return Cast(made[0], term.dtype)
        return Reduce(term.kind, term.over, made[0]) if isinstance(term, Reduce) else None

    def guarded(term: Select) -> Scalar | None:
        """A read inside of the axis, and a number outside of it; guards of other axes are kept."""
        if not isinstance(term.then, Read) or not isinstance(term.other, Const):
            return None
        value = read(term.then, term.other.value)
        w = found.get(term.then.buffer)
        if value is None or w is None:
            return None
        at, size = term.then.indices[w.axis], program.buffers[term.then.buffer].shape[w.axis]
        ends = (less_equal(Index(Dim.of(0)), Index(at)), less(Index(at), Index(size))) if isinstance(at, Dim) else ()
        kept = [c for c in joined_by(term.cond, "bitwise_and", "logical_and") if c not in ends]
        if any(name in c.free for c in kept):
            return None
        for cond in reversed(kept):
            value = Select(cond, value, term.other)
        return value

    if isinstance(along, str) and isinstance(whole, Reduce):
        body = without(whole.body)
        once = tuple((v, Dim.of(1) if loop_of(v) == name else n) for v, n in whole.over)  # whatever its extent is
        value = None if body is None else Reduce(whole.kind, once, body)
    else:
        value = without(whole)
    reads = (t for t in walk(whole) if isinstance(t, Read) and t.buffer in found)
    return value if all(name in t.free for t in reads) else None


def _window(at: Dim, name: str, over: dict[Dim, Dim], beyond: Number | None, axis: int) -> Window | None:
    """The window of an index that is linear in a loop variable and in loops of known extents."""
    rest, span = at, 1
    steps: list[int] = []
    for variable in (Dim.var(name), *over):
        (v,) = variable.variables
        step = rest.substitute({v: Dim.of(1)}) - rest.substitute({v: Dim.of(0)})
        if not step.is_const or rest - variable * step != rest.substitute({v: Dim.of(0)}):
            return None
        rest = rest.substitute({v: Dim.of(0)})
        steps.append(step.value)
        if len(steps) > 1 and step.value:
            if step.value < 0 or not over[variable].is_const:
                return None
            span += step.value * (over[variable].value - 1)
    return Window(axis, steps[0], rest.value, span, beyond) if rest.is_const and steps[0] >= 1 else None
