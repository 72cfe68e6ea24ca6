"""Rules behind facts: proved or tested under them, wrong without any one; and traps that facts do not excuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from relax_eg.ops import api as op
from relax_eg.rules import Rule, RuleSet, systems, values
from relax_eg.rules.book.systems import eye, solved
from relax_eg.rules.checking.certificates import status
from relax_eg.rules.checking.check import check
from relax_eg.rules.verify_formal.prove import prove_rule

BEHIND_FACTS = [r for r in (*values, *systems) if r.when]
# Sorting and linear algebra have no index equations; what else is left is an order, or a maximum that a factor enters.
_OUT_OF_REACH = {
    "log_of_power", "sort_of_sorted", "max_of_sorted", "min_of_sorted",
}  # fmt: skip
# By the laws of matrices, which say nothing of accuracy: rules that claim it are tested.
_BY_LAWS = {
    "diagonal_plus_low_rank",
}  # fmt: skip


def test_the_books() -> None:
    assert len(values) + len(systems) >= 30
    assert len(BEHIND_FACTS) >= 25
    assert all(r.doc and r.tags for r in (*values, *systems))
    assert sum(r.numerics != "approximate" for r in BEHIND_FACTS) >= 20


def test_values_are_proved_under_their_facts() -> None:
    verdicts = [status(r) for r in values]
    assert {v.status for v in verdicts} == {"proved", "axiom", "tested"}
    assert {v.rule.name for v in verdicts if v.status == "tested"} <= _OUT_OF_REACH
    # What is claimed of bits is shown of bits.
    bits = {v.theory for v in verdicts if v.holds_everywhere and v.rule.numerics == "exact"}
    assert bits == {"exact"}


def test_systems_are_proved_by_the_laws_of_matrices() -> None:
    assert {r.name for r in systems if status(r).status == "proved"} == _BY_LAWS
    assert {prove_rule(r).theory for r in systems if r.name in _BY_LAWS} == {"real"}


# Conditions without which a rule is as right by the letter of its numerics class, which speaks of finite numbers only;
# and some that say where it is worth it.
_NOT_NEEDED = {
    "min_of_sorted without finite(x)", "quotient_by_constant without is_constant(c)",
}  # fmt: skip


@pytest.mark.parametrize("rule", BEHIND_FACTS, ids=lambda r: r.name)
def test_every_condition_is_needed(rule: Rule) -> None:
    for i, condition in enumerate(rule.when):
        name = f"{rule.name} without {condition}"
        when = (*rule.when[:i], *rule.when[i + 1 :])
        weaker = dataclasses.replace(rule, name=name, when=when, _instances={})
        if name not in _NOT_NEEDED:
            assert check(weaker).status == "refuted", name
            if not rule.tags & {"solve", "cholesky"}:
                assert prove_rule(weaker, 5.0).status == "unknown", name


wrong = RuleSet("wrong")


def trap(shapes: str, **options: Any) -> Any:
    return wrong.rule(shapes, check=False, **options)


@trap("x: *b", when="nonnegative(x)")
def quotient_of_what_may_be_zero(x: Any) -> Any:
    return x / x, op.full(x.shape, 1.0, x.dtype)


@trap("x: *b", when="nonzero(x)", numerics="exact")
def quotient_of_what_may_be_infinite(x: Any) -> Any:
    return x / x, op.full(x.shape, 1.0, x.dtype)


@trap("x: *b", when="nonnegative(x)", numerics="exact")
def abs_of_minus_zero(x: Any) -> Any:
    return op.abs(x), x


@trap("x: *b", when="positive(x)", numerics="exact")
def nan_is_not_greater(x: Any) -> Any:
    return op.greater(x, 0.0), op.full(x.shape, True, "bool")


@trap("x: *b", when="positive(x)")
def logarithm_of_sum(x: Any) -> Any:
    return op.log(x + 1.0), op.log(x) + op.log(x * 0.0 + 1.0)


@trap("x: *b, y: *b", when=("positive(x)", "positive(y)"))
def root_of_sum(x: Any, y: Any) -> Any:
    return op.sqrt(x + y), op.sqrt(x) + op.sqrt(y)


@trap("x: *b", when="finite(x)")
def root_loses_sign(x: Any) -> Any:
    return op.sqrt(x * x), x


@trap("x: *b", when="integral(x)")
def half_of_a_whole(x: Any) -> Any:
    return op.floor(x * 0.5), x * 0.5


@trap("x: *b n", when=("sorted(x)", "n >= 1"))
def minimum_is_last(x: Any) -> Any:
    n = x.shape[-1]
    last = op.strided_slice(x, (*(0,) * (x.ndim - 1), n - 1), x.shape)
    return op.min(x, x.ndim - 1), op.squeeze(last, x.ndim - 1)


@trap("x: m n", when="sorted(x)")
def sorted_along_the_other_axis(x: Any) -> Any:
    return op.sort(x, 0), x


@trap("x: n n", when="symmetric(x)")
def triangle_of_symmetric(x: Any) -> Any:
    return op.tril(x), x


@trap("x: n n", when="upper triangular(x)")
def wrong_triangle(x: Any) -> Any:
    return op.tril(x), x


@trap("a: n n, b: n n", when=("symmetric(a)", "symmetric(b)"))
def product_of_symmetric(a: Any, b: Any) -> Any:
    return (a @ b).T, a @ b


@trap("d: n n, a: n p", when="lower triangular(d)")
def triangular_is_not_diagonal(d: Any, a: Any) -> Any:
    return d @ a, op.sum(d, 1, keepdims=True) * a


@trap("h: m n, w: n p", when=("one-hot(h)", "n >= 1"))
def one_hot_along_the_other_axis(h: Any, w: Any) -> Any:
    return h @ w, op.take(w, op.argmin(h), 0, mode="clip")


@trap("a: n n, b: n", when="symmetric(a)")
def solve_symmetric(a: Any, b: Any) -> Any:
    factor = op.cholesky(a)
    half = op.triangular_solve(factor, op.expand_dims(b, 1), lower=True)
    return solved(a, b), op.squeeze(op.triangular_solve(factor, half, lower=True, transpose_a=True), 1)


@trap("a: n n, b: n", when=("lower triangular(a)", "invertible(a)"))
def solve_the_wrong_triangle(a: Any, b: Any) -> Any:
    return solved(a, b), op.squeeze(op.triangular_solve(a, op.expand_dims(b, 1)), 1)


def solved_columns(a: Any, b: Any) -> Any:
    """The solution of a x = b for a matrix b."""
    factors, _, order = op.lu(a)
    half = op.triangular_solve(factors, op.take(b, order, 0, mode="clip"), lower=True, unit_diagonal=True)
    return op.triangular_solve(factors, half)


def inverse(a: Any) -> Any:
    return solved_columns(a, eye(a.shape[0], a.dtype))


@trap("a: n n, b: n k", when="invertible(a)", numerics="approximate")
def solve_transposed(a: Any, b: Any) -> Any:
    return inverse(a.T) @ b, solved_columns(a, b)


@trap("a: n n", when="invertible(a)", numerics="approximate")
def inverse_is_transpose(a: Any) -> Any:
    return inverse(a), a.T


@trap("a: m n, s:, y: m", when="positive(s)", numerics="approximate")
def ridge_scaled_twice(a: Any, s: Any, y: Any) -> Any:
    m, n = a.shape
    left = solved(a.T @ a + s * eye(n, a.dtype), a.T @ y)
    return left, a.T @ solved(a @ a.T + s * s * eye(m, a.dtype), y)


@trap("a: n n, u: n k, b: n", when=("diagonal(a)", "positive definite(a)"), numerics="approximate")
def low_rank_part_left_out(a: Any, u: Any, b: Any) -> Any:
    d = op.sum(a, 1)
    return solved(a + u @ u.T, b), b / d - u @ (u.T @ (b / d))


@trap("x: *b, c:", when="c != 0")
def quotient_by_one(x: Any, c: Any) -> Any:
    return x / c, x


@pytest.mark.parametrize("rule", list(wrong), ids=lambda r: r.name)
def test_traps_are_refuted_and_never_proved(rule: Rule) -> None:
    verdict = check(rule)
    assert verdict.status == "refuted", str(rule)
    assert verdict.counterexample is not None
    assert verdict.counterexample.holds()
    assert prove_rule(rule, 5.0).status == "unknown"


def test_tests_of_constants_are_hypotheses() -> None:
    book = RuleSet("book")
    book.rule("x: *b, c:", when="c == 1", name="by_one", check=False)(lambda x, c: (x / c, x))
    book.rule("x: *b, c:", when="c >= 1", name="at_least_one", check=False)(lambda x, c: (x / c, x))
    assert [check(r).status for r in book] == ["tested", "refuted"]
