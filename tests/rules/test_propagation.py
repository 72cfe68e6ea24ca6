"""How facts spread: every derivation is tried on random programs and values, and without any premise it fails."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from derivation_samples import counterexample, examples

from relax_eg import op
from relax_eg.egraph import Budget, EGraph
from relax_eg.errors import RuleError
from relax_eg.ir import Expr, Tensor, var
from relax_eg.ops.facts import (
    ALL_BELOW,
    CONSTANT,
    DIAGONAL,
    FACTS,
    FINITE,
    INTEGRAL,
    INVERTIBLE,
    LOWER_TRIANGULAR,
    NONNEGATIVE,
    NONZERO,
    ONE_HOT,
    ONLY_DIAGONAL,
    ONLY_LOWER,
    ORTHOGONAL,
    POSITIVE,
    POSITIVE_DEFINITE,
    POSITIVE_SEMIDEFINITE,
    SORTED,
    SYMMETRIC,
    UPPER_TRIANGULAR,
    Fact,
    facts_named,
    violation,
    with_implied,
)
from relax_eg.rules import RuleSet
from relax_eg.rules.book import facts as book
from relax_eg.rules.book.facts import at_or_above, c, columns, derivations, field, i, m, p, rows, swapped, v, x, xs, y
from relax_eg.rules.conditions import ValueTest
from relax_eg.rules.facts.fact_rules import ANNOTATION_WORDS, FactRule, annotated, anything, equals, floats, has, reals
from relax_eg.rules.facts.parameter_facts import DeclaredFacts
from relax_eg.rules.facts.propagation import KnownFacts, constant_has, required_facts
from relax_eg.shapes import Scope

EVERY = derivations()


def found(d: FactRule, seed: int = 0, count: int = 3, tries: int = 3) -> str | None:
    return counterexample(d, np.random.default_rng(seed), count, tries)


@pytest.mark.parametrize(("count", "tries"), [(2, 2), pytest.param(3, 3, marks=pytest.mark.slow)])
def test_every_derivation_holds(count: int, tries: int) -> None:
    assert len(EVERY) >= 550
    wrong = [w for n, d in enumerate(EVERY) if (w := found(d, n, count, tries)) is not None]
    assert wrong == []


def test_every_derivation_is_tried() -> None:
    def applies(d: FactRule) -> bool:
        dtype = "float32" if d.exact else "float64"
        return any(True for seed in range(5) for _ in examples(d, dtype, np.random.default_rng(seed), 1))

    assert [str(d) for d in EVERY if not applies(d)] == []


# Whose counterexamples are too rare to be met: a product of elements is singular by chance only.
_NEEDED_ALL_THE_SAME = ("invertible if invertible(x), constant(c)",)


def test_no_premise_can_be_left_out() -> None:
    kept: list[str] = []
    for d in EVERY:
        for n, premise in enumerate(d.premises):
            weaker = dataclasses.replace(d, premises=(*d.premises[:n], *d.premises[n + 1 :]))
            if not any(found(weaker, seed, 10, 6) for seed in range(3)):
                kept.append(f"{d} without {premise}")
    assert [k for k in kept if not any(text in k for text in _NEEDED_ALL_THE_SAME)] == []


WRONG = [
    d
    for some in (
        floats.gives(p.exp(x), POSITIVE),
        floats.keeps(p.multiply(x, y), POSITIVE),
        floats.keeps(p.multiply(x, y), NONZERO),
        floats.gives(p.divide(x, y), NONNEGATIVE, has(x, NONNEGATIVE), has(y, NONNEGATIVE)),
        floats.gives(p.reciprocal(x), POSITIVE, has(x, POSITIVE)),
        floats.gives(p.rsqrt(x), NONNEGATIVE, has(x, NONNEGATIVE)),
        floats.keeps(p.add(x, y), FINITE),
        floats.keeps(p.multiply(x, y), FINITE),
        floats.gives(p.square(x), POSITIVE, has(x, NONZERO)),
        floats.gives(p.sigmoid(x), POSITIVE),
        floats.gives(p.softmax(x), POSITIVE),
        reals.keeps(p.subtract(x, y), NONNEGATIVE),
        reals.gives(p.minimum(x, y), POSITIVE, has(x, POSITIVE)),
        reals.keeps(p.sum(x), POSITIVE),
        reals.keeps(p.mean(x), FINITE),
        reals.keeps(p.exp(x), INTEGRAL),
        reals.keeps(p.floor(x), POSITIVE),
        reals.keeps(p.round(x), POSITIVE),
        reals.gives(p.integer_pow(x), NONNEGATIVE),
        reals.keeps(p.sin(x), NONNEGATIVE),
        reals.keeps(p.log(x), NONNEGATIVE),
        reals.gives(p.gelu(x), NONNEGATIVE),
        reals.gives(p.tanh(x), INTEGRAL),
        reals.keeps(p.matmul(x, y), SYMMETRIC),
        reals.keeps(p.matmul(x, y), NONZERO),
        reals.gives(p.matmul(x, swapped), POSITIVE_DEFINITE),
        reals.keeps(p.add(x, y), ORTHOGONAL),
        reals.keeps(p.add(x, y), INVERTIBLE),
        reals.gives(p.add(x, y), POSITIVE_DEFINITE, has(x, POSITIVE_SEMIDEFINITE), has(y, POSITIVE_SEMIDEFINITE)),
        reals.keeps(p.subtract(x, y), POSITIVE_SEMIDEFINITE),
        reals.keeps(p.multiply(x, c), POSITIVE_DEFINITE, x),
        reals.gives(p.multiply(x, c), SORTED, has(x, SORTED), has(c, CONSTANT)),
        reals.gives(p.tril(x), SYMMETRIC, has(x, SYMMETRIC)),
        reals.gives(p.triu(x, where=at_or_above), LOWER_TRIANGULAR),
        reals.gives(p.where(m, x, y), LOWER_TRIANGULAR, has(m, ALL_BELOW), equals(y, 0)),
        reals.gives(p.where(m, x, y), UPPER_TRIANGULAR, has(m, ONLY_LOWER), equals(x, 0)),
        reals.gives(p.astype(m), DIAGONAL, has(m, ONLY_LOWER)),
        reals.gives(p.cholesky(x), UPPER_TRIANGULAR, has(x, POSITIVE_DEFINITE)),
        reals.gives(field(p.qr(x), 1), LOWER_TRIANGULAR),
        reals.keeps(p.negative(x), SORTED),
        reals.keeps(p.abs(x), SORTED),
        reals.keeps(p.exp(x), LOWER_TRIANGULAR),
        reals.keeps(p.cos(x), DIAGONAL),
        anything.gives(p.abs(x), NONNEGATIVE),
        anything.keeps(p.add(x, y), NONNEGATIVE),
        anything.gives(p.multiply(x, x), NONNEGATIVE),
        anything.keeps(p.max(x), NONNEGATIVE),
        anything.keeps(p.concat(xs), CONSTANT),
        anything.keeps(p.reshape(x), SORTED),
        anything.keeps(p.flip(x), SYMMETRIC),
        anything.keeps(p.flip(x), SORTED),
        anything.keeps(p.broadcast_to(x), ONE_HOT),
        anything.keeps(p.strided_slice(x), ONE_HOT),
        anything.keeps(p.permute_dims(x), LOWER_TRIANGULAR),
        anything.keeps(p.permute_dims(x), SORTED),
        anything.keeps(p.permute_dims(x), ONE_HOT),
        anything.keeps(swapped, UPPER_TRIANGULAR),
        anything.keeps(p.take(x, i), FINITE, x),
        anything.keeps(p.pad(x, v), CONSTANT),
        anything.keeps(p.tril(x), POSITIVE),
        anything.keeps(p.where(c, x, y), CONSTANT, x, y),
        anything.keeps(p.where(c, x, y), SYMMETRIC, x, y),
        anything.gives(p.add(x, y), LOWER_TRIANGULAR, has(x, LOWER_TRIANGULAR)),
        anything.gives(p.cummax(x), SORTED),
        anything.gives(p.maximum(x, y), NONZERO, has(x, NONZERO)),
        anything.gives(p.greater_equal(p.iota(where=rows), p.iota(where=columns)), ONLY_DIAGONAL),
        anything.gives(p.greater(p.iota(where=columns), p.iota(where=rows)), ONLY_LOWER),
    )
    for d in some
]


@pytest.mark.parametrize("d", WRONG, ids=str)
def test_wrong_derivations_are_found_out(d: FactRule) -> None:
    assert d not in EVERY
    assert any(found(d, seed, 20, 8) for seed in range(6)), f"not refuted: {d}"


def test_what_follows_from_what_is_known() -> None:
    assert with_implied({"positive_definite"}) >= {"positive_semidefinite", "symmetric", "invertible"}
    assert "positive" not in with_implied({"nonnegative"})
    assert required_facts(frozenset({"one_hot"})) == {"one_hot", "identity_mask", ValueTest("", "==", 0.0)}
    assert required_facts(frozenset({"symmetric"})) >= {"symmetric", "diagonal", "positive_definite", "constant"}
    assert not required_facts(frozenset({"symmetric"})) & set(ANNOTATION_WORDS)


def known(e: Expr, **facts: str) -> frozenset[str]:
    """The facts of `e`, its variables as declared."""

    def leaf(x: Expr, fact: str) -> bool:
        if x.op != "var":
            return constant_has(x, fact)
        return fact in with_implied(facts.get(str(x.attr("name")), "").split())

    derived = KnownFacts(leaf, False, lambda d: True)
    return frozenset(f for f in FACTS if derived.has(e, f))


def test_facts_of_programs() -> None:
    x, a = var("x", Tensor("n")), var("a", Tensor("m n"))
    n = a.shape[1]
    ridge = a.T @ a + op.eye(n) * 0.1
    assert "positive_definite" in known(ridge)
    assert "positive_definite" not in known(a.T @ a)
    assert known(a.T @ a) >= {"symmetric", "positive_semidefinite"}
    assert known(op.eye(n)) >= {"orthogonal", "one_hot", "diagonal", "nonnegative", "positive_definite"}
    assert "positive" in known(op.exp(x) + 1.0)
    assert "finite" not in known(op.exp(x), x="finite")
    assert "finite" in known(op.tanh(x) / (1.0 + op.square(op.tanh(x))), x="finite")
    assert "nonnegative" in known(op.softmax(x) @ a.T, a="nonnegative")
    assert "nonnegative" not in known(op.softmax(x) @ a.T)
    assert "sorted" in known(op.sort(x) * 2.0 + 1.0)
    assert "sorted" not in known(op.sort(x) * -2.0)
    assert "integral" in known(op.floor(x) * 3.0)


def test_a_rule_that_cannot_be_written_is_our_mistake() -> None:
    with pytest.raises(AttributeError, match="no operator 'exq'"):
        p.exq(x)
    with pytest.raises(ValueError, match="no word 'is_flat' of annotations"):
        annotated(x, "is_flat")


def test_the_table_says_nothing_twice() -> None:
    lines = [d for part in book.PARTS for d in part()]
    twice = {str(d) for d in lines if lines.count(d) > 1}
    # For all operands alike, and for the one operand of these.
    assert twice <= {str(d) for d in lines if d.fact in ("symmetric", "constant", "nonnegative", "integral", "finite")}


def test_a_fact_needs_nothing_but_its_definition_and_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions, samples, checks, declarations and the e-graph take a fact from its definition (`ops.facts`); how it
    follows is said in the table. With the words for users and an example in a test, a new fact touches four files."""

    def large(a: Any) -> tuple[tuple[int, ...], str] | None:
        at = np.argwhere(~(abs(a) < 1))
        return (tuple(at[0]), f"{{x}} has {a[tuple(at[0])]}") if len(at) else None

    small = Fact("very small", 0, "f", "every element is less than 1", large, lambda a, rng: np.where(abs(a) < 1, a, 0))
    monkeypatch.setitem(FACTS, small.key, small)
    assert violation("very_small", np.array([0.5, 2.0]), "x") == "x has 2.0"
    mine = RuleSet("mine")
    mine.rule("x: *b", when="very small(x)", name="gone")(lambda x: (op.minimum(x, 1.0), x))
    with pytest.raises(RuleError, match="is refuted"):
        mine.rule("x: *b", when="very small(x)", name="wrong")(lambda x: (op.minimum(x, 0.5), x))
    assert facts_named("very small") == ["very_small"]
    a = var("a", Tensor("n"))
    with EGraph(
        [op.minimum(a, 1.0)], mine, Scope(), declared=DeclaredFacts({"a": frozenset({"very_small"})})
    ) as egraph:
        egraph.saturate(Budget())
        assert "gone" in egraph.matches
