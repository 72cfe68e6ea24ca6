"""ONNX normalisation nodes.

They have two stages. Statistics and the normalised value are computed in the dtype that `stash_type` names, float32 by
default. Scale and bias are applied in the dtype of the operands.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relax_eg.dtypes import numpy_dtype
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import Value
from relax_eg.frontends.onnx.widths import computed_in_float32
from relax_eg.frontends.onnx.windows import channels, space_of
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.reduction import accumulator
from relax_eg.ops.sizes import product

_STASH = {1: "float32", 16: "bfloat16"}  # the dtypes that statistics may have, by their ONNX numbers
_EPSILON = 1e-5  # given: the default of ONNX
_MOMENTUM = 0.9  # given: the default of ONNX
_OF_ONNXRUNTIME = ("SimplifiedLayerNormalization",)  # onnxruntime writes it in ONNX's own domain, which lacks it


def _stash(n: OnnxNode) -> str:
    return _STASH[n.choice("stash_type", 1, *_STASH)]


def _to_stash(x: Expr, stash: str) -> Expr:
    """`x` in the dtype of the first stage. float64 stays float64: a narrower stage would make the remaining digits of
    the result wrong, and no runtime does that."""
    return x if x.dtype == "float64" else op.astype(x, stash)


def statistics(x: Expr, axes: tuple[int, ...], epsilon: float, about_zero: bool = False) -> tuple[Expr, Expr, Expr]:
    """`x` normalised over `axes`, its mean, and one over its standard deviation. `about_zero`: by its root mean square,
    without taking away its mean."""
    mean = op.mean(x, axes, keepdims=True)
    centred = x if about_zero else x - mean
    inverse = op.rsqrt(op.mean(centred * centred, axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


def _apply_scale(n: OnnxNode, y: Expr, scale: Expr, bias: Expr | None) -> Expr:
    made = y * scale if bias is None else y * scale + bias
    if made.shape != y.shape:
        raise n.error(f"a scale or bias that does not broadcast to {y.tensor.short}", "shapes that broadcast to it")
    return made


def _layer_norm(n: OnnxNode) -> list[Value]:
    x, scale, stash = n[0], n[1], _stash(n)
    axes = tuple(range(n.axis(-1, x.ndim), x.ndim))
    y, mean, inverse = statistics(_to_stash(x, stash), axes, n.at("epsilon", _EPSILON))
    return [
        _apply_scale(n, op.astype(y, x.dtype), scale, n.optional_input(2)),
        op.astype(mean, stash),
        op.astype(inverse, stash),
    ]


def _rms_norm(n: OnnxNode) -> list[Value]:
    x, scale, stash = n[0], n[1], _stash(n)
    axes = tuple(range(n.axis(-1, x.ndim), x.ndim))
    y, _, inverse = statistics(_to_stash(x, stash), axes, n.at("epsilon", _EPSILON), about_zero=True)
    y = _apply_scale(n, op.astype(op.astype(y, x.dtype), scale.dtype), scale, None)
    return [y, op.astype(inverse, stash)] if n.kind in _OF_ONNXRUNTIME else [y]


def _instance_norm(n: OnnxNode) -> Expr:
    x, scale, bias = n[0], n[1], n[2]
    y, _, _ = statistics(_to_stash(x, "float32"), space_of(x), n.at("epsilon", _EPSILON))
    return op.astype(y, x.dtype) * channels(scale, x.ndim) + channels(bias, x.ndim)


def _group_norm(n: OnnxNode) -> Expr:
    x, scale, bias, groups = n[0], n[1], n[2], n.at("num_groups")
    stash = _stash(n)
    if x.ndim < 3 or not x.shape[1].is_const or groups < 1 or x.shape[1].value % groups:
        raise n.error(f"{groups} groups of {x.tensor.short}", "groups that divide the channels, which are known")
    split = op.reshape(x, (x.shape[0], groups, x.shape[1].value // groups, *x.shape[2:]))
    y, _, _ = statistics(_to_stash(split, stash), tuple(range(2, split.ndim)), n.at("epsilon", _EPSILON))
    y = op.astype(y, x.dtype)
    if n.opset < 21:  # scale and bias are per group before opset 21, and per channel from then on
        return op.reshape(y * channels(scale, split.ndim) + channels(bias, split.ndim), x.shape)
    return op.reshape(y, x.shape) * channels(scale, x.ndim) + channels(bias, x.ndim)


def softmax(n: OnnxNode, f: Callable[[Expr, int], Expr], x: Expr, opset: int) -> Expr:
    """`f`, a softmax along an axis, of `x`, by the attribute `axis` as operator set `opset` has it."""
    if opset >= 13:
        return computed_in_float32(lambda wide: f(wide, n.axis(-1, x.ndim)), x)
    axis = n.axis(1, x.ndim)
    flat = op.reshape(x, (*x.shape[:axis], product(x.shape[axis:])))  # older opsets: over all axes from this one on
    return op.reshape(computed_in_float32(lambda wide: f(wide, axis), flat), x.shape)


def _batch_norm(n: OnnxNode) -> list[Value]:
    if n.opset < 14 and n.output_count > 1:
        raise n.error(f"{n.output_count} outputs, which mean training", "a model exported for inference")
    if not n.flag("spatial", 1):
        raise n.error("spatial=0", "a model exported for inference")
    momentum = n.at("momentum", _MOMENTUM)
    x, *others = (n[i] for i in range(5))
    dtype = str(np.result_type(*(numpy_dtype(accumulator(e.dtype)) for e in (x, *others))))
    scale, bias, mean, variance = (op.astype(e, dtype) for e in others)
    running: list[Value] = []
    if n.flag("training_mode"):
        axes, wide = (0, *space_of(x)), op.astype(x, dtype)
        found = op.mean(wide, axes)
        centred = wide - channels(found, x.ndim)
        spread = op.mean(centred * centred, axes)
        kept = zip((mean, variance), (found, spread), others[2:], strict=True)
        running = [op.astype(old * momentum + new * (1 - momentum), e.dtype) for old, new, e in kept]
        mean, variance = found, spread
    factor = scale * op.rsqrt(variance + n.at("epsilon", _EPSILON))
    y = op.astype(x, dtype) * channels(factor, x.ndim) + channels(bias - mean * factor, x.ndim)
    return [op.astype(y, x.dtype), *running]


def _lrn(n: OnnxNode) -> Expr:
    size, bias = n.at("size"), n.at("bias", 1.0)
    alpha, beta = n.at("alpha", 1e-4), float(n.at("beta", 0.75))
    before = (size - 1) // 2

    def normalised(x: Expr) -> Expr:
        pads = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
        squares = op.reduce_window(x * x, "sum", (1, size, *[1] * (x.ndim - 2)), None, pads)
        return x / op.power(bias + alpha / size * squares, beta)

    return computed_in_float32(normalised, n[0])


HANDLERS: dict[str, Handler] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LRN": _lrn,
    "RMSNormalization": _rms_norm,
    **dict.fromkeys(_OF_ONNXRUNTIME, _rms_norm),
}
