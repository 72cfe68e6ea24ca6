"""Elementwise operators beyond arithmetic: bits, complex numbers, special functions, reinterpretation."""

from __future__ import annotations

from typing import Any

import numpy as np

from relax_eg.dtypes import NUMBERS, dtype_of, kind
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.attribute_values import DTYPES
from relax_eg.ops.elementwise import broadcast_in_jax, elementwise, pointwise
from relax_eg.ops.record import Attribute, Operator, Site, bytes_of, deduce, register
from relax_eg.ops.sizes import broadcast, need_equal, need_kind, need_same_dtype
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Counts, TensorProgram, apply, compute, const, program

Array = np.ndarray[Any, Any]

for _name in "lgamma digamma population_count count_leading_zeros real imag conj".split():
    elementwise(_name)
elementwise("complex", doc="the complex number x + iy")
elementwise("nextafter", doc="the float beside x in the direction of y")
elementwise("igamma", parameters=("a", "x"), doc="the regularised lower incomplete gamma function")
elementwise("igammac", parameters=("a", "x"), doc="the regularised upper incomplete gamma function")
elementwise("igamma_grad_a", parameters=("a", "x"), doc="the derivative of igamma by a")
elementwise("betainc", parameters=("a", "b", "x"), doc="the regularised incomplete beta function")
elementwise("polygamma", parameters=("n", "x"), doc="the nth derivative of digamma")
elementwise("zeta", parameters=("x", "q"), doc="the Hurwitz zeta function")
elementwise("bessel_i0e", doc="the modified Bessel function of order 0, scaled by exp(-abs(x))")
elementwise("bessel_i1e", doc="the modified Bessel function of order 1, scaled by exp(-abs(x))")
# the total order of floats: NaN is the greatest, and -0 is below 0
elementwise("less_total", doc="x < y in the total order of floats")
elementwise("less_equal_total", doc="x <= y in the total order of floats")
elementwise("equal_total", doc="whether x and y have the same place in the total order of floats")


# --- logical shifts of signed integers ---


def _logical_shift(site: Site) -> Annotation:
    need_same_dtype(site, (0, 1))
    return Tensor(broadcast(site, [site.shape(0), site.shape(1)]), need_kind(site, "i"))


register(
    Operator(
        "right_shift_logical",
        ("x", "y"),
        _logical_shift,
        broadcast_in_jax("shift_right_logical"),
        pointwise(lambda site, x, y: apply("shift_right_logical", x, y)),
        doc="x >> y for signed integers, with zeros moved in from the left",
    )
)


# --- floats of less precision ---


def _reduce_precision(site: Site) -> Annotation:
    dtype = need_kind(site, "f")
    exponent, mantissa = site["exponent_bits"], site["mantissa_bits"]
    if not (isinstance(exponent, int) and isinstance(mantissa, int) and exponent >= 1 and mantissa >= 0):
        raise site.error("accepted: integers, at least 1 bit of exponent and 0 of mantissa")
    return Tensor(site.shape(), dtype)


register(
    Operator(
        "reduce_precision",
        ("x",),
        _reduce_precision,
        "jax.lax.reduce_precision",
        pointwise(
            lambda site, x: apply(
                "reduce_precision", x, const(site["exponent_bits"], "int32"), const(site["mantissa_bits"], "int32")
            )
        ),
        (Attribute("exponent_bits"), Attribute("mantissa_bits")),
        doc="x rounded to a float of fewer bits, in its own dtype",
    )
)


# --- bits read as another dtype ---


def _bitcast(site: Site) -> Annotation:
    dtype, target, shape = site.dtype(), site["dtype"], site.shape()
    need_kind(site, "iufn")
    if target not in NUMBERS or kind(target) not in "iuf" or dtype_of(target).bits < 8:
        raise site.error(f"dtype {target!r}; an integer or float dtype of whole bytes is needed")
    have, want = dtype_of(dtype).bits, dtype_of(target).bits
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


def _bitcast_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram | None:
    (x,) = buffers
    if dtype_of(x.dtype).bits != dtype_of(site["dtype"]).bits:
        return None
    return program("bitcast", buffers, compute("out", x.shape, lambda *i: apply(f"bits_as_{site['dtype']}", x[i])))


def _copied(site: Site) -> Counts:
    return Counts(Dim.of(0), bytes_of(site.operands[0]), bytes_of(deduce(site.op, site.operands, site.attrs)))


register(
    Operator(
        "bitcast",
        ("x",),
        _bitcast,
        "jax.lax.bitcast_convert_type",
        _bitcast_equations,
        (Attribute("dtype", values=DTYPES),),
        _bitcast_reference,
        _copied,
        capacity="bitcast",
        doc="the same bits as another dtype; where widths differ a last axis holds the parts",
    )
)
