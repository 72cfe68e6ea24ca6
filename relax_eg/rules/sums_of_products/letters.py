"""A region as a sum of products over index letters, read from the normal form that the prover computes.

A letter is an axis of the result or a summed axis, and runs from 0. Each factor of a term is an *access*: a view of a
leaf that has one axis for each of its letters. Positions that are not plain letters become part of the view: slices,
single rows, diagonals, and rows taken by an integer tensor. What restricts letters becomes a mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce

from relax_eg.ir.expr import VAR, Expr, const
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.sums_of_products.region import Region
from relax_eg.rules.verify_formal.compose import Composer, Unsupported
from relax_eg.rules.verify_formal.guards import Deadline, GuardLiteral, KnownGuards, at_least, in_range, simplified
from relax_eg.rules.verify_formal.sums import CanonicalSum, Factor, Term
from relax_eg.rules.verify_formal.terms import Normalizer
from relax_eg.rules.verify_formal.values import TermValues, modulus_of
from relax_eg.shapes import Dim, dim_max, dim_min
from relax_eg.tir.expr import Cast, Read, Scalar, is_loop, loop

_ZERO, _ONE = Dim.of(0), Dim.of(1)
_NOWHERE: frozenset[GuardLiteral] = frozenset()

Letter = int


@dataclass(frozen=True, slots=True)
class Access:
    """An expression with one axis for each of its `letters`, which differ. `divides`: a product is divided by it."""

    value: Expr
    letters: tuple[Letter, ...]
    divides: bool = False


@dataclass(frozen=True, slots=True)
class ProductTerm:
    """A product summed over the letters that the result does not have.

    - `coefficient`: a number.
    - `sizes`, `divisors`: sizes by which it is multiplied and divided.
    - `factors`: the elements it multiplies.
    """

    coefficient: Fraction
    sizes: tuple[Dim, ...]
    divisors: tuple[Dim, ...]
    factors: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class SumOfProducts:
    """A sum of products.

    - `terms`: its terms; none if it is zero.
    - `result`: for each axis of the result, the letters that it merges; none for an axis of size 1.
    - `extents`: by letter, the size of its axis.
    """

    terms: tuple[ProductTerm, ...]
    result: tuple[tuple[Letter, ...], ...]
    extents: Mapping[Letter, Dim]
    root: Expr


def sum_of_products(region: Region, deadline: Deadline) -> SumOfProducts:
    """The normal form of a region over letters. Raises Unsupported if it is none of what the module's text names, and
    OutOfTime."""
    root = region.root
    names = {x: str(x.attr("name")) if x.op == VAR else f"leaf {i}" for i, x in enumerate(region.leaves)}
    composer = Composer({x: n for x, n in names.items() if x.op != VAR})
    sizes = sorted({v for x in (root, *region.leaves) for d in x.shape for v in d.variables})
    facts = KnownGuards([at_least(Dim.var(v)) for v in sizes], deadline)
    axes = [() if n == 1 else ((loop(f"i{axis}"), n),) for axis, n in enumerate(root.shape)]
    form, normal = _form(root, axes, composer, facts)
    divided = [_divided(form, axis, facts) for axis in axes]
    if any(divided):
        axes = [d or axis for d, axis in zip(divided, axes, strict=True)]
        form, normal = _form(root, axes, composer, facts)
    gathers = any(e.op == "gather" for e in region.nodes)
    reader = _Reader({n: x for x, n in names.items()}, normal, gathers)
    result = tuple(tuple(reader.letter(v, n) for v, n in axis) for axis in axes)
    free = dict(reader.places)
    return SumOfProducts(tuple(reader.term(t, c, free) for t, c in form.terms), result, reader.extents, root)


# The positions that an axis merges, each with its size.
_Axis = tuple[tuple[Dim, Dim], ...]


def _form(root: Expr, axes: Sequence[_Axis], composer: Composer, facts: KnownGuards) -> tuple[CanonicalSum, Normalizer]:
    """The canonical sum of an element of `root`, and what made it."""
    at: list[Dim] = []
    for axis in axes:
        place = _ZERO
        for v, n in axis:
            place = place * n + v
        at.append(place)
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
    - `gathers`: whether the region gathers elements, so that its axes have some.
    - `extents`: by letter, its size.
    - `places`: by loop variable, its letter and the position at which the letter is 0.
    """

    leaves: Mapping[str, Expr]
    normal: Normalizer
    gathers: bool
    extents: dict[Letter, Dim] = field(default_factory=dict[Letter, Dim])
    places: dict[str, tuple[Letter, Dim]] = field(default_factory=dict[str, tuple[Letter, Dim]])

    def letter(self, v: Dim, extent: Dim, low: Dim = _ZERO) -> Letter:
        (name,) = v.variables
        made = len(self.extents)
        self.extents[made] = extent
        self.places[name] = made, low
        return made

    def term(self, t: Term, coefficient: Fraction, free: Mapping[str, tuple[Letter, Dim]]) -> ProductTerm:
        """`t` over letters. `free`: those of the result, by loop variable."""
        self.places = dict(free)
        masks = self._bind(t)
        sizes: list[Dim] = []
        divisors: list[Dim] = []
        factors: list[Access] = []
        for f in t.factors:
            if f.kind == "dim":
                sizes.append(_size(f.dims[0]))
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
        for g in sorted(masks, key=lambda g: g.key):
            factors.append(self._mask(g))
        return ProductTerm(coefficient, tuple(sizes), tuple(divisors), tuple(factors))

    def _bind(self, t: Term) -> list[GuardLiteral]:
        """Makes letters for the bound variables of `t`; returns the guards that are not their ranges."""
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
        return [g for g in rest if not (g.of is None and not g.dim.variables)]

    # --- accesses ---

    def _access(self, f: Factor) -> Access:
        return self._view(self.leaves[f.name], f.dims)

    def _divisor(self, form: CanonicalSum) -> Access | None:
        """The element by which a term is divided; None if `form` is not a single element."""
        if len(form.terms) != 1:
            return None
        ((t, c),) = form.terms
        if c != 1 or t.guards or t.bound or len(t.factors) != 1 or t.factors[0].kind != "read":
            return None
        return replace(self._access(t.factors[0]), divides=True)

    def _view(self, leaf: Expr, dims: Sequence[Dim]) -> Access:
        """The view of `leaf` at the positions `dims`."""
        value, letters = leaf, list[Letter]()
        taken: tuple[int, Access] | None = None
        begin, end, dropped = list[Dim](), list[Dim](), list[int]()
        for axis, (d, n) in enumerate(zip(dims, leaf.shape, strict=True)):
            names = [v for v in d.variables if is_loop(v) and v not in self.normal.composer.opaque]
            opaque = [v for v in d.variables if v in self.normal.composer.opaque]
            if opaque:
                if names or len(opaque) > 1 or d is not Dim.var(opaque[0]) or taken is not None:
                    raise Unsupported("a position that depends on data")
                taken = axis, self._integer(opaque[0])
                begin, end = [*begin, _ZERO], [*end, n]
                letters.append(-1)
            elif not names:
                begin, end = [*begin, d], [*end, d + 1]
                dropped.append(axis)
            else:
                if len(names) > 1 or self.normal.coefficient(d, names[0]) != 1:
                    raise Unsupported(f"position {d}")
                letter, low = self.places[names[0]]
                first = d - Dim.var(names[0]) + low
                begin, end = [*begin, first], [*end, first + self.extents[letter]]
                letters.append(letter)
        outside = [d for b, e, n in zip(begin, end, leaf.shape, strict=True) for d in (b, n - e)]
        if any(d.is_const and d.value < 0 for d in outside):
            raise Unsupported("a part of an axis of the result")
        if any(b != _ZERO or e != n for b, e, n in zip(begin, end, leaf.shape, strict=True)):
            value = op.strided_slice(value, begin, end)
        if dropped:
            value = op.squeeze(value, dropped)
        if taken is not None:
            value, letters = self._taken(value, letters, taken[1])
        return self._diagonal(value, letters)

    def _taken(self, value: Expr, letters: list[Letter], index: Access) -> tuple[Expr, list[Letter]]:
        axis = letters.index(-1)
        return op.take(value, index.value, axis, mode="fill"), [*letters[:axis], *index.letters, *letters[axis + 1 :]]

    def _diagonal(self, value: Expr, letters: list[Letter]) -> Access:
        """`value` with letters that occur twice taken along the diagonal."""
        while len(set(letters)) < len(letters):
            second = next(i for i, x in enumerate(letters) if x in letters[:i])
            first = letters.index(letters[second])
            if not (self.gathers or value.shape[first].is_const):
                value, letters = _diagonal_without_gather(value, letters, first, second)
                continue
            n, rest = value.shape[first], [i for i in range(value.ndim) if i not in (first, second)]
            place = op.expand_dims(op.iota((n,), 0), 1)
            value = call(
                "gather",
                (value, op.concat([place, place], 1)),
                {
                    "slice_sizes": tuple(1 if i in (first, second) else d for i, d in enumerate(value.shape)),
                    "mode": "clip",
                    "offset_dims": tuple(range(1, 1 + len(rest))),
                    "collapsed_slice_dims": (first, second),
                    "start_index_map": (first, second),
                    "operand_batching_dims": (),
                    "start_indices_batching_dims": (),
                },
            )
            letters = [letters[first], *(letters[i] for i in rest)]
        return Access(value, tuple(letters))

    def _integer(self, name: str) -> Access:
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

    # --- masks ---

    def _coefficient(self, d: Dim, name: str) -> int:
        found = self.normal.coefficient(d, name)
        if found is None:
            raise Unsupported(f"a condition on {d}")
        return found

    def _mask(self, g: GuardLiteral) -> Access:
        """The boolean tensor that says where `g` holds."""
        if g.of is not None:
            raise Unsupported("a boolean tensor")
        places = [self.places[v][0] for v in g.dim.variables if v in self.places]
        letters = sorted(places)
        shape = tuple(self.extents[x] for x in letters)
        parts: list[tuple[int, Access]] = []
        rest = g.dim
        for name in sorted(g.dim.variables):
            if name in self.places:
                letter, low = self.places[name]
                c = self._coefficient(g.dim, name)
                rest = rest - Dim.var(name) * c + low * c
                access = Access(op.iota(shape, letters.index(letter)), tuple(letters))
            elif name in self.normal.composer.opaque:
                access = self._integer(name)
                c = self._coefficient(g.dim, name)
                rest = rest - Dim.var(name) * c
            else:
                continue
            letters += [x for x in access.letters if x not in letters]
            parts.append((c, access))
        if not parts or _letters_in(rest) or any(v in self.normal.composer.opaque for v in rest.variables):
            raise Unsupported(f"a condition {g.key}")
        added, subtracted = list[Expr](), list[Expr]()
        for c, access in parts:
            value = aligned(access, letters)
            (subtracted if c < 0 else added).append(value if abs(c) == 1 else op.multiply(value, abs(c)))
        if rest != _ZERO:
            added.append(const(rest.value, "int32") if rest.is_const else op.dim_value(rest))
        left, right = (reduce(op.add, side) if side else const(0, "int32") for side in (added, subtracted))
        compare = {">=": op.greater_equal, "==": op.equal, "!=": op.not_equal}[g.op]
        return Access(compare(left, right), tuple(letters))


