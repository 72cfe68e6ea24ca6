"""Lowers reads of index equations to slices, pads, reshapes and reversals where the index map allows it, or a gather.

An index out of range is clamped. A read that only a `select` guards may have any value where the `select` skips it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.backend.lowering.index_maps import (
    AffineIndex,
    Extents,
    affine,
    is_inside,
    simplify_index,
    split,
    split_loops,
    strides_do_not_overlap,
)
from relax_eg.backend.lowering.loop_values import Indices, LoopValue, occurring_loops
from relax_eg.limits import LARGEST_INT32
from relax_eg.shapes import Dim
from relax_eg.tir import is_loop

_SPLITS = 6  # limit: splits of loops that are tried for one read
_fresh = count()


def read_elements(array: Any, index: Sequence[Dim | LoopValue], loops: Indices, guarded: bool) -> LoopValue:
    """The elements of `array` at `index`, over the loop variables that `index` depends on.

    - `index`: per axis a `Dim` over loop variables, with sizes substituted, or computed integers.
    - `guarded`: whether a `select` may skip the read.

    All extents and the array's size must be at least 1.
    """
    static = all(isinstance(n, int) for n in (*array.shape, *loops.extents.values()))
    if static and all(isinstance(i, Dim) and loops.extents.keys() >= i.variables for i in index):
        extents: dict[str, int] = dict(loops.extents)
        dims = [simplify_index(i, extents) for i in index if isinstance(i, Dim)]
        found = _by_reshapes(array, dims, extents, guarded, _SPLITS)
        if found is not None:
            return found
    return _gather(array, index, loops, static)


# --- index maps that move nothing but axes ---


def _by_reshapes(array: Any, index: list[Dim], extents: dict[str, int], guarded: bool, splits: int) -> LoopValue | None:
    """The read if the index is affine, axis by axis or after merging axes or splitting loops; otherwise None."""
    shape, merged = _merged(array.shape, index, extents)
    each = [affine(i) for i in merged]
    if all(a is not None for a in each):
        maps = [a for a in each if a is not None]
        names = [name for a in maps for name in a.loops]
        if len(set(names)) == len(names) and all(strides_do_not_overlap(a, extents) for a in maps):
            return _sliced(array if array.shape == shape else lax.reshape(array, shape), maps, extents)
        return None
    found = split_loops(merged, extents)
    return None if found is None or not splits else _split(array, index, extents, guarded, splits, *found)


def _merged(shape: Sequence[int], index: list[Dim], extents: Extents) -> tuple[tuple[int, ...], list[Dim]]:
    """The shape and index after merging axes that share loop variables, and the axes between them."""
    sizes, merged = list(shape), list(index)
    first = 0
    while first < len(merged):
        last = max(
            (n for n in range(first + 1, len(merged)) if merged[n].variables & merged[first].variables), default=first
        )
        if last == first:
            first += 1
            continue
        flat = Dim.of(0)
        for size, i in zip(sizes[first : last + 1], merged[first : last + 1], strict=True):
            flat = flat * size + i
        sizes[first : last + 1] = [math.prod(sizes[first : last + 1])]
        merged[first : last + 1] = [simplify_index(flat, extents)]
        first = 0
    return tuple(sizes), merged


def _split(
    array: Any, index: list[Dim], extents: dict[str, int], guarded: bool, splits: int, name: str, size: int
) -> LoopValue | None:
    """The read with the loop `name` split into blocks of `size` values, of which the last may be partial."""
    blocks = -(-extents[name] // size)
    outer, inner = split(name, next(_fresh))
    (block,), (within,) = outer.variables, inner.variables
    parts = {block: blocks, within: size, **{k: n for k, n in extents.items() if k != name}}
    inside = [simplify_index(i.substitute({name: outer * size + inner}), parts) for i in index]
    value = _by_reshapes(array, inside, parts, guarded or blocks * size > extents[name], splits - 1)
    if value is None:
        return None
    rest = tuple(n for n in value.loops if n not in (block, within))
    whole = value.array_over((block, within, *rest), parts)
    whole = lax.reshape(whole, (blocks * size, *whole.shape[2:]))
    return LoopValue(lax.slice_in_dim(whole, 0, extents[name]), (name, *rest))


@dataclass(frozen=True)
class _Axis:
    """An axis of the array that is being read.

    - `index`: the index that runs over it, upwards, with strides in falling order.
    - `done`: the loop variable that the axis has become; None before.
    """

    index: AffineIndex
    done: str | None = None


def _sliced(array: Any, index: Sequence[AffineIndex], extents: Extents) -> LoopValue:
    """`array` read at affine indices, each over loop variables of its own whose steps do not overlap."""
    backwards: set[str] = set()
    axes = [_Axis(_upwards(i, extents, backwards)) for i in index]
    while any(len(a.index.strides) > 1 for a in axes):
        array, axes = _apart(array, axes, extents)
    low, high, start, limit, strides = [], [], [], [], []
    for size, axis in zip(array.shape, axes, strict=True):
        at, step, n = axis.index.start, 1, 1
        if axis.done is not None:
            n = size
        elif axis.index.strides:
            ((name, step),) = axis.index.strides
            n = extents[name]
        else:
            at = min(max(at, 0), size - 1)
        last = at + step * (n - 1)
        low.append(max(0, -at))
        high.append(max(0, last + 1 - size))
        start.append(at + low[-1])
        limit.append(last + 1 + low[-1])
        strides.append(step)
    if any(low) or any(high):
        array = _padded(array, low, high)
    if tuple(limit) != array.shape or any(start) or set(strides) - {1}:
        array = lax.slice(array, start, limit, strides)
    gone = [n for n, axis in enumerate(axes) if axis.done is None and not axis.index.strides]
    array = lax.squeeze(array, gone) if gone else array
    loops = tuple(axis.done or axis.index.strides[0][0] for n, axis in enumerate(axes) if n not in gone)
    turned = [n for n, name in enumerate(loops) if name in backwards]
    return LoopValue(lax.rev(array, turned) if turned else array, loops)


def _upwards(index: AffineIndex, extents: Extents, backwards: set[str]) -> AffineIndex:
    """The index with descending loops reversed (their names are added to `backwards`), by falling strides."""
    start, strides = index.start, list[tuple[str, int]]()
    for name, stride in index.strides:
        if stride < 0:
            backwards.add(name)
            start += stride * (extents[name] - 1)
        strides.append((name, abs(stride)))
    # Strides differ: of two loops with equal strides one would have a single value, and such loops were removed.
    return AffineIndex(start, tuple(sorted(strides, key=lambda s: -s[1])))


def _apart(array: Any, axes: list[_Axis], extents: Extents) -> tuple[Any, list[_Axis]]:
    """The array with each axis that has several loops split: its outermost loop becomes an axis of its own."""
    low, high, shape, after = list[int](), list[int](), list[int](), list[_Axis]()
    for size, axis in zip(array.shape, axes, strict=True):
        if len(axis.index.strides) < 2:
            low.append(0)
            high.append(0)
            shape.append(size)
            after.append(axis)
            continue
        (name, stride), *rest = axis.index.strides
        n = extents[name]
        low.append(-axis.index.start)
        high.append(axis.index.start + n * stride - size)
        shape += [n, stride]
        after += [_Axis(AffineIndex(0, ()), name), _Axis(AffineIndex(0, tuple(rest)))]
    return lax.reshape(_padded(array, low, high), shape), after


def _padded(array: Any, low: Sequence[int], high: Sequence[int]) -> Any:
    """`array` with `low` and `high` elements added (or removed) per axis; added elements are never used."""
    if not any(low) and not any(high):
        return array
    if jnp.issubdtype(array.dtype, jnp.number) or array.dtype == jnp.bool_:
        config = [(before, after, 0) for before, after in zip(low, high, strict=True)]
        return lax.pad(array, np.zeros((), array.dtype), config)
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):  # PRNG keys have no zero to pad with
        places = np.clip(np.arange(-before, array.shape[axis] + after), 0, array.shape[axis] - 1)
        array = jnp.take(array, places, axis=axis)
    return array


# --- gather ---


def _gather(array: Any, index: Sequence[Dim | LoopValue], loops: Indices, static: bool) -> LoopValue:
    """The read where some axes are at computed positions.

    Axes with loop variables that no other index mentions are sliced first, and are taken whole at each position.
    """
    used: list[set[str]] = [set(i.variables) if isinstance(i, Dim) else set(i.loops) for i in index]
    easy: dict[int, AffineIndex] = {}
    for axis, i in enumerate(index):
        others = set[str]().union(*(u for n, u in enumerate(used) if n != axis))
        if isinstance(i, Dim) and not used[axis] & others and _is_plain(i, array.shape[axis], loops, static):
            found = affine(i)
            assert found is not None
            easy[axis] = found
    hard = [axis for axis in range(len(index)) if axis not in easy]
    whole = {axis: f"axis {axis}" for axis in hard}  # a placeholder loop over the whole axis
    if static:
        maps = [easy[a] if a in easy else AffineIndex(0, ((whole[a], 1),)) for a in range(len(index))]
        extents = {**loops.extents, **{whole[a]: array.shape[a] for a in hard}}
        value = _sliced(array, maps, extents)
    else:
        value = LoopValue(array, tuple(whole[a] if a in whole else easy[a].loops[0] for a in range(len(index))))
    places = [_place(index[a], array.shape[a], loops) for a in hard]
    over = occurring_loops(places, loops.order)
    kept = [name for name in value.loops if name not in whole.values()]
    if not over:
        starts = iter(places)
        at = [np.int64(0) if name in kept else next(starts).array.astype(np.dtype("int64")) for name in value.loops]
        sizes = [n if name in kept else 1 for name, n in zip(value.loops, value.array.shape, strict=True)]
        taken = lax.dynamic_slice(value.array, at, sizes)
        return LoopValue(lax.squeeze(taken, [n for n, name in enumerate(value.loops) if name not in kept]), tuple(kept))
    starts = jnp.stack([place.array_over(over, loops.extents) for place in places], -1)
    collapsed = tuple(n for n, name in enumerate(value.loops) if name not in kept)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(len(over), len(over) + len(kept))),
        collapsed_slice_dims=collapsed,
        start_index_map=collapsed,
    )
    sizes = tuple(1 if n in collapsed else size for n, size in enumerate(value.array.shape))
    found = lax.gather(value.array, starts, numbers, sizes, mode="clip")
    return LoopValue(found, (*over, *kept))


def _is_plain(index: Dim, size: Any, loops: Indices, static: bool) -> bool:
    """Whether an index can be read by a slice of its axis."""
    if not loops.extents.keys() >= index.variables:
        return False
    found = affine(index)
    if static:
        return found is not None and strides_do_not_overlap(found, loops.extents)
    if found is None or found.start or [stride for _, stride in found.strides] != [1]:
        return False
    return loops.extents[found.loops[0]] == size


def _place(index: Dim | LoopValue, size: Any, loops: Indices) -> LoopValue:
    """Positions on an axis, clamped to its size if that is known, as int32 where that suffices."""
    value = loops.value(index) if isinstance(index, Dim) else index
    array = jnp.asarray(value.array)
    if not isinstance(size, int):
        return LoopValue(array.astype(np.dtype("int64")), value.loops)
    known = isinstance(index, Dim) and all(map(is_loop, index.variables)) and is_inside(index, size, loops.extents)
    if not known:
        array = lax.clamp(np.asarray(0, array.dtype), array, _greatest(size, array.dtype))
    return LoopValue(array.astype(np.dtype("int32" if size <= LARGEST_INT32 else "int64")), value.loops)


def _greatest(size: int, dtype: Any) -> Any:
    return np.asarray(min(size - 1, int(jnp.iinfo(dtype).max)), dtype)
