"""ONNX nodes over windows of space, and normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from relax_eg.frontends.onnx.nodes import Handler, Node
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.shapes import Dim, ceildiv

_Pads = list[tuple[int | Dim, int | Dim]]


def _pads(n: Node, space: Sequence[Dim], window: Sequence[int], strides: Sequence[int], around: Sequence[int]) -> _Pads:
    """Widths before and after each axis of space."""
    auto = n.at("auto_pad", "NOTSET")
    if auto == "VALID":
        return [(0, 0)] * len(space)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        made: _Pads = []
        for size, k, s, d in zip(space, window, strides, around, strict=True):
            reach = (k - 1) * d + 1
            total = (ceildiv(size, s) - 1) * s + reach - size
            if total.is_const:
                total = Dim.of(max(total.value, 0))
            elif s > reach:
                raise n.error(
                    f"auto_pad={auto} with a stride above the window and the size {size}", "fixed sizes, or pads"
                )
            half = total // 2
            made.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
        return made
    pads = n.at("pads", [0] * 2 * len(space))
    return list(zip(pads[: len(space)], pads[len(space) :], strict=True))


def _channels(v: Expr, rank: int) -> Expr:
    """A vector along axis 1 of `rank` axes."""
    return op.reshape(v, (1, -1, *[1] * (rank - 2)))


def _conv(n: Node) -> Expr:
    x, w = n[0], n[1]
    space = x.ndim - 2
    window = [int(d) for d in w.shape[2:]]
    strides, around = n.at("strides", [1] * space), n.at("dilations", [1] * space)
    pads = _pads(n, x.shape[2:], window, strides, around)
    y = op.conv(x, w, strides, pads, around, n.at("group", 1))
    bias = n.given(2)
    return y if bias is None else y + _channels(bias, x.ndim)


def _conv_transpose(n: Node) -> Expr:
    x, w, groups = n[0], n[1], n.at("group", 1)
    space = x.ndim - 2
    window = [int(d) for d in w.shape[2:]]
    strides, around = n.at("strides", [1] * space), n.at("dilations", [1] * space)
    if n.at("output_shape") or n.at("auto_pad", "NOTSET") != "NOTSET":
        raise n.error("output_shape or auto_pad", "pads and output_padding")
    extra = n.at("output_padding", [0] * space)
    pads = n.at("pads", [0] * 2 * space)
    low = [d * (k - 1) - p for k, d, p in zip(window, around, pads[:space], strict=True)]
    high = [d * (k - 1) - p + e for k, d, p, e in zip(window, around, pads[space:], extra, strict=True)]
    # Weights are stored (in, out / groups, *window) and turned around.
    w = op.flip(w, tuple(range(2, w.ndim)))
    rows, columns = w.shape[0] // groups, w.shape[1]
    w = op.reshape(w, (groups, rows, columns, *w.shape[2:]))
    w = op.reshape(op.swapaxes(w, 1, 2), (columns * groups, rows, *w.shape[3:]))
    y = op.conv(x, w, 1, list(zip(low, high, strict=True)), around, groups, input_dilation=strides)
    bias = n.given(2)
    return y if bias is None else y + _channels(bias, x.ndim)


def _pool(n: Node, kind: str) -> tuple[Expr, Expr | None]:
    """Every window's sum or maximum; how many elements a window has where padding is not counted."""
    x = n[0]
    window = n.at("kernel_shape")
    space = len(window)
    strides, around = n.at("strides", [1] * space), n.at("dilations", [1] * space)
    pads = _pads(n, x.shape[2:], window, strides, around)
    beyond = [(0, 0)] * space
    if n.at("ceil_mode", 0):
        for i, (size, k, s, d) in enumerate(zip(x.shape[2:], window, strides, around, strict=True)):
            low, high = pads[i]
            room = size + low + high - ((k - 1) * d + 1)
            more = ceildiv(room, s) * s - room
            if not more.is_const:
                raise n.error(f"ceil_mode=1 with the size {size}", "fixed sizes, or ceil_mode=0")
            # A window that would begin in the padding after the end is left out.
            steps = ceildiv(room, s)
            if steps.is_const and (size + low).is_const and steps.value * s >= (size + low).value:
                more = Dim.of(0)
            beyond[i] = (0, more.value)
    spread = (1, 1, *around)
    whole = [(0, 0), (0, 0), *[(a[0] + 0, a[1] + b[1]) for a, b in zip(pads, beyond, strict=True)]]
    y = op.reduce_window(x, kind, (1, 1, *window), (1, 1, *strides), whole, spread)
    counted = n.at("count_include_pad", 0)
    if kind == "max" or (counted and not any(b[1] for b in beyond)) or not any(w != (0, 0) for w in whole):
        return y, None
    ones = op.ones((1, 1, *x.shape[2:]), x.dtype)
    if counted:
        ones = op.pad(ones, [(0, 0), (0, 0), *pads], 1)
        whole = [(0, 0), (0, 0), *beyond]
    return y, op.reduce_window(ones, "sum", (1, 1, *window), (1, 1, *strides), whole, spread)


