"""ONNX's Resize and Upsample.

In mode "nearest", every place of the result takes one element of the operand, which is found along each axis
separately. The elements of a symbolic axis are repeated by a whole factor. For a fixed axis, the positions of the
elements are computed now. In the modes "linear" and "cubic", it takes a weighted sum of a few elements along each axis,
whose positions and weights are computed now; axes that are resized so have a fixed size.
Coordinates are exact fractions, so that no rounding decides between two elements: a scale is read as the fraction with
a denominator up to 1000 that equals it in float32, if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float
from relax_eg.frontends.onnx.nodes import OnnxNode
from relax_eg.frontends.onnx.values import MOST_KNOWN, Array, plain_fraction
from relax_eg.ir.expr import Expr, const
from relax_eg.ops import api as op
from relax_eg.ops.reduction import accumulator
from relax_eg.ops.sizes import remaining_size
from relax_eg.shapes import Dim


@dataclass(frozen=True, slots=True)
class _ResizeMode:
    """A resize mode.

    - `coordinates`: how coordinates of the result are mapped to those of the operand.
    - `nearest`: how coordinates are rounded to integers.
    - `extrapolated`: the value of places outside the operand.
    """

    coordinates: str
    nearest: str
    extrapolated: float


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis that is resized.

    - `size`, `result`: its sizes before and after.
    - `factor`: the scale of the axis.
    - `roi`: start and end of the part of the axis that is used (`tf_crop_and_resize`).
    """

    size: Dim
    factor: Fraction
    result: Dim
    roi: tuple[Fraction, Fraction]


_HALF, _WHOLE = Fraction(1, 2), (Fraction(0), Fraction(1))
CUBIC = -0.75  # given: the default coefficient of ONNX's cubic interpolation, and that of GridSample

_ROUNDING: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: math.floor(x + _HALF),
    "floor": math.floor,
    "ceil": math.ceil,
}
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip


def resize(n: OnnxNode) -> Expr:
    """The handler of Resize and Upsample."""
    x = n[0]
    mode = n.choice("mode", "nearest", "nearest", "linear", "cubic")
    if mode == "nearest":  # these attributes control the weights of elements, and here each place takes a single one
        n.ignore_attributes("antialias", "cubic_coeff_a", "exclude_outside")
    old = n.kind == "Upsample" or n.opset < 11
    way = _ResizeMode(
        "asymmetric" if old else n.choice("coordinate_transformation_mode", "half_pixel", *_COORDINATES),
        "floor" if old else n.choice("nearest_mode", "round_prefer_floor", *_ROUNDING),
        n.at("extrapolation_value", 0.0),
    )
    axes = [n.normal_axis(a, x.ndim) for a in n.at("axes", range(x.ndim))]
    outside: dict[int, Array] = {}
    for axis, resized in zip(axes, _resized_axes(n, x, axes), strict=True):
        if mode != "nearest" and not (resized.factor == 1 and way.coordinates != "tf_crop_and_resize"):
            x, beyond = _interpolated(n, way, mode, x, axis, resized)
            if beyond.any():
                outside[axis] = beyond
        elif resized.size.is_const and mode == "nearest":
            at, beyond = _places(n, way, resized)
            if beyond.any():
                outside[axis] = beyond
            if not np.array_equal(at, np.arange(resized.size.value)):
                x = op.take(x, at.astype(np.int32), axis, mode="clip")
        elif mode == "nearest":
            x = _repeat_axis(n, way, x, axis, resized)
    if mode != "nearest":
        n.ignore_attributes("nearest_mode")
        x = op.astype(x, n[0].dtype)
    for axis, beyond in outside.items():
        mask = beyond.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        x = op.where(mask, op.astype(op.full((), way.extrapolated, "float32"), x.dtype), x)
    return x


def _fraction(n: OnnxNode, value: float) -> Fraction:
    """The fraction that a float32 stands for: a plain one if there is one, otherwise the exact value."""
    if not math.isfinite(value):
        raise n.error(f"a scale or region of {value}", "finite numbers")
    return plain_fraction(value)


