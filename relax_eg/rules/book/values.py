"""Laws that hold on part of the domain: roots, logarithms, quotients, comparisons, order, and special matrices.

Each requires the facts that make it true (`when=`), and is tested and proved under them.
"""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.book.contraction import eye_mask
from relax_eg.rules.rule_set import RuleSet

values = RuleSet("values")
_rule = values.rule


# --- signs ---


@_rule("i: *b @ int32, m: @ int32", when="nonnegative(i)", phase="simplify", numerics="exact", tags=("comparison",))
def index_not_negative(i: Any, m: Any) -> Any:
    """where(i < 0, i + m, i) = i for i >= 0: the correction of negative indices that jax.numpy traces"""
    return op.where(op.less(i, 0), i + m, i), i


@_rule("x: *b, i: *c @ int32", attrs={"a": "take.axis"}, phase="simplify", numerics="exact", tags=("take",))
def taken_by_narrow_positions(x: Any, i: Any, a: Any) -> Any:
    """take(x, int64(i)) = take(x, i): positions as jax.numpy widens them in JAX's x64 mode"""
    return op.take(x, op.astype(i, "int64"), a, mode="clip"), op.take(x, i, a, mode="clip")


# --- exponentials, logarithms, powers ---


@_rule("x: *b", phase="simplify", tags=("log",))
def log_of_exp(x: Any) -> Any:
    """log(exp(x)) = x"""
    return op.log(op.exp(x)), x


@_rule("x: *b", when="positive(x)", phase="simplify", tags=("log",))
def exp_of_log(x: Any) -> Any:
    """exp(log(x)) = x for x > 0"""
    return op.exp(op.log(x)), x


@_rule("x: *b, y: *b", when="positive(y)", tags=("log",))
def sum_of_logs(x: Any, y: Any) -> Any:
    """log(x) + log(y) = log(x y) for y > 0: one logarithm instead of two; both are undefined where x is negative"""
    return op.log(x) + op.log(y), op.log(x * y)


@_rule("x: *b", attrs={"y": "integer_pow.y"}, when="positive(x)", tags=("log",))
def log_of_power(x: Any, y: int) -> Any:
    """log(x ** y) = y log(x) for x > 0"""
    return op.log(op.integer_pow(x, y)), op.log(x) * float(y)


@_rule("x: *b, y: *b", when="positive(x)", tags=("log",))
def log_of_real_power(x: Any, y: Any) -> Any:
    """log(x ** y) = y log(x) for x > 0"""
    return op.log(op.power(x, y)), y * op.log(x)


@_rule("x: *b, y: *b, z: *b", when="positive(x)", numerics="approximate", tags=("power",))
def product_of_powers(x: Any, y: Any, z: Any) -> Any:
    """x ** y x ** z = x ** (y + z) for x > 0"""
    return op.power(x, y) * op.power(x, z), op.power(x, y + z)


# --- quotients ---


@_rule("x: *b", when=("nonzero(x)", "finite(x)"), phase="simplify", numerics="exact", tags=("quotient",))
def quotient_of_itself(x: Any) -> Any:
    """x / x = 1 for finite x other than 0"""
    return x / x, op.full(x.shape, 1.0, x.dtype)


@_rule("x: *b, y: *b", when="nonzero(y)", phase="simplify", tags=("quotient",))
def product_over_factor(x: Any, y: Any) -> Any:
    """(x y) / y = x for y that are not 0"""
    return (x * y) / y, x


@_rule("x: *b, y: *b", when="nonzero(y)", phase="simplify", tags=("quotient",))
def quotient_times_divisor(x: Any, y: Any) -> Any:
    """(x / y) y = x for y that are not 0"""
    return (x / y) * y, x


@_rule("x: *b, c:", when="is_constant(c)", numerics="approximate", tags=("quotient",))
def quotient_by_constant(x: Any, c: Any) -> Any:
    """x / c = x (1 / c): the reciprocal of a constant is taken once"""
    return x / c, x * (1.0 / c)


