"""Further elementwise ONNX nodes, and nodes along one axis."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from relax_eg.dtypes import is_float, kind, numpy_dtype
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.traced import traced_one
from relax_eg.frontends.onnx.widths import computed_in_float32
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.sizes import product


def _bit_shift(n: OnnxNode) -> Expr:
    f = op.left_shift if n.choice("direction", None, "LEFT", "RIGHT") == "LEFT" else op.right_shift
    return f(n[0], n[1])


def _bit_cast(n: OnnxNode) -> Expr:
    x, to = n[0], n.at("to")
    if numpy_dtype(x.dtype).itemsize != numpy_dtype(to).itemsize or "bool" in (x.dtype, to):
        raise n.error(f"{x.dtype} as {to}", "numbers of equal width")
    return op.bitcast(x, to)


def _is_inf(n: OnnxNode) -> Expr:
    x, low, high = n[0], n.flag("detect_negative", 1), n.flag("detect_positive", 1)
    if not is_float(x.dtype):
        raise n.error(f"{x.dtype}s", "floats")
    infinite = op.logical_not(op.logical_or(op.isfinite(x), op.isnan(x)))
    if low and high:
        return infinite
    if not low and not high:
        return op.zeros(x.shape, "bool")
    return op.logical_and(infinite, (op.less if low else op.greater)(x, 0))


def _hardmax(n: OnnxNode) -> Expr:
    x = n[0]
    axis = n.axis(-1 if n.opset >= 13 else 1, x.ndim)
    if n.opset < 13:
        flat = op.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
        return op.reshape(_first_maximum(flat, 1), x.shape)
    return _first_maximum(x, axis)


def _first_maximum(x: Expr, axis: int) -> Expr:
    """1 at the first maximum along an axis, 0 elsewhere."""
    places = op.iota(x.shape, axis)
    return op.astype(op.equal(places, op.argmax(x, axis, True)), x.dtype)


def _lp_normalization(n: OnnxNode) -> Expr:
    p = n.choice("p", 2, 1, 2)

    def normalised(x: Expr) -> Expr:
        axis = n.axis(-1, x.ndim)
        size = op.sum(op.abs(x), axis, True) if p == 1 else op.sqrt(op.sum(x * x, axis, True))
        zero = op.equal(size, 0)
        return op.where(zero, 0, x / op.where(zero, 1, size))

    return computed_in_float32(normalised, n[0])


def _eye_like(n: OnnxNode) -> Expr:
    shape, dtype = n.shape(0), n.at("dtype") or n.dtype(0)
    if len(shape) != 2:
        raise n.error(f"rank {len(shape)}", "a matrix")
    return op.eye(shape[0], shape[1], n.at("k", 0), dtype)


def _cumulative(f: Callable[..., Expr], neutral: int) -> Handler:
    """A running sum or product; `neutral`: the value that changes nothing."""

    def handler(n: OnnxNode) -> Expr:
        x, axes, back = n[0], [d.value for d in n.all_sizes("axis", 1)], n.flag("reverse")
        if len(axes) != 1:
            raise n.error(f"{len(axes)} axes", "one axis")
        axis = n.normal_axis(axes[0], x.ndim)
        # Shifts the axis by one; to take each element back out of its result would lose precision.
        if n.flag("exclusive"):
            moved = (-1, 1) if back else (1, -1)
            x = op.pad(x, [moved if a == axis else (0, 0) for a in range(x.ndim)], neutral)
        return computed_in_float32(lambda wide: f(wide, axis, back), x)

    return handler


def _space_to_depth(n: OnnxNode) -> Expr:
    x, k = n[0], n.at("blocksize")
    if x.ndim != 4 or k < 1:
        raise n.error(f"rank {x.ndim} and blocksize={k}", "rank 4 and blocksize >= 1")
    b, c, h, w = x.shape
    split = op.reshape(x, (b, c, h // k, k, w // k, k))
    order = (0, 3, 5, 1, 2, 4) if n.choice("mode", "DCR", "DCR", "CRD") == "DCR" else (0, 1, 3, 5, 2, 4)
    return op.reshape(op.permute_dims(split, order), (b, c * (k * k), h // k, w // k))


def integer_power(n: OnnxNode, x: Expr, exponent: Expr) -> Expr:
    """Whole numbers to powers that are known when the model runs."""
    wide = x.dtype

    def power(x: object, y: object) -> object:
        return jnp.power(jnp.asarray(x), jnp.asarray(y).astype(wide)) if kind(exponent.dtype) in "iu" else jnp.power(
            jnp.asarray(x).astype(exponent.dtype), jnp.asarray(y)
        ).astype(wide)  # fmt: skip

    return traced_one(n, power, x, exponent)


HANDLERS: dict[str, Handler] = {
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "BitwiseNot": lambda n: op.bitwise_not(n[0]),
    "CumProd": _cumulative(op.cumprod, 1),
    "CumSum": _cumulative(op.cumsum, 0),
    "Det": lambda n: traced_one(n, jnp.linalg.det, n[0]),
    "EyeLike": _eye_like,
    "Hardmax": _hardmax,
    "IsInf": _is_inf,
    "LpNormalization": _lp_normalization,
    "SpaceToDepth": _space_to_depth,
}
