"""Results at capacity: arrays with more places along their axes than the values in them have elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


def is_key_array(x: Any) -> bool:
    """Whether `x` is an array of typed PRNG keys, which numpy cannot hold."""
    # Almost all dtypes are numpy's, and JAX's own question takes a microsecond.
    is_ours = isinstance(x, jax.Array) and not isinstance(x.dtype, np.dtype)
    return is_ours and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


@dataclass(frozen=True, slots=True, eq=False)
class PaddedArray:
    """A result that was not cut to its size, because a later call may run at the same capacity.

    `Dynamic(padded=True)` asks for such results. A call of any optimized function takes one in place of an array. For
    anything else `cut()`, `np.asarray` and `jax.numpy.asarray` give the value, which is a copy.

    - `array`: the array at capacity. The value is at its beginning; what the other places hold does not matter.
    - `shape`: the shape of the value.
    """

    array: jax.Array
    shape: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array at capacity."""
        return self.array.nbytes

    def is_deleted(self) -> bool:
        """Whether a call used the array up."""
        return self.array.is_deleted()

    def block_until_ready(self) -> PaddedArray:
        self.array.block_until_ready()
        return self

    def cut(self) -> jax.Array:
        """The value. RuntimeError if a call used the array up."""
        inside = tuple(map(slice, self.shape))
        if jax.default_backend() != "cpu" or is_key_array(self.array):
            return self.array[inside]
        return jax.device_put(np.array(self))  # compiles nothing

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the value of a padded array is always a copy, because a call may write over the array")
        return np.array(np.asarray(self.array)[tuple(map(slice, self.shape))], dtype)
