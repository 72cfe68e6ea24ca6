"""Registration lets no wrong rule in by luck: what is enumerated, what is untested, and what then runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from lucky_rules import WRONG, register

import relax_eg as rx
from relax_eg.errors import RuleError
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr, evaluate_points
from relax_eg.rules import RuleSet, default
from relax_eg.rules.checking.check import check
from relax_eg.rules.checking.enumeration import special_points, special_values, values_near
from relax_eg.rules.checking.judge import prepare_sides
from relax_eg.rules.checking.literals import literals
from relax_eg.rules.checking.samples import draw_sizes, draw_under_guards, moderate
from relax_eg.rules.checking.suspects import sizes_near
from relax_eg.rules.checking.verification import verify
from relax_eg.rules.rule import instances

NAMES = 40  # under which each wrong rule is registered: draws go by the name


def test_there_are_sixty() -> None:
    assert len(WRONG) >= 60


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_refused(name: str) -> None:
    with pytest.raises(RuleError, match=f"rule `{name}` is refuted"):
        register(name, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_refused_under_every_name(name: str) -> None:
    for k in range(NAMES):
        with pytest.raises(RuleError, match="is refuted"):
            register(name, f"{name}_{k}")


def right(shapes: str, function: Any, **options: Any) -> RuleSet:
    book = RuleSet("mine")
    book.rule(shapes, name="mine", numerics="exact", **options)(function)
    return book


def test_right_rules_on_special_values_are_accepted() -> None:
    # With denormals, a difference is 0 of equals only.
    right("x: *b, y: *b", lambda x, y: (op.less(x - y, 0.0), op.less(x, y)))
    right("x: *b, y: *b", lambda x, y: (x + y, y + x))
    right("x: *b", lambda x: (op.abs(op.abs(x)), op.abs(x)))
    right("x: *b @ int8", lambda x: (op.bitwise_not(x), -x - 1))
    right("x: *b @ complex64", lambda x: (op.real(op.conj(x)), op.real(x)))


# --- what is enumerated ---


def test_special_values_of_each_kind() -> None:
    floats = special_values("float16").astype(np.float64)
    assert np.isnan(floats).any() and {np.inf, -np.inf, 1.0, -1.0, 65504.0, -65504.0, 2.0**-24} <= set(floats)
    assert {np.signbit(v) for v in floats if v == 0} == {True, False}
    assert special_values("int8").tolist() == [-128, -127, -126, -2, -1, 0, 1, 2, 125, 126, 127]
    assert special_values("uint8").tolist() == [0, 1, 2, 253, 254, 255]
    assert special_values("bool").tolist() == [False, True]
    assert {complex(0, -1), complex(-1, 0)} <= set(special_values("complex64").tolist())
    near = values_near("float32", (30,))
    assert {np.float32(29), np.float32(31), np.nextafter(np.float32(30), np.float32(31))} <= set(near)
    assert values_near("int8", (1000, 5)).tolist() == [4, 5, 6, 7]


def test_every_pair_of_two_variables_is_met() -> None:
    book = RuleSet("book")
    book.rule("x: *b, y: *b", name="sum", check=False)(lambda x, y: (x + y, y + x))
    (instance,) = instances(book["sum"], limit=1, ranks=(0,))
    points = special_points(instance, {}, True, 1 << 20)
    assert points is not None
    met = {(a.tobytes(), b.tobytes()) for a, b in zip(points.values["x"], points.values["y"], strict=True)}
    values = special_values("float32")
    assert {(a.tobytes(), b.tobytes()) for a in values for b in values} <= met


def test_numbers_that_stand_in_a_rule() -> None:
    book = RuleSet("book")
    function = lambda x: (op.where(op.less(op.iota(x.shape), 30), x * 2.5, x), x)  # noqa: E731
    book.rule("x: n", name="cut", check=False)(function)
    (instance,) = instances(book["cut"], limit=1)
    assert {30, 2.5} <= set(literals(instance).numbers)
    assert [s["n"] for s in sizes_near(instance)[0]] == [29, 30, 31, 32]
    assert sizes_near(instance)[1] == ()


def test_many_points_are_evaluated_as_each_is() -> None:
    """Bit for bit, with folds in order."""
    draw, compared = draw_under_guards(moderate), 0
    for rule in list(default - "library")[::7]:
        instance = next(iter(instances(rule, limit=1)))
        rng = np.random.default_rng(0)
        sizes = draw_sizes(instance, rng, 1)[0]
        drawn = [draw(instance, sizes, rng, k) for k in range(3)]
        p = prepare_sides(instance)
        env = {e: np.stack([d[n] for d in drawn]) for n, e in p.params.items()}
        together = evaluate_points((*p.left, *p.right), env, sizes, 3, ordered=True)
        for k, d in enumerate(drawn):
            alone = evaluate_expr(p.both_sides_tuple, {e: d[n] for n, e in p.params.items()}, sizes, ordered=True)
            for a, b in zip(together, alone, strict=True):
                assert np.asarray(a[k]).tobytes() == np.asarray(b).tobytes(), rule
                compared += 1
    assert compared > 150


# --- what cannot be tried ---


def far(x: Any) -> Any:
    return op.where(op.less(op.iota(x.shape), 1_000_000_000), x, 0.0), op.where(op.less(op.iota(x.shape), 0), 0.0, x)


def test_a_size_too_large_to_try_is_told() -> None:
    with pytest.raises(RuleError, match=r"not tested at n = 1,000,000,000, a number that stands in it") as e:
        right("x: n", far)
    assert 'when="n <= 1000"' in str(e.value) and "not proved" in str(e.value)
    right("x: n", far, when="n <= 1000")
    book = RuleSet("mine")
    book.rule("x: n", name="far")(far)
    assert check(book["far"]).untested == "n = 1,000,000,000"
    assert "not tested at n = 1,000,000,000" in str(check(book["far"]))


def test_a_proof_covers_sizes_too_large_to_try() -> None:
    def turned(x: Any) -> Any:
        inside = op.less(op.iota(x.shape), 1_000_000_000)
        return op.where(op.logical_not(inside), 0.0, x), op.where(inside, x, 0.0)

    (verdict,) = verify(right("x: n", turned))
    assert (verdict.status, verdict.untested) == ("proved", "")


# --- what runs is what was tested ---


def test_a_function_that_changes_its_sides_is_refused() -> None:
    calls: list[int] = []

    def changing(x: Any) -> Any:
        calls.append(1)
        return x * 2.0, (x + x if len(calls) == 1 else x * 2.0 + 0.0)

    with pytest.raises(RuleError, match="returns other sides when it is called again for the same arguments"):
        RuleSet("mine").rule("x: n", name="changing")(changing)


class Switch:
    """What a rule's function looks at, and its text does not show."""

    wrong = False


