"""Arrays as codes of fewer bits: how weights and activations are encoded, and what their codes stand for.

A code q stands for (q - zero) * scale. All of it are expressions, so rules may propose it and a compiler may see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from relax_eg.dtypes import dtype_of, is_float
from relax_eg.ir.expr import Expr, const
from relax_eg.ops import api as op
from relax_eg.shapes import Dim

Kind = Literal["int8", "int4", "fp8"]
Tables = Literal["int8", "int4"]
Per = Literal["tensor", "channel"]
Activations = Literal["none", "dynamic", "static"]
KINDS: tuple[Kind, ...] = ("int8", "int4", "fp8")

_BYTE = 127.0  # given: largest code of a symmetric scale in int8; -128 is left out, so that codes are symmetric
_NIBBLE, _MIDDLE = 7.0, 8.0  # given: largest code of four bits, and what is added to codes of -8 to 7 to store them
_FP8 = "float8_e4m3fn"
_SMALLEST_SCALE = 2.0**-14  # given: smallest normal number of float16, the dtype of the scales of groups


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a weight is encoded, and what a product with it does with the other operand.

    - `kind`: the codes: "int8"; "int4", two in a byte; "fp8", float8_e4m3fn.
    - `per`: what has a scale of its own: the tensor, or each output channel. Of "int4" it is each group of a channel.
    - `symmetric`: whether zero is code 0; otherwise codes span the range from the least to the largest element.
    - `group`: elements along the contracted axis that share a scale, for "int4".
    - `activations`: whether the other operand becomes int8: "none"; "dynamic", each row by its own range at the call;
      "static", by a range that is known ahead.
    - `tables`: the codes of tables of which rows are taken, where `kind` is "int4".
    """

    kind: Kind = "int8"
    per: Per = "channel"
    symmetric: bool = True
    group: int = 32
    activations: Activations = "none"
    tables: Tables = "int8"


@dataclass(frozen=True, slots=True)
class Coded:
    """An array as codes.

    - `codes`: int8, float8_e4m3fn, or uint8 with two codes in a byte.
    - `scale`: of the shape of the array, with size 1 along the axes that share it; of groups: `_grouped`, and some are
      negative.
    - `zero`: the code of 0, shaped like `scale`; None if it is code 0.
    """

    codes: Expr
    scale: Expr
    zero: Expr | None = None

    @property
    def arrays(self) -> tuple[Expr, ...]:
        return (self.codes, self.scale, *(() if self.zero is None else (self.zero,)))


def saturated(x: Expr, dtype: str) -> Expr:
    """Whole numbers limited to the range of `dtype`, and converted to it. Numbers that are not whole become so."""
    held = dtype_of(dtype)
    return op.astype(op.minimum(op.maximum(op.round(x) if is_float(x.dtype) else x, held.least), held.greatest), dtype)


def why_not_coded(w: Expr, scheme: Scheme, axes: Sequence[int]) -> str:
    """Why `w`, which is contracted along `axes`, has no codes; empty if it has."""
    if scheme.kind != "int4":
        return ""
    size = w.shape[axes[0]]
    if len(axes) != 1 or size % scheme.group != Dim.of(0):
        named = " x ".join(str(w.shape[a]) for a in axes)
        return f"its contracted size {named} is no multiple of the group's {scheme.group}"
    return ""


def encoded(w: Expr, scheme: Scheme, axes: Sequence[int]) -> Coded:
    """The codes of `w`, a float tensor that is contracted along `axes`. Each element is off by half a step at most:
    half a `scale`, or, in fp8, half of the distance to the next float."""
    x = op.astype(w, "float32")
    if scheme.kind == "int4":
        return _in_groups(x, scheme, axes[0] % w.ndim)
    along = tuple(range(w.ndim)) if scheme.per == "tensor" else tuple(axes)
    if scheme.kind == "fp8":
        largest = float(dtype_of(_FP8).greatest)
        scale = _or_one(op.max(op.abs(x), along, True) / largest)
        return Coded(op.astype(op.minimum(op.maximum(x / scale, -largest), largest), _FP8), scale)
    if scheme.symmetric:
        scale = _or_one(op.max(op.abs(x), along, True) / _BYTE)
        return Coded(saturated(x / scale, "int8"), scale)
    low, high = op.minimum(op.min(x, along, True), 0.0), op.maximum(op.max(x, along, True), 0.0)
    scale = _or_one((high - low) / (2 * _BYTE + 1))
    zero = op.round(-_BYTE - 1 - low / scale)
    return Coded(saturated(op.round(x / scale) + zero, "int8"), scale, saturated(zero, "int8"))


def _or_one(scale: Expr) -> Expr:
    return op.where(op.greater(scale, 0.0), scale, 1.0)


