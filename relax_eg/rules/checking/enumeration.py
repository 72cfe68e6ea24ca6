"""Enumeration of special values, which random draws may miss.

For an instance at given sizes, `special_points` gives every combination of special values of its variables if these are
few, otherwise every pair: of variables filled with one value each, and of single elements. Special values are NaN, the
zeros, infinities, the least and the largest numbers of a dtype, one and minus one, and the numbers that occur in the
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

from relax_eg.dtypes import dtype_of, is_complex, is_float, is_integer, itemsize, numpy_dtype
from relax_eg.ir.expr import Expr
from relax_eg.limits import FEW_KEPT, KEPT
from relax_eg.ops.facts import FACTS, has_fact
from relax_eg.rules.checking.literals import LARGEST_EXTENT, Number, is_piecewise, literals
from relax_eg.rules.checking.samples import Sizes, adapt_values, limits, shape_of, value_guards, value_guards_hold
from relax_eg.rules.conditions import ValueTest
from relax_eg.rules.rule import Instance

Array = np.ndarray[Any, Any]

# limit: combinations of values of all variables; if there are more, pairs are enumerated instead.
_MOST_COMBINATIONS = 4096
# limit: values of one variable in a pair; the special values of its dtype come first.
_MOST_IN_PAIRS = 40
# limit: points whose values are adapted one by one, which facts about whole arrays require.
_MOST_ADAPTED = 256
# limit: bits of all elements of all variables together, if all their values are enumerated.
_MOST_BITS = 16


@dataclass(frozen=True)
class Points:
    """Values of the pattern variables at several points.

    - `count`: number of points.
    - `values`: the values of each variable, stacked along the first axis.
    """

    count: int
    values: Mapping[str, Array]

    def at(self, i: int) -> dict[str, Array]:
        """The values at point `i`."""
        return {n: np.array(v[i]) for n, v in self.values.items()}

    def where(self, kept: Array) -> Points:
        """The points at which the mask `kept` is true."""
        return Points(int(kept.sum()), {n: v[kept] for n, v in self.values.items()})


@lru_cache(FEW_KEPT)
def special_values(dtype: str) -> Array:
    """The special values of a dtype, without the numbers of a rule."""
    to = numpy_dtype(dtype)
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


@lru_cache(KEPT)
def values_near(dtype: str, numbers: tuple[Number, ...]) -> Array:
    """`numbers` and their neighbours in `dtype`: for integers one less, one more and two more; for floats one less, one
    more and the adjacent floats. A complex dtype has n and n * 1j instead, without neighbours."""
    to = numpy_dtype(dtype)
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


def bits_differ(a: Array, b: Array) -> Array:
    """Where two arrays of one shape have other bits; all NaNs count as equal."""
    if a.dtype != b.dtype:
        return np.ones(a.shape, bool)
    if not (is_float(a.dtype.name) or is_complex(a.dtype.name)):
        return np.asarray(a != b)
    x, y = (np.ascontiguousarray(v).view(np.uint8).reshape(*v.shape, a.dtype.itemsize) for v in (a, b))
    with np.errstate(invalid="ignore"):
        wide = [v.astype(np.float64) if v.dtype.kind == "V" else v for v in (a, b)]
    return (x != y).any(-1) & ~(np.isnan(wide[0]) & np.isnan(wide[1]))


def _distinct(values: Array) -> Array:
    """`values` without duplicates, compared by bits, in order."""
    if values.dtype == bool:
        return values
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    _, first = np.unique(raw, axis=0, return_index=True)
    return values[np.sort(first)]


def _candidates(instance: Instance, p: Expr, bits: bool) -> Array:
    """The values that a variable takes in the enumeration: all special values if `bits`; otherwise, for floats, the
    finite ones at which functions over the reals may differ."""
    numbers = literals(instance).numbers if bits or is_piecewise(instance) or not is_float(p.dtype) else ()
    if not bits:  # far outside the accuracy law's domain, rounding hides differences
        numbers = tuple(n for n in numbers if abs(n) <= LARGEST_EXTENT)
    named = [g for g in instance.guards if isinstance(g, ValueTest) and g.name == p.attr("name")]
    numbers = (*numbers, *(g.number for g in named if math.isfinite(g.number)))
    if bits or not (is_float(p.dtype) or is_complex(p.dtype)):
        found = special_values(p.dtype)
    else:
        found = np.array([0.0, 1.0, -1.0]).astype(numpy_dtype(p.dtype))
    found = np.concatenate([found, values_near(p.dtype, numbers)])
    if not bits and (is_float(p.dtype) or is_complex(p.dtype)):
        with np.errstate(all="ignore"):
            found = found[np.isfinite(found)]
    return _distinct(found)


def _are_elementwise(facts: Iterable[str]) -> bool:
    """Whether all facts are about single elements, so that they hold for an array if they hold for each element."""
    return all(FACTS[f].axes == 0 and f != "constant" for f in facts)


def special_points(instance: Instance, sizes: Sizes, bits: bool, most: int) -> Points | None:
    """The enumeration at these sizes, of at most about `most` points; None if there is no point. `bits`: whether all
    special values are enumerated; otherwise only finite ones, for a comparison over the reals."""
    wanted = {name: (facts, tests) for name, facts, tests in value_guards(instance)}
    rng = np.random.default_rng(0)  # a fixed seed, so that the enumeration is reproducible
    variables: list[_Variable] = []
    to_adapt: list[str] = []
    for p in instance.params:
        name, shape = str(p.attr("name")), shape_of(p, sizes)
        facts, tests = wanted.get(name, (frozenset[str](), ()))
        found, base = _candidates(instance, p, bits), _base(p.dtype, shape, len(variables))
        if name in wanted:
            if _are_elementwise(facts):
                kept = [all(t.holds(v) for t in tests) and all(has_fact(f, v.reshape(1)) for f in facts) for v in found]
                found = found[np.array(kept, bool)]
            else:
                to_adapt.append(name)
            base = adapt_values(base.reshape(shape), facts, tests, rng).reshape(-1)
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


def all_points(instance: Instance, sizes: Sizes) -> Points | None:
    """All values that the variables can have at these sizes under the rule's guards; None if these are too many, or if
    a fact is about more than single elements."""
    wanted = {name: (facts, tests) for name, facts, tests in value_guards(instance)}
    widths = {p: 1 if p.dtype == "bool" else dtype_of(p.dtype).bits for p in instance.params}
    shapes = {p: shape_of(p, sizes) for p in instance.params}
    total = sum(width * math.prod(shapes[p]) for p, width in widths.items())
    if not 0 < total <= _MOST_BITS or not all(_are_elementwise(facts) for facts, _ in wanted.values()):
        return None
    left, values = np.arange(1 << total, dtype=np.uint32), dict[str, Array]()
    for p, width in widths.items():
        if p.dtype != "bool" and width != 8 * itemsize(p.dtype):  # two elements share a byte
            return None
        elements: list[Array] = []
        for _ in range(math.prod(shapes[p])):
            bits, left = left & ((1 << width) - 1), left >> width
            to = numpy_dtype(p.dtype)
            elements.append(bits.astype(bool) if p.dtype == "bool" else bits.astype(f"u{to.itemsize}").view(to))
        name = str(p.attr("name"))
        values[name] = np.stack(elements, 1).reshape(1 << total, *shapes[p])
        if name in wanted:  # `adapted` does not change values that have the facts
            with np.errstate(invalid="ignore"):
                values[name] = adapt_values(values[name], *wanted[name], np.random.default_rng(0))
    return Points(1 << total, values)


@dataclass(frozen=True)
class _Variable:
    """A pattern variable in the enumeration.

    - `name`: its name.
    - `shape`: its shape.
    - `base`: its plain value, flat.
    - `values`: special values of an element.
    """

    name: str
    shape: tuple[int, ...]
    base: Array
    values: Array


def _base(dtype: str, shape: Sequence[int], which: int) -> Array:
    """Plain values, flat, which differ between elements and between variables. `which`: number of the variable."""
    n = int(np.prod(shape))
    at = np.arange(n)
    if dtype == "bool":
        return (at + which) % 3 != 0
    if is_integer(dtype):
        return ((at * 5 + which * 3) % 4).astype(numpy_dtype(dtype))
    plain = 0.75 + 0.375 * ((at * 3 + which * 5) % 7) * np.where((at + which) % 2, -1, 1)
    return (plain + (0.5j if is_complex(dtype) else 0.0)).astype(numpy_dtype(dtype))


def _chunks(variables: Sequence[_Variable]) -> Iterator[dict[str, Array]]:
    """Points in order of importance: each variable filled with each of its values; all combinations of these, or all
    pairs; single elements, and pairs of them. Each chunk holds arrays of shape (points, elements)."""
    live = [v for v in variables if v.base.size and len(v.values)]
    for v in live:
        yield _filled(variables, {v.name: v.values})
    if math.prod(len(v.values) for v in live) <= _MOST_COMBINATIONS:
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
    """The points at which the guards hold after values are adapted one by one to facts about whole arrays; None if
    there is none. At most `_MOST_ADAPTED` points are adapted."""
    step = -(-points.count // _MOST_ADAPTED)
    found: list[dict[str, Array]] = []
    for i in range(0, points.count, step):
        values = points.at(i)
        for name in names:
            facts, tests = wanted[name]
            with np.errstate(all="ignore"):
                values[name] = adapt_values(values[name], facts, tests, np.random.default_rng(i))
        if value_guards_hold(instance, values):
            found.append(values)
    if not found:
        return None
    return Points(len(found), {n: np.stack([f[n] for f in found]) for n in found[0]})
