"""Rounding by calibration: each row of a weight is rounded to codes in turn, and the error that its rounding makes in
the results on the calibration data is taken out of the rows that follow, as far as the inputs are correlated
(Frantar et al., GPTQ, 2023). The scales stay those of the weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from relax_eg.ops.codes import Scheme, code_limits, spread

_DAMPING = 0.01  # given: share of the mean square input that is added to each (Frantar et al., 2023)
_BLOCK = 64  # chosen: rows whose errors are taken out of all later rows at once

Array = np.ndarray[Any, Any]


def calibrated_codes(
    weight: Array, scale: Array, zero: Array | None, axis: int, products: Array, scheme: Scheme
) -> Array:
    """The codes of a matrix.

    - `weight`: the matrix; `axis` is the one along which it is contracted.
    - `scale`, `zero`: those of its codes by nearest rounding.
    - `products`: the sums over the calibration data of the products of each two inputs, (depth, depth).
    """
    step, zero_codes = spread(weight, scale, zero, axis, scheme)
    w, steps, zeros = (np.moveaxis(np.asarray(x, np.float64), axis, 0).copy() for x in (weight, step, zero_codes))
    low, high = code_limits(scheme)
    codes = _rounded(w, steps, zeros, _factor(products), low, high)
    codes = np.moveaxis(codes, 0, axis)
    if scheme.kind != "int4":
        return codes.astype(np.int8)
    even, odd = (np.take(codes, range(i, codes.shape[axis], 2), axis).astype(np.uint8) for i in range(2))
    return even | odd << 4


def _factor(products: Array) -> Array:
    """The upper factor of the inverse of damped `products`: row i tells how later inputs make up for input i."""
    h = np.asarray(products, np.float64).copy()
    diagonal = np.diag_indices_from(h)
    h[diagonal] += _DAMPING * max(float(np.mean(h[diagonal])), np.finfo(np.float32).tiny)
    return np.linalg.cholesky(np.linalg.inv(h)).T


def _rounded(w: Array, step: Array, zero: Array, factor: Array, low: float, high: float) -> Array:
    depth, codes = len(w), np.empty_like(w)
    for start in range(0, depth, _BLOCK):
        end = min(start + _BLOCK, depth)
        errors = np.empty((end - start, *w.shape[1:]))
        for i in range(start, end):
            codes[i] = np.clip(np.round(w[i] / step[i]) + zero[i], low, high)
            errors[i - start] = (w[i] - (codes[i] - zero[i]) * step[i]) / factor[i, i]
            w[i + 1 : end] -= factor[i, i + 1 : end, None] * errors[i - start]
        w[end:] -= factor[start:end, end:].T @ errors
    return codes
