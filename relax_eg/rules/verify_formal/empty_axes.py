"""Splits a proof about maxima and minima into cases: one in which no axis is empty, and one for each axis that may be
empty.

A maximum over an empty axis is -inf, which is no real number, so the proof over the reals is about axes that have an
element. For an empty axis, the infinity is propagated through sums, extremes and other functions of finite elements. If
both sides are shown to be the same infinity, the case is done. If the infinity disappears, as in `maximum(-inf, y)`,
which is y, the rest is a case to prove.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from relax_eg.dtypes import is_float
from relax_eg.rules.verify_formal.compose import Composer
from relax_eg.rules.verify_formal.guards import KnownGuards, at_least, zero
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, is_loop, walk
from relax_eg.tir.program import dims_of

_EMPTY = {"max": -1, "min": 1}  # given: the sign of the infinity that is the extreme over an empty axis
_NEUTRAL = {"maximum": -math.inf, "minimum": math.inf}  # given: the neutral elements


def cases(a: Scalar, b: Scalar, composer: Composer, facts: KnownGuards) -> Iterator[tuple[Scalar, Scalar, KnownGuards]]:
    """Yields the sides and the facts of each case. Together the cases are all points that `facts` allow, except those
    at which both sides are shown to be the same infinity. If an infinity stays and is not shown to be the same on both
    sides, the sides are yielded unchanged, with an axis that may be empty."""
    extents = _maybe_empty(a, b, facts) if is_float(a.dtype) else []
    for n in extents:
        inside = facts.with_([zero(n)])
        if not _same_infinity(a, b, inside):
            gone = {v: Dim.of(0) for v in _sizes(a, b) if inside.entails(zero(Dim.var(v)))}
            x, y = (_without_infinities(composer.renamed(s, gone), inside) for s in (a, b))
            if _is_infinite(x) or _is_infinite(y):
                yield a, b, facts
                return
            yield from cases(x, y, composer, inside)
        facts = facts.with_([at_least(n - 1)])
    yield a, b, facts


def _maybe_empty(a: Scalar, b: Scalar, facts: KnownGuards) -> list[Dim]:
    """Returns the extents of the axes of extremes that are not known to be 1 or more."""
    extents = dict.fromkeys(
        n
        for t in (*walk(a), *walk(b))
        if isinstance(t, Reduce) and t.kind in _EMPTY
        for _, n in t.over
        if not any(map(is_loop, n.variables))
    )
    return [n for n in extents if not facts.entails(at_least(n - 1))]


def _sizes(a: Scalar, b: Scalar) -> list[str]:
    names = {v for t in (*walk(a), *walk(b)) for d in dims_of(t) for v in d.variables}
    return sorted(v for v in names if not is_loop(v))


def _is_infinite(s: Scalar) -> bool:
    return any(isinstance(t, Const) and isinstance(t.value, float) and math.isinf(t.value) for t in walk(s))


def _without_infinities(s: Scalar, facts: KnownGuards) -> Scalar:
    """Returns `s` with extremes over empty axes replaced by infinities, and without infinities that are neutral."""
    if isinstance(s, Reduce):
        if s.kind in _EMPTY and any(facts.entails(zero(n)) for _, n in s.over):
            return Const(_EMPTY[s.kind] * math.inf, s.dtype)
        return Reduce(s.kind, s.over, _without_infinities(s.body, facts))
    if isinstance(s, Cast):
        return Cast(_without_infinities(s.arg, facts), s.dtype)
    if isinstance(s, Select):
        return Select(*(_without_infinities(x, facts) for x in (s.cond, s.then, s.other)))
    if not isinstance(s, Apply):
        return s
    args = tuple(_without_infinities(x, facts) for x in s.args)
    neutral = _NEUTRAL.get(s.fn)
    kept = [x for x in args if not (isinstance(x, Const) and x.value == neutral)]
    return kept[0] if neutral is not None and len(kept) == 1 else Apply(s.fn, args)


def _same_infinity(a: Scalar, b: Scalar, facts: KnownGuards) -> bool:
    x, y = _infinity(a, facts), _infinity(b, facts)
    return x == y and x in (-1, 1)


def _infinity(s: Scalar, facts: KnownGuards) -> int | None:
    """Returns 1 or -1 if `s` is infinite, 0 if it is a number, for all finite elements; None if neither is shown."""
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


def _of_reduction(s: Reduce, facts: KnownGuards) -> int | None:
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
