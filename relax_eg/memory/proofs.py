"""Sizes compared for all bindings: by proof, else refused with a counterexample or a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relax_eg.shapes import Dim, Proved, Refuted, Relation, Scope, Verdict

TIMEOUT_MS = 50  # of z3 for one comparison; most are settled without it


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left op right`, for all sizes in bounds, and what the prover said."""

    left: Dim
    op: str
    right: Dim
    verdict: Verdict

    @property
    def holds(self) -> bool:
        return isinstance(self.verdict, Proved)

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}: {self.verdict}"


@dataclass(frozen=True, slots=True)
class Reuse:
    """That a value was given, or refused, the memory that another one had before: what had to hold of their sizes, and
    the verdict. `granted`: whether it was. Of equal refusals the first is told."""

    value: int
    before: int
    granted: bool
    comparison: Comparison


class Sizes:
    """What is known of the sizes of a program: comparisons are asked of `scope` and kept. `at`: sizes of interest, by
    which candidates are ordered; with `only_there` the sizes are those, so that nothing is left to prove."""

    def __init__(self, scope: Scope, at: Mapping[str, int], only_there: bool = False) -> None:
        self.scope = scope
        self.at = dict(at)
        self.only_there = only_there
        self._known: dict[tuple[Dim, str, Dim], Comparison] = {}
        self._plain: dict[tuple[Dim, Dim], bool] = {}
        self._estimates: dict[Dim, int] = {}

    def estimate(self, d: Dim) -> int:
        """The value of `d` at the sizes of interest."""
        found = self._estimates.get(d)
        if found is None:
            found = self._estimates[d] = int(d.evaluate(self.at))
        return found

    def compare(self, left: Dim, op: str, right: Dim) -> Comparison:
        """The comparison of two sizes, "==" or "<="."""
        key = (left, op, right)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Comparison(left, op, right, self._verdict(left, op, right))
        return found

    def _verdict(self, left: Dim, op: str, right: Dim) -> Verdict:
        if left is right:
            return Proved("canonical")
        if self.only_there:
            a, b = self.estimate(left), self.estimate(right)
            holds = a == b if op == "==" else a <= b
            return Proved("enumeration") if holds else Refuted(self.at, f"{a} {op} {b} is false", "enumeration")
        return self.scope.prover.prove(Relation.of(left, op, right), TIMEOUT_MS)

    def largest(self, sizes: Iterable[Dim]) -> list[Dim]:
        """Those of `sizes` of which none is plainly at most another: their maximum is that of all."""
        kept: list[Dim] = []
        for d in sorted(set(sizes), key=lambda d: (-self.estimate(d), d.sort_key())):
            if not any(self._plainly(d, k) for k in kept):
                kept = [k for k in kept if not self._plainly(k, d)]
                kept.append(d)
        return kept

    def _plainly(self, left: Dim, right: Dim) -> bool:
        """Whether it is plain to see that `left <= right`: without a search, for there are many such questions."""
        if self.only_there:
            return self.estimate(left) <= self.estimate(right)
        key = (left, right)
        if key not in self._plain:
            low = self.scope.interval(right - left)[0]
            self._plain[key] = low is not None and low >= 0
        return self._plain[key]
