"""Scalar laws that hold without conditions, bit for bit or over the reals."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet

elementwise = RuleSet("elementwise")
_rule = elementwise.rule


@_rule("x: *b", phase="simplify", numerics="exact")
def negative_of_negative(x: Any) -> Any:
    """-(-x) = x"""
    return op.negative(op.negative(x)), x


@_rule("x: *b", phase="simplify", numerics="exact")
def times_one(x: Any) -> Any:
    """x * 1 = x"""
    return x * 1.0, x


@_rule("x: *b", phase="simplify", numerics="exact")
def over_one(x: Any) -> Any:
    """x / 1 = x"""
    return x / 1.0, x


@_rule("x: *b", phase="simplify", numerics="exact")
def minus_zero(x: Any) -> Any:
    """x - 0 = x, also for x = -0"""
    return x - 0.0, x


@_rule("x: *b", phase="simplify")
def plus_zero(x: Any) -> Any:
    """x + 0 = x (not bit for bit: -0 + 0 is 0)"""
    return x + 0.0, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact")
def plus_zero_int(x: Any) -> Any:
    """x + 0 = x for integers"""
    return x + 0, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact")
def zero_plus_int(x: Any) -> Any:
    """0 + x = x for integers, as jax.numpy.arange is traced"""
    return 0 + x, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact")
def one_times_int(x: Any) -> Any:
    """1 x = x for integers, as jax.numpy.arange is traced"""
    return 1 * x, x


@_rule("x: *b, y: *b", numerics="exact")
def plus_negative(x: Any, y: Any) -> Any:
    """x + -y = x - y"""
    return x + (-y), x - y


@_rule("x: *b, y: *b", numerics="exact")
def minus_negative(x: Any, y: Any) -> Any:
    """x - -y = x + y"""
    return x - (-y), x + y


@_rule("x: *a *c, y: *c", both=True, numerics="exact", tags=("commute",))
def add_commutes(x: Any, y: Any) -> Any:
    """x + y = y + x"""
    return x + y, y + x


@_rule("x: *a *c, y: *c", both=True, numerics="exact", tags=("commute",))
def multiply_commutes(x: Any, y: Any) -> Any:
    """x * y = y * x"""
    return x * y, y * x


# --- exponentials and related functions: fewer of them, and in accurate form ---


@_rule("x: *b", tags=("log",), phase="simplify")
def log1p_of_expm1(x: Any) -> Any:
    """log1p(expm1(x)) = x"""
    return op.log1p(op.expm1(x)), x


@_rule("x: *b", numerics="exact", tags=("sigmoid", "silu"))
def product_with_sigmoid(x: Any) -> Any:
    """x sigmoid(x) = silu(x)"""
    return x * op.sigmoid(x), op.silu(x)


@_rule("x: *b", tags=("tanh",), phase="simplify")
def tanh_of_negative(x: Any) -> Any:
    """tanh(-x) = -tanh(x)"""
    return op.tanh(-x), -op.tanh(x)


# --- signs ---


@_rule("x: *b, y: *b", numerics="exact", tags=("sign",))
def negative_factor(x: Any, y: Any) -> Any:
    """(-x) y = -(x y)"""
    return (-x) * y, -(x * y)


@_rule("x: *b", numerics="exact", tags=("sign",), phase="simplify")
def product_of_magnitudes(x: Any) -> Any:
    """|x| |x| = x x"""
    return op.abs(x) * op.abs(x), x * x


@_rule("x: *b, y: *b", numerics="exact", tags=("sign",))
def magnitude_of_product(x: Any, y: Any) -> Any:
    """|x| |y| = |x y|"""
    return op.abs(x) * op.abs(y), op.abs(x * y)


# --- quotients and factors ---


@_rule("x: *b, y: *b, z: *b", tags=("quotient",))
def quotient_of_quotient(x: Any, y: Any, z: Any) -> Any:
    """(x / y) / z = x / (y z): one division"""
    return (x / y) / z, x / (y * z)


@_rule("x: *b, y: *b", tags=("quotient",))
def product_with_reciprocal(x: Any, y: Any) -> Any:
    """x (1 / y) = x / y"""
    return x * (1.0 / y), x / y


@_rule("x: *b, s:, t:", when=("is_weight(s)", "is_weight(t)"), tags=("factor",))
def scaled_twice(x: Any, s: Any, t: Any) -> Any:
    """(x s) t = x (s t) for weights s and t"""
    return (x * s) * t, x * (s * t)


@_rule("x: *b", numerics="exact", tags=("factor",), phase="simplify")
def second_power(x: Any) -> Any:
    """x ** 2 = x x"""
    return op.integer_pow(x, 2), x * x


# --- comparisons, choices and limits ---


@_rule("c: *b @ bool", numerics="exact", tags=("logical",), phase="simplify")
def and_of_itself(c: Any) -> Any:
    """c and c = c"""
    return op.logical_and(c, c), c


@_rule("c: *b @ bool, d: *b @ bool, e: *b @ bool", numerics="exact", tags=("logical",), both=True)
def and_associates(c: Any, d: Any, e: Any) -> Any:
    """(c and d) and e = c and (d and e): conditions that are joined in several orders are one"""
    return op.logical_and(op.logical_and(c, d), e), op.logical_and(c, op.logical_and(d, e))


@_rule("c: *b @ bool, x: *b, y: *b, z: *b", numerics="exact", tags=("where",), phase="simplify")
def where_in_where(c: Any, x: Any, y: Any, z: Any) -> Any:
    """where(c, where(c, x, y), z) = where(c, x, z)"""
    return op.where(c, op.where(c, x, y), z), op.where(c, x, z)


@_rule("c: *b @ bool, x: *b, y: *b, z: *b", numerics="exact", tags=("where",), phase="simplify")
def where_in_otherwise(c: Any, x: Any, y: Any, z: Any) -> Any:
    """where(c, x, where(c, y, z)) = where(c, x, z)"""
    return op.where(c, x, op.where(c, y, z)), op.where(c, x, z)


@_rule("c: *b @ bool, d: *b @ bool, x: *b, y: *b", numerics="exact", tags=("where",))
def where_of_two_conditions(c: Any, d: Any, x: Any, y: Any) -> Any:
    """where(c, where(d, x, y), y) = where(c and d, x, y)"""
    return op.where(c, op.where(d, x, y), y), op.where(op.logical_and(c, d), x, y)


@_rule("c: *b @ bool, x: *b, y: *b, z: *b, w: *b", numerics="exact", tags=("where",))
def sum_of_choices(c: Any, x: Any, y: Any, z: Any, w: Any) -> Any:
    """where(c, x, y) + where(c, z, w) = where(c, x + z, y + w)"""
    return op.where(c, x, y) + op.where(c, z, w), op.where(c, x + z, y + w)


@_rule("x: *b", numerics="exact", tags=("limit", "relu"))
def maximum_with_zero_is_relu(x: Any) -> Any:
    """max(x, 0) = relu(x)"""
    return op.maximum(x, 0.0), op.relu(x)
