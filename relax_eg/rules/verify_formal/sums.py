"""Values as sums of terms. A term is a coefficient times factors where guards hold, summed over bound variables.

`Sum` is the working form, a map from terms to coefficients; `CanonicalSum` is immutable and canonical. Bound variables
of a canonical sum are named by the depth of the sums nested inside it and by position. So sums that are equal up to
renaming are equal, and an enclosing sum captures no name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal

from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.rules.verify_formal.guards import GuardLiteral
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import product as monomial

_MOST_TERMS = 400  # limit: summands of a sum


@dataclass(frozen=True, eq=False)
class Factor:
    """A factor of a term: an element of a buffer ("read"), a function of sums ("apply"), or an integer that is one atom
    of a Dim ("dim").

    - `name`: the buffer or the function; "" for an integer.
    - `dims`: the indices of the element, or the integer.
    - `args`: the arguments of the function.
    """

    kind: Literal["read", "apply", "dim"]
    name: str
    dims: tuple[Dim, ...] = ()
    args: tuple[CanonicalSum, ...] = ()

    @cached_property
    def key(self) -> str:
        return f"{self.kind} {self.name}[{', '.join(map(str, self.dims))}]({'; '.join(a.key for a in self.args)})"

    @cached_property
    def height(self) -> int:
        return max((a.height for a in self.args), default=0)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that the factor mentions, except those that its arguments bind."""
        return frozenset[str]().union(*(d.variables for d in self.dims), *(a.variables for a in self.args))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def guard_variables(g: GuardLiteral) -> frozenset[str]:
    return g.dim.variables if g.of is None else g.dim.variables | g.of.variables


@dataclass(frozen=True)
class Term:
    """The product of `factors` where `guards` hold, summed over all integers for each of the variables `bound`."""

    factors: tuple[Factor, ...] = ()
    guards: frozenset[GuardLiteral] = frozenset()
    bound: frozenset[str] = frozenset()

    @cached_property
    def key(self) -> tuple[str, str, str]:
        factors = " * ".join(f.key for f in self.factors)
        return factors, " & ".join(sorted(g.key for g in self.guards)), " ".join(sorted(self.bound))

    @cached_property
    def variables(self) -> frozenset[str]:
        parts = (*(f.variables for f in self.factors), *map(guard_variables, self.guards))
        return frozenset[str]().union(*parts) - self.bound

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class CanonicalSum:
    """A canonical sum.

    - `terms`: the terms, each with its coefficient, in order of their keys.
    - `modulus`: 2^w for integers of width w, 0 for reals.
    """

    terms: tuple[tuple[Term, Fraction], ...]
    modulus: int = 0

    @cached_property
    def key(self) -> str:
        body = " + ".join(f"{c} {{{' | '.join(t.key)}}}" for t, c in self.terms)
        return f"{body} mod {self.modulus}" if self.modulus else body

    @cached_property
    def height(self) -> int:
        inner = [f.height for t, _ in self.terms for f in t.factors]
        inner += [g.of.height for t, _ in self.terms for g in t.guards if g.of is not None]
        return 1 + max(inner, default=0)

    @cached_property
    def variables(self) -> frozenset[str]:
        return frozenset[str]().union(*(t.variables for t, _ in self.terms))

    @property
    def constant(self) -> Fraction | None:
        """Its value if it is a constant, else None."""
        if not self.terms:
            return Fraction(0)
        (t, c), *more = self.terms
        return c if not more and t == Term() else None

    @property
    def dim(self) -> Dim | None:
        """Its value if it is a sum of products of integers and Dims, else None."""
        total = Dim.of(0)
        for t, c in self.terms:
            if t.guards or t.bound or c.denominator != 1 or any(f.kind != "dim" for f in t.factors):
                return None
            total = total + math.prod((f.dims[0] for f in t.factors), start=Dim.of(int(c)))
        return total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CanonicalSum) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass
class Sum:
    """A sum of terms.

    - `terms`: the coefficient of each term.
    - `mass`: for each term, the sum of the absolute coefficients before equal terms were merged; it exceeds the
      absolute coefficient if summands cancelled.
    """

    terms: dict[Term, Fraction] = field(default_factory=dict)
    mass: dict[Term, Fraction] = field(default_factory=dict)

    def add(self, t: Term, c: Fraction, mass: Fraction | None = None) -> None:
        self.terms[t] = self.terms.get(t, Fraction(0)) + c
        self.mass[t] = self.mass.get(t, Fraction(0)) + (abs(c) if mass is None else mass)
        if len(self.terms) > _MOST_TERMS:
            raise Unsupported("too many terms")

    def items(self) -> Iterable[tuple[Term, Fraction, Fraction]]:
        return [(t, c, self.mass[t]) for t, c in self.terms.items()]

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        made = Sum(dict(self.terms), dict(self.mass))
        for t, c, m in other.items():
            made.add(t, sign * c, m)
        return made

    def scaled(self, by: Fraction) -> Sum:
        return Sum({t: c * by for t, c in self.terms.items()}, {t: m * abs(by) for t, m in self.mass.items()})


def unscaled(form: CanonicalSum) -> CanonicalSum:
    """A sum over the reals, divided by a positive number, so that all its multiples become the same."""
    if not form.terms or form.modulus:
        return form
    first = abs(form.terms[0][1])
    return CanonicalSum(tuple((t, c / first) for t, c in form.terms))


def scaled_to_one(form: CanonicalSum) -> tuple[Fraction, CanonicalSum]:
    """The number of a sum's first term, and the sum divided by it, so that all its multiples become the same."""
    if not form.terms or form.modulus:
        return Fraction(1), form
    first = form.terms[0][1]
    return first, CanonicalSum(tuple((t, c / first) for t, c in form.terms))


def root_of_number(form: CanonicalSum) -> Fraction:
    """The square root of the number that scales a single term; 1 if it has none."""
    if len(form.terms) != 1 or form.modulus or form.terms[0][1] <= 0:
        return Fraction(1)
    number = form.terms[0][1]
    root = Fraction(math.isqrt(number.numerator), math.isqrt(number.denominator))
    return root if root * root == number else Fraction(1)


def without_inverses(t: Term, is_positive: Callable[[Dim], bool]) -> Term:
    """Returns a term without the inverses of positive sizes that are factors of it, too."""
    factors = list(t.factors)
    for f in t.factors:
        size = f.args[0].dim if f.kind == "apply" and f.name == "reciprocal" else None
        if size is None or len(size.terms) != 1 or size.const or size.terms[0][1] != 1 or f not in factors:
            continue
        rest = list(factors)
        rest.remove(f)
        for a in size.terms[0][0]:
            met = next((g for g in rest if g.kind == "dim" and g.dims[0] == monomial((a,))), None)
            if met is None:
                break
            rest.remove(met)
        else:
            factors = rest if is_positive(size) else factors
    return t if len(factors) == len(t.factors) else Term(tuple(factors), t.guards, t.bound)


def is_extreme(t: Term, name: str) -> bool:
    """Whether a term is the extreme `name` of a formal sum of values, everywhere."""
    if t.guards or t.bound or len(t.factors) != 1 or t.factors[0].name != name:
        return False
    return all(len(u.factors) == 1 and u.factors[0].name == "value" for u, _ in t.factors[0].args[0].terms)
