"""Proofs of proposals that compute in pieces: a loop is compared as what it computes in all steps at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.ir.calls import inline_call, reachable_functions, rebuilt, without_calls
from relax_eg.ir.control import group_arguments, scan
from relax_eg.ir.expr import SCAN, VAR, Expr, postorder, rebuild
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.rules.checking.schema_trials import proved_proposals
from relax_eg.rules.schemas import ModuleAnswers, Schema

PIECES = {s.name: s for s in rx.rules.pieces.schemas}
Proposed = tuple[Schema, Expr, Expr, dict[str, Function]]


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.T / 8
    places = jnp.arange(q.shape[0])[:, None] >= jnp.arange(k.shape[0])[None, :]
    raised = jnp.exp(jnp.where(places, scores, -1e9))
    return raised @ v


def hidden(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.relu(x @ up) @ down


def loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x * x)


def largest(x: Any, w: Any) -> Any:
    return jnp.max(jnp.abs(x @ w), axis=0)


def proposals(rule: str, fn: Callable[..., Any], specs: tuple[Any, ...]) -> list[Proposed]:
    """The proposals of a rule for all values of a function, under a memory limit."""
    main = without_calls(rx.trace(fn, *specs)).main
    nodes = postorder(inline_call(main, main.params))
    queries, schema = ModuleAnswers({}, (), nodes, 0.0), PIECES[rule]
    found = [(e, p) for e in nodes if e.op in schema.operators for p in schema.proposals(e, queries)]
    assert found and all(any(x.op == SCAN for x in postorder((p,))) for _, p in found)
    return [(schema, e, p, queries.functions) for e, p in found]


def why_not(proposed: Proposed, functions: dict[str, Function] | None = None) -> str:
    schema, e, made, known = proposed
    assert schema.prove is not None
    return schema.prove(e, made, lambda _: frozenset(), known if functions is None else functions)


STEP = jax.value_and_grad(loss)
CASES: dict[str, tuple[Any, ...]] = {
    "rows of an attention": ("computed_in_pieces", attention, ("n 8", "m 8", "m 4")),
    "rows of a hidden layer that pieces divide": ("computed_in_pieces", hidden, ("64 4", "4 32", "32 4")),
    "rows of a hidden layer that pieces do not divide": ("computed_in_pieces", hidden, ("67 4", "4 32", "32 4")),
    "gradients of weights": ("accumulated_over_pieces", STEP, (["8 8"] * 2, "n 8")),
    "gradients over a batch that pieces do not divide": ("accumulated_over_pieces", STEP, (["8 8"] * 2, "67 8")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_proposal_is_proved(name: str) -> None:
    """All but trees of loops."""
    found = [p for p in proposals(*CASES[name]) if not _is_tree(p)]
    assert found
    for proposed in found:
        assert why_not(proposed) == ""


def _is_tree(proposed: Proposed) -> bool:
    return len(reachable_functions([proposed[2]], proposed[3])) > 1


Change = Callable[[Expr], Expr]


def _changed(functions: dict[str, Function], change: Change) -> dict[str, Function]:
    """The functions with their nodes replaced."""
    made = {name: rebuilt(f, lambda x, args: change(with_operands(x, args))) for name, f in functions.items()}
    assert made != functions
    return made


def _is_total(x: Expr) -> bool:
    return x.op == "add" and x.args[0].op == VAR


WRONG: dict[str, tuple[Change, str]] = {
    "another function": (lambda x: op.sinh(x.args[0]) if x.op == "tanh" else x, "not shown equal"),
    "a difference": (lambda x: op.subtract(*x.args) if _is_total(x) else x, "more than a total"),
    "what was there before": (lambda x: op.add(x.args[0], op.add(*x.args)) if _is_total(x) else x, "the step before"),
    "twice as much": (lambda x: op.add(x.args[0], op.multiply(x.args[1], 2)) if _is_total(x) else x, "not shown equal"),
    "another precision": (lambda x: op.matmul(*x.args, precision="highest") if x.op == "matmul" else x, "precision"),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_body_is_not_proved(name: str) -> None:
    proposed = next(p for p in proposals(*CASES["gradients of weights"]) if p[1].op == "sum")
    change, reason = WRONG[name]
    assert why_not(proposed) == "" and reason in why_not(proposed, _changed(proposed[3], change))


LOOPS: dict[str, tuple[Change, str]] = {
    "backwards": (lambda x: scan_of(x, reverse=True), "backwards"),
    "from one": (lambda x: scan_of(x, first=1), "identity"),
    "other slices": (lambda x: scan_of(x, flipped=True), "not shown equal"),
}


def scan_of(x: Expr, reverse: bool = False, first: int = 0, flipped: bool = False) -> Expr:
    """A loop with its steps in reverse, that begins with another number, or whose first operand is in another order."""
    if x.op != SCAN:
        return x
    p = group_arguments(SCAN, x.args, dict(x.attrs))
    carry = [op.full(c.shape, first, c.dtype) for c in p.carry]
    xs = [op.flip(a, 0) if flipped and i == 0 else a for i, a in enumerate(p.xs)]
    return scan(p.functions[0], p.constants, carry, xs, length=x.attr("length"), reverse=reverse)


@pytest.mark.parametrize("name", LOOPS)
def test_another_loop_is_not_proved(name: str) -> None:
    schema, e, made, functions = next(p for p in proposals(*CASES["gradients of weights"]) if p[1].op == "sum")
    change, reason = LOOPS[name]
    (other,) = rebuild([made], lambda x, args: change(with_operands(x, args)))
    assert other is not made and reason in why_not((schema, e, other, functions))


def test_rows_have_the_same_bits() -> None:
    """What is computed in rows is of class `exact`: what is equal over the reals alone is not enough."""
    schema, e, made, functions = proposals(*CASES["rows of a hidden layer that pieces divide"])[0]
    turned = _changed(functions, lambda x: op.divide(op.multiply(x, 3), 3) if x.op == "matmul" else x)
    assert why_not((schema, e, made, functions)) == "" and why_not((schema, e, made, turned)) != ""


def test_totals_that_steps_use_are_tested_alone() -> None:
    """A softmax over pieces of the keys follows a maximum that changes from step to step."""

    def over_keys(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T) @ v

    found = [why_not(p) for p in proposals("accumulated_over_pieces", over_keys, ("4 8", "m 8", "m 4"))]
    assert any("the step before" in why or "more than a total" in why for why in found)


def test_extremes_are_tested_alone() -> None:
    assert all("may be empty" in why_not(p) for p in proposals("accumulated_over_pieces", largest, ("n 4", "4 32")))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["computed_in_pieces", "accumulated_over_pieces", "computed_one_by_one"])
def test_the_verdict_says_that_proposals_are_proved(rule: str) -> None:
    shown, _ = proved_proposals(PIECES[rule])
    assert shown.endswith("proposals proved")


@pytest.mark.slow  # about 20 s of the processor
def test_a_derivation_says_which_steps_are_proved() -> None:
    best = rx.optimize(hidden, "n 64", "64 4096", "4096 64", at={"n": 4096}, target="cpu")
    assert "computed_in_pieces" in best.report.rules
    assert "proved for these shapes and for all values" in str(best.explain())
