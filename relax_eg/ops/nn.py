"""Composite operators of neural networks, with the equations that their usual JAX spelling traces to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from relax_eg.ir.annotations import Annotation
from relax_eg.ops.attribute_values import one_axis, one_of, trailing_axes
from relax_eg.ops.elementwise import pointwise
from relax_eg.ops.lazy_jax import jax, jnp, lax
from relax_eg.ops.record import Attribute, Deduce, Operator, Site, register
from relax_eg.ops.reduction import accumulator, interleave_indices, loop_axes
from relax_eg.ops.shorthand import last_axis
from relax_eg.ops.sizes import (
    need_axes,
    need_axis,
    need_equal,
    need_kind,
    need_same_dtype,
    operand_annotation,
    product,
    reduced,
)
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Index,
    Scalar,
    Stage,
    TensorProgram,
    apply,
    cast,
    compute,
    const,
    exp,
    integer_pow,
    log,
    loop,
    max_,
    maximum,
    program,
    rsqrt,
    sigmoid,
    sum_,
    tanh,
)

# --- activations ---


def _same(kinds: str) -> Deduce:
    """Deduces the annotation of the operand, whose dtype must be of one of these kinds."""

    def deduce(site: Site) -> Annotation:
        need_kind(site, kinds)
        return operand_annotation(site)

    return deduce


def _gelu_equation(site: Site, x: Scalar) -> Scalar:
    return x * 0.5 * apply("erfc", -x * math.sqrt(0.5))


def _gelu_tanh_equation(site: Site, x: Scalar) -> Scalar:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * integer_pow(x, 3))
    return x * (0.5 * (1.0 + tanh(inner)))


def _gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def _gelu_tanh(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


register(
    Operator(
        "relu",
        ("x",),
        _same("iuf"),
        "jax.nn.relu",
        pointwise(lambda site, x: maximum(x, 0)),
        doc="the positive part",
    )
)
register(
    Operator("silu", ("x",), _same("f"), "jax.nn.silu", pointwise(lambda site, x: x * sigmoid(x)), doc="x * sigmoid(x)")
)
register(
    Operator("gelu", ("x",), _same("f"), _gelu, pointwise(_gelu_equation), doc="x * cdf of the normal distribution")
)
register(
    Operator(
        "gelu_tanh",
        ("x",),
        _same("f"),
        _gelu_tanh,
        pointwise(_gelu_tanh_equation),
        doc="gelu with the cdf approximated by a tanh",
    )
)


# --- softmax ---


def _softmax_deduce(site: Site) -> Annotation:
    need_kind(site, "f")
    need_axis(site, site["axis"], len(site.shape()))
    return operand_annotation(site)


def _shifted(site: Site, x: Buffer) -> tuple[Stage, Callable[..., Scalar]]:
    """Returns the stage of the maxima along the axis, and a function from the index to `x` less its maximum."""
    axis, k = site["axis"], loop("k")
    peak = compute(
        "peak",
        reduced(x.shape, (axis,), False),
        lambda *i: max_(x[interleave_indices(x.rank, (axis,), (k,), i)], (k, x.shape[axis])),
    )
    return peak, lambda *i: x[i] - peak[(*i[:axis], *i[axis + 1 :])]


def _softmax_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    (x,) = buffers
    axis, k = site["axis"], loop("k")
    peak, shifted = _shifted(site, x)
    raised = compute("raised", x.shape, lambda *i: exp(shifted(*i)))
    total = compute(
        "total",
        peak.output.shape,
        lambda *i: sum_(raised[interleave_indices(x.rank, (axis,), (k,), i)], (k, x.shape[axis])),
    )
    out = compute("out", x.shape, lambda *i: raised[i] / total[(*i[:axis], *i[axis + 1 :])])
    return program("softmax", buffers, peak, raised, total, out)


def _log_softmax_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    (x,) = buffers
    axis, k = site["axis"], loop("k")
    peak, shifted = _shifted(site, x)
    total = compute(
        "total",
        peak.output.shape,
        lambda *i: sum_(exp(shifted(*interleave_indices(x.rank, (axis,), (k,), i))), (k, x.shape[axis])),
    )
    out = compute("out", x.shape, lambda *i: shifted(*i) - log(total[(*i[:axis], *i[axis + 1 :])]))
    return program("log_softmax", buffers, peak, total, out)


register(
    Operator(
        "softmax",
        ("x",),
        _softmax_deduce,
        "jax.nn.softmax",
        _softmax_equations,
        (Attribute("axis", omitted=-1, values=one_axis),),
        capacity="softmax",
        doc="exponentials divided by their sum along the axis",
    )
)
register(
    Operator(
        "log_softmax",
        ("x",),
        _softmax_deduce,
        "jax.nn.log_softmax",
        _log_softmax_equations,
        (Attribute("axis", omitted=-1, values=one_axis),),
        capacity="softmax",
        doc="the logarithm of softmax",
    )
)


# --- norms ---


def _norm_deduce(site: Site) -> Annotation:
    need_kind(site, "f")
    need_same_dtype(site, range(len(site.operands)))
    shape = site.shape()
    axes = need_axes(site, len(shape))
    if not axes or axes != tuple(range(len(shape) - len(axes), len(shape))):
        raise site.error(f"axes must be the last axes of rank {len(shape)}, at least one")
    for i in range(1, len(site.operands)):
        scale = site.shape(i)
        if len(scale) != len(axes):
            raise site.error(f"operand {i} has rank {len(scale)}; the shape of the normalised axes is needed")
        for axis, (p, q) in enumerate(zip(scale, shape[-len(axes) :], strict=True)):
            need_equal(site, p, q, f"axis {axis} of operand {i} does not fit the normalised axes")
    return operand_annotation(site)


def _average(name: str, x: Buffer, axes: tuple[int, ...], term: Callable[..., Scalar]) -> Stage:
    """Returns the stage of the means of `term(index)` over trailing `axes`."""
    loops = loop_axes(axes, x.shape)
    inner = tuple(v for v, _ in loops)
    count = product(n for _, n in loops)

    def value(*i: Dim) -> Scalar:
        total = sum_(term(*i, *inner), loops)
        return total / Index(count, total.dtype)

    return compute(name, reduced(x.shape, axes, False), value)


def _layer_norm_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, gamma, beta = buffers
    axes, wide = site["axes"], accumulator(x.dtype)
    lead = x.rank - len(axes)
    mean = _average("mean", x, axes, lambda *i: cast(x[i], wide))

    def centred(*i: Dim) -> Scalar:
        return cast(x[i], wide) - mean[i[:lead]]

    variance = _average("variance", x, axes, lambda *i: apply("square", centred(*i)))

    def value(*i: Dim) -> Scalar:
        normal = centred(*i) * rsqrt(variance[i[:lead]] + const(site["epsilon"], wide))
        return cast(normal * cast(gamma[i[lead:]], wide) + cast(beta[i[lead:]], wide), x.dtype)

    return program("layer_norm", buffers, mean, variance, compute("out", x.shape, value))


def _rms_norm_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, weight = buffers
    axes, wide = site["axes"], accumulator(x.dtype)
    lead = x.rank - len(axes)
    power = _average("power", x, axes, lambda *i: apply("square", cast(x[i], wide)))

    def value(*i: Dim) -> Scalar:
        normal = cast(x[i], wide) * rsqrt(power[i[:lead]] + const(site["epsilon"], wide))
        return cast(normal * cast(weight[i[lead:]], wide), x.dtype)

    return program("rms_norm", buffers, power, compute("out", x.shape, value))


def _layer_norm(x: Any, gamma: Any, beta: Any, *, axes: tuple[int, ...], epsilon: float) -> Any:
    wide = accumulator(x.dtype.name)
    y = x.astype(wide)
    y = y - jnp.mean(y, axes, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axes, keepdims=True) + epsilon)
    return (y * gamma.astype(wide) + beta.astype(wide)).astype(x.dtype)


def _rms_norm(x: Any, weight: Any, *, axes: tuple[int, ...], epsilon: float) -> Any:
    wide = accumulator(x.dtype.name)
    y = x.astype(wide)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axes, keepdims=True) + epsilon)
    return (y * weight.astype(wide)).astype(x.dtype)


_NORM = (
    Attribute("axes", omitted=last_axis, values=trailing_axes),
    Attribute("epsilon", values=one_of(1e-5, 1e-6, 0.0, 0.5)),
)

register(
    Operator(
        "layer_norm",
        ("x", "gamma", "beta"),
        _norm_deduce,
        _layer_norm,
        _layer_norm_equations,
        _NORM,
        doc="mean 0 and variance 1 over the trailing axes, scaled and shifted; half precision works in float32",
    )
)
register(
    Operator(
        "rms_norm",
        ("x", "weight"),
        _norm_deduce,
        _rms_norm,
        _rms_norm_equations,
        _NORM,
        doc="divided by the root mean square over the trailing axes, scaled; half precision works in float32",
    )
)
