"""Softmax along an axis whose size varies, as an operator or spelled out, with one mask instead of three.

Scores that are -inf in the padding keep the rest clean: minus the row's maximum they are -inf, their exponentials are
0, and so are those divided by their sum. They are NaN only if the row's maximum is -inf or NaN, or its sum is 0 or NaN;
then the row's own elements are NaN as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from relax_eg.dtypes import is_float
from relax_eg.dynamic.content import Content, known_content
from relax_eg.dynamic.layout import Digit, TensorLayout
from relax_eg.dynamic.native import mask_unless_filled, native_lowering
from relax_eg.dynamic.step import CapacityStep, OperatorUse
from relax_eg.ir.expr import CONSTANT, Expr, constant_value

_NEGATIVE_INFINITY = float("-inf")


def softmax(use: OperatorUse) -> CapacityStep | None:
    axis = use.site["axis"]
    if axis not in use.moving_axes() or use.merged_operands:
        return None
    size = use.site.shape()[axis]
    masks = mask_unless_filled(use, 0, axis, _NEGATIVE_INFINITY, f"max over {size}", or_nan=True)
    content = (
        known_content(0.0, or_nan=True) if use.site.op == "softmax" else known_content(_NEGATIVE_INFINITY, or_nan=True)
    )
    return CapacityStep(native_lowering(use), _with_content(use.operand_layouts[0], axis, content), masks)


def subtract_maximum(e: Expr, use: OperatorUse, plain: CapacityStep) -> CapacityStep | None:
    """`x - max(x)`: x gets the same mask as for the maximum."""
    if e.op != "subtract" or plain.boxed_operands or use.merged_operands or not is_float(use.site.dtype()):
        return None
    axis = _row_value(e.args[1], e.args[0], "max")
    if axis is None or not use.moves(use.site.shape()[axis]):
        return None
    masks = mask_unless_filled(use, 0, axis, _NEGATIVE_INFINITY, f"max over {use.site.shape()[axis]}", or_nan=True)
    assert isinstance(plain.result_layouts, TensorLayout)
    content = known_content(_NEGATIVE_INFINITY, or_nan=True)
    return replace(plain, masks=masks, result_layouts=_with_content(plain.result_layouts, axis, content))


def divide_by_sum(e: Expr, use: OperatorUse, plain: CapacityStep) -> CapacityStep | None:
    """`x / sum(x)` for x an exponential that is 0 in the padding: if the sum is 0, the whole row is zero and becomes
    NaN."""
    if e.op != "divide" or plain.boxed_operands or use.merged_operands or e.args[0].op not in ("exp", "exp2"):
        return None
    axis = _row_value(e.args[1], e.args[0], "sum")
    if axis is None or not use.operand_layouts[0].axes[axis][0].content.equals(0, or_nan=True):
        return None
    assert isinstance(plain.result_layouts, TensorLayout)
    return replace(plain, result_layouts=_with_content(plain.result_layouts, axis, known_content(0.0, or_nan=True)))


def _row_value(e: Expr, x: Expr, reduction: str) -> int | None:
    """The axis of `x` along which `e` is its sum or maximum, broadcast again; None if `e` is something else."""
    shapes: list[tuple[object, ...]] = []
    while True:
        shapes.append(e.shape)
        if e.op in ("expand_dims", "reshape", "broadcast_to"):
            e = e.args[0]
        elif e.op == "maximum" and any(map(_is_negative_infinity, e.args)):
            e = next((a for a in e.args if not _is_negative_infinity(a)), e.args[0])
        else:
            break
    if e.op != reduction or e.args != (x,) or len(e.attr("axes")) != 1:
        return None
    (axis,) = e.attr("axes")
    dropped = (*x.shape[:axis], *x.shape[axis + 1 :])
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    spread = all(s in (dropped, kept, x.shape) for s in shapes)
    # The outermost shape must broadcast against x along the reduced axis.
    return axis if spread and shapes[0] in (kept, x.shape) else None


def _is_negative_infinity(e: Expr) -> bool:
    return e.op == CONSTANT and e.shape == () and float(constant_value(e)) == -math.inf


def _with_content(layout: TensorLayout, axis: int, content: Content) -> TensorLayout:
    axes = list(layout.axes)
    (digit,) = axes[axis]
    axes[axis] = (Digit(digit.size, content),)
    return TensorLayout(tuple(axes), layout.dtype)


IDIOMS: tuple[Callable[[Expr, OperatorUse, CapacityStep], CapacityStep | None], ...] = (
    subtract_maximum,
    divide_by_sum,
)