def test_sides_that_change_after_registration_do_not_run() -> None:
    switch = Switch()
    book = RuleSet("mine")

    @book.rule("x: *b, y: *b")
    def doubled(x: Any, y: Any) -> Any:
        return x * 2.0 + y, (x * 3.0 + y if switch.wrong else x + x + y)

    switch.wrong = True
    specs = ["a b c d e"] * 2
    with pytest.raises(RuleError, match=r"rule `doubled`.*\n  left   x \* 2.0 \+ y      right   x \* 3.0 \+ y"):
        rx.optimize(lambda x, y: x * 2.0 + y, *specs, at=dict.fromkeys("abcde", 2), rules=book)
    # At ranks it was tested at, what was tested runs.
    best = rx.optimize(lambda x, y: x * 2.0 + y, "a b", "a b", at={"a": 4, "b": 4}, rules=book)
    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(best(x, x), 3 * x)
    # A verdict in memory is on the sides it was reached on.
    with pytest.raises(RuleError, match="is refuted"):
        RuleSet("mine").rule("x: *b, y: *b", name="doubled")(book["doubled"].function)


# --- what reports say ---


@pytest.fixture
def outer_sum() -> Iterator[RuleSet]:
    book = RuleSet("mine")

    @book.rule("x: m, y: n")
    def sum_of_outer_products(x: Any, y: Any) -> Any:
        return op.sum(op.outer(x, y)), op.sum(x) * op.sum(y)

    yield book


def optimized(book: RuleSet) -> rx.types.Optimized:
    def total(x: Any, y: Any) -> Any:
        return (x[:, None] * y[None, :]).sum()

    return rx.optimize(total, "n", "n", at={"n": 4096}, rules=default - "sum_products" + book)


