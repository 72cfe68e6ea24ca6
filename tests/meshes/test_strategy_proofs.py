"""Strategies are proved: by the same prover as rules, for parts of any place and length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from strategy_proofs import SECONDS, outcomes

import relax_eg as rx
from relax_eg.driver.spreads import spreading
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.placements import REPLICATED
from relax_eg.meshes.proofs import statement, why_not_proved
from relax_eg.meshes.strategies import SplitStrategy, strategies
from relax_eg.ops import TABLE
from relax_eg.ops import api as op
from relax_eg.shapes import Dim

FORMS = ["add", "permute_dims", "sum", "tanh", "where"]  # chosen: of each form of equations one
# Why the others are not: sums of booleans, maxima of parts, infinities, terms of a sum that computed positions choose.
OTHERS = {"matmul": 2, "max": 8, "min": 8, "reduce_window": 2, "scatter": 2}


@pytest.mark.parametrize("name", FORMS)
def test_strategies_of_an_operator_are_proved(name: str) -> None:
    found = list(outcomes(name))
    assert any(why == "" for *_, why in found)
    assert not [(what, s, why) for what, s, why in found if why]


@pytest.mark.slow
def test_nearly_all_strategies_of_the_table_are_proved() -> None:
    found = {name: list(outcomes(name)) for name in TABLE}
    unproved = {name: n for name, each in found.items() if (n := sum(bool(why) for *_, why in each))}
    assert all(n <= OTHERS.get(name, 0) for name, n in unproved.items()), unproved


def tensor(name: str, *shape: str) -> Expr:
    return var(name, Tensor(tuple(map(Dim.of, shape)), "float32"))


def of(e: Expr) -> tuple[SplitStrategy, ...]:
    return strategies(e.op, [a.annotation for a in e.args], e.attrs, e.annotation)


def test_a_strategy_that_is_wrong_is_not_proved() -> None:
    """Rows of an operand that is read whole; columns in place of rows; a part as if it were a sum."""
    e = op.matmul(tensor("a", "n", "n"), tensor("b", "n", "n"))
    (rows,) = (s for s in of(e) if s.operands == (0, REPLICATED))
    operands = [a.annotation for a in e.args]
    for wrong in (replace(rows, operands=(1, REPLICATED)), replace(rows, result=1), replace(rows, result="P[sum]")):
        said = statement(e.op, operands, e.attrs, wrong)
        assert said is None or why_not_proved(said, SECONDS), wrong
    said = statement(e.op, operands, e.attrs, rows)
    assert said is not None and not why_not_proved(said, SECONDS)


def test_a_search_proves_the_strategies_that_it_takes() -> None:
    given: Any = {"mesh": {"x": 8}, "inputs": {"x": "S[0]"}, "seconds": 30}
    found = rx.spread(lambda x: jnp.max(jnp.tanh(x), 0), "1048576 64", **given).spreading
    assert found.proved == 1 and found.tested == {"max (not proved)": 1}, found
    assert "ways to split operators: 1 proved; tested: 1 x max (not proved)" in str(found)


def test_what_there_is_no_time_to_prove_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the answer is known."""
    monkeypatch.setattr(spreading, "_PROVING", 0.0)

    def found(size: int) -> Any:
        with rx.debug.options(cache=False):
            given: Any = {"mesh": {"x": 8}, "inputs": {"x": "S[0]"}, "outputs": "S[0]"}
            return rx.spread(lambda x: jnp.tanh(x), f"{size} 24", **given).spreading

    assert found(40).tested == {"tanh (no time for a proof)": 1}
    monkeypatch.setattr(spreading, "_PROVING", 1.0)
    assert found(40).proved == 1
    monkeypatch.setattr(spreading, "_PROVING", 0.0)
    assert found(40).proved == 1
