"""Candidates for shorter terms: what is compared, and for which terms."""

from __future__ import annotations

from typing import Any

import pytest

import relax_eg as rx
from relax_eg.ir.expr import Expr
from relax_eg.rules.pointwise import search
from relax_eg.rules.pointwise.search import candidates
from relax_eg.rules.pointwise.terms import number, variable

X, Y = variable(0, "float32"), variable(1, "float32")
NO_FACTS: frozenset[str] = frozenset()


def shorter(e: Expr, count: int) -> list[Expr]:
    return list(candidates(e, ["float32"] * count, (NO_FACTS,) * count))


def times(x: Expr, value: float) -> Expr:
    return rx.op.multiply(x, number(value, "float32"))


def test_candidates_are_compared_at_all_points_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Expr] = []
    question: Any = vars(search)["_Question"]
    original = question._has_values

    def has_values(self: Any, e: Expr) -> bool:
        compared.append(e)
        return original(self, e)

    monkeypatch.setattr(question, "_has_values", has_values)
    tripled = rx.op.add(rx.op.add(X, X), X)
    found = candidates(tripled, ["float32"], (NO_FACTS,))
    assert compared == []
    first = next(found)
    assert compared == [first]
    assert first in (times(X, 3.0), rx.op.multiply(number(3.0, "float32"), X))


@pytest.mark.parametrize(
    ("term", "count", "is_tried"),
    [
        (rx.op.add(times(X, 2.0), times(X, 3.0)), 1, True),
        (rx.op.add(times(X, 2.0), times(Y, 3.0)), 2, False),
        (rx.op.subtract(rx.op.add(times(X, 2.0), times(Y, 3.0)), times(Y, 3.0)), 2, True),
    ],
)
def test_uses_on_numbers_are_tried_for_terms_that_vary_with_one_variable(
    term: Expr, count: int, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    original = search.uses_of
    monkeypatch.setattr(search, "uses_of", lambda *args: tried.append(args) or original(*args))
    found = shorter(term, count)
    assert bool(tried) == is_tried
    assert bool(found) == is_tried


def test_a_term_of_two_variables_that_varies_with_one_has_the_form_in_it() -> None:
    term = rx.op.subtract(rx.op.add(times(X, 2.0), times(Y, 3.0)), times(Y, 3.0))
    assert rx.op.add(X, X) in shorter(term, 2) or times(X, 2.0) in shorter(term, 2)
