"""The exact domain: identities hold exactly, non-identities are seen, what has no value is UNDEFINED."""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_eg.shapes import Dim
from relax_eg.tir import (
    UNDEFINED,
    Buffer,
    Scalar,
    TensorProgram,
    any_,
    apply,
    argmax,
    cast,
    compute,
    const,
    evaluate,
    exp,
    less,
    log,
    loops,
    max_,
    maximum,
    program,
    rsqrt,
    select,
    sigmoid,
    sqrt,
    sum_,
)
from relax_eg.tir.exact import to_exact, uninterpreted_value

M, K, N = map(Dim.var, "mkn")
A = Buffer("A", (M, K), "float32")
B = Buffer("B", (K, N), "float32")
V = Buffer("V", (N,), "float32")
R, S = loops("r s")
X = Buffer("X", (N,), "float32")


def fractions(seed: int, *shape: int) -> np.ndarray:
    draw = random.Random(seed)
    array = np.empty(shape, object)
    for at in np.ndindex(shape):
        array[at] = Fraction(draw.randint(-50, 50), draw.randint(1, 20))
    return array


def exactly(body: TensorProgram, *arrays: Any, **sizes: int) -> np.ndarray:
    (result,) = evaluate(body, arrays, sizes, arithmetic="exact")
    assert result.dtype == object
    return result


def pointwise(value: Scalar, dtype: str | None = None) -> TensorProgram:
    """`Y[i] = value`, over X."""
    return program("pointwise", (X,), compute("Y", (N,), lambda i: value, dtype))


(I_,) = loops("i")
x = X[I_]


def at(value: Scalar, *points: Any) -> list[Any]:
    return exactly(pointwise(value), np.array(points, object), n=len(points)).tolist()


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 99))
def test_matmul_vector_associates(m: int, k: int, n: int, seed: int) -> None:
    product = compute("P", (M, N), lambda i, j: sum_(A[i, R] * B[R, j], over=(R, K)))
    left = program("l", (A, B, V), product, compute("Y", (M,), lambda i: sum_(product[i, R] * V[R], over=(R, N))))
    image = compute("Q", (K,), lambda i: sum_(B[i, R] * V[R], over=(R, N)))
    right = program("r", (A, B, V), image, compute("Y", (M,), lambda i: sum_(A[i, R] * image[R], over=(R, K))))
    arrays = fractions(seed, m, k), fractions(seed + 1, k, n), fractions(seed + 2, n)
    sizes = {"m": m, "k": k, "n": n}
    assert exactly(left, *arrays, **sizes).tolist() == exactly(right, *arrays, **sizes).tolist()


def test_a_wrong_identity_is_seen() -> None:
    square = Buffer("A", (N, N), "float32")
    other = Buffer("B", (N, N), "float32")
    ab = program("l", (square, other), compute("Y", (N, N), lambda i, j: sum_(square[i, R] * other[R, j], over=(R, N))))
    ba = program("r", (square, other), compute("Y", (N, N), lambda i, j: sum_(other[i, R] * square[R, j], over=(R, N))))
    arrays = fractions(0, 2, 2), fractions(1, 2, 2)
    assert exactly(ab, *arrays, n=2).tolist() != exactly(ba, *arrays, n=2).tolist()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (exp(x * 2), exp(x + x)),
        (sqrt(x) / sqrt(x), None),
        (rsqrt(x), 1 / sqrt(x)),
        (sigmoid(x), 1 / (1 + exp(-x))),
        (apply("expm1", x), exp(x) - 1),
        (apply("log1p", x), log(1 + x)),
        (apply("tan", x), apply("sin", x) / apply("cos", x)),
        (apply("erfc", x), 1 - apply("erf", x)),
        (x**3, x * x * x),
        (x**-2, 1 / (x * x)),
        (x ** const(2, "float32"), x * x),
        (apply("square", x), x * x),
        (maximum(x, 0), (x + abs(x)) / 2),
        (apply("floor_divide", x, 3), apply("floor", x / 3)),
        (apply("floor_mod", x, 3), x - 3 * apply("floor", x / 3)),
        (apply("remainder", x, 3), x - 3 * apply("trunc", x / 3)),
        (apply("clamp", -1, x, 1), apply("minimum", maximum(x, -1), 1)),
        (cast(cast(x, "float16"), "float32"), x),
        (cast(cast(x, "int32"), "float32"), apply("trunc", x)),
        (select(less(0, x), x, -x), abs(x)),
    ],
)
def test_identities(left: Scalar, right: Scalar | None) -> None:
    points = [Fraction(7, 3), Fraction(-5, 2), 4, -9, Fraction(1, 7)]
    assert at(left, *points) == ([1] * 5 if right is None else at(right, *points))


@pytest.mark.parametrize(
    ("left", "right"),
    [(exp(x) * exp(x), exp(x)), (sqrt(x) + 1, sqrt(x + 1)), (log(x), exp(x)), (abs(x), x), (x * 0.5, x)],
)
def test_non_identities(left: Scalar, right: Scalar) -> None:
    assert at(left, Fraction(-7, 3)) != at(right, Fraction(-7, 3))


