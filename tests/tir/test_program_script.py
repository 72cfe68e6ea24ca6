"""`@rx.tensor_program`: the programs of the paper and of TVM's analysis as one writes them, their kinds and values."""

# The loop variables of tensor programs need not exist: their text is read, and never run.
# ruff: noqa: F821
# pyright: reportUndefinedVariable=false, reportInvalidTypeForm=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import BoundsError, TensorProgramError
from relax_eg.shapes import Dim
from relax_eg.tir import (
    PatternKind,
    TensorProgram,
    classify,
    count,
    evaluate,
    obligations,
    parse_program,
    workspace_bytes,
)

RNG = np.random.default_rng(0)


@rx.tensor_program
def mm_split_k(X: rx.Buffer("n 2048"), W: rx.Buffer("2048 4096"), Y: rx.Buffer("n 4096")):
    P = rx.script.workspace("8 n 4096")  # a global temporary inside a kernel
    P[s, i, j] = rx.sum(X[i, s * 256 + k] * W[s * 256 + k, j], over=(k, 256))
    Y[i, j] = rx.sum(P[s, i, j], over=(s, 8))


@rx.tensor_program
def matmul(A: rx.Buffer("m k"), B: rx.Buffer("k n"), C: rx.Buffer("m n")):
    C[i, j] = rx.sum(A[i, r] * B[r, j], over=r)


@rx.tensor_program
def matmul_in_loops(A: rx.Buffer("m k"), B: rx.Buffer("k n"), m: int, n: int, k: int, C: rx.Buffer("m n")):
    for i, j, r in rx.grid(m, n, k):
        with rx.block():
            with rx.init():
                C[i, j] = 0
            C[i, j] += A[i, r] * B[r, j]


@rx.tensor_program
def mixed_matmul(A: rx.Buffer("m k", "float16"), B: rx.Buffer("k n", "float16"), C: rx.Buffer("m n", "float16")):
    C[i, j] = rx.sum(A[i, r].astype("float32") * rx.float32(B[r, j]), over=r).astype("float16")


@rx.tensor_program
def row_sum(A: rx.Buffer("m k"), S: rx.Buffer("m")):
    S[i] = 0
    S[i] += A[i, r]


@rx.tensor_program
def add_one(A: rx.Buffer("m k"), B: rx.Buffer("m k")):
    B[i, j] = A[i, j] + 1


@rx.tensor_program
def broadcast(A: rx.Buffer("m k"), B: rx.Buffer("2 m 3 k")):
    B[i0, j0, i1, j1] = A[j0, j1]


