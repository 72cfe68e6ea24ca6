"""Switches of single classes by the price of the whole program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver import extracting
from relax_eg.driver.prices import function_seconds
from relax_eg.extract.selection.problem import Problem, choice_cost
from relax_eg.extract.selection.refine import refined
from relax_eg.extract.selection.select import Selection

# Class 2, the root, reads class 0 or class 1; class 1 has two candidates, of which the second reads class 0.
READS = [[()], [(), (0,)], [(0,), (1,)]]
COSTS = [[1.0], [1.05, 1.5], [2.0, 2.0]]


def selection(choice: Sequence[int]) -> Selection:
    cost = choice_cost(Problem(READS, COSTS, (2,)), choice)
    return Selection(list(choice), cost, cost, "as written", cost, "proved optimal")


def test_of_programs_that_cost_nearly_the_same_the_price_of_the_whole_decides() -> None:
    asked: list[tuple[int, ...]] = []

    def price(choice: Sequence[int]) -> float:
        asked.append(tuple(choice))
        return 1.0 if choice[2] == 1 else 2.0

    found = refined(Problem(READS, COSTS, (2,)), selection([0, -1, 0]), price)
    assert found.choice == [-1, 0, 1] and found.how == "ilp"
    assert found.cost == pytest.approx(3.05) and found.bound == 3.0
    assert len(asked) == len(set(asked)), "no program is priced twice"


def test_extractions_for_one_block_price_a_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[Any] = []

    def counted(function: Any, *rest: Any) -> Any:
        priced.append(function.result)
        return function_seconds(function, *rest)

    def normalized(x: Any, scale: Any) -> Any:
        from_mean = x - jnp.mean(x, -1, keepdims=True)
        return from_mean * jax.lax.rsqrt(jnp.mean(from_mean**2, -1, keepdims=True) + 1e-5) * scale

    monkeypatch.setattr(extracting, "function_seconds", counted)
    rx.optimize(normalized, "n 64", "64", target="cpu")
    assert len(priced) == len(set(priced)) > 1


def test_a_choice_that_no_switch_betters_stays_as_it_was_found() -> None:
    before = selection([0, -1, 0])
    assert refined(Problem(READS, COSTS, (2,)), before, lambda choice: 1.0) is before


def test_switches_that_cost_much_are_not_priced() -> None:
    costs = [[1.0], [9.0, 9.0], [2.0, 2.0]]
    before = Selection([0, -1, 0], 3.0, 3.0, "as written", 3.0, "proved optimal")
    assert refined(Problem(READS, costs, (2,)), before, lambda choice: -1.0 if choice[2] else 1.0) is before


def test_spellings_of_one_program_get_one_price() -> None:
    def broadcast(x: Any, y: Any, v: Any) -> Any:
        return jnp.sum(x[:, None] * y[:, None] * v, 0)

    def matrix(x: Any, y: Any, v: Any) -> Any:
        return (x * y) @ v

    specs = "8", "8", "8 32"
    prices = [rx.optimize(f, *specs, target="cpu").report.after.call for f in (broadcast, matrix)]
    assert prices[0] == pytest.approx(prices[1], rel=0.1)
    best = rx.optimize(broadcast, *specs, target="cpu")
    args = [np.random.default_rng(i).normal(size=s).astype("float32") for i, s in enumerate([(8,), (8,), (8, 32)])]
    assert best.check(*args).passed
