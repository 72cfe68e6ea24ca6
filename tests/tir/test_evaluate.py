"""Evaluation of programs against numpy, typed; see test_exact for the exact domain."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_eg.errors import BoundsError, ShapeError
from relax_eg.shapes import Dim, dim_max, dim_min, dim_select
from relax_eg.tir import (
    Buffer,
    PatternKind,
    Scalar,
    TensorProgram,
    apply,
    argmax,
    argmin,
    axes,
    cast,
    classify,
    compute,
    const,
    evaluate,
    exp,
    index,
    less,
    loops,
    max_,
    min_,
    prod_,
    program,
    reduce,
    select,
    sum_,
    within,
)

M, K, N = map(Dim.var, "mkn")
A = Buffer("A", (M, K), "float32")
B = Buffer("B", (K, N), "float32")
P, Q, R, S = loops("p q r s")

extents = st.integers(0, 5)
seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def one(body: TensorProgram, *arrays: np.ndarray, ordered: bool = False, **sizes: int) -> np.ndarray:
    (result,) = evaluate(body, arrays, sizes, ordered=ordered)
    return result


def rowwise(x: Buffer, value: Callable[[Scalar], Scalar]) -> TensorProgram:
    """`Y[i] = value(X[i, r])`."""
    return program("rowwise", (x,), compute("Y", x.shape[:1], lambda i: value(x[i, R])))


MATMUL = program("matmul", (A, B), compute("Y", (M, N), lambda i, j: sum_(A[i, R] * B[R, j], over=(R, K))))


@given(extents, extents, extents, seeds, st.booleans())
def test_matmul(m: int, k: int, n: int, seed: int, ordered: bool) -> None:
    a, b = normal(seed, m, k), normal(seed + 1, k, n)
    result = one(MATMUL, a, b, ordered=ordered, m=m, k=k, n=n)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, a @ b, rtol=1e-5, atol=1e-5)


def softmax() -> TensorProgram:
    def value(i: Dim, j: Dim):
        top = max_(A[i, R], over=(R, K))
        return exp(A[i, j] - top) / sum_(exp(A[i, S] - top), over=(S, K))

    return program("softmax", (A,), compute("Y", (M, K), value))


@given(extents, extents, seeds, st.booleans())
def test_softmax(m: int, k: int, seed: int, ordered: bool) -> None:
    x = normal(seed, m, k)
    shifted = np.exp(x - x.max(1, keepdims=True, initial=-np.inf))
    expected = shifted / shifted.sum(1, keepdims=True)
    np.testing.assert_allclose(one(softmax(), x, ordered=ordered, m=m, k=k), expected, rtol=1e-5)


@given(extents, extents, st.integers(1, 4), seeds)
def test_reshape(m: int, k: int, by: int, seed: int) -> None:
    rows = M * K // by

    def value(i: Dim, j: Dim):
        return A[(i * by + j) // K, (i * by + j) % K]

    if m * k % by == 0:
        x = normal(seed, m, k)
        body = program("reshape", (A,), compute("Y", (rows, by), value))
        np.testing.assert_array_equal(one(body, x, m=m, k=k), x.reshape(m * k // by, by))


@given(extents, extents, extents, seeds)
def test_concat(m: int, n: int, k: int, seed: int) -> None:
    below = Buffer("B", (N, K), "float32")
    body = program(
        "concat", (A, below), compute("Y", (M + N, K), lambda i, j: select(less(i, M), A[i, j], below[i - M, j]))
    )
    a, b = normal(seed, m, k), normal(seed + 1, n, k)
    np.testing.assert_array_equal(one(body, a, b, m=m, n=n, k=k), np.concatenate([a, b]))


GATHER_FROM = Buffer("T", (N,), "int32")
GATHER = program("gather", (A, GATHER_FROM), compute("Y", (N, K), lambda i, j: A[GATHER_FROM[i], j]))


@given(st.integers(1, 5), extents, extents, seeds)
def test_gather(m: int, k: int, n: int, seed: int) -> None:
    a, at = normal(seed, m, k), np.random.default_rng(seed).integers(0, m, n).astype(np.int32)
    np.testing.assert_array_equal(one(GATHER, a, at, m=m, k=k, n=n), a[at])


def test_transpose_broadcast_and_diagonal() -> None:
    x = normal(0, 3, 4)
    transpose = program("t", (A,), compute("Y", (K, M), lambda i, j: A[j, i]))
    np.testing.assert_array_equal(one(transpose, x, m=3, k=4), x.T)
    rows = program("b", (A,), compute("Y", (2, K, M), lambda a, i, j: A[j, i]))
    np.testing.assert_array_equal(one(rows, x, m=3, k=4), np.broadcast_to(x.T, (2, 4, 3)))
    diagonal = program("d", (A,), compute("Y", (dim_min(M, K),), lambda i: A[i, i]))
    np.testing.assert_array_equal(one(diagonal, x, m=3, k=4), np.diag(x))
    flipped = program("f", (A,), compute("Y", (M, K), lambda i, j: A[M - 1 - i, j]))
    np.testing.assert_array_equal(one(flipped, x, m=3, k=4), x[::-1])


def test_convolution_with_padding() -> None:
    image, kernel = Buffer("X", (1, 2, 5, 6), "float32"), Buffer("W", (3, 2, 3, 3), "float32")

    def value(n: Dim, o: Dim, y: Dim, x: Dim):
        c, u, v = loops("c u v")
        at = (2 * y + u - 1, x + v - 1)
        inside = within(0, at[0], 5) & within(0, at[1], 6)
        return sum_(select(inside, image[n, c, *at], 0) * kernel[o, c, u, v], over=[(c, 2), (u, 3), (v, 3)])

    body = program("conv", (image, kernel), compute("Y", (1, 3, 3, 6), value))
    a, w = normal(0, 1, 2, 5, 6), normal(1, 3, 2, 3, 3)
    padded = np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros((1, 3, 3, 6), np.float32)
    for y in range(3):
        for x in range(6):
            expected[:, :, y, x] = np.tensordot(padded[:, :, 2 * y : 2 * y + 3, x : x + 3], w, ([1, 2, 3], [1, 2, 3]))
    for ordered in (False, True):
        np.testing.assert_allclose(one(body, a, w, ordered=ordered), expected, rtol=1e-4, atol=1e-5)


def test_min_and_max_in_an_index() -> None:
    clamped = program("edge", (A,), compute("Y", (M + 2, K), lambda i, j: A[dim_max(0, dim_min(i - 1, M - 1)), j]))
    x = normal(0, 3, 4)
    np.testing.assert_array_equal(one(clamped, x, m=3, k=4), np.pad(x, ((1, 1), (0, 0)), mode="edge"))


def test_a_select_in_an_index() -> None:
    def folded(i: Dim, j: Dim) -> Scalar:
        return A[dim_select(i % 2, "==", 0, i // 2, M - 1 - i // 2), dim_select(j, "<", 2, 0, j)]

    body = program("folded", (A,), compute("Y", (M, K), folded))
    x = normal(0, 5, 4)
    np.testing.assert_array_equal(one(body, x, m=5, k=4), x[[0, 4, 1, 3, 2]][:, [0, 0, 2, 3]])


def test_a_scalar_program() -> None:
    x = Buffer("X", (), "float32")
    body = program("s", (x,), compute("Y", (), lambda: x[()] * 2 + 1))
    result = one(body, np.array(3, np.float32))
    assert result.shape == ()
    assert result == 7


def test_stages_and_several_outputs() -> None:
    partial = compute("P", (2, M), lambda s, i: sum_(A[i, s * 2 + R], over=(R, 2)))
    total = compute("Y", (M,), lambda i: sum_(partial[R, i], over=(R, 2)))
    x = normal(0, 3, 4)
    np.testing.assert_allclose(one(program("p", (A,), partial, total), x, m=3, k=4), x.sum(1), rtol=1e-5)
    both = evaluate(program("p", (A,), partial, total, outputs=("Y", "P")), [x], {"m": 3, "k": 4})
    assert [result.shape for result in both] == [(3,), (2, 3)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("ordered", [False, True])
def test_reductions_over_nothing(dtype: str, ordered: bool) -> None:
    x = Buffer("X", (2, 0), dtype)
    empty = np.zeros((2, 0), np.dtype(dtype))

    def of(kind: str) -> np.ndarray:
        return one(rowwise(x, lambda row: reduce(kind, row, (R, 0))), empty, ordered=ordered)

    least, greatest = of("max")[0], of("min")[0]
    if dtype == "bool":
        assert (not least) and greatest
        assert (not of("any")[0]) and of("all")[0]
        return
    if "float" in dtype:
        assert (float(least), float(greatest)) == (-np.inf, np.inf)
    else:
        assert (least, greatest) == (np.iinfo(dtype).min, np.iinfo(dtype).max)
    assert [float(of(kind)[0]) for kind in ("sum", "prod")] == [0, 1]
    assert of("sum").dtype == np.dtype(dtype)
    with pytest.raises(BoundsError, match="argmax needs an element"):
        of("argmax")


def test_argmax_takes_the_first_and_nan_wins() -> None:
    x = np.array([[1, 3, 3, 0], [1, np.nan, 5, np.nan]], np.float32)
    for dtype in ("float32", "bfloat16"):
        buffer = Buffer("X", (2, 4), dtype)
        for find, expected in ((argmax, [1, 1]), (argmin, [3, 1])):
            for ordered in (False, True):
                body = rowwise(buffer, lambda row, find=find: find(row, (R, 4), "int32"))
                result = one(body, x.astype(np.dtype(dtype)), ordered=ordered)
                assert result.dtype == np.int32
                assert result.tolist() == expected


def test_max_and_min_propagate_nan() -> None:
    x = np.array([[1, np.nan, 2]], np.float32)
    for dtype in ("float16", "bfloat16", "float32"):
        buffer = Buffer("X", (1, 3), dtype)
        for reduction in (max_, min_):
            for ordered in (False, True):
                body = rowwise(buffer, lambda row, reduction=reduction: reduction(row, (R, 3)))
                assert np.isnan(one(body, x.astype(np.dtype(dtype)), ordered=ordered).astype(np.float32)).all()


def test_ordered_is_a_left_fold_from_the_first_element() -> None:
    x = normal(0, 2, 1000)
    buffer = Buffer("X", (2, 1000), "float32")
    body = program("sum", (buffer,), compute("Y", (2,), lambda i: sum_(buffer[i, R], over=(R, 1000))))
    expected = x[:, 0]
    for column in x.T[1:]:
        expected = expected + column
    np.testing.assert_array_equal(one(body, x, ordered=True), expected)
    minus = program("sum", (buffer,), compute("Y", (2,), lambda i: sum_(buffer[i, R], over=(R, 1))))
    assert np.signbit(one(minus, np.full((2, 1000), -0.0, np.float32), ordered=True)).all()
    several = program("sum", (A,), compute("Y", (), lambda: sum_(A[P, Q], over=[(Q, K), (P, M)])))
    grid = normal(1, 30, 20)
    fold = np.float32(0)
    for number in grid.T.reshape(-1):
        fold = fold + number
    assert one(several, grid, ordered=True, m=30, k=20) == fold


def test_low_precision_folds_round_each_step() -> None:
    buffer = Buffer("X", (4096,), "bfloat16")
    body = program("sum", (buffer,), compute("Y", (), lambda: sum_(buffer[R], over=(R, 4096))))
    ones = np.ones(4096, ml_dtypes.bfloat16)
    assert float(one(body, ones, ordered=True)) == 256  # where 256 + 1 rounds to 256
    assert float(one(body, ones)) == 4096


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_products(dtype: str) -> None:
    a, b = Buffer("A", (M, K), dtype), Buffer("B", (K, N), dtype)
    body = program("mm", (a, b), compute("Y", (M, N), lambda i, j: sum_(a[i, R] * b[R, j], over=(R, K))))
    x, y = normal(0, 3, 40).astype(np.dtype(dtype)), normal(1, 40, 2).astype(np.dtype(dtype))
    result = one(body, x, y, m=3, k=40, n=2)
    assert result.dtype == np.dtype(dtype)
    expected = (x.astype(np.float32) @ y.astype(np.float32)).astype(np.dtype(dtype))
    np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))


def test_a_sum_over_what_the_product_does_not_depend_on() -> None:
    body = program("s", (A, B), compute("Y", (M,), lambda i: sum_(A[i, 0] * B[R, 0], over=[(R, K), (S, 7)])))
    a, b = normal(0, 3, 4), normal(1, 4, 2)
    np.testing.assert_allclose(one(body, a, b, m=3, k=4, n=2), 7 * a[:, 0] * b[:, 0].sum(), rtol=1e-5)
    single = program("s", (A,), compute("Y", (M,), lambda i: sum_(A[i, 0], over=(S, 7))))
    np.testing.assert_allclose(one(single, a, m=3, k=4), 7 * a[:, 0], rtol=1e-5)
    power = program("s", (A,), compute("Y", (M,), lambda i: prod_(A[i, 0], over=(S, 3))))
    np.testing.assert_allclose(one(power, a, m=3, k=4), a[:, 0] ** 3, rtol=1e-5)


def test_integers_wrap() -> None:
    x = Buffer("X", (3,), "int8")
    for ordered in (False, True):
        body = program("w", (x,), compute("Y", (), lambda: sum_(x[R] * 2, over=(R, 3))))
        assert one(body, np.array([100, 100, 100], np.int8), ordered=ordered) == 600 - 512


def test_an_unguarded_read_out_of_range_is_named() -> None:
    shifted = program("shift", (A,), compute("Y", (M, K), lambda i, j: A[i + 1, j]))
    with pytest.raises(BoundsError, match=r"shift: A\[i \+ 1, j\] reads A at i \+ 1 = 3 on axis 0, whose extent is 3"):
        one(shifted, normal(0, 3, 4), m=3, k=4)
    assert one(shifted, normal(0, 3, 0), m=3, k=0).shape == (3, 0)  # no element, no read
    with pytest.raises(BoundsError, match=r"reads A at T\[i\] = 3"):
        one(GATHER, normal(0, 3, 1), np.array([0, 3], np.int32), m=3, k=1, n=2)


def test_select_is_lazy_in_nested_branches() -> None:
    def value(i: Dim):
        return select(less(i, 2), const(0, "float32"), select(less(i, 4), A[i - 2, 0], A[i - 4, 1] * A[i - 4, 1]))

    x = normal(0, 2, 2)
    result = one(program("n", (A,), compute("Y", (6,), value)), x, m=2, k=2)
    np.testing.assert_array_equal(result, [0, 0, *x[:, 0], *(x[:, 1] * x[:, 1])])
    wrong = program("n", (A,), compute("Y", (6,), lambda i: select(less(i, 5), A[dim_max(i - 2, 0), 0], 0)))
    with pytest.raises(BoundsError, match="= 2 on axis 0"):
        one(wrong, x, m=2, k=2)


def test_guarded_reads_of_an_empty_buffer() -> None:
    body = program("pad", (A,), compute("Y", (M + 2, K), lambda i, j: select(within(1, i, M + 1), A[i - 1, j], 7)))
    assert one(body, normal(0, 0, 3), m=0, k=3).tolist() == [[7] * 3] * 2


def test_masks_and_iota() -> None:
    triangle = program("tril", (), compute("Y", (3, 3), lambda i, j: select(less(i, j), const(0, "int8"), 1)))
    assert one(triangle).tolist() == np.tril(np.ones((3, 3), int)).tolist()
    iota = program("iota", (), compute("Y", (4,), lambda i: index(i * 2 + M, "bfloat16")))
    assert one(iota, m=1).astype(float).tolist() == [1, 3, 5, 7]


def test_long_chains_do_not_recurse() -> None:
    def value(i: Dim, j: Dim):
        term = A[i, j] * 1
        for _ in range(3000):
            term = term + 1
        return term

    body = program("chain", (A,), compute("Y", (M, K), value))
    np.testing.assert_allclose(one(body, np.zeros((2, 2), np.float32), m=2, k=2), 3000)


def test_inputs_must_fit() -> None:
    with pytest.raises(ShapeError, match="takes 2 arrays"):
        one(MATMUL, normal(0, 1, 1), m=1, k=1, n=1)
    with pytest.raises(ShapeError, match=r"A: \(m, k\) float32 is \(2, 1\) at m=2"):
        one(MATMUL, normal(0, 1, 1), normal(0, 1, 1), m=2, k=1, n=1)
    with pytest.raises(ShapeError, match="got an array of float64"):
        one(MATMUL, np.zeros((1, 1)), np.zeros((1, 1)), m=1, k=1, n=1)
    with pytest.raises(BoundsError, match="is -1 at"):
        one(program("s", (A,), compute("Y", (M - 2,), lambda i: A[i, 0])), normal(0, 1, 1), m=1, k=1)
    with pytest.raises(BoundsError, match="no value for the variable `n`"):
        evaluate(MATMUL, [normal(0, 1, 1), normal(0, 1, 1)], {"m": 1, "k": 1})


CASTS = [
    ("float32", "int32", [1.9, -1.9, 1e20, -1e20, np.nan, np.inf], [1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1]),
    ("float32", "int64", [1.9, 1e30, -1e30, np.nan], [1, 2**63 - 1, -(2**63), 0]),
    ("float64", "uint8", [-0.5, -3, 255, 255.9, 300], [0, 0, 255, 255, 255]),
    ("bfloat16", "int8", [1.5, -300], [1, -128]),
    ("int32", "int8", [127, 128, -129], [127, -128, 127]),
    ("int32", "float16", [3, 100000], [3, np.inf]),
    ("int32", "bool", [0, 2], [False, True]),
    ("bfloat16", "bool", [0, -0.0, 2, np.nan], [False, False, True, True]),
    ("bool", "bfloat16", [False, True], [0, 1]),
    ("complex64", "float32", [1 + 2j], [1]),
    ("float32", "complex64", [1.5], [1.5]),
    ("int32", "int4", [7, 9], [7, -7]),
]


@pytest.mark.parametrize(("source", "target", "given", "expected"), CASTS)
def test_casts(source: str, target: str, given: list[float], expected: list[float]) -> None:
    x = Buffer("X", (len(given),), source)
    body = program("cast", (x,), compute("Y", x.shape, lambda i: cast(x[i], target)))
    result = one(body, np.array(given).astype(np.dtype(source)))
    assert result.dtype == np.dtype(target)
    assert [complex(r) for r in result] == [complex(e) for e in expected]


def test_axes_name_loops_of_any_rank() -> None:
    at = axes(2)
    body = program("t", (A,), compute("Y", (M, K), lambda *i: apply("negative", A[i])))
    assert body.stages[0].indices == at
    x = normal(0, 2, 3)
    np.testing.assert_array_equal(one(body, x, m=2, k=3), -x)


def test_powers_of_shared_terms_are_summed_without_blowing_up() -> None:
    def value(i: Dim) -> Scalar:
        term = A[i, R]
        for _ in range(30):
            term = term * term
        return sum_(term, over=(R, K))

    body = program("power", (A,), compute("Y", (M,), value))
    np.testing.assert_array_equal(one(body, np.ones((2, 3), np.float32), m=2, k=3), [3, 3])
    assert classify(body) is PatternKind.REDUCTION
