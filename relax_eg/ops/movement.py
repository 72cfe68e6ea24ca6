"""Operators that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax_eg.dtypes import dtype_of, is_key
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import Expr
from relax_eg.ops.attribute_values import DIAGONALS, INTERIORS, STRIDES, one_axis, one_of, permutations, some_axes
from relax_eg.ops.elementwise import read_aligned
from relax_eg.ops.lazy_jax import lax
from relax_eg.ops.positions import as_index, jax_positions, read_padded
from relax_eg.ops.record import Attribute, Deduce, Equations, Operator, Site, register
from relax_eg.ops.regroup import regroup
from relax_eg.ops.shorthand import all_axes, all_ones, all_reversed, axes_of_size_1, axis_of_all
from relax_eg.ops.sizes import (
    ONE,
    ZERO,
    Dims,
    dilated,
    may_equal,
    need_at_most,
    need_axes,
    need_axis,
    need_elements,
    need_equal,
    need_kind,
    need_length,
    need_same_dtype,
    product,
    reduced,
    remaining_size,
)
from relax_eg.shapes import Dim, ceildiv
from relax_eg.tir import (
    Buffer,
    Index,
    Scalar,
    Stage,
    TensorProgram,
    compute,
    const,
    less,
    less_equal,
    maximum,
    minimum,
    program,
    select,
    within,
)

MODES = ("clip", "fill", "promise")


def _moved_dtype(site: Site) -> str:
    """Returns the dtype of operand 0, which may be any."""
    return need_kind(site, "biufckn")


def _permute_dims(site: Site) -> Annotation:
    shape = site.shape()
    axes = need_length(site, "axes", len(shape), "the operand")
    if sorted(axes) != list(range(len(shape))):
        raise site.error(f"axes must name each of 0 to {len(shape) - 1} once")
    return Tensor(tuple(shape[a] for a in axes), _moved_dtype(site))


def _reshape(site: Site) -> Annotation:
    have = site.shape()
    shape: Dims = site["shape"]
    # `expand_short_forms` has replaced a size of -1 by a quotient. Whether it is exact may depend on size variables.
    left_over = any(remaining_size(have, (*shape[:i], *shape[i + 1 :])) is d for i, d in enumerate(shape))
    (may_equal if left_over else need_equal)(site, product(have), product(shape), "the number of elements changes")
    return Tensor(shape, _moved_dtype(site))


def _expand_dims(site: Site) -> Annotation:
    shape = iter(site.shape())
    rank = len(site.shape()) + len(site["axes"])
    axes = need_axes(site, rank)
    return Tensor(tuple(ONE if i in axes else next(shape) for i in range(rank)), _moved_dtype(site))


def _squeeze(site: Site) -> Annotation:
    shape = site.shape()
    for axis in (axes := need_axes(site, len(shape))):
        need_equal(site, shape[axis], ONE, f"axis {axis} cannot be squeezed")
    return Tensor(reduced(shape, axes, False), _moved_dtype(site))


def _broadcast_to(site: Site) -> Annotation:
    have, want = site.shape(), site["shape"]
    if len(have) > len(want):
        raise site.error(f"rank {len(have)} does not broadcast to rank {len(want)}")
    for i, d in enumerate(reversed(have)):
        if d is not ONE:
            need_equal(site, d, want[-1 - i], f"axis {-1 - i} does not broadcast")
    return Tensor(want, _moved_dtype(site))


def _concat(site: Site) -> Annotation:
    if not site.operands:
        raise site.error("at least one operand is needed")
    need_same_dtype(site, range(len(site.operands)))
    first = site.shape(0)
    axis = need_axis(site, site["axis"], len(first))
    total, fits = first[axis], True
    for i in range(1, len(site.operands)):
        shape = site.shape(i)
        if len(shape) != len(first):
            raise site.error(f"operand {i} has rank {len(shape)}, operand 0 rank {len(first)}")
        for a, (p, q) in enumerate(zip(first, shape, strict=True)):
            if a != axis:
                fits &= may_equal(site, p, q, f"operands 0 and {i} do not fit together on axis {a}")
        total = total + shape[axis]
    if not fits:
        return Tensor(dtype=_moved_dtype(site), ndim=len(first))
    return Tensor((*first[:axis], total, *first[axis + 1 :]), _moved_dtype(site))


def _split(site: Site) -> Annotation:
    shape = site.shape()
    axis = need_axis(site, site["axis"], len(shape))
    sections: Dims = site["sections"]
    total = ZERO
    for s in sections:
        need_at_most(site, ZERO, s, "a section")
        total = total + s
    need_equal(site, total, shape[axis], f"the sections do not make up axis {axis}")
    return Tuple(tuple(Tensor((*shape[:axis], s, *shape[axis + 1 :]), _moved_dtype(site)) for s in sections))


def _strided_slice(site: Site) -> Annotation:
    shape = site.shape()
    begin, end, strides = (need_length(site, name, len(shape), "the operand") for name in ("begin", "end", "strides"))
    sizes: list[Dim] = []
    for axis, (size, low, high, stride) in enumerate(zip(shape, begin, end, strides, strict=True)):
        if not isinstance(stride, int) or stride < 1:
            raise site.error(f"stride {stride} on axis {axis}; strides are integers >= 1")
        need_at_most(site, ZERO, low, f"begin on axis {axis}")
        need_at_most(site, low, high, f"begin and end on axis {axis}")
        need_at_most(site, high, size, f"end and size of axis {axis}")
        sizes.append(ceildiv(high - low, stride))
    return Tensor(tuple(sizes), _moved_dtype(site))


def _pad(site: Site) -> Annotation:
    shape = site.shape()
    need_same_dtype(site, (0, 1))
    if site.shape(1) != ():
        raise site.error("the padding value, operand 1, must be a scalar")
    low, high, interior = (need_length(site, name, len(shape), "the operand") for name in ("low", "high", "interior"))
    sizes: list[Dim] = []
    for axis, (size, before, after, between) in enumerate(zip(shape, low, high, interior, strict=True)):
        if not isinstance(between, int) or between < 0:
            raise site.error(f"interior {between} on axis {axis}; integers >= 0 are accepted")
        sizes.append(before + dilated(size, between) + after)
        need_at_most(site, ZERO, sizes[-1], f"the padded size of axis {axis}")
    return Tensor(tuple(sizes), need_kind(site, "biufcn"))


def _take(site: Site) -> Annotation:
    shape, indices = site.shape(0), site.shape(1)
    axis = need_axis(site, site["axis"], len(shape))
    need_kind(site, "iu", 1)
    if site["mode"] not in MODES:
        raise site.error(f"mode {site['mode']!r}; accepted: {', '.join(MODES)}")
    if site["mode"] == "fill" and is_key(site.dtype()):
        raise site.error("there is no key to fill with; mode clip or promise is needed")
    if shape[axis] is ZERO and ZERO not in indices:
        raise site.error(f"axis {axis} has no elements to take")
    if site["mode"] != "fill":
        need_elements(shape[axis], indices)
    return Tensor((*shape[:axis], *indices, *shape[axis + 1 :]), _moved_dtype(site))


def _promised(site: Site) -> tuple[int, Dim] | None:
    return (1, site.shape(0)[site["axis"]]) if site["mode"] == "promise" else None


def _flip(site: Site) -> Annotation:
    need_axes(site, len(site.shape()))
    return Tensor(site.shape(), _moved_dtype(site))


def _triangle(site: Site) -> Annotation:
    if len(site.shape()) < 2:
        raise site.error(f"rank {len(site.shape())} has no last two axes; rank 2 or more is needed")
    return Tensor(site.shape(), need_kind(site, "biufcn"))


# --- equations ---


def _move_equations(deduce: Deduce, where: Callable[[Site, tuple[Dim, ...], Dims], Sequence[Dim]]) -> Equations:
    """Returns equations of a pure move; `where(site, i, shape)` returns the operand's index for result element `i`."""

    def equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
        (x,) = buffers
        result = deduce(site)
        assert isinstance(result, Tensor) and result.shape is not None
        return program(site.op, buffers, compute("out", result.shape, lambda *i: x[tuple(where(site, i, x.shape))]))

    return equations


