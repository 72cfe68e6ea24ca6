"""How few laws are enough, and which substitutions of TASO follow."""

from __future__ import annotations

from typing import Any

import pytest

import relax_eg as rx
from benchmarks.least_laws import Laws, least
from benchmarks.taso import answer, read_term, usable
from relax_eg.rules import RuleSet
from relax_eg.rules.rule import instances


@pytest.fixture(scope="module")
def book() -> RuleSet:
    made = rx.RuleSet("laws")

    @made.rule("x: *b, y: *b", both=True, check=False, name="one__add_commutes")
    def commutes(x: Any, y: Any) -> Any:
        """x + y = y + x"""
        return x + y, y + x

    @made.rule("u: *b, v: *b", both=True, check=False, name="two__add_commutes")
    def commutes_again(u: Any, v: Any) -> Any:
        """u + v = v + u"""
        return u + v, v + u

    @made.rule("x: *b, y: *b, z: *b", both=True, check=False, name="one__add_associates")
    def associates(x: Any, y: Any, z: Any) -> Any:
        """x + (y + z) = x + y + z"""
        return x + (y + z), (x + y) + z

    @made.rule("x: *b, y: *b, z: *b", both=True, check=False, name="one__exchange")
    def exchange(x: Any, y: Any, z: Any) -> Any:
        """x + (y + z) = y + (x + z)"""
        return x + (y + z), y + (x + z)

    @made.rule("x: *b", check=False, name="one__negated")
    def negated(x: Any) -> Any:
        """-(-x) = x"""
        return rx.op.negative(-x), x

    return made


def test_laws_alike_are_one_and_followers_are_dropped(book: RuleSet) -> None:
    laws = Laws(book)
    assert laws.count_alike == 4
    (dropped,) = laws.drop_followers(tell=False)
    # The law with fewer operators, of which the others are made, stays.
    assert dropped in ("one__exchange", "one__add_associates")
    assert len(laws.rules) == 3


def test_the_fewest_laws_for_what_is_asked(book: RuleSet) -> None:
    asked = rx.RuleSet("asked")

    @asked.rule("x: *b, y: *b, z: *b", check=False)
    def turned(x: Any, y: Any, z: Any) -> Any:
        return (x + y) + z, (z + y) + x

    @asked.rule("x: *b, y: *b", check=False)
    def wrong(x: Any, y: Any) -> Any:
        return x + y, x - y

    laws = Laws(book)
    kept, lost = least([next(instances(asked[n], limit=1)) for n in ("turned", "wrong")], laws)
    assert set(kept) <= {"one__add_commutes", "one__add_associates", "one__exchange"}
    assert 1 <= len(kept) <= 2
    assert [i.rule.name for i in lost] == ["wrong"]


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ("(matmul (matmul ?input_1 ?input_4) ?input_5)=>(matmul ?input_1 (matmul ?input_4 ?input_5))", "follows"),
        ("(matmul ?input_1 Imatmul)=>(?input_1)", "follows"),
        ("(matmul ?input_4 ?input_5)=>(matmul ?input_5 ?input_4)", "differs"),
        ("(ewadd ?input_1 ?input_2)=>(ewmul ?input_1 ?input_2)", "differs"),
        (
            "(relu (conv2d 1 1 0 0 ?input_7 (smul ?input_13 ?input_20)))=>"
            "(conv2d 1 1 0 2 (smul ?input_7 ?input_20) ?input_13)",
            "follows",
        ),
    ],
)
def test_substitutions(rule: str, outcome: str) -> None:
    assert answer(rule, usable("")).outcome == outcome


def test_a_term_is_read() -> None:
    assert read_term("(concat 1 ?input_4 (transpose ?input_5))") == [
        "concat", "1", "?input_4", ["transpose", "?input_5"],
    ]  # fmt: skip
    assert read_term("(?input_1)") == "?input_1"
