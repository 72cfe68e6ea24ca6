"""Contraction: matmul, and linear, a matmul whose weight is stored output axis first."""

from __future__ import annotations

from typing import Any

from relax_eg.ir.annotations import ITEM_BITS, Annotation, Tensor
from relax_eg.ops.elementwise import read_aligned
from relax_eg.ops.record import Attribute, Operator, Site, register
from relax_eg.ops.sizes import Dims, broadcast, need_equal, need_kind, need_same_dtype
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Scalar, TensorProgram, cast, compute, loop, program, sum_
from relax_eg.tir.functions import kind

PRECISIONS = (None, "default", "high", "highest")


def _result(site: Site) -> tuple[Dims, Dim]:
    """The result's shape and the size contracted."""
    a, b = site.shape(0), site.shape(1)
    if not a or not b:
        raise site.error("a scalar has no axis to contract; multiply scales")
    inner = b[0] if len(b) == 1 else b[-2]
    need_equal(site, a[-1], inner, f"axis {len(a) - 1} of operand 0 meets axis {max(len(b) - 2, 0)} of operand 1")
    batch = broadcast(site, [a[:-2], b[:-2]])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())), a[-1]


def accumulates(dtype: str, out: str) -> bool:
    """Whether products of `dtype` may be summed as `out`, by XLA's rules."""
    if out not in ITEM_BITS or ITEM_BITS[out] < ITEM_BITS[dtype]:
        return False
    return kind(out) in {"i": "if", "u": "uif", "f": "f", "c": "c"}[kind(dtype)]


def need_precision(site: Site) -> None:
    """Attribute `precision`: one of `PRECISIONS`."""
    if site["precision"] not in PRECISIONS:
        raise site.error(f"precision {site['precision']!r}; accepted: {', '.join(map(str, PRECISIONS))}")


def _deduce(site: Site) -> Annotation:
    dtype = need_same_dtype(site, (0, 1))
    need_kind(site, "iufc")
    need_precision(site)
    out = site["out_dtype"]
    if out is not None and not accumulates(dtype, out):
        raise site.error(
            f"out_dtype {out!r}; a dtype of the same kind is needed, or a float for integers, not narrower"
        )
    return Tensor(_result(site)[0], out or dtype)


def _equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    a, b = buffers
    shape, inner = _result(site)
    out = site["out_dtype"] or a.dtype
    k = loop("k")

    def element(*i: Dim) -> Scalar:
        rank = len(shape) - min(a.rank - 1, 1) - min(b.rank - 1, 1)
        batch, rest = i[:rank], i[rank:]
        row, column = rest[: min(a.rank - 1, 1)], rest[min(a.rank - 1, 1) :]
        lead = shape[:rank]
        x = read_aligned(a, (*batch, *row, k)[-a.rank :], (*lead, *a.shape[-2:])[-a.rank :])
        y = read_aligned(b, (*batch, k, *column)[-b.rank :], (*lead, *b.shape[-2:])[-b.rank :])
        return sum_(cast(x, out) * cast(y, out), (k, inner))

    return program("matmul", buffers, compute("out", shape, element))


def _lower(a: Any, b: Any, *, precision: str | None, out_dtype: str | None) -> Any:
    import jax.numpy as jnp

    return jnp.matmul(a, b, precision=precision, preferred_element_type=out_dtype)


register(
    Operator(
        "matmul",
        ("a", "b"),
        _deduce,
        _lower,
        _equations,
        (Attribute("precision", default=None), Attribute("out_dtype", default=None)),
        doc="numpy.matmul: leading axes are batches, which broadcast; a vector is a row left, a column right",
    )
)


def _linear_result(site: Site) -> tuple[Dims, Dim]:
    x, w = site.shape(0), site.shape(1)
    if not x or len(w) != 2:
        raise site.error(f"an operand of rank 1 or more and a matrix are needed, got ranks {len(x)} and {len(w)}")
    need_equal(site, x[-1], w[1], f"axis {len(x) - 1} of operand 0 meets axis 1 of operand 1")
    return (*x[:-1], w[0]), x[-1]


def _linear_deduce(site: Site) -> Annotation:
    dtype = need_same_dtype(site, (0, 1))
    need_kind(site, "iufc")
    return Tensor(_linear_result(site)[0], dtype)


def _linear_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, w = buffers
    shape, inner = _linear_result(site)
    k = loop("k")

    def element(*i: Dim) -> Scalar:
        return sum_(x[(*i[:-1], k)] * w[i[-1], k], (k, inner))

    return program("linear", buffers, compute("out", shape, element))


def _linear_lower(x: Any, weight: Any) -> Any:
    # Spelled with the transpose: XLA reads the weight where it lies, and for one row makes a parallel loop of it on
    # CPU, which it does not for a dot that contracts the second axis of both.
    return x @ weight.T


register(
    Operator(
        "linear",
        ("x", "weight"),
        _linear_deduce,
        _linear_lower,
        _linear_equations,
        doc="x @ weight.T for a weight (out, in): the same product, read along the other axis of memory",
    )
)