def _permuted(site: Site, i: tuple[Dim, ...], shape: Dims) -> Sequence[Dim]:
    axes: tuple[int, ...] = site["axes"]
    return [i[axes.index(a)] for a in range(len(shape))]


def _regrouped(site: Site, i: tuple[Dim, ...], shape: Dims) -> Sequence[Dim]:
    return regroup(i, site["shape"], shape)


def _expanded(site: Site, i: tuple[Dim, ...], shape: Dims) -> Sequence[Dim]:
    return [v for a, v in enumerate(i) if a not in site["axes"]]


def _squeezed(site: Site, i: tuple[Dim, ...], shape: Dims) -> Sequence[Dim]:
    rest = iter(i)
    return [ZERO if a in site["axes"] else next(rest) for a in range(len(shape))]


def _sliced(site: Site, i: tuple[Dim, ...], shape: Dims) -> Sequence[Dim]:
    return [low + v * step for low, v, step in zip(site["begin"], i, site["strides"], strict=True)]


def _flipped(site: Site, i: tuple[Dim, ...], shape: Dims) -> Sequence[Dim]:
    return [shape[a] - 1 - v if a in site["axes"] else v for a, v in enumerate(i)]


def _broadcast_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    shape: Dims = site["shape"]
    return program("broadcast_to", buffers, compute("out", shape, lambda *i: read_aligned(buffers[0], i, shape)))


