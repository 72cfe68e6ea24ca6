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

from relax_eg.backend.scalar_functions import identity
from relax_eg.dynamic.matrices import MATRICES
from relax_eg.dynamic.moving import MOVING, Rule, fit_axis, plain_result
from relax_eg.dynamic.native import mask_unless_filled, native_lowering, resolve_sizes, unmasked_step
from relax_eg.dynamic.scattering import scatter
from relax_eg.dynamic.softmax import softmax
from relax_eg.dynamic.step import CapacityStep, InnerMask, NotPredicated, OperandMask, OperatorUse, StepSizes
from relax_eg.ops import get, program_of
from relax_eg.ops.sizes import ONE, dilated
from relax_eg.ops.windows import identity as neutral_of_window
from relax_eg.shapes import Dim

# --- order ---


def sort(use: OperatorUse) -> CapacityStep | None:
    axis, count = use.site["axis"], len(use.operand_layouts)
    size = use.site.shape()[axis]
    if not use.moves(size):
        return unmasked_step(use)

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        # A first key sorts the padding last, whatever it holds.
        shape = arrays[0].shape
        late = ~at.valid_mask(size, shape[axis]) if at.applies_inner_mask(0) else jnp.zeros(shape[axis], bool)
        late = lax.broadcast_in_dim(late, shape, (axis,))
        out = lax.sort([late, *arrays], dimension=axis, num_keys=use.site["num_keys"] + 1, is_stable=use.site["stable"])
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