# --- order, and reductions of what is known ---


@_rule("x: *b n", when="sorted(x)", phase="simplify", numerics="exact", tags=("sorted",))
def sort_of_sorted(x: Any) -> Any:
    """sort(x) = x for sorted x"""
    return op.sort(x), x


@_rule("x: *b n", when=("sorted(x)", "n >= 1"), tags=("sorted",))
def max_of_sorted(x: Any) -> Any:
    """max(x) = x[-1] for sorted x (the sign of a zero may differ, because zeros sort as equals)"""
    n = x.shape[-1]
    last = op.strided_slice(x, (*(0,) * (x.ndim - 1), n - 1), x.shape)
    return op.max(x, x.ndim - 1), op.squeeze(last, x.ndim - 1)


@_rule("x: *b n", when=("sorted(x)", "finite(x)", "n >= 1"), tags=("sorted",))
def min_of_sorted(x: Any) -> Any:
    """min(x) = x[0] for sorted and finite x (for other x a NaN would be lost)"""
    first = op.strided_slice(x, (0,) * x.ndim, (*x.shape[:-1], 1))
    return op.min(x, x.ndim - 1), op.squeeze(first, x.ndim - 1)


# --- special matrices ---


@_rule("x: *b n n", when="symmetric(x)", phase="simplify", numerics="exact", tags=("matrix", "transpose"))
def transpose_of_symmetric(x: Any) -> Any:
    """S' = S for symmetric S"""
    return op.swapaxes(x, -1, -2), x


def lower_mask(n: Any) -> Any:
    """The boolean matrix, true at and below the diagonal, as `jnp.tril` builds it."""
    return op.greater_equal(op.iota((n, n), axis=0, dtype="int32") + 0, op.iota((n, n), axis=1, dtype="int32"))


@_rule("x: n n", when="lower triangular(x)", phase="simplify", tags=("matrix",))
def masked_lower(x: Any) -> Any:
    """tril(L) = L for lower triangular L, as jax.numpy writes tril"""
    return op.where(lower_mask(x.shape[0]), x, 0.0), x


@_rule("x: n n", when="symmetric(x)", phase="simplify", tags=("matrix",))
def mean_with_transpose(x: Any) -> Any:
    """(S + S') / 2 = S for symmetric S"""
    return (x + x.T) / 2.0, x


@_rule("d: n n, a: n p", when="diagonal(d)", tags=("matrix", "matmul"))
def diagonal_matrix_times_matrix(d: Any, a: Any) -> Any:
    """D A = rowsum(D)[:, None] * A for diagonal D"""
    return d @ a, op.sum(d, 1, keepdims=True) * a


@_rule("a: *b m n, d: n n", when="diagonal(d)", tags=("matrix", "matmul"))
def matrix_times_diagonal_matrix(a: Any, d: Any) -> Any:
    """A D = A * colsum(D) for diagonal D"""
    return a @ d, a * op.sum(d, 0)


@_rule("q: n n", when="orthogonal(q)", numerics="approximate", tags=("matrix", "matmul"))
def orthogonal_times_its_transpose(q: Any) -> Any:
    """Q Q' = I for orthogonal Q, up to the rounding of Q"""
    return q @ q.T, op.astype(eye_mask(q.shape[0]), q.dtype)


@_rule("q: n n", when="orthogonal(q)", numerics="approximate", tags=("matrix", "matmul"))
def transpose_of_orthogonal_times_it(q: Any) -> Any:
    """Q' Q = I for orthogonal Q, up to the rounding of Q"""
    return q.T @ q, op.astype(eye_mask(q.shape[0]), q.dtype)


@_rule("h: m n, w: n p", when=("one-hot(h)", "n >= 1"), tags=("matrix", "matmul", "rows"))
def one_hot_times_matrix(h: Any, w: Any) -> Any:
    """H W = W[argmax(H)] for one-hot rows H: a lookup instead of a matmul"""
    return h @ w, op.take(w, op.argmax(h), 0, mode="clip")
