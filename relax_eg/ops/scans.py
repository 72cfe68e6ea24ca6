"""Running reductions along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from relax_eg.dtypes import dtype_of, itemsize
from relax_eg.ir.annotations import Annotation
from relax_eg.ops.attribute_values import FLAG, one_axis
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.ops.on_cpus import on_cpus
from relax_eg.ops.record import Attribute, Equations, Operator, Site, register
from relax_eg.ops.reduction import accumulator
from relax_eg.ops.running import running
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


# measured: elements along an axis from which on blocks are faster (`python -m benchmarks.patterns --cases running`)
_LONG = 16


def _is_by_blocks(dtype: str, size: float) -> bool:
    return size >= _LONG and not dtype_of(dtype).is_narrow


def _lower(name: str, combine: str, kind: _Kind) -> Callable[..., Any]:
    """The running reduction `jax.lax.<name>`, on CPUs by blocks. Sums and products of 16 bits are wider inside."""

    def lower(x: Any, *, axis: int, reverse: bool) -> Any:
        def plain(x: Any) -> Any:
            return getattr(lax, name)(x, axis, reverse=reverse)

        def by_blocks(x: Any) -> Any:
            function = getattr(jnp if combine == "logaddexp" else lax, combine)
            wide = x.dtype.name if kind in ("max", "min") else accumulator(x.dtype.name)
            nothing = identity("max" if combine == "logaddexp" else kind, wide)
            return running(function, nothing, x.astype(wide), axis, reverse).astype(x.dtype)

        n = x.shape[axis]
        is_known = isinstance(n, int)
        return on_cpus(by_blocks, plain)(x) if is_known and _is_by_blocks(x.dtype.name, n) else plain(x)

    return lower


def _slower(factor: float) -> Callable[[Site, Callable[[Dim], float]], float]:
    return lambda site, size: factor if _is_by_blocks(site.dtype(), size(site.shape()[site["axis"]])) else 1.0


# measured: how many times as long JAX's own lowering takes (`python -m benchmarks.patterns --cases running`)
_SLOWER, _SLOWER_OF_LOGARITHMS = 3.0, 15.0
_ATTRIBUTES = (
    Attribute("axis", omitted=axis_of_all, values=one_axis),
    Attribute("reverse", default=False, values=FLAG),
)
_SCANS: tuple[tuple[str, str, _Kind, str, str], ...] = (
    ("cumsum", "add", "sum", "iufc", "sums"),
    ("cumprod", "mul", "prod", "iufc", "products"),
    ("cummax", "max", "max", "iuf", "maxima; NaN wins"),
    ("cummin", "min", "min", "iuf", "minima; NaN wins"),
)

for _name, _combine, _kind, _accepts, _what in _SCANS:
    register(
        Operator(_name, ("x",), _deduction(_accepts), _lower(_name, _combine, _kind), _equations(_kind), _ATTRIBUTES,
                 cost=_cost(1), slower=_slower(_SLOWER),
                 doc=f"running {_what}, along the axis, from its end with `reverse`")
    )  # fmt: skip
register(
    Operator(
        "cumlogsumexp",
        ("x",),
        _deduction("f"),
        _lower("cumlogsumexp", "logaddexp", "sum"),
        _logsumexp_equations,
        _ATTRIBUTES,
        cost=_cost(24),
        slower=_slower(_SLOWER_OF_LOGARITHMS),
        doc="running logarithms of sums of exponentials along the axis, from its end with `reverse`",
    )
)
