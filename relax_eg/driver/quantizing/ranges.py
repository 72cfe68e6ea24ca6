"""The range that the codes of an activation cover, by what calibration saw of it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Calibration = Literal["minmax", "percentile", "entropy"]
CALIBRATIONS: tuple[Calibration, ...] = ("minmax", "percentile", "entropy")
_CODES = 128  # given: magnitudes of int8 codes
_FIRST_BINS = 128  # given: least bins of a range, one for each magnitude
_STEP = 16  # limit: bins between two ranges that are compared; a smaller step compares more
_NEVER_SEEN = 1e-9  # chosen: share of a bin in which nothing was seen

Counts = np.ndarray[Any, Any]


def percentile_range(counts: Counts, low: float, high: float, percent: float) -> tuple[float, float]:
    """The range that leaves out (100 - percent) / 2 percent at each end. `counts`: the histogram from low to high."""
    edges = np.linspace(low, high, len(counts) + 1)
    share = np.cumsum(counts) / max(float(np.sum(counts)), 1.0)
    left = (1 - percent / 100) / 2
    first = int(np.searchsorted(share, left, side="right"))
    last = int(np.searchsorted(share, 1 - left, side="left"))
    return float(edges[min(first, len(counts) - 1)]), float(edges[min(last, len(counts) - 1) + 1])


def entropy_range(counts: Counts, low: float, high: float) -> tuple[float, float]:
    """The range whose codes tell most of the distribution: least relative entropy of the elements, those beyond the
    range limited to it, from what their codes stand for. It is symmetric within low and high."""
    most = max(-low, high)
    if most <= 0:
        return low, high
    magnitudes = _magnitudes(counts, low, high, most)
    ends = range(_FIRST_BINS, len(magnitudes) + 1, _STEP)
    end = min(ends, key=lambda n: _relative_entropy(magnitudes, n))
    limit = most * end / len(magnitudes)
    return max(low, -limit), min(high, limit)


def _magnitudes(counts: Counts, low: float, high: float, most: float) -> Counts:
    """The histogram of magnitudes from 0 to `most`."""
    edges = np.linspace(low, high, len(counts) + 1)
    middles = np.abs((edges[:-1] + edges[1:]) / 2)
    found, _ = np.histogram(middles, len(counts), (0.0, most), weights=counts.astype(np.float64))
    return found


def _relative_entropy(magnitudes: Counts, end: int) -> float:
    seen = magnitudes[:end].copy()
    seen[-1] += magnitudes[end:].sum()
    if not seen.sum():
        return float("inf")
    parts = np.arange(end) * _CODES // end  # the code of each bin
    kept = magnitudes[:end]
    occupied = np.bincount(parts, kept > 0, _CODES)
    level = np.bincount(parts, kept, _CODES) / np.maximum(occupied, 1)
    told = np.where(kept > 0, level[parts], 0.0) + _NEVER_SEEN
    p, q = seen / seen.sum(), told / told.sum()
    return float(np.sum(np.where(p > 0, p * np.log(np.maximum(p, 1e-300) / q), 0.0)))
