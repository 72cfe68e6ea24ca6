"""Sorts by one unsigned integer for each element, as CPUs run them.

XLA's compiler for CPUs gives a sort of one array of integers to the C++ library's sort. In any other sort, and in any
sort of floats, it calls its compiled comparison for each pair of elements, which takes 5 to 7 times as long (jax
0.10.2). So the keys and the place of an element are packed into one integer, and the places that the sorted integers
hold say where each result comes from. Of a single operand the integers themselves are mapped back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from relax_eg.dtypes import dtype_of
from relax_eg.ops.lazy_jax import jax, jnp, lax
from relax_eg.ops.on_cpus import on_cpus
from relax_eg.shapes import Dim

_PLACE_BITS = 31  # given: bits of a place along an axis of unknown size: JAX numbers places in int32
# measured: elements of a row up to which the library's sort without a promise about equal elements is faster: 1.4 to
# 1.9 times at 16 and 64, 0.75 times at 256 (`python -m benchmarks.patterns --cases sort`)
_FEW = 100
_WORDS = (32, 64)  # given: bits of the integers into which keys are packed


def is_of_integers(dtypes: Sequence[str]) -> bool:
    """Whether XLA itself gives a sort of operands of these dtypes to the C++ library."""
    return len(dtypes) == 1 and dtype_of(dtypes[0]).is_integer and not dtype_of(dtypes[0]).is_narrow


def packed_bits(dtypes: Sequence[str], num_keys: int, size: Any) -> int | None:
    """The bits of the integers by which operands of these dtypes, of which the first `num_keys` are keys, are sorted
    along an axis of a size; None where keys have no such integer, or one of more than 64 bits."""
    keys = [dtype_of(d) for d in dtypes[:num_keys]]
    if is_of_integers(dtypes) or any(d.is_narrow or d.kind == "c" for d in keys):
        return None
    bits = sum(_bits(d.name) for d in keys) + (_place_bits(size) if len(dtypes) > 1 else 0)
    return bits if bits <= _WORDS[-1] else None


def packed_sort(plain: Callable[..., Any], axis: int, num_keys: int, bits: int) -> Callable[..., Any]:
    """The function `plain`, a sort by the first `num_keys` of its arguments, as a sort of integers of `bits` bits on
    CPUs. Equal elements stay in order. It has the derivatives of `plain`."""
    word = next(w for w in _WORDS if bits <= w)

    def packed(*xs: Any) -> Any:
        with jax.enable_x64(True) if word > _WORDS[0] else nullcontext():
            return _sorted_by_integers(xs, axis, num_keys, word)

    return on_cpus(packed, plain)


def _sorted_by_integers(xs: Sequence[Any], axis: int, num_keys: int, word: int) -> Any:
    dtype, alone = jnp.dtype(f"uint{word}"), len(xs) == 1
    packed = lax.full(xs[0].shape, 0, dtype)
    for x in xs[:num_keys]:
        packed = (packed << min(_bits(x.dtype.name), word - 1)) | _ordered(x, is_exact=alone).astype(dtype)
    if alone:
        return _from_ordered(_sorted(packed, axis), xs[0].dtype)
    place = _place_bits(xs[0].shape[axis])
    packed = (packed << place) | lax.broadcasted_iota(dtype, xs[0].shape, axis)
    found = _sorted(packed, axis) & jnp.asarray((1 << place) - 1, dtype)
    places = found.astype("int32")
    return tuple(jnp.take_along_axis(x, places, axis, mode="promise_in_bounds") for x in xs)


def _sorted(integers: Any, axis: int) -> Any:
    """Integers sorted along an axis, which is moved to the end: XLA sorts other axes 1.0 to 2.8 times as slowly."""
    n, rows = integers.shape[axis], jnp.moveaxis(integers, axis, -1)
    is_stable = not (isinstance(n, int) and n <= _FEW)
    return jnp.moveaxis(lax.sort(rows, dimension=rows.ndim - 1, is_stable=is_stable), -1, axis)


def _place_bits(size: Any) -> int:
    """Bits of a place along an axis of a size: a number, a `Dim`, or a symbolic size of JAX."""
    n = size.value if isinstance(size, Dim) and size.is_const else size
    return (max(n, 1) - 1).bit_length() if isinstance(n, int) else _PLACE_BITS


def _bits(dtype: str) -> int:
    return 1 if dtype == "bool" else dtype_of(dtype).bits


def _ordered(x: Any, is_exact: bool) -> Any:
    """Unsigned integers in the order of the elements of `x`, NaN last. `is_exact`: zeros of both signs differ."""
    known, bits = dtype_of(x.dtype.name), _bits(x.dtype.name)
    if known.kind in "bu":
        return x.astype("uint8") if known.kind == "b" else x
    unsigned = jnp.dtype(f"uint{bits}")
    sign = jnp.asarray(1 << (bits - 1), unsigned)
    if known.kind == "i":
        return lax.bitcast_convert_type(x, unsigned) ^ sign
    found = lax.bitcast_convert_type(x if is_exact else jnp.where(x == 0, jnp.zeros_like(x), x), unsigned)
    return jnp.where(jnp.isnan(x), ~jnp.zeros_like(found), jnp.where(found >= sign, ~found, found | sign))


def _from_ordered(found: Any, dtype: Any) -> Any:
    """The elements for the integers that `_ordered` gives with `is_exact`."""
    bits = _bits(dtype.name)
    if bits == 1:
        return found.astype(dtype)
    found = found.astype(f"uint{bits}")
    sign = jnp.asarray(1 << (bits - 1), found.dtype)
    return lax.bitcast_convert_type(jnp.where(found >= sign, found ^ sign, ~found), dtype)
