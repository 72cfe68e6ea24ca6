"""Terms as quotients of polynomials in elements, logarithms and exponentials, which show most laws of exponentials.

An exponent is a sum of numbers times terms, and its exponential a product of powers of the exponentials of these terms;
that of a logarithm is what the logarithm is of. Hyperbolic functions are quotients of exponentials. Any other function
is an unknown of its own. Two terms are equal wherever both have a value if their quotients are the same.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import z3

from relax_eg.dtypes import kind
from relax_eg.tir.expr import Apply, Const, Scalar

_LARGEST_POWER = 8  # limit: powers of an exponential; a larger multiple of an exponent is an exponent of its own

Polynomial = Any
Quotient = tuple[Polynomial, Polynomial]
Linear = dict[Scalar, Fraction]
_ONE = z3.RealVal(1)


def same_quotients(left: Scalar, right: Scalar) -> bool:
    """Whether the terms are shown equal wherever both have a value."""
    found = _Quotients()
    sides = [found.quotient(s) for s in (left, right)]
    while found.is_stale:  # a smaller part of an exponent was met after a larger one
        found.restart()
        sides = [found.quotient(s) for s in (left, right)]
    (a, b), (c, d) = sides
    return z3.is_true(z3.simplify(a * d - c * b == 0, som=True))


def linear(s: Scalar, mass: bool = False) -> Linear:
    """Returns `s` as a sum of numbers times terms; the number 1 is the term of a constant. `mass`: with the absolute
    values of all that is added up for a term."""
    found: Linear = {}
    todo = [(s, Fraction(1))]
    while todo:
        t, c = todo.pop()
        match t:
            case Apply("add" | "subtract", (x, y)):
                todo += [(x, c), (y, c if t.fn == "add" else -c)]
            case Apply("negative", (x,)):
                todo.append((x, -c))
            case Apply("multiply", (x, y)) if (number := _number(x)) is not None:
                todo.append((y, c * number))
            case Apply("multiply" | "divide", (x, y)) if number := _number(y):
                todo.append((x, c * number if t.fn == "multiply" else c / number))
            case _:
                number = _number(t)
                atom, by = (t, c) if number is None else (Const(1.0, t.dtype), c * number)
                found[atom] = found.get(atom, Fraction(0)) + (abs(by) if mass else by)
    return {t: c for t, c in found.items() if c}


def _number(s: Scalar) -> Fraction | None:
    if not isinstance(s, Const) or isinstance(s.value, complex) or not math.isfinite(s.value):
        return None
    return Fraction(s.value)


class _Quotients:
    """Quotients of terms.

    - `is_stale`: whether quotients have exponentials of larger parts of an exponent than those made later.
    """

    def __init__(self) -> None:
        self.is_stale = False
        self._parts: dict[Scalar, int] = {}  # by term of exponents, the number of equal parts into which it is cut
        self._memo: dict[Scalar, Quotient] = {}
        self._unknowns: dict[object, Polynomial] = {}

    def restart(self) -> None:
        self._memo, self.is_stale = {}, False

    def quotient(self, s: Scalar) -> Quotient:
        if s not in self._memo:
            self._memo[s] = self._made(s)
        return self._memo[s]

    def _unknown(self, key: object) -> Quotient:
        if key not in self._unknowns:
            self._unknowns[key] = z3.Real(f"q{len(self._unknowns)}")
        return self._unknowns[key], _ONE

    def _made(self, s: Scalar) -> Quotient:
        number = _number(s)
        if number is not None:
            return z3.RealVal(str(number)), _ONE
        if not isinstance(s, Apply) or kind(s.dtype) != "f":
            return self._unknown(s)
        match s.fn:
            case "exp" | "expm1":
                n, d = self._exponential(s.args[0])
                return (n, d) if s.fn == "exp" else (n - d, d)
            case "sigmoid":
                n, d = self._exponential(s.args[0])
                return n, n + d
            case "tanh":
                n, d = self._exponential(Apply("add", (s.args[0], s.args[0])))
                return n - d, n + d
            case "sinh" | "cosh":
                n, d = self._exponential(s.args[0])
                return (n * n - d * d if s.fn == "sinh" else n * n + d * d), 2 * n * d
            case "negative":
                n, d = self.quotient(s.args[0])
                return -n, d
            case "square":
                n, d = self.quotient(s.args[0])
                return n * n, d * d
            case "reciprocal":
                return self.quotient(s.args[0])[::-1]
            case "add" | "subtract" | "multiply" | "divide":
                return self._arithmetic(s.fn, *map(self.quotient, s.args))
            case _:
                return self._unknown(s)

    def _arithmetic(self, fn: str, x: Quotient, y: Quotient) -> Quotient:
        (a, b), (c, d) = x, y
        match fn:
            case "multiply":
                return a * c, b * d
            case "divide":
                return a * d, b * c
            case _:
                return (a * d + c * b if fn == "add" else a * d - c * b), b * d

    def _exponential(self, exponent: Scalar) -> Quotient:
        n, d = _ONE, _ONE
        for term, by in linear(exponent).items():
            a, b = self._power(term, by)
            n, d = n * a, d * b
        return n, d

    def _power(self, term: Scalar, by: Fraction) -> Quotient:
        if by.denominator > _LARGEST_POWER or abs(by) > _LARGEST_POWER:
            return self._unknown((term, by))
        parts = math.lcm(self._parts.get(term, 1), by.denominator)
        self.is_stale = self.is_stale or parts != self._parts.setdefault(term, parts)
        self._parts[term] = parts
        top, bottom = self._base(term, parts)
        if by < 0:
            top, bottom = bottom, top
        times = range(abs(int(by * parts)))
        return z3.Product(*(top for _ in times)), z3.Product(*(bottom for _ in times))

    def _base(self, term: Scalar, parts: int) -> Quotient:
        """Returns the exponential of a part of a term."""
        if parts == 1 and isinstance(term, Apply) and term.fn in ("log", "log1p"):
            n, d = self.quotient(term.args[0])
            return (n, d) if term.fn == "log" else (n + d, d)
        return self._unknown((term, "exponential"))
