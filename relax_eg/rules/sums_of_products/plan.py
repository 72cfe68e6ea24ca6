"""Plans for sums of products: which common factors are taken out, and in which order tensors are contracted.

A plan is a tree of `Node`s over index letters. What occurs twice in it is paid once. For a product the best order over
all pairwise contractions is found by dynamic programming over subsets of factors; a sum tries every common factor, one
after the other, for as long as the limit on steps allows.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from relax_eg.dtypes import itemsize
from relax_eg.ir.expr import Expr
from relax_eg.rules.sums_of_products.accesses import Access, Letter, ProductTerm, Target, with_letters
from relax_eg.rules.sums_of_products.letters import SumOfProducts
from relax_eg.rules.sums_of_products.nodes import ONE, Bracket, Node, Running, Scale
from relax_eg.shapes import Dim

# Orders in which more factors are joined than every order can be tried of, from `opt_einsum`.

# Each step joins the factors at these places, removes them, and appends the result.
Order = Sequence[tuple[int, ...]]


def orders(
    factors: Sequence[frozenset[Letter]], out: frozenset[Letter], extents: Mapping[Letter, int]
) -> Iterator[Order]:
    """The order of least flops among those that join factors with a common letter, and the one that takes the largest
    reduction first."""
    from opt_einsum.paths import DynamicProgramming, greedy

    names = {x: chr(i) for i, x in enumerate(sorted(frozenset[Letter]().union(out, *factors)), ord("a"))}
    inputs = [frozenset(names[x] for x in f) for f in factors]
    result = frozenset(names[x] for x in out)
    sizes = {names[x]: max(n, 1) for x, n in extents.items() if x in names}
    for find in (DynamicProgramming(minimize="flops"), greedy):
        yield [tuple(step) for step in find(inputs, result, sizes, None)]


# limit: factors of a product that are joined in every order; of more, those with the same letters are joined first, and
# of more than `_MOST_TRIED` then, the orders of `opt_einsum` are taken
_MOST_APART, _MOST_TRIED = 5, 7
_MOST_STEPS = 60  # limit: sums of terms for which common factors are tried
# chosen: the flops that take as long as a step of a running sum or an update, which XLA computes one by one on CPUs
_RUNNING_FLOPS = 32

# Seconds, or flops, of a step: its flops, the bytes it reads and writes, and whether it contracts.
Price = Callable[[float, float, bool], float]
# The number of a factor's value.
Rank = Callable[[Any], int]
_NOTHING: frozenset[Letter] = frozenset()


@dataclass
class Planner:
    """Plans for one sum of products under one price.

    - `extent`: the number for a size.
    - `is_known_ahead`: whether an expression is computed once, ahead of the calls.
    """

    extents: dict[Letter, Dim]
    extent: Callable[[Dim], int]
    price: Price
    dtype: str
    is_known_ahead: Callable[[Expr], bool]
    _steps: int = 0
    _ranks: dict[Any, int] = field(default_factory=dict[Any, int])
    _sums: dict[Any, Node] = field(default_factory=dict[Any, Node])
    _products: dict[Any, Node] = field(default_factory=dict[Any, Node])
    _counts: dict[frozenset[Letter], float] = field(default_factory=dict[frozenset[Letter], float])
    _brackets: dict[tuple[Bracket, tuple[Letter, ...]], Node] = field(default_factory=dict[Any, Node])

    def best(self, s: SumOfProducts) -> Node:
        """The cheapest plan found for `s`, which has terms."""
        return self._sum(s.terms, frozenset(itertools.chain.from_iterable(s.result)))

    # --- sums ---

    def _sum(self, terms: Sequence[ProductTerm], out: frozenset[Letter]) -> Node:
        key = (frozenset(terms), out)
        if key not in self._sums:
            self._steps += 1
            self._sums[key] = self._sum_anew(terms, out)
        return self._sums[key]

    def _sum_anew(self, terms: Sequence[ProductTerm], out: frozenset[Letter]) -> Node:
        if len(terms) == 1:
            return self._term(terms[0], out)
        plans = [self._total(terms, out)]
        if self._steps < _MOST_STEPS:
            is_first = self._steps == 1
            for fewer in _factored(terms, out, self.extents, self._rank, is_first):
                plans.append(self._sum(fewer, out))
        return min(plans, key=lambda p: p.cost)

    def _term(self, term: ProductTerm, out: frozenset[Letter]) -> Node:
        node = self._product(term, out)
        scale = Scale(term.coefficient, term.sizes, term.divisors)
        return node if scale.is_one else self._scaled(node, scale)

    def _total(self, terms: Sequence[ProductTerm], out: frozenset[Letter]) -> Node:
        parts = [self._product(t, out) for t in terms]
        found = self._added(terms, parts)
        for i, t in enumerate(terms):
            if any(t is not u and set(_values(t)) == set(_values(u)) for u in terms):
                tried = [*parts[:i], self._summed_last(t, out), *parts[i + 1 :]]
                made = self._added(terms, tried)
                if made.cost < found.cost:
                    parts, found = tried, made
        return found

    def _summed_last(self, term: ProductTerm, out: frozenset[Letter]) -> Node:
        """The plan of a term that sums letters of one factor after the product, which may be that of another term."""
        once = Counter(x for f in term.factors for x in dict.fromkeys(f.letters))
        return self._kept(self._product(term, out.union(x for x, n in once.items() if n == 1)), out)

    def _added(self, terms: Sequence[ProductTerm], parts: Sequence[Node]) -> Node:
        """The sum of the plans of terms."""
        parts = [*parts]
        scales = [Scale(t.coefficient, t.sizes, t.divisors) for t in terms]
        common = _common_scale(terms)
        if not common.is_sign:
            scales = [Scale(Fraction(1 if (s.number > 0) == (common.number > 0) else -1)) for s in scales]
        else:
            common = ONE
            parts = [p if s.is_sign else self._scaled(p, s) for p, s in zip(parts, scales, strict=True)]
            scales = [s if s.is_sign else ONE for s in scales]
        # A total begins with a summand that is added, if there is one.
        order = sorted(range(len(parts)), key=lambda i: scales[i].number < 0)
        parts, scales = [parts[i] for i in order], [scales[i] for i in order]
        letters = frozenset[Letter]().union(*(p.letters for p in parts))
        elements = self._elements(letters)
        moved = sum(p.elements for p in parts) + elements
        price = self._price((len(parts) - 1) * elements, moved)
        made = Node("total", letters, tuple(parts), None, tuple(scales), elements, price=price)
        return made if common.is_one else self._scaled(made, common)

    def _scaled(self, node: Node, scale: Scale) -> Node:
        """`node` times a scale, which multiplies the smallest of the node and its operands."""
        if node.kind == "product":
            small = min(node.parts, key=lambda p: p.elements)
            if small.elements < node.elements:
                i = node.parts.index(small)
                parts = list(node.parts)
                parts[i] = self._scaled(small, scale)
                return self._joined(parts[0], parts[1], node.letters)
        price = self._price(node.elements, 2 * node.elements)
        return Node("total", node.letters, (node,), None, (scale,), node.elements, price=price)

    def _rank(self, value: Expr | Bracket) -> int:
        """The number of a factor, by which factors are in the same order in every process."""
        return self._ranks.setdefault(value, len(self._ranks))

    # --- products ---

    def _product(self, term: ProductTerm, out: frozenset[Letter]) -> Node:
        key = (term.factors, out)
        if key not in self._products:
            self._products[key] = self._product_anew(term, out)
        return self._products[key]

    def _product_anew(self, term: ProductTerm, out: frozenset[Letter]) -> Node:
        factors = [part for f in term.factors for part in _apart(self._factor(f))]
        if not factors:
            return Node("leaf", _NOTHING, is_known_leaf=True)
        if len(factors) > _MOST_APART:
            factors = self._joined_alike(factors, out)
        n = len(factors)
        letters = [frozenset(f.letters) for f in factors]
        needed = [out.union(*(x for j, x in enumerate(letters) if j != i)) for i in range(n)]
        factors = [self._kept(f, x) for f, x in zip(factors, needed, strict=True)]
        if n > _MOST_TRIED:
            sizes = {x: self.extent(self.extents[x]) for x in out.union(*letters)}
            plans = [self._in_order(factors, out, order) for order in orders([f.letters for f in factors], out, sizes)]
            return min(plans, key=lambda p: p.cost)
        best = {1 << i: f for i, f in enumerate(factors)}
        apart = _are_apart(factors)
        for subset in range(1, 1 << n):
            if subset.bit_count() < 2:
                continue
            rest = frozenset[Letter]().union(*(x for j, x in enumerate(letters) if not subset >> j & 1)) | out
            low = subset & -subset
            found: tuple[float, Node, Node] | None = None
            part = (subset - 1) & subset
            while part:
                if part & low:
                    a, b = best[part], best[subset ^ part]
                    cost = a.cost + b.cost
                    if found is None or cost < found[0]:  # before the price of the joining, which takes the time
                        cost += self._joining(a, b, (a.letters | b.letters) & rest)
                        if found is None or cost < found[0]:
                            found = cost, a, b
                part = (part - 1) & subset
            assert found is not None
            _, a, b = found
            best[subset] = self._joined(a, b, (a.letters | b.letters) & rest, apart)
        return best[(1 << n) - 1]

    def _in_order(self, factors: Sequence[Node], out: frozenset[Letter], order: Order) -> Node:
        """The product of factors that are joined in this order."""
        left = list(factors)
        for step in order:
            taken = [left.pop(i) for i in sorted(step, reverse=True)]
            while len(taken) > 1:
                a, b = taken.pop(), taken.pop()
                needed = out.union(*(f.letters for f in (*left, *taken)))
                taken.append(self._joined(a, b, (a.letters | b.letters) & needed))
            left += taken
        (made,) = left
        return made

    def _joined_alike(self, factors: Sequence[Node], out: frozenset[Letter]) -> list[Node]:
        """The product of the factors of each set of letters. No other order takes less: before all factors with a
        letter are joined, the letter is not summed."""
        groups: dict[tuple[frozenset[Letter], bool], list[Node]] = {}
        for f in factors:
            groups.setdefault((f.letters, f.is_known_ahead), []).append(f)
        found: list[Node] = []
        for key, (made, *more) in groups.items():
            rest = out.union(*(letters for letters, ahead in groups if (letters, ahead) != key))
            for i, f in enumerate(more):
                made = self._joined(made, f, made.letters & rest if i == len(more) - 1 else made.letters)
            found.append(made)
        return found

    def _factor(self, access: Access) -> Node:
        if isinstance(access.value, Bracket):
            return self._bracket(access.value, access.letters)
        letters = frozenset(access.letters)
        known = self.is_known_ahead(access.value)
        return Node("leaf", letters, (), access, (), self._elements(letters), is_known_leaf=known)

    def _bracket(self, bracket: Bracket, letters: tuple[Letter, ...]) -> Node:
        key = (bracket, letters)
        if key not in self._brackets:
            names = dict(enumerate(letters))
            for i in range(bracket.rank, len(bracket.extents)):
                names[i] = len(self.extents)
                self.extents[names[i]] = bracket.extents[i]
            self._brackets[key] = self._sum([with_letters(t, names) for t in bracket.terms], frozenset(letters))
        return self._brackets[key]

    def _kept(self, node: Node, needed: frozenset[Letter]) -> Node:
        """`node` summed over the letters that nothing else needs."""
        kept = node.letters & needed
        if kept == node.letters:
            return node
        one = Node("leaf", _NOTHING, is_known_leaf=True)
        target = _target(node, one, kept)
        if target is not None:
            return self._scattered(one, target, kept)
        elements = self._elements(kept)
        price = self._price(node.elements, node.elements + elements)
        return Node("product", kept, (node,), None, (), elements, price=price, are_apart=True)

    def _joined(self, a: Node, b: Node, letters: frozenset[Letter], apart: bool = False) -> Node:
        """The product of two nodes; `apart`: whether they have no step in common."""
        price = self._multiplying(a, b, letters)
        runs = self._running(a, b, letters)
        if runs is not None and runs.cost < a.cost + b.cost + price:
            return runs
        return Node("product", letters, (a, b), None, (), self._elements(letters), price=price, are_apart=apart)

    def _running(self, a: Node, b: Node, letters: frozenset[Letter]) -> Node | None:
        """A product with a mask that compares letters, as a running sum, or with a mask that compares a letter with
        data, as the sum of what is added at its places."""
        for mask, x in ((a, b), (b, a)):
            along = _along(mask, x, letters, self.extents)
            if along is not None:
                elements = self._elements(letters)
                price = self._price(_RUNNING_FLOPS * x.elements, x.elements + elements)
                return Node("running", letters, (x,), None, (), elements, along, price=price, are_apart=True)
            target = _target(mask, x, letters)
            if target is not None:
                return self._scattered(x, target, letters)
        return None

    def _scattered(self, x: Node, target: Target, letters: frozenset[Letter]) -> Node:
        elements = self._elements(letters)
        updates = self._elements(x.letters.union(target.index.letters))
        price = self._price(_RUNNING_FLOPS * updates, updates + 2 * elements)
        return Node("scattered", letters, (x,), None, (), elements, None, target, price, are_apart=True)

    def _joining(self, a: Node, b: Node, letters: frozenset[Letter]) -> float:
        """The price of a product of two nodes, or of the running sum that it is."""
        price = self._multiplying(a, b, letters)
        runs = self._running(a, b, letters)
        return price if runs is None else min(price, runs.cost - a.cost - b.cost)

    def _multiplying(self, a: Node, b: Node, letters: frozenset[Letter]) -> float:
        """The price of a product of two nodes that is summed over the letters that are not in `letters`."""
        if a.is_known_ahead and b.is_known_ahead:
            return 0.0
        both = a.letters | b.letters
        contracts = letters != both
        flops = (2 if contracts else 1) * self._elements(both)
        shared = (a.letters & b.letters) - letters
        is_matmul = contracts and bool(a.letters - shared or b.letters - shared)
        moved = a.elements + b.elements + self._elements(letters)
        return self.price(flops, moved * itemsize(self.dtype), is_matmul)

    # --- prices ---

    def _elements(self, letters: frozenset[Letter]) -> float:
        found = self._counts.get(letters)
        if found is None:
            found = math.prod(float(max(self.extent(self.extents[x]), 1)) for x in letters)
            self._counts[letters] = found
        return found

    def _price(self, flops: float, elements: float) -> float:
        """The price of a step that does not contract."""
        return self.price(flops, elements * itemsize(self.dtype), False)


def _values(term: ProductTerm) -> list[int]:
    """The identities of the values that a term multiplies."""
    return [id(f.value) for f in term.factors]


def _along(mask: Node, x: Node, letters: frozenset[Letter], extents: Mapping[Letter, Dim]) -> Running | None:
    """How the product of `mask` and `x` is a running sum; None if it is none."""
    order = mask.access.order if mask.access is not None else None
    if order is None:
        return None
    offset = order.offset
    if order.lower not in letters:
        # The sum up to a place, plus the offset. Zeros behind the end do not change it.
        summed, place, extent = order.lower, order.upper, extents[order.upper]
        skipped, low = max(offset, 0), max(-offset, 0)
        high = extent + offset - extents[summed]
    else:
        # The sum from a place on, minus the offset. Elements before it do not matter.
        summed, place, extent = order.upper, order.lower, extents[order.lower]
        skipped, low = 0, offset
        high = extent - offset - extents[summed]
        if not high.is_const:
            return None
        high = Dim.of(max(high.value, 0))
    if summed not in x.letters or place in x.letters or letters != (x.letters - {summed}) | {place}:
        return None
    return Running(summed, place, summed == order.upper, Dim.of(low), high, skipped, extent)


def _target(mask: Node, x: Node, letters: frozenset[Letter]) -> Target | None:
    """Where the elements of `x` are added if `mask` and `x` are multiplied and summed; None if the product is no such
    sum."""
    target = mask.access.target if mask.access is not None else None
    if target is None or target.letter in x.letters:
        return None
    return target if letters == (x.letters - {*target.index.letters}) | {target.letter} else None


def _apart(node: Node) -> Iterator[Node]:
    """The factors of a node that multiplies without summing, which may be joined with others first."""
    if (
        node.kind == "product"
        and len(node.parts) == 2
        and node.letters == node.parts[0].letters | node.parts[1].letters
    ):
        for part in node.parts:
            yield from _apart(part)
    else:
        yield node


def _are_apart(factors: Sequence[Node]) -> bool:
    """Whether no two factors read the same value: then no step of a product of some is one of a product of others."""
    return sum(len(f.values) for f in factors) == len(frozenset[int]().union(*(f.values for f in factors)))


def _factored(
    terms: Sequence[ProductTerm], out: frozenset[Letter], extents: Mapping[Letter, Dim], rank: Rank, in_pairs: bool
) -> Iterable[tuple[ProductTerm, ...]]:
    """For each factor that several terms have, the terms with the factor taken out of these, as one term. `in_pairs`:
    of three terms, also out of each two."""
    groups: dict[Any, list[tuple[int, int]]] = {}
    for i, t in enumerate(terms):
        for j, f in enumerate(t.factors):
            key = (f.value, f.divides, tuple(x if x in out else ~f.letters.index(x) for x in f.letters))
            if all(i != k for k, _ in groups.setdefault(key, [])):
                groups[key].append((i, j))
    shared = [group for group in groups.values() if len(group) > 1]
    pairs = (pair for group in shared if in_pairs and len(group) == 3 for pair in itertools.combinations(group, 2))
    for group in (*shared, *pairs):
        yield _taken_out(terms, group, out, extents, rank)


def _taken_out(
    terms: Sequence[ProductTerm],
    group: Sequence[tuple[int, int]],
    out: frozenset[Letter],
    extents: Mapping[Letter, Dim],
    rank: Rank,
) -> tuple[ProductTerm, ...]:
    common = terms[group[0][0]].factors[group[0][1]]
    rests: list[ProductTerm] = []
    for i, j in group:
        t = terms[i]
        names = dict(zip(t.factors[j].letters, common.letters, strict=True))
        rest = replace(t, factors=(*t.factors[:j], *t.factors[j + 1 :]))
        rests.append(with_letters(rest, names))
    axes = [x for x in dict.fromkeys(y for r in rests for f in r.factors for y in f.letters)
            if x in out or x in common.letters]  # fmt: skip
    scale = _common_scale(rests)
    rests = [_divided(r, scale) for r in rests]
    bracket, letters = _bracket_of(rests, axes, extents, rank)
    made = ProductTerm(scale.number, scale.sizes, scale.divisors, (common, Access(bracket, letters)))  # pyright: ignore
    taken = {i for i, _ in group}
    return (*(t for i, t in enumerate(terms) if i not in taken), made)


def _common_scale(terms: Sequence[ProductTerm]) -> Scale:
    """What the coefficients of all terms have in common: everything but the sign, if that is the same, and the sign."""
    first = terms[0]
    sign = Fraction(-1 if all(t.coefficient < 0 for t in terms) else 1)
    same = all(
        abs(t.coefficient) == abs(first.coefficient) and t.sizes == first.sizes and t.divisors == first.divisors
        for t in terms
    )
    return Scale(sign * abs(first.coefficient), first.sizes, first.divisors) if same else Scale(sign)


def _divided(t: ProductTerm, by: Scale) -> ProductTerm:
    divided = replace(t, coefficient=t.coefficient / by.number)
    return divided if by.is_number else replace(divided, sizes=(), divisors=())


def _bracket_of(
    terms: Sequence[ProductTerm], axes: Sequence[Letter], extents: Mapping[Letter, Dim], rank: Rank
) -> tuple[Bracket, tuple[Letter, ...]]:
    """The bracket of `terms`, whose letters `axes` are its axes, with canonical letters; and its axes in order."""

    ordered = sorted(terms, key=lambda t: (sorted(rank(f.value) for f in t.factors), t.coefficient))
    # Axes are named by where they occur, so that equal brackets have equal terms.
    seen = list(dict.fromkeys(x for t in ordered for f in _in_order(t.factors, rank) for x in f.letters))
    order = [x for x in seen if x in axes]
    names = {x: i for i, x in enumerate([*order, *(x for x in seen if x not in axes)])}
    made = tuple(with_letters(replace(t, factors=_in_order(t.factors, rank)), names) for t in ordered)
    sizes = tuple(extents[x] for x in names)
    return Bracket(len(order), made, sizes), tuple(order)


def _in_order(factors: Iterable[Access], rank: Rank) -> tuple[Access, ...]:
    return tuple(sorted(factors, key=lambda f: rank(f.value)))
