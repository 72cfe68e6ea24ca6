"""Sorted values, running sums, counts of truth values, products of exponentials: laws of operators without index
equations, or of functions of whole reductions, over any axes. They are stated here and tested, not derived."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet

orders = RuleSet("orders")
_rule = orders.rule

Axes = tuple[int, ...]


# A product may overflow in one order and not in another.
@_rule("x: *b", attrs={"f": "sum | max | min", "c": "sort.axis", "a": "sum | max | min.axes"}, phase="simplify",
       tags=("sum", "max", "min", "sort"), check=False)  # fmt: skip
def reduction_of_sort(x: Any, f: Any, c: int, a: Axes) -> Any:
    """f(sort(x)) = f(x) over the sorted axis, for a sum, a maximum or a minimum"""
    return (f(op.sort(x, c), a), f(x, a)) if c in a else None


def _places(x: Any, axis: int, begin: Any, end: Any) -> Any:
    """The elements of `x` at some places along an axis."""
    starts = [begin if a == axis else 0 for a in range(x.ndim)]
    return op.strided_slice(x, starts, [end if a == axis else n for a, n in enumerate(x.shape)])


@_rule("x: *a n *c", attrs={"axis": "sort.axis"}, when="n >= 1", phase="simplify", tags=("max", "sort"), check=False)
def last_of_sort(x: Any, axis: int) -> Any:
    """the last of sorted elements = their maximum"""
    return _places(op.sort(x, axis), axis, x.shape[axis] - 1, x.shape[axis]), op.max(x, axis, keepdims=True)


@_rule("x: *a n *c", attrs={"axis": "sort.axis"}, when=("n >= 1", "finite(x)"), phase="simplify", tags=("min", "sort"),
       check=False)  # fmt: skip
def first_of_sort(x: Any, axis: int) -> Any:
    """the first of sorted numbers = their minimum"""
    return _places(op.sort(x, axis), axis, 0, 1), op.min(x, axis, keepdims=True)


@_rule("x: *a n *c", attrs={"axis": "top_k.axis"}, when="n >= 1", phase="simplify", tags=("max", "sort"), check=False)
def greatest_one(x: Any, axis: int) -> Any:
    """the one greatest element = the maximum"""
    return op.top_k(x, 1, axis)[0], op.max(x, axis, keepdims=True)


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
            doc=f"whether the count of true values is {what} says whether any is true", tags=("any",), check=False,
        )(law)  # fmt: skip


_by_counting("count", "int32")
_by_counting("count_as_float", "float32")


@_rule("x: *b", attrs={"a": "prod.axes"}, numerics="approximate", tags=("prod", "exp"), check=False)
def prod_of_exponentials(x: Any, a: Axes) -> Any:
    """prod(exp(x)) = exp(sum(x))"""
    return op.prod(op.exp(x), a), op.exp(op.sum(x, a))


@_rule("x: *b n", when="n >= 1", phase="simplify", tags=("max", "argmax"), check=False)
def value_at_greatest(x: Any) -> Any:
    """the element where the maximum of a row is = the maximum"""
    last = x.ndim - 1
    return op.take_along_axis(x, op.argmax(x, last, keepdims=True), last), op.max(x, last, keepdims=True)


@_rule("x: *b", attrs={"axis": "cumsum.axis"}, numerics="approximate", tags=("sum", "cumsum"), check=False)
def differences_of_running_sum(x: Any, axis: int) -> Any:
    """the difference of neighbours in a running sum = the later element"""
    n = x.shape[axis]
    ahead, behind = (_places(op.cumsum(x, axis), axis, i, n - 1 + i) for i in (1, 0))
    return op.subtract(ahead, behind), _places(x, axis, 1, n)


@_rule("x: *b, y: *b", attrs={"axis": "cumsum.axis"}, tags=("sum", "cumsum"), check=False)
def sum_of_running_sums(x: Any, y: Any, axis: int) -> Any:
    """cumsum(x) + cumsum(y) = cumsum(x + y)"""
    return op.cumsum(x, axis) + op.cumsum(y, axis), op.cumsum(x + y, axis)


@_rule("x: *b", sizes="n", tags=("sum", "cumsum"), check=False)
def running_sum_of_copies(x: Any, n: Any) -> Any:
    """the running sum of copies of x = x times 1, 2, 3, ..."""
    shape = (n, *x.shape)
    places = op.iota((n, *(1,) * x.ndim), 0, x.dtype)
    return op.cumsum(op.broadcast_to(x, shape), 0), x * (places + 1)


@_rule("", sizes="n", tags=("sum", "iota"), check=False)
def sum_of_positions(n: Any) -> Any:
    """0 + 1 + ... + (n - 1) = n (n - 1) / 2"""
    return op.sum(op.iota((n,), 0, "float32")), op.dim_value(n * (n - 1) // 2, "float32")
