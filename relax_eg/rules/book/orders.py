"""Sorted values, counts of truth values, and products of exponentials: laws without index equations, or of functions of
whole reductions, over any axes. Each is an identity that is tested; a sort has no equations to prove it from."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet

orders = RuleSet("orders")
_rule = orders.rule

Axes = tuple[int, ...]


def _of_sorted(name: str) -> None:
    reduce = getattr(op, name)

    def of_sorted(x: Any, c: int, a: Axes) -> Any:
        return (reduce(op.sort(x, c), a), reduce(x, a)) if c in a else None

    _rule(
        "x: *b", attrs={"c": "sort.axis", "a": f"{name}.axes"}, name=f"{name}_of_sort", phase="simplify",
        doc=f"{name}(sort(x)) = {name}(x) over the sorted axis", tags=(name, "sort"), check=False,
    )(of_sorted)  # fmt: skip


for _name in ("sum", "max", "min"):  # a product may overflow in one order and not in another
    _of_sorted(_name)


def _place(x: Any, axis: int, at: Any) -> Any:
    """The elements of `x` at one place along an axis."""
    begin = [at if a == axis else 0 for a in range(x.ndim)]
    return op.strided_slice(x, begin, [at + 1 if a == axis else n for a, n in enumerate(x.shape)])


@_rule("x: *a n *c", attrs={"axis": "sort.axis"}, when="n >= 1", phase="simplify", tags=("max", "sort"), check=False)
def last_of_sort(x: Any, axis: int) -> Any:
    """the last of sorted elements = their maximum"""
    return _place(op.sort(x, axis), axis, x.shape[axis] - 1), op.max(x, axis, keepdims=True)


@_rule("x: *a n *c", attrs={"axis": "sort.axis"}, when=("n >= 1", "finite(x)"), phase="simplify", tags=("min", "sort"),
       check=False)  # fmt: skip
def first_of_sort(x: Any, axis: int) -> Any:
    """the first of sorted numbers = their minimum"""
    return _place(op.sort(x, axis), axis, 0), op.min(x, axis, keepdims=True)


@_rule("x: *a n *c", attrs={"axis": "top_k.axis"}, when="n >= 1", phase="simplify", tags=("max", "sort"), check=False)
def greatest_one(x: Any, axis: int) -> Any:
    """the one greatest element = the maximum"""
    return op.top_k(x, 1, axis)[0], op.max(x, axis, keepdims=True)


def _by_counting(name: str, dtype: str) -> None:
    def count(c: Any, a: Axes) -> Any:
        return op.sum(op.astype(c, dtype), a)

    common = {"attrs": {"a": "sum.axes"}, "numerics": "exact", "phase": "simplify", "tags": ("any",), "check": False}
    _rule("c: *b @ bool", name=f"any_by_{name}", doc="the count of true values > 0 where any is true", **common)(
        lambda c, a: (op.greater(count(c, a), 0), op.any(c, a))
    )
    _rule("c: *b @ bool", name=f"any_by_{name}_not_zero", doc="the count of true values != 0 where any is", **common)(
        lambda c, a: (op.not_equal(count(c, a), 0), op.any(c, a))
    )
    _rule("c: *b @ bool", name=f"none_by_{name}", doc="the count of true values = 0 where none is true", **common)(
        lambda c, a: (op.equal(count(c, a), 0), op.logical_not(op.any(c, a)))
    )


_by_counting("counting", "int32")
_by_counting("counting_as_float", "float32")


@_rule("x: *b", attrs={"a": "prod.axes"}, numerics="approximate", tags=("prod", "exp"), check=False)
def prod_of_exponentials(x: Any, a: Axes) -> Any:
    """prod(exp(x)) = exp(sum(x))"""
    return op.prod(op.exp(x), a), op.exp(op.sum(x, a))
