"""Sorts of few elements as networks of exchanges.

XLA's CPU compiler calls a comparison function for each pair of elements that a sort compares. A network exchanges whole
slices along the sorted axis, so its comparisons are vectors. That it sorts follows from the zero-one principle (Knuth,
volume 3, section 5.3.4): a network that sorts all sequences of zeros and ones sorts all sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from relax_eg.dtypes import is_float, kind, names_where, numpy_dtype
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, Trial, schema, trial_of
from relax_eg.shapes import Dim

# limit: elements of a sort that is written as a network. XLA compiles one of 9 in 1.6 s, one of 16 in 5 s.
_MOST = 9
_DRAWN = names_where(lambda d: d.kind in "iuf" and d.bits in (16, 32))  # chosen: dtypes of test programs


@lru_cache(_MOST + 1)
def exchanges(n: int) -> tuple[tuple[int, int], ...]:
    """The pairs of places whose elements Batcher's merge exchange puts in order, one after the other (Knuth, volume 3,
    algorithm 5.2.2 M)."""
    found: list[tuple[int, int]] = []
    first = 1 << max(n - 1, 1).bit_length() - 1
    p = first
    while p:
        q, r, d = first, 0, p
        while d:
            found += [(i, i + d) for i in range(n - d) if i & p == r]
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return tuple(found)


@lru_cache(_MOST + 1)
def sorts_all(n: int) -> bool:
    """Whether the network sorts all sequences of `n` zeros and ones, and so all sequences."""
    for bits in itertools.product((0, 1), repeat=n):
        row = list(bits)
        for i, j in exchanges(n):
            row[i], row[j] = min(row[i], row[j]), max(row[i], row[j])
        if row != sorted(row):
            return False
    return True


def _in_order(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """The smaller and the greater element; NaN is the greatest."""
    if not is_float(a.dtype):
        return op.minimum(a, b), op.maximum(a, b)
    keep = op.logical_or(op.less_equal(a, b), op.not_equal(b, b))
    return op.where(keep, a, b), op.where(keep, b, a)


def sort_of_few(e: Expr, queries: ProgramQueries | None = None) -> Expr | None:
    """a sort of few elements is a network of exchanges

    Zeros of both signs are equal, and may change places.
    """
    (x, *others), axis = e.args, e.attr("axis")
    if others or kind(x.dtype) not in "iuf" or not x.shape[axis].is_const or not 2 <= x.shape[axis].value <= _MOST:
        return None

    def at(i: int) -> Expr:
        begin, end = [Dim.of(0)] * x.ndim, list(x.shape)
        begin[axis], end[axis] = Dim.of(i), Dim.of(i + 1)
        return op.strided_slice(x, tuple(begin), tuple(end))

    n = x.shape[axis].value
    rows = [at(i) for i in range(n)]
    for i, j in exchanges(n):
        rows[i], rows[j] = _in_order(rows[i], rows[j])
    return op.concat(rows, axis) if sorts_all(n) else None


def _why_not_sorted(e: Expr, proposed: Expr, facts: FactsOf, functions: Mapping[str, Function]) -> str:
    return "" if proposed is sort_of_few(e) else "it is not the network that is known to sort so many elements"


def _sorts(rng: np.random.Generator) -> Trial:
    """A sort along an axis of few elements, with equal ones, zeros of both signs, infinities and NaN."""
    n, dtype = int(rng.integers(2, _MOST + 1)), str(rng.choice(_DRAWN))
    axis, others = int(rng.integers(2)), int(rng.integers(0, 5))
    x = var("x", Tensor((n, Dim.var("m")) if axis == 0 else (Dim.var("m"), n), dtype))
    numbers = rng.integers(0, 6, (n, others) if axis == 0 else (others, n))
    if is_float(dtype):
        numbers = np.asarray([np.nan, -np.inf, -0.0, 0.0, 1.5, np.inf])[numbers]
    return trial_of((x,), op.sort(x, axis), (numbers.astype(numpy_dtype(dtype)),), "numpy")


networks = RuleSet(
    "networks",
    schemas=(schema(sort_of_few, "reassociate", ("networks", "sort"), ("sort",), (_sorts,), prove=_why_not_sorted),),
)
