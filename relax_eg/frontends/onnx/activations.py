"""ONNX's activations, each written once: for operators and for JAX's functions, which have the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relax_eg.ops import api as op

# An activation: (functions, x, *parameters) -> y, where `functions` is `ops.api`, or what has these names in JAX; and
# the values of its parameters, alpha and beta, that ONNX gives where they are left out.
Activation = tuple[Callable[..., Any], tuple[float, ...]]

# given: ONNX
ACTIVATIONS: Mapping[str, Activation] = {
    "Affine": (lambda m, x, a, b: a * x + b, (1.0, 0.0)),
    "Elu": (lambda m, x, a: m.where(m.greater(x, 0), x, a * m.expm1(m.minimum(x, 0))), (1.0,)),
    "HardSigmoid": (lambda m, x, a, b: m.minimum(m.maximum(x * a + b, 0), 1), (0.2, 0.5)),
    "LeakyRelu": (lambda m, x, a: m.where(m.less(x, 0), a * x, x), (0.01,)),
    "Relu": (lambda m, x: m.relu(x), ()),
    "ScaledTanh": (lambda m, x, a, b: a * m.tanh(b * x), (1.0, 1.0)),
    "Sigmoid": (lambda m, x: m.sigmoid(x), ()),
    "Softplus": (lambda m, x: m.maximum(x, 0) + m.log1p(m.exp(-m.abs(x))), ()),
    "Softsign": (lambda m, x: x / (1 + m.abs(x)), ()),
    "Tanh": (lambda m, x: m.tanh(x), ()),
    "ThresholdedRelu": (lambda m, x, a: m.where(m.greater(x, a), x, 0), (1.0,)),
}


def activated(name: str, x: Any, *parameters: float) -> Any:
    """The activation `name` of an expression; parameters that are left out have the values that ONNX gives."""
    f, usual = ACTIVATIONS[name]
    return f(op, x, *parameters[: len(usual)], *usual[len(parameters) :])
