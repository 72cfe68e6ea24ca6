"""Reading and writing at computed positions: slices, and gather and scatter with JAX's dimension numbers.

Attribute `mode` decides about positions out of range: "clip" moves them inside, "fill" reads a fill value and writes
nothing, "promise" states that there are none. A slice is out of range when any part of it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import is_key, itemsize
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.ops.movement import MODE, MODES, fill_value
from relax_eg.ops.positions import as_index, as_indices, jax_positions
from relax_eg.ops.record import Attribute, Operator, Site, register
from relax_eg.ops.sizes import (
    ONE,
    ZERO,
    Dims,
    need_at_most,
    need_equal,
    need_kind,
    need_length,
    need_same_dtype,
    product,
)
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Counts,
    Index,
    Scalar,
    TensorProgram,
    compute,
    const,
    equal,
    less_equal,
    loop,
    maximum,
    minimum,
    program,
    reduce,
    select,
    within,
)


def _need_starts(site: Site, first: int, rank: int) -> None:
    """Requires the operands from `first` on to be one scalar integer for each of `rank` axes."""
    if len(site.operands) - first != rank:
        raise site.error(f"{len(site.operands) - first} starts; {rank} are needed, one for each axis")
    for i in range(first, len(site.operands)):
        need_kind(site, "iu", i)
        if site.shape(i) != ():
            raise site.error(f"start {i - first}, operand {i}, must be a scalar")


def _dynamic_slice(site: Site) -> Annotation:
    dtype, shape = need_kind(site, "biufckn"), site.shape()
    _need_starts(site, 1, len(shape))
    sizes: Dims = need_length(site, "sizes", len(shape), "the operand")
    for axis, (size, room) in enumerate(zip(sizes, shape, strict=True)):
        need_at_most(site, ZERO, size, f"the size on axis {axis}")
        need_at_most(site, size, room, f"the slice on axis {axis}")
    return Tensor(sizes, dtype)


def _clamp_start(start: Scalar, room: Dim) -> Scalar:
    """Returns `start` clamped to 0 .. `room`."""
    return minimum(maximum(as_index(start), 0), Index(room))


def _dynamic_slice_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, *starts = buffers
    sizes: Dims = site["sizes"]

    def element(*i: Dim) -> Scalar:
        at = [
            _clamp_start(s[()], room - size) + Index(v)
            for s, v, size, room in zip(starts, i, sizes, x.shape, strict=True)
        ]
        return x[tuple(at)]

    return program("dynamic_slice", buffers, compute("out", sizes, element))


def _jax_dynamic_slice(x: Any, *starts: Any, sizes: tuple[int, ...]) -> Any:
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


def _dynamic_update_slice(site: Site) -> Annotation:
    need_same_dtype(site, (0, 1))
    dtype, shape, update = need_kind(site, "biufckn"), site.shape(0), site.shape(1)
    if len(update) != len(shape):
        raise site.error(f"the update has rank {len(update)}, the operand rank {len(shape)}")
    _need_starts(site, 2, len(shape))
    for axis, (size, room) in enumerate(zip(update, shape, strict=True)):
        need_at_most(site, size, room, f"the update on axis {axis}")
    return Tensor(shape, dtype)


def _dynamic_update_slice_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, update, *starts = buffers

    def element(*i: Dim) -> Scalar:
        at: list[Scalar] = []
        inside: Scalar = const(True, "bool")
        for v, start, size, room in zip(i, starts, update.shape, x.shape, strict=True):
            at.append(Index(v) - _clamp_start(start[()], room - size))
            inside = inside & within(0, at[-1], Index(size))
        return select(inside, update[tuple(at)], x[i])

    return program("dynamic_update_slice", buffers, compute("out", x.shape, element))


def _jax_dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


def _slice_cost(site: Site) -> Counts:
    # The equations would count clamping the starts for each element; they are clamped once.
    moved = product(site["sizes"]) * itemsize(site.dtype())
    return Counts(ZERO, moved, moved)


def _update_cost(site: Site) -> Counts:
    # This counts a copy of the operand; XLA writes in place where nothing else reads the operand.
    size = itemsize(site.dtype())
    copied = product(site.shape(0)) * size
    return Counts(ZERO, copied + product(site.shape(1)) * size, copied)


# --- gather ---

# The dimension numbers, named as in `jax.lax.GatherDimensionNumbers`.
_GATHER = ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
           "start_indices_batching_dims")  # fmt: skip


def _kept(site: Site, rank: int, dropped: Sequence[str]) -> list[int]:
    """Returns the operand axes that a window keeps: those in none of the attributes `dropped`."""
    return [a for a in range(rank) if not any(a in site[name] for name in dropped)]


def _need_dimension_numbers(site: Site, index_map: Sequence[int], batches: Sequence[int], rank: int) -> None:
    """Checks what gather and scatter both require of the indices (operand 1), `mode` and the dimension numbers."""
    need_kind(site, "iu", 1)
    indices = site.shape(1)
    if site["mode"] not in MODES:
        raise site.error(f"mode {site['mode']!r}; accepted: {', '.join(MODES)}")
    if not indices:
        raise site.error("indices, operand 1, need a last axis, of one index for each indexed axis")
    need_equal(site, indices[-1], Dim.of(len(index_map)), "the last axis of the indices, and the indexed axes")
    if any(not 0 <= a < rank for a in index_map) or len(batches) != len(site["operand_batching_dims"]):
        raise site.error("the dimension numbers do not fit the operands")


def _gather(site: Site) -> Annotation:
    dtype, shape, indices = need_kind(site, "biufckn"), site.shape(0), site.shape(1)
    _need_dimension_numbers(site, site["start_index_map"], site["start_indices_batching_dims"], len(shape))
    sizes: Dims = need_length(site, "slice_sizes", len(shape), "the operand")
    for axis, (size, room) in enumerate(zip(sizes, shape, strict=True)):
        need_at_most(site, ZERO, size, f"the slice size of axis {axis}")
        # With a fill value, a slice that never fits is filled. Of an empty batch axis there is no slice.
        if site["mode"] != "fill" or axis not in (*site["start_index_map"], *site["operand_batching_dims"]):
            need_at_most(site, size, room, f"the slice on axis {axis}")
    if site["mode"] == "fill" and is_key(dtype):
        raise site.error("there is no key to fill with; mode clip or promise is needed")
    kept = _kept(site, len(shape), ("collapsed_slice_dims", "operand_batching_dims"))
    offsets = site["offset_dims"]
    if len(kept) != len(offsets):
        raise site.error(f"{len(offsets)} offset_dims; {len(kept)} are needed, one for each axis a slice keeps")
    windows, batch = iter(kept), iter(indices[:-1])
    rank = len(kept) + len(indices) - 1
    if any(not 0 <= a < rank for a in offsets) or len(set(offsets)) < len(offsets):
        raise site.error(f"offset_dims must be distinct axes of the result, which has rank {rank}")
    return Tensor(tuple(sizes[next(windows)] if a in offsets else next(batch) for a in range(rank)), dtype)


def _gather_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, indices = buffers
    shape, mode = site.shape(0), site["mode"]
    result = _gather(site)
    assert isinstance(result, Tensor) and result.shape is not None
    kept = _kept(site, len(shape), ("collapsed_slice_dims", "operand_batching_dims"))
    batched = dict(zip(site["operand_batching_dims"], site["start_indices_batching_dims"], strict=True))

    def element(*i: Dim) -> Scalar:
        offset = dict(zip(kept, (v for a, v in enumerate(i) if a in site["offset_dims"]), strict=True))
        batch = [v for a, v in enumerate(i) if a not in site["offset_dims"]]
        at: list[Dim | Scalar] = []
        inside: Scalar | None = None
        for axis in range(x.rank):
            if axis in batched:
                at.append(batch[batched[axis]])
                continue
            within_slice = offset.get(axis, ZERO)
            if axis not in site["start_index_map"]:
                at.append(within_slice)
                continue
            start = as_index(indices[(*batch, site["start_index_map"].index(axis))])
            room = shape[axis] - site["slice_sizes"][axis]
            if mode == "clip":
                start = _clamp_start(start, room)
            elif mode == "fill":
                fits = less_equal(0, start) & less_equal(start, Index(room))
                inside = fits if inside is None else inside & fits
            at.append(start if within_slice is ZERO else start + Index(within_slice))
        read = x[tuple(at)]
        if inside is None:
            return read
        value = site["fill_value"]
        return select(inside, read, const(fill_value(x.dtype) if value is None else value, x.dtype))

    return program("gather", buffers, compute("out", result.shape, element))


def _jax_mode(mode: str) -> str:
    return "promise_in_bounds" if mode == "promise" else mode


def _jax_gather(
    x: Any, indices: Any, *, slice_sizes: tuple[int, ...], mode: str, fill_value: Any, **numbers: tuple[int, ...]
) -> Any:
    if mode == "fill" and any(size > room for size, room in zip(slice_sizes, x.shape, strict=True)):
        return _filled(x, indices, slice_sizes, fill_value, **numbers)
    indices = jax_positions(indices, [x.shape[a] for a in numbers["start_index_map"]])
    return lax.gather(
        x, indices, lax.GatherDimensionNumbers(**numbers), slice_sizes, mode=_jax_mode(mode), fill_value=fill_value
    )


def _filled(
    x: Any, indices: Any, slice_sizes: tuple[int, ...], value: Any, *, offset_dims: tuple[int, ...],
    collapsed_slice_dims: tuple[int, ...], operand_batching_dims: tuple[int, ...], **others: tuple[int, ...],
) -> Any:  # fmt: skip
    """The result of a gather of slices that never fit, such as of an element of an empty axis; lax refuses them."""
    dropped = {*collapsed_slice_dims, *operand_batching_dims}
    windows, batch = iter(n for a, n in enumerate(slice_sizes) if a not in dropped), iter(indices.shape[:-1])
    rank = len(offset_dims) + indices.ndim - 1
    shape = tuple(next(windows) if a in offset_dims else next(batch) for a in range(rank))
    return jnp.full(shape, fill_value(str(x.dtype)) if value is None else value, x.dtype)


# --- scatter ---

_SCATTER = ("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "operand_batching_dims",
            "scatter_indices_batching_dims")  # fmt: skip
_COMBINE = {"set": None, "add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
_KINDS = {"set": "biufckn", "add": "iufc", "multiply": "iufc", "min": "biuf", "max": "biuf"}


def _scatter(site: Site) -> Annotation:
    shape, indices, updates = site.shape(0), site.shape(1), site.shape(2)
    if site["kind"] not in _COMBINE:
        raise site.error(f"kind {site['kind']!r}; accepted: {', '.join(_COMBINE)}")
    need_same_dtype(site, (0, 2))
    dtype = need_kind(site, _KINDS[site["kind"]])
    index_map, batches = site["scatter_dims_to_operand_dims"], site["scatter_indices_batching_dims"]
    _need_dimension_numbers(site, index_map, batches, len(shape))
    kept = _kept(site, len(shape), ("inserted_window_dims", "operand_batching_dims"))
    windows = site["update_window_dims"]
    fits = len(kept) == len(windows) and len(updates) == len(windows) + len(indices) - 1
    if not fits or any(not 0 <= a < len(updates) for a in windows):
        raise site.error("the updates have not one axis for each axis of a window and of the indices but the last")
    for axis, place in zip(kept, windows, strict=True):
        need_at_most(site, updates[place], shape[axis], f"a window on axis {axis}")
    for size, given in zip(indices, (d for a, d in enumerate(updates) if a not in windows), strict=False):
        need_equal(site, given, size, "the updates, and the indices")
    return Tensor(shape, dtype)


def _scatter_definition(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram | None:
    """Each element plus all updates of its place. Along batching axes, and along axes that a window has whole, those at
    the same place. What is out of range is left out by XLA, also where it is promised to be in range."""
    x, indices, updates = buffers
    if site["kind"] != "add":
        return None
    index_map, windows = site["scatter_dims_to_operand_dims"], site["update_window_dims"]
    batches = [a for a in range(updates.rank) if a not in windows]
    window_of = dict(zip(_kept(site, x.rank, ("inserted_window_dims", "operand_batching_dims")), windows, strict=True))
    pairs = zip(site["operand_batching_dims"], site["scatter_indices_batching_dims"], strict=True)
    of = {batches[k]: a for a, k in pairs} | {
        w: a for a, w in window_of.items() if a not in index_map and updates.shape[w] == x.shape[a]
    }

    def element(*i: Dim) -> Scalar:
        here: Scalar = const(True, "bool")
        loops = tuple(i[of[a]] if a in of else loop(f"u{a}") for a in range(updates.rank))
        batch = [loops[a] for a in batches]
        for axis, place in enumerate(i):
            if axis in of.values():
                continue
            window = window_of.get(axis)
            at: Scalar = Index(ZERO if window is None else loops[window])
            if axis in index_map:
                start = as_index(indices[(*batch, index_map.index(axis))])
                room = x.shape[axis] - (ONE if window is None else updates.shape[window])
                if site["mode"] == "clip":
                    start = _clamp_start(start, room)
                elif window is not None:
                    here = here & within(0, start, room + 1)
                at = start if window is None else start + at
            here = here & equal(Index(place), at)
        over = tuple((v, d) for a, (v, d) in enumerate(zip(loops, updates.shape, strict=True)) if a not in of)
        return x[i] + reduce("sum", select(here, updates[loops], const(0, x.dtype)), over)

    return program("scatter", buffers, compute("out", x.shape, element))


def _scatter_reference(
    x: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], updates: np.ndarray[Any, Any], *, kind: str, mode: str,
    update_window_dims: tuple[int, ...], inserted_window_dims: tuple[int, ...],
    scatter_dims_to_operand_dims: tuple[int, ...], operand_batching_dims: tuple[int, ...],
    scatter_indices_batching_dims: tuple[int, ...], sorted: bool, unique: bool,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Computes every update's place in the operand as index arrays, then runs one unbuffered numpy operation.
    `sorted` and `unique` are hints about the indices and change nothing here."""
    out = np.array(x)
    if not updates.size:
        return out
    places = np.indices(updates.shape)
    batch = [places[a] for a in range(updates.ndim) if a not in update_window_dims]
    kept = [a for a in range(x.ndim) if a not in inserted_window_dims and a not in operand_batching_dims]
    window = dict(zip(kept, update_window_dims, strict=True))
    at: list[np.ndarray[Any, Any]] = []
    inside = np.ones(updates.shape, bool)
    for axis in range(x.ndim):
        if axis in operand_batching_dims:
            at.append(batch[scatter_indices_batching_dims[operand_batching_dims.index(axis)]])
            continue
        offset, size = (places[window[axis]], updates.shape[window[axis]]) if axis in window else (0, 1)
        start = np.zeros(updates.shape, np.int64)
        if axis in scatter_dims_to_operand_dims:
            start = as_indices(indices[(*batch, scatter_dims_to_operand_dims.index(axis))])
        room = x.shape[axis] - size
        if mode == "clip":
            start = np.clip(start, 0, max(room, 0))
        inside = inside & (start >= 0) & (start <= room)
        at.append(np.broadcast_to(start + offset, updates.shape))
    inside = np.broadcast_to(inside, updates.shape)
    where = tuple(a[inside] for a in at)
    combine = _COMBINE[kind]
    if combine is None:
        out[where] = updates[inside]
        return out
    # Float16, and dtypes that numpy cannot compute in, are combined in float32 and rounded once; XLA rounds float16
    # sums at each step.
    wide = out.astype(np.float32) if out.dtype.kind == "V" or out.dtype == np.float16 else out
    with np.errstate(all="ignore"):
        combine.at(wide, where, updates[inside].astype(wide.dtype))
    return wide.astype(x.dtype)


