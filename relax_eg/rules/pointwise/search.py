"""Candidates for a shorter term: terms of the table with the same values, also up to one constant."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, kind, numpy_dtype
from relax_eg.ir.expr import CONSTANT, Expr, constant_value, postorder
from relax_eg.memo import Memo
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.pointwise.tables import (
    Facts,
    Table,
    are_close,
    is_constant,
    operators,
    places_of,
    table_of,
    usable,
)
from relax_eg.rules.pointwise.terms import (
    Array,
    Cost,
    applied,
    cost_of,
    flops_of_operator,
    leaves_in,
    number,
    sample_array,
    value_of,
)
from relax_eg.tir.expr import Scalar
from relax_eg.tir.functions import TRANSCENDENTAL

# Uses of operators on the variables of a table and on numbers, with their values at a few sample points.

_MOST_USES = 64  # limit: sets of uses that are kept, of up to 1 MB each; one that is evicted is made again

Numbers = tuple[Any, ...]
Points = tuple[int, ...]


@dataclass
class Uses:
    """Uses of operators of one dtype.

    - `points`: the sample points at which they are computed.
    - `values`: their values, a row each, once all were added.
    """

    points: Points
    _rows: list[Array]
    _starts: list[int] = field(default_factory=lambda: [0])
    _makers: list[Callable[[int], Expr]] = field(default_factory=list[Callable[[int], Expr]])
    _costs: list[Cost] = field(default_factory=list[Cost])

    @cached_property
    def values(self) -> Array:
        return np.concatenate(self._rows)

    def term(self, i: int) -> Expr:
        """The term whose values are row `i`."""
        k = self._part(i)
        return self._makers[k](i - self._starts[k])

    def cost(self, i: int) -> Cost:
        """The cost of the term whose values are row `i`."""
        return self._costs[self._part(i)]

    def _part(self, i: int) -> int:
        return bisect_right(self._starts, i) - 1

    def add(self, values: Array, cost: Cost, make: Callable[[int], Expr]) -> None:
        """Adds rows of values, of terms of the same cost; `make` returns the term of each, by its number among them."""
        rows = values.reshape(-1, len(self.points))
        self._starts.append(self._starts[-1] + len(rows))
        self._makers.append(make)
        self._costs.append(cost)
        self._rows.append(rows)


_uses = Memo[tuple[Any, ...], Uses](_MOST_USES)


def uses_of(table: Table, dtype: str, numbers: Numbers, points: Points) -> Uses:
    """The uses of operators on one variable and on numbers, and functions of the variable plus or times a number."""
    key = tuple(x.dtype for x in table.variables), dtype, numbers, points
    return _uses.get_or_make(key, lambda: _uses_anew(table, dtype, numbers, points))


def _uses_anew(table: Table, dtype: str, numbers: Numbers, points: Points) -> Uses:
    constants, stacked = [number(c, dtype) for c in numbers], sample_array(numbers, dtype)
    found = Uses(points, [np.zeros((0, len(points)), stacked.dtype)])
    for d in dict.fromkeys(x.dtype for x in table.variables):
        pairs = zip(table.variables, table.samples, strict=True)
        own = [(x, sample[list(points)]) for x, sample in pairs if x.dtype == d]
        variables, samples = [x for x, _ in own], np.stack([sample for _, sample in own])
        for name, arity in operators():
            for place in range(arity) if arity > 1 else ():
                equation = usable(name, tuple(d if i == place else dtype for i in range(arity)))
                if equation is not None and equation.dtype == dtype:
                    _add_operator(found, name, equation, place, arity, variables, samples, constants, stacked)
        if is_float(d) and d == dtype:
            for make, rows in (
                (op.add, samples[:, None] + stacked[:, None]),
                (op.multiply, samples[:, None] * stacked[:, None]),
            ):
                for name, equation in _functions(d):
                    _add_function(found, name, applied(name, equation, [rows]), make, variables, constants)
    return found


def _add_operator(
    found: Uses, name: str, equation: Scalar, place: int, arity: int, variables: list[Expr], samples: Array,
    constants: list[Expr], stacked: Array,
) -> None:  # fmt: skip
    """Adds the uses of an operator with a variable as one operand, and numbers as the others."""
    axes = [i for i in range(arity) if i != place]
    operands = [samples] * arity
    for a in axes:
        operands[a] = stacked.reshape([1] + [-1 if b == a else 1 for b in axes] + [1])
    operands[place] = samples.reshape([len(variables)] + [1] * len(axes) + [-1])
    made = applied(name, equation, operands)

    def term(n: int) -> Expr:
        which, *chosen = np.unravel_index(n, made.shape[:-1])
        by_place = {a: constants[int(c)] for a, c in zip(axes, chosen, strict=True)}
        by_place[place] = variables[int(which)]
        return call(name, tuple(by_place[i] for i in range(arity)), {})

    dtypes = tuple(variables[0].dtype if i == place else constants[0].dtype for i in range(arity))
    found.add(made, (flops_of_operator(name, dtypes), 1), term)


def _add_function(
    found: Uses, name: str, made: Array, make: Callable[[Expr, Expr], Expr], variables: list[Expr],
    constants: list[Expr],
) -> None:  # fmt: skip
    """Adds a function of each variable plus, or times, each number."""

    def term(n: int) -> Expr:
        which, c = divmod(n, len(constants))
        return call(name, (make(variables[which], constants[c]),), {})

    found.add(made, cost_of(term(0)), term)


def _functions(dtype: str) -> Iterator[tuple[str, Scalar]]:
    for name, arity in operators():
        equation = usable(name, (dtype,)) if arity == 1 else None
        if equation is not None and equation.dtype == dtype:
            yield name, equation


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
        return np.broadcast_to(self._values_at(scalar, self.table.samples), self.table.samples[0].shape)

    def _values_at(self, scalar: Expr, samples: Sequence[Array]) -> Array:
        return value_of(scalar, dict(zip(self.table.variables, samples, strict=True)))

    def answers(self) -> Iterator[Expr]:
        """The candidates, the cheapest first. Values at all sample points are compared as candidates are asked for."""
        found: dict[Expr, Cost] = {}
        for e in self._matching() if len(self.at) >= _FEWEST else ():
            if e not in found and (cost := cost_of(e)) < self.below:
                found[e] = cost
        equal = filter(self._has_values, sorted(found, key=found.__getitem__))
        yield from itertools.islice(equal, _MOST_TRIED)

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
            if numbers and self._varies_with_one():
                yield from self._with_numbers(numbers)

    def _varies_with_one(self) -> bool:
        """Whether the values follow from those of one variable, as those of uses of operators on numbers do.

        The facts of each variable hold at each of the points `at`, so they also hold where one variable has its values
        at the next point."""
        samples = [x[self.at] for x in self.table.samples]
        of_leaves = leaves_in(self.scalar)
        count = 0
        for i, x in enumerate(self.table.variables):
            if x in of_leaves:
                moved = [np.roll(v, 1) if j == i else v for j, v in enumerate(samples)]
                found = np.broadcast_to(self._values_at(self.scalar, moved), self.at.shape)
                count += not bool(np.all(are_close(found, self.values[self.at])))
        return count <= 1

    def _up_to_a_number(self) -> Iterator[Expr]:
        """Short terms to which a number is added, or with which it is multiplied, or of which a power is taken."""
        terms = self.table.terms.get(self.dtype)
        if terms is None:
            return
        rows, values = terms.values[: terms.short, self.at], self.values[self.at]

        def term(i: int) -> Expr:
            return self.table.term(int(terms.numbers[i]))

        for found, make in ((values - rows, op.add), (values + rows, lambda x, c: op.subtract(c, x))):
            for i in np.flatnonzero(is_constant(found) & (np.abs(found[:, 0]) > _ZERO)).tolist():
                yield make(term(i), _read(found[i, 0], self.dtype))
        for i, factor in _factors(values, rows):
            yield op.multiply(term(i), _read(factor, self.dtype))
        if is_float(self.dtype):
            for i in np.flatnonzero(is_constant(values * rows)).tolist():
                yield op.divide(_read(values[0] * rows[i, 0], self.dtype), term(i))
            exponents = np.log(np.abs(values[0])) / np.log(np.abs(rows[:, 0]))
            powers = np.flatnonzero((exponents > 1.5) & (exponents < _LARGEST_POWER + 0.5))
            found = rows[powers] ** np.round(exponents[powers, None])
            is_power = are_close(found, values).all(-1) & ~np.isnan(found).any(-1)
            for i in powers[is_power].tolist():
                yield op.integer_pow(term(i), int(np.round(exponents[i])))

    def _with_numbers(self, numbers: Sequence[Any]) -> Iterator[Expr]:
        """Operators on variables and on numbers, and functions of their sums and products."""
        few = self.at[:_FIRST]  # most uses differ at the first points
        uses = uses_of(self.table, self.dtype, tuple(numbers), tuple(few.tolist()))
        for i in places_of(uses.values, self.values[few], np.arange(len(few))):
            if uses.cost(i) < self.below:
                yield uses.term(i)


def _factors(values: Array, rows: Array) -> Iterator[tuple[int, Any]]:
    """The rows of which the values are a multiple, and the factors."""
    if values.dtype.kind == "f":
        factors = values[0] / rows[:, 0]
        near = np.flatnonzero((np.abs(factors - 1) > _ZERO) & are_close(factors * rows[:, 1], values[1]))
        for i in near[are_close(factors[near, None] * rows[near], values).all(-1)].tolist():
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
