"""Sizes as multiples of others, so that a division leaves no remainder."""

from __future__ import annotations

import pytest

from relax_eg.shapes.multiples import deciding_multiples
from relax_eg.shapes.relation import read_statement


@pytest.mark.parametrize(
    ("statement", "at", "found"),
    [
        ("n % 4 == 0", None, {"n": "4*n"}),
        ("(n + 1) % 4 == 0", None, {"n": "4*n - 1"}),
        ("(n + 1) % 4 == 0", {"n": 7}, {"n": "4*n - 1"}),
        ("6*n % 4 == 0", {"n": 6}, {"n": "2*n"}),
        ("n*m % 4 == 0", {"n": 3, "m": 8}, {"m": "4*m"}),
        ("n*m % 4 == 0", {"n": 2, "m": 6}, {"n": "4*n - 2", "m": "4*m - 2"}),  # neither is a multiple of 4
        ("(n + m) % 2 == 0", {"n": 3, "m": 5}, {"n": "2*n - 1", "m": "2*m - 1"}),
        ("(n + m) % 2 == 0", None, {"n": "2*n", "m": "2*m"}),
        ("(n // 2) % 3 == 0", {"n": 12}, {"n": "6*n"}),
        ("n % m == 0", {"n": 6, "m": 3}, None),  # no number divides
        ("n == 4", {"n": 4}, None),
        ("n % 4 != 0", {"n": 5}, None),
        ("n % 4 == 0", {"n": 5}, None),
    ],
)
def test_multiples(statement: str, at: dict[str, int] | None, found: dict[str, str] | None) -> None:
    (relation,) = read_statement(statement)
    made = deciding_multiples(relation, at)
    assert (made and {v: str(d) for v, d in made.items()}) == found
    for v, d in (made or {}).items():
        assert d.evaluate({v: 1}) >= 1
