"""`dot_general` as `matmul`, with the axes brought into place around it."""

from __future__ import annotations

from typing import Any

from relax_eg.frontends.jax_equation import ONE, Equation, astype, expanded, permuted, reshaped, squeezed
from relax_eg.ir.expr import Expr
from relax_eg.ops.contraction import accumulates
from relax_eg.ops.record import call
from relax_eg.shapes import Dim

_PRECISIONS = ("default", "high", "highest")


def dot_general(e: Equation) -> Expr | None:
    """Batch axes lead on both sides. Without batch axes a left side of any rank and a right side of rank 1 or 2 need no
    reshape: that is numpy's matmul. Else each side's free axes are one axis, made by a reshape where there are several.
    """
    a, b = e.args
    precision = precision_of(e["precision"])
    dtype = common_dtype(a, b, e.dtype)
    if precision == "odd" or dtype is None:
        return None
    a, b = astype(a, dtype), astype(b, dtype)
    (contract_a, contract_b), (batch_a, batch_b) = e["dimension_numbers"]
    # The pairs may be contracted in any order; the left's own needs the fewest moves.
    pairs = sorted(zip(contract_a, contract_b, strict=True))
    contract_a, contract_b = [p[0] for p in pairs], [p[1] for p in pairs]
    free_a = [i for i in range(a.ndim) if i not in contract_a and i not in batch_a]
    free_b = [i for i in range(b.ndim) if i not in contract_b and i not in batch_b]
    a = permuted(a, [*batch_a, *free_a, *contract_a])
    b = permuted(b, [*batch_b, *contract_b, *free_b])
    batch = len(batch_a)
    if not pairs:
        return _outer(a, b, batch, len(free_a), e.dtype)
    out_dtype = None if e.dtype == a.dtype else e.dtype
    attrs = {"precision": precision, "out_dtype": out_dtype}
    lead, free, inner = a.shape[:batch], a.shape[batch : batch + len(free_a)], a.shape[batch + len(free_a) :]
    outer = b.shape[batch + len(pairs) :]
    k = _product(inner)
    if batch == 0:
        a = reshaped(a, (*free, k))
        b = reshaped(b, (k,) if not outer else (k, _product(outer)))
        return reshaped(call("matmul", (a, b), attrs), e.shape)
    drop: list[int] = []
    if free_a:
        a = reshaped(a, (*lead, _product(free), k))
    else:
        a = expanded(reshaped(a, (*lead, k)), (batch,))
        drop.append(batch)
    if outer:
        b = reshaped(b, (*lead, k, _product(outer)))
    else:
        b = expanded(reshaped(b, (*lead, k)), (batch + 1,))
        drop.append(batch + 1)
    return reshaped(squeezed(call("matmul", (a, b), attrs), drop), e.shape)


def _outer(a: Expr, b: Expr, batch: int, free: int, dtype: str) -> Expr:
    """A product without contraction."""
    a, b = astype(a, dtype), astype(b, dtype)
    rank = a.ndim + b.ndim - batch
    if not a.ndim or not b.ndim:
        return call("multiply", (a, b))
    b = expanded(b, range(batch, batch + free)) if batch else b
    return call("multiply", (expanded(a, range(a.ndim, rank)), b))


def common_dtype(a: Expr, b: Expr, out: str) -> str | None:
    """The dtype both operands of a product get: their own, or that of the result where they differ and keep their
    values in it."""
    if a.dtype == b.dtype:
        return a.dtype
    return out if accumulates(a.dtype, out) and accumulates(b.dtype, out) else None


def _product(dims: tuple[Dim, ...]) -> Dim:
    total = ONE
    for d in dims:
        total = total * d
    return total


def precision_of(value: Any) -> str | None:
    """The operator's spelling; "odd" for what it cannot express."""
    if isinstance(value, tuple):
        first, second = value
        if first != second:
            return "odd"
        value = first
    if value is None:
        return None
    name = str(getattr(value, "name", value)).lower()
    return name if type(value).__name__ == "Precision" and name in _PRECISIONS else "odd"
