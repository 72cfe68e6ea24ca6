"""No rule that ships follows from the others of its book; and one that does is found out."""

from __future__ import annotations

from typing import Any

import pytest

import relax_eg as rx
from benchmarks.minimality import BOOKS, derivable, without
from relax_eg.rules import RuleSet


@pytest.mark.parametrize("name", BOOKS)
def test_no_rule_follows_from_the_others(name: str) -> None:
    rules = BOOKS[name]
    assert [r.name for r in rules if not r.reverse and derivable(r, without(r, rules))] == []


def test_one_that_follows_is_found() -> None:
    more = RuleSet("more")

    @more.rule(shapes="a: m k, b: k n, c: n p, v: p")
    def three_times_vector(a: Any, b: Any, c: Any, v: Any) -> Any:
        """((A B) C) v = A (B (C v))"""
        return ((a @ b) @ c) @ v, a @ (b @ (c @ v))

    (rule,) = more
    assert derivable(rule, rx.rules.contraction)
    assert not derivable(rule, rx.rules.contraction - "matmul_vector_associates" - "matmul_vector_associates_reversed")
