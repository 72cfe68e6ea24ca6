"""Terms of a grammar as nested tuples, their order, and rewriting by laws.

A term is the number of a leaf, or a tuple of the number of an operator and its operands. Terms are compared by `order`,
a total order in which a subterm is smaller than what contains it. A law is used from its larger to its smaller side
only, on each instance anew, so rewriting ends (ordered rewriting, Bachmair, Dershowitz and Plaisted, 1989).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

# int: the number of a leaf of the grammar; tuple: (number of an operator, *operands).
Term = Any
Order = tuple[Any, ...]


class TypedTerms(Protocol):
    """What a grammar tells of terms: which leaves are variables, their types, and their work."""

    variable_count: int

    def type_of(self, t: Term) -> tuple[Any, ...]: ...

    def work(self, t: Term) -> int: ...


def size_of(t: Term) -> int:
    """The number of operators of a term."""
    return 0 if isinstance(t, int) else 1 + sum(map(size_of, t[1:]))


def leaves_of(t: Term) -> Iterator[int]:
    """The leaves of a term from left to right, each as often as it occurs."""
    if isinstance(t, int):
        yield t
    else:
        for a in t[1:]:
            yield from leaves_of(a)


def operators_of(t: Term) -> Iterator[int]:
    """The operators of a term in prefix order, each as often as it occurs."""
    if not isinstance(t, int):
        yield t[0]
        for a in t[1:]:
            yield from operators_of(a)


def _prefix(t: Term) -> Iterator[tuple[int, int]]:
    if isinstance(t, int):
        yield 0, t
    else:
        yield 1, t[0]
        for a in t[1:]:
            yield from _prefix(a)


def order(t: Term, grammar: TypedTerms) -> Order:
    """The key by which terms are compared: fewer operators, then less work, then fewer and smaller leaves."""
    prefix = tuple(_prefix(t))
    return size_of(t), grammar.work(t), len(prefix), prefix


def match(pattern: Term, t: Term, found: dict[int, Term], grammar: TypedTerms) -> bool:
    """Whether `t` is an instance of `pattern`; extends `found`, the terms for its variables."""
    if isinstance(pattern, int):
        if pattern >= grammar.variable_count:  # a constant
            return t == pattern
        if pattern in found:
            return found[pattern] == t
        if grammar.type_of(t) != grammar.type_of(pattern):
            return False
        found[pattern] = t
        return True
    if isinstance(t, int) or pattern[0] != t[0] or len(pattern) != len(t):
        return False
    return all(match(p, a, found, grammar) for p, a in zip(pattern[1:], t[1:], strict=True))


def instance(pattern: Term, by: dict[int, Term]) -> Term:
    """`pattern` with its variables replaced."""
    if isinstance(pattern, int):
        return by.get(pattern, pattern)
    return (pattern[0], *(instance(p, by) for p in pattern[1:]))


class Rewriting:
    """The equalities that are taken as known, for ordered rewriting at the root of a term."""

    def __init__(self, grammar: TypedTerms) -> None:
        self._grammar = grammar
        self._by_root: dict[int, list[tuple[Term, Term, int]]] = {}

    def add(self, left: Term, right: Term, number: int) -> None:
        """Adds an equality. `number`: what `reducer` returns where it applies."""
        for a, b in ((left, right), (right, left)):
            if not isinstance(a, int) and set(self._variables(b)) <= set(self._variables(a)):
                self._by_root.setdefault(a[0], []).append((a, b, number))

    def remove(self, number: int) -> None:
        for laws in self._by_root.values():
            laws[:] = [law for law in laws if law[2] != number]

    def _variables(self, t: Term) -> Iterator[int]:
        return (v for v in leaves_of(t) if v < self._grammar.variable_count)

    def reducer(self, t: Term) -> int | None:
        """The number of an equality that rewrites `t` at its root to a smaller term; None if there is none."""
        if isinstance(t, int):
            return None
        own: Order | None = None
        for a, b, number in self._by_root.get(t[0], ()):
            found: dict[int, Term] = {}
            if match(a, t, found, self._grammar):
                own = own or order(t, self._grammar)
                if order(instance(b, found), self._grammar) < own:
                    return number
        return None
