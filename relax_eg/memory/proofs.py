"""Comparisons of sizes over all bindings: proved, refuted with a counterexample, or unknown with a reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relax_eg.shapes import Dim, Proved, Refuted, Relation, Scope, Verdict
from relax_eg.shapes.dim import Monomial, product

_LARGE = 1 << 20  # chosen: value of a size without an upper bound
_ALONE = 4  # limit: variables that get a corner in which they alone are large
TIMEOUT_MS = 50  # limit: z3's time for one comparison; most are settled without it


@dataclass(frozen=True, slots=True)
class SizeComparison:
    """A comparison of two sizes over all bindings in bounds.

    - `left`, `right`: the sizes.
    - `op`: "==" or "<=".
    - `verdict`: the prover's verdict.
    """

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
    """The decision whether a value gets the memory that another one had before. Of equal refusals only the first is
    reported.

    - `value`: the number of the value.
    - `before`: the number of the value that had the memory.
    - `granted`: whether `value` gets it.
    - `comparison`: the condition on their sizes, and the verdict.
    """

    value: int
    before: int
    granted: bool
    comparison: SizeComparison


class SizeProofs:
    """The comparisons of a program's sizes, proved in `scope` and cached.

    - `at`: the sizes of interest, by which candidates are ordered.
    - `at_only`: whether only the sizes `at` occur, so that evaluation decides every comparison.
    """

    def __init__(self, scope: Scope, at: Mapping[str, int], at_only: bool = False) -> None:
        self.scope = scope
        self.at = dict(at)
        self.at_only = at_only
        self._comparisons: dict[tuple[Dim, str, Dim], SizeComparison] = {}
        self._cheap_comparisons: dict[tuple[Dim, Dim], bool] = {}
        self._corners = [self.at] if at_only else [self.at, *_corners(scope, self.at)]
        self._nonnegative: dict[Monomial, bool] = {}
        self._factors: dict[Monomial, tuple[int, ...]] = {}
        self._evaluated: dict[Dim, tuple[int, ...]] = {}

    def estimate(self, d: Dim) -> int:
        """The value of `d` at the sizes of interest."""
        return self._values(d)[0]

    def upper_bound(self, d: Dim) -> int | None:
        """An upper bound of `d`; None if it is unbounded."""
        return self.estimate(d) if d.is_const or self.at_only else self.scope.interval(d)[1]

    def compare(self, left: Dim, op: str, right: Dim) -> SizeComparison:
        """The comparison of two sizes, "==" or "<="."""
        key = (left, op, right)
        found = self._comparisons.get(key)
        if found is None:
            found = self._comparisons[key] = SizeComparison(left, op, right, self._verdict(left, op, right))
        return found

    def _verdict(self, left: Dim, op: str, right: Dim) -> Verdict:
        if left is right:
            return Proved("canonical")
        a, b = self.estimate(left), self.estimate(right)
        if not (a == b if op == "==" else a <= b):  # the sizes of interest are a counterexample
            env = {v: self.at[v] for v in sorted(left.variables | right.variables)}
            return Refuted(env, f"{a} {op} {b} is false")
        if self.at_only:
            return Proved("enumeration")
        return self.scope.prover.prove(Relation.of(left, op, right), TIMEOUT_MS)

    def largest(self, sizes: Iterable[Dim]) -> list[Dim]:
        """The members of `sizes` without those that a cheap test shows to be at most another member. Their maximum is
        that of all."""
        kept: list[Dim] = []
        for d in sorted(set(sizes), key=lambda d: (-self.estimate(d), d.sort_key())):
            if not any(self._is_cheaply_at_most(d, k) for k in kept):
                kept = [k for k in kept if not self._is_cheaply_at_most(k, d)]
                kept.append(d)
        return kept

    def _is_cheaply_at_most(self, left: Dim, right: Dim) -> bool:
        """Whether a cheap test shows that `left <= right`. There are too many such questions for the prover; evaluation
        at a few sizes refutes most of them."""
        if any(a > b for a, b in zip(self._values(left), self._values(right), strict=True)):
            return False
        if self.at_only:
            return True
        key = (left, right)
        found = self._cheap_comparisons.get(key)
        if found is None:
            found = self._cheap_comparisons[key] = (
                self._termwise(left, right) or self._lower_bound(_without_rounding(right - left)) >= 0
            )
        return found

    def _termwise(self, left: Dim, right: Dim) -> bool:
        """Whether `right` has at least the coefficient of `left` for each product of sizes, and no product is
        negative."""
        if left.const > right.const:
            return False
        rest = dict(right.terms)
        if any(coefficient > rest.get(m, 0) for m, coefficient in left.terms):
            return False
        return all(self._is_nonnegative(m) for m, _ in (*left.terms, *right.terms))

    def _is_nonnegative(self, m: Monomial) -> bool:
        found = self._nonnegative.get(m)
        if found is None:
            found = self._nonnegative[m] = self._lower_bound(product(m)) >= 0
        return found

    def _lower_bound(self, d: Dim) -> float:
        low = self.scope.interval(d)[0]
        return -math.inf if low is None else low

    def _values(self, d: Dim) -> tuple[int, ...]:
        """The values of `d` at the sizes of interest and at the corners."""
        found = self._evaluated.get(d)
        if found is None:
            totals = [d.const] * len(self._corners)
            for monomial, coefficient in d.terms:
                factors = self._factors.get(monomial)
                if factors is None:
                    whole = product(monomial)
                    factors = self._factors[monomial] = tuple(int(whole.evaluate(c)) for c in self._corners)
                totals = [t + coefficient * f for t, f in zip(totals, factors, strict=True)]
            found = self._evaluated[d] = tuple(totals)
        return found


def _without_rounding(d: Dim) -> Dim:
    """A lower bound of `d` without roundings to multiples: k*(a//k), which is between a - (k - 1) and a, is replaced by
    the end that makes the sum smaller."""
    total = Dim.of(d.const)
    for m, c in d.terms:
        atom = m[0]
        if len(m) == 1 and atom.op == "floordiv" and atom.args[1].is_const and c % (k := atom.args[1].value) == 0:
            total = total + (atom.args[0] - (k - 1) if c > 0 else atom.args[0]) * (c // k)
        else:
            total = total + product(m, c)
    return total


def _corners(scope: Scope, at: Mapping[str, int]) -> list[dict[str, int]]:
    """Bindings far from one another: all sizes small, all large, and each large by itself. They need not be allowed: a
    comparison that fails at a forbidden binding is passed to the prover."""
    sides: dict[str, tuple[int, int]] = {}
    for name in at:
        low, high = scope.bounds(name)
        least = max(low or 0, 1)
        sides[name] = (least, max(least, _LARGE if high is None else high))
    small = {name: low for name, (low, _) in sides.items()}
    large = {name: high for name, (_, high) in sides.items()}
    return [small, large, *({**small, name: large[name]} for name in list(sides)[:_ALONE])]
