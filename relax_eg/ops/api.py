"""The operator functions of programs and rules, `rx.op`: jax.numpy's spelling, with negative axes and defaults.

Operands are expressions, numbers, sizes or arrays. A number or size beside an expression takes that expression's
dtype; an array keeps its own. Nothing else is converted: mixed dtypes are an error; `astype` converts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr, const, install
from relax_eg.ops.api_library import *  # noqa: F403
from relax_eg.ops.api_library import binary as _binary
from relax_eg.ops.api_library import masked_select
from relax_eg.ops.api_library import unary as _unary
from relax_eg.ops.indexing import subscript
from relax_eg.ops.operands import (
    Axes,
    Operand,
    Size,
    as_dims,
    is_array,
    need_no_bool,
    normal_axis,
    number,
    operands,
)
from relax_eg.ops.record import call
from relax_eg.ops.shorthand import call_in_short
from relax_eg.ops.sizes import ZERO
from relax_eg.shapes import Dim, ceildiv

# --- elementwise ---


negative, sign, floor, ceil = _unary("negative"), _unary("sign"), _unary("floor"), _unary("ceil")
exp, exp2, expm1, log, log1p = _unary("exp"), _unary("exp2"), _unary("expm1"), _unary("log"), _unary("log1p")
sqrt, rsqrt, cbrt, square, reciprocal = (_unary(n) for n in ("sqrt", "rsqrt", "cbrt", "square", "reciprocal"))
sin, cos, tan, asin, acos, atan = (_unary(n) for n in ("sin", "cos", "tan", "asin", "acos", "atan"))
sinh, cosh, tanh, asinh, acosh, atanh = (_unary(n) for n in ("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"))
sigmoid, erf, erfc, erf_inv = _unary("sigmoid"), _unary("erf"), _unary("erfc"), _unary("erf_inv")
isfinite, isnan = _unary("isfinite"), _unary("isnan")
logical_not, bitwise_not = _unary("logical_not"), _unary("bitwise_not")
relu, silu, gelu_tanh = _unary("relu"), _unary("silu"), _unary("gelu_tanh")
abs = _unary("abs")

add, subtract, multiply, divide = (_binary(n) for n in ("add", "subtract", "multiply", "divide"))
maximum, minimum, remainder, atan2 = (_binary(n) for n in ("maximum", "minimum", "remainder", "atan2"))
logical_and, logical_or, logical_xor = (_binary(n) for n in ("logical_and", "logical_or", "logical_xor"))
bitwise_and, bitwise_or, bitwise_xor = (_binary(n) for n in ("bitwise_and", "bitwise_or", "bitwise_xor"))
left_shift, right_shift, multiply_high = (_binary(n) for n in ("left_shift", "right_shift", "multiply_high"))
equal, not_equal, less, less_equal = (_binary(n) for n in ("equal", "not_equal", "less", "less_equal"))
greater, greater_equal = _binary("greater"), _binary("greater_equal")


def power(x: Operand, y: Operand) -> Expr:
    """`x ** y`; a Python integer `y` multiplies repeatedly, as in jax.numpy."""
    if isinstance(y, int) and not isinstance(y, bool):
        return integer_pow(x, y)
    return call("power", operands("power", x, y))


def integer_pow(x: Operand, y: int) -> Expr:
    """`x` to the integer power `y`."""
    return call("integer_pow", operands("integer_pow", x), {"y": y})


def round(x: Operand, method: str = "to_even") -> Expr:
    """The nearest integer; halves go to the even one, or away from zero with `method="away"`."""
    return call("round", operands("round", x), {"method": method})


def gelu(x: Operand, approximate: bool = True) -> Expr:
    """The Gaussian error linear unit; the tanh approximation by default, as in jax.nn."""
    return gelu_tanh(x) if approximate else call("gelu", operands("gelu", x))


def where(condition: Operand, x: Operand, y: Operand) -> Expr:
    """`x` where `condition` holds, else `y`."""
    need_no_bool("where", condition)
    chosen = operands("where", x, y)
    return call("where", [*operands("where", condition), *chosen])


def clip(x: Operand, lo: Operand, hi: Operand) -> Expr:
    """`x` clamped to `lo` .. `hi`."""
    value, low, high = operands("clip", x, lo, hi)
    return call("clip", (low, value, high))


def astype(x: Operand, dtype: str) -> Expr:
    """`x` converted to `dtype`; `x` itself where it has that dtype."""
    (value,) = operands("astype", x)
    return value if value.dtype == dtype else call("astype", (value,), {"dtype": dtype})


# --- contraction and reduction ---


def matmul(a: Operand, b: Operand, precision: str | None = None, out_dtype: str | None = None) -> Expr:
    """numpy.matmul."""
    return call("matmul", operands("matmul", a, b), {"precision": precision, "out_dtype": out_dtype})


def linear(x: Operand, weight: Operand) -> Expr:
    """x @ weight.T for a weight stored (out, in)."""
    return call("linear", operands("linear", x, weight))


def outer(a: Operand, b: Operand) -> Expr:
    """Products of every element of vector `a` with every element of vector `b`."""
    x, y = operands("outer", a, b)
    return multiply(expand_dims(x, 1), expand_dims(y, 0))


def _reduction(name: str) -> Callable[..., Expr]:
    def operator(x: Operand, axis: Axes = None, keepdims: bool = False) -> Expr:
        return call_in_short(name, operands(name, x), axes=axis, keepdims=keepdims)

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = f"`{name}` over `axis` (an axis, several, or all); the dtype stays."
    return operator


sum, prod, max, min, mean = (_reduction(n) for n in ("sum", "prod", "max", "min", "mean"))
any, all = _reduction("any"), _reduction("all")


def _position(name: str, x: Operand, axis: int, keepdims: bool, dtype: str) -> Expr:
    return call_in_short(name, operands(name, x), axis=axis, keepdims=keepdims, dtype=dtype)


def argmax(x: Operand, axis: int = -1, keepdims: bool = False, dtype: str = "int32") -> Expr:
    """The position of the first maximum along `axis`; a NaN counts as a maximum."""
    return _position("argmax", x, axis, keepdims, dtype)


def argmin(x: Operand, axis: int = -1, keepdims: bool = False, dtype: str = "int32") -> Expr:
    """The position of the first minimum along `axis`; a NaN counts as a minimum."""
    return _position("argmin", x, axis, keepdims, dtype)


def trace(x: Operand) -> Expr:
    """The sum of a matrix's diagonal."""
    (value,) = operands("trace", x)
    rows, columns = _matrix("trace", value)
    return sum(where(_diagonal(rows, columns, 0), value, zeros((rows, columns), value.dtype)))


