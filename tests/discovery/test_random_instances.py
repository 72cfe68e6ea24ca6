"""Random instances of laws, evaluated by JAX: what holds passes, and what fails anywhere fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import relax_eg as rx
from benchmarks.random_instances import compare_all, trials
from relax_eg.rules import Rule

op = rx.op


def law(function: Callable[..., Any], shapes: str, **options: Any) -> Rule:
    book = rx.RuleSet("laws")
    book.rule(shapes, check=False, **options)(function)
    return book[function.__name__]


def quotient(x: Any) -> Any:
    return x / x, op.ones_like(x)


def largest_exponential(x: Any) -> Any:
    return op.max(op.exp(x), 1), op.exp(op.max(x, 1))


def test_instances_are_as_many_as_asked_and_most_are_the_same_numbers() -> None:
    def distributes(x: Any, y: Any, z: Any) -> Any:
        return x * (y + z), x * y + x * z

    found = trials(law(distributes, "x: *b, y: *b, z: *b"), 2000)
    assert (found.tried, found.same, found.wrong) == (2000, 2000, "")


def test_rounding_is_no_difference() -> None:
    def product(x: Any, y: Any) -> Any:
        return op.exp(x) * op.exp(y), op.exp(x + y)

    found = trials(law(product, "x: *b, y: *b"), 400)
    assert found.tried == 400
    assert found.same < 400
    assert not found.wrong


def test_a_law_that_fails_at_one_value_is_found_with_it() -> None:
    found = trials(law(quotient, "x: *b"), 400)
    assert "quotient" in found.wrong
    assert "0.0" in found.wrong.partition("for {")[2].partition("}")[0]
    assert trials(law(quotient, "x: *b", when="nonzero(x)"), 400).tried == 400


def test_a_law_that_fails_at_empty_axes_is_found() -> None:
    assert "at {'m': " in trials(law(largest_exponential, "x: m n"), 400).wrong
    assert not trials(law(largest_exponential, "x: m n", when="n >= 1"), 400).wrong


def test_integers_are_compared_as_they_wrap() -> None:
    def twice(x: Any) -> Any:
        return op.maximum(x + x, x), op.where(x > 0, x + x, x)

    assert "twice" in trials(law(twice, "x: *b @ int32"), 400).wrong


def test_shipped_laws() -> None:
    chosen = [r for r in rx.rules.default if r.name in ("where_in_where", "quotient_of_quotient", "scaled_twice")]
    total = compare_all(chosen, 160)
    assert len(chosen) == 3
    assert total.tried > 300
    assert not total.wrong
    assert not total.untried
