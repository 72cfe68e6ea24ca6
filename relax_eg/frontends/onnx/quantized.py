"""ONNX's quantization: integers q stand for (q - zero point) * scale. Their products are computed in int32."""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.dtypes import dtype_of, is_integer
from relax_eg.frontends.onnx import normalisation, windows
from relax_eg.frontends.onnx.activations import activated
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import KnownArray
from relax_eg.ir.expr import Expr, const
from relax_eg.ops import api as op
from relax_eg.ops.codes import saturated
from relax_eg.ops.sizes import product

STEPS = 255  # given: the steps of an 8-bit range
_FRACTION_BITS = 23  # given: of a float32


def _spread(n: OnnxNode, value: Expr, x: Expr) -> Expr:
    """A scale or zero point, of the whole tensor, of each place of an axis or of each block, ready to broadcast to
    `x`."""
    axis, block = n.normal_axis(n.at("axis", 1), max(x.ndim, 2), last=True), n.at("block_size", 0)
    if product(value.shape) == 1 and not block:
        return op.reshape(value, ())
    if block:
        if value.ndim != x.ndim:
            raise n.error(f"blocks of {block} with a scale of rank {value.ndim}", f"rank {x.ndim}")
        shape = value.shape
        wide = op.broadcast_to(op.expand_dims(value, axis + 1), (*shape[: axis + 1], block, *shape[axis + 1 :]))
        whole = op.reshape(wide, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
        return op.getitem(whole, tuple(slice(0, d) if a == axis else slice(None) for a, d in enumerate(x.shape)))
    if value.ndim != 1:
        raise n.error(f"a scale of rank {value.ndim} without block_size", "a scalar or a vector")
    return op.reshape(value, [-1 if a == axis else 1 for a in range(x.ndim)])


def as_powers_of_two(x: Expr, to: str, round_mode: str, saturate: bool) -> Expr:
    """Magnitudes as exponents, which is all that a number of the dtype `to` has. NaN for numbers that are not finite,
    and, without `saturate`, for those that are rounded beyond the largest power."""
    bits = op.bitcast(op.astype(x, "float32"), "uint32")
    exponent = op.bitwise_and(op.right_shift(bits, _FRACTION_BITS), 0xFF)
    fraction = op.bitwise_and(bits, (1 << _FRACTION_BITS) - 1)
    half = 1 << (_FRACTION_BITS - 1)
    if round_mode == "up":
        rounded = op.greater(fraction, 0)
    elif round_mode == "nearest":  # half of the smallest power is rounded down, other halves are rounded up
        rounded = op.logical_or(
            op.greater(fraction, half), op.logical_and(op.equal(fraction, half), op.greater(exponent, 0))
        )
    else:
        rounded = op.zeros(x.shape, "bool")
    rounded = op.logical_and(rounded, op.less(exponent, 0xFE if saturate else 0xFF))
    return op.bitcast(op.astype(exponent + op.astype(rounded, "uint32"), "uint8"), to)


def _scale(n: OnnxNode) -> Expr:
    """The scale of a quantizing node: known ones of the tensor or of each channel are constants, so that rules see
    which scales are equal."""
    given = n.required_input(1)
    return const(given.array) if isinstance(given, KnownArray) and given.array.ndim <= 1 else n[1]


def _quantize(n: OnnxNode) -> Expr:
    x, scale, zero = n[0], _scale(n), n.optional_input(2)
    to = zero.dtype if zero is not None else n.at("output_dtype") or "uint8"
    if n.at("output_dtype") not in (None, 0, to):
        raise n.error(f"output_dtype={n.at('output_dtype')} with a zero point of {to}", "one dtype")
    saturate, precision = n.flag("saturate", 1), n.at("precision") or None
    by = _spread(n, scale, x)
    wide = precision or ("float32" if is_integer(x.dtype) else x.dtype)
    y = op.astype(x, wide) / op.astype(by, wide)
    if is_integer(to):
        rounded = op.astype(op.round(y), "float32")
        return saturated(rounded if zero is None else rounded + op.astype(_spread(n, zero, x), "float32"), to)
    y = op.astype(y, "float32") if y.dtype != "float64" else y
    if saturate:
        most = dtype_of(to).greatest
        y = op.minimum(op.maximum(y, -most), most)
    return op.astype(y, to)


def _dequantize(n: OnnxNode) -> Expr:
    x, scale, zero = n[0], _scale(n), n.optional_input(2)
    to = n.at("output_dtype") or scale.dtype
    y = op.astype(x, "float32")
    if zero is not None and is_integer(x.dtype):
        y = y - op.astype(_spread(n, zero, x), "float32")
    return op.astype(y * op.astype(_spread(n, scale, x), "float32"), to)


def _centred(x: Expr, zero: Expr | None, axis: int) -> Expr:
    """`x` without its zero point as int32. `axis`: the axis along which a vector of zero points lies."""
    wide = op.astype(x, "int32")
    return wide if zero is None else wide - _along(op.astype(zero, "int32"), axis, x.ndim)


def _along(v: Expr, axis: int, rank: int) -> Expr:
    """`v` broadcast against `rank` axes: a vector lies along `axis`; other arrays stay as they are."""
    if product(v.shape) == 1:
        return op.reshape(v, ())
    return v if v.ndim > 1 else op.reshape(v, [-1 if a == axis % rank else 1 for a in range(rank)])


def matmul_of_integers(a: Expr, b: Expr, a_zero: Expr | None, b_zero: Expr | None) -> Expr:
    """The product of integers less their zero points, as int32."""
    return op.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))


