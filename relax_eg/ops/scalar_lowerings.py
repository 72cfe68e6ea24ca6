"""How JAX computes the scalar functions of index equations.

They agree with the reference evaluator (`tir.functions`): integers wrap; an integer quotient by zero is -1 and its
remainder is the dividend; maxima and minima propagate NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from relax_eg.dtypes import kind
from relax_eg.ops.expansions import Expansion, expanded, expansion_of
from relax_eg.ops.integers import magnitude, product, quotient, remainder, square
from relax_eg.ops.lazy_jax import jnp, lax, primitives
from relax_eg.tir.functions import FUNCTIONS


@lru_cache(1 << 8)  # more than the number of scalar functions
def in_jax(fn: str) -> Callable[..., Any]:
    """Returns the JAX function that computes a scalar function on arrays of equal shapes."""
    return NOT_IN_LAX.get(fn) or getattr(lax, FUNCTIONS[fn].primitive)


def in_xla(fn: str, dtype: str, by_number: bool = False) -> Callable[..., Any]:
    """Returns the function that computes a scalar function in a program for XLA: that of `in_jax`, by its expansion on
    CPUs where it has one for arguments of `dtype`. `by_number`: whether the last argument is one number for all
    elements."""
    expansion = expansion_of(fn, dtype, by_number)
    return in_jax(fn) if expansion is None else _expanded(fn, expansion)


@lru_cache(1 << 8)  # more than there are expansions
def _expanded(fn: str, expansion: Expansion) -> Callable[..., Any]:
    return expanded(in_jax(fn), expansion)


def _floor_divide(x: Any, y: Any) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.floor_divide(x, y)
    down = lax.bitwise_and(lax.ne(lax.sign(x), lax.sign(y)), lax.ne(remainder(x, y), _like(x, 0)))
    return _unless_zero(y, lax.select(down, lax.sub(quotient(x, y), _like(x, 1)), quotient(x, y)))


def _floor_mod(x: Any, y: Any) -> Any:
    left = remainder(x, y)
    zero = _like(x, 0)
    apart = lax.bitwise_and(lax.ne(left, zero), lax.ne(lax.lt(left, zero), lax.lt(y, zero)))
    found = lax.select(apart, lax.add(left, y), left)
    return _unless_zero(y, found) if jnp.issubdtype(x.dtype, jnp.integer) else found


def _unless_zero(y: Any, value: Any) -> Any:
    """`value`, or 0 where the integer divisor `y` is 0, as in numpy."""
    return lax.select(lax.eq(y, _like(y, 0)), _like(value, 0), value)


def _like(x: Any, value: int) -> Any:
    return lax.full_like(x, value)


def _total(primitive: str) -> Callable[..., Any]:
    return lambda x, y: getattr(primitives, primitive).bind(x, y)


NOT_IN_LAX: dict[str, Callable[..., Any]] = {
    "abs": lambda x: x if kind(x.dtype.name) == "u" else magnitude(x),
    "multiply": product,
    "square": square,
    "int_divide": quotient,
    "remainder": remainder,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "trunc": lambda x: lax.select(lax.lt(x, _like(x, 0)), lax.ceil(x), lax.floor(x)),
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "is_finite": lambda x: jnp.isfinite(x),  # also of complex numbers
    "is_nan": lambda x: jnp.isnan(x),
    "less_total": _total("lt_to_p"),
    "less_equal_total": _total("le_to_p"),
    "equal_total": _total("eq_to_p"),
}
