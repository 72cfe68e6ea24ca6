"""Laws that hold on part of the domain: roots, logarithms, quotients, comparisons, order, and special matrices.

Each requires the facts that make it true (`when=`), and is tested and proved under them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.book.contraction import eye_mask
from relax_eg.rules.rule_set import RuleSet

values = RuleSet("values")
_rule = values.rule


# --- signs ---


@_rule("x: *b", when="nonnegative(x)", phase="simplify", tags=("sign",), check=False)
def abs_of_nonnegative(x: Any) -> Any:
    """|x| = x for x >= 0 (not bit for bit: |-0| is 0)"""
    return op.abs(x), x


@_rule("x: *b", when="nonnegative(x)", phase="simplify", tags=("sign",), check=False)
def maximum_of_nonnegative_and_zero(x: Any) -> Any:
    """max(x, 0) = x for x >= 0"""
    return op.maximum(x, 0.0), x


@_rule("x: *b", when="nonnegative(x)", phase="simplify", tags=("sign",), check=False)
def relu_of_nonnegative(x: Any) -> Any:
    """relu(x) = x for x >= 0"""
    return op.relu(x), x


@_rule("x: *b", when="nonnegative(x)", phase="simplify", tags=("sign",), check=False)
def minimum_of_nonnegative_and_zero(x: Any) -> Any:
    """min(x, 0) = 0 for x >= 0"""
    return op.minimum(x, 0.0), op.full(x.shape, 0.0, x.dtype)


@_rule("x: *b", when="positive(x)", phase="simplify", tags=("sign",), check=False)
def sign_of_positive(x: Any) -> Any:
    """sign(x) = 1 for x > 0"""
    return op.sign(x), op.full(x.shape, 1.0, x.dtype)


def _comparison(name: str, law: str, left: Callable[[Any], Any], right: bool, when: tuple[str, ...]) -> None:
    def decided(x: Any) -> Any:
        return left(x), op.full(x.shape, right, "bool")

    _rule(
        "x: *b", name=name, doc=law, when=when, phase="simplify", numerics="exact", tags=("sign", "comparison"),
        check=False,
    )(decided)  # fmt: skip


_comparison("positive_is_greater", "x > 0 is true for positive numbers", lambda x: op.greater(x, 0.0), True,
            ("positive(x)", "finite(x)"))  # fmt: skip
_comparison("nonnegative_is_not_less", "x < 0 is false where no x is less than 0", lambda x: op.less(x, 0.0), False,
            ("nonnegative(x)",))  # fmt: skip
_comparison("nonnegative_is_at_least", "x >= 0 is true for nonnegative numbers", lambda x: op.greater_equal(x, 0.0),
            True, ("nonnegative(x)", "finite(x)"))  # fmt: skip
_comparison("positive_is_not_at_most", "x <= 0 is false where every x is greater than 0",
            lambda x: op.less_equal(x, 0.0), False, ("positive(x)",))  # fmt: skip
_comparison("nonzero_is_not_equal", "x != 0 is true where no x is 0", lambda x: op.not_equal(x, 0.0), True,
            ("nonzero(x)",))  # fmt: skip
_comparison("nonzero_equals_nothing", "x == 0 is false where no x is 0", lambda x: op.equal(x, 0.0), False,
            ("nonzero(x)",))  # fmt: skip
_comparison("finite_is_finite", "isfinite(x) is true for finite x", op.isfinite, True, ("finite(x)",))
_comparison("finite_is_no_nan", "isnan(x) is false for finite x", op.isnan, False, ("finite(x)",))
_comparison("finite_equals_itself", "x != x is false for finite x", lambda x: op.not_equal(x, x), False,
            ("finite(x)",))  # fmt: skip


@_rule("x: *b, y: *b", phase="simplify", numerics="exact", tags=("comparison",), check=False)
def where_of_false(x: Any, y: Any) -> Any:
    """where(false, x, y) = y"""
    return op.where(op.full(x.shape, False, "bool"), x, y), y


@_rule("x: *b, y: *b", phase="simplify", numerics="exact", tags=("comparison",), check=False)
def where_of_true(x: Any, y: Any) -> Any:
    """where(true, x, y) = x"""
    return op.where(op.full(x.shape, True, "bool"), x, y), x


@_rule("i: *b @ int32, m: @ int32", when="nonnegative(i)", phase="simplify", numerics="exact", tags=("comparison",),
       check=False)  # fmt: skip
def index_not_negative(i: Any, m: Any) -> Any:
    """where(i < 0, i + m, i) = i for i >= 0: the correction of negative indices that jax.numpy traces"""
    return op.where(op.less(i, 0), i + m, i), i


# --- roots ---


@_rule("x: *b", phase="simplify", tags=("root",), check=False)
def root_of_product_with_itself(x: Any) -> Any:
    """sqrt(x x) = |x|"""
    return op.sqrt(x * x), op.abs(x)


@_rule("x: *b", phase="simplify", tags=("root",), check=False)
def root_of_square(x: Any) -> Any:
    """sqrt(x ** 2) = |x|"""
    return op.sqrt(op.integer_pow(x, 2)), op.abs(x)


@_rule("x: *b", when="nonnegative(x)", phase="simplify", tags=("root",), check=False)
def square_of_root(x: Any) -> Any:
    """sqrt(x) ** 2 = x for x >= 0"""
    return op.integer_pow(op.sqrt(x), 2), x


@_rule("x: *b, y: *b", when=("nonnegative(x)", "nonnegative(y)"), tags=("root",), check=False)
def product_of_roots(x: Any, y: Any) -> Any:
    """sqrt(x) sqrt(y) = sqrt(x y) for x, y >= 0"""
    return op.sqrt(x) * op.sqrt(y), op.sqrt(x * y)


@_rule("x: *b, y: *b", when="positive(y)", tags=("root",), check=False)
def quotient_of_roots(x: Any, y: Any) -> Any:
    """sqrt(x) / sqrt(y) = sqrt(x / y) for y > 0"""
    return op.sqrt(x) / op.sqrt(y), op.sqrt(x / y)


@_rule("x: *b", when="positive(x)", tags=("root",), check=False)
def quotient_by_root(x: Any) -> Any:
    """x / sqrt(x) = sqrt(x) for x > 0"""
    return x / op.sqrt(x), op.sqrt(x)


@_rule("x: *b", when="positive(x)", tags=("root",), check=False)
def product_with_reciprocal_root(x: Any) -> Any:
    """x rsqrt(x) = sqrt(x) for x > 0"""
    return x * op.rsqrt(x), op.sqrt(x)


# --- exponentials, logarithms, powers ---


@_rule("x: *b", phase="simplify", tags=("log",), check=False)
def log_of_exp(x: Any) -> Any:
    """log(exp(x)) = x"""
    return op.log(op.exp(x)), x


@_rule("x: *b", when="positive(x)", phase="simplify", tags=("log",), check=False)
def exp_of_log(x: Any) -> Any:
    """exp(log(x)) = x for x > 0"""
    return op.exp(op.log(x)), x


@_rule("x: *b, y: *b", when="positive(y)", tags=("log",), check=False)
def sum_of_logs(x: Any, y: Any) -> Any:
    """log(x) + log(y) = log(x y) for y > 0: one logarithm instead of two; both are undefined where x is negative"""
    return op.log(x) + op.log(y), op.log(x * y)


@_rule("x: *b, y: *b", when="positive(y)", tags=("log",), check=False)
def difference_of_logs(x: Any, y: Any) -> Any:
    """log(x) - log(y) = log(x / y) for y > 0"""
    return op.log(x) - op.log(y), op.log(x / y)


@_rule("x: *b, y: *b", when="positive(y)", numerics="approximate", tags=("log",), check=False)
def log_of_product(x: Any, y: Any) -> Any:
    """log(x y) = log(x) + log(y) for y > 0: it may cancel where x y is near 1"""
    return op.log(x * y), op.log(x) + op.log(y)


@_rule("x: *b, y: *b", when="positive(y)", numerics="approximate", tags=("log",), check=False)
def log_of_quotient(x: Any, y: Any) -> Any:
    """log(x / y) = log(x) - log(y) for y > 0: it may cancel where x is near y"""
    return op.log(x / y), op.log(x) - op.log(y)


@_rule("x: *b", tags=("log",), check=False)
def log_of_reciprocal(x: Any) -> Any:
    """log(1 / x) = -log(x)"""
    return op.log(1.0 / x), -op.log(x)


@_rule("x: *b", tags=("log",), check=False)
def log_of_root(x: Any) -> Any:
    """log(sqrt(x)) = log(x) / 2"""
    return op.log(op.sqrt(x)), op.log(x) * 0.5


@_rule("x: *b", attrs={"y": "integer_pow.y"}, when="positive(x)", tags=("log",), check=False)
def log_of_power(x: Any, y: int) -> Any:
    """log(x ** y) = y log(x) for x > 0"""
    return op.log(op.integer_pow(x, y)), op.log(x) * float(y)


@_rule("x: *b, y: *b", when="positive(x)", tags=("log",), check=False)
def log_of_real_power(x: Any, y: Any) -> Any:
    """log(x ** y) = y log(x) for x > 0"""
    return op.log(op.power(x, y)), y * op.log(x)


@_rule("x: *b, y: *b, z: *b", when="positive(x)", numerics="approximate", tags=("power",), check=False)
def product_of_powers(x: Any, y: Any, z: Any) -> Any:
    """x ** y x ** z = x ** (y + z) for x > 0"""
    return op.power(x, y) * op.power(x, z), op.power(x, y + z)


@_rule("x: *b", tags=("power",), check=False)
def half_power(x: Any) -> Any:
    """x ** 0.5 = sqrt(x)"""
    return op.power(x, 0.5), op.sqrt(x)


# --- quotients ---


@_rule("x: *b", when=("nonzero(x)", "finite(x)"), phase="simplify", numerics="exact", tags=("quotient",), check=False)
def quotient_of_itself(x: Any) -> Any:
    """x / x = 1 for finite x other than 0"""
    return x / x, op.full(x.shape, 1.0, x.dtype)


@_rule("x: *b", when="finite(x)", phase="simplify", numerics="exact", tags=("quotient",), check=False)
def difference_of_itself(x: Any) -> Any:
    """x - x = 0 for finite x"""
    return x - x, op.full(x.shape, 0.0, x.dtype)


@_rule("x: *b", when="finite(x)", phase="simplify", tags=("quotient",), check=False)
def product_with_zero(x: Any) -> Any:
    """x 0 = 0 for finite x (not bit for bit: -1 * 0 is -0; for other x a NaN would be lost)"""
    return x * 0.0, op.full(x.shape, 0.0, x.dtype)


@_rule("x: *b, y: *b", when="nonzero(y)", phase="simplify", tags=("quotient",), check=False)
def product_over_factor(x: Any, y: Any) -> Any:
    """(x y) / y = x for y that are not 0"""
    return (x * y) / y, x


@_rule("x: *b, y: *b", when="nonzero(y)", phase="simplify", tags=("quotient",), check=False)
def quotient_times_divisor(x: Any, y: Any) -> Any:
    """(x / y) y = x for y that are not 0"""
    return (x / y) * y, x


@_rule("x: *b, y: *b, z: *b", when="nonzero(z)", tags=("quotient",), check=False)
def common_factor_of_quotient(x: Any, y: Any, z: Any) -> Any:
    """(x z) / (y z) = x / y for z that are not 0"""
    return (x * z) / (y * z), x / y


@_rule("x: *b, y: *b, z: *b", when="nonzero(z)", tags=("quotient",), check=False)
def quotient_by_quotient(x: Any, y: Any, z: Any) -> Any:
    """x / (y / z) = (x z) / y for z that are not 0"""
    return x / (y / z), (x * z) / y


@_rule("x: *b", when="nonzero(x)", phase="simplify", tags=("quotient",), check=False)
def reciprocal_of_reciprocal(x: Any) -> Any:
    """1 / (1 / x) = x for x that are not 0"""
    return 1.0 / (1.0 / x), x


@_rule("x: *b, c:", when="is_constant(c)", numerics="approximate", tags=("quotient",), check=False)
def quotient_by_constant(x: Any, c: Any) -> Any:
    """x / c = x (1 / c): the reciprocal of a constant is taken once"""
    return x / c, x * (1.0 / c)


# --- whole numbers ---


@_rule("x: *b", when="integral(x)", phase="simplify", numerics="exact", tags=("integral",), check=False)
def floor_of_integral(x: Any) -> Any:
    """floor(x) = x for whole x"""
    return op.floor(x), x


@_rule("x: *b", when="integral(x)", phase="simplify", numerics="exact", tags=("integral",), check=False)
def ceil_of_integral(x: Any) -> Any:
    """ceil(x) = x for whole x"""
    return op.ceil(x), x


@_rule(
    "x: *b", attrs={"method": "round.method"}, when="integral(x)", phase="simplify", numerics="exact",
    tags=("integral",), check=False,
)  # fmt: skip
def round_of_integral(x: Any, method: str) -> Any:
    """round(x) = x for whole x"""
    return op.round(x, method), x


# --- order, and reductions of what is known ---


@_rule("x: *b n", when="sorted(x)", phase="simplify", numerics="exact", tags=("sorted",), check=False)
def sort_of_sorted(x: Any) -> Any:
    """sort(x) = x for sorted x"""
    return op.sort(x), x


@_rule("x: *b n", when=("sorted(x)", "n >= 1"), tags=("sorted",), check=False)
def max_of_sorted(x: Any) -> Any:
    """max(x) = x[-1] for sorted x (the sign of a zero may differ, because zeros sort as equals)"""
    n = x.shape[-1]
    last = op.strided_slice(x, (*(0,) * (x.ndim - 1), n - 1), x.shape)
    return op.max(x, x.ndim - 1), op.squeeze(last, x.ndim - 1)


@_rule("x: *b n", when=("sorted(x)", "finite(x)", "n >= 1"), tags=("sorted",), check=False)
def min_of_sorted(x: Any) -> Any:
    """min(x) = x[0] for sorted and finite x (for other x a NaN would be lost)"""
    first = op.strided_slice(x, (0,) * x.ndim, (*x.shape[:-1], 1))
    return op.min(x, x.ndim - 1), op.squeeze(first, x.ndim - 1)


@_rule("x: *b n, s:", when=("nonnegative(s)", "n >= 1"), both=True, tags=("max",), check=False)
def max_of_scaled(x: Any, s: Any) -> Any:
    """max(x s) = max(x) s for s >= 0"""
    return op.max(x * s, x.ndim - 1), op.max(x, x.ndim - 1) * s


# --- special matrices ---


@_rule("x: *b n n", when="symmetric(x)", phase="simplify", numerics="exact", tags=("matrix", "transpose"), check=False)
def transpose_of_symmetric(x: Any) -> Any:
    """S' = S for symmetric S"""
    return op.swapaxes(x, -1, -2), x


