"""Sizes and casts on numpy arrays, typed and exact; used by the evaluator of tensor programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, kind
from relax_eg.limits import FEW_KEPT
from relax_eg.shapes import Dim
from relax_eg.tir.exact import UNDEFINED, to_exact, uninterpreted_value
from relax_eg.tir.functions import FUNCTIONS, Array, exact_function, widen


def dim_values(dim: Dim, env: Mapping[str, Any]) -> Any:
    """Returns the value of `dim` for variables that are arrays, which `Dim.evaluate` cannot compare."""
    total: Any = dim.const
    for monomial, coefficient in dim.terms:
        product: Any = coefficient
        for atom in monomial:
            if atom.op == "var":
                product = product * atom.evaluate(env)
                continue
            first, *others = (np.asarray(dim_values(arg, env)) for arg in atom.args)
            if atom.op == "select":
                product = product * np.where(first >= 0 if atom.name == ">=" else first == 0, *others)
                continue
            for other in others:
                match atom.op:
                    case "max":
                        first = np.maximum(first, other)
                    case "min":
                        first = np.minimum(first, other)
                    case "floordiv":
                        first = first // other
                    case _:
                        first = -(-first // other)
            product = product * first
        total = total + product
    return total


def convert(x: Array, dtype: str) -> Array:
    """Converts `x` as XLA does. From float to integer it saturates, and NaN becomes 0."""
    to = np.dtype(dtype)
    if x.dtype == to:
        return x
    source, target = kind(x.dtype.name), kind(dtype)
    with np.errstate(all="ignore"):
        if source == "c" and target != "c":
            x = x.real
        if target == "b":
            return widen(x) != 0
        if source not in "fc" or target not in "iu":
            return x.astype(to)
        x, low, high = widen(x), dtype_of(dtype).least, dtype_of(dtype).greatest
        below, above = x <= float(low), x >= float(high)
        inside = np.where(below | above | np.isnan(x), 0, x).astype(np.int64 if high < 2**63 else np.uint64)
        return np.where(below, low, np.where(above, high, inside)).astype(to)


def to_exact_array(x: Array) -> Array:
    return np.asarray(np.frompyfunc(to_exact, 1, 1)(x), dtype=object)


def _wrap(value: Any, dtype: str) -> Any:
    """Returns an exact value as `dtype` holds it: integers wrap, other values are unchanged."""
    if kind(dtype) not in "iu" or value is UNDEFINED or isinstance(value, float):
        return value
    held = dtype_of(dtype)
    return (int(value) - held.least) % (1 << held.bits) + held.least


@lru_cache(FEW_KEPT)
def exact_ufunc(fn: str, argument: str, dtype: str) -> Any:
    function = exact_function(FUNCTIONS[fn], argument)

    def call(*args: Any) -> Any:
        return UNDEFINED if any(arg is UNDEFINED for arg in args) else _wrap(function(*args), dtype)

    return np.frompyfunc(call, FUNCTIONS[fn].arity, 1)


@lru_cache(FEW_KEPT)
def exact_conversion(source: str, target: str) -> Any:
    letters = kind(source) + kind(target)

    def call(x: Any) -> Any:
        if x is UNDEFINED:
            return x
        if letters[1] == "b":
            return x != 0
        if letters[0] == "c" and letters[1] != "c":
            x = uninterpreted_value("real", x)
        if letters[1] in "iu":
            if letters[0] in "iub":
                return _wrap(int(x), target)
            low, high = dtype_of(target).least, dtype_of(target).greatest
            return low if x <= low else high if x >= high else math.trunc(x)
        return int(x) if letters[0] == "b" else x

    return np.frompyfunc(call, 1, 1)
