"""Sizes of tensors inside of data."""

from __future__ import annotations

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import ModuleTextError, ShapeError
from relax_eg.ops.text import parse
from tests.vm.language_programs import HEAD

SIZED = (
    HEAD
    + """
@R.function
def total(xs: List(R.Tensor(("n", 4), "float32")), z: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    match xs:
        case List.Nil():
            return z
        case List.Cons(h, t):
            return h + total(t, z)

@R.function
def main(xs: List(R.Tensor(("n", 4), "float32")), z: R.Tensor(("n", 4), "float32")):
    return total(xs, z)
"""
)


def test_tensors_inside_of_data_have_the_sizes_that_are_said() -> None:
    best = rx.optimize(parse(SIZED), rules=rx.RuleSet("none"))
    z, one = np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)
    assert np.all(best(rx.list_of(rx.List, [z, z]), z) == 3)
    wanted = r"main\(\): `xs`\.Cons\[1\]\.Cons\[0\], axis 0 should be n = 3 \(from argument `z`\), got 1"
    with pytest.raises(ShapeError, match=wanted):
        best(rx.list_of(rx.List, [z, one]), z)
    without = (
        SIZED.replace(', z: R.Tensor(("n", 4), "float32")', "").replace("(xs, z)", "(xs)").replace("(t, z)", "(t)")
    )
    wanted = r"line \d+: `n` is a size inside of data, which no argument tells\n.*\n.*\n  expected: another parameter"
    with pytest.raises(ModuleTextError, match=wanted):
        parse(without.replace("return z", 'return R.zeros((n, 4), "float32")'))
