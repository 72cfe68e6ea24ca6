"""Tables of the short terms over a few scalar variables, with their values at sample points."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from relax_eg.dtypes import is_float, kind, numpy_dtype
from relax_eg.ir.expr import Expr
from relax_eg.limits import MANY_KEPT
from relax_eg.memo import Memo
from relax_eg.ops.elementwise import is_pointwise
from relax_eg.ops.facts import FACTS
from relax_eg.ops.record import REQUIRED, TABLE, call
from relax_eg.rules.pointwise.terms import (
    MOST_LEAVES,
    Array,
    Cost,
    applied,
    equation_of,
    flops_of_operator,
    sample_array,
    variable,
)
from relax_eg.tir.expr import Apply, Scalar, walk
from relax_eg.tir.functions import DIVIDE, FUNCTIONS, TRANSCENDENTAL

SAMPLES = 48  # chosen: sample points; terms that differ on few points are told apart by their proofs
_MOST_FLOPS = 2 * TRANSCENDENTAL  # limit: flops of an operator in a short term
_MOST_OPERANDS = 3  # limit: operands of an operator in a short term
_SHORT = 2  # limit: operators of a term of few flops for which one of two operators is not cheaper
_MOST_TABLES = 16  # limit: tables kept, of up to 6 MB each; one that is evicted is made again
# chosen: digits to which values are compared. Rounding errors of float64 are smaller, differences of terms are larger.
RELATIVE, ABSOLUTE = 1e-9, 1e-11
_KEY = 1e9  # given: values that round to the same multiple of 1/_KEY of a power of two are one key

# chosen: standard deviations of the samples of floats: functions differ near 0, limits lie further out
_SPREADS = (1.5, 1.5, 6.0, 30.0)
# given: values that many functions treat apart, and ties of several variables at them
_SPECIAL = (0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 3.0)
_POSITIVE = 10  # chosen: sample points at which all floats are positive
_TIE = 0.5  # chosen: share of the last sample points at which a variable equals the one before
_TIES = 8  # chosen: sample points at which variables are likely equal
# limit: whole numbers among the samples that are small
_SMALL = (-5, 20)

Facts = tuple[frozenset[str], ...]  # of each variable


class _Step(NamedTuple):
    """The last operator of a term, and the numbers of its operands; no operator for a variable."""

    op: str
    operands: tuple[int, ...]


@dataclass
class Terms:
    """The terms of one dtype, by their places in these lists.

    - `numbers`: their numbers in the table.
    - `flops`, `steps`: their costs.
    - `values`: their values, a row each.
    - `short`: how many have at most one operator; they come first.
    """

    numbers: Array
    flops: Array
    steps: Array
    values: Array
    short: int = 0


class Table:
    """The terms of at most two operators over some variables, one of those with equal values each.

    Terms of two operators are made when they are first needed.

    - `variables`: the variables, by number.
    - `samples`: the values of each variable at the sample points.
    - `terms`: the terms, by dtype.
    """

    def __init__(self, dtypes: Sequence[str]) -> None:
        self.variables = tuple(variable(i, d) for i, d in enumerate(dtypes))
        self.samples = _samples(dtypes)
        self.terms: dict[str, Terms] = {}
        self._steps: list[_Step] = []
        self._known: set[bytes] = set()
        self._points: dict[Facts, Array] = {}
        for d in dict.fromkeys(dtypes):
            own = [i for i, e in enumerate(dtypes) if e == d]
            zeros = np.zeros(len(own), int)
            self.terms[d] = Terms(np.array(own), zeros, zeros, np.stack([self.samples[i] for i in own]))
        self._steps += [_Step("", (i,)) for i in range(len(dtypes))]
        self._known |= {key for t in self.terms.values() for key in _keys(t.values)}
        self._leaves = {d: t.numbers.tolist() for d, t in self.terms.items()}
        self._grow([(op, (self._leaves,) * arity) for op, arity in operators()])
        for t in self.terms.values():
            t.short = len(t.numbers)
        self._is_deep = False

    def _deepen(self) -> None:
        """Adds the terms of two operators; of three variables, those of which the last operator has several
        operands."""
        self._is_deep = True
        inner = {d: [n for n in t.numbers.tolist() if self._steps[n].op] for d, t in self.terms.items()}
        self._grow(
            [
                (op, tuple(inner if i == deep else self._leaves for i in range(arity)))
                for op, arity in operators()
                for deep in range(arity if arity < _MOST_OPERANDS else 1)
                if arity > 1 or len(self.variables) < MOST_LEAVES
            ]
        )

    def _grow(self, uses: Sequence[tuple[str, tuple[dict[str, list[int]], ...]]]) -> None:
        """Adds the uses of operators on all operands from these lists, the cheapest first."""
        before = {d: (t.numbers, t.flops, t.steps, t.values) for d, t in self.terms.items()}
        made: list[tuple[int, str, str, Array, Array, Array, Array]] = []
        for op, places in uses:
            for dtypes in itertools.product(*places):
                equation = usable(op, dtypes)
                if equation is None:
                    continue
                flops = flops_of_operator(op, dtypes)
                lists = [np.array(p[d], int) for p, d in zip(places, dtypes, strict=True)]
                columns = np.stack(np.meshgrid(*lists, indexing="ij")).reshape(len(lists), -1)
                at = [np.searchsorted(before[d][0], c) for d, c in zip(dtypes, columns, strict=True)]
                values = [before[d][3][i] for d, i in zip(dtypes, at, strict=True)]
                total = [np.sum([before[d][k][i] for d, i in zip(dtypes, at, strict=True)], axis=0) for k in (1, 2)]
                with np.errstate(all="ignore"):
                    found = applied(op, equation, values)
                shape = (columns.shape[1], SAMPLES)
                cost = total[0] + flops, total[1] + 1
                made.append((flops, equation.dtype, op, columns, *cost, np.broadcast_to(found, shape)))
        more: dict[str, list[tuple[Array, ...]]] = {d: [old] for d, old in before.items()}
        for _, dtype, op, columns, flops, counts, values in sorted(made, key=lambda m: m[0]):
            kept = self._new_rows(values)
            if kept:
                start = len(self._steps)
                self._steps += [_Step(op, tuple(operands)) for operands in columns[:, kept].T.tolist()]
                numbers = np.arange(start, len(self._steps))
                more.setdefault(dtype, []).append((numbers, flops[kept], counts[kept], values[kept]))
        for dtype, parts in more.items():
            numbers, flops, counts, values = map(np.concatenate, zip(*parts, strict=True))
            short = self.terms[dtype].short if dtype in self.terms else 0
            self.terms[dtype] = Terms(numbers, flops, counts, values, short)

    def _new_rows(self, values: Array) -> list[int]:
        """The rows whose values no term has, and which vary."""
        kept: list[int] = []
        keys = _keys(values)
        for i in np.flatnonzero(~is_constant(values)).tolist():
            if keys[i] not in self._known:
                self._known.add(keys[i])
                kept.append(i)
        return kept

    def term(self, number: int) -> Expr:
        """The term of this number."""
        step = self._steps[number]
        return call(step.op, tuple(map(self.term, step.operands)), {}) if step.op else self.variables[step.operands[0]]

    def matches(self, values: Array, at: Array, dtype: str, below: Cost) -> Iterator[Expr]:
        """The terms of a cost below `below` that have these values at the sample points `at`."""
        if not self._is_deep and (below[0] > DIVIDE or below[1] > _SHORT):
            self._deepen()
        t = self.terms.get(dtype)
        if t is not None:
            for i in places_of(t.values, values, at):
                if (int(t.flops[i]), int(t.steps[i])) < below:
                    yield self.term(int(t.numbers[i]))

    def points_with(self, facts: Facts) -> Array:
        """The sample points at which the variables have these facts."""
        if facts not in self._points:
            held = np.ones(SAMPLES, bool)
            for x, known in zip(self.samples, facts, strict=True):
                for fact in known:
                    held &= [FACTS[fact].find_failure(v) is None for v in x[:, None]]
            self._points[facts] = np.flatnonzero(held)
        return self._points[facts]


def places_of(rows: Array, values: Array, at: Array) -> list[int]:
    """The rows that have these values at the points `at`, up to rounding."""
    if rows.dtype.kind != "f":
        near = np.flatnonzero(rows[:, at[0]] == values[at[0]])
        return near[(rows[np.ix_(near, at)] == values[at]).all(-1)].tolist()
    finite = at[np.isfinite(values[at])]
    first = finite[0] if len(finite) else at[0]
    off = np.abs(rows[:, first] - values[first])
    near = np.flatnonzero(~(off > ABSOLUTE + RELATIVE * abs(values[first])))
    if not len(near):
        return []
    return near[are_close(rows[np.ix_(near, at)], values[at]).all(-1)].tolist()


def are_close(x: Array, y: Array) -> Array:
    """Which elements are equal up to rounding, or both no number."""
    with np.errstate(all="ignore"):
        near = (np.abs(x - y) <= ABSOLUTE + RELATIVE * np.abs(y)) & np.isfinite(y)
        return near | (x == y) | ((x != x) & (y != y))


def is_constant(rows: Array) -> Array:
    """For each row, whether all its values are one finite number, up to rounding."""
    if rows.dtype.kind != "f":
        return np.all(rows == rows[..., :1], axis=-1)
    with np.errstate(all="ignore"):
        first = rows[..., :1]
        return np.all(np.abs(rows - first) <= ABSOLUTE + RELATIVE * np.abs(first), axis=-1)


def rounded(values: Array) -> Array:
    """Values to nine digits, so that those that differ by rounding alone are the same; no zero is negative."""
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(values)
        return np.ldexp(np.round(mantissa * _KEY) + 0.0, exponent)


def _keys(values: Array) -> list[bytes]:
    """For each row, its values to nine digits."""
    return [row.tobytes() for row in np.ascontiguousarray(rounded(values) if values.dtype.kind == "f" else values)]


# Functions of bits have no meaning over the reals.
_OF_BITS = frozenset(name for name, f in FUNCTIONS.items() if not f.widens)


@lru_cache(1)
def operators() -> tuple[tuple[str, int], ...]:
    """The operators of up to three operands that need no attributes, with their numbers of operands."""
    return tuple(
        (name, len(record.parameters))
        for name, record in TABLE.items()
        if is_pointwise(record)
        and record.moves is None
        and name not in _OF_BITS
        and len(record.parameters) <= _MOST_OPERANDS
        and all(a.default is not REQUIRED for a in record.attributes)
    )


@lru_cache(MANY_KEPT)
def usable(op: str, dtypes: tuple[str, ...]) -> Scalar | None:
    """What an operator computes of one element of each operand; None if it is not pointwise, or takes many flops."""
    equation = equation_of(op, dtypes)
    if equation is None or any(isinstance(s, Apply) and FUNCTIONS[s.fn].flops > _MOST_FLOPS for s in walk(equation)):
        return None
    return equation


def _samples(dtypes: Sequence[str]) -> tuple[Array, ...]:
    rng = np.random.default_rng(7)
    found: list[Array] = []
    for i, d in enumerate(dtypes):
        if d == "bool":
            x = np.arange(SAMPLES) >> i & 1 == 1
        elif is_float(d):
            x = rng.normal(0.0, 1.0, SAMPLES) * np.resize(_SPREADS, SAMPLES)
            ties = rng.choice(_SPECIAL, SAMPLES // 3)
            x[-len(ties) :] = ties
            x[:_POSITIVE] = np.abs(x[:_POSITIVE])
        else:
            limits = np.iinfo(numpy_dtype(d))
            x = rng.integers(limits.min, limits.max, SAMPLES, numpy_dtype(d), endpoint=True)
            small = rng.integers(_SMALL[0] if kind(d) == "i" else 0, _SMALL[1], SAMPLES // 2)
            x[-len(small) :] = small
        x = sample_array(x, d)
        if found and found[0].dtype == x.dtype:
            x[-_TIES:] = np.where(rng.random(_TIES) < _TIE, found[-1][-_TIES:], x[-_TIES:])
        found.append(x)
    return tuple(found)


_tables = Memo[tuple[str, ...], Table](_MOST_TABLES)


def table_of(dtypes: tuple[str, ...]) -> Table:
    """The table of terms over variables of these dtypes."""
    return _tables.get_or_make(dtypes, lambda: Table(dtypes))
