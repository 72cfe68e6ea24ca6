"""Convolutions in other ways: by taps, as matmuls of patches, by Winograd's tiles, over fewer axes, as sub-pixels.

A tap is one place of the window. Which of these ways is fastest depends on the sizes and the device, so each is a
choice of extraction. They hold for any number of spatial axes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from relax_eg.dtypes import is_float, itemsize
from relax_eg.errors import OperatorError, RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops import api as op
from relax_eg.ops.record import operators_where
from relax_eg.rules import winograd
from relax_eg.rules.channels_last import ChannelsLast, is_image, to_first, to_last
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schema_trials import (
    convolutions,
    convolutions_by_threes,
    convolutions_of_blocks,
    networks_of_convolutions,
)
from relax_eg.rules.schemas import ProgramQueries, Propose, Schema, Trials
from relax_eg.rules.signature import Numerics
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Scalar, compute, program

# limit: places of a window that is written tap by tap, and of one of which patches are made
_MOST_TAPS, _MOST_PARTS = 49, 9
_LARGE = 1 << 23  # chosen: bytes of all patches from which on no core's cache holds them, and memory takes longest
# The operators with which a network may end.
_OPERATORS = operators_where(lambda o: o.equations is not None)


def _places(e: Expr) -> list[tuple[int, ...]]:
    """The places of the window of convolution `e`; none where the window is not known, is too large, or meets zeros
    between elements."""
    window = e.args[1].shape[2:]
    known = all(d.is_const for d in window) and all(n == 1 for n in e.attr("input_dilation"))
    if not known or math.prod(d.value for d in window) > _MOST_TAPS:
        return []
    return list(itertools.product(*(range(d.value) for d in window)))


def _padded(e: Expr) -> Expr:
    """The image of convolution `e` with its padding."""
    around = list(zip(e.attr("low"), e.attr("high"), strict=True))
    return op.pad(e.args[0], [(0, 0), (0, 0), *around], 0.0) if any(b != 0 for a in around for b in a) else e.args[0]


def _is_known(e: Expr) -> bool:
    annotations = [a.annotation for a in (e, *e.args)]
    return all(isinstance(a, Tensor) and a.shape is not None and a.dtype is not None for a in annotations)


def _sums_as_written(e: Expr) -> bool:
    """Whether products and sums in the dtype of the operands are as exact as the convolution's."""
    dtype = e.args[0].dtype
    return e.attr("out_dtype") in (None, dtype) and itemsize(dtype) >= 4


def _depthwise_by_taps(e: Expr, queries: ProgramQueries) -> Expr | None:
    if not _is_known(e):
        return None
    x, w = e.args
    (out, depth), places = w.shape[:2], _places(e)
    if e.attr("groups") == 1 or depth != 1 or out != x.shape[1] or not places or not _sums_as_written(e):
        return None
    image = _padded(e)
    xs, ws = (Buffer(name, a.shape, str(a.dtype)) for name, a in (("x", image), ("w", w)))
    steps = list(zip(e.attr("strides"), e.attr("dilation"), strict=True))

    def element(n: Dim, c: Dim, *at: Dim) -> Scalar:
        terms = [
            xs[(n, c, *(i * s + k * d for i, k, (s, d) in zip(at, place, steps, strict=True)))] * ws[(c, 0, *place)]
            for place in places
        ]
        return functools.reduce(lambda a, b: a + b, terms)

    made = program("depthwise", (xs, ws), compute("out", e.shape, element))
    passed = tuple(sorted(made.sizes - {str(d) for b in made.inputs for d in b.shape}))
    return call_tir(replace(made, passed=passed), (image, w), e.annotation, {v: Dim.var(v) for v in passed})


def _part(e: Expr, place: Sequence[int]) -> Expr:
    """The elements of the padded image of convolution `e` that a place of the window meets."""
    image, strides = _padded(e), e.attr("strides")
    begin = [k * d for k, d in zip(place, e.attr("dilation"), strict=True)]
    end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, e.shape[2:], strides, strict=True)]
    return op.strided_slice(image, (0, 0, *begin), (*image.shape[:2], *end), (1, 1, *strides))