def test_uninterpreted_functions_depend_on_value_and_name_alone() -> None:
    assert uninterpreted_value("exp", Fraction(4, 2)) == uninterpreted_value("exp", 2)
    assert uninterpreted_value("exp", 2) != uninterpreted_value("exp", 3)
    assert uninterpreted_value("sin", 2) != uninterpreted_value("cos", 2)
    assert all(uninterpreted_value("exp", n) > 0 for n in range(-50, 50))
    assert at(exp(x), 0, -np.inf, np.inf) == [1, 0, np.inf]


def test_what_has_no_value_is_undefined_and_spreads() -> None:
    assert at(1 / x, 0, 2) == [UNDEFINED, Fraction(1, 2)]
    assert at((1 / x) * 0 + 1, 0, 2) == [UNDEFINED, 1]
    assert at(apply("remainder", x, x), 0) == [UNDEFINED]
    assert at(x - x, np.inf, np.nan, 3) == [UNDEFINED, UNDEFINED, 0]
    assert at(select(1 / x > 0, x, 1), 0, 2, -2) == [UNDEFINED, 2, 1]
    assert at(select(x > 0, 1 / x, 0), 0, 2) == [0, Fraction(1, 2)]  # not selected, not computed
    assert at(cast(1 / x, "int32"), 0) == [UNDEFINED]
    assert at(sigmoid(1 / x), 0) == [UNDEFINED]
    total = program("t", (X,), compute("Y", (), lambda: sum_(1 / X[R], over=(R, N))))
    assert exactly(total, np.array([1, 0], object), n=2).item() is UNDEFINED
    best = program("t", (X,), compute("Y", (), lambda: argmax(1 / X[R], over=(R, N))))
    assert exactly(best, np.array([1, 0], object), n=2).item() is UNDEFINED
    assert exactly(best, np.array([3, 1, 1], object), n=3).item() == 1
    some = program("t", (X,), compute("Y", (), lambda: any_(X[R] > 2, over=(R, N))))
    assert exactly(some, np.array([3, 1, 1], object), n=3).item() is True


def test_an_undefined_index_reads_undefined() -> None:
    positions = cast(1 / X[I_], "int32")
    body = program("t", (X,), compute("Y", (N,), lambda i: X[positions]))
    assert exactly(body, np.array([0, 1], object), n=2).tolist() == [UNDEFINED, 1]


def test_infinities() -> None:
    top = program("t", (X,), compute("Y", (), lambda: max_(X[R], over=(R, N))))
    assert exactly(top, np.empty(0, object), n=0).item() == -np.inf
    huge = 10**400
    assert at(maximum(x, const(-np.inf, "float32")), huge, -np.inf) == [huge, -np.inf]
    assert at(x + const(np.inf, "float32"), huge, -np.inf) == [np.inf, UNDEFINED]
    assert at(1 / x, np.inf) == [0]
    assert at(x * const(-np.inf, "float32"), huge, -3, 0) == [-np.inf, np.inf, UNDEFINED]
    assert at(apply("is_finite", x), 1, np.inf) == [True, False]


def test_softmax_of_masked_rows_sums_to_one() -> None:
    def value(i: Dim, j: Dim) -> Scalar:
        def masked(at: Dim) -> Scalar:
            return select(less(at, 2), A[i, at], -np.inf)

        top = max_(masked(R), over=(R, K))
        return exp(masked(j) - top) / sum_(exp(masked(S) - top), over=(S, K))

    result = exactly(program("s", (A,), compute("Y", (M, K), value)), fractions(0, 3, 4), m=3, k=4)
    assert [sum(row) for row in result.tolist()] == [1, 1, 1]
    assert (result[:, 2:] == 0).all()


def test_integers_wrap_as_in_their_dtype() -> None:
    ints = Buffer("X", (N,), "uint8")
    values = [0, 1, 200, 255]
    for term in (ints[I_] * ints[I_], -ints[I_], ~ints[I_], ints[I_] << 3, ints[I_] >> 3, ints[I_] - 1):
        body = program("w", (ints,), compute("Y", (N,), lambda i, term=term: term))
        (typed,) = evaluate(body, [np.array(values, np.uint8)], {"n": 4})
        assert exactly(body, np.array(values, object), n=4).tolist() == typed.tolist()
    assert at(cast(cast(x, "int32"), "int8"), 130, -300) == [-126, -44]
    assert at(cast(x, "int8"), 130, Fraction(-5, 2)) == [127, -2]


def test_complex_numbers_are_tested_on_the_real_line() -> None:
    z = Buffer("X", (N,), "complex64")
    body = program("c", (z,), compute("Y", (N,), lambda i: apply("real", z[i] * z[i])))
    assert exactly(body, np.array([2, 3], object), n=2).tolist() == [
        uninterpreted_value("real", 4),
        uninterpreted_value("real", 9),
    ]
    absolute = program("c", (z,), compute("Y", (N,), lambda i: apply("abs", z[i])))
    assert exactly(absolute, np.array([2], object), n=1).tolist() == [uninterpreted_value("abs", 2)]
    assert to_exact(2j) == uninterpreted_value("complex", 0, 2)


def test_numeric_inputs_keep_their_exact_values() -> None:
    half = np.array([0.5, 0.1], np.float32)
    assert exactly(pointwise(x * 1), half, n=2).tolist() == [Fraction(1, 2), Fraction(float(half[1]))]
    low = Buffer("X", (N,), "bfloat16")
    body = program("b", (low,), compute("Y", (N,), lambda i: low[i] + 1))
    assert exactly(body, half.astype(np.dtype("bfloat16")), n=2)[0] == Fraction(3, 2)