def _resized_axes(n: OnnxNode, x: Expr, axes: Sequence[int]) -> list[_Axis]:
    """The size, factor, result and region of each of `axes`, as the node gives them."""
    attribute = n.kind == "Upsample" and n.opset < 9
    old = n.kind == "Upsample" or n.opset < 11
    scales = n.at("scales") if attribute else n.known_array(1 if old else 2, "the scales")
    wanted = None if old else n.sizes("sizes", 3)
    policy = n.choice("keep_aspect_ratio_policy", "stretch", "stretch", "not_larger", "not_smaller")
    if not old and n.at("coordinate_transformation_mode") != "tf_crop_and_resize":
        n.value(1)  # the region of interest
    roi = [_WHOLE] * len(axes) if old else _regions(n, len(axes))
    sizes = [x.shape[a] for a in axes]
    factors = [] if scales is None else [_fraction(n, float(s)) for s in scales]
    if bool(factors) == bool(wanted):
        raise n.error("both scales and sizes" if factors else "neither scales nor sizes", "one of the two")
    if len(factors or wanted or ()) != len(axes):
        raise n.error(f"{len(factors or wanted or ())} scales or sizes for {len(axes)} axes", "one for each axis")
    if wanted:
        found = [_factor(a, b, policy == "stretch") for a, b in zip(wanted, sizes, strict=True)]
        factors = [f for f in found if f is not None]
        if len(factors) < len(found):
            raise n.error("sizes that are symbolic or 0", "scales, fixed sizes, or whole multiples of sizes")
        if policy != "stretch":
            kept = min(factors) if policy == "not_larger" else max(factors)
            wanted = tuple(Dim.of(math.floor(kept * d.value + _HALF)) for d in sizes)
            factors = [kept] * len(sizes)
    if any(f <= 0 for f in factors):
        raise n.error(f"the scales {[float(f) for f in factors]}", "scales above 0")
    made: list[_Axis] = []
    for i, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        if wanted:
            result = wanted[i]
        elif size.is_const:
            result = Dim.of(math.floor(size.value * factor))
            if result != math.floor(size.value * (roi[i][1] - roi[i][0]) * factor):
                # The text of ONNX multiplies the size of the region by the scale. Its shape inference and the runtimes
                # multiply the size of the whole axis.
                raise n.error(
                    "scales of a part of an axis", "sizes with coordinate_transformation_mode='tf_crop_and_resize'"
                )
        else:
            result = size * int(factor)
        made.append(_Axis(size, factor, result, roi[i]))
    return made


def _factor(result: Dim, size: Dim, symbolic: bool) -> Fraction | None:
    """The scale of an axis; None if it depends on the sizes, or for a symbolic one where only fixed ones are taken."""
    if result.is_const and size.is_const:
        return Fraction(result.value, size.value) if size.value else None
    factor = remaining_size((result,), (size,)) if symbolic else None
    return Fraction(factor.value) if factor is not None and factor.is_const and factor * size == result else None


