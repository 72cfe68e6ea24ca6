"""Convolutions and pooling: linearity, merged channels, kernels of one element, padding and scales folded into weights.

All have two spatial axes: an image is (batch, channels, height, width), a kernel (out, channels, height, width).
Strides, padding and dilation are arbitrary unless a rule says otherwise.
"""

from __future__ import annotations

import functools
from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.book.orders import extreme
from relax_eg.rules.rule_set import RuleSet

convolution = RuleSet("convolution")
_rule = convolution.rule

_STEPS = {"strides": "conv.strides", "dilation": "conv.dilation"}
_PADDED = "a b c d"
# An image with any number of channels, and its kernel.
_X, _W = "x: n k h w", "f: o k p q"


# Registers a law of convolutions with any strides, dilation and padding, which the rule's function passes on (`_conv`).
_conv_rule = functools.partial(_rule, attrs=_STEPS, sizes=_PADDED, tags=("conv",))


def _conv(x: Any, f: Any, strides: Any, dilation: Any, a: Any, b: Any, c: Any, d: Any, groups: int = 1) -> Any:
    return op.conv(x, f, strides, [(a, b), (c, d)], dilation, groups)


def _per_channel(v: Any) -> Any:
    """Returns `v`, one number for each channel, in a shape that broadcasts with an image."""
    return op.expand_dims(v, (1, 2))


def _per_kernel(v: Any) -> Any:
    """Returns `v`, one number for each output channel, in a shape that broadcasts with the kernels."""
    return op.expand_dims(v, (1, 2, 3))


# --- linearity ---


@_conv_rule(f"{_X}, y: n k h w, {_W}")
def conv_left_factor(x: Any, y: Any, f: Any, **p: Any) -> Any:
    """x * f + y * f = (x + y) * f for convolutions by one kernel"""
    return _conv(x, f, **p) + _conv(y, f, **p), _conv(x + y, f, **p)


@_conv_rule(f"{_X}, {_W}, g: o k p q")
def conv_right_factor(x: Any, f: Any, g: Any, **p: Any) -> Any:
    """x * f + x * g = x * (f + g) for convolutions of one image"""
    return _conv(x, f, **p) + _conv(x, g, **p), _conv(x, f + g, **p)


@_conv_rule(f"{_X}, {_W}, s:")
def conv_of_scaled_image(x: Any, f: Any, s: Any, **p: Any) -> Any:
    """(x s) * f = x * (f s): the kernel has fewer elements than the image, or is known ahead"""
    return _conv(x * s, f, **p), _conv(x, f * s, **p)


@_conv_rule(f"{_X}, {_W}, s:", tags=("conv", "weights"))
def scaled_conv(x: Any, f: Any, s: Any, **p: Any) -> Any:
    """(x * f) s = x * (f s)"""
    return _conv(x, f, **p) * s, _conv(x, f * s, **p)


@_conv_rule(f"{_X}, {_W}, g: o", tags=("conv", "weights"))
def batch_norm_scale_into_kernel(x: Any, f: Any, g: Any, **p: Any) -> Any:
    """(x * f) g = x * (f g) for a scale g of each channel: a batch norm's scale folded into the kernel"""
    return _conv(x, f, **p) * _per_channel(g), _conv(x, f * _per_kernel(g), **p)


@_conv_rule(f"{_X}, {_W}, g: o", tags=("conv", "weights"))
def batch_norm_scale_into_kernel_channels_last(x: Any, f: Any, g: Any, **p: Any) -> Any:
    """(x * f)' g = (x * (f g))' where channels are made the last axis, as JAX's layout NHWC is traced"""
    last = (0, 2, 3, 1)
    return op.permute_dims(_conv(x, f, **p), last) * g, op.permute_dims(_conv(x, f * _per_kernel(g), **p), last)


@_conv_rule(f"{_X}, {_W}, g: k", tags=("conv", "weights"))
def channel_scale_into_kernel(x: Any, f: Any, g: Any, **p: Any) -> Any:
    """(x g) * f = x * (g f) for a scale g of each channel of the image"""
    return _conv(x * _per_channel(g), f, **p), _conv(x, _per_channel(g) * f, **p)


@_rule("y: *b n, m: n, g: n, c: n", when=("is_weight(m)", "is_weight(g)", "is_weight(c)"), tags=("conv", "weights"))
def normalization_as_affine(y: Any, m: Any, g: Any, c: Any) -> Any:
    """(y - m) g + c = y g + (c - m g) for weights m, g and c: c - m g is computed ahead of the calls"""
    return (y - m) * g + c, y * g + (c - m * g)


