"""Values that are computed from shapes while a module is read: arrays of numbers, symbolic sizes, and open values.

What the sizes do not decide, such as whether `n % 2` is 0 or which way a quotient of a negative size is rounded, is an
open value: the operation and its operands. Open values may become sizes again: JAX writes `n // b` as a choice between
two roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import max_dim, min_dim

from relax_eg.frontends.stablehlo.parsing import HloOp
from relax_eg.frontends.stablehlo.use import word_in
from relax_eg.tir.exact import truncated_quotient

MOST_KNOWN = 64  # limit: elements of an array that is computed while the module is read; shapes have fewer


@dataclass(frozen=True)
class Open:
    """A scalar that depends on sizes, and is no size.

    - `name`: the operation, or the direction of a comparison.
    - `args`: its operands: numbers, sizes, open values.
    """

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Known:
    """An array of integers, truth values, symbolic sizes and open values that is known while the module is read."""

    array: np.ndarray[Any, Any]
    dtype: str

    @property
    def value(self) -> Any:
        if self.array.dtype != object:
            return self.array
        parts = [jnp.asarray(_computed(d), self.dtype) for d in self.array.reshape(-1)]
        return (jnp.stack(parts) if parts else jnp.zeros(0, self.dtype)).reshape(self.array.shape)

    @property
    def sizes(self) -> np.ndarray[Any, Any] | None:
        """The array, if there are no open values in it."""
        return None if any(isinstance(d, Open) for d in self.array.reshape(-1)) else self.array


def known_constant(array: np.ndarray[Any, Any], dtype: str) -> Known | None:
    """A constant as a known value, if it is small and may be of sizes."""
    return Known(array, dtype) if array.dtype.kind in "iub" and array.size <= MOST_KNOWN else None


def known_size(value: Any, axis: int) -> Known:
    """The size of an array along an axis."""
    size = np.empty((), object)
    size[()] = jnp.shape(value)[axis]
    return Known(size, "int32")


# --- scalars ---


def _decided(holds: Callable[[], Any]) -> bool | None:
    """A comparison of sizes; None if they do not decide it."""
    try:
        return bool(holds())
    except Exception as error:  # the error of a comparison that the sizes do not decide is no public class
        if type(error).__name__ != "InconclusiveDimensionOperation":
            raise
        return None


def _quotient(a: Any, b: Any) -> Any:
    """The quotient rounded to 0; None if the sizes do not tell how that is. A number divided by 0 has all bits set, as
    in XLA."""
    if isinstance(a, int) and isinstance(b, int):
        return truncated_quotient(a, b) if b else -1
    return a // b if _decided(lambda: a >= 0) and _decided(lambda: b >= 1) else None


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a - b * _quotient(a, b)
    return None if _quotient(a, b) is None else a % b


def _sign(a: Any) -> int | None:
    if _decided(lambda: a >= 1):
        return 1
    if _decided(lambda: a <= -1):
        return -1
    return 0 if _equal(a, 0) else None


def _equal(a: Any, b: Any) -> bool | None:
    """Whether two sizes are equal at all sizes (True) or at none (False). JAX's `==` is False for those between."""
    if a == b:
        return True
    return False if _decided(lambda: a - b >= 1) or _decided(lambda: a - b <= -1) else None


def _both(a: Any, b: Any) -> Any:
    return False if a is False or b is False else b if a is True else a if b is True else None


def _either(a: Any, b: Any) -> Any:
    return True if a is True or b is True else b if a is False else a if b is False else None


def _differ(a: Any, b: Any) -> bool | None:
    return a != b if isinstance(a, bool) and isinstance(b, bool) else None


def _not(a: Any) -> bool | None:
    return not a if isinstance(a, bool) else None


def _chosen(c: Any, a: Any, b: Any) -> Any:
    if isinstance(c, bool) or a == b:
        return a if c is True or a == b else b
    if not isinstance(b, Open) or b.name not in ("divide", "remainder"):
        return None
    x, y = b.args
    rounded, modulo = _as_jax_writes(x, y)
    return x // y if (c, a, b) == rounded else x % y if (c, a, b) == modulo else None


def _as_jax_writes(x: Any, y: Any) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """The choices by which JAX writes `x // y` and `x % y`, by a quotient and a remainder rounded to 0."""
    quotient, rest = scalar("divide", x, y), scalar("remainder", x, y)
    inexact = scalar("NE", rest, 0)
    other_sign = scalar("NE", scalar("sign", x), scalar("sign", y))
    other_side = scalar("NE", scalar("LT", rest, 0), scalar("LT", y, 0))
    return (
        (scalar("and", other_sign, inexact), scalar("subtract", quotient, 1), quotient),
        (scalar("and", other_side, inexact), scalar("add", rest, y), rest),
    )


@dataclass(frozen=True)
class _Scalar:
    """An operation on scalars.

    - `known`: its result; None if the sizes do not tell it.
    - `computed`: the same on JAX's arrays.
    """

    known: Callable[..., Any]
    computed: Callable[..., Any]


