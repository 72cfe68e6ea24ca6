"""Reductions: over axes, and to a position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from relax_eg.dtypes import HALF, dtype_of, is_integer
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.limits import LARGEST_INT32
from relax_eg.ops.attribute_values import DTYPES, FLAG, one_axis, some_axes
from relax_eg.ops.lazy_jax import jnp, lax
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


def _position_lower(name: str) -> Callable[..., Any]:
    def lower(x: Any, *, axis: int, keepdims: bool, dtype: str) -> Any:
        # JAX turns int64 into int32 where 64 bits are disabled while it lowers, which may happen elsewhere.
        is_long = isinstance(x.shape[axis], int) and x.shape[axis] > LARGEST_INT32
        found = getattr(lax, name)(x, axis, "int64" if is_long else "int32")
        result = lax.convert_element_type(found, dtype)
        return lax.expand_dims(result, (axis,)) if keepdims else result

    return lower


_POSITION = (
    Attribute("axis", omitted=axis_of_all, values=one_axis),
    Attribute("keepdims", default=False, values=FLAG),
    Attribute("dtype", default="int32", values=DTYPES),
)

_EXTREMES: tuple[tuple[Literal["argmax", "argmin"], str], ...] = (("argmax", "maximum"), ("argmin", "minimum"))
for _extreme, _word in _EXTREMES:
    register(
        Operator(
            _extreme,
            ("x",),
            _position_deduce,
            _position_lower(_extreme),
            _position_equations(_extreme),
            _POSITION,
            below=lambda site: site.shape()[site["axis"]],
            doc=f"where along the axis the first {_word} is; NaN counts as one",
        )
    )
