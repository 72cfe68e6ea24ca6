"""Scalar functions, casts and reductions of index equations, on JAX arrays of equal shapes.

They agree with the reference evaluator (`tir.functions`): casts of floats to integers truncate and saturate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.dtypes import dtype_of, kind
from relax_eg.ops.elementwise import converted
from relax_eg.ops.integers import power
from relax_eg.ops.scalar_lowerings import in_jax, in_xla
from relax_eg.tir import Const, Scalar
from relax_eg.tir.expr import ReduceKind
from relax_eg.tir.functions import FUNCTIONS, REDUCTIONS
from relax_eg.tir.functions import identity as identity_of

Array: TypeAlias = Any


def apply_function(fn: str, args: Sequence[Array], terms: Sequence[Scalar], *, in_kernel: bool = False) -> Array:
    """The scalar function `fn` of `FUNCTIONS` on arrays `args`, the values of `terms`. `in_kernel`: whether Pallas
    compiles it, in place of XLA."""
    if fn == "integer_pow":
        return power(args[0], _constant(terms[1]))
    if fn == "reduce_precision":
        return lax.reduce_precision(args[0], _constant(terms[1]), _constant(terms[2]))
    if fn.startswith("bits_as_"):
        return lax.bitcast_convert_type(args[0], fn.removeprefix("bits_as_"))
    if in_kernel:
        return in_jax(fn)(*args)
    return in_xla(fn, args[0].dtype.name, by_number=any(isinstance(t, Const) for t in terms[1:]))(*args)


def _constant(term: Scalar) -> int:
    assert isinstance(term, Const)  # ensured by Apply
    return int(term.value.real)


def convert(x: Array, dtype: str) -> Array:
    """`x` converted to `dtype`, as `Cast` defines; of complex numbers the real part is converted."""
    if x.dtype.name == dtype:
        return x
    if kind(x.dtype.name) == "c" and kind(dtype) not in "c":
        x = lax.real(x)
    return converted(x, dtype)


# --- reductions ---


def accumulator(kind_of: ReduceKind, dtype: str) -> str:
    """The dtype in which `dtype` is reduced: float32 for sums and products of low-precision floats, bytes for 4-bit
    integers."""
    record = dtype_of(dtype)
    return record.wider.name if record.is_narrow or kind_of in ("sum", "prod") else dtype


def reduce_axes(kind_of: ReduceKind, x: Array, axes: Sequence[int]) -> Array:
    """`x`, which has its accumulator's dtype, reduced over `axes`; argmax and argmin reduce one axis and are int64."""
    if kind_of in ("argmax", "argmin"):
        if x.dtype == jnp.bool_:
            x = lax.convert_element_type(x, np.dtype("int8"))
        find = lax.argmax if kind_of == "argmax" else lax.argmin
        # Asked for int64, JAX would decide when it lowers, by its x64 flag.
        return lax.convert_element_type(find(x, axes[0], np.dtype("int32")), np.dtype("int64"))
    return getattr(lax, REDUCTIONS[kind_of].primitive)(x, tuple(axes))


def combine(kind_of: ReduceKind, x: Array, y: Array) -> Array:
    """Two partial results of a reduction combined."""
    return getattr(lax, FUNCTIONS[REDUCTIONS[kind_of].function].primitive)(x, y)


def identity(kind_of: ReduceKind, dtype: str) -> Any:
    """The value of a reduction over no elements, as a numpy scalar."""
    return np.asarray(identity_of(kind_of, dtype)).astype(np.dtype(dtype))
