"""Laws of what jax.numpy, jax.nn and jax.scipy trace, and of the derivatives that autodiff writes of them: fewer
exponentials and logarithms, one sort without the lookup after it, real transforms of real signals.

They were read off fragments of these functions (`benchmarks.discovery_gains --functions`), not off programs that were
written for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relax_eg.ir.expr import tuple_get
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.rule_set import RuleSet

traced = RuleSet("traced")
_rule = traced.rule
_INFINITY = float("inf")

# --- logarithms of sums of exponentials, and their slopes ---


def _log_of_sum(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)), as jnp.logaddexp is traced."""
    apart = x - y
    greatest = op.maximum(x, y)
    return op.where(op.not_equal(apart, apart), x + y, greatest + op.log1p(op.exp(-op.abs(apart))))


def _softplus(x: Any) -> Any:
    return _log_of_sum(x, 0.0)


def _without_infinity(x: Any) -> Any:
    """`x`, or 0 where it is infinite, as the derivative of jnp.logaddexp has it."""
    return op.where(op.equal(x, _INFINITY), 0.0, x)


def _sigmoid(x: Any) -> Any:
    """The logistic function by a power that does not overflow, so that small values are exact."""
    e = op.exp(-op.abs(x))
    return op.where(op.less(x, 0.0), e, 1.0) / (1.0 + e)


@_rule("x: *b", tags=("exp", "log"), check=False)
def slope_of_softplus(x: Any) -> Any:
    """exp(x - log(exp(x) + 1)) = 1 / (1 + exp(-x)): the derivative of softplus"""
    return op.exp(_without_infinity(x) - _without_infinity(_softplus(x))), _sigmoid(x)


@_rule("x: *b, y: *b", tags=("exp", "log"), check=False)
def slope_of_log_of_sum(x: Any, y: Any) -> Any:
    """exp(x - log(exp(x) + exp(y))) = 1 / (1 + exp(y - x)): the derivative of logaddexp in one operand"""
    apart = op.where(op.equal(x, _INFINITY), _INFINITY, x - y)
    return op.exp(_without_infinity(x) - _without_infinity(_log_of_sum(x, y))), _sigmoid(apart)


@_rule("x: *b, y: *b", tags=("exp", "log"), check=False)
def other_slope_of_log_of_sum(x: Any, y: Any) -> Any:
    """exp(y - log(exp(x) + exp(y))) = 1 / (1 + exp(x - y)): the derivative of logaddexp in the other operand"""
    apart = op.where(op.equal(y, _INFINITY), _INFINITY, y - x)
    return op.exp(_without_infinity(y) - _without_infinity(_log_of_sum(x, y))), _sigmoid(apart)


@_rule("x: *b", tags=("exp", "log", "tanh"), check=False)
def tanh_of_softplus(x: Any) -> Any:
    """tanh(log(exp(x) + 1)) = p / (p + q) for e = exp(-|x|), where p = 1 + 2 e and q = 2 e e for x >= 0, p = e (e + 2)
    and q = 2 for other x: one exponential, as in mish"""
    e, is_positive = op.exp(-op.abs(x)), op.greater_equal(x, 0.0)
    p = op.where(is_positive, 1.0 + 2.0 * e, e * (e + 2.0))
    return op.tanh(_softplus(x)), p / (p + op.where(is_positive, 2.0 * (e * e), 2.0))


@_rule("x: *b", tags=("exp", "log"), check=False)
def square_of_inverse_log_of_sum(x: Any) -> Any:
    """exp(-2 log(exp(x) + exp(-x))) = e / (1 + e)^2 for e = exp(-|2 x|): the logistic density"""
    e = op.exp(-op.abs(x + x))
    return op.exp(-2.0 * _log_of_sum(x, -x)), e / ((1.0 + e) * (1.0 + e))


# --- densities and distribution functions ---


@_rule("w: *b, k:", tags=("erf",), check=False)
def normal_distribution_in_parts(w: Any, k: Any) -> Any:
    """1 + erf(w) near 0, 2 - erfc(|w|) above and erfc(|w|) below = erfc(-w): jax.scipy.special.ndtr"""
    z = op.abs(w)
    tails = op.where(op.greater(w, 0.0), 2.0 - op.erfc(z), op.erfc(z))
    return op.where(op.less(z, k), 1.0 + op.erf(w), tails), op.erfc(-w)


