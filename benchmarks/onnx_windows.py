"""Random uses of the ONNX operators over windows of space, and of those that normalise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.onnx_draws import INT64, Draw

# --- windows ---


def _space(d: Draw, most: int = 3) -> list[int]:
    return [d.size(3, 7) for _ in range(d.one(*[1, 2, 2, 3][: most + 1]))]


def _windowed(d: Draw, window: Sequence[int], auto: bool = True) -> None:
    """Strides, dilations, and pads that are smaller than the window."""
    rank = len(window)
    d.attr("strides", lambda: [d.size(1, 3) for _ in range(rank)])
    if all(k <= 2 for k in window):
        d.attr("dilations", lambda: [d.size(1, 2) for _ in range(rank)])
    d.asked |= {"dilations", "pads"}
    if d.kind in ("AveragePool", "MaxPool") and d.chance(0.2):
        # Strides and dilations for which all compute the same with auto_pad; others are refused.
        d.attributes.pop("dilations", None)
        d.attributes["strides"] = [d.size(1, k) for k in window]
    way = d.attr(
        "auto_pad", ("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER") if auto else ("NOTSET",), "NOTSET"
    )
    if way == "NOTSET":
        d.attr("pads", lambda: [d.size(0, k - 1) for k in (*window, *window)])


def _conv(d: Draw) -> None:
    dtype, space, groups = d.dtype(), _space(d), d.attr("group", (1, 2, 3), 1)
    window = [d.size(1, 3) for _ in space]
    each, out = d.size(1, 2), groups * d.size(1, 2)
    d.add(d.array([d.size(1, 2), groups * each, *space], dtype, "finite"))
    d.add(d.array([out, each, *window], dtype, "finite"), d.chance())
    if d.chance():
        d.add(d.array([out], dtype, "finite"))
    d.attr("kernel_shape", (window,))
    _windowed(d, window)


def _conv_transpose(d: Draw) -> None:
    # Of doubles onnxruntime has no kernel, and the reference gives a group the bias of another.
    dtype, space, groups = d.dtype(0, ("float32", "float16")), _space(d), d.attr("group", (1, 2), 1)
    window = [d.size(1, 3) for _ in space]
    each, out = d.size(1, 2), d.size(1, 2)
    d.add(d.array([d.size(1, 2), groups * each, *space], dtype, "finite"))
    d.add(d.array([groups * each, out, *window], dtype, "finite"), d.chance())
    if d.chance():
        d.add(d.array([groups * out], dtype, "finite"))
    d.attr("kernel_shape", (window,))
    _windowed(d, window)
    strides = d.attributes.get("strides", [1] * len(space))
    d.attr("output_padding", lambda: [d.size(0, s - 1) for s in strides])
    if d.chance(0.2):
        d.attr("output_shape", lambda: [n * s for n, s in zip(space, strides, strict=True)])
        d.attributes.pop("pads", None)
    d.asked.add("output_shape")


def _pool(d: Draw) -> None:
    space = _space(d)
    window = d.attr("kernel_shape", lambda: [d.size(1, 3) for _ in space])
    # Without NaN: what is the greatest of numbers and NaN ONNX does not say.
    d.add(d.array([d.size(1, 2), d.size(1, 3), *space], d.dtype(), "finite"))
    _windowed(d, window)
    d.flag("ceil_mode")
    d.flag("count_include_pad")
    d.asked.add("storage_order")  # of the indices, which are not given


def _global(d: Draw) -> None:
    # Of other dtypes onnxruntime has no kernels, and what the reference makes has a wrong shape.
    d.add(d.array([d.size(1, 2), d.size(1, 3), *_space(d)], d.dtype(0, ("float32", "float16")), "finite"))


def _epsilon(d: Draw) -> None:
    d.attr("epsilon", (1e-5, 1e-2))


def _batch_norm(d: Draw) -> None:
    dtype, channels = d.dtype(), d.size(1, 4)
    d.add(d.array([d.size(1, 2), channels, *_space(d)], dtype, "finite"))
    for kind in ("finite", "finite", "finite", "positive"):
        d.add(d.array([channels], dtype, kind), d.chance(0.3))
    _epsilon(d)
    d.attr("momentum", (0.9, 0.5))
    d.asked |= {"training_mode", "spatial"}  # for training


def _layer_norm(d: Draw) -> None:
    shape, dtype = d.shape(d.size(1, 4), low=2), d.dtype()
    axis = d.axis(len(shape), -1)
    x = d.array(shape, dtype, "finite")
    d.add(x * x.dtype.type(200) if d.chance(0.3) else x)  # squares are beyond half precision
    d.add(d.array(shape[axis:], dtype, "finite"))  # of another dtype than the operand's the reference knows nothing
    if d.kind == "LayerNormalization" and d.chance():
        d.add(d.array(shape[axis:], dtype, "finite"))
    _epsilon(d)
    d.attr("stash_type", (1,))
    if d.kind == "LayerNormalization" and dtype != "bfloat16":  # of which the reference gives statistics of no float32
        d.outputs = d.size(1, 3)


def _channel_norm(d: Draw) -> None:
    dtype, groups = d.dtype(), d.attr("num_groups", (1, 2, 3), 1)
    channels = groups * d.size(1, 2)
    x = d.array([d.size(1, 2), channels, *_space(d)], dtype, "finite")
    d.add(x * x.dtype.type(200) if d.chance(0.3) else x)
    per = groups if d.kind == "GroupNormalization" and d.opset < 21 else channels
    d.add(d.array([per], dtype, "finite"))
    d.add(d.array([per], dtype, "finite"))
    _epsilon(d)
    d.attr("stash_type", (1,))


def _lrn(d: Draw) -> None:
    # Of doubles onnxruntime has no kernel, and the reference takes roots in float32.
    d.add(d.array([d.size(1, 2), d.size(1, 6), *_space(d)], d.dtype(0, ("float32", "float16")), "finite"))
    d.attr("size", (1, 3, 5))
    d.attr("alpha", (1e-4, 0.5))
    d.attr("beta", (0.75, 0.5))
    d.attr("bias", (1.0, 2.0))


_WAYS = (
    "half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "tf_crop_and_resize", "half_pixel_symmetric",
)  # fmt: skip


def _resize(d: Draw) -> None:
    shape = [d.size(1, 2), d.size(1, 2), *[d.size(2, 6) for _ in range(d.size(1, 2))]]
    rank = len(shape)
    # Those that onnxruntime has kernels for: the reference rounds what is a tie in float32 the other way.
    d.add(d.array(shape, d.dtype(0, ("float32", "float16", "int32", "int8", "uint8")), "finite"))
    d.attr("mode", ("nearest",))
    d.asked |= {"antialias", "cubic_coeff_a", "exclude_outside"}  # of other modes
    old = d.kind == "Upsample" or d.opset < 11
    axes = list(range(rank))
    if d.opset >= 18 and d.chance():
        axes = [int(a) for a in d.rng.permutation(rank)[: d.size(1, rank)]]
        d.attributes["axes"] = [a - rank if d.chance() else a for a in axes]
    d.asked.add("axes")
    factors = [1, 2, 3, 1.5] if old else [0.5, 1, 2, 3, 1.5, 0.6, 2.4]
    scales = [float(d.one(*factors)) if shape[a] > 1 else 1.0 for a in axes]
    if old:
        d.was("scales", scales, d.has("scales"), np.float32)
        return
    way = d.attr("coordinate_transformation_mode", _WAYS[: 5 if d.opset < 19 else 6], "half_pixel")
    d.attr("nearest_mode", ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    d.attr("extrapolation_value", (0.0, 2.0))
    cropped = way == "tf_crop_and_resize"
    if cropped:
        scales[0] = 2.0  # where all sizes stay onnxruntime looks at no region
        # Such that no place is an end of an axis or midway between elements, which roundings of float32 decide.
        d.add([*[d.one(0.0, 0.19, -0.13) for _ in axes], *[d.one(0.83, 1.27) for _ in axes]], True, np.float32)
    elif d.opset >= 13:
        d.left_out()
    else:
        d.add([], True, np.float32)
    by_sizes = cropped or d.chance()  # scales of a part of an axis mean different things to ONNX and its runtimes
    d.asked.add("keep_aspect_ratio_policy")
    if by_sizes:
        if d.has("keep_aspect_ratio_policy") and not cropped:
            policy = d.attr("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"), "stretch")
            if policy != "stretch" and "axes" in d.attributes:
                d.attributes["axes"] = axes  # of negative ones with a policy onnxruntime makes nothing
        if d.opset >= 13:
            d.left_out()
        else:
            d.add([], True, np.float32)
        d.add([max(1, math.floor(shape[a] * s)) for a, s in zip(axes, scales, strict=True)], True, INT64)
    else:
        d.add(scales, True, np.float32)


DRAWN: dict[str, Callable[[Draw], None]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global,
    "GlobalMaxPool": _global,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm,
    "InstanceNormalization": _channel_norm,
    "GroupNormalization": _channel_norm,
    "LRN": _lrn,
    "Resize": _resize,
    "Upsample": _resize,
}
