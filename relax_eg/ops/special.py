"""Elementwise operators beyond arithmetic: bits, complex numbers, special functions, reinterpretation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from relax_eg.ir.annotations import ITEM_BITS, Annotation, Tensor
from relax_eg.ops.elementwise import elementwise, jax_function, pointwise
from relax_eg.ops.record import Attribute, Operator, Site, bytes_of, deduce, register
from relax_eg.ops.sizes import ONE, broadcast, need_equal, need_kind, need_same_dtype, product
from relax_eg.shapes import Dim
from relax_eg.tir import Counts, Scalar, apply, cast
from relax_eg.tir.functions import SPECIAL

Array = np.ndarray[Any, Any]

for _name, _scalar, _primitive, _accepts in (
    ("lgamma", "lgamma", "lgamma", "f"),
    ("digamma", "digamma", "digamma", "f"),
    ("population_count", "population_count", "population_count", "iu"),
    ("count_leading_zeros", "count_leading_zeros", "clz", "iu"),
    ("real", "real", "real", "c"),
    ("imag", "imag", "imag", "c"),
    ("conj", "conj", "conj", "c"),
):
    elementwise(_name, ("x",), _scalar, _accepts, f"jax.lax.{_primitive}")

elementwise("complex", ("x", "y"), "complex", "f", jax_function("complex"), "the complex number x + iy")


# --- shifts that read the bits otherwise than their dtype says ---


def _logical_shift(site: Site) -> Annotation:
    need_same_dtype(site, (0, 1))
    return Tensor(broadcast(site, [site.shape(0), site.shape(1)]), need_kind(site, "i"))


register(
    Operator(
        "right_shift_logical",
        ("x", "y"),
        _logical_shift,
        jax_function("shift_right_logical"),
        pointwise(lambda site, x, y: apply("shift_right_logical", x, y)),
        doc="x >> y for signed integers, with zeros moved in from the left",
    )
)


# --- floats of less precision ---

# Bits of exponent and mantissa of the dtypes that a value may be rounded to without leaving its own dtype.
FORMATS = {(8, 7): "bfloat16", (8, 23): "float32", (11, 52): "float64"}


def _reduce_precision(site: Site) -> Annotation:
    dtype = need_kind(site, "f")
    form = FORMATS.get((site["exponent_bits"], site["mantissa_bits"]))
    if form is None or ITEM_BITS[dtype] < 32:
        accepted = " or ".join(f"{e} and {m}" for e, m in FORMATS)
        raise site.error(f"accepted: {accepted} bits of exponent and mantissa, and float32 or float64 is needed")
    return Tensor(site.shape(), dtype)


def _reduced(site: Site, x: Scalar) -> Scalar:
    return cast(cast(x, FORMATS[site["exponent_bits"], site["mantissa_bits"]]), x.dtype)


def _jax_reduce_precision(x: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    from jax import lax

    return lax.reduce_precision(x, exponent_bits, mantissa_bits)


register(
    Operator(
        "reduce_precision",
        ("x",),
        _reduce_precision,
        _jax_reduce_precision,
        pointwise(_reduced),
        (Attribute("exponent_bits"), Attribute("mantissa_bits")),
        doc="x rounded to a float of fewer bits, in its own dtype",
    )
)


# --- without a scalar function of the equations ---


def _cost(weight: int) -> Callable[[Site], Counts]:
    def cost(site: Site) -> Counts:
        result = deduce(site.op, site.operands, site.attrs)
        read = Dim.of(0)
        for a in site.operands:
            read = read + bytes_of(a)
        elements = product(result.shape or ()) if isinstance(result, Tensor) else ONE
        return Counts(elements * weight, read, bytes_of(result))

    return cost


def _by_numpy(function: Callable[..., Any]) -> Callable[..., Array]:
    """A reference that computes in float64, or float32 where the operands are narrower, and rounds once."""

    def reference(*xs: Array) -> Array:
        with np.errstate(all="ignore"):
            made = function(*(x.astype(np.float64) for x in xs))
        return np.asarray(made).astype(xs[0].dtype)

    return reference


def _floats(site: Site) -> Annotation:
    dtype = need_same_dtype(site, range(len(site.operands)))
    need_kind(site, "f")
    if ITEM_BITS[dtype] < 32:
        raise site.error(f"operand 0 is {dtype}; float32 or float64 is needed")
    return Tensor(broadcast(site, [site.shape(i) for i in range(len(site.operands))]), dtype)


def _nextafter(x: Array, y: Array) -> Array:
    return np.nextafter(x, y)


_OTHERS: tuple[tuple[str, tuple[str, ...], Callable[..., Any], str, int, str], ...] = (
    ("nextafter", ("x", "y"), _nextafter, "nextafter", 4, "the float beside x in the direction of y"),
    ("igamma", ("a", "x"), _by_numpy(scipy.special.gammainc), "igamma", 8 * SPECIAL,
     "the regularised lower incomplete gamma function"),
    ("igammac", ("a", "x"), _by_numpy(scipy.special.gammaincc), "igammac", 8 * SPECIAL,
     "the regularised upper incomplete gamma function"),
    ("betainc", ("a", "b", "x"), _by_numpy(scipy.special.betainc), "betainc", 8 * SPECIAL,
     "the regularised incomplete beta function"),
    ("polygamma", ("n", "x"), _by_numpy(scipy.special.polygamma), "polygamma", 8 * SPECIAL,
     "the nth derivative of digamma"),
    ("zeta", ("x", "q"), _by_numpy(scipy.special.zeta), "zeta", 8 * SPECIAL, "the Hurwitz zeta function"),
    ("bessel_i0e", ("x",), _by_numpy(scipy.special.i0e), "bessel_i0e", SPECIAL,
     "the modified Bessel function of order 0, scaled by exp(-abs(x))"),
    ("bessel_i1e", ("x",), _by_numpy(scipy.special.i1e), "bessel_i1e", SPECIAL,
     "the modified Bessel function of order 1, scaled by exp(-abs(x))"),
)  # fmt: skip

for _name, _parameters, _reference, _primitive, _weight, _doc in _OTHERS:
    register(
        Operator(_name, _parameters, _floats, jax_function(_primitive), None, (), _reference, _cost(_weight), doc=_doc)
    )


# --- bits read as another dtype ---


def _bitcast(site: Site) -> Annotation:
    dtype, target, shape = site.dtype(), site["dtype"], site.shape()
    need_kind(site, "iuf")
    if target not in ITEM_BITS or target == "bool" or target.startswith("complex") or ITEM_BITS[target] < 8:
        raise site.error(f"dtype {target!r}; an integer or float dtype of whole bytes is needed")
    have, want = ITEM_BITS[dtype], ITEM_BITS[target]
    if have < 8:
        raise site.error(f"operand 0 is {dtype}; a dtype of whole bytes is needed")
    if have > want:
        shape = (*shape, Dim.of(have // want))
    elif have < want:
        if not shape:
            raise site.error(f"a scalar {dtype} is no {target}; a last axis of {want // have} is needed")
        need_equal(site, shape[-1], Dim.of(want // have), "the last axis, and the elements in one of the result")
        shape = shape[:-1]
    return Tensor(shape, target)


def _bitcast_reference(x: Array, *, dtype: str) -> Array:
    have, want = x.dtype.itemsize, np.dtype(dtype).itemsize
    x = np.ascontiguousarray(x).reshape(x.shape)
    if have == want:
        return x.view(dtype)
    shape = (*x.shape, have // want) if have > want else x.shape[:-1]
    return np.frombuffer(x.tobytes(), np.dtype(dtype)).reshape(shape)


def _jax_bitcast(x: Any, *, dtype: str) -> Any:
    from jax import lax

    return lax.bitcast_convert_type(x, dtype)


register(
    Operator(
        "bitcast",
        ("x",),
        _bitcast,
        _jax_bitcast,
        None,
        (Attribute("dtype"),),
        _bitcast_reference,
        _cost(0),
        doc="the same bits as another dtype; where widths differ a last axis holds the parts",
    )
)