@_rule("x: *b n n", when="lower triangular(x)", phase="simplify", tags=("matrix",), check=False)
def tril_of_lower(x: Any) -> Any:
    """tril(L) = L for lower triangular L"""
    return op.tril(x), x


@_rule("x: *b n n", when="upper triangular(x)", phase="simplify", tags=("matrix",), check=False)
def triu_of_upper(x: Any) -> Any:
    """triu(U) = U for upper triangular U"""
    return op.triu(x), x


def lower_mask(n: Any) -> Any:
    """The boolean matrix, true at and below the diagonal, as `jnp.tril` builds it."""
    return op.greater_equal(op.iota((n, n), axis=0, dtype="int32") + 0, op.iota((n, n), axis=1, dtype="int32"))


@_rule("x: n n", when="lower triangular(x)", phase="simplify", tags=("matrix",), check=False)
def masked_lower(x: Any) -> Any:
    """tril(L) = L for lower triangular L, as jax.numpy writes tril"""
    return op.where(lower_mask(x.shape[0]), x, 0.0), x


@_rule("x: n n", when="symmetric(x)", phase="simplify", tags=("matrix",), check=False)
def mean_with_transpose(x: Any) -> Any:
    """(S + S') / 2 = S for symmetric S"""
    return (x + x.T) / 2.0, x


