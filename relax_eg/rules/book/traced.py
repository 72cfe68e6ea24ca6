"""Laws of what jax.numpy, jax.nn and jax.scipy trace, and of the derivatives that autodiff writes of them: fewer
exponentials and logarithms, one sort without the lookup after it, real transforms of real signals.

They were read off fragments of these functions (`benchmarks.discovery_gains --functions`), not off programs that were
written for them.
"""

from __future__ import annotations

import math
from typing import Any

from relax_eg.ir.expr import Expr, const, tuple_get
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.book.contraction import eye_mask
from relax_eg.rules.rule_set import RuleSet

traced = RuleSet("traced")
_rule = traced.rule
_INFINITY, _MISSING = float("inf"), float("nan")


def gelu_of_tanh(x: Expr) -> Expr:
    """`gelu_tanh`, as jax.nn.gelu is traced."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * op.integer_pow(x, 3))
    return x * (0.5 * (1.0 + op.tanh(inner)))


# --- logarithms of sums of exponentials, and their slopes ---


def _log_of_sum(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)), as jnp.logaddexp is traced."""
    apart = x - y
    greatest = op.maximum(x, y)
    return op.where(op.not_equal(apart, apart), x + y, greatest + op.log1p(op.exp(-op.abs(apart))))


def _softplus(x: Any) -> Any:
    return _log_of_sum(x, 0.0)


def _without_infinity(x: Any) -> Any:
    """`x`, or 0 where it is infinite, as the derivative of jnp.logaddexp has it."""
    return op.where(op.equal(x, _INFINITY), 0.0, x)


def _sigmoid(x: Any) -> Any:
    """The logistic function by a power that does not overflow, so that small values are exact."""
    e = op.exp(-op.abs(x))
    return op.where(op.less(x, 0.0), e, 1.0) / (1.0 + e)


@_rule("x: *b", tags=("exp", "log"))
def slope_of_softplus(x: Any) -> Any:
    """exp(x - log(exp(x) + 1)) = 1 / (1 + exp(-x)): the derivative of softplus"""
    return op.exp(_without_infinity(x) - _without_infinity(_softplus(x))), _sigmoid(x)


def _slope_of_log_of_sum(name: str, own: int, of: str) -> None:
    def slope(*xs: Any) -> Any:
        x, other = xs[own], xs[1 - own]
        apart = op.where(op.equal(x, _INFINITY), _INFINITY, x - other)
        return op.exp(_without_infinity(x) - _without_infinity(_log_of_sum(*xs))), _sigmoid(apart)

    x, other = "xy"[own], "yx"[own]
    _rule("x: *b, y: *b", name=name, tags=("exp", "log"),
          doc=f"exp({x} - log(exp(x) + exp(y))) = 1 / (1 + exp({other} - {x})): the derivative of logaddexp in {of}",
    )(slope)  # fmt: skip


_slope_of_log_of_sum("slope_of_log_of_sum", 0, "one operand")
_slope_of_log_of_sum("slope_of_log_of_sum_in_second", 1, "its other operand")


@_rule("x: *b", tags=("exp", "log", "tanh"))
def tanh_of_softplus(x: Any) -> Any:
    """tanh(log(exp(x) + 1)) = p / (p + q) for e = exp(-|x|), where p = 1 + 2 e and q = 2 e e for x >= 0, p = e (e + 2)
    and q = 2 for other x: one exponential, as in mish"""
    e, is_positive = op.exp(-op.abs(x)), op.greater_equal(x, 0.0)
    p = op.where(is_positive, 1.0 + 2.0 * e, e * (e + 2.0))
    return op.tanh(_softplus(x)), p / (p + op.where(is_positive, 2.0 * (e * e), 2.0))


@_rule("x: *b", tags=("exp", "log"))
def square_of_inverse_log_of_sum(x: Any) -> Any:
    """exp(-2 log(exp(x) + exp(-x))) = e / (1 + e)^2 for e = exp(-|2 x|): the logistic density"""
    e = op.exp(-op.abs(x + x))
    return op.exp(-2.0 * _log_of_sum(x, -x)), e / ((1.0 + e) * (1.0 + e))


