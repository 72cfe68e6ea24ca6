"""An operator applied again to parts of its operands: which operand axes are cut with an axis of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import Attrs, Expr
from relax_eg.limits import MANY_KEPT
from relax_eg.ops import api as op
from relax_eg.ops.fused import program_at
from relax_eg.ops.record import TABLE, Site, call, definition_of
from relax_eg.shapes import Dim
from relax_eg.tir.compose import substitute_variables
from relax_eg.tir.expr import Reduce, Scalar, loop_of
from relax_eg.tir.program import TensorProgram


def with_sizes(shape: Sequence[Dim], sizes: Mapping[int, Dim]) -> tuple[Dim, ...]:
    """A shape with other sizes of some axes."""
    return tuple(sizes.get(i, d) for i, d in enumerate(shape))


def applied_again(x: Expr, args: Sequence[Expr], sizes: Mapping[int, Dim], reduced: str = "") -> Expr | None:
    """Returns the operator of `x` on `args`, with these sizes of some axes; None if its equations then differ. If they
    are equal and read sliced operands only at the place that is written (`sliced_input_axes`), every element is the
    same term as before. `reduced`: the loop variable of a reduction whose extent may differ."""
    wanted = Tensor(with_sizes(x.shape, sizes), x.dtype)
    # An attribute with an entry for each axis, such as the end of a slice, may hold the extents of these axes.
    ends = {k: with_sizes(v, sizes) for k, v in x.attrs if _has_extents(v, x, sizes)}
    for attrs in ({**dict(x.attrs), **ends}, dict(x.attrs))[not ends :]:
        try:
            made = call(x.op, args, attrs)
        except OperatorError:  # the attributes do not fit a piece
            continue
        if made.annotation == wanted and _same_equations(use_of(x), use_of(made), reduced):
            return made
    return None


def _has_extents(value: Any, x: Expr, sizes: Mapping[int, Dim]) -> bool:
    """Returns whether an attribute has a size for each axis, which for these axes is their extent in `x`."""
    if not isinstance(value, tuple) or len(value) != x.ndim:  # type: ignore[reportUnknownArgumentType]
        return False
    return all(isinstance(value[a], Dim) and value[a] == x.shape[a] for a in sizes)


# An operator, the annotations of its operands, its attributes, and the annotation of its result.
Use = tuple[str, tuple[Annotation, ...], Attrs, Annotation]


def use_of(x: Expr) -> Use:
    return x.op, tuple(a.annotation for a in x.args), x.attrs, x.annotation


@lru_cache(MANY_KEPT)
def equations_of(use: Use) -> TensorProgram | None:
    """What a use of an operator with one result computes, by equations or its definition; None if it has neither."""
    name, operands, attrs, result = use
    placed = program_at(*use)
    found = placed.program if placed is not None else None
    is_known = all(isinstance(a, Tensor) and a.shape is not None and a.dtype is not None for a in (*operands, result))
    if found is None and is_known and name in TABLE:
        found = definition_of(Site(name, operands, dict(attrs)))
    return found if found is not None and len(found.inputs) == len(operands) else None


@lru_cache(MANY_KEPT)
def _same_equations(whole: Use, piece: Use, reduced: str) -> bool:
    """Returns whether two uses of an operator compute the same at each place that both have, but for the extent of the
    loop variable `reduced`. Where an axis of the piece has one place, that is place 0."""
    programs = [equations_of(use) for use in (whole, piece)]
    stages = [p.stages for p in programs if p is not None]
    if len(stages) < len(programs) or len(stages[0]) != len(stages[1]):
        return False
    for of_whole, of_piece in zip(*stages, strict=True):
        if of_whole.output.name != of_piece.output.name or of_whole.indices != of_piece.indices:
            return False
        places = zip(of_piece.indices, of_piece.output.shape, strict=True)
        first = {name: Dim.of(0) for i, d in places if d == 1 and (name := loop_of(i)) is not None}
        values = (_with_extent(substitute_variables(s.value, first), reduced) for s in (of_whole, of_piece))
        if next(values) != next(values):
            return False
    return True


def _with_extent(value: Scalar, reduced: str) -> Scalar:
    """A value whose reduction over `reduced`, if it is one, has extent 1."""
    if not reduced or not isinstance(value, Reduce):
        return value
    over = tuple((v, Dim.of(1) if loop_of(v) == reduced else extent) for v, extent in value.over)
    return Reduce(value.kind, over, value.body)


def pieces_of(x: Expr, axis: int, rows: Dim, count: Dim) -> Expr:
    """Returns `x` cut along `axis` in `count` pieces of `rows` places and stacked, with zeros at its end."""
    more = rows * count - x.shape[axis]
    if more != 0:
        widths = [(Dim.of(0), more if i == axis else Dim.of(0)) for i in range(x.ndim)]
        x = op.pad(x, widths, op.zeros((), x.dtype))
    apart = (*x.shape[:axis], count, rows, *x.shape[axis + 1 :])
    return _in_order(op.reshape(x, apart), [axis, *range(axis), *range(axis + 1, len(apart))])


def _in_order(x: Expr, axes: Sequence[int]) -> Expr:
    """`x` with its axes in another order; `x` itself if it is the order that they have, which makes no copy of it."""
    return x if [*axes] == [*range(x.ndim)] else op.permute_dims(x, axes)


def joined(e: Expr, axis: int, stacked: Expr, rows: Dim, count: Dim, more: Dim) -> Expr:
    """Returns `e` from its stacked pieces, without the results of the padding."""
    ahead = [*range(1, axis + 1), 0, *range(axis + 1, e.ndim + 1)]
    whole = op.reshape(_in_order(stacked, ahead), with_sizes(e.shape, {axis: rows * count}))
    return op.strided_slice(whole, [Dim.of(0)] * e.ndim, e.shape) if more != 0 else whole
