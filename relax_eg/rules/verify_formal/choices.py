"""Cases of two terms over the reals, in each of which no condition is left to decide.

Absolute values, extremes and signs are choices by comparisons. A condition that occurs in either term holds in one case
and does not in the other; comparisons of numbers with infinities are decided, and infinities are computed with where
what they absorb is a number. A logarithm of what may be zero, inside a function that may have a value for it, is minus
infinity in a case of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from relax_eg.dtypes import is_float, kind
from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.tir.expr import Apply, Cast, Const, Read, Scalar, Select, walk
from relax_eg.tir.functions import FUNCTIONS

MOST_CASES = 64  # limit: cases of a pair of terms

# Comparisons as those by "less" and "equal": whether the operands are exchanged, and the result negated.
_AS_LESS = {
    "less": (False, False), "greater": (True, False), "greater_equal": (False, True), "less_equal": (True, True),
}  # fmt: skip
# given: the dtype in which the numbers of other float dtypes are written down
_FLOAT = "float64"
_EXACT = frozenset({0.0, 1.0, -1.0, math.inf, -math.inf})  # given: what functions give exactly at infinities


@dataclass(frozen=True)
class Premises:
    """What holds in a case.

    - `truths`: the conditions that were decided, and how.
    - `numbers`: terms that are gone and must be numbers for the case to say what the terms are.
    - `zeros`: terms whose logarithm became minus infinity: those that must not be below zero.
    """

    truths: Mapping[Scalar, bool]
    numbers: frozenset[Scalar]
    zeros: frozenset[Scalar]


@dataclass(frozen=True)
class ChosenTerms:
    """Two terms without conditions, and what holds where they stand for the terms they are made of."""

    left: Scalar
    right: Scalar
    premises: Premises


def terms_under(left: Scalar, right: Scalar, truths: Mapping[Scalar, bool]) -> ChosenTerms:
    """Returns the terms under decided conditions."""
    decided = _Decided(truths)
    a, b = decided.term(left), decided.term(right)
    return ChosenTerms(a, b, Premises(truths, frozenset(decided.numbers), frozenset(decided.zeros)))


def next_condition(case: ChosenTerms) -> Scalar | None:
    """Returns a condition of the terms that no other condition is part of; None if there is none."""
    for s in (case.left, case.right):
        for t in walk(s):
            if isinstance(t, Select):
                return _first_atom(t.cond)
    return None


def _first_atom(cond: Scalar) -> Scalar:
    for t in walk(cond):
        if isinstance(t, Select):
            return _first_atom(t.cond)
    if isinstance(cond, Apply) and cond.args[0].dtype == "bool":
        return next((_first_atom(a) for a in cond.args if not isinstance(a, Const)), cond)
    return cond


def is_positive(x: Scalar) -> Scalar:
    """Returns the condition, in the form in which conditions are decided, that `x` is greater than zero."""
    return Apply("less", (Const(0.0, x.dtype), x))


class _Decided:
    """Terms under decided conditions.

    - `numbers`, `zeros`: as in `Premises`.
    """

    def __init__(self, truths: Mapping[Scalar, bool]) -> None:
        self.numbers: set[Scalar] = set()
        self.zeros: set[Scalar] = set()
        self._truths = truths
        self.term = cache(self._made)  # each term is made once

    def _made(self, s: Scalar) -> Scalar:
        if isinstance(s, Select):
            return self._chosen(self.term(s.cond), s.then, s.other)
        if isinstance(s, Cast):
            arg = self.term(s.arg)
            if arg.dtype == "bool" and is_float(s.dtype):
                return self._chosen(arg, Const(1.0, s.dtype), Const(0.0, s.dtype))
            return Cast(arg, s.dtype)
        if isinstance(s, Apply):
            return self._applied(s.fn, tuple(map(self.term, s.args)))
        return self._truth(s) if s.dtype == "bool" else s

    def _chosen(self, cond: Scalar, then: Scalar, other: Scalar) -> Scalar:
        if isinstance(cond, Const):
            return self.term(then if cond.value else other)
        a, b = self.term(then), self.term(other)
        return a if a == b else Select(cond, a, b)

    def _truth(self, s: Scalar) -> Scalar:
        found = self._truths.get(s)
        if found is None:
            return s
        self.numbers.update(a for a in s.children if is_float(a.dtype))
        return Const(found, "bool")

    def _applied(self, fn: str, args: tuple[Scalar, ...]) -> Scalar:
        x, y = args[0], args[-1]
        if x.dtype == "bool":
            return self._connected(fn, args)
        if kind(x.dtype) != "f":
            return Apply(fn, args)
        zero = Const(0.0, x.dtype)
        match fn:
            case "equal" | "not_equal" | "less" | "less_equal" | "greater" | "greater_equal":
                return self._compared(fn, x, y)
            case "abs":
                return self._chosen(self._compared("less", x, zero), Apply("negative", (x,)), x)
            case "maximum" | "minimum":
                low, high = (x, y) if fn == "maximum" else (y, x)
                return self._chosen(self._compared("less", low, high), y, x)
            case "clamp":
                return self._applied("minimum", (self._applied("maximum", (args[1], x)), y))
            case "sign":
                one = Const(1.0, x.dtype)
                negative = self._chosen(self._compared("less", x, zero), Const(-1.0, x.dtype), zero)
                return self._chosen(self._compared("less", zero, x), one, negative)
            case "log" if self._truths.get(is_positive(x)) is False:
                self.zeros.add(x)
                return Const(-math.inf, x.dtype)
            case _:
                return self._at_infinity(fn, args)

    def _connected(self, fn: str, args: tuple[Scalar, ...]) -> Scalar:
        known = [bool(a.value) for a in args if isinstance(a, Const)]
        rest = [a for a in args if not isinstance(a, Const)]
        match fn:
            case "bitwise_not" if known:
                return Const(not known[0], "bool")
            case "bitwise_and" | "bitwise_or" if known:
                decides = fn == "bitwise_or"
                if decides in known or not rest:
                    return Const(decides if decides in known else not decides, "bool")
                return rest[0]
            case _:
                return Apply(fn, args)

    def _compared(self, fn: str, x: Scalar, y: Scalar) -> Scalar:
        turned, negated = _AS_LESS.get(fn, (False, fn == "not_equal"))
        a, b = (y, x) if turned else (x, y)
        found = self._decided("less" if fn in _AS_LESS else "equal", a, b)
        if isinstance(found, Const):
            return Const(bool(found.value) != negated, "bool")
        return Apply("bitwise_not", (found,)) if negated else found

    def _decided(self, fn: str, a: Scalar, b: Scalar) -> Scalar:
        if a == b or _infinite(a) or _infinite(b):
            self.numbers.update(t for t in (a, b) if not isinstance(t, Const))
            first, second = (_infinite(t) or 0.0 for t in (a, b))  # any number is between the infinities
            return Const(first < second if fn == "less" else first == second, "bool")
        if isinstance(a, Const) and isinstance(b, Const):
            values = a.value, b.value
            return Const(values[0] < values[1] if fn == "less" else values[0] == values[1], "bool")  # type: ignore[operator]
        return self._truth(Apply(fn, (a, b)))

    def _at_infinity(self, fn: str, args: tuple[Scalar, ...]) -> Scalar:
        """Returns a function applied, with an infinity among its arguments computed with."""
        s = Apply(fn, args)
        if not any(_infinite(a) for a in args) or any(kind(a.dtype) != "f" for a in args):
            return s
        values = [a.value if isinstance(a, Const) else 0.0 for a in args]
        rest = [a for a in args if not isinstance(a, Const)]
        if rest:  # any number may stand for what an infinity absorbs
            if fn not in ("add", "subtract") or any(isinstance(t, Select) for a in rest for t in walk(a)):
                return s
            self.numbers.update(rest)
        value = float(FUNCTIONS[fn]([np.asarray(v, np.float64) for v in values], "float64"))
        return Const(value, s.dtype) if value in _EXACT else s


def _infinite(s: Scalar) -> float:
    """Returns the infinity that `s` is; 0 if it is none. Raises Unsupported for NaN."""
    if not isinstance(s, Const) or not isinstance(s.value, float):
        return 0.0
    if math.isnan(s.value):
        raise Unsupported("arithmetic with NaN")
    return s.value if math.isinf(s.value) else 0.0


def inner_terms(case: ChosenTerms) -> Iterator[Scalar]:
    """The terms of a case that must be numbers."""
    for s in case.premises.numbers:
        yield from walk(s)


class PlainTerms:
    """Terms with each element as a number of its own in one float dtype, as it does not matter here where elements
    are, and in which dtype. So the question about one rank and dtype is that about others.

    - `claims`: facts of these numbers.
    """

    def __init__(self, claims: Mapping[str, frozenset[str]]) -> None:
        self.claims: dict[str, frozenset[str]] = {}
        self._facts = claims
        self.term = cache(self._made)  # each term is made once

    def _made(self, s: Scalar) -> Scalar:
        if kind(s.dtype) == "c":
            raise Unsupported("complex numbers, over the reals")
        dtype = _FLOAT if kind(s.dtype) == "f" else s.dtype
        match s:
            case Const():
                return Const(s.value, dtype)
            case Read():
                name = f"{s.buffer} {len(self.claims)}"
                self.claims[name] = self._facts.get(s.buffer, frozenset())
                return Read(name, (), dtype)
            case Cast():
                arg = self.term(s.arg)
                return arg if arg.dtype == dtype else Cast(arg, dtype)
            case Select():
                return Select(*(self.term(x) for x in (s.cond, s.then, s.other)))
            case Apply():
                return Apply(s.fn, tuple(map(self.term, s.args)))
            case _:
                raise Unsupported(f"{type(s).__name__.lower()}, over the reals")