@_rule("d: n n, a: n p", when="diagonal(d)", tags=("matrix", "matmul"), check=False)
def diagonal_matrix_times_matrix(d: Any, a: Any) -> Any:
    """D A = rowsum(D)[:, None] * A for diagonal D"""
    return d @ a, op.sum(d, 1, keepdims=True) * a


@_rule("d: n n, v: n", when="diagonal(d)", tags=("matrix", "matmul"), check=False)
def diagonal_matrix_times_vector(d: Any, v: Any) -> Any:
    """D v = rowsum(D) * v for diagonal D"""
    return d @ v, op.sum(d, 1) * v


@_rule("a: *b m n, d: n n", when="diagonal(d)", tags=("matrix", "matmul"), check=False)
def matrix_times_diagonal_matrix(a: Any, d: Any) -> Any:
    """A D = A * colsum(D) for diagonal D"""
    return a @ d, a * op.sum(d, 0)


@_rule("q: n n", when="orthogonal(q)", numerics="approximate", tags=("matrix", "matmul"), check=False)
def orthogonal_times_its_transpose(q: Any) -> Any:
    """Q Q' = I for orthogonal Q, up to the rounding of Q"""
    return q @ q.T, op.astype(eye_mask(q.shape[0]), q.dtype)


@_rule("q: n n", when="orthogonal(q)", numerics="approximate", tags=("matrix", "matmul"), check=False)
def transpose_of_orthogonal_times_it(q: Any) -> Any:
    """Q' Q = I for orthogonal Q, up to the rounding of Q"""
    return q.T @ q, op.astype(eye_mask(q.shape[0]), q.dtype)


@_rule("h: m n, w: n p", when=("one-hot(h)", "n >= 1"), tags=("matrix", "matmul", "rows"), check=False)
def one_hot_times_matrix(h: Any, w: Any) -> Any:
    """H W = W[argmax(H)] for one-hot rows H: a lookup instead of a matmul"""
    return h @ w, op.take(w, op.argmax(h), 0, mode="clip")


@_rule("h: m n, v: n", when=("one-hot(h)", "n >= 1"), tags=("matrix", "matmul", "rows"), check=False)
def one_hot_times_vector(h: Any, v: Any) -> Any:
    """H v = v[argmax(H)] for one-hot rows H"""
    return h @ v, op.take(v, op.argmax(h), 0, mode="clip")
