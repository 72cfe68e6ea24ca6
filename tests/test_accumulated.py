"""Gradients and other sums over rows, accumulated over pieces of the rows under a memory limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.rules.checking.schema_answers import RecordingAnswers
from relax_eg.rules.schemas import ModuleAnswers

RULE = "accumulated_over_pieces"


def drawn(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(len(shapes))
    return [jnp.asarray(0.2 * rng.standard_normal(s), jnp.float32) for s in shapes]


def perceptron_loss(w1: Any, w2: Any, w3: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(jnp.tanh(x @ w1) @ w2) @ w3 - y) ** 2)


def causal_loss(q: Any, k: Any, v: Any) -> Any:
    n = q.shape[0]
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), q @ k.T / 4, -1e30)
    return jnp.sum((jax.nn.softmax(scores) @ v) ** 2)


def self_loss(w: Any, x: Any) -> Any:
    h = jnp.tanh(x @ w)
    return jnp.sum((jax.nn.softmax(h @ h.T) @ h) ** 2)


def image_loss(w: Any, x: Any) -> Any:
    return jnp.sum(jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")) ** 2)


def sequences_loss(w: Any, x: Any) -> Any:
    """Places attend within their sequence; all sequences together multiply the weight."""
    h = (x.reshape(-1, 16) @ w).reshape(x.shape)
    scores = jnp.einsum("bqd,bkd->bqk", h, h)
    return jnp.sum(jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), h) ** 2)


STEPS = {
    "perceptron": (
        jax.value_and_grad(perceptron_loss, (0, 1, 2)),
        ("64 64", "64 64", "64 8", "n 64", "n 8"),
        {"n": 512},
        lambda n: ((64, 64), (64, 64), (64, 8), (n, 64), (n, 8)),
    ),
    "attention": (
        jax.grad(causal_loss, (0, 1, 2)), ("n 16", "n 16", "n 16"), {"n": 256}, lambda n: ((n, 16),) * 3,
    ),
    "sequences": (
        jax.grad(sequences_loss), ("16 16", "32 24 16"), {}, lambda n: ((16, 16), (32, 24, 16)),
    ),
    "convolution": (
        jax.grad(image_loss), ("8 3 3 3", "32 3 16 16"), {}, lambda n: ((8, 3, 3, 3), (32, 3, 16, 16)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "share"), [("perceptron", 0.35), ("attention", 0.2), ("sequences", 0.1), ("convolution", 0.08)]
)
def test_training_steps_need_a_share_of_the_memory(name: str, share: float) -> None:
    """In one XLA program, at sizes that the pieces divide and at sizes that they do not."""
    fn, specs, at, shapes = STEPS[name]
    free = rx.optimize(fn, *specs, at=at, memory_limit="1 GiB")
    limit = int(share * free.report.memory.without)
    best = rx.optimize(fn, *specs, at=at, memory_limit=limit)
    assert RULE in best.report.rules and best.report.memory.bytes <= limit
    assert "carry=" in str(best.module)
    for n in (256, 131, 5):
        args = drawn(*shapes(n))
        for ours, theirs in zip(jax.tree.leaves(best(*args)), jax.tree.leaves(fn(*args)), strict=True):
            assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(jnp.max(jnp.abs(theirs)))), n


def test_sums_of_narrow_floats_are_accumulated_in_float32() -> None:
    """64 pieces whose sums are rounded once each lose no more than the sum as XLA computes it."""
    x, w = (jnp.asarray(a, jnp.bfloat16) for a in drawn((4096, 32), (32, 64)))

    def fn(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        return jnp.sum(h * h, axis=0)

    best = rx.optimize(fn, x, w, memory_limit="640 KiB")
    assert RULE in best.report.rules
    exact = np.sum(np.tanh(np.asarray(x, float) @ np.asarray(w, float)) ** 2, axis=0)
    ours, theirs = (np.max(np.abs(np.asarray(f(x, w), float) - exact) / exact) for f in (best, jax.jit(fn)))
    assert ours <= 2 * theirs


@pytest.mark.parametrize(("limit", "loops"), [("150 KiB", 1), ("20 KiB", 2)])
def test_what_needs_the_whole_sum_is_computed_after_it(limit: str, loops: int) -> None:
    """A normalisation by a sum over all rows is no part of the loop that makes the sum, but may have its own loop."""

    def fn(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        centred = h - jnp.mean(h, axis=0)
        return jnp.sum(centred * centred, axis=0)

    best = rx.optimize(fn, "n 16", "16 8", at={"n": 8192}, memory_limit=limit)
    assert str(best.module).count("R.scan") >= loops
    x, w = drawn((300, 16), (16, 8))
    assert np.allclose(best(x, w), fn(x, w), rtol=1e-4)


class Sharing(ModuleAnswers):
    """Answers with equal functions once, and with what a schema makes once for several nodes."""

    def __init__(self, function: rx.Function, made: dict[Any, Any] | None) -> None:
        super().__init__({function.name: function}, nodes=function.expressions())
        self.made = made

    def add(self, function: rx.Function, suffix: str) -> rx.Function:
        known = [f for f in self.functions.values() if replace(f, name=function.name) == function]
        return known[0] if known else super().add(function, suffix)

    def once(self, key: Any, make: Any) -> Any:
        if self.made is None:
            return make(self)
        if key not in self.made:
            self.made[key] = make(self)
        return self.made[key]


@pytest.mark.parametrize(
    ("step", "specs"),
    [
        (jax.grad(perceptron_loss, (0, 1, 2)), ("16 64", "64 64", "64 16", "2048 16", "2048 16")),
        (jax.grad(causal_loss, (0, 1, 2)), ("256 16",) * 3),
        (jax.grad(sequences_loss), ("16 16", "16 64 16")),
        (jax.grad(self_loss), ("16 16", "256 16")),  # along the places, each node has a region of its own
    ],
)
def test_what_is_made_once_for_several_nodes_is_what_each_asks_for(step: Any, specs: tuple[str, ...]) -> None:
    # A derivation is checked by asking about one node alone.
    function = rx.trace(step, *specs).main
    schema = next(s for s in rx.rules.default.schemas if s.name == RULE)
    shared = Sharing(function, {})
    alone = Sharing(function, None)
    alone.functions = shared.functions
    found = 0
    for e in function.expressions():
        if e.op in schema.operators:
            made, asked = RecordingAnswers(shared), RecordingAnswers(alone)
            proposed = schema.proposals(e, made)
            assert proposed == schema.proposals(e, asked)
            assert asked.answers.sizes.items() <= made.answers.sizes.items()
            found += len(proposed)
    assert found
    assert any(isinstance(key, tuple) and key[-1] == "finer" for key in shared.made or {})
