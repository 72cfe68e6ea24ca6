"""Images with their channels last: a network of convolutions, computed in the other layout from end to end.

With channels last a convolution by one element is a matmul of rows, and a sum over taps reads neighbours in memory
whatever shape its reader wants. A transpose is moved from the end of a network towards its inputs (`Inward`), through
convolutions, reductions and pooling too, so that one is left at each end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relax_eg.dtypes import itemsize
from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr, postorder
from relax_eg.memo import Memo
from relax_eg.ops import api as op
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import TABLE, call
from relax_eg.rules.index_maps.inward import Inward, is_join, is_padded, is_pointwise
from relax_eg.rules.index_maps.views import AxisMap, IndexView, made_of, view_of
from relax_eg.rules.windows.forms import (
    MOST_PARTS,
    MOST_TAPS,
    all_ones,
    is_depthwise,
    padded,
    padding_of,
    part,
    sum_over_taps,
    sums_as_written,
    taps_of,
    window_of,
)
from relax_eg.shapes import Dim

_CONV = "conv"
_MOST_KNOWN = 1 << 14  # limit: expressions of which it is known whether they are images
_MOST_ROWS = 4  # limit: rows of a result that are computed in bands; with more, few taps meet padding


def to_last(rank: int) -> tuple[int, ...]:
    """The order of axes of an image with its channels last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The order of axes that puts the last one behind the first."""
    return (0, rank - 1, *range(1, rank - 1))


_known = Memo[Expr, bool](_MOST_KNOWN)


def is_image(e: Expr) -> bool:
    """Whether `e` is computed from a convolution by operators that keep its axes."""
    for x in postorder((e,), stop=_known.__contains__):
        if x not in _known:
            _known[x] = x.op == _CONV or (any(_known.get(a, False) for a in x.args) and keeps_axes(x))
    return _known[e]


def keeps_axes(e: Expr) -> bool:
    """Whether the axes of `e` are those of its operands that are images, in the same order."""
    if not is_known_tensor(e) or e.ndim < 3:
        return False
    if any(a.ndim != e.ndim for a in e.args if _known.get(a, False)):
        return False
    if is_pointwise(e) or is_padded(e) or is_join(e):
        return True
    view = view_of(e)
    if view is not None:
        return all(m.out in (i, None) for i, m in enumerate(view.maps))
    return _is_reduction(e) or _is_window_reduction(e)


def _is_reduction(e: Expr) -> bool:
    return {name for name, _ in e.attrs} == {"axes", "keepdims"} and e.attr("keepdims") and len(e.args) == 1


def _is_window_reduction(e: Expr) -> bool:
    return e.op in TABLE and len(e.args) == 1 and {"window", "strides", "low", "high"} <= {n for n, _ in e.attrs}


def permuted(shape: Sequence[Dim], order: Sequence[int]) -> IndexView:
    """The view of a value of this shape with its axes in another order."""
    maps = [AxisMap(order.index(axis)) for axis in range(len(order))]
    return IndexView(tuple(maps), tuple(shape[axis] for axis in order))


def _puts_last(view: IndexView, e: Expr) -> bool:
    """Whether a view of `e` puts its channels last. Where an axis of size 1 is read from does not matter."""
    if e.ndim < 3:
        return False
    wanted = permuted(e.shape, to_last(e.ndim))
    single = [m == w or (d == 1 and m.out is None) for m, w, d in zip(view.maps, wanted.maps, e.shape, strict=True)]
    return view.shape == wanted.shape and all(single)


@dataclass
class ChannelsLast(Inward):
    """Moves the transpose that puts channels last towards inputs.

    - `is_large`: whether so many bytes of patches are not worth making.
    """

    is_large: Callable[[Dim], bool] = lambda n: False

    def of(self, e: Expr) -> Expr:
        """The image `e` with its channels last. Raises RelaxEgError if an operator does not exist at all sizes."""
        for x in postorder((e,)):
            if is_image(x):
                self.at(x, permuted(x.shape, to_last(x.ndim)))
        return self.at(e, permuted(e.shape, to_last(e.ndim)))

    def at(self, e: Expr, view: IndexView) -> Expr:
        return super().at(e, permuted(e.shape, to_last(e.ndim)) if _puts_last(view, e) else view)

    def _through(self, e: Expr, view: IndexView) -> Expr | None:
        order = to_last(e.ndim)
        if not _puts_last(view, e):
            return super()._through(e, view)
        attrs = dict(e.attrs)
        if e.op == _CONV:
            return self._conv(e)
        if _is_reduction(e):
            axes = tuple(sorted(order.index(a) for a in e.attr("axes")))
            return call(e.op, (self._last(e.args[0]),), {**attrs, "axes": axes})
        inner = view_of(e)
        if inner is not None and is_image(e):  # composed with the transpose, it would move through convolutions, too
            maps = [inner.maps[a] for a in order]
            maps = [m if m.out is None else replace(m, out=order.index(m.out)) for m in maps]
            return made_of(IndexView(tuple(maps), tuple(e.shape[a] for a in order)), self._last(e.args[0]))
        if _is_window_reduction(e):
            moved = {k: tuple(v[a] for a in order) for k, v in attrs.items() if isinstance(v, tuple)}
            return call(e.op, (self._last(e.args[0]),), {**attrs, **moved})
        return super()._through(e, view)

    def _last(self, x: Expr) -> Expr:
        return self.at(x, permuted(x.shape, to_last(x.ndim)))

    # --- convolutions ---

    def _conv(self, e: Expr) -> Expr | None:
        x, w = e.args
        last, plain = e.ndim - 1, all_ones(e, "input_dilation")
        is_padded_itself = any(b != 0 for a in padding_of(e) for b in a)
        if plain and e.attr("groups") == 1 and all(d == 1 for d in w.shape[2:]) and not is_padded_itself:
            (rows,) = taps_of(e, self._last(x), [(0,) * (e.ndim - 2)], last)
            weight = op.permute_dims(op.squeeze(w, tuple(range(2, w.ndim))), (1, 0))
            return op.matmul(rows, weight, precision=e.attr("precision"), out_dtype=e.attr("out_dtype"))
        pixels = self._sub_pixels(e)
        if pixels is not None:
            return pixels
        window = window_of(e)
        if window and plain and sums_as_written(e):
            image = padded(self._last(x), e, last)
            if e.attr("groups") > 1 and is_depthwise(e) and math.prod(window) <= MOST_TAPS:
                return depthwise(e, image, window)
            if e.attr("groups") == 1:
                try:
                    patches = self._patches(e, image, window)
                except OperatorError:  # a part is not shown to lie inside the image
                    return None
                if patches is not None:
                    return patches
        first = op.permute_dims(self._last(x), to_first(e.ndim))
        return op.permute_dims(call(e.op, (first, w), dict(e.attrs)), to_last(e.ndim))

    def _patches(self, e: Expr, image: Expr, window: Sequence[int]) -> Expr | None:
        """A matmul of all patches of a padded image, channels last; None where these are many or large.

        A window that is some strides long along each axis is made of blocks, one stride long, of which the channels
        are the elements.
        """
        w, strides, rank, last = e.args[1], e.attr("strides"), e.ndim - 2, e.ndim - 1
        whole = all(
            k % s == 0 and (d == 1 or s == 1) for k, s, d in zip(window, strides, e.attr("dilation"), strict=True)
        )
        sides = list(strides) if whole else [1] * rank
        taps = [k // s for k, s in zip(window, sides, strict=True)]
        n, o, *space = e.shape
        places, depth = list(itertools.product(*map(range, taps))), w.shape[1] * math.prod(window)
        size = depth * math.prod((n, *space), start=Dim.of(itemsize(image.dtype)))
        if len(places) > MOST_PARTS or self.is_large(size):
            return None
        if any(s > 1 for s in sides):
            count = [d + t - 1 for d, t in zip(space, taps, strict=True)]
            end = [c * s for c, s in zip(count, sides, strict=True)]
            cut = op.strided_slice(image, [0] * e.ndim, (n, *end, image.shape[-1]))
            cut = image if cut.shape == image.shape else cut
            apart = op.reshape(cut, (n, *itertools.chain(*zip(count, sides, strict=True)), cut.shape[-1]))
            together = (0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2), 2 * rank + 1)
            image = op.reshape(op.permute_dims(apart, together), (n, *count, cut.shape[-1] * math.prod(sides)))
            parts = [part(image, place, space, [1] * rank, [1] * rank, last) for place in places]
        else:
            parts = taps_of(e, image, places, last)
        split = op.reshape(w, (o, w.shape[1], *itertools.chain(*zip(taps, sides, strict=True))))
        kernel = op.permute_dims(split, (*range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2), 1, 0))
        patches = parts[0] if len(parts) == 1 else op.concat(parts, last)
        return op.matmul(patches, op.reshape(kernel, (depth, o)), precision=e.attr("precision"))

    def _sub_pixels(self, e: Expr) -> Expr | None:
        """A matmul for a transposed convolution whose windows do not overlap; None for another."""
        x, w = e.args
        steps = e.attr("input_dilation")
        single = e.attr("groups") == 1 and all_ones(e, "strides", "dilation")
        edges = all(d == s - 1 for name in ("low", "high") for d, s in zip(e.attr(name), steps, strict=True))
        overlap = tuple(w.shape[2:]) != tuple(Dim.of(s) for s in steps) or all(s == 1 for s in steps)
        if not single or not edges or overlap:
            return None
        rank, (n, k, *space), o = len(steps), x.shape, w.shape[0]
        if any(out != d * s for out, d, s in zip(e.shape[2:], space, steps, strict=True)):  # an axis may be empty
            return None
        kernel = op.permute_dims(op.flip(w, range(2, 2 + rank)), (1, *range(2, 2 + rank), 0))
        kernel = op.reshape(kernel, (k, math.prod(steps) * o))
        made = op.matmul(self._last(x), kernel, precision=e.attr("precision"), out_dtype=e.attr("out_dtype"))
        apart = op.reshape(made, (n, *space, *steps, o))
        together = [axis for a in range(rank) for axis in (1 + a, 1 + rank + a)]
        whole = (n, *e.shape[2:], o)
        return op.reshape(op.permute_dims(apart, (0, *together, 1 + 2 * rank)), whole)


def depthwise(e: Expr, image: Expr, window: Sequence[int]) -> Expr:
    """Depthwise convolution `e` of `image`, which is padded, channels last, as a sum over taps. Rows whose windows meet
    the image with the same taps are computed together, without the taps that meet padding, if rows are few."""
    bands, last, rest = _bands(e, window[0]), e.ndim - 1, [range(k) for k in window[1:]]
    if bands is None:
        return sum_over_taps(e, image, list(itertools.product(range(window[0]), *rest)), last)
    parts = [sum_over_taps(e, image, list(itertools.product(met, *rest)), last, band) for band, met in bands]
    return op.concat(parts, 1)


def _bands(e: Expr, taps: int) -> list[tuple[range, list[int]]] | None:
    """The places of the result along the first axis of space, in ranges of the same places of the window that meet the
    image; None where these places are many or not known, where some meets nothing, or where all meet the image."""
    size, count, low = e.args[0].shape[2], e.shape[2], e.attr("low")[0]
    if e.ndim < 4 or not all(d.is_const for d in (size, count, low)) or not 1 <= count.value <= _MOST_ROWS:
        return None
    step, apart = e.attr("strides")[0], e.attr("dilation")[0]
    found: list[tuple[range, list[int]]] = []
    for i in range(count.value):
        met = [k for k in range(taps) if 0 <= i * step + k * apart - low.value < size.value]
        if found and found[-1][1] == met:
            found[-1] = range(found[-1][0].start, i + 1), met
        else:
            found.append((range(i, i + 1), met))
    is_plain = all(len(met) == taps for _, met in found)
    return None if is_plain or not all(met for _, met in found) else found
