"""Which cases of a large sample are in every run."""

from __future__ import annotations

from typing import Any

import pytest
from sampling import is_sampled, sampled

NAMES = [f"case {i}" for i in range(1000)]


def fast(parameters: list[Any]) -> list[str]:
    return [str(p.id) for p in parameters if not p.marks]


def test_a_share_of_the_cases_is_in_every_run() -> None:
    found = sampled(NAMES, 4)
    assert [p.id for p in found] == NAMES and [p.values for p in found] == [(n,) for n in NAMES]
    assert 200 < len(fast(found)) < 300
    assert {m.name for p in found for m in p.marks} == {"slow"}
    assert len(fast(sampled(NAMES, 1))) == 1000


def test_a_case_stays_where_others_are_added() -> None:
    assert fast(sampled(NAMES[:500], 4)) == fast(sampled(NAMES, 4))[: len(fast(sampled(NAMES[:500], 4)))]
    assert is_sampled("case 0", 4) == ("case 0" in fast(sampled(["case 0"], 4)))


def test_named_cases_and_keys() -> None:
    others = [n for n in NAMES if not is_sampled(n, 4)]
    assert fast(sampled(others, 4, always=others[:2])) == others[:2]
    assert fast(sampled({"one": 1, "two": 2}, 4, key=lambda n: others[0])) == []
    with pytest.raises(AssertionError, match="nobody"):
        sampled(NAMES, 4, always=["nobody"])
