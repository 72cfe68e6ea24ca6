"""Comparisons of sizes for all bindings: proved, or refused with a counterexample or a reason."""

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
    """`left op right`, for all sizes in bounds, and the prover's verdict."""

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
    """The decision whether a value gets the memory that another one had before. `granted`: whether it does;
    `comparison`: what must hold of their sizes, and the verdict. Of equal refusals only the first is reported."""

    value: int
    before: int
    granted: bool
    comparison: SizeComparison


class SizeProofs:
    """Comparisons of a program's sizes, proved in `scope` and cached. `at`: sizes of interest, by which candidates are
    ordered; with `only_there` only those sizes occur, so that nothing is left to prove."""

    def __init__(self, scope: Scope, at: Mapping[str, int], only_there: bool = False) -> None:
        self.scope = scope
        self.at = dict(at)
        self.only_there = only_there
        self._known: dict[tuple[Dim, str, Dim], SizeComparison] = {}
        self._plain: dict[tuple[Dim, Dim], bool] = {}
        self._corners = [self.at] if only_there else [self.at, *_corners(scope, self.at)]
        self._counted: dict[Monomial, bool] = {}
        self._factors: dict[Monomial, tuple[int, ...]] = {}
        self._evaluated: dict[Dim, tuple[int, ...]] = {}

    def estimate(self, d: Dim) -> int:
        """The value of `d` at the sizes of interest."""
        return self._values(d)[0]

    def most(self, d: Dim) -> int | None:
        """An upper bound of `d`; None if it is unbounded."""
        return self.estimate(d) if d.is_const or self.only_there else self.scope.interval(d)[1]

    def compare(self, left: Dim, op: str, right: Dim) -> SizeComparison:
        """The comparison of two sizes, "==" or "<="."""
        key = (left, op, right)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = SizeComparison(left, op, right, self._verdict(left, op, right))
        return found

    def _verdict(self, left: Dim, op: str, right: Dim) -> Verdict:
        if left is right:
            return Proved("canonical")
        a, b = self.estimate(left), self.estimate(right)
        if not (a == b if op == "==" else a <= b):  # the sizes of interest are a counterexample
            env = {v: self.at[v] for v in sorted(left.variables | right.variables)}
            return Refuted(env, f"{a} {op} {b} is false")
        if self.only_there:
            return Proved("enumeration")
        return self.scope.prover.prove(Relation.of(left, op, right), TIMEOUT_MS)

    def largest(self, sizes: Iterable[Dim]) -> list[Dim]:
        """The members of `sizes` that are not plainly at most another one: their maximum is that of all."""
        kept: list[Dim] = []
        for d in sorted(set(sizes), key=lambda d: (-self.estimate(d), d.sort_key())):
            if not any(self._plainly(d, k) for k in kept):
                kept = [k for k in kept if not self._plainly(k, d)]
                kept.append(d)
        return kept

    def _plainly(self, left: Dim, right: Dim) -> bool:
        """Whether a cheap test shows that `left <= right`, without a search, because there are many such questions.
        Most are settled by evaluation at a few sizes."""
        if any(a > b for a, b in zip(self._values(left), self._values(right), strict=True)):
            return False
        if self.only_there:
            return True
        key = (left, right)
        found = self._plain.get(key)
        if found is None:
            found = self._plain[key] = self._termwise(left, right) or self._least(_unrounded(right - left)) >= 0
        return found

    def _termwise(self, left: Dim, right: Dim) -> bool:
        """Whether `right` has at least the coefficient of `left` for each product of sizes, and no product is
        negative."""
        if left.const > right.const:
            return False
        rest = dict(right.terms)
        if any(coefficient > rest.get(m, 0) for m, coefficient in left.terms):
            return False
        return all(self._is_counted(m) for m, _ in (*left.terms, *right.terms))

    def _is_counted(self, m: Monomial) -> bool:
        found = self._counted.get(m)
        if found is None:
            found = self._counted[m] = self._least(product(m)) >= 0
        return found

    def _least(self, d: Dim) -> float:
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


def _unrounded(d: Dim) -> Dim:
    """A lower bound of `d` without rounding: k*(a//k), which is between a - (k - 1) and a, is replaced by the end that
    makes the sum smaller. Sizes are rounded to multiples this way."""
    total = Dim.of(d.const)
    for m, c in d.terms:
        atom = m[0]
        if len(m) == 1 and atom.op == "floordiv" and atom.args[1].is_const and c % (k := atom.args[1].value) == 0:
            total = total + (atom.args[0] - (k - 1) if c > 0 else atom.args[0]) * (c // k)
        else:
            total = total + product(m, c)
    return total


def _corners(scope: Scope, at: Mapping[str, int]) -> list[dict[str, int]]:
    """Sizes far from one another: all small, all large, and each large by itself. They need not be allowed together: a
    comparison that fails there is only not plain."""
    sides: dict[str, tuple[int, int]] = {}
    for name in at:
        low, high = scope.bounds(name)
        least = max(low or 0, 1)
        sides[name] = (least, max(least, _LARGE if high is None else high))
    small = {name: low for name, (low, _) in sides.items()}
    large = {name: high for name, (_, high) in sides.items()}
    return [small, large, *({**small, name: large[name]} for name in list(sides)[:_ALONE])]
