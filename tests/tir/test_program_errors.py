"""What a tensor program may not be, told with the line, a caret and what would be accepted."""

from __future__ import annotations

import pytest

from relax_eg.errors import TensorProgramError
from relax_eg.tir import obligations, parse_program

HEAD = 'def f(X: rx.Buffer("n k"), V: rx.Buffer("k"), I: rx.Buffer("n", "int32"), Y: rx.Buffer("n")):\n    '
WHOLE = 'def f(X: rx.Buffer("n k"), Y: rx.Buffer("n k")):\n    '

REFUSED: list[tuple[str, str]] = [
    # ranges
    (HEAD + "Y[i] = X[i + 1, 0]", "f (line 2:12): X[i + 1, 0] is out of range: axis 0 of X: (n, k) float32 is read at "
     "i + 1, which is not below n or is negative, at i = 0, n = 1"),
    (HEAD + "Y[i] = sum(X[i, 2*r], over=(r, k))", "X[i, 2*r] is out of range"),
    (HEAD + "Y[i] = X[i, 3]", "at k = 1"),
    (HEAD + "Y[i] = V[i]", "V[i] is out of range: axis 0 of V: (k) float32 is read at i, which is not below k"),
    (HEAD + "Y[i] = select(i < 1, X[i - 1, 0], 0.0)", "X[i - 1, 0] is out of range"),
    # written once
    (HEAD + "Y[0] = X[0, 0]", "Y: (n) float32: elements 1 to n of axis 0 are not written"),
    (HEAD + "Y[i + 1] = V[0]", "elements 0 to 1 of axis 0 are not written"),
    (HEAD + "Y[i] = V[0]\n    Y[j] = V[0]", "Y is written twice, first in line 2"),
    (HEAD + "Y[0] = V[0]\n    Y[i] = V[0]", "elements are written twice: 0 to n of axis 0, after 0 to 1"),
    (HEAD + "for i in range(n + 1):\n        Y[i] = V[0]", "elements up to n + 1 are written, beyond its size n"),
    (WHOLE + "Y[i, 0] = X[i, 0]", "elements 1 to k of axis 1 are not written"),
    (WHOLE + "pass", "`f` writes no parameter"),
    (HEAD + "T = rx.script.local('n')\n    Y[i] = V[0]", "T: (n) float32 is not written at all"),
    ('def f(Y: rx.Buffer("n"), X: rx.Buffer("n")):\n    Y[i] = 1', "X stands after the output Y and is not written"),
    # races
    (HEAD + "Y[i // 2] = X[i, 0]", "a race: the index of axis 0 in Y[i // 2] is i//2, so elements may be"),
    (WHOLE + "Y[i, i] = X[i, 0]", "a race: the index of axis 1 in Y[i, i] is used twice, so elements off the diagonal"),
    (HEAD + "for i, j in rx.grid(n, k):\n        Y[i] = X[i, j]", "a race: every j writes Y[i]"),
    (HEAD + "T = rx.script.local('n')\n    T[i] = 0\n    Y[i] = T[i]\n    T[i] += V[0]",
     "a race: T is written here, after Y was computed from it"),
    # extents
    (HEAD + "Y[i] = sum(X[i, r % 2], over=r)", "nothing tells the extent of r: it is the whole index of no axis"),
    (HEAD + "Y[i] = sum(X[i, r] + X[r, 0], over=r)", "two extents are told of r: k by axis 1 of X, n by axis 0 of X"),
    (HEAD + "Y[i] = sum(X[i, r])", "the reduction `sum(X[i, r])` does not say over what"),
    (HEAD + "Y[i] = sum(X[i, i], over=(i, k))", "sum binds i, which is bound already"),
    # dtypes
    (HEAD + "Y[i] = I[i]", "the value is int32, Y is float32"),
    (HEAD + "Y[i] = X[i, 0] + I[i]", "add(float32, int32): the dtypes differ; cast one side"),
    (HEAD + "Y[i] = X[i, 0] & X[i, 0]", "bitwise_and(float32, float32): float32 is not accepted"),
    (HEAD + "Y[i] = X[X[i, 0], 0]", "X is indexed by X[i, 0], of dtype float32; an integer is needed"),
    (HEAD + "Y[i] = select(I[i], X[i, 0], 0)", "select on I[i], of dtype int32; a bool is needed"),
    (HEAD + "Y[i] = i / 2", "`i / 2` is no arithmetic on indices"),
    (HEAD + "Y[i] = X[i, 0].astype('float33')", "`float33` is not a dtype"),
    (HEAD + "Y[i] = 1 / 0", "division by zero"),
    # names
    (HEAD + "Y[i] = rx.expo(X[i, 0])", "no function is named `expo`; did you mean `exp` or `exp2`"),
    (HEAD + "Y[i] = Z[i]", "the buffer Z is unknown"),
    (HEAD + "Y[i] = X[i, q]", "`q` is no loop variable, size or buffer; names here: n, k, i"),
    (HEAD + "Y[i] = X", "X: (n, k) float32 is read without indices"),
    (HEAD + "Y[i] = X[i]", "X: (n, k) float32 is read with 1 indices"),
    (HEAD + "Y[i, j] = X[i, j]", "2 indices write Y: (n) float32"),
    (HEAD + "Z[i] = X[i, 0]", "`Z` is no buffer that can be written"),
    (HEAD + "Y[i] += X[i, r]", "Y is added to and was never written"),
    (HEAD + "Y[i] = Y[n - 1 - i]", "Y[i] is computed from Y[n - i - 1], which is not plainly written before"),
    (HEAD + "x = 1.0\n    x = 2.0\n    Y[i] = x", "`x` is named twice"),
    # Python that is none of it
    (HEAD + "Y[i] = [X[i, 0]]", "`[X[i, 0]]` is no value of an index equation"),
    (HEAD + "Y[i] = X[i, 0:2]", "`X[i, 0:2]` reads more than one element"),
    (HEAD + "while True:\n        pass", "`while True:` is no line of a tensor program"),
    (HEAD + "for i in X:\n        Y[i] = 1", "the loop over `X` cannot be read"),
    (HEAD + "return X", "`return X` is no line of a tensor program"),
    (HEAD + "Y[i] = X[i, 0] @ X[i, 0]", "is no value of an index equation"),
    (HEAD + "Y[i] = X[i, 0] in X[i, 0]", "is no comparison of numbers"),
    ('def f(X, Y: rx.Buffer("n")):\n    Y[i] = 1', "the parameter X is annotated nothing"),
    ('def f(X: rx.Buffer("n +"), Y: rx.Buffer("n")):\n    Y[i] = 1', "`+` is not a dim"),
    ('def f(X: rx.Buffer("*n"), Y: rx.Buffer("n")):\n    Y[i] = 1', "the shape of X has the axis `*n`"),
    ('def f(X: rx.Buffer("n"), q: int, Y: rx.Buffer("n")):\n    Y[i] = 1', "the size `q` is passed and not used"),
    ('def f(X: rx.Buffer("n") = 1):\n    pass', "`f` has defaults, stars or slashes"),
    ("x = 1", "0 functions"),
    ("def f(:", "this is not Python's syntax"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_refused(text: str, problem: str) -> None:
    with pytest.raises(TensorProgramError) as error:
        parse_program(text)
    told, shown, caret, accepted = str(error.value).split("\n")
    assert problem in told and "(line " in told
    assert (
        shown.strip() in text.replace("\n    ", "\n") and caret.strip() == "^" and accepted.startswith("  accepted: ")
    )


FINE: list[tuple[str, list[str]]] = [
    (HEAD + "Y[i] = select(i < n - 1, X[i + 1, 0], 0.0)", []),
    (HEAD + "Y[i] = X[i, 0] if 1 <= i < n - 1 and i != 2 else X[n - 1 - i, k - 1]", []),
    (HEAD + "Y[i] = X[I[i], 0]", ["Y: 0 <= I[i] < n in X[I[i], 0]"]),
    (HEAD + "Y[i] = V[i] if X[i, 0] > 0 else 0.0", ["Y: 0 <= i < k in V[i]"]),
    (HEAD + "Y[i] = sum(select(r + i < k, V[r + i], 0.0), over=(r, k))", []),
]


@pytest.mark.parametrize(("text", "open_questions"), FINE, ids=range(len(FINE)))
def test_what_is_left_to_be_seen_at_run_time(text: str, open_questions: list[str]) -> None:
    assert obligations(parse_program(text)) == open_questions
