"""Elementwise operators: tables that pair a scalar function of the index equations with its lax primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax_eg.dtypes import NUMBERS, is_integer, kind
from relax_eg.errors import ShapeError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.integers import power
from relax_eg.ops.lazy_jax import lax
from relax_eg.ops.record import Attribute, Deduce, Equations, Operator, Site, register
from relax_eg.ops.scalar_lowerings import in_jax
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

# operator: (scalar function, kinds of dtype it takes; see need_kind)
_UNARY: dict[str, tuple[str, str]] = {
    "negative": ("negative", "iufcn"),
    "abs": ("abs", "ifc"),
    "sign": ("sign", "iufc"),
    "floor": ("floor", "f"),
    "ceil": ("ceil", "f"),
    "exp": ("exp", "fc"),
    "exp2": ("exp2", "fc"),
    "expm1": ("expm1", "fc"),
    "log": ("log", "fc"),
    "log1p": ("log1p", "fc"),
    "sqrt": ("sqrt", "fc"),
    "rsqrt": ("rsqrt", "fc"),
    "cbrt": ("cbrt", "f"),
    "sin": ("sin", "fc"),
    "cos": ("cos", "fc"),
    "tan": ("tan", "fc"),
    "tanh": ("tanh", "fc"),
    "sinh": ("sinh", "fc"),
    "cosh": ("cosh", "fc"),
    "asin": ("asin", "fc"),
    "acos": ("acos", "fc"),
    "atan": ("atan", "fc"),
    "asinh": ("asinh", "fc"),
    "acosh": ("acosh", "fc"),
    "atanh": ("atanh", "fc"),
    "sigmoid": ("sigmoid", "fc"),
    "erf": ("erf", "f"),
    "erfc": ("erfc", "f"),
    "erf_inv": ("erf_inv", "f"),
    "square": ("square", "iufc"),
    "reciprocal": ("reciprocal", "fc"),
    "isfinite": ("is_finite", "f"),
    "logical_not": ("bitwise_not", "b"),
    "bitwise_not": ("bitwise_not", "iu"),
}

_BINARY: dict[str, tuple[str, str]] = {
    "add": ("add", "iufcn"),
    "subtract": ("subtract", "iufcn"),
    "multiply": ("multiply", "iufcn"),
    "power": ("power", "fc"),
    "multiply_high": ("multiply_high", "iu"),
    "maximum": ("maximum", "biufcn"),
    "minimum": ("minimum", "biufcn"),
    "remainder": ("remainder", "iuf"),
    "atan2": ("atan2", "f"),
    "logical_and": ("bitwise_and", "b"),
    "logical_or": ("bitwise_or", "b"),
    "logical_xor": ("bitwise_xor", "b"),
    "bitwise_and": ("bitwise_and", "iu"),
    "bitwise_or": ("bitwise_or", "iu"),
    "bitwise_xor": ("bitwise_xor", "iu"),
    "left_shift": ("shift_left", "iu"),
    "equal": ("equal", "biufcn"),
    "not_equal": ("not_equal", "biufcn"),
    "less": ("less", "biufn"),
    "less_equal": ("less_equal", "biufn"),
    "greater": ("greater", "biufn"),
    "greater_equal": ("greater_equal", "biufn"),
}


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


def pointwise(function: Callable[..., Scalar]) -> Equations:
    """Returns equations that apply `function(site, *scalars)` to the broadcast operands."""

    def equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
        shape = broadcast(site, [b.shape for b in buffers])
        return program(
            site.op,
            buffers,
            compute("out", shape, lambda *i: function(site, *(read_aligned(b, i, shape) for b in buffers))),
        )

    return equations


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
    return lambda *arrays: in_jax(function)(*jax_broadcast(*arrays))


def _function(name: str) -> Callable[..., Scalar]:
    return lambda site, *operands: apply(name, *operands)


# Scalar functions with poles.
_POLES = frozenset({"reciprocal", "rsqrt", "power", "log", "log1p", "tan", "atanh", "erf_inv"})


def elementwise(name: str, parameters: tuple[str, ...], function: str, accepts: str, doc: str = "") -> None:
    """Registers the operator that applies a scalar function of the index equations; `accepts`: kinds of dtype."""
    words = f"{function} of elements, broadcast" if len(parameters) > 1 else f"{function} of each element"
    register(
        Operator(
            name,
            parameters,
            _deduction(function, accepts),
            broadcast_in_jax(function),
            pointwise(_function(function)),
            doc=doc or words,
            poles=function in _POLES,
        )
    )


for _name, (_scalar, _accepts) in _UNARY.items():
    elementwise(_name, ("x",), _scalar, _accepts)

for _name, (_scalar, _accepts) in _BINARY.items():
    elementwise(_name, ("x", "y"), _scalar, _accepts)

elementwise("isnan", ("x",), "is_nan", "fc", "whether each element is not a number")


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
        (Attribute("method", default="to_even"),),
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
        (Attribute("y"),),
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
        (Attribute("dtype"),),
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