# --- densities and distribution functions ---


@_rule("x: *b, s:, t:", tags=("exp", "where"))
def exponentials_to_both_sides(x: Any, s: Any, t: Any) -> Any:
    """where(x <= 0, s exp(x), t - s exp(-x)) = where(x <= 0, e, t - e) for e = s exp(-|x|): one exponential"""
    is_low, e = op.less_equal(x, 0.0), s * op.exp(-op.abs(x))
    return op.where(is_low, s * op.exp(x), t - s * op.exp(-x)), op.where(is_low, e, t - e)


@_rule("c:, x: *b", when="nonnegative(x)", tags=("exp", "log"))
def exponential_of_log1p(c: Any, x: Any) -> Any:
    """exp(-(c + log(1 + x))) = exp(-c) / (1 + x) for x >= 0"""
    return op.exp(-(c + op.log1p(x))), _times_exponential(1.0 / (1.0 + x), c)


def _times_exponential(x: Any, z: Any) -> Any:
    """x exp(-z) by the root of the power, which is normal wherever the product is."""
    root = op.exp(-0.5 * z)
    return (x * root) * root


@_rule("x: *b, z: *b, c:", when="nonnegative(x)", tags=("exp", "log"))
def exponential_of_log_and_more(x: Any, z: Any, c: Any) -> Any:
    """exp(log(x) - z - c) = x exp(-(z + c)) for x >= 0"""
    return op.exp(op.log(x) - z - c), op.where(op.equal(x, 0.0), 0.0, _times_exponential(x, z + c))


@_rule("x: *b, z: *b, c:", tags=("exp", "log", "where"))
def density_of_log(x: Any, z: Any, c: Any) -> Any:
    """exp(log(x) - z - c), and 0 where x < 0 = x exp(-(z + c)), and 0 there: the gamma density"""
    is_inside = op.greater_equal(x, 0.0)
    log = op.log(op.where(is_inside, x, 1.0)) - z - c
    return op.exp(op.where(is_inside, log, -_INFINITY)), op.where(op.greater(x, 0.0), _times_exponential(x, z + c), 0.0)


# --- slopes of limits, and what lookups have as derivatives ---


@_rule("x: *b, y:", attrs={"f": "maximum | minimum"}, numerics="exact", tags=("where", "variants"))
def slope_of_limit(x: Any, y: Any, f: Any) -> Any:
    """the slope of f(x, y) in x for a number y, 1/2 where x = y, as autodiff divides it = a choice"""
    limited = f(x, y)
    slope = op.astype(op.equal(x, limited), x.dtype) / op.where(op.equal(y, limited), 2.0, 1.0)
    wins = op.greater(x, y) if f.__name__ == "maximum" else op.less(x, y)
    return slope, op.where(wins, 1.0, op.where(op.equal(x, y), 0.5, 0.0))


def _scattered(
    x: Any, i: Any, u: Any, mode: str, axes: tuple[int, ...], window: tuple[int, ...] = (), **more: Any
) -> Expr:
    """`u` added to elements of `x`, or with `kind` put there. `i` has positions on `axes`, which `u` lacks; `window`:
    the axes of `u` that are whole axes of `x`."""
    numbers = {"update_window_dims": window, "inserted_window_dims": axes, "scatter_dims_to_operand_dims": axes}
    return call("scatter", (x, i, u), {"kind": "add", "mode": mode, **numbers, **more})


@_rule("i: 1 @ int32, u:", sizes="n", attrs={"m": "scatter.mode"}, tags=("scatter", "one-hot"))
def scattered_alone(i: Any, u: Any, n: Any, m: str) -> Any:
    """one number, written into zeros at a computed place = a choice by place: the derivative of one lookup"""
    if m == "clip":
        return None
    made = _scattered(op.broadcast_to(0.0, (n,)), i, u, m, (0,))
    return made, op.where(op.equal(op.iota((n,), 0, "int32"), i), u, 0.0)


