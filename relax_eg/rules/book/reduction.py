"""Sums of products and reductions of reductions."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.book.contraction import eye_mask
from relax_eg.rules.rule_set import RuleSet

reduction = RuleSet("reduction")
_rule = reduction.rule


@_rule("a: n k, b: k n", tags=("trace",), check=False)
def trace_of_product(a: Any, b: Any) -> Any:
    """trace(A B) = sum(A * B')"""
    product = a @ b
    masked = op.where(eye_mask(a.shape[0]), product, 0.0)
    return op.sum(masked, (0, 1)), op.sum(a * b.T, (0, 1))


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


@_rule("a: *b n, s:", both=True, tags=("sum",), check=False)
def sum_of_scaled(a: Any, s: Any) -> Any:
    """sum(A s) = sum(A) s over the last axis"""
    return op.sum(a * s, a.ndim - 1), op.sum(a, a.ndim - 1) * s


@_rule("a: *b n, c: *b n", both=True, tags=("sum",), check=False)
def sum_of_sum(a: Any, c: Any) -> Any:
    """sum(A + C) = sum(A) + sum(C) over the last axis"""
    return op.sum(a + c, a.ndim - 1), op.sum(a, a.ndim - 1) + op.sum(c, a.ndim - 1)


@_rule("a: m k, b: m k", tags=("sum",), check=False)
def squared_norm_of_product_rows(a: Any, b: Any) -> Any:
    """sum((A B') * I) = sum(A * B): the diagonal of a product, summed"""
    masked = op.where(eye_mask(a.shape[0]), a @ b.T, 0.0)
    return op.sum(masked, (0, 1)), op.sum(a * b, (0, 1))


@_rule("a: *b n", tags=("sum",), check=False)
def sum_of_negated(a: Any) -> Any:
    """sum(-A) = -sum(A) over the last axis"""
    return op.sum(-a, a.ndim - 1), -op.sum(a, a.ndim - 1)


# --- reductions of reductions, and of what only moves ---

Axes = tuple[int, ...]


def _of_moved(name: str) -> None:
    reduce = getattr(op, name)

    def of_reduction(x: Any, a: Axes, c: Axes) -> Any:
        inner = reduce(x, a)
        kept = [i for i in range(x.ndim) if i not in a]
        axes = tuple(sorted({*a, *(kept[i] for i in c)}))
        return reduce(inner, c), reduce(x, axes)

    def of_transpose(x: Any, p: Axes, a: Axes) -> Any:
        axes = tuple(sorted(p[i] for i in a))
        kept = [i for i in p if i not in axes]
        reduced = reduce(x, axes)
        order = tuple(sorted(kept).index(i) for i in kept)
        moved = reduced if order == tuple(range(len(order))) else op.permute_dims(reduced, order)
        return reduce(op.permute_dims(x, p), a), moved

    def of_merged_axes(x: Any) -> Any:
        rows, columns = x.ndim - 2, x.ndim - 1
        *b, m, n = x.shape
        return reduce(op.reshape(x, (*b, m * n)), x.ndim - 2), reduce(x, (rows, columns))

    def over_one(x: Any, axis: int) -> Any:
        return (reduce(x, axis), op.squeeze(x, axis)) if x.shape[axis] == 1 else None

    _rule(
        "x: *b", attrs={"a": f"{name}.axes", "c": f"{name}.axes"}, name=f"{name}_in_steps", phase="simplify",
        doc=f"{name}({name}(x, a), c) = {name}(x, both)", tags=(name, "variants"), check=False,
    )(of_reduction)  # fmt: skip
    _rule(
        "x: *b", attrs={"p": "permute_dims.axes", "a": f"{name}.axes"}, name=f"{name}_of_transpose", phase="simplify",
        doc=f"{name}(transpose(x, p), a) = transpose({name}(x, p[a])): only the result is transposed",
        tags=(name, "transpose", "variants"), check=False,
    )(of_transpose)  # fmt: skip
    _rule(
        "x: *b m n", name=f"{name}_of_merged_axes", doc=f"{name}(reshape(x, m n)) = {name}(x, both axes)",
        phase="simplify", when="n >= 1",
        tags=(name, "reshape", "variants"), check=False,
    )(of_merged_axes)  # fmt: skip
    _rule(
        "x: *b 1 *c", attrs={"axis": f"{name}.axes"}, name=f"{name}_over_one",
        doc=f"{name} over an axis of size 1 = x without it", phase="simplify", tags=(name, "variants"), check=False,
    )(lambda x, axis: over_one(x, axis[0]) if len(axis) == 1 else None)  # fmt: skip


# Not bit for bit: the order decides about the sign of a maximum of two zeros.
for _name in ("sum", "max", "min"):
    _of_moved(_name)


@_rule("x: *b", sizes="n", tags=("sum", "broadcast"), check=False)
def sum_of_copies(x: Any, n: Any) -> Any:
    """the sum of n copies of x = n x"""
    return op.sum(op.broadcast_to(x, (n, *x.shape)), 0), x * op.dim_value(n, x.dtype)


@_rule("x: *b", sizes="n", when="n >= 1", phase="simplify", tags=("max", "broadcast"), check=False)
def max_of_copies(x: Any, n: Any) -> Any:
    """the maximum of n copies of x = x"""
    return op.max(op.broadcast_to(x, (n, *x.shape)), 0), x


# --- what comes out of a sum ---


@_rule("a: *b n, c: *b n", both=True, tags=("sum",), check=False)
def sum_of_difference(a: Any, c: Any) -> Any:
    """sum(A - C) = sum(A) - sum(C) over the last axis"""
    return op.sum(a - c, a.ndim - 1), op.sum(a, a.ndim - 1) - op.sum(c, a.ndim - 1)


@_rule("a: *b n, c: *b 1", when="n >= 1", tags=("sum",), check=False)
def row_divisor_out_of_sum(a: Any, c: Any) -> Any:
    """sum(A / c) = sum(A) / c for one divisor c of each row"""
    return op.sum(a / c, a.ndim - 1), op.sum(a, a.ndim - 1) / op.squeeze(c, a.ndim - 1)


@_rule("a: *b n, s:", when="n >= 1", tags=("sum",), check=False)
def sum_of_quotient(a: Any, s: Any) -> Any:
    """sum(A / s) = sum(A) / s over the last axis"""
    return op.sum(a / s, a.ndim - 1), op.sum(a, a.ndim - 1) / s


# --- what comes out of a maximum ---


@_rule("a: *b n", numerics="exact", tags=("max",), check=False)
def max_of_negated(a: Any) -> Any:
    """max(-A) = -min(A) over the last axis"""
    return op.max(-a, a.ndim - 1), -op.min(a, a.ndim - 1)


@_rule("a: *b n", numerics="exact", tags=("max",), check=False)
def min_of_negated(a: Any) -> Any:
    """min(-A) = -max(A) over the last axis"""
    return op.min(-a, a.ndim - 1), -op.max(a, a.ndim - 1)


@_rule("a: *b n, c: *b 1", when="n >= 1", tags=("max",), check=False)
def shift_out_of_max(a: Any, c: Any) -> Any:
    """max(A + c) = max(A) + c for one shift c of each row"""
    return op.max(a + c, a.ndim - 1), op.max(a, a.ndim - 1) + op.squeeze(c, a.ndim - 1)


@_rule("a: *b n", when="n >= 1", tags=("max",), check=False)
def relu_out_of_max(a: Any) -> Any:
    """max(relu(A)) = relu(max(A))"""
    return op.max(op.relu(a), a.ndim - 1), op.relu(op.max(a, a.ndim - 1))


@_rule("a: *b n", when="n >= 1", tags=("max",), check=False)
def exp_out_of_max(a: Any) -> Any:
    """max(exp(A)) = exp(max(A)): one exponential for each row"""
    return op.max(op.exp(a), a.ndim - 1), op.exp(op.max(a, a.ndim - 1))


@_rule("a: *b n, c: *b n", tags=("max",), check=False)
def max_of_maxima(a: Any, c: Any) -> Any:
    """max(max(A, C)) over the last axis = max(max(A), max(C)): the maxima of elements are not stored"""
    last = a.ndim - 1
    return op.max(op.maximum(a, c), last), op.maximum(op.max(a, last), op.max(c, last))


# --- reductions of joined and padded tensors ---


@_rule("a: *b m, c: *b n", tags=("max", "concat"), check=False)
def max_of_concat(a: Any, c: Any) -> Any:
    """max([A, C]) = max(max(A), max(C)) over the joined axis"""
    last = a.ndim - 1
    return op.max(op.concat([a, c], last), last), op.maximum(op.max(a, last), op.max(c, last))


@_rule("a: m k, c: n k", tags=("sum", "concat"), check=False)
def row_sums_of_concat(a: Any, c: Any) -> Any:
    """rowsum([A; C]) = [rowsum(A); rowsum(C)]: the sums are concatenated, not the operands"""
    return op.sum(op.concat([a, c], 0), 1), op.concat([op.sum(a, 1), op.sum(c, 1)], 0)


@_rule("x: *b n", when="n >= 1", tags=("max", "log", "sum"), check=False)
def stable_log_of_sum_of_exponentials(x: Any) -> Any:
    """log(sum(exp(x))) = max(x) + log(sum(exp(x - max(x)))), where no exponential overflows"""
    last = x.ndim - 1
    most = op.max(x, last)
    stable = most + op.log(op.sum(op.exp(x - op.expand_dims(most, last)), last))
    return op.log(op.sum(op.exp(x), last)), stable


# --- truth values ---


@_rule("c: *b n @ bool", numerics="exact", tags=("any",), check=False)
def all_of_not(c: Any) -> Any:
    """all(not c) = not any(c)"""
    return op.all(op.logical_not(c), c.ndim - 1), op.logical_not(op.any(c, c.ndim - 1))


@_rule("c: *b n @ bool, d: *b n @ bool", numerics="exact", tags=("any",), check=False)
def any_of_or(c: Any, d: Any) -> Any:
    """any(c) or any(d) = any(c or d): one pass"""
    last = c.ndim - 1
    return op.logical_or(op.any(c, last), op.any(d, last)), op.any(op.logical_or(c, d), last)
