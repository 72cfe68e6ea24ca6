"""Maxima and minima over axes that may be empty: where they are, both sides must be the same infinity.

A maximum over nothing is -inf, which is no real number, so the proof over the reals is of axes that have an element.
The other case is settled here, by what an infinity becomes in sums, extremes and the like; elements are finite.
"""

from __future__ import annotations

import math

from relax_eg.ir.annotations import is_float
from relax_eg.rules.verify_formal.guards import Facts, at_least, zero
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, Scalar, is_loop, walk

_EMPTY = {"max": -1, "min": 1}


def with_elements(a: Scalar, b: Scalar, facts: Facts) -> Facts:
    """`facts`, and that the axes of extremes in `a` and `b` are not empty, where the sides are shown to be the same
    infinity wherever one of these axes is."""
    if not is_float(a.dtype):
        return facts
    extents = dict.fromkeys(
        n
        for t in (*walk(a), *walk(b))
        if isinstance(t, Reduce) and t.kind in _EMPTY
        for _, n in t.over
        if not any(map(is_loop, n.variables)) and not facts.entails(at_least(n - 1))
    )
    if not extents or not all(_same_over_nothing(a, b, facts, n) for n in extents):
        return facts
    return facts.with_([at_least(n - 1) for n in extents])


def _same_over_nothing(a: Scalar, b: Scalar, facts: Facts, extent: Dim) -> bool:
    inside = facts.with_([zero(extent)])
    x, y = _infinity(a, inside), _infinity(b, inside)
    return x == y and x in (-1, 1)


def _infinity(s: Scalar, facts: Facts) -> int | None:
    """1 and -1 where `s` is infinite, 0 where it is a number, at all elements that are numbers; None where neither is
    shown."""
    if isinstance(s, (Read, Index)):
        return 0
    if isinstance(s, Const):
        if not isinstance(s.value, (int, float)) or math.isnan(s.value):
            return None
        return 0 if math.isfinite(s.value) else 1 if s.value > 0 else -1
    if isinstance(s, Cast):
        return _infinity(s.arg, facts) if is_float(s.dtype) else None
    if isinstance(s, Reduce):
        return _of_reduction(s, facts)
    if not isinstance(s, Apply) or not is_float(s.dtype):
        return None
    args = [_infinity(x, facts) for x in s.args]
    return None if None in args else _of_call(s.fn, [x for x in args if x is not None])


def _of_reduction(s: Reduce, facts: Facts) -> int | None:
    empty = any(facts.entails(zero(n)) for _, n in s.over)
    if s.kind in _EMPTY:
        if empty:
            return _EMPTY[s.kind]
        some = all(facts.entails(at_least(n - 1)) for _, n in s.over)
        return 0 if some and _infinity(s.body, facts) == 0 else None
    return 0 if s.kind == "sum" and (empty or _infinity(s.body, facts) == 0) else None


def _of_call(fn: str, args: list[int]) -> int | None:
    x, y = args[0], args[-1]
    match fn:
        case "negative":
            return -x
        case "add" | "subtract":
            z = y if fn == "add" else -y
            return None if x * z < 0 else x or z
        case "multiply":
            return 0 if x == y == 0 else None
        case "maximum":
            return max(x, y)
        case "minimum":
            return min(x, y)
        case _:
            return None
