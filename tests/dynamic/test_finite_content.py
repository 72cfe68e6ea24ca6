"""`dynamic.content`: what functions of finite padding hold."""

from __future__ import annotations

import numpy as np
import pytest

from relax_eg.dynamic.content import ANY, FINITE, evaluate_content
from relax_eg.shapes import Dim
from relax_eg.tir import FUNCTIONS, Buffer, apply

# Of each, a finite argument whose value is not finite, though it is for all finite real ones.
UNBOUNDED = {"sin": 1000j, "cos": 1000j, "atan": 1j, "abs": complex(3e38, 3e38)}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_functions_of_complex_numbers_may_be_infinite(name: str) -> None:
    def content(dtype: str) -> object:
        return evaluate_content(apply(name, Buffer("x", (Dim.of(3),), dtype)[Dim.of(0)]), lambda read: FINITE)

    assert content("float32") is FINITE and content("complex64") is ANY
    with np.errstate(all="ignore"):
        assert not np.isfinite(FUNCTIONS[name]([np.asarray([UNBOUNDED[name]], "complex64")], "complex64"))


@pytest.mark.parametrize("name", ["real", "imag", "conj"])
def test_parts_of_finite_numbers_are_finite(name: str) -> None:
    x = Buffer("x", (Dim.of(3),), "complex64")[Dim.of(0)]
    assert evaluate_content(apply(name, x), lambda read: FINITE) is FINITE
