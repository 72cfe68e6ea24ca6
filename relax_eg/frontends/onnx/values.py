"""Values during the conversion of an ONNX graph: expressions, or known arrays.

Shapes and values computed from shapes are known arrays of integers and sizes (`Dim`). `folding` computes the results of
nodes for them. So `Shape`, `Gather`, `Concat` and `Reshape` over symbolic sizes leave no trace in the module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.errors import OnnxError
from relax_eg.ir.expr import Expr, const
from relax_eg.limits import LARGEST_INT64
from relax_eg.ops import api as op
from relax_eg.shapes import Dim, Proved, Relation, dim_max, dim_min, prove

MOST_KNOWN = 1 << 16  # limit: elements of an array that is computed during the conversion
MOST_SIZES = 1 << 10  # limit: elements of such an array if it holds sizes, which cost a thousand times as much each
MOST_TERMS = 200  # limit: variables, numbers and operations in one size; sizes of real models have fewer than twenty

_MAX_DENOMINATOR = 1000  # limit: denominator of a fraction that exporters write as a float

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ratio:
    """A number that is computed of sizes as a float: `size / by`."""

    size: Dim
    by: int


@dataclass(frozen=True)
class KnownArray:
    """A known array.

    - `array`: numbers of dtype `dtype`, or, with sizes or ratios of sizes among them, an array of objects.
    - `dtype`: the dtype of its elements in the program.
    - `weight()`: returns the parameter that takes the array if the program itself uses it.
    """

    array: Array
    dtype: str
    weight: Callable[[], Expr] | None = None

    def __post_init__(self) -> None:
        assert self.is_symbolic or self.array.dtype == numpy_dtype(self.dtype), (self.array.dtype, self.dtype)

    @property
    def is_symbolic(self) -> bool:
        return self.array.dtype == object

    @property
    def has_ratios(self) -> bool:
        return self.is_symbolic and any(isinstance(x, Ratio) for x in self.array.reshape(-1))

    @property
    def expr(self) -> Expr:
        """The array as an expression of the program."""
        if self.weight is not None:
            return self.weight()
        if not self.is_symbolic:
            return const(self.array)
        parts = [_number(d, self.dtype) for d in self.array.reshape(-1)]
        if not self.array.shape:
            return parts[0]
        flat = op.concat([op.reshape(p, (1,)) for p in parts])
        return flat if self.array.ndim == 1 else op.reshape(flat, self.array.shape)


def _number(d: Any, dtype: str) -> Expr:
    """An element of an array that holds sizes, as an expression."""
    if isinstance(d, float):
        return op.full((), d, dtype)
    size, by = (d.size, d.by) if isinstance(d, Ratio) else (Dim.of(d), 1)
    found = op.dim_value(size, dtype if not is_float(dtype) else "int32")
    found = op.astype(found, dtype)
    return found if by == 1 else op.divide(found, by)


Value = Expr | KnownArray


@dataclass(frozen=True)
class TensorList:
    """A sequence of tensors, whose length is known; it exists only while the graph is read."""

    elements: tuple[Value, ...]


@dataclass(frozen=True)
class Nothing:
    """An optional without a value."""


Held = Value | TensorList | Nothing
"""What a name of a graph stands for. An optional that has a value is that value."""


def plain_fraction(value: float) -> Fraction:
    """The fraction that a float32 of an exporter stands for: a plain one if there is one, otherwise the exact value."""
    plain = Fraction(value).limit_denominator(_MAX_DENOMINATOR)
    return plain if np.float32(plain) == np.float32(value) else Fraction(value)


def tensor(value: Held) -> Expr:
    """A value as an expression. OnnxError for a sequence or an empty optional."""
    if isinstance(value, TensorList | Nothing):
        what = "a sequence" if isinstance(value, TensorList) else "an empty optional"
        raise OnnxError(f"{what} where a tensor is needed\n  accepted: tensors")
    return value.expr if isinstance(value, KnownArray) else value


def known_value(found: Any, dtype: str) -> KnownArray:
    """An array or a single size as a value of `dtype`. An array of objects without sizes becomes an array of numbers.

    OnnxError for a size with too many terms, and for a number that does not fit into `dtype`."""
    array = np.empty((), object) if isinstance(found, Dim) else np.asarray(found)
    if isinstance(found, Dim):
        array[()] = found
    if array.dtype != object:
        return KnownArray(array.astype(numpy_dtype(dtype), copy=False), dtype)
    items = [int(d) if isinstance(d, Dim) and d.is_const else d for d in array.reshape(-1)]
    if any(isinstance(d, Dim | Ratio) for d in items):
        for d in items:
            if isinstance(d, Dim | Ratio):
                _check_terms(d.size if isinstance(d, Ratio) else d)
        made = np.empty(len(items), object)
        made[:] = items
        return KnownArray(made.reshape(array.shape), dtype)
    try:
        return KnownArray(np.array(items, numpy_dtype(dtype)).reshape(array.shape), dtype)
    except OverflowError:
        raise OnnxError(
            f"{max(map(int, items), key=abs)} is computed of sizes\n  accepted: numbers that are {dtype}s"
        ) from None


def _check_terms(size: Dim) -> None:
    if _terms(size) > MOST_TERMS:
        raise OnnxError(f"a size of more than {MOST_TERMS} terms\n  accepted: sizes of up to {MOST_TERMS} terms")


def _terms(size: Dim) -> int:
    """The number of variables, numbers and operations in an expanded size. OnnxError if a number exceeds 64 bits."""
    counted: dict[Dim, int] = {}

    def count(d: Dim) -> int:
        if d not in counted:
            atoms = (a for monomial, _ in d.terms for a in monomial)
            if any(abs(c) > LARGEST_INT64 for c in (d.const, *(c for _, c in d.terms))):
                raise OnnxError("a size with a number beyond 64 bits\n  accepted: numbers that are int64s")
            counted[d] = 1 + len(d.terms) + sum(1 + sum(map(count, a.args)) for a in atoms)
        return counted[d]

    return count(size)


def is_known(a: Dim, relation: str, b: Dim) -> bool:
    """Whether a relation of sizes can be proved for all sizes without a search."""
    return isinstance(prove(Relation.of(a, relation, b), timeout_ms=0), Proved)


def least(a: Dim, b: Dim) -> Dim:
    """The smaller of two sizes: `a` itself where that is proved."""
    return a if is_known(a, "<=", b) else dim_min(a, b)


def greatest(a: Dim, b: Dim) -> Dim:
    """The larger of two sizes: `a` itself where that is proved."""
    return a if is_known(b, "<=", a) else dim_max(a, b)


def dims(array: Array) -> tuple[Dim, ...]:
    """The sizes in an array of rank 1 or 0. OnnxError for a higher rank."""
    if array.ndim > 1:
        raise OnnxError(f"sizes in an array of rank {array.ndim}\n  accepted: rank 1 or 0")
    return tuple(d if isinstance(d, Dim) else Dim.of(int(d)) for d in np.atleast_1d(array))
