"""Library calls: attention, matmuls with epilogues, convolutions, norms.

A routine that XLA compiles is the same code inside a larger program, so its rule requires `execution: kernels`. The
attention of cuDNN is other code, so its rules apply wherever there is a GPU. Attention is one routine with heads before
positions; the rules of `library_forms`, which are checked like any other, rewrite its many other forms to this one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from relax_eg.dtypes import HALF
from relax_eg.ir.expr import const
from relax_eg.ops import api as op
from relax_eg.ops import routines
from relax_eg.rules.book.attention import repeated
from relax_eg.rules.book.traced import gelu_of_tanh
from relax_eg.rules.rule_set import RuleSet

calls = RuleSet("calls")

FILL = -0.7 * 3.4028234663852886e38  # given: the value of masked logits in jax.nn
KINDS = ("", "mask", "bias", "causal")
KERNELS = "execution: kernels"
CUDNN = ("platform: gpu", "dtype: float16 bfloat16")


def attended(q: Any, k: Any, v: Any, logits: Callable[[Any], Any]) -> Any:
    """softmax(logits(q k')) v for operands with heads before positions. For half precision the logits are in float32,
    as in jax.nn."""
    half = q.dtype in HALF
    made = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)), out_dtype="float32" if half else None)
    return op.astype(op.softmax(logits(made)), q.dtype) @ v


def masked(x: Any, mask: Any) -> Any:
    return op.where(mask, x, const(FILL, x.dtype))


def causal(s: Any, t: Any) -> Any:
    """The causal mask of (s, t), a lower triangle: query i may attend to key j if j <= i."""
    return op.greater_equal(op.iota((s, t), 0), op.iota((s, t), 1))


def conditions(name: str, sizes: str) -> tuple[str, ...]:
    """The conditions of attention routine `name` on its sizes, of which the last is the width of a head."""
    width = sizes.split()[-1]
    some = tuple(f"{n} >= 1" for n in sizes.split())
    # https://docs.nvidia.com/deeplearning/cudnn: heads of up to 128 elements, eight to a load.
    return (*some, f"{width} % 8 == 0", f"{width} <= 128") if name.startswith("cudnn") else some


def _attention(kind: str, name: str, implementation: Literal["xla", "cudnn"], requires: Sequence[str]) -> None:
    shapes = "q: b g*r s d, k: b g t d, v: b g t d"
    if kind == "mask":
        shapes += ", extra: b g*r s t @ bool"
    elif kind == "bias":
        shapes += ", extra: b g*r s t @ float32"

    def pattern(q: Any, k: Any, v: Any, *extra: Any, r: Any) -> Any:
        b, h, s, _ = q.shape
        t = k.shape[2]
        edits: dict[str, Callable[[Any], Any]] = {
            "": lambda x: x, "mask": lambda x: masked(x, *extra), "bias": lambda x: x + extra[0],
            "causal": lambda x: masked(x, op.broadcast_to(causal(s, t), (b, h, s, t))),
        }  # fmt: skip
        return attended(q, repeated(k, r), repeated(v, r), edits[kind])

    pattern.__name__ = name.replace(".", "_")
    calls.library(
        name, shapes=shapes, sizes="r", when=conditions(name, "b g r s t d"), requires=requires,
        target=functools.partial(routines.attention, kind=kind, implementation=implementation),
        # cuDNN takes a bias of the operands' dtype.
        numerics="approximate" if (kind, implementation) == ("bias", "cudnn") else "reassociate",
        tags=("attention",), doc=f"attention{f' with a {kind}' if kind else ''}, of grouped heads",
    )(pattern)  # fmt: skip


def attention_names(kind: str) -> tuple[str, ...]:
    """The routines that compute attention of a kind."""
    suffix = f"_{kind}" if kind else ""
    return (f"xla.attention{suffix}", f"cudnn.attention{suffix}")


for _kind in KINDS:
    _xla, _cudnn = attention_names(_kind)
    _attention(_kind, _xla, "xla", (KERNELS, "dtype: float32 bfloat16"))
    _attention(_kind, _cudnn, "cudnn", CUDNN)


# --- matmuls with epilogues ---

_ACTIVATIONS = ("relu", "silu", "gelu")


def _activated(name: str, x: Any) -> Any:
    if name == "relu":
        return op.maximum(x, const(0.0, x.dtype))
    if name == "silu":
        return x * op.sigmoid(x)
    return gelu_of_tanh(x)


def _matmul(transposed: bool, parts: tuple[str, ...], batched: bool = False) -> None:
    stem = ("xla.batched_matmul" if batched else "xla.matmul") + ("_transposed" if transposed else "")
    name = "_".join((stem, *parts))
    weight = ("b: *b n k" if transposed else "b: *b k n") if batched else ("b: n k" if transposed else "b: k n")
    operands = {"bias": "n", "residual": "*b m n"}
    taken = [p for p in parts if p in operands]
    shapes = ", ".join(["a: *b m k", weight, *(f"{p}: {operands[p]}" for p in taken)])

    def pattern(a: Any, b: Any, *rest: Any) -> Any:
        if batched and a.ndim == 2:
            return None
        left = list(rest)
        axes = (*range(b.ndim - 2), b.ndim - 1, b.ndim - 2)
        made = a @ (op.permute_dims(b, axes) if transposed else b)
        for part in parts:
            made = made + left.pop(0) if part in taken else _activated(part, made)
        return made

    pattern.__name__ = name.replace(".", "_")
    calls.library(
        name, shapes=shapes, requires=KERNELS, tags=("matmul",),
        target=functools.partial(routines.matmul, transposed=transposed, parts=parts),
        doc=f"a matmul{' with ' + ', '.join(parts) if parts else ''}",
    )(pattern)  # fmt: skip


for _transposed, _bias, _activation, _residual in itertools.product(
    (False, True), ((), ("bias",)), ((), *((a,) for a in _ACTIVATIONS)), ((), ("residual",))
):
    _matmul(_transposed, (*_bias, *_activation, *_residual))
for _transposed in (False, True):
    _matmul(_transposed, (), batched=True)


# --- convolutions, norms ---


def _conv(parts: tuple[str, ...]) -> None:
    def pattern(x: Any, f: Any, bias: Any, strides: Any, dilation: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        made = op.conv(x, f, strides, [(a, b), (c, d)], dilation) + op.expand_dims(bias, (1, 2))
        for part in parts:
            made = _activated(part, made)
        return made

    name = "_".join(("xla.conv_bias", *parts))
    pattern.__name__ = name.replace(".", "_")
    calls.library(
        name, shapes="x: n k h w, f: o k p q, bias: o", attrs={"strides": "conv.strides", "dilation": "conv.dilation"},
        sizes="a b c d", when=tuple(f"{n} >= 1" for n in "nkhwopq"), requires=KERNELS,
        target=functools.partial(routines.conv, parts=parts), tags=("conv",),
        doc="a convolution with a bias for each channel" + "".join(f" and {p}" for p in parts),
    )(pattern)  # fmt: skip


for _parts in ((), ("relu",), ("silu",), ("gelu",)):
    _conv(_parts)


@calls.library(
    "xla.layer_norm", shapes="x: *b n, g: n, c: n", attrs={"epsilon": "layer_norm.epsilon"}, when="n >= 1",
    requires=KERNELS, target=routines.layer_norm, tags=("norm",))  # fmt: skip
def xla_layer_norm(x: Any, g: Any, c: Any, epsilon: float) -> Any:
    """layer norm over the last axis"""
    return op.layer_norm(x, g, c, -1, epsilon)


@calls.library(
    "xla.rms_norm", shapes="x: *b n, g: n", attrs={"epsilon": "rms_norm.epsilon"}, when="n >= 1",
    requires=KERNELS, target=routines.rms_norm, tags=("norm",))  # fmt: skip
def xla_rms_norm(x: Any, g: Any, epsilon: float) -> Any:
    """root-mean-square norm over the last axis"""
    return op.rms_norm(x, g, -1, epsilon)
