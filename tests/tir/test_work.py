"""What a tensor program has to do: which factors a contraction is of."""

from __future__ import annotations

from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, compute, loops, program, sum_
from relax_eg.tir.work import work

M, K, N = map(Dim.var, "mkn")
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
