"""What the padding of a value holds along one axis: anything, finite numbers, or one constant.

An index equation is evaluated on such contents at a point where one loop variable is beyond its true extent and all
others are anywhere. The value is what the padding of the equation's result holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, kind
from relax_eg.errors import ShapeError
from relax_eg.tir import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select
from relax_eg.tir.functions import FUNCTIONS, functions_with_trait
from relax_eg.traversal import made_from_below


@dataclass(frozen=True)
class Content:
    """What the padding holds along one axis.

    - `what`: "any" (NaN and infinities included), "finite", or "is" (every element is `value`).
    - `value`: the number of all elements where `what` is "is".
    - `or_nan`: an element may also be NaN if a valid element at the same place of the other axes is NaN, as in a row of
      a softmax that is NaN anyway. A sum or an extreme along the axis is not changed by that.
    """

    what: str
    value: Any = None
    or_nan: bool = False

    @property
    def is_finite(self) -> bool:
        return self.what == "finite" or (self.is_constant and bool(np.isfinite(np.asarray(self.value, complex))))

    @property
    def is_constant(self) -> bool:
        return self.what == "is" and not self.or_nan

    def equals(self, value: Any, or_nan: bool = False) -> bool:
        """Whether every element is `value`; zeros of both signs are equal."""
        return self.what == "is" and bool(self.value == value) and (or_nan or not self.or_nan)

    def __str__(self) -> str:
        return f"{self.value}{' or NaN' if self.or_nan else ''}" if self.what == "is" else self.what


ANY, FINITE = Content("any"), Content("finite")


def known_content(value: Any, or_nan: bool = False) -> Content:
    return Content("is", value, or_nan)


ZERO = known_content(0)


def padding_content(dtype: str) -> Content:
    """What padding of a dtype may hold."""
    try:
        return ANY if kind(dtype) in "fc" else FINITE
    except ShapeError:  # a PRNG key of an unknown kind
        return FINITE


def join_contents(a: Content, b: Content) -> Content:
    """The content of a value that is `a` or `b`."""
    if a.what == b.what == "is" and a.value == b.value:
        return a if a.or_nan else b
    if a == b:
        return a
    return FINITE if a.is_finite and b.is_finite else ANY


def evaluate_content(term: Scalar, read: Callable[[Read], Content]) -> Content:
    """The content of `term`; `read` gives the content of its reads. Linear in the number of distinct terms."""

    def parts(at: Scalar) -> tuple[Scalar, ...]:
        return () if isinstance(at, (Read, Index, Const)) else at.children

    done: dict[Scalar, Content] = {}
    return made_from_below(term, parts, lambda at: _term_content(at, [done[x] for x in parts(at)], read), done)


def _term_content(term: Scalar, parts: Sequence[Content], read: Callable[[Read], Content]) -> Content:
    match term:
        case Const():
            return known_content(term.value)
        case Index():
            return FINITE
        case Read():
            found = read(term)
        case Select():
            cond, then, other = parts
            # In a NaN row the select may pick elements that are not NaN, so that only the padding is NaN.
            mixed = ANY if then.or_nan or other.or_nan else join_contents(then, other)
            found = (then if cond.value else other) if cond.is_constant else mixed
        case Cast():
            found = _cast_content(term, parts[0])
        case Apply():
            found = _function_content(term, parts)
        case Reduce():
            found = _reduction_content(term, parts[0])
        case _:
            found = ANY
    return FINITE if found is ANY and padding_content(term.dtype) is FINITE else found


def _cast_content(term: Cast, part: Content) -> Content:
    if part.what == "is":
        held = _number(part.value, term.arg.dtype)
        if part.or_nan:
            floats = kind(term.dtype) == kind(term.arg.dtype) == "f"
            return known_content(held.astype(np.dtype(term.dtype)).item(), or_nan=True) if floats else ANY
        if kind(term.dtype) in "biu" and not part.is_finite:
            return FINITE
        with np.errstate(all="ignore"):
            return known_content(held.astype(np.dtype(term.dtype)).item())
    return FINITE if part.is_finite and not _may_overflow(term.arg.dtype, term.dtype) else ANY


def _may_overflow(source: str, target: str) -> bool:
    """Whether a finite number of one dtype may be no finite number of another."""
    given, made = dtype_of(source).part, dtype_of(target).part
    if not made.is_float or given.kind not in "iuf":
        return False
    return given.powers > made.powers if given.is_float else given.greatest > made.greatest


def _number(value: Any, dtype: str) -> Any:
    return np.asarray(value).astype(np.dtype(dtype))


def _function_content(term: Apply, parts: Sequence[Content]) -> Content:
    nan = any(p.or_nan for p in parts)
    if nan and term.fn not in functions_with_trait("nan"):
        return ANY
    if all(p.what == "is" for p in parts):
        given = [_number(p.value, a.dtype) for p, a in zip(parts, term.args, strict=True)]
        with np.errstate(all="ignore"):
            return known_content(FUNCTIONS[term.fn](given, term.dtype).item(), or_nan=nan)
    finite = all(p.is_finite for p in parts)
    if term.fn in ("multiply", "bitwise_and") and finite and any(p.equals(0) for p in parts):
        return known_content(False if term.dtype == "bool" else 0)
    # A function that takes real and complex numbers may have poles among the latter, or overflow.
    real = not any(kind(a.dtype) == "c" for a in term.args) or FUNCTIONS[term.fn].accepts == "c"
    return FINITE if finite and real and term.fn in functions_with_trait("bounded") else ANY


def _reduction_content(term: Reduce, body: Content) -> Content:
    if term.kind == "sum" and body.equals(0):
        return known_content(0)
    return ANY


def is_identity(content: Content, identity: Any, kind_of: str) -> bool:
    """Whether padding with this content leaves a reduction of this kind unchanged."""
    return content.equals(identity, or_nan=kind_of in ("sum", "prod", "max", "min"))
