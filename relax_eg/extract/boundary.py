"""Where two programs cost the same: a sum of products of sizes that grows with the difference of their costs.

What programs cost is piecewise, but near the sizes at which two cost the same their difference is close to such a sum:
flops, bytes and launches are. Its coefficients are fitted there, by least squares of the difference as a share of the
cost, and made integers, so that a guard may compare it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_NEAR = 0.5  # shares of the cost: differences that are looked at
_FEWEST, _MOST = 24, 1500  # points of them
_TOLD = 0.01  # shares of the cost: which program is the cheaper one matters from here on
_WRONG = 0.004  # of the points looked at: so few may be on the wrong side
_BETTER = 0.7  # times as many are wrong: what longer sums have to reach
_MATTERS = 0.01  # of the cost: a term below that everywhere is left out
_DIGITS = 100.0  # coefficients are integers of about so much at least
_LARGEST = 2.0**50  # values are exact as floats


def boundary(a: np.ndarray, b: np.ndarray, terms: Sequence[np.ndarray], groups: Sequence[int]) -> list[int] | None:
    """Integer coefficients of `terms` (columns of values, the first all ones) of a sum that is about proportional to
    a - b where the costs `a` and `b` are nearly equal; None where neither is ever the cheaper one by much, or the
    points are too few. `groups`: how many of the terms are tried, fewer ones first: the first sum that tells nearly all
    points apart is taken, else the best."""
    scale = np.minimum(a, b)
    share = (a - b) / scale
    near = np.abs(share) < _NEAR
    if near.sum() < _FEWEST or share.min() > -_TOLD or share.max() < _TOLD:
        return None
    near = np.flatnonzero(near)
    near = near[:: 1 + len(near) // _MOST]
    rows = np.array([t[near] / scale[near] for t in terms], np.float64).T
    best: tuple[float, list[int], np.ndarray] | None = None
    for count in groups:
        kept, found = _fitted(rows[:, :count], share[near])
        sums = rows[:, kept] @ found
        wrong = float((((sums > 0) != (share[near] > 0)) & (np.abs(share[near]) > _TOLD)).mean())
        if best is None or wrong < _BETTER * best[0]:
            best = (wrong, kept, found)
        if wrong <= _WRONG:
            break
    assert best is not None
    return _whole(best[1], best[2], terms)


def _fitted(rows: np.ndarray, share: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The terms that matter, and their coefficients."""
    weight = 1.0 / (np.abs(share) + 0.02)
    kept = list(range(rows.shape[1]))
    while True:
        unit = np.abs(rows[:, kept]).max(0)  # columns of one size: the fit is well conditioned
        scaled = rows[:, kept] / unit
        found = np.linalg.lstsq(scaled * weight[:, None], share * weight, rcond=1e-10)[0]
        matters = np.abs(scaled * found).max(0)
        weak = [int(i) for i in np.argsort(matters, kind="stable") if matters[i] < _MATTERS]
        if not weak or len(kept) == 1:
            return kept, found / unit
        # One at a time, as the others take over what it did; of many a fourth.
        out = set(weak[: max(1, len(weak) // 4)])
        kept = [k for i, k in enumerate(kept) if i not in out] or kept[:1]


def _whole(kept: Sequence[int], found: np.ndarray, terms: Sequence[np.ndarray]) -> list[int] | None:
    """The coefficients as integers without a common divisor; None where only the constant is left."""
    most = max(float((np.abs(terms[k]) * abs(c)).max()) for k, c in zip(kept, found, strict=True)) * len(kept)
    factor = min(_DIGITS / float(np.abs(found).min()), _LARGEST / most)
    whole = [0] * len(terms)
    for k, c in zip(kept, found, strict=True):
        whole[k] = round(float(f"{c * factor:.3g}"))
    whole[0] = 0  # which number the sum is compared with is for others to find
    common = math.gcd(*whole)
    return [c // common for c in whole] if common else None
