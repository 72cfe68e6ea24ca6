"""Scalar laws that hold without conditions, bit for bit or over the reals."""

from __future__ import annotations

import math
from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet

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


@_rule("x: *b @ int32", phase="simplify", numerics="exact", check=False)
def plus_zero_int(x: Any) -> Any:
    """x + 0 = x for integers"""
    return x + 0, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact", check=False)
def times_one_int(x: Any) -> Any:
    """x * 1 = x for integers"""
    return x * 1, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact", check=False)
def zero_plus_int(x: Any) -> Any:
    """0 + x = x for integers, as jax.numpy.arange is traced"""
    return 0 + x, x


@_rule("x: *b @ int32", phase="simplify", numerics="exact", check=False)
def one_times_int(x: Any) -> Any:
    """1 x = x for integers, as jax.numpy.arange is traced"""
    return 1 * x, x


@_rule("x: *b", phase="simplify", numerics="exact", check=False)
def maximum_with_minus_infinity(x: Any) -> Any:
    """max(-inf, x) = x, as jax.numpy.max with an initial value is traced"""
    return op.maximum(-math.inf, x), x


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


# --- exponentials and related functions: fewer of them, and in accurate form ---


@_rule("x: *b, y: *b", tags=("exp",), check=False)
def product_of_exponentials(x: Any, y: Any) -> Any:
    """exp(x) exp(y) = exp(x + y)"""
    return op.exp(x) * op.exp(y), op.exp(x + y)


@_rule("x: *b, y: *b", tags=("exp",), check=False)
def quotient_of_two_exponentials(x: Any, y: Any) -> Any:
    """exp(x) / exp(y) = exp(x - y)"""
    return op.exp(x) / op.exp(y), op.exp(x - y)


@_rule("x: *b", tags=("exp",), check=False)
def reciprocal_of_exponential(x: Any) -> Any:
    """1 / exp(x) = exp(-x)"""
    return 1.0 / op.exp(x), op.exp(-x)


@_rule("x: *b", tags=("exp",), check=False)
def exponential_minus_one(x: Any) -> Any:
    """exp(x) - 1 = expm1(x), which keeps its digits near 0"""
    return op.exp(x) - 1.0, op.expm1(x)


@_rule("x: *b", tags=("log",), check=False)
def log_of_one_plus(x: Any) -> Any:
    """log(1 + x) = log1p(x), which keeps its digits near 0"""
    return op.log(1.0 + x), op.log1p(x)


@_rule("x: *b", tags=("log",), phase="simplify", check=False)
def log1p_of_expm1(x: Any) -> Any:
    """log1p(expm1(x)) = x"""
    return op.log1p(op.expm1(x)), x


