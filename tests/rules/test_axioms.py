"""Rules that restate what the prover takes for true: no proof covers them, and all values of small dtypes are tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ops import api as op
from relax_eg.rules import RuleSet
from relax_eg.rules.book import default
from relax_eg.rules.checking.certificates import not_proved, status
from relax_eg.rules.checking.check import check_all_values, prove_formally
from relax_eg.rules.checking.verdict import Verdict
from relax_eg.rules.verify_formal.folds import Folds
from relax_eg.rules.verify_formal.prove import prove_rule

book = RuleSet("book")


def mine(shapes: str, numerics: Any = "exact", **options: Any) -> Any:
    return book.rule(shapes, numerics=numerics, check=False, **options)


@mine("x: *b")
def square_restated(x: Any) -> Any:
    return op.square(op.square(x)), (x * x) * (x * x)


@mine("x: *b, y: *b")
def maximum_restated(x: Any, y: Any) -> Any:
    return op.maximum(op.maximum(x, y), y), op.maximum(x, y)


@mine("x: m n")
def negated_rows(x: Any) -> Any:
    return op.max(-x, 1), -op.min(x, 1)


@pytest.mark.parametrize("name", ["square_restated", "maximum_restated", "negated_rows"])
def test_what_nothing_but_identities_shows_is_an_axiom(name: str) -> None:
    (verdict,) = report = rx.verify(book[name])
    assert (verdict.status, verdict.theory) == ("axiom", "exact") and verdict.samples > 60_000
    assert "1 rules, 0 proved, 1 axioms, 0 refuted" in str(report)
    assert f"axiom (exact, block ranks all), every value of {verdict.every} tried" in str(verdict) or "rows" in name
    assert not_proved([book[name]]) == {}


@mine("x: *b n")
def sum_of_turned(x: Any) -> Any:
    """That a product commutes, inside of a fold, is a step of what is shown."""
    return op.sum(x * 2.0, x.ndim - 1), op.sum(2.0 * x, x.ndim - 1)


@mine("x: *b @ int32")
def integers_by_arithmetic(x: Any) -> Any:
    return x * 1 + 0, x


@mine("x: *b", "reassociate")
def over_the_reals(x: Any) -> Any:
    return x * 1.0, x


@pytest.mark.parametrize("name, theory", [
    ("sum_of_turned", "exact"), ("integers_by_arithmetic", "modular"), ("over_the_reals", "real"),
])  # fmt: skip
def test_what_is_shown_otherwise_is_proved(name: str, theory: str) -> None:
    proof = prove_rule(book[name])
    assert (proof.status, proof.theory) == ("proved", theory)


def test_the_books_tell_them_apart() -> None:
    axioms = {r.name for r in default if status(r).status == "axiom"}
    assert {"add_commutes", "times_one", "max_of_negated", "quotient_of_itself"} <= axioms
    assert not {"matmul_of_transposes", "matmul_associates", "max_of_max", "plus_zero_int"} & axioms
    assert {r.numerics for r in default if r.name in axioms} == {"exact"}
    assert len(axioms) < 0.15 * len(default)


@pytest.mark.parametrize("bits", [0x0001, 0x5A17, 0xF001])
def test_every_value_is_tried(bits: int) -> None:
    odd = np.uint16(bits).view(np.float16)
    rules = RuleSet("wrong")

    @rules.rule("x: *b @ float16", numerics="exact", check=False)
    def wrong_at_one_value(x: Any) -> Any:
        return op.where(op.equal(x, odd), -x, x), x

    verdict = check_all_values(Verdict(rules["wrong_at_one_value"], "tested", 1), rules["wrong_at_one_value"])
    assert verdict.status == "refuted" and verdict.counterexample is not None
    assert odd in verdict.counterexample.case.values["x"]


def test_a_wrong_identity_of_the_prover_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """That anything is its magnitude would prove this; its values do not."""
    rules = RuleSet("wrong")
    rules.rule("x: *b", name="magnitude", numerics="exact", check=False)(lambda x: (op.abs(op.tanh(x)), op.tanh(x)))
    right = Folds._identity  # pyright: ignore[reportPrivateUsage]

    def wrong(self: Any, s: Any, extra: Any) -> Any:
        return s.args[0] if s.fn == "abs" else right(self, s, extra)

    assert prove_rule(rules["magnitude"]).status == "unknown"
    monkeypatch.setattr(Folds, "_identity", wrong)
    assert prove_rule(rules["magnitude"]).status == "axiom"
    assert prove_formally(Verdict(rules["magnitude"], "tested", 1), rules["magnitude"])[0].status == "refuted"
