"""Special values, enumerated: what no draw may be left to meet by luck.

For an instance at given sizes, `special_points` gives every combination of special values of its variables where these
are few, and else every pair: of variables filled with one value each, and of single elements. Special are NaN, the
zeros, infinities, the least and the largest numbers of a dtype, one and minus one, and the numbers that stand in the
rule, with their neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.ir.annotations import is_complex, is_float, is_integer
from relax_eg.ir.expr import Expr, np_dtype
from relax_eg.ops.facts import FACTS, holds
from relax_eg.rules.conditions import ValueTest
from relax_eg.rules.hypotheses import adapted, are_met, asked
from relax_eg.rules.literals import LARGEST_EXTENT, Number, is_piecewise, literals
from relax_eg.rules.rule import Instance
from relax_eg.rules.samples import Sizes, limits, shape_of

Array = np.ndarray[Any, Any]

# Combinations of values of all variables are enumerated up to this many; beyond it, pairs are.
_MOST_COMBINATIONS = 4096
# Values of one variable in a pair: the special ones first.
_MOST_IN_PAIRS = 40
# Points whose values are adapted one by one to facts about whole arrays.
_MOST_ADAPTED = 256


@dataclass(frozen=True)
class Points:
    """Values of the pattern variables at `count` points, along a first axis."""

    count: int
    values: Mapping[str, Array]

    def at(self, i: int) -> dict[str, Array]:
        return {n: np.array(v[i]) for n, v in self.values.items()}

    def where(self, kept: Array) -> Points:
        return Points(int(kept.sum()), {n: v[kept] for n, v in self.values.items()})


@lru_cache(1 << 8)
def special_values(dtype: str) -> Array:
    """The special values of a dtype, those of the rule's own numbers excepted."""
    to = np_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if is_integer(dtype):
        low, high = limits(dtype)
        near = (low, low + 1, low + 2, -2, -1, 0, 1, 2, high - 2, high - 1, high)
        return np.array(list(dict.fromkeys(v for v in near if low <= v <= high)), object).astype(to)
    if is_complex(dtype):
        part = (0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf)
        return np.array([complex(a, b) for a, b in itertools.product(part, repeat=2)], to)
    if not is_float(dtype):
        return np.zeros(1, to)
    import ml_dtypes

    info = ml_dtypes.finfo(to)
    least, normal, largest = (np.asarray(v, to) for v in (info.smallest_subnormal, info.smallest_normal, info.max))
    with np.errstate(all="ignore"):
        found = [np.asarray(v).astype(to) for v in (np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0, -1.0)]
        found += [least, -least, largest, -largest, normal]
    return np.array(found, to)


@lru_cache(1 << 10)
def values_near(dtype: str, numbers: tuple[Number, ...]) -> Array:
    """`numbers` and their neighbours, as `dtype` holds them: one less, one more, and the next floats."""
    to = np_dtype(dtype)
    if is_integer(dtype):
        low, high = limits(dtype)
        reals = [n for n in numbers if not isinstance(n, complex)]
        whole = dict.fromkeys(i for n in reals for i in (int(n) - 1, int(n), int(n) + 1, int(n) + 2))
        return np.array([i for i in whole if low <= i <= high], object).astype(to)
    if is_complex(dtype):
        return np.array([c for n in numbers for c in (n, n * 1j)], to)
    if not is_float(dtype):
        return np.zeros(0, to)
    reals = [float(n) for n in numbers if not isinstance(n, complex)]
    with np.errstate(all="ignore"):
        there = np.array([[n, n - 1, n + 1] for n in reals], np.float64).astype(to)
        first = there[:, 0] if reals else there.reshape(-1)
        up = np.nextafter(first, np.asarray(np.inf, to)) if reals else first
        down = np.nextafter(first, np.asarray(-np.inf, to)) if reals else first
    return np.concatenate([there.reshape(-1), up, down]).astype(to)


def _distinct(values: Array) -> Array:
    """Each value once, bit for bit, in order."""
    if values.dtype == bool:
        return values
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    _, first = np.unique(raw, axis=0, return_index=True)
    return values[np.sort(first)]


def _candidates(instance: Instance, p: Expr, bits: bool) -> Array:
    """The values that a variable takes in the enumeration: where bits are claimed all special ones, else the finite and
    plain ones at which functions over the reals may part."""
    numbers = literals(instance).numbers if bits or is_piecewise(instance) or not is_float(p.dtype) else ()
    if not bits:  # the accuracy law has a domain; values far outside are equal to what rounding leaves
        numbers = tuple(n for n in numbers if abs(n) <= LARGEST_EXTENT)
    named = [g for g in instance.guards if isinstance(g, ValueTest) and g.name == p.attr("name")]
    numbers = (*numbers, *(g.number for g in named if math.isfinite(g.number)))
    if bits or not (is_float(p.dtype) or is_complex(p.dtype)):
        found = special_values(p.dtype)
    else:
        found = np.array([0.0, 1.0, -1.0]).astype(np_dtype(p.dtype))
    found = np.concatenate([found, values_near(p.dtype, numbers)])
    if not bits and (is_float(p.dtype) or is_complex(p.dtype)):
        with np.errstate(all="ignore"):
            found = found[np.isfinite(found)]
    return _distinct(found)


def _of_elements(facts: Iterable[str]) -> bool:
    """Whether facts speak of elements alone, so that they hold of an array if they hold of each."""
    return all(FACTS[f].axes == 0 and f != "constant" for f in facts)


