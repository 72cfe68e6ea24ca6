"""How facts spread: every derivation is tried on random programs and values, and without any premise it fails."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from derivation_samples import counterexample, examples

from relax_eg import op
from relax_eg.ir import Expr, Tensor, var
from relax_eg.ops.facts import FACTS
from relax_eg.rules.book.facts import derivations as table
from relax_eg.rules.propagation import (
    OF_ANNOTATIONS,
    FactRule,
    KnownFacts,
    TableError,
    closed,
    constant_has,
    derivations,
    is_test,
    needed,
    read,
)

EVERY = derivations()


def found(d: FactRule, seed: int = 0, count: int = 3, tries: int = 3) -> str | None:
    return counterexample(d, np.random.default_rng(seed), count, tries)


def test_every_derivation_holds() -> None:
    assert len(EVERY) >= 550
    wrong = [w for n, d in enumerate(EVERY) if (w := found(d, n)) is not None]
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
        for i, (premise, _) in enumerate(d.premises):
            weaker = dataclasses.replace(d, premises=(*d.premises[:i], *d.premises[i + 1 :]))
            if not any(found(weaker, seed, 10, 6) for seed in range(3)):
                kept.append(f"{d} without {premise}")
    assert [k for k in kept if not any(text in k for text in _NEEDED_ALL_THE_SAME)] == []


MUTANTS = """
exp(x): positive
multiply(x, y): keeps positive
multiply(x, y): keeps nonzero
divide(x, y): nonnegative if nonnegative(x), nonnegative(y)
reciprocal(x): positive if positive(x)
rsqrt(x): nonnegative if nonnegative(x)
add(x, y): keeps finite
multiply(x, y): keeps finite
square(x): positive if nonzero(x)
sigmoid(x): positive
softmax(x): positive
~ subtract(x, y): keeps nonnegative
~ minimum(x, y): positive if positive(x)
~ sum(x): keeps positive
~ mean(x): keeps finite
~ exp(x): keeps integral
~ floor(x): keeps positive
~ round(x): keeps positive
~ integer_pow(x): nonnegative
~ sin(x): keeps nonnegative
~ log(x): keeps nonnegative
~ gelu(x): nonnegative
~ tanh(x): integral
~ matmul(x, y): keeps symmetric
~ matmul(x, y): keeps nonzero
~ matmul(x, permute_dims[swaps](x)): positive_definite
~ add(x, y): keeps orthogonal
~ add(x, y): keeps invertible
~ add(x, y): positive_definite if positive_semidefinite(x), positive_semidefinite(y)
~ subtract(x, y): keeps positive_semidefinite
~ multiply(x, c): keeps positive_definite of x
~ multiply(x, c): sorted if sorted(x), constant(c)
~ tril(x): symmetric if symmetric(x)
~ triu[at_or_above](x): lower_triangular
~ where(m, x, y): lower_triangular if all_below(m), y == 0
~ where(m, x, y): upper_triangular if only_lower(m), x == 0
~ astype(m): diagonal if only_lower(m)
~ cholesky(x): upper_triangular if positive_definite(x)
~ tuple_get_item[1](qr(x)): lower_triangular
~ negative(x): keeps sorted
~ abs(x): keeps sorted
~ exp(x): keeps lower_triangular
~ cos(x): keeps diagonal
"""
MUTANTS_OF_ANY_DTYPE = """
abs(x): nonnegative
add(x, y): keeps nonnegative
multiply(x, x): nonnegative
max(x): keeps nonnegative
concat(xs...): keeps constant
reshape(x): keeps sorted
flip(x): keeps symmetric
flip(x): keeps sorted
broadcast_to(x): keeps one_hot
strided_slice(x): keeps one_hot
permute_dims(x): keeps lower_triangular
permute_dims(x): keeps sorted
permute_dims(x): keeps one_hot
permute_dims[swaps](x): keeps upper_triangular
take(x, i): keeps finite of x
pad(x, v): keeps constant
tril(x): keeps positive
where(c, x, y): keeps constant of x, y
where(c, x, y): keeps symmetric of x, y
add(x, y): lower_triangular if lower_triangular(x)
cummax(x): sorted
maximum(x, y): nonzero if nonzero(x)
greater_equal(iota[rows](), iota[columns]()): only_diagonal
greater(iota[columns](), iota[rows]()): only_lower
"""
WRONG = [*read(MUTANTS, True), *read(MUTANTS_OF_ANY_DTYPE, False)]


@pytest.mark.parametrize("d", WRONG, ids=str)
def test_wrong_derivations_are_found_out(d: FactRule) -> None:
    assert d not in EVERY
    assert any(found(d, seed, 20, 8) for seed in range(6)), f"not refuted: {d}"


def test_what_follows_from_what_is_known() -> None:
    assert closed({"positive_definite"}) >= {"positive_semidefinite", "symmetric", "invertible"}
    assert "positive" not in closed({"nonnegative"})
    assert needed(frozenset({"one_hot"})) == {"one_hot", "identity_mask", "== 0.0"}
    assert needed(frozenset({"symmetric"})) >= {"symmetric", "diagonal", "positive_definite", "constant"}
    assert not needed(frozenset({"symmetric"})) & set(OF_ANNOTATIONS)


def known(e: Expr, **facts: str) -> frozenset[str]:
    """The facts of `e`, its variables as declared."""

    def leaf(x: Expr, fact: str) -> bool:
        if x.op != "var":
            return constant_has(x, fact)
        return fact in closed(set(facts.get(str(x.attr("name")), "").split()))

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


def test_a_line_that_cannot_be_read_is_our_mistake() -> None:
    for line, what in (
        ("exp(x) positive", "`pattern: facts`"),
        ("exq(x): positive", "no operator 'exq'"),
        ("exp(x): postive", "no fact 'postive'"),
        ("exp(x): positive if postive(x)", "no fact 'postive'"),
        ("permute_dims[turns](x): symmetric", "no word 'turns'"),
    ):
        with pytest.raises(TableError, match=what):
            list(read(line, True))


def test_the_table_says_nothing_twice() -> None:
    lines = list(table())
    twice = {str(d) for d in lines if lines.count(d) > 1}
    # For all operands alike, and for the one operand of these.
    assert twice <= {str(d) for d in lines if d.gives in ("symmetric", "constant", "nonnegative", "integral", "finite")}
    assert is_test("== 0.0") and not is_test("positive")
