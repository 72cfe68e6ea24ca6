"""Accesses: views of expressions with one axis for each index letter, and products of them.

A letter is an axis of the result or a summed axis, and runs from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from relax_eg.dtypes import itemsize
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.shapes import Dim

Letter = int
_ONE = Dim.of(1)


@dataclass(frozen=True, slots=True)
class LetterOrder:
    """What a mask says that compares two letters: `upper` - `lower` + `offset` >= 0."""

    lower: Letter
    upper: Letter
    offset: int


@dataclass(frozen=True, slots=True)
class Access:
    """An expression with one axis for each of its `letters`, which differ.

    - `divides`: whether a product is divided by it.
    - `order`: what it says, if it is a mask that compares two letters.
    - `target`: what it says, if it is a mask that compares a letter with data.
    """

    value: Expr
    letters: tuple[Letter, ...]
    divides: bool = False
    order: LetterOrder | None = None
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a mask says that compares a letter with data: `letter` is `index`, an integer tensor."""

    letter: Letter
    index: Access


@dataclass(frozen=True, slots=True)
class ProductTerm:
    """A product summed over the letters that the result does not have.

    - `coefficient`: a number.
    - `sizes`, `divisors`: sizes by which it is multiplied and divided.
    - `factors`: the elements it multiplies.
    """

    coefficient: Fraction
    sizes: tuple[Dim, ...]
    divisors: tuple[Dim, ...]
    factors: tuple[Access, ...]


def gathered(
    value: Expr, letters: Sequence[Letter | None], computed: Sequence[Access], extents: Mapping[Letter, Dim]
) -> Access:
    """Elements of `value` at `computed` positions of the axes that have no letter, 0 for positions out of range."""
    if not computed:
        return Access(value, tuple(x for x in letters if x is not None))
    own = list(dict.fromkeys(x for c in computed for x in c.letters))
    shape = tuple(extents[x] for x in own)
    places = [op.expand_dims(spread(aligned(c, own), shape), len(own)) for c in computed]
    batching = [i for i, x in enumerate(letters) if x in own]
    taken = [i for i, x in enumerate(letters) if x is None]
    others = [i for i in range(len(letters)) if i not in batching and i not in taken]
    front = sum(i < taken[0] for i in others)
    made = call(
        "gather",
        (value, places[0] if len(places) == 1 else op.concat(places, len(own))),
        {
            "slice_sizes": tuple(d if i in others else _ONE for i, d in enumerate(value.shape)),
            "mode": "fill",
            "fill_value": 0,
            "offset_dims": tuple(i if i < front else i + len(own) for i in range(len(others))),
            "collapsed_slice_dims": tuple(taken),
            "start_index_map": tuple(taken),
            "operand_batching_dims": tuple(batching),
            "start_indices_batching_dims": tuple(own.index(x) for i in batching if (x := letters[i]) is not None),
        },
    )
    rest = [x for i in others if (x := letters[i]) is not None]
    return Access(made, (*rest[:front], *own, *rest[front:]))


def on_diagonals(value: Expr, letters: Sequence[Letter]) -> Access:
    """`value` with letters that occur twice taken along the diagonal."""
    kept: list[Letter | None] = []
    places: list[Access] = []
    for x, n in zip(letters, value.shape, strict=True):
        if x in kept:
            places.append(Access(op.iota((n,), 0), (x,)))
        kept.append(None if x in kept else x)
    return gathered(value, kept, places, dict(zip(letters, value.shape, strict=True)))


def spread(value: Expr, shape: tuple[Dim, ...]) -> Expr:
    return value if value.shape == shape else op.broadcast_to(value, shape)


def aligned(access: Access, letters: Sequence[Letter]) -> Expr:
    """The access with its axes in the order of `letters`, and an axis of size 1 for each that it does not have."""
    order = sorted(range(len(access.letters)), key=lambda i: letters.index(access.letters[i]))
    value = access.value
    if order != list(range(len(order))):
        value = _reordered(value, order)
    missing = [i for i, x in enumerate(letters) if x not in access.letters]
    # Leading axes of size 1 need not be there: operators broadcast.
    lead = 0
    while lead < len(missing) and missing[lead] == lead:
        lead += 1
    missing = [i - lead for i in missing[lead:]]
    return op.expand_dims(value, missing) if missing else value


def _reordered(value: Expr, order: Sequence[int]) -> Expr:
    """`value` with its axes in another order. What is converted to more bytes is moved before, in fewer."""
    if value.op == "astype" and itemsize(value.args[0].dtype) < itemsize(value.dtype):
        return op.astype(op.permute_dims(value.args[0], order), value.dtype)
    return op.permute_dims(value, order)


def with_letters(term: ProductTerm, names: Mapping[Letter, Letter]) -> ProductTerm:
    """`term` with letters replaced."""
    return replace(term, factors=tuple(_renamed(f, names) for f in term.factors))


def _renamed(access: Access, names: Mapping[Letter, Letter]) -> Access:
    o = access.order
    order = None if o is None else LetterOrder(names.get(o.lower, o.lower), names.get(o.upper, o.upper), o.offset)
    t = access.target
    target = None if t is None else Target(names.get(t.letter, t.letter), _renamed(t.index, names))
    letters = tuple(names.get(x, x) for x in access.letters)
    return replace(access, letters=letters, order=order, target=target)