def _diagonal_without_gather(value: Expr, letters: list[Letter], first: int, second: int) -> tuple[Expr, list[Letter]]:
    """The diagonal of two axes, which is the last axis of the result: with n zeros behind them, the n * n elements in
    order are n rows of n + 1, whose first column is the diagonal. A gather needs a position, which an axis that may be
    empty does not have."""
    n, rest = value.shape[first], [i for i in range(value.ndim) if i not in (first, second)]
    order, shape = [*rest, first, second], [value.shape[i] for i in rest]
    flat = op.reshape(value if order == sorted(order) else op.permute_dims(value, order), (*shape, n * n))
    rows = op.reshape(op.concat([flat, op.zeros((*shape, n), value.dtype)], len(rest)), (*shape, n, n + 1))
    column = op.strided_slice(rows, [0] * rows.ndim, [*shape, n, 1])
    return op.squeeze(column, [rows.ndim - 1]), [*(letters[i] for i in rest), letters[first]]


def aligned(access: Access, letters: Sequence[Letter]) -> Expr:
    """The access with its axes in the order of `letters`, and an axis of size 1 for each that it does not have."""
    order = sorted(range(len(access.letters)), key=lambda i: letters.index(access.letters[i]))
    value = access.value
    if order != list(range(len(order))):
        value = op.permute_dims(value, order)
    missing = [i for i, x in enumerate(letters) if x not in access.letters]
    # Leading axes of size 1 need not be there: operators broadcast.
    lead = 0
    while lead < len(missing) and missing[lead] == lead:
        lead += 1
    missing = [i - lead for i in missing[lead:]]
    return op.expand_dims(value, missing) if missing else value


def with_letters(term: ProductTerm, names: Mapping[Letter, Letter]) -> ProductTerm:
    """`term` with letters replaced."""
    factors = tuple(replace(f, letters=tuple(names.get(x, x) for x in f.letters)) for f in term.factors)
    return replace(term, factors=factors)


def _letters_in(d: Dim) -> list[str]:
    return [v for v in d.variables if is_loop(v)]


def _size(d: Dim | None) -> Dim:
    if d is None or _letters_in(d):
        raise Unsupported("a factor or divisor that is no size")
    return d
