"""Kernels as XLA compiles them: the operators that it gets of each, which are found and priced once in a search."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import relax_eg as rx
from relax_eg import ir
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.driver import inside_kernels
from relax_eg.driver.inside_kernels import operators_inside
from relax_eg.egraph import EGraph, dump
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.priced import PricedModules
from relax_eg.extract.costs.walk import walk
from relax_eg.extract.kernels.build import composed_seconds
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.selection import STEPS, KernelSearch, select_kernels
from relax_eg.extract.kernels.ways import members_of
from relax_eg.extract.profiles.devices import PROFILES
from relax_eg.frontends.jax.trace import trace_function
from relax_eg.ir import Expr
from relax_eg.ir.annotations import dims_of
from relax_eg.ir.calls import inline_call
from relax_eg.ir.expr import postorder
from relax_eg.ir.module import pure_function
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops.fused import fused_call
from relax_eg.shapes import Dim, Scope
from relax_eg.tir import TensorProgram

sys.path.insert(0, str(Path(__file__).parent.parent / "tir"))
from tir_strategies import programs

SIZES = {"n": 64, "m": 48}


def variables(*shapes: str) -> list[Expr]:
    return [ir.var(f"v{i}", ir.Tensor(s)) for i, s in enumerate(shapes)]


def kernel(result: Expr) -> Expr:
    """The call of the kernel of all operators of `result`, over variables of the names that searches give them."""
    call = fused_call([e for e in postorder([result]) if e.args], [result])
    args = [ir.var(f"p{i}", a.annotation) for i, a in enumerate(call.args)]
    return ir.node(call.op, args, call.attrs, call.annotation)


def attention(after: str = "add") -> Expr:
    """A softmax of scores, a matmul of it, and an operator on the result."""
    x, v, b = variables("n m", "m 8", "n 8")
    mixed = rx.op.matmul(rx.op.softmax(x, axis=-1), v)
    return kernel(rx.op.add(mixed, b) if after == "add" else rx.op.multiply(mixed, b))


def whole(call: Expr, sizes: dict[str, int]) -> list[Expr]:
    """The operators that JAX gets of a tensor program that is traced as a whole."""
    at = [ir.Tensor(tuple(d.evaluate(sizes) for d in a.shape), a.dtype) for a in call.args]
    run = partial(lower_program, tiled=False)(call.attr("program").value, sizes)
    specs = tuple(f"{' '.join(map(str, dims_of(a)))} @ {a.dtype}" for a in at)
    main = trace_function(lambda *xs: run(*xs), specs).module.main
    return inline_call(main, [ir.var(f"p{i}", a) for i, a in enumerate(at)])


def norm() -> Expr:
    x, w = variables("n m", "m")
    return kernel(x / rx.op.sqrt(rx.op.mean(x * x, axis=-1, keepdims=True)) * w)


@pytest.mark.parametrize("make", [attention, norm])
def test_the_operators_of_all_stages_are_those_of_the_whole_kernel(make: Any) -> None:
    call = make()
    assert len(call.attr("program").value.stages) > 1
    found = operators_inside(call, SIZES)
    assert found is not None
    assert [b.value for block in found.blocks for b in block.bindings] == whole(call, SIZES)


@settings(max_examples=12, deadline=None)
@given(programs())
def test_tensor_programs_of_all_kinds_cost_what_they_cost_as_wholes(program: TensorProgram) -> None:
    """With scans, workspaces, several outputs and reads at places that depend on data."""
    sizes = {"n": 3, "m": 5}
    params = [ir.var(f"p{i}", ir.Tensor(b.shape, b.dtype)) for i, b in enumerate(program.inputs)]
    call = call_tir(program, params, sizes={v: Dim.var(v) for v in program.size_arguments})
    found = operators_inside(call, sizes)
    try:
        expected = [*whole(call, sizes)]
    except (rx.errors.RelaxEgError, ValueError):
        assert found is None
        return
    assert found is not None
    functions = found, pure_function("kernel", [], expected)
    one, other = ([v.cost for v in walk(f, WholeCost(PROFILES["a100"], {}))] for f in functions)
    assert sum(one, NodeCost()) == sum(other, NodeCost())


def test_what_kernels_have_in_common_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []
    trace = inside_kernels.traced_operators

    def counted(run: Any, operands: Any) -> Any:
        traced.append(operands)
        return trace(run, operands)

    monkeypatch.setattr(inside_kernels, "traced_operators", counted)
    inside_kernels.of_stage.cache_clear()
    inside_kernels.operators_at.cache_clear()
    first = attention("add")
    operators_inside(first, SIZES)
    stages = len(first.attr("program").value.stages)
    assert len(traced) == stages > 2
    operators_inside(attention("multiply"), SIZES)
    assert len(traced) == stages + 1  # the last stage differs
    operators_inside(first, {**SIZES, "n": 65})
    assert len(traced) > stages + 1


def test_a_kernel_is_priced_once_in_a_search() -> None:
    asked: list[Expr] = []

    def inside(e: Expr, sizes: Any) -> Any:
        asked.append(e)
        return operators_inside(e, sizes)

    priced, p = PricedModules(), PROFILES["a100"]
    models = [KernelCost(p, SIZES), KernelCost(p, SIZES)]
    for m in models:
        m.as_compiled = priced.kernels(p, inside)
    assert models[0].as_compiled is models[1].as_compiled is not priced.kernels(PROFILES["h100"], inside)
    call = norm()
    site = rx.ops.site_of(call)
    first, second = (m.price(site, call.annotation).seconds for m in models)
    assert first == second > 0 and len(asked) == 1
    models[0].set_waits(1.0)  # what a kernel waits for is no part of what was kept
    assert models[0].price(site, call.annotation).seconds > first and len(asked) == 1


def test_equal_kernels_of_different_classes_are_one() -> None:
    """The same operators on other arrays, in one graph."""
    a, b = variables("n m", "n m")
    roots = [rx.op.exp(x * 2.0) + 1.0 for x in (a, b)]
    with EGraph(roots, rx.RuleSet("none"), Scope()) as egraph:
        read = dump(egraph)
    asked: list[Expr] = []
    model = KernelCost(PROFILES["cpu"], SIZES)
    seconds = composed_seconds(read.graph, read.build, [model])
    for c in read.graph.roots:
        members: dict[int, int] = {}
        todo = [c]
        while todo:
            x = todo.pop()
            if read.graph.candidates[x][0].children:
                members[x] = 0
                todo += read.graph.candidates[x][0].children
        loads = {y: 0 for x in members for y in read.graph.candidates[x][0].children if y not in members}
        asked.append((seconds((c,), members, loads), read.graph.composed[(c,), frozenset(members.items())])[1])
    assert asked[0] is asked[1]


def test_a_search_from_all_seeds_follows_where_prices_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of several operators take far longer than estimated: none is left in the end, and of the steps on the way
    there few are searches."""
    x, w = variables("n 64", "64 64")
    for _ in range(3):
        x = rx.op.tanh(rx.op.matmul(x, w) + 1.0) * 2.0
    with EGraph([x], rx.RuleSet("none"), Scope()) as egraph:
        graph = dump(egraph).graph
    steps: list[str] = []

    def noted(name: str) -> None:
        plain = getattr(KernelSearch, name)
        monkeypatch.setattr(KernelSearch, name, lambda *given: [steps.append(name), plain(*given)][1])

    noted("_best")
    noted("_correct_prices")
    found = select_kernels(graph, [KernelCost(PROFILES["cpu"], SIZES)], STEPS, lambda *kernel: [1.0])
    assert all(len(members_of(c, way)) == 1 for c, way in found.ways.items())
    after = steps[steps.index("_correct_prices") :]
    assert after[:3] == ["_correct_prices"] * 3