@_rule(
    "y: n k h w, m: k 1 1, g: k 1 1, c: k 1 1", when=("is_weight(m)", "is_weight(g)", "is_weight(c)"),
    tags=("conv", "weights"))  # fmt: skip
def normalization_as_affine_channels_first(y: Any, m: Any, g: Any, c: Any) -> Any:
    """(y - m) g + c = y g + (c - m g) for moments of channels that stand before height and width"""
    return (y - m) * g + c, y * g + (c - m * g)


# --- channels ---


@_conv_rule(f"{_X}, {_W}, g: r k p q", when="inputs_in_order(f, g)", phase="merge", tags=("conv", "merge"))
def conv_merge_parallel(x: Any, f: Any, g: Any, **p: Any) -> Any:
    """x * f, x * g = the two parts of x * [f; g]: convolutions that share an image, as one"""
    one, two = _conv(x, f, **p), _conv(x, g, **p)
    both = _conv(x, op.concat([f, g], 0), **p)
    (n, o, h, w), r = one.shape, g.shape[0]
    first = op.strided_slice(both, (0, 0, 0, 0), (n, o, h, w))
    return (one, two), (first, op.strided_slice(both, (0, o, 0, 0), (n, o + r, h, w)))


@_conv_rule(f"{_X}, y: n j h w, {_W}, g: o j p q", phase="merge", tags=("conv", "merge"))
def sum_of_convs(x: Any, y: Any, f: Any, g: Any, **p: Any) -> Any:
    """x * f + y * g = [x, y] * [f, g]: channels of two images as those of one"""
    return _conv(x, f, **p) + _conv(y, g, **p), _conv(op.concat([x, y], 1), op.concat([f, g], 1), **p)


@_conv_rule(f"{_X}, {_W}, g: r k p q")
def concat_of_convs(x: Any, f: Any, g: Any, **p: Any) -> Any:
    """[x * f, x * g] = x * [f; g]: the branches of an inception block"""
    return op.concat([_conv(x, f, **p), _conv(x, g, **p)], 1), _conv(x, op.concat([f, g], 0), **p)


@_conv_rule(f"{_X}, y: n k h w, {_W}, g: o k p q")
def convs_as_groups(x: Any, y: Any, f: Any, g: Any, **p: Any) -> Any:
    """[x * f, y * g] = [x, y] * [f; g] in two groups: the streams of two images as one convolution"""
    left = op.concat([_conv(x, f, **p), _conv(y, g, **p)], 1)
    return left, _conv(op.concat([x, y], 1), op.concat([f, g], 0), **p, groups=2)


@_conv_rule(f"{_X}, {_W}", tags=("conv", "sum"))
def channel_sum_of_conv(x: Any, f: Any, **p: Any) -> Any:
    """the sum over channels of x * f = x * (the sum of the kernels)"""
    return op.sum(_conv(x, f, **p), 1), op.squeeze(_conv(x, op.sum(f, 0, keepdims=True), **p), 1)


# --- kernels of one element, and as large as the image ---


@_rule("x: n k h w, f: o k 1 1", tags=("conv", "matmul"))
def pointwise_conv_is_matmul(x: Any, f: Any) -> Any:
    """x * f = x' F for a kernel of one element: a matmul over channels"""
    rows = op.permute_dims(x, (0, 2, 3, 1)) @ op.squeeze(f, (2, 3)).T
    return op.conv(x, f), op.permute_dims(rows, (0, 3, 1, 2))


@_rule("x: n k h w, f: o k 1 1", tags=("conv", "matmul"))
def pointwise_conv_is_matmul_channels_last(x: Any, f: Any) -> Any:
    """(x * f)' = x' F for a kernel of one element, channels last on both sides: nothing is moved"""
    rows = op.permute_dims(x, (0, 2, 3, 1))
    return op.permute_dims(op.conv(x, f), (0, 2, 3, 1)), rows @ op.squeeze(f, (2, 3)).T


@_rule("x: n k h w, f: o k 1 1", tags=("conv", "matmul"))
def pointwise_conv_is_matmul_channels_first(x: Any, f: Any) -> Any:
    """x * f = F X for a kernel of one element, X with height and width as one axis: nothing is moved"""
    (n, k, h, w), o = x.shape, f.shape[0]
    return op.conv(x, f), op.reshape(op.squeeze(f, (2, 3)) @ op.reshape(x, (n, k, h * w)), (n, o, h, w))


