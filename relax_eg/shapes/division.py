"""Atoms of a `Dim`: division, max and min, with their simplifications. Also recovers remainders.

`x//y` rounds down and `x % y` has the sign of the divisor, as in Python, for negative values too.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

from relax_eg.errors import SpecError
from relax_eg.shapes.dim import MEMO, Atom, Dim, Monomial, Terms, atom_of, constant, from_sum, make, product


def dim_max(first: Dim | int, *others: Dim | int) -> Dim:
    """Returns the largest argument."""
    return extreme("max", (Dim.of(first), *map(Dim.of, others)))


def dim_min(first: Dim | int, *others: Dim | int) -> Dim:
    """Returns the smallest argument."""
    return extreme("min", (Dim.of(first), *map(Dim.of, others)))


def ceildiv(a: Dim | int, b: Dim | int) -> Dim:
    """Returns `a / b` rounded up."""
    return -floordiv(-Dim.of(a), Dim.of(b))


@lru_cache(MEMO)
def floordiv(a: Dim, b: Dim) -> Dim:
    if not b.terms:
        if b.const == 0:
            raise SpecError(f"division by zero: ({a})//0")
        return _divide(a, b.const) if b.const > 0 else _divide(-a, -b.const)
    # x//y == (-x)//(-y), and x//y == -ceildiv(-x, y): use one form for all signs.
    if b.terms[0][1] < 0:
        a, b = -a, -b
    # (g*p)//(g*q) == p//q. With a constant left over, the sign of q would have to be known.
    common = gcd(a.const, b.const, *(c for _, c in a.terms), *(c for _, c in b.terms))
    if common > 1:
        a, b = _shrink(a, common), _shrink(b, common)
    if _sign(a) < 0:
        return -product((atom_of("ceildiv", "", (-a, b)),))
    return product((atom_of("floordiv", "", (a, b)),))


@lru_cache(MEMO)
def mod(a: Dim, b: Dim) -> Dim:
    if not b.terms and b.const == 0:
        raise SpecError(f"division by zero: ({a}) % 0")
    return a - b * floordiv(a, b)


def _sign(a: Dim) -> int:
    """Positive if more terms are positive than negative."""
    return sum(1 if c > 0 else -1 for _, c in a.terms) if a.terms else a.const


def _shrink(a: Dim, divisor: int) -> Dim:
    """Returns `a // divisor`; `divisor` divides every coefficient."""
    return make(tuple((monomial, c // divisor) for monomial, c in a.terms), a.const // divisor)


def _divide(a: Dim, divisor: int) -> Dim:
    """Returns `a // divisor` for a constant > 0."""
    # Pull out multiples. Coefficients round towards zero, so that (n - k)//2 stays readable; the constant goes into
    # 0..divisor-1.
    outer: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, c in a.terms:
        outer[monomial] = abs(c) // divisor * (1 if c > 0 else -1)
        rest[monomial] = c - divisor * outer[monomial]
    whole, part = from_sum(outer, a.const // divisor), from_sum(rest, a.const % divisor)
    if not part.terms:
        return whole
    # x//c == -((c - 1 - x)//c): choose the form with more positive terms, then with the smaller constant.
    flipped = divisor - 1 - part
    if (_sign(part), -part.const, part.terms[0][1]) < (_sign(flipped), -flipped.const, flipped.terms[0][1]):
        return whole - floordiv(flipped, constant(divisor))
    # (g*p + r)//(g*c) == (p + r//g)//c if all of r lies in one multiple of g; r is a constant, or includes remainders.
    for wide, low, high in ((part - part.const, part.const, part.const), _split_narrow(part)):
        step = gcd(divisor, *(c for _, c in wide.terms))
        if step > 1 and low // step == high // step:
            return whole + floordiv(_shrink(wide, step) + low // step, constant(divisor // step))
    # (x//b + k)//c == (x + b*k)//(b*c)
    (monomial, c), *more = part.terms
    if not more and c == 1 and len(monomial) == 1 and monomial[0].op == "floordiv":
        inner, by = monomial[0].args
        if by.is_const:
            return whole + floordiv(inner + by * part.const, by * divisor)
    return whole + product((atom_of("floordiv", "", (part, constant(divisor))),))


@lru_cache(MEMO)
def extreme(op: str, dims: tuple[Dim, ...]) -> Dim:
    """Returns the max or min, flattened and deduplicated. Of arguments that differ by a constant only one is kept."""
    pick = max if op == "max" else min
    best: dict[Terms, int] = {}
    waiting = list(dims)
    while waiting:
        dim = waiting.pop()
        if dim.const == 0 and len(dim.terms) == 1:
            (monomial, c) = dim.terms[0]
            if c == 1 and len(monomial) == 1 and monomial[0].op == op:
                waiting.extend(monomial[0].args)
                continue
        best[dim.terms] = pick(best.get(dim.terms, dim.const), dim.const)
    args = sorted((make(terms, const) for terms, const in best.items()), key=Dim.sort_key)
    return args[0] if len(args) == 1 else product((atom_of(op, "", tuple(args)),))


def extreme_value(op: str, a: Any, b: Any) -> Any:
    """Returns the max or min of two values: ints, Dims, JAX's symbolic dimensions, or arrays (traced ones too)."""
    if type(a) is Dim or type(b) is Dim:
        return extreme(op, (Dim.of(a), Dim.of(b)))
    if hasattr(a, "rmax"):  # JAX's dimensions, which the builtin cannot order
        return getattr(a, op)(b)
    if hasattr(b, "rmax"):
        return getattr(b, "r" + op)(a)
    if hasattr(a, "clip") or hasattr(b, "clip"):
        array, other = (a, b) if hasattr(a, "clip") else (b, a)
        return array.clip(min=other) if op == "max" else array.clip(max=other)
    return max(a, b) if op == "max" else min(a, b)


