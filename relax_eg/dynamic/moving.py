"""Operators that move elements to positions that depend on true sizes: slices, joins and regroupings of axes.

Each rule returns `None` for a use that needs nothing special; `equations` then handles it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.dynamic.content import ZERO, join_contents, padding_content
from relax_eg.dynamic.layout import (
    Axis,
    Digit,
    Moves,
    TensorLayout,
    axis_size,
    boxed_layout,
    merge_digits,
)
from relax_eg.dynamic.step import CapacityStep, OperatorUse, StepSizes
from relax_eg.ir.annotations import Tensor, Tuple
from relax_eg.ops import deduce
from relax_eg.ops.regroup import groups
from relax_eg.ops.sizes import ONE, product
from relax_eg.shapes import Dim

Rule = Callable[[OperatorUse], "CapacityStep | None"]


def fit_axis(x: Any, axis: int, size: int) -> Any:
    """`x` with `size` elements along an axis: the first ones, followed by arbitrary values if there are too few."""
    have = x.shape[axis]
    if have >= size:
        return lax.slice_in_dim(x, 0, size, axis=axis)
    if not (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool):  # there is no zero for random keys
        return jnp.take(x, np.minimum(np.arange(size), have - 1), axis=axis)
    missing = jnp.zeros((*x.shape[:axis], size - have, *x.shape[axis + 1 :]), x.dtype)
    return lax.concatenate([x, missing], axis)


def window(x: Any, axis: int, start: Any, size: int) -> Any:
    """`size` elements of `x` along an axis from `start` on; beyond its end the values are arbitrary."""
    if isinstance(start, int):
        return lax.slice_in_dim(fit_axis(x, axis, max(x.shape[axis], start + size)), start, start + size, axis=axis)
    longer = fit_axis(x, axis, x.shape[axis] + size)
    return lax.dynamic_slice_in_dim(longer, start, size, axis)


def plain_result(use: OperatorUse) -> Any:
    """The layout of results in boxes, with anything in the padding."""
    result = deduce(use.site.op, use.site.operands, use.site.attrs)
    if isinstance(result, Tuple):
        return tuple(boxed_layout(f) for f in result.fields if isinstance(f, Tensor))
    assert isinstance(result, Tensor)
    return boxed_layout(result)


# --- reshape ---


def reshape(use: OperatorUse) -> CapacityStep | None:
    """A reshape at capacity that keeps the order of the valid elements: an axis may be merged from others, or split so
    that only the first piece varies. None if elements change places; the equations handle that."""
    layout, shape = use.operand_layouts[0], tuple(use.site["shape"])
    digits = [d for axis in layout.axes for d in axis if d.size is not ONE]
    sizes = [(i, d) for i, d in enumerate(shape) if d is not ONE]
    runs = groups([d.size for d in digits], [d for _, d in sizes])
    if runs is None:
        return None
    axes: list[Axis] = [(Digit(ONE, padding_content(layout.dtype)),) for _ in shape]
    for before, after in runs:
        made = _regrouped([digits[i] for i in before], [sizes[j][1] for j in after], use.moves)
        if made is None:
            return None
        for j, axis in zip(after, made, strict=True):
            axes[sizes[j][0]] = axis

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        wanted: list[int] = []
        for axis in axes:
            places = 1
            for digit in axis:
                places *= at.capacity(digit.size)
            wanted.append(places)
        return lax.reshape(arrays[0], tuple(wanted))

    return CapacityStep(compute, TensorLayout(tuple(axes), layout.dtype))


def _regrouped(digits: Sequence[Digit], shape: Sequence[Dim], moves: Moves) -> list[Axis] | None:
    if len(shape) == 1:
        return [merge_digits(digits, moves)]
    if any(moves(d.size) for d in digits[1:]) or any(map(moves, shape[1:])):
        return None
    # The valid elements are the first ones, before and after.
    content = digits[0].content
    return [(Digit(d, content),) for d in shape]


# --- slices ---


def strided_slice(use: OperatorUse) -> CapacityStep | None:
    moving = use.moving_axes()
    if not moving or not any(use.moves(d) for name in ("begin", "end") for d in use.site[name]):
        return None
    begin, strides = use.site["begin"], use.site["strides"]
    result = _result(use)

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        (x,) = arrays
        for axis, (low, step, size) in enumerate(zip(begin, strides, result.shape or (), strict=True)):
            count = at.capacity(size)
            reach = step * (count - 1) + 1 if count else 0
            x = window(x, axis, at.true_size(low), reach)
            x = lax.slice_in_dim(x, 0, reach, step, axis)
        return x

    return CapacityStep(compute, plain_result(use), boxed_operands=use.merged_operands)


def split(use: OperatorUse) -> CapacityStep | None:
    axis = use.site["axis"]
    if axis not in use.moving_axes():
        return None
    starts = [product(())]
    starts[0] = Dim.of(0)
    for s in use.site["sections"]:
        starts.append(starts[-1] + s)

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        (x,) = arrays
        return tuple(
            window(x, axis, at.true_size(start), at.capacity(size))
            for start, size in zip(starts, use.site["sections"], strict=False)
        )

    return CapacityStep(compute, plain_result(use), boxed_operands=use.merged_operands)


def flip(use: OperatorUse) -> CapacityStep | None:
    turned = [a for a in use.moving_axes() if a in use.site["axes"]]
    if not turned:
        return None

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        x = lax.rev(arrays[0], use.site["axes"])
        for a in turned:
            size = x.shape[a]
            x = window(x, a, size - at.true_size(use.site.shape()[a]), size)
        return x

    return CapacityStep(compute, plain_result(use), boxed_operands=use.merged_operands)


def concat(use: OperatorUse) -> CapacityStep | None:
    """Each part is written at the true end of those before it, over their padding."""
    axis, layouts = use.site["axis"], use.operand_layouts
    sizes = [use.site.shape(i)[axis] for i in range(len(layouts))]
    if not any(map(use.moves, sizes[:-1])):
        return None

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        # What is written after parts that vary may be padded, and XLA would move it back to fit in.
        padded = any(map(use.moves, sizes[1:]))
        total = sum(x.shape[axis] for x in arrays) if padded else at.capacity(sum(sizes, Dim.of(0)))
        out = fit_axis(arrays[0], axis, total)
        start = Dim.of(0)
        for x, size in zip(arrays[1:], sizes, strict=False):
            start = start + size
            out = lax.dynamic_update_slice_in_dim(out, x, at.true_size(start), axis)
        return fit_axis(out, axis, at.capacity(sum(sizes, Dim.of(0))))

    result = plain_result(use)
    if all(layout.is_box for layout in layouts) and not any(map(use.moves, sizes[1:])):
        # The parts after the first have no padding along the axis, and what the first had there is still behind them.
        contents = [[axis[0].content for axis in layout.axes] for layout in layouts]
        joined = [functools.reduce(join_contents, c) for c in zip(*contents, strict=True)]
        joined[axis] = join_contents(contents[0][axis], ZERO)
        axes = zip(result.axes, joined, strict=True)
        result = replace(result, axes=tuple((replace(d, content=c),) for (d,), c in axes))
    return CapacityStep(compute, result, boxed_operands=use.merged_operands)


def dynamic_slice(use: OperatorUse) -> CapacityStep | None:
    """Starts are clamped to the true sizes here; XLA would clamp them to the capacities."""
    shape, sizes = use.site.shape(), use.site["sizes"]
    special = [a for a in range(len(shape)) if use.moves(shape[a] - sizes[a])]
    if not special:
        return None

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        x, *starts = arrays
        for a, (start, size, room) in enumerate(zip(starts, sizes, shape, strict=True)):
            first = _clamped_start(start, at.true_size(room - size))
            count = at.capacity(size)
            if use.moves(size) and size is not room:
                x = window(x, a, first, count)
            else:
                x = lax.dynamic_slice_in_dim(x, first, count, a)
        return x

    return CapacityStep(compute, plain_result(use), boxed_operands=use.merged_operands)


def dynamic_update_slice(use: OperatorUse) -> CapacityStep | None:
    """Beyond its true size, the update is replaced by the operand's own elements."""
    shape, update = use.site.shape(0), use.site.shape(1)
    if not any(use.moves(r - u) for r, u in zip(shape, update, strict=True)):
        return None
    growing = [a for a, (r, u) in enumerate(zip(shape, update, strict=True)) if use.moves(u) and r is not u]
    zeros = [a for a in range(len(shape)) if use.constants.get(a + 2) == 0]

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        x, new, *given = arrays
        before = x.shape
        starts = [_clamped_start(s, at.true_size(r - u)) for s, r, u in zip(given, shape, update, strict=True)]
        for a in growing:
            if not (a in zeros and new.shape[a] <= x.shape[a]):
                x = fit_axis(x, a, x.shape[a] + new.shape[a])
        if growing:
            counts = _all_valid([(a, update[a]) for a in growing], new.shape, at)
            new = jnp.where(counts, new, lax.dynamic_slice(x, starts, new.shape))
        x = lax.dynamic_update_slice(x, new, starts)
        return lax.slice(x, (0,) * x.ndim, before) if x.shape != before else x

    return CapacityStep(compute, plain_result(use), boxed_operands=use.merged_operands)