def _requantized(y: Expr, factor: Expr, zero: Expr) -> Expr:
    return saturated(op.round(op.astype(y, "float32") * factor) + op.astype(zero, "float32"), zero.dtype)


def _qlinear_matmul(n: OnnxNode) -> Expr:
    a, b = n[0], n[3]
    y = op.matmul(_centred(a, n[2], -2), _centred(b, n[5], -1))
    scales = [op.astype(n[i], "float32") for i in (1, 4, 6)]
    by = _along(scales[0], -2, a.ndim) * _along(scales[1], -1, b.ndim) / op.reshape(scales[2], ())
    return _requantized(y, by, n[7])


def _qlinear_conv(n: OnnxNode) -> Expr:
    x, w = _centred(n[0], n[2], 1), _centred(n[3], n[5], 0)
    y = windows.convolved(n, x, w, n.optional_input(8))
    by = op.reshape(n[1], ()) * _along(n[4], 1, x.ndim) / op.reshape(n[6], ())
    return _requantized(y, by, n[7])


# --- onnxruntime's own operators, which its quantizer writes ---


def _number(n: OnnxNode, i: int) -> Expr:
    """What the integers of input `i` stand for, by its scale and zero point, the two inputs behind it."""
    return number_of(n[i], n[i + 1], n.optional_input(i + 2))


def number_of(x: Expr, scale: Expr, zero: Expr | None) -> Expr:
    """What the integers `x` stand for, by one scale and zero point."""
    return op.astype(_centred(x, None if zero is None else op.reshape(zero, ()), 0), "float32") * op.reshape(scale, ())


def _as_integers(n: OnnxNode, y: Expr, i: int, default: str) -> Expr:
    """`y` as integers of the scale in input `i` and the zero point behind it; `default`: the dtype without one."""
    zero = n.optional_input(i + 1)
    rounded = op.round(y / op.reshape(n[i], ()))
    if zero is None:
        return saturated(rounded, default)
    return saturated(rounded + op.astype(op.reshape(zero, ()), "float32"), zero.dtype)


def _qlinear(n: OnnxNode, f: Callable[..., Expr], count: int = 1) -> Expr:
    """An operator on the numbers for which `count` inputs of integers stand."""
    return _as_integers(n, f(*(_number(n, 3 * i) for i in range(count))), 3 * count, n.dtype(0))


def _qlinear_concat(n: OnnxNode) -> Expr:
    parts = [_number(n, i) for i in range(2, len(n.inputs), 3)]
    return _as_integers(n, op.concat(parts, n.axis(None, parts[0].ndim)), 0, n.dtype(2))


def _space(n: OnnxNode, x: Expr) -> tuple[int, ...]:
    return tuple(range(1, x.ndim - 1)) if n.flag("channels_last") else windows.space_of(x)


def _averaged(n: OnnxNode, x: Expr) -> Expr:
    if not n.flag("channels_last"):
        return windows.averaged(n, x)
    y = windows.averaged(n, op.permute_dims(x, (0, x.ndim - 1, *_space(n, x))))
    return op.permute_dims(y, (0, *range(2, x.ndim), 1))


def _qgemm(n: OnnxNode) -> Expr:
    a, b = n[0], n[3]
    a, b = (op.permute_dims(x, (1, 0)) if n.flag(name) else x for x, name in ((a, "transA"), (b, "transB")))
    y = op.matmul(_centred(a, n[2], -2), _centred(b, n[5], -1))
    if (bias := n.optional_input(6)) is not None:
        y = y + bias
    by = op.reshape(n[1], ()) * _along(n[4], -1, 2) * n.at("alpha", 1.0)
    if n.value(7) is None:
        return op.astype(y, "float32") * by
    return _requantized(y, by / op.reshape(n[7], ()), n[8])


_OF_ONNXRUNTIME: dict[str, Handler] = {
    "DequantizeLinear": _dequantize,
    "QGemm": _qgemm,
    "QLinearAdd": lambda n: _qlinear(n, op.add, 2),
    "QLinearAveragePool": lambda n: _qlinear(n, lambda x: _averaged(n, x)),
    "QLinearConcat": _qlinear_concat,
    "QLinearGlobalAveragePool": lambda n: _qlinear(n, lambda x: op.mean(x, _space(n, x), True)),
    "QLinearLeakyRelu": lambda n: _qlinear(n, lambda x: activated("LeakyRelu", x, n.at("alpha", 0.01))),
    "QLinearMul": lambda n: _qlinear(n, op.multiply, 2),
    "QLinearSigmoid": lambda n: _qlinear(n, op.sigmoid),
    "QLinearSoftmax": lambda n: _qlinear(n, lambda x: normalisation.softmax(n, op.softmax, x, n.at("opset", 1))),
    "QLinearWhere": lambda n: _as_integers(n, op.where(n[0], _number(n, 1), _number(n, 4)), 7, n.dtype(1)),
    "QuantizeLinear": _quantize,
}

HANDLERS: dict[str, Handler] = {
    **{f"com.microsoft.{name}": handler for name, handler in _OF_ONNXRUNTIME.items()},
    "ConvInteger": lambda n: windows.convolved(
        n, _centred(n[0], n.optional_input(2), 1), _centred(n[1], n.optional_input(3), 0), None
    ),
    "DequantizeLinear": _dequantize,
    "MatMulInteger": lambda n: matmul_of_integers(n[0], n[1], n.optional_input(2), n.optional_input(3)),
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
