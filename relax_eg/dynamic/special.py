"""Operators that have no index equations, or are better computed without them at capacity: order, windows, random
numbers.

Each rule returns `None` for a use that needs nothing special. Raises NotPredicated if the operator cannot run at
capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from relax_eg.backend.lowering.scalar_functions import identity
from relax_eg.dynamic.moving import MOVING, Rule, fit_axis, plain_result
from relax_eg.dynamic.native import mask_unless_filled, native_lowering, resolve_sizes, unmasked_step
from relax_eg.dynamic.softmax import softmax
from relax_eg.dynamic.step import CapacityStep, InnerMask, NotPredicated, OperandMask, OperatorUse, StepSizes
from relax_eg.ops import get, program_of
from relax_eg.ops.sizes import ONE, dilated
from relax_eg.ops.windows import identity as neutral_of_window
from relax_eg.shapes import Dim

# Scatter at capacity: invalid updates are sent out of range, where they are dropped, as are those out of range of the
# true sizes. A window with invalid elements is split along that axis into separate updates.


def scatter(use: OperatorUse) -> CapacityStep | None:
    site = use.site
    shape, indices, updates = (site.shape(i) for i in range(3))
    windows, targets = site["update_window_dims"], site["scatter_dims_to_operand_dims"]
    kept = [a for a in range(len(shape)) if a not in site["inserted_window_dims"] + site["operand_batching_dims"]]
    axis_of = dict(zip(kept, windows, strict=True))
    size_in = {a: updates[w] for a, w in axis_of.items()}
    opened = {a: u for a, u in size_in.items() if use.moves(u) and u is not shape[a]}
    batch = [(a, d) for a, d in enumerate(indices[:-1]) if use.moves(d)]
    rooms = {a: shape[a] - size_in.get(a, ONE) for a in targets}
    # A single element beyond the true size needs no guard, since it is written to the padding.
    guarded = [
        a for a, room in rooms.items() if use.moves(room) and (site["mode"] == "clip" or size_in.get(a, ONE) is not ONE)
    ]
    if not batch and not guarded and not opened:
        return unmasked_step(use)
    if not targets and batch and site["kind"] == "set":
        raise NotPredicated("all its updates have one place, and which of them is the last depends on the sizes")
    inner = {("batch", a): InnerMask(d, f"updates beyond {d} are dropped") for a, d in batch}
    if site["mode"] != "promise":
        inner |= {("room", a): InnerMask(shape[a], f"positions are inside the true {shape[a]}") for a in guarded}
    inner |= {("window", a): InnerMask(u, f"windows end at {u}") for a, u in opened.items()}
    number = {key: k for k, key in enumerate(inner)}
    run = get(site.op).jax_function()

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        x, places, new = arrays
        places = _as_int32(places)
        columns = {a: places[..., n] for n, a in enumerate(targets)}
        rows = places.shape[:-1]
        dropped: Any = jnp.zeros(rows, bool)
        for a, room in rooms.items():
            true = a in guarded and site["mode"] != "promise" and at.applies_inner_mask(number["room", a])
            if site["mode"] == "clip":
                columns[a] = jnp.clip(columns[a], 0, at.true_size(room) if true else at.capacity(room))
            elif site["mode"] == "fill" and true:
                dropped = dropped | (columns[a] < 0) | (columns[a] > at.true_size(room))
        for a, d in batch:
            if at.applies_inner_mask(number["batch", a]):
                dropped = dropped | ~lax.broadcast_in_dim(at.valid_mask(d, rows[a]), rows, (a,))
        # One more axis of updates for each window that is split.
        sizes = (*rows, *(new.shape[axis_of[a]] for a in opened))
        dropped = lax.broadcast_in_dim(dropped, sizes, range(len(rows)))
        columns = {a: lax.broadcast_in_dim(c, sizes, range(len(rows))) for a, c in columns.items()}
        for k, (a, u) in enumerate(opened.items(), len(rows)):
            columns[a] = columns.get(a, 0) + lax.broadcasted_iota("int32", sizes, k)
            if at.applies_inner_mask(number["window", a]):
                dropped = dropped | ~lax.broadcast_in_dim(at.valid_mask(u, sizes[k]), sizes, (k,))
        places = jnp.stack([jnp.where(dropped, -1, c) for c in columns.values()], -1) if columns else places
        if not columns:
            keep = lax.broadcast_in_dim(~dropped, new.shape, [a for a in range(new.ndim) if a not in windows])
            new = jnp.where(keep, new, _update_identity(site["kind"], new.dtype))
        whole = [w for a, w in axis_of.items() if a not in opened]
        if opened:
            new = jnp.transpose(
                new, [*(a for a in range(new.ndim) if a not in windows), *(axis_of[a] for a in opened), *whole]
            )
        attrs = {
            **site.attrs,
            "mode": "fill",
            "sorted": False,
            "unique": site["unique"] and not batch and not opened,
            "update_window_dims": tuple(range(new.ndim - len(whole), new.ndim)) if opened else windows,
            "inserted_window_dims": tuple(sorted((*site["inserted_window_dims"], *opened))),
            "scatter_dims_to_operand_dims": tuple(columns),
        }
        return run(x, places, new, **attrs)

    return CapacityStep(compute, plain_result(use), (), use.merged_operands, tuple(inner.values()))


def _update_identity(kind: str, dtype: Any) -> Any:
    name: Any = {"add": "sum", "multiply": "prod"}.get(kind, kind)
    return identity(name, dtype.name)


def _as_int32(places: Any) -> Any:
    top = jnp.iinfo(jnp.int32).max
    if jnp.issubdtype(places.dtype, jnp.unsignedinteger):
        places = jnp.minimum(places, jnp.asarray(min(top, int(jnp.iinfo(places.dtype).max)), places.dtype))
    elif places.dtype.itemsize > 4:
        places = jnp.clip(places, -1, top)
    return places.astype("int32")


# Matrix decompositions and solves at capacity: the matrix is bordered by an identity or by zeros.
#
# Row and column operations on [[A, 0], [0, I]] act on A, so its triangular factor begins with that of A, and its
# solution with that of A if the right side is zero beyond. Pivots are found among the valid elements of a column,
# because those beyond are zero. Reflectors that annihilate zeros do nothing. Eigenvalues and singular values do not
# work this way: they are ordered over the whole matrix, and their vectors are determined only up to a sign.


def _bordered(x: Any, size: Dim, at: StepSizes) -> Any:
    """A square matrix of true size `size`, bordered by an identity."""
    counts = at.valid_mask(size, x.shape[-1])
    return jnp.where(counts[:, None] & counts, x, jnp.eye(x.shape[-1], dtype=x.dtype))


def _zeros(use: OperatorUse, operand: int, *axes: int) -> list[OperandMask]:
    """Masks with zeros beyond the true size, for those of `axes` (counted from the end) that vary."""
    shape = use.site.shape(operand)
    found = [
        mask_unless_filled(use, operand, len(shape) + a, 0, f"matrices of {shape[a]}")
        for a in axes
        if use.moves(shape[a])
    ]
    return [m for masks in found for m in masks]


def _square_rule(*zero: tuple[int, int], matrices: tuple[int, ...] = (0,)) -> Rule:
    """A rule for an operator whose operands `matrices` are bordered by an identity; the (operand, axis) pairs `zero`
    are bordered by zeros."""

    def rule(use: OperatorUse) -> CapacityStep | None:
        run, size = native_lowering(use), use.site.shape()[-1]
        masks = [m for operand, axis in zero for m in _zeros(use, operand, axis)]
        if use.site.shape()[-2] is not size:
            raise NotPredicated("its matrices are not square, and which of their sides is the shorter one varies")
        if not use.moves(size):
            return unmasked_step(use)

        def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
            bordered = matrices if at.applies_inner_mask(0) else ()
            return run(at, [_bordered(x, size, at) if i in bordered else x for i, x in enumerate(arrays)])

        return CapacityStep(
            compute, plain_result(use), tuple(masks), use.merged_operands, (InnerMask(size, f"matrices of {size}"),)
        )

    return rule


def cholesky(use: OperatorUse) -> CapacityStep | None:
    return _square_rule()(use)


def cholesky_update(use: OperatorUse) -> CapacityStep | None:
    return _square_rule((1, -1))(use)


def lu(use: OperatorUse) -> CapacityStep | None:
    m, n = use.site.shape()[-2:]
    if use.moves(m) or use.moves(n):
        return _square_rule()(use)
    return unmasked_step(use)


def qr(use: OperatorUse) -> CapacityStep | None:
    masks = _zeros(use, 0, -2, -1)
    if masks and use.site["pivoting"]:
        raise NotPredicated("which of its columns comes first depends on all of them")
    return unmasked_step(use, *masks)


def triangular_solve(use: OperatorUse) -> CapacityStep | None:
    return _square_rule((1, -2 if use.site["left_side"] else -1))(use)


def definite_solve(use: OperatorUse) -> CapacityStep | None:
    return _square_rule((1, -2), matrices=(0, 2))(use)


def geqrf(use: OperatorUse) -> CapacityStep | None:
    return unmasked_step(use, *_zeros(use, 0, -2, -1))


def householder_product(use: OperatorUse) -> CapacityStep | None:
    m, n = use.site.shape()[-2:]
    if use.moves(n) and n is not m:
        raise NotPredicated(f"its matrices have {m} rows and {n} columns, which at capacity may be more than rows")
    masks = [*_zeros(use, 0, -2, -1), *_zeros(use, 1, -1)]
    if len(use.operand_layouts) == 3:  # what the product is multiplied with
        masks += _zeros(use, 2, -2 if use.site["left"] else -1)
    return unmasked_step(use, *masks)


def tridiagonal_solve(use: OperatorUse) -> CapacityStep | None:
    size = use.site.shape(3)[-2]
    run = native_lowering(use)
    if not use.moves(size):
        return unmasked_step(use)
    ones = mask_unless_filled(use, 1, len(use.site.shape(1)) - 1, 1, f"matrices of {size}")
    masks = [*_zeros(use, 0, -1), *ones, *_zeros(use, 3, -2)]

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        lower, diagonal, upper, b = arrays
        # The last valid row has no element above the diagonal, so that element is set to zero.
        upper = jnp.where(at.valid_mask(size - 1, upper.shape[-1]), upper, 0) if at.applies_inner_mask(0) else upper
        return run(at, [lower, diagonal, upper, b])

    return CapacityStep(
        compute, plain_result(use), tuple(masks), use.merged_operands, (InnerMask(size, f"matrices of {size}"),)
    )


def permutation(use: OperatorUse) -> CapacityStep | None:
    size = use.site.shape()[-1]
    run = native_lowering(use)
    if not use.moves(size):
        return unmasked_step(use)

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        (pivots,) = arrays
        places = pivots.shape[-1]
        if at.applies_inner_mask(0):  # padding is exchanged with itself
            pivots = jnp.where(at.valid_mask(size, places), pivots, jnp.arange(places, dtype=pivots.dtype))
        return run(at, [pivots])

    return CapacityStep(compute, plain_result(use), (), use.merged_operands, (InnerMask(size, f"exchanges of {size}"),))


def _batched_rule(*last: int) -> Rule:
    """A rule for an operator that treats each of many matrices alike: the `last` axes of each operand must be fixed."""

    def rule(use: OperatorUse) -> CapacityStep | None:
        for i, count in enumerate(last):
            shape = use.site.shape(i)
            for a in use.moving_axes(i):
                if a >= len(shape) - count:
                    raise NotPredicated(f"it looks at all of axis {a} of operand {i}, whose size is {shape[a]}")
        return unmasked_step(use)

    return rule


def fft(use: OperatorUse) -> CapacityStep | None:
    return _batched_rule(len(use.site["lengths"]))(use)


def whole_matrices(use: OperatorUse) -> CapacityStep | None:
    return _batched_rule(2)(use)


MATRICES: tuple[Rule, ...] = (
    cholesky, cholesky_update, lu, triangular_solve, definite_solve, geqrf, qr, householder_product,
    tridiagonal_solve, permutation, fft, whole_matrices,
)  # fmt: skip


# --- order ---


def sort(use: OperatorUse) -> CapacityStep | None:
    axis, count = use.site["axis"], len(use.operand_layouts)
    size = use.site.shape()[axis]
    if not use.moves(size):
        return unmasked_step(use)
    run = get(use.site.op).jax_function()

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        # A first key sorts the padding last, whatever it holds.
        shape = arrays[0].shape
        late = ~at.valid_mask(size, shape[axis]) if at.applies_inner_mask(0) else jnp.zeros(shape[axis], bool)
        late = lax.broadcast_in_dim(late, shape, (axis,))
        out = run(late, *arrays, axis=axis, num_keys=use.site["num_keys"] + 1, stable=use.site["stable"])
        return out[1] if count == 1 else tuple(out[1:])

    return CapacityStep(compute, plain_result(use), (), use.merged_operands, (InnerMask(size, f"order along {size}"),))


def top_k(use: OperatorUse) -> CapacityStep | None:
    axis, (k,) = use.site["axis"], use.site["k"]
    size, dtype = use.site.shape()[axis], use.site.dtype()
    if not use.moves(size):
        return unmasked_step(use)
    least = identity("min" if use.site.attrs.get("largest") is False else "max", dtype).item()
    masks = mask_unless_filled(use, 0, axis, least, f"order along {size}")
    inner = native_lowering(use)

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        (x,) = arrays
        return inner(at, [fit_axis(x, axis, max(x.shape[axis], at.capacity(k)))])

    return CapacityStep(compute, plain_result(use), masks, use.merged_operands)


# --- windows ---


def conv(use: OperatorUse) -> CapacityStep | None:
    """If windows run over a moving axis, its padding is zero, as beyond the end of any axis."""
    site = use.site
    x = site.shape(0)
    axes = [
        a for a in range(len(x) - 2) if use.moves(x[2 + a]) or use.moves(site["low"][a]) or use.moves(site["high"][a])
    ]
    if any(map(use.moves, site.shape(1)[2:])):
        raise NotPredicated("how far its windows reach depends on the sizes")
    _need_reach(use, site.shape(1)[2:], x[2:])
    if (use.moves(x[1]) or use.moves(site.shape(1)[1])) and (axes or site["groups"] != 1):
        raise NotPredicated("the number of channels varies, and with it " + ("groups" if not axes else "space"))
    if not axes:
        return None
    return _windowed(use, [(2 + a, a) for a in axes], site.shape(1)[2:], 0)


def reduce_window(use: OperatorUse) -> CapacityStep | None:
    site = use.site
    shape = site.shape()
    slid = [a for a in range(len(shape)) if not _has_single_element_windows(use, a)]
    axes = [a for a in slid if use.moves(shape[a]) or use.moves(site["low"][a]) or use.moves(site["high"][a])]
    _need_reach(use, site["window"], shape)
    if not axes:
        return None if not use.moving_axes() or get(site.op).equations else unmasked_step(use)
    fill = neutral_of_window(site["kind"], site.dtype())
    return _windowed(use, [(a, a) for a in axes], site["window"], fill)


def _need_reach(use: OperatorUse, windows: Sequence[Dim], shape: Sequence[Dim]) -> None:
    """NotPredicated if a window's size varies, unless it is one window over a whole axis; or if windows start at a
    varying place in a dilated axis."""
    site = use.site
    for window, size, low, high, apart in zip(
        windows, shape, site["low"], site["high"], site["input_dilation"], strict=True
    ):
        around = low.is_const and low.value == 0 and high.is_const and high.value == 0
        if use.moves(window) and not (window is size and around and apart == 1):
            raise NotPredicated("how far its windows reach depends on the sizes")
        if use.moves(low) and apart != 1:
            raise NotPredicated("where its windows start, in an axis that is dilated, depends on the sizes")


def _windowed(use: OperatorUse, axes: Sequence[tuple[int, int]], window: Sequence[Dim], fill: Any) -> CapacityStep:
    """The operator's own lowering, with the (axis, place in the attributes) pairs `axes` extended as far as capacity
    needs, and `fill` in the padding if windows reach beyond the true end."""
    site, layouts = use.site, plain_result(use)
    masks: list[OperandMask] = []
    for axis, n in axes:
        size, high = site.shape()[axis], site["high"][n]
        within = high.is_const and high.value <= 0 and not use.moves(site["low"][n]) and not use.moves(window[n])
        if use.moves(size) and not within:
            masks += mask_unless_filled(use, 0, axis, fill, f"windows over {size}")
    run = get(site.op).jax_function()
    between: Sequence[int] = site["input_dilation"]

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        attrs = {k: resolve_sizes(v, at.capacity) for k, v in site.attrs.items()}
        x, low, high = arrays[0], list(attrs["low"]), list(attrs["high"])
        for axis, n in axes:
            count = at.capacity(layouts.axes[axis][0].size)
            reach = (at.capacity(window[n]) - 1) * site["dilation"][n] + 1
            needed = max(0, (count - 1) * site["strides"][n] + reach)
            if use.moves(site["low"][n]):
                x, low[n], high[n] = _padded_window(x, axis, site["low"][n], needed, fill, at), 0, 0
                continue
            have = int(dilated(Dim.of(x.shape[axis]), between[n] - 1)) + low[n]
            high[n] = needed - have
        return run(x, *arrays[1:], **{**attrs, "low": tuple(low), "high": tuple(high)})

    return CapacityStep(compute, layouts, tuple(masks), use.merged_operands)


def _padded_window(x: Any, axis: int, low: Dim, count: int, fill: Any, at: StepSizes) -> Any:
    """`count` elements along an axis, starting the true size `low` before the first element of `x`; outside `x` they
    are `fill`."""
    before = at.capacity(low)
    around = [(0, 0, 0)] * x.ndim
    around[axis] = (before, count + at.capacity(-low), 0)
    padded = lax.pad(x, jnp.asarray(fill, x.dtype), around)
    return lax.dynamic_slice_in_dim(padded, before - at.true_size(low), count, axis)


def _has_single_element_windows(use: OperatorUse, axis: int) -> bool:
    """Whether each window along an axis is a single element."""
    site = use.site
    still = site["low"][axis].is_const and site["low"][axis].value == 0
    still = still and site["high"][axis].is_const and site["high"][axis].value == 0
    dilation = site.attrs.get("input_dilation")
    return (
        still and site["window"][axis] is ONE and site["strides"][axis] == 1 and (not dilation or dilation[axis] == 1)
    )


def window_derivative(use: OperatorUse) -> CapacityStep | None:
    # Windows are taken of operand 1.
    if any(not _has_single_element_windows(use, a) for a in use.moving_axes(1)):
        raise NotPredicated("it runs over windows of an axis whose size varies")
    return unmasked_step(use)


# --- random numbers, and what is done to each element ---


def elementwise(use: OperatorUse) -> CapacityStep | None:
    """A rule for operators that treat every element alike."""
    return unmasked_step(use)


def bitcast(use: OperatorUse) -> CapacityStep | None:
    """If a bitcast has no index equations (numbers are split or joined), it runs unchanged: the pieces are an axis of
    fixed size."""
    return None if program_of(use.site) is not None else unmasked_step(use)


def position_random(use: OperatorUse) -> CapacityStep | None:
    """Random numbers made from their position. With partitionable threefry the first ones are the same however many
    follow, if only the first axis varies."""
    shape: tuple[Dim, ...] = use.site["shape"]
    if any(map(use.moves, shape[1:])):
        raise NotPredicated("which random number an element gets depends on the sizes of its inner axes")
    if any(map(use.moves, shape[:1])) and not (
        jax.config.values["jax_threefry_partitionable"] and use.site.dtype() == "key<fry>"
    ):
        raise NotPredicated("which random number an element gets depends on how many there are")
    return unmasked_step(use)


def whole_operand(use: OperatorUse) -> CapacityStep | None:
    raise NotPredicated("what it gives depends on its whole operands")


# The ways to compute operators at capacity without their index equations; `Operator.capacity` names one.
BEHAVIOURS: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        *MOVING, *MATRICES, softmax, sort, top_k, scatter, conv, reduce_window, window_derivative, elementwise, bitcast,
        position_random, whole_operand,
    )
}  # fmt: skip
