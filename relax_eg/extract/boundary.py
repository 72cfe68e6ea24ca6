"""Where two programs cost the same: a polynomial in the sizes that is negative where the first is the cheaper one.

What programs cost is piecewise, but near the sizes at which two cost the same their difference is close to a sum of
products of sizes: flops, bytes and launches are. Its coefficients are fitted there, by least squares of the difference
as a share of the cost, and made integers, so that a guard may compare it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_NEAR = 0.5  # shares of the cost: differences that are looked at
_FEWEST = 24  # points of them
_MATTERS = 0.01  # of the cost: a term below that everywhere is left out
_DIGITS = 100.0  # coefficients are integers of about so much at least
_LARGEST = 2.0**50  # values are exact as floats


def boundary(a: np.ndarray, b: np.ndarray, terms: Sequence[np.ndarray]) -> list[int] | None:
    """Integer coefficients of `terms` (columns of values) of a sum that is about proportional to a - b where the costs
    `a` and `b` are nearly equal; None where neither is ever the cheaper one by much, or the points are too few."""
    scale = np.minimum(a, b)
    share = (a - b) / scale
    near = np.abs(share) < _NEAR
    if near.sum() < _FEWEST or share.min() > -_MATTERS or share.max() < _MATTERS:
        return None
    weight = 1.0 / (np.abs(share[near]) + 0.02)
    rows = np.array([t[near] / scale[near] for t in terms], np.float64).T
    kept = list(range(len(terms)))
    while True:
        inside = rows[:, kept]
        unit = np.abs(inside).max(0)  # columns of one size: the fit is well conditioned
        found = np.linalg.lstsq(inside / unit * weight[:, None], share[near] * weight, rcond=1e-10)[0] / unit
        matters = np.abs(inside * found).max(0)
        least = int(np.argmin(matters))
        if matters[least] >= _MATTERS or len(kept) == 1:
            break
        del kept[least]
    factor = _DIGITS / np.abs(found).min()
    most = max(float((np.abs(terms[k]) * abs(c)).max()) for k, c in zip(kept, found, strict=True)) * len(kept)
    factor = min(factor, _LARGEST / most)
    whole = [0] * len(terms)
    for k, c in zip(kept, found, strict=True):
        whole[k] = round(float(f"{c * factor:.3g}"))
    common = math.gcd(*whole)
    return [c // common for c in whole] if common else None
