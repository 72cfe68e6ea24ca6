"""Conversions of computed positions of any integer dtype that keep a position out of range out of range.

Positions are compared as int64. No axis is as long as int64 counts, so a uint64 position beyond that is out of range
and becomes the largest int64. For short axes JAX truncates indices to 32 bits before it checks their range, so a 64-bit
index is first clamped to at most one place outside its axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np

from relax_eg.dtypes import itemsize
from relax_eg.limits import LARGEST_INT32, LARGEST_INT64
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.ops.sizes import dilated
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Index, Scalar, cast, const, equal, less, less_equal, minimum, select


def read_padded(
    x: Buffer, at: Sequence[Dim], low: Sequence[Dim], high: Sequence[Dim], interior: Sequence[int], otherwise: Scalar
) -> Scalar:
    """Returns the element of `x` at a position of the array that `x` is with padding: `low` and `high` places before
    and after each axis, `interior` ones between its elements. In the padding it is `otherwise`."""
    places: list[Dim] = []
    inside: list[Scalar] = []
    for v, n, before, after, between in zip(at, x.shape, low, high, interior, strict=True):
        p = v - before
        places.append(p // (between + 1))
        if not (before.is_const and before.value <= 0):
            inside.append(less_equal(Index(Dim.of(0)), Index(p)))
        if not (after.is_const and after.value <= 0):
            inside.append(less(Index(p), Index(dilated(n, between))))
        if between:
            inside.append(equal(Index(p % (between + 1)), 0))
    read = x[tuple(places)]
    return select(reduce(and_, inside), read, otherwise) if inside else read


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
