"""Elementwise operators: tables that pair a scalar function of the index equations with its lax primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from relax_eg.dtypes import NUMBERS, is_integer, kind
from relax_eg.errors import ShapeError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.attribute_values import DTYPES, one_of
from relax_eg.ops.expansions import EXPANSIONS, slower_as_written
from relax_eg.ops.integers import power
from relax_eg.ops.lazy_jax import lax
from relax_eg.ops.record import Attribute, Deduce, Equations, Operator, Site, register
from relax_eg.ops.scalar_lowerings import in_xla
from relax_eg.ops.sizes import ONE, Dims, broadcast, need_kind, need_same_dtype
from relax_eg.shapes import Dim
from relax_eg.tir import (
    FUNCTIONS,
    Buffer,
    Read,
    Scalar,
    TensorProgram,
    apply,
    cast,
    compute,
    integer_pow,
    program,
    select,
)

# Operators that apply a scalar function, by default the one of the same name at the dtypes that it takes.
_ELEMENTWISE = (
    "negative abs sign floor ceil exp exp2 expm1 log log1p sqrt rsqrt cbrt sin cos tan tanh sinh cosh asin acos atan "
    "asinh acosh atanh sigmoid erf erfc erf_inv square reciprocal isfinite logical_not bitwise_not add subtract "
    "multiply power multiply_high maximum minimum remainder atan2 logical_and logical_or logical_xor bitwise_and "
    "bitwise_or bitwise_xor left_shift equal not_equal less less_equal greater greater_equal"
).split()
_FUNCTIONS = {
    "isfinite": "is_finite", "logical_not": "bitwise_not", "logical_and": "bitwise_and", "logical_or": "bitwise_or",
    "logical_xor": "bitwise_xor", "left_shift": "shift_left",
}  # fmt: skip
# The kinds of dtype of an operator that takes others than its function; see need_kind.
_KINDS = {
    "abs": "ifc", "isfinite": "f",
    **dict.fromkeys(("logical_not", "logical_and", "logical_or", "logical_xor"), "b"),
    **dict.fromkeys(("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"), "iu"),
}  # fmt: skip
# Operators that take narrow dtypes, too.
_NARROW = frozenset(
    "negative add subtract multiply maximum minimum equal not_equal less less_equal greater greater_equal".split()
)


def read_aligned(buffer: Buffer, at: Sequence[Dim], shape: Dims) -> Read:
    """Returns the element of `buffer` that broadcasting to `shape` puts at `at`; stretched axes are read at 0."""
    start = len(shape) - buffer.rank
    return buffer[
        tuple(
            Dim.of(0) if size is ONE and shape[start + i] is not ONE else at[start + i]
            for i, size in enumerate(buffer.shape)
        )
    ]


def jax_broadcast(*arrays: Any) -> tuple[Any, ...]:
    """Returns JAX arrays broadcast to their common shape."""
    shape = lax.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(
        a if a.shape == shape else lax.broadcast_in_dim(a, shape, tuple(range(len(shape) - a.ndim, len(shape))))
        for a in arrays
    )


def _at_each_place(function: Callable[..., Scalar], site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    shape = broadcast(site, [b.shape for b in buffers])
    stage = compute("out", shape, lambda *i: function(site, *(read_aligned(b, i, shape) for b in buffers)))
    return program(site.op, buffers, stage)


def pointwise(function: Callable[..., Scalar]) -> Equations:
    """Returns equations that apply `function(site, *scalars)` to the broadcast operands."""
    return partial(_at_each_place, function)


def is_pointwise(operator: Operator) -> bool:
    """Whether the equations of an operator are those of `pointwise`."""
    return isinstance(operator.equations, partial) and operator.equations.func is _at_each_place


def result_dtype(site: Site, function: str, accepts: str) -> str:
    """Returns the dtype of scalar `function` on the operands, whose one dtype must be of a kind in `accepts`."""
    dtypes = [site.dtype(i) for i in range(len(site.operands))]
    need_same_dtype(site, range(len(dtypes)))
    need_kind(site, accepts)
    try:
        return FUNCTIONS[function].dtype(dtypes)
    except ShapeError as error:
        raise site.error(str(error)) from None


def _deduction(function: str, accepts: str) -> Deduce:
    def deduce(site: Site) -> Annotation:
        dtype = result_dtype(site, function, accepts)
        return Tensor(broadcast(site, [site.shape(i) for i in range(len(site.operands))]), dtype)

    return deduce


def broadcast_in_jax(function: str) -> Callable[..., Any]:
    """Returns a lowering that applies a scalar function to the broadcast operands."""

    def lower(x: Any, *others: Any) -> Any:
        by_number = others != () and others[-1].ndim == 0
        return in_xla(function, x.dtype.name, by_number)(*jax_broadcast(x, *others))

    return lower


def _function(name: str) -> Callable[..., Scalar]:
    return lambda site, *operands: apply(name, *operands)


def elementwise(
    name: str, function: str = "", parameters: tuple[str, ...] = (), accepts: str = "", doc: str = ""
) -> None:
    """Registers the operator that applies a scalar function of the index equations.

    - `function`: the function; by default the one of the same name.
    - `parameters`: names of the operands; by default x and y.
    - `accepts`: kinds of dtype; by default those that the function takes.
    """
    record = FUNCTIONS[function or name]
    words = f"{record.name} of elements, broadcast" if record.arity > 1 else f"{record.name} of each element"
    register(
        Operator(
            name,
            parameters or ("x", "y")[: record.arity],
            _deduction(record.name, accepts or record.accepts),
            broadcast_in_jax(record.name),
            pointwise(_function(record.name)),
            doc=doc or words,
            poles="poles" in record.traits.split(),
            slower=slower_as_written if record.name in EXPANSIONS else None,
        )
    )


for _name in _ELEMENTWISE:
    _of = _FUNCTIONS.get(_name, _name)
    elementwise(_name, _of, accepts=_KINDS.get(_name, FUNCTIONS[_of].accepts) + ("n" if _name in _NARROW else ""))

elementwise("isnan", "is_nan", doc="whether each element is not a number")


# --- functions that depend on the dtype ---


def _by_dtype(integer: str, other: str, unsigned: str | None = None) -> Callable[..., Scalar]:
    def function(site: Site, x: Scalar, y: Scalar) -> Scalar:
        if kind(x.dtype) == "u":
            return apply(unsigned or integer, x, y)
        return apply(integer if is_integer(x.dtype) else other, x, y)

    return function


def _right_shift(x: Any, y: Any) -> Any:
    unsigned = kind(x.dtype.name) == "u"
    return (lax.shift_right_logical if unsigned else lax.shift_right_arithmetic)(*jax_broadcast(x, y))


register(
    Operator(
        "divide",
        ("x", "y"),
        _deduction("add", "iufc"),
        broadcast_in_jax("int_divide"),
        pointwise(_by_dtype("int_divide", "divide")),
        poles=True,
        slower=slower_as_written,
        doc="x / y; integer quotients are truncated",
    )
)
register(
    Operator(
        "right_shift",
        ("x", "y"),
        _deduction("shift_left", "iu"),
        _right_shift,
        pointwise(_by_dtype("shift_right_arithmetic", "shift_right_arithmetic", "shift_right_logical")),
        doc="x >> y; signed integers keep their sign",
    )
)


# --- with attributes ---


def _round_deduce(site: Site) -> Annotation:
    if site["method"] not in ("to_even", "away"):
        raise site.error(f"method {site['method']!r}; accepted: to_even, away")
    return _deduction("round", "f")(site)


def _round(x: Any, *, method: str) -> Any:
    rule = lax.RoundingMethod.TO_NEAREST_EVEN if method == "to_even" else lax.RoundingMethod.AWAY_FROM_ZERO
    return lax.round(x, rule)


def _integer_pow_deduce(site: Site) -> Annotation:
    y = site["y"]
    if not isinstance(y, int) or isinstance(y, bool):
        raise site.error(f"y is {y!r}; an integer is needed")
    if y < 0 and is_integer(site.dtype()):
        raise site.error(f"{site.dtype()} to the power {y} is no integer; convert with astype")
    return _deduction("square", "iufc")(site)


def _integer_pow(x: Any, *, y: int) -> Any:
    return power(x, y)


def _astype_deduce(site: Site) -> Annotation:
    if site["dtype"] not in NUMBERS:
        raise site.error(f"no dtype {site['dtype']!r}; there are: {', '.join(NUMBERS)}")
    need_kind(site, "biufcn")
    return Tensor(site.shape(), site["dtype"])


def converted(x: Any, dtype: str) -> Any:
    """An array of JAX as `dtype`; a float beyond an integer type is the nearest integer of that type."""
    if x.ndim == 0 and kind(x.dtype.name) == "f" and kind(dtype) in "iu":
        # JAX converts a float constant while it traces, with numpy, which has another result beyond the type.
        return lax.squeeze(lax.convert_element_type(lax.expand_dims(x, (0,)), dtype), (0,))
    return lax.convert_element_type(x, dtype)


def _astype(x: Any, *, dtype: str) -> Any:
    return converted(x, dtype)


register(
    Operator(
        "round",
        ("x",),
        _round_deduce,
        _round,
        pointwise(lambda site, x: apply("round" if site["method"] == "to_even" else "round_away", x)),
        (Attribute("method", default="to_even", values=one_of("to_even", "away")),),
        doc="the nearest integer, halves to the even one or away from zero",
    )
)
register(
    Operator(
        "integer_pow",
        ("x",),
        _integer_pow_deduce,
        _integer_pow,
        pointwise(lambda site, x: integer_pow(x, site["y"])),
        (Attribute("y", values=one_of(2, 3, 1, 0, -1, -2, 4)),),
        poles=True,
        doc="x to a constant integer power",
    )
)
register(
    Operator(
        "astype",
        ("x",),
        _astype_deduce,
        _astype,
        pointwise(lambda site, x: cast(x, site["dtype"])),
        (Attribute("dtype", values=DTYPES),),
        moves="convert",
        doc="x converted as XLA converts",
    )
)


# --- three operands ---


def _where_deduce(site: Site) -> Annotation:
    need_kind(site, "b", 0)
    need_same_dtype(site, (1, 2))
    dtype = need_kind(site, "biufckn", 1)
    return Tensor(broadcast(site, [site.shape(i) for i in range(3)]), dtype)


def _where(condition: Any, x: Any, y: Any) -> Any:
    condition, x, y = jax_broadcast(condition, x, y)
    return lax.select(condition, x, y)


def _clip(lo: Any, x: Any, hi: Any) -> Any:
    if lo.ndim or hi.ndim:
        lo, x, hi = jax_broadcast(lo, x, hi)
    return lax.clamp(lo, x, hi)


register(
    Operator(
        "where",
        ("condition", "x", "y"),
        _where_deduce,
        _where,
        pointwise(lambda site, condition, x, y: select(condition, x, y)),
        doc="x where the condition holds, else y",
    )
)
register(
    Operator(
        "clip",
        ("lo", "x", "hi"),
        _deduction("clamp", "biuf"),
        _clip,
        pointwise(_function("clamp")),
        doc="x limited to lo .. hi",
    )
)
