"""ONNX nodes over spatial windows: convolution and pooling, and `DepthToSpace`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import KnownArray
from relax_eg.frontends.onnx.widths import computed_in_float32
from relax_eg.ir.expr import Expr, const
from relax_eg.ops import api as op
from relax_eg.ops.low_rank import MOST_RANK, NEAR, factors, is_separate
from relax_eg.shapes import Dim, ceildiv

_POOLS = ("AveragePool", "LpPool", "MaxPool")
_Pads = list[tuple[int | Dim, int | Dim]]


def _pads(
    n: OnnxNode, space: Sequence[Dim], window: Sequence[int], strides: Sequence[int], around: Sequence[int]
) -> _Pads:
    """The padding widths before and after each spatial axis."""
    auto = n.choice("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    pads = n.at("pads", [0] * 2 * len(space))
    if len(pads) != 2 * len(space):
        raise n.error(f"{len(pads)} pads for {len(space)} axes of space", "two for each axis")
    if auto != "NOTSET" and any(pads):
        raise n.error(f"auto_pad={auto!r} beside pads={list(pads)}", "one of the two")
    if auto == "VALID":
        return [(0, 0)] * len(space)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        made: _Pads = []
        for size, k, s, d in zip(space, window, strides, around, strict=True):
            reach = (k - 1) * d + 1
            total = (ceildiv(size, s) - 1) * s + reach - size
            if n.kind in _POOLS and (d > 1 or (total.is_const and total.value < 0)):
                # The text of ONNX has a formula for this case, but neither its reference nor the runtimes use it.
                said = f"auto_pad={auto!r} with the dilation {d} and the stride {s} of a window of {k}"
                raise n.error(said, "pads")
            if total.is_const:
                total = Dim.of(max(total.value, 0))
            elif s > reach:
                raise n.error(
                    f"auto_pad={auto} with a stride above the window and the size {size}", "fixed sizes, or pads"
                )
            half = total // 2
            made.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
        return made
    return list(zip(pads[: len(space)], pads[len(space) :], strict=True))


def window_of(n: OnnxNode, w: Expr, space: int) -> list[int]:
    """The sizes of a convolution's window: those of its weights. OnnxError if `kernel_shape` contradicts them."""
    window = [int(d) for d in w.shape[2:]]
    told = n.at("kernel_shape", window)
    if list(told) != window:
        raise n.error(f"kernel_shape={list(told)} with weights of {window}", "the sizes of the weights")
    if space < 1 or len(window) != space:
        raise n.error(f"{space} axes of space and a window of {len(window)}", "at least one, and as many")
    return window


def channels(v: Expr, rank: int) -> Expr:
    """A vector reshaped to lie along axis 1 of `rank` axes."""
    return op.reshape(v, (1, -1, *[1] * (rank - 2)))


def space_of(x: Expr) -> tuple[int, ...]:
    """The spatial axes of (batch, channels, *space)."""
    return tuple(range(2, x.ndim))


def _conv(n: OnnxNode) -> Expr:
    return convolved(n, n[0], _kernel(n), n.optional_input(2))


def _kernel(n: OnnxNode) -> Expr:
    """The weights of a convolution: a constant where its values, not only its shape, say how to compute faster."""
    given = n.required_input(1)
    if not isinstance(given, KnownArray) or given.weight is None or not is_separate(given.array.shape[2:]):
        return n[1]
    out, depth = given.array.shape[:2]
    is_depthwise = n.at("group", 1) == out and depth == 1
    known = (is_depthwise or n.at("group", 1) == 1) and factors(given.array, is_depthwise, NEAR, MOST_RANK) is not None
    return const(given.array) if known else n[1]


def convolved(n: OnnxNode, x: Expr, w: Expr, bias: Expr | None) -> Expr:
    """A convolution with the attributes of the node."""
    space = x.ndim - 2
    window = window_of(n, w, space)
    strides, around = n.steps("strides", space), n.steps("dilations", space)
    pads = _pads(n, x.shape[2:], window, strides, around)
    y = op.conv(x, w, strides, pads, around, n.at("group", 1))
    return y if bias is None else y + channels(bias, x.ndim)


