"""Sums of products and reductions of reductions."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.book.contraction import SCALES, eye_mask
from relax_eg.rules.rule_set import RuleSet

reduction = RuleSet("reduction")
_rule = reduction.rule

Axes = tuple[int, ...]


@_rule("a: n k, b: k n", tags=("trace",))
def trace_of_product(a: Any, b: Any) -> Any:
    """trace(A B) = sum(A * B')"""
    product = a @ b
    masked = op.where(eye_mask(a.shape[0]), product, 0.0)
    return op.sum(masked, (0, 1)), op.sum(a * b.T, (0, 1))


@_rule("a: m k, b: k n", tags=("sum",))
def sum_of_matmul(a: Any, b: Any) -> Any:
    """sum(A B) = colsum(A) . rowsum(B)"""
    return op.sum(a @ b, (0, 1)), op.sum(a, 0) @ op.sum(b, 1)


@_rule("a: m k, b: k n", tags=("sum",))
def sum_of_matmul_by_rows(a: Any, b: Any) -> Any:
    """sum(A B) = sum(A rowsum(B))"""
    return op.sum(a @ b, (0, 1)), op.sum(a @ op.sum(b, 1), 0)


@_rule("a: *b n, s:", both=True, tags=("sum", SCALES))
def sum_of_scaled(a: Any, s: Any) -> Any:
    """sum(A s) = sum(A) s over the last axis"""
    return op.sum(a * s, a.ndim - 1), op.sum(a, a.ndim - 1) * s


# One way only: what comes out of a sum, `out_of_reductions` says.
@_rule("a: *b, c: *b", attrs={"f": "add | subtract", "axes": "sum.axes"}, tags=("sum",))
def sums_at_once(a: Any, c: Any, f: Any, axes: Axes) -> Any:
    """f(sum(A), sum(C)) = sum(f(A, C)) over any axes, for a sum and a difference: one pass"""
    return f(op.sum(a, axes), op.sum(c, axes)), op.sum(f(a, c), axes)


@_rule("a: m k, b: m k", tags=("sum",))
def squared_norm_of_product_rows(a: Any, b: Any) -> Any:
    """sum((A B') * I) = sum(A * B): the diagonal of a product, summed"""
    masked = op.where(eye_mask(a.shape[0]), a @ b.T, 0.0)
    return op.sum(masked, (0, 1)), op.sum(a * b, (0, 1))


# --- reductions of reductions, and of what only moves ---


@_rule("x: *b", attrs={"p": "permute_dims.axes", "a": "sum.axes"}, phase="simplify", tags=("sum", "transpose"))
def sum_of_transpose(x: Any, p: Axes, a: Axes) -> Any:
    """sum(transpose(x, p), a) = transpose(sum(x, p[a])): only the result is transposed"""
    axes = tuple(sorted(p[i] for i in a))
    kept = [i for i in p if i not in axes]
    reduced = op.sum(x, axes)
    order = tuple(sorted(kept).index(i) for i in kept)
    moved = reduced if order == tuple(range(len(order))) else op.permute_dims(reduced, order)
    return op.sum(op.permute_dims(x, p), a), moved


# Not bit for bit: the order decides about the sign of a maximum of two zeros.
@_rule("x: *b 1 *c", attrs={"f": "sum | max | min", "axis": "sum | max | min.axes"}, phase="simplify",
       tags=("sum", "max", "min", "variants"))  # fmt: skip
def reduction_over_one(x: Any, f: Any, axis: Axes) -> Any:
    """f(x) over an axis of size 1 = x without it, for a sum, a maximum or a minimum"""
    is_one = len(axis) == 1 and x.shape[axis[0]] == 1
    return (f(x, axis), op.squeeze(x, axis)) if is_one else None


# --- what comes out of a maximum ---


@_rule("a: *b n", numerics="exact", tags=("max",))
def max_of_negated(a: Any) -> Any:
    """max(-A) = -min(A) over the last axis"""
    return op.max(-a, a.ndim - 1), -op.min(a, a.ndim - 1)


# --- reductions of joined and padded tensors ---


@_rule("a: m k, c: n k", tags=("sum", "concat"))
def row_sums_of_concat(a: Any, c: Any) -> Any:
    """rowsum([A; C]) = [rowsum(A); rowsum(C)]: the sums are concatenated, not the operands"""
    return op.sum(op.concat([a, c], 0), 1), op.concat([op.sum(a, 1), op.sum(c, 1)], 0)


# --- truth values ---


@_rule("c: *b n @ bool", numerics="exact", tags=("any",))
def all_of_not(c: Any) -> Any:
    """all(not c) = not any(c)"""
    return op.all(op.logical_not(c), c.ndim - 1), op.logical_not(op.any(c, c.ndim - 1))


@_rule("c: *b n @ bool, d: *b n @ bool", numerics="exact", tags=("any",))
def any_of_or(c: Any, d: Any) -> Any:
    """any(c) or any(d) = any(c or d): one pass"""
    last = c.ndim - 1
    return op.logical_or(op.any(c, last), op.any(d, last)), op.any(op.logical_or(c, d), last)
