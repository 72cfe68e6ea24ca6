"""Random programs: what the rules, the selection and the backend make of them equals the program as written.

`RELAX_EG_PROGRAMS=5000 pytest tests/test_random_programs.py` runs more of them.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import arguments, programs, size_bindings

import relax_eg as rx
from relax_eg.egraph import Budget, Dump, EGraph, dump
from relax_eg.extract.selection.problem import tree_choice
from relax_eg.extract.selection.select import problem_of
from relax_eg.ir import Expr, Module, pure_function, var
from relax_eg.ops.interpret import evaluate, evaluate_expr
from relax_eg.rules.format import expression_text
from relax_eg.shapes import Scope
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import Guard

PROGRAMS = int(os.environ.get("RELAX_EG_PROGRAMS", "50"))
SEEDS = st.integers(0, 2**32 - 1)
# Few programs of thousands need more nodes; the clock must not decide, because results are compared.
BUDGET = Budget(nodes=8_000, seconds=300)
# A tolerance for values of a few dozen products, by dtype, relative to the largest of a result.
TOLERANCES = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}


def examples(share: float) -> Any:
    """Runs a property on this share of the programs."""
    count = max(1, round(PROGRAMS * share))
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


def exactly_equal(a: Any, b: Any) -> bool:
    x, y = np.asarray(a, dtype=object), np.asarray(b, dtype=object)
    return x.shape == y.shape and all(p is q or p == q for p, q in zip(x.flat, y.flat, strict=True))


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def exact_results(module: Module, args: list[Any], sizes: dict[str, int]) -> list[Any]:
    return results(evaluate(module, args, sizes=sizes, arithmetic="exact"))


def assert_same(written: Module, other: Module, seed: int) -> None:
    """Equal annotations, and equal results in exact arithmetic at three bindings of the sizes."""
    assert other.main.annotation == written.main.annotation
    rng = np.random.default_rng(seed)
    for sizes in size_bindings(written, rng, 3):
        args = arguments(written, sizes, rng)
        before, after = exact_results(written, args, sizes), exact_results(other, args, sizes)
        for i, (x, y) in enumerate(zip(before, after, strict=True)):
            assert exactly_equal(x, y), f"result {i} differs at {sizes}:\n{x}\n{y}\n{written}\n{other}"


def saturated(module: Module, nodes: int = 2000) -> Dump:
    with EGraph([b.value for b in module.main.blocks[0].bindings], rx.rules.default, Scope()) as egraph:
        egraph.saturate(Budget(nodes=nodes, seconds=60))
        return dump(egraph)


@examples(0.2)
@given(programs(), SEEDS)
def test_everything_the_rules_propose_equals_the_class_it_is_in(module: Module, seed: int) -> None:
    """Every candidate of every e-class, not only what the selection takes, is computed and compared."""
    read = saturated(module)
    rng = np.random.default_rng(seed)
    for sizes in size_bindings(module, rng, 2):
        args = arguments(module, sizes, rng)
        check_classes(read, module, sizes, args)


def check_classes(read: Dump, module: Module, sizes: dict[str, int], args: list[Any]) -> None:
    graph = read.graph
    # Computed as written first, so that a wrong class is told from a wrong user of it.
    inputs = dict(zip(module.main.params, args, strict=True))
    values: dict[int, Any] = {}
    waiting = [(c, k) for c, row in enumerate(graph.candidates) for k in range(len(row))]
    waiting.sort(key=lambda ck: graph.candidates[ck[0]][ck[1]].made_by != "")
    while waiting:
        ready = [(c, k) for c, k in waiting if all(x in values for x in graph.candidates[c][k].children)]
        assert ready, f"classes that nothing computes: {waiting}\n{module}"
        for c, k in ready:
            candidate = graph.candidates[c][k]
            env: dict[Expr, Any] = dict(inputs)
            operands = tuple(var(f"class_{x}", graph.annotations[x]) for x in candidate.children)
            env.update((e, values[x]) for e, x in zip(operands, candidate.children, strict=True))
            payload = read.payloads[candidate.payload]
            expr = payload if isinstance(payload, Expr) else payload[0].build(operands, payload[1])
            assert expr.annotation == graph.annotations[c]
            value = evaluate_expr(expr, env, sizes, arithmetic="exact")
            known = values.setdefault(c, value)
            assert all(exactly_equal(x, y) for x, y in zip(results(value), results(known), strict=True)), (
                f"rule `{candidate.made_by}` proposed {expression_text(expr)}, which is\n{value}\nfor\n{known}\n"
                f"with {[env[e] for e in operands]} at {sizes} in\n{module}"
            )
        done = set(ready)
        waiting = [ck for ck in waiting if ck not in done]


@examples(0.15)
@given(programs(), SEEDS)
def test_any_selection_decodes_to_an_equal_program(module: Module, seed: int) -> None:
    read = saturated(module)
    rng = np.random.default_rng(seed)
    graph = read.graph
    choices = [graph.as_written]
    for _ in range(2):
        # Costs over eight decades: about any acyclic choice is the cheapest for some of them.
        costs = [[float(10 ** rng.uniform(-4, 4)) for _ in row] for row in graph.candidates]
        choices.append(tree_choice(problem_of(graph, costs)))
    for values in map(read.decode, choices):
        function = pure_function("main", module.main.params, values)
        assert_same(module, Module((function,)), seed)


@examples(0.15)
@given(programs(), SEEDS)
def test_optimize(module: Module, seed: int) -> None:
    """The result of `optimize` equals the program in exact arithmetic, repeats byte for byte, and reads back."""
    at = {v: 512 for v in module.main.size_variables}
    best = rx.optimize(module, at=at, budget=BUDGET)
    assert_same(module, best.module, seed)
    text = str(best.module)
    assert str(rx.parse(text)) == text
    assert rx.parse(text) == best.module
    assert rx.parse(str(module)) == module
    again = rx.optimize(rx.parse(str(module)), at=at, budget=BUDGET)
    assert str(again.module) == text


@examples(0.1)
@given(programs(), SEEDS)
def test_through_xla(module: Module, seed: int) -> None:
    """The chosen program run by XLA agrees with the interpreter on the program as written."""
    best = rx.optimize(module, at={v: 512 for v in module.main.size_variables}, budget=BUDGET)
    rng = np.random.default_rng(seed)
    (sizes,) = size_bindings(module, rng, 1)
    args = arguments(module, sizes, rng)
    ours = results(best(*args))
    for x, y in zip(ours, results(evaluate(module, args, sizes=sizes)), strict=True):
        assert str(x.dtype) == y.dtype.name and x.shape == y.shape
        error = np.max(np.abs(np.asarray(x, np.float64) - y.astype(np.float64)), initial=0)
        scale = np.max(np.abs(y.astype(np.float64)), initial=1)
        assert error <= TOLERANCES.get(y.dtype.name, 0) * scale, f"{x}\n{y}\n{module}\n{best.module}"
    assert best.check(*args).max_error <= TOLERANCES.get(module.main.params[0].dtype, 0)


@examples(0.05)
@given(programs(), SEEDS)
def test_every_variant_of_a_family_equals_the_program(module: Module, seed: int) -> None:
    """Also at sizes that it does not serve; and at all sizes the guards tell which one serves."""
    names = module.main.size_variables
    target = ("cpu", "h100", "laptop")[seed % 3]
    best = rx.optimize(module, bounds={v: (1, 300) for v in names}, target=target, budget=Budget(2000, 60))
    rng = np.random.default_rng(seed)
    guards = [Guard.read(v.guard) for v in best.variants]
    for v in best.variants:
        assert_same(module, v.module, seed)
    for sizes in size_bindings(module, rng, 3):
        assert sum(g.holds(sizes) for g in guards) == 1
        assert Dispatch(guards).index_of(sizes) == [g.holds(sizes) for g in guards].index(True)
    family = best.report.family
    assert family is None or (family.cover.startswith("proved") and family.stop != "time limit")
