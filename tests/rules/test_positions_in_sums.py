"""Positions, masks and one-hot matrices by their index equations: what is proposed, what it computes, what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir import Expr, postorder
from relax_eg.ir.expr import VAR
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.record import call
from relax_eg.rules.book.sum_products import sum_products
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.rules.verify_formal.prove import why_not_equal

(SAME_SUM,) = sum_products.schemas
INDEX = rx.Tensor("k", "int32")
MASK = rx.Tensor("n m", "bool")


def one_hot(i: Any, n: Any) -> Any:
    return jax.nn.one_hot(i, n)


def forms(fn: Callable[..., Any], *specs: Any) -> tuple[Expr, list[Expr]]:
    """The result of a program, and what is proposed for it."""
    given = [s if isinstance(s, rx.Tensor) else rx.Tensor(s) for s in specs]
    root = rx.trace(fn, *given).main.blocks[-1].bindings[-1].value
    return root, list(SAME_SUM.proposals(root, ModuleAnswers({}, (), postorder([root]))))


def used(e: Expr) -> set[str]:
    return {x.op for x in postorder([e])}


# A program over operands of the given shapes, an operator that a form has, and one that it no longer has.
Case = tuple[str, Callable[..., Any], tuple[Any, ...], str, str]
CASES: list[Case] = [
    ("reversed rows", lambda x: jnp.eye(x.shape[0])[::-1] @ x, ("n m",), "flip", "matmul"),
    ("reversed columns", lambda x: x @ jnp.flip(jnp.eye(x.shape[1]), 0), ("n m",), "flip", "matmul"),
    ("reversed batch", lambda x: jnp.einsum("ij,bjk->bik", jnp.eye(x.shape[1])[::-1], x), ("b n m",), "flip", "matmul"),
    ("rolled", lambda x: jnp.roll(jnp.eye(5), 2, 0) @ x, ("5 m",), "concat", "matmul"),
    ("rolled back", lambda x: x @ jnp.roll(jnp.eye(5), -1, 1), ("m 5",), "concat", "matmul"),
    ("selected", lambda x: jnp.eye(6)[1:4] @ x, ("6 m",), "strided_slice", "matmul"),
    ("every second", lambda x: jnp.eye(6)[::2] @ x, ("6 m",), "strided_slice", "matmul"),
    ("every second from the end", lambda x: jnp.eye(6)[::-2] @ x, ("6 m",), "flip", "matmul"),
    ("shifted, zeros put in", lambda x: jnp.eye(5, k=1) @ x, ("5 m",), "concat", "matmul"),
    ("one-hot rows", lambda i, t: one_hot(i, t.shape[0]) @ t, (INDEX, "n m"), "gather", "matmul"),
    ("one-hot by comparison", lambda i, v: (i[:, None] == jnp.arange(v.shape[0])).astype(v.dtype) @ v, (INDEX, "n"),
     "gather", "matmul"),
    ("selected from rows", lambda x, i: jnp.sum(one_hot(i, x.shape[1]) * x, 1), ("k n", INDEX), "gather", "sum"),
    ("masked from rows", lambda x, i: jnp.sum(jnp.where(jnp.arange(x.shape[1]) == i[:, None], x, 0.0), 1),
     ("k n", INDEX), "gather", "sum"),
    ("taken and one-hot", lambda i, t: jnp.take(jnp.eye(t.shape[0]), i, 0, mode="clip") @ t, (INDEX, "n m"),
     "gather", "matmul"),
    ("diagonal", lambda a: jnp.sum(jnp.eye(a.shape[0]) * a, 1), ("n n",), "gather", "sum"),
    ("segments", lambda i, x: one_hot(i, 300).T @ x, (INDEX, "k m"), "scatter", "matmul"),
    ("counts", lambda i: jnp.sum(one_hot(i, 300), 0), (INDEX,), "scatter", "sum"),
    ("running sum", lambda v: jnp.tri(v.shape[0]) @ v, ("n",), "cumsum", "matmul"),
    ("running sums of columns", lambda x: jnp.tri(x.shape[0]) @ x, ("n m",), "cumsum", "matmul"),
    ("running sums of rows", lambda x: x @ jnp.tri(x.shape[1]).T, ("n m",), "cumsum", "matmul"),
    ("from the end", lambda v: jnp.tri(v.shape[0]).T @ v, ("n",), "cumsum", "matmul"),
    ("sum of what is before", lambda v: jnp.tri(v.shape[0], k=-1) @ v, ("n",), "cumsum", "matmul"),
    ("sum of what is before, and two more", lambda v: jnp.tri(v.shape[0], k=2) @ v, ("n",), "cumsum", "matmul"),
    ("sum of what is behind", lambda v: jnp.tri(v.shape[0], k=-1).T @ v, ("n",), "cumsum", "matmul"),
    ("sum of what is behind, and one more", lambda v: jnp.tri(v.shape[0], k=1).T @ v, ("n",), "cumsum", "matmul"),
    ("by a mask", lambda v: jnp.sum(jnp.where(jnp.tri(v.shape[0], dtype=bool), v, 0.0), 1), ("n",), "cumsum", "sum"),
    ("lengths", lambda v: jnp.sum(jnp.tri(v.shape[0]), 1) * v, ("n",), "iota", "sum"),
    ("numbers as a mask", lambda c, x: jnp.where(c, 1.0, 0.0) * x, (MASK, "n m"), "where", "multiply"),
    ("what a mask leaves out", lambda c, x: (~c).astype(x.dtype) * x, (MASK, "n m"), "where", "multiply"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "specs", "there", "gone"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_is_proposed(fn: Callable[..., Any], specs: tuple[Any, ...], there: str, gone: str) -> None:
    root, found = forms(fn, *specs)
    chosen = [e for e in found if there in used(e) and gone not in used(e)]
    assert chosen
    rng = np.random.default_rng(0)
    params = [e for e in postorder([root]) if e.op == VAR]
    names = {v for p in params for d in p.shape for v in d.variables}
    # Empty axes, axes of one element, and axes that are shorter than the constants in the program.
    for size in (0, 1, 2, 7):
        sizes = {v: size + (v == "m") for v in sorted(names)}
        values = {p: _drawn(rng, p, sizes) for p in params}
        expected = evaluate_expr(root, values, sizes)
        for e in chosen:
            np.testing.assert_allclose(evaluate_expr(e, values, sizes), expected, rtol=1e-5, atol=1e-5)


def _drawn(rng: np.random.Generator, p: Expr, sizes: dict[str, int]) -> Any:
    shape = tuple(d.evaluate(sizes) for d in p.shape)
    if p.dtype == "int32":  # positions in and out of range
        return rng.integers(-3, 9, shape).astype(np.int32)
    return rng.integers(2, size=shape) > 0 if p.dtype == "bool" else rng.standard_normal(shape).astype(np.float32)


RUN: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda i, t: one_hot(i, t.shape[0]) @ t, (INDEX, "n m")),
    (lambda x, i: jnp.sum(one_hot(i, x.shape[1]) * x, 1), ("k n", INDEX)),
    (lambda i, x: one_hot(i, 300).T @ x, (INDEX, "k m")),
    (lambda a: jnp.sum(jnp.eye(a.shape[0]) * a, 1), ("n n",)),
]


@pytest.mark.parametrize(("fn", "specs"), RUN, ids=range(len(RUN)))
@pytest.mark.parametrize("n", [0, 3])
def test_compiled_with_and_without_elements(fn: Callable[..., Any], specs: tuple[Any, ...], n: int) -> None:
    sizes = {"n": n, "m": 2, "k": 5}
    shapes = [[sizes[w] for w in ("k" if s is INDEX else s).split()] for s in specs]
    best = rx.optimize(
        fn, *(rx.Tensor(tuple(d), "int32" if s is INDEX else "float32") for d, s in zip(shapes, specs, strict=True))
    )
    rng = np.random.default_rng(n)
    args = [
        rng.integers(-2, 6, d).astype(np.int32) if s is INDEX else rng.standard_normal(d).astype(np.float32)
        for d, s in zip(shapes, specs, strict=True)
    ]
    np.testing.assert_allclose(best(*args), fn(*args), rtol=1e-5, atol=1e-6)


def test_a_triangle_turned_twice_is_the_other_triangle() -> None:
    best = rx.optimize(lambda a: jnp.tril(a.T).T, "n n", at={"n": 512}, target="cpu")
    assert "permute_dims" not in {r.op for r in best.report.after.rows}
    a = np.arange(12, dtype=np.float32).reshape(4, 3)[:3]
    np.testing.assert_array_equal(best(a), np.triu(a))


# A condition, and the same as another program; None for a constant.
CONDITIONS: list[tuple[Callable[..., Any], bool | None]] = [
    (lambda x: jnp.arange(x.shape[0]) < x.shape[0], True),
    (lambda x: jnp.arange(x.shape[0]) >= 0, True),
    (lambda x: jnp.arange(x.shape[0]) < 0, False),
    (lambda x: jnp.arange(x.shape[0])[:, None] + 1 <= 0, False),
    (lambda x: ~(jnp.arange(x.shape[0]) < 0) & (jnp.arange(x.shape[0]) <= x.shape[0]), True),
    (lambda x: jnp.arange(x.shape[0]) < x.shape[1], None),
    (lambda x: jnp.arange(x.shape[0]) > 0, None),
    (lambda x: jnp.arange(x.shape[0]) < x.shape[0] - 1, None),
]


@pytest.mark.parametrize(("fn", "value"), CONDITIONS, ids=range(len(CONDITIONS)))
def test_conditions_on_positions(fn: Callable[..., Any], value: bool | None) -> None:
    _, found = forms(fn, "n m")
    constants = [e for e in found if used(e) <= {"constant", "expand_dims", "broadcast_to", "full"}]
    assert bool(constants) == (value is not None)
    assert all(set(evaluate_expr(e, {}, {"n": 3, "m": 2}).ravel().tolist()) == {value} for e in constants)


def test_joined_conditions_are_one() -> None:
    def both(x: Any) -> Any:
        rows, columns = jnp.arange(x.shape[0])[:, None], jnp.arange(x.shape[1])
        return (rows <= columns) & (rows >= columns)

    _, found = forms(both, "n n")
    assert any("equal" in used(e) and "logical_and" not in used(e) for e in found)


LEFT: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    # Neither a triangle nor a shift: which elements are summed depends on data.
    (lambda x, i: jnp.where(jnp.arange(x.shape[1]) <= i[:, None], x, 0.0), ("k n", INDEX)),
    # A choice between two values stays a choice.
    (lambda c, x: jnp.where(c, x, 1.0), (MASK, "n m")),
    # A condition on numbers that have rounding errors is none on positions.
    (lambda x: x > 0, ("n m",)),
]


@pytest.mark.parametrize(("fn", "specs"), LEFT, ids=range(len(LEFT)))
def test_what_is_left_as_written(fn: Callable[..., Any], specs: tuple[Any, ...]) -> None:
    assert forms(fn, *specs)[1] == []


def test_lookups_of_neighbouring_positions_are_not_confused() -> None:
    x, i = rx.ir.expr.var("x", rx.Tensor("n m")), rx.ir.expr.var("i", INDEX)
    mask = op.equal(op.expand_dims(i, 1), op.expand_dims(op.iota((x.shape[0],), 0), 0))
    product = op.matmul(op.astype(mask, "float32"), x)
    assert why_not_equal(product, op.take(x, i, 0, mode="clip"), (x, i), 2.0)  # which clamps
    assert why_not_equal(product, op.take(x, i, 0, mode="fill"), (x, i), 2.0)  # which is NaN out of range


def test_a_scatter_that_overwrites_is_no_sum() -> None:
    x, i = rx.ir.expr.var("x", rx.Tensor("k")), rx.ir.expr.var("i", INDEX)
    mask = op.equal(op.expand_dims(op.iota((4,), 0), 1), op.expand_dims(i, 0))
    product = op.matmul(op.astype(mask, "float32"), x)
    numbers = {"mode": "fill", "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,)}
    for kind, why in (("add", ""), ("set", "scatter has no index equations")):
        made = call("scatter", (op.zeros((4,), "float32"), op.expand_dims(i, 1), x), {"kind": kind, **numbers})
        assert why_not_equal(product, made, (x, i), 2.0) == why


def test_half_precision_is_not_added_up_in_half_precision() -> None:
    """Sums in float16 are accumulated in float32 as written; a scatter rounds after each update."""
    _, found = forms(lambda i, x: one_hot(i, 4).astype("float16").T @ x, INDEX, rx.Tensor("k m", "float16"))
    assert all("scatter" not in used(e) for e in found)


def test_a_gather_of_slices_that_never_fit_is_filled() -> None:
    numbers = {"collapsed_slice_dims": (0,), "start_index_map": (0,), "offset_dims": (1,)}
    x, i = rx.ir.expr.var("x", rx.Tensor("n m")), rx.ir.expr.var("i", rx.Tensor("k 1", "int32"))
    e = call("gather", (x, i), {"slice_sizes": (1, x.shape[1]), "mode": "fill", "fill_value": 7, **numbers})
    values = {x: np.zeros((0, 2), np.float32), i: np.zeros((3, 1), np.int32)}
    np.testing.assert_array_equal(evaluate_expr(e, values, {"n": 0, "m": 2, "k": 3}), np.full((3, 2), 7.0))
