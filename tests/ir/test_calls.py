"""Calls by signature alone: the scenarios of the paper's Figure 7, and what does not fit."""

from __future__ import annotations

import pytest

from relax_eg import ir
from relax_eg.errors import OperatorError
from relax_eg.ir import Annotation, Callable, Object, Shape, Tensor, Tuple

SUBFN = Callable((Shape("n m"),), Tensor(("n*m",), "float32"))

CALLS: list[tuple[Callable, list[Annotation], Annotation]] = [
    (SUBFN, [Shape(("n", 4))], Tensor(("4*n",), "float32")),
    (SUBFN, [Shape((3, 4))], Tensor((12,), "float32")),
    (SUBFN, [Shape(("n + 1", 4))], Tensor(("4*n + 4",), "float32")),
    (SUBFN, [Shape(ndim=2)], Tensor(ndim=1, dtype="float32")),
    (SUBFN, [Object()], Tensor(ndim=1, dtype="float32")),
    # The names of sizes in a signature are its own.
    (SUBFN, [Shape(("m", "n"))], Tensor(("n*m",), "float32")),
    (SUBFN, [Shape(("m", "m"))], Tensor(("m*m",), "float32")),
    # Axes that are linear in one variable.
    (Callable((Tensor("2*n"),), Tensor("n")), [Tensor("4*k+2")], Tensor("2*k+1")),
    (Callable((Tensor("2*n+1"),), Tensor("n n")), [Tensor("2*n+5")], Tensor("n+2 n+2")),
    (Callable((Tensor("2*n"),), Tensor("n")), [Tensor("k")], Tensor(ndim=1, dtype="float32")),
    (Callable((Tensor("n+m"), Tensor("m")), Tensor("n")), [Tensor("k"), Tensor("3")], Tensor("k-3")),
    (Callable((Tensor("n*m"),), Tensor("n")), [Tensor("6")], Tensor(ndim=1, dtype="float32")),
    # An extra shape where nothing else tells a size (Fig. 8).
    (Callable((Tensor("n*m"), Shape("n m")), Tensor("m")), [Tensor("6"), Shape((2, 3))], Tensor("3")),
    (Callable((Tuple((Tensor("k"), Shape("j"))),), Tuple((Tensor("j k"), Object()))),
     [Tuple((Tensor("a"), Shape("b")))], Tuple((Tensor("b a"), Object()))),
]  # fmt: skip


@pytest.mark.parametrize(("callee", "args", "wanted"), CALLS, ids=range(len(CALLS)))
def test_what_a_call_gives(callee: Callable, args: list[Annotation], wanted: Annotation) -> None:
    assert ir.call_annotation(callee, args) == wanted


REFUSED: list[tuple[Callable, list[Annotation], str]] = [
    (SUBFN, [Shape("n 4 5")], 'f: argument 0 should be R.Shape(("n", "m")), got R.Shape(("n", 4, 5)): ranks 2 and 3'),
    (SUBFN, [Tensor("n 4")], "a shape and a tensor"),
    (Callable((Tensor("n 4"),), Tensor("n")), [Tensor("k 5")], "axis 1: sizes 4 and 5 differ"),
    (Callable((Tensor("n"), Tensor("n+1")), Tensor("n")), [Tensor("k"), Tensor("k")], "sizes k + 1 and k differ"),
    (Callable((Tensor("n"), Tensor("n")), Tensor("n")), [Tensor("k"), Tensor("k @int32")], "dtypes float32 and int32"),
]


@pytest.mark.parametrize(("callee", "args", "why"), REFUSED, ids=range(len(REFUSED)))
def test_what_never_fits(callee: Callable, args: list[Annotation], why: str) -> None:
    with pytest.raises(OperatorError) as error:
        ir.call_annotation(callee, args, "f")
    assert why in str(error.value)


def test_what_may_fit_is_left_to_the_call() -> None:
    square = Callable((Tensor("n n"),), Tensor("n"))
    assert ir.call_annotation(square, [Tensor("a b")]) == Tensor("a")
    # A callee's own `k`, which no argument tells, is not the caller's.
    own = Callable((Tensor("k*j"),), Tensor("k"))
    assert ir.call_annotation(own, [Tensor("k*j+1")]) == Tensor(ndim=1, dtype="float32")
    with pytest.raises(OperatorError, match=r"axis 0: sizes 2\*j.* and 2\*j\*k \+ 1 differ"):
        ir.call_annotation(Callable((Tensor("2*k*j"),), Tensor("k")), [Tensor("2*k*j+1")])
