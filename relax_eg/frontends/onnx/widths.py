"""Half precision: sums and what is made of them are taken in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op

_HALF = ("float16", "bfloat16")


def wide(dtype: str) -> str:
    """The dtype in which sums of `dtype` are taken."""
    return "float32" if dtype in _HALF else dtype


def in_float32(f: Callable[..., Expr], *xs: Expr) -> Expr:
    """`f` of operands of one dtype; of half precision in float32, rounded to that dtype."""
    return op.astype(f(*(op.astype(x, wide(x.dtype)) for x in xs)), xs[0].dtype)
