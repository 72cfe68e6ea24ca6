"""Exact arithmetic on Python ints and Fractions, for testing identities at random points.

A value is an int, a bool, a Fraction, an infinity (a float, which orders correctly against Fractions) or `UNDEFINED`.
0/0, inf - inf and NaN become UNDEFINED, which propagates. Functions that leave the rationals are *uninterpreted*: equal
arguments give equal, pseudo-random results, so an identity that holds exactly must hold for any such functions.

The functions here do not take UNDEFINED: the evaluator propagates it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from relax_eg.limits import MANY_KEPT

_INF = math.inf
_POSITIVE = frozenset({"exp", "exp2", "sqrt", "cosh"})
_ODD_DENOMINATOR = 1009  # given: one prime for all results, so that sums of many values keep small denominators
_LARGEST_POWER = 64  # limit: integer exponents of exact numbers
# given: function values that are exact
_VALUES: dict[tuple[str, Any], Any] = {
    ("exp", 0): 1, ("exp", -_INF): 0, ("exp", _INF): _INF,
    ("exp2", 0): 1, ("exp2", -_INF): 0, ("exp2", _INF): _INF,
    ("log", 1): 0, ("log", 0): -_INF, ("log", _INF): _INF,
    ("sqrt", 0): 0, ("sqrt", 1): 1, ("sqrt", _INF): _INF, ("cbrt", 0): 0, ("cbrt", 1): 1,
    ("sin", 0): 0, ("cos", 0): 1, ("asin", 0): 0, ("atan", 0): 0, ("asinh", 0): 0, ("atanh", 0): 0,
    ("sinh", 0): 0, ("cosh", 0): 1, ("tanh", 0): 0, ("tanh", _INF): 1, ("tanh", -_INF): -1,
    ("erf", 0): 0, ("erf", _INF): 1, ("erf", -_INF): -1, ("erf_inv", 0): 0,
}  # fmt: skip


class Undefined:
    """The class of `UNDEFINED`, which is equal only to itself."""

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED = Undefined()


def to_exact(value: Any) -> Any:
    """Converts a Python or numpy scalar to a bool, int, Fraction, infinity or UNDEFINED. Floats keep their exact
    value."""
    if isinstance(value, (bool, int, Fraction, Undefined)):
        return value
    if isinstance(value, float):
        return UNDEFINED if math.isnan(value) else value if math.isinf(value) else Fraction(value)
    if isinstance(value, complex):
        # Only ring identities are tested on complex data, so a number off the real line is one more unknown.
        real, imag = to_exact(value.real), to_exact(value.imag)
        return real if imag == 0 else uninterpreted_value("complex", real, imag)
    return to_exact(value.item() if hasattr(value, "item") else float(value))


@lru_cache(MANY_KEPT)
def uninterpreted_value(name: str, *args: Any) -> Any:
    """Returns the value of the unknown function `name` at `args`: exact at a few points (exp(0), log(1)...), else a
    hash."""
    if len(args) == 1:
        known = _VALUES.get((name, args[0]))
        if known is not None:
            return known
    digest = int.from_bytes(blake2b(f"{name}{[str(a + 0) for a in args]}".encode(), digest_size=8).digest(), "big")
    sign = 1 if name in _POSITIVE or digest >> 63 else -1
    return Fraction(sign * (1 + digest % (1 << 31)), _ODD_DENOMINATOR)


def field(function: Callable[..., Any]) -> Callable[..., Any]:
    """Extends `function`, made of + - * /, to infinities as floats do. Division by zero is UNDEFINED."""

    def extended(*args: Any) -> Any:
        infinite = any(isinstance(a, float) for a in args)
        try:
            # Beside an infinity only the sign of a finite number matters; the number may be too large for a float.
            value = function(*(a if isinstance(a, float) else float(sign(a)) for a in args) if infinite else args)
        except ZeroDivisionError:
            return UNDEFINED
        if not isinstance(value, float):
            return value
        return UNDEFINED if math.isnan(value) else value if math.isinf(value) else int(value)

    return extended


def finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` on finite arguments; UNDEFINED if it divides by zero or an argument is infinite."""

    def guarded(*args: Any) -> Any:
        if any(isinstance(a, float) for a in args):
            return UNDEFINED
        try:
            return function(*args)
        except ZeroDivisionError:
            return UNDEFINED

    return guarded


def rounding(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Extends a rounding `function` to infinities, which stay as they are."""
    return lambda x: x if isinstance(x, float) else function(x)


def divide(a: Any, b: Any) -> Any:
    return a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / b


def truncated_quotient(a: Any, b: Any) -> int:
    return math.trunc(Fraction(a) / b)


def truncated_remainder(a: Any, b: Any) -> Any:
    return a - b * truncated_quotient(a, b)


def sign(x: Any) -> int:
    return (x > 0) - (x < 0)


def round_away(x: Any) -> int:
    """Returns the nearest integer, halves away from zero."""
    return sign(x) * math.floor(abs(x) + Fraction(1, 2))


def integer_pow(x: Any, n: int) -> Any:
    return Fraction(x) ** n if n < 0 else x**n


def power(x: Any, y: Any) -> Any:
    """Returns `x ** y` for small integers `y`; otherwise an uninterpreted value."""
    if isinstance(x, float) or isinstance(y, float) or y != int(y) or abs(y) > _LARGEST_POWER:
        return uninterpreted_value("power", x, y)
    return integer_pow(x, int(y))


def invert(x: Any) -> Any:
    return not x if isinstance(x, bool) else ~x


def shift_left(x: int, by: int) -> int:
    return x << by if 0 <= by < 64 else 0


def shift_right(x: int, by: int) -> int:
    return x >> by if 0 <= by < 64 else (-1 if x < 0 else 0)


def shift_right_logical(x: int, by: int) -> Any:
    return shift_right(x, by) if x >= 0 else uninterpreted_value("shift_right_logical", x, by)


def exp(x: Any) -> Any:
    return uninterpreted_value("exp", x)


# A function defined by others keeps its defining identity.
add = field(operator.add)
subtract = field(operator.sub)
multiply = field(operator.mul)
true_divide = field(divide)
negative = field(operator.neg)


def reciprocal(x: Any) -> Any:
    return true_divide(1, x)


def square(x: Any) -> Any:
    return multiply(x, x)


def _propagate_undefined(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Guards a `function` composed of others: UNDEFINED inside gives UNDEFINED."""

    def guarded(x: Any) -> Any:
        try:
            return function(x)
        except TypeError:  # arithmetic on UNDEFINED
            return UNDEFINED

    return guarded


rsqrt = _propagate_undefined(lambda x: reciprocal(uninterpreted_value("sqrt", x)))
sigmoid = _propagate_undefined(lambda x: reciprocal(add(1, exp(negative(x)))))
expm1 = _propagate_undefined(lambda x: subtract(exp(x), 1))
log1p = _propagate_undefined(lambda x: uninterpreted_value("log", add(1, x)))
tan = _propagate_undefined(lambda x: true_divide(uninterpreted_value("sin", x), uninterpreted_value("cos", x)))
erfc = _propagate_undefined(lambda x: subtract(1, uninterpreted_value("erf", x)))
