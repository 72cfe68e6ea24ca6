"""Simplifying a `Dim` by what a scope knows: quotients that come out even, max and min with a known winner.

`(n*m)//m` is n only where m is at least 1, and `(32*x + y)//64` is `x//2` only for y in 0..31, so the canonical form
leaves both alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from relax_eg.errors import SpecError
from relax_eg.shapes.dim import Atom, Dim, from_sum, product
from relax_eg.shapes.division import ceildiv, extreme
from relax_eg.shapes.interval import Interval

Bounds = Callable[[Dim], Interval]  # of the value of a Dim
Test = Callable[[Dim], bool]  # whether a Dim is known to be >= 0


def simplified(dim: Dim, bounds: Bounds, nonnegative: Test) -> Dim:
    """A Dim equal to `dim` wherever the facts behind `bounds` and `nonnegative` hold and `dim` has a value."""
    if all(atom.op == "var" for monomial, _ in dim.terms for atom in monomial):
        return dim
    return _rebuilt(dim, lambda atom: _atom(atom, bounds, nonnegative))


def _rebuilt(dim: Dim, stands_for: Callable[[Atom], Dim]) -> Dim:
    """`dim` with every atom replaced by the Dim that stands for it."""
    total = Dim.of(dim.const)
    for monomial, c in dim.terms:
        summand = Dim.of(c)
        for atom in monomial:
            summand = summand * stands_for(atom)
        total = total + summand
    return total


def _atom(atom: Atom, bounds: Bounds, nonnegative: Test) -> Dim:
    if atom.op == "var":
        return product((atom,))
    args = [simplified(arg, bounds, nonnegative) for arg in atom.args]
    if atom.op in ("max", "min"):
        return extreme(atom.op, tuple(_kept(atom.op, args, nonnegative)))
    a, b = args
    if b == 0:  # nowhere defined
        return product((atom,))
    sign = 1 if atom.op == "floordiv" else -1  # ceildiv(a, b) is -((-a)//b)
    quotient = _quotient(sign * a, b, bounds, nonnegative)
    if quotient is not None:
        return sign * quotient
    return a // b if atom.op == "floordiv" else ceildiv(a, b)


def _kept(op: str, args: list[Dim], nonnegative: Test) -> list[Dim]:
    """The arguments without those that another one beats."""
    kept: list[Dim] = []
    for arg in args:
        gap = (lambda x, y: x - y) if op == "max" else (lambda x, y: y - x)
        if any(nonnegative(gap(other, arg)) for other in kept):
            continue
        kept = [other for other in kept if not nonnegative(gap(arg, other))]
        kept.append(arg)
    return kept


def _quotient(a: Dim, b: Dim, bounds: Bounds, nonnegative: Test) -> Dim | None:
    """`a//b` as q, where `a == b*q + r` with r in 0..b-1; None where no such q is found."""
    low, high = bounds(b)
    if low is None or low < 1:
        if high is None or high > -1:
            return None
        return _quotient(-a, -b, bounds, nonnegative)
    if b.is_const:
        return _by_constant(a, b.const, bounds)
    whole, rest = _divided(a, b)
    for step in (0, -1, 1):
        left = rest - b * step
        if nonnegative(left) and nonnegative(b - 1 - left):
            return whole + step
    return None


def _by_constant(a: Dim, divisor: int, bounds: Bounds) -> Dim | None:
    """`(g*p + r)//(g*c) == (p + r//g)//c`, where all values of r lie in one multiple of g; g*c is `divisor`."""
    steps = {divisor, *(gcd(divisor, c) for _, c in a.terms)}
    for step in sorted(steps, reverse=True):
        if step == 1:
            continue
        wide = from_sum({monomial: c for monomial, c in a.terms if c % step == 0}, 0)
        low, high = bounds(a - wide)
        if low is not None and high is not None and low // step == high // step:
            return (wide // step + low // step) // (divisor // step)
    return None


def _divided(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Polynomial division by the leading term of `b`: whole and rest with `a == b*whole + rest`."""
    (leading, scale), whole, rest = b.terms[0], Dim.of(0), a
    for _ in range(8):  # each step takes off one term; sizes have few
        for monomial, c in rest.terms:
            left = list(monomial)
            for atom in leading:
                if atom not in left:
                    break
                left.remove(atom)
            else:
                if c // scale:
                    step = product(tuple(left), c // scale)
                    break
        else:
            break
        whole, rest = whole + step, rest - b * step
    return whole, rest


def alternatives(dim: Dim) -> tuple[Dim, Dim, Dim] | None:
    """For a max or min in `dim`: its difference d of two arguments, `dim` where d >= 0, and `dim` where d <= 0.

    Every max and min of two arguments with the same difference, up to a factor, is decided at once. None where `dim`
    has none.
    """
    difference = _difference(dim)
    if difference is None:
        return None
    return difference, _decided(dim, difference, True), _decided(dim, difference, False)


def _difference(dim: Dim) -> Dim | None:
    for monomial, _ in dim.terms:
        for atom in monomial:
            if atom.op == "var":
                continue
            for arg in atom.args:
                found = _difference(arg)
                if found is not None:
                    return found
            if atom.op in ("max", "min"):
                return _primitive(atom.args[0] - atom.args[1])
    return None


def _decided(dim: Dim, difference: Dim, above: bool) -> Dim:
    return _rebuilt(dim, lambda atom: _decided_atom(atom, difference, above))


def _decided_atom(atom: Atom, difference: Dim, above: bool) -> Dim:
    if atom.op == "var":
        return product((atom,))
    args = [_decided(arg, difference, above) for arg in atom.args]
    if atom.op in ("max", "min"):

        def nonnegative(gap: Dim) -> bool:
            if gap.is_const:
                return gap.const >= 0
            return _primitive(gap) == (difference if above else -difference)

        return extreme(atom.op, tuple(_kept(atom.op, args, nonnegative)))
    a, b = args
    if b == 0:
        raise SpecError(f"division by zero: ({a})//0")
    return a // b if atom.op == "floordiv" else ceildiv(a, b)


def _primitive(dim: Dim) -> Dim:
    """`dim` divided by the greatest common divisor of all its coefficients."""
    common = gcd(dim.const, *(c for _, c in dim.terms))
    return dim // common if common > 1 else dim
