"""Matmuls by pieces: which there are, where they are proposed, and what XLA makes of them. `on_eight` runs them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from benchmarks.spread import block, weights
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.meshes.strategies import Ring, rings
from relax_eg.ops import api as op
from relax_eg.shapes import Dim

ROWS, WIDTH, INNER = 16384, 4096, 14336
COLUMNS_AND_ROWS = {"x": "S[0]", "w1": "S[1]", "w2": "S[0]"}


def tensor(name: str, *shape: int) -> Expr:
    return var(name, Tensor(tuple(Dim.of(n) for n in shape), "float32"))


def of(e: Expr) -> set[tuple[Any, ...]]:
    found = rings(e.op, [a.annotation for a in e.args], e.attrs, e.annotation)
    return {(*s.operands, "->", s.result, s.ring) for s in found}


def test_pieces_follow_from_pairs_of_loops() -> None:
    assert of(op.matmul(tensor("a", 8, 4), tensor("b", 4, 6))) == {
        (0, 1, "->", 1, Ring(0, (0, None), 0)),  # rows go round
        (0, 1, "->", 0, Ring(1, (None, 1), 1)),  # columns go round
        (1, 0, "->", 0, Ring(None, (0, None), 0)),  # sums of rows
        (1, 0, "->", 1, Ring(None, (None, 1), 1)),  # sums of columns
    }


def test_a_batch_does_not_go_round() -> None:
    """Both operands have it, so no piece of one of them alone makes a piece of the result."""
    found = of(op.matmul(tensor("a", 3, 8, 4), tensor("b", 3, 4, 6)))
    assert all(ring.passed is None or ring.axes.count(None) == 1 for *_, ring in found)
    assert {ring.axis for *_, ring in found if ring.passed is not None} == {1, 2}


@pytest.mark.parametrize("e", [op.add(tensor("a", 8, 4), tensor("b", 8, 4)), op.sum(tensor("a", 8, 4), 1)])
def test_other_operators_have_no_pieces(e: Expr) -> None:
    assert not of(e)


def layer(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    return jax.nn.relu(jnp.tanh(x) @ w1) @ w2


def spread(*specs: str, inputs: dict[str, str]) -> Any:
    return rx.spread(
        layer, *specs, mesh={"x": 8}, target="h100", inputs=inputs, outputs="S[0]", memory_limit="600 MB"
    )  # fmt: skip


LAYER = f"{ROWS} {WIDTH} @bfloat16", f"{WIDTH} {INNER} @bfloat16", f"{INNER} {WIDTH} @bfloat16"


def test_tokens_that_are_split_go_round_and_xla_sends_beside_kernels() -> None:
    """A layer with columns of the first weight and rows of the second on each device, tokens split around it."""
    best = spread(*LAYER, inputs=COLUMNS_AND_ROWS)
    sent = best.spreading.sent
    assert [s.kind for s in sent] == ["collective-permute"] * 2 and all(s.times == 7 for s in sent), best.spreading
    piece = ROWS * WIDTH * 2 / 8
    assert best.spreading.sent_bytes() == {"collective-permute": 2 * 7 * piece}
    assert str(best.module).count("R.scan") == 2
    made = best.compile_spread("h100")
    assert made.bytes_by_kind() == made.bytes_by_kind(beside=True) == best.spreading.sent_bytes()
    assert made.memory == pytest.approx(best.spreading.memory, rel=0.1)


def test_what_can_be_gathered_earlier_does_not_go_round() -> None:
    """Weights that are split at rest: XLA gathers those of the second matmul beside the first."""
    best = spread(*LAYER, inputs={"x": "S[0]", "w1": "R", "w2": "S[1]"})
    assert [s.kind for s in best.spreading.sent] == ["all-gather"], best.spreading


def test_small_matmuls_are_not_cut() -> None:
    best = spread("64 64", "64 128", "128 64", inputs=COLUMNS_AND_ROWS)
    assert "collective-permute" not in {s.kind for s in best.spreading.sent}


def test_the_memory_of_a_layer_with_pieces_is_xlas() -> None:
    """Keys, queries and values read what is normed before attention stores its scores: XLA orders them so."""
    spec = weights(4096, 14336)
    split = {"wq": 1, "wk": 1, "wv": 1, "wo": 0, "w1": 1, "w3": 1, "w2": 0}
    given = {"x": "R", **{f"p['{n}']": f"S[{d}]" for n, d in split.items()}}
    best = rx.spread(block, "8 2048 4096 @bfloat16", spec, mesh={"x": 8}, target="h100", inputs=given, seconds=10)
    assert "collective-permute" in {s.kind for s in best.spreading.sent}
    assert best.compile_spread("h100").memory == pytest.approx(best.spreading.memory, rel=0.04)


def test_weights_of_a_loop_that_are_read_transposed_are_not_stored_again() -> None:
    """Gradients read weights transposed: XLA would store those of all layers so, if that came before the pieces."""

    def loss(ps: Any, x: jax.Array) -> jax.Array:
        def step(h: jax.Array, p: Any) -> tuple[jax.Array, None]:
            return jnp.tanh(jnp.tanh(h @ p[0]) @ p[1]), None

        return jax.lax.scan(step, x, ps)[0].astype(jnp.float32).sum()

    stacked = tuple(f"8 {spec}" for spec in LAYER[1:])
    given = {"ps[0]": "S[2]", "ps[1]": "S[1]", "x": "S[0]"}
    best = rx.spread(jax.grad(loss, 1), stacked, LAYER[0], mesh={"x": 8}, target="h100", inputs=given, outputs="S[0]",
                     seconds=10, pipeline=False)  # fmt: skip
    assert best.spreading.sent_bytes() == {"collective-permute": 4 * 8 * 7 * ROWS * WIDTH * 2 / 8}
    assert best.compile_spread("h100").memory == pytest.approx(best.spreading.memory, rel=0.03)