def test_reports_say_what_is_not_proved(outer_sum: RuleSet) -> None:
    best = optimized(outer_sum)
    assert "sum_of_outer_products" in best.report.rules, best.report.rules
    told = best.report.not_proved["sum_of_outer_products"]
    assert told.startswith("test_registration.py:") and told.endswith(", tested, not proved")
    line = f"sum_of_outer_products ({told})"
    assert f"rests on what is not proved: {line}" in " ".join(str(best.report).split())
    assert json.loads(best.report.to_json())["not_proved"] == {"sum_of_outer_products": told}
    assert line in best.report.to_html()
    assert line in " ".join(str(rx.compare(best.report, best.report)).split())
    assert "tested, not proved" in str(best.explain())
    # A proof is remembered, and then there is nothing to say.
    (verdict,) = verify(outer_sum)
    assert verdict.status == "proved"
    assert optimized(outer_sum).report.not_proved == {}


def test_rules_that_ship_are_not_told_of() -> None:
    best = rx.optimize(lambda a, b: (a @ b).trace(), "n k", "k n", at={"n": 512, "k": 64})
    assert best.report.rules and best.report.not_proved == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tags": "matmul"}, r"tags='matmul': a tuple of texts, such as \('matmul',\), is accepted"),
        ({"when": 3}, "when=3: a statement, 's % 8 == 0', or a list of such, is accepted"),
        ({"attrs": ["p"]}, r"attrs=\['p'\]: attribute variables with what they range over"),
        ({"both": "yes"}, "both='yes': True or False is accepted"),
        ({"when": "n >"}, "condition 'n >': nothing is compared on one side of >"),
    ],
)
def test_options_of_a_registration_are_checked(options: Any, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        RuleSet("book").rule("x: n", **options)(lambda x: (op.exp(x) * 1.0, op.exp(x)))


def _of_slices(x: Any, i: Any, j: Any) -> Any:
    """x[i:][:8][j:][:4] = x[i + j:][:4]: wrong, because each start is limited to where a slice fits"""
    return op.dynamic_slice(op.dynamic_slice(x, [i], [8]), [j], [4]), op.dynamic_slice(x, [i + j], [4])


def _slice_of_sum(x: Any, y: Any, i: Any) -> Any:
    return op.dynamic_slice(x + y, [i], [8]), op.dynamic_slice(x, [i], [8]) + op.dynamic_slice(y, [i], [8])


def test_what_operators_need_of_sizes_is_found() -> None:
    book = RuleSet("book")
    book.rule("x: n, y: n, i: @ int32", numerics="exact")(_slice_of_sum)
    (instance,) = instances(book["_slice_of_sum"])
    sizes = [s["n"] for s in draw_sizes(instance, np.random.default_rng(0), 24)]
    assert min(sizes) == 8 and max(sizes) > 8
    with pytest.raises(RuleError, match="rule `_of_slices` is refuted"):
        book.rule("x: n, i: @ int32, j: @ int32", numerics="exact")(_of_slices)
    with pytest.raises(RuleError, match=r"no sizes up to 5000 meet its conditions: n < 8 and n - 8 >= 0"):
        book.rule("x: n, y: n, i: @ int32", when="n < 8", name="none")(_slice_of_sum)


def test_patterns_with_filled_tensors_match_what_jax_traces() -> None:
    book = RuleSet("book")

    @book.rule("x: n n", numerics="exact")
    def trace_of_transposed(x: Any) -> Any:
        return op.trace(x.T), op.trace(x)

    @book.rule("x: n n", numerics="reassociate")
    def times_ones(x: Any) -> Any:
        return x @ op.ones((x.shape[1],)), op.sum(x, 1)

    for fn, rule in (
        (lambda x: jnp.trace(x.T), "trace_of_transposed"),
        (lambda x: x @ jnp.ones(x.shape[1]), "times_ones"),
    ):
        assert rx.debug.why_not(rule, fn, "n n", at={"n": 512}, rules=book).outcome != "no match"


def test_an_error_about_shapes_names_attribute_values() -> None:
    with pytest.raises(RuleError, match=r"the sides differ in shape with p=\(.*\), q=\(.*\): left"):
        RuleSet("book").rule("x: *b", attrs={"p": "permute_dims.axes", "q": "permute_dims.axes"})(_composed)


def _composed(x: Any, p: Any, q: Any) -> Any:
    return op.permute_dims(op.permute_dims(x, p), q), op.permute_dims(x, tuple(q[i] for i in p))
