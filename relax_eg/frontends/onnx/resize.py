"""ONNX's Resize and Upsample, to the nearest element.

Every place of the result takes one element of the operand, found along each axis alone. Where an axis is symbolic its
elements are repeated as often as the factor says; else it is computed now which elements are taken. Coordinates are
computed in float32, as runtimes do: what exporters round to a whole number in it is one there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.frontends.onnx.nodes import Node
from relax_eg.frontends.onnx.values import MOST_KNOWN, Array
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.shapes import Dim


@dataclass(frozen=True, slots=True)
class _Way:
    """How coordinates of the result are taken to those of the operand (`coordinates`), and those to whole numbers."""

    coordinates: str
    nearest: str
    extrapolated: float


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis that is resized: its size, the factor, and the part of it that is looked at (`tf_crop_and_resize`)."""

    size: Dim
    factor: Any  # np.float32
    result: Dim
    roi: tuple[float, float] = (0.0, 1.0)


_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip


def resize(n: Node) -> Expr:
    """Resize and Upsample with mode "nearest"."""
    x = n[0]
    n.choice("mode", "nearest", "nearest")
    # They say how elements are weighed, of which there is one here.
    n.without_effect("antialias", "cubic_coeff_a", "exclude_outside")
    old = n.kind == "Upsample" or n.opset < 11
    way = _Way(
        "asymmetric" if old else n.choice("coordinate_transformation_mode", "half_pixel", *_COORDINATES),
        "floor" if old else n.choice("nearest_mode", "round_prefer_floor", *_ROUNDED),
        n.at("extrapolation_value", 0.0),
    )
    axes = [n.from_the_front(a, x.ndim) for a in n.at("axes", range(x.ndim))]
    outside: dict[int, Array] = {}
    for axis, resized in zip(axes, _resized(n, x, axes), strict=True):
        if resized.size.is_const:
            at, beyond = _places(n, way, resized)
            if beyond.any():
                outside[axis] = beyond
            if not np.array_equal(at, np.arange(resized.size.value)):
                x = op.take(x, at.astype(np.int32), axis, mode="clip")
        else:
            x = _repeated(n, way, x, axis, resized)
    for axis, beyond in outside.items():
        mask = beyond.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        x = op.where(mask, op.astype(op.full((), way.extrapolated, "float32"), x.dtype), x)
    return x


def _resized(n: Node, x: Expr, axes: Sequence[int]) -> list[_Axis]:
    """What the node says of each of `axes`."""
    attribute = n.kind == "Upsample" and n.opset < 9
    old = n.kind == "Upsample" or n.opset < 11
    scales = n.at("scales") if attribute else n.known(1 if old else 2, "the scales")
    wanted = None if old else n.sizes("sizes", 3)
    policy = n.choice("keep_aspect_ratio_policy", "stretch", "stretch", "not_larger", "not_smaller")
    if not old and n.at("coordinate_transformation_mode") != "tf_crop_and_resize":
        n.value(1)  # the region of interest
    roi = _regions(n, len(axes)) if not old else [(0.0, 1.0)] * len(axes)
    sizes = [x.shape[a] for a in axes]
    factors = [] if scales is None else [np.float32(s) for s in scales]
    if bool(factors) == bool(wanted):
        raise n.error("both scales and sizes" if factors else "neither scales nor sizes", "one of the two")
    if len(factors or wanted or ()) != len(axes):
        raise n.error(f"{len(factors or wanted or ())} scales or sizes for {len(axes)} axes", "one for each axis")
    if wanted:
        changed = [(a, b) for a, b in zip(wanted, sizes, strict=True) if a != b or policy != "stretch"]
        if not all(a.is_const and b.is_const for a, b in changed):
            raise n.error("sizes that are symbolic", "scales, or fixed sizes")
        factors = [
            np.float32(1) if a == b else np.float32(a.value) / np.float32(b.value)
            for a, b in zip(wanted, sizes, strict=True)
        ]
        if policy != "stretch":
            kept = min(factors) if policy == "not_larger" else max(factors)
            wanted = tuple(
                d if kept == 1 else Dim.of(math.floor(float(kept * np.float32(d.value)) + 0.5)) for d in sizes
            )
            factors = [kept] * len(sizes)
    if any(not f > 0 or not np.isfinite(f) for f in factors):
        raise n.error(f"the scales {[float(f) for f in factors]}", "scales above 0")
    made: list[_Axis] = []
    for i, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        if wanted:
            result = wanted[i]
        elif size.is_const:
            part = np.float32(roi[i][1]) - np.float32(roi[i][0])
            result = Dim.of(math.floor(np.float32(size.value) * part * factor))
        else:
            result = size * int(factor)
        made.append(_Axis(size, factor, result, roi[i]))
    return made


