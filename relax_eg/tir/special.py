"""Numpy implementations of scalar functions that numpy and scipy lack or compute differently from XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


def of_scipy(name: str) -> Callable[..., Array]:
    """Returns the function `name` of scipy.special, which is imported when it is first called: few programs need it."""

    def compute(*xs: Array) -> Array:
        import scipy.special

        return getattr(scipy.special, name)(*xs)

    return compute


def computed_in_float64(function: Callable[..., Any]) -> Callable[..., Array]:
    """Returns `function` computed in float64, to be rounded once."""
    return lambda *xs: np.asarray(function(*(x.astype(np.float64) for x in xs)))


# given: relative step (in units of `a`) and weights of the difference quotient in `igamma_grad_a`: the central
# difference of eighth order, exact to about 1e-11 in float64.
_STEP = 2.0**-6
_WEIGHTS = (4 / 5, -1 / 5, 4 / 105, -1 / 280)  # given: as above


def igamma_grad_a(a: Array, x: Array) -> Array:
    """Returns the derivative of the lower regularised incomplete gamma function with respect to its first argument."""
    step = a * _STEP
    total = np.zeros(np.broadcast_shapes(a.shape, x.shape))
    for i, weight in enumerate(_WEIGHTS, 1):
        ahead, behind = (of_scipy("gammainc")(a + s * i * step, x) for s in (1, -1))
        total = total + weight * (ahead - behind)
    found = total / step
    return np.where((x < 0) | (a <= 0), np.nan, np.where(x == 0, 0.0, found))


def digamma(x: Array) -> Array:
    """Returns the derivative of lgamma; NaN at every pole, including 0."""
    return np.where(x == 0, np.nan, of_scipy("digamma")(x))


def polygamma(n: Array, x: Array) -> Array:
    """Returns the nth derivative of digamma; for n > 0 by the Hurwitz zeta function."""
    sign = np.where(n % 2 == 0, -1.0, 1.0)
    found = sign * of_scipy("gamma")(n + 1) * of_scipy("zeta")(n + 1, x)
    return np.where(n == 0, digamma(x), found)


def total_order_key(x: Array) -> Array:
    """Returns integers in the total order of floats: -NaN, -inf, ..., -0, 0, ..., inf, NaN."""
    signed = np.dtype(f"i{x.dtype.itemsize}")
    bits = np.ascontiguousarray(x).view(signed).reshape(x.shape)
    return np.where(bits < 0, bits ^ np.iinfo(signed).max, bits)


def in_total_order(compare: Callable[..., Array]) -> Callable[..., Array]:
    """Returns `compare` in the total order of floats."""
    return lambda x, y: compare(total_order_key(x), total_order_key(y))


def reduce_precision(x: Array, exponent_bits: Array, mantissa_bits: Array) -> Array:
    """Rounds `x` to the nearest float of fewer bits, ties to even.

    Values above the range become infinities, values below the normal numbers zeros. NaN is unchanged.
    """
    exponent, mantissa = int(exponent_bits.reshape(-1)[0]), int(mantissa_bits.reshape(-1)[0])
    info = ml_dtypes.finfo(x.dtype)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    one, places = unsigned.type(1), int(info.nmant)
    bits = np.ascontiguousarray(x).view(unsigned).reshape(x.shape)
    if mantissa < places:
        dropped = unsigned.type(places - mantissa)
        last = (bits >> dropped) & one
        bits = (bits + last + ((one << (dropped - one)) - one)) & ~((one << dropped) - one)
    sign = bits & (one << unsigned.type(8 * x.dtype.itemsize - 1))
    own, fewer = (1 << (int(info.nexp) - 1)) - 1, (1 << (exponent - 1)) - 1
    if exponent < int(info.nexp):
        powers = unsigned.type(((1 << int(info.nexp)) - 1) << places)
        at = bits & powers
        above, below = at > unsigned.type((own + fewer) << places), at <= unsigned.type((own - fewer) << places)
        bits = np.where(above, sign | powers, np.where(below, sign, bits))
    return np.where(np.isnan(x), x, bits.astype(unsigned).view(x.dtype))


def sigmoid(x: Array) -> Array:
    """Returns 1 / (1 + exp(-x))."""
    return of_scipy("expit")(x) if x.dtype.kind == "f" else 1 / (1 + np.exp(-x))
