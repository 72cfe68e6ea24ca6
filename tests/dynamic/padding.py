"""Arrays padded with values that must not change results, and comparisons of results within their true sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from relax_eg.dtypes import numpy_dtype

POISONS = ("nan", "inf", "garbage")


def poison(shape: Sequence[int], dtype: Any, kind: str, rng: np.random.Generator) -> Any:
    """An array of NaN, of infinities of both signs, or of any numbers; of integers their extremes or any."""
    shape = tuple(shape)
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype)
    if dtype.names:  # PRNG keys
        out = np.zeros(shape, dtype)
        for field in dtype.names:
            out[field] = rng.integers(0, 2**32, out[field].shape, np.uint32)
        return out
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name.startswith(("int", "uint")):
        limits = ml_dtypes.iinfo(dtype)
        ends = [int(limits.min), int(limits.max), *([] if kind == "inf" else [0, 1, 7 % int(limits.max)])]
        return np.asarray(rng.choice(np.array(ends, object), shape)).astype(dtype)
    if kind == "nan":
        return np.full(shape, np.nan).astype(dtype)
    if kind == "inf":
        return np.asarray(rng.choice([-np.inf, np.inf], shape)).astype(dtype)
    return (rng.normal(size=shape) * 100).astype(dtype)


def padded(x: Any, shape: Sequence[int], kind: str, rng: np.random.Generator) -> Any:
    """`x` at the front of an array of shape `shape`, and poison elsewhere."""
    out = np.array(poison(shape, x.dtype, kind, rng))
    out[tuple(slice(0, n) for n in x.shape)] = x
    return out


def within(x: Any, shape: Sequence[int]) -> Any:
    """Returns the part of `x` within the true sizes."""
    return x[tuple(slice(0, n) for n in shape)]


def capacities(sizes: Mapping[str, int], rng: np.random.Generator, most: int = 3) -> dict[str, int]:
    """Capacities of at least the sizes; some are the size itself."""
    return {v: max(1, n) + int(rng.integers(0, most + 1)) for v, n in sizes.items()}


def dtype_of(name: str) -> np.dtype[Any]:
    return numpy_dtype(name)
