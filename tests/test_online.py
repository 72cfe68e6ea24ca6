"""Softmaxes and other sums that follow maxima, accumulated over pieces of the keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.program_ends import traced_program
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import inline_call, without_calls
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ir.module import Module
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate
from relax_eg.rules.book.pieces import pieces
from relax_eg.rules.checking.piece_trials import softmaxes
from relax_eg.rules.checking.schema_trials import first_difference
from relax_eg.rules.schemas import ModuleAnswers, main_of
from relax_eg.shapes import Dim

RULE = next(s for s in pieces.schemas if s.name == "accumulated_over_pieces")
MANY = 128  # queries


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return jax.nn.softmax(q @ k.T / 4 + mask) @ v


def numerator(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The logarithm of the sum, and the sum of exponentials of squares, without a quotient."""
    s = q @ k.T / 4 + mask
    return jax.nn.logsumexp(s, axis=1), jnp.exp(s - s.max(1, keepdims=True)) @ (v * v)


def hidden(n: int, rng: np.random.Generator) -> Any:
    """A mask that hides all keys, none, all but the last, or every second one."""
    kinds = (np.full(n, -np.inf), np.zeros(n), np.where(np.arange(n) < n - 1, -np.inf, 0), np.arange(n) % 2 * -1e30)
    return kinds[int(rng.integers(len(kinds)))].astype(np.float32)


def checked(fn: Any, best: Any, specs: tuple[str, ...], lengths: tuple[int, ...]) -> None:
    """The reference is the interpreter on the program as written."""
    written = traced_program(fn, specs).module
    rng = np.random.default_rng(0)
    for n in lengths:
        q, k, v = (6 * rng.standard_normal(s).astype(np.float32) for s in ((MANY, 16), (n, 16), (n, 16)))
        args = [q[: int(specs[0].split()[0])], k, v, hidden(n, rng)]
        want = jax.tree.leaves(evaluate(written, args))
        for found in (best(*args), evaluate(best.module, args)):
            for ours, theirs in zip(jax.tree.leaves(found), want, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", [attention, numerator])
def test_few_queries_of_many_keys_need_a_share_of_the_memory(fn: Any) -> None:
    """No pieces of queries save anything."""
    specs = ("4 16", "8192 16", "8192 16", "8192")
    scores = 4 * 8192 * 4  # bytes
    best: Any = rx.optimize(fn, *specs, memory_limit=scores // 2)
    assert RULE.name in best.report.rules and "carry=" in str(best.module)
    checked(fn, best, specs, (8192, 8192, 8192))


def test_gradients_along_keys_have_a_loop_that_takes_totals_of_another() -> None:
    """The gradient of a softmax subtracts a total, which scales no sum: it is known when the loop begins."""
    step = jax.grad(lambda *args: jnp.sum(attention(*args) ** 2), (0, 1, 2))
    main = without_calls(rx.trace(step, "3 16", "70 16", "70 16", "70")).main
    queries = ModuleAnswers({}, (), postorder(inline_call(main, main.params)), 0.0)
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((3, 16), (70, 16), (70, 16), (70,))]
    found = 0
    for e in queries.nodes:
        if e.op != "matmul" or Dim.of(16) not in e.shape:
            continue
        for p in RULE.proposals(e, queries):
            ours, theirs = (
                np.asarray(evaluate(Module((main_of(main.params, x), *queries.functions.values())), args))
                for x in (p, e)
            )
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
            found += Dim.of(70) in e.shape  # the gradients of keys and values
    assert found >= 4


@pytest.mark.slow
def test_pieces_of_keys_are_right_at_every_length() -> None:
    """Lengths that the pieces divide and that they do not."""
    specs, at = (f"{MANY} 16", "n 16", "n 16", "n"), {"n": 2048}
    rules = rx.rules.default - "computed_in_pieces"
    best: Any = rx.optimize(attention, *specs, at=at, memory_limit=MANY * 2048 * 4, rules=rules)  # bytes of scores
    assert RULE.name in best.report.rules and "carry=" in str(best.module)
    checked(attention, best, specs, (1, 3, 31, 32, 33, 257, 1000))


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_random_programs(count: int) -> None:
    programs, text = first_difference(replace(RULE, trials=(softmaxes,)), count)
    assert not text and programs >= count // 2


X, Y, V = var("x", Tensor("a 4")), var("y", Tensor("n 4")), var("v", Tensor("n 3"))
S = op.matmul(X, op.permute_dims(Y, (1, 0)))
PEAK = op.max(S, 1, keepdims=True)


def proposals(e: Expr) -> tuple[tuple[Expr, ...], ModuleAnswers]:
    queries = ModuleAnswers({}, (), postorder((e,)))
    return RULE.proposals(e, queries), queries


def value(e: Expr, queries: ModuleAnswers, args: list[Any]) -> Any:
    return np.asarray(evaluate(Module((main_of((X, Y, V), e), *queries.functions.values())), args, arithmetic="numpy"))


@pytest.mark.parametrize("direction", [1, -1])
def test_scores_that_grow_from_piece_to_piece_do_not_overflow(direction: int) -> None:
    e = op.matmul(op.softmax(S), V)
    made, queries = proposals(e)
    rng = np.random.default_rng(1)
    y = np.linspace(-3e3, 3e3, 64 * 4).reshape(64, 4)[::direction].astype(np.float32)
    args = [np.ones((2, 4), np.float32), y, rng.standard_normal((64, 3)).astype(np.float32)]
    assert made
    for p in made:
        np.testing.assert_allclose(value(p, queries, args), value(e, queries, args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "raised",
    [
        op.exp(op.subtract(S, op.sum(S, 1, keepdims=True))),  # the sum so far may be far below the whole sum
        op.exp(op.subtract(op.multiply(S, S), PEAK)),  # the maximum of others does not bound it
        op.exp(op.subtract(op.subtract(S, PEAK), PEAK)),
        op.tanh(op.subtract(S, PEAK)),  # no factor of the sum
        op.add(op.exp(op.subtract(S, PEAK)), S),
        op.exp(op.subtract(PEAK, S)),
    ],
)
def test_what_a_total_does_not_scale_is_not_accumulated_beside_it(raised: Expr) -> None:
    """It has a loop of its own, which takes the total as it is at the end."""
    e = op.matmul(raised, V)
    made, queries = proposals(e)
    args = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((2, 4), (64, 4), (64, 3))]
    assert made
    for p in made:
        np.testing.assert_allclose(value(p, queries, args), value(e, queries, args), rtol=1e-4, atol=1e-4)
