"""A region as a sum of products over index letters, read from the normal form that the prover computes.

A letter is an axis of the result or a summed axis, and runs from 0. Each factor of a term is an *access*: a view of a
leaf that has one axis for each of its letters. Positions that are not plain letters become part of the view: slices,
reversed axes, single rows, diagonals, and elements at the positions that an integer tensor has. A position that is
multiplied becomes a factor, and what restricts letters becomes a mask.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce

from relax_eg.dtypes import is_float
from relax_eg.ir.expr import VAR, Expr, const, postorder
from relax_eg.ops import api as op
from relax_eg.rules.sums_of_products.accesses import (
    Access,
    Letter,
    LetterOrder,
    ProductTerm,
    Target,
    aligned,
    gathered,
)
from relax_eg.rules.sums_of_products.region import Region
from relax_eg.rules.verify_formal.compose import Composer, Unsupported
from relax_eg.rules.verify_formal.guards import Deadline, GuardLiteral, KnownGuards, at_least, in_range, simplified
from relax_eg.rules.verify_formal.sums import CanonicalSum, Factor, Term
from relax_eg.rules.verify_formal.terms import Normalizer
from relax_eg.rules.verify_formal.values import TermValues, modulus_of
from relax_eg.shapes import Dim, dim_max, dim_min
from relax_eg.shapes.dim import product
from relax_eg.tir.expr import Cast, Read, Scalar, is_loop, loop

_ZERO, _ONE = Dim.of(0), Dim.of(1)
_NOWHERE: frozenset[GuardLiteral] = frozenset()
_MOST_PARTS = 4  # limit: ranges of an axis of the result that are read one by one


@dataclass(frozen=True, slots=True)
class SumOfProducts:
    """A sum of products.

    - `terms`: its terms; none if it is zero.
    - `result`: for each axis of the result, the letters that it merges; none for an axis of size 1.
    - `extents`: by letter, the size of its axis.
    - `shape`, `dtype`: those of the result.
    """

    terms: tuple[ProductTerm, ...]
    result: tuple[tuple[Letter, ...], ...]
    extents: Mapping[Letter, Dim]
    shape: tuple[Dim, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Sums of products that are joined along an axis."""

    axis: int
    parts: tuple[SumOfProducts, ...]


def sums_of_products(region: Region, deadline: Deadline) -> list[SumOfProducts | Joined]:
    """The normal form of a region over letters. If its terms are restricted to ranges of an axis of the result, also
    the normal forms of these ranges, joined. Raises Unsupported if it is none of what the module's text names, and
    OutOfTime."""
    root = region.root
    names = {x: str(x.attr("name")) if x.op == VAR else f"leaf {i}" for i, x in enumerate(region.leaves)}
    composer = Composer({x: n for x, n in names.items() if x.op != VAR})
    sizes = sorted({v for x in (root, *region.leaves) for d in x.shape for v in d.variables})
    facts = KnownGuards([at_least(Dim.var(v)) for v in sizes], deadline)
    leaves = {n: x for x, n in names.items()}
    axes = [() if n == 1 else ((loop(f"i{axis}"), n),) for axis, n in enumerate(root.shape)]
    form, normal = _form(root, axes, composer, facts)
    divided = [_divided(form, axis, facts) for axis in axes]
    if any(divided):
        axes = [d or axis for d, axis in zip(divided, axes, strict=True)]
        form, normal = _form(root, axes, composer, facts)
    found: list[SumOfProducts | Joined] = []
    why: Unsupported | None = None
    try:
        found.append(_read(form, normal, leaves, axes, root.shape, root.dtype))
    except Unsupported as e:
        why = e
    cut = None if any(divided) else _cut(form, axes, normal, facts)
    if cut is not None:
        axis, places = cut
        parts: list[SumOfProducts] = []
        for k, (low, high) in enumerate(itertools.pairwise(places)):
            own = list(axes)
            own[axis] = ((loop(f"i{axis}part{k}"), high - low),)
            form, normal = _form(root, own, composer, facts, {axis: low})
            shape = (*root.shape[:axis], high - low, *root.shape[axis + 1 :])
            parts.append(_read(form, normal, leaves, own, shape, root.dtype))
        found.append(Joined(axis, tuple(parts)))
    if not found and why is not None:
        raise why
    return found


