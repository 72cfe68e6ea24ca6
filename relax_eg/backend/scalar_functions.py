"""Scalar functions, casts and reductions of index equations, on JAX arrays of equal shapes.

They agree with the reference evaluator (`tir.functions`): integers wrap; an integer quotient by zero is -1 and its
remainder is the dividend; maxima and minima propagate NaN; casts of floats to integers truncate and saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.dtypes import dtype_of, kind
from relax_eg.ops.elementwise import converted
from relax_eg.ops.integers import magnitude, power, product, quotient, remainder, square
from relax_eg.tir import Const, Scalar
from relax_eg.tir.expr import ReduceKind
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.tir.functions import identity as identity_of

Array: TypeAlias = Any


def apply_function(fn: str, args: Sequence[Array], terms: Sequence[Scalar]) -> Array:
    """The scalar function `fn` of `FUNCTIONS` on arrays `args`, the values of `terms`."""
    if fn == "integer_pow":
        return power(args[0], _constant(terms[1]))
    if fn == "reduce_precision":
        return lax.reduce_precision(args[0], _constant(terms[1]), _constant(terms[2]))
    if fn.startswith("bits_as_"):
        return lax.bitcast_convert_type(args[0], fn.removeprefix("bits_as_"))
    return _implementation(fn)(*args)


def _constant(term: Scalar) -> int:
    assert isinstance(term, Const)  # ensured by Apply
    return int(term.value.real)


@lru_cache(1 << 8)  # more than the number of scalar functions
def _implementation(fn: str) -> Callable[..., Array]:
    return NOT_IN_LAX.get(fn) or getattr(lax, FUNCTIONS[fn].primitive)


def _floor_divide(x: Array, y: Array) -> Array:
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.floor_divide(x, y)
    down = lax.bitwise_and(lax.ne(lax.sign(x), lax.sign(y)), lax.ne(remainder(x, y), _like(x, 0)))
    return _unless_zero(y, lax.select(down, lax.sub(quotient(x, y), _like(x, 1)), quotient(x, y)))


def _floor_mod(x: Array, y: Array) -> Array:
    left = remainder(x, y)
    zero = _like(x, 0)
    apart = lax.bitwise_and(lax.ne(left, zero), lax.ne(lax.lt(left, zero), lax.lt(y, zero)))
    found = lax.select(apart, lax.add(left, y), left)
    return _unless_zero(y, found) if jnp.issubdtype(x.dtype, jnp.integer) else found


def _unless_zero(y: Array, value: Array) -> Array:
    """`value`, or 0 where the integer divisor `y` is 0, as in numpy."""
    return lax.select(lax.eq(y, _like(y, 0)), _like(value, 0), value)


def _like(x: Array, value: int) -> Array:
    return lax.full_like(x, value)


def _total(primitive: str) -> Callable[..., Array]:
    def compared(x: Array, y: Array) -> Array:
        from jax.extend.core import primitives  # imports Pallas, which most programs do not need

        return getattr(primitives, primitive).bind(x, y)

    return compared


def _rounded(x: Array, method: Any) -> Array:
    return lax.round(x, method)


NOT_IN_LAX: dict[str, Callable[..., Array]] = {
    "abs": lambda x: x if kind(x.dtype.name) == "u" else magnitude(x),
    "multiply": product,
    "square": square,
    "int_divide": quotient,
    "remainder": remainder,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "trunc": lambda x: lax.select(lax.lt(x, _like(x, 0)), lax.ceil(x), lax.floor(x)),
    "round": partial(_rounded, method=lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_away": partial(_rounded, method=lax.RoundingMethod.AWAY_FROM_ZERO),
    "is_finite": jnp.isfinite,  # also of complex numbers
    "is_nan": jnp.isnan,
    "less_total": _total("lt_to_p"),
    "less_equal_total": _total("le_to_p"),
    "equal_total": _total("eq_to_p"),
}


def convert(x: Array, dtype: str) -> Array:
    """`x` converted to `dtype`, as `Cast` defines; of complex numbers the real part is converted."""
    if x.dtype.name == dtype:
        return x
    if kind(x.dtype.name) == "c" and kind(dtype) not in "c":
        x = lax.real(x)
    return converted(x, dtype)


# --- reductions ---

_REDUCE: dict[str, str] = {
    "sum": "reduce_sum", "prod": "reduce_prod", "max": "reduce_max", "min": "reduce_min", "any": "reduce_or",
    "all": "reduce_and", "xor": "reduce_xor",
}  # fmt: skip
_COMBINE: dict[str, Callable[..., Array]] = {
    "sum": lax.add, "prod": lax.mul, "max": lax.max, "min": lax.min, "any": lax.bitwise_or, "all": lax.bitwise_and,
    "xor": lax.bitwise_xor,
}  # fmt: skip


def accumulator(kind_of: ReduceKind, dtype: str) -> str:
    """The dtype in which `dtype` is reduced: float32 for sums and products of low-precision floats, bytes for 4-bit
    integers."""
    record = dtype_of(dtype)
    return record.wider.name if record.is_narrow or kind_of in ("sum", "prod") else dtype


def reduce_axes(kind_of: ReduceKind, x: Array, axes: Sequence[int]) -> Array:
    """`x`, which has its accumulator's dtype, reduced over `axes`; argmax and argmin reduce one axis and are int64."""
    if kind_of in ("argmax", "argmin"):
        if x.dtype == jnp.bool_:
            x = lax.convert_element_type(x, np.dtype("int8"))
        find = lax.argmax if kind_of == "argmax" else lax.argmin
        # Asked for int64, JAX would decide when it lowers, by its x64 flag.
        return lax.convert_element_type(find(x, axes[0], np.dtype("int32")), np.dtype("int64"))
    return getattr(lax, _REDUCE[kind_of])(x, tuple(axes))


def combine(kind_of: ReduceKind, x: Array, y: Array) -> Array:
    """Two partial results of a reduction combined."""
    return _COMBINE[kind_of](x, y)


def identity(kind_of: ReduceKind, dtype: str) -> Any:
    """The value of a reduction over no elements, as a numpy scalar."""
    return np.asarray(identity_of(kind_of, dtype)).astype(np.dtype(dtype))
