"""Whether two programs of matrices are equal: whether their difference, a sum of products over letters, vanishes.

Factors cancel (`relations`). A sum with a factor that all its terms have vanishes if the sum of what is beside the
factor does. A sum with an inverse on a free letter vanishes if it does after a multiplication by the matrix: instead of
inv(A) x - y, one looks at x - A y. Both programs must be defined: a matrix that only the second inverts must be known
to have an inverse.

The laws say nothing about accuracy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from relax_eg.ir.expr import TUPLE_GET, Expr, postorder
from relax_eg.rules.matrices.lifting import Lift, is_read
from relax_eg.rules.matrices.relations import InverseOf, identity_mask, is_identity_mask, of_diagonal
from relax_eg.rules.sums_of_products.accesses import Access, Letter, ProductTerm, on_diagonals, with_letters
from relax_eg.rules.sums_of_products.letters import SumOfProducts
from relax_eg.rules.sums_of_products.region import divisors_of, is_view
from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.shapes import Dim

_MOST_SUMS, _MOST_TERMS = 16, 16  # limit: sums that are looked at, and terms of a sum
_MOST_FACTORS = 32  # limit: factors of all terms that are left out, one after the other


def are_same(lift: Lift, left: Expr, right: Expr) -> bool:
    """Whether two programs are equal, and the second is defined where the first is."""
    if not _partial(lift, right) <= _partial(lift, left):
        return False
    sums: list[SumOfProducts] = []
    inverted: list[set[InverseOf]] = []
    for e in (left, right):
        lift.start_again()
        sums.append(lift.reduced(e))
        inverted.append(lift.inverted)
    a, b = sums
    if [len(g) for g in a.result] != [len(g) for g in b.result]:
        return False
    shift = 1 + max(a.extents, default=0)
    names = {x: x + shift for x in b.extents}
    names |= {y: x for g, h in zip(a.result, b.result, strict=True) for x, y in zip(g, h, strict=True)}
    if any(a.extents.get(names[x], n) != n for x, n in b.extents.items()):
        return False
    less = tuple(with_letters(replace(t, coefficient=-t.coefficient), names) for t in b.terms)
    extents = {**a.extents, **{names[x]: n for x, n in b.extents.items()}}
    if not _vanishes(lift, replace(a, terms=a.terms + less, extents=extents)):
        return False
    return all("invertible" in lift.facts(x.of) for x in inverted[1] - inverted[0])


def _partial(lift: Lift, e: Expr) -> set[Expr]:
    """What of a program may not exist: its divisors that may be zero, and what no law speaks of."""
    found: set[Expr] = set()
    for x in postorder((e,)):
        if x.args and x.op != TUPLE_GET and not is_read(x):
            found.add(x)
        for d in (x.args[i] for i in divisors_of(x)):
            while is_view(d):
                (d,) = d.args
            if "nonzero" not in lift.facts(d):
                found.add(d)
    return found


# --- sums that vanish ---


def _vanishes(lift: Lift, s: SumOfProducts) -> bool:
    """Whether a sum is zero for all values of the letters of its result, wherever its inverses exist."""
    pending = [s]
    for _ in range(_MOST_SUMS):
        if not pending:
            break
        s = _reduced(lift, pending.pop(min(range(len(pending)), key=lambda i: len(pending[i].terms))))
        for _ in range(_MOST_FACTORS):
            if not s.terms or (rest := _without_a_common_factor(s)) is None:
                break
            s = _reduced(lift, rest)
        if not s.terms:
            return True
        pending += _multiplied(lift, s)
    return False


def _free(s: SumOfProducts) -> frozenset[Letter]:
    return frozenset(itertools.chain.from_iterable(s.result))


def _with_letter(s: SumOfProducts, n: Dim) -> tuple[SumOfProducts, Letter]:
    """`s` with one more letter, of size `n`."""
    new = max(s.extents, default=-1) + 1
    return replace(s, extents={**s.extents, new: n}), new


def _reduced(lift: Lift, s: SumOfProducts) -> SumOfProducts:
    terms = (replace(t, factors=tuple(_as_diagonal(lift, f) for f in t.factors)) for t in s.terms)
    s, _ = lift.relations.reduced(replace(s, terms=tuple(terms)))
    free = _free(s)
    return replace(s, terms=lift.relations.collected((_contracted(lift, s, t) for t in s.terms), free, s.extents)[0])


def _as_diagonal(lift: Lift, f: Access) -> Access:
    """`f`; the diagonal for the sums of the rows or columns of a diagonal matrix."""
    if f.value.op != "sum" or len(f.letters) != 1 or f.value.args[0].ndim != 2:
        return f
    (matrix,) = f.value.args
    made = on_diagonals(matrix, f.letters * 2)
    return replace(made, divides=f.divides) if "diagonal" in lift.facts(matrix) else f


def _contracted(lift: Lift, s: SumOfProducts, t: ProductTerm) -> ProductTerm:
    """`t` with one letter for those that identity matrices make equal, and without what divides itself."""
    free, sizes = _free(s), t.sizes
    factors = [f for f in t.factors if not is_identity_mask(f.value)]
    masks = [set(f.letters) for f in t.factors if is_identity_mask(f.value)]
    kept: list[Access] = []
    while masks:
        group = masks.pop()
        while more := [m for m in masks if m & group]:
            masks = [m for m in masks if not m & group]
            group = group.union(*more)
        first, *rest = sorted(group, key=lambda x: (x not in free, x))
        kept += [identity_mask(first, x, s.extents) for x in rest if x in free]
        if first not in free and not any(group & set(f.letters) for f in factors):
            sizes = (*sizes, s.extents[first])
        for i, f in enumerate(factors):
            letters = [first if x in group else x for x in f.letters]
            if len(set(letters)) < len(letters) and f.value.dtype == "bool":
                raise Unsupported("the diagonal of a mask")
            factors[i] = replace(on_diagonals(f.value, letters), divides=f.divides)
    for f in [f for f in factors if f.divides]:
        if (g := replace(f, divides=False)) in factors and _is_nonzero(lift, f):
            factors.remove(f)
            factors.remove(g)
            gone = set(f.letters) - free - {x for h in factors for x in h.letters}
            sizes = (*sizes, *(s.extents[x] for x in gone))
    return replace(t, factors=(*factors, *kept), sizes=sizes)


def _is_nonzero(lift: Lift, f: Access) -> bool:
    matrix = of_diagonal(f)
    return "nonzero" in lift.facts(f.value) or (matrix is not None and {"diagonal", "invertible"} <= lift.facts(matrix))


def _without_a_common_factor(s: SumOfProducts) -> SumOfProducts | None:
    """The sum without a factor that all terms have; None if there is none. At most one letter of the factor may be
    summed, which becomes free."""
    free = _free(s)
    for f in s.terms[0].factors:
        places = () if is_identity_mask(f.value) else range(len(f.letters))  # one for another would be no progress
        for place in (None, *places):
            if any(x not in free for i, x in enumerate(f.letters) if i != place):
                continue
            found = [_found(t, f, place) for t in s.terms]
            rest = [(t, g) for t, g in zip(s.terms, found, strict=True) if g is not None]
            if len(rest) < len(s.terms):
                continue
            if place is None:
                return replace(s, terms=tuple(replace(t, factors=_others(t, g)) for t, g in rest))
            s, new = _with_letter(s, s.extents[f.letters[place]])
            terms = tuple(_renamed(s, t, g, g.letters[place], new) for t, g in rest)
            return replace(s, terms=terms, result=(*s.result, (new,)))
    return None


def _multiplied(lift: Lift, s: SumOfProducts) -> Iterator[SumOfProducts]:
    """Yields products of `s` with the matrices of its inverses, each of which vanishes only where `s` does."""
    free = _free(s)
    tried: set[tuple[Expr, tuple[Letter, ...], int]] = set()
    for f, side in itertools.product((f for t in s.terms for f in t.factors), (0, 1)):
        what = lift.solved.get(f.value)
        known = (*f.letters[:-2], *f.letters[side - 2 :][:1])
        if what is None or what.triangle or f.divides or not free.issuperset(known):
            continue
        if (f.value, known, side) in tried:
            continue
        tried.add((f.value, known, side))
        matrix = lift.reduced(what.of)
        if all(len(g) == 1 for g in matrix.result) and len(s.terms) * len(matrix.terms) <= _MOST_TERMS:
            yield _times(s, matrix, f, side)


def _times(s: SumOfProducts, matrix: SumOfProducts, inverse: Access, side: int) -> SumOfProducts:
    """`s` times `matrix`, over the letter that is the rows (`side` 0) or the columns (1) of its `inverse`."""
    letter, last = inverse.letters[side - 2], len(inverse.letters) - 1 - side
    s, new = _with_letter(s, s.extents[letter])
    terms: list[ProductTerm] = []
    for t in s.terms:
        g = _found(t, inverse, last)
        if g is not None and g.letters[last] != letter and not any(letter in f.letters for f in _others(t, g)):
            terms.append(_renamed(s, t, g, g.letters[last], new))
            continue
        for m in matrix.terms:
            names = {g[0]: x for g, x in zip(matrix.result[:-2], inverse.letters[:-2], strict=True)}
            names |= {matrix.result[side - 2][0]: new, matrix.result[-1 - side][0]: letter}
            for x, n in matrix.extents.items():
                if x not in names:
                    s, names[x] = _with_letter(s, n)
            m = with_letters(m, names)
            terms.append(
                ProductTerm(
                    t.coefficient * m.coefficient, t.sizes + m.sizes, t.divisors + m.divisors, t.factors + m.factors
                )
            )
    result = tuple((x,) for x in _free(s) - {letter} | {new})
    return replace(s, terms=tuple(terms), result=result)


def _found(t: ProductTerm, f: Access, place: int | None) -> Access | None:
    """The factor of `t` that is `f`, with any letter at `place`; None if there is none."""
    for g in t.factors:
        same = (x == y for i, (x, y) in enumerate(zip(f.letters, g.letters, strict=False)) if i != place)
        if g.value is f.value and g.divides == f.divides and all(same):
            return g
    return None


def _others(t: ProductTerm, f: Access) -> tuple[Access, ...]:
    return tuple(g for g in t.factors if g is not f)


def _renamed(s: SumOfProducts, t: ProductTerm, without: Access, letter: Letter, new: Letter) -> ProductTerm:
    """`t` without a factor, and with `new` for a summed letter; times an identity matrix if the letter is free."""
    t = replace(t, factors=_others(t, without))
    if letter in _free(s):
        return replace(t, factors=(*t.factors, identity_mask(letter, new, s.extents)))
    return with_letters(t, {letter: new})
