"""Two thousand mechanical mutants of proved rules: what the two checkers, which share no code, say of them.

    python -m pytest -m slow tests/rules/test_mutants.py -s

A mutant is one slip: an operand, a sign, a constant, an axis, a bound, an operator, a condition left out. No mutant
may be both proved and refuted, and none may pass the tests unless it is right: proved, or its change proved to be none.
(A proof over the reals says nothing of accuracy, so a mutant that is equal and only less accurate is no contradiction.)
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from mutants import mutants, turned
from rule_fixtures import good

from relax_eg.rules import Rule, default
from relax_eg.rules.certificates import status
from relax_eg.rules.check import check
from relax_eg.rules.verify_formal import prove_rule

COUNT = int(os.environ.get("RELAX_EG_MUTANTS", "2000"))

# Right, for reasons that the formal checker has no notion of.
ARGUED = {
    "max_of_row_maxima": "a transpose before the maximum over everything, which is refused where there is nothing",
    "one_hot_times_matrix": "the place of a maximum is within bounds, so it may be promised",
    "one_hot_times_vector": "the place of a maximum is within bounds, so it may be promised",
    "rows_in_order": "row numbers are a vector, and its transpose is the vector, promised or not",
    "shift_out_of_max": "where there is nothing neither side has a maximum, so the condition says nothing more",
    "variance_made_stable": "a square is the same of the difference either way",
    "softmax_of_shifted": "softmax is the same wherever a row is shifted to, by whatever is one number for the row",
    "rows_taken_before_matmul": "row numbers are a vector, and its transpose is the vector, promised or not",
}


def without_conditions(rule: Rule) -> Iterator[Rule]:
    """`rule` without one of its conditions."""
    for i, condition in enumerate(rule.when):
        when = (*rule.when[:i], *rule.when[i + 1 :])
        yield dataclasses.replace(rule, name=f"{rule.name}/without {condition}", when=when, _instances={})


def change(rule: Rule, mutated: Rule) -> Rule:
    """That the right side of a mutant equals the right side of the rule."""

    def function(*params: Any, **options: Any) -> Any:
        before, after = rule.function(*params, **options), mutated.function(*params, **options)
        if before is None or after is None:
            return None
        return before[0] if rule.reverse else before[1], after[1]

    name = f"{mutated.name}/change"
    return dataclasses.replace(mutated, name=name, function=function, numerics="reassociate", _instances={})


def chosen() -> list[tuple[Rule, Rule]]:
    """(rule, mutant) pairs, the same in every run."""
    proved = [r for r in default if status(r).status == "proved" and "_needs_no_broadcast_" not in r.name]
    sides = [s for r in (*proved, *good) for s in (r, turned(r))]
    found = [(s, m) for s in sides for m in mutants(s)]
    random.Random(0).shuffle(found)
    weakened = [(r, m) for r in proved for m in without_conditions(r)]
    return (weakened + found)[:COUNT]


@pytest.mark.slow
def test_mutants() -> None:
    said: Counter[tuple[str, str]] = Counter()
    contradictions: list[str] = []
    unexplained: list[str] = []
    for rule, mutant in chosen():
        verdict, proved = check(mutant), prove_rule(mutant, 10.0).status
        tested = verdict.status
        said[tested, proved] += 1
        if (tested, proved) == ("refuted", "proved") and "side's error is " not in verdict.problem:
            contradictions.append(mutant.name)
        if (tested, proved) == ("tested", "unknown"):
            same = prove_rule(change(rule, mutant), 10.0).status == "proved"
            if not same and rule.name.split("/")[0] not in ARGUED and check(mutant, 600, 1).status == "tested":
                unexplained.append(mutant.name)
    print(f"\n{said.total()} mutants, tested and proved: {dict(said)}", *unexplained, sep="\n")
    assert contradictions == []
    assert unexplained == []
    assert said.total() == COUNT
