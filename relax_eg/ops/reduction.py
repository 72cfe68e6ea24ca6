"""Reductions: over axes, and to a position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from relax_eg.dtypes import HALF, dtype_of, is_integer
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.limits import LARGEST_INT32
from relax_eg.ops.attribute_values import DTYPES, FLAG, one_axis, some_axes
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.ops.on_cpus import on_cpus
from relax_eg.ops.record import Attribute, Equations, Operator, Site, register
from relax_eg.ops.shorthand import all_axes, axis_of_all
from relax_eg.ops.sizes import ZERO, need_axes, need_axis, need_elements, need_kind, product, reduced
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Index,
    Scalar,
    TensorProgram,
    cast,
    compute,
    loop,
    program,
    reduce,
)
from relax_eg.tir.expr import Axis

_AXES = (Attribute("axes", omitted=all_axes, values=some_axes), Attribute("keepdims", default=False, values=FLAG))


def loop_axes(axes: Sequence[int], shape: Sequence[Dim]) -> list[Axis]:
    """Returns a loop variable and an extent for each of `axes`."""
    return [(loop(f"k{a}"), shape[a]) for a in axes]


def interleave_indices(rank: int, axes: Sequence[int], inner: Sequence[Dim], outer: Sequence[Dim]) -> tuple[Dim, ...]:
    """Returns indices of a buffer with `rank` axes: `inner` at `axes`, `outer` in order elsewhere."""
    rest = iter(outer)
    return tuple(inner[list(axes).index(i)] if i in axes else next(rest) for i in range(rank))


def accumulator(dtype: str) -> str:
    """Returns the dtype in which sums are computed: float32 for half precision, which is too coarse for sums."""
    return dtype_of(dtype).wider.name if dtype in HALF else dtype


def _deduction(accepts: str) -> Callable[[Site], Annotation]:
    def deduce(site: Site) -> Annotation:
        dtype = need_kind(site, accepts)
        shape = site.shape()
        return Tensor(reduced(shape, need_axes(site, len(shape)), site["keepdims"]), dtype)

    return deduce


def _equations(element: Callable[[Buffer, tuple[Dim, ...], list[Axis]], Scalar]) -> Equations:
    """Returns equations of a reduction; `element(x, indices, over)` returns the result at one point."""

    def equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
        (x,) = buffers
        axes, keep = site["axes"], site["keepdims"]
        loops = loop_axes(axes, x.shape)

        def value(*i: Dim) -> Scalar:
            outer = [v for a, v in enumerate(i) if a not in axes] if keep else i
            return element(x, interleave_indices(x.rank, axes, [v for v, _ in loops], outer), loops)

        return program(site.op, buffers, compute("out", reduced(x.shape, axes, keep), value))

    return equations


def _lower(name: str) -> Callable[..., Any]:
    def lower(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
        result = getattr(lax, name)(x, axes) if axes else x
        return lax.expand_dims(result, axes) if keepdims else result

    return lower


_Kind = Literal["sum", "prod", "max", "min", "any", "all", "xor"]
_REDUCTIONS: tuple[tuple[str, _Kind, str, str, str], ...] = (
    ("sum", "sum", "reduce_sum", "iufcn", "the sum"),
    ("prod", "prod", "reduce_prod", "iufc", "the product"),
    ("max", "max", "reduce_max", "biufn", "the greatest element; NaN wins"),
    ("min", "min", "reduce_min", "biufn", "the least element; NaN wins"),
    ("any", "any", "reduce_or", "b", "whether any element is true"),
    ("all", "all", "reduce_and", "b", "whether all elements are true"),
    ("reduce_or", "any", "reduce_or", "iu", "the bits that any element has"),
    ("reduce_and", "all", "reduce_and", "iu", "the bits that all elements have"),
    ("reduce_xor", "xor", "reduce_xor", "biu", "the bits that an odd number of elements has"),
)


def _reduce(kind: _Kind) -> Equations:
    return _equations(lambda x, at, loops: reduce(kind, x[at], loops))


for _name, _kind, _primitive, _accepts, _doc in _REDUCTIONS:
    register(Operator(_name, ("x",), _deduction(_accepts), _lower(_primitive), _reduce(_kind), _AXES, doc=_doc))


def _mean_element(x: Buffer, at: tuple[Dim, ...], loops: list[Axis]) -> Scalar:
    wide = accumulator(x.dtype)
    total = reduce("sum", cast(x[at], wide), loops)
    return cast(total / Index(product(n for _, n in loops), wide), x.dtype)


def _mean(x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
    return jnp.mean(x, axis=axes, keepdims=keepdims)


register(
    Operator(
        "mean",
        ("x",),
        _deduction("fc"),
        _mean,
        _equations(_mean_element),
        _AXES,
        poles=True,
        doc="the sum divided by the count; half precision is summed in float32",
    )
)


# --- positions ---


def _position_deduce(site: Site) -> Annotation:
    need_kind(site, "biuf")
    shape = site.shape()
    axis = need_axis(site, site["axis"], len(shape))
    if shape[axis] is ZERO:
        raise site.error(f"axis {axis} is empty and has no extreme element")
    if not is_integer(site["dtype"]):
        raise site.error(f"positions of dtype {site['dtype']!r}; an integer dtype is needed")
    result = reduced(shape, (axis,), site["keepdims"])
    need_elements(shape[axis], result)
    return Tensor(result, site["dtype"])


def _position_equations(kind: Literal["argmax", "argmin"]) -> Equations:
    def equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
        (x,) = buffers
        axis, keep = site["axis"], site["keepdims"]
        k = loop("k")

        def value(*i: Dim) -> Scalar:
            outer = [v for a, v in enumerate(i) if a != axis] if keep else i
            return cast(
                reduce(kind, x[interleave_indices(x.rank, (axis,), (k,), outer)], (k, x.shape[axis])), site["dtype"]
            )

        return program(kind, buffers, compute("out", reduced(x.shape, (axis,), keep), value))

    return equations


# measured: elements of a block, by the extremes of which positions are found, and along an axis from which on that is
# faster on CPUs; and how many times as long JAX's own lowering takes then, of 16 bits and of others
# (`python -m benchmarks.patterns --cases places`)
_BLOCK, _LONG, _SLOWER_OF_HALVES, _SLOWER = 32, 128, 4.0, 1.8


def _is_by_blocks(dtype: str, axis: int, rank: int, size: float) -> bool:
    """Whether CPUs find the position by blocks: XLA has vectors for extremes of floats and bytes, in order, and none
    for positions (jax 0.10.2)."""
    known = dtype_of(dtype)
    has_vectors = not known.is_narrow and (known.is_float or (known.is_integer and known.bits == 8))
    return has_vectors and axis == rank - 1 and _LONG <= size <= LARGEST_INT32


def _slower_position(site: Site, size: Callable[[Dim], float]) -> float:
    axis, shape, dtype = site["axis"], site.shape(), site.dtype()
    if not _is_by_blocks(dtype, axis, len(shape), min(size(shape[axis]), LARGEST_INT32)):
        return 1.0
    return _SLOWER_OF_HALVES if dtype in HALF else _SLOWER


def _by_blocks(x: Any, position: Callable[[Any], Any], extreme: Callable[[Any], Any]) -> Any:
    """The `position` of the extreme along the last axis: the first block with it, and the place in that block. The
    last block overlaps the one before it where the size is no multiple of a block's: it is not the first one then
    unless the extreme is in the rest."""
    *rows, n = x.shape
    whole = n // _BLOCK * _BLOCK
    best = extreme(lax.reshape(lax.slice_in_dim(x, 0, whole, axis=len(rows)), (*rows, n // _BLOCK, _BLOCK)))
    if whole < n:
        rest = extreme(lax.slice_in_dim(x, n - _BLOCK, n, axis=len(rows)))
        best = lax.concatenate([best, lax.expand_dims(rest, (len(rows),))], len(rows))
    first = lax.min(position(best) * np.int32(_BLOCK), np.int32(n - _BLOCK))
    places = lax.expand_dims(first, (len(rows),)) + lax.iota("int32", _BLOCK)
    return first + position(jnp.take_along_axis(x, places, -1, mode="promise_in_bounds"))


def _position_lower(name: str, reduction: str) -> Callable[..., Any]:
    def lower(x: Any, *, axis: int, keepdims: bool, dtype: str) -> Any:
        # JAX turns int64 into int32 where 64 bits are disabled while it lowers, which may happen elsewhere.
        size = x.shape[axis]
        is_long = isinstance(size, int) and size > LARGEST_INT32

        def plain(x: Any) -> Any:
            return getattr(lax, name)(x, axis, "int64" if is_long else "int32")

        def by_blocks(x: Any) -> Any:
            def position(v: Any) -> Any:
                return getattr(lax, name)(v, v.ndim - 1, "int32")

            def extreme(v: Any) -> Any:
                last = (v.ndim - 1,)
                found = getattr(lax, reduction)(v, last)
                if not dtype_of(v.dtype.name).is_float:
                    return found
                # XLA for CPUs loses NaN in extremes of large float32 arrays (jax 0.10.2, YNNPACK).
                return jnp.where(lax.reduce_or(lax.ne(v, v), last), np.nan, found)

            return _by_blocks(x, position, extreme)

        is_by_blocks = isinstance(size, int) and _is_by_blocks(x.dtype.name, axis, x.ndim, size)
        found = on_cpus(by_blocks, plain)(x) if is_by_blocks else plain(x)
        result = lax.convert_element_type(found, dtype)
        return lax.expand_dims(result, (axis,)) if keepdims else result

    return lower


_POSITION = (
    Attribute("axis", omitted=axis_of_all, values=one_axis),
    Attribute("keepdims", default=False, values=FLAG),
    Attribute("dtype", default="int32", values=DTYPES),
)

_EXTREMES: tuple[tuple[Literal["argmax", "argmin"], str, str], ...] = (
    ("argmax", "reduce_max", "maximum"),
    ("argmin", "reduce_min", "minimum"),
)
for _extreme, _reduction, _word in _EXTREMES:
    register(
        Operator(
            _extreme,
            ("x",),
            _position_deduce,
            _position_lower(_extreme, _reduction),
            _position_equations(_extreme),
            _POSITION,
            below=lambda site: site.shape()[site["axis"]],
            slower=_slower_position,
            doc=f"where along the axis the first {_word} is; NaN counts as one",
        )
    )