def special_points(instance: Instance, sizes: Sizes, bits: bool, most: int) -> Points | None:
    """The enumeration at these sizes, at most about `most` points; None where no variable has an element. `bits`:
    whether every special value counts, or only finite ones, over the reals."""
    wanted = {name: (facts, tests) for name, facts, tests in asked(instance)}
    rng = np.random.default_rng(0)  # the enumeration is the same every time
    variables: list[_Variable] = []
    to_adapt: list[str] = []
    for p in instance.params:
        name, shape = str(p.attr("name")), shape_of(p, sizes)
        facts, tests = wanted.get(name, (frozenset[str](), ()))
        found, base = _candidates(instance, p, bits), _base(p.dtype, shape, len(variables))
        if name in wanted:
            if _of_elements(facts):
                kept = [all(t.holds(v) for t in tests) and all(holds(f, v.reshape(1)) for f in facts) for v in found]
                found = found[np.array(kept, bool)]
            else:
                to_adapt.append(name)
            base = adapted(base.reshape(shape), facts, tests, rng).reshape(-1)
        variables.append(_Variable(name, shape, base, found))
    if all(not v.base.size or not len(v.values) for v in variables):
        return None
    chunks: list[dict[str, Array]] = []
    count = 0
    for chunk in _chunks(variables):
        n = len(next(iter(chunk.values())))
        if count + n > most:
            step = -(-n // max(most - count, 1))
            chunk = {name: a[::step] for name, a in chunk.items()}
            n = len(next(iter(chunk.values())))
        chunks.append(chunk)
        count += n
        if count >= most:
            break
    values = {
        v.name: np.concatenate([c[v.name] for c in chunks]).reshape(count, *v.shape) for v in variables
    }  # fmt: skip
    points = Points(count, values)
    if not to_adapt:
        return points
    return _adapted(instance, points, to_adapt, wanted)


@dataclass(frozen=True)
class _Variable:
    """A pattern variable: what it is where it is not special (flat), and its special values."""

    name: str
    shape: tuple[int, ...]
    base: Array
    values: Array


def _base(dtype: str, shape: Sequence[int], which: int) -> Array:
    """Plain values, flat: different from element to element and from variable to variable."""
    n = int(np.prod(shape))
    at = np.arange(n)
    if dtype == "bool":
        return (at + which) % 3 != 0
    if is_integer(dtype):
        return ((at * 5 + which * 3) % 4).astype(np_dtype(dtype))
    plain = 0.75 + 0.375 * ((at * 3 + which * 5) % 7) * np.where((at + which) % 2, -1, 1)
    return (plain + (0.5j if is_complex(dtype) else 0.0)).astype(np_dtype(dtype))


def _chunks(variables: Sequence[_Variable]) -> Iterator[dict[str, Array]]:
    """Points in the order in which they matter: each variable filled with each of its values; all combinations of such,
    or all pairs; pairs of single elements. Each chunk holds flat arrays (points, elements)."""
    live = [v for v in variables if v.base.size and len(v.values)]
    for v in live:
        yield _filled(variables, {v.name: v.values})
    total = 1
    for v in live:
        total *= len(v.values)
    if total <= _MOST_COMBINATIONS:
        if len(live) > 1:
            grid = np.meshgrid(*(np.arange(len(v.values)) for v in live), indexing="ij")
            yield _filled(variables, {v.name: v.values[g.reshape(-1)] for v, g in zip(live, grid, strict=True)})
    else:
        for u, v in itertools.combinations(live, 2):
            a, b = _pairs(u.values[:_MOST_IN_PAIRS], v.values[:_MOST_IN_PAIRS])
            yield _filled(variables, {u.name: a, v.name: b})
    slots = [(v, i) for v in live if v.base.size > 1 for i in (0, v.base.size - 1)]
    slots += [(v, 0) for v in live if v.base.size == 1]
    for v, i in slots:
        if v.base.size > 1:
            yield _placed(variables, [(v, i, v.values)])
    for (u, i), (v, j) in itertools.combinations(slots, 2):
        if u.base.size > 1 or v.base.size > 1:
            a, b = _pairs(u.values[:_MOST_IN_PAIRS], v.values[:_MOST_IN_PAIRS])
            yield _placed(variables, [(u, i, a), (v, j, b)])


def _pairs(a: Array, b: Array) -> tuple[Array, Array]:
    return np.repeat(a, len(b)), np.tile(b, len(a))


def _filled(variables: Sequence[_Variable], with_: Mapping[str, Array]) -> dict[str, Array]:
    n = len(next(iter(with_.values())))
    return {
        v.name: np.broadcast_to(with_[v.name][:, None] if v.name in with_ else v.base[None], (n, v.base.size))
        for v in variables
    }


def _placed(variables: Sequence[_Variable], at: Sequence[tuple[_Variable, int, Array]]) -> dict[str, Array]:
    n = len(at[0][2])
    made = {v.name: np.broadcast_to(v.base[None], (n, v.base.size)) for v in variables}
    for v, i, values in at:
        if not made[v.name].flags.writeable:
            made[v.name] = made[v.name].copy()
        made[v.name][:, i] = values
    return made


def _adapted(instance: Instance, points: Points, names: Sequence[str], wanted: Mapping[str, Any]) -> Points | None:
    """The points, adapted one by one to facts that speak of whole arrays, where they then hold."""
    step = -(-points.count // _MOST_ADAPTED)
    found: list[dict[str, Array]] = []
    for i in range(0, points.count, step):
        values = points.at(i)
        for name in names:
            facts, tests = wanted[name]
            with np.errstate(all="ignore"):
                values[name] = adapted(values[name], facts, tests, np.random.default_rng(i))
        if are_met(instance, values):
            found.append(values)
    if not found:
        return None
    return Points(len(found), {n: np.stack([f[n] for f in found]) for n in found[0]})
