"""Arithmetic of the cost models on one number, or on a column of numbers with one entry per binding.

The cost of a program is an expression in its sizes. With columns in place of sizes, the models evaluate thousands of
bindings in the time of a few single ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relax_eg.shapes import Dim
from relax_eg.shapes.dim import is_plain

_ERROR = 1e-9  # chosen: a share: rounding error of a whole number
TINY = 1e-300  # given: near the least float: replaces a divisor of 0
LEAST_SECONDS = 1e-12  # chosen: seconds: replaces a divisor of 0 where the times of two programs are compared

Number = Any  # an int or float, or a column: numpy's array of one axis


def is_column(x: Number) -> bool:
    return isinstance(x, np.ndarray)


def maximum(a: Number, b: Number) -> Number:
    """The larger of two numbers, entry by entry."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return b if b > a else a


def minimum(a: Number, b: Number) -> Number:
    """The smaller of two numbers, entry by entry."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return b if b < a else a


def choose(condition: Number, then: Number, otherwise: Number) -> Number:
    """`then` where the condition holds, else `otherwise`, entry by entry; both must have values everywhere."""
    if is_column(condition):
        return np.where(condition, then, otherwise)
    return then if condition else otherwise


def truncate(x: Number) -> Number:
    """The number without its fraction. A number that differs from a whole number by a rounding error becomes that whole
    number."""
    nearest = np.rint(x)
    x = choose(abs(x - nearest) <= _ERROR * maximum(1.0, abs(x)), nearest, x)
    return np.trunc(x) if is_column(x) else int(x)


def gap(cost: float, bound: float) -> float:
    """The largest possible saving of another choice, as a share of `cost`; `bound` is a lower bound on all costs."""
    return max(0.0, (cost - bound) / cost) if cost > 0 else 0.0


def evaluate(d: Dim, binding: Mapping[str, Number]) -> Number:
    """The value of a size at a binding; a column if one of its variables is a column."""
    if d.is_const:
        return d.const
    columns = [v for v in d.variables if is_column(binding[v])]
    if not columns:
        return int(d.evaluate(binding))
    if is_plain(d):
        return d.evaluate(binding)
    # Division, max and select are exact on integers only, and a branch of a select that is not taken may have no value.
    rows = zip(*(binding[v].tolist() for v in columns), strict=True)
    rest = {v: binding[v] for v in d.variables if v not in columns}
    return np.array([float(d.evaluate({**rest, **dict(zip(columns, map(int, r), strict=True))})) for r in rows])
