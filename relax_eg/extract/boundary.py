"""The boundary between two programs: a sum of products of sizes that is about proportional to the difference of their
costs, so that its sign says which program is cheaper.

Costs of programs are defined piecewise. Near the sizes at which two programs cost the same, their difference is close
to such a sum, because flops, bytes and launches are such sums. The coefficients are fitted there, by least squares of
the difference as a share of the cost. They are rounded to integers so that a guard can compare the sum exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_NEAR = 0.5  # chosen: share of the cost: larger differences are not fitted
_FEWEST, _MOST = 24, 1500  # chosen: number of points with such differences
_DECISIVE = 0.01  # chosen: share of the cost: smaller differences are ignored
_WRONG = 0.004  # chosen: share of the points that may be on the wrong side
_BETTER = 0.7  # chosen: a longer sum must have at most this share of the wrong points of a shorter one
_MATTERS = 0.01  # chosen: share of the cost: a term that is smaller everywhere is left out
_LEVEL = 0.02  # chosen: share of the cost: differences below this get about equal weight in a fit
_SINGULAR = 1e-10  # chosen: of the largest singular value: smaller ones are rounding
_AT_ONCE = 4  # chosen: of the terms that are small everywhere, one in so many is left out per round
_DIGITS = 100.0  # chosen: least coefficient before rounding to integers
_LARGEST = 2.0**50  # given: values are exact as floats


def boundary(a: np.ndarray, b: np.ndarray, terms: Sequence[np.ndarray], groups: Sequence[int]) -> list[int] | None:
    """Integer coefficients of `terms` whose sum is about proportional to a - b where the costs `a` and `b` are nearly
    equal.

    None if one of the two is never cheaper by much, or if the points are too few.

    - `terms`: columns of values; the first is all ones.
    - `groups`: numbers of terms to try, in this order. The first sum that separates nearly all points is taken, else
      the best.
    """
    scale = np.minimum(a, b)
    share = (a - b) / scale
    near = np.abs(share) < _NEAR
    if near.sum() < _FEWEST or share.min() > -_DECISIVE or share.max() < _DECISIVE:
        return None
    near = np.flatnonzero(near)
    near = near[:: 1 + len(near) // _MOST]
    rows = np.array([t[near] / scale[near] for t in terms], np.float64).T
    best: tuple[float, list[int], np.ndarray] | None = None
    for count in groups:
        kept, found = _fit(rows[:, :count], share[near])
        sums = rows[:, kept] @ found
        wrong = float((((sums > 0) != (share[near] > 0)) & (np.abs(share[near]) > _DECISIVE)).mean())
        if best is None or wrong < _BETTER * best[0]:
            best = (wrong, kept, found)
        if wrong <= _WRONG:
            break
    assert best is not None
    return _integers(best[1], best[2], terms)


def _fit(rows: np.ndarray, share: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The indices of the terms that are not small everywhere, and their coefficients."""
    weight = 1.0 / (np.abs(share) + _LEVEL)
    kept = list(range(rows.shape[1]))
    while True:
        unit = np.abs(rows[:, kept]).max(0)  # columns of equal magnitude keep the fit well conditioned
        scaled = rows[:, kept] / unit
        found = np.linalg.lstsq(scaled * weight[:, None], share * weight, rcond=_SINGULAR)[0]
        matters = np.abs(scaled * found).max(0)
        weak = [int(i) for i in np.argsort(matters, kind="stable") if matters[i] < _MATTERS]
        if not weak or len(kept) == 1:
            return kept, found / unit
        # The other terms take over the part of a term that is left out, so few are left out at a time.
        out = set(weak[: max(1, len(weak) // _AT_ONCE)])
        kept = [k for i, k in enumerate(kept) if i not in out] or kept[:1]


def _integers(kept: Sequence[int], found: np.ndarray, terms: Sequence[np.ndarray]) -> list[int] | None:
    """The coefficients as integers without a common divisor; None if only the constant is left."""
    most = max(float((np.abs(terms[k]) * abs(c)).max()) for k, c in zip(kept, found, strict=True)) * len(kept)
    factor = min(_DIGITS / float(np.abs(found).min()), _LARGEST / most)
    whole = [0] * len(terms)
    for k, c in zip(kept, found, strict=True):
        whole[k] = round(float(f"{c * factor:.3g}"))
    whole[0] = 0  # callers compute the constant with which the sum is compared
    common = math.gcd(*whole)
    return [c // common for c in whole] if common else None
