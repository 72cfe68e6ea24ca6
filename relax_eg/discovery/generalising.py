"""Laws with fresh variables for repeated ones, for constants, and for subterms that both sides have.

A grammar has few variables, because terms grow with a power of their number. So a law of four variables is found as one
of two, `where(c, x, y) + where(c, y, x) = where(c, x + y, y + x)`. Occurrences of a variable are told apart as long as
the sides agree at the sample points.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from relax_eg.discovery.conditions import Condition, condition_of
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
        plain = (*_without_subterms(c, table), *_without_constants(c, table), *_told_apart(c, table))
        for more in (*plain, *_of_finite_numbers(c, table)):
            if _agrees(more, table) and accepted(more):
                c, is_more = more, True
                break
    return c


def without_context(c: EqualPair, table: TermTable) -> EqualPair:
    """The pair of operands in which the sides differ, as far inside as these agree at the sample points: of
    `x + f(y) = g(y) + x`, whose sides have `x` in common, `f(y) = g(y)`."""
    inner: EqualPair | None = c
    while inner is not None:
        c, inner = inner, next((p for p in _operands_apart(inner) if _agrees(p, table)), None)
    return c


def _operands_apart(c: EqualPair) -> Iterator[EqualPair]:
    """The pairs of operands of both sides, the other operands of which are the same in some order."""
    if isinstance(c.left, int) or isinstance(c.right, int) or c.left[0] != c.right[0]:
        return
    for i, j in itertools.product(range(1, len(c.left)), repeat=2):
        others = ([a for k, a in enumerate(t) if k not in (0, at)] for t, at in ((c.left, i), (c.right, j)))
        left, right = (sorted(o, key=repr) for o in others)
        if left == right and c.left[i] != c.right[j] and not isinstance(c.left[i], int):
            yield replace(c, left=c.left[i], right=c.right[j])


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


def _of_finite_numbers(c: EqualPair, table: TermTable) -> Iterator[EqualPair]:
    """The pair with a variable that is finite, as a number is, for a constant of the left side."""
    before = Condition(()) if c.condition is None else c.condition
    for more in _without_constants(c, table):
        (new,) = {*leaves_of(more.left)} - {*leaves_of(c.left)}
        made = condition_of(table.grammar, [(new, "finite")])
        yield replace(
            more, condition=replace(before, when=(*before.when, *made.when), claims=before.claims | made.claims)
        )


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
