"""Translates convolutions and window reductions, and brings convolutions to the operators' layout: batch, channels,
space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_eg.frontends.jax.contractions import common_dtype, precision_of
from relax_eg.frontends.jax.equation import JaxprEquation, Rule, astype, combining_primitive, permute, reshape
from relax_eg.frontends.symbolic import to_dim
from relax_eg.ir.expr import CONSTANT, Expr, constant_value
from relax_eg.ops.record import call
from relax_eg.ops.windows import identity
from relax_eg.shapes import Dim


def _convolution(e: JaxprEquation) -> Expr | None:
    """`conv_general_dilated` as `conv`, or None if the operator cannot express it.

    JAX makes batch groups when it differentiates a grouped convolution. They become feature groups when the groups of
    the batch are moved into the channels."""
    precision = precision_of(e["precision"])
    x, w = e.args
    dtype = common_dtype(x, w, e.dtype)
    if precision == "odd" or dtype is None:
        return None
    numbers = e["dimension_numbers"]
    x, w = permute(x, numbers.lhs_spec), permute(w, numbers.rhs_spec)
    groups, batch_groups = int(e["feature_group_count"]), int(e["batch_group_count"])
    if batch_groups > 1:
        n, c, *space = x.shape
        rest = n // batch_groups
        x = reshape(x, (Dim.of(batch_groups), rest, c, *space))
        x = permute(x, (1, 0, *range(2, x.ndim)))
        x = reshape(x, (rest, c * batch_groups, *space))
        groups = batch_groups
    low, high = _edges(e["padding"])
    attrs = {
        "strides": tuple(e["window_strides"]), "low": low, "high": high, "dilation": tuple(e["rhs_dilation"]),
        "input_dilation": tuple(e["lhs_dilation"]), "groups": groups, "precision": precision,
        "out_dtype": None if e.dtype == dtype else e.dtype,
    }  # fmt: skip
    made = call("conv", (astype(x, dtype), astype(w, dtype)), attrs)
    order = list(numbers.out_spec)
    return permute(made, [order.index(a) for a in range(made.ndim)])


def _edges(padding: Any) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """The padding widths before and after each axis."""
    return tuple(to_dim(low) for low, _ in padding), tuple(to_dim(high) for _, high in padding)


def _window(e: JaxprEquation) -> dict[str, Any]:
    low, high = _edges(e["padding"])
    window = tuple(map(to_dim, e["window_dimensions"]))
    return {"window": window, "strides": tuple(map(int, e["window_strides"])), "low": low, "high": high}


def _window_reduction(kind: str) -> Rule:
    """The rule for `reduce_window_<kind>`."""

    def rule(e: JaxprEquation) -> Expr:
        dilations = {"dilation": tuple(e["window_dilation"]), "input_dilation": tuple(e["base_dilation"])}
        return call("reduce_window", e.args, {"kind": kind, **_window(e), **dilations})

    return rule


# From the primitive of a combining function to the kind of reduction: for bool, and for other dtypes.
_BOOLEAN = {"and": "min", "or": "max", "min": "min", "max": "max", "xor": "xor"}
_COMBINE = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}
# From the kind of reduction to the operator that combines a window with an initial value.
_COMBINING_OPERATORS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def _general_window(e: JaxprEquation) -> Sequence[Expr] | None:
    """`reduce_window` of arrays that do not meet in the combining function, with any initial values: each is combined
    once into every window of its array, and the padding is the neutral element."""
    count = len(e.out)
    made = [_windows_of(e, e.args[i], e.args[count + i], i) for i in range(count)]
    return None if None in made else [m for m in made if m is not None]


def _windows_of(e: JaxprEquation, x: Expr, start: Expr, i: int) -> Expr | None:
    """The `i`-th result of `reduce_window`, of the array `x`."""
    with_what = combining_primitive(e["jaxpr"], i) or ""
    kind = (_BOOLEAN if x.dtype == "bool" else _COMBINE).get(with_what)
    if kind is None:
        return None
    dilations = {"dilation": tuple(e["window_dilation"]), "input_dilation": tuple(e["base_dilation"])}
    made = call("reduce_window", (x,), {"kind": kind, **_window(e), **dilations})
    if start.op == CONSTANT and np.array_equal(constant_value(start), np.asarray(identity(kind, x.dtype), x.dtype)):
        return made
    bits = f"{'logical' if x.dtype == 'bool' else 'bitwise'}_{kind}"
    return call(_COMBINING_OPERATORS.get(kind, bits), (start, made))


def _select_and_scatter(e: JaxprEquation) -> Expr | None:
    """`select_and_scatter_add`, the transpose of pooling: the cotangent of each window goes to its extreme element."""
    kind = {"ge": "max", "le": "min"}.get(e["select_prim"].name)
    return None if kind is None else call("window_scatter", e.args, {"kind": kind, **_window(e)})


def _select_and_gather(e: JaxprEquation) -> Expr | None:
    """`select_and_gather_add`, the derivative of pooling: each window takes the tangent of its extreme element."""
    kind = {"ge": "max", "le": "min"}.get(e["select_prim"].name)
    if kind is None or {*e["base_dilation"], *e["window_dilation"]} - {1}:
        return None
    return call("window_gather", e.args, {"kind": kind, **_window(e)})


RULES: dict[str, Rule] = {
    "conv_general_dilated": _convolution,
    "reduce_window_sum": _window_reduction("sum"),
    "reduce_window_max": _window_reduction("max"),
    "reduce_window_min": _window_reduction("min"),
    "reduce_window": _general_window,
    "select_and_scatter_add": _select_and_scatter,
    "select_and_gather_add": _select_and_gather,
}
