"""Sorts of few elements as networks of exchanges, and sorts by the places of a sort as scatters."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.rules.book.networks import exchanges, sorts_all

RULES = rx.rules.networks


@pytest.mark.parametrize("n", range(2, 10))
def test_networks_sort_sequences_of_different_numbers(n: int) -> None:
    """What `sorts_all` shows of zeros and ones, at permutations."""
    assert sorts_all(n)
    for order in itertools.islice(itertools.permutations(range(n)), 0, None, max(1, n**4 // 20)):
        row = list(order)
        for i, j in exchanges(n):
            row[i], row[j] = sorted((row[i], row[j]))
        assert row == list(range(n))


def test_the_median_of_few_is_a_network() -> None:
    best = rx.optimize(lambda x: jnp.sort(x, 1), "n 5", rules=RULES, at={"n": 10_000}, measure="off")
    assert best.report.rules["sort_of_few"] and "R.sort" not in str(best.module)
    numbers = np.random.default_rng(0).choice(np.asarray([np.nan, -np.inf, -1, 0, 2, np.inf], np.float32), (300, 5))
    np.testing.assert_array_equal(best(numbers), np.sort(numbers, 1))
    assert [s.rule for s in best.explain().steps] == ["sort_of_few"]


@pytest.mark.parametrize("spec", ["n 10", "n n", "n 1"])
def test_longer_ones_stay(spec: str) -> None:
    assert not rx.optimize(lambda x: jnp.sort(x, 1), spec, rules=RULES, at={"n": 10_000}, measure="off").report.rules


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_ranks_take_one_sort(dtype: str) -> None:
    best = rx.optimize(lambda x: jnp.argsort(jnp.argsort(x)), f"n @ {dtype}", at={"n": 10_000}, measure="off")
    assert str(best.module).count("R.sort(") == 1 and "R.scatter" in str(best.module)
    numbers = np.random.default_rng(0).integers(-5, 5, 100).astype(dtype)
    np.testing.assert_array_equal(best(numbers), np.argsort(np.argsort(numbers, kind="stable"), kind="stable"))