# --- movement ---


def permute_dims(x: Operand, axes: Sequence[int] | None = None) -> Expr:
    """`x` with its axes in the order `axes`; reversed by default."""
    return call_in_short("permute_dims", operands("permute_dims", x), axes=axes)


transpose = permute_dims


def swapaxes(x: Operand, a: int, b: int) -> Expr:
    """`x` with axes `a` and `b` exchanged."""
    (value,) = operands("swapaxes", x)
    first, second = (normal_axis("swapaxes", i, value.ndim) for i in (a, b))
    order = list(range(value.ndim))
    order[first], order[second] = second, first
    return permute_dims(value, order)


def reshape(x: Operand, shape: Size | Sequence[Size]) -> Expr:
    """The elements of `x` in order in another shape; one size may be -1."""
    return call_in_short("reshape", operands("reshape", x), shape=as_dims(shape))


def expand_dims(x: Operand, axis: Axes) -> Expr:
    """`x` with new axes of size 1; `axis` counts in the result."""
    return call_in_short("expand_dims", operands("expand_dims", x), axes=() if axis is None else axis)


def squeeze(x: Operand, axis: Axes = None) -> Expr:
    """`x` without axes `axis`, which must have size 1; by default without all axes of size 1."""
    return call_in_short("squeeze", operands("squeeze", x), axes=axis)


def broadcast_to(x: Operand, shape: Size | Sequence[Size]) -> Expr:
    """numpy.broadcast_to."""
    return call("broadcast_to", operands("broadcast_to", x), {"shape": as_dims(shape)})


def concat(xs: Sequence[Operand], axis: int = 0) -> Expr:
    """The operands joined along `axis`."""
    return call_in_short("concat", operands("concat", *xs), axis=axis)


concatenate = concat


def stack(xs: Sequence[Operand], axis: int = 0) -> Expr:
    """The operands, of one shape, joined along a new `axis`."""
    return concat([expand_dims(v, axis) for v in operands("stack", *xs)], axis)


def split(x: Operand, parts: int | Sequence[Size], axis: int = 0) -> Expr:
    """A tuple of slices along `axis`. A number `parts` gives that many: all but the last have one size, rounded up
    where it does not divide the axis. A sequence gives the indices to cut at, as in numpy.split."""
    (value,) = operands("split", x)
    if not isinstance(parts, int):
        cuts = [ZERO, *map(Dim.of, parts), value.shape[normal_axis("split", axis, value.ndim)]]
        parts = tuple(b - a for a, b in zip(cuts, cuts[1:], strict=False))
    return call_in_short("split", (value,), sections=parts, axis=axis)


