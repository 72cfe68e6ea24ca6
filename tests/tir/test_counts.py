"""Flops and bytes read off the equations."""

import pytest

from relax_eg.shapes import Dim, dim_min
from relax_eg.tir import (
    Buffer,
    Counts,
    Scalar,
    cast,
    compute,
    count,
    exp,
    index,
    less,
    loops,
    max_,
    program,
    select,
    sum_,
    within,
)
from relax_eg.tir.functions import DIVIDE, TRANSCENDENTAL

M, K, N = map(Dim.var, "mkn")
P, Q, R, S = loops("p q r s")
A = Buffer("A", (M, K), "float32")
B = Buffer("B", (K, N), "float32")
ROW = Buffer("ROW", (K,), "float32")
AT = Buffer("AT", (N,), "int32")


def of(*stages, inputs=(A, B, ROW, AT)) -> Counts:
    return count(program("p", inputs, *stages))


def reads(shape, value, *inputs: Buffer) -> Dim:
    return of(compute("Y", shape, value), inputs=inputs).bytes_read


def test_matmul() -> None:
    product = of(compute("Y", (M, N), lambda i, j: sum_(A[i, R] * B[R, j], over=(R, K))))
    assert product == Counts(2 * M * N * K, 4 * (M * K + K * N), 4 * M * N)


def test_elementwise_and_broadcast() -> None:
    added = of(compute("Y", (M, K), lambda i, j: A[i, j] + ROW[j]))
    assert added == Counts(M * K, 4 * (M * K + K), 4 * M * K)
    assert of(compute("Y", (M, K), lambda i, j: exp(A[i, j]) / 2)).flops == M * K * (TRANSCENDENTAL + DIVIDE)
    moved = of(compute("Y", (K, M), lambda i, j: cast(A[j, i], "float16")))
    assert moved == Counts(Dim.of(0), 4 * M * K, 2 * M * K)


def test_equal_terms_count_once() -> None:
    def gelu(i: Dim, j: Dim) -> Scalar:
        return exp(A[i, j]) * exp(A[i, j])

    assert of(compute("Y", (M, K), gelu)).flops == M * K * (TRANSCENDENTAL + 1)


def test_softmax_hoists_its_reductions() -> None:
    def value(i: Dim, j: Dim) -> Scalar:
        top = max_(A[i, R], over=(R, K))
        return exp(A[i, j] - top) / sum_(exp(A[i, S] - top), over=(S, K))

    counts = of(compute("Y", (M, K), value))
    per_point = 1 + 2 * (TRANSCENDENTAL + 1) + 1 + DIVIDE
    assert counts == Counts(M * K * per_point, 4 * M * K, 4 * M * K)
    total = of(compute("Y", (M, K), lambda i, j: A[i, j] - sum_(A[P, Q], over=[(P, M), (Q, K)])))
    assert total.flops == 2 * M * K


def test_arithmetic_on_indices_is_free() -> None:
    padded = of(compute("Y", (M + 2, K), lambda i, j: select(within(1, i, M + 1), A[i - 1, j], 0)))
    assert padded == Counts(Dim.of(0), 4 * M * K, 4 * (M + 2) * K)
    assert of(compute("Y", (M,), lambda i: exp(index(i, "float32")))).flops == M * TRANSCENDENTAL


@pytest.mark.parametrize(
    ("shape", "value", "elements"),
    [
        ((3, K), lambda i, j: A[i, j], 3 * K),
        ((3, K), lambda i, j: A[i * 2 + 5, j], 3 * K),
        ((K,), lambda j: A[7, j], K),
        ((M, K), lambda i, j: A[M - 1 - i, j], M * K),
        ((M,), lambda i: A[i, i], M),
        ((2, M, K), lambda a, i, j: A[i, j], M * K),
        ((M * K,), lambda i: A[i // K, i % K], M * K),
        ((2 * M, K), lambda i, j: A[i // 2, j], M * K),
        ((M, K), lambda i, j: A[i, j] + A[i, 0], M * K),
        ((M - 2, K), lambda i, j: A[i, j] + A[i + 1, j] + A[i + 2, j], M * K),
        ((M - 2, K), lambda i, j: sum_(A[i + R, j], over=(R, 3)), M * K),
        ((8, K), lambda i, j: sum_(A[i * 2 + R, j], over=(R, 3)), 17 * K),
        ((8, K), lambda i, j: sum_(A[i * 4 + R, j], over=(R, 3)), 24 * K),
        ((M, K), lambda i, j: select(less(i, 4), A[i, j], A[0, 0]), M * K),
        ((N, K), lambda i, j: A[AT[i], j], dim_min(M, N) * K),
    ],
)
def test_elements_read(shape, value, elements: Dim) -> None:
    found = reads(shape, value, A, AT)
    at = {"m": 100, "k": 7, "n": 5}
    table = 4 * at["n"] if "AT" in str(compute("Y", shape, value)) else 0
    assert found.evaluate(at) == 4 * elements.evaluate(at) + table


def test_convolution_reads_each_pixel_once() -> None:
    image, kernel = Buffer("X", (1, 3, N, N), "float32"), Buffer("W", (8, 3, 3, 3), "float32")

    def value(n: Dim, o: Dim, y: Dim, x: Dim) -> Scalar:
        return sum_(image[n, P, y + Q, x + R] * kernel[o, P, Q, R], over=[(P, 3), (Q, 3), (R, 3)])

    counts = of(compute("Y", (1, 8, N - 2, N - 2), value), inputs=(image, kernel))
    assert counts.bytes_read == 4 * (3 * N * N + 8 * 27)
    assert counts.flops == 2 * 27 * 8 * (N - 2) * (N - 2)


def test_concat_reads_each_part() -> None:
    other = Buffer("C", (N, K), "float32")
    counts = of(compute("Y", (M + N, K), lambda i, j: select(less(i, M), A[i, j], other[i - M, j])), inputs=(A, other))
    assert counts == Counts(Dim.of(0), 4 * (M + N) * K, 4 * (M + N) * K)


def test_locals_are_no_traffic() -> None:
    partial = compute("P", (8, M), lambda s, i: sum_(A[i, s * 4 + R], over=(R, 4)))
    total = compute("Y", (M,), lambda i: sum_(partial[R, i], over=(R, 8)))
    assert of(partial, total) == Counts(40 * M, 4 * 32 * M, 4 * M)
    assert count(program("p", (A,), partial, total, outputs=("P", "Y"))).bytes_written == 4 * 9 * M


@pytest.mark.parametrize(("dtype", "size"), [("bool", 1), ("int4", 1), ("bfloat16", 2), ("complex64", 8)])
def test_item_sizes(dtype: str, size: int) -> None:
    x = Buffer("X", (N,), dtype)
    assert of(compute("Y", (N,), lambda i: x[i]), inputs=(x,)) == Counts(Dim.of(0), size * N, size * N)


def test_the_value_of_long_chains_is_counted_without_recursion() -> None:
    def value(i: Dim, j: Dim) -> Scalar:
        term = A[i, j] * 1
        for _ in range(3000):
            term = term + term
        return term

    assert of(compute("Y", (M, K), value)).flops == 3001 * M * K