@_rule("x: *b", tags=("sigmoid",), check=False)
def logistic_is_sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) = sigmoid(x)"""
    return 1.0 / (1.0 + op.exp(-x)), op.sigmoid(x)


@_rule("x: *b", numerics="exact", tags=("sigmoid",), check=False)
def product_with_sigmoid(x: Any) -> Any:
    """x sigmoid(x) = silu(x)"""
    return x * op.sigmoid(x), op.silu(x)


@_rule("x: *b", tags=("tanh",), phase="simplify", check=False)
def tanh_of_negative(x: Any) -> Any:
    """tanh(-x) = -tanh(x)"""
    return op.tanh(-x), -op.tanh(x)


@_rule("x: *b, y: *b", tags=("root",), check=False)
def quotient_by_square_root(x: Any, y: Any) -> Any:
    """x / sqrt(y) = x rsqrt(y)"""
    return x / op.sqrt(y), x * op.rsqrt(y)


@_rule("x: *b", tags=("root",), check=False)
def reciprocal_of_square_root(x: Any) -> Any:
    """1 / sqrt(x) = rsqrt(x)"""
    return 1.0 / op.sqrt(x), op.rsqrt(x)


# --- signs ---


@_rule("x: *b, y: *b", numerics="exact", tags=("sign",), check=False)
def negative_factor(x: Any, y: Any) -> Any:
    """(-x) y = -(x y)"""
    return (-x) * y, -(x * y)


@_rule("x: *b, y: *b", numerics="exact", tags=("sign",), check=False)
def negative_numerator(x: Any, y: Any) -> Any:
    """(-x) / y = -(x / y)"""
    return (-x) / y, -(x / y)


@_rule("x: *b, y: *b", numerics="exact", tags=("sign",), check=False)
def negative_divisor(x: Any, y: Any) -> Any:
    """x / (-y) = -(x / y)"""
    return x / (-y), -(x / y)


@_rule("x: *b", numerics="exact", tags=("sign",), phase="simplify", check=False)
def product_of_magnitudes(x: Any) -> Any:
    """|x| |x| = x x"""
    return op.abs(x) * op.abs(x), x * x


@_rule("x: *b, y: *b", numerics="exact", tags=("sign",), check=False)
def magnitude_of_product(x: Any, y: Any) -> Any:
    """|x| |y| = |x y|"""
    return op.abs(x) * op.abs(y), op.abs(x * y)


@_rule("x: *b, y: *b", tags=("max",), check=False)
def maximum_of_negatives(x: Any, y: Any) -> Any:
    """max(-x, -y) = -min(x, y)"""
    return op.maximum(-x, -y), -op.minimum(x, y)


# --- quotients and factors ---


@_rule("x: *b, y: *b, z: *b", tags=("quotient",), check=False)
def quotient_of_quotient(x: Any, y: Any, z: Any) -> Any:
    """(x / y) / z = x / (y z): one division"""
    return (x / y) / z, x / (y * z)


@_rule("x: *b, y: *b", tags=("quotient",), check=False)
def product_with_reciprocal(x: Any, y: Any) -> Any:
    """x (1 / y) = x / y"""
    return x * (1.0 / y), x / y


@_rule("x: *b, s:, t:", when=("is_weight(s)", "is_weight(t)"), tags=("factor",), check=False)
def scaled_twice(x: Any, s: Any, t: Any) -> Any:
    """(x s) t = x (s t) for weights s and t"""
    return (x * s) * t, x * (s * t)


@_rule("x: *b", numerics="exact", tags=("factor",), phase="simplify", check=False)
def second_power(x: Any) -> Any:
    """x ** 2 = x x"""
    return op.integer_pow(x, 2), x * x


# --- comparisons, choices and limits ---


@_rule("x: *b, y: *b", numerics="exact", tags=("comparison",), check=False)
def greater_is_less(x: Any, y: Any) -> Any:
    """x > y is y < x"""
    return op.greater(x, y), op.less(y, x)


@_rule("x: *b, y: *b", numerics="exact", tags=("comparison",), check=False)
def greater_equal_is_less_equal(x: Any, y: Any) -> Any:
    """x >= y is y <= x"""
    return op.greater_equal(x, y), op.less_equal(y, x)


@_rule("x: *b @ int32, y: *b @ int32", numerics="exact", tags=("comparison",), phase="simplify", check=False)
def not_less(x: Any, y: Any) -> Any:
    """not (x < y) is y <= x for integers (for floats, both are false for NaN)"""
    return op.logical_not(op.less(x, y)), op.less_equal(y, x)


@_rule("x: *b, y: *b", numerics="exact", tags=("comparison",), phase="simplify", check=False)
def not_equal_is_not_equal(x: Any, y: Any) -> Any:
    """not (x == y) is x != y, also for NaN"""
    return op.logical_not(op.equal(x, y)), op.not_equal(x, y)


@_rule("c: *b @ bool", numerics="exact", tags=("logical",), phase="simplify", check=False)
def not_of_not(c: Any) -> Any:
    """not not c = c"""
    return op.logical_not(op.logical_not(c)), c


@_rule("c: *b @ bool", numerics="exact", tags=("logical",), phase="simplify", check=False)
def and_of_itself(c: Any) -> Any:
    """c and c = c"""
    return op.logical_and(c, c), c


@_rule("c: *b @ bool", numerics="exact", tags=("logical",), phase="simplify", check=False)
def or_of_itself(c: Any) -> Any:
    """c or c = c"""
    return op.logical_or(c, c), c


@_rule("c: *b @ bool, d: *b @ bool", numerics="exact", tags=("logical",), check=False)
def both_not(c: Any, d: Any) -> Any:
    """not c and not d = not (c or d)"""
    return op.logical_and(op.logical_not(c), op.logical_not(d)), op.logical_not(op.logical_or(c, d))


@_rule("c: *b @ bool, x: *b, y: *b, z: *b", numerics="exact", tags=("where",), phase="simplify", check=False)
def where_in_where(c: Any, x: Any, y: Any, z: Any) -> Any:
    """where(c, where(c, x, y), z) = where(c, x, z)"""
    return op.where(c, op.where(c, x, y), z), op.where(c, x, z)


@_rule("c: *b @ bool, x: *b, y: *b, z: *b", numerics="exact", tags=("where",), phase="simplify", check=False)
def where_in_otherwise(c: Any, x: Any, y: Any, z: Any) -> Any:
    """where(c, x, where(c, y, z)) = where(c, x, z)"""
    return op.where(c, x, op.where(c, y, z)), op.where(c, x, z)


@_rule("c: *b @ bool, d: *b @ bool, x: *b, y: *b", numerics="exact", tags=("where",), check=False)
def where_of_two_conditions(c: Any, d: Any, x: Any, y: Any) -> Any:
    """where(c, where(d, x, y), y) = where(c and d, x, y)"""
    return op.where(c, op.where(d, x, y), y), op.where(op.logical_and(c, d), x, y)


@_rule("c: *b @ bool, x: *b, y: *b, z: *b, w: *b", numerics="exact", tags=("where",), check=False)
def sum_of_choices(c: Any, x: Any, y: Any, z: Any, w: Any) -> Any:
    """where(c, x, y) + where(c, z, w) = where(c, x + z, y + w)"""
    return op.where(c, x, y) + op.where(c, z, w), op.where(c, x + z, y + w)


@_rule("c: *b @ bool, x: *b, y: *b", numerics="exact", tags=("where",), check=False)
def product_with_mask(c: Any, x: Any, y: Any) -> Any:
    """where(c, x, 1) y = where(c, x y, y): a factor that is 1 where the mask is false"""
    return op.where(c, x, 1.0) * y, op.where(c, x * y, y)


@_rule("x: *b, s:, t:", tags=("limit",), check=False)
def limits_are_clip(x: Any, s: Any, t: Any) -> Any:
    """min(max(x, s), t) = clip(x, s, t)"""
    return op.minimum(op.maximum(x, s), t), op.clip(x, s, t)


@_rule("x: *b, s:, t:", tags=("limit",), check=False)
def limits_in_front_are_clip(x: Any, s: Any, t: Any) -> Any:
    """min(t, max(s, x)) = clip(x, s, t), as jax.numpy.clip is traced"""
    return op.minimum(t, op.maximum(s, x)), op.clip(x, s, t)


@_rule("x: *b, s:, t:", numerics="exact", tags=("limit",), phase="simplify", check=False)
def clip_of_clip(x: Any, s: Any, t: Any) -> Any:
    """clip(clip(x, s, t), s, t) = clip(x, s, t)"""
    return op.clip(op.clip(x, s, t), s, t), op.clip(x, s, t)


@_rule("x: *b, y: *b", numerics="exact", tags=("limit",), phase="simplify", check=False)
def maximum_twice(x: Any, y: Any) -> Any:
    """max(max(x, y), y) = max(x, y)"""
    return op.maximum(op.maximum(x, y), y), op.maximum(x, y)


@_rule("x: *b, y: *b", numerics="exact", tags=("limit",), phase="simplify", check=False)
def minimum_twice(x: Any, y: Any) -> Any:
    """min(min(x, y), y) = min(x, y)"""
    return op.minimum(op.minimum(x, y), y), op.minimum(x, y)


@_rule("x: *b", numerics="exact", tags=("limit",), phase="simplify", check=False)
def relu_of_relu(x: Any) -> Any:
    """relu(relu(x)) = relu(x)"""
    return op.relu(op.relu(x)), op.relu(x)


@_rule("x: *b", numerics="exact", tags=("limit",), check=False)
def maximum_with_zero_is_relu(x: Any) -> Any:
    """max(x, 0) = relu(x)"""
    return op.maximum(x, 0.0), op.relu(x)


# --- conversions ---


def _conversion(narrow: str, wide: str) -> None:
    def there_and_back(x: Any) -> Any:
        return op.astype(op.astype(x, wide), narrow), x

    _rule(
        f"x: *b @ {narrow}", name=f"{narrow}_to_{wide}_and_back", doc=f"{narrow} converted to {wide} and back = x",
        phase="simplify", numerics="exact", tags=("convert", "variants"), check=False,
    )(there_and_back)  # fmt: skip


for _narrow, _wide in (
    ("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"), ("int8", "int32"), ("uint8", "int32"),
    ("int32", "int64"), ("bool", "int32"), ("bool", "float32"),
):  # fmt: skip
    _conversion(_narrow, _wide)
