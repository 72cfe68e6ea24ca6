"""Integer arithmetic on JAX for operations that XLA gets wrong.

XLA ends the process at a quotient by a zero that is known at compile time. It assumes that `x * x` and `abs(x)` are
never negative, though both wrap: under `jax.jit`, int32 `x * x < 0` is false and `x * x // 8` is 312500000 at 50000
(jaxlib 0.10.2).
"""

from __future__ import annotations

from typing import Any

from relax_eg.dtypes import is_integer, kind
from relax_eg.ops.lazy_jax import lax


def quotient(x: Any, y: Any) -> Any:
    """Returns `lax.div(x, y)`; an integer divided by 0 gives all bits set."""
    if not is_integer(x.dtype.name):
        return lax.div(x, y)
    zero = lax.eq(y, lax.full_like(y, 0))
    return lax.select(zero, lax.bitwise_not(lax.full_like(x, 0)), lax.div(x, _not_zero(zero, y)))


def remainder(x: Any, y: Any) -> Any:
    """Returns `lax.rem(x, y)`; the remainder of an integer by 0 is the dividend."""
    if not is_integer(x.dtype.name):
        return lax.rem(x, y)
    zero = lax.eq(y, lax.full_like(y, 0))
    return lax.select(zero, x, lax.rem(x, _not_zero(zero, y)))


def _not_zero(zero: Any, y: Any) -> Any:
    return lax.select(zero, lax.full_like(y, 1), y)


def product(x: Any, y: Any) -> Any:
    """Returns `lax.mul(x, y)`; signed integers are multiplied as unsigned ones."""
    if not _is_signed(x):
        return lax.mul(x, y)
    return lax.convert_element_type(lax.mul(_bits(x), _bits(y)), x.dtype)


def square(x: Any) -> Any:
    """Returns `x * x`."""
    return product(x, x)


def power(x: Any, y: int) -> Any:
    """Returns `lax.integer_pow(x, y)`; signed integers are multiplied as unsigned ones."""
    if not _is_signed(x):
        return lax.integer_pow(x, y)
    return lax.convert_element_type(lax.integer_pow(_bits(x), y), x.dtype)


def magnitude(x: Any) -> Any:
    """Returns `lax.abs(x)`; for signed integers the maximum of x and -x."""
    return lax.max(x, lax.neg(x)) if _is_signed(x) else lax.abs(x)


def _is_signed(x: Any) -> bool:
    return kind(x.dtype.name) == "i"


def _bits(x: Any) -> Any:
    return lax.convert_element_type(x, f"u{x.dtype.name}")
