"""Sums of many terms: what has a factor in common is brought together, in one new sum, and rules on two terms go on."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir import Expr, postorder, var
from relax_eg.ops import api as op
from relax_eg.rules import Schema
from relax_eg.rules.book.sums import sums
from relax_eg.rules.schemas import ModuleAnswers

X, Y, A, B, C = (var(n, rx.Tensor("n n")) for n in "xyabc")
S = var("s", rx.Tensor(""))
(IN_ORDER,) = sums.schemas


def ordered(e: Expr) -> Expr | None:
    return IN_ORDER.propose(e, ModuleAnswers({}, (), postorder([e])))


CASES: list[tuple[Expr, Expr | None]] = [
    (X @ A + Y + X @ B, (X @ A + X @ B) + Y),
    (X @ A - Y - X @ B, (X @ A - X @ B) - Y),
    (Y - (X @ A - X @ B), Y + (X @ B - X @ A)),
    (op.negative(X @ A + Y) + X @ B, (X @ B - X @ A) - Y),
    (A @ X + Y + B @ X, (A @ X + B @ X) + Y),  # on the right
    (X @ A @ B + Y + X @ C, (X @ A @ B + X @ C) + Y),  # at the beginning of a chain
    ((X @ A) * S + Y + X @ B, ((X @ A) * S + X @ B) + Y),
    (X * A + Y + (B * C) * X, (X * A + X * (B * C)) + Y),
    (X @ A + Y + Y @ B, None),  # nothing in common
    (X @ A + X @ B, None),  # rules on two terms see these
    (X @ A + Y + A @ X, None),  # the same matrix, on the other side
    (X + Y + A * B, None),
]


@pytest.mark.parametrize(("written", "wanted"), CASES, ids=range(len(CASES)))
def test_order(written: Expr, wanted: Expr | None) -> None:
    found = ordered(written)
    assert found is wanted


def test_inner_sums_are_looked_at_with_the_whole() -> None:
    whole = X @ A + Y + X @ B
    inner = whole.args[0]
    known = ModuleAnswers({}, (), postorder([whole]))
    assert IN_ORDER.propose(inner, known) is None
    # An inner sum with readers besides is computed anyway: it is a term.
    known = ModuleAnswers({}, (), postorder([whole, op.exp(inner)]))
    assert IN_ORDER.propose(whole, known) is None


def test_long_sums_are_factored_in_few_rounds() -> None:
    def many(x: Any, *ws: Any) -> Any:
        s = x
        for i, w in enumerate(ws):
            s = s + (x @ w if i % 2 else w * x)
        return s

    best = rx.optimize(many, *["n n"] * 33, at={"n": 256})
    assert best.report.predicted_gain > 5
    assert [e.op for e in best.module.main.expressions()].count("matmul") == 1
    assert best.report.nodes < 60 * 33 and best.report.peak < 60 * 33
    args = [np.random.default_rng(i).standard_normal((6, 6)).astype(np.float32) for i in range(33)]
    assert best.check(*args).passed


def test_each_sum_adds_one_sum() -> None:
    """What is proposed is linear in the sum, whatever its terms have in common."""
    for n in (10, 100, 400):
        terms = [X @ var(f"w{i}", rx.Tensor("n n")) for i in range(n)]
        whole = Y
        for t in terms:
            whole = whole + t
        before = postorder([whole])
        made = IN_ORDER.propose(whole, ModuleAnswers({}, (), before) if n < 50 else Readers(before))
        assert made is not None
        assert len(postorder([made, whole])) - len(before) <= n


class Readers(ModuleAnswers):
    """Readers by table: the harness's own way looks through the whole program for each."""

    def __init__(self, written: list[Expr]) -> None:
        super().__init__({})
        self.table: dict[Expr, list[Expr]] = {}
        for e in written:
            for a in e.args:
                self.table.setdefault(a, []).append(e)

    def readers(self, e: Expr) -> list[Expr]:
        return self.table.get(e, [])


def test_subtractions_as_programs_have_them() -> None:
    def residual(x: Any, y: Any, a: Any, b: Any, c: Any) -> Any:
        return x @ a + y - x @ b + jnp.tanh(y) - (x @ c - y)

    best = rx.optimize(residual, "m k", "m n", "k n", "k n", "k n", at={"m": 128, "k": 512, "n": 256})
    assert "same_sum_of_products" in best.report.rules
    assert [e.op for e in best.module.main.expressions()].count("matmul") == 1
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((4, 5), (4, 3), (5, 3), (5, 3), (5, 3))]
    assert best.check(*args).passed
    without = rx.optimize(residual, "m k", "m n", *["k n"] * 3, at={"m": 128}, rules=rx.rules.default - "sums")
    assert "sums_in_order" not in without.report.matches and "sums_in_order" not in without.report.rules


def wrong(e: Expr, known: Any) -> Expr | None:
    """Takes a term away twice."""
    return op.subtract(e.args[0], e.args[1]) if e.op == "add" else None


def test_a_wrong_one_is_refuted() -> None:
    (verdict,) = rx.verify(Schema("wrong", "", "reassociate", frozenset(), wrong, frozenset(("add",))))
    assert verdict.status == "refuted" and " became " in verdict.problem
