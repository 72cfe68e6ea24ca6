"""Along which axes inputs are sliced where an output is, read off index equations."""

from __future__ import annotations

import pytest

from relax_eg.tir import parse_program
from relax_eg.tir.slicing import sliced_input_axes

SOFTMAX = """
def f(X: rx.Buffer("n m"), Y: rx.Buffer("n m")):
    M = rx.script.local("n")
    E = rx.script.local("n m")
    M[i] = max(X[i, j], over=j)
    E[i, j] = exp(X[i, j] - M[i])
    Y[i, j] = E[i, j] / sum(E[i, k], over=k)
"""
MATMUL = """
def f(A: rx.Buffer("n k"), B: rx.Buffer("k m"), Y: rx.Buffer("n m")):
    Y[i, j] = sum(A[i, l] * B[l, j], over=l)
"""
GRAM = """
def f(A: rx.Buffer("n k"), Y: rx.Buffer("n n")):
    Y[i, j] = sum(A[i, l] * A[j, l], over=l)
"""
TRANSPOSED = """
def f(A: rx.Buffer("m n"), b: rx.Buffer("m"), c: rx.Buffer(""), Y: rx.Buffer("n m")):
    Y[i, j] = A[j, i] + b[j] * c[()]
"""
SHIFTED = """
def f(A: rx.Buffer("n+1"), Y: rx.Buffer("n")):
    Y[i] = A[i + 1]
"""
LONGER = """
def f(A: rx.Buffer("n+1"), Y: rx.Buffer("n")):
    Y[i] = A[i]
"""
PLACES = """
def f(A: rx.Buffer("n m"), Y: rx.Buffer("n m")):
    Y[i, j] = select(i < j, A[i, j], 0.0)
"""
SCAN = """
def f(A: rx.Buffer("n m"), Y: rx.Buffer("n m")):
    Y[i, j] = select(i == 0, A[i, j], Y[i - 1, j] + A[i, j])
"""

LOOKUP = """
def f(T: rx.Buffer("v m"), I: rx.Buffer("n", "int64"), Y: rx.Buffer("n m")):
    Y[i, j] = T[I[i], j]
"""
GATHERED = """
def f(X: rx.Buffer("n m"), I: rx.Buffer("n", "int64"), Y: rx.Buffer("n")):
    Y[i] = X[i, I[i]]
"""
OTHER_LOOKUP = """
def f(T: rx.Buffer("v"), I: rx.Buffer("n+1", "int64"), Y: rx.Buffer("n")):
    Y[i] = T[I[i + 1]]
"""
PLACED_LOOKUP = """
def f(T: rx.Buffer("v"), I: rx.Buffer("n", "int64"), Y: rx.Buffer("n")):
    Y[i] = T[I[i] + index(i)]
"""


@pytest.mark.parametrize(
    ("text", "axis", "found"),
    [
        (LOOKUP, 0, (None, 0)),
        (LOOKUP, 1, (1, None)),
        (GATHERED, 0, (0, 0)),
        (OTHER_LOOKUP, 0, None),
        (PLACED_LOOKUP, 0, None),
        (SOFTMAX, 0, (0,)),
        (SOFTMAX, 1, None),
        (MATMUL, 0, (0, None)),
        (MATMUL, 1, (None, 1)),
        (GRAM, 0, None),
        (TRANSPOSED, 0, (1, None, None)),
        (TRANSPOSED, 1, (0, 0, None)),
        (SHIFTED, 0, None),
        (LONGER, 0, None),
        (PLACES, 0, None),
        (SCAN, 0, None),
    ],
)
def test_what_a_slice_is_computed_from(text: str, axis: int, found: object) -> None:
    assert sliced_input_axes(parse_program(text), axis) == found
