"""The books that ship: every rule fires on a program that it is about, alone in its e-graph, and not on one that is
off by one operator, one operand or one fact; and the table of them in the docs is current."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relax_eg.egraph import Budget, EGraph, Given
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor, is_float
from relax_eg.ir.expr import CONSTANT, VAR, Expr, postorder, rebuild, var
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, call
from relax_eg.rules import Claim, Condition, InOrder, Instance, Rule, RuleSet, Word, default
from relax_eg.rules.conditions import claims_of
from relax_eg.rules.domain import instances
from relax_eg.shapes import Scope

BUDGET = Budget(nodes=2000, seconds=20)


def fires(rule: Rule, roots: tuple[Expr, ...], instance: Instance, given: Given | None = None) -> bool:
    known = given or Given(claims_of(instance.guards), _weights(instance))
    scope = Scope(assume=[str(g) for g in instance.guards if isinstance(g, Condition)])
    with EGraph(roots, RuleSet("alone", [rule]), scope, given=known) as egraph:
        egraph.saturate(BUDGET)
        return rule.name in egraph.matches


def _weights(instance: Instance) -> frozenset[str]:
    return frozenset(g.name for g in instance.guards if isinstance(g, Word))


def smallest(rule: Rule) -> Instance:
    """The instance it is printed with. Merging rules match in one order of inputs, which is that of the program."""
    return next(iter(instances(rule, limit=1)))


# What stands next to an operator: near, and something else.
_SIBLINGS = {
    "add": "multiply", "subtract": "add", "multiply": "add", "divide": "add", "maximum": "add", "minimum": "add",
    "sum": "max", "max": "sum", "min": "max", "exp": "tanh", "log": "exp", "sqrt": "exp", "negative": "exp",
    "abs": "exp", "tanh": "exp", "sigmoid": "tanh", "relu": "tanh", "less": "equal", "greater": "equal",
    "greater_equal": "equal", "less_equal": "equal", "equal": "less", "not_equal": "less", "logical_and": "logical_xor",
    "logical_or": "logical_xor", "floor": "exp", "ceil": "exp", "sign": "exp", "square": "exp", "tril": "triu",
    "triu": "tril", "all": "any", "any": "all",
}  # fmt: skip


def near_misses(instance: Instance) -> Iterator[tuple[Expr, ...]]:
    """The left side with one operator replaced by a sibling, or with one inner value negated."""
    for e in reversed(instance.left_nodes):
        if (other := _SIBLINGS.get(e.op)) and other in TABLE:
            yield _replaced(instance.left, e, lambda args, e=e, o=other: call(o, args, dict(e.attrs)))
    for e in instance.left_nodes:
        if e.op in (CONSTANT, VAR) or e in instance.left or not isinstance(e.annotation, Tensor):
            continue
        if e.dtype == "bool" or is_float(e.dtype) or e.dtype.startswith("int"):
            change = op.logical_not if e.dtype == "bool" else op.sin if is_float(e.dtype) else op.negative
            yield _replaced(
                instance.left, e, lambda args, e=e, change=change: change(call(e.op, args, dict(e.attrs)))
            )


def _replaced(roots: tuple[Expr, ...], old: Expr, new: object) -> tuple[Expr, ...]:
    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e in (old,):
            return new(args)  # type: ignore[operator]
        if e.op in (VAR, CONSTANT):
            return e
        return e.with_args(args) if hasattr(e, "with_args") else call(e.op, args, dict(e.attrs))

    return tuple(rebuild(roots, replace))


@pytest.mark.parametrize("rule", list(default), ids=lambda r: r.name)
def test_a_rule_fires_on_what_it_is_about(rule: Rule) -> None:
    instance = smallest(rule)
    assert fires(rule, instance.left, instance)
