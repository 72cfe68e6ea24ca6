"""Rules for the checker's tests: `good` ones, and `bad` ones: the traps of the catalogue and subtly wrong others."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules import RuleSet

good = RuleSet("good")
bad = RuleSet("bad")
# The required content of the counterexample of a wrong rule: a part of its text, and its sizes.
told: dict[str, tuple[str, dict[str, int]]] = {}


def right(shapes: str, **options: Any) -> Any:
    return good.rule(shapes, check=False, **options)


def wrong(shapes: str, says: str = "", at: dict[str, int] | None = None, **options: Any) -> Any:
    def register(function: Any) -> Any:
        told[options.get("name") or function.__name__] = says, at or {}
        return bad.rule(shapes, check=False, **options)(function)

    return register


def trace(x: Any) -> Any:
    return op.trace(x)


# --- good ---


@right("a: m k, b: k n, v: n", both=True)
def associates(a: Any, b: Any, v: Any) -> Any:
    return (a @ b) @ v, a @ (b @ v)


@right("a: *b m k, b: k n, c: k n", both=True)
def distributes(a: Any, b: Any, c: Any) -> Any:
    return a @ (b + c), a @ b + a @ c


@right("a: n k, b: k n", both=True)
def trace_of_product(a: Any, b: Any) -> Any:
    return trace(a @ b), op.sum(a * b.T)


@right("a: m k, b: k n", numerics="exact")
def transpose_of_product(a: Any, b: Any) -> Any:
    return (a @ b).T, b.T @ a.T


@right("x: *b", attrs={"p": "permute_dims.axes", "q": "permute_dims.axes"}, numerics="exact")
def transpose_of_transpose(x: Any, p: Any, q: Any) -> Any:
    if not len(p) == len(q) == x.ndim:
        return None
    return op.permute_dims(op.permute_dims(x, p), q), op.permute_dims(x, tuple(p[i] for i in q))


@right("x: *b", attrs={"p": "permute_dims.axes"}, numerics="exact")
def exp_of_transpose(x: Any, p: Any) -> Any:
    return op.exp(op.permute_dims(x, p)), op.permute_dims(op.exp(x), p)


@right("x: *b", attrs={"axes": "sum.axes", "keepdims": "sum.keepdims"})
def sum_of_double(x: Any, axes: Any, keepdims: bool) -> Any:
    return op.sum(x * 2.0, axes, keepdims), op.sum(x, axes, keepdims) * 2.0


@right("x: *b n")
def softmax_of_shifted(x: Any) -> Any:
    top = op.max(x, -1, keepdims=True)
    return op.softmax(x - top), op.softmax(x)


@right("x: *b n")
def softmax_from_naive(x: Any) -> Any:
    e = op.exp(x)
    return e / op.sum(e, -1, keepdims=True), op.softmax(x)


@right("x: n")
def logsumexp_made_stable(x: Any) -> Any:
    top = op.max(x)
    return op.log(op.sum(op.exp(x))), op.log(op.sum(op.exp(x - top))) + top


@right("x: *b n, y: *b 1")
def quotient_of_rows(x: Any, y: Any) -> Any:
    return x / op.sqrt(y), x * op.rsqrt(y)


@right("x: n")
def variance_made_stable(x: Any) -> Any:
    return op.mean(op.square(x)) - op.square(op.mean(x)), op.mean(op.square(x - op.mean(x)))


@right("x: n", when="n >= 1")
def max_of_relu(x: Any) -> Any:
    return op.max(op.relu(x)), op.relu(op.max(x))


@right("x: n", numerics="exact")
def max_of_negatives(x: Any) -> Any:
    return op.maximum(-x, -x), -x


@right("x: m n")
def sum_of_flat(x: Any) -> Any:
    return op.sum(op.reshape(x, -1)), op.sum(x)


@right("x: *b @ int32, y: *b @ int32")
def int_distributes(x: Any, y: Any) -> Any:
    return x * 3 + y * 3, (x + y) * 3


@right("x: *b @ uint8", numerics="exact")
def uint_quotients(x: Any) -> Any:
    return (x / 3) / 4, x / 12


@right("a: m k, w: k n, v: k p", when="inputs_in_order(w, v)")
def merge_parallel(a: Any, w: Any, v: Any) -> Any:
    both = a @ op.concat([w, v], 1)
    n = w.shape[1]
    return (a @ w, a @ v), (both[:, :n], both[:, n:])


@right("x: n, y: m", numerics="exact")
def slice_of_concat(x: Any, y: Any) -> Any:
    return op.concat([x, y])[x.shape[0] :], y


@right("a: m k, w: k n, i: r @ int32", attrs={"mode": "take.mode"}, when="k >= 1")
def rows_taken_first(a: Any, w: Any, i: Any, mode: str) -> Any:
    return op.take(a @ w, i, 0, mode=mode), op.take(a, i, 0, mode=mode) @ w


# --- the traps of RULES.md ---


@wrong("x: *b @ int32, y: *b @ int32, z: *b @ int32")
def trap_integer_product_over(x: Any, y: Any, z: Any) -> Any:
    return (x * y) / z, x * (y / z)


@wrong("a: *b", "is not finite there")
def trap_over_itself(a: Any) -> Any:
    return a / a, op.full(a.shape, 1.0, a.dtype)


@wrong("x: *b, y: *b")
def trap_product_over_factor(x: Any, y: Any) -> Any:
    return (x * y) / y, x


@wrong("x: *b @ int32, y: *b @ int32")
def trap_integer_product_over_factor(x: Any, y: Any) -> Any:
    return (x * y) / y, x


@wrong("x: *b", "not the same bits", numerics="exact")
def trap_minus_itself(x: Any) -> Any:
    return x - x, op.full(x.shape, 0.0, x.dtype)


@wrong("x: *b", "not the same bits", numerics="exact")
def trap_times_zero(x: Any) -> Any:
    return x * 0.0, op.full(x.shape, 0.0, x.dtype)


@wrong("a: k k, v: k, b: k k")
def trap_vector_inside_associates(a: Any, v: Any, b: Any) -> Any:
    return (a @ v) @ b, a @ (v @ b)


@wrong("a: n n, b: n n", attrs={"p": "permute_dims.axes"})
def trap_identity_transpose(a: Any, b: Any, p: Any) -> Any:
    return op.permute_dims(a @ b, p), op.permute_dims(b, p) @ op.permute_dims(a, p)


@wrong("x: n m")
def trap_reshape_through_slice(x: Any) -> Any:
    n, m = x.shape
    return op.reshape(x, (m, n))[:1], op.reshape(x[:, :1], (1, n))


@wrong("x: n", "transpose")
def trap_permuted_broadcast(x: Any) -> Any:
    (n,) = x.shape
    return op.broadcast_to(op.expand_dims(x, 0), (n, n)), op.broadcast_to(op.expand_dims(x, 1), (n, n))


@wrong("x: n m", at={"m": 0})
def trap_size_over_factor(x: Any) -> Any:
    n, m = x.shape
    return op.sum(x) + op.dim_value(n, x.dtype), op.sum(x) + op.dim_value(n * m // m, x.dtype)


@wrong("a: m 1, b: m k, c: k n")
def trap_broadcast_summand(a: Any, b: Any, c: Any) -> Any:
    return (a + b) @ c, a + b @ c


@wrong("x: n", 'when="n >= 1"', at={"n": 0})
def trap_sum_of_softmax(x: Any) -> Any:
    return op.sum(op.softmax(x)), op.full((), 1.0, x.dtype) + 0.0 * op.sum(x)


@wrong("x:", "it holds where no axis is empty", at={"n": 0}, sizes="n")
def trap_max_of_broadcast(x: Any, n: Any) -> Any:
    return op.max(op.broadcast_to(x, (n,))), x


@wrong("x: m n")
def trap_max_of_min(x: Any) -> Any:
    return op.max(op.min(x, 1), 0), op.min(op.max(x, 0), 0)


@wrong("x: n", 'when="n >= 1"', at={"n": 0})
def trap_max_of_relu(x: Any) -> Any:
    return op.max(op.relu(x)), op.relu(op.max(x))


# --- subtly wrong ---


@wrong("a: *b, b: *b, c: *b")
def sign_lost(a: Any, b: Any, c: Any) -> Any:
    return a - (b - c), (a - b) - c


@wrong("x: n n")
def axis_confused(x: Any) -> Any:
    return op.sum(x, 0), op.sum(x, 1)


@wrong("a: n n, b: n n")
def transpose_order_lost(a: Any, b: Any) -> Any:
    return (a @ b).T, a.T @ b.T


@wrong("a: n k, b: n k")
def trace_without_transpose(a: Any, b: Any) -> Any:
    return trace(a @ b.T), trace(b @ b.T)


@wrong("a: n n, b: n n, c: n n")
def trace_not_cyclic(a: Any, b: Any, c: Any) -> Any:
    return trace(a @ b @ c), trace(a @ c @ b)


@wrong("x: *b n, s:")
def scale_missing(x: Any, s: Any) -> Any:
    return op.sum(x + s, -1), op.sum(x, -1) + s


@wrong("x: n", "times the left")
def factor_lost(x: Any) -> Any:
    return x * 4.0, x + x


@wrong("x: n", "sign")
def relu_odd(x: Any) -> Any:
    return op.sin(-x), op.sin(x)


@wrong("x: n", at={"n": 1})
def wrong_at_one(x: Any) -> Any:
    (n,) = x.shape
    at_least_two = op.maximum(op.dim_value(n, x.dtype), 2.0)
    return op.sum(x) / op.maximum(op.dim_value(n, x.dtype), 1.0), op.sum(x) / at_least_two


@wrong("x: n n", at={"n": 3})
def wrong_from_three_on(x: Any) -> Any:
    return op.triu(x, 2), x * 0.0


@wrong("x: *b @ int32", "-2147483648")
def abs_nonnegative(x: Any) -> Any:
    return op.less(op.abs(x), 0), op.not_equal(x, x)


@wrong("x: *b @ int32")
def quotient_by_thirteen(x: Any) -> Any:
    return (x / 3) / 4, x / 13


@wrong("x: *b @ int32, y: *b @ int32, z: *b @ int32")
def quotient_of_quotient(x: Any, y: Any, z: Any) -> Any:
    return (x / y) / z, x / (y * z)


@wrong("x: *b @ int32")
def shift_is_quotient(x: Any) -> Any:
    return op.right_shift(x, 1), x / 2


@wrong("x: *b @ uint8, y: *b @ uint8")
def difference_compared(x: Any, y: Any) -> Any:
    return op.less(x, y), op.less(x - y, 0)


@wrong("x: *b @ uint8")
def doubled_and_halved(x: Any) -> Any:
    return (x * 2) / 2, x


@wrong("x: *b", "not the same bits", numerics="exact")
def plus_zero_exact(x: Any) -> Any:
    return x + 0.0, x


@wrong("x: *b, y: *b", 'numerics="reassociate"', numerics="exact")
def reciprocal_exact(x: Any, y: Any) -> Any:
    return x / y, x * (1.0 / y)


@wrong("a: *b, b: *b, c: *b", 'numerics="reassociate"', numerics="exact")
def rebracketed_exact(a: Any, b: Any, c: Any) -> Any:
    return (a + b) + c, a + (b + c)


@wrong("x: *b, y: *b", "not the same bits", numerics="exact")
def difference_reversed_exact(x: Any, y: Any) -> Any:
    return x - y, -(y - x)


@wrong("x: *b n", 'numerics="approximate"')
def naive_softmax(x: Any) -> Any:
    e = op.exp(x)
    return op.softmax(x), e / op.sum(e, -1, keepdims=True)


@wrong("x: n", 'numerics="approximate"')
def one_pass_variance(x: Any) -> Any:
    return op.mean(op.square(x - op.mean(x))), op.mean(op.square(x)) - op.square(op.mean(x))


@wrong("x: n, y: n", 'numerics="approximate"')
def expanded_squared_distance(x: Any, y: Any) -> Any:
    left = op.sum(op.square(x - y))
    return left, op.sum(op.square(x)) - 2.0 * op.sum(x * y) + op.sum(op.square(y))


@wrong("x: *b, y: *b", "finite")
def exp_of_sum(x: Any, y: Any) -> Any:
    return op.exp(x + y), op.exp(x) * op.exp(y)


@wrong("x: *b n", "finite")
def log_of_softmax(x: Any) -> Any:
    return op.log_softmax(x), op.log(op.softmax(x))


@wrong("x: *b, y: *b", "is not finite there")
def log_of_product(x: Any, y: Any) -> Any:
    return op.log(x * y), op.log(x) + op.log(y)


@wrong("x: *b")
def square_of_root(x: Any) -> Any:
    return op.square(op.sqrt(x)), x


@wrong("x: *b")
def root_of_square(x: Any) -> Any:
    return op.sqrt(op.square(x)), x


@wrong("a: *b, b: *b, c: *b")
def quotient_of_denominator(a: Any, b: Any, c: Any) -> Any:
    return a / (b / c), a * c / b


@wrong("c: *b @ bool, x: *b, y: *b")
def branches_swapped(c: Any, x: Any, y: Any) -> Any:
    return op.where(c, x, y), op.where(c, y, x)


@wrong("x: n, y: n")
def concat_swapped(x: Any, y: Any) -> Any:
    return op.concat([x, y]), op.concat([y, x])


@wrong("a: m k, w: k n, v: k n", "result 0")
def results_swapped(a: Any, w: Any, v: Any) -> Any:
    both = a @ op.concat([v, w], 1)
    n = w.shape[1]
    return (a @ w, a @ v), (both[:, :n], both[:, n:])


@wrong("x: n, y: m", at={"n": 1})
def slice_off_by_one(x: Any, y: Any) -> Any:
    n, m = x.shape[0], y.shape[0]
    return op.concat([x, y, y])[m : n + m], x


@wrong("x: n, i: r @ int32")
def fill_is_not_clip(x: Any, i: Any) -> Any:
    return op.take(x, i, 0, mode="fill"), op.take(x, i, 0, mode="clip")


@wrong("x: n, v:")
def pad_value_scaled(x: Any, v: Any) -> Any:
    return op.pad(x, [(1, 0)], v) * 2.0, op.pad(x * 2.0, [(1, 0)], v)


@wrong("x: n")
def running_sum_reversed(x: Any) -> Any:
    return op.cumsum(x, 0), op.cumsum(x, 0, reverse=True)


@wrong("x: *b n")
def epsilon_dropped(x: Any) -> Any:
    m = op.mean(op.square(x), -1, keepdims=True)
    return x * op.rsqrt(m + 0.01), x * op.rsqrt(m)


@wrong("x: *b n, s:")
def softmax_scaled(x: Any, s: Any) -> Any:
    return op.softmax(x * s), op.softmax(x)


@wrong("x: *b", "in float32")
def rounded_in_between(x: Any) -> Any:
    return x * 3.0, op.astype(op.astype(x * 3.0, "bfloat16"), "float32") if x.dtype == "float32" else x * 3.0


@wrong("x: *b")
def truncated_in_between(x: Any) -> Any:
    return op.astype(op.astype(x, "int32"), x.dtype), x + 0.0