def strided_slice(x: Operand, begin: Sequence[Size], end: Sequence[Size], strides: Sequence[int] | None = None) -> Expr:
    """`x[b:e:s, ...]`, one entry for each axis; nothing is clamped."""
    steps = None if strides is None else tuple(strides)
    return call_in_short("strided_slice", operands("strided_slice", x), begin=begin, end=end, strides=steps)


def getitem(x: Operand, key: Any) -> Expr:
    """`x[key]` for integers, sizes, slices, None and `...`, or for a boolean tensor, which selects as `masked_select`.

    Bounds beyond a known size are clamped as in Python; where the size is symbolic, the slice must fit. A step of -1
    reverses a whole axis. `take` gathers.
    """
    (value,) = operands("getitem", x)
    if is_array(key) and str(getattr(key, "dtype", "")) == "bool":
        return masked_select(value, key)
    return subscript(value, key)


def pad(
    x: Operand,
    pad_width: Sequence[tuple[Size, Size]],
    value: Operand = 0,
    interior: Sequence[int] | None = None,
) -> Expr:
    """`x` with `value` before and after each axis, and `interior` times between elements; negative widths cut."""
    array, fill = operands("pad", x, value)
    low, high = tuple(Dim.of(w[0]) for w in pad_width), tuple(Dim.of(w[1]) for w in pad_width)
    between = (0,) * array.ndim if interior is None else tuple(interior)
    return call("pad", (array, fill), {"low": low, "high": high, "interior": between})


def take(x: Operand, indices: Operand, axis: int | None = None, mode: str = "fill") -> Expr:
    """The elements at `indices` along `axis`, or of the flattened array where `axis` is None.

    Constant negative indices count from the end of an axis of constant size; other negative indices are out of range.
    `mode` decides about indices out of range: "fill" gives NaN or an extreme value, "clip" the nearest element, and
    "promise" states that there are none.
    """
    (value,) = operands("take", x)
    if axis is None:
        value, axis = reshape(value, -1), 0
    normal = normal_axis("take", axis, value.ndim)
    size = value.shape[normal]
    if not isinstance(indices, Expr):
        numbers_ = np.asarray(indices)
        numbers_ = numbers_.astype(np.int32) if not is_array(indices) else numbers_
        if size.is_const:
            numbers_ = np.where(numbers_ < 0, numbers_ + size.value, numbers_).astype(numbers_.dtype)
        indices = const(numbers_)
    return call("take", (value, indices), {"axis": normal, "mode": mode})


def flip(x: Operand, axis: Axes = None) -> Expr:
    """`x` in reverse order along `axis`; along all axes by default."""
    return call_in_short("flip", operands("flip", x), axes=axis)


def after(x: Operand, t: Operand) -> Expr:
    """`x`, which exists only once `t` does: what is computed from it is not merged with what is computed from `x`."""
    return call("after", operands("after", x, t))


def on_host(x: Operand) -> Expr:
    """`x`, in the memory of the host. Only `from_host`, and `after` on both sides, may read it."""
    return call("on_host", operands("on_host", x))


def from_host(x: Operand) -> Expr:
    """`x`, from the memory of the host (`on_host`) in that of the device."""
    return call("from_host", operands("from_host", x))


def annotate_sharding(x: Operand, mesh: str, placement: str) -> Expr:
    """`x`, placed on a mesh of devices: `annotate_sharding(x, "data=4, model=2", "S[0], R")` splits dimension 0 over
    the axis `data` and replicates over `model`."""
    return call("annotate_sharding", operands("annotate_sharding", x), {"mesh": mesh, "placement": placement})


def triu(x: Operand, k: int = 0) -> Expr:
    """The upper triangle of the last two axes: zeros below diagonal `k`."""
    return call("triu", operands("triu", x), {"k": k})


def tril(x: Operand, k: int = 0) -> Expr:
    """The lower triangle of the last two axes: zeros above diagonal `k`."""
    return call("tril", operands("tril", x), {"k": k})


# --- creation ---


def full(shape: Size | Sequence[Size], value: Operand, dtype: str | None = None) -> Expr:
    """A tensor with `value` everywhere."""
    scalar = value if isinstance(value, Expr) else number("full", value, dtype)
    return call("full", (scalar,), {"shape": as_dims(shape)})


