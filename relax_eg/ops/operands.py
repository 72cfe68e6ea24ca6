"""Helpers of the operator functions: operands as expressions, axes counted from the front, sizes."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, is_complex, is_float, is_integer
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Shape
from relax_eg.ir.expr import Expr, const
from relax_eg.ops.record import call
from relax_eg.ops.sizes import Dims
from relax_eg.shapes import Dim

Operand = Expr | Dim | float | complex | np.ndarray[Any, Any] | Sequence[Any]
Size = int | str | Dim
Axes = int | Sequence[int] | None


def operands(op: str, *values: Any) -> list[Expr]:
    """Returns `values` as expressions; numbers and sizes take the dtype of the first expression or array among them."""
    made = [v if isinstance(v, Expr) else const(v) if is_array(v) else None for v in values]
    known = [e.tensor.dtype for e in made if e is not None]
    dtype = next((d for d in known if d is not None), None)
    for e, v in zip(made, values, strict=True):
        if e is None and known and dtype is None:
            raise OperatorError(f'{op}: {v!r} stands beside operands of unknown dtype; const({v!r}, "dtype") has one')
    return [e if e is not None else number(op, v, dtype) for e, v in zip(made, values, strict=True)]


def is_array(value: Any) -> bool:
    # A numpy scalar is a number: `np.float64(2) * x` must not depend on the dtype that numpy gave to 2.
    return hasattr(value, "dtype") and not isinstance(value, np.generic)


def need_no_bool(op: str, condition: Any) -> None:
    """OperatorError for a `bool` of Python as a condition: `x == y` of two expressions is one, and compares nothing."""
    if isinstance(condition, bool):
        raise OperatorError(
            f"{op}: a condition is {condition}, a bool of Python; == and != of expressions tell whether they are the "
            "same expression; equal(x, y) and not_equal(x, y) compare elements"
        )


def number(op: str, value: Any, dtype: str | None) -> Expr:
    if op.startswith("logical_"):
        need_no_bool(op, value)
    if isinstance(value, Dim):
        return call("dim_value", (), {"dim": (value,), "dtype": dtype or "int32"})
    if isinstance(value, (list, tuple)):
        return const(value, dtype)
    if not isinstance(value, (numbers.Number, np.generic)):
        raise OperatorError(f"{op}: {value!r} is not an operand; expressions, numbers, sizes and arrays are")
    value = value.item() if isinstance(value, np.generic) else value
    if dtype is not None and not _fits(value, dtype):
        raise OperatorError(f"{op}: {value!r} is not of dtype {dtype}, which the other operand has; astype converts")
    return const(value, dtype)


def _fits(value: Any, dtype: str) -> bool:
    if is_float(dtype) or is_complex(dtype):
        return is_complex(dtype) or not isinstance(value, complex)
    if is_integer(dtype):
        record = dtype_of(dtype)
        return isinstance(value, int) and record.least <= value <= record.greatest
    return isinstance(value, bool)


def normal_axis(op: str, axis: int, rank: int) -> int:
    """Returns `axis` counted from the front. Raises OperatorError."""
    if not -rank <= axis < rank:
        valid = f"axes are {-rank} to {rank - 1}" if rank else "there are none"
        raise OperatorError(f"{op}: axis {axis} does not exist at rank {rank}; {valid}")
    return axis % rank


def normal_axes(op: str, axes: Axes, rank: int) -> tuple[int, ...]:
    """Returns `axes` counted from the front, ascending; None means all. Raises OperatorError."""
    if axes is None:
        return tuple(range(rank))
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    normal = tuple(sorted(normal_axis(op, a, rank) for a in given))
    if len(set(normal)) < len(normal):
        raise OperatorError(f"{op}: axes {given} name an axis twice")
    return normal


def as_dims(shape: Size | Sequence[Size]) -> Dims:
    """The sizes that a caller gives: one, several, or a shape as a value, whose annotation says them."""
    if isinstance(shape, Expr) and isinstance(shape.annotation, Shape) and shape.annotation.dims is not None:
        return shape.annotation.dims
    return (Dim.of(shape),) if isinstance(shape, (int, str, Dim)) else tuple(map(Dim.of, shape))
