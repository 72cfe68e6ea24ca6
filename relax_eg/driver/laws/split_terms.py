"""Terms of two parts: a term of a table, and what is missing to a fragment's values, which is looked up in the table.

A table that has terms of two operators so gives terms of five: sums, differences, products, quotients, maxima, minima,
and choices by a condition, of two of its terms each. This is search from both ends: the values of the fragment are
known, and those of one part, so those of the other part follow. Where the fragment has no value, or the other part
makes no difference, any value will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from relax_eg.discovery.terms import Term, size_of

Array = np.ndarray[Any, Any]

_PROBES = 6  # chosen: values by which a missing part is looked up, before all values are compared
_LEAST_SHARE = 0.15  # chosen: share of the values that each branch of a choice gives
_MOST_BRANCHES = 256  # limit: terms that give the most values of a fragment, for its choices
_MOST_COMPARED = 64  # limit: pairs of parts of one operator that are compared at all values
_MOST_SPLITS = 6  # limit: terms for a fragment, those of the fewest operators
_WORD = 64  # given: bits of a word

Canonical = Callable[[Array], Array]

Binary = Callable[[Array, Array], Array]
# given: operators of arithmetic
_TOGETHER: dict[str, Binary] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
# given: what is missing to a value `f` where one part has the value `t`, for `part op missing`
_MISSING: dict[str, Binary] = {
    "add": np.subtract,
    "subtract": lambda f, t: t - f,
    "multiply": np.divide,
    "divide": lambda f, t: t / f,
}
_LIMITS = {"maximum": np.less_equal, "minimum": np.greater_equal}  # given: how parts compare with the value


@dataclass
class ValuesOfTerms:
    """The terms of one type of a table, with their values: a row for each.

    - `terms`, `values`: the terms, and their values as they were computed.
    - `canonical`: makes values that differ by rounding the same, and NaN where there is none.
    """

    terms: Sequence[Term]
    values: Array
    canonical: Canonical
    rows: Array = field(init=False)
    sizes: Array = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.canonical(self.values)
        self.sizes = np.asarray([size_of(t) for t in self.terms])

    def where_defined(self, f: Array) -> Term | None:
        """The smallest term with the values `f` wherever these are numbers; None if there is none, or if `f` is a
        number everywhere or nearly nowhere."""
        f = self.canonical(f[None])[0]
        there = np.isfinite(f)
        if there.all() or there.mean() < _LEAST_SHARE:
            return None
        left = np.arange(len(self.terms))
        for column in np.flatnonzero(there):
            left = left[self.rows[left, column] == f[column]]
            if not len(left):
                return None
        return self.terms[int(left[np.argmin(self.sizes[left])])]

    def parts(self, op: str, f: Array) -> Iterator[tuple[int, int]]:
        """Pairs of terms, as numbers, that have the values `f` under an operator of arithmetic, small ones first."""
        columns = _telling(f)
        if len(columns) < _PROBES:
            return
        probes, asked_of = self.values[:, columns], self.canonical(f[None])[0]
        with np.errstate(all="ignore"):
            missing = self.canonical(_MISSING[op](f[columns], probes))
        keys, asked = _keys(self.rows[:, columns]), _keys(missing)
        order = np.argsort(keys, kind="stable")
        at = np.searchsorted(keys[order], asked)
        at[at == len(keys)] = 0
        is_number = np.isfinite(missing).all(axis=1) & np.isfinite(probes).all(axis=1)
        found = np.flatnonzero((keys[order][at] == asked) & is_number)
        pairs = [(int(t), int(order[at[t]])) for t in found]
        pairs.sort(key=lambda p: int(self.sizes[p[0]] + self.sizes[p[1]]))
        for t, r in pairs[:_MOST_COMPARED]:
            with np.errstate(all="ignore"):
                whole = self.canonical(_TOGETHER[op](self.values[t], self.values[r])[None])[0]
            if np.all((whole == asked_of) | ~np.isfinite(asked_of)):
                yield t, r

    def limits(self, op: str, f: Array) -> Iterator[tuple[int, int]]:
        """Pairs of terms of which the larger, or the smaller, value is that of `f` everywhere."""
        f = self.canonical(f[None])[0]
        with np.errstate(invalid="ignore"):
            near = np.flatnonzero((_LIMITS[op](self.rows, f) | ~np.isfinite(f)).all(axis=1))
        yield from self._covering(near, f)

    def _covering(self, near: Array, f: Array) -> Iterator[tuple[int, int]]:
        same = (self.rows[near] == f) | ~np.isfinite(f)
        share = (same & np.isfinite(f)).mean(axis=1)
        best = np.flatnonzero(share >= _LEAST_SHARE)
        best = best[np.lexsort((self.sizes[near[best]], -share[best]))][:_MOST_BRANCHES]
        words = _words(same[best])
        for i in range(len(best)):
            for j in np.flatnonzero((words[i] | words[:i] == ~np.uint64(0)).all(axis=1)):
                yield int(near[best[int(j)]]), int(near[best[i]])

    def choices(self, conditions: Array, f: Array) -> Iterator[tuple[int, int, int]]:
        """Of each condition, which is given by its values, the smallest terms that have the values `f` where it holds
        and where it does not: the numbers of the condition and of the two terms."""
        f = self.canonical(f[None])[0]
        there = np.isfinite(f)
        same = (self.rows == f) | ~there
        share = (same & there).mean(axis=1)
        best = np.flatnonzero(share >= _LEAST_SHARE)
        best = best[np.lexsort((-share[best], self.sizes[best]))]
        words, masks = _words(same[best]), _words(conditions != 0)
        held = ((conditions != 0) & there).mean(axis=1)
        for c in np.flatnonzero((held >= _LEAST_SHARE) & (held <= there.mean() - _LEAST_SHARE)):
            yes = np.flatnonzero(((words & masks[c]) == masks[c]).all(axis=1))
            no = np.flatnonzero(((words | masks[c]) == ~np.uint64(0)).all(axis=1)) if len(yes) else yes
            if len(yes) and len(no):
                yield int(c), int(best[yes[0]]), int(best[no[0]])


def split(values: ValuesOfTerms, conditions: ValuesOfTerms | None, f: Array, forms: dict[str, int]) -> list[Term]:
    """Terms of two parts with the values `f`, of few operators first. `forms`: the numbers of operators."""
    found: list[Term] = []
    for op in (o for o in _MISSING if o in forms):
        pairs = islice(values.parts(op, f), _MOST_SPLITS)
        found += [(forms[op], values.terms[t], values.terms[r]) for t, r in pairs]
    for op in (o for o in _LIMITS if o in forms):
        pairs = islice(values.limits(op, f), _MOST_SPLITS)
        found += [(forms[op], values.terms[t], values.terms[r]) for t, r in pairs]
    if conditions is not None and "where" in forms:
        for c, yes, no in values.choices(conditions.rows, f):
            found.append((forms["where"], conditions.terms[c], values.terms[yes], values.terms[no]))
    return sorted(found, key=size_of)[:_MOST_SPLITS]


def _telling(f: Array) -> Array:
    """Columns at which `f` has values that differ and are not zero; fewer than `_PROBES` where there are not as
    many."""
    _, first = np.unique(np.abs(np.where(np.isfinite(f), f, 0.0)), return_index=True)
    return np.asarray([i for i in first[::-1] if np.isfinite(f[i]) and f[i]][:_PROBES], np.intp)


def _keys(rows: Array) -> Array:
    """A number for each row, equal for equal rows and hardly for others."""
    factors = np.asarray([0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 for i in range(rows.shape[1])], np.uint64)
    bits = np.ascontiguousarray(rows).view(np.uint64)
    return ((bits ^ (bits >> np.uint64(29))) * factors).sum(axis=1, dtype=np.uint64)


def _words(held: Array) -> Array:
    """Rows of truth values as words of 64 bits; what fills the last word is true."""
    short = -held.shape[1] % _WORD
    whole = np.concatenate([held, np.ones((len(held), short), bool)], axis=1)
    return np.packbits(whole, axis=1).view(np.uint64)
