"""Positions that a program computes, of any integer dtype: what is out of range stays so, whatever holds it.

Positions are compared as int64. No axis is as long as int64 counts, so a position of uint64 beyond that is out of
range, and stands for the largest int64. Where axes are short, JAX cuts indices to 32 bits before it looks whether they
are in range; so an index of 64 bits is brought near its axis first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_eg.ir.annotations import itemsize
from relax_eg.tir import Scalar, cast, const, minimum

_LARGEST = 2**63 - 1
_NARROW = 2**31 - 1  # axes below that have positions of int32


def as_index(term: Scalar) -> Scalar:
    """A position as int64."""
    return cast(minimum(term, const(_LARGEST, "uint64")) if term.dtype == "uint64" else term, "int64")


def as_indices(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Positions of numpy's as int64."""
    return (np.minimum(array, np.uint64(_LARGEST)) if array.dtype == np.uint64 else array).astype(np.int64)


def jax_positions(indices: Any, sizes: Sequence[Any]) -> Any:
    """Positions of JAX's, whose last axis has one for each of `sizes`, the extents of axes: of int32, where they have
    64 bits and all extents are known and less than 2**31 - 1."""
    import jax.numpy as jnp
    from jax import lax

    if itemsize(indices.dtype.name) < 8 or not all(isinstance(n, int) and n < _NARROW for n in sizes):
        return indices
    dtype = indices.dtype
    near = jnp.minimum(indices, np.asarray(sizes, dtype))
    if dtype != np.uint64:
        near = jnp.maximum(near, np.asarray(-1, dtype))
    return lax.convert_element_type(near, "int32")
