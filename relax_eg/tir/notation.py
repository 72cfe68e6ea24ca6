"""Short names that let index equations read like mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias
from typing import cast as typed

from relax_eg.shapes import Dim
from relax_eg.tir.expr import INDEX_DTYPE, Reduce, ReduceKind, Scalar, ScalarLike, apply, cast

equal, not_equal = partial(apply, "equal"), partial(apply, "not_equal")
less, less_equal = partial(apply, "less"), partial(apply, "less_equal")
maximum, minimum = partial(apply, "maximum"), partial(apply, "minimum")
exp, log, tanh, sigmoid = (partial(apply, name) for name in ("exp", "log", "tanh", "sigmoid"))
sqrt, rsqrt = partial(apply, "sqrt"), partial(apply, "rsqrt")


def within(low: ScalarLike, x: ScalarLike, high: ScalarLike) -> Scalar:
    """`low <= x < high`, the usual guard of a read."""
    return less_equal(low, x) & less(x, high)


Over: TypeAlias = "tuple[Dim, Dim | int | str] | Sequence[tuple[Dim, Dim | int | str]]"


def reduce(kind: ReduceKind, body: Scalar, over: Over) -> Scalar:
    """`body` reduced over `(variable, extent)` or a sequence of such pairs; over an empty sequence it is `body`."""
    if len(over) == 2 and isinstance(over[0], Dim):
        over = [typed("tuple[Dim, Dim | int | str]", over)]
    pairs = typed("Sequence[tuple[Dim, Dim | int | str]]", over)
    return Reduce(kind, tuple((var, Dim.of(extent)) for var, extent in pairs), body) if pairs else body


sum_, prod_ = partial(reduce, "sum"), partial(reduce, "prod")
max_, min_ = partial(reduce, "max"), partial(reduce, "min")
any_, all_ = partial(reduce, "any"), partial(reduce, "all")


def argmax(body: Scalar, over: Over, dtype: str = INDEX_DTYPE) -> Scalar:
    return cast(reduce("argmax", body, over), dtype)


def argmin(body: Scalar, over: Over, dtype: str = INDEX_DTYPE) -> Scalar:
    return cast(reduce("argmin", body, over), dtype)
