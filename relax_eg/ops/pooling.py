"""The derivatives of pooling: operators that add to, or read from, the position of each window's extreme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import itemsize
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.lazy_jax import jax, lax
from relax_eg.ops.record import Operator, Site, register
from relax_eg.ops.sizes import Dims, need_equal, need_kind, need_same_dtype, product
from relax_eg.ops.windows import WINDOW, window_shape
from relax_eg.tir import Counts

Array = np.ndarray[Any, Any]


def _need_pooling(site: Site) -> tuple[str, Dims]:
    """Returns the dtype of both operands and the sizes of the result of pooling the second by its extremes."""
    if site["kind"] not in ("max", "min"):
        raise site.error(f"kind {site['kind']!r}; accepted: max, min")
    need_same_dtype(site, (0, 1))
    dtype = need_kind(site, "f")
    ones = (1,) * len(site.shape(1))
    if len(site.shape(0)) != len(ones) or not ones:
        raise site.error(f"ranks {len(site.shape(0))} and {len(ones)}; equal ones, 1 or more, are needed")
    around = {**site.attrs, "dilation": ones, "input_dilation": ones}
    return dtype, window_shape(Site(site.op, site.operands, around), i=1)


def _scatter(site: Site) -> Annotation:
    dtype, windows = _need_pooling(site)
    for axis, (a, b) in enumerate(zip(site.shape(0), windows, strict=True)):
        need_equal(site, a, b, f"axis {axis} of the source, and the number of windows")
    return Tensor(site.shape(1), dtype)


def _gather(site: Site) -> Annotation:
    dtype, windows = _need_pooling(site)
    for axis, (a, b) in enumerate(zip(site.shape(0), site.shape(1), strict=True)):
        need_equal(site, a, b, f"axis {axis} of the tangents, and of what is pooled")
    return Tensor(windows, dtype)


def _extremes(
    x: Array, windows: Sequence[int], kind: str, window: Sequence[Any], strides: Sequence[int], low: Sequence[Any]
) -> Array:
    """Returns the flat position in `x` of each window's first extreme; -1 where a window has no element of `x`."""
    better: Callable[..., Any] = np.greater_equal if kind == "max" else np.less_equal
    chosen = np.full(tuple(windows), -1)
    if not x.size or not chosen.size:
        return chosen
    places = np.indices(chosen.shape)
    best = np.zeros(chosen.shape)
    for k in np.ndindex(*(int(n) for n in window)):
        at = [places[a] * strides[a] + k[a] - int(low[a]) for a in range(x.ndim)]
        valid = np.logical_and.reduce([(p >= 0) & (p < n) for p, n in zip(at, x.shape, strict=True)])
        flat = np.ravel_multi_index([np.where(valid, p, 0) for p in at], x.shape)
        value = x.ravel()[flat].astype(np.float64)
        takes = valid & ((chosen < 0) | ~better(best, value))
        best, chosen = np.where(takes, value, best), np.where(takes, flat, chosen)
    return chosen


def _scatter_reference(source: Array, x: Array, *, kind: str, high: Sequence[Any], **window: Any) -> Array:
    out = np.zeros(x.shape, np.float64)
    chosen = _extremes(x, source.shape, kind, **window)
    found = chosen >= 0
    np.add.at(out.reshape(-1), chosen[found], source[found].astype(np.float64))
    return out.astype(x.dtype)


def _gather_reference(
    tangents: Array, x: Array, *, kind: str, window: Sequence[Any], strides: Sequence[int], low: Sequence[Any],
    high: Sequence[Any],
) -> Array:  # fmt: skip
    padded = [n + int(a) + int(b) for n, a, b in zip(x.shape, low, high, strict=True)]
    windows = [max(0, (n - int(k)) // s + 1) for n, k, s in zip(padded, window, strides, strict=True)]
    chosen = _extremes(x, windows, kind, window, strides, low)
    if not x.size:
        return np.zeros(windows, x.dtype)
    return np.where(chosen >= 0, tangents.reshape(-1)[np.maximum(chosen, 0)], np.zeros((), x.dtype))


def _cost(site: Site) -> Counts:
    windows = product(_need_pooling(site)[1])
    elements, size = product(site.shape(1)), itemsize(site.dtype())
    written = elements if site.op == "window_scatter" else windows
    read = product(site.shape(0)) + elements
    return Counts(windows * product(site["window"]) + windows, read * size, written * size)


def _pool(x: Any, attrs: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns pooling with these attributes; its derivatives are the public access to the primitives."""
    combine, start = (lax.max, -np.inf) if attrs["kind"] == "max" else (lax.min, np.inf)
    padding = tuple(zip(attrs["low"], attrs["high"], strict=True))
    first = np.asarray(start).astype(x.dtype)
    return lambda v: lax.reduce_window(v, first, combine, attrs["window"], attrs["strides"], padding)


def _jax_scatter(source: Any, x: Any, **attrs: Any) -> Any:
    return jax.vjp(_pool(x, attrs), x)[1](source)[0]


def _jax_gather(tangents: Any, x: Any, **attrs: Any) -> Any:
    return jax.jvp(_pool(x, attrs), (x,), (tangents,))[1]


for _operator in (
    Operator("window_scatter", ("source", "x"), _scatter, _jax_scatter, None, WINDOW, _scatter_reference, _cost,
             capacity="window_derivative",
             doc="each source element added where its window of x has its first extreme: pooling's transpose"),
    Operator("window_gather", ("tangents", "x"), _gather, _jax_gather, None, WINDOW, _gather_reference, _cost,
             capacity="window_derivative",
             doc="for each window of x the tangent where its first extreme is: pooling's derivative"),
):  # fmt: skip
    register(_operator)