def _scatter_cost(site: Site) -> Counts:
    # This counts a copy of the operand, as is usual, and reading the updates and their indices.
    size = itemsize(site.dtype())
    elements, updates = product(site.shape(0)) * size, product(site.shape(2))
    read = elements + updates * size + product(site.shape(1)) * itemsize(site.dtype(1))
    return Counts(ZERO if site["kind"] == "set" else updates, read, elements + updates * size)


def _jax_scatter(
    x: Any, indices: Any, updates: Any, *, kind: str, mode: str, sorted: bool, unique: bool, **numbers: tuple[int, ...]
) -> Any:
    function = {"set": lax.scatter, "add": lax.scatter_add, "multiply": lax.scatter_mul, "min": lax.scatter_min,
                "max": lax.scatter_max}[kind]  # fmt: skip
    indices = jax_positions(indices, [x.shape[a] for a in numbers["scatter_dims_to_operand_dims"]])
    return function(
        x, indices, updates, lax.ScatterDimensionNumbers(**numbers), indices_are_sorted=sorted, unique_indices=unique,
        mode=_jax_mode(mode),
    )  # fmt: skip


for _operator in (
    Operator("dynamic_slice", ("x", "*start"), _dynamic_slice, _jax_dynamic_slice, _dynamic_slice_equations,
             (Attribute("sizes", "dims"),), cost=_slice_cost,
             capacity="dynamic_slice",
             doc="a slice of the given sizes at computed starts, which are moved so that it lies inside"),
    Operator("dynamic_update_slice", ("x", "update", "*start"), _dynamic_update_slice, _jax_dynamic_update_slice,
             _dynamic_update_slice_equations, cost=_update_cost,
             capacity="dynamic_update_slice",
             doc="x with a slice replaced, at computed starts, which are moved so that it lies inside"),
    Operator("gather", ("x", "indices"), _gather, _jax_gather, _gather_equations,
             (Attribute("slice_sizes", "dims"), MODE, Attribute("fill_value", default=None),
              *(Attribute(name, default=()) for name in _GATHER)),
             doc="slices at computed positions, put together as the dimension numbers of jax.lax.gather say"),
    Operator("scatter", ("x", "indices", "updates"), _scatter, _jax_scatter, None,
             (Attribute("kind"), MODE, *(Attribute(name, default=()) for name in _SCATTER),
              Attribute("sorted", default=False), Attribute("unique", default=False)),
             _scatter_reference, _scatter_cost,
             capacity="scatter", definition=_scatter_definition, promised=lambda site: None,
             doc="x with updates set, added, multiplied or compared in at computed positions, as jax.lax.scatter"),
):  # fmt: skip
    register(_operator)