@_rule("i: 1 @ int32, u: m", sizes="n", attrs={"m": "scatter.mode"}, tags=("scatter", "one-hot"))
def scattered_column(i: Any, u: Any, n: Any, m: str) -> Any:
    """one column, written into zeros at a computed place = a choice by place"""
    if m == "clip":
        return None
    made = _scattered(op.broadcast_to(0.0, (u.shape[0], n)), i, u, m, (1,), (0,))
    return made, op.where(op.equal(op.iota((1, n), 1, "int32"), i), op.expand_dims(u, 1), 0.0)


# given: what the derivative of `table[i]` writes
_ROWS = {"axes": (0,), "window": (1,)}
# given: what the derivative of `jnp.take_along_axis` writes
_OF_ROWS = {"axes": (1,), "operand_batching_dims": (0,), "scatter_indices_batching_dims": (0,)}


def _into(name: str, shapes: str, attrs: dict[str, Any]) -> None:
    def added(x: Any, i: Any, u: Any, m: str) -> Any:
        zeros = op.broadcast_to(0.0, x.shape)
        return x + _scattered(zeros, i, u, m, **attrs), _scattered(x, i, u, m, **attrs)

    def subtracted(x: Any, i: Any, u: Any, m: str) -> Any:
        zeros = op.broadcast_to(0.0, x.shape)
        return x - _scattered(zeros, i, u, m, **attrs), _scattered(x, i, -u, m, **attrs)

    for law, sign in ((added, "added"), (subtracted, "subtracted")):
        _rule(
            shapes, attrs={"m": "scatter.mode"}, name=f"{name}_{sign}", tags=("scatter", "variants"),
            doc="x and numbers scattered into zeros, added = scattered into x",
        )(law)  # fmt: skip


_into("scattered_rows", "x: n k, i: m 1 @ int32, u: m k", _ROWS)
_into("scattered_elements", "x: n k, i: n m 1 @ int32, u: n m", _OF_ROWS)


def _on_diagonal(kind: str) -> None:
    def scattered(v: Any, m: str) -> Any:
        n = v.shape[0]
        at = op.expand_dims(op.iota((n,), 0, "int32"), 1)
        made = _scattered(op.broadcast_to(0.0, (n, n)), op.concat([at, at], 1), v, m, (0, 1), kind=kind)
        return made, op.where(eye_mask(n), v, 0.0)

    _rule(
        "v: n", attrs={"m": "scatter.mode"}, name=f"scattered_on_diagonal_by_{kind}", tags=("scatter", "diagonal"),
        doc="a vector, written into the diagonal of zeros = a choice by place: the derivative of diag",
    )(scattered)  # fmt: skip


_on_diagonal("add")
_on_diagonal("set")


def _sorted_by_places(dtype: str) -> None:
    def law(x: Any, v: Any) -> Any:
        n = x.shape[0]
        order, zeros = op.argsort(x, 0), op.broadcast_to(const(0), (n,))
        made = _scattered(zeros, op.expand_dims(order, 1), v, "promise", (0,), kind="set", unique=True)
        return tuple_get(call("sort", (order, v), {"axis": 0}), 1), made

    _rule(
        f"x: n{dtype}, v: n @ int32", name=f"sorted_by_places{dtype.replace(' @ ', '_')}", numerics="exact",
        tags=("scatter", "sort"), doc="sorted by the places that a sort gives = scattered to these places: ranks",
    )(law)  # fmt: skip


_sorted_by_places("")
_sorted_by_places(" @ int32")


def _of_transposed(low: bool, turn: bool) -> None:
    def solved(a: Any, b: Any) -> Any:
        turned = op.triangular_solve(op.swapaxes(a, -1, -2), b, lower=low, transpose_a=turn)
        return turned, op.triangular_solve(a, b, lower=not low, transpose_a=not turn)

    side, way = "lower" if low else "upper", "_back" if turn else ""
    _rule(
        "a: *b n n, b: *b n k", name=f"solve_{side}_transposed{way}", numerics="exact", tags=("solve", "variants"),
        doc="a system of a transposed triangle = that of the triangle, read the other way: no transpose",
    )(solved)  # fmt: skip