def _conv_transpose(n: OnnxNode) -> Expr:
    x, w, groups = n[0], n[1], n.at("group", 1)
    space = x.ndim - 2
    window = window_of(n, w, space)
    strides, around = n.steps("strides", space), n.steps("dilations", space)
    extra = n.at("output_padding", [0] * space)
    pads = _transposed_pads(n, x, window, strides, around, extra)
    low = [d * (k - 1) - p for k, d, p in zip(window, around, pads[:space], strict=True)]
    high = [d * (k - 1) - p + e for k, d, p, e in zip(window, around, pads[space:], extra, strict=True)]
    # Weights are stored as (in, out / groups, *window). A transposed convolution flips them along the window.
    w = op.flip(w, tuple(range(2, w.ndim)))
    rows, columns = w.shape[0] // groups, w.shape[1]
    w = op.reshape(w, (groups, rows, columns, *w.shape[2:]))
    w = op.reshape(op.swapaxes(w, 1, 2), (columns * groups, rows, *w.shape[3:]))
    y = op.conv(x, w, 1, list(zip(low, high, strict=True)), around, groups, input_dilation=strides)
    bias = n.optional_input(2)
    return y if bias is None else y + channels(bias, x.ndim)


def _transposed_pads(
    n: OnnxNode, x: Expr, window: Sequence[int], strides: Sequence[int], around: Sequence[int], extra: Sequence[int]
) -> list[int | Dim]:
    """The padding of a transposed convolution, before all axes and then behind all: as given, or as the
    requested sizes of the result need it."""
    space, shape = len(window), n.at("output_shape")
    auto = n.choice("auto_pad", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    given = list(n.at("pads", [0] * 2 * space))
    if shape is None and auto in ("NOTSET", "VALID"):
        return given
    wanted = [d * s for d, s in zip(x.shape[2:], strides, strict=True)] if shape is None else list(shape)[-space:]
    low: list[int | Dim] = []
    high: list[int | Dim] = []
    for size, want, k, s, d, e in zip(x.shape[2:], wanted, window, strides, around, extra, strict=True):
        total = (size - 1) * s + e + (k - 1) * d + 1 - want
        if not total.is_const:
            raise n.error(f"output_shape with the size {size}", "fixed sizes, or pads")
        # What is too small grows at the end.
        if total.value < 0:
            low.append(0)
            high.append(total.value)
            continue
        half = total.value // 2
        first, last = (half, total.value - half) if auto == "SAME_UPPER" else (total.value - half, half)
        low.append(first)
        high.append(last)
    return [*low, *high]


def _pool(n: OnnxNode, x: Expr, kind: str) -> tuple[Expr, Expr | None]:
    """The sum or maximum of every window, and the number of elements to count in each window. The number is None if
    whole windows count, or if `kind` is "max"."""
    space = x.ndim - 2
    window = n.steps("kernel_shape", space)
    strides, around = n.steps("strides", space), n.steps("dilations", space)
    pads = _pads(n, x.shape[2:], window, strides, around)
    beyond = [(0, 0)] * space
    if n.flag("ceil_mode") and n.at("auto_pad") == "VALID":
        # The text of ONNX and its reference leave out windows beyond the end; its shape inference and the runtimes do
        # not.
        for size, k, s, d in zip(x.shape[2:], window, strides, around, strict=True):
            if (size - ((k - 1) * d + 1)) % s != 0:
                raise n.error(
                    f"auto_pad='VALID' with ceil_mode=1 and the size {size}", "auto_pad='NOTSET', or ceil_mode=0"
                )
    # With auto_pad="SAME_*" the number of windows is the size divided by the stride, rounded up, for either ceil_mode.
    if n.flag("ceil_mode") and n.at("auto_pad", "NOTSET") == "NOTSET":
        for i, (size, k, s, d) in enumerate(zip(x.shape[2:], window, strides, around, strict=True)):
            low, high = pads[i]
            room = size + low + high - ((k - 1) * d + 1)
            more = ceildiv(room, s) * s - room
            if not more.is_const:
                raise n.error(f"ceil_mode=1 with the size {size}", "fixed sizes, or ceil_mode=0")
            # A window that would begin in the padding behind the axis is left out.
            steps = ceildiv(room, s)
            if steps.is_const and (size + low).is_const and steps.value * s >= (size + low).value:
                more = Dim.of(0)
            beyond[i] = (0, more.value)
    spread = (1, 1, *around)
    whole = [(0, 0), (0, 0), *[(a[0] + 0, a[1] + b[1]) for a, b in zip(pads, beyond, strict=True)]]
    y = op.reduce_window(x, kind, (1, 1, *window), (1, 1, *strides), whole, spread)
    counted = kind == "sum" and n.flag("count_include_pad")
    if kind == "max" or (counted and not any(b[1] for b in beyond)) or not any(w != (0, 0) for w in whole):
        return y, None
    ones = op.ones((1, 1, *x.shape[2:]), x.dtype)
    if counted:
        ones = op.pad(ones, [(0, 0), (0, 0), *pads], 1)
        whole = [(0, 0), (0, 0), *beyond]
    return y, op.reduce_window(ones, "sum", (1, 1, *window), (1, 1, *strides), whole, spread)


def _max_pool(n: OnnxNode) -> Sequence[Expr]:
    columns_first = n.flag("storage_order")
    y = _pool(n, n[0], "max")[0]
    return [y] if n.output_count < 2 else [y, _positions(n, n[0], y, columns_first)]


def _positions(n: OnnxNode, x: Expr, y: Expr, columns_first: bool) -> Expr:
    """The positions of the maxima `y` in the flattened `x`: the first element of each window that equals its
    maximum."""
    space = x.ndim - 2
    window, strides, around = (n.steps(name, space) for name in ("kernel_shape", "strides", "dilations"))
    pads = _pads(n, x.shape[2:], window, strides, around)
    if not all(d.is_const for d in (*x.shape, *y.shape)):
        raise n.error("the positions of maxima of symbolic sizes", "fixed sizes")
    shape, found = [d.value for d in x.shape], [d.value for d in y.shape]
    flat = np.arange(math.prod(shape), dtype=np.int64)
    if columns_first:
        order = (*range(2), *range(x.ndim - 1, 1, -1))
        where = np.transpose(flat.reshape([shape[a] for a in order]), order)
    else:
        where = flat.reshape(shape)
    low = [int(p[0]) for p in pads]
    taken: Expr | None = None
    for offset in reversed(list(itertools.product(*map(range, window)))):
        starts = zip(offset, around, low, strict=True)
        at = [np.arange(c) * s + o * d - p for (o, d, p), s, c in zip(starts, strides, found[2:], strict=True)]
        inside = [(a >= 0) & (a < d) for a, d in zip(at, shape[2:], strict=True)]
        beside = [np.clip(a, 0, d - 1).astype(np.int32) for a, d in zip(at, shape[2:], strict=True)]
        values, places = x, where
        for axis, positions in enumerate(beside, 2):
            values, places = op.take(values, positions, axis, mode="clip"), np.take(places, positions, axis)
        mask = functools.reduce(np.logical_and.outer, inside)
        hit = op.logical_and(op.equal(values, y), const(mask))
        taken = op.where(hit, const(places), const(np.zeros((), np.int64)) if taken is None else taken)
    assert taken is not None
    return taken


def _lp_pool(n: OnnxNode) -> Expr:
    p = n.at("p", 2)

    def pooled(x: Expr) -> Expr:
        size = op.abs(x)
        total = _pool(n, size * size if p == 2 else op.integer_pow(size, p), "sum")[0]
        return op.sqrt(total) if p == 2 else op.power(total, 1 / p)

    return computed_in_float32(pooled, n[0])


def _global_lp_pool(n: OnnxNode) -> Expr:
    p = n.at("p", 2)
    return computed_in_float32(lambda x: op.power(op.sum(op.integer_pow(op.abs(x), p), space_of(x), True), 1 / p), n[0])


def averaged(n: OnnxNode, x: Expr) -> Expr:
    """The average of every window of `x`, by the attributes of an AveragePool."""

    def mean(x: Expr) -> Expr:
        total, counts = _pool(n, x, "sum")
        return total / (math.prod(n.steps("kernel_shape", x.ndim - 2)) if counts is None else counts)

    return computed_in_float32(mean, x)


def _depth_to_space(n: OnnxNode) -> Expr:
    x, k = n[0], n.at("blocksize")
    if x.ndim != 4 or k < 1:
        raise n.error(f"rank {x.ndim} and blocksize={k}", "rank 4 and blocksize >= 1")
    b, c, h, w = x.shape
    if n.choice("mode", "DCR", "DCR", "CRD") == "DCR":
        y = op.permute_dims(op.reshape(x, (b, k, k, c // (k * k), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = op.permute_dims(op.reshape(x, (b, c // (k * k), k, k, h, w)), (0, 1, 4, 2, 5, 3))
    return op.reshape(y, (b, c // (k * k), h * k, w * k))


HANDLERS: dict[str, Handler] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "AveragePool": lambda n: averaged(n, n[0]),
    "GlobalAveragePool": lambda n: op.mean(n[0], space_of(n[0]), keepdims=True),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": lambda n: op.max(n[0], space_of(n[0]), keepdims=True),
    "DepthToSpace": _depth_to_space,
}
