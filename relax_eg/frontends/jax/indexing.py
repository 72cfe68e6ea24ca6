"""Translates `gather` and `dynamic_slice` at known positions to slices, and other gathers to `take` along one axis.

`jax.numpy` turns `x[:, -1]` and `x[::2]` on symbolic sizes into gathers whose positions it computes from the sizes with
ordinary arithmetic. `_affine` recovers such positions.

A gather that promises its positions to be in bounds gives the same result in JAX as a clipped gather, because XLA moves
each window inside. Here it means a clipped gather at every size: `x[3]` of three rows is the last row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, is_integer
from relax_eg.frontends.jax.equation import ONE, ZERO, JaxprEquation, insert_axes, permute, slice_array, squeeze
from relax_eg.frontends.symbolic import SymbolicSizes, to_dim
from relax_eg.ir.expr import CONSTANT, Expr, constant_value
from relax_eg.ops.record import call
from relax_eg.shapes import Dim, ceildiv, dim_max, dim_min

# From the name of a JAX mode to the mode of the operators.
GATHER_MODES = {"PROMISE_IN_BOUNDS": "clip", "CLIP": "clip", "FILL_OR_DROP": "fill"}

# limit: operators in a chain that computes a position; the position of a slice takes a handful.
_DEPTH = 24


@dataclass(frozen=True, slots=True)
class AffineArray:
    """An integer array whose element at coordinates i is `const` plus the sum of `steps[a] * i[a]` over its axes a."""

    const: Dim
    steps: tuple[Dim, ...]

    @property
    def is_uniform(self) -> bool:
        return all(s is ZERO for s in self.steps)


def known_slice(e: JaxprEquation) -> Expr | None:
    """A `dynamic_slice` with known starts as a slice, or None if a start is unknown. The starts are moved so that the
    slice lies inside, as JAX does."""
    x, *starts = e.args
    begin: list[Dim] = []
    end: list[Dim] = []
    for start, size, room in zip(starts, map(to_dim, e["slice_sizes"]), x.shape, strict=False):
        at = AffineArray(ZERO, ()) if size is room else _affine(start, e.sizes)
        if at is None:
            return None
        first = _clamp_start(at.const, room - size, e.sizes)
        begin.append(first)
        end.append(first + size)
    return slice_array(x, begin, end, (1,) * x.ndim) if len(begin) == x.ndim else None


def _clamp_start(first: Dim, room: Dim, sizes: SymbolicSizes) -> Dim:
    """`first`, moved into 0 .. `room` if it is not known to be inside."""
    if not sizes.known_nonnegative(room - first):
        first = dim_min(first, room)
    return first if sizes.known_nonnegative(first) else dim_max(ZERO, first)


def are_in_bounds(indices: Expr, windows: Sequence[Dim], rooms: Sequence[Dim], sizes: SymbolicSizes) -> bool:
    """Whether windows of sizes `windows` are known to lie inside axes of sizes `rooms`. The columns of `indices` are
    the starts of the windows along these axes; they must be equal for all windows."""
    columns = _columns(indices, sizes)
    return columns is not None and all(
        at.is_uniform and sizes.known_nonnegative(at.const) and sizes.known_nonnegative(room - size - at.const)
        for at, size, room in zip(columns, windows, rooms, strict=True)
    )


def known_gather(e: JaxprEquation) -> Expr | None:
    """A gather as a slice or as a `take` of whole slices along one axis; None if it is neither."""
    numbers = e["dimension_numbers"]
    if numbers.operand_batching_dims or e["mode"].name not in GATHER_MODES:
        return None
    found = _as_slice(e, numbers)
    return _as_take(e, numbers) if found is None else found


def _as_take(e: JaxprEquation, numbers: Any) -> Expr | None:
    """A gather as a `take`: each index picks a whole slice along one axis. None if it is not such a gather."""
    x, indices = e.args
    if len(numbers.start_index_map) != 1 or tuple(numbers.collapsed_slice_dims) != tuple(numbers.start_index_map):
        return None
    (axis,) = numbers.start_index_map
    sizes = tuple(map(to_dim, e["slice_sizes"]))
    if any(s is not d for i, (s, d) in enumerate(zip(sizes, x.shape, strict=True)) if i != axis):
        return None
    mode = GATHER_MODES[e["mode"].name]
    if mode == "fill" and not _is_default_fill(e["fill_value"], x.dtype):
        return None
    picks = indices.ndim - 1
    taken = call("take", (x, squeeze_last(indices)), {"axis": axis, "mode": mode})
    # `take` puts the axes of the indices in the place of `axis`; the gather puts the other axes at `offset_dims`.
    others = [*range(axis), *range(axis + picks, taken.ndim)]
    order = [0] * taken.ndim
    for place, source in zip(numbers.offset_dims, others, strict=True):
        order[place] = source
    free = [i for i in range(taken.ndim) if i not in numbers.offset_dims]
    for place, source in zip(free, range(axis, axis + picks), strict=True):
        order[place] = source
    return permute(taken, order)


def squeeze_last(x: Expr) -> Expr:
    """`x` without its last axis, which has size one; undoes an `expand_dims` that added this axis."""
    last = x.ndim - 1
    if x.op == "expand_dims" and last in x.attr("axes"):
        return insert_axes(x.args[0], [a for a in x.attr("axes") if a != last])
    return squeeze(x, (last,))


def _is_default_fill(value: Any, dtype: str) -> bool:
    """Whether `value` is the value that `take` in mode "fill" gives for indices out of range, for this dtype."""
    if value is None:
        return dtype != "bool"
    return isinstance(value, float) and math.isnan(value) and is_float(dtype)


def _as_slice(e: JaxprEquation, numbers: Any) -> Expr | None:
    """A gather at known, evenly spaced positions, as a strided slice with permuted axes; None for other gathers."""
    x, indices = e.args
    columns = _columns(indices, e.sizes)
    if columns is None or len(columns) != len(numbers.start_index_map):
        return None
    batch = indices.shape[:-1]
    sizes = tuple(map(to_dim, e["slice_sizes"]))
    fills = GATHER_MODES[e["mode"].name] == "fill"
    starts = dict(zip(numbers.start_index_map, columns, strict=True))
    walked: dict[int, int] = {}  # axis of the operand -> axis of the indices that walks along it
    begin, end, strides, flips = [ZERO] * x.ndim, list(sizes), [1] * x.ndim, list[int]()
    for axis, at in starts.items():
        steps = [(i, s) for i, s in enumerate(at.steps) if s is not ZERO]
        if not steps:
            first = _clamp_start(at.const, x.shape[axis] - sizes[axis], e.sizes)
            if fills and first is not at.const:
                return None
            begin[axis], end[axis] = first, first + sizes[axis]
            continue
        if len(steps) > 1 or axis not in numbers.collapsed_slice_dims or not steps[0][1].is_const:
            return None
        ((i, step),) = steps
        stride, count = abs(step.value), batch[i]
        walked[axis] = i
        strides[axis] = stride
        reach = _slice_length(count, stride, x.shape[axis] - at.const, e.sizes)
        if reach is None or (step.value < 0 and not e.sizes.known_nonnegative(count - 1)):
            return None
        if step.value > 0:
            begin[axis], end[axis] = at.const, at.const + reach
        else:
            begin[axis], end[axis] = at.const - (count - 1) * stride, at.const + 1
            flips.append(axis)
        if not (e.sizes.known_nonnegative(begin[axis]) and e.sizes.known_nonnegative(x.shape[axis] - end[axis])):
            return None
    used = list(walked.values())
    if len(set(used)) != len(used) or any(i not in used and d is not ONE for i, d in enumerate(batch)):
        return None
    result = slice_array(x, begin, end, strides)
    result = call("flip", (result,), {"axes": tuple(sorted(flips))}) if flips else result
    dropped = [a for a in numbers.collapsed_slice_dims if a not in walked]
    result = squeeze(result, dropped)
    return _place_axes(result, [a for a in range(x.ndim) if a not in dropped], walked, numbers.offset_dims, len(batch))


def _place_axes(x: Expr, axes: list[int], walked: Mapping[int, int], offsets: Sequence[int], batch: int) -> Expr:
    """`x` with its axes in the positions that the gather's result gives them. `axes`: the axes of the gather's operand
    that the axes of `x` are."""
    rank = len(offsets) + batch
    batch_places = [p for p in range(rank) if p not in offsets]
    kept = iter(offsets)
    place = {i: batch_places[walked[a]] if a in walked else next(kept) for i, a in enumerate(axes)}
    x = permute(x, sorted(place, key=lambda i: place[i]))
    return insert_axes(x, [p for p in range(rank) if p not in place.values()])


def _slice_length(count: Dim, stride: int, left: Dim, sizes: SymbolicSizes) -> Dim | None:
    """The length of a slice of the `left` remaining elements that has `count` elements at this stride, possibly none.

    The length is such that `ceildiv(length, stride)` has the canonical form of `count`. None if none is found.
    """
    if ceildiv(left, stride) is count and sizes.known_nonnegative(left):
        return left
    if sizes.known_nonnegative(count - 1):
        return (count - 1) * stride + 1
    for monomial, c in count.terms:  # count = whole + length // stride, or whole + ceildiv(length, stride)
        (atom, *more) = monomial
        if abs(c) != 1 or more or atom.op not in ("floordiv", "ceildiv") or atom.args[1] != stride:
            continue
        rounded = atom.args[0] // atom.args[1] if atom.op == "floordiv" else ceildiv(*atom.args)
        up = (atom.op == "ceildiv") == (c > 0)
        length = (count - c * rounded) * stride + c * atom.args[0] - (0 if up else stride - 1)
        if ceildiv(length, stride) is count and sizes.known_nonnegative(length):
            return length
    return None


# --- positions ---


def _columns(indices: Expr, sizes: SymbolicSizes) -> list[AffineArray] | None:
    """The positions along each indexed axis, one array for each element of the last axis of `indices`. None if they are
    not known."""
    last = indices.ndim - 1
    if indices.op == "concat" and indices.attr("axis") == last:
        columns: list[AffineArray] = []
        for part in indices.args:
            found = _columns(part, sizes)
            if found is None:
                return None
            columns += found
        return columns
    if indices.op == CONSTANT:
        array = constant_value(indices)
        found = [affine_array(array[..., i]) for i in range(array.shape[-1])]
        return None if None in found else [f for f in found if f is not None]
    at = _affine(indices, sizes)
    count = indices.shape[last]
    if at is None or not count.is_const:
        return None
    return [AffineArray(at.const + at.steps[last] * i, at.steps[:last]) for i in range(count.value)]


def affine_array(array: np.ndarray[Any, Any]) -> AffineArray | None:
    if array.size == 0:
        return None
    origin = int(array[(0,) * array.ndim])
    steps = [
        int(np.take(array, 1, a)[(0,) * (array.ndim - 1)]) - origin if array.shape[a] > 1 else 0
        for a in range(array.ndim)
    ]
    expected = np.full(array.shape, origin, np.int64)
    for a, step in enumerate(steps):
        expected = expected + step * np.arange(array.shape[a]).reshape([-1 if i == a else 1 for i in range(array.ndim)])
    return AffineArray(Dim.of(origin), tuple(map(Dim.of, steps))) if np.array_equal(expected, array) else None


def _affine(e: Expr, sizes: SymbolicSizes, depth: int = _DEPTH) -> AffineArray | None:
    """The elements of an integer tensor as an affine function of their coordinates; None if they are not known to be
    one."""
    if depth == 0 or not is_integer(e.dtype):
        return None
    rank = e.ndim
    if e.op == CONSTANT:
        return affine_array(constant_value(e))
    if e.op == "dim_value":
        return AffineArray(e.attr("dim")[0], ())
    if e.op == "iota":
        axis = e.attr("axis")
        step = ZERO if e.shape[axis] is ONE else ONE
        return AffineArray(ZERO, tuple(step if i == axis else ZERO for i in range(rank)))
    if e.op == "where":
        truth = _decide_condition(e.args[0], sizes, depth - 1)
        return None if truth is None else _broadcast_affine(e.args[1 if truth else 2], rank, sizes, depth - 1)
    if e.op in ("add", "subtract", "multiply"):
        a, b = (_broadcast_affine(x, rank, sizes, depth - 1) for x in e.args)
        return None if a is None or b is None else _arithmetic(e.op, a, b)
    if e.op not in ("astype", "negative", "broadcast_to", "expand_dims", "squeeze", "reshape", "permute_dims", "flip"):
        return None
    x = _affine(e.args[0], sizes, depth - 1)
    if x is None:
        return None
    match e.op:
        case "negative":
            return AffineArray(-x.const, tuple(-s for s in x.steps))
        case "broadcast_to":
            return _broadcast_affine(e.args[0], rank, sizes, depth - 1)
        case "expand_dims":
            steps = list(x.steps)
            for axis in e.attr("axes"):
                steps.insert(axis, ZERO)
            return AffineArray(x.const, tuple(steps))
        case "squeeze":
            return AffineArray(x.const, tuple(s for i, s in enumerate(x.steps) if i not in e.attr("axes")))
        case "flip":
            turned = [(s, e.shape[i] - 1) if i in e.attr("axes") else (ZERO, ZERO) for i, s in enumerate(x.steps)]
            last = sum((s * n for s, n in turned), x.const)
            return AffineArray(last, tuple(-s if i in e.attr("axes") else s for i, s in enumerate(x.steps)))
        case "permute_dims":
            return AffineArray(x.const, tuple(x.steps[a] for a in e.attr("axes")))
        case "reshape":
            return AffineArray(x.const, (ZERO,) * rank) if x.is_uniform else None
        case _:
            return x


def _broadcast_affine(e: Expr, rank: int, sizes: SymbolicSizes, depth: int) -> AffineArray | None:
    """`e` broadcast to `rank`, with no step along the axes that it lacks."""
    x = _affine(e, sizes, depth)
    return None if x is None else AffineArray(x.const, (ZERO,) * (rank - len(x.steps)) + x.steps)


def _arithmetic(op: str, a: AffineArray, b: AffineArray) -> AffineArray | None:
    if op == "multiply":
        if not a.is_uniform:
            a, b = b, a
        return AffineArray(a.const * b.const, tuple(a.const * s for s in b.steps)) if a.is_uniform else None
    sign = 1 if op == "add" else -1
    return AffineArray(a.const + sign * b.const, tuple(s + sign * t for s, t in zip(a.steps, b.steps, strict=True)))


def _decide_condition(e: Expr, sizes: SymbolicSizes, depth: int) -> bool | None:
    """True if a condition on positions holds everywhere, False if it holds nowhere, None if neither is known."""
    if e.op in ("broadcast_to", "expand_dims", "reshape"):
        return _decide_condition(e.args[0], sizes, depth)
    if e.op != "less":
        return None
    a, b = (_broadcast_affine(x, e.ndim, sizes, depth) for x in e.args)
    difference = None if a is None or b is None else _arithmetic("subtract", a, b)
    if difference is None:
        return None
    if all(map(sizes.known_nonnegative, (difference.const, *difference.steps))):
        return False
    if all(map(sizes.known_nonnegative, (-1 - difference.const, *(-s for s in difference.steps)))):
        return True
    return None
