"""The verdicts that ship, given anew from nothing: every rule is tested, proved or an axiom exactly where the file says
so. An eighth of the rules is checked in every run. Every change of a checker or of a rule makes new keys, and with them
another eighth."""

from __future__ import annotations

import pytest
from sampling import sampled

from relax_eg.rules import Rule, Schema
from relax_eg.rules.book import default, everything
from relax_eg.rules.checking.certificates import BOOK_VERDICTS, entry_of, read_verdicts
from relax_eg.rules.checking.verification import verify

ON_FILE = read_verdicts(BOOK_VERDICTS)
BY_NAME = {r.name: r for r in everything}
NOT_ON_FILE = BY_NAME.keys() - ON_FILE.keys()


@pytest.mark.parametrize(
    "rule", sampled(BY_NAME, 8, NOT_ON_FILE, key=lambda n: ON_FILE[n]["key"] if n in ON_FILE else n)
)
def test_the_verdict_on_file_is_what_is_found(rule: Rule | Schema) -> None:
    (verdict,) = verify(rule)
    if rule.name not in ON_FILE:  # of a routine that runs on other devices
        assert rule.name.startswith("cudnn_") and verdict.status in ("missing", "tested"), str(verdict)
        return
    found, on_file = entry_of(verdict), dict(ON_FILE[rule.name])
    if isinstance(rule, Rule) and rule.library is not None:  # which class was measured is for the processor to say
        assert found.pop("theory") and on_file.pop("theory")
    assert found == on_file, f"{verdict}\nafter a change of rules or checkers: python -m relax_eg.rules"


def test_there_are_no_others_on_file() -> None:
    names = [r.name for r in everything]
    assert len(set(names)) == len(names)
    assert [n for n in names if n in ON_FILE] == list(ON_FILE)


def test_what_is_claimed_of_bits_is_proved_of_bits() -> None:
    exact = [r for r in default if r.numerics == "exact" and ON_FILE[r.name]["status"] == "proved"]
    theories = {r.name: ON_FILE[r.name]["theory"] for r in exact}
    assert set(theories.values()) <= {"exact", "modular"} and len(exact) > 40
    assert [r.name for r in exact if theories[r.name] == "modular" and r.has_open_dtype] == []
