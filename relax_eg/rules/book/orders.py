"""Sorted values, running sums and extremes, counts of truth values, products of exponentials, Fourier transforms: laws
of operators without index equations, or of functions of whole reductions, over any axes. They are stated here and
tested, not derived. Those of running reductions, of what is turned around, and of the greatest were found by
`rx.discover` (`python -m benchmarks.discovery --family "sorting,running sums,running extremes"`)."""

from __future__ import annotations

import math
from typing import Any

from relax_eg.dtypes import is_float
from relax_eg.ir import const
from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet
from relax_eg.shapes import Dim

orders = RuleSet("orders")
_rule = orders.rule

Axes = tuple[int, ...]


# A product may overflow in one order and not in another.
@_rule("x: *b", attrs={"f": "sum | max | min", "c": "sort.axis", "a": "sum | max | min.axes"}, phase="simplify",
       tags=("sum", "max", "min", "sort"))  # fmt: skip
def reduction_of_sort(x: Any, f: Any, c: int, a: Axes) -> Any:
    """f(sort(x)) = f(x) over the sorted axis, for a sum, a maximum or a minimum"""
    return (f(op.sort(x, c), a), f(x, a)) if c in a else None


def _places(x: Any, axis: int, begin: Any, end: Any) -> Any:
    """The elements of `x` at some places along an axis."""
    starts = [begin if a == axis else 0 for a in range(x.ndim)]
    return op.strided_slice(x, starts, [end if a == axis else n for a, n in enumerate(x.shape)])


def extreme(f: Any, x: Any, axes: Axes) -> Any:
    """A reduction in the place of another operator in which NaN wins. NaN is written out for a maximum or minimum:
    XLA for CPUs loses it in those of large float32 arrays (jax 0.10.2, YNNPACK)."""
    found = f(x, axes, keepdims=True)
    if found.op not in ("max", "min") or not is_float(x.dtype):
        return found
    return op.where(op.any(op.isnan(x), axes, keepdims=True), const(math.nan, x.dtype), found)


@_rule("x: *a n *c", attrs={"axis": "sort.axis"}, when="n >= 1", phase="simplify", tags=("max", "sort"))
def last_of_sort(x: Any, axis: int) -> Any:
    """the last of sorted elements = their maximum"""
    return _places(op.sort(x, axis), axis, x.shape[axis] - 1, x.shape[axis]), extreme(op.max, x, (axis,))


@_rule("x: *a n *c", attrs={"axis": "sort.axis"}, when=("n >= 1", "finite(x)"), phase="simplify", tags=("min", "sort"))
def first_of_sort(x: Any, axis: int) -> Any:
    """the first of sorted numbers = their minimum"""
    return _places(op.sort(x, axis), axis, 0, 1), op.min(x, axis, keepdims=True)


@_rule("x: *a n *c", attrs={"axis": "top_k.axis"}, when="n >= 1", phase="simplify", tags=("max", "sort"))
def greatest_one(x: Any, axis: int) -> Any:
    """the one greatest element = the maximum"""
    return op.top_k(x, 1, axis)[0], extreme(op.max, x, (axis,))


def _by_counting(name: str, dtype: str) -> None:
    def count(c: Any, a: Axes) -> Any:
        return op.sum(op.astype(c, dtype), a)

    forms = {
        "positive": lambda c, a: (op.greater(count(c, a), 0), op.any(c, a)),
        "nonzero": lambda c, a: (op.not_equal(count(c, a), 0), op.any(c, a)),
        "zero": lambda c, a: (op.equal(count(c, a), 0), op.logical_not(op.any(c, a))),
    }
    for what, law in forms.items():
        _rule(
            "c: *b @ bool", attrs={"a": "sum.axes"}, name=f"{what}_{name}", phase="simplify", numerics="exact",
            doc=f"whether the count of true values is {what} says whether any is true", tags=("any",),
        )(law)  # fmt: skip


_by_counting("count", "int32")
_by_counting("count_as_float", "float32")