def _read(
    form: CanonicalSum, normal: Normalizer, leaves: Mapping[str, Expr], axes: Sequence[_Axis], shape: tuple[Dim, ...],
    dtype: str,
) -> SumOfProducts:  # fmt: skip
    reader = _Reader(leaves, normal, dtype, any(len(axis) > 1 for axis in axes))
    result = tuple(tuple(reader.letter(v, n) for v, n in axis) for axis in axes)
    free = dict(reader.places)
    terms = tuple(t for t in (reader.term(t, c, free) for t, c in form.terms) if t is not None)
    return SumOfProducts(terms, result, reader.extents, shape, dtype)


def _cut(
    form: CanonicalSum, axes: Sequence[_Axis], normal: Normalizer, facts: KnownGuards
) -> tuple[int, list[Dim]] | None:
    """An axis of the result and the places that divide it into ranges in each of which the guards of a term on its
    position alone hold or do not hold; None if there is none."""
    for i, axis in enumerate(axes):
        if len(axis) != 1:
            continue
        ((v, n),) = axis
        (name,) = v.variables
        places: dict[Dim, None] = {_ZERO: None, n: None}
        for g in (g for t, _ in form.terms for g in t.guards if g.of is None and name in g.dim.variables):
            c = normal.coefficient(g.dim, name)
            rest = g.dim - v * (c or 0)
            if c not in (1, -1) or _letters_in(rest) or rest.variables & normal.composer.opaque.keys():
                continue
            first = -rest if c == 1 else rest
            if g.op == ">=":
                places[first if c == 1 else first + 1] = None
            else:
                places.update({first: None, first + 1: None})
        ordered = _ordered([p for p in places if not _is_end(p, n, facts)], facts)
        if ordered and len(ordered) < _MOST_PARTS:
            return i, [_ZERO, *ordered, n]
    return None


def _is_end(place: Dim, n: Dim, facts: KnownGuards) -> bool:
    """Whether a place is not inside of an axis of size `n`."""
    return facts.entails(at_least(-place)) or facts.entails(at_least(place - n))


def _ordered(places: Sequence[Dim], facts: KnownGuards) -> list[Dim] | None:
    """Places in their order; None if that is not known."""
    found: list[Dim] = []
    for p in places:
        before = [facts.entails(at_least(p - q)) for q in found]
        if not all(b or facts.entails(at_least(q - p)) for b, q in zip(before, found, strict=True)):
            return None
        found.insert(sum(before), p)
    return found


# The positions that an axis merges, each with its size.
_Axis = tuple[tuple[Dim, Dim], ...]


def _form(
    root: Expr, axes: Sequence[_Axis], composer: Composer, facts: KnownGuards, lows: Mapping[int, Dim] | None = None
) -> tuple[CanonicalSum, Normalizer]:
    """The canonical sum of an element of `root`, and what made it. `lows`: where positions of an axis begin, if not
    at 0."""
    at: list[Dim] = []
    for i, axis in enumerate(axes):
        place = _ZERO
        for v, n in axis:
            place = place * n + v
        at.append(place + lows[i] if lows is not None and i in lows else place)
    within = facts.with_(g for axis in axes for v, n in axis for g in in_range(v, n))
    normal = Normalizer(composer, within)
    total = TermValues(composer, within, normal).sum_of(composer.element(root, at))
    return normal.canonical_sum(total, modulus_of(root.dtype)), normal