def _max_pool(n: Node) -> Expr:
    if n.outputs > 1:
        raise n.error("the indices of the maxima are asked for", "a MaxPool of one output")
    return _pool(n, "max")[0]


def _average_pool(n: Node) -> Expr:
    total, counts = _pool(n, "sum")
    return total / (math.prod(n.at("kernel_shape")) if counts is None else counts)


def _space(x: Expr) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _batch_norm(n: Node) -> Expr:
    if n.at("training_mode", 0):
        raise n.error("training_mode=1", "a model exported for inference")
    x, scale, bias, mean, variance = (n[i] for i in range(5))
    factor = scale * op.rsqrt(variance + n.at("epsilon", 1e-5))
    return x * _channels(factor, x.ndim) + _channels(bias - mean * factor, x.ndim)


def _normalised(x: Expr, axes: tuple[int, ...], epsilon: float) -> Expr:
    centred = x - op.mean(x, axes, keepdims=True)
    return centred * op.rsqrt(op.mean(centred * centred, axes, keepdims=True) + epsilon)


def _layer_norm(n: Node) -> Expr:
    x, scale = n[0], n[1]
    if n.outputs > 1:
        raise n.error("the mean or the deviation is asked for", "a LayerNormalization of one output")
    axes = tuple(range(n.at("axis", -1) % x.ndim, x.ndim))
    y = _normalised(x, axes, n.at("epsilon", 1e-5)) * scale
    bias = n.given(2)
    return y if bias is None else y + bias


def _rms_norm(n: Node) -> Expr:
    x, scale = n[0], n[1]
    axes = tuple(range(n.at("axis", -1) % x.ndim, x.ndim))
    return x * op.rsqrt(op.mean(x * x, axes, keepdims=True) + n.at("epsilon", 1e-5)) * scale


def _instance_norm(n: Node) -> Expr:
    x, scale, bias = n[0], n[1], n[2]
    made = _normalised(x, _space(x), n.at("epsilon", 1e-5))
    return made * _channels(scale, x.ndim) + _channels(bias, x.ndim)


def _lrn(n: Node) -> Expr:
    x, size = n[0], n.at("size")
    before = (size - 1) // 2
    pads = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    window = (1, size, *[1] * (x.ndim - 2))
    squares = op.reduce_window(x * x, "sum", window, None, pads)
    return x / op.power(n.at("bias", 1.0) + n.at("alpha", 1e-4) / size * squares, float(n.at("beta", 0.75)))


def _resize(n: Node) -> Expr:
    """Nearest, by whole factors; else the elements that each result is nearest to, where sizes are known."""
    x = n[0]
    mode = n.at("mode", "nearest")
    if mode != "nearest":
        raise n.error(f"mode={mode!r}", "mode='nearest'")
    at = n.known(1 if n.opset < 11 or n.kind == "Upsample" else 2, "the scales")
    scales = None if at is None or not at.size else [float(s) for s in at]
    if scales is None:
        wanted = n.sizes("sizes", 3) or ()
        pairs = [(a, b) for a, b in zip(wanted, x.shape, strict=True)]
        if not all(a.is_const and b.is_const for a, b in pairs):
            raise n.error("sizes that are symbolic", "scales, or fixed sizes")
        scales = [a.value / b.value for a, b in pairs]
    for axis, scale in enumerate(scales):
        if scale == 1:
            continue
        if scale != int(scale) or scale < 1:
            raise n.error(f"the factor {scale:g}", "whole factors")
        k = int(scale)
        # Each element k times: every usual way to round and to place them comes to this, but for half of a pixel.
        way = n.at("coordinate_transformation_mode", "half_pixel"), n.at("nearest_mode", "round_prefer_floor")
        if way[0] == "asymmetric" and way[1] != "floor" and n.kind == "Resize" and n.opset >= 11:
            raise n.error(f"nearest_mode={way[1]!r} with asymmetric coordinates", "nearest_mode='floor'")
        if way[0] == "align_corners":
            raise n.error("align_corners", "half_pixel or asymmetric coordinates")
        size = x.shape
        x = op.expand_dims(x, axis + 1)
        x = op.broadcast_to(x, (*size[: axis + 1], k, *size[axis + 1 :]))
        x = op.reshape(x, (*size[:axis], size[axis] * k, *size[axis + 1 :]))
    return x


def _depth_to_space(n: Node) -> Expr:
    x, k = n[0], n.at("blocksize")
    b, c, h, w = x.shape
    if n.at("mode", "DCR") == "DCR":
        y = op.permute_dims(op.reshape(x, (b, k, k, c // (k * k), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = op.permute_dims(op.reshape(x, (b, c // (k * k), k, k, h, w)), (0, 1, 4, 2, 5, 3))
    return op.reshape(y, (b, c // (k * k), h * k, w * k))


HANDLERS: dict[str, Handler] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda n: op.mean(n[0], _space(n[0]), keepdims=True),
    "GlobalMaxPool": lambda n: op.max(n[0], _space(n[0]), keepdims=True),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _depth_to_space,
}