for _low in (False, True):
    for _turn in (False, True):
        _of_transposed(_low, _turn)


# --- counts, and sums without what is no number ---


@_rule("c: *b @ bool", attrs={"a": "sum.axes"}, tags=("sum", "any"))
def count_as_float(c: Any, a: tuple[int, ...]) -> Any:
    """the sum of true values as floats = their count: what is counted both ways is counted once"""
    number = op.astype(c, "int32")
    return op.sum(op.astype(number, "float32"), a), op.astype(op.sum(number, a), "float32")


@_rule("x: *b @ int32, y: *b @ int32", attrs={"a": "sum.axes"}, numerics="exact", tags=("sum",))
def counts_at_once(x: Any, y: Any, a: tuple[int, ...]) -> Any:
    """sum(x) + sum(y) = sum(x + y) for integers: one pass"""
    return op.sum(x, a) + op.sum(y, a), op.sum(x + y, a)


@_rule("c: n @ bool", sizes="k", when="k <= n", numerics="exact", tags=("sort", "cumsum", "scatter"))
def places_of_true_values(c: Any, k: Any) -> Any:
    """the first places of true values, by running sums of counts = by a sort: jnp.nonzero of a given size"""
    n = c.shape[0]
    before = op.maximum(0, op.cumsum(op.astype(c, "int32"), 0))
    zeros, ones = op.broadcast_to(const(0), (k,)), op.broadcast_to(const(1), (n,))
    counts = _scattered(zeros, op.expand_dims(before, 1), ones, "fill", (0,))
    places = op.sort(op.where(c, op.iota((n,), 0, "int32"), op.dim_value(n, "int32")))
    return op.cumsum(counts, 0), op.strided_slice(places, (0,), (k,))


@_rule("x: *b", tags=("sum",))
def sum_of_centred_numbers(x: Any) -> Any:
    """the sum of numbers minus their mean, NaN left out of both = 0: the derivative of nanvar"""
    is_missing, every, ones = op.not_equal(x, x), tuple(range(x.ndim)), (1,) * x.ndim
    if not every:
        return None
    count = op.sum(op.astype(op.astype(op.logical_not(is_missing), "int32"), x.dtype), every)
    total = op.sum(op.where(is_missing, 0.0, x), every)
    mean = op.broadcast_to(total, ones) / op.broadcast_to(count, ones)
    return op.sum(op.where(is_missing, 0.0, x - mean), every), op.full((), 0.0, x.dtype)


# --- sorts ---


def _sort_with_missing(x: Any, is_missing: Any) -> Any:
    ordered, last = op.sort(x), x.ndim - 1
    end = op.strided_slice(ordered, [0] * last + [x.shape[-1] - 1], x.shape)
    return op.where(is_missing, _MISSING, ordered), op.where(op.not_equal(end, end), _MISSING, ordered)


@_rule("x: n", when="n >= 1", tags=("sort", "any"))
def sort_that_shows_what_is_missing(x: Any) -> Any:
    """NaN for all, if any is NaN, else sort(x) = the same by the last of sort(x), where NaN is: jnp.median"""
    return _sort_with_missing(x, op.any(op.not_equal(x, x), 0))


@_rule("x: *b m n", when="n >= 1", tags=("sort", "any"))
def sort_that_shows_what_rows_miss(x: Any) -> Any:
    """NaN for a whole row, if any of it is NaN, else sort(x) = the same by the last of sort(x): jnp.quantile of rows"""
    last = x.ndim - 1
    return _sort_with_missing(x, op.expand_dims(op.any(op.not_equal(x, x), last), last))


def _alone(dtype: str) -> None:
    def sorted_alone(x: Any, y: Any) -> Any:
        return tuple_get(call("sort", (x, y), {"axis": x.ndim - 1}), 1), y

    _rule(
        f"x: *b 1 @ {dtype}, y: *b 1 @ int32", name=f"sort_of_one_{dtype}", phase="simplify", numerics="exact",
        doc="a sort of one pair = the pair", tags=("sort", "variants"),
    )(sorted_alone)  # fmt: skip


_alone("int32")
_alone("float32")
