"""PRNG keys as numpy arrays.

A key is words of 32 bits that belong together. JAX hides them behind a dtype of its own, `key<fry>` and its like; to
numpy a key array is one of records, whose only field is named after the kind of key and holds the words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.ir.expr import np_dtype
from relax_eg.tir import KEY_WORDS, numpy_dtype

Array = np.ndarray[Any, Any]

# The generators by the names that JAX and its users give them: the kinds of their keys.
GENERATORS = {"threefry2x32": "fry", "rbg": "rbg", "unsafe_rbg": "urbg"}


def is_key(dtype: str | None) -> bool:
    """Whether `dtype` is that of a PRNG key that has words here."""
    return dtype is not None and dtype.startswith("key<") and dtype[4:-1] in KEY_WORDS


def dtype_name(array: Any) -> str:
    """The dtype of a numpy or JAX array by its name here."""
    dtype = array.dtype
    return f"key<{dtype.names[0]}>" if getattr(dtype, "names", None) else str(dtype.name)


def words(keys: Array) -> Array:
    """The words of a key array, along a new last axis."""
    assert keys.dtype.names is not None
    return keys[keys.dtype.names[0]]


def keyed(data: Array, dtype: str) -> Array:
    """The key array of dtype `dtype` whose words are the last axis of `data`."""
    made = np.empty(data.shape[:-1], numpy_dtype(dtype))
    words(made)[...] = data
    return made


def generator_of(dtype: str) -> str:
    """JAX's name of the generator that keys of `dtype` are for."""
    return next(name for name, kind in GENERATORS.items() if f"key<{kind}>" == dtype)


@lru_cache
def jax_dtype(dtype: str) -> Any:
    """JAX's own dtype of keys of `dtype`."""
    import jax

    return jax.eval_shape(lambda: jax.random.key(0, impl=generator_of(dtype))).dtype


def given_dtype(dtype: str) -> Any:
    """The dtype that arrays of a call have where ours is `dtype`: of keys it is JAX's own."""
    return jax_dtype(dtype) if is_key(dtype) else np_dtype(dtype)


def from_jax(keys: Any) -> Array:
    """A key array of JAX as one of numpy."""
    import jax

    return keyed(np.asarray(jax.random.key_data(keys)), dtype_name(keys))


def to_jax(keys: Array) -> Any:
    """A key array of numpy as one of JAX."""
    import jax

    return jax.random.wrap_key_data(jax.numpy.asarray(words(keys)), impl=generator_of(dtype_name(keys)))
