"""ONNX's RNN, GRU and LSTM, and onnxruntime's LSTM of integers. Each direction is a scan over the sequence; the
products of the inputs with their weights are computed for all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from relax_eg.frontends.onnx.activations import ACTIVATIONS
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.quantized import STEPS
from relax_eg.frontends.onnx.traced import traced
from relax_eg.frontends.onnx.values import Value
from relax_eg.ops import api as op

_Function = Callable[..., Any]

_BY_NAME = {name.lower(): activation for name, activation in ACTIVATIONS.items()}  # nodes spell them as they like
# JAX's functions under the names that activations use.
_FUNCTIONS = SimpleNamespace(**vars(jnp) | {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid})

# A cell: (gates, state, recurrent weights and bias, activations) -> state. `_rnn`, `_gru` and `_lstm` make them.
_Cell = Callable[[Any, tuple[Any, ...], Any, Any, Sequence[_Function]], tuple[Any, ...]]


def _activations(n: OnnxNode, default: Sequence[str], directions: int) -> list[list[_Function]]:
    """The activations of each direction, with clipping, alpha and beta applied."""
    names = [s.lower() for s in n.at("activations", [*default] * directions)]
    alphas, betas, most = list(n.at("activation_alpha", [])), list(n.at("activation_beta", [])), n.at("clip")
    if len(names) != len(default) * directions or any(name not in _BY_NAME for name in names):
        raise n.error(f"activations={names}", f"{len(default)} a direction, each one of {', '.join(_BY_NAME)}")
    made: list[_Function] = []
    for name in names:
        f, usual = _BY_NAME[name]
        parameters = [given.pop(0) if given else v for given, v in zip((alphas, betas), usual, strict=False)]
        made.append(_clipped(partial(f, _FUNCTIONS), parameters, most))
    return [made[i : i + len(default)] for i in range(0, len(made), len(default))]


def _clipped(f: _Function, parameters: Sequence[float], most: float | None) -> _Function:
    return lambda x: f(x if most is None else jnp.clip(x, -most, most), *parameters)


class _Codes(NamedTuple):
    """A matrix (size, gates) as integers: a number is (integer - zero) * scale, with one zero and scale for all, or one
    for each gate. What is multiplied with it becomes integers of 8 bits by its own range."""

    integers: Any
    scale: Any
    zero: Any


def _times(x: Any, w: Any) -> Any:
    """The product of rows (..., size) with `w`: an array (gates, size), or `_Codes`."""
    if not isinstance(w, _Codes):
        return x @ w.T
    low, high = jnp.minimum(jnp.min(x), 0), jnp.maximum(jnp.max(x), 0)
    scale = (high - low) / STEPS
    scale = jnp.where(scale == 0, 1, scale)
    zero = jnp.clip(jnp.round(-low / scale), 0, STEPS)
    numbers = (jnp.clip(jnp.round(x / scale) + zero, 0, STEPS) - zero).astype(jnp.int32)
    product = numbers @ (w.integers.astype(jnp.int32) - w.zero.astype(jnp.int32))
    return product.astype(x.dtype) * (scale * w.scale)


def _recurrent(
    n: OnnxNode, default: Sequence[str], gates: int, states: int, cell: _Cell, apart: bool = False, coded: bool = False
) -> list[Value]:
    """The outputs of a recurrent node: all states of the first kind, then the last states.

    - `gates`, `states`: the number of gates and of state vectors.
    - `apart`: whether the cell adds the recurrent bias itself.
    - `coded`: whether the weights are integers, transposed, with scales and zero points as inputs 8 to 11.
    """
    direction = n.choice("direction", "forward", "forward", "reverse", "bidirectional")
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    functions = _activations(n, default, len(backward))
    batch_first = n.flag("layout")
    x, w, r = n[0], n[1], n[2]
    size = 1 if coded else 2
    if w.ndim != 3 or r.ndim != 3 or not r.shape[size].is_const or x.ndim != 3:
        raise n.error(f"operands of ranks {x.ndim}, {w.ndim}, {r.ndim}", "rank 3, and a known hidden size")
    hidden = r.shape[size].value
    if n.at("hidden_size", hidden) != hidden:
        raise n.error(f"hidden_size={n.at('hidden_size')} with weights of {hidden}", "the size of the weights")
    x = op.swapaxes(x, 0, 1) if batch_first else x
    bias, lengths = n.optional_input(3), n.optional_input(4)
    given = [n.optional_input(5 + i) for i in range(states)]
    first = [op.swapaxes(s, 0, 1) if s is not None and batch_first else s for s in given]
    peepholes = n.optional_input(7) if states == 2 else None
    codes = [n[i] for i in range(8, 12)] if coded else []

    def all_directions(x: Any, w: Any, r: Any, bias: Any, ends: Any, peeps: Any, *others: Any) -> list[Any]:
        zeros = jnp.zeros((len(backward), x.shape[1], hidden), x.dtype)
        begin, scales = [zeros if s is None else s for s in others[:states]], others[states:]
        bias = jnp.zeros((len(backward), 2 * gates * hidden), x.dtype) if bias is None else bias

        def of(weight: Any, i: int, d: int) -> Any:
            return _Codes(weight[d], scales[i][d], scales[i + 1][d]) if coded else weight[d]

        results = [
            _direction(
                cell, x, of(w, 0, d), of(r, 2, d), bias[d], [s[d] for s in begin], ends,
                None if peeps is None else peeps[d], functions[d], back, apart,
            )
            for d, back in enumerate(backward)
        ]  # fmt: skip
        ys = jnp.stack([ys for ys, _ in results], 1)
        last = [jnp.stack([s[i] for _, s in results]) for i in range(states)]
        if batch_first:
            return [jnp.transpose(ys, (2, 0, 1, 3)), *(jnp.swapaxes(s, 0, 1) for s in last)]
        return [ys, *last]

    return list(traced(n, all_directions, x, w, r, bias, lengths, peepholes, *first, *codes))


def _direction(
    cell: _Cell, x: Any, w: Any, r: Any, bias: Any, begin: Sequence[Any], lengths: Any, peepholes: Any,
    functions: Sequence[_Function], back: bool, apart: bool,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """All states of the first kind, and the last states, of one direction. Beyond the length of its sequence, a row
    keeps its states, and its outputs are 0."""
    half = bias.shape[0] // 2
    inputs = _times(x, w) + (bias[:half] if apart else bias[:half] + bias[half:])
    steps = jnp.arange(x.shape[0], dtype=jnp.int32)

    def step(state: tuple[Any, ...], at: tuple[Any, Any]) -> tuple[tuple[Any, ...], Any]:
        gates, i = at
        new = cell(gates, state, r, bias[half:] if peepholes is None else peepholes, functions)
        if lengths is None:
            return new, new[0]
        runs = (i < lengths)[:, None]
        kept = tuple(jnp.where(runs, a, b) for a, b in zip(new, state, strict=True))
        return kept, jnp.where(runs, new[0], 0)

    last, ys = jax.lax.scan(step, tuple(begin), (inputs, steps), reverse=back)
    return ys, last


def _rnn(n: OnnxNode) -> list[Value]:
    def cell(gates: Any, state: tuple[Any, ...], r: Any, _: Any, functions: Sequence[_Function]) -> tuple[Any, ...]:
        return (functions[0](gates + _times(state[0], r)),)

    return _recurrent(n, ["Tanh"], 1, 1, cell)


def _gru(n: OnnxNode) -> list[Value]:
    before = n.flag("linear_before_reset")

    def cell(gates: Any, state: tuple[Any, ...], r: Any, bias: Any, functions: Sequence[_Function]) -> tuple[Any, ...]:
        f, g = functions
        (h,) = state
        size = h.shape[-1]
        update_reset = gates[:, : 2 * size] + h @ r[: 2 * size].T + bias[: 2 * size]
        update, reset = f(update_reset[:, :size]), f(update_reset[:, size:])
        if before:
            inner = reset * (h @ r[2 * size :].T + bias[2 * size :])
        else:
            inner = (reset * h) @ r[2 * size :].T + bias[2 * size :]
        new = g(gates[:, 2 * size :] + inner)
        return ((1 - update) * new + update * h,)

    return _recurrent(n, ["Sigmoid", "Tanh"], 3, 1, cell, apart=True)


def _lstm(n: OnnxNode, coded: bool = False) -> list[Value]:
    if n.at("clip") is not None:
        # ONNX's text limits the input of every activation, onnxruntime not that of the last, and the reference none.
        raise n.error(f"clip={n.at('clip')}", "an LSTM without it")
    coupled, has_peepholes = n.flag("input_forget"), n.optional_input(7) is not None

    def cell(gates: Any, state: tuple[Any, ...], r: Any, peep: Any, functions: Sequence[_Function]) -> tuple[Any, ...]:
        f, g, h = functions
        hidden, inner = state
        size = hidden.shape[-1]
        i, o, forget, c = jnp.split(gates + _times(hidden, r), 4, axis=1)
        pi, po, pf = jnp.split(peep[: 3 * size], 3) if has_peepholes else (0, 0, 0)
        i = f(i + pi * inner)
        forget = 1 - i if coupled else f(forget + pf * inner)
        new = forget * inner + i * g(c)
        return f(o + po * new) * h(new), new

    return _recurrent(n, ["Sigmoid", "Tanh", "Tanh"], 4, 2, cell, coded=coded)


HANDLERS: dict[str, Handler] = {
    "GRU": _gru,
    "LSTM": _lstm,
    "RNN": _rnn,
    "com.microsoft.DynamicQuantizeLSTM": lambda n: _lstm(n, coded=True),
}
