"""Running reductions by blocks of a few elements, as CPUs run them.

XLA computes them by halves: sums of two neighbours, their running sums, and from these all others, in twice as many
kernels as the size has binary digits. By blocks of four it takes half of that. Rounding is as often.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from relax_eg.ops.lazy_jax import jnp, lax

_BLOCK = 4  # measured: elements of a block (`python -m benchmarks.patterns --cases running`)


def running(combine: Callable[[Any, Any], Any], nothing: Any, x: Any, axis: int, reverse: bool) -> Any:
    """The running reduction of `x` along an axis of known size, from its end with `reverse`. `nothing`: the value that
    combined with another one gives that."""
    n = x.shape[axis]
    if n <= 1:
        return x
    fill, blocks = np.asarray(nothing, x.dtype), -(-n // _BLOCK)
    x = _padded(x, fill, axis, 0, blocks * _BLOCK - n)
    each = lax.reshape(x, (*x.shape[:axis], blocks, _BLOCK, *x.shape[axis + 1 :]))
    inside = [lax.index_in_dim(each, i, axis + 1, keepdims=False) for i in range(_BLOCK)]
    inside = list(accumulate(inside[::-1] if reverse else inside, combine))
    through = running(combine, nothing, inside[-1], axis, reverse)
    if reverse:
        inside, before = inside[::-1], _padded(lax.slice_in_dim(through, 1, blocks, axis=axis), fill, axis, 0, 1)
    else:
        before = _padded(lax.slice_in_dim(through, 0, blocks - 1, axis=axis), fill, axis, 1, 0)
    found = lax.reshape(jnp.stack([combine(before, v) for v in inside], axis + 1), x.shape)
    return lax.slice_in_dim(found, 0, n, axis=axis)


def _padded(x: Any, fill: Any, axis: int, low: int, high: int) -> Any:
    return lax.pad(x, fill, [(low, high, 0) if a == axis else (0, 0, 0) for a in range(x.ndim)])
