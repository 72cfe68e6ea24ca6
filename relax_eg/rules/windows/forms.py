"""Convolutions written as others: transposed ones by phases, strided ones of blocks, separable ones axis by axis; and
as products of Fourier transforms. Reductions of windows axis by axis.

Each function returns the form of a convolution or reduction, or None where it has none. The forms hold for any number
of spatial axes, and for any padding.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from relax_eg.dtypes import is_float, itemsize, names_where, numpy_dtype
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import VAR, Expr, const, postorder
from relax_eg.ir.tensor_calls import call_with_sizes
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.low_rank import MOST_ELEMENTS, factors, is_separate
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import call
from relax_eg.rules.index_maps.inward import Inward, is_pointwise
from relax_eg.rules.index_maps.views import composed, view_of, whole
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Scalar, compute, program

T = TypeVar("T")
MOST_TAPS, MOST_PARTS = 49, 9  # limit: places of a window written tap by tap, and of one of which patches are made
_SMOOTH = (2, 3, 5)  # given: factors of lengths of which Fourier transforms are fast

_TRANSFORMED = names_where(lambda d: d.is_float and d.bits >= 32)  # given: dtypes of `jax.numpy.fft`


# measured: places of a window from which reductions axis by axis are faster; of 2 by 2 they take 0.7 to 1.4 times as
# long (`python -m benchmarks.patterns --cases window`)
_LEAST_PLACES = 6
# given: the attributes of a reduction of windows along an axis on which it does nothing
_ALONE = {
    "window": Dim.of(1), "strides": 1, "low": Dim.of(0), "high": Dim.of(0), "dilation": 1, "input_dilation": 1,
}  # fmt: skip


def is_known(e: Expr) -> bool:
    """Whether the shapes and dtypes of `e` and of its operands are known."""
    return all(map(is_known_tensor, (e, *e.args)))


def sums_as_written(e: Expr) -> bool:
    """Whether products and sums in the dtype of the operands are as exact as the convolution's."""
    dtype = e.args[0].dtype
    return e.attr("out_dtype") in (None, dtype) and itemsize(dtype) >= 4


def all_ones(e: Expr, *names: str) -> bool:
    """Whether these attributes of a convolution are 1 along each axis."""
    return all(n == 1 for name in names for n in e.attr(name))


def window_of(e: Expr) -> list[int]:
    """The sizes of the window of convolution `e`; none where they are not known or 0."""
    sizes = e.args[1].shape[2:]
    return [d.value for d in sizes] if all(d.is_const and d.value for d in sizes) else []


def is_depthwise(e: Expr) -> bool:
    """Whether convolution `e` computes each channel from one channel of the image."""
    x, w = e.args
    return e.attr("groups") == x.shape[1] == w.shape[0] and w.shape[1] == 1


def padding_of(e: Expr) -> list[tuple[Dim, Dim]]:
    """The widths before and after each axis of space of convolution `e`."""
    return list(zip(e.attr("low"), e.attr("high"), strict=True))


def padded(image: Expr, e: Expr, channels: int, fill: Any = 0) -> Expr:
    """`image` with the padding of convolution `e`. `channels`: the axis of its channels."""
    around = padding_of(e)
    widths = _at_axes((0, 0), (0, 0), around, channels)
    return op.pad(image, widths, fill) if any(b != 0 for a in around for b in a) else image


def _at_axes(batch: T, channel: T, space: Sequence[T], channels: int) -> list[T]:
    """What belongs to the axes of an image, in order. `channels`: the axis of channels, 1 or the last."""
    return [batch, channel, *space] if channels == 1 else [batch, *space, channel]


# --- taps: the places of a window ---


def part(
    image: Expr, place: Sequence[int], space: Sequence[Dim], strides: Sequence[int], dilation: Sequence[int],
    channels: int,
) -> Expr:  # fmt: skip
    """The elements of an image that a place of the window meets, for the places `space` of the result. Raises
    OperatorError if they are not shown to lie inside the image. `channels`: the axis of channels of the image."""
    begin = [Dim.of(k * d) for k, d in zip(place, dilation, strict=True)]
    end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, space, strides, strict=True)]
    low = _at_axes(Dim.of(0), Dim.of(0), begin, channels)
    high = _at_axes(image.shape[0], image.shape[channels], end, channels)
    steps = _at_axes(1, 1, strides, channels)
    if tuple(high) == image.shape and all(b == 0 for b in low) and all(s == 1 for s in steps):
        return image
    return op.strided_slice(image, low, high, steps)


