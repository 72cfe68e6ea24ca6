"""What the padding of a value holds, along one axis: anything, finite numbers, or one constant.

An index equation is evaluated on such contents at a point where one loop variable lies beyond its true extent and all
others are anywhere. What comes out is what the padding of the equation's result holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.errors import ShapeError
from relax_eg.tir import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select
from relax_eg.tir.functions import FUNCTIONS, kind


@dataclass(frozen=True)
class Content:
    """`what`: "any" (NaN and infinities included), "finite", or "is" (every element is `value`)."""

    what: str
    value: Any = None

    @property
    def is_finite(self) -> bool:
        return self.what == "finite" or (self.what == "is" and bool(np.isfinite(np.asarray(self.value, complex))))

    def equals(self, value: Any) -> bool:
        """Whether every element is `value`; zeros of both signs count as one."""
        return self.what == "is" and bool(self.value == value)

    def __str__(self) -> str:
        return str(self.value) if self.what == "is" else self.what


ANY, FINITE = Content("any"), Content("finite")

# Functions of finite numbers that are finite whatever the numbers.
_BOUNDED = frozenset(
    "negative abs sign floor ceil round round_away maximum minimum tanh sigmoid sin cos erf erfc real imag conj".split()
)


def known(value: Any) -> Content:
    return Content("is", value)


def of_dtype(dtype: str) -> Content:
    """What padding of dtype `dtype` may hold."""
    try:
        return ANY if kind(dtype) in "fc" else FINITE
    except ShapeError:  # a PRNG key of a kind that is not known
        return FINITE


def joined(a: Content, b: Content) -> Content:
    """What is either `a` or `b`."""
    if a == b or (a.what == b.what == "is" and a.value == b.value):
        return a
    return FINITE if a.is_finite and b.is_finite else ANY


def evaluated(term: Scalar, read: Callable[[Read], Content]) -> Content:
    """The content of `term`, where `read` says what its reads give. Linear in the number of distinct terms."""
    done: dict[Scalar, Content] = {}
    todo = [term]
    while todo:
        at = todo[-1]
        parts = () if isinstance(at, (Read, Index, Const)) else at.children
        missing = [part for part in parts if part not in done]
        if missing:
            todo.extend(missing)
            continue
        done[at] = _of(at, [done[part] for part in parts], read)
        todo.pop()
    return done[term]


def _of(term: Scalar, parts: Sequence[Content], read: Callable[[Read], Content]) -> Content:
    match term:
        case Const():
            return known(term.value)
        case Index():
            return FINITE
        case Read():
            found = read(term)
        case Select():
            cond, then, other = parts
            found = (then if cond.value else other) if cond.what == "is" else joined(then, other)
        case Cast():
            found = _cast(term, parts[0])
        case Apply():
            found = _applied(term, parts)
        case Reduce():
            found = _reduced(term, parts[0])
        case _:
            found = ANY
    return FINITE if found is ANY and of_dtype(term.dtype) is FINITE else found


def _cast(term: Cast, part: Content) -> Content:
    if part.what == "is":
        held = _number(part.value, term.arg.dtype)
        if kind(term.dtype) in "biu" and not part.is_finite:
            return FINITE
        with np.errstate(all="ignore"):
            return known(held.astype(np.dtype(term.dtype)).item())
    narrow = ("float16", "float8_e4m3fn", "float8_e5m2")  # a finite number may be infinite there
    return FINITE if part.is_finite and term.dtype not in narrow and term.arg.dtype != "float64" else ANY


def _number(value: Any, dtype: str) -> Any:
    return np.asarray(value).astype(np.dtype(dtype))


def _applied(term: Apply, parts: Sequence[Content]) -> Content:
    if all(p.what == "is" for p in parts):
        given = [_number(p.value, a.dtype) for p, a in zip(parts, term.args, strict=True)]
        with np.errstate(all="ignore"):
            return known(FUNCTIONS[term.fn](given, term.dtype).item())
    finite = all(p.is_finite for p in parts)
    if term.fn in ("multiply", "bitwise_and") and finite and any(p.equals(0) for p in parts):
        return known(False if term.dtype == "bool" else 0)
    return FINITE if finite and term.fn in _BOUNDED else ANY


def _reduced(term: Reduce, body: Content) -> Content:
    if term.kind in ("max", "min", "any", "all") and body.what == "is" and term.kind in ("max", "min"):
        return ANY  # over nothing it is another
    if term.kind == "sum" and body.equals(0):
        return known(0)
    return ANY


def is_identity(content: Content, identity: Any) -> bool:
    """Whether what a reduction would meet in the padding changes nothing."""
    if content.what != "is":
        return False
    if isinstance(identity, float) and math.isnan(identity):
        return False
    return bool(content.value == identity)
