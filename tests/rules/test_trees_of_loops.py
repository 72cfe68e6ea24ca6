"""Loops over pieces whose steps are cut further: what they compute, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import whole_footprint
from relax_eg.backend.lowering.lower import run_at
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.scopes import called_functions
from relax_eg.rules.schemas import ModuleAnswers

pytestmark = pytest.mark.xla_defaults

SCHEMAS = {s.name: s for s in rx.rules.default.schemas}


def heads(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / 4.0
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), v)


def gradients(q: Any, k: Any, v: Any) -> Any:
    return jax.grad(lambda *x: jnp.sum(heads(*x) ** 2), (0, 1, 2))(q, k, v)


class OneOfEach(ModuleAnswers):
    """Answers as in a search: equal functions are one."""

    def add(self, function: Function, suffix: str) -> Function:
        known = (f for n, f in self.functions.items() if replace(f, name=function.name) == function and suffix in n)
        return next(known, None) or super().add(function, suffix)


def forms(rule: str, fn: Callable[..., Any], spec: str) -> tuple[Module, list[Module]]:
    """The program, and one for each loop that the rule proposes, with all results that the loop has."""
    module = rx.trace(fn, *[spec] * 3)
    values: dict[Expr, Expr] = {}
    for b in module.main.blocks[0].bindings:
        values[b.var] = substitute_exprs([b.value], values)[0]
    (result,) = substitute_exprs([module.main.result], values)
    fields = list(result.args) if result.op == "tuple" else [result]
    queries, schema = OneOfEach({}, (), postorder(fields)), SCHEMAS[rule]
    by_loop: dict[Expr, dict[Expr, Expr]] = {}
    for e in queries.nodes if schema else ():
        for p in schema.proposals(e, queries) if e.op in schema.operators else ():
            loop = next(x for x in postorder((p,)) if x.op == "scan")
            by_loop.setdefault(loop, {})[e] = p
    made = [pure_function("main", module.main.params, substitute_exprs(fields, m)) for m in by_loop.values()]
    return module, [Module((f, *queries.functions.values())) for f in made]


def depth(module: Module) -> int:
    """Loops inside of each other."""

    def of(name: str) -> int:
        loops = [e for e in module[name].expressions() if e.op == "scan"]
        return max((1 + max(of(n) for n, _ in called_functions(e)) for e in loops), default=0)

    return of("main")


@pytest.mark.parametrize(
    ("rule", "fn", "most"), [("computed_in_pieces", heads, 0.2), ("accumulated_over_pieces", gradients, 0.25)]
)
def test_steps_are_cut_along_another_dimension(rule: str, fn: Callable[..., Any], most: float) -> None:
    """Scores of one head exist some rows at a time. Sizes are such that rows do not come out even."""
    written, found = forms(rule, fn, "6 250 8")
    nested = [m for m in found if depth(m) == 2]
    assert nested and all(depth(m) in (1, 2) for m in found)
    least = min(nested, key=lambda m: whole_footprint(m, set(), {}, FRUGAL).bytes)
    assert whole_footprint(least, set(), {}, FRUGAL).bytes < most * whole_footprint(written, set(), {}, FRUGAL).bytes
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal((6, 250, 8)), jnp.float32) for _ in range(3)]
    results = jax.jit(lambda *xs: run_at(least, least.main, xs, {}))(*args)
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(fn(*args)), strict=True):
        assert np.allclose(a, b, atol=1e-4)


def test_what_is_exact_adds_up_nothing_inside() -> None:
    _, found = forms("computed_in_pieces", gradients, "6 250 8")
    for m in found:
        carries = [e for f in m for e in f.expressions() if e.op == "scan" and e.attr("carry")]
        assert not carries
