"""Makes sizes that are equal for all values of the size variables one size in the e-graph.

Two `Dim`s of different form may be equal in a scope: `(n//8)*8` and `n` where 8 divides `n`, `min(n, 4096)` and `n`
where `n <= 4096`. The prover compares sizes that agree at a few points of the scope, and those proved equal are
unioned, so that rules match sizes as plain terms. Each block has its own e-graph, so no union affects another block.
"""

from __future__ import annotations

from collections.abc import Iterable

from relax_eg.shapes import Dim, Scope

POINTS = 6  # chosen: number of points at which two sizes must agree before a proof is tried


class EqualSizes:
    """Finds equal sizes among all sizes that `proved` has seen so far."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._names: frozenset[str] = frozenset()
        self._points: list[dict[str, int]] = []
        self._sizes: list[Dim] = []
        self._groups: dict[tuple[int, ...], list[Dim]] = {}  # by values at the points: one size of each equal group

    def proved(self, new: Iterable[Dim]) -> list[tuple[Dim, Dim]]:
        """Returns a pair for each of the `new` sizes that equals an earlier one: the earlier size and the new one.
        O(new) if few sizes agree at all points."""
        found: list[tuple[Dim, Dim]] = []
        sizes = list(new)
        names = self._names.union(*(d.variables for d in sizes))
        if names != self._names:
            # New points group the sizes anew. Earlier sizes were compared with each other before.
            self._names = names
            self._points = self._scope.points(sorted(names), POINTS)
            self._groups = {}
            for d in self._sizes:
                self._groups.setdefault(self._values(d), []).append(d)
        for d in sizes:
            group = self._groups.setdefault(self._values(d), [])
            equal = next((other for other in group if self._scope.equal(other, d, deep=True)), None)
            if equal is not None:
                found.append((equal, d))
            else:
                group.append(d)
                self._sizes.append(d)
        return found

    def _values(self, d: Dim) -> tuple[int, ...]:
        return tuple(d.evaluate(point) for point in self._points)
