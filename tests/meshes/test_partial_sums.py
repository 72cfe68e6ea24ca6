"""Sums that stay partial through several operators: where they may, and what is sent then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relax_eg as rx
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.placements import PARTIAL_SUM
from relax_eg.meshes.strategies import SplitStrategy, strategies
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.shapes import Dim


def tensor(name: str, *shape: int, dtype: str = "float32") -> Expr:
    return var(name, Tensor(tuple(Dim.of(n) for n in shape), dtype))


def passing(e: Expr) -> list[SplitStrategy]:
    return [s for s in strategies(e.op, [a.annotation for a in e.args], e.attrs, e.annotation) if s.passes]


X, Y, B = tensor("x", 4, 6), tensor("y", 4, 6), tensor("b", 4, 6, dtype="bool")
PASSING: dict[str, tuple[Expr, set[tuple[int, ...]]]] = {
    "add": (op.add(X, Y), {(0, 1)}),
    "subtract": (op.subtract(X, Y), {(0, 1)}),
    "multiply": (op.multiply(X, Y), {(0,), (1,)}),
    "divide": (op.divide(X, Y), {(0,)}),
    "negative": (op.negative(X), {(0,)}),
    "scale": (op.multiply(X, op.const(2.0, "float32")), {(0,), (1,)}),
    "matmul": (op.matmul(X, tensor("w", 6, 3)), {(0,), (1,)}),
    "transpose": (op.permute_dims(X, (1, 0)), {(0,)}),
    "reshape": (op.reshape(X, (3, 8)), {(0,)}),
    "slice": (op.strided_slice(X, (1, 0), (4, 6), (2, 1)), {(0,)}),
    "concat": (op.concat([X, Y], 1), {(0, 1)}),
    "sum": (op.sum(X, 1), {(0,)}),
    "mean": (op.mean(X, 1), {(0,)}),
    "where": (op.where(B, X, Y), {(1, 2)}),
    "widening": (op.astype(X, "float64"), {(0,)}),
    "narrowing": (op.astype(X, "bfloat16"), set()),
    "to integers": (op.astype(X, "int32"), set()),
    "integers": (op.divide(tensor("i", 4, dtype="int32"), tensor("j", 4, dtype="int32")), set()),
    "tanh": (op.tanh(X), set()),
    "square": (op.multiply(X, X), {(0,), (1,)}),  # of two copies; the same value has one part for both
    "largest": (op.max(X, 1), set()),
    "add a number": (op.add(X, op.const(1.0, "float32")), {(0, 1)}),
    "softmax": (op.softmax(X, 1), set()),
}


@pytest.mark.parametrize("name", PASSING)
def test_which_operators_pass_sums_follows_from_their_equations(name: str) -> None:
    e, wanted = PASSING[name]
    found = {tuple(i for i, p in enumerate(s.operands) if p == PARTIAL_SUM) for s in passing(e)}
    assert found == wanted and all(s.result == PARTIAL_SUM and s.whole for s in passing(e))


@pytest.mark.parametrize("name", [n for n in PASSING if PASSING[n][1] and n != "widening"])
@given(st.integers(0, 2**32 - 1))
def test_partial_sums_make_a_partial_sum(name: str, seed: int) -> None:
    """Three devices have parts of a sum and compute the operator on them; their results sum up to that of the sum."""
    e, _ = PASSING[name]
    rng = np.random.default_rng(seed)
    free = {a: rng.normal(size=[int(d) for d in a.shape]).astype(np.float32) for a in e.args if a.op == "var"}
    free |= {a: free[a] > 0 for a in free if a.dtype == "bool"}
    for s in passing(e):
        summed = {a for a, p in zip(e.args, s.operands, strict=True) if p == PARTIAL_SUM}
        whole = {a for a, p in zip(e.args, s.operands, strict=True) if p != PARTIAL_SUM}
        if not summed <= free.keys() or summed & whole:
            continue
        parts = [{a: rng.normal(size=x.shape).astype(np.float32) if a in summed else x for a, x in free.items()}
                 for _ in range(3)]  # fmt: skip
        joined = {a: sum(p[a] for p in parts) if a in summed else x for a, x in free.items()}
        total = sum(evaluate_expr(e, p, {}) for p in parts)
        np.testing.assert_allclose(total, evaluate_expr(e, joined, {}), rtol=1e-3, atol=1e-4, err_msg=str(s))


N = 2048
TWO = f"64 {N}", f"{N} 512", f"64 {N}", f"{N} 512"
ROWS = {"x": "S[1]", "y": "S[1]", "v": "S[0]", "w": "S[0]"}
SENDING: dict[str, tuple[Callable[..., Any], tuple[str, ...], float]] = {
    # a program, its specs, and the bytes of the one sum that is sent
    "two sums are one": (lambda x, v, y, w: x @ v + y @ w, TWO, 64 * 512 * 4),
    "scaled and turned": (lambda x, v, y, w: (2 * (x @ v)).T - (y @ w).T / 3, TWO, 64 * 512 * 4),
    "what is small is sent": (lambda x, v, u: (x @ v) @ u, (f"2048 {N}", f"{N} 2048", "2048 1"), 2048 * 4),
    "a slice is sent": (lambda x, v: (x @ v)[:, :8], (f"4096 {N}", f"{N} 512"), 4096 * 8 * 4),
    "with what is whole": (lambda x, v, y, w, z: z + x @ v + y @ w, (*TWO, "64 512"), 64 * 512 * 4),
}


@pytest.mark.parametrize("name", SENDING)
def test_one_sum_is_sent(name: str) -> None:
    fn, specs, wanted = SENDING[name]
    names = fn.__code__.co_varnames[: len(specs)]
    best = rx.spread(fn, *specs, mesh={"x": 8}, target="h100", outputs="R", inputs={n: ROWS.get(n, "R") for n in names})
    (sent,) = best.spreading.sent
    assert (sent.kind, sent.before, sent.bytes) == ("all-reduce", "P[sum]", wanted), sent


def test_a_sum_that_is_not_linear_is_sent_before() -> None:
    def fn(x: Any, v: Any, y: Any, w: Any) -> Any:
        return jnp.tanh(x @ v) + y @ w

    best = rx.spread(fn, *TWO, mesh={"x": 8}, target="h100", outputs="R", inputs=ROWS)
    assert [s.before for s in best.spreading.sent].count("P[sum]") == 2


def test_gradients_of_one_operand_are_one_sum() -> None:
    """The backward pass of three products with columns that are split: Megatron's one sum, not three."""

    def layer(x: Any, q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ q) * jnp.tanh(x @ k) * jnp.tanh(x @ v))

    specs = "256 1024", "1024 1024", "1024 1024", "1024 1024"
    columns = {"x": "R", **dict.fromkeys("qkv", "S[1]")}
    best = rx.spread(jax.grad(layer), *specs, mesh={"x": 8}, target="h100", inputs=columns, outputs="R")
    assert [s.kind for s in best.spreading.sent] == ["all-reduce"], best.spreading
