"""Kernels of low rank: the kernels over the first axis of a window and over its other axes that make them up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MOST_ELEMENTS = 1 << 16  # limit: elements of a kernel of which singular values are computed
# chosen: differences of a kernel's elements, as a share of the largest, that are no more than rounding in float32 (two
# roundings), and that are about what Winograd's tiles change
ROUNDED, NEAR = 2.0**-22, 1e-5
MOST_RANK = 16  # limit: the rank of a kernel of which two are made

Array = np.ndarray[Any, Any]


def factors(kernel: Array, is_depthwise: bool, tolerance: float, most: int) -> tuple[Array, Array] | None:
    """The kernels over the other axes and over the first axis of the window whose convolutions, one after the other,
    are that of `kernel`; None if there are none. Kernels of integers have none.

    - `kernel`: (outputs, inputs, *window), the window over two axes or more. That of each channel of a depthwise
      convolution has rank 1.
    - `tolerance`: by how much elements may differ, as a share of the largest.
    - `most`: the largest rank.
    """
    if kernel.dtype.kind != "f" or not 0 < kernel.size <= MOST_ELEMENTS:
        return None
    value = np.asarray(kernel, np.float64)
    o, k, p, *rest = value.shape
    if is_depthwise:
        matrices, kept = value.reshape(o, p, -1), 1
    else:
        matrices = np.moveaxis(value, (0, 2), (-2, -1)).reshape(1, -1, o * p)
        kept = most
    if not np.all(np.isfinite(matrices)):
        return None
    highest = kept if is_depthwise else min(most, value.size // sum(matrices.shape[1:]))
    if _is_above(matrices, highest, tolerance):
        return None
    u, s, v = np.linalg.svd(matrices, full_matrices=False)
    if not is_depthwise:
        kept = next((r for r in range(1, highest + 1) if _is_near(matrices, u, s, v, r, tolerance)), 0)
    if not kept or not _is_near(matrices, u, s, v, kept, tolerance):
        return None
    root = np.sqrt(s[:, None, :kept])
    left, right = u[..., :kept] * root, v[:, :kept] * np.swapaxes(root, 1, 2)
    if is_depthwise:
        inner, outer = right.reshape(o, 1, 1, *rest), left.reshape(o, 1, p, *[1] * len(rest))
    else:
        inner = np.moveaxis(left[0].reshape(k, *rest, kept), -1, 0)[:, :, None]
        outer = np.moveaxis(right[0].reshape(kept, o, p), 0, 1).reshape(o, kept, p, *[1] * len(rest))
    return inner.astype(kernel.dtype), outer.astype(kernel.dtype)


def _is_above(a: Array, rank: int, tolerance: float) -> bool:
    """Whether a few rows of a matrix show that no matrix of this rank is near it.

    A matrix near it differs in these rows by a matrix whose norm is at most `limit`, and no singular value of the rows
    moves by more (Weyl). Trained kernels have full rank, and all singular values take a hundred times as long.
    """
    rows = a[:, np.linspace(0, a.shape[1] - 1, min(a.shape[1], 2 * rank + 2)).astype(int)]
    values = np.linalg.svd(rows, compute_uv=False)
    if values.shape[1] <= rank:
        return False
    limit = tolerance * np.abs(a).max((1, 2)) * math.sqrt(rows.shape[1] * rows.shape[2])
    return bool(np.any(values[:, rank] > 2 * limit))  # twice: values are rounded


def _is_near(a: Array, u: Array, s: Array, v: Array, rank: int, tolerance: float) -> bool:
    off = np.abs((u[..., :rank] * s[:, None, :rank]) @ v[:, :rank] - a)
    return bool(np.all(off.max((1, 2)) <= tolerance * np.abs(a).max((1, 2))))


def is_separate(window: tuple[int, ...]) -> bool:
    """Whether a window has a first axis and others to be taken apart."""
    return len(window) > 1 and window[0] > 1 and math.prod(window[1:]) > 1
