"""The least flops of sums of products, by exhaustive search without the project's planner, for `benchmarks.laws`."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Letters = tuple[str, ...]
Factor = tuple[Any, Letters]  # the name of an input, or a bracket, and its letters
Term = tuple[int, tuple[Factor, ...]]


def canonical(factors: tuple[Factor, ...], out: Letters) -> Any:
    """A key of a product that does not depend on the names of its inner letters."""
    best = None
    for order in itertools.permutations(sorted(factors, key=lambda f: str(f[0]))):
        if [str(f[0]) for f in order] != sorted(str(f[0]) for f in factors):
            continue
        names: dict[str, str] = {}
        key = tuple(
            (str(n), tuple(x if x in out else names.setdefault(x, f"b{len(names)}") for x in at)) for n, at in order
        )
        best = key if best is None or key < best else best
    return best


def _pattern(at: Letters, out: Letters) -> tuple[Any, ...]:
    """The letters of a factor, with a number in place of each inner one."""
    return tuple(x if x in out else at.index(x) for x in at)


@dataclass
class Reference:
    """The least flops of sums of products, by exhaustive search. `extent`: the number for a letter."""

    extent: dict[str, int]
    _sums: dict[Any, dict[Any, float]] = field(default_factory=dict[Any, Any])
    _inner: dict[Any, dict[Any, float]] = field(default_factory=dict[Any, Any])  # the steps of each bracket

    def least(self, terms: Sequence[Term], out: Letters) -> float:
        return sum(self._sum(tuple(terms), out).values()) + self._negated(terms, out)

    def _negated(self, terms: Sequence[Term], out: Letters) -> float:
        """The flops of the sign of a sum without a positive term, of the result or of a factor."""
        if any(c > 0 for c, _ in terms):
            return 0
        found = [self._elements(out)]
        for _, factors in terms:
            for i, (_, at) in enumerate(factors):
                needed = {*out, *(x for _, other in (*factors[:i], *factors[i + 1 :]) for x in other)}
                found.append(self._elements(needed.intersection(at)))
        return min(found)

    def _elements(self, letters: Any) -> float:
        return math.prod(self.extent[x] for x in letters)

    def _sum(self, terms: tuple[Term, ...], out: Letters) -> dict[Any, float]:
        key = (frozenset(Counter(terms).items()), frozenset(out))
        if key not in self._sums:
            self._sums[key] = self._sum_anew(terms, out)
        return self._sums[key]

    def _sum_anew(self, terms: tuple[Term, ...], out: Letters) -> dict[Any, float]:
        different = tuple(dict.fromkeys(terms))
        if len(different) < len(terms):
            there = {x for _, fs in terms for _, at in fs for x in at} & set(out)
            scaled = {("scale", frozenset(terms), frozenset(out)): self._elements(there)}
            return {**self._sum(different, out), **scaled}
        if len(terms) == 1:
            return self._product(terms[0][1], out)
        found: list[dict[Any, float]] = []
        there = {x for _, fs in terms for _, at in fs for x in at} & set(out)
        for count in range(1, len(terms) // 2 + 1):
            for group in itertools.combinations(terms, count):
                rest = tuple(t for t in terms if t not in group)
                if rest:
                    added = {("add", frozenset(terms), frozenset(out)): self._elements(there)}
                    found.append({**self._sum(group, out), **self._sum(rest, out), **added})
        for name, pattern in {(n, _pattern(at, out)) for _, fs in terms for n, at in fs}:
            having = [(t, f) for t in terms for f in t[1] if (f[0], _pattern(f[1], out)) == (name, pattern)]
            having = list({t: (t, f) for t, f in having}.values())
            for count in range(2, len(having) + 1):
                for group in itertools.combinations(having, count):
                    found.append(self._with_bracket(terms, group, out))
        return min(found, key=lambda c: sum(c.values()))

    def _with_bracket(self, terms: tuple[Term, ...], group: Any, out: Letters) -> dict[Any, float]:
        common = group[0][1]
        rests: list[Term] = []
        for t, f in group:
            names = dict(zip(f[1], common[1], strict=True))
            fs = list(t[1])
            fs.remove(f)
            rests.append((t[0], tuple((n, tuple(names.get(x, x) for x in at)) for n, at in fs)))
        axes = tuple(sorted({x for _, fs in rests for _, at in fs for x in at} & {*out, *common[1]}))
        bracket = (("bracket", tuple(sorted(rests, key=str))), axes)
        inner = self._sum(tuple(rests), axes)
        self._inner[bracket[0]] = inner
        left = tuple(t for t in terms if t not in [g for g, _ in group])
        made = (1, (common, bracket))
        return {**inner, **self._sum((*left, made), out)}

    def _product(self, factors: tuple[Factor, ...], out: Letters) -> dict[Any, float]:
        """The cheapest order of contractions of a product."""
        n = len(factors)
        if not n:
            return {}
        best: dict[int, tuple[dict[Any, float], frozenset[str]]] = {}
        for subset in range(1, 1 << n):
            members = [f for i, f in enumerate(factors) if subset >> i & 1]
            rest = {x for i, f in enumerate(factors) if not subset >> i & 1 for x in f[1]}
            letters = frozenset(x for _, at in members for x in at) & (rest | set(out))
            if len(members) == 1:
                inner = self._inner.get(members[0][0], {}) if isinstance(members[0][0], tuple) else {}
                every = frozenset(members[0][1])
                step = (
                    {}
                    if letters == every
                    else {("sum", canonical(tuple(members), tuple(letters))): self._elements(every)}
                )
                best[subset] = ({**inner, **step}, letters)
                continue
            part = (subset - 1) & subset
            while part:
                if part > subset ^ part:
                    (a, x), (b, y) = best[part], best[subset ^ part]
                    flops = (1 if letters == x | y else 2) * self._elements(x | y)
                    made = {**a, **b, ("product", canonical(tuple(members), tuple(letters))): flops}
                    if subset not in best or sum(made.values()) < sum(best[subset][0].values()):
                        best[subset] = (made, letters)
                part = (part - 1) & subset
        return best[(1 << n) - 1][0]
