"""Simplifies a `Dim` by the facts of a scope: exact quotients, and max, min and select with a known result.

`(n*m)//m` is n only if m is at least 1, and `(32*x + y)//64` is `x//2` only for y in 0..31, so the canonical form
changes neither.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from relax_eg.shapes.dim import Atom, Dim, from_sum, is_plain, product, replace_atoms
from relax_eg.shapes.division import extreme, floordiv
from relax_eg.shapes.interval import Interval
from relax_eg.shapes.piecewise import resolve_decided, select, undominated_arguments, with_arguments

Bounds = Callable[[Dim], Interval]  # interval of a Dim's value
Test = Callable[[Dim], bool]  # whether a Dim is known to be >= 0


def simplify(dim: Dim, bounds: Bounds, nonnegative: Test) -> Dim:
    """Returns a Dim equal to `dim` wherever the facts behind `bounds` and `nonnegative` hold and `dim` has a value."""
    if is_plain(dim):
        return dim
    return replace_atoms(dim, lambda atom: _atom(atom, bounds, nonnegative))


def _atom(atom: Atom, bounds: Bounds, nonnegative: Test) -> Dim:
    if atom.op == "var":
        return product((atom,))
    if atom.op == "select":
        return _select(atom, bounds, nonnegative)
    args = [simplify(arg, bounds, nonnegative) for arg in atom.args]
    if atom.op in ("max", "min"):
        return extreme(atom.op, tuple(undominated_arguments(atom.op, args, nonnegative)))
    a, b = args
    if b == 0:  # undefined
        return product((atom,))
    sign = 1 if atom.op == "floordiv" else -1  # ceildiv(a, b) is -((-a)//b)
    quotient = _quotient(sign * a, b, bounds, nonnegative)
    if quotient is not None:
        return sign * quotient
    return with_arguments(atom, args)


def _select(atom: Atom, bounds: Bounds, nonnegative: Test) -> Dim:
    condition = simplify(atom.args[0], bounds, nonnegative)
    above, below = nonnegative(condition), nonnegative(-condition)
    if atom.name == ">=":
        truth = True if above else False if nonnegative(-condition - 1) else None
    elif above and below:
        truth = True
    else:
        truth = False if nonnegative(condition - 1) or nonnegative(-condition - 1) else None
    if truth is not None:
        return simplify(atom.args[1] if truth else atom.args[2], bounds, nonnegative)
    return select(atom.name, condition, *(simplify(arg, bounds, nonnegative) for arg in atom.args[1:]))


def _quotient(a: Dim, b: Dim, bounds: Bounds, nonnegative: Test) -> Dim | None:
    """Returns `a//b` as q with `a == b*q + r` and r in 0..b-1, or without the multiple of a product `b` in `a`; None if
    neither is found."""
    if not nonnegative(b - 1):
        return _quotient(-a, -b, bounds, nonnegative) if nonnegative(-b - 1) else None
    if b.is_const:
        return _by_constant(a, b.const, bounds)
    whole, rest = _divide_polynomial(a, b)
    for step in (0, -1, 1):
        left = rest - b * step
        if nonnegative(left) and nonnegative(b - 1 - left):
            return whole + step
    return whole + floordiv(rest, b) if whole != 0 and len(b.terms) == 1 and not b.const else None


def _by_constant(a: Dim, divisor: int, bounds: Bounds) -> Dim | None:
    """Rewrites `(g*p + r)//(g*c) == (p + r//g)//c` if all values of r lie in one multiple of g; g*c is `divisor`."""
    steps = {divisor, *(gcd(divisor, c) for _, c in a.terms)}
    for step in sorted(steps, reverse=True):
        if step == 1:
            continue
        wide = from_sum({monomial: c for monomial, c in a.terms if c % step == 0}, 0)
        low, high = bounds(a - wide)
        if low is not None and high is not None and low // step == high // step:
            return (wide // step + low // step) // (divisor // step)
    return None


def _divide_polynomial(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Polynomial division by the leading term of `b`: returns whole and rest with `a == b*whole + rest`."""
    (leading, scale), whole, rest = b.terms[0], Dim.of(0), a
    for _ in range(8):  # each step removes one term; sizes have few
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


def case_split(dim: Dim) -> list[tuple[tuple[Dim, ...], Dim]] | None:
    """Returns the cases of one max, min or select in `dim`; None if `dim` has none.

    At any point one case holds. A case gives the expressions that are >= 0 there, and `dim` there, with every other
    comparison decided that the case decides. SpecError if a case divides by zero.
    """
    atom = _innermost_choice(dim)
    if atom is None:
        return None
    condition = atom.args[0]
    if atom.op != "select":
        condition = _primitive(atom.args[0] - atom.args[1])
        cases = [(condition,), (-condition,)]
    elif atom.name == ">=":
        cases = [(condition,), (-condition - 1,)]
    else:
        same = resolve_decided(dim, (condition, -condition))
        solved = _solve_for_variable(condition)
        same = same if solved is None else same.substitute(solved)
        others = [(known, resolve_decided(dim, known, condition)) for known in ((condition - 1,), (-condition - 1,))]
        return [((condition, -condition), same), *others]
    return [(known, resolve_decided(dim, known)) for known in cases]


def _innermost_choice(dim: Dim) -> Atom | None:
    """Returns a max, min or select in `dim` that contains no other one."""
    for monomial, _ in dim.terms:
        for atom in monomial:
            for arg in atom.args:
                found = _innermost_choice(arg)
                if found is not None:
                    return found
            if atom.op in ("max", "min", "select"):
                return atom
    return None


def _solve_for_variable(dim: Dim) -> dict[str, Dim] | None:
    """Returns a variable and its value where `dim == 0`, if `dim` is linear in it with coefficient 1 or -1."""
    for monomial, c in dim.terms:
        if abs(c) == 1 and len(monomial) == 1 and monomial[0].op == "var":
            rest = dim - product(monomial, c)
            if monomial[0].name not in rest.variables:
                return {monomial[0].name: -c * rest}
    return None


def _primitive(dim: Dim) -> Dim:
    """Returns `dim` divided by the greatest common divisor of its coefficients."""
    common = gcd(dim.const, *(c for _, c in dim.terms))
    return dim // common if common > 1 else dim
