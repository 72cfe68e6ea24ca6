"""Integer quotients on JAX: also by a zero that XLA knows while it compiles, on which it would end the process."""

from __future__ import annotations

from typing import Any

from relax_eg.ir.annotations import is_integer


def quotient(x: Any, y: Any) -> Any:
    """`lax.div`; of integers by 0, all bits are set."""
    from jax import lax

    if not is_integer(x.dtype.name):
        return lax.div(x, y)
    zero = lax.eq(y, lax.full_like(y, 0))
    return lax.select(zero, lax.bitwise_not(lax.full_like(x, 0)), lax.div(x, _not_zero(zero, y)))


def rest(x: Any, y: Any) -> Any:
    """`lax.rem`; of integers by 0, the dividend."""
    from jax import lax

    if not is_integer(x.dtype.name):
        return lax.rem(x, y)
    zero = lax.eq(y, lax.full_like(y, 0))
    return lax.select(zero, x, lax.rem(x, _not_zero(zero, y)))


def _not_zero(zero: Any, y: Any) -> Any:
    from jax import lax

    return lax.select(zero, lax.full_like(y, 1), y)
