"""The steps of a plan for a sum of products, each with what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from relax_eg.rules.sums_of_products.accesses import Access, Letter, ProductTerm, Target
from relax_eg.shapes import Dim

Kind = Literal["leaf", "product", "running", "scattered", "total"]


@dataclass(frozen=True)
class Bracket:
    """A sum of products as a factor: its letters 0 to `rank` - 1 are its axes, further letters are summed inside.
    `extents`: the size of each letter."""

    rank: int
    terms: tuple[ProductTerm, ...]
    extents: tuple[Dim, ...]

    def __hash__(self) -> int:
        return hash((self.rank, self.terms))


@dataclass(frozen=True, eq=False)
class Node:
    """A step of a plan.

    - `letters`: the letters of its result.
    - `parts`: a product's two operands, or the one that is summed; the operand of a running sum; what is scattered; a
      total's summands.
    - `access`: a leaf's view.
    - `scales`: a total's coefficients, one for each part.
    - `along`: how a running sum runs.
    - `target`: where elements are added.
    - `elements`: number of elements of the result.
    - `price`: what this step costs, if it is not computed ahead of the calls.
    - `are_apart`: whether no step up to one part is a step up to another.
    - `is_known_leaf`: whether it is a leaf that is known ahead of the calls.
    """

    kind: Kind
    letters: frozenset[Letter]
    parts: tuple[Node, ...] = ()
    access: Access | None = None
    scales: tuple[Scale, ...] = ()
    elements: float = 1.0
    along: Running | None = None
    target: Target | None = None
    price: float = 0.0
    are_apart: bool = False
    is_known_leaf: bool = False

    @cached_property
    def is_known_ahead(self) -> bool:
        """Whether it is computed once, ahead of the calls, so that its steps cost nothing."""
        return self.is_known_leaf if self.kind == "leaf" else all(p.is_known_ahead for p in self.parts)

    @cached_property
    def own_cost(self) -> float:
        """What this step costs at each call."""
        return 0.0 if self.is_known_ahead else self.price

    @cached_property
    def values(self) -> frozenset[int]:
        """The identities of the values that it reads."""
        own = frozenset(() if self.access is None else (id(self.access.value),))
        target = () if self.target is None else (id(self.target.index.value),)
        return own.union(target, *(p.values for p in self.parts))

    @cached_property
    def costs(self) -> dict[Sign, float]:
        """The price of this step and of each step up to it, by their signs."""
        if self.kind == "leaf":
            return {}
        found: dict[Sign, float] = {}
        for p in self.parts:
            found.update(p.costs)
        found[self.sign] = self.own_cost
        return found

    @cached_property
    def cost(self) -> float:
        """What all steps up to this one cost; each different step counts once."""
        if self.are_apart:  # as most are, and then no step needs a sign
            return sum(p.cost for p in self.parts) + self.own_cost
        return sum(self.costs.values())

    @cached_property
    def sign(self) -> Sign:
        """A key that is the same for nodes that differ in their letters' names only."""
        if self.access is not None:
            names = {x: i for i, x in enumerate(dict.fromkeys(self.access.letters))}
            value = id(self.access.value), self.access.divides
            return Sign(tuple(names), ("leaf", *value, *(names[x] for x in self.access.letters)))
        names: dict[Letter, int] = {}

        def numbers(letters: Iterable[Letter]) -> tuple[int, ...]:
            return tuple(names.setdefault(x, len(names)) for x in letters)

        parts = tuple((p.sign, *numbers(p.sign.letters)) for p in self.parts)
        letters = tuple(sorted(numbers(sorted(self.letters))))
        along = self.along and replace(self.along, summed=names[self.along.summed], place=names[self.along.place])
        target = self.target and (id(self.target.index.value), *numbers(self.target.index.letters))
        key = self.kind, self.scales, along, target, parts, letters
        return Sign(tuple(x for x in names if x in self.letters), key)


class Sign:
    """What a node computes.

    - `letters`: the letters of the node's result, in the order in which the node first has them.
    - `key`: the step, and its operands' signs with their letters by number.
    """

    __slots__ = ("_hash", "key", "letters")

    def __init__(self, letters: tuple[Letter, ...], key: tuple[Any, ...]) -> None:
        self.letters, self.key, self._hash = letters, key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sign) and self._hash == other._hash and self.key == other.key)


@dataclass(frozen=True, slots=True)
class Running:
    """A running sum over the letter `summed`, whose elements have the letter `place`.

    - `reverse`: whether it runs from the end.
    - `low`, `high`: number of zeros before and behind the summed elements; a negative number of elements is left out.
    - `skipped`: number of sums at the beginning that are left out.
    - `extent`: number of sums that are kept.
    """

    summed: Letter
    place: Letter
    reverse: bool
    low: Dim
    high: Dim
    skipped: int
    extent: Dim


@dataclass(frozen=True, slots=True)
class Scale:
    """A number times sizes over sizes."""

    number: Fraction = Fraction(1)
    sizes: tuple[Dim, ...] = ()
    divisors: tuple[Dim, ...] = ()

    @property
    def is_one(self) -> bool:
        return self == ONE

    @property
    def is_sign(self) -> bool:
        """Whether it is 1 or -1."""
        return abs(self.number) == 1 and self.is_number

    @property
    def is_number(self) -> bool:
        return not self.sizes and not self.divisors


ONE = Scale()
