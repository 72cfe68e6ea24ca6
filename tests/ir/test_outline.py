"""Repeated blocks: what is found, and that calling it is the same program."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relax_eg import op
from relax_eg.frontends import trace
from relax_eg.ir import (
    CALL,
    Binding,
    Block,
    Expr,
    Function,
    Module,
    Tensor,
    Tuple,
    call_function,
    check,
    function_ref,
    pure_function,
    var,
)
from relax_eg.ir.calls import inline_call
from relax_eg.ir.expr import TUPLE_GET, node, postorder, tuple_, tuple_get
from relax_eg.ir.outline import SMALLEST_BLOCK, outline


def outlined(function: Function) -> tuple[Function, list[Function]]:
    names = (f"block{i}" for i in itertools.count())
    found, made = outline(function, lambda stem: next(names))
    check(Module((found, *made)))
    return found, made


def calls(function: Function) -> int:
    return sum(e.op == CALL for e in function.expressions())


def with_calls_inlined(function: Function, made: list[Function]) -> list[Expr]:
    """The values of the function's only block, every call replaced by what it calls. Later functions may call earlier
    ones."""
    called: dict[str, Function] = {}
    for f in (*made, function):
        (block,) = f.blocks
        values = _without_calls([b.value for b in block.bindings], called)
        bindings = tuple(Binding(b.var, value) for b, value in zip(block.bindings, values, strict=True))
        called[f.name] = replace(f, blocks=(Block(bindings),))
    return [b.value for b in called[function.name].blocks[0].bindings]


def _without_calls(roots: list[Expr], called: dict[str, Function]) -> list[Expr]:
    done: dict[Expr, Expr] = {}
    for e in postorder(roots):
        args = [done[a] for a in e.args]
        if e.op == CALL:
            values = inline_call(called[e.args[0].attr("name")], args[1:])
            done[e] = tuple_(values) if isinstance(e.annotation, Tuple) else values[0]
        elif e.op == TUPLE_GET:
            done[e] = tuple_get(args[0], e.attr("index"))
        else:
            done[e] = node(e.op, args, e.attrs, e.annotation)
    return [done[r] for r in roots]


def is_the_same(function: Function, found: Function, made: list[Function]) -> bool:
    return with_calls_inlined(found, made) == [b.value for b in function.blocks[0].bindings]


def layer(x: Any, p: Any, scale: Any) -> Any:
    h = (x - x.mean(-1, keepdims=True)) * p["a"]
    h = jnp.tanh(h @ p["w"]) * jnp.exp(-jnp.abs(h @ p["v"])) + scale
    h = jnp.where(h > 0.5, h, h * 0.1)
    return x + (h / (1 + h * h)) @ p["u"]


SPEC = {"a": "8", "w": "8 8", "v": "8 8", "u": "8 8"}


def network(layers: int, make: Callable[..., Any] = layer) -> Function:
    def run(params: Any, x: Any) -> Any:
        scale = jnp.cos(jnp.arange(x.shape[0]))[:, None]
        for p in params:
            x = make(x, p, scale)
        return jnp.sort(x, axis=0)

    return trace(run, [SPEC] * layers, "n 8").main


def test_all_layers_but_the_last_become_calls() -> None:
    function = network(24)
    found, made = outlined(function)
    (block,) = made
    assert calls(found) == 23
    assert is_the_same(function, found, made)
    # Its weights, the value that goes through and the scale; the constants inside stay inside.
    assert len(block.params) == len(SPEC) + 2
    assert block.annotation == Tensor("n 8")


def test_a_small_program_is_left_alone() -> None:
    function = network(4)
    assert outlined(function) == (function, [])


def test_nothing_repeats() -> None:
    x = var("x", Tensor("n"))
    values = [x]
    for i in range(300):
        values.append(op.add(op.multiply(values[-1], float(i)), op.sin(values[i // 2])))
    function = pure_function("main", [x], [values[-1]])
    assert is_the_same(function, *outlined(function))


def test_two_kinds_of_layer() -> None:
    def other(x: Any, p: Any, scale: Any) -> Any:
        h = jnp.maximum(x @ p["w"], 0) + jnp.minimum(x @ p["v"], 0) * scale
        h = jnp.log1p(h * h) - jnp.sqrt(jnp.abs(h) + 1)
        h = jnp.clip(h, -1, 1) * p["a"] + jnp.floor(h) * jnp.sign(h)
        return (h / (h * h + 2)) @ p["u"] - x

    def run(first: Any, second: Any, x: Any) -> Any:
        for p in first:
            x = layer(x, p, 0.5)
        for p in second:
            x = other(x, p, 0.5)
        return x

    function = trace(run, [SPEC] * 12, [SPEC] * 14, "n 8").main
    found, made = outlined(function)
    assert len(made) == 2 and calls(found) == 11 + 13
    assert is_the_same(function, found, made)


def test_values_read_far_later() -> None:
    """The way down of a U-Net gives every level's value to the way up."""

    def run(down: Any, up: Any, x: Any) -> Any:
        kept = []
        for p in down:
            x = layer(x, p, 0.25)
            kept.append(x)
        for p, skip in zip(up, reversed(kept), strict=True):
            x = layer(x + skip, p, 0.25)
        return x

    function = trace(run, [SPEC] * 12, [SPEC] * 12, "n 8").main
    found, made = outlined(function)
    assert calls(found) >= 16
    assert is_the_same(function, found, made)


