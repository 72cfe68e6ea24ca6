"""ONNX nodes that sample images at computed positions: GridSample, RoiAlign, DeformConv; and Col2Im, its opposite."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.resize import CUBIC, cubic_far, cubic_near
from relax_eg.frontends.onnx.traced import traced_one
from relax_eg.frontends.onnx.windows import window_of
from relax_eg.ir.expr import Expr

# What an integer position along an axis of a length reads: the position inside, and whether it counts.
_Inside = Callable[[Any, int], tuple[Any, Any]]


def _cubic_weights(r: Any) -> list[Any]:
    """The weights of four neighbours, for the distance `r` from the second."""
    return [cubic_far(r + 1, CUBIC), cubic_near(r, CUBIC), cubic_near(1 - r, CUBIC), cubic_far(2 - r, CUBIC)]


def _interpolated(image: Any, at: Sequence[Any], inside: _Inside, mode: str) -> Any:
    """Elements of `image` (channels, *space) at the positions `at`, one array for each axis of space."""
    taps: list[list[tuple[Any, Any]]] = []
    for x in at:
        if mode == "nearest":
            taps.append([(jnp.round(x), jnp.ones_like(x))])
            continue
        base = jnp.floor(x)
        r = x - base
        weights, first = (_cubic_weights(r), -1) if mode == "cubic" else ([1 - r, r], 0)
        taps.append([(base + (first + i), w) for i, w in enumerate(weights)])
    total: Any = 0
    for chosen in itertools.product(*taps):
        weight: Any = 1
        places: list[Any] = []
        for (position, w), size in zip(chosen, image.shape[1:], strict=True):
            place, counts = inside(position, size)
            places.append(place.astype(jnp.int32))
            weight = weight * jnp.where(counts, w, 0)
        total = total + image[(slice(None), *places)] * weight
    return total


def _zero_outside(p: Any, size: int) -> tuple[Any, Any]:
    return jnp.clip(p, 0, size - 1), (p >= 0) & (p <= size - 1)


def _edge_outside(p: Any, size: int) -> tuple[Any, Any]:
    return jnp.clip(p, 0, size - 1), True


def _reflected(p: Any, low: float, high: float) -> Any:
    """Positions reflected at the borders until they are inside."""
    length = high - low
    if length == 0:
        return jnp.full_like(p, low)
    far = jnp.mod(p - low, 2 * length)
    return low + jnp.minimum(far, 2 * length - far)


def _grid_sample(n: OnnxNode) -> Expr:
    names = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}
    mode = names[n.choice("mode", "linear" if n.opset >= 20 else "bilinear", *names)]
    padding = n.choice("padding_mode", "zeros", "zeros", "border", "reflection")
    corners = n.flag("align_corners")

    def border(size: int) -> tuple[float, float]:
        return (0.0, size - 1.0) if corners else (-0.5, size - 0.5)

    def reflect_outside(p: Any, size: int) -> tuple[Any, Any]:
        return jnp.clip(_reflected(p, *border(size)), 0, size - 1), True

    inside = {"zeros": _zero_outside, "border": _edge_outside, "reflection": reflect_outside}[padding]

    def position(v: Any, size: int) -> Any:
        x = (v + 1) / 2 * (size - 1) if corners else ((v + 1) * size - 1) / 2
        x = jnp.round(x) if mode == "nearest" else x
        if padding == "border":
            return jnp.clip(x, 0, size - 1)
        return _reflected(x, *border(size)) if padding == "reflection" else x

    def sampled(x: Any, grid: Any) -> Any:
        space = x.shape[2:]

        def one(image: Any, grid: Any) -> Any:
            at = [position(grid[..., len(space) - 1 - a], size) for a, size in enumerate(space)]
            return _interpolated(image, at, inside, mode)

        return jax.vmap(one)(x, grid).astype(x.dtype)

    return traced_one(n, sampled, n[0], n[1])


def _roi_align(n: OnnxNode) -> Expr:
    pixel = n.choice("coordinate_transformation_mode", "half_pixel", "half_pixel", "output_half_pixel")
    half = n.opset >= 16 and pixel == "half_pixel"
    largest = n.choice("mode", "avg", "avg", "max") == "max"
    rows, columns, ratio = n.at("output_height", 1), n.at("output_width", 1), n.at("sampling_ratio", 0)
    scale = n.at("spatial_scale", 1.0)
    if ratio < 1:
        raise n.error("sampling_ratio=0, with as many samples as a region is large", "sampling_ratio >= 1")

    def edges(p: Any, size: int) -> tuple[Any, Any, Any]:
        """The two neighbours of positions, the distance from the first, which is 0 at the last element."""
        p = jnp.maximum(p, 0)
        low = jnp.minimum(jnp.floor(p), size - 1)
        return low, jnp.minimum(low + 1, size - 1), jnp.where(low >= size - 1, 0, p - low)

    def aligned(x: Any, rois: Any, batch: Any) -> Any:
        height, width = x.shape[2:]

        def one(roi: Any, b: Any) -> Any:
            x1, y1, x2, y2 = roi * scale - (0.5 if half else 0.0)
            w, h = x2 - x1, y2 - y1
            w, h = (w, h) if half else (jnp.maximum(w, 1), jnp.maximum(h, 1))
            ys = y1 + (jnp.arange(rows * ratio) + 0.5) * (h / rows / ratio)
            xs = x1 + (jnp.arange(columns * ratio) + 0.5) * (w / columns / ratio)
            top, bottom, ly = edges(ys, height)
            left, right, lx = edges(xs, width)
            image, i32 = x[b], jnp.int32
            valid = ((ys >= -1) & (ys <= height))[:, None] & ((xs >= -1) & (xs <= width))
            parts = [
                image[:, p.astype(i32)[:, None], q.astype(i32)] * jnp.where(valid, wy[:, None] * wx, 0)
                for p, wy in ((top, 1 - ly), (bottom, ly))
                for q, wx in ((left, 1 - lx), (right, lx))
            ]
            # As ONNX's reference and onnxruntime do, the maximum is that of the weighted neighbours.
            found = jnp.max(jnp.stack(parts), 0) if largest else jnp.sum(jnp.stack(parts), 0)
            cells = found.reshape(-1, rows, ratio, columns, ratio)
            return cells.max((2, 4)) if largest else cells.mean((2, 4))

        return jax.vmap(one)(rois, batch).astype(x.dtype)

    return traced_one(n, aligned, n[0], n[1], n[2])


def _deform_conv(n: OnnxNode) -> Expr:
    x, w = n[0], n[1]
    if x.ndim != 4:
        raise n.error(f"rank {x.ndim}", "images: rank 4")
    strides, around, pads = n.steps("strides", 2), n.steps("dilations", 2), n.at("pads", [0] * 4)
    groups, offset_groups = n.at("group", 1), n.at("offset_group", 1)
    window = window_of(n, w, 2)

    def convolved(x: Any, w: Any, offset: Any, bias: Any, mask: Any) -> Any:
        count, channels = x.shape[:2]
        rows, columns = offset.shape[2:]
        offset = offset.reshape(count, offset_groups, window[0] * window[1], 2, rows, columns)
        shape = (count, offset_groups, window[0] * window[1], rows, columns)
        weight = jnp.ones(shape, x.dtype) if mask is None else mask.reshape(shape)
        first_y = jnp.arange(rows)[:, None] * strides[0] - pads[0]
        first_x = jnp.arange(columns) * strides[1] - pads[1]
        places = [(i * around[0], j * around[1]) for i in range(window[0]) for j in range(window[1])]

        def one(image: Any, offset: Any, weight: Any) -> Any:  # of one image and one group of offsets
            return jnp.stack(
                [
                    _interpolated(
                        image, (first_y + i + offset[k, 0], first_x + j + offset[k, 1]), _zero_outside, "linear"
                    )
                    * weight[k]
                    for k, (i, j) in enumerate(places)
                ],
                1,
            )  # fmt: skip

        images = x.reshape(count, offset_groups, channels // offset_groups, *x.shape[2:])
        taken = jax.vmap(jax.vmap(one))(images, offset, weight)
        taken = taken.reshape(count, groups, channels // groups, len(places), rows, columns)
        kernel = w.reshape(groups, w.shape[0] // groups, w.shape[1], len(places))
        y = jnp.einsum("ngckhw,gock->ngohw", taken, kernel).reshape(count, w.shape[0], rows, columns)
        return (y if bias is None else y + bias[:, None, None]).astype(x.dtype)

    return traced_one(n, convolved, x, w, n[2], n.optional_input(3), n.optional_input(4))


def _col2im(n: OnnxNode) -> Expr:
    shape, block = n.integer_list("image_shape", 1), n.integer_list("block_shape", 2)
    if shape is None or block is None:
        raise n.error("no image_shape or block_shape", "both")
    space = len(shape)
    strides, around, pads = n.steps("strides", space), n.steps("dilations", space), n.at("pads", [0] * 2 * space)
    padded = [d + low + high for d, low, high in zip(shape, pads[:space], pads[space:], strict=True)]
    steps = [(d - (k - 1) * a - 1) // s + 1 for d, k, a, s in zip(padded, block, around, strides, strict=True)]

    def joined(x: Any) -> Any:
        columns = x.reshape(x.shape[0], -1, *block, *steps)
        whole = jnp.zeros((x.shape[0], columns.shape[1], *padded), x.dtype)
        for at in itertools.product(*map(range, block)):
            keys = [slice(i * a, i * a + s * (c - 1) + 1, s)
                    for i, a, s, c in zip(at, around, strides, steps, strict=True)]  # fmt: skip
            whole = whole.at[(slice(None), slice(None), *keys)].add(columns[(slice(None), slice(None), *at)])
        inner = [slice(low, low + d) for low, d in zip(pads, shape, strict=False)]
        return whole[(slice(None), slice(None), *inner)]

    return traced_one(n, joined, n[0])


HANDLERS: dict[str, Handler] = {
    "Col2Im": _col2im,
    "DeformConv": _deform_conv,
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
}
