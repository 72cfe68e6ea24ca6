"""Random programs in kernels: every kernel that is considered, and the program that is chosen and run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from programs import arguments, programs, size_bindings
from test_random_programs import SEEDS, TOLERANCES, assert_same, exactly_equal, examples, results, saturated

import relax_eg as rx
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.build import Names, kernel_of
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.selection import STEPS, KernelSearch
from relax_eg.extract.kernels.ways import KernelSelection
from relax_eg.extract.profiles.devices import profile
from relax_eg.ir import Expr, Module, var
from relax_eg.ops.interpret import evaluate, evaluate_expr


@examples(0.05)
@given(programs(), SEEDS)
def test_every_kernel_considered_computes_its_class(module: Module, seed: int) -> None:
    read = saturated(module, nodes=200)
    graph = read.graph
    sizes = {v: 64 for v in module.main.size_variables}
    search = KernelSearch(graph, [KernelCost(profile("cpu"), sizes)], STEPS)
    search.run()
    rng = np.random.default_rng(seed)
    (sizes,) = size_bindings(module, rng, 1)
    inputs = dict(zip(module.main.params, arguments(module, sizes, rng), strict=True))
    values = values_of_classes(read, inputs, sizes)
    stand_ins = [var(f"class_{c}", a) for c, a in enumerate(graph.annotations)]
    env = {**inputs, **{v: values[c] for c, v in enumerate(stand_ins)}}
    for c, states in enumerate(search.rows.pool):
        for s in states.values():
            made = kernel_of(graph, (c,), s.members, {x: stand_ins[x] for x in s.loads}, read.build, Names())
            assert made.call.annotation == graph.annotations[c]
            value = evaluate_expr(made.call, env, sizes, arithmetic="exact")
            assert exactly_equal(value, values[c]), f"{made.call.attr('program').value}\n{value}\n{values[c]}"
    for several in search.rows.several:
        loaded = {x: stand_ins[x] for x in several.loads}
        made = kernel_of(graph, several.outputs, several.members, loaded, read.build, Names())
        found = evaluate_expr(made.call, env, sizes, arithmetic="exact")
        assert all(exactly_equal(x, values[c]) for x, c in zip(found, several.outputs, strict=True))


@examples(0.05)
@given(programs())
def test_a_later_selection_begins_with_the_kernels_of_the_last(module: Module) -> None:
    graph = saturated(module, nodes=200).graph
    fresh = replace(graph)
    sizes = {v: 64 for v in module.main.size_variables}

    def found(of: ExtractionGraph, as_written: bool) -> KernelSelection:
        return KernelSearch(of, [KernelCost(profile("h100"), sizes)], STEPS, as_written=as_written).run()

    first = found(graph, False)
    table = graph.table
    alone = found(fresh, True)
    assert fresh.table is not table
    assert found(graph, True).cost == alone.cost
    again = found(graph, False)
    assert graph.table is table and again.ways == first.ways
    KernelSearch(graph, [KernelCost(profile("a100"), sizes)], STEPS).run()
    assert graph.table is not table


def values_of_classes(read: Any, inputs: dict[Expr, Any], sizes: dict[str, int]) -> dict[int, Any]:
    graph, values = read.graph, dict[int, Any]()
    waiting = set(range(len(graph.candidates)))
    while waiting:
        ready: dict[int, Any] = {}
        for c in waiting:
            for k, candidate in enumerate(graph.candidates[c]):
                if all(x in values for x in candidate.children):
                    operands = [var(f"class_{x}", graph.annotations[x]) for x in candidate.children]
                    env = {**inputs, **{v: values[x] for v, x in zip(operands, candidate.children, strict=True)}}
                    ready[c] = evaluate_expr(read.build(c, k, operands), env, sizes, arithmetic="exact")
                    break
        assert ready
        values |= ready
        waiting -= ready.keys()
    return values


@examples(0.05)
@given(programs(), SEEDS)
def test_optimized_into_kernels(module: Module, seed: int) -> None:
    """The chosen module equals the program exactly, repeats, and its kernels run with the interpreter's values."""
    at = {v: 512 for v in module.main.size_variables}
    best = rx.optimize(module, at=at, execution="kernels", budget=rx.Budget(nodes=200))
    assert_same(module, best.module, seed)
    assert rx.optimize(module, at=at, execution="kernels", budget=rx.Budget(nodes=200)).module == best.module
    rng = np.random.default_rng(seed)
    (sizes,) = size_bindings(module, rng, 1)
    args = arguments(module, sizes, rng)
    for x, y in zip(results(best(*args)), results(evaluate(module, args, sizes=sizes)), strict=True):
        assert str(x.dtype) == y.dtype.name and x.shape == y.shape
        error = np.max(np.abs(np.asarray(x, np.float64) - y.astype(np.float64)), initial=0)
        scale = np.max(np.abs(y.astype(np.float64)), initial=1)
        assert error <= TOLERANCES.get(y.dtype.name, 0) * scale, f"{x}\n{y}\n{module}\n{best.module}"
