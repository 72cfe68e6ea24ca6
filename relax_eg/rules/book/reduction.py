"""Sums of products and reductions of reductions."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.book.contraction import eye_mask
from relax_eg.rules.rule import RuleSet

reduction = RuleSet("reduction")
_rule = reduction.rule


@_rule("a: n k, b: k n", tags=("trace",), check=False)
def trace_of_product(a: Any, b: Any) -> Any:
    """trace(A B) = sum(A * B')"""
    product = a @ b
    masked = op.where(eye_mask(a.shape[0]), product, 0.0)
    return op.sum(masked, (0, 1)), op.sum(a * b.T, (0, 1))


@_rule("a: n n", both=True, tags=("trace",), check=False)
def trace_of_transpose(a: Any) -> Any:
    """trace(A') = trace(A)"""
    zero = 0.0
    mask = eye_mask(a.shape[0])
    return op.sum(op.where(mask, a.T, zero), (0, 1)), op.sum(op.where(mask, a, zero), (0, 1))


@_rule("a: m k, b: k n", tags=("sum",), check=False)
def sum_of_matmul(a: Any, b: Any) -> Any:
    """sum(A B) = colsum(A) . rowsum(B)"""
    return op.sum(a @ b, (0, 1)), op.sum(a, 0) @ op.sum(b, 1)


@_rule("a: m k, b: k n", tags=("sum",), check=False)
def sum_of_matmul_by_rows(a: Any, b: Any) -> Any:
    """sum(A B) = sum(A rowsum(B))"""
    return op.sum(a @ b, (0, 1)), op.sum(a @ op.sum(b, 1), 0)


@_rule("a: m k, b: k n", tags=("sum",), check=False)
def column_sum_of_matmul(a: Any, b: Any) -> Any:
    """colsum(A B) = colsum(A) B"""
    return op.sum(a @ b, 0), op.sum(a, 0) @ b


@_rule("a: *b m k, b: k n", tags=("sum",), check=False)
def row_sum_of_matmul(a: Any, b: Any) -> Any:
    """rowsum(A B) = A rowsum(B)"""
    return op.sum(a @ b, a.ndim - 1), a @ op.sum(b, 1)


@_rule("a: *b n, s:", both=True, tags=("sum",), check=False)
def sum_of_scaled(a: Any, s: Any) -> Any:
    """sum(A s) = sum(A) s over the last axis"""
    return op.sum(a * s, a.ndim - 1), op.sum(a, a.ndim - 1) * s


@_rule("a: *b n, c: *b n", both=True, tags=("sum",), check=False)
def sum_of_sum(a: Any, c: Any) -> Any:
    """sum(A + C) = sum(A) + sum(C) over the last axis"""
    return op.sum(a + c, a.ndim - 1), op.sum(a, a.ndim - 1) + op.sum(c, a.ndim - 1)


@_rule("a: m n", tags=("sum",), phase="simplify", check=False)
def sum_of_row_sums(a: Any) -> Any:
    """sum(sum(A, 1), 0) = sum(A)"""
    return op.sum(op.sum(a, 1), 0), op.sum(a, (0, 1))


@_rule("a: m n", tags=("sum",), phase="simplify", check=False)
def sum_of_column_sums(a: Any) -> Any:
    """sum(sum(A, 0), 0) = sum(A)"""
    return op.sum(op.sum(a, 0), 0), op.sum(a, (0, 1))


@_rule("a: m n", tags=("max",), phase="simplify", numerics="exact", check=False)
def max_of_row_maxima(a: Any) -> Any:
    """max(max(A, 1), 0) = max(A)"""
    return op.max(op.max(a, 1), 0), op.max(a, (0, 1))


@_rule("a: m n", tags=("sum", "transpose"), phase="simplify", check=False)
def column_sum_of_transpose(a: Any) -> Any:
    """sum(A', 0) = sum(A, 1)"""
    return op.sum(a.T, 0), op.sum(a, 1)


@_rule("a: m n", tags=("sum", "transpose"), phase="simplify", check=False)
def row_sum_of_transpose(a: Any) -> Any:
    """sum(A', 1) = sum(A, 0)"""
    return op.sum(a.T, 1), op.sum(a, 0)


@_rule("a: m n", tags=("sum", "transpose"), phase="simplify", check=False)
def sum_of_transpose(a: Any) -> Any:
    """sum(A') = sum(A)"""
    return op.sum(a.T, (0, 1)), op.sum(a, (0, 1))


@_rule("a: m k, b: m k", tags=("sum",), check=False)
def squared_norm_of_product_rows(a: Any, b: Any) -> Any:
    """sum((A B') * I) = sum(A * B): the diagonal of a product, summed"""
    masked = op.where(eye_mask(a.shape[0]), a @ b.T, 0.0)
    return op.sum(masked, (0, 1)), op.sum(a * b, (0, 1))


@_rule("a: *b n", tags=("sum",), check=False)
def sum_of_negated(a: Any) -> Any:
    """sum(-A) = -sum(A) over the last axis"""
    return op.sum(-a, a.ndim - 1), -op.sum(a, a.ndim - 1)


@_rule("x:", sizes="n", tags=("sum",), check=False)
def sum_of_broadcast_scalar(x: Any, n: Any) -> Any:
    """sum of n copies of x = n x"""
    return op.sum(op.broadcast_to(x, (n,)), 0), x * op.dim_value(n, x.dtype)