def _concat_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    axis = site["axis"]
    starts = [ZERO]
    for b in buffers:
        starts.append(starts[-1] + b.shape[axis])

    def element(*i: Dim) -> Scalar:
        def read(n: int) -> Scalar:
            return buffers[n][(*i[:axis], i[axis] - starts[n], *i[axis + 1 :])]

        def among(first: int, end: int) -> Scalar:
            if end - first == 1:
                return read(first)
            half = (first + end) // 2  # conditions are nested as deep as the logarithm of the number of operands
            return select(less(Index(i[axis]), Index(starts[half])), among(first, half), among(half, end))

        return among(0, len(buffers))

    shape = buffers[0].shape
    return program("concat", buffers, compute("out", (*shape[:axis], starts[-1], *shape[axis + 1 :]), element))


def _split_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    (x,) = buffers
    axis, start = site["axis"], ZERO
    stages: list[Stage] = []
    for n, size in enumerate(site["sections"]):

        def element(*i: Dim, at: Dim = start) -> Scalar:
            return x[(*i[:axis], at + i[axis], *i[axis + 1 :])]

        stages.append(compute(f"out{n}", (*x.shape[:axis], size, *x.shape[axis + 1 :]), element))
        start = start + size
    return program("split", buffers, *stages)


def _pad_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, value = buffers
    low, high, interior = site["low"], site["high"], site["interior"]
    shape = [b + dilated(n, r) + a for n, b, a, r in zip(x.shape, low, high, interior, strict=True)]

    def element(*i: Dim) -> Scalar:
        return read_padded(x, i, low, high, interior, value[()])

    return program("pad", buffers, compute("out", shape, element))


def fill_value(dtype: str) -> Any:
    """Returns the fill value of `take`: NaN, the least signed or greatest unsigned integer, or True."""
    if dtype == "bool":
        return True
    record = dtype_of(dtype)
    if record.is_integer:
        return record.greatest if record.kind == "u" else record.least
    return float("nan")


def _take_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, indices = buffers
    axis, mode = site["axis"], site["mode"]
    size = x.shape[axis]

    def element(*i: Dim) -> Scalar:
        at: Scalar = indices[i[axis : axis + indices.rank]]
        if mode != "promise":
            at = as_index(at)
        chosen = minimum(maximum(at, 0), size - 1) if mode == "clip" else at
        read = x[(*i[:axis], chosen, *i[axis + indices.rank :])]
        if mode == "fill":
            return select(within(0, at, size), read, const(fill_value(x.dtype), x.dtype))
        return read

    return program("take", buffers, compute("out", (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), element))


def _triangle_equations(upper: bool) -> Equations:
    def equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
        (x,) = buffers
        k = site["k"]

        def element(*i: Dim) -> Scalar:
            row, column = Index(i[-2] + k), Index(i[-1])
            kept = less_equal(row, column) if upper else less_equal(column, row)
            return select(kept, x[i], const(0, x.dtype))

        return program(site.op, buffers, compute("out", x.shape, element))

    return equations


# --- transposes ---

_PERMUTE = "permute_dims"


def swaps_last_axes(e: Expr) -> bool:
    """Returns whether `e` is the transpose of a matrix, or of each matrix of a batch."""
    n = e.ndim if e.op == _PERMUTE else 0
    return n > 1 and e.attr("axes") == (*range(n - 2), n - 1, n - 2)


def is_transpose(e: Expr) -> bool:
    """Returns whether `e` is the transpose of a matrix."""
    return swaps_last_axes(e) and e.ndim == 2


def moves_last_axis(site: Site) -> bool:
    """Returns whether a use is a transpose that moves the last axis."""
    return site.op == _PERMUTE and site["axes"][-1] != len(site["axes"]) - 1


def interleaves(site: Site) -> bool:
    """Returns whether a use puts operands of one element along the last axis side by side, as `stack` does there."""
    if site.op != "concat":
        return False
    shapes = [site.shape(i) for i in range(len(site.operands))]
    return site["axis"] % len(shapes[0]) == len(shapes[0]) - 1 and all(s[-1] == ONE for s in shapes)


# --- lowering ---


def _jax_broadcast_to(x: Any, *, shape: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - x.ndim, len(shape))))


def _as_bytes(move: Callable[..., Any], *arrays: Any) -> Any:
    """`move` of arrays of one dtype; of integers of 2 bits as bytes: XLA aborts the process where it joins these (jax
    0.10.2)."""
    dtype = dtype_of(arrays[0].dtype.name)
    if dtype.bits >= 4:
        return move(*arrays)
    return move(*(a.astype(dtype.wider.name) for a in arrays)).astype(dtype.name)


