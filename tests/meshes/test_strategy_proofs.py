"""Strategies are proved: by the same prover as rules, for parts of any place and length."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategy_proofs import SECONDS, outcomes

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
