"""Scalar laws that hold bit for bit or over the reals without conditions."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule import RuleSet

elementwise = RuleSet("elementwise")
_rule = elementwise.rule


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def negative_of_negative(x: Any) -> Any:
    """-(-x) = x"""
    return op.negative(op.negative(x)), x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def times_one(x: Any) -> Any:
    """x * 1 = x"""
    return x * 1.0, x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def one_times(x: Any) -> Any:
    """1 * x = x"""
    return 1.0 * x, x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def over_one(x: Any) -> Any:
    """x / 1 = x"""
    return x / 1.0, x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def minus_zero(x: Any) -> Any:
    """x - 0 = x, also for x = -0"""
    return x - 0.0, x


@_rule("x: *b", phase="simplify", check=False)
def plus_zero(x: Any) -> Any:
    """x + 0 = x (not bit for bit: -0 + 0 is 0)"""
    return x + 0.0, x


@_rule("x: *b", phase="simplify", check=False)
def zero_plus(x: Any) -> Any:
    """0 + x = x"""
    return 0.0 + x, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact", check=False)
def plus_zero_int(x: Any) -> Any:
    """x + 0 = x for integers"""
    return x + 0, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact", check=False)
def times_one_int(x: Any) -> Any:
    """x * 1 = x for integers"""
    return x * 1, x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def maximum_of_self(x: Any) -> Any:
    """max(x, x) = x"""
    return op.maximum(x, x), x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def minimum_of_self(x: Any) -> Any:
    """min(x, x) = x"""
    return op.minimum(x, x), x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def abs_of_abs(x: Any) -> Any:
    """|(|x|)| = |x|"""
    return op.abs(op.abs(x)), op.abs(x)


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def abs_of_negative(x: Any) -> Any:
    """|-x| = |x|"""
    return op.abs(-x), op.abs(x)


@_rule("x: *b, y: *b", numerics="exact", check=False)
def plus_negative(x: Any, y: Any) -> Any:
    """x + -y = x - y"""
    return x + (-y), x - y


@_rule("x: *b, y: *b", numerics="exact", check=False)
def minus_negative(x: Any, y: Any) -> Any:
    """x - -y = x + y"""
    return x - (-y), x + y


@_rule("x: *b, y: *b", numerics="exact", check=False)
def product_of_negatives(x: Any, y: Any) -> Any:
    """(-x) * (-y) = x * y"""
    return (-x) * (-y), x * y


@_rule("x: *b, y: *b, z: *b", check=False)
def common_factor(x: Any, y: Any, z: Any) -> Any:
    """x * y + x * z = x * (y + z)"""
    return x * y + x * z, x * (y + z)


@_rule("x: *b", numerics="exact", check=False)
def square_is_product(x: Any) -> Any:
    """square(x) = x * x"""
    return op.square(x), x * x


@_rule("x: *b, c: *b @ bool", phase="simplify", numerics="exact", check=False)
def where_of_equals(x: Any, c: Any) -> Any:
    """where(c, x, x) = x"""
    return op.where(c, x, x), x


@_rule("x: *b, y: *b, c: *b @ bool", phase="simplify", numerics="exact", check=False)
def where_of_not(x: Any, y: Any, c: Any) -> Any:
    """where(not c, x, y) = where(c, y, x)"""
    return op.where(op.logical_not(c), x, y), op.where(c, y, x)


@_rule("x: *a *c, y: *c", both=True, numerics="exact", tags=("commute",), check=False)
def add_commutes(x: Any, y: Any) -> Any:
    """x + y = y + x"""
    return x + y, y + x


@_rule("x: *a *c, y: *c", both=True, numerics="exact", tags=("commute",), check=False)
def multiply_commutes(x: Any, y: Any) -> Any:
    """x * y = y * x"""
    return x * y, y * x


@_rule("x: *a n, y: *a 1", both=True, numerics="exact", tags=("commute",), check=False)
def multiply_by_column_commutes(x: Any, y: Any) -> Any:
    """x * y = y * x for a column y"""
    return x * y, y * x
