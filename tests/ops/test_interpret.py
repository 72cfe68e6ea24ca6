"""The reference interpreter on modules."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from relax_eg.errors import OperatorError, ShapeError, WellFormedError
from relax_eg.ir.annotations import Tensor, Tuple
from relax_eg.ir.calls import call_function, function_ref
from relax_eg.ir.expr import Expr, call_dps_library, const, match_cast, shape_value, tuple_, tuple_get, var
from relax_eg.ir.module import Binding, Block, Function, Module, pure_function
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate, evaluate_expr
from relax_eg.shapes import Dim


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def linear() -> Function:
    x, w = var("x", Tensor("n k")), var("w", Tensor("k m"))
    return pure_function("linear", [x, w], [x @ w + Dim.of("k")])


def test_function() -> None:
    got = evaluate(linear(), [ones(2, 3), ones(3, 4)])
    np.testing.assert_array_equal(got, np.full((2, 4), 6, np.float32))
    assert got.dtype == "float32"


def test_exact() -> None:
    x = var("x", Tensor("n"))
    thirds = evaluate(pure_function("f", [x], [x / 3 - x / 3 + 1 / (x * 3)]), [np.array([1, 2])], arithmetic="exact")
    assert thirds.tolist() == [Fraction(1, 3), Fraction(1, 6)]


def test_arguments_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"linear\(\): argument `w`, axis 0 should be k = 3 .*, got 2"):
        evaluate(linear(), [ones(2, 3), ones(2, 4)])
    with pytest.raises(ShapeError, match=r"linear: `w` should have rank 2, got 1"):
        evaluate(linear(), [ones(2, 3), ones(3)])
    with pytest.raises(ShapeError, match=r"linear: `x` should be float32, got float64"):
        evaluate(linear(), [np.ones((2, 3)), ones(3, 4)])
    with pytest.raises(ShapeError, match=r"linear\(\) takes 2 arguments, got 1"):
        evaluate(linear(), [ones(2, 3)])


def test_several_outputs_and_tuples() -> None:
    x, pair = var("x", Tensor("n")), var("pair", Tuple((Tensor("n"), Tensor("m"))))
    f = pure_function(
        "f", [x, pair], [x + tuple_get(pair, 0), tuple_([op.sum(tuple_get(pair, 1)), shape_value(["m"])])]
    )
    total, (summed, shape) = evaluate(f, [ones(2), (ones(2), ones(5))])
    assert total.tolist() == [2, 2]
    assert summed == 5 and shape == (5,)


def test_split_gives_a_tuple() -> None:
    x = var("x", Tensor("4"))
    a, b = op.split(x, 2)
    assert evaluate(pure_function("f", [x], [a - b]), [np.arange(4, dtype=np.float32)]).tolist() == [-2, -2]


def test_module_functions_have_sizes_of_their_own() -> None:
    x = var("x", Tensor("n"))
    double = pure_function("double", [x], [x * Dim.of("n")])
    y = var("y", Tensor("n m"))
    called = call_function(function_ref(double), [op.reshape(y, -1)])
    main = pure_function("main", [y], [called])
    assert evaluate(Module((double, main)), [ones(2, 3)]).tolist() == [6] * 6


def test_match_cast_defines_sizes_and_checks_them() -> None:
    x = var("x", Tensor("n"))
    unknown = call_dps_library("jax.unique", [x], Tensor(ndim=1, dtype="float32"))
    cast = match_cast(unknown, Tensor("u"))
    v, g = var("v", cast.annotation), var("g", Tensor("u"))
    f = Function("f", (x,), (Block((Binding(v, cast),), False), Block((Binding(g, v * Dim.of("u")),))), g)

    def unique(call: Expr, operands: list[Any], sizes: dict[str, int]) -> Any:
        assert call.attr("name") == "jax.unique" and sizes == {"n": 4}
        return np.unique(operands[0])

    assert evaluate(f, [np.array([1, 2, 1, 2], np.float32)], libraries=unique).tolist() == [2, 4]
    with pytest.raises(OperatorError, match=r"library call `jax.unique`: pass `libraries`"):
        evaluate(f, [ones(4)])
    with pytest.raises(ShapeError, match="axis 0 should be 3, got 4"):
        evaluate_expr(match_cast(x, Tensor("n")), {x: ones(4)}, {"n": 3})


def test_sizes_no_argument_tells() -> None:
    f = pure_function("f", [], [op.arange("n")])
    assert evaluate(f, [], sizes={"n": 3}).tolist() == [0, 1, 2]


def test_unbound_variable() -> None:
    with pytest.raises(WellFormedError, match="variable `x` is used before it is defined"):
        evaluate_expr(op.exp(var("x", Tensor("n"))), {}, {"n": 1})


def test_deep_and_shared() -> None:
    x = var("x", Tensor(""))
    e = x
    for _ in range(3000):
        e = e + e if e is x else e + const(1.0)
    assert evaluate(pure_function("f", [x], [e]), [np.float32(1)]) == 3001
    for _ in range(60):  # 2**60 paths, 60 nodes
        e = e - e
    assert evaluate_expr(e, {x: np.float32(1)}, {}) == 0
