"""The cases of `benchmarks.patterns`: every form by hand computes what the program as written does."""

from __future__ import annotations

from itertools import chain

import jax
import pytest

from benchmarks.cases import Case
from benchmarks.patterns import SETS, by_hand, check_equal

SMALL = 16
CASES = list(chain.from_iterable(SETS.values()))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_forms_by_hand_compute_the_program_as_written(case: Case) -> None:
    args = case.arguments(SMALL)
    wanted = jax.jit(case.written)(*args)
    for name, form in case.forms.items():
        check_equal(name, wanted, by_hand(case, form, args)())


def test_names_are_distinct() -> None:
    """Rows on file and in tables are told apart by them."""
    assert len({c.name for c in CASES}) == len(CASES)
