"""ONNX's training operators: one step of an optimizer, for any number of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.traced import traced
from relax_eg.frontends.onnx.values import Value

_DOMAIN = "ai.onnx.preview.training"

# A step of one tensor: (learning rate, number of updates so far, tensor, gradient, states) -> tensor and states.
_Step = Callable[..., tuple[Any, ...]]


def _stepped(n: OnnxNode, kinds: int, step: _Step) -> Sequence[Value]:
    """The outputs of an optimizer. Its inputs are the rate, the number of updates, then all tensors of each of `kinds`
    kinds; its outputs are the tensors and states, kind by kind."""
    count, left = divmod(len(n.inputs) - 2, kinds)
    if left or count < 1:
        raise n.error(f"{len(n.inputs)} inputs", f"2, and {kinds} for each tensor")

    def all_tensors(rate: Any, updates: Any, *given: Any) -> list[Any]:
        steps = [step(rate, updates, *given[i::count]) for i in range(count)]
        return [
            new.astype(old.dtype) for kind in zip(*steps, strict=True) for new, old in zip(kind, given, strict=False)
        ]

    return list(traced(n, all_tensors, *n.all))


def _adagrad(n: OnnxNode) -> Sequence[Value]:
    decay, epsilon, norm = n.at("decay_factor", 0.0), n.at("epsilon", 1e-6), n.at("norm_coefficient", 0.0)

    def step(rate: Any, updates: Any, x: Any, gradient: Any, squares: Any) -> tuple[Any, ...]:
        g = norm * x + gradient
        squares = squares + g * g
        return x - rate / (1 + updates * decay) * g / (jnp.sqrt(squares) + epsilon), squares

    return _stepped(n, 3, step)


def _adam(n: OnnxNode) -> Sequence[Value]:
    alpha, beta, epsilon = n.at("alpha", 0.9), n.at("beta", 0.999), n.at("epsilon", 1e-6)
    norm, after = n.at("norm_coefficient", 0.0), n.at("norm_coefficient_post", 0.0)

    def step(rate: Any, updates: Any, x: Any, gradient: Any, momentum: Any, squares: Any) -> tuple[Any, ...]:
        g = norm * x + gradient
        momentum = alpha * momentum + (1 - alpha) * g
        squares = beta * squares + (1 - beta) * (g * g)
        t = jnp.maximum(updates, 1).astype(x.dtype)
        corrected = jnp.where(updates > 0, rate * jnp.sqrt(1 - beta**t) / (1 - alpha**t), rate)
        new = x - corrected * (momentum / (jnp.sqrt(squares) + epsilon))
        return (1 - after) * new, momentum, squares

    return _stepped(n, 4, step)


def _momentum(n: OnnxNode) -> Sequence[Value]:
    alpha, beta, norm = n.at("alpha"), n.at("beta"), n.at("norm_coefficient")
    nesterov = n.choice("mode", "standard", "standard", "nesterov") == "nesterov"

    def step(rate: Any, updates: Any, x: Any, gradient: Any, momentum: Any) -> tuple[Any, ...]:
        g = norm * x + gradient
        momentum = alpha * momentum + jnp.where(updates > 0, beta, 1).astype(x.dtype) * g
        return x - rate * (g + alpha * momentum if nesterov else momentum), momentum

    return _stepped(n, 3, step)


HANDLERS: dict[str, Handler] = {
    f"{_DOMAIN}.Adagrad": _adagrad,
    f"{_DOMAIN}.Adam": _adam,
    f"{_DOMAIN}.Momentum": _momentum,
}
