"""Short names that let index equations read like mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias
from typing import cast as typed

from relax_eg.shapes import Dim
from relax_eg.tir.expr import INDEX_DTYPE, Reduce, ReduceKind, Scalar, ScalarLike, apply, cast


def equal(a: ScalarLike, b: ScalarLike) -> Scalar:
    return apply("equal", a, b)


def not_equal(a: ScalarLike, b: ScalarLike) -> Scalar:
    return apply("not_equal", a, b)


def less(a: ScalarLike, b: ScalarLike) -> Scalar:
    return apply("less", a, b)


def less_equal(a: ScalarLike, b: ScalarLike) -> Scalar:
    return apply("less_equal", a, b)


def within(low: ScalarLike, x: ScalarLike, high: ScalarLike) -> Scalar:
    """`low <= x < high`, the usual guard of a read."""
    return less_equal(low, x) & less(x, high)


def maximum(a: ScalarLike, b: ScalarLike) -> Scalar:
    return apply("maximum", a, b)


def minimum(a: ScalarLike, b: ScalarLike) -> Scalar:
    return apply("minimum", a, b)


def exp(x: Scalar) -> Scalar:
    return apply("exp", x)


def log(x: Scalar) -> Scalar:
    return apply("log", x)


def sqrt(x: Scalar) -> Scalar:
    return apply("sqrt", x)


def rsqrt(x: Scalar) -> Scalar:
    return apply("rsqrt", x)


def tanh(x: Scalar) -> Scalar:
    return apply("tanh", x)


def sigmoid(x: Scalar) -> Scalar:
    return apply("sigmoid", x)


Over: TypeAlias = "tuple[Dim, Dim | int | str] | Sequence[tuple[Dim, Dim | int | str]]"


def reduce(kind: ReduceKind, body: Scalar, over: Over) -> Scalar:
    """`body` reduced over `(variable, extent)` or a sequence of such pairs; over an empty sequence it is `body`."""
    if len(over) == 2 and isinstance(over[0], Dim):
        over = [typed("tuple[Dim, Dim | int | str]", over)]
    pairs = typed("Sequence[tuple[Dim, Dim | int | str]]", over)
    return Reduce(kind, tuple((var, Dim.of(extent)) for var, extent in pairs), body) if pairs else body


def sum_(body: Scalar, over: Over) -> Scalar:
    return reduce("sum", body, over)


def prod_(body: Scalar, over: Over) -> Scalar:
    return reduce("prod", body, over)


def max_(body: Scalar, over: Over) -> Scalar:
    return reduce("max", body, over)


def min_(body: Scalar, over: Over) -> Scalar:
    return reduce("min", body, over)


def any_(body: Scalar, over: Over) -> Scalar:
    return reduce("any", body, over)


def all_(body: Scalar, over: Over) -> Scalar:
    return reduce("all", body, over)


def argmax(body: Scalar, over: Over, dtype: str = INDEX_DTYPE) -> Scalar:
    return cast(reduce("argmax", body, over), dtype)


def argmin(body: Scalar, over: Over, dtype: str = INDEX_DTYPE) -> Scalar:
    return cast(reduce("argmin", body, over), dtype)
