"""ONNX nodes that read or write elements at computed positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.traced import traced_one
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op

_REDUCTIONS = ("none", "add", "mul", "min", "max")


def _written(x: Any, at: Any, values: Any, reduction: str) -> Any:
    """The array `x` with `values` combined into the elements at `at`. Negative positions count from the end."""
    places = x.at[at]
    if reduction == "none":
        return places.set(values)
    names: dict[str, Callable[..., Any]] = {
        "add": places.add,
        "mul": places.multiply,
        "min": places.min,
        "max": places.max,
    }
    return names[reduction](values)


def _scatter_elements(n: OnnxNode) -> Expr:
    x, at, updates = n[0], n[1], n[2]
    axis = n.axis(0, x.ndim)
    reduction = n.choice("reduction", "none", *_REDUCTIONS)
    if at.ndim != x.ndim:
        raise n.error(f"indices of rank {at.ndim} for data of rank {x.ndim}", "equal ranks")

    def scattered(x: Any, at: Any, updates: Any) -> Any:
        grid = [jax.lax.broadcasted_iota(at.dtype, at.shape, a) for a in range(at.ndim)]
        grid[axis] = at
        return _written(x, tuple(grid), updates, reduction)

    return traced_one(n, scattered, x, at, updates)


def _scatter_nd(n: OnnxNode) -> Expr:
    reduction = n.choice("reduction", "none", *_REDUCTIONS)

    def scattered(x: Any, at: Any, updates: Any) -> Any:
        return _written(x, tuple(jnp.moveaxis(at, -1, 0)), updates, reduction)

    return traced_one(n, scattered, n[0], n[1], n[2])


def _gather_nd(n: OnnxNode) -> Expr:
    batch = n.at("batch_dims", 0)

    def gathered(x: Any, at: Any) -> Any:
        f: Callable[[Any, Any], Any] = lambda x, at: x[tuple(jnp.moveaxis(at, -1, 0))]  # noqa: E731
        for _ in range(batch):
            f = jax.vmap(f)
        return f(x, at)

    return traced_one(n, gathered, n[0], n[1])


def _tensor_scatter(n: OnnxNode) -> Expr:
    x, updates, first = n[0], n[1], n.optional_input(2)
    axis = n.axis(-2, x.ndim)
    circular = n.choice("mode", "linear", "linear", "circular") == "circular"
    if axis == 0:
        raise n.error("axis 0", "an axis behind the batch")

    def scattered(x: Any, updates: Any, first: Any) -> Any:
        start = jnp.zeros((x.shape[0],), np.int64) if first is None else first
        grid = [jax.lax.broadcasted_iota(start.dtype, updates.shape, a) for a in range(x.ndim)]
        grid[axis] = grid[axis] + start.reshape((-1, *(1,) * (x.ndim - 1)))
        grid[axis] = grid[axis] % x.shape[axis] if circular else grid[axis]
        return x.at[tuple(grid)].set(updates)

    return traced_one(n, scattered, x, updates, first)


def _reverse_sequence(n: OnnxNode) -> Expr:
    batch, time = n.at("batch_axis", 1), n.at("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise n.error(f"batch_axis={batch}, time_axis={time}", "0 and 1, or 1 and 0")

    def reversed_rows(x: Any, lengths: Any) -> Any:
        steps = jax.lax.broadcasted_iota(lengths.dtype, x.shape[:2], time)
        ends = jnp.expand_dims(lengths, time)
        at = jnp.where(steps < ends, ends - 1 - steps, steps)
        return jnp.take_along_axis(x, at.reshape((*at.shape, *(1,) * (x.ndim - 2))), axis=time)

    return traced_one(n, reversed_rows, n[0], n[1])


def _max_unpool(n: OnnxNode) -> Expr:
    x, at, shape = n[0], n[1], n.sizes("output_shape", 2)
    space = x.ndim - 2
    window, strides = n.steps("kernel_shape", space), n.steps("strides", space)
    pads = n.at("pads", [0] * 2 * space)
    own = [
        (d - 1) * s - (low + high) + k
        for d, s, low, high, k in zip(x.shape[2:], strides, pads[:space], pads[space:], window, strict=True)
    ]
    whole = (*x.shape[:2], *own)

    def unpooled(x: Any, at: Any) -> Any:
        total = int(np.prod([int(d) for d in whole]))
        return jnp.zeros((total,), x.dtype).at[at.reshape(-1)].set(x.reshape(-1)).reshape([int(d) for d in whole])

    if not all(d.is_const for d in whole):
        raise n.error("a symbolic size", "fixed sizes")
    y = traced_one(n, unpooled, x, at)
    if shape is None:
        return y
    return op.pad(y, [(0, want - have) for want, have in zip(shape, y.shape, strict=True)])


def _einsum(n: OnnxNode) -> Expr:
    equation = n.at("equation", "")
    return traced_one(n, lambda *xs: jnp.einsum(equation.replace(" ", ""), *xs), *n.all)


HANDLERS: dict[str, Handler] = {
    "Einsum": _einsum,
    "GatherND": _gather_nd,
    "MaxUnpool": _max_unpool,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}
