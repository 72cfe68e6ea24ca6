"""What a tensor program has to do: which factors a contraction is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import relax_eg as rx
from relax_eg.ir.expr import postorder
from relax_eg.ops.fused import fused_call
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, TensorProgram, compute, loops, program, sum_
from relax_eg.tir.work import work

M, K, N = map(Dim.var, "mkn")
NONE = Dim.of(0)
(R,) = loops("r")
A, B = Buffer("A", (M, K), "float32"), Buffer("B", (K, N), "float32")
SCALE, ROW, VECTOR = Buffer("SCALE", (), "float32"), Buffer("ROW", (M,), "float32"), Buffer("VECTOR", (K,), "float32")


def test_a_scale_is_no_side_of_a_contraction() -> None:
    for scale in (lambda i: SCALE[()], lambda i: ROW[i]):
        p = program(
            "p", (A, B, SCALE, ROW), compute("Y", (M, N), lambda i, j, s=scale: sum_(A[i, R] * s(i) * B[R, j], (R, K)))
        )
        (found,) = work(p).contractions
        assert (found.batch, found.rows, found.columns, found.depth) == (Dim.of(1), M, N, K)


def test_a_matrix_and_a_vector() -> None:
    p = program("p", (A, VECTOR), compute("Y", (M,), lambda i: sum_(A[i, R] * VECTOR[R], (R, K))))
    (found,) = work(p).contractions
    assert (found.rows, found.columns, found.depth) == (M, Dim.of(1), K)
    assert found.made == NONE


def composed(fn: Callable[..., Any], *specs: str) -> TensorProgram:
    """The one kernel that all of `fn` is."""
    result = rx.trace(fn, *specs).main.blocks[-1].bindings[-1].value
    members = [e for e in postorder([result]) if e.args]
    return fused_call(members, [result]).attr("program").value


def test_what_a_contraction_computes_its_operands_from_and_what_becomes_of_its_value() -> None:
    (plain,) = work(composed(lambda x, w: x @ w.T, "m k", "n k")).contractions
    assert (plain.made, plain.result, plain.reduced, plain.online) == (NONE, NONE, False, False)
    (before,) = work(composed(lambda x, w: jnp.exp(x) @ w, "m k", "k n")).contractions
    assert (before.made, before.sources, before.result) == (M * K * 4, M * K * 4, NONE)
    # A factor of each row is multiplied into what has rows, not summed apart.
    (scaled,) = work(composed(lambda x, r, w: (x * r[:, None]) @ w, "m k", "m", "k n")).contractions
    assert (scaled.made, scaled.sources) == (M * K * 4, M * K * 4 + M * 4)
    (after,) = work(composed(lambda x, w: jax.nn.silu(x @ w), "m k", "k n")).contractions
    assert (after.made, after.result, after.reduced) == (NONE, M * N * 4, False)


def test_attention_is_told_by_its_exponentials() -> None:
    program = composed(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, "m k", "n k", "n k")
    scores, values = work(program).contractions
    assert (scores.made, scores.result, scores.reduced, scores.online) == (NONE, M * N * 4, True, False)
    assert (values.made, values.result, values.online) == (M * N * 4, NONE, True)
    norm = composed(lambda x, w: (x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True))) @ w, "m k", "k n")
    assert [c.online for c in work(norm).contractions] == [False]
