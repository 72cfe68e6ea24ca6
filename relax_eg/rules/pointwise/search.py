"""Candidates for a shorter term: terms of the table with the same values, also up to one constant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, kind, numpy_dtype
from relax_eg.ir.expr import CONSTANT, Expr, constant_value, postorder
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, call
from relax_eg.rules.pointwise.tables import (
    ABSOLUTE,
    RELATIVE,
    Facts,
    Table,
    is_constant,
    operators,
    places_of,
    table_of,
)
from relax_eg.rules.pointwise.terms import Array, Cost, cost_of, equation_of, evaluate, number, sample_array, value_of
from relax_eg.tir.expr import Scalar

_MOST_TRIED = 4  # limit: candidates of a term that are tested; the first is mostly right
_MOST_NUMBERS = 24  # limit: constants that are tried as operands
_LARGEST_POWER = 16  # limit: exponents that are read from values
_FIRST = 3  # chosen: sample points at which uses of operators on numbers are compared first
_DIGITS = 12  # chosen: digits to which a constant is read from values

_LONGEST_SHIFT = 64  # limit: bits of the longest integers
_ZERO = 1e-12  # chosen: a number read from values that is closer to 0 is rounding

# given: numbers that short terms have, whatever the constants of the term.
_NUMBERS = (0, 1, -1, 2)
_FACTORS = (0.5, 2.0)  # given: numbers that laws of exponentials and roots bring in


def candidates(scalar: Expr, dtypes: Sequence[str], facts: Facts) -> Iterator[Expr]:
    """The terms that have the values of `scalar` at sample points and cost less, the cheapest first."""
    table = table_of(dtypes, facts)
    below = cost_of(scalar)
    values = np.broadcast_to(
        value_of(scalar, dict(zip(table.variables, table.samples, strict=True))), table.samples[0].shape
    )
    found: dict[Expr, Cost] = {}
    for e in _matching(scalar, values, table, below):
        if e not in found and (cost := cost_of(e)) < below and _has_values(e, values, table):
            found[e] = cost
    yield from itertools.islice(sorted(found, key=found.__getitem__), _MOST_TRIED)


def _has_values(e: Expr, values: Array, table: Table) -> bool:
    there = np.broadcast_to(value_of(e, dict(zip(table.variables, table.samples, strict=True))), values.shape)
    return bool(places_of(there[None], values))


def _matching(scalar: Expr, values: Array, table: Table, below: Cost) -> Iterator[Expr]:
    dtype = scalar.dtype
    if is_constant(values):
        yield _read(values[0], dtype)
        return
    yield from table.matches(values, dtype, below)
    if kind(dtype) in "iuf" and below[1] > 1:
        yield from _up_to_a_number(values, dtype, table)
        yield from _with_numbers(scalar, values, table)


def _up_to_a_number(values: Array, dtype: str, table: Table) -> Iterator[Expr]:
    """Short terms to which a number is added, or with which it is multiplied, or of which a power is taken."""
    terms = table.terms.get(dtype)
    if terms is None:
        return
    rows = terms.values[: terms.short]
    term = [table.term(int(n)) for n in terms.numbers[: terms.short]]
    with np.errstate(all="ignore"):
        for found, make in ((values - rows, op.add), (values + rows, _subtract_from)):
            for i in np.flatnonzero(is_constant(found) & (np.abs(found[:, 0]) > _ZERO)):
                yield make(term[i], _read(found[i, 0], dtype))
        for i, factor in _factors(values, rows):
            yield op.multiply(term[i], _read(factor, dtype))
        if is_float(dtype):
            for i in np.flatnonzero(is_constant(values * rows)):
                yield op.divide(_read(values[0] * rows[i, 0], dtype), term[i])
            exponents = np.log(np.abs(values[0])) / np.log(np.abs(rows[:, 0]))
            for i in np.flatnonzero((exponents > 1.5) & (exponents < _LARGEST_POWER + 0.5)):
                n = int(np.round(exponents[i]))
                if places_of(rows[i : i + 1] ** n, values):
                    yield op.integer_pow(term[i], n)


def _factors(values: Array, rows: Array) -> Iterator[tuple[int, Any]]:
    """The rows of which the values are a multiple, and the factors."""
    if values.dtype.kind == "f":
        factors = values[0] / rows[:, 0]
        near = np.isclose(factors[:, None] * rows, values, RELATIVE, ABSOLUTE, equal_nan=True).all(-1)
        for i in np.flatnonzero(near & (np.abs(factors - 1) > _ZERO)):
            yield int(i), factors[i]
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


def _with_numbers(scalar: Expr, values: Array, table: Table) -> Iterator[Expr]:
    """Operators on variables and on numbers that follow from those of the term, and functions of their sums and
    products."""
    dtype = scalar.dtype
    numbers = _numbers(scalar, dtype)
    if not numbers:
        return
    constants = [number(c, dtype) for c in numbers]
    stacked = sample_array(numbers, dtype)
    for name, arity in operators():
        for at, (x, sample) in itertools.product(range(arity), zip(table.variables, table.samples, strict=True)):
            equation = equation_of(name, tuple(x.dtype if i == at else dtype for i in range(arity)))
            if arity == 1 or equation is None or equation.dtype != dtype:
                continue
            axes = [i for i in range(arity) if i != at]
            operands = [sample] * arity
            for i, axis in enumerate(axes):
                operands[axis] = stacked.reshape([-1 if j == i else 1 for j in range(len(axes))] + [1])
            # Most uses differ at the first points.
            made = _applied(name, equation, [o if o.ndim > 1 else o[:_FIRST] for o in operands])
            for n in places_of(made.reshape(-1, _FIRST), values[:_FIRST]):
                chosen = dict(zip(axes, np.unravel_index(n, made.shape[:-1]), strict=True))
                yield call(name, tuple(x if i == at else constants[chosen[i]] for i in range(arity)), {})
    if is_float(dtype):
        for x, sample in zip(table.variables, table.samples, strict=True):
            if x.dtype == dtype:
                first = sample[:_FIRST]
                sums, products = first + stacked[:, None], first * stacked[:, None]
                yield from _functions_of(lambda n, x=x: op.add(x, constants[n]), sums, values, dtype)
                yield from _functions_of(lambda n, x=x: op.multiply(x, constants[n]), products, values, dtype)


def _functions_of(make: Callable[[int], Expr], rows: Array, values: Array, dtype: str) -> Iterator[Expr]:
    for name, arity in operators():
        equation = equation_of(name, (dtype,)) if arity == 1 else None
        if equation is not None and equation.dtype == dtype:
            for n in places_of(_applied(name, equation, [rows]), values[:_FIRST]):
                yield call(name, (make(n),), {})


def _applied(name: str, equation: Scalar, operands: Sequence[Array]) -> Array:
    return evaluate(equation, dict(zip(TABLE[name].operand_names(len(operands)), operands, strict=True)))


def _numbers(scalar: Expr, dtype: str) -> list[Any]:
    """The constants in a term, what two of them give, and small numbers, of one dtype."""
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
    return kept[:_MOST_NUMBERS] if own else list(_FACTORS) if is_float(dtype) else []
