"""Sizes that annotations of operators come out with, and sizes that cannot be."""

from __future__ import annotations

import pytest

import relax_eg as rx
from relax_eg import op
from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr, var


def tensor(name: str, spec: str) -> Expr:
    return var(name, rx.Tensor(spec))


def test_the_size_left_out_of_a_reshape() -> None:
    assert op.reshape(tensor("x", "a b c d"), ("d", "c", "b", -1)).annotation == rx.Tensor("d c b a")
    assert op.reshape(tensor("x", "a b c d"), (-1,)).annotation == rx.Tensor("a*b*c*d")


def test_concatenated_sizes_add_up() -> None:
    parts = [tensor(f"x{i}", f"n b{i} m") for i in range(3)]
    assert op.concat(parts, axis=1).annotation == rx.Tensor("n b0+b1+b2 m")


def test_sizes_broadcast() -> None:
    assert op.add(tensor("x", "m 1"), tensor("y", "n")).annotation == rx.Tensor("m n")


@pytest.mark.parametrize(
    ("make", "both"),
    [
        (lambda: op.concat([tensor("x", "n b"), tensor("y", "n+1 b")], axis=1), "sizes n and n + 1 differ"),
        (lambda: op.add(tensor("x", "m"), tensor("y", "m+1")), "sizes m and m + 1 differ"),
        (lambda: op.matmul(tensor("x", "m k"), tensor("y", "k+1 n")), "sizes k and k + 1 differ"),
    ],
)
def test_sizes_that_are_provably_unequal(make, both: str) -> None:
    with pytest.raises(OperatorError) as error:
        make()
    assert both in str(error.value)