def _regions(n: OnnxNode, count: int) -> list[tuple[Fraction, Fraction]]:
    """Start and end of the region of interest on each axis, as fractions of the axis."""
    if n.at("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [_WHOLE] * count
    found = n.known_array(1, "the region of interest")
    if found is None or found.size != 2 * count:
        raise n.error("no region of interest for each axis", "roi with a start and an end for each axis")
    values = [_fraction(n, float(v)) for v in found.reshape(-1)]
    return list(zip(values[:count], values[count:], strict=True))


def _places(n: OnnxNode, way: _ResizeMode, axis: _Axis) -> tuple[Array, Array]:
    """For each place of a fixed axis of the result: the element that it takes, and whether it lies beyond the ends of
    the operand and takes no element."""
    size, count = axis.size.value, axis.result.value
    if count > MOST_KNOWN:
        raise n.error(f"{count} elements along an axis", f"up to {MOST_KNOWN}")
    if n.opset < 11 and axis.factor < 1:
        raise n.error(f"the factor {float(axis.factor):g}", "factors of at least 1, or opset 11")
    at = [_coordinate(way.coordinates, axis, i) for i in range(count)]
    chosen = [min(max(_ROUNDING[way.nearest](p), 0), size - 1) for p in at]
    cropped = way.coordinates == "tf_crop_and_resize"
    return np.array(chosen, np.int64), np.array([cropped and not 0 <= p <= size - 1 for p in at], bool)


def _interpolated(n: OnnxNode, way: _ResizeMode, mode: str, x: Expr, axis: int, resized: _Axis) -> tuple[Expr, Array]:
    """`x` interpolated along an axis of fixed size, and which places of the result lie beyond its ends."""
    if not resized.size.is_const or not resized.result.is_const or not is_float(x.dtype):
        raise n.error(f"mode={mode!r} of {x.dtype}s along the size {resized.size}", "floats and fixed sizes")
    size, count, factor = resized.size.value, resized.result.value, resized.factor
    if size * count > MOST_KNOWN**2:
        raise n.error(f"{count} elements along an axis", f"up to {MOST_KNOWN}")
    if way.coordinates == "align_corners" and count != factor * size:
        # ONNX's reference divides by the length before it is rounded, and the runtimes by the length of the result.
        raise n.error(f"align_corners of {size} elements by the factor {float(factor):g}", "sizes")
    cubic, outside = float(n.at("cubic_coeff_a", CUBIC)), n.flag("exclude_outside")
    shrunk = min(float(factor), 1.0) if n.flag("antialias") else 1.0
    at = [_coordinate(way.coordinates, resized, i) for i in range(count)]
    reach = math.ceil((2 if mode == "cubic" else 1) / shrunk)  # elements on either side of a coordinate
    first = np.array([math.ceil(p) - reach for p in at], np.int64)
    positions = first[:, None] + np.arange(2 * reach)
    distances = np.array([[float(p - int(q)) for q in row] for p, row in zip(at, positions, strict=True)])
    weights = (_cubic_weights if mode == "cubic" else _linear_weights)(np.abs(distances) * shrunk, cubic)
    if outside:
        weights = np.where((positions >= 0) & (positions < size), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    dtype = accumulator(x.dtype)
    wide, total = op.astype(x, dtype), None
    for tap in range(2 * reach):
        if not weights[:, tap].any():
            continue
        column = weights[:, tap].astype(dtype).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        taken = op.take(wide, np.clip(positions[:, tap], 0, size - 1).astype(np.int32), axis, mode="clip")
        total = taken * const(column) if total is None else total + taken * const(column)
    cropped = way.coordinates == "tf_crop_and_resize"
    assert total is not None
    return total, np.array([cropped and not 0 <= p <= size - 1 for p in at], bool)


def _linear_weights(distance: Array, _: float) -> Array:
    return np.maximum(1 - distance, 0)


def cubic_near(d: Any, a: float) -> Any:
    """The weights of elements at distances of at most 1, with the coefficient `a`."""
    return ((a + 2) * d - (a + 3)) * d * d + 1


def cubic_far(d: Any, a: float) -> Any:
    """The weights of elements at distances between 1 and 2."""
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def _cubic_weights(d: Array, a: float) -> Array:
    return np.where(d <= 1, cubic_near(d, a), np.where(d < 2, cubic_far(d, a), 0))


def _coordinate(kind: str, axis: _Axis, i: int) -> Fraction:
    """The coordinate in the operand of place `i` of the result."""
    size, count, factor = axis.size.value, axis.result.value, axis.factor
    first, last = axis.roi
    match kind:
        case "tf_crop_and_resize":
            if count > 1:
                return (first + Fraction(i, count - 1) * (last - first)) * (size - 1)
            return _HALF * (first + last) * (size - 1)
        case _ if factor == 1:
            return Fraction(i)
        case "asymmetric":
            return i / factor
        case "align_corners":
            return Fraction(i * (size - 1), count - 1) if count > 1 else Fraction(0)
        case "tf_half_pixel_for_nn":
            return (i + _HALF) / factor
        case "pytorch_half_pixel" if count <= 1:
            return Fraction(0)
        case "half_pixel_symmetric":
            offset = Fraction(size, 2) * (1 - count / (factor * size))
            return offset + (i + _HALF) / factor - _HALF
        case _:
            return (i + _HALF) / factor - _HALF


def _repeat_axis(n: OnnxNode, way: _ResizeMode, x: Expr, axis: int, resized: _Axis) -> Expr:
    """`x` with each element of a symbolic axis repeated by the factor. OnnxError if the resize mode does not amount to
    that at every size."""
    k = int(resized.factor)
    if resized.factor == 1 and way.coordinates != "tf_crop_and_resize":
        return x
    if k != resized.factor:
        raise n.error(
            f"the factor {float(resized.factor):g} of the size {resized.size}", "whole factors, or fixed sizes"
        )
    # Element q of the operand fills the places k*q .. k*q + k - 1 of the result: with centred coordinates, the middle
    # of its pixel is nearest to theirs; otherwise, their division by k rounds down to q.
    centred = way.coordinates in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    repeats = way.nearest.startswith("round") if centred else way.nearest == "floor"
    if not repeats or not (centred or way.coordinates in ("asymmetric", "tf_half_pixel_for_nn")):
        both = f"coordinate_transformation_mode={way.coordinates!r} and nearest_mode={way.nearest!r}"
        accepted = "half_pixel with round_prefer_floor or round_prefer_ceil, asymmetric with floor, or fixed sizes"
        raise n.error(f"{both} with the size {resized.size}", accepted)
    size = x.shape
    x = op.expand_dims(x, axis + 1)
    x = op.broadcast_to(x, (*size[: axis + 1], k, *size[axis + 1 :]))
    return op.reshape(x, (*size[:axis], size[axis] * k, *size[axis + 1 :]))
