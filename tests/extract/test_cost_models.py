"""Cost models of users: anything with a `price` method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.errors import ExtractionError, OptionError
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.ops import counts

SQUARES = ("n n", "n n", "n")


def chain(a: Any, b: Any, v: Any) -> Any:
    return (a @ b) @ v


class Flops:
    """Flops and nothing else, as an expression in the sizes."""

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        flops = counts(site).flops.evaluate(sizes)
        return NodeCost(flops=flops, seconds=float(flops))


def test_a_cost_model_in_ten_lines_decides() -> None:
    best = rx.optimize(chain, *SQUARES, at={"n": 32}, target=Flops())
    assert (best.report.before.seconds, best.report.after.seconds) == (2 * 32**3 + 2 * 32**2, 4 * 32**2)
    assert best.report.runner_up is not None


class Wants:
    """One operator is dear, the others cost the same."""

    def __init__(self, op: str, cost: float) -> None:
        self.op, self.cost = op, cost

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        return NodeCost(seconds=self.cost if site.op == self.op else 1.0)


def test_what_costs_infinity_is_not_chosen() -> None:
    best = rx.optimize(lambda x, w: x @ w.T, "n 8", "4 8", at={"n": 4}, target=Wants("permute_dims", math.inf))
    assert {r.op for r in best.report.after.rows} == {"linear"}


def test_a_program_of_which_nothing_is_executable() -> None:
    dear = Wants("tanh", math.inf)
    with pytest.raises(ExtractionError) as raised:
        rx.optimize(_tanh, "n", at={"n": 4}, target=dear)
    assert str(raised.value) == (
        "no executable program: a result has only candidates tanh, which nothing executes; "
        "rule set rules.legalization would supply other forms of tanh: rules=... + rules.legalization"
    )
    advised = rx.optimize(_tanh, "n", at={"n": 4}, target=dear, rules=rx.rules.default + rx.rules.legalization)
    assert {r.op for r in advised.report.after.rows} == {"call_tir"}


def test_rule_sets_that_would_help_are_named() -> None:
    dear = Wants("permute_dims", math.inf)
    with pytest.raises(ExtractionError, match=r"rule set rules\.default would supply other forms of permute_dims: "):
        rx.optimize(jnp.transpose, "n m", at={"n": 4, "m": 4}, target=dear, rules=rx.rules.contraction)
    every = rx.rules.default + rx.rules.legalization + rx.rules.workspace
    with pytest.raises(ExtractionError, match=r"no other rule set that ships has other forms of call_tir: a rule of"):
        rx.optimize(_tanh, "n", at={"n": 4}, target=Nothing(), rules=every)


class Nothing:
    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        return NodeCost(seconds=math.inf)


def _tanh(x: Any) -> Any:
    return jnp.tanh(x)


@pytest.mark.parametrize(("cost", "said"), [(-1.0, "-1.0"), (math.nan, "nan")])
def test_costs_that_are_none(cost: float, said: str) -> None:
    with pytest.raises(ExtractionError, match=f"the cost model gave {said} seconds for `tanh`; a number >= 0"):
        rx.optimize(_tanh, "n", at={"n": 4}, target=Wants("tanh", cost))


class Plain:
    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> Any:
        return 1.0


def test_what_is_no_cost_model() -> None:
    with pytest.raises(ExtractionError, match=r"the cost model gave 1.0 for `tanh`; a NodeCost is accepted"):
        rx.optimize(_tanh, "n", at={"n": 4}, target=Plain())  # type: ignore[arg-type]
    with pytest.raises(
        OptionError, match=r"target=3: one of .* or a cost model \(an object with price\(site, result, sizes\)\) is"
    ):
        rx.optimize(_tanh, "n", target=3)  # type: ignore[arg-type]