def zeros(shape: Size | Sequence[Size], dtype: str = "float32") -> Expr:
    """Zeros."""
    return full(shape, const(0, dtype))


def ones(shape: Size | Sequence[Size], dtype: str = "float32") -> Expr:
    """Ones."""
    return full(shape, const(1, dtype))


def zeros_like(x: Expr) -> Expr:
    """Zeros of the shape and dtype of `x`."""
    return zeros(x.shape, x.dtype)


def ones_like(x: Expr) -> Expr:
    """Ones of the shape and dtype of `x`."""
    return ones(x.shape, x.dtype)


def iota(shape: Size | Sequence[Size], axis: int = 0, dtype: str = "int32") -> Expr:
    """The position of each element along `axis`."""
    dims = as_dims(shape)
    return call("iota", (), {"shape": dims, "axis": normal_axis("iota", axis, len(dims)), "dtype": dtype})


def arange(start: Size, stop: Size | None = None, step: int = 1, dtype: str = "int32") -> Expr:
    """Integers from `start` (0 if only one bound is given) by `step` up to `stop`."""
    low, high = (ZERO, Dim.of(start)) if stop is None else (Dim.of(start), Dim.of(stop))
    if step == 0:
        raise OperatorError("arange: the step is 0")
    count = ceildiv(high - low, step) if step > 0 else ceildiv(low - high, -step)
    if count.is_const and count.value < 0:
        count = ZERO
    values = iota(count, 0, dtype)
    values = multiply(step, values) if step != 1 else values
    return add(low.value if low.is_const else low, values) if low is not ZERO else values


def _diagonal(rows: Dim, columns: Dim, k: int) -> Expr:
    """Returns the boolean matrix that is true on diagonal `k`, built as jax.numpy traces it."""
    shape = (rows, columns)
    return equal(add(iota(shape, 0), k), iota(shape, 1))


def eye(n: Size, m: Size | None = None, k: int = 0, dtype: str = "float32") -> Expr:
    """Ones on diagonal `k`, zeros elsewhere."""
    return astype(_diagonal(Dim.of(n), Dim.of(n if m is None else m), k), dtype)


def _matrix(op: str, x: Expr) -> tuple[Dim, Dim]:
    if x.ndim != 2:
        raise OperatorError(f"{op}: rank {x.ndim}; a matrix is needed")
    return x.shape[0], x.shape[1]


def diag(v: Operand) -> Expr:
    """The square matrix with vector `v` on its diagonal."""
    (value,) = operands("diag", v)
    if value.ndim != 1:
        raise OperatorError(f"diag: rank {value.ndim}; a vector is needed")
    square_ = (value.shape[0], value.shape[0])
    spread = broadcast_to(expand_dims(value, 1), square_)
    return where(_diagonal(*square_, 0), spread, zeros(square_, value.dtype))


def one_hot(indices: Operand, depth: Size, dtype: str = "float32") -> Expr:
    """A new last axis of size `depth` with a one at each index and zeros elsewhere."""
    return call("one_hot", operands("one_hot", indices), {"depth": (Dim.of(depth),), "dtype": dtype})


# --- neural networks ---


def softmax(x: Operand, axis: int = -1) -> Expr:
    """Exponentials divided by their sum along `axis`."""
    return call_in_short("softmax", operands("softmax", x), axis=axis)


def log_softmax(x: Operand, axis: int = -1) -> Expr:
    """The logarithm of softmax."""
    return call_in_short("log_softmax", operands("log_softmax", x), axis=axis)


def layer_norm(x: Operand, gamma: Operand, beta: Operand, axes: Axes = -1, epsilon: float = 1e-5) -> Expr:
    """`x` with mean 0 and variance 1 over the trailing `axes`, times `gamma` plus `beta`."""
    return call_in_short("layer_norm", operands("layer_norm", x, gamma, beta), axes=axes, epsilon=epsilon)


def rms_norm(x: Operand, weight: Operand, axes: Axes = -1, epsilon: float = 1e-6) -> Expr:
    """`x` divided by its root mean square over the trailing `axes`, times `weight`."""
    return call_in_short("rms_norm", operands("rms_norm", x, weight), axes=axes, epsilon=epsilon)


def dim_value(dim: Size, dtype: str = "int32") -> Expr:
    """A size as a scalar tensor."""
    return call("dim_value", (), {"dim": (Dim.of(dim),), "dtype": dtype})


for _builder in (
    add, subtract, multiply, divide, power, matmul, negative, less, less_equal, greater, greater_equal, getitem,
    permute_dims, sum, reshape, astype,
):  # fmt: skip
    install(_builder.__name__, _builder)
