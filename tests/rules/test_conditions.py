"""Conditions on values: how they are read, what is refused, and the samples that are drawn under them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import RuleError
from relax_eg.ops import api as op
from relax_eg.ops.facts import FACTS, has_fact, violation
from relax_eg.rules import Claim, Instance, OriginGuard, RuleSet, ValueTest
from relax_eg.rules.checking import samples as draws
from relax_eg.rules.checking.check import check
from relax_eg.rules.checking.samples import adapt_values, draw_under_guards, value_guards_hold
from relax_eg.rules.conditions import WORDS
from relax_eg.rules.rule import instances
from relax_eg.shapes import Relation


def one(shapes: str, function: Any, **options: Any) -> Instance:
    book = RuleSet("mine")
    book.rule(shapes, name="r", check=False, **options)(function)
    return next(instances(book["r"]))


def product(x: Any, s: Any) -> Any:
    return op.exp(x) * s, s * op.exp(x)


def test_conditions_are_read() -> None:
    when = ("positive(x)", "lower triangular(x)", "is_weight(s)", "used_once(x)", "s >= 0.5", "2 > s", "n >= 1")
    guards = one("x: n n, s:", product, when=when).guards
    assert guards[:-1] == (
        Claim("positive", "x"), Claim("lower_triangular", "x"),
        OriginGuard("is_weight", "s"), OriginGuard("used_once", "x"),
        ValueTest("s", ">=", 0.5), ValueTest("s", "<", 2.0),
    )  # fmt: skip
    assert isinstance(guards[-1], Relation)
    texts = ["positive(x)", "lower_triangular(x)", "is_weight(s)", "used_once(x)", "s >= 0.5", "s < 2", "1 <= n"]
    assert list(map(str, guards)) == texts
    # A name that is a size is one in comparisons.
    (guard,) = one("n: n", lambda n: (op.exp(-n), op.exp(-n) * 1.0), when="n >= 1").guards
    assert isinstance(guard, Relation)


def test_what_a_rule_asks_is_printed() -> None:
    book = RuleSet("mine")
    book.rule("x: *b", when=("positive(x)", "finite(x)"), check=False)(_half_and_half)
    assert str(book["_half_and_half"]).endswith("=>  x   when positive(x) and finite(x)")
    assert book["_half_and_half"].required_facts == {"positive", "finite"}


def _half_and_half(x: Any) -> Any:
    return x * 0.5 + x * 0.5, x


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ("postive(x)", "condition 'postive(x)': 'postive' is no fact; did you mean positive? accepted: positive, "),
        ("postive(x)", f"invertible, {', '.join(WORDS)}"),
        ("positive(y)", "condition positive(y): the signature lacks `y`"),
        ("positive(x, s)", "condition 'positive(x, s)': positive(...) takes one pattern variable"),
        ("x > n", "condition 'x > n': `x` is a pattern variable; it can be compared with a number"),
        ("symmetric(s)", "condition symmetric(s): its rank is 0; a matrix, or a batch of them, is needed to be "),
        ("symmetric(x)", "condition symmetric(x): its matrices are m by n; square ones can be symmetric"),
        ("is_weight(w)", "condition is_weight(w): the signature lacks `w`"),
        ("what is x", "condition 'what is x': accepted: a comparison of sizes, a fact such as positive(x), a word"),
    ],
)
def test_conditions_that_are_refused(when: str, says: str) -> None:
    with pytest.raises(RuleError) as caught:
        RuleSet("mine").rule("x: m n, s:", when=when, name="r")(product)
    assert "rule `r`: " in str(caught.value)
    assert says in str(caught.value)


def test_ranks_that_cannot_have_a_fact_are_no_instances() -> None:
    book = RuleSet("mine")
    book.rule("x: *b", when="sorted(x)", name="r", check=False)(lambda x: (op.exp(x) * 1.0, op.exp(x)))
    assert [i.params[0].ndim for i in instances(book["r"])] == [1, 2, 3]


# --- samples ---

_DRAWS = {
    "moderate": draws.moderate,
    "mixed": draws.draw_cancelling_floats,
    "special": draws.special,
    "rationals": draws.rationals,
}
# Which cannot always be had of given values: a singular matrix is made another by adding much to its diagonal.
_SELDOM_MISSED = 0.02


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("draw", _DRAWS)
def test_samples_have_the_facts(fact: str, draw: str) -> None:
    instance = one("x: n n", lambda x: (op.exp(x) * 1.0, op.exp(x)), when=f"{fact}(x)")
    rng = np.random.default_rng(7)
    missed = 0
    for k in range(60):
        with np.errstate(all="ignore"):
            values = draw_under_guards(_DRAWS[draw])(instance, {"n": (0, 1, 2, 3, 5)[k % 5]}, rng, k)
        missed += not value_guards_hold(instance, values)
    if FACTS[fact].name != "one-hot":
        assert missed <= _SELDOM_MISSED * 60
    else:
        assert missed == 0


@pytest.mark.parametrize(
    "facts",
    [
        ("positive", "sorted"), ("symmetric", "positive"), ("diagonal", "positive definite"),
        ("integral", "orthogonal"), ("lower triangular", "invertible"), ("nonnegative", "integral", "finite"),
        ("constant", "nonzero"), ("integral", "positive definite"), ("symmetric", "nonnegative", "finite"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_samples_have_several_facts(facts: tuple[str, ...], dtype: str) -> None:
    keys = [f.replace(" ", "_") for f in facts]
    rng = np.random.default_rng(3)
    found = [adapt_values(rng.standard_normal((3, 3)).astype(numpy_dtype(dtype)), keys, (), rng) for _ in range(20)]
    assert [violation(k, a) for a in found for k in keys if not has_fact(k, a)] == []
    assert {a.dtype for a in found} == {numpy_dtype(dtype)}


def test_samples_keep_what_is_special() -> None:
    rng = np.random.default_rng(0)
    a = np.array([np.nan, -0.0, -np.inf, 1e-45], np.float32)
    made = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    assert adapt_values(a, ["nonnegative"], (), rng).tobytes() == made.tobytes()
    assert (adapt_values(np.array([-(2**31), 5], np.int32), ["positive"], (), rng) == [2**31 - 1, 5]).all()


@pytest.mark.parametrize("test", ["s == 0.5", "s != 1", "s > 1", "s >= 2", "s < -1", "s <= 0"])
def test_samples_pass_tests_of_constants(test: str) -> None:
    instance = one("x: n n, s:", product, when=test)
    rng = np.random.default_rng(1)
    for name, draw in _DRAWS.items():
        for k in range(12):
            with np.errstate(all="ignore"):
                values = draw_under_guards(draw)(instance, {"n": 2}, rng, k)
            assert value_guards_hold(instance, values), (name, values["s"])


def test_a_rule_is_tested_under_what_it_asks() -> None:
    book = RuleSet("book")
    book.rule("x: *b", when="nonnegative(x)", name="right", check=False)(lambda x: (op.abs(x), x))
    book.rule("x: *b", name="wrong", check=False)(lambda x: (op.abs(x), x))
    book.rule("x: *b", when="nonzero(x)", name="weak", check=False)(lambda x: (op.abs(x), x))
    book.rule("x: *b, s:", when="s == 1", name="tested", check=False)(lambda x, s: (x * s, x))
    assert {r.name: check(r).status for r in book} == {
        "right": "tested", "wrong": "refuted", "weak": "refuted", "tested": "tested",
    }  # fmt: skip
    found = check(book["weak"]).counterexample
    assert found is not None
    assert np.all(found.case.values["x"] != 0)  # made simpler, the counterexample still has the fact
    assert found.holds()
