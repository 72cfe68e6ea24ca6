"""How far the elements of two arrays are apart. Each comparison of results decides what of that it accepts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relax_eg.dtypes import RECORDS

Array = np.ndarray[Any, Any]


def is_inexact(a: Array) -> bool:
    """Whether the elements are floats or complex numbers, which a computation rounds."""
    return a.dtype.name in RECORDS and RECORDS[a.dtype.name].kind in "fc"


def largest_magnitude(*arrays: Array) -> float:
    """Returns the largest finite magnitude of floats and complex numbers in arrays; 0 if there are none."""
    found = [np.abs(_wide(a)) for a in arrays if is_inexact(a)]
    return max((float(np.max(a, initial=0.0, where=np.isfinite(a))) for a in found), default=0.0)


def largest_difference(a: Array, b: Array, scale: float) -> float:
    """Returns the largest difference of two arrays' elements, in units of `scale`.

    Two NaNs do not differ, nor do equal infinities; a complex number is NaN if one of its parts is. The result is
    infinite where an element differs in that, where elements differ that no computation rounds (integers, bools), for
    arrays of different shapes, and for any difference in units of 0.
    """
    if a.shape != b.shape:
        return math.inf
    if not (is_inexact(a) or is_inexact(b)):
        return 0.0 if np.array_equal(a, b) else math.inf
    apart = float(np.max(_differences(_wide(a), _wide(b)), initial=0.0))
    if not apart:
        return 0.0
    return apart / scale if scale else math.inf


def _wide(a: Array) -> Array:
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _differences(a: Array, b: Array) -> Array:
    if np.iscomplexobj(a) or np.iscomplexobj(b):
        found = np.hypot(_differences(a.real, b.real), _differences(a.imag, b.imag))
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.where(a == b, 0.0, np.abs(a - b))
        found[np.isnan(found)] = math.inf
    return np.where(np.isnan(a) & np.isnan(b), 0.0, found)