def _all_valid(axes: Sequence[tuple[int, Dim]], shape: Sequence[int], at: StepSizes) -> Any:
    out: Any = None
    for a, size in axes:
        one = at.valid_mask(size, shape[a]).reshape([-1 if i == a else 1 for i in range(len(shape))])
        out = one if out is None else out & one
    return jnp.broadcast_to(out, tuple(shape))


def _clamped_start(start: Any, room: Any) -> Any:
    """A start clamped to 0 .. `room`, as int32."""
    if jnp.issubdtype(start.dtype, jnp.unsignedinteger):
        start = jnp.minimum(start, jnp.asarray(jnp.iinfo(jnp.int32).max, start.dtype))
    elif start.dtype.itemsize > 4:
        start = jnp.clip(start, 0, jnp.iinfo(jnp.int32).max)
    return jnp.clip(start.astype("int32"), 0, room)


def _result(use: OperatorUse) -> Tensor:
    result = deduce(use.site.op, use.site.operands, use.site.attrs)
    assert isinstance(result, Tensor)
    return result


MOVING: tuple[Rule, ...] = (reshape, strided_slice, split, flip, concat, dynamic_slice, dynamic_update_slice)

__all__ = ["MOVING", "Rule", "axis_size", "fit_axis", "plain_result", "window"]