@_rule("x: *b", attrs={"a": "prod.axes"}, numerics="approximate", tags=("prod", "exp"))
def prod_of_exponentials(x: Any, a: Axes) -> Any:
    """prod(exp(x)) = exp(sum(x))"""
    return op.prod(op.exp(x), a), op.exp(op.sum(x, a))


@_rule("x: *b n", when="n >= 1", phase="simplify", tags=("max", "argmax"))
def value_at_greatest(x: Any) -> Any:
    """the element where the maximum of a row is = the maximum"""
    last = x.ndim - 1
    return op.take_along_axis(x, op.argmax(x, last, keepdims=True), last), op.max(x, last, keepdims=True)


@_rule("x: *b", attrs={"axis": "cumsum.axis"}, numerics="approximate", tags=("sum", "cumsum"))
def differences_of_running_sum(x: Any, axis: int) -> Any:
    """the difference of neighbours in a running sum = the later element"""
    n = x.shape[axis]
    ahead, behind = (_places(op.cumsum(x, axis), axis, i, n - 1 + i) for i in (1, 0))
    return op.subtract(ahead, behind), _places(x, axis, 1, n)


@_rule("x: *b, y: *b", attrs={"axis": "cumsum.axis"}, tags=("sum", "cumsum"))
def sum_of_running_sums(x: Any, y: Any, axis: int) -> Any:
    """cumsum(x) + cumsum(y) = cumsum(x + y)"""
    return op.cumsum(x, axis) + op.cumsum(y, axis), op.cumsum(x + y, axis)


@_rule("x: *b", sizes="n", tags=("sum", "cumsum"))
def running_sum_of_copies(x: Any, n: Any) -> Any:
    """the running sum of copies of x = x times 1, 2, 3, ..."""
    shape = (n, *x.shape)
    places = op.iota((n, *(1,) * x.ndim), 0, x.dtype)
    return op.cumsum(op.broadcast_to(x, shape), 0), x * (places + 1)


