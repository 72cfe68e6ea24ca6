"""Winograd's convolutions by windows of three: tiles of m results by tiles of m + 2 elements, with m + 2 products.

Along an axis, the m results of a tile are A' ((G w) * (B' d)), for the m + 2 elements d of the image and the window w
(A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks", 2016). Over several axes each of the three
linear maps is applied along one axis after the other, and the products over all channels are one matmul for each place
of a tile. G w depends on the weight alone. All numbers of the maps are integers, so that they are exact in every dtype;
the results of G are divided by integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const
from relax_eg.ir.tensor_calls import call_with_sizes
from relax_eg.ops import api as op
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Scalar, compute, program

WINDOW = 3  # given: elements of a window along an axis
Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Tile:
    """The maps of one axis.

    - `results`: the number of results of a tile, m.
    - `image`: B', m + 2 rows of m + 2.
    - `kernel`: G, m + 2 rows of 3, each times its divisor.
    - `divisors`: the divisors of the rows of G.
    - `result`: A', m rows of m + 2.
    """

    results: int
    image: Rows
    kernel: Rows
    divisors: tuple[int, ...]
    result: Rows

    @property
    def places(self) -> int:
        """The number of elements of the image that a tile reads, and of its products."""
        return self.results + WINDOW - 1


# given: interpolation at 0, 1, -1 and infinity
TWO = Tile(
    2,
    ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    ((1, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 1)),
    (1, 2, 2, 1),
    ((1, 1, 1, 0), (0, 1, -1, -1)),
)
# given: interpolation at 0, 1, -1, 2, -2 and infinity
FOUR = Tile(
    4,
    (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
    ((1, 0, 0), (-1, -1, -1), (-1, 1, -1), (1, 2, 4), (1, -2, 4), (0, 0, 1)),
    (4, 6, 6, 24, 24, 1),
    ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
)


def convolution(e: Expr, image: Expr, tile: Tile) -> Expr:
    """Convolution `e` of `image`, its first operand with channels last: the result, with channels last.

    All windows of `e` are of three elements, with strides, dilation and groups of 1. Raises RelaxEgError if it does not
    exist at all sizes.
    """
    rank, (n, o, *space), m = e.ndim - 2, e.shape, tile.results
    depth = image.shape[-1]
    counts = [(d + m - 1) // m for d in space]
    around = [
        (low, count * m + WINDOW - 1 - low - size)
        for low, count, size in zip(e.attr("low"), counts, image.shape[1:-1], strict=True)
    ]
    tiles = op.pad(image, [(0, 0), *around, (0, 0)], 0.0)
    for axis in range(rank):  # the places of each axis go in front, those of the last axis first
        tiles = _mapped(tiles, tile.image, 1 + axis + axis, counts[axis], m)
    rows = op.reshape(tiles, (tile.places**rank, n * math.prod(counts, start=Dim.of(1)), depth))
    made = op.matmul(rows, _kernel(e.args[1], tile), precision=e.attr("precision"))
    made = op.reshape(made, (*(tile.places,) * rank, n, *counts, o))
    for axis in range(rank):  # the results of each axis go in front, in the end those of the first axis first
        made = _mapped(made, tile.result, axis)
    together = [place for axis in range(rank) for place in (1 + rank + axis, axis)]
    made = op.permute_dims(made, (rank, *together, 2 * rank + 1))
    made = op.reshape(made, (n, *(count * m for count in counts), o))
    if made.shape[1:-1] == tuple(space):
        return made
    return op.strided_slice(made, [0] * e.ndim, (n, *space, o))


def _kernel(w: Expr, tile: Tile) -> Expr:
    """The weight in the places of a tile: places, channels, output channels."""
    rank = w.ndim - 2
    rows, divisors = const(np.asarray(tile.kernel, w.dtype).T), const(np.asarray(tile.divisors, w.dtype))
    for _ in range(rank):  # the last axis becomes the first of those of the window
        turned = op.divide(op.matmul(w, rows, precision="highest"), divisors)
        w = op.permute_dims(turned, (0, 1, w.ndim - 1, *range(2, w.ndim - 1)))
    o, k = w.shape[:2]
    last_first = tuple(range(w.ndim - 1, 1, -1))
    return op.reshape(op.permute_dims(w, (*last_first, 1, 0)), (tile.places**rank, k, o))


def _mapped(x: Expr, rows: Rows, axis: int, count: Dim | None = None, step: int = 0) -> Expr:
    """A linear map of the elements along an axis, whose results go along a new axis in front.

    Without `count` the axis is gone. With it the map is applied at `count` places, `step` apart, which stay there.
    """
    return op.concat([op.expand_dims(_sum(x, row, axis, count, step), (0,)) for row in rows], 0)


def _sum(x: Expr, row: Sequence[int], axis: int, count: Dim | None, step: int) -> Expr:
    """The sum of the elements along an axis times the numbers of `row`, from each of `count` places, or from 0."""
    shape = (*x.shape[:axis], *(() if count is None else (count,)), *x.shape[axis + 1 :])
    xs = Buffer("x", x.shape, str(x.dtype))

    def element(*at: Dim) -> Scalar:
        before, here, after = at[:axis], Dim.of(0), at[axis:]
        if count is not None:
            here, after = at[axis] * step, at[axis + 1 :]
        terms = [(value, xs[(*before, here + place, *after)]) for place, value in enumerate(row) if value]
        # A difference is one operation; a factor of -1 is another.
        terms.sort(key=lambda term: term[0] < 0)
        (first, total), *rest = terms
        total = total if first == 1 else total * first
        return functools.reduce(_added, rest, total)

    made = program("combined", (xs,), compute("out", shape, element))
    return call_with_sizes(made, (x,), Tensor(shape, x.dtype))


def _added(total: Scalar, term: tuple[int, Scalar]) -> Scalar:
    value, x = term
    return total + (x if value == 1 else x * value) if value > 0 else total - (x if value == -1 else x * -value)
