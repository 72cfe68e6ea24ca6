"""Prints a `Dim` as text that `Dim.of` reads back to the equal Dim.

Divisions are printed the usual way: `n%4` for `n - 4*(n//4)`, `ceildiv(n, 4)` for `(n + 3)//4`.
"""

from __future__ import annotations

from itertools import groupby

from relax_eg.errors import SpecError
from relax_eg.limits import PRINTED_BITS
from relax_eg.shapes.dim import Atom, Dim, Monomial, product
from relax_eg.shapes.division import Remainder, mod, split_remainders


def dim_text(dim: Dim) -> str:
    """Returns text such as `2*n + 1`, `n//2`, `n%4`, `max(m, n)`: highest degree first, starting with a positive term
    if there is one."""
    rest, remainders = split_remainders(dim)
    const = rest.const
    terms = [(c, _factors(monomial)) for monomial, c in rest.terms]
    for remainder in _combine_remainders(remainders):
        const, remainder = _as_distance_to_multiple(const, remainder)
        factor, dividend, modulus = remainder
        text = f"({_operand(dividend)}%{_operand(modulus)})"
        if len(factor.terms) + (factor.const != 0) > 1:
            terms.append((1, [f"({factor})", text]))
        else:
            monomial, c = factor.terms[0] if factor.terms else ((), factor.const)
            terms.append((c, [*_factors(monomial), text]))
    if const or not terms:
        terms.append((const, []))
    first = next((i for i, (c, _) in enumerate(terms) if c > 0), 0)
    terms.insert(0, terms.pop(first))
    lead, *others = terms
    text = _term(abs(lead[0]), lead[1], bare=lead[0] > 0)
    text = text if lead[0] >= 0 else "-" + text
    return text + "".join(f" {'-' if c < 0 else '+'} {_term(abs(c), factors, bare=True)}" for c, factors in others)


def _combine_remainders(remainders: tuple[Remainder, ...]) -> list[Remainder]:
    """Combines remainders of the same division: `m*(n%8) - 8*(m//8)*(n%8)` is `(m%8)*(n%8)`."""
    factors: dict[tuple[Dim, Dim], Dim] = {}
    for factor, dividend, modulus in remainders:
        factors[dividend, modulus] = factors.get((dividend, modulus), Dim.of(0)) + factor
    return [Remainder(factor, *division) for division, factor in factors.items() if factor != 0]


def _as_distance_to_multiple(const: int, remainder: Remainder) -> tuple[int, Remainder]:
    """Rewrites `3 - (n + 3)%4` as `(-n)%4`, the distance to the next multiple. Anything else stays."""
    factor, dividend, modulus = remainder
    if factor.terms or modulus.terms or factor.const > 0 or const != -factor.const * (modulus.const - 1):
        return const, remainder
    return 0, Remainder(-factor, modulus - 1 - dividend, modulus)


def _term(size: int, factors: list[str], *, bare: bool) -> str:
    """Returns a product. A lone division needs no parentheses if it is a `bare` term of a sum."""
    if size.bit_length() > PRINTED_BITS:
        raise SpecError(f"a size with an integer of {size.bit_length()} bits; at most {PRINTED_BITS} are printed")
    if size != 1 or not factors:
        return "*".join([str(size), *factors])
    if bare and len(factors) == 1 and factors[0].startswith("(") and factors[0].endswith(")"):
        return factors[0][1:-1]
    return "*".join(factors)


def _factors(monomial: Monomial) -> list[str]:
    """Returns one text per distinct atom, powers as `n**2`, divisions in parentheses."""
    powers = [(atom, len(list(group))) for atom, group in groupby(monomial)]
    return [_atom_text(atom) + (f"**{power}" if power > 1 else "") for atom, power in powers]


def _atom_text(atom: Atom) -> str:
    if atom.op == "var":
        return atom.name
    if atom.op == "floordiv":
        dividend, by = atom.args
        if by.is_const and by.const > 1 and dividend.const == by.const - 1 and dividend.terms:
            return f"ceildiv({dividend - dividend.const}, {by})"
        return f"({_operand(dividend)}//{_operand(by)})"
    if atom.op == "select":
        condition, then, otherwise = atom.args
        return f"select({_comparison(atom.name, condition)}, {then}, {otherwise})"
    return f"{atom.op}({', '.join(str(arg) for arg in atom.args)})"


def _comparison(op: str, difference: Dim) -> str:
    """Returns `difference op 0` with negative terms on the other side: `n <= m + 3`, `n%4 == 0`."""
    rest, remainders = split_remainders(difference)
    parts = [product(monomial, c) for monomial, c in rest.terms]
    parts += [factor * mod(dividend, modulus) for factor, dividend, modulus in remainders]
    signs = [c > 0 for _, c in rest.terms] + [_sign(remainder.factor) for remainder in remainders]
    more, less = (sum((p for p, s in zip(parts, signs, strict=True) if s is sign), Dim.of(0)) for sign in (True, False))
    if op == "==":
        return f"{more} == {-less - rest.const}"
    return f"{-less} <= {more + rest.const}"


def _sign(factor: Dim) -> bool:
    return (factor.terms[0][1] if factor.terms else factor.const) > 0


def _operand(dim: Dim) -> str:
    text = str(dim)
    return text if text.isidentifier() or text.isdecimal() else f"({text})"