def _jax_concat(*xs: Any, axis: int) -> Any:
    return _as_bytes(lambda *xs: lax.concatenate(xs, axis), *xs)


def _jax_pad(x: Any, value: Any, *, low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...]) -> Any:
    widths = tuple(zip(low, high, interior, strict=True))
    return _as_bytes(lambda x, value: lax.pad(x, value, widths), x, value)


def _jax_take(x: Any, indices: Any, *, axis: int, mode: str) -> Any:
    # Calls `lax.gather`, as `jax.numpy.take` would wrap negative indices first.
    rank = indices.ndim
    kept = tuple(range(axis)) + tuple(range(axis + rank, x.ndim - 1 + rank))
    numbers = lax.GatherDimensionNumbers(offset_dims=kept, collapsed_slice_dims=(axis,), start_index_map=(axis,))
    sizes = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
    modes = {"clip": "clip", "fill": "fill", "promise": "promise_in_bounds"}
    starts = lax.expand_dims(indices, (rank,))
    if mode != "promise":
        starts = jax_positions(starts, [x.shape[axis]])
    return lax.gather(x, starts, numbers, sizes, mode=modes[mode])


# --- records ---

_X = ("x",)
_ALL_AXES = (Attribute("axes", omitted=all_axes, values=some_axes),)
_FIRST_AXIS = Attribute("axis", omitted=0, values=one_axis)  # given: as in Relax
_SHAPE = (Attribute("shape", "dims"),)
MODE = Attribute("mode", values=one_of(*MODES))
_K = (Attribute("k", default=0, values=DIAGONALS),)  # given: 0 is the main diagonal, as in numpy

for _operator in (
    Operator(_PERMUTE, _X, _permute_dims, "jax.lax.transpose", _move_equations(_permute_dims, _permuted),
             (Attribute("axes", omitted=all_reversed, values=permutations),), moves="order",
             doc="axes reordered: axis i of the result is axes[i] of the operand"),
    Operator("reshape", _X, _reshape, "jax.lax.reshape", _move_equations(_reshape, _regrouped), _SHAPE,
             moves="view", capacity="reshape", doc="the same elements in order in another shape"),
    Operator("expand_dims", _X, _expand_dims, "jax.lax.expand_dims", _move_equations(_expand_dims, _expanded),
             (Attribute("axes", values=some_axes),), moves="view",
             doc="axes of size 1 put in; axes count in the result"),
    Operator("squeeze", _X, _squeeze, "jax.lax.squeeze", _move_equations(_squeeze, _squeezed),
             (Attribute("axes", omitted=axes_of_size_1, values=some_axes),), moves="view",
             doc="axes of size 1 taken out; axes count in the operand"),
    Operator("broadcast_to", _X, _broadcast_to, _jax_broadcast_to, _broadcast_equations, _SHAPE,
             moves="repeat", doc="numpy.broadcast_to"),
    Operator("concat", ("*x",), _concat, _jax_concat, _concat_equations, (_FIRST_AXIS,),
             moves="join", kernel="copy", capacity="concat", doc="operands joined along an axis"),
    Operator("split", _X, _split, "jax.lax.split", _split_equations,
             (Attribute("sections", "dims"), _FIRST_AXIS),
             capacity="split", doc="a tuple of consecutive slices of the given sizes"),
    Operator("strided_slice", _X, _strided_slice, "jax.lax.slice", _move_equations(_strided_slice, _sliced),
             (Attribute("begin", "dims"), Attribute("end", "dims"),
              Attribute("strides", omitted=all_ones, values=STRIDES)),
             moves="part", capacity="strided_slice",
             doc="x[begin:end:strides] on every axis; 0 <= begin <= end <= size is a precondition"),
    Operator("pad", ("x", "value"), _pad, _jax_pad, _pad_equations,
             (Attribute("low", "dims"), Attribute("high", "dims"), Attribute("interior", values=INTERIORS)),
             kernel="copy", doc="a scalar put before, after and between elements; negative widths cut"),
    Operator("take", ("x", "indices"), _take, _jax_take, _take_equations,
             (Attribute("axis", omitted=axis_of_all, values=one_axis), MODE),
             moves="select", kernel="copy", promised=_promised,
             doc="elements at indices along an axis; out of range: clip, fill, or promise there is none"),
    Operator("flip", _X, _flip, "jax.lax.rev", _move_equations(_flip, _flipped), _ALL_AXES,
             moves="order", capacity="flip", doc="order reversed along axes"),
    Operator("triu", _X, _triangle, "jax.numpy.triu", _triangle_equations(True), _K,
             doc="zeros below diagonal k of the last two axes"),
    Operator("tril", _X, _triangle, "jax.numpy.tril", _triangle_equations(False), _K,
             doc="zeros above diagonal k of the last two axes"),
):  # fmt: skip
    register(_operator)
