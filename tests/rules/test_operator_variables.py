"""Attribute variables that range over operators: one law for many of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg import op
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.rules import RuleSet
from relax_eg.rules.attribute_variables import read_source
from relax_eg.rules.rule import instances


def flipped_late() -> RuleSet:
    book = RuleSet("mine")

    @book.rule(shapes="x: n", attrs={"f": "unary"}, numerics="exact")
    def flipped_before(x: Any, f: Any) -> Any:
        """f(flip(x)) = flip(f(x))"""
        return f(op.flip(x, (0,))), op.flip(f(x), (0,))

    return book


def test_what_they_range_over() -> None:
    assert read_source("add | multiply") == (("add", "multiply"), "")
    assert read_source("sum | max.axes") == (("sum", "max"), "axes")
    unary, binary = (read_source(s)[0] for s in ("unary", "binary"))
    assert {"tanh", "negative", "logical_not", "bitwise_not"} <= set(unary)
    assert {"add", "maximum", "logical_and", "less"} <= set(binary)
    assert not {"sum", "matmul", "flip", "where", "softmax", "pad"} & {*unary, *binary}


def test_an_instance_for_each_operator() -> None:
    (rule,) = flipped_late()
    made = {i.left_nodes[-1].op for i in instances(rule)}
    assert {"tanh", "exp", "relu"} <= made and not {"logical_not", "add"} & made
    assert rule.left_operators == {"flip"}
    assert rx.verify(rule).verdicts[0].status in ("proved", "tested")


class Count:
    """A cost model by which each operator costs the same."""

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        return NodeCost(seconds=1.0)


def test_it_fires_on_operators_of_the_program_and_is_explained() -> None:
    def f(x: Any) -> Any:
        return jnp.flip(jnp.tanh(jnp.flip(jnp.exp(x))))

    rules = flipped_late()

    @rules.rule(shapes="x: n", numerics="exact")
    def twice(x: Any) -> Any:
        """flip(flip(x)) = x"""
        return op.flip(op.flip(x, (0,)), (0,)), x

    best = rx.optimize(f, "n", at={"n": 4096}, rules=rules, target=Count())
    assert "flipped_before" in best.report.rules
    assert best.report.after.seconds == 2
    explanation = best.explain()
    assert [s.rule for s in explanation.steps] == ["flipped_before", "twice"]
    assert "2 uses of rules" in str(best.certificate().verify(rules))


def test_a_law_that_one_operator_breaks_is_refuted_by_it() -> None:
    book = RuleSet("mine")
    with pytest.raises(rx.errors.RuleError, match=r"rule `swapped` is refuted\n  left   x - y      right   y - x"):

        @book.rule(shapes="x: n, y: n", attrs={"f": "add | multiply | subtract"})
        def swapped(x: Any, y: Any, f: Any) -> Any:
            """f(x, y) = f(y, x)"""
            return f(x, y), f(y, x)


def test_attributes_of_several_operators() -> None:
    book = RuleSet("mine")

    @book.rule(shapes="x: *b", attrs={"f": "max | min", "a": "max | min.axes"})
    def negated(x: Any, f: Any, a: Any) -> Any:
        """max(-x) = -min(x) and min(-x) = -max(x)"""
        other = op.min if f is op.max else op.max
        return f(op.negative(x), a), op.negative(other(x, a))

    best = rx.optimize(
        lambda x: -jnp.max(-x, 0), "n 8", at={"n": 64}, rules=book + rx.rules.elementwise, target=Count()
    )
    assert "negated" in best.report.rules and best.report.after.seconds == 1


@pytest.mark.parametrize(
    "source, message",
    [
        ("addd | multiply", r"attrs: 'addd \| multiply': .*addd.*did you mean.*add"),
        ("add.axes", r"attrs: 'add.axes' is not an attribute that a rule can range over; accepted: none"),
        ("sum | add.axes", r"attrs: 'sum \| add.axes' is not an attribute .* accepted: none of this operator"),
    ],
)
def test_what_is_no_operator(source: str, message: str) -> None:
    book = RuleSet("mine")
    with pytest.raises(rx.errors.RuleError, match=message):

        @book.rule(shapes="x: n, y: n", attrs={"f": source})
        def law(x: Any, y: Any, f: Any) -> Any:
            """f(x, y) = f(y, x)"""
            return f(x, y), f(y, x)
