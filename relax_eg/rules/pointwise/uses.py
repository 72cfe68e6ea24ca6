"""Uses of operators on the variables of a table and on numbers, with their values at a few sample points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float
from relax_eg.ir.expr import Expr
from relax_eg.memo import Memo
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.pointwise.tables import Table, operators, usable
from relax_eg.rules.pointwise.terms import Array, applied, number, sample_array
from relax_eg.tir.expr import Scalar

_MOST_USES = 64  # limit: sets of uses that are kept, of up to 1 MB each; one that is evicted is made again

Numbers = tuple[Any, ...]
Points = tuple[int, ...]


@dataclass
class Uses:
    """Uses of operators of one dtype.

    - `points`: the sample points at which they are computed.
    - `values`: their values, a row each.
    """

    points: Points
    values: Array
    _starts: list[int] = field(default_factory=list[int])
    _makers: list[Callable[[int], Expr]] = field(default_factory=list[Callable[[int], Expr]])

    def term(self, i: int) -> Expr:
        """The term whose values are row `i`."""
        k = bisect_right(self._starts, i) - 1
        return self._makers[k](i - self._starts[k])

    def add(self, values: Array, make: Callable[[int], Expr]) -> None:
        """Adds rows of values; `make` returns the term of each, by its number among them."""
        self._starts.append(len(self.values))
        self._makers.append(make)
        self.values = np.concatenate([self.values, values.reshape(-1, len(self.points))])


_uses = Memo[tuple[Any, ...], Uses](_MOST_USES)


def uses_of(table: Table, dtype: str, numbers: Numbers, points: Points) -> Uses:
    """The uses of operators on one variable and on numbers, and functions of the variable plus or times a number."""
    key = tuple(x.dtype for x in table.variables), dtype, numbers, points
    return _uses.get_or_make(key, lambda: _uses_anew(table, dtype, numbers, points))


def _uses_anew(table: Table, dtype: str, numbers: Numbers, points: Points) -> Uses:
    constants, stacked = [number(c, dtype) for c in numbers], sample_array(numbers, dtype)
    found = Uses(points, np.zeros((0, len(points)), stacked.dtype))
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

    found.add(made, term)


def _add_function(
    found: Uses, name: str, made: Array, make: Callable[[Expr, Expr], Expr], variables: list[Expr],
    constants: list[Expr],
) -> None:  # fmt: skip
    """Adds a function of each variable plus, or times, each number."""

    def term(n: int) -> Expr:
        which, c = divmod(n, len(constants))
        return call(name, (make(variables[which], constants[c]),), {})

    found.add(made, term)


def _functions(dtype: str) -> Iterator[tuple[str, Scalar]]:
    for name, arity in operators():
        equation = usable(name, (dtype,)) if arity == 1 else None
        if equation is not None and equation.dtype == dtype:
            yield name, equation