@_rule("", sizes="n", tags=("sum", "iota"))
def sum_of_positions(n: Any) -> Any:
    """0 + 1 + ... + (n - 1) = n (n - 1) / 2"""
    return op.sum(op.iota((n,), 0, "float32")), op.dim_value(n * (n - 1) // 2, "float32")


# --- running extremes, sums and products ---

_RUNNING = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
_SCANS, _EXTREMES = " | ".join(_RUNNING), "cummax | cummin"
_TURNED = f"cumsum | {_EXTREMES}"  # products in another order overflow elsewhere


def _total(f: Any) -> Any:
    """The reduction of which `f` is the running one."""
    return getattr(op, _RUNNING[f.__name__])


@_rule("x: *b", attrs={"f": _TURNED, "axis": f"{_TURNED}.axis", "a": "flip.axes"}, phase="simplify",
       tags=("cumsum", "flip", "variants"))  # fmt: skip
def running_from_the_end(x: Any, f: Any, axis: int, a: Axes) -> Any:
    """flip(f(flip(x))) = f(x) from the end, for running sums and extremes"""
    return (op.flip(f(op.flip(x, a), axis), a), f(x, axis, reverse=True)) if a == (axis,) else None


@_rule("x: *a n *c", attrs={"f": _SCANS, "axis": f"{_SCANS}.axis"}, when="n >= 1", phase="simplify",
       tags=("cumsum", "variants"))  # fmt: skip
def last_of_running(x: Any, f: Any, axis: int) -> Any:
    """the last of running sums, products or extremes = that of all elements"""
    return _places(f(x, axis), axis, x.shape[axis] - 1, x.shape[axis]), extreme(_total(f), x, (axis,))


@_rule("x: *b", attrs={"f": _EXTREMES, "axis": f"{_EXTREMES}.axis", "a": "max | min.axes"}, phase="simplify",
       tags=("max", "min", "variants"))  # fmt: skip
def extreme_of_running_extreme(x: Any, f: Any, axis: int, a: Axes) -> Any:
    """the extreme of running extremes = that of the elements"""
    return (_total(f)(f(x, axis), a), _total(f)(x, a)) if axis in a else None


@_rule("x: *b", attrs={"f": _EXTREMES, "axis": f"{_EXTREMES}.axis"}, phase="simplify", tags=("max", "min", "variants"))
def running_extreme_twice(x: Any, f: Any, axis: int) -> Any:
    """f(f(x)) = f(x) for running extremes"""
    return f(f(x, axis), axis), f(x, axis)


@_rule("x: *b", attrs={"f": _EXTREMES, "axis": f"{_EXTREMES}.axis"}, phase="simplify", tags=("max", "min", "variants"))
def negated_running_extreme(x: Any, f: Any, axis: int) -> Any:
    """-cummax(-x) = cummin(x), and -cummin(-x) = cummax(x)"""
    other = op.cummin if f.__name__ == "cummax" else op.cummax
    return -f(-x, axis), other(x, axis)


@_rule("x: *a n *c", attrs={"axis": "cumsum.axis"}, tags=("sum", "cumsum"))
def sum_of_running_sum(x: Any, axis: int) -> Any:
    """sum(cumsum(x)) = sum(n x[0] + (n - 1) x[1] + ...)"""
    n = x.shape[axis]
    places = op.iota((n, *(1,) * (x.ndim - 1 - axis)), 0, x.dtype)
    return op.sum(op.cumsum(x, axis), axis), op.sum(x * (op.dim_value(n, x.dtype) - places), axis)


@_rule("x: *b", attrs={"axis": "cumprod.axis"}, numerics="approximate", tags=("prod", "exp", "cumsum"))
def running_product_of_exponentials(x: Any, axis: int) -> Any:
    """cumprod(exp(x)) = exp(cumsum(x))"""
    return op.cumprod(op.exp(x), axis), op.exp(op.cumsum(x, axis))


@_rule("x: *b", attrs={"axis": "cumsum.axis"}, when="positive(x)", numerics="approximate",
       tags=("prod", "exp", "log", "cumsum"))  # fmt: skip
def exponential_of_running_sum_of_logs(x: Any, axis: int) -> Any:
    """exp(cumsum(log(x))) = cumprod(x) for x > 0"""
    return op.exp(op.cumsum(op.log(x), axis)), op.cumprod(x, axis)


@_rule("x: *b", attrs={"a": "sum.axes"}, when="positive(x)", numerics="approximate", tags=("prod", "exp", "log"))
def exponential_of_sum_of_logs(x: Any, a: Axes) -> Any:
    """exp(sum(log(x))) = prod(x) for x > 0"""
    return op.exp(op.sum(op.log(x), a)), op.prod(x, a)


@_rule("x: *b", attrs={"axis": "cumsum.axis"}, tags=("sum", "cumsum"))
def total_without_what_was(x: Any, axis: int) -> Any:
    """sum(x) - cumsum(x) + x = cumsum(x) from the end"""
    total = op.expand_dims(op.sum(x, axis), axis)
    return total - op.cumsum(x, axis) + x, op.cumsum(x, axis, reverse=True)


@_rule("x: *b", attrs={"a": "prod.axes"}, numerics="exact", tags=("prod", "sign"))
def product_of_absolute_values(x: Any, a: Axes) -> Any:
    """prod(|x|) = |prod(x)|"""
    return op.prod(op.abs(x), a), op.abs(op.prod(x, a))


_PAIRS = {"maximum": op.max, "minimum": op.min}


@_rule("x: *b, y: *b", attrs={"f": "maximum | minimum", "a": "max | min.axes"}, tags=("max", "min", "variants"))
def extremes_at_once(x: Any, y: Any, f: Any, a: Axes) -> Any:
    """the greater of two maxima = the maximum of the greater elements, and of minima: one pass"""
    of_all = _PAIRS[f.__name__]
    return f(of_all(x, a), of_all(y, a)), of_all(f(x, y), a)


@_rule("i: *b @ int32", sizes="n", when="n >= 1", numerics="exact", tags=("argmax", "one-hot"))
def place_in_one_hot(i: Any, n: Any) -> Any:
    """argmax(one_hot(i)) = i, or 0 where i is no place, as jax.nn.one_hot is traced"""
    places = op.iota((*(1,) * i.ndim, n), i.ndim, "int32")
    found = op.astype(op.equal(op.expand_dims(i, i.ndim), places), "float32")
    is_place = op.logical_and(op.greater_equal(i, 0), op.less(i, op.dim_value(n, "int32")))
    return op.argmax(found, i.ndim), op.where(is_place, i, 0)


@_rule("a: *b m k, b: k n", tags=("matmul", "flip"))
def product_of_turned(a: Any, b: Any) -> Any:
    """A B = A' B' for A' and B' with the contracted axis turned around in both"""
    return op.flip(a, a.ndim - 1) @ op.flip(b, 0), a @ b


# --- sorted values, turned around or taken from ---


@_rule("x: *b n, c: *b 1 @ bool, v:", tags=("sort", "where"))
def sort_of_filled_rows(x: Any, c: Any, v: Any) -> Any:
    """sort(where(c, v, x)) = where(c, v, sort(x)) for whole rows: medians and quantiles of sorted rows sort once"""
    c, v = op.broadcast_to(c, x.shape), op.broadcast_to(v, x.shape)
    return op.sort(op.where(c, v, x)), op.where(c, v, op.sort(x))


@_rule("x: *b", attrs={"axis": "sort.axis", "a": "flip.axes"}, phase="simplify", tags=("sort", "flip"))
def sort_of_flipped(x: Any, axis: int, a: Axes) -> Any:
    """sort(flip(x)) = sort(x) along the axis that is turned around"""
    return (op.sort(op.flip(x, a), axis), op.sort(x, axis)) if a == (axis,) else None


@_rule("x: *b", attrs={"axis": "sort.axis"}, phase="simplify", tags=("sort", "max"))
def running_maximum_of_sorted(x: Any, axis: int) -> Any:
    """cummax(sort(x)) = sort(x)"""
    return op.cummax(op.sort(x, axis), axis), op.sort(x, axis)


@_rule("x: *a n *c", sizes="k", attrs={"axis": "top_k.axis"}, when=("k >= 1", "k <= n"), phase="simplify",
       tags=("max", "sort"))  # fmt: skip
def greatest_of_the_greatest(x: Any, axis: int, k: Any) -> Any:
    """the maximum of the k greatest elements = the maximum"""
    return (op.max(op.top_k(x, k, axis)[0], axis), op.max(x, axis)) if x.shape[axis] == Dim.var("n") else None


# --- Fourier transforms ---


@_rule("x: *b n, y: *b n", when="n >= 1", numerics="approximate", tags=("fft",))
def sum_of_spectra(x: Any, y: Any) -> Any:
    """rfft(x) + rfft(y) = rfft(x + y): one transform"""
    n = (x.shape[-1],)
    return op.fft(x, "rfft", n) + op.fft(y, "rfft", n), op.fft(x + y, "rfft", n)


@_rule("x: *b n//2+1 @ complex64, y: *b n//2+1 @ complex64", sizes="n", when="n >= 1", numerics="approximate",
       tags=("fft",))  # fmt: skip
def sum_of_inverse_transforms(x: Any, y: Any, n: Any) -> Any:
    """irfft(x) + irfft(y) = irfft(x + y): one transform"""
    return op.fft(x, "irfft", (n,)) + op.fft(y, "irfft", (n,)), op.fft(x + y, "irfft", (n,))


@_rule("x: *b n", when="n >= 1", numerics="approximate", phase="simplify", tags=("fft",))
def transformed_and_back(x: Any) -> Any:
    """irfft(rfft(x)) = x"""
    n = x.shape[-1]
    return op.fft(op.fft(x, "rfft", (n,)), "irfft", (n,)), x
