"""Laws with fresh variables for repeated ones, for constants, and for subterms that both sides have.

A grammar has few variables, because terms grow with a power of their number. So a law of four variables is found as one
of two, `where(c, x, y) + where(c, y, x) = where(c, x + y, y + x)`. Occurrences of a variable are told apart as long as
the sides agree at the sample points.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from relax_eg.discovery.table import EqualPair, TermTable
from relax_eg.discovery.terms import Term, leaves_of, size_of
from relax_eg.errors import RelaxEgError

_MOST_PLACES = 4  # limit: occurrences of a variable in a side; the ways to tell them apart grow as 2 to the power of it


def generalised(c: EqualPair, table: TermTable, accepted: Callable[[EqualPair], bool] = lambda c: True) -> EqualPair:
    """A pair of which `c` is an instance, with as many variables as there are fresh ones and the sides still agree at
    the sample points. `accepted`: what is asked of it besides."""
    is_more = True
    while is_more:
        is_more = False
        for more in (*_without_subterms(c, table), *_without_constants(c, table), *_told_apart(c, table)):
            if _agrees(more, table) and accepted(more):
                c, is_more = more, True
                break
    return c


def without_context(c: EqualPair, table: TermTable) -> EqualPair:
    """The pair of operands in which the sides differ, as far inside as these agree at the sample points."""
    while not isinstance(c.left, int) and not isinstance(c.right, int) and c.left[0] == c.right[0]:
        apart = [(a, b) for a, b in zip(c.left[1:], c.right[1:], strict=True) if a != b]
        inner = replace(c, left=apart[0][0], right=apart[0][1]) if len(apart) == 1 else c
        if inner is c or isinstance(inner.left, int) or not _agrees(inner, table):
            break
        c = inner
    return c


def _agrees(c: EqualPair, table: TermTable) -> bool:
    try:
        return table.agree(c)
    except RelaxEgError:  # an operator does not apply to the fresh variable
        return False


def _fresh(c: EqualPair, t: Term, table: TermTable) -> int | None:
    """A variable of the type of `t` that the pair has not."""
    grammar = table.grammar
    used = {*leaves_of(c.left), *leaves_of(c.right)}
    wanted = grammar.type_of(t)
    free = (i for i in range(grammar.declared_count, grammar.variable_count) if i not in used)
    return next((i for i in free if grammar.type_of(i) == wanted), None)


def _without_subterms(c: EqualPair, table: TermTable) -> Iterator[EqualPair]:
    """The pair with a variable for a term that both sides contain, the largest first."""
    both = set(_subterms(c.left)) & set(_subterms(c.right))
    for t in sorted(both - {c.left, c.right}, key=lambda t: (-size_of(t), repr(t))):
        if (new := _fresh(c, t, table)) is not None:
            yield replace(c, left=_replaced(c.left, t, new), right=_replaced(c.right, t, new))


def _without_constants(c: EqualPair, table: TermTable) -> Iterator[EqualPair]:
    """The pair with a variable for a constant of the left side."""
    for t in dict.fromkeys(leaves_of(c.left)):
        is_constant = t >= table.grammar.variable_count and t not in table.grammar.filled
        if is_constant and (new := _fresh(c, t, table)) is not None:
            yield replace(c, left=_replaced(c.left, t, new), right=_replaced(c.right, t, new))


def _told_apart(c: EqualPair, table: TermTable) -> Iterator[EqualPair]:
    """The pair with a fresh variable for some occurrences of a variable, but not for the first one on the left."""
    fixed = frozenset[int]() if c.condition is None else c.condition.variables
    for v in dict.fromkeys(leaves_of(c.left)):
        if v >= table.grammar.variable_count or v in fixed:
            continue
        here, there = ([i for i, x in enumerate(leaves_of(side)) if x == v] for side in (c.left, c.right))
        if not 1 < len(here) <= _MOST_PLACES or len(there) > _MOST_PLACES or (new := _fresh(c, v, table)) is None:
            continue
        for left, right in itertools.product(_some(here[1:]), [(), *_some(there)]):
            yield replace(c, left=_at(c.left, left, new), right=_at(c.right, right, new))


def _some(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The selections of at least one of these."""
    return itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(1, len(places) + 1))


def _subterms(t: Term) -> Iterator[Term]:
    """The terms that are no leaves inside `t`, itself included."""
    if not isinstance(t, int):
        yield t
        for a in t[1:]:
            yield from _subterms(a)


def _replaced(t: Term, old: Term, new: int) -> Term:
    if t == old:
        return new
    return t if isinstance(t, int) else (t[0], *(_replaced(a, old, new) for a in t[1:]))


def _at(t: Term, places: Sequence[int], new: int) -> Term:
    """`t` with a variable at these places among its leaves, from left to right."""
    number = itertools.count()

    def visit(t: Term) -> Term:
        if isinstance(t, int):
            return new if next(number) in places else t
        return (t[0], *[visit(a) for a in t[1:]])

    return visit(t)