def _regions(n: Node, count: int) -> list[tuple[float, float]]:
    """Where the part of each axis begins and ends that is looked at."""
    if n.at("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [(0.0, 1.0)] * count
    found = n.known(1, "the region of interest")
    if found is None or found.size != 2 * count:
        raise n.error("no region of interest for each axis", "roi with a start and an end for each axis")
    values = [float(v) for v in found.reshape(-1)]
    return list(zip(values[:count], values[count:], strict=True))


def _places(n: Node, way: _Way, axis: _Axis) -> tuple[Array, Array]:
    """Which element of a fixed axis each place takes, and which places are beyond its ends and take none."""
    size, count = axis.size.value, axis.result.value
    if count > MOST_KNOWN:
        raise n.error(f"{count} elements along an axis", f"up to {MOST_KNOWN}")
    at = _coordinates(way.coordinates, axis, np.arange(count, dtype=np.float32))
    chosen = _nearest(n, way, axis, at)
    beyond = (at < 0) | (at > size - 1) if way.coordinates == "tf_crop_and_resize" else np.zeros(count, bool)
    return np.clip(chosen, 0, max(size - 1, 0)).astype(np.int64), beyond


def _nearest(n: Node, way: _Way, axis: _Axis, at: Array) -> Array:
    if n.opset < 11 and axis.factor < 1:
        raise n.error(f"the factor {axis.factor:g}", "factors of at least 1, or opset 11")
    return _ROUNDED[way.nearest](at)


def _coordinates(kind: str, axis: _Axis, at: Array) -> Array:
    one, half = np.float32(1), np.float32(0.5)
    size, count, factor = np.float32(axis.size.value), np.float32(axis.result.value), axis.factor
    first, last = map(np.float32, axis.roi)
    match kind:
        case "tf_crop_and_resize":
            if count > 1:
                return first * (size - one) + at * (last - first) * (size - one) / (count - one)
            return np.full_like(at, half * (first + last) * (size - one))
        case _ if factor == 1:
            return at
        case "asymmetric":
            return at / factor
        case "align_corners":
            return at * (size - one) / (count - one) if count > 1 else np.zeros_like(at)
        case "tf_half_pixel_for_nn":
            return (at + half) / factor
        case "pytorch_half_pixel" if count <= 1:
            return np.zeros_like(at)
        case "half_pixel_symmetric":
            offset = size / np.float32(2) * (one - count / (factor * size))
            return offset + (at + half) / factor - half
        case _:
            return (at + half) / factor - half


def _repeated(n: Node, way: _Way, x: Expr, axis: int, resized: _Axis) -> Expr:
    """Each element of a symbolic axis as often as the factor says, where the way comes to that at every size."""
    k = int(resized.factor)
    if resized.factor == 1 and way.coordinates != "tf_crop_and_resize":
        return x
    if k != resized.factor:
        raise n.error(f"the factor {resized.factor:g} of the size {resized.size}", "whole factors, or fixed sizes")
    # Element q stands at k*q .. k*q + k - 1 of the result: the middle of its pixel is nearest to theirs, and k divides
    # them down to q.
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
