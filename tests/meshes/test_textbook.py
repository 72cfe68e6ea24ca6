"""Placements that follow from where the data are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from benchmarks.spread import training, weights
from relax_eg.ir.placements import REPLICATED, Part
from relax_eg.meshes import search
from relax_eg.meshes.textbook import following_parts

COLUMNS, ROWS = {"wq", "wk", "wv", "w1", "w3"}, {"wo", "w2"}


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Part]]:
    """Spreads a step whose first argument is state, and tells the parts of the state that follow from one of the data,
    by name."""
    asked: list[Any] = []
    monkeypatch.setattr(search, "following_parts", lambda *given: asked.append(given) or following_parts(*given))

    def parts(fn: Any, state: Any, *data: str, part: Part) -> dict[str, Part]:
        rx.spread(fn, state, *data, mesh={"data": 2, "model": 2}, target="h100", state=("ps",), memory_limit="2 MB",
                  seconds=2, pipeline=False)  # fmt: skip
        program, given, *rest = asked[0]
        found = following_parts(program, dict.fromkeys(given, part), *rest)
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
        return {name: found[v] for name, v in zip(names, program.inputs, strict=False)}

    return parts


def test_whole_data_give_a_transformer_megatrons_placements(follow: Any) -> None:
    """Columns of the weights that read the residual stream, rows of those that write it, through the loop over layers,
    its gradient and heads."""
    ps = weights(64, 256, "2")
    parts = follow(training(8), ps, "8 16 64", "8 16 64", part=REPLICATED)
    assert {n for n, p in parts.items() if p == 2} == {f"['{n}']" for n in COLUMNS}
    assert {n for n, p in parts.items() if p == 1} == {f"['{n}']" for n in ROWS}
    assert parts["['g1']"] == parts["['g2']"] == REPLICATED


@pytest.mark.parametrize("part", [0, 1])
def test_split_data_leave_weights_whole(follow: Any, part: int) -> None:
    """Along the batch, or along tokens."""
    parts = follow(training(8), weights(64, 256, "2"), "8 16 64", "8 16 64", part=part)
    assert set(parts.values()) == {REPLICATED}


def step(ps: Any, x: jax.Array) -> Any:
    """A mixture of experts, and a moment of each weight that the gradient moves."""

    def loss(w: Any) -> jax.Array:
        inner = jax.nn.relu(jnp.einsum("td,edf->etf", x, w["wi"]))
        return (jnp.einsum("etf,efd->td", inner, w["wo"]) ** 2).mean()

    gradient = jax.grad(loss)(ps["w"])
    moved = jax.tree.map(lambda m, g: 0.9 * m + g, ps["m"], gradient)
    return {"m": moved, "w": jax.tree.map(lambda w, m: w - 0.1 * m, ps["w"], moved)}


def test_experts_and_moments_follow(follow: Any) -> None:
    each = {"wi": "4 32 64", "wo": "4 64 32"}
    parts = follow(step, {"m": each, "w": each}, "64 32", part=REPLICATED)
    assert parts["['m']['wi']"] == parts["['w']['wi']"] == 0  # experts
    assert parts["['m']['wo']"] == parts["['w']['wo']"] == 0