def taps_of(e: Expr, image: Expr, places: Iterable[Sequence[int]], channels: int) -> list[Expr]:
    """For each place of the window, the elements of an image, which is padded, that it meets in convolution `e`."""
    steps = e.attr("strides"), e.attr("dilation")
    return [part(image, place, e.shape[2:], *steps, channels) for place in places]


def sum_over_taps(
    e: Expr, image: Expr, places: Sequence[Sequence[int]], channels: int, band: range | None = None
) -> Expr:
    """Depthwise convolution `e` of `image`, which is padded, as a sum over these places of the window.

    - `channels`: the axis of channels of the image and of the result. The weight is read in the same order.
    - `band`: the places of the result along the first axis of space, if not all are computed.
    """
    weight = e.args[1]
    if channels != 1:
        weight = op.permute_dims(op.squeeze(weight, 1), (*range(1, e.ndim - 1), 0))
    xs, ws = (Buffer(name, a.shape, str(a.dtype)) for name, a in (("x", image), ("w", weight)))
    steps = list(zip(e.attr("strides"), e.attr("dilation"), strict=True))
    first = [0 if band is None else band.start, *[0] * (e.ndim - 3)]
    space = e.shape[2:] if band is None else (Dim.of(len(band)), *e.shape[3:])
    shape = tuple(_at_axes(e.shape[0], e.shape[1], space, channels))

    def element(*i: Dim) -> Scalar:
        n, c, at = i[0], i[channels], [v for a, v in enumerate(i) if a not in (0, channels)]
        starts = [(v + a) * s for v, a, (s, _) in zip(at, first, steps, strict=True)]
        terms: list[Scalar] = []
        for place in places:
            met = [v + k * d for v, k, (_, d) in zip(starts, place, steps, strict=True)]
            at_tap = (c, 0, *place) if channels == 1 else (*place, c)
            terms.append(xs[tuple(_at_axes(n, c, met, channels))] * ws[at_tap])
        return functools.reduce(operator.add, terms)

    made = program("depthwise", (xs, ws), compute("out", shape, element))
    return call_with_sizes(made, (image, weight), Tensor(shape, e.dtype))


def _convolved(e: Expr, x: Expr, w: Expr, padding: Sequence[tuple[Any, Any]]) -> Expr:
    """A plain convolution with the precision and the dtype of `e`."""
    return op.conv(x, w, padding=padding, precision=e.attr("precision"), out_dtype=e.attr("out_dtype"))


# --- transposed and strided convolutions ---


