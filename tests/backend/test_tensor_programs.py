"""Tensor programs as JAX functions give what the reference evaluator gives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import QUICKLY
from hypothesis import given, settings

from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.errors import BoundsError, RelaxEgError, ShapeError
from relax_eg.shapes import Dim, dim_max, dim_min, dim_select
from relax_eg.tir import (
    Buffer,
    Index,
    Scalar,
    TensorProgram,
    any_,
    argmax,
    cast,
    compute,
    const,
    evaluate,
    exp,
    less,
    loops,
    max_,
    min_,
    prod_,
    program,
    select,
    sum_,
    within,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "tir"))
from tir_strategies import SIZES, arrays_for, programs

M, K, N = map(Dim.var, "mkn")
A = Buffer("A", (M, K), "float32")
B = Buffer("B", (K, N), "float32")
R, S = loops("r s")


def run(p: TensorProgram, arrays: Sequence[Any], sizes: Mapping[str, int], **options: Any) -> list[Any]:
    lowered = jax.jit(lower_program(p, sizes, **options), compiler_options=QUICKLY)
    return [np.asarray(x) for x in lowered(*arrays)]


def same(p: TensorProgram, sizes: Mapping[str, int], seed: int = 0, **options: Any) -> None:
    """Lowering and reference agree on random arrays, on whole numbers exactly."""
    arrays = arrays_for(p, dict(sizes), seed)
    for got, want in zip(run(p, arrays, sizes, **options), evaluate(p, arrays, sizes), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(p))


def primitives(p: TensorProgram, sizes: Mapping[str, int], **options: Any) -> set[str]:
    """The names of what the lowering is made of."""
    structs = [
        jax.ShapeDtypeStruct(tuple(int(d.evaluate(sizes)) for d in b.shape), np.dtype(b.dtype)) for b in p.parameters
    ]
    found: set[str] = set()
    todo = [jax.make_jaxpr(lower_program(p, sizes, **options))(*structs).jaxpr]
    while todo:
        for equation in todo.pop().eqns:
            found.add(equation.primitive.name)
            todo += [x.jaxpr for x in equation.params.values() if hasattr(x, "jaxpr")]
    return found


@settings(max_examples=30)
@given(programs())
def test_random_programs(p: TensorProgram) -> None:
    cases: list[tuple[dict[str, int], list[Any], list[Any]]] = []
    for sizes in (*SIZES, {"n": 1, "m": 1}, {"n": 0, "m": 2}, {"n": 2, "m": 0}):
        arrays = arrays_for(p, sizes)
        try:
            cases.append((sizes, arrays, evaluate(p, arrays, sizes)))
        except BoundsError:
            continue

    def every(given: Sequence[Sequence[Any]]) -> list[Any]:
        return [lower_program(p, sizes)(*xs) for (sizes, _, _), xs in zip(cases, given, strict=True)]

    found = jax.jit(every, compiler_options=QUICKLY)([arrays for _, arrays, _ in cases])
    for (sizes, _, wanted), results in zip(cases, found, strict=True):
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{p} at {sizes}")


# --- what programs become ---

MATMUL = program("matmul", (A, B), compute("Y", (M, N), lambda i, j: sum_(A[i, R] * B[R, j], (R, K))))
LOW_A, LOW_B = Buffer("A", (M, K), "float16"), Buffer("B", (K, N), "float16")
# Casts of the operands, of the product, of the result: one contraction that sums in float32.
CASTS = [
    lambda i, j: sum_(cast(LOW_A[i, R], "float32") * cast(LOW_B[R, j], "float32"), (R, K)),
    lambda i, j: sum_(cast(LOW_A[i, R] * LOW_B[R, j], "float32"), (R, K)),
    lambda i, j: cast(sum_(cast(LOW_A[i, R] * LOW_B[R, j], "float32"), (R, K)), "float16"),
]


@pytest.mark.parametrize("value", CASTS, ids=range(len(CASTS)))
def test_contractions_keep_the_accumulator(value: Callable[..., Scalar]) -> None:
    p = program("matmul", (LOW_A, LOW_B), compute("Y", (M, N), value))
    sizes = {"m": 3, "k": 40, "n": 4}
    structs = [jax.ShapeDtypeStruct((3, 40), np.float16), jax.ShapeDtypeStruct((40, 4), np.float16)]
    text = str(jax.make_jaxpr(lower_program(p, sizes))(*structs))
    assert "preferred_element_type=float32" in text and text.count("dot_general") == 1
    same(p, sizes)


CONTRACTIONS: list[tuple[TensorProgram, dict[str, int]]] = [
    (MATMUL, {"m": 3, "k": 4, "n": 5}),
    (MATMUL, {"m": 1, "k": 4, "n": 1}),
    (MATMUL, {"m": 1, "k": 4, "n": 5}),
    (program("nt", (A, Buffer("B", (N, K), "float32")),
             compute("Y", (M, N), lambda i, j: exp(
                 sum_(A[i, R] * Buffer("B", (N, K), "float32")[j, R], (R, K)) * 0.1))),
     {"m": 3, "k": 4, "n": 5}),
    (program("batched", (Buffer("X", (2, M, K), "float32"), Buffer("W", (2, K, N), "float32")),
             compute("Y", (2, M, N), lambda b, i, j: sum_(
                 Buffer("X", (2, M, K), "float32")[b, i, R] * Buffer("W", (2, K, N), "float32")[b, R, j], (R, K)))),
     {"m": 3, "k": 4, "n": 5}),
    (program("three", (A, B, Buffer("D", (N, M), "float32")),
             compute("Y", (M, M), lambda i, j: sum_(
                 A[i, R] * B[R, S] * Buffer("D", (N, M), "float32")[S, j], [(R, K), (S, N)]))),
     {"m": 3, "k": 4, "n": 5}),
    (program("masked", (A, B), compute("Y", (M, N), lambda i, j: sum_(
        select(less(R, i + 1), A[i, R], 0) * (B[R, j] + 1), (R, K)))), {"m": 3, "k": 4, "n": 5}),
    (program("split_k", (A, B), compute("P", (2, M, N), lambda s, i, j: sum_(
        A[i, s * (K // 2) + R] * B[s * (K // 2) + R, j], (R, K // 2)))), {"m": 3, "k": 6, "n": 5}),
    (program("backwards", (A, B), compute("Y", (M, N), lambda i, j: sum_(A[M - 1 - i, R] * B[K - 1 - R, j], (R, K)))),
     {"m": 3, "k": 4, "n": 5}),
    (program("diagonal", (Buffer("Q", (K, K), "float32"), B), compute("Y", (N,), lambda j: sum_(
        Buffer("Q", (K, K), "float32")[R, R] * B[R, j], (R, K)))), {"k": 4, "n": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("p", "sizes"), CONTRACTIONS, ids=lambda v: getattr(v, "name", ""))
def test_contractions(p: TensorProgram, sizes: dict[str, int]) -> None:
    same(p, sizes)
    assert not {"gather", "while"} & primitives(p, sizes)
    # One row makes no difference; a vector times a matrix along one axis does, where a sum is fused with what it sums.
    assert ("dot_general" in primitives(p, sizes)) == (p.name != "diagonal")


def test_integers_wrap_before_they_are_widened() -> None:
    a, b = Buffer("A", (M, K), "int8"), Buffer("B", (K, N), "int8")
    p = program("wraps", (a, b), compute("Y", (M, N), lambda i, j: sum_(cast(a[i, R] * b[R, j], "int32"), (R, K))))
    wide = program("wide", (a, b), compute("Y", (M, N), lambda i, j: sum_(
        cast(a[i, R], "int32") * cast(b[R, j], "int32"), (R, K))))  # fmt: skip
    arrays = [np.full((2, 3), 100, np.int8), np.full((3, 2), 100, np.int8)]
    sizes = {"m": 2, "k": 3, "n": 2}
    for q in (p, wide):
        np.testing.assert_array_equal(run(q, arrays, sizes)[0], evaluate(q, arrays, sizes)[0])
    assert (run(wide, arrays, sizes)[0] == 30_000).all() and (run(p, arrays, sizes)[0] == 48).all()


def window_program(places: int, stride: int, dilation: int, pad: int, groups: int = 1) -> TensorProgram:
    x, w = Buffer("X", (M, 4, 9), "float32"), Buffer("W", (6, 4 // groups, 3), "float32")

    def value(b: Dim, o: Dim, p: Dim) -> Scalar:
        at = stride * p + dilation * S - pad
        channel = o // (6 // groups) * (4 // groups) + R
        read = select(within(0, at, 9), x[b, channel, at], 0) if pad else x[b, channel, at]
        return sum_(read * w[o, R, S], [(R, 4 // groups), (S, 3)])

    return program("windows", (x, w), compute("Y", (M, 6, places), value))


@pytest.mark.parametrize("case", [(7, 1, 1, 0), (9, 1, 1, 1), (4, 2, 1, 1), (5, 1, 2, 0), (5, 2, 1, 1, 2)])
def test_convolutions(case: tuple[int, ...]) -> None:
    p = window_program(*case)
    for m in (1, 2):
        same(p, {"m": m})
        assert "conv_general_dilated" in primitives(p, {"m": m}) and "gather" not in primitives(p, {"m": m})


def test_a_guard_that_is_not_the_padding_is_no_convolution() -> None:
    x, w = Buffer("X", (9,), "float32"), Buffer("W", (4, 3), "float32")
    p = program("odd", (x, w), compute("Y", (4, 7), lambda o, i: sum_(
        select(within(1, i + S, 9), x[i + S], 0) * w[o, S], (S, 3))))  # fmt: skip
    assert "conv_general_dilated" not in primitives(p, {})
    same(p, {})


def one(value: Callable[..., Any], shape: tuple[Any, ...], *inputs: Buffer) -> TensorProgram:
    return program("p", inputs, compute("Y", shape, value))


FLAT = Buffer("F", (M * K,), "float32")
READS: list[tuple[TensorProgram, bool]] = [
    (one(lambda i, j: A[j, i], (K, M), A), True),
    (one(lambda i, j: A[(i * 6 + j) // 4, (i * 6 + j) % 4], (4, 6), Buffer("A", (6, 4), "float32")), True),
    (one(lambda i, j: FLAT[i * K + j], (M, K), FLAT), True),
    (one(lambda i: A[i // K, i % K], (M * K,), A), True),
    (one(lambda i, j: A[M - 1 - i, j] + A[i, K - 1 - j], (M, K), A), True),
    (one(lambda i: A[i, i], (dim_min(M, K),), A), True),
    (one(lambda i, j: A[i // 3, j], (3 * M, K), A), True),
    (one(lambda i, j: A[i % M, j], (2 * M, K), A), True),
    (one(lambda i, j: A[i // 3, j], (3 * M - 1, K), A), True),
    (one(lambda i, j: select(within(0, i - 2, M), A[i - 2, j], 7), (M + 4, K), A), True),
    (one(lambda i, j: A[2 * i, j], (M // 2, K), A), True),
    (one(lambda i, j: A[dim_max(0, dim_min(i - 1, M - 1)), j], (M + 2, K), A), False),
    (one(lambda i, j: A[dim_select(i % 2, "==", 0, i // 2, M - 1 - i // 2), j], (M, K), A), False),
    (one(lambda i, j: A[0, i + j], (2, K - 1), A), False),
]


@pytest.mark.parametrize(("p", "moves_axes"), READS, ids=range(len(READS)))
def test_reads(p: TensorProgram, moves_axes: bool) -> None:
    for m, k in ((4, 6), (5, 7), (1, 2), (3, 3)):
        same(p, {"m": m, "k": k})
    assert ("gather" in primitives(p, {"m": 4, "k": 6})) != moves_axes


def test_reads_at_computed_places() -> None:
    at = Buffer("T", (N,), "int32")
    rows = one(lambda i, j: A[at[i], j], (N, K), A, at)
    table, places = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([3, 0, 3, 1, 2], np.int32)
    sizes = {"m": 4, "k": 3, "n": 5}
    np.testing.assert_array_equal(run(rows, [table, places], sizes)[0], table[places])
    # Rows come as they are, one slice each.
    text = str(jax.make_jaxpr(lower_program(rows, sizes))(table, places))
    assert "slice_sizes=(1, 3)" in text
    # Out of range is an error for the reference; XLA reads the nearest.
    far = np.array([-7, 9, 0, 1, 2], np.int32)
    np.testing.assert_array_equal(run(rows, [table, far], sizes)[0], table[far.clip(0, 3)])
    with pytest.raises(BoundsError):
        evaluate(rows, [table, far], sizes)


def test_what_sizes_tell_to_be_out_of_range_is_refused() -> None:
    p = one(lambda i, j: A[i + 1, j], (M, K), A)
    with pytest.raises(BoundsError, match=r"p: A\[i \+ 1, j\] reads A at i \+ 1 = 4 on axis 0, whose extent is 4"):
        run(p, [np.zeros((4, 2), np.float32)], {"m": 4, "k": 2})
    run(p, [np.zeros((0, 2), np.float32)], {"m": 0, "k": 2})  # no point, no read


# --- loops, where all points at once would be too many ---

REDUCTIONS: list[TensorProgram] = [
    one(lambda i, j: max_(abs(A[i, R] - B[R, j]), (R, K)), (M, N), A, B),
    one(lambda i: min_(A[i, R] - B[S, 0], [(R, K), (S, K)]), (M,), A, B),
    one(lambda: sum_(abs(A[R, S] - B[S, 0]), [(R, M), (S, K)]), (), A, B),
    one(lambda i, j: prod_(A[i, R] - B[R, j], (R, K)), (M, N), A, B),
    one(lambda i: argmax(abs(A[i, R] - B[R, 0]), (R, K), "int32"), (M,), A, B),
    one(lambda i, j: any_(less(A[i, R], B[R, j]), (R, K)), (M, N), A, B),
]


@pytest.mark.parametrize("largest", [1, 10, 60])
@pytest.mark.parametrize("p", REDUCTIONS, ids=range(len(REDUCTIONS)))
def test_large_reductions_run_in_loops(p: TensorProgram, largest: int) -> None:
    sizes = {"m": 5, "k": 6, "n": 4}
    same(p, sizes, largest=largest)
    looped = {"while", "scan"} & primitives(p, sizes, largest=largest)
    assert bool(looped) == (largest < 60 or p is REDUCTIONS[1] or len(p.stages[0].indices) == 2)
    assert not {"while", "scan"} & primitives(p, sizes)


# --- tracing ---


def test_symbolic_sizes() -> None:
    """Under jax.export with symbolic sizes."""
    m, k = jax.export.symbolic_shape("m, k")
    at = Buffer("T", (M,), "int32")

    def value(i: Dim, j: Dim) -> Scalar:
        return A[at[i] % 2, j] * 2 + sum_(A[i, R], (R, K)) + cast(Index(i), "float32") + A[M - 1 - i, j]

    p = one(value, (M, K), A, at)
    structs = jax.ShapeDtypeStruct((m, k), np.float32), jax.ShapeDtypeStruct((m,), np.int32)
    made = jax.export.export(jax.jit(lambda a, t: lower_program(p, {"m": a.shape[0], "k": a.shape[1]})(a, t)))(*structs)
    for sizes in ({"m": 3, "k": 4}, {"m": 2, "k": 1}):
        arrays = arrays_for(p, sizes)
        np.testing.assert_allclose(made.call(*arrays)[0], evaluate(p, arrays, sizes)[0], rtol=1e-5)


def test_vmap() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    lowered = lower_program(MATMUL, {"m": 4, "k": 4, "n": 4})
    np.testing.assert_allclose(jax.vmap(lowered)(a, b)[0], a @ b, rtol=1e-4, atol=1e-5)


def test_wide_arithmetic_inside_without_x64() -> None:
    x = Buffer("X", (N,), "int32")
    p = one(lambda i: cast((cast(x[i], "int64") * cast(x[i], "int64")) >> const(32, "int64"), "int32"), (N,), x)
    big = np.array([2**31 - 1, -(2**31), 65536, 3], np.int32)
    np.testing.assert_array_equal(run(p, [big], {"n": 4})[0], [2**30 - 1, 2**30, 1, 0])
    wide = one(lambda i: cast(x[i], "int64"), (N,), x)
    with pytest.raises(RelaxEgError, match=r"the output Y: \(n\) int64 has a 64-bit dtype.*x64"):
        run(wide, [big], {"n": 4})
    with jax.enable_x64(True):
        assert run(wide, [big], {"n": 4})[0].dtype == np.int64


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: lower_program(MATMUL, {"m": 3, "k": 4}), "matmul: no value for the size `n`; given: m, k"),
    (lambda: lower_program(MATMUL, {"m": 3, "k": 4, "n": 5})(jnp.zeros((3, 4))), "matmul takes 2 arrays, got 1"),
    (lambda: lower_program(MATMUL, {"m": 3, "k": 4, "n": 5})(jnp.zeros((3, 4)), jnp.zeros((4, 6))),
     "matmul: B: (k, n) float32 is (4, 5) at m=3, k=4, n=5; got (4, 6)"),
    (lambda: lower_program(MATMUL, {"m": 3, "k": 4, "n": 5})(jnp.zeros((3, 4)), jnp.zeros((4, 5), np.int32)),
     "matmul: B: (k, n) float32 got an array of int32"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "text"), REFUSED, ids=range(len(REFUSED)))
def test_refused(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(ShapeError) as error:
        build()
    assert str(error.value) == text


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e9])
def test_a_constant_beyond_an_integer_type(value: float) -> None:
    # JAX converts a constant while it traces, and to another number than it does at run time.
    p = program("cast", (), compute("Y", (), lambda: cast(const(value, "float32"), "int32")))
    same(p, {})
    (got,) = run(p, (), {})
    assert got == np.clip(value, -(2**31), 2**31 - 1)
