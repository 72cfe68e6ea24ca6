"""Recursion over the structure of values runs by depth: the same results, one program for a level."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir.annotations import DataValue
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from relax_eg.vm.folds import folds_of, levels
from relax_eg.vm.instructions import RunFold
from tests.vm.language_programs import BRACKETED, HEAD, TREES, sentence, tree_weights
from tests.vm.test_language import assert_alike, runner

SUMS = """
@R.data
class Tree(a):
    Leaf = (a,)
    Node = (a, Tree(a), Tree(a))

@R.function
def total(t: Tree(R.Tensor((), "float32")), k: R.Tensor((), "float32")) -> R.Tensor((), "float32"):
    match t:
        case Tree.Leaf(x):
            return x
        case Tree.Node(x, a, b):
            return x * k + total(a, k) - total(b, k)

@R.function
def main(t: Tree(R.Tensor((), "float32")), k: R.Tensor((), "float32")):
    return total(t, k) + total(t, k + 1.0)
"""


def tree(definition: Any, depth: int, number: int = 1) -> DataValue:
    """Returns the full tree of a depth."""
    if depth == 0:
        return definition.Leaf(np.float32(number % 7))
    inner = [tree(definition, depth - 1, 2 * number + i) for i in range(2)]
    return definition.Node(np.float32(number % 5), *inner)


def placed(value: Any) -> Any:
    return rx.ir.data.map_data(value, jax.numpy.asarray) if isinstance(value, DataValue) else jax.numpy.asarray(value)


def test_trees_of_a_list_run_together() -> None:
    module = parse(TREES)
    run = runner(module)
    assert list(run.compiler.folds) == ["encode"]
    definition = next(d for d in module.data_types if d.name == "Sentence")
    values = [sentence(t, definition) for t in BRACKETED]
    args = [rx.script.list_of(rx.script.List, values), *tree_weights()]
    found, profile = run.profiled([placed(a) for a in args])
    assert_alike(found, evaluate(module, args))
    rows = {(r.function, r.place): r.count for r in profile.rows.values() if "runfold" in r.text}
    assert list(rows.values()) == [len(BRACKETED)]
    assert not any(function == "encode" for function, _ in profile.rows)


def test_a_full_tree_and_its_levels() -> None:
    module = parse(SUMS)
    run = runner(module)
    t = tree(module.data_types[0], 6)
    assert [len(nodes) for nodes in levels([t], run.compiler.folds["total"].cases)] == [64, 32, 16, 8, 4, 2, 1]
    args = [t, np.float32(0.5)]
    assert_alike(run.run([placed(a) for a in args]), evaluate(module, args))
    assert sum(isinstance(i, RunFold) for i in run.compiler.code("main").instructions) == 2


def test_what_is_shared_is_computed_once() -> None:
    module = parse(SUMS)
    definition = module.data_types[0]
    shared = tree(definition, 2)
    t = definition.Node(np.float32(1), shared, definition.Node(np.float32(2), shared, shared))
    assert sum(map(len, levels([t], folds_of(runner(module).module)["total"].cases))) == 7 + 2
    args = [t, np.float32(0.5)]
    assert_alike(runner(module).run([placed(a) for a in args]), evaluate(module, args))


@pytest.mark.parametrize("deep", [30])
def test_a_chain_runs_node_by_node(deep: int) -> None:
    module = parse(SUMS)
    definition = module.data_types[0]
    t = definition.Leaf(np.float32(1))
    for i in range(deep):
        t = definition.Node(np.float32(i), t, definition.Leaf(np.float32(i % 3)))
    args = [t, np.float32(0.5)]
    assert_alike(runner(module).run([placed(a) for a in args]), evaluate(module, args))


NO_FOLD = (
    HEAD
    + """
@R.function
def total(xs: List(R.Tensor((), "float32")), k: R.Tensor((), "float32")) -> R.Tensor((), "float32"):
    match xs:
        case List.Nil():
            return k
        case List.Cons(x, more):
            return x + total(more, k * x)

@R.function
def main(xs: List(R.Tensor((), "float32")), k: R.Tensor((), "float32")):
    return total(xs, k)
"""
)


def test_other_arguments_that_change_are_no_fold() -> None:
    assert not folds_of(runner(parse(NO_FOLD)).module)
