"""The formal checker: right rules are proved, wrong ones and mutants never are. The books: `test_verdicts.py`."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import pytest
from mutants import mutants, turned
from rule_fixtures import bad, good

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import var
from relax_eg.ops import api as op
from relax_eg.rules import Rule, RuleSet, default
from relax_eg.rules.checking.check import check
from relax_eg.rules.verify_formal.compose import Composer
from relax_eg.rules.verify_formal.guards import (
    Deadline,
    GuardLiteral,
    KnownGuards,
    at_least,
    not_zero,
    simplified,
    zero,
)
from relax_eg.rules.verify_formal.prove import prove_rule
from relax_eg.rules.verify_formal.sums import Factor
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Const, Index, Select, loop

more = RuleSet("more")
wrong = RuleSet("wrong")


def right(shapes: str, **options: Any) -> Any:
    return more.rule(shapes, check=False, **options)


def trap(shapes: str, **options: Any) -> Any:
    return wrong.rule(shapes, check=False, **options)


# --- the books ---


def test_a_rule_takes_little_time() -> None:
    proofs = [prove_rule(r) for r in list(default - "library")[::20]]
    assert sorted(p.seconds for p in proofs)[len(proofs) // 2] < 0.3


# --- what is right and within reach ---

REACHED = (
    "associates", "distributes", "distributes_reversed", "trace_of_product", "transpose_of_product",
    "transpose_of_transpose", "exp_of_transpose", "sum_of_double", "max_of_negatives", "sum_of_flat", "int_distributes",
    "merge_parallel", "slice_of_concat", "rows_taken_first", "softmax_of_shifted", "quotient_of_rows", "max_of_relu",
)  # fmt: skip

# Identities of arithmetic that the prover takes for true.
RESTATED = ("max_of_negatives", "square_of_difference", "all_of_both")


@pytest.mark.parametrize("name", REACHED)
def test_good_rules_are_proved(name: str) -> None:
    assert prove_rule(good[name]).status == ("axiom" if name in RESTATED else "proved")


@right("x: m n", numerics="exact")
def reshape_round_trip(x: Any) -> Any:
    m, n = x.shape
    return op.reshape(op.reshape(x, (m * n,)), (m, n)), x


@right("x: m n p", numerics="exact")
def reshape_of_reshape(x: Any) -> Any:
    m, n, p = x.shape
    return op.reshape(op.reshape(x, (m * n, p)), (m * n * p,)), op.reshape(x, (m * n * p,))


@right("x: n, y: m")
def sum_of_concat(x: Any, y: Any) -> Any:
    return op.sum(op.concat([x, y])), op.sum(x) + op.sum(y)


@right("x: n, y: m", numerics="exact")
def exp_of_concat(x: Any, y: Any) -> Any:
    return op.exp(op.concat([x, y])), op.concat([op.exp(x), op.exp(y)])


@right("a: m k, c: m l, b: k n, d: l n")
def blocks_contracted(a: Any, c: Any, b: Any, d: Any) -> Any:
    return op.concat([a, c], 1) @ op.concat([b, d], 0), a @ b + c @ d


@right("x: n", when="n >= 1")
def sum_of_pad(x: Any) -> Any:
    return op.sum(op.pad(x, [(1, 2)], 0.0)), op.sum(x)


@right("x: n", numerics="exact")
def flip_of_flip(x: Any) -> Any:
    return op.flip(op.flip(x, (0,)), (0,)), x


@right("x: n")
def sum_of_flip(x: Any) -> Any:
    return op.sum(op.flip(x, (0,))), op.sum(x)


@right("x: m n")
def row_means_scaled(x: Any) -> Any:
    return op.mean(x * 2.0, 1), op.mean(x, 1) * 2.0


@right("x: *b n")
def standardized(x: Any) -> Any:
    centred = x - op.mean(x, -1, keepdims=True)
    spread = op.mean(op.square(centred), -1, keepdims=True) + 1e-5
    return centred / op.sqrt(spread), centred * op.rsqrt(spread)


@right("x: b s h k, w: h k d")
def heads_merged(x: Any, w: Any) -> Any:
    b, s, h, k = x.shape
    heads = op.permute_dims(op.permute_dims(x, (0, 2, 1, 3)) @ w, (0, 2, 1, 3))
    return op.reshape(x, (b, s, h * k)) @ op.reshape(w, (h * k, w.shape[2])), op.sum(heads, 2)


@right("x: n", numerics="exact")
def triangle_twice(x: Any) -> Any:
    square = op.broadcast_to(x, (x.shape[0], x.shape[0]))
    return op.tril(op.tril(square, 1), 0), op.tril(square, 0)


@pytest.mark.parametrize("rule", list(more), ids=lambda r: r.name)
def test_more_rules_are_proved(rule: Rule) -> None:
    assert check(rule).status == "tested"
    proof = prove_rule(rule)
    assert proof.status == ("axiom" if rule.name in RESTATED else "proved"), str(proof)


# --- what is wrong ---


@more.rule("a: *b n, c: *b 1", check=False)
def shift_out_of_maximum_of_nothing(a: Any, c: Any) -> Any:
    return op.max(a + c, a.ndim - 1), op.max(a, a.ndim - 1) + op.squeeze(c, a.ndim - 1)


@more.rule("h: m n, v: n k", when="n >= 1", numerics="exact", check=False)
def place_in_its_axis(h: Any, v: Any) -> Any:
    return op.take(v, op.argmax(h), 0, mode="clip"), op.take(v, op.argmax(h), 0, mode="promise")


@more.rule("x: n k, i: p q @ int32", numerics="exact", check=False)
def promise_in_another_order(x: Any, i: Any) -> Any:
    left = op.take(x, i, 0, mode="promise")
    return left, op.permute_dims(op.take(x, i.T, 0, mode="promise"), (1, 0, 2))


@more.rule("x: n, y: n", numerics="exact", check=False)
def square_of_difference(x: Any, y: Any) -> Any:
    return op.square(x - y), op.square(y - x)


@more.rule("x: *b n", when="n >= 1", check=False)
def increasing_functions_of_extremes(x: Any) -> Any:
    return op.min(op.tanh(x), x.ndim - 1), op.tanh(op.min(x, x.ndim - 1))


@more.rule("x: *b n", when=("sorted(x)", "n >= 1"), check=False)
def range_of_sorted(x: Any) -> Any:
    last = x.ndim - 1
    ends = [op.take(x, i, last, mode="clip") for i in (op.dim_value(x.shape[-1]) - 1, op.full((), 0, "int32"))]
    return op.max(x, last) - op.min(x, last), ends[0] - ends[1]


@more.rule("x: m n k", when=("m >= 1", "n >= 1", "k >= 1"), check=False)
def minimum_over_merged_axes(x: Any) -> Any:
    m, n, k = x.shape
    return op.min(op.reshape(x, (m * n * k,))), op.min(op.min(x, 2))


@more.rule("x: *b n, s:", when=("nonnegative(s)", "n >= 1"), check=False)
def minimum_of_scaled(x: Any, s: Any) -> Any:
    return op.min(s * x * 2.0, x.ndim - 1), s * op.min(x, x.ndim - 1) * 2.0


@more.rule("a: *b m, c: *b n", when=("m >= 1", "n >= 1"), check=False)
def least_of_joined(a: Any, c: Any) -> Any:
    last = a.ndim - 1
    return op.min(op.concat([a, c], last), last), op.minimum(op.min(c, last), op.min(a, last))


@more.rule("a: *b m, c: *b n", check=False)
def least_of_joined_that_may_be_empty(a: Any, c: Any) -> Any:
    last = a.ndim - 1
    return op.min(op.concat([a, c], last), last) + 1.0, 1.0 + op.minimum(op.min(c, last), op.min(a, last))


@more.rule("a: m n, b: p q", when=("p >= 1", "n >= 1"), check=False)
def sum_of_digits_that_do_not_line_up(a: Any, b: Any) -> Any:
    (m, n), (p, q) = a.shape, b.shape
    outer = op.expand_dims(a, (1, 3)) * op.expand_dims(b.T, (0, 2))
    return op.sum(op.reshape(outer, (m * p, n * q))), op.sum(a) * op.sum(b)


@more.rule("c: m n @ bool, d: m n @ bool", numerics="exact", check=False)
def all_of_both(c: Any, d: Any) -> Any:
    return op.all(op.logical_and(c, d), 1), op.logical_and(op.all(d, 1), op.all(c, 1))


@trap("a: *b n, c: *b n", numerics="exact")
def maxima_by_bits(a: Any, c: Any) -> Any:
    """Of zeros of either sign, another may be the last."""
    last = a.ndim - 1
    return op.max(op.maximum(a, c), last), op.maximum(op.max(a, last), op.max(c, last))


@trap("a: m n, c: m n", numerics="exact")
def any_of_and(a: Any, c: Any) -> Any:
    x, y = op.greater(a, 0.0), op.greater(c, 0.0)
    return op.logical_and(op.any(x, 1), op.any(y, 1)), op.any(op.logical_and(x, y), 1)


@trap("a: m, c: n")
def max_of_concat_of_nothing(a: Any, c: Any) -> Any:
    return op.max(op.concat([a, c], 0)) * 0.0, op.maximum(op.max(a), op.max(c)) * 0.0 + 0.0 * op.max(a)


@trap("x: m, y:", sizes="n")
def maximum_of_nothing_left_out(x: Any, y: Any, n: Any) -> Any:
    """Where n is 0 the left side is y."""
    return op.maximum(op.max(op.broadcast_to(x, (n, *x.shape)), 0), y), op.maximum(x, y)


@trap("a: n k, b: k n")
def digits_in_another_order(a: Any, b: Any) -> Any:
    n, k = a.shape
    return op.sum(op.reshape(a, (k, n)) * b), op.sum(a * b.T)


@trap("x: n, c: n @ bool")
def infinity_negated(x: Any, c: Any) -> Any:
    return -op.where(c, x, -math.inf), op.where(c, -x, -math.inf)


@trap("x: n, c: n @ bool")
def infinity_cancelled(x: Any, c: Any) -> Any:
    return op.where(c, x, -math.inf) - math.inf * x, op.where(c, x - math.inf * x, -math.inf)


@trap("x: m n @ int32", when="n >= 1")
def least_integer_negated(x: Any) -> Any:
    return op.max(-x, 1), -op.min(x, 1)


@trap("x: *b, s:, t:, u:", numerics="exact")
def clipped_by_others(x: Any, s: Any, t: Any, u: Any) -> Any:
    return op.clip(op.clip(x, s, t), s, u), op.clip(x, s, t)


@trap("x: *b")
def fourth_root(x: Any) -> Any:
    return op.power(x, 0.25), op.sqrt(x)


@trap("x: *b")
def inverse_of_inverse(x: Any) -> Any:
    return 1.0 / (1.0 / x), x


@trap("x: *b")
def inverse_of_inverse_tainted(x: Any) -> Any:
    twice = 1.0 / (1.0 / x)
    return twice, twice + 0.0 * (1.0 / x)


@trap("x: n")
def maximum_cancels(x: Any) -> Any:
    return op.exp(op.max(x)), op.exp(op.max(x) + op.max(x) - op.max(x))


@trap("a: *b, b: *b, c: *b, d: *b")
def product_of_differences_expanded(a: Any, b: Any, c: Any, d: Any) -> Any:
    return (a - b) * (c - d), a * c - a * d - b * c + b * d


@trap("x: n")
def sum_by_difference_of_running_sums(x: Any) -> Any:
    running = op.cumsum(op.concat([x, x]), 0)
    n = x.shape[0]
    return op.cumsum(x, 0), running[n:] - op.broadcast_to(op.sum(x), (n,))


@trap("a: m k, b: k n")
def precision_lowered(a: Any, b: Any) -> Any:
    return op.matmul(a, b, precision="highest"), op.matmul(a, b)


@trap("a: m k @ bfloat16, b: k n @ bfloat16")
def accumulator_narrowed(a: Any, b: Any) -> Any:
    return op.matmul(a, b, out_dtype="float32"), op.astype(a @ b, "float32")


@trap("x: *b @ int32")
def successor_is_greater(x: Any) -> Any:
    return op.less(x, x + 1), op.equal(x, x)


@trap("x: *b @ int32")
def cast_of_sum(x: Any) -> Any:
    return op.astype(x + x, "int64"), op.astype(x, "int64") + op.astype(x, "int64")


@trap("x: n, i: r @ int32")
def promised_without_reason(x: Any, i: Any) -> Any:
    return op.take(x, i, 0, mode="clip"), op.take(x, i, 0, mode="promise")


@trap("x: n", sizes="i j")
def slice_too_long(x: Any, i: Any, j: Any) -> Any:
    return x[i:j] * 0.0, (x[i + 1 : j + 1]) * 0.0


@trap("x: *b, y: *b", numerics="exact")
def less_is_not_greater_equal(x: Any, y: Any) -> Any:
    return op.less(x, y), op.logical_not(op.greater_equal(x, y))


@trap("x: *b, y: *b", numerics="exact")
def maximum_commutes_over_nan(x: Any, y: Any) -> Any:
    return op.where(op.less(x, y), y, x), op.maximum(x, y)


@trap("x: *b", numerics="exact")
def zero_minus(x: Any) -> Any:
    return 0.0 - x, -x


@trap("x: n")
def mean_of_nothing(x: Any) -> Any:
    return op.mean(x) * 0.0, op.sum(x) * 0.0


@trap("x: *b n")
def softmax_shifted_by_the_sum(x: Any) -> Any:
    return op.softmax(x), op.softmax(x - op.sum(x, -1, keepdims=True))


@trap("x: m n")
def columns_counted_as_rows(x: Any) -> Any:
    return op.mean(x), op.sum(x) / op.dim_value(x.shape[0], x.dtype)


@trap("a: n, c: n")
def maxima_of_nothing_cancel(a: Any, c: Any) -> Any:
    """-inf + inf is NaN, and a maximum over nothing is -inf."""
    return op.max(a) - op.max(c), op.max(a - op.max(c))


@trap("a: n, c: m")
def maxima_of_other_axes(a: Any, c: Any) -> Any:
    return op.max(a) - op.min(c), op.max(a) + op.max(-c) + 0.0 * op.max(a)


@trap("a: n")
def product_with_a_maximum_of_nothing(a: Any) -> Any:
    return op.max(a) * 0.0, op.sum(a) * 0.0


@trap("a: m k, h: m n", when="n >= 1", numerics="exact")
def place_in_another_axis(a: Any, h: Any) -> Any:
    """Places among n are promised to be among m."""
    return op.take(a, op.argmax(h), 0, mode="clip"), op.take(a, op.argmax(h), 0, mode="promise")


@trap("x: n k, i: m @ int32", when="n >= 1", numerics="exact")
def numbers_promised(x: Any, i: Any) -> Any:
    return op.take(x, i + i, 0, mode="clip"), op.take(x, i + i, 0, mode="promise")


@trap("x: n, s:", when="n >= 1")
def maximum_of_scaled_by_any_sign(x: Any, s: Any) -> Any:
    return op.max(s * x), s * op.max(x)


@trap("x: n, s: n", when=("nonnegative(s)", "n >= 1"))
def maximum_scaled_within(x: Any, s: Any) -> Any:
    return op.max(s * x), op.max(s) * op.max(x)


@trap("x: n", when="n >= 1")
def decreasing_function_of_maximum(x: Any) -> Any:
    return op.max(op.exp(-x)), op.exp(-op.max(x))


@trap("x: n", when="n >= 1")
def cosine_of_maximum(x: Any) -> Any:
    return op.max(op.cos(x)), op.cos(op.max(x))


@trap("x: n m", when=("sorted(x)", "n >= 1", "m >= 1"))
def maximum_along_what_is_not_sorted(x: Any) -> Any:
    return op.max(x, 0), op.reshape(op.strided_slice(x, (0, 0), (1, x.shape[1])), (x.shape[1],))


@trap("x: n", when=("sorted(x)", "n >= 1"))
def least_of_sorted_at_the_end(x: Any) -> Any:
    return op.min(x), op.max(x)


@trap("x: m n", when=("m >= 1", "n >= 1"))
def merged_over_one_axis(x: Any) -> Any:
    m, n = x.shape
    return op.max(op.reshape(x, (m * n,))), op.max(op.strided_slice(x, (0, 0), (1, n)))


@trap("x: n")
def triangle_off_by_one(x: Any) -> Any:
    square = op.broadcast_to(x, (x.shape[0], x.shape[0]))
    return op.tril(square, 0), op.tril(square, 1)


@trap("x: m n")
def reshape_is_transpose(x: Any) -> Any:
    m, n = x.shape
    return op.reshape(x, (n, m)), x.T


@pytest.mark.parametrize("rule", [*bad, *wrong], ids=lambda r: r.name)
def test_wrong_rules_are_not_proved(rule: Rule) -> None:
    proof = prove_rule(rule)
    assert proof.status == "unknown", str(proof)
    assert proof.reason


@pytest.mark.parametrize(("one_in", "most"), [(45, 0.8), pytest.param(9, 0.4, marks=pytest.mark.slow)])
def test_mutants_are_proved_only_where_right(one_in: int, most: float) -> None:
    sides = [side for r in (*default, *good, *more) for side in (r, turned(r))]
    chosen = [m for side in sides[::3] for m in mutants(side)][::one_in]
    assert len(chosen) >= 594 // one_in
    proved = [m for m in chosen if prove_rule(m, 5.0).status != "unknown"]
    assert [m.name for m in proved if check(m).status == "refuted"] == []
    assert len(proved) < most * len(chosen)


# --- parts ---


def test_blocks_of_any_rank() -> None:
    assert prove_rule(good["distributes"]).ranks == "all"
    assert prove_rule(good["exp_of_transpose"]).ranks == "0 to 3"
    assert prove_rule(good["associates"]).ranks == ""

    book = RuleSet("book")

    @book.rule("x: *b n", check=False)
    def sum_of_all(x: Any) -> Any:
        return op.sum(x * 2.0), op.sum(x) * 2.0

    proof = prove_rule(book["sum_of_all"])
    assert (proof.status, proof.ranks) == ("proved", "0 to 2")


def test_sizes_by_cases_are_known_of() -> None:
    facts = KnownGuards([at_least(Dim.of("n - 1")), at_least(Dim.of("m - n"))], Deadline(time.thread_time() + 60))
    assert facts.entails(at_least(Dim.of("select(n <= m + 3, 5, k) - 5")))
    assert not facts.entails(at_least(Dim.of("select(n <= m - 3, 5, k) - 5")))
    assert simplified(Dim.of("select(n <= m, n, m)"), facts, frozenset()) is Dim.var("n")


def test_a_quotient_by_what_may_be_zero_may_be_anything() -> None:
    deadline = Deadline(time.thread_time() + 60)
    quotient = Dim.of("(n*m)//m")
    facts = KnownGuards([at_least(Dim.of("n")), at_least(Dim.of("m"))], deadline)
    assert not facts.entails(at_least(quotient))
    assert not facts.impossible([at_least(-quotient - 1)])
    assert simplified(quotient, facts, frozenset()) is quotient
    more = frozenset({not_zero(Dim.of("m"))})
    assert facts.entails(zero(quotient - Dim.of("n")), more)
    assert simplified(quotient, facts, more) is Dim.var("n")
    # A fact about such a quotient does not say that the divisor differs from zero.
    about = KnownGuards([*facts.known, at_least(quotient - 1)], deadline)
    assert not about.entails(at_least(Dim.of("m - 1")))
    assert about.entails(at_least(quotient))


def test_variables_of_guards_are_any_integers() -> None:
    facts = KnownGuards([], Deadline(time.thread_time() + 60))
    assert not facts.entails(at_least(Dim.of("n")))
    assert facts.entails(at_least(Dim.of("n*n")))
    assert facts.impossible([at_least(Dim.of("n - 2")), at_least(Dim.of("1 - n"))])


def test_sums_under_guards_are_weighed() -> None:
    facts = KnownGuards([at_least(Dim.of("n"))], Deadline(time.thread_time() + 60))
    one, small = Dim.of(1), at_least(Dim.of("4 - n"))
    truth = GuardLiteral("true", Dim.of(0), Factor("read", "mask"))
    for guard in (small, truth):
        both = [(Fraction(1, 2), one, frozenset({guard})), (Fraction(1, 2), one, frozenset({guard.negated()}))]
        assert facts.sum_is("==", [*both, (Fraction(-1, 2), one, frozenset())])
        assert not facts.sum_is("==", [both[0], (Fraction(-1, 2), one, frozenset())])
        assert facts.sum_is(">=", both)
    assert facts.sum_is(">=", [(Fraction(1), Dim.of("n - 4"), frozenset({small.negated()}))])
    assert not facts.sum_is(">=", [(Fraction(1), Dim.of("n - 4"), frozenset({small}))])


def test_time_is_limited() -> None:
    proof = prove_rule(default["matmul_merge_three"], 0.001)
    assert proof.status == "unknown"
    assert "out of time" in proof.reason


def test_the_proof_is_told() -> None:
    assert str(prove_rule(good["associates"])) == "associates: proved (real, 4 instances)"
    assert str(prove_rule(bad["axis_confused"])).startswith("axis_confused: unknown (not shown equal: ")


def test_a_choice_is_decided_only_where_positions_cannot_be_negative() -> None:
    """Normalization replaces i by w + 3, where w may be negative: then w < 0 is open, which i < 0 is not."""
    composer = Composer()
    x = var("x", Tensor("n"))
    i = loop("i0")
    composer.element(x, (i,))
    (name,) = i.variables
    less = Apply("less", (Index(i - 3, "int64"), Const(0, "int64")))
    below = Select(less, Const(1, "int32"), Const(2, "int32"))
    assert composer.renamed(below, {name: i + 3}) == Const(2, "int32")
    assert isinstance(composer.renamed(below, {name: loop("w") + 3}), Select)
    assert isinstance(composer.renamed(below, {}), Select)
