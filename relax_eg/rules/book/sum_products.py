"""The same sum of products, with common factors taken out and tensors contracted in the cheapest order found.

One rule in place of many spelled laws: associativity, distribution, sums and slices pushed into products, identity and
one-hot matrices, traces and diagonals of products, whichever operators the program writes them with. The plans are made
for the device's rates and for the fewest flops, at the sizes for which the program is optimized.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from relax_eg.dtypes import is_float, itemsize
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import VAR, Expr, own_dims, postorder, var
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, program_of, site_of
from relax_eg.rules.answer_cache import AnswerCache, data_as_expressions, expressions_as_data
from relax_eg.rules.checking.points import related
from relax_eg.rules.checking.value_trials import sums_of_products
from relax_eg.rules.facts.fact_rules import NONEMPTY
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, schema
from relax_eg.rules.sums_of_products.region import (
    ARITHMETIC,
    COMPARISONS,
    Region,
    divisors_of,
    is_view,
    keeps_range,
    region_of,
    sums,
    terms_of,
    widens,
)
from relax_eg.shapes import Dim
from relax_eg.tir.analyze import stage_flops
from relax_eg.tir.expr import Reduce
from relax_eg.tir.functions import FUNCTIONS

if TYPE_CHECKING:
    from relax_eg.rules.sums_of_products.letters import SumOfProducts
    from relax_eg.rules.sums_of_products.nodes import Node

Extent = Callable[[Dim], int]
Price = Callable[[float, float, bool], float]

# limit: share of the cost as written below which a plan of as many steps is proposed: a tenth of a percent, to which
# `benchmarks.laws` compares flops.
_CHEAPER = 0.999
# limit: seconds of processor time of reading a region. Regions are read in milliseconds; a garbage collection that
# happens then takes up to 0.2 s and must not decide what is proposed.
_READING = 1.0
# limit: values of a region that others read too, and that its forms would compute a second time. A residual stream has
# one more in each layer.
_MOST_SHARED = 2
# limit: seconds of processor time of the proof of a form; most take a hundredth of it. The first one of a process on a
# busy machine may take half a second.
_PROVING = 1.5
_CHECKING = 10.0  # limit: seconds of processor time of the proof of a step of a derivation

_PRODUCTS = ARITHMETIC - {"add", "subtract", "negative"}
_FACTS = frozenset((NONEMPTY,))
_OPERATORS = frozenset(
    name
    for name, o in TABLE.items()
    if o.equations is not None and (name not in FUNCTIONS or name in ARITHMETIC or name in COMPARISONS)
)


def same_sum_of_products(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """sums of products with the same terms are equal"""
    if not _is_part(e) or not _is_root(e, queries):
        return None
    found: dict[Expr, None] = {}
    for region in _regions(e, queries):
        found.update(dict.fromkeys(forms_of(region, queries, queries.seconds)))
    return tuple(found) or None


def _is_part(e: Expr) -> bool:
    """Whether `e` is a sum of products that may be taken apart."""
    return terms_of(e) is not None and not keeps_range(e)


def _is_root(e: Expr, queries: ProgramQueries) -> bool:
    """Whether `e` has a reader that does not add or multiply, or that divides by it or a view of it, or no reader, or
    several. A condition is one if a reader is none."""
    if e.dtype == "bool":
        readers = queries.readers(e)
        return not readers or any(not _is_bool(r) or terms_of(r) is None for r in readers)
    x = e
    while True:
        readers = queries.readers(x)
        if len(readers) != 1 or not _is_part(readers[0]):
            return x is e
        (reader,) = readers
        if any(reader.args[i] is x for i in divisors_of(reader)):
            return True
        if not is_view(reader):
            return False
        x = reader


def _is_bool(e: Expr) -> bool:
    return isinstance(e.annotation, Tensor) and e.annotation.dtype == "bool"


def _regions(e: Expr, queries: ProgramQueries) -> Iterator[Region]:
    """The region in which values with several readers are leaves, unless they are views, and the one in which they are
    not. Where values are summed that a narrower float was rounded to before, the region without that rounding too, and
    the one that goes on rounding products."""

    def is_shared(x: Expr) -> bool:
        return keeps_range(x) or (len(queries.readers(x)) > 1 and not is_view(x))

    cut = region_of(e, is_shared)
    if cut is not None and cut.may_gain:
        yield cut
    if cut is not None and any(map(widens, cut.leaves)):
        for is_cut in (is_shared, lambda x: is_shared(x) or _is_narrow_product(x, e)):
            unrounded = region_of(e, is_cut, unrounded=True)
            if unrounded is not None and unrounded.may_gain and _sums_anew(unrounded, cut):
                yield unrounded
    through = region_of(e, keeps_range)
    if through is not None and through.may_gain and (cut is None or through.leaves != cut.leaves):
        inside = set(through.nodes)
        computed = (x for x in through.nodes if x is not e and not is_view(x))
        shared = (x for x in computed if any(r not in inside for r in queries.readers(x)))
        if sum(1 for _ in shared) <= _MOST_SHARED:
            yield through


def _is_narrow_product(x: Expr, root: Expr) -> bool:
    """Whether `x` multiplies elements in a float other than that of `root`."""
    return x.op in _PRODUCTS and x.dtype != root.dtype and is_float(x.dtype)


def _sums_anew(unrounded: Region, cut: Region) -> bool:
    """Whether a region sums values that it does not round to a narrower float before, as `cut` does."""
    return unrounded.leaves != cut.leaves and any(x.dtype == cut.root.dtype and sums(x) for x in unrounded.nodes)


@dataclass(frozen=True)
class _Question:
    """A region and everything else that its forms follow from.

    - `region`: the region over variables in place of its leaves.
    - `shares`: for each node, the share of its cost that the region pays; 0 if it is known ahead.
    - `known_ahead`: the leaves that are known ahead.
    - `nonempty`: the leaves that are not empty.
    - `sizes`, `largest`: by name, the value of each size as written, and at the largest sizes.
    - `rates`: prices of steps, by which those of other devices differ.
    """

    region: Region
    shares: tuple[float, ...]
    known_ahead: frozenset[Expr]
    nonempty: frozenset[Expr]
    sizes: tuple[tuple[str, int], ...]
    largest: tuple[tuple[str, int], ...]
    rates: tuple[float, ...]

    @property
    def about(self) -> tuple[Any, ...]:
        """What the forms follow from besides the root and the leaves."""
        of_leaves = [(x in self.known_ahead, x in self.nonempty) for x in self.region.leaves]
        return self.shares, *of_leaves, self.sizes, self.largest, self.rates

    def is_known_ahead(self, e: Expr) -> bool:
        leaves = [x for x in postorder((e,)) if x.op == VAR]
        return bool(leaves) and all(x in self.known_ahead for x in leaves)


# Layers repeat, and a chosen program mostly has the regions of the program as written.
_MOST_KNOWN = 1 << 12  # limit: questions whose forms are kept; one that is evicted is asked again
_known = AnswerCache[tuple[Expr | None, ...]]("sums of products", _MOST_KNOWN, expressions_as_data, data_as_expressions)


def forms_of(region: Region, queries: ProgramQueries, seconds: Price) -> Iterator[Expr]:
    """The forms of a region that are predicted to cost less than the region as written, and are shown equal to it.
    `seconds`: the price of a step, as of `ProgramQueries`."""
    variables = {x: var(f"leaf {i}", x.annotation) for i, x in enumerate(region.leaves)}
    leaves = related(region.leaves, variables)
    question = _question(region, leaves, queries, seconds)
    asked = question.region.root, *question.region.leaves
    forms = _known.answer(asked, question.about, _PROVING, lambda: tuple(_forms_anew(question, seconds)))
    back = {made: x for x, made in leaves.items()}
    for form in forms:
        if form is not None:
            yield from substitute_exprs((form,), back)


def _question(region: Region, leaves: Mapping[Expr, Expr], queries: ProgramQueries, seconds: Price) -> _Question:
    root, *nodes = substitute_exprs((region.root, *region.nodes), leaves)
    inside = set(region.nodes)
    shares: list[float] = []
    depends = _depending(region)
    for e in region.nodes:
        readers = () if e is region.root else queries.readers(e)
        share = sum(r in inside for r in readers) / len(readers) if readers else 1.0
        shares.append(0.0 if e in depends and queries.is_known_ahead(e) else share)
    names = sorted({n for e in (*region.nodes, *region.leaves) for d in own_dims(e) for n in d.variables})
    made = replace(
        region,
        root=root,
        nodes=tuple(nodes),
        leaves=tuple(leaves[x] for x in region.leaves),
        products=(),  # whether it may gain was asked before
    )
    return _Question(
        made,
        tuple(shares),
        frozenset(leaves[x] for x in region.leaves if queries.is_known_ahead(x)),
        frozenset(leaves[x] for x in _nonempty(region.leaves, queries.facts)),
        tuple((n, queries.extent(Dim.var(n))) for n in names),
        tuple((n, queries.largest_value(Dim.var(n))) for n in names),
        tuple(seconds(*step) for step in _STEPS),
    )


def _depending(region: Region) -> set[Expr]:
    """The nodes that depend on leaves. The others are computed at every call, since sizes may differ."""
    found = set(region.leaves)
    for e in postorder((region.root,), stop=found.__contains__):
        if any(a in found for a in e.args):
            found.add(e)
    return found


# given: a step each of arithmetic in a contraction, other arithmetic, data movement, and nothing.
_STEPS = ((1.0, 0.0, True), (1.0, 0.0, False), (0.0, 1.0, False), (0.0, 0.0, False))


def _forms_anew(question: _Question, seconds: Price) -> Iterator[Expr]:
    # z3 and the prover are imported by nothing else here.
    from relax_eg.rules.sums_of_products.emit import Emitter
    from relax_eg.rules.sums_of_products.letters import Joined, sums_of_products
    from relax_eg.rules.verify_formal.compose import Unsupported
    from relax_eg.rules.verify_formal.guards import Deadline, OutOfTime
    from relax_eg.rules.verify_formal.prove import why_not_equal

    region = question.region
    try:
        targets = sums_of_products(region, Deadline(time.thread_time() + _READING))
    except (Unsupported, OutOfTime, RelaxEgError):
        return
    tried = {region.root}
    for target in targets:
        parts = target.parts if isinstance(target, Joined) else (target,)
        asked: set[tuple[bool, tuple[int, ...]]] = set()
        for by_flops, values in ((False, question.sizes), (True, question.sizes), (False, question.largest)):
            extent = partial(_extent, dict(values))
            key = by_flops, tuple(extent(n) for t in parts for n in t.extents.values())
            if key in asked:
                continue
            asked.add(key)
            price = _flops if by_flops else seconds
            plans = [_planned(t, extent, price, question) for t in parts]
            if any(len(t.terms) > 1 for t in parts if t.dtype == "bool"):
                continue  # cases of a condition, which are no summands
            gain = _gain([p for p, _ in plans if p is not None], question, extent, price)
            if gain == "none":
                continue
            try:
                made = [Emitter(t, extents, extent).expression(p) for t, (p, extents) in zip(parts, plans, strict=True)]
                form = op.concat(made, target.axis) if isinstance(target, Joined) else made[0]
            except RelaxEgError:  # an operator that does not exist at this dtype
                continue
            if form not in tried and (gain == "cost" or _operators(form) < _operators(region.root)):
                tried.add(form)
                facts = dict.fromkeys(question.nonempty, _FACTS)
                if not why_not_equal(region.root, form, region.leaves, _PROVING, facts=facts):
                    yield form


def _planned(
    target: SumOfProducts, extent: Extent, price: Price, question: _Question
) -> tuple[Node | None, dict[int, Dim]]:
    """The best plan, None for zeros, and the sizes of its letters."""
    from relax_eg.rules.sums_of_products.plan import Planner

    extents = dict(target.extents)
    planner = Planner(extents, extent, price, question.region.root.dtype, question.is_known_ahead)
    return (planner.best(target) if target.terms else None), extents


def _extent(values: Mapping[str, int], size: Dim) -> int:
    return int(size.evaluate(values))


def _flops(flops: float, moved: float, contracts: bool) -> float:
    return flops


def _gain(
    plans: Sequence[Node], question: _Question, extent: Extent, price: Price
) -> Literal["cost", "operators", "none"]:
    """Whether plans together cost less than a region as written by enough, or with fewer steps by anything; "operators"
    if they cost as much, so that they gain if they are written with fewer operators."""
    if question.region.root.dtype == "bool":
        return "operators"
    cost, steps = _cost_as_written(question, extent, price)
    planned, own = sum(p.cost for p in plans), sum(len(p.costs) for p in plans)
    if not plans or planned < (cost if own < steps else _CHEAPER * cost):
        return "cost"
    return "operators" if planned <= cost and own <= steps else "none"


def _operators(e: Expr) -> int:
    return sum(bool(x.args) for x in postorder((e,)))


def _cost_as_written(question: _Question, extent: Extent, price: Price) -> tuple[float, int]:
    """What the operators of a region cost in the terms of its plans, and the number of those that compute. A value that
    others read too is paid by each of its readers in part, so that it is not computed a second time where that costs
    more than it saves."""
    total, steps, root = 0.0, 0, question.region.root.dtype
    for e, share in zip(question.region.nodes, question.shares, strict=True):
        made = program_of(site_of(e)) if e.op in TABLE and TABLE[e.op].moves is None else None
        is_summed = e.dtype == root or (is_float(e.dtype) and is_float(root))
        if made is None or not made.inputs or not is_summed or not share:
            continue  # positions and conditions cost next to nothing, here as in plans
        (stage,) = made.stages
        elements = [math.prod(map(extent, x.shape)) for x in (e, *e.args)]
        contracts = len(made.inputs) > 1 and isinstance(stage.value, Reduce)
        total += share * price(extent(stage_flops(stage)), sum(elements) * itemsize(e.dtype), contracts)
        steps += 1
    return total, steps


def why_not_same_sum(left: Expr, right: Expr, facts: FactsOf, functions: Mapping[str, Function]) -> str:
    """Why two expressions are not shown to be the same sum of products; empty if they are."""
    from relax_eg.rules.verify_formal.prove import why_not_equal

    there = set(postorder((right,)))
    shared: dict[Expr, None] = {}
    for e in postorder((left,), stop=lambda e: e is not left and (e in there or terms_of(e) is None)):
        if e is not left and (terms_of(e) is None or (e in there and e.args)):
            shared[e] = None
    known = dict.fromkeys(_nonempty(shared, facts), _FACTS)
    why = why_not_equal(left, right, tuple(shared), _CHECKING, facts=known)
    for unrounded in (False, True):
        region = region_of(left, lambda x: False, unrounded) if why else None
        if region is not None:
            known = dict.fromkeys(_nonempty(region.leaves, facts), _FACTS)
            why = why_not_equal(left, right, region.leaves, _CHECKING, facts=known)
    return why


def _nonempty(leaves: Iterable[Expr], facts: FactsOf) -> list[Expr]:
    return [x for x in leaves if NONEMPTY in facts(x)]


sum_products = RuleSet(
    "sum_products",
    schemas=(
        schema(
            same_sum_of_products,
            "reassociate",
            ("sum_products",),
            _OPERATORS,
            (sums_of_products,),
            asks_again=True,
            facts=_FACTS,
            prove=why_not_same_sum,
        ),
    ),
)
