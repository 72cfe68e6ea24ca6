"""Arguments of Relax's operators as `rx.op` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Shape
from relax_eg.ir.expr import SHAPE, Expr, constant_value
from relax_eg.shapes import Dim

Axis = int | Sequence[int] | None


def dims_of_shape(shape: Any) -> tuple[Dim, ...] | None:
    """Returns the sizes of a shape; None where only its rank is known."""
    if isinstance(shape, Expr):
        if not isinstance(shape.annotation, Shape):
            raise OperatorError(f"the shape is {shape.annotation}; R.shape([n, 4]) or a tuple of sizes is accepted")
        return shape.annotation.dims
    sizes: tuple[Any, ...] = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)  # type: ignore[reportUnknownArgumentType]
    plain: list[Any] = [s.attr("dims")[0] if isinstance(s, Expr) and s.op == SHAPE else s for s in sizes]
    return tuple(map(Dim.of, plain))


def plain_number(value: Any) -> Any:
    """Returns a number in place of the constant that holds it."""
    if isinstance(value, Expr) and value.op == "constant" and constant_value(value).ndim == 0:
        return constant_value(value)[()].item()
    return value


def axes_tuple(axis: Axis) -> Any:
    """Returns axes in a list as a tuple."""
    return tuple(axis) if isinstance(axis, (tuple, list)) else axis
