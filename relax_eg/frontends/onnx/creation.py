"""ONNX nodes that make tensors from sizes, limits and positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, is_float
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import MOST_KNOWN, KnownArray, Value, known_value
from relax_eg.ir.expr import Expr, const
from relax_eg.limits import LARGEST_INT64
from relax_eg.ops import api as op
from relax_eg.ops.sizes import product
from relax_eg.shapes import Dim

# limit: equal elements that become a constant, which may be part of a shape; more become a `full`
_MAX_CONSTANT_FILL = 64


def normal_indices(indices: Expr, size: Dim) -> Expr:
    """Indices counted from the front of an axis; negative ones count from its end."""
    length = size.value if size.is_const else size
    return op.where(op.less(indices, 0), indices + length, indices)


def _constant_of_shape(n: OnnxNode) -> Value:
    shape, given = n.all_sizes("shape", 0), n.at("value")
    value = given if isinstance(given, KnownArray) else KnownArray(np.zeros(1, np.float32), "float32")
    fill = value.array.reshape(())
    if all(d.is_const for d in shape) and math.prod(d.value for d in shape) <= _MAX_CONSTANT_FILL:
        return KnownArray(np.full([d.value for d in shape], fill), value.dtype)
    return op.full(shape, const(fill))


def _range(n: OnnxNode) -> Value:
    for i in range(3):
        n.required_input(i)
    start, stop, step = (_limit(n, i) for i in range(3))
    dtype = n.dtype(0)
    n.choice("stash_type", 1, 1)  # half precision is computed in float32
    if isinstance(step, Dim):
        raise n.error(f"the step {step}", "a step that is known")
    if step == 0:
        raise n.error("a step of 0", "steps other than 0")
    if is_float(dtype):
        if isinstance(start, Dim) or isinstance(stop, Dim):
            low, high = (x if isinstance(x, Dim) else _whole(n, x) for x in (start, stop))
            return op.astype(op.arange(low, high, _whole(n, step), "int64"), dtype)
        return _floats_between(n, float(start), float(stop), float(step), dtype)
    start, stop = Dim.of(start), Dim.of(stop)
    if start.is_const and stop.is_const:
        count = max(-((start.value - stop.value) // step), 0)
        if count <= MOST_KNOWN:
            return known_value(np.array(range(start.value, stop.value, step), np.int64), dtype)
        if count > LARGEST_INT64:
            raise n.error(f"{count} elements", "fewer than 2**63")
    return op.arange(start, stop, step, dtype)


# given: bits of dtypes whose casts keep a size. A range of more than 2**24 numbers in float32 has no distinct elements.
_KEEP_SIZES = 32


def _limit(n: OnnxNode, i: int) -> Any:
    """Limit `i` of a range: a number or a size, which exporters cast to the dtype of the range."""
    found = n.required_input(i)
    while isinstance(found, Expr) and found.op in ("astype", "reshape", "dim_value") and _bits(found) >= _KEEP_SIZES:
        if found.op == "dim_value":
            return found.attr("dim")[0]
        found = found.args[0]
    array = n.known_array(i, "the limits")
    assert array is not None
    return array.reshape(()).item()


def _bits(x: Expr) -> int:
    return dtype_of(x.dtype).bits


def _whole(n: OnnxNode, limit: float) -> int:
    if not float(limit).is_integer():
        raise n.error(f"the limit or step {limit} beside a size", "whole numbers beside sizes")
    return int(limit)


def _floats_between(n: OnnxNode, start: float, stop: float, step: float, dtype: str) -> Value:
    wide = np.dtype("float64" if dtype == "float64" else "float32").type
    with np.errstate(all="ignore"):
        quotient = (wide(stop) - wide(start)) / wide(step)
    if not all(map(math.isfinite, (start, stop, step))) or not quotient < LARGEST_INT64:
        raise n.error(f"limits {start}, {stop} and the step {step}", "finite numbers, and fewer than 2**63 elements")
    count = max(math.ceil(quotient), 0)
    if count <= MOST_KNOWN:
        return known_value(wide(start) + np.arange(count).astype(wide) * wide(step), dtype)
    places = op.astype(op.arange(count, dtype="int64"), str(np.dtype(wide)))
    return op.astype(float(wide(start)) + places * float(wide(step)), dtype)


def _shape(n: OnnxNode) -> Value:
    shape = n.shape(0)
    made = np.empty(len(shape), object)
    made[:] = list(shape)
    return known_value(made[n.at("start", 0) : n.at("end")], "int64")


def _size(n: OnnxNode) -> Value:
    return known_value(product(n.shape(0)), "int64")


def _one_hot(n: OnnxNode) -> Expr:
    at, depth, values = n[0], n.one_size(1, "depth", "a known depth"), n[2]
    axis = n.axis(-1, at.ndim + 1)
    at = op.expand_dims(normal_indices(op.astype(at, "int64"), depth), axis)
    places = op.reshape(op.arange(depth, dtype="int64"), [depth if a == axis else 1 for a in range(at.ndim)])
    return op.where(op.equal(at, places), values[1], values[0])


def _trilu(n: OnnxNode) -> Expr:
    x, k = n[0], n.known_array(1, "the diagonal")
    f = op.triu if n.flag("upper", 1) else op.tril
    far = 2**30  # beyond every diagonal, and fits into 32 bits
    return f(x, 0 if k is None else min(max(int(k.reshape(())), -far), far))


HANDLERS: dict[str, Handler] = {
    "ConstantOfShape": _constant_of_shape,
    "OneHot": _one_hot,
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
    "Trilu": _trilu,
}
