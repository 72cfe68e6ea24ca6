"""Convolutions in other ways: by taps, as matmuls of patches, by Winograd's tiles, over fewer axes, by phases. Pooling
by one axis after the other.

A tap is one place of the window. Which of these ways is fastest depends on the sizes and the device, so each is a
choice of extraction. They hold for any number of spatial axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from relax_eg.dtypes import is_float, itemsize
from relax_eg.errors import OperatorError, RelaxEgError
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.low_rank import MOST_RANK, NEAR, ROUNDED
from relax_eg.ops.record import operators_where
from relax_eg.rules.checking.schema_trials import convolutions, networks_of_convolutions
from relax_eg.rules.checking.window_trials import (
    convolutions_by_threes,
    convolutions_of_blocks,
    large_convolutions,
    separable_convolutions,
    transposed_convolutions,
    windows_over_axes,
)
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, Propose, Prove, Schema, Trials
from relax_eg.rules.signature import Numerics
from relax_eg.rules.windows import winograd
from relax_eg.rules.windows.channels_last import ChannelsLast, is_image, to_first, to_last
from relax_eg.rules.windows.forms import (
    MOST_PARTS,
    MOST_TAPS,
    all_ones,
    by_phases,
    by_transforms,
    is_depthwise,
    is_known,
    of_blocks,
    padded,
    separated,
    sum_over_taps,
    sums_as_written,
    taps_of,
    window_of,
    windows_along_axes,
)
from relax_eg.rules.windows.layout_proofs import why_not_same_network
from relax_eg.shapes import Dim

_LARGE = 1 << 23  # chosen: bytes of all patches from which on no core's cache holds them, and memory takes longest
# limit: places of a window from which transforms are proposed; with fewer they take longer on every device
_LEAST_TRANSFORMED = 25
# The operators with which a network may end.
_OPERATORS = operators_where(lambda o: o.equations is not None)


def _places(e: Expr) -> list[tuple[int, ...]]:
    """The places of the window of convolution `e`; none where the window is not known, is too large, or meets zeros
    between elements."""
    window = window_of(e)
    if not window or not all_ones(e, "input_dilation") or math.prod(window) > MOST_TAPS:
        return []
    return list(itertools.product(*map(range, window)))


def _depthwise_by_taps(e: Expr, queries: ProgramQueries) -> Expr | None:
    if not is_known(e) or not is_depthwise(e) or not (places := _places(e)) or not sums_as_written(e):
        return None
    return sum_over_taps(e, padded(e.args[0], e, 1), places, 1)


def _patches_as_matmul(e: Expr, queries: ProgramQueries) -> Expr | None:
    if not is_known(e):
        return None
    x, w = e.args
    if e.attr("groups") != 1 or all(d == 1 for d in w.shape[2:]) or not sums_as_written(e):
        return None
    places = _places(e)
    if not 1 <= len(places) <= MOST_PARTS:
        return None
    image = padded(x, e, 1)
    try:
        parts = taps_of(e, image, places, 1)
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
    if not is_known(e):
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


def _channels_last(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Proposes the images of a network with channels last, where the network ends."""
    readers = queries.readers(e)
    if not is_image(e) or (readers and all(map(is_image, readers))):
        return None
    return op.permute_dims(_with_channels_last(e, queries), to_first(e.ndim))