@_rule("x: n k w, f: o k 1", tags=("conv", "matmul"))
def pointwise_conv_over_one_axis_is_matmul(x: Any, f: Any) -> Any:
    """x * f = F x for a kernel of one element over one axis"""
    return op.conv(x, f), op.squeeze(f, 2) @ x


@_rule("x: n k h w, f: o k h w", when=("h >= 1", "w >= 1"), tags=("conv", "matmul"))
def conv_of_the_whole_image_is_matmul(x: Any, f: Any) -> Any:
    """x * f = X F' for a kernel as large as the image"""
    (n, k, h, w), o = x.shape, f.shape[0]
    flat = op.reshape(x, (n, k * h * w)) @ op.reshape(f, (o, k * h * w)).T
    return op.conv(x, f), op.expand_dims(flat, (2, 3))


@_rule("x: n k h w, f: o k 2*i+1 2*j+1, g: o k 1 1", sizes="i j", tags=("conv", "kernel"))
def smaller_kernel_into_larger(x: Any, f: Any, g: Any, i: Any, j: Any) -> Any:
    """x * f + x * g = x * (f + g in its middle) for a g of one element: branches of a block as one convolution"""
    around = [(i, i), (j, j)]
    enlarged = op.pad(g, [(0, 0), (0, 0), *around], 0.0)
    return op.conv(x, f, padding=around) + op.conv(x, g), op.conv(x, f + enlarged, padding=around)


@_conv_rule(
    f"{_X}, {_W}", sizes=f"{_PADDED} r s t u", when=("r >= 0", "s >= 0", "t >= 0", "u >= 0"), phase="simplify",
    tags=("conv", "pad"))  # fmt: skip
def pad_into_conv(x: Any, f: Any, r: Any, s: Any, t: Any, u: Any, **p: Any) -> Any:
    """pad(x) * f = x * f with the widths of the padding added to its own"""
    wide = op.pad(x, [(0, 0), (0, 0), (r, s), (t, u)], 0.0)
    more = {"a": p["a"] + r, "b": p["b"] + s, "c": p["c"] + t, "d": p["d"] + u}
    return _conv(wide, f, **p), _conv(x, f, **{**p, **more})


# --- pooling ---


@_rule("x: n k h w, f: o k 1 1", attrs={"strides": "reduce_window.strides"}, sizes="p q", tags=("conv", "pool"))
def pool_before_pointwise_conv(x: Any, f: Any, p: Any, q: Any, strides: Any) -> Any:
    """window sums of x * f = (window sums of x) * f for a kernel of one element: fewer elements to convolve"""
    if len(strides) != 4 or strides[:2] != (1, 1):
        return None
    window = (1, 1, p, q)
    left = op.reduce_window(op.conv(x, f), "sum", window, strides)
    return left, op.conv(op.reduce_window(x, "sum", window, strides), f)


@_rule("x: n k h w", when=("h >= 1", "w >= 1"), tags=("pool", "sum"))
def window_sum_of_everything(x: Any) -> Any:
    """the sum of a window as large as the image = its sum"""
    h, w = x.shape[2:]
    return op.reduce_window(x, "sum", (1, 1, h, w)), op.sum(x, (2, 3), keepdims=True)


@_rule("x: n k h w", when=("h >= 1", "w >= 1"), numerics="exact", tags=("pool", "max"))
def window_max_of_everything(x: Any) -> Any:
    """the maximum of a window as large as the image = its maximum"""
    h, w = x.shape[2:]
    return op.reduce_window(x, "max", (1, 1, h, w)), extreme(op.max, x, (2, 3))


@_rule("x: *b", attrs={"strides": "reduce_window.strides"}, sizes="*p:b", tags=("pool", "max"))
def max_pool_before_relu(x: Any, p: Any, strides: Any) -> Any:
    """max pool of relu(x) = relu of the max pool of x, without padding: fewer elements to compare"""
    return op.reduce_window(op.relu(x), "max", p, strides), op.relu(op.reduce_window(x, "max", p, strides))


@_rule("x: *b, s:", attrs={"strides": "reduce_window.strides"}, sizes="*p:b *l:b *h:b", tags=("pool", "sum"))
def scaled_before_pool(x: Any, s: Any, p: Any, l: Any, h: Any, strides: Any) -> Any:  # noqa: E741
    """window sums of x s = (window sums of x) s"""
    around = tuple(zip(l, h, strict=True))
    left = op.reduce_window(x * s, "sum", p, strides, around)
    return left, op.reduce_window(x, "sum", p, strides, around) * s
