"""Interval arithmetic over sizes: bounds of a `Dim` from bounds of its variables.

An end of None is infinite. Each operation encloses all values that its operands may take where it is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from relax_eg.shapes.dim import Atom, Dim, Monomial
from relax_eg.shapes.division import Remainder, split_remainders

Interval: TypeAlias = "tuple[int | None, int | None]"
ANY: Interval = (None, None)


def interval_of(dim: Dim, bounds: Callable[[str], Interval]) -> Interval:
    """Returns an interval that contains the value of `dim` for all variables within their `bounds`."""
    if dim.is_const:
        return dim.const, dim.const
    # Remainders first: `n - 4*(n//4)` is at most 3, which the separate terms do not show.
    rest, remainders = split_remainders(dim)
    total: Interval = (rest.const, rest.const)
    for monomial, coefficient in rest.terms:
        total = _add(total, _multiply((coefficient, coefficient), _monomial(monomial, bounds)))
    for remainder in remainders:
        factor = interval_of(remainder.factor, bounds)
        total = _add(total, _multiply(factor, _remainder(remainder, bounds)))
    return total


def _monomial(monomial: Monomial, bounds: Callable[[str], Interval]) -> Interval:
    total: Interval = (1, 1)
    for atom in monomial:
        total = _multiply(total, _atom(atom, bounds))
    return total


def _atom(atom: Atom, bounds: Callable[[str], Interval]) -> Interval:
    if atom.op == "var":
        return bounds(atom.name)
    if atom.op == "select":
        return _select(atom, bounds)
    first, *others = (interval_of(arg, bounds) for arg in atom.args)
    if atom.op == "floordiv":
        return _floordiv(first, others[0])
    if atom.op == "ceildiv":
        return _negate(_floordiv(_negate(first), others[0]))
    for other in others:
        first = _max(first, other) if atom.op == "max" else _negate(_max(_negate(first), _negate(other)))
    return first


def _select(atom: Atom, bounds: Callable[[str], Interval]) -> Interval:
    """Returns the hull of both sizes, each over the variables' values at which it is chosen; one size if only it is
    ever chosen."""
    condition, then, otherwise = atom.args
    low, high = interval_of(condition, bounds)
    if atom.name == ">=":
        always, never = low is not None and low >= 0, high is not None and high < 0
        inside, outside = _where(bounds, condition), _where(bounds, -condition - 1)
    else:
        always, never = low == high == 0, (low is not None and low > 0) or (high is not None and high < 0)
        inside, outside = _where(_where(bounds, condition), -condition), bounds
    if always or never:
        return interval_of(then, bounds) if always else interval_of(otherwise, bounds)
    a, b = interval_of(then, inside), interval_of(otherwise, outside)
    return (
        None if a[0] is None or b[0] is None else min(a[0], b[0]),
        None if a[1] is None or b[1] is None else max(a[1], b[1]),
    )


def _where(bounds: Callable[[str], Interval], condition: Dim) -> Callable[[str], Interval]:
    """Returns the `bounds` restricted to `condition >= 0`, if that bounds a single variable."""
    if len(condition.terms) != 1:
        return bounds
    ((monomial, c),) = condition.terms
    if len(monomial) != 1 or monomial[0].op != "var":
        return bounds
    name, (low, high) = monomial[0].name, bounds(monomial[0].name)
    if c > 0:
        least = -(condition.const // c)
        low = least if low is None else max(low, least)
    else:
        most = condition.const // -c
        high = most if high is None else min(high, most)
    return lambda other: (low, high) if other == name else bounds(other)


def _remainder(remainder: Remainder, bounds: Callable[[str], Interval]) -> Interval:
    """Returns bounds of `x % y`: 0..y-1 for y > 0, and the interval of x if it already lies there."""
    low, high = interval_of(remainder.dividend, bounds)
    least, greatest = interval_of(remainder.modulus, bounds)
    if least is None or least < 0 or greatest == 0:
        return ANY
    if low is not None and low >= 0 and high is not None and high < least:
        return low, high
    top = None if greatest is None else greatest - 1
    if low is not None and low >= 0 and high is not None:
        top = high if top is None else min(top, high)
    return 0, top


def _add(a: Interval, b: Interval) -> Interval:
    low = None if a[0] is None or b[0] is None else a[0] + b[0]
    high = None if a[1] is None or b[1] is None else a[1] + b[1]
    return low, high


def _negate(a: Interval) -> Interval:
    return None if a[1] is None else -a[1], None if a[0] is None else -a[0]


def _max(a: Interval, b: Interval) -> Interval:
    lows = [low for low in (a[0], b[0]) if low is not None]
    high = None if a[1] is None or b[1] is None else max(a[1], b[1])
    return max(lows, default=None), high


def _multiply(a: Interval, b: Interval) -> Interval:
    if a == (0, 0) or b == (0, 0):
        return 0, 0
    if None not in (*a, *b):
        corners = [x * y for x in a for y in b if x is not None and y is not None]
        return min(corners), max(corners)
    if _is_negative(a):
        return _negate(_multiply(_negate(a), b))
    if _is_negative(b):
        return _negate(_multiply(a, _negate(b)))
    # At least one end is infinite. A factor of unknown sign then gives no bounds.
    if a[0] is None or a[0] < 0:
        a, b = b, a
    if a[0] is None or a[0] < 0:
        return ANY
    least, most = _scaled_low(a, b), _scaled_low(a, _negate(b))
    return least, None if most is None else -most


def _scaled_low(a: Interval, b: Interval) -> int | None:
    """Returns the least `x*y` for x in `a`, which is >= 0, and y in `b`."""
    low, high = a
    if b[0] is None or low is None:
        return None
    if b[0] >= 0:
        return low * b[0]
    return None if high is None else high * b[0]


def _is_negative(a: Interval) -> bool:
    return a[1] is not None and a[1] <= 0


def _floordiv(a: Interval, b: Interval) -> Interval:
    """Returns bounds of `x//y`. A y of zero is ignored, because the quotient is undefined there."""
    if b == (0, 0):
        return ANY
    if b[1] is not None and b[1] <= 0:
        return _floordiv(_negate(a), _negate(b))
    if b[0] is None or b[0] < 0:
        return ANY
    least, greatest = max(b[0], 1), b[1]
    low = None if a[0] is None else _quotient(a[0], greatest if a[0] >= 0 else least)
    high = None if a[1] is None else _quotient(a[1], least if a[1] >= 0 else greatest)
    return low, high


def _quotient(x: int, y: int | None) -> int:
    """Returns `x//y`; y of None is infinitely large."""
    if y is None:
        return 0 if x >= 0 else -1
    return x // y