def _blocks_as_matmul(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Proposes a matmul of blocks, one stride long, for a convolution whose windows are some strides long."""
    strides, window = e.attr("strides"), e.args[1].shape[2:] if is_known(e) else ()
    if len(window) != len(strides) or all(s == 1 for s in strides) or e.attr("groups") != 1:
        return None
    if not all(d.is_const and d.value > 0 and d.value % s == 0 for d, s in zip(window, strides, strict=True)):
        return None
    if not all_ones(e, "dilation", "input_dilation") or not sums_as_written(e):
        return None
    layout = ChannelsLast(lambda x: x is not e, is_large=lambda n: queries.largest_value(n) > _LARGE)
    return op.permute_dims(layout.of(e), to_first(e.ndim))


def _by_winograd(tile: winograd.Tile) -> Propose:
    """Proposes tiles for a convolution by windows of three.

    In a network of which `channels_last` proposes another layout, it has that layout, too, so that extraction chooses
    layer by layer: of three proposals, the first is the layer as it is in that network, and the last is the layer as
    written behind two transposes, from which equality rules conclude that the others are equal without transposes.
    """

    def propose(e: Expr, queries: ProgramQueries) -> Expr | tuple[Expr, ...] | None:
        if not is_known(e) or not is_float(e.dtype) or not sums_as_written(e) or e.attr("groups") != 1:
            return None
        x, w = e.args
        if not all_ones(e, "strides", "dilation", "input_dilation") or any(d != winograd.WINDOW for d in w.shape[2:]):
            return None
        try:
            image = _with_channels_last(x, queries)
            made = op.permute_dims(winograd.convolution(e, image, tile), to_first(e.ndim))
        except RelaxEgError:  # it does not exist at all sizes
            return None
        if not is_image(x) and not any(map(is_image, queries.readers(e))):
            return made
        twice = op.permute_dims(op.permute_dims(e, to_last(e.ndim)), to_first(e.ndim))
        return op.permute_dims(_with_channels_last(e, queries), to_first(e.ndim)), made, twice

    return propose


def _form(of: Callable[[Expr], Expr | None]) -> Propose:
    """Proposes a form of a convolution that depends on it alone."""

    def propose(e: Expr, queries: ProgramQueries) -> Expr | None:
        try:
            return of(e)
        except RelaxEgError:  # it does not exist at all sizes
            return None

    return propose


def _separated(tolerance: float, most: int) -> Propose:
    """Proposes two convolutions, each over some of the axes, as they are and by taps."""

    def propose(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
        def by_taps(x: Expr) -> Expr:
            found = _depthwise_by_taps(x, queries)
            return x if found is None else found

        try:
            found = [separated(e, tolerance, most, written) for written in (lambda x: x, by_taps)]
        except RelaxEgError:  # it does not exist at all sizes
            return ()
        return tuple(dict.fromkeys(x for x in found if x is not None))

    return propose


def _by_transforms(e: Expr) -> Expr | None:
    return by_transforms(e) if math.prod(window_of(e)) >= _LEAST_TRANSFORMED else None


class _Network:
    """The images of a search with channels last, each written once."""

    def __init__(self) -> None:
        self._sizes: set[Dim] = set()
        self._layout = ChannelsLast(lambda x: False, is_large=self._is_large)

    def of(self, e: Expr, queries: ProgramQueries) -> Expr:
        self._queries = queries
        for n in self._sizes:  # a proposal is checked by its own answers
            queries.largest_value(n)
        return self._layout.of(e)

    def _is_large(self, n: Dim) -> bool:
        self._sizes.add(n)
        return self._queries.largest_value(n) > _LARGE


def _with_channels_last(e: Expr, queries: ProgramQueries) -> Expr:
    """Image `e` of a network with its channels last."""
    return queries.once("channels last", lambda _: _Network()).of(e, queries)


_PROVING = 20.0  # limit: seconds of processor time of the proof of a step; tiles of four over two axes take about 5


def _prove(numerics: Numerics) -> Prove:
    def is_large(n: Dim) -> bool:
        return n.is_const and n.value > _LARGE

    return lambda left, right, facts, functions: why_not_same_network(left, right, is_large, _PROVING, numerics)


def _schema(
    name: str, doc: str, propose: Any, trials: Trials = convolutions, numerics: Numerics = "reassociate"
) -> Schema:
    conv = frozenset(("conv",))
    return Schema(name, doc, numerics, conv, propose, conv, (trials,), prove=_prove(numerics), must_prove=False)


windows = RuleSet(
    "windows",
    schemas=(
        _schema("conv_of_fewer_axes", "a convolution over an axis of size 1 is one over the other axes", _fewer_axes),
        _schema("depthwise_by_taps", "a depthwise convolution is a sum of shifts times taps", _depthwise_by_taps),
        _schema("patches_as_matmul", "a convolution is a matmul of the kernel and all patches", _patches_as_matmul),
        Schema(
            "channels_last", "a network of convolutions with channels last: one transpose at each end", "reassociate",
            frozenset(("conv", "layout")), _channels_last, _OPERATORS, (networks_of_convolutions,),
            prove=_prove("reassociate"), must_prove=False,
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
        _schema(
            "conv_by_phases", "a transposed convolution: of s results in a row, each meets its own part of the window",
            _form(by_phases), transposed_convolutions,
        ),
        _schema(
            "conv_of_blocks", "a strided convolution is one of blocks, one stride long, whose elements are channels",
            _form(of_blocks), convolutions_of_blocks,
        ),
        _schema(
            "separable_conv", "a convolution by an outer product: one axis after the other",
            _separated(ROUNDED, 1), separable_convolutions,
        ),
        _schema(
            "conv_of_low_rank", "a convolution by a constant kernel of low rank: one axis after the other",
            _separated(NEAR, MOST_RANK), separable_convolutions, "approximate",
        ),
        _schema(
            "conv_by_transforms", "a convolution: the inverse Fourier transform of a product of transforms",
            _form(_by_transforms), large_convolutions, "approximate",
        ),
        Schema(
            "windows_along_axes", "windows that overlap, over several axes: along one axis after the other",
            "reassociate", frozenset(("pool",)), _form(windows_along_axes), frozenset(("reduce_window",)),
            (windows_over_axes,),
        ),
    ),
)  # fmt: skip
