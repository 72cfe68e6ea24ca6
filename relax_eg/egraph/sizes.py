"""Sizes that are equal for all values of the size variables, made one size in the e-graph.

Two `Dim`s of different form may be equal in a scope: `(n//8)*8` and `n` where 8 divides `n`, `min(n, 4096)` and `n`
where `n <= 4096`. Sizes that agree at a few points of the scope are handed to the prover, and what it proves is
unioned, so that a rule's shape guard stays plain matching. There is one e-graph per block, so no union leaks.
"""

from __future__ import annotations

from collections.abc import Iterable

from relax_eg.shapes import Dim, Scope

POINTS = 6


class EqualSizes:
    """Finds, among the sizes shown to it so far, those that are equal."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._names: frozenset[str] = frozenset()
        self._points: list[dict[str, int]] = []
        self._sizes: list[Dim] = []
        self._alike: dict[tuple[int, ...], list[Dim]] = {}  # one of each proved-equal group, by values at the points

    def proved(self, new: Iterable[Dim]) -> list[tuple[Dim, Dim]]:
        """For each of the `new` sizes that equals one shown before, that one and it. O(new) where few sizes agree at
        all points."""
        found: list[tuple[Dim, Dim]] = []
        sizes = list(new)
        names = self._names.union(*(d.variables for d in sizes))
        if names != self._names:
            # Other points tell other sizes apart: what was kept apart before stays so.
            self._names = names
            self._points = self._scope.points(sorted(names), POINTS)
            self._alike = {}
            for d in self._sizes:
                self._alike.setdefault(self._values(d), []).append(d)
        for d in sizes:
            group = self._alike.setdefault(self._values(d), [])
            equal = next((other for other in group if self._scope.equal(other, d, deep=True)), None)
            if equal is not None:
                found.append((equal, d))
            else:
                group.append(d)
                self._sizes.append(d)
        return found

    def _values(self, d: Dim) -> tuple[int, ...]:
        return tuple(d.evaluate(point) for point in self._points)