def _patches_as_matmul(e: Expr, queries: ProgramQueries) -> Expr | None:
    if not _is_known(e):
        return None
    x, w = e.args
    if e.attr("groups") != 1 or all(d == 1 for d in w.shape[2:]) or not _sums_as_written(e):
        return None
    places = _places(e)
    if not 1 <= len(places) <= _MOST_PARTS:
        return None
    try:
        parts = [_part(e, place) for place in places]
    except OperatorError:  # a part is not shown to lie inside the image
        return None
    (n, o, *space), k = e.shape, x.shape[1]
    depth = k * len(parts)
    if queries.largest_value(itemsize(x.dtype) * depth * math.prod((n, *space), start=Dim.of(1))) > _LARGE:
        return None
    last = (0, *range(2, e.ndim), 1)
    kernel = op.reshape(op.permute_dims(w, last), (o, depth))
    columns = op.reshape(op.concat(parts, 1), (n, depth, math.prod(space, start=Dim.of(1))))
    return op.reshape(op.matmul(kernel, columns, precision=e.attr("precision")), e.shape)


def _fewer_axes(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Proposes to leave out axes of size 1 on which the result has size 1, so that one tap meets the image there."""
    if not _is_known(e):
        return None
    x, w = e.args
    low, between = e.attr("low"), e.attr("input_dilation")
    single, met = list[int](), dict[int, int]()
    for a, window in enumerate(w.shape[2:]):
        if not (low[a].is_const and window.is_const and x.shape[2 + a] == e.shape[2 + a] == 1 == between[a]):
            continue
        tap, rest = divmod(low[a].value, e.attr("dilation")[a])
        if not rest and 0 <= tap < window.value:
            single.append(2 + a)
            met[a] = tap
    if not single or len(single) == e.ndim - 2:
        return None
    begin = [met.get(a, 0) for a in range(e.ndim - 2)]
    end = [met[a] + 1 if a in met else d for a, d in enumerate(w.shape[2:])]
    cut = op.strided_slice(w, (0, 0, *begin), (*w.shape[:2], *end)) if any(w.shape[a] != 1 for a in single) else w
    rest = [a for a in range(e.ndim - 2) if a not in met]

    def kept(name: str) -> list[Any]:
        return [e.attr(name)[a] for a in rest]

    made = op.conv(
        op.squeeze(x, single), op.squeeze(cut, single), kept("strides"),
        list(zip(kept("low"), kept("high"), strict=True)), kept("dilation"), e.attr("groups"), kept("input_dilation"),
        e.attr("precision"), e.attr("out_dtype"),
    )  # fmt: skip
    return op.expand_dims(made, single)


def _as_sub_pixels(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Proposes a kernel of one element for a transposed convolution whose windows do not overlap."""
    if not _is_known(e):
        return None
    x, w = e.args
    steps = e.attr("input_dilation")
    plain = e.attr("groups") == 1 and all(n == 1 for name in ("strides", "dilation") for n in e.attr(name))
    edges = all(d == s - 1 for name in ("low", "high") for d, s in zip(e.attr(name), steps, strict=True))
    if not plain or not edges or tuple(w.shape[2:]) != tuple(Dim.of(s) for s in steps) or all(s == 1 for s in steps):
        return None
    rank, (n, k, *space), o = len(steps), x.shape, w.shape[0]
    if any(out != d * s for out, d, s in zip(e.shape[2:], space, steps, strict=True)):  # an axis may be empty
        return None
    last = (0, *range(2, 2 + rank), 1)
    kernel = op.permute_dims(op.flip(w, range(2, 2 + rank)), last)
    pixels = op.reshape(kernel, (o * math.prod(steps), k, *(1,) * rank))
    made = op.conv(x, pixels, precision=e.attr("precision"), out_dtype=e.attr("out_dtype"))
    apart = op.reshape(made, (n, o, *steps, *space))
    together = [axis for a in range(rank) for axis in (2 + rank + a, 2 + a)]
    return op.reshape(op.permute_dims(apart, (0, 1, *together)), e.shape)


def _channels_last(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Proposes the images of a network with channels last, where the network ends."""
    readers = queries.readers(e)
    if not is_image(e) or (readers and all(map(is_image, readers))):
        return None
    return _with_channels_last(e, queries, lambda x: False)


def _blocks_as_matmul(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Proposes a matmul of blocks, one stride long, for a convolution whose windows are some strides long."""
    strides, window = e.attr("strides"), e.args[1].shape[2:] if _is_known(e) else ()
    if len(window) != len(strides) or all(s == 1 for s in strides) or e.attr("groups") != 1:
        return None
    if not all(d.is_const and d.value > 0 and d.value % s == 0 for d, s in zip(window, strides, strict=True)):
        return None
    if any(n != 1 for name in ("dilation", "input_dilation") for n in e.attr(name)) or not _sums_as_written(e):
        return None
    return _with_channels_last(e, queries, lambda x: x is not e)


def _by_winograd(tile: winograd.Tile) -> Propose:
    """Proposes tiles for a convolution by windows of three.

    In a network of which `channels_last` proposes another layout, it has that layout, too, so that extraction chooses
    layer by layer: of three proposals, the first is the layer as it is in that network, and the last is the layer as
    written behind two transposes, from which equality rules conclude that the others are equal without transposes.
    """

    def propose(e: Expr, queries: ProgramQueries) -> Expr | tuple[Expr, ...] | None:
        if not _is_known(e) or not is_float(e.dtype) or not _sums_as_written(e) or e.attr("groups") != 1:
            return None
        x, w = e.args
        single = all(n == 1 for name in ("strides", "dilation", "input_dilation") for n in e.attr(name))
        if not single or any(d != winograd.WINDOW for d in w.shape[2:]):
            return None
        layout = _layout(queries, lambda _: False)
        try:
            made = op.permute_dims(winograd.convolution(e, layout.of(x), tile), to_first(e.ndim))
        except RelaxEgError:  # it does not exist at all sizes
            return None
        if not is_image(x) and not any(map(is_image, queries.readers(e))):
            return made
        twice = op.permute_dims(op.permute_dims(e, to_last(e.ndim)), to_first(e.ndim))
        return op.permute_dims(layout.of(e), to_first(e.ndim)), made, twice

    return propose


def _layout(queries: ProgramQueries, is_leaf: Callable[[Expr], bool]) -> ChannelsLast:
    return ChannelsLast(is_leaf, is_large=lambda n: queries.largest_value(n) > _LARGE)


def _with_channels_last(e: Expr, queries: ProgramQueries, is_leaf: Callable[[Expr], bool]) -> Expr:
    return op.permute_dims(_layout(queries, is_leaf).of(e), to_first(e.ndim))


def _schema(
    name: str, doc: str, propose: Any, trials: Trials = convolutions, numerics: Numerics = "reassociate"
) -> Schema:
    return Schema(name, doc, numerics, frozenset(("conv",)), propose, frozenset(("conv",)), (trials,))


windows = RuleSet(
    "windows",
    schemas=(
        _schema("conv_of_fewer_axes", "a convolution over an axis of size 1 is one over the other axes", _fewer_axes),
        _schema("depthwise_by_taps", "a depthwise convolution is a sum of shifts times taps", _depthwise_by_taps),
        _schema("patches_as_matmul", "a convolution is a matmul of the kernel and all patches", _patches_as_matmul),
        Schema(
            "channels_last", "a network of convolutions with channels last: one transpose at each end", "reassociate",
            frozenset(("conv", "layout")), _channels_last, _OPERATORS, (networks_of_convolutions,),
        ),
        _schema(
            "blocks_as_matmul", "a convolution of windows of whole strides: a matmul of blocks", _blocks_as_matmul,
            convolutions_of_blocks,
        ),
        _schema(
            "winograd_by_twos", "a convolution by windows of three: tiles of two results, four products along an axis",
            _by_winograd(winograd.TWO), convolutions_by_threes, "approximate",
        ),
        _schema(
            "winograd_by_fours", "a convolution by windows of three: tiles of four results, six products along an axis",
            _by_winograd(winograd.FOUR), convolutions_by_threes, "approximate",
        ),
        _schema("conv_as_sub_pixels", "a transposed convolution without overlaps: one element each", _as_sub_pixels),
    ),
)  # fmt: skip
