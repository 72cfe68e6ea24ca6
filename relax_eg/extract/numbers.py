"""Arithmetic of the cost models: on one number, or on a column of them, one entry for each of many bindings at once.

What a program costs is an expression in its sizes. With columns in place of sizes the models evaluate it for thousands
of bindings in the time that a few take one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relax_eg.shapes import Dim

_ERROR = 1e-9  # a share

Number = Any  # an int or float, or a column: numpy's array of one axis


def is_column(x: Number) -> bool:
    return isinstance(x, np.ndarray)


def larger(a: Number, b: Number) -> Number:
    """The larger of two numbers, entry by entry."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return b if b > a else a


def smaller(a: Number, b: Number) -> Number:
    """The smaller of two numbers, entry by entry."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return b if b < a else a


def choose(condition: Number, then: Number, otherwise: Number) -> Number:
    """`then` where the condition holds, else `otherwise`, entry by entry; both are numbers everywhere."""
    if is_column(condition):
        return np.where(condition, then, otherwise)
    return then if condition else otherwise


def whole(x: Number) -> Number:
    """The number without its fraction; one that rounding errors left just below a whole number is that number."""
    nearest = np.rint(x)
    x = choose(abs(x - nearest) <= _ERROR * larger(1.0, abs(x)), nearest, x)
    return np.trunc(x) if is_column(x) else int(x)


def evaluated(d: Dim, binding: Mapping[str, Number]) -> Number:
    """The value of a size at a binding; a column where variables of it have one."""
    if d.is_const:
        return d.const
    columns = [v for v in d.variables if is_column(binding[v])]
    if not columns:
        return int(d.evaluate(binding))
    if all(atom.op == "var" for monomial, _ in d.terms for atom in monomial):
        return d.evaluate(binding)
    # Division, max and select are exact on integers only, and each side of a select need not have a value.
    rows = zip(*(binding[v].tolist() for v in columns), strict=True)
    rest = {v: binding[v] for v in d.variables if v not in columns}
    return np.array([float(d.evaluate({**rest, **dict(zip(columns, map(int, r), strict=True))})) for r in rows])
