"""`ops.difference`: how far the elements of two arrays are apart."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relax_eg.backend.compare import compare_results
from relax_eg.explain.values import compare_values
from relax_eg.ops.difference import is_inexact, largest_difference, largest_magnitude
from relax_eg.ops.libraries import relative_difference

INF, NAN = math.inf, math.nan
LARGE = 2**53

# Two arrays' elements, their dtype, and the largest difference in units of 1.
DIFFERENCES: tuple[tuple[list[Any], list[Any], Any, float], ...] = (
    ([1.0, -2.0], [1.5, -2.0], "float32", 0.5),
    ([], [], "float32", 0.0),
    ([0.0], [-0.0], "float32", 0.0),
    ([NAN, 1.0], [NAN, 1.0], "float32", 0.0),
    ([INF, -INF, 1.0], [INF, -INF, 1.25], "float64", 0.25),
    ([INF], [-INF], "float32", INF),
    ([INF], [NAN], "float32", INF),
    ([1.0], [NAN], "float32", INF),
    ([INF], [3e38], "float32", INF),
    ([1.0, INF], [3.0, INF], ml_dtypes.bfloat16, 2.0),
    ([INF], [-INF], ml_dtypes.bfloat16, INF),
    ([1 + 1j], [1 + 4j], "complex64", 3.0),
    ([complex(INF, 1)], [complex(INF, 3)], "complex64", 2.0),
    ([complex(INF, 1)], [complex(-INF, 1)], "complex64", INF),
    ([complex(1, INF)], [complex(1, -INF)], "complex128", INF),
    ([complex(NAN, 1)], [complex(0, NAN)], "complex64", 0.0),
    ([complex(NAN, 1)], [complex(1, 1)], "complex64", INF),
    ([LARGE], [LARGE], "int64", 0.0),
    ([LARGE], [LARGE + 1], "int64", INF),
    ([1, 255], [1, 255], "uint8", 0.0),
    ([1], [2], ml_dtypes.int4, INF),
    ([True, False], [True, False], "bool", 0.0),
    ([True], [False], "bool", INF),
)


@pytest.mark.parametrize(("a", "b", "dtype", "apart"), DIFFERENCES, ids=str)
def test_difference(a: list[Any], b: list[Any], dtype: Any, apart: float) -> None:
    x, y = np.asarray(a).astype(dtype), np.asarray(b).astype(dtype)
    assert largest_difference(x, y, 1.0) == largest_difference(y, x, 1.0) == apart
    assert largest_difference(x, y, 2.0) == apart / 2
    # All that compares results agrees on whether these are equal; none of the tolerances allows so large a difference.
    assert (relative_difference(x, y) == 0) == (not compare_values(x, y, "exact")) == (apart == 0)
    assert compare_results(x, y, 1e-3).passed == (apart == 0)


def test_of_different_shapes() -> None:
    assert largest_difference(np.zeros(3), np.zeros((3, 1)), 1.0) == INF
    assert largest_difference(np.zeros(3), np.zeros(4), 1.0) == INF


def test_magnitude() -> None:
    assert largest_magnitude() == largest_magnitude(np.zeros(0), np.asarray([7]), np.asarray([INF, NAN])) == 0.0
    assert largest_magnitude(np.asarray([1.0, -3.0, INF]), np.asarray([3 + 4j])) == 5.0
    assert is_inexact(np.zeros(1, ml_dtypes.bfloat16)) and not is_inexact(np.zeros(1, ml_dtypes.int4))


def test_in_units_of_the_largest_element() -> None:
    """Each comparison has its own unit, and a value from which both are computed may be the largest."""
    x, y = np.asarray([4.0, 1.5]), np.asarray([4.0, 1.0])
    assert relative_difference(x, y) == compare_results(x, y, 0.0).max_error == 0.125
    assert compare_results(np.asarray([1e-9]), np.asarray([0.0]), 1e-6).max_error == 1e-9
    a, b = np.asarray([1.0]), np.asarray([1.0 + 1e-12])
    assert compare_values(a, b, "exact") and not compare_values(a, b, "exact", [np.asarray([1e3j]), np.asarray([7])])