@rx.tensor_program
def reshape(A: rx.Buffer("m k"), B: rx.Buffer("m*k")):
    B[i] = A[i // k, i % k]


@rx.tensor_program
def bias(A: rx.Buffer("1 1000"), B: rx.Buffer("1000"), C: rx.Buffer("1 1000")):
    C[i, j] = A[i, j] + B[j]


@rx.tensor_program
def cumulative_sum(A: rx.Buffer("n"), Y: rx.Buffer("n")):
    Y[0] = A[0]
    for k in range(n - 1):
        Y[k + 1] = Y[k] + A[k + 1]


@rx.tensor_program
def moments(A: rx.Buffer("m k"), S: rx.Buffer("m"), Q: rx.Buffer("m")):
    for i, r in rx.grid(m, k):
        with rx.init():
            S[i] = 0
            Q[i] = 0
        S[i] += A[i, r]
        Q[i] += A[i, r] * A[i, r]


@rx.tensor_program
def decode_q4(D: rx.Buffer("n 16", "uint32"), S: rx.Buffer("n 4"), W: rx.Buffer("n 128")):
    word = D[i, j // 8] >> rx.uint32(j % 8 * 4)
    W[i, j] = (rx.float32(word & 15) - 7) * S[i, j // 32]


@rx.tensor_program
def windows(A: rx.Buffer("n"), scale: rx.Buffer(""), Y: rx.Buffer("n"), at: int):
    nearest = rx.minimum(rx.maximum(i - 1, 0), n - 1)
    Y[i] = scale * A[nearest] if i < at else -rx.exp(rx.max(A[r], over=(r, n)))


@rx.tensor_program
def gather_best(A: rx.Buffer("m k"), B: rx.Buffer("k"), Y: rx.Buffer("m"), At: rx.Buffer("m", "int32")):
    best = rx.argmax(A[i, r], over=r)
    Y[i] = B[best]
    At[i] = best.astype("int32")


@rx.tensor_program
def sized_matmul(X: rx.Buffer("n k"), W: rx.Buffer("k m"), Y: rx.Buffer("n m"), n: int, m: int, k: int):
    Y[i, j] = rx.sum(X[i, r] * W[r, j], over=(r, k))


KINDS = {
    PatternKind.OUTPUT_EWISE_FUSIBLE: (matmul, matmul_in_loops, mixed_matmul, sized_matmul),
    PatternKind.REDUCTION: (row_sum, moments),
    PatternKind.ELEMENT_WISE: (add_one, bias),
    PatternKind.BROADCAST: (broadcast,),
    PatternKind.INJECTIVE: (reshape, decode_q4),
    PatternKind.OPAQUE: (cumulative_sum, mm_split_k),
}
ALL = [pytest.param(p, kind, id=p.name) for kind, made in KINDS.items() for p in made]


@pytest.mark.parametrize(("program", "kind"), ALL)
def test_kinds(program: TensorProgram, kind: PatternKind) -> None:
    assert classify(program) is kind
    assert obligations(program) == []


@pytest.mark.parametrize("program", [p.values[0] for p in ALL] + [windows, gather_best])
def test_text_is_what_one_writes(program: TensorProgram) -> None:
    assert parse_program(str(program)) == program


def random(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def test_split_k() -> None:
    n = Dim.var("n")
    assert workspace_bytes(mm_split_k) == {"P": 8 * n * 4096 * 4}
    assert count(mm_split_k).bytes_written == n * 4096 * 4 + 8 * n * 4096 * 4
    x, w = random(3, 2048), random(2048, 4096)
    np.testing.assert_allclose(evaluate(mm_split_k, [x, w], {"n": 3})[0], x @ w, rtol=1e-3, atol=1e-3)


def test_values() -> None:
    a, b = random(3, 4), random(4, 5)
    sizes = {"m": 3, "k": 4, "n": 5}
    for program in (matmul, matmul_in_loops):
        np.testing.assert_allclose(evaluate(program, [a, b], sizes)[0], a @ b, rtol=1e-5)
    assert matmul_in_loops.size_arguments == ("m", "n", "k") and matmul.size_arguments == ()
    s, q = evaluate(moments, [a], sizes)
    np.testing.assert_allclose(s, a.sum(1), rtol=1e-5)
    np.testing.assert_allclose(q, (a * a).sum(1), rtol=1e-5)
    np.testing.assert_allclose(evaluate(cumulative_sum, [a[0]], {"n": 4})[0], np.cumsum(a[0]), rtol=1e-5)
    y, at = evaluate(gather_best, [a, b[:, 0]], sizes)
    np.testing.assert_array_equal(at, a.argmax(1))
    np.testing.assert_array_equal(y, b[a.argmax(1), 0])
    y = evaluate(windows, [a[0], np.float32(2)], {"n": 4, "at": 2})[0]
    expected = np.where(np.arange(4) < 2, 2 * a[0][[0, 0, 1, 2]], -np.exp(a[0].max()))
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_decode_of_words() -> None:
    words, scales = RNG.integers(0, 2**32, (2, 16), dtype=np.uint32), random(2, 4)
    values = (words[:, :, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    expected = (values.reshape(2, 128).astype(np.float32) - 7) * np.repeat(scales, 32, 1)
    np.testing.assert_array_equal(evaluate(decode_q4, [words, scales], {"n": 2})[0], expected)


def test_what_is_not_proved_is_seen_at_run_time() -> None:
    text = 'def f(X: rx.Buffer("n"), I: rx.Buffer("n", "int32"), Y: rx.Buffer("n")):\n    Y[i] = X[I[i]]'
    program = parse_program(text)
    with pytest.raises(BoundsError, match=r"f: X\[I\[i\]\] reads X at I\[i\] = 3 on axis 0, whose extent is 2"):
        evaluate(program, [random(2), np.array([0, 3], np.int32)], {"n": 2})


def test_errors_name_file_line_and_column() -> None:
    with pytest.raises(TensorProgramError) as error:

        @rx.tensor_program
        def shifted(X: rx.Buffer("n"), Y: rx.Buffer("n")):
            Y[i] = X[i + 1]

    told, shown, caret, _ = str(error.value).split("\n")
    lines = Path(__file__).read_text().split("\n")
    line = next(n for n, text in enumerate(lines, 1) if text.strip() == "Y[i] = X[i + 1]")
    column = lines[line - 1].index("X[") + 1
    assert told.startswith(f"shifted ({__file__}:{line}:{column}): X[i + 1] is out of range")
    assert shown == "  Y[i] = X[i + 1]" and caret == "         ^"


def test_what_is_no_function() -> None:
    with pytest.raises(TensorProgramError, match="got a int; accepted: a function, whose text is read"):
        rx.tensor_program(3)  # type: ignore[call-overload]
    space: dict[str, Any] = {}
    exec("def f(X): pass", space)
    with pytest.raises(TensorProgramError, match="f: its text is not at hand"):
        rx.tensor_program(space["f"])
