"""Which laws are told to save something on a program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import relax_eg as rx
from relax_eg.driver.laws.ranking import rank_by_savings

MANY = rx.RuleSet("many", list(rx.rules.default)[:9])


def program(needed: set[str], told: tuple[str, ...] = ()) -> Any:
    """A program that takes half the time with the rules that it needs, of which its report tells some."""

    def optimized(rules: rx.RuleSet) -> Any:
        has = needed <= {r.name for r in rules}
        return SimpleNamespace(
            report=SimpleNamespace(
                after=SimpleNamespace(seconds=1.0 if has else 2.0), rules=dict.fromkeys(told if has else (), 1)
            )
        )

    return optimized


@pytest.mark.parametrize("places", [(0,), (8,), (2, 3), (0, 4, 8), range(9)])
def test_laws_that_lead_to_what_is_there_are_told_apart(places: Any) -> None:
    needed = {list(MANY)[i].name for i in places}
    (saving,) = rank_by_savings({"p": program(needed)}, MANY, rx.RuleSet("nothing"))
    assert set(saving.rules) == needed
    assert saving.share == 0.5


def test_what_reports_tell_is_taken() -> None:
    first, second, *_ = (r.name for r in MANY)
    asked = {"a": program({first}, (first,)), "b": program({second}, ("of no found law",)), "c": program({"none"})}
    savings = rank_by_savings(asked, MANY, rx.RuleSet("nothing"))
    assert [(s.program, s.rules) for s in savings] == [("a", (first,)), ("b", (second,))]
