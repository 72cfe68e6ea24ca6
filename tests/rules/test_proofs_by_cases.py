"""Proofs by cases of conditions: exponentials and logarithms, sorts, scatters, counts, floats that are only compared.
What is wrong by a case, or loses accuracy in one, is not proved."""

from __future__ import annotations

from typing import Any

import pytest

from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules import Rule, RuleSet
from relax_eg.rules.checking.check import check
from relax_eg.rules.verify_formal.prove import prove_rule

right = RuleSet("right")
wrong = RuleSet("wrong")


def good(shapes: str, **options: Any) -> Any:
    return right.rule(shapes, check=False, **options)


def bad(shapes: str, **options: Any) -> Any:
    return wrong.rule(shapes, check=False, **options)


def _softplus(x: Any) -> Any:
    return op.maximum(x, 0.0) + op.log1p(op.exp(-op.abs(x)))


def _scattered(x: Any, i: Any, u: Any, mode: str) -> Any:
    attrs = {"kind": "add", "mode": mode, "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,)}
    return call("scatter", (x, i, u), attrs)


# --- exponentials and logarithms ---


@good("x: *b")
def softplus_minus_itself(x: Any) -> Any:
    return op.exp(-_softplus(x)), op.where(op.less(x, 0.0), 1.0, op.exp(-op.abs(x))) / (1.0 + op.exp(-op.abs(x)))


@good("x: *b, y: *b")
def infinity_that_is_no_number(x: Any, y: Any) -> Any:
    return op.exp(op.where(op.greater(x, 0.0), y, float("-inf"))), op.where(op.greater(x, 0.0), op.exp(y), 0.0)


@good("x: *b, y: *b", when="nonnegative(x)")
def powers_of_what_may_be_zero(x: Any, y: Any) -> Any:
    root = op.exp(0.5 * y)
    return op.exp(op.log(x) + y), op.where(op.equal(x, 0.0), 0.0, (x * root) * root)


@bad("x: *b, y: *b")
def powers_of_negative_numbers(x: Any, y: Any) -> Any:
    root = op.exp(0.5 * y)
    return op.exp(op.log(x) + y), op.where(op.equal(x, 0.0), 0.0, (x * root) * root)


@bad("x: *b, y: *b", when="nonnegative(x)")
def powers_that_overflow(x: Any, y: Any) -> Any:
    return op.exp(op.log(x) + y), op.where(op.equal(x, 0.0), 0.0, x * op.exp(y))


@bad("x: *b, y: *b", when="nonnegative(x)")
def powers_that_overflow_at_zero(x: Any, y: Any) -> Any:
    root = op.exp(0.5 * y)
    return op.exp(op.log(x) + y), (x * root) * root


@bad("x: *b, y: *b")
def quotient_of_powers(x: Any, y: Any) -> Any:
    return op.exp(x - y), op.exp(x) / op.exp(y)


@bad("x: *b, y: *b, z: *b")
def sum_that_only_an_exponent_has(x: Any, y: Any, z: Any) -> Any:
    return op.exp(x + y) * z * (x - x * x / x + 1.0), op.exp(x + y) * z * ((x + y) - y - x + 1.0)


@bad("x: *b")
def softplus_of_other_sign(x: Any) -> Any:
    return op.exp(-_softplus(x)), op.where(op.less(x, 0.0), op.exp(-op.abs(x)), 1.0) / (1.0 + op.exp(-op.abs(x)))


@bad("x: *b, y: *b")
def infinity_of_other_sign(x: Any, y: Any) -> Any:
    return op.exp(op.where(op.greater(x, 0.0), y, float("inf"))), op.where(op.greater(x, 0.0), op.exp(y), 0.0)


# --- floats that are compared ---


@good("x: *b, y: *b, s:, t:", numerics="exact")
def choice_of_the_other(x: Any, y: Any, s: Any, t: Any) -> Any:
    return op.where(op.less(x, y), s, op.where(op.greater_equal(x, y), t, s)), op.where(op.less_equal(y, x), t, s)


@bad("x: *b, y: *b", numerics="exact")
def maximum_that_loses_a_missing_number(x: Any, y: Any) -> Any:
    return op.maximum(x, y), op.where(op.greater(x, y), x, y)


@bad("x: *b, y: *b, s:, t:", numerics="exact")
def choice_that_loses_a_missing_number(x: Any, y: Any, s: Any, t: Any) -> Any:
    return op.where(op.less(x, y), s, t), op.where(op.greater_equal(x, y), t, s)


@bad("x: *b", numerics="exact")
def negated_difference_of_zeros(x: Any) -> Any:
    return op.where(op.equal(x, 0.0), x, 0.0), op.where(op.equal(x, 0.0), -x, 0.0)


@bad("x: *b", numerics="exact")
def power_that_libraries_round(x: Any) -> Any:
    y = op.where(op.less(x, 0.0), 1.0, 2.0)
    return op.exp(y), op.where(op.less(x, 0.0), 2.7182817459106445, 7.389056205749512)


@good("x: *b, y: *b", numerics="exact")
def comparisons_of_floats(x: Any, y: Any) -> Any:
    return op.logical_or(op.less(x, y), op.equal(x, y)), op.greater_equal(y, x)


# --- sorts ---


@good("x: *b n, c: *b 1 @ bool, v:")
def sort_of_rows_with_a_number(x: Any, c: Any, v: Any) -> Any:
    c, v = op.broadcast_to(c, x.shape), op.broadcast_to(v, x.shape)
    return op.sort(op.where(c, x, v)), op.where(c, op.sort(x), v)


@good("x: *b 1", numerics="exact")
def sort_of_one_number(x: Any) -> Any:
    return op.sort(x), x


@bad("x: *b n, c: *b n @ bool, v:")
def sort_of_elements_with_a_number(x: Any, c: Any, v: Any) -> Any:
    v = op.broadcast_to(v, x.shape)
    return op.sort(op.where(c, x, v)), op.where(c, op.sort(x), v)


@bad("x: *b 2", numerics="exact")
def sort_of_two_numbers(x: Any) -> Any:
    return op.sort(x), x


@bad("x: n, y: n @ int32")
def places_sorted_by_themselves(x: Any, y: Any) -> Any:
    from relax_eg.ir.expr import tuple_get

    return tuple_get(call("sort", (x, y), {"axis": 0}), 1), op.sort(y)


# --- scatters ---


@good("x: n, i: m 1 @ int32, u: m, v: m")
def scattered_at_once(x: Any, i: Any, u: Any, v: Any) -> Any:
    return _scattered(_scattered(x, i, u, "clip"), i, v, "clip"), _scattered(x, i, u + v, "clip")


@bad("x: n, i: m 1 @ int32, u: m", when="n >= 1")
def scattered_out_of_range(x: Any, i: Any, u: Any) -> Any:
    return _scattered(x, i, u, "clip"), _scattered(x, i, u, "fill")


@bad("i: 1 @ int32, u:", sizes="n")
def scattered_alone_inside(i: Any, u: Any, n: Any) -> Any:
    made = _scattered(op.broadcast_to(0.0, (n,)), i, u, "clip")
    return made, op.where(op.equal(op.iota((n,), 0, "int32"), i), u, 0.0)


# --- counts ---


@good("c: m n @ bool")
def counts_of_rows(c: Any) -> Any:
    number = op.astype(c, "int32")
    return op.astype(op.sum(op.sum(number, 1), 0), "float32"), op.sum(op.astype(number, "float32"), (0, 1))


@bad("x: n @ int32")
def sum_of_integers_that_wrap(x: Any) -> Any:
    return op.astype(op.sum(x, 0), "float32"), op.sum(op.astype(x, "float32"), 0)


@bad("c: n @ bool")
def counts_that_wrap(c: Any) -> Any:
    return op.astype(op.sum(op.astype(c, "int8"), 0), "float32"), op.sum(op.astype(c, "float32"), 0)


@bad("x: m n")
def centred_by_another_number(x: Any) -> Any:
    count = op.dim_value(x.shape[0], "float32")
    return op.sum(x - op.sum(x, (0, 1)) / count, (0, 1)), op.full((), 0.0, "float32")


@bad("x: n, y: n, s:")
def any_that_differs(x: Any, y: Any, s: Any) -> Any:
    return op.where(op.any(op.not_equal(x, y), 0), s, 0.0), op.where(op.any(op.not_equal(x, x), 0), s, 0.0)


@pytest.mark.parametrize("rule", list(right), ids=lambda r: r.name)
def test_cases_are_proved(rule: Rule) -> None:
    assert check(rule).status == "tested"
    found = prove_rule(rule)
    assert found.status == "proved", found.reason


@pytest.mark.parametrize("rule", list(wrong), ids=lambda r: r.name)
def test_a_wrong_case_is_not_proved(rule: Rule) -> None:
    assert prove_rule(rule).status == "unknown"
