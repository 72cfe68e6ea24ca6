"""Candidates for a shorter term: terms of the table with the same values, also up to one constant."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, kind, numpy_dtype
from relax_eg.ir.expr import CONSTANT, Expr, constant_value, postorder
from relax_eg.ops import api as op
from relax_eg.rules.pointwise.tables import (
    ABSOLUTE,
    RELATIVE,
    Facts,
    Table,
    is_constant,
    places_of,
    table_of,
)
from relax_eg.rules.pointwise.terms import Array, Cost, cost_of, number, value_of
from relax_eg.rules.pointwise.uses import uses_of
from relax_eg.tir.functions import TRANSCENDENTAL

_MOST_TRIED = 4  # limit: candidates of a term that are tested; the first is mostly right
_MOST_NUMBERS = 24  # limit: constants that are tried as operands
_LARGEST_POWER = 16  # limit: exponents that are read from values
_FIRST = 3  # chosen: sample points at which uses of operators on numbers are compared first
_DIGITS = 12  # chosen: digits to which a constant is read from values

_LONGEST_SHIFT = 64  # limit: bits of the longest integers
_FEWEST = 4  # chosen: sample points below which nothing is read from values
_ZERO = 1e-12  # chosen: a number read from values that is closer to 0 is rounding

# given: numbers that short terms have, whatever the constants of the term.
_NUMBERS = (0, 1, -1, 2)
_FACTORS = (0.5, 2.0)  # given: numbers that laws of exponentials and roots bring in


def candidates(scalar: Expr, dtypes: Sequence[str], facts: Facts) -> Iterator[Expr]:
    """The terms that have the values of `scalar` at sample points and cost less, the cheapest first."""
    with np.errstate(all="ignore"):
        yield from _Question(scalar, table_of(tuple(dtypes)), facts).answers()


class _Question:
    """A term, its cost, and its values at the sample points `at`, at which its variables have their facts."""

    def __init__(self, scalar: Expr, table: Table, facts: Facts) -> None:
        self.scalar, self.dtype, self.table = scalar, scalar.dtype, table
        self.below = cost_of(scalar)
        self.at = table.points_with(facts)
        self.values = self._values_of(scalar)

    def _values_of(self, scalar: Expr) -> Array:
        table = self.table
        found = value_of(scalar, dict(zip(table.variables, table.samples, strict=True)))
        return np.broadcast_to(found, table.samples[0].shape)

    def answers(self) -> Iterator[Expr]:
        """The candidates, the cheapest first."""
        found: dict[Expr, Cost] = {}
        for e in self._matching() if len(self.at) >= _FEWEST else ():
            if e not in found and (cost := cost_of(e)) < self.below and self._has_values(e):
                found[e] = cost
        yield from itertools.islice(sorted(found, key=found.__getitem__), _MOST_TRIED)

    def _has_values(self, e: Expr) -> bool:
        return bool(places_of(self._values_of(e)[None], self.values, self.at))

    def _matching(self) -> Iterator[Expr]:
        if is_constant(self.values[self.at]):
            yield _read(self.values[self.at[0]], self.dtype)
            return
        yield from self.table.matches(self.values, self.at, self.dtype, self.below)
        if kind(self.dtype) in "iuf" and (self.below[1] > 1 or self.below[0] > TRANSCENDENTAL):
            yield from self._up_to_a_number()
            numbers = _numbers(self.scalar, self.dtype, self.below[0])
            if numbers:
                yield from self._with_numbers(numbers)

    def _up_to_a_number(self) -> Iterator[Expr]:
        """Short terms to which a number is added, or with which it is multiplied, or of which a power is taken."""
        terms = self.table.terms.get(self.dtype)
        if terms is None:
            return
        rows, values = terms.values[: terms.short, self.at], self.values[self.at]

        def term(i: int) -> Expr:
            return self.table.term(int(terms.numbers[i]))

        for found, make in ((values - rows, op.add), (values + rows, _subtract_from)):
            for i in np.flatnonzero(is_constant(found) & (np.abs(found[:, 0]) > _ZERO)).tolist():
                yield make(term(i), _read(found[i, 0], self.dtype))
        for i, factor in _factors(values, rows):
            yield op.multiply(term(i), _read(factor, self.dtype))
        if is_float(self.dtype):
            for i in np.flatnonzero(is_constant(values * rows)).tolist():
                yield op.divide(_read(values[0] * rows[i, 0], self.dtype), term(i))
            exponents = np.log(np.abs(values[0])) / np.log(np.abs(rows[:, 0]))
            for i in np.flatnonzero((exponents > 1.5) & (exponents < _LARGEST_POWER + 0.5)).tolist():
                n = int(np.round(exponents[i]))
                if np.isclose(rows[i] ** n, values, RELATIVE, ABSOLUTE).all():
                    yield op.integer_pow(term(i), n)

    def _with_numbers(self, numbers: Sequence[Any]) -> Iterator[Expr]:
        """Operators on variables and on numbers, and functions of their sums and products."""
        few = self.at[:_FIRST]  # most uses differ at the first points
        uses = uses_of(self.table, self.dtype, tuple(numbers), tuple(few.tolist()))
        yield from map(uses.term, places_of(uses.values, self.values[few], np.arange(len(few))))


def _factors(values: Array, rows: Array) -> Iterator[tuple[int, Any]]:
    """The rows of which the values are a multiple, and the factors."""
    if values.dtype.kind == "f":
        factors = values[0] / rows[:, 0]
        near = np.flatnonzero(np.isclose(factors * rows[:, 1], values[1], RELATIVE, ABSOLUTE))
        for i in near.tolist():
            same = np.isclose(factors[i] * rows[i], values, RELATIVE, ABSOLUTE, equal_nan=True).all()
            if same and abs(factors[i] - 1) > _ZERO:
                yield i, factors[i]
        return
    modulus = 1 << 8 * rows.dtype.itemsize
    for i in range(len(rows)):
        odd = np.flatnonzero(rows[i] & 1)
        if len(odd):
            inverse = pow(int(rows[i, odd[0]]), -1, modulus)
            factor = np.array(int(values[odd[0]]) * inverse % modulus, f"u{rows.itemsize}").astype(rows.dtype)
            if factor != 1 and np.array_equal(rows[i] * factor, values):
                yield i, factor


def _subtract_from(x: Expr, c: Expr) -> Expr:
    return op.subtract(c, x)


def _read(value: Any, dtype: str) -> Expr:
    return number(float(f"{value:.{_DIGITS}g}") if is_float(dtype) else value, dtype)


def _numbers(scalar: Expr, dtype: str, flops: int) -> list[Any]:
    """The constants in a term, what two of them give, and small numbers, of one dtype; few if it has no
    constants and many flops, else none."""
    own = [constant_value(x).item() for x in postorder((scalar,)) if x.op == CONSTANT and x.dtype == dtype]
    found = dict.fromkeys([*own, *_NUMBERS])
    for a, b in itertools.combinations(own, 2):
        found.update(dict.fromkeys([a + b, a * b, a - b, b - a]))
        if not is_float(dtype):
            found.update(dict.fromkeys([a & b, a | b, a ^ b]))
    if not is_float(dtype):
        for a in own:
            found.update(dict.fromkeys([a - 1, abs(a).bit_length() - 1]))
            if 0 <= a < _LONGEST_SHIFT:
                found.update(dict.fromkeys([(1 << a) - 1, -(1 << a)]))
    limits = None if is_float(dtype) else np.iinfo(numpy_dtype(dtype))
    kept = [n for n in found if limits is None or limits.min <= n <= limits.max]
    if own:
        return kept[:_MOST_NUMBERS]
    return list(_FACTORS) if is_float(dtype) and flops > TRANSCENDENTAL else []
