"""Two thousand mechanical mutants of good rules: what the two checkers, which share no code, say of them.

    python -m pytest -m slow tests/rules/test_mutants.py -s

A mutant is one slip: an operand, a sign, a constant, an axis, a bound, an operator, a condition left out.

*Refuted*: the tester has a counterexample. *Proved*: the formal checker has a proof, of equal values and equal
definedness for all sizes; of a float's accuracy, which is measured, it says little. So none may be both, but for what
is refuted for its accuracy alone.

*Accepted*: the verdict that `relax-eg verify` gives is not "refuted": the mutant is proved, or passes 48 points for
each judge and then 400. Every accepted mutant must be *independently proved right*, by the formal checker, in one of
three ways:

- the mutant is proved as it stands;
- its changed side is proved to equal the side that was changed: it says what the rule says that it was made of, which
  is proved itself, or one of the good rules of `rule_fixtures`;
- its sides are proved equal, and equally defined, as claims over the reals; that it is also as accurate as it claims is
  measured at the 400 points, and not proved.
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
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.checking.check import check, strengthen
from relax_eg.rules.verify_formal.prove import prove_rule

COUNT = int(os.environ.get("RELAX_EG_MUTANTS", "2000"))


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


def equal(rule: Rule) -> bool:
    """Whether the sides are proved equal over the reals, and equally defined, however accurate."""
    return (
        rule.numerics != "exact"
        and prove_rule(dataclasses.replace(rule, numerics="approximate", _instances={})).status != "unknown"
    )


def chosen() -> list[tuple[Rule, Rule]]:
    """(rule, mutant) pairs, the same in every run."""
    proved = [r for r in default if status(r).holds_everywhere and "_needs_no_broadcast_" not in r.name]
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
        verdict, proved = check(mutant), prove_rule(mutant).status
        if verdict.status == "refuted" and proved != "unknown" and "side's error is " not in verdict.problem:
            contradictions.append(mutant.name)
        if (verdict.status, proved) == ("tested", "unknown"):
            verdict = strengthen(verdict)
            is_right = prove_rule(change(rule, mutant)).status != "unknown" or equal(mutant)
            if verdict.status == "tested" and not is_right:
                unexplained.append(mutant.name)
        said[verdict.status, proved] += 1
    print(f"\n{said.total()} mutants, what is said by testing and by proof: {dict(said)}", *unexplained, sep="\n")
    assert contradictions == []
    assert unexplained == []
    assert said.total() == COUNT
