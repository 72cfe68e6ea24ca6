"""Algebra across calls of a module's functions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir
from relax_eg.ops.interpret import evaluate

MM = """
def mm(a: R.Tensor(("m", "k"), "float32"), b: R.Tensor(("k", "n"), "float32")) -> R.Tensor(("m", "n"), "float32"):
    return a @ b
"""


def calls(module: ir.Module) -> list[ir.Expr]:
    return [e for f in module for e in f.expressions() if e.op == ir.CALL]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agree(best: Any, module: ir.Module, *args: Any) -> None:
    wanted, got = evaluate(module, args), best(*args)
    for a, b in zip(
        wanted if isinstance(wanted, tuple) else [wanted], got if isinstance(got, tuple) else [got], strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


CHAIN = (
    MM
    + """
def main(a: R.Tensor(("p", "p"), "float32"), b: R.Tensor(("p", "p"), "float32"), v: R.Tensor(("p",), "float32")):
    w = mm(a, b)
    return w @ v
"""
)


def test_a_product_across_a_call_associates() -> None:
    module = rx.parse(CHAIN)
    best = rx.optimize(module, at={"p": 1024})
    assert best.report.predicted_gain > 20 and not calls(best.module)
    assert [f.name for f in best.module] == ["main"]
    assert best.report.rules["matmul_vector_associates"]
    agree(best, module, normal(3, 3), normal(3, 3, seed=1), normal(3, seed=2))
    assert rx.optimize(module, at={"p": 1024}, rules=rx.rules.default - "calls_inlined").report.predicted_gain == 1.0
    explained = best.explain()
    assert "calls_inlined" in [s.rule for s in explained.steps]
    assert best.certificate().verify(rx.rules.default)


DEEP = (
    MM
    + """
def twice(a: R.Tensor(("m", "m"), "float32"), b: R.Tensor(("m", "m"), "float32")) -> R.Tensor(("m", "m"), "float32"):
    return mm(mm(a, b), b)
def pair(a: R.Tensor(("m", "m"), "float32")) -> R.Tuple(R.Tensor(("m", "m"), "float32"), R.Shape(("m", "2*m"))):
    return (twice(a, a), R.shape(("m", "2*m")))
def main(a: R.Tensor(("p", "p"), "float32"), v: R.Tensor(("p",), "float32"), w: R.Tensor((64, 64), "float32")):
    w = pair(a)
    return (w[0] @ v, mm(R.permute_dims(w), w))
""".replace("w: R.Tensor((64, 64)", "u: R.Tensor((64, 64)").replace(
        "mm(R.permute_dims(w), w)", "mm(R.permute_dims(u), u)"
    )
)


def test_calls_in_calls_tuples_shapes_and_other_sizes() -> None:
    module = rx.parse(DEEP)
    best = rx.optimize(module, at={"p": 512})
    main = best.module.main
    assert best.report.predicted_gain > 5
    assert not [e for e in main.expressions() if e.op == "matmul" and e.shape == main.params[0].shape]
    agree(best, module, normal(3, 3), normal(3, seed=1), normal(64, 64, seed=2))


def test_what_does_not_fit_for_sure_stays_a_call() -> None:
    """Whether b has as many rows as a has columns is looked at when it is called."""
    text = CHAIN.replace('b: R.Tensor(("p", "p"), "float32"), v', 'b: R.Tensor(("q", "p"), "float32"), v')
    module = rx.parse(text)
    best = rx.optimize(module, at={"p": 1024, "q": 1024}, dynamic="exact")
    assert len(calls(best.module)) == 1
    agree(best, module, normal(3, 3), normal(3, 3, seed=1), normal(3, seed=2))
    with pytest.raises(rx.errors.ShapeError):
        best(normal(3, 3), normal(4, 3), normal(3))


def chain(depth: int, wide: int, uses: int) -> str:
    """A chain of functions, each of which calls the next `uses` times."""
    square = 'R.Tensor(("m", "m"), "float32")'
    body = [f"    a{i} = R.exp({f'a{i - 1}' if i else 'a'})" for i in range(wide)]
    lines = [f"def f{depth}(a: {square}) -> {square}:", *body, f"    return a{wide - 1}"]
    for i in reversed(range(depth)):
        inner = "a"
        for _ in range(uses):
            inner = f"f{i + 1}({inner})"
        lines += [f"def f{i}(a: {square}) -> {square}:", f"    return {inner}"]
    return "\n".join([*lines, f'def main(a: {square}, v: R.Tensor(("m",), "float32")):', "    return f0(a) @ v\n"])


@pytest.mark.parametrize(("depth", "wide", "uses"), [(40, 3, 1), (99, 1, 1), (10, 3, 2), (1, 300, 1), (1, 40, 2)])
def test_the_growth_is_bounded_and_chains_may_be_deep(depth: int, wide: int, uses: int) -> None:
    """A function that is called once grows nothing; of one that is called often 12 operators stand for a call."""
    module = rx.parse(chain(depth, wide, uses))
    best = rx.optimize(module, at={"m": 32}, budget=rx.Budget(seconds=20.0))
    before = sum(len(f.expressions()) for f in module)
    assert sum(len(f.expressions()) for f in best.module) <= 2 * before
    if uses == 1 or depth == 1:
        agree(best, module, normal(2, 2) / 100, normal(2, seed=1))


def test_random_modules_with_calls_mean_the_same() -> None:
    rng = np.random.default_rng(0)
    square = 'R.Tensor(("m", "m"), "float32")'
    inlined = 0
    for _, _ in itertools.product(range(6), range(1)):
        bodies = ["a @ b", "R.permute_dims(a) @ b", "a + R.tanh(b)", "R.sum(a, axes=(1,), keepdims=True) * b"]
        lines: list[str] = []
        for i in range(3):
            body = bodies[rng.integers(4)]
            if i:
                body = f"f{rng.integers(i)}({body}, b)" if rng.integers(2) else f"f{rng.integers(i)}(a, b) @ b"
            lines += [f"def f{i}(a: {square}, b: {square}) -> {square}:", f"    return {body}"]
        text = (
            "\n".join(lines)
            + f"""
def main(a: {square}, b: {square}, v: R.Tensor(("m",), "float32")):
    x = f2(a, b)
    y = f1(b, x)
    return (x @ v, y @ v)
"""
        )
        module = rx.parse(text)
        best = rx.optimize(module, at={"m": 256})
        inlined += len(calls(best.module)) < len(calls(module))
        agree(best, module, normal(3, 3), normal(3, 3, seed=1), normal(3, seed=2))
    assert inlined > 3


def test_calls_in_a_row_are_limited() -> None:
    assert rx.optimize(rx.parse(chain(99, 1, 1)), budget=rx.Budget(seconds=1.0)).report
    with pytest.raises(rx.errors.WellFormedError, match="`main` calls functions that call others, 101 in a row"):
        rx.optimize(rx.parse(chain(100, 1, 1)))
