"""Half precision: sums and values derived from them are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.reduction import accumulator


def computed_in_float32(f: Callable[..., Expr], *xs: Expr) -> Expr:
    """`f` applied to operands of one dtype. Half precision is computed in float32, and the result is rounded back."""
    return op.astype(f(*(op.astype(x, accumulator(x.dtype)) for x in xs)), xs[0].dtype)