def _grouped(shape: Sequence[Dim], axis: int, group: int) -> tuple[Dim, ...]:
    """The shape with `axis` split into groups, and the elements of each."""
    return (*shape[:axis], shape[axis] // group, Dim.of(group), *shape[axis + 1 :])


def _in_groups(x: Expr, scheme: Scheme, axis: int) -> Coded:
    parts = op.reshape(x, _grouped(x.shape, axis, scheme.group))
    low, high = op.min(parts, axis + 1, True), op.max(parts, axis + 1, True)
    if scheme.symmetric:
        # The codes are those of -8 to 7. The side of the largest element takes the negative ones, so a scale may be
        # negative; half a step beyond 7 is still rounded to 7.
        least = None
        below = op.negative(low)
        scale = op.maximum(op.maximum(high, below) / _MIDDLE, op.minimum(high, below) / (_NIBBLE + 0.5))
    else:
        least = op.minimum(low, 0.0)
        scale = (op.maximum(high, 0.0) - least) / (2 * _NIBBLE + 1)
    # Larger than needed by the rounding to 11 bits, so that no element of a group is outside of its codes.
    scale = op.maximum(scale * (1 + 2.0**-10), _SMALLEST_SCALE)
    if least is None:
        scale = op.where(op.greater(op.add(high, low), 0.0), op.negative(scale), scale)
    scale = op.astype(scale, "float16")
    step = op.astype(scale, "float32")
    zero = const(_MIDDLE) if least is None else op.round(op.negative(least) / step)
    codes = op.minimum(op.maximum(op.round(parts / step) + zero, 0.0), 2 * _NIBBLE + 1)
    pairs = op.reshape(op.astype(codes, "uint8"), _grouped(x.shape, axis, 2))
    key = [slice(None)] * pairs.ndim
    first, second = (op.getitem(pairs, (*key[: axis + 1], i, *key[axis + 2 :])) for i in range(2))
    codes = op.bitwise_or(first, op.left_shift(second, const(4, "uint8")))
    return Coded(codes, scale, None if least is None else op.astype(zero, "uint8"))


def decoded(c: Coded, like: Expr, scheme: Scheme, axes: Sequence[int]) -> Expr:
    """The array for which codes stand, of the shape and dtype of `like`, which was encoded along `axes`."""
    codes = c.codes
    if scheme.kind == "int4":
        axis = axes[0] % like.ndim
        shifts = const(np.array([0, 4], np.uint8).reshape([2 if a == axis + 1 else 1 for a in range(like.ndim + 1)]))
        pairs = op.bitwise_and(op.right_shift(op.expand_dims(codes, axis + 1), shifts), const(15, "uint8"))
        codes = op.reshape(pairs, _grouped(like.shape, axis, scheme.group))
    x = op.astype(codes, "float32")
    if c.zero is not None:
        x = x - op.astype(c.zero, "float32")
    elif scheme.kind == "int4":
        x = x - _MIDDLE
    x = x * op.astype(c.scale, "float32")
    return op.astype(op.reshape(x, like.shape) if scheme.kind == "int4" else x, like.dtype)


def encoded_rows(x: Expr, axis: int = -1) -> Coded:
    """`x` as int8 codes, symmetric, with a scale for all elements along the axes from `axis` on."""
    wide = op.astype(x, "float32")
    scale = _or_one(op.max(op.abs(wide), tuple(range(axis % x.ndim, x.ndim)), True) / _BYTE)
    return Coded(saturated(wide / scale, "int8"), scale)


def encoded_within(x: Expr, low: float, high: float, symmetric: bool) -> Coded:
    """`x` as int8 codes of one scale, for elements from `low` to `high`; those beyond are limited."""
    low, high = min(low, 0.0), max(high, 0.0)
    wide = op.astype(x, "float32")
    if symmetric:
        scale = max(-low, high) / _BYTE or 1.0
        return Coded(saturated(wide / scale, "int8"), const(scale, "float32"))
    scale = (high - low) / (2 * _BYTE + 1) or 1.0
    zero = round(-_BYTE - 1 - low / scale)
    codes = saturated(op.round(wide / scale) + float(zero), "int8")
    return Coded(codes, const(scale, "float32"), const(zero, "int8"))


def contracted_axes(e: Expr) -> tuple[int, ...]:
    """The axes along which the second operand of a `matmul`, `linear` or `conv` is contracted."""
    if e.op == "conv":
        return tuple(range(1, e.args[1].ndim))
    return (e.args[1].ndim - (1 if e.op == "linear" else 2),)


def code_limits(scheme: Scheme) -> tuple[float, float]:
    """The least and the largest code of "int8" and "int4", as they are stored."""
    return (-_BYTE - 1, _BYTE) if scheme.kind == "int8" else (0.0, 2 * _NIBBLE + 1)


def spread(
    w: np.ndarray[Any, Any], scale: Any, zero: Any, axis: int, scheme: Scheme
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The scale and the code of zero of each element of an array, by those of its "int8" or "int4" codes."""
    middle = _MIDDLE if scheme.kind == "int4" else 0.0
    of = np.asarray(scale, np.float32), np.asarray(middle if zero is None else zero, np.float32)
    if scheme.kind == "int4":
        parts = [int(d) for d in _grouped([Dim.of(n) for n in w.shape], axis, scheme.group)]
        step, code = (np.broadcast_to(x, parts).reshape(w.shape) for x in of)
    else:
        step, code = (np.broadcast_to(x, w.shape) for x in of)
    return step, code
