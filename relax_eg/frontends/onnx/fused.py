"""Operators into which onnxruntime fuses others (`com.microsoft`): products, convolutions, activations, sums with a
normalisation, embeddings."""

from __future__ import annotations

from collections.abc import Callable

from relax_eg.frontends.onnx import windows
from relax_eg.frontends.onnx.activations import activated
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.normalisation import statistics
from relax_eg.frontends.onnx.quantized import number_of
from relax_eg.frontends.onnx.values import Value
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.reduction import accumulator

_SMALL = 1e-12  # given: the epsilon of onnxruntime's fused normalisations
_QUICK = 1.702  # given: the alpha of onnxruntime's QuickGelu

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")  # given: those that onnxruntime fuses


def _activated(n: OnnxNode, y: Expr, given: list[float]) -> Expr:
    name = n.choice("activation", None, None, "", *_ACTIVATIONS)
    if name == "Clip":
        low, high = (*given[:2], *(0.0, 0.0)[len(given) :])
        return op.minimum(op.maximum(y, low), high)
    return activated(name, y, *given) if name else y


def _matmul(n: OnnxNode) -> Expr:
    def placed(x: Expr, whole: bool, last: bool) -> Expr:
        if whole and x.ndim > 2:  # (a, *b, c) as (*b, a, c)
            x = op.permute_dims(x, (*range(1, x.ndim - 1), 0, x.ndim - 1))
        return op.swapaxes(x, -1, -2) if last and x.ndim > 1 else x

    a = placed(n[0], n.flag("transBatchA"), n.flag("transA"))
    b = placed(n[1], n.flag("transBatchB"), n.flag("transB"))
    alpha = n.at("alpha", 1.0)
    return op.matmul(a, b) if alpha == 1 else op.matmul(a, b) * alpha


def _gemm(n: OnnxNode) -> Expr:
    a = op.permute_dims(n[0]) if n.flag("transA") else n[0]
    b = op.permute_dims(n[1]) if n.flag("transB") else n[1]
    y, c = op.matmul(a, b) * n.at("alpha", 1.0), n.optional_input(2)
    y = y if c is None else y + c * n.at("beta", 1.0)
    n.ignore_attributes("activation_gamma", "beta")
    given = [n.at(name) for name in ("activation_alpha", "activation_beta")]
    return _activated(n, y, [g for g in given if g is not None])


def _conv(n: OnnxNode) -> Expr:
    y, other = windows.convolved(n, n[0], n[1], n.optional_input(2)), n.optional_input(3)
    return _activated(n, y if other is None else y + other, list(n.at("activation_params", [])))


def _gelu(n: OnnxNode) -> Expr:
    return op.gelu(n[0], approximate=False)


def _fast_gelu(n: OnnxNode) -> Expr:
    bias = n.optional_input(1)
    return op.gelu(n[0] if bias is None else n[0] + bias, approximate=True)


def _skip_norm(simplified: bool) -> Handler:
    def handler(n: OnnxNode) -> list[Value]:
        gamma, last = n[2], 3 if simplified else 4
        total = n[0] + n[1]
        if (bias := n.optional_input(last)) is not None:
            total = total + bias
        y, mean, inverse = _normalised(n, total, gamma, None if simplified else n.optional_input(3), simplified)
        return [y, mean, inverse, total]

    return handler


def _normalised(
    n: OnnxNode, x: Expr, gamma: Expr, beta: Expr | None, simplified: bool = False
) -> tuple[Expr, Expr, Expr]:
    """`x` normalised over its last axis, its mean, and one over its deviation. `simplified`: about 0."""
    wide = op.astype(x, accumulator(x.dtype))
    y, mean, inverse = statistics(wide, (x.ndim - 1,), n.at("epsilon", _SMALL), about_zero=simplified)
    y = y * op.astype(gamma, wide.dtype)
    y = y if beta is None else y + op.astype(beta, wide.dtype)
    return op.astype(y, x.dtype), mean, inverse


def _embedded(n: OnnxNode) -> list[Value]:
    return _embedding(n, lambda i, part: part(n[i]), n.optional_input(8))


def _embedded_codes(n: OnnxNode) -> list[Value]:
    """Inputs 2 to 6 are integers; their scales are inputs 8 to 12, and their zero points 13 to 17."""
    return _embedding(n, lambda i, part: number_of(part(n[i]), n[i + 6], n.optional_input(i + 11)), None)


def _embedding(n: OnnxNode, of: Callable[[int, Callable[[Expr], Expr]], Expr], places: Expr | None) -> list[Value]:
    """The normalised sum of rows of tables. `of`: a part of input i, for which it calls a function of that input."""
    ids, segments = n[0], n.optional_input(1)

    def rows(at: Expr) -> Callable[[Expr], Expr]:
        return lambda table: op.take(table, at, 0, mode="clip")

    def first(table: Expr) -> Expr:
        return op.getitem(table, slice(0, ids.shape[1]))

    total = of(2, rows(ids)) + of(3, first if places is None else rows(places))
    if segments is not None and n.value(4) is not None:
        total = total + of(4, rows(segments))
    y = _normalised(n, total, of(5, lambda v: v), of(6, lambda v: v))[0]
    mask = n.optional_input(7)
    n.ignore_attributes("mask_index_type")
    if mask is None:
        counts = op.zeros((ids.shape[0],), "int32")
    else:
        counts = op.sum(op.astype(op.equal(mask, 1), "int32"), 1)
    return [y, counts, total]


HANDLERS: dict[str, Handler] = {
    "com.microsoft.BiasGelu": lambda n: op.gelu(n[0] + n[1], approximate=False),
    "com.microsoft.EmbedLayerNormalization": _embedded,
    "com.microsoft.QEmbedLayerNormalization": _embedded_codes,
    "com.microsoft.FastGelu": _fast_gelu,
    "com.microsoft.FusedConv": _conv,
    "com.microsoft.FusedGemm": _gemm,
    "com.microsoft.FusedMatMul": _matmul,
    "com.microsoft.Gelu": _gelu,
    "com.microsoft.QuickGelu": lambda n: n[0] * op.sigmoid(n[0] * n.at("alpha", _QUICK)),
    "com.microsoft.SkipLayerNormalization": _skip_norm(False),
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_norm(True),
}
