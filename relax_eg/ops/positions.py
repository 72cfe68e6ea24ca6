"""Conversions of computed positions of any integer dtype that keep a position out of range out of range.

Positions are compared as int64. No axis is as long as int64 counts, so a uint64 position beyond that is out of range
and becomes the largest int64. For short axes JAX truncates indices to 32 bits before it checks their range, so a 64-bit
index is first clamped to at most one place outside its axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import itemsize
from relax_eg.limits import LARGEST_INT32, LARGEST_INT64
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.tir import Scalar, cast, const, minimum


def as_index(term: Scalar) -> Scalar:
    """Returns a position as int64."""
    return cast(minimum(term, const(LARGEST_INT64, "uint64")) if term.dtype == "uint64" else term, "int64")


def as_indices(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns numpy positions as int64."""
    return (np.minimum(array, np.uint64(LARGEST_INT64)) if array.dtype == np.uint64 else array).astype(np.int64)


def jax_positions(indices: Any, sizes: Sequence[Any]) -> Any:
    """Returns JAX positions, as int32 where they have 64 bits and all `sizes` are known and less than 2**31 - 1.
    `sizes`: the extents of the axes that the entries along the last axis of `indices` are positions on."""
    if itemsize(indices.dtype.name) < 8 or not all(isinstance(n, int) and n < LARGEST_INT32 for n in sizes):
        return indices
    dtype = indices.dtype
    near = jnp.minimum(indices, np.asarray(sizes, dtype))
    if dtype != np.uint64:
        near = jnp.maximum(near, np.asarray(-1, dtype))
    return lax.convert_element_type(near, "int32")
