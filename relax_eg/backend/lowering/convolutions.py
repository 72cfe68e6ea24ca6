"""Lowers sums of products over windows to JAX's convolution.

A window is recognised by computing the index of every place and window element of an axis and comparing it with the
one that the convolution reads. At known sizes this is a proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.backend.lowering.contractions import Frame, Term, factors_of, is_widened
from relax_eg.backend.lowering.index_maps import affine, simplify_index
from relax_eg.backend.lowering.loop_values import Indices, LoopValue
from relax_eg.backend.lowering.scalar_functions import convert
from relax_eg.dtypes import dtype_of
from relax_eg.ir.expr import Expr
from relax_eg.ops.record import operators_run_as
from relax_eg.ops.windows import jax_conv
from relax_eg.shapes import Dim
from relax_eg.tir import Apply, Cast, Const, Read, Reduce, Scalar, Select
from relax_eg.tir.expr import joined_by

# Gives the array of a term that does not depend on data, with an axis for each of its loops.
StaticValue = Callable[[Scalar], Any]

CONVOLUTIONS = operators_run_as("conv")
_MOST_POINTS = 1 << 22  # limit: points of one axis (places times window) that are checked
# measured: in a loop, convolutions took 2.5 to 37 times as long with their channels first as with their channels last
# where each element sums 64 products or more, 0.7 to 2.4 times where it sums fewer, and 0.1 to 0.5 times if it also
# has groups (`python -m benchmarks.loops --convolutions`)
_MANY_PRODUCTS, _CHANNELS_FIRST = 64, 10.0


@dataclass(frozen=True, slots=True)
class _Windowed:
    """The factor that is read in windows.

    - `read`: the read, without guards and casts.
    - `index`: the simplified index of the read.
    - `guards`: conditions under which the read counts; otherwise the factor is 0.
    - `casts`: dtypes to which the read is cast, innermost first.
    """

    read: Read
    index: tuple[Dim, ...]
    guards: tuple[Scalar, ...]
    casts: tuple[str, ...]


@dataclass(slots=True)
class _Layout:
    """The axes of the windowed operand by their role.

    - `batch`: axis and loop of each batch axis.
    - `channel`: the channel axis and its loops.
    - `space`: for each spatial axis the axis, the loop over places, and the loop over the window ("" if none).
    - `steps`: for each spatial axis stride, dilation, padding before, padding after, and dilation of the operand.
    - `single`: axes of size 1 that are read at 0.
    """

    batch: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    channel: tuple[int, tuple[str, ...]] | None = None
    space: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    steps: list[tuple[int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int]])
    single: list[int] = field(default_factory=list[int])


def lower_convolution(
    expr: Reduce, inner: Frame, wide: str, term: Term, known: StaticValue, data: Mapping[str, Any]
) -> LoopValue | None:
    """The sum as a convolution; None if it is not proved to be one at these sizes.

    In a convolution one factor is read at sums of a loop over places and a loop over the window; the other is the
    kernel.
    """
    factors = factors_of(expr.body, "multiply")
    if len(factors) != 2 or not all(isinstance(n, int) for n in inner.extents.values()):
        return None
    for x, w in (factors, factors[::-1]):
        windowed = _windowed(x, inner)
        if windowed is None or w.free & inner.extents.keys() != w.free - _single(w.free, inner):
            continue
        over = {name for name in inner.extents if name in expr.bound}
        layout = _layout(windowed, data[windowed.read.buffer].shape, over, w.free, inner, known)
        if layout is not None:
            return _convolution(windowed, layout, term(w, inner), inner, over, wide, data, is_widened(expr))
    return None


def _single(names: frozenset[str], inner: Frame) -> set[str]:
    """The loops among `names` whose value is a fixed integer: those of extent 1."""
    return {n for n in names if n in inner.fixed and isinstance(inner.fixed[n], int)}


def _windowed(factor: Scalar, inner: Frame) -> _Windowed | None:
    casts: list[str] = []
    while isinstance(factor, Cast):
        casts.insert(0, factor.dtype)
        factor = factor.arg
    guards: list[Scalar] = []
    if isinstance(factor, Select) and isinstance(factor.other, Const) and not factor.other.value:
        guards, factor = joined_by(factor.cond, "bitwise_and"), factor.then
    if not isinstance(factor, Read):
        return None
    index = [inner.dim(i) for i in factor.indices if isinstance(i, Dim)]
    if len(index) < len(factor.indices) or any(i.variables - inner.extents.keys() for i in index):
        return None
    if any(not _is_known(g, inner) for g in guards):
        return None
    at = tuple(simplify_index(i, inner.extents) for i in index)
    return _Windowed(factor, at, tuple(guards), tuple(casts))


def _is_known(guard: Scalar, inner: Frame) -> bool:
    """Whether a guard depends on indices only, and on no loop variable that a JAX loop runs over."""
    if isinstance(guard, Apply):
        indices = all(arg.on_indices for arg in guard.args)
        return indices and guard.free <= inner.extents.keys() | _single(guard.free, inner)
    return False


def _layout(
    x: _Windowed, shape: Sequence[int], over: set[str], kernel: frozenset[str], inner: Frame, known: StaticValue
) -> _Layout | None:
    """The roles of the axes of the windowed operand; None where the sum is no convolution."""
    found, extents = _Layout(), inner.extents
    seen: set[str] = set()
    guards = list(x.guards)
    for axis, (index, size) in enumerate(zip(x.index, shape, strict=True)):
        names = index.variables
        if names & seen:
            return None
        seen |= names
        window, places = names & over, names - over - kernel
        if not names and index == 0 and size == 1:
            found.single.append(axis)
        elif len(places) == 1 >= len(window) == len(names) - 1 and not _is_whole(index, size, extents):
            (place,), k = places, next(iter(window), "")
            mine = [g for g in guards if g.free - _single(g.free, inner) <= names]
            guards = [g for g in guards if g not in mine]
            steps = _steps(index, size, place, k, mine, extents, known)
            if steps is None:
                return None
            found.space.append((axis, place, k))
            found.steps.append(steps)
        elif names <= kernel and names and found.channel is None:
            found.channel = axis, tuple(sorted(names, key=lambda n: n in over))
        elif len(places) == len(names) == 1:
            found.batch.append((axis, next(iter(places))))
        else:
            return None
    if guards or not any(k for *_, k in found.space) or not over <= seen or not over <= kernel:
        return None
    return found if found.channel is None or _groups(x, found.channel, shape, over, extents) else None


def _is_whole(index: Dim, size: int, extents: Mapping[str, int]) -> bool:
    """Whether an index is a loop over a whole axis."""
    return any(index == Dim.var(name) and extents[name] == size for name in index.variables)


def _steps(
    index: Dim, size: int, place: str, k: str, guards: Sequence[Scalar], extents: Mapping[str, int], known: StaticValue
) -> tuple[int, int, int, int, int] | None:
    """Stride, dilation, padding before and after, and dilation of the operand on an axis.

    None where the axis is not read as a convolution does, which is checked at every place and window element.
    """
    places, window = extents[place], extents.get(k, 1)
    if places * window > _MOST_POINTS:
        return None
    between, inside = 1, index
    if len(index.terms) == 1 and index.const == 0 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
        (atom,) = index.terms[0][0]
        if atom.op == "floordiv" and atom.args[1].is_const:
            between, inside = atom.args[1].const, atom.args[0]
    straight = affine(inside)
    if straight is None:
        return None
    strides = dict(straight.strides)
    stride, dilation, low = strides.get(place, 0), strides.get(k, int(not k)), -straight.start
    if stride <= 0 or dilation <= 0 or between <= 0:
        return None
    i, n = np.arange(places)[:, None], np.arange(window)[None, :]
    at = stride * i + dilation * n - low
    dilated = (size - 1) * between + 1
    counts = (at >= 0) & (at < dilated) & (at % between == 0)
    asked = np.ones((places, window), bool)
    for guard in guards:
        value: LoopValue = known(guard)
        held = np.asarray(value.array)
        shape = [extents[name] if name and name in value.loops else 1 for name in (place, k)]
        asked = asked & (held if value.loops == (place, k) or len(value.loops) < 2 else held.T).reshape(shape)
    if not np.array_equal(asked, counts):
        return None
    high = (places - 1) * stride + (window - 1) * dilation + 1 - low - dilated
    return stride, dilation, low, high, between


def _groups(
    x: _Windowed, channel: tuple[int, tuple[str, ...]], shape: Sequence[int], over: set[str], extents: Mapping[str, int]
) -> int:
    """The number of groups of the channels; 0 where they are not read as a convolution does."""
    axis, names = channel
    size, index = shape[axis], x.index[axis]
    outs, inside = [n for n in names if n not in over], [n for n in names if n in over]
    if len(outs) > 1 or len(inside) > 1:
        return 0
    depth = extents[inside[0]] if inside else 1
    if size % depth or (outs and extents[outs[0]] % (size // depth)):
        return 0
    groups = size // depth
    if not outs:
        return groups if groups == 1 and index == Dim.var(inside[0]) else 0
    if extents[outs[0]] * depth > _MOST_POINTS:
        return 0
    o, c = np.arange(extents[outs[0]])[:, None], np.arange(depth)[None, :]
    wanted = o // (extents[outs[0]] // groups) * depth + c
    return groups if np.array_equal(_values(index, [*outs, *inside], extents).reshape(wanted.shape), wanted) else 0


def _values(index: Dim, names: Sequence[str], extents: Mapping[str, int]) -> Any:
    import jax

    loops = Indices({n: extents[n] for n in names}, {})
    with jax.ensure_compile_time_eval():
        return np.asarray(loops.value(index).array_over(tuple(names), loops.extents))


def _convolution(
    x: _Windowed,
    layout: _Layout,
    w: LoopValue,
    inner: Frame,
    over: set[str],
    wide: str,
    data: Mapping[str, Any],
    is_apart: bool,
) -> LoopValue | None:
    extents = inner.extents
    groups = 1
    channels: tuple[str, ...] = ()
    array = data[x.read.buffer]
    if layout.channel is not None:
        channels = layout.channel[1]
        groups = _groups(x, layout.channel, array.shape, over, extents)
    batch = [name for _, name in layout.batch]
    outs = [n for n in w.loops if n not in over]
    grouped = [n for n in channels if n not in over]
    if set(outs) & set(batch) or (groups > 1 and outs != grouped):
        return None
    for dtype in x.casts:
        array = convert(array, dtype)
    order = (
        [a for a, _ in layout.batch] + ([layout.channel[0]] if layout.channel else []) + [a for a, *_ in layout.space]
    )
    array = lax.transpose(lax.squeeze(array, layout.single), _ranks(order))
    space = array.shape[len(array.shape) - len(layout.space) :]
    depth = array.shape[len(batch)] if layout.channel else 1
    array = lax.reshape(array, (math.prod(extents[n] for n in batch), depth, *space))
    inside = [n for n in channels if n in over]
    window = [k for _, _, k in layout.space]
    kernel = w.array_over((*outs, *inside, *filter(None, window)), extents)
    rows = math.prod(extents[n] for n in outs)
    kernel = lax.reshape(kernel, (rows, math.prod(extents[n] for n in inside), *(extents.get(k, 1) for k in window)))
    narrow = dtype_of(array.dtype.name).bits < 8
    dtype = np.dtype(wide) if narrow else jnp.promote_types(array.dtype, kernel.dtype)
    array, kernel = convert(array, dtype.name), convert(kernel, dtype.name)
    if is_apart:
        array, kernel = lax.optimization_barrier((array, kernel))
    result = lax.conv_general_dilated(
        array, kernel, [s for s, *_ in layout.steps],
        [(low, high) for _, _, low, high, _ in layout.steps], lhs_dilation=[q for *_, q in layout.steps],
        rhs_dilation=[d for _, d, *_ in layout.steps], feature_group_count=groups,
        preferred_element_type=np.dtype(wide),
    )  # fmt: skip
    loops = (*batch, *outs, *(place for _, place, _ in layout.space))
    value = LoopValue(lax.reshape(result, [extents[n] for n in loops]), loops)
    ordered = tuple(n for n in extents if n in loops)
    return LoopValue(value.array_over(ordered, extents), ordered)


def _ranks(order: Sequence[int]) -> list[int]:
    """The rank of each axis in `order` among these axes."""
    places = sorted(order)
    return [places.index(axis) for axis in order]


def is_last_in_loops(kernel: Sequence[int | Dim], groups: int) -> bool:
    """Whether a convolution with a kernel of this shape is lowered with its channels last in a loop."""
    return groups == 1 or _has_many_products(kernel)


def _has_many_products(kernel: Sequence[int | Dim]) -> bool:
    products = Dim.of(math.prod(kernel[1:], start=Dim.of(1)))
    return products.is_const and products.value >= _MANY_PRODUCTS


def slower_in_loops(e: Expr) -> float:
    """How many times as long an operator takes in a loop on a CPU where JAX lowers it, in the order of axes that the
    program as written has, and not `convolution_in_a_loop`."""
    if e.op not in CONVOLUTIONS or not _has_many_products(e.args[1].shape):
        return 1.0
    n = e.ndim
    orders = [x.attr("axes") if x.op == "permute_dims" else () for x in e.args]
    is_last = orders == [(0, n - 1, *range(1, n - 1)), (n - 1, n - 2, *range(n - 2))]
    return 1.0 if is_last else _CHANNELS_FIRST


def convolution_in_a_loop(x: Any, w: Any, **attrs: Any) -> Any:
    """A `conv`, with its channels last: XLA's library for CPUs takes that order, into which XLA brings convolutions
    outside of loops only (jax 0.10.2)."""
    space = tuple(range(1, x.ndim - 1))
    order = lax.ConvDimensionNumbers(
        (0, x.ndim - 1, *space), (x.ndim - 1, x.ndim - 2, *(a - 1 for a in space)), (0, x.ndim - 1, *space)
    )
    last = lax.transpose(x, (0, *(a + 1 for a in space), 1))
    kernel = lax.transpose(w, (*(a + 1 for a in space), 1, 0))
    return lax.transpose(jax_conv(last, kernel, order, **attrs), (0, x.ndim - 1, *space))