def test_layers_that_differ_in_a_number() -> None:
    def run(params: Any, x: Any) -> Any:
        for i, p in enumerate(params):
            x = layer(x, p, 1.0 / (i + 2))
        return x

    function = trace(run, [SPEC] * 20, "n 8").main
    found, made = outlined(function)
    assert calls(found) == 19 and len(made[0].params) == len(SPEC) + 2
    assert is_the_same(function, found, made)


def test_sizes_that_no_operand_tells_are_passed() -> None:
    def make(x: Any, p: Any, scale: Any) -> Any:
        return layer(x, p, scale) + jnp.arange(x.shape[0] * 2).sum()

    def run(params: Any, x: Any) -> Any:
        for p in params:
            x = make(x.sum(0, keepdims=True), p, 0.5) * jnp.ones((x.shape[0], 1))
        return x

    function = trace(run, [SPEC] * 20, "n 8").main
    found, made = outlined(function)
    assert calls(found) > 10
    assert is_the_same(function, found, made)


STEPS = st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30))


# Calls of a block pass the tuple of one call on to the next.
PASSED_ON = [
    (0, 12, 0), (0, 0, 0), (3, 5, 26), (0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 13, 0), (3, 5, 0), (0, 0, 0),
    (0, 0, 0), (0, 0, 0), (0, 0, 26), (3, 0, 1), (0, 0, 0), (0, 0, 0), (0, 14, 0), (0, 0, 0), (0, 0, 0), (0, 27, 0),
    (0, 26, 0), (0, 1, 0), (0, 0, 0), (3, 0, 4), (0, 3, 0), (3, 0, 1), (0, 19, 0), (0, 0, 0), (0, 0, 0), (0, 10, 0),
    (0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 10, 0),
]  # fmt: skip


@given(st.lists(STEPS, min_size=18, max_size=40), st.sets(st.integers(0, 19), max_size=3))
@example(PASSED_ON, set())
@settings(max_examples=40, deadline=None)
def test_any_wiring(steps: list[tuple[int, int, int]], altered: set[int]) -> None:
    """Layers of random operations on the values so far, a few of them altered."""
    unary = (op.sin, op.exp, op.negative)
    x = var("x", Tensor("n"))
    values: list[Expr] = [x]
    for repetition in range(20):
        reach = len(steps) + 3
        for kind, i, j in steps:
            kind = (kind + 1) % 6 if repetition in altered and i == steps[0][1] else kind
            a, b = values[-1 - i % min(reach, len(values))], values[-1 - j % min(reach, len(values))]
            values.append(unary[kind](a) if kind < 3 else (op.add, op.multiply, op.subtract)[kind - 3](a, b))
    function = pure_function("main", [x], [values[-1], values[len(values) // 2]])
    assert is_the_same(function, *outlined(function))


def test_the_call_fits_its_block() -> None:
    block = outlined(network(24))[1][0]
    args = [var(f"a{i}", p.annotation) for i, p in enumerate(block.params)]
    assert call_function(function_ref(block), args).annotation == block.annotation
    assert len(block.expressions()) >= SMALLEST_BLOCK


@pytest.mark.parametrize("layers", [24, 48])
def test_looks_at_each_node_a_few_times(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import relax_eg.ir.outline as room

    function = network(layers)
    seen = 0
    kind = room._kind

    def counted(e: Expr) -> Any:
        nonlocal seen
        seen += 1
        return kind(e)

    monkeypatch.setattr(room, "_kind", counted)
    outlined(function)
    assert seen <= 6 * len(function.expressions())