# --- remainders ---


class Remainder(NamedTuple):
    """A term `factor * (dividend % modulus)`; the factor is one monomial with a coefficient."""

    factor: Dim
    dividend: Dim
    modulus: Dim


@lru_cache(MEMO)
def split_remainders(dim: Dim) -> tuple[Dim, tuple[Remainder, ...]]:
    """Returns `dim` as a rest plus remainders, if that is shorter: `m + n - 4*(n//4)` -> `m`, `n % 4`."""
    rest = dim
    found: list[Remainder] = []
    for monomial, c in dim.terms:
        for atom in monomial:
            candidate = _remainder_with(monomial, c, atom) if atom.op == "floordiv" else None
            if candidate is None:
                continue
            factor, dividend, modulus = candidate
            without = rest - factor * mod(dividend, modulus)
            if len(without.terms) + 1 < len(rest.terms) or _parts(without) + 1 < _parts(rest):
                rest = without
                found.append(candidate)
                break
    return rest, tuple(found)


def _parts(dim: Dim) -> int:
    return len(dim.terms) + (dim.const != 0)


def _remainder_with(monomial: Monomial, c: int, quotient: Atom) -> Remainder | None:
    """Returns the remainder whose expansion `x - modulus*quotient`, times a factor, has the term `c * monomial`."""
    dividend, modulus = quotient.args
    others = list(monomial)
    others.remove(quotient)
    if modulus.is_const:
        if not modulus.const:
            return None  # undefined
        # x//(a*m) is (x//a)//m, so the modulus may be a divisor of the constant divisor.
        part = gcd(c, modulus.const)
        if part == 1:
            return None
        dividend = floordiv(dividend, constant(modulus.const // part))
        return Remainder(product(tuple(others), -c // part), dividend, constant(part))
    leading, scale = modulus.terms[0]
    for atom in leading:
        if atom not in others:
            return None
        others.remove(atom)
    return None if c % scale else Remainder(product(tuple(others), -c // scale), dividend, modulus)


def _split_narrow(dim: Dim) -> tuple[Dim, int, int]:
    """Splits `dim` into a sum without constant, and the range of the rest: the constant plus remainders with constant
    factor and modulus."""
    rest, remainders = split_remainders(dim)
    wide, low, high = rest - rest.const, rest.const, rest.const
    for factor, dividend, modulus in remainders:
        if factor.is_const and modulus.is_const:
            reach = factor.const * (modulus.const - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        else:
            wide = wide + factor * mod(dividend, modulus)
    return wide, low, high
