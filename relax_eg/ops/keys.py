"""PRNG keys as numpy arrays.

A key is a group of 32-bit words. JAX hides the words behind dtypes of its own, such as `key<fry>`. In numpy a key array
is a structured array whose only field holds the words and is named after the kind of key.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.dtypes import is_key, numpy_dtype
from relax_eg.ops.lazy_jax import jax

Array = np.ndarray[Any, Any]

# JAX's names of the generators, with the kinds of their keys.
GENERATORS = {"threefry2x32": "fry", "rbg": "rbg", "unsafe_rbg": "urbg"}


def dtype_name(array: Any) -> str:
    """Returns the name, in this package, of the dtype of a numpy or JAX array."""
    dtype = array.dtype
    return f"key<{dtype.names[0]}>" if getattr(dtype, "names", None) else str(dtype.name)


def words_from_keys(keys: Array) -> Array:
    """Returns the words of a key array, along a new last axis."""
    assert keys.dtype.names is not None
    return keys[keys.dtype.names[0]]


def keys_from_words(data: Array, dtype: str) -> Array:
    """Returns the key array of dtype `dtype` whose words are the last axis of `data`."""
    made = np.empty(data.shape[:-1], numpy_dtype(dtype))
    words_from_keys(made)[...] = data
    return made


def generator_of(dtype: str) -> str:
    """Returns JAX's name of the generator of keys of `dtype`."""
    return next(name for name, kind in GENERATORS.items() if f"key<{kind}>" == dtype)


@lru_cache(1 << 4)  # there are three generators
def jax_dtype(dtype: str) -> Any:
    """Returns JAX's own dtype for keys of `dtype`."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=generator_of(dtype))).dtype


def argument_dtype(dtype: str) -> Any:
    """Returns the dtype that a call's arrays have for our `dtype`: JAX's own for keys, else numpy's."""
    return jax_dtype(dtype) if is_key(dtype) else numpy_dtype(dtype)


def words_of_keys(keys: Any) -> Array:
    """Returns the words of a JAX key array, also while JAX traces something else."""
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.random.key_data(keys))


def from_jax(keys: Any) -> Array:
    """Returns a JAX key array as a numpy key array."""
    return keys_from_words(words_of_keys(keys), dtype_name(keys))


def to_jax(keys: Array) -> Any:
    """Returns a numpy key array as a JAX key array."""
    return jax.random.wrap_key_data(jax.numpy.asarray(words_from_keys(keys)), impl=generator_of(dtype_name(keys)))
