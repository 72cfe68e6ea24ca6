"""Relax's operators of networks, `R.nn.*` and `R.image.*`, by Relax's names and arguments, written with `rx.op`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr, const, tuple_
from relax_eg.ops import api as op
from relax_eg.ops.upstream_arguments import Axis, axes_tuple, dims_of_shape, plain_number
from relax_eg.shapes import Dim


def leakyrelu(data: Expr, alpha: float = 0.01) -> Expr:
    return op.where(op.greater(data, 0.0), data, op.multiply(data, alpha))


def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Expr:
    return op.where(op.greater(data, 0.0), data, op.multiply(data, _along(alpha, data, axis)))


def _along(v: Expr, x: Expr, axis: int) -> Expr:
    """A vector, or one number, along an axis of `x`."""
    if v.ndim == 0 or v.ndim == x.ndim:
        return v
    place = axis % x.ndim
    return op.reshape(v, tuple(v.shape[0] if i == place else 1 for i in range(x.ndim)))


def relu6(x: Expr) -> Expr:
    return op.minimum(op.maximum(x, 0.0), 6.0)


def softplus(data: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    scaled = op.multiply(data, beta)
    soft = op.divide(op.log1p(op.exp(op.minimum(scaled, threshold))), beta)
    return op.where(op.greater(scaled, threshold), data, soft)


def selu(data: Expr) -> Expr:
    alpha, scale = 1.6732632423543772, 1.0507009873554805  # given: Klambauer and others (2017)
    return op.multiply(op.where(op.greater(data, 0.0), data, op.multiply(op.expm1(data), alpha)), scale)


def gelu(data: Expr) -> Expr:
    return op.gelu(data, approximate=False)


# --- neural networks ---


def dropout(data: Expr, rate: float = 0.5) -> Expr:
    """As it is when a network is used: nothing is dropped."""
    del rate
    return tuple_((data, op.ones_like(data)))


def _normalised(x: Expr, axes: tuple[int, ...], epsilon: float) -> Expr:
    """`x` with mean 0 and variance 1 over some axes."""
    centred = op.subtract(x, op.mean(x, axes, True))
    return op.multiply(centred, op.rsqrt(op.add(op.mean(op.square(centred), axes, True), epsilon)))


def layer_norm(
    data: Expr, gamma: Expr, beta: Expr, axes: Axis = -1, epsilon: float = 1e-5, center: bool = True, scale: bool = True
) -> Expr:
    found = _normalised(data, (axes,) if isinstance(axes, int) else tuple(axes or (-1,)), epsilon)
    found = op.multiply(found, gamma) if scale else found
    return op.add(found, beta) if center else found


def rms_norm(data: Expr, weight: Expr, axes: Axis = -1, epsilon: float = 1e-5) -> Expr:
    return op.rms_norm(data, weight, axes_tuple(axes), epsilon)


def group_norm(
    data: Expr, gamma: Expr, beta: Expr, num_groups: int, channel_axis: int, axes: Any = (), epsilon: float = 1e-5,
    center: bool = True, scale: bool = True,
) -> Expr:  # fmt: skip
    at = channel_axis % data.ndim
    channels = data.shape[at]
    split_shape = (*data.shape[:at], num_groups, channels // num_groups, *data.shape[at + 1 :])
    x = op.reshape(data, split_shape)
    others = {a % data.ndim for a in axes}
    reduced = tuple(i for i in range(x.ndim) if i == at + 1 or (i > at + 1 and i - 1 in others) or i in others - {at})
    found = op.reshape(_normalised(x, reduced, epsilon), data.shape)
    found = op.multiply(found, _along(gamma, data, at)) if scale else found
    return op.add(found, _along(beta, data, at)) if center else found


def batch_norm(
    data: Expr, gamma: Expr, beta: Expr, moving_mean: Expr, moving_var: Expr, axis: int = 1, epsilon: float = 1e-5,
    center: bool = True, scale: bool = True, momentum: float = 0.1, training: bool = False,
) -> Expr:  # fmt: skip
    if training:
        raise OperatorError("batch_norm: training=True; its moving mean and variance, training=False, are accepted")
    del momentum
    mean, spread, g, b = (_along(v, data, axis) for v in (moving_mean, moving_var, gamma, beta))
    found = op.divide(op.subtract(data, mean), op.sqrt(op.add(spread, epsilon)))
    found = op.multiply(found, g) if scale else found
    return tuple_((op.add(found, b) if center else found, moving_mean, moving_var))


def pad(data: Expr, pad_width: Any, pad_value: Any = 0, pad_mode: str = "constant") -> Expr:
    if pad_mode != "constant":
        raise OperatorError(f"nn.pad: pad_mode={pad_mode!r}; constant is accepted")
    flat = [n for w in pad_width for n in (w if isinstance(w, (tuple, list)) else (w,))]
    pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
    return op.pad(data, pairs, plain_number(pad_value))


def attention(
    query: Expr, key: Expr, value: Expr, bias: Expr | None = None, scale: float | None = None,
    causal_mask: str | None = None, window_size: int | None = None,
) -> Expr:  # fmt: skip
    if window_size is not None:
        raise OperatorError("nn.attention: window_size; attention to all places is accepted")
    q, k, v = (op.permute_dims(x, (0, 2, 1, 3)) for x in (query, key, value))
    size = query.shape[-1]
    factor = plain_number(scale) if scale is not None else 1.0 / math.sqrt(size.value)
    scores = op.multiply(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))), factor)
    scores = scores if bias is None else op.add(scores, bias)
    if causal_mask is not None:
        rows, columns = scores.shape[-2:]
        first = columns - rows if causal_mask == "BottomRight" else Dim.of(0)
        seen = op.greater_equal(op.add(op.iota((rows, columns), 0), op.dim_value(first)), op.iota((rows, columns), 1))
        scores = op.where(seen, scores, const(-math.inf, scores.dtype))
    return op.permute_dims(op.matmul(op.softmax(scores, -1), v), (0, 2, 1, 3))


def cross_entropy_with_logits(predictions: Expr, labels: Expr) -> Expr:
    summed = op.negative(op.sum(op.multiply(predictions, labels)))
    return summed if predictions.ndim == 1 else op.divide(summed, op.dim_value(predictions.shape[0], predictions.dtype))


def _steps(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _pairs(value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    flat = _steps(value, rank)
    return tuple(zip(flat[:rank], flat[rank:] or flat, strict=False)) if len(flat) != 2 * rank else tuple(
        zip(flat[:rank], flat[rank:], strict=True)
    )  # fmt: skip


def _transposed(x: Expr, layout: str, wanted: str) -> Expr:
    if layout == wanted:
        return x
    if sorted(layout) != sorted(wanted):
        raise OperatorError(f"the layout {layout!r}; an order of the axes {wanted} is accepted")
    return op.permute_dims(x, tuple(layout.index(a) for a in wanted))


def _convolution(rank: int) -> Callable[..., Expr]:
    spatial = "DHW"[-rank:] if rank > 1 else "W"

    def conv(
        data: Expr, weight: Expr, strides: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
        data_layout: str = "NC" + spatial, kernel_layout: str = "OI" + spatial, out_layout: str | None = None,
        out_dtype: str | None = None,
    ) -> Expr:  # fmt: skip
        x, w = _transposed(data, data_layout, "NC" + spatial), _transposed(weight, kernel_layout, "OI" + spatial)
        found = op.conv(
            x, w, strides=_steps(strides, rank), padding=_pairs(padding, rank), dilation=_steps(dilation, rank),
            groups=groups,
        )  # fmt: skip
        found = found if out_dtype in (None, "void", found.dtype) else op.astype(found, str(out_dtype))
        return _transposed(found, "NC" + spatial, out_layout or data_layout)

    conv.__name__ = conv.__qualname__ = f"conv{rank}d"
    return conv


def _pooling(kind: str, rank: int) -> Callable[..., Expr]:
    spatial = "DHW"[-rank:] if rank > 1 else "W"

    def pool(
        data: Expr, pool_size: Any = 1, strides: Any = 1, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
        count_include_pad: bool = False, layout: str = "NC" + spatial, out_layout: str | None = None,
    ) -> Expr:  # fmt: skip
        if ceil_mode or any(d != 1 for d in _steps(dilation, rank)):
            raise OperatorError(f"nn.{kind}_pool{rank}d: ceil_mode and dilation; False and 1 are accepted")
        x = _transposed(data, layout, "NC" + spatial)
        window = _steps(pool_size, rank)
        steps, padded = _steps(strides, rank), _pairs(padding, rank)
        if kind == "max":
            found = op.max_pool(x, window, steps, padded)
        else:
            found = op.avg_pool(x, window, steps, padded)
            if count_include_pad or not any(n for pair in padded for n in pair):
                pass
            else:
                raise OperatorError(
                    f"nn.avg_pool{rank}d: padding that is not counted; count_include_pad=True is accepted"
                )
        return _transposed(found, "NC" + spatial, out_layout or layout)

    pool.__name__ = pool.__qualname__ = f"{kind}_pool{rank}d"
    return pool


def adaptive_avg_pool2d(
    data: Expr, output_size: Any = None, layout: str = "NCHW", out_layout: str | None = None
) -> Expr:
    x = _transposed(data, layout, "NCHW")
    wanted = _steps(output_size, 2) if output_size is not None else tuple(d.value for d in x.shape[-2:])
    rows, columns = x.shape[-2:]
    if any(not (d % n).is_const or (d % n).value for d, n in zip((rows, columns), wanted, strict=True)):
        raise OperatorError(
            f"nn.adaptive_avg_pool2d: {rows} x {columns} into {wanted}; parts of equal size are accepted"
        )
    split_shape = (*x.shape[:2], wanted[0], rows // wanted[0], wanted[1], columns // wanted[1])
    return _transposed(op.mean(op.reshape(x, split_shape), (3, 5)), "NCHW", out_layout or layout)


def pixel_shuffle(data: Expr, upscale_factor: int) -> Expr:
    r, (*first, c, h, w) = upscale_factor, data.shape
    x = op.reshape(data, (*first, c // (r * r), r, r, h, w))
    n = len(first)
    x = op.permute_dims(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return op.reshape(x, (*first, c // (r * r), h * r, w * r))


def resize2d(
    data: Expr, size: Any, roi: Any = None, layout: str = "NCHW", method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel", rounding_method: str = "round", cubic_alpha: float = -0.75,
    cubic_exclude: int = 0, extrapolation_value: float = 0.0, out_dtype: str | None = None,
) -> Expr:  # fmt: skip
    del roi, rounding_method, cubic_alpha, cubic_exclude, extrapolation_value
    x = _transposed(data, layout, "NCHW")
    dims = dims_of_shape(size) or ()
    old = x.shape[-2:]
    if not all(d.is_const for d in (*dims, *old)) or method not in ("nearest_neighbor", "nearest"):
        raise OperatorError(f"image.resize2d: method={method!r}; nearest_neighbor at known sizes is accepted")
    for axis, (n, m) in enumerate(zip(old, dims, strict=True)):
        scale = n.value / m.value
        half = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
        places = [min(max(math.floor((i + half) * scale), 0), n.value - 1) for i in range(m.value)]
        x = op.take(x, const(places, "int32"), 2 + axis)
    found = _transposed(x, "NCHW", layout)
    return found if out_dtype in (None, "void", found.dtype) else op.astype(found, str(out_dtype))


_FUNCTIONS = (
    dropout, layer_norm, rms_norm, group_norm, batch_norm, pad, attention, cross_entropy_with_logits, leakyrelu, prelu,
    relu6, softplus, selu, gelu, adaptive_avg_pool2d, pixel_shuffle, *(_convolution(n) for n in (1, 2, 3)),
    *(_pooling(kind, n) for kind in ("max", "avg") for n in (1, 2, 3)),
)  # fmt: skip
_OWN_IN_NN = ("relu", "silu", "gelu_tanh", "softmax", "log_softmax")

NETWORKS: Mapping[str, Callable[..., Any]] = {
    **{f"R.nn.{name}": getattr(op, name) for name in _OWN_IN_NN},
    **{f"R.nn.{f.__name__}": f for f in _FUNCTIONS},
    "R.image.resize2d": resize2d,
}
"""The operators of networks by their names in text."""