def by_phases(e: Expr) -> Expr | None:
    """A transposed convolution, whose image has s - 1 zeros between its elements: of s results in a row, each meets
    other places of the window, always the same ones. So all are channels of one convolution without zeros."""
    if not is_known(e) or e.attr("groups") != 1 or not all_ones(e, "strides", "dilation"):
        return None
    x, w = e.args
    steps, window, low = e.attr("input_dilation"), window_of(e), e.attr("low")
    if all_ones(e, "input_dilation") or not window or not all(d.is_const for d in low):
        return None
    rank, (n, o, *space) = len(steps), e.shape
    pads: list[tuple[Any, Any]] = []
    counts: list[Dim] = []
    for axis, (s, size) in enumerate(zip(steps, window, strict=True)):
        before = low[axis].value
        # For each of the s results: the first place of the window that meets an element, and which element that is.
        first = [(before - r) % s for r in range(s)]
        starts = [(r + t - before) // s for r, t in enumerate(first)]
        lengths = [max(0, -(-(size - t) // s)) for t in first]
        least = min(starts)
        taps = max(a + b for a, b in zip(starts, lengths, strict=True)) - least
        if taps < 1:
            return None
        parts: list[Expr] = []
        at = w.ndim - rank + axis
        for t, start, length in zip(first, starts, lengths, strict=True):
            begin, end, step = [0] * w.ndim, list(w.shape), [1] * w.ndim
            begin[at], end[at], step[at] = min(t, size), Dim.of(min(t, size) + max(0, (length - 1) * s + 1)), s
            if not length:
                end[at] = Dim.of(begin[at])
            widths = [(0, 0)] * w.ndim
            widths[at] = (start - least, taps - length - (start - least))
            parts.append(op.pad(op.strided_slice(w, begin, end, step), widths, 0))
        w = op.stack(parts, 1 + axis)
        counts.append((space[axis] + s - 1) // s)
        pads.append((-least, counts[-1] + taps - 1 - x.shape[2 + axis] + least))
    kernel = op.reshape(w, (o * math.prod(steps), *w.shape[1 + rank :]))
    made = op.reshape(_convolved(e, x, kernel, pads), (n, o, *steps, *counts))
    together = [place for axis in range(rank) for place in (2 + rank + axis, 2 + axis)]
    whole_steps = tuple(c * s for c, s in zip(counts, steps, strict=True))
    made = op.reshape(op.permute_dims(made, (0, 1, *together)), (n, o, *whole_steps))
    return made if made.shape == e.shape else op.strided_slice(made, [0] * e.ndim, e.shape)


def of_blocks(e: Expr) -> Expr | None:
    """A strided convolution as one without strides of blocks, one stride long, whose elements are channels."""
    if not is_known(e) or e.attr("groups") != 1 or not all_ones(e, "dilation", "input_dilation"):
        return None
    x, w = e.args
    strides, window = e.attr("strides"), window_of(e)
    if all_ones(e, "strides") or not window or all(k <= s for k, s in zip(window, strides, strict=True)):
        return None
    rank, (_, k, *sizes), space = len(strides), x.shape, e.shape[2:]
    taps = [-(-size // s) for size, s in zip(window, strides, strict=True)]
    counts = [d + t - 1 for d, t in zip(space, taps, strict=True)]
    around = [(low, c * s - size - low) for low, c, s, size in zip(e.attr("low"), counts, strides, sizes, strict=True)]
    image = op.pad(x, [(0, 0), (0, 0), *around], 0)
    kernel = op.pad(w, [(0, 0), (0, 0), *((0, t * s - d) for t, s, d in zip(taps, strides, window, strict=True))], 0)
    inside = (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))

    def blocks(a: Expr, count: Sequence[Any]) -> Expr:
        apart = [d for pair in zip(count, strides, strict=True) for d in pair]
        split = op.permute_dims(op.reshape(a, (*a.shape[:2], *apart)), inside)
        return op.reshape(split, (a.shape[0], k * math.prod(strides), *count))

    return _convolved(e, blocks(image, counts), blocks(kernel, taps), [(0, 0)] * rank)


# --- separable kernels ---


def separated(e: Expr, tolerance: float, most: int, written: Callable[[Expr], Expr]) -> Expr | None:
    """A convolution by a kernel of low rank as one over the other axes, then one over the first.

    - `tolerance`: by how much elements of the kernel may differ, as a share of the largest.
    - `most`: the largest rank. Kernels of each channel of a depthwise convolution have rank 1. Products of two kernels
      are found where it is 1.
    - `written`: how each of the two convolutions is written.
    """
    if not is_known(e) or not sums_as_written(e) or not is_separate(tuple(window_of(e))):
        return None
    w = e.args[1]
    if not is_depthwise(e) and e.attr("groups") != 1:
        return None
    if all(a.op != VAR for a in postorder((w,))):
        found = _constant_factors(w, is_depthwise(e), tolerance, most)
        return None if found is None else _in_two(e, const(found[0]), const(found[1]), e.attr("groups"), written)
    return _of_product(e, written) if most == 1 else None


def _constant_factors(w: Expr, by_channel: bool, tolerance: float, most: int) -> tuple[Any, Any] | None:
    """The kernels over the other axes and over the first that make up a constant kernel."""
    if any(not d.is_const for d in w.shape) or math.prod(d.value for d in w.shape) > MOST_ELEMENTS:
        return None
    try:
        value = np.asarray(evaluate_expr(w, {}, {}), numpy_dtype(w.dtype))
    except OperatorError:
        return None
    return factors(value, by_channel, tolerance, most)


def _of_product(e: Expr, written: Callable[[Expr], Expr]) -> Expr | None:
    """The form for a product of two kernels: one is the same along the first axis, the other along the rest."""
    w = e.args[1]
    view, inner = whole(w.shape), w
    while (step := view_of(inner)) is not None:
        both = composed(view, step, inner.args[0].shape, inner.shape)
        if both is None:
            return None
        view, inner = both, inner.args[0]
    if inner.op != "multiply" or not is_pointwise(inner):
        return None
    base = inner
    product = inner if view.is_identity_on(base.shape) else Inward(lambda x: x is not base).at(base, view)
    while product.op == "broadcast_to":
        product = product.args[0]
    if product.op != "multiply":
        return None
    a, b = (op.reshape(f, (1,) * (w.ndim - f.ndim) + f.shape) if f.ndim < w.ndim else f for f in product.args)
    if b.shape[2] == 1:
        a, b = b, a
    if a.shape[2] != 1 or any(d != 1 for d in b.shape[3:]):
        return None
    (o, k, p), rest, ones = w.shape[:3], w.shape[3:], [1] * (w.ndim - 3)
    column, count = op.broadcast_to(b, (o, 1, p, *ones)), e.attr("groups")
    if is_depthwise(e):
        return _in_two(e, op.broadcast_to(a, (o, 1, 1, *rest)), column, count, written)
    if b.shape[1] == 1 and o.is_const:  # the second convolution has a kernel for each result
        return _in_two(e, op.broadcast_to(a, (o, k, 1, *rest)), column, count, written, o.value)
    return None


def _in_two(
    e: Expr, first: Expr, second: Expr, groups: int, written: Callable[[Expr], Expr], then: int | None = None
) -> Expr:
    """A convolution by `first` over all axes but one, then one by `second` over that axis, in `then` groups."""
    rank = e.ndim - 2
    made = e.args[0]
    for w, axes, count in ((first, range(1, rank), groups), (second, range(1), groups if then is None else then)):
        strides, dilation, between = (
            [e.attr(name)[i] if i in axes else 1 for i in range(rank)]
            for name in ("strides", "dilation", "input_dilation")
        )
        around = [(e.attr("low")[i], e.attr("high")[i]) if i in axes else (0, 0) for i in range(rank)]
        made = written(op.conv(made, w, strides, around, dilation, count, between, e.attr("precision")))
    return made


# --- Fourier transforms ---


def by_transforms(e: Expr) -> Expr | None:
    """A convolution as the inverse transform of products of the transforms of its image and its window."""
    if not is_known(e) or e.dtype not in _TRANSFORMED or not sums_as_written(e) or not 3 <= e.ndim <= 5:
        return None
    x, w = e.args
    if not window_of(e) or not all_ones(e, "input_dilation") or not (is_depthwise(e) or e.attr("groups") == 1):
        return None
    rank, low, high = e.ndim - 2, e.attr("low"), e.attr("high")
    needed = [d + a + b for d, a, b in zip(x.shape[2:], low, high, strict=True)]
    lengths = [_smooth(d) for d in needed]
    around = [(a, n - d - a) for a, n, d in zip(low, lengths, x.shape[2:], strict=True)]
    image = op.fft(op.pad(x, [(0, 0), (0, 0), *around], 0.0), "rfft", lengths)
    between = [d - 1 for d in e.attr("dilation")]
    spread = [(k - 1) * d + 1 for k, d in zip(window_of(e), e.attr("dilation"), strict=True)]
    behind = [(0, n - k) for n, k in zip(lengths, spread, strict=True)]
    window = op.pad(w, [(0, 0), (0, 0), *behind], 0.0, interior=[0, 0, *between])
    window = op.conj(op.fft(window, "rfft", lengths))
    if is_depthwise(e):
        product = image * op.squeeze(window, 1)
    else:
        to_last = (*range(2, 2 + rank), 0, 1)
        rows = op.permute_dims(image, to_last) @ op.permute_dims(window, (*range(2, 2 + rank), 1, 0))
        product = op.permute_dims(rows, (rank, rank + 1, *range(rank)))
    made = op.fft(product, "irfft", lengths)
    strides = e.attr("strides")
    end = [(d - 1) * s + 1 for d, s in zip(e.shape[2:], strides, strict=True)]
    return op.strided_slice(made, [0] * e.ndim, (*e.shape[:2], *end), (1, 1, *strides))


def _smooth(d: Dim) -> Dim:
    """The least length from `d` on that has small factors alone; `d` itself where it is not known."""
    if not d.is_const:
        return d
    n = max(1, d.value)
    while True:
        rest = n
        for factor in _SMOOTH:
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return Dim.of(n)
        n += 1


def windows_along_axes(e: Expr) -> Expr | None:
    """A reduction of windows that overlap as one along the axis of the greatest stride, which leaves fewest elements,
    and then along the others."""
    window, steps = e.attr("window"), e.attr("strides")
    axes = [a for a, n in enumerate(window) if n != 1]
    overlaps = any(not window[a].is_const or window[a].value > steps[a] for a in axes)
    is_small = all(n.is_const for n in window) and math.prod(n.value for n in window) < _LEAST_PLACES
    # Sums of 16 bits are as exact as a device makes them where it sums a whole window at once.
    is_coarse = e.attr("kind") in ("sum", "prod") and is_float(e.dtype) and itemsize(e.dtype) < 4
    if len(axes) < 2 or not overlaps or is_small or is_coarse:
        return None
    first = max(axes, key=lambda a: steps[a])

    def along(x: Expr, is_first: bool) -> Expr:
        each = {
            name: tuple(n if (a == first) == is_first else alone for a, n in enumerate(e.attr(name)))
            for name, alone in _ALONE.items()
        }
        return call(e.op, (x,), {"kind": e.attr("kind"), **each})

    return along(along(e.args[0], True), False)
