"""Constant folding of JAX primitives by numpy, for a few known numbers such as sizes.

Numpy computes these primitives as XLA does, up to the rounding of powers. A fold returns None if numpy may give another
result than XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np


def _quotient(a: Any, b: Any) -> Any:
    """Like `jax.lax.div`, which rounds integers towards zero. None for integer division by zero, and for integers of
    absolute value 2**52 or more."""
    if jax.dtypes.issubdtype(a.dtype, np.inexact):
        return a / b
    return None if np.any(b == 0) else np.trunc(a.astype(np.float64) / b) if np.all(np.abs(a) < 1 << 52) else None


def _remainder(a: Any, b: Any) -> Any:
    return None if not jax.dtypes.issubdtype(a.dtype, np.inexact) and np.any(b == 0) else np.fmod(a, b)


def _broadcast(x: Any, params: Mapping[str, Any], shape: Sequence[int]) -> Any:
    whole = [1] * len(shape)
    for n, d in zip(x.shape, params["broadcast_dimensions"], strict=True):
        whole[d] = n
    return np.broadcast_to(x.reshape(whole), shape)


_Fold = Callable[[list[Any], Mapping[str, Any], Sequence[int]], Any]


def _plain_fold(function: Callable[..., Any]) -> _Fold:
    return lambda xs, _, __: function(*xs)


# Folds by primitive name. A fold takes the operands, the parameters with sizes as numbers, and the result's shape.
FOLDS: Mapping[str, _Fold] = {
    **{
        name: _plain_fold(function)
        for name, function in {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
            "neg": np.negative, "sign": np.sign, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "sqrt": np.sqrt,
            "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert, "xor": np.bitwise_xor,
            "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal, "square": np.square, "div": _quotient, "rem": _remainder, "pow": np.power,
            "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
            "select_n": lambda which, *cases: np.choose(which.astype(np.int32), cases),
            "copy": lambda x: x,
        }.items()
    },
    "integer_pow": lambda xs, p, _: np.power(xs[0], p["y"]) if p["y"] >= 0 else None,
    "round": lambda xs, p, _: np.rint(xs[0]) if int(p["rounding_method"]) == 1 else None,
    "convert_element_type": lambda xs, p, _: _converted(xs[0], p["new_dtype"]),
    "broadcast_in_dim": lambda xs, p, shape: _broadcast(xs[0], p, shape) if len(xs) == 1 else None,
    "reshape": lambda xs, p, shape: None if p.get("dimensions") is not None else xs[0].reshape(shape),
    "squeeze": lambda xs, _, shape: xs[0].reshape(shape),
    "concatenate": lambda xs, p, _: np.concatenate(xs, p["dimension"]),
    "transpose": lambda xs, p, _: np.transpose(xs[0], p["permutation"]),
    "iota": lambda _, p, shape: _broadcast(np.arange(shape[p["dimension"]]), {"broadcast_dimensions": [p["dimension"]]},
                                           shape),
    "reduce_sum": lambda xs, p, _: np.sum(xs[0], tuple(p["axes"]), xs[0].dtype),
    "reduce_prod": lambda xs, p, _: np.prod(xs[0], tuple(p["axes"]), xs[0].dtype),
    "reduce_max": lambda xs, p, _: np.max(xs[0], tuple(p["axes"])) if xs[0].size else None,
    "reduce_min": lambda xs, p, _: np.min(xs[0], tuple(p["axes"])) if xs[0].size else None,
    "cumsum": lambda xs, p, _: None if p["reverse"] else np.cumsum(xs[0], p["axis"], xs[0].dtype),
    "slice": lambda xs, p, _: xs[0][tuple(map(slice, p["start_indices"], p["limit_indices"],
                                              p["strides"] or (None,) * xs[0].ndim))],
    "rev": lambda xs, p, _: np.flip(xs[0], tuple(p["dimensions"])),
}  # fmt: skip


def _converted(x: Any, dtype: Any) -> Any:
    """`x` as `dtype`. None if a number does not fit, because XLA then converts it in its own way."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return None
    if jax.dtypes.issubdtype(x.dtype, np.inexact) and not jax.dtypes.issubdtype(dtype, np.inexact):
        found = x.astype(dtype)
        return found if np.array_equal(found.astype(x.dtype), np.trunc(x)) else None
    return x.astype(dtype)