def _divided(form: CanonicalSum, axis: _Axis, facts: KnownGuards) -> _Axis | None:
    """The two positions that an axis merges, if the elements of leaves are read at its position divided by a size, and
    at the remainder."""
    for t, _ in form.terms:
        for f in t.factors:
            for a in (a for d in f.dims for atoms, _ in d.terms for a in atoms if a.op == "floordiv"):
                top, by = a.args
                if len(axis) == 1 and top is axis[0][0] and not _letters_in(by):
                    (v, n) = axis[0]
                    (name,) = v.variables
                    count = simplified(n // by, facts.with_([at_least(by - 1)]), frozenset())
                    if count * by == n:
                        return (loop(f"{name}q"), count), (loop(f"{name}r"), by)
    return None


@dataclass
class _Reader:
    """Reads terms of the prover.

    - `leaves`: by the name of a buffer, its expression.
    - `dtype`: that of the sum of products.
    - `is_divided`: whether an axis of the result merges positions, so that conditions on it may hold by their ranges.
    - `extents`: by letter, its size.
    - `places`: by loop variable, its letter and the position at which the letter is 0.
    - `filled`: positions that depend on data, for which elements out of range are read as 0, each with the axis' size.
    """

    leaves: Mapping[str, Expr]
    normal: Normalizer
    dtype: str
    is_divided: bool
    extents: dict[Letter, Dim] = field(default_factory=dict[Letter, Dim])
    places: dict[str, tuple[Letter, Dim]] = field(default_factory=dict[str, tuple[Letter, Dim]])
    filled: list[tuple[Dim, Dim]] = field(default_factory=list[tuple[Dim, Dim]])

    def letter(self, v: Dim, extent: Dim, low: Dim = _ZERO) -> Letter:
        (name,) = v.variables
        made = len(self.extents)
        self.extents[made] = extent
        self.places[name] = made, low
        return made

    def term(self, t: Term, coefficient: Fraction, free: Mapping[str, tuple[Letter, Dim]]) -> ProductTerm | None:
        """`t` over letters; None if its guards never hold. `free`: those of the result, by loop variable."""
        if self.normal.facts.impossible(t.guards):
            return None
        self.places, self.filled = dict(free), []
        masks = self._bind(t)
        if self.is_divided:
            masks = {g for g in masks if not self.normal.facts.impossible([g.negated()])}
        sizes: list[Dim] = []
        divisors: list[Dim] = []
        factors: list[Access] = []
        for f in t.factors:
            if f.kind == "dim":
                if _letters_in(f.dims[0]):
                    factors.append(self._number(f.dims[0]))
                else:
                    sizes.append(f.dims[0])
            elif f.kind == "read":
                factors.append(self._access(f))
            elif f.name == "reciprocal":
                access = self._divisor(f.args[0])
                if access is None:
                    divisors.append(_size(f.args[0].dim))
                else:
                    factors.append(access)
            else:
                raise Unsupported(f.name)
        implied = {g for d, n in self.filled for g in in_range(d, n)}
        for g in sorted(masks - implied, key=lambda g: g.key):
            factors.append(self._mask(g))
        return ProductTerm(coefficient, tuple(sizes), tuple(divisors), tuple(factors))

    def _bind(self, t: Term) -> set[GuardLiteral]:
        """Makes letters for the bound variables of `t`; returns the guards that neither are their ranges nor follow
        from other guards."""
        rest = set(t.guards)
        for name in sorted(t.bound):
            v = Dim.var(name)
            low: dict[Dim, GuardLiteral] = {}
            high: dict[Dim, GuardLiteral] = {}
            for g in t.guards:
                if g.op == ">=" and g.of is None and not _letters_in(g.dim - v) and name in g.dim.variables:
                    low[v - g.dim] = g
                elif g.op == ">=" and g.of is None and not _letters_in(g.dim + v) and name in g.dim.variables:
                    high[g.dim + v + 1] = g
            first, end = self.normal.extreme(low, _NOWHERE, 1), self.normal.extreme(high, _NOWHERE, -1)
            if not low or not high:
                raise Unsupported("a summed position without a range")
            first = dim_max(*low) if first is None else first
            end = dim_min(*high) if end is None else end
            if not self.normal.facts.entails(at_least(end - first), _NOWHERE):
                first = dim_min(first, end)  # an empty range begins where it ends
            rest -= {*low.values(), *high.values()}
            self.letter(v, end - first, first)
        kept = set(t.guards)
        for g in sorted(rest, key=lambda g: g.key):
            if g.of is None and (not g.dim.variables or self.normal.facts.entails(g, kept - {g})):
                kept.discard(g)
        return rest & kept

    # --- accesses ---

    def _access(self, f: Factor) -> Access:
        made = self._view(self.leaves[f.name], f.dims)
        narrow = is_float(self.dtype) and is_float(made.value.dtype) and made.value.dtype != self.dtype
        return replace(made, value=op.astype(made.value, self.dtype)) if narrow else made

    def _divisor(self, form: CanonicalSum) -> Access | None:
        """The element by which a term is divided; None if `form` is not a single element."""
        if len(form.terms) != 1:
            return None
        ((t, c),) = form.terms
        if c != 1 or t.guards or t.bound or len(t.factors) != 1 or t.factors[0].kind != "read":
            return None
        return replace(self._access(t.factors[0]), divides=True)

    def _view(self, leaf: Expr, dims: Sequence[Dim]) -> Access:
        """The view of `leaf` at the positions `dims`: parts of its axes, some in reverse order, and elements at
        positions that depend on data or on a letter that another axis has."""
        begin, end, steps, dropped, reverse = list[Dim](), list[Dim](), list[int](), list[int](), list[int]()
        letters: list[Letter | None] = []
        computed: list[Access] = []
        split: dict[int, list[Letter]] = {}  # by axis that is left
        for axis, (d, n) in enumerate(zip(dims, leaf.shape, strict=True)):
            names = _letters_in(d)
            first, last, step, letter = _ZERO, n - 1, 1, None
            before, digits = {*letters}.union(*split.values()), self._digits(d, n)
            if not before.isdisjoint(digits):
                digits = []
            if digits:
                split[axis - len(dropped)] = digits
            elif not names:
                first = last = d
                dropped.append(axis)
            elif not d.variables & self.normal.composer.opaque.keys() and len(names) == 1:
                step = self._coefficient(d, names[0])
                letter, low = self.places[names[0]]
                first = d - Dim.var(names[0]) * step + low * step
                last = first + (self.extents[letter] - 1) * step
            if names and not digits and (letter is None or letter in before):
                first, last, step, letter = _ZERO, n - 1, 1, None
                computed.append(self._integer(d))
                self.filled.append((d, n))
            if step < 0:
                first, last = last, first
                reverse.append(axis - len(dropped))
            begin, end, steps = [*begin, first], [*end, last + 1], [*steps, abs(step)]
            letters += [letter] if names else []
        outside = [d for b, e, n in zip(begin, end, leaf.shape, strict=True) for d in (b, n - e)]
        if any(d.is_const and d.value < 0 for d in outside):
            raise Unsupported("a part of an axis of the result")
        value = leaf
        if any(d != _ZERO for d in outside) or any(s != 1 for s in steps):
            value = op.strided_slice(value, begin, end, steps)
        if dropped:
            value = op.squeeze(value, dropped)
        if reverse:
            value = op.flip(value, reverse)
        if split:
            sizes = [[self.extents[x] for x in split.get(i, ())] or [n] for i, n in enumerate(value.shape)]
            value = op.reshape(value, [n for s in sizes for n in s])
            letters = [y for i, x in enumerate(letters) for y in split.get(i, [x])]
        return gathered(value, letters, computed, self.extents)

    def _digits(self, d: Dim, n: Dim) -> list[Letter]:
        """The letters, at least two, that count the `n` elements of an axis together, the last one fastest; empty if
        `d` is no such count."""
        names = _letters_in(d)
        if len(names) < 2 or not self.places.keys() >= {*names}:  # the others are computed from data
            return []
        first = d.substitute({x: _ZERO for x in names})
        strides = {x: d.substitute({y: Dim.of(int(x == y)) for y in names}) - first for x in names}
        if first != _ZERO or d != sum((Dim.var(x) * c for x, c in strides.items()), start=_ZERO):
            return []
        order: list[Letter] = []
        stride = _ONE
        while strides:
            name = next((x for x, c in strides.items() if c == stride), None)
            if name is None or self.places[name][1] != _ZERO:
                return []
            del strides[name]
            order.insert(0, self.places[name][0])
            stride = stride * self.extents[order[0]]
        return order if stride == n else []

    # --- positions ---

    def _integer(self, d: Dim) -> Access:
        """The integer tensor of a position."""
        return self._added(*self._parts(d))

    def _number(self, d: Dim) -> Access:
        """A position as a factor."""
        made = self._integer(d)
        return replace(made, value=op.astype(made.value, self.dtype))

    def _parts(self, d: Dim) -> tuple[list[tuple[int, Access]], Dim]:
        """What `d` adds up: integer tensors with coefficients, and a size."""
        parts: list[tuple[int, Access]] = []
        rest = Dim.of(d.const)
        for atoms, c in d.terms:
            value = math.prod((product((a,)) for a in atoms), start=_ONE)
            (a, *more) = atoms
            if not _letters_in(value) and not value.variables & self.normal.composer.opaque.keys():
                rest = rest + value * c
            elif more:
                raise Unsupported(f"position {d}")
            elif a.op in ("max", "min"):
                extreme = op.maximum if a.op == "max" else op.minimum
                made = [self._integer(x) for x in a.args]
                letters = list(dict.fromkeys(x for m in made for x in m.letters))
                parts.append((c, Access(reduce(extreme, (aligned(m, letters) for m in made)), tuple(letters))))
            elif a.op != "var":
                raise Unsupported(f"position {d}")
            elif a.name in self.places:
                letter, low = self.places[a.name]
                parts.append((c, Access(op.iota((self.extents[letter],), 0), (letter,))))
                rest = rest + low * c
            else:
                parts.append((c, self._data(a.name)))
        return parts, rest

    def _data(self, name: str) -> Access:
        """The integer tensor that an opaque position reads."""
        s: Scalar = self.normal.composer.opaque[name]
        while isinstance(s, Cast) and s.dtype == "int64":
            s = s.arg
        if not isinstance(s, Read) or s.buffer not in self.leaves:
            raise Unsupported("a position that is computed from data")
        leaf = self.leaves[s.buffer]
        if leaf.dtype != "int32":
            raise Unsupported(f"a position of type {leaf.dtype}")
        return self._view(leaf, [i for i in s.indices if isinstance(i, Dim)])

    def _added(self, parts: Sequence[tuple[int, Access]], rest: Dim) -> Access:
        if not parts:
            return Access(_integer_size(rest), ())
        letters = list(dict.fromkeys(x for _, p in parts for x in p.letters))
        values = [aligned(p if c == 1 else replace(p, value=op.multiply(p.value, c)), letters) for c, p in parts]
        total = reduce(op.add, values)
        return Access(op.add(total, _integer_size(rest)) if rest != _ZERO else total, tuple(letters))

    # --- masks ---

    def _coefficient(self, d: Dim, name: str) -> int:
        found = self.normal.coefficient(d, name)
        if not found:
            raise Unsupported(f"position {d}")
        return found

    def _mask(self, g: GuardLiteral) -> Access:
        """The boolean tensor that says where `g` holds."""
        if g.of is not None:
            if not isinstance(g.of, Factor) or g.of.kind != "read" or g.of.name not in self.leaves:
                raise Unsupported("a computed truth value")
            access = self._access(g.of)
            return access if g.op == "true" else replace(access, value=op.logical_not(access.value))
        parts, rest = self._parts(g.dim)
        added, subtracted = [p for p in parts if p[0] > 0], [(-c, p) for c, p in parts if c < 0]
        compare = {">=": op.greater_equal, "==": op.equal, "!=": op.not_equal}[g.op]
        if not parts:
            raise Unsupported(f"a condition {g.key}")
        # A size is not added to what is computed from data, where the sum might wrap.
        from_data = [any(_is_data(p) for _, p in side) for side in (added, subtracted)]
        if added and (not subtracted or from_data == [True, False]):
            left, right = self._added(added, _ZERO), self._added(subtracted, -rest)
        else:
            left, right = self._added(added, rest), self._added(subtracted, _ZERO)
        letters = sorted({*left.letters, *right.letters})
        value = compare(aligned(left, letters), aligned(right, letters))
        return Access(value, tuple(letters), False, self._order(g), self._target(g))

    def _target(self, g: GuardLiteral) -> Target | None:
        """What `g` says of a letter and data; None if it says anything else."""
        names = sorted(g.dim.variables)
        if g.op != "==" or len(names) != 2 or sum(n in self.places for n in names) != 1:
            return None
        place, data = sorted(names, key=lambda n: n not in self.places)
        letter, low = self.places[place]
        c = self.normal.coefficient(g.dim, place)
        if data not in self.normal.composer.opaque:  # a size
            return None
        if low != _ZERO or c not in (1, -1) or g.dim * c != Dim.var(place) - Dim.var(data):
            return None
        index = self._data(data)
        return None if letter in index.letters or not index.letters else Target(letter, index)

    def _order(self, g: GuardLiteral) -> LetterOrder | None:
        """What `g` says of two letters; None if it says anything else."""
        names = sorted(n for n in g.dim.variables if n in self.places)
        by = {self.normal.coefficient(g.dim, n): n for n in names}
        if g.op != ">=" or len(names) != 2 or by.keys() != {1, -1}:
            return None
        (upper, high), (lower, low) = self.places[by[1]], self.places[by[-1]]
        offset = g.dim - Dim.var(by[1]) + Dim.var(by[-1]) + high - low
        return LetterOrder(lower, upper, offset.value) if offset.is_const else None


def _is_data(access: Access) -> bool:
    """Whether a position is computed from more than positions."""
    return any(e.op == VAR for e in postorder((access.value,)))


def _integer_size(d: Dim) -> Expr:
    return const(d.value, "int32") if d.is_const else op.dim_value(d)


def _letters_in(d: Dim) -> list[str]:
    return [v for v in d.variables if is_loop(v)]


def _size(d: Dim | None) -> Dim:
    if d is None or _letters_in(d):
        raise Unsupported("a factor or divisor that is no size")
    return d