_SCALARS: Mapping[str, _Scalar] = {
    "abs": _Scalar(lambda a: None if (sign := _sign(a)) is None else a * sign, lax.abs),
    "negate": _Scalar(lambda a: -a, lax.neg), "sign": _Scalar(_sign, lax.sign),
    "add": _Scalar(lambda a, b: a + b, lax.add), "subtract": _Scalar(lambda a, b: a - b, lax.sub),
    "multiply": _Scalar(lambda a, b: a * b, lax.mul), "divide": _Scalar(_quotient, lax.div),
    "remainder": _Scalar(_remainder, lax.rem), "maximum": _Scalar(max_dim, lax.max),
    "minimum": _Scalar(min_dim, lax.min), "EQ": _Scalar(_equal, lax.eq),
    "NE": _Scalar(lambda a, b: _not(_equal(a, b)), lax.ne), "LT": _Scalar(lambda a, b: _decided(lambda: a < b), lax.lt),
    "LE": _Scalar(lambda a, b: _decided(lambda: a <= b), lax.le),
    "GT": _Scalar(lambda a, b: _decided(lambda: a > b), lax.gt),
    "GE": _Scalar(lambda a, b: _decided(lambda: a >= b), lax.ge),
}  # fmt: skip
# Operations of which one operand may tell the result where another is open, or not known at all (None).
LOGICAL: Mapping[str, _Scalar] = {
    "and": _Scalar(_both, lax.bitwise_and), "or": _Scalar(_either, lax.bitwise_or),
    "xor": _Scalar(_differ, lax.bitwise_xor), "not": _Scalar(_not, lax.bitwise_not),
    "select": _Scalar(_chosen, jnp.where),
}  # fmt: skip


def scalar(name: str, *args: Any) -> Any:
    """The result of an operation on numbers, sizes and open values."""
    if name in LOGICAL:
        found = LOGICAL[name].known(*args)
    else:
        found = None if any(isinstance(a, Open) for a in args) else _SCALARS[name].known(*args)
    return Open(name, args) if found is None else found


def _computed(d: Any) -> Any:
    """A scalar as JAX computes it."""
    if not isinstance(d, Open):
        return jnp.asarray(d)
    xs = [_computed(a) for a in d.args]
    kinds = [x.dtype for x in xs if x.dtype != bool]
    same = [x.astype(jnp.result_type(*kinds)) if kinds and x.dtype != bool else x for x in xs]
    return {**_SCALARS, **LOGICAL}[d.name].computed(*same)


# --- arrays ---


def known_result(op: HloOp, args: Sequence[Known]) -> Known | None:
    """The result of an operation on known operands; None if it is to be computed when the program runs: another
    operation, numbers that do not fit."""
    kind, name = op.types[0], op.name.removeprefix("stablehlo.")
    if kind is None or None in kind.shape or np.dtype(kind.dtype).kind not in "iub" or len(op.results) != 1:
        return None
    shape = tuple(d for d in kind.shape if d is not None)
    if int(np.prod(shape)) > MOST_KNOWN:
        return None
    xs = [a.array.astype(object) for a in args]
    name = word_in(op.at("comparison_direction")) if name == "compare" else name
    if name in _SCALARS or name == "select" or (name in LOGICAL and kind.dtype == "bool"):
        made = np.frompyfunc(lambda *each: scalar(name, *each), len(xs), 1)(*xs)
    elif name == "concatenate":
        made = np.concatenate(xs, int(op.at("dimension")))
    elif name == "reshape":
        made = xs[0].reshape(shape)
    elif name == "slice":
        columns = (op.at(c) for c in ("start_indices", "limit_indices", "strides"))
        made = xs[0][tuple(slice(*map(int, row)) for row in zip(*columns, strict=True))]
    elif name == "convert" and np.dtype(args[0].dtype).kind in "iu" and np.dtype(kind.dtype).kind in "iu":
        made = xs[0]
    elif name == "broadcast_in_dim":
        dims = [int(d) for d in op.at("broadcast_dimensions")]
        aligned = xs[0].reshape([xs[0].shape[dims.index(a)] if a in dims else 1 for a in range(len(shape))])
        made = np.broadcast_to(aligned, shape)
    else:
        return None
    array = np.empty(shape, object)
    array[...] = made
    if all(isinstance(d, int | bool) for d in array.reshape(-1)):
        array = _numbers(array, kind.dtype)
    return None if array is None else Known(array, kind.dtype)


def _numbers(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any] | None:
    """Numbers as an array of `dtype`; None if they do not fit, so that XLA has to wrap them around."""
    wide = np.dtype(dtype)
    if wide.kind == "b":
        return array.astype(bool)
    if wide.type.__module__ != np.__name__:
        return None
    held = np.iinfo(wide)
    if wide.kind == "u":
        array = np.where(array == -1, held.max, array)  # all bits set
    return array.astype(wide) if all(held.min <= int(d) <= held.max for d in array.reshape(-1)) else None