@_rule("x: *b, s:, t:", tags=("exp", "where"), check=False)
def exponentials_to_both_sides(x: Any, s: Any, t: Any) -> Any:
    """where(x <= 0, s exp(x), t - s exp(-x)) = where(x <= 0, e, t - e) for e = s exp(-|x|): one exponential"""
    is_low, e = op.less_equal(x, 0.0), s * op.exp(-op.abs(x))
    return op.where(is_low, s * op.exp(x), t - s * op.exp(-x)), op.where(is_low, e, t - e)


@_rule("c:, x: *b", when="nonnegative(x)", tags=("exp", "log"), check=False)
def exponential_of_log1p(c: Any, x: Any) -> Any:
    """exp(-(c + log(1 + x))) = exp(-c) / (1 + x) for x >= 0"""
    return op.exp(-(c + op.log1p(x))), op.exp(-c) / (1.0 + x)


@_rule("c:, x: *b", when="nonnegative(x)", tags=("exp", "log"), check=False)
def exponential_of_twice_log1p(c: Any, x: Any) -> Any:
    """exp(-(c + 2 log(1 + x))) = exp(-c) / (1 + x)^2 for x >= 0"""
    return op.exp(-(c + 2.0 * op.log1p(x))), op.exp(-c) / ((1.0 + x) * (1.0 + x))


# --- sorts and the lookups after them ---


def _order(x: Any, axis: int, dtype: str) -> Any:
    """The places of the sorted elements: jnp.argsort."""
    places = op.iota(x.shape, axis, dtype)
    return tuple_get(call("sort", (x, places), {"axis": axis}), 1)


@_rule("x: *b, y: *b", attrs={"axis": "sort.axis"}, phase="simplify", numerics="exact", tags=("sort",), check=False)
def sorted_keys_alone(x: Any, y: Any, axis: int) -> Any:
    """the keys of a sort of pairs = the sorted keys"""
    return tuple_get(call("sort", (x, y), {"axis": axis}), 0), op.sort(x, axis)


def _lookups(dtype: str) -> None:
    at = f" @ {dtype}" if dtype else ""
    suffix = f"_of_{dtype}" if dtype else ""

    def in_own_order(x: Any) -> Any:
        return op.take(x, _order(x, 0, "int32"), 0, mode="clip"), op.sort(x, 0)

    def in_order(x: Any, y: Any) -> Any:
        return (
            op.take(y, _order(x, 0, "int32"), 0, mode="clip"),
            tuple_get(call("sort", (x, y), {"axis": 0}), 1),
        )

    def rows_in_order(x: Any, y: Any, m: str) -> Any:
        return (
            op.take_along_axis(y, _order(x, x.ndim - 1, "int32"), x.ndim - 1, mode=m),
            tuple_get(call("sort", (x, y), {"axis": x.ndim - 1}), 1),
        )

    laws: dict[str, tuple[Callable[..., Any], str, dict[str, str], str]] = {
        "sorted_by_lookup": (in_own_order, f"x: n{at}", {}, "x[argsort(x)] = sort(x)"),
        "in_order_of_keys": (in_order, f"x: n{at}, y: n{at}", {}, "y[argsort(x)] = the values of a sort of pairs"),
        "rows_in_order_of_keys": (
            rows_in_order, f"x: *b n{at}, y: *b n{at}", {"m": "gather.mode"},
            "take_along_axis(y, argsort(x)) = the values of a sort of pairs",
        ),
    }  # fmt: skip
    for name, (law, shapes, attrs, doc) in laws.items():
        _rule(shapes, attrs=attrs, name=name + suffix, doc=doc, tags=("sort",), check=False)(law)


_lookups("")
_lookups("int32")


# --- Fourier transforms of real signals ---


@_rule("x: *b n @ float32", when="n >= 1", tags=("fft",), check=False)
def transform_of_real(x: Any) -> Any:
    """fft(x) = [rfft(x), its conjugate turned around] for real x"""
    n, last = x.shape[-1], x.ndim - 1
    half = op.fft(x, "rfft", (n,))
    begin, end = [0] * last + [1], [*x.shape[:-1], n - n // 2]
    rest = op.conj(op.flip(op.strided_slice(half, begin, end), last))
    return op.fft(op.astype(x, "complex64"), "fft", (n,)), op.concat([half, rest], last)
