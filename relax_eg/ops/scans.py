"""Running reductions along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from relax_eg.dtypes import itemsize
from relax_eg.ir.annotations import Annotation
from relax_eg.ops.attribute_values import FLAG, one_axis
from relax_eg.ops.record import Attribute, Equations, Operator, Site, register
from relax_eg.ops.reduction import accumulator
from relax_eg.ops.shorthand import axis_of_all
from relax_eg.ops.sizes import need_axis, need_kind, operand_annotation, product
from relax_eg.ops.windows import identity
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Counts,
    Index,
    Scalar,
    TensorProgram,
    apply,
    cast,
    compute,
    const,
    exp,
    less_equal,
    log,
    loop,
    program,
    reduce,
    select,
)

_Kind = Literal["sum", "prod", "max", "min"]


def _deduction(accepts: str) -> Callable[[Site], Annotation]:
    def deduce(site: Site) -> Annotation:
        need_kind(site, accepts)
        need_axis(site, site["axis"], len(site.shape()))
        return operand_annotation(site)

    return deduce


def _running(site: Site, x: Buffer, i: tuple[Dim, ...], kind: _Kind, element: Callable[[Scalar], Scalar]) -> Scalar:
    """Returns the reduction of `element` over all positions up to `i`, or from `i` on with `reverse`."""
    axis, k = site["axis"], loop("k")
    first, last = (i[axis], k) if site["reverse"] else (k, i[axis])
    value = element(x[(*i[:axis], k, *i[axis + 1 :])])
    nothing = const(identity(kind, value.dtype), value.dtype)
    return reduce(kind, select(less_equal(Index(first), Index(last)), value, nothing), (k, x.shape[axis]))


def _equations(kind: _Kind) -> Equations:
    def equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
        (x,) = buffers
        return program(site.op, buffers, compute("out", x.shape, lambda *i: _running(site, x, i, kind, lambda v: v)))

    return equations


def _logsumexp_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    """Subtracts the running maximum from the exponents, unless it is not finite."""
    (x,) = buffers
    wide = accumulator(x.dtype)

    def greatest(*i: Dim) -> Scalar:
        top = _running(site, x, i, "max", lambda v: cast(v, wide))
        return select(apply("is_finite", top), top, const(0, wide))

    top = compute("top", x.shape, greatest)

    def value(*i: Dim) -> Scalar:
        total = _running(site, x, i, "sum", lambda v: exp(cast(v, wide) - top[i]))
        return cast(log(total) + top[i], x.dtype)

    return program("cumlogsumexp", buffers, top, compute("out", x.shape, value))


def _cost(weight: int) -> Callable[[Site], Counts]:
    def cost(site: Site) -> Counts:
        # The equations define the result in n*n/2 steps; a scan computes it in one pass.
        elements = product(site.shape())
        moved = elements * itemsize(site.dtype())
        return Counts(elements * weight, moved, moved)

    return cost


_ATTRIBUTES = (
    Attribute("axis", omitted=axis_of_all, values=one_axis),
    Attribute("reverse", default=False, values=FLAG),
)
_SCANS: tuple[tuple[str, _Kind, str, str], ...] = (
    ("cumsum", "sum", "iufc", "sums"),
    ("cumprod", "prod", "iufc", "products"),
    ("cummax", "max", "iuf", "maxima; NaN wins"),
    ("cummin", "min", "iuf", "minima; NaN wins"),
)

for _name, _kind, _accepts, _what in _SCANS:
    register(
        Operator(_name, ("x",), _deduction(_accepts), f"jax.lax.{_name}", _equations(_kind), _ATTRIBUTES, cost=_cost(1),
                 doc=f"running {_what}, along the axis, from its end with `reverse`")
    )  # fmt: skip
register(
    Operator(
        "cumlogsumexp",
        ("x",),
        _deduction("f"),
        "jax.lax.cumlogsumexp",
        _logsumexp_equations,
        _ATTRIBUTES,
        cost=_cost(24),
        doc="running logarithms of sums of exponentials along the axis, from its end with `reverse`",
    )
)
