"""Products of onnxruntime (`com.microsoft`) whose weights are integers: packed ones of few bits, and 8-bit ones."""

from __future__ import annotations

import numpy as np

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.quantized import STEPS, matmul_of_integers, saturated
from relax_eg.ir.expr import Expr, const
from relax_eg.ops import api as op

_BITS = (2, 4, 8)  # given: the widths of onnxruntime's packed weights
_BYTE = 8  # given: bits


def _unpacked(x: Expr, bits: int) -> Expr:
    """The numbers of `bits` bits in the bytes of the last axis, lowest bits first, as float32."""
    if bits == _BYTE:
        return op.astype(x, "float32")
    each = _BYTE // bits
    shifts = const(np.arange(each, dtype=np.uint8) * np.uint8(bits))
    numbers = op.bitwise_and(op.right_shift(op.expand_dims(x, x.ndim), shifts), (1 << bits) - 1)
    return op.astype(op.reshape(numbers, (*x.shape[:-1], x.shape[-1] * each)), "float32")


def _matmul_n_bits(n: OnnxNode) -> Expr:
    a, packed, scales, zeros = n[0], n[1], n[2], n.optional_input(3)
    rows, columns, bits, block = n.at("N"), n.at("K"), n.choice("bits", 4, *_BITS), n.at("block_size")
    n.choice("weight_prepacked", 0, 0)
    n.ignore_attributes("accuracy_level")
    blocks = -(-columns // block)
    wanted = (rows, blocks, block * bits // _BYTE)
    if tuple(packed.shape) != wanted:
        raise n.error(f"weights of shape ({', '.join(map(str, packed.shape))})", f"{wanted}")
    each = op.reshape(scales, (rows, blocks))
    if zeros is None:
        zero: Expr | float = float(1 << (bits - 1))
    elif zeros.dtype == "uint8":
        zero = _unpacked(op.reshape(zeros, (rows, -(-blocks * bits // _BYTE))), bits)
        zero = op.getitem(zero, (slice(None), slice(0, blocks)))
    else:
        zero = op.reshape(op.astype(zeros, "float32"), (rows, blocks))
    numbers = _unpacked(packed, bits)
    if (group := n.optional_input(4)) is not None:
        if zeros is not None and zeros.dtype == "uint8":
            # onnxruntime's documentation subtracts these zero points, and its kernels for CPUs do not.
            raise n.error("packed zero points with g_idx", "zero points as floats, or none; or no g_idx")
        group = op.astype(group, "int32")
        each = op.take(each, group, 1, mode="clip")
        zero = zero if isinstance(zero, float) else op.take(zero, group, 1, mode="clip")
        numbers = op.getitem(op.reshape(numbers, (rows, blocks * block)), (slice(None), slice(0, columns)))
    else:
        each = op.expand_dims(each, 2)
        zero = zero if isinstance(zero, float) else op.expand_dims(zero, 2)
    weights = op.astype(op.astype(numbers - zero, "float32") * op.astype(each, "float32"), a.dtype)
    if group is None:
        weights = op.getitem(op.reshape(weights, (rows, blocks * block)), (slice(None), slice(0, columns)))
    y, bias = op.matmul(a, op.permute_dims(weights)), n.optional_input(5)
    return y if bias is None else y + bias


def _to_float(n: OnnxNode) -> Expr:
    y = matmul_of_integers(n[0], n[1], n.optional_input(4), n.optional_input(5))
    y, bias = op.astype(y, n.dtype(2)) * n[2] * n[3], n.optional_input(6)
    return y if bias is None else y + bias


def _dynamic(n: OnnxNode) -> Expr:
    x, b, bias = n[0], n[1], n.optional_input(4)
    low, high = op.minimum(op.min(x), 0), op.maximum(op.max(x), 0)
    scale = (high - low) / STEPS
    scale = op.where(op.equal(scale, 0), 1.0, scale)
    zero = op.astype(saturated(op.round(-low / scale), "uint8"), "float32")
    whole = saturated(op.round(x / scale) + zero, "uint8")
    y = matmul_of_integers(whole, b, op.astype(zero, "uint8"), n.optional_input(3))
    y = op.astype(y, x.dtype) * (scale * n[2])
    return y if bias is None else y + bias


HANDLERS: dict[str, Handler] = {
    "com.microsoft.DynamicQuantizeMatMul": _dynamic,
    "com.microsoft.MatMulIntegerToFloat": _to_float,
    "com.microsoft.MatMulNBits": _matmul_n_bits,
}
