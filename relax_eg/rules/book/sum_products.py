"""The same sum of products, with common factors taken out and tensors contracted in the cheapest order found.

One rule in place of many spelled laws: associativity, distribution, sums and slices pushed into products, identity and
one-hot matrices, traces and diagonals of products, whichever operators the program writes them with. The plans are made
for the device's rates and for the fewest flops, at the sizes for which the program is optimized.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relax_eg.dtypes import itemsize
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import VAR, Expr, postorder, var
from relax_eg.ir.heads import with_operands
from relax_eg.memo import Memo
from relax_eg.ops.record import TABLE, program_of, site_of
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schema_trials import sums_of_products
from relax_eg.rules.schemas import FactsOf, ProgramQueries, Schema
from relax_eg.rules.sums_of_products.region import ARITHMETIC, Region, divisors_of, is_view, region_of, terms_of
from relax_eg.shapes import Dim
from relax_eg.tir.analyze import stage_flops
from relax_eg.tir.expr import Reduce
from relax_eg.tir.functions import FUNCTIONS

if TYPE_CHECKING:
    from relax_eg.rules.sums_of_products.plan import Node

Extent = Callable[[Dim], int]
Price = Callable[[float, float, bool], float]

# limit: share of the cost as written below which a plan of as many steps is proposed. At 0.98 two more programs of the
# corpus gain, by 2 and 8%, and a residual stream of six blocks has three times the nodes.
_CHEAPER = 0.9
# limit: seconds of processor time of reading a region. Regions are read in milliseconds; a garbage collection that
# happens then takes up to 0.2 s and must not decide what is proposed.
_READING = 1.0
_PROVING = 2.0  # limit: seconds of processor time of the proof of a form; most take a hundredth of it
_CHECKING = 10.0  # limit: seconds of processor time of the proof of a step of a derivation

_OPERATORS = frozenset(
    name for name, o in TABLE.items() if o.equations is not None and (name not in FUNCTIONS or name in ARITHMETIC)
)


def _propose(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    if terms_of(e) is None or not _is_root(e, queries):
        return None
    found: dict[Expr, None] = {}
    for region in _regions(e, queries):
        found.update(dict.fromkeys(_forms(region, queries)))
    return tuple(found) or None


def _is_root(e: Expr, queries: ProgramQueries) -> bool:
    """Whether `e` has a reader that does not add or multiply, or that divides by it or a view of it, or no reader, or
    several."""
    x = e
    while True:
        readers = queries.readers(x)
        if len(readers) != 1 or terms_of(readers[0]) is None:
            return x is e
        (reader,) = readers
        if any(reader.args[i] is x for i in divisors_of(reader)):
            return True
        if not is_view(reader):
            return False
        x = reader


def _regions(e: Expr, queries: ProgramQueries) -> Iterator[Region]:
    """The region in which values with several readers are leaves, and the one in which they are not."""
    cut = region_of(e, lambda x: len(queries.readers(x)) > 1)
    if cut is not None and cut.may_gain:
        yield cut
    through = region_of(e, lambda x: False)
    if through is not None and through.may_gain and (cut is None or through.leaves != cut.leaves):
        yield through


@dataclass(frozen=True)
class _Question:
    """A region and everything else that its forms follow from.

    - `region`: the region over variables in place of its leaves.
    - `shares`: for each node, the share of its cost that the region pays; 0 if it is known ahead.
    - `known_ahead`: the leaves that are known ahead.
    - `sizes`, `largest`: by name, the value of each size as written, and at the largest sizes.
    - `rates`: prices of steps, by which those of other devices differ.
    """

    region: Region
    shares: tuple[float, ...]
    known_ahead: frozenset[Expr]
    sizes: tuple[tuple[str, int], ...]
    largest: tuple[tuple[str, int], ...]
    rates: tuple[float, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return self.region.root, self.shares, self.known_ahead, self.sizes, self.largest, self.rates

    def is_known_ahead(self, e: Expr) -> bool:
        leaves = [x for x in postorder((e,)) if x.op == VAR]
        return bool(leaves) and all(x in self.known_ahead for x in leaves)


# Layers repeat, and a chosen program mostly has the regions of the program as written.
_MOST_KNOWN = 1 << 12  # limit: questions whose forms are kept; one that is evicted is asked again
_known = Memo[tuple[Any, ...], tuple[Expr, ...]](_MOST_KNOWN)


def _forms(region: Region, queries: ProgramQueries) -> Iterator[Expr]:
    """The forms of a region that are predicted to cost less than the region as written, and are shown equal to it."""
    leaves = {x: var(f"leaf {i}", x.annotation) for i, x in enumerate(region.leaves)}
    question = _question(region, leaves, queries)
    if question.key not in _known:
        _known[question.key] = tuple(_forms_anew(question, queries.seconds))
    back = {made: x for x, made in leaves.items()}
    for form in _known[question.key]:
        yield _replaced((form,), back)[form]


def _question(region: Region, leaves: Mapping[Expr, Expr], queries: ProgramQueries) -> _Question:
    over = _replaced((region.root,), leaves)
    inside = set(region.nodes)
    shares: list[float] = []
    for e in region.nodes:
        readers = () if e is region.root else queries.readers(e)
        share = sum(r in inside for r in readers) / len(readers) if readers else 1.0
        shares.append(0.0 if queries.is_known_ahead(e) else share)
    names = sorted({n for e in (*region.nodes, *region.leaves) for n in _size_names(e)})
    made = replace(
        region,
        root=over[region.root],
        nodes=tuple(over[e] for e in region.nodes),
        leaves=tuple(leaves.values()),
        products=(),  # whether it may gain was asked before
    )
    return _Question(
        made,
        tuple(shares),
        frozenset(leaves[x] for x in region.leaves if queries.is_known_ahead(x)),
        tuple((n, queries.extent(Dim.var(n))) for n in names),
        tuple((n, queries.largest_value(Dim.var(n))) for n in names),
        tuple(queries.seconds(*step) for step in _STEPS),
    )


def _size_names(e: Expr) -> Iterator[str]:
    attributes = (v for _, value in e.attrs for v in (value if isinstance(value, tuple) else (value,)))
    for d in (*e.shape, *attributes):
        if isinstance(d, Dim):
            yield from d.variables


# given: a step each of arithmetic in a contraction, other arithmetic, data movement, and nothing.
_STEPS = ((1.0, 0.0, True), (1.0, 0.0, False), (0.0, 1.0, False), (0.0, 0.0, False))


def _replaced(roots: tuple[Expr, ...], by: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """The expressions below `roots` with some of them replaced."""
    found = dict(by)
    for e in postorder(roots, stop=by.__contains__):
        if e not in found:
            found[e] = with_operands(e, tuple(found[a] for a in e.args)) if e.args else e
    return found


def _forms_anew(question: _Question, seconds: Price) -> Iterator[Expr]:
    # z3 and the prover are imported by nothing else here.
    from relax_eg.rules.sums_of_products.emit import Emitter
    from relax_eg.rules.sums_of_products.letters import sum_of_products
    from relax_eg.rules.sums_of_products.plan import Planner
    from relax_eg.rules.verify_formal.compose import Unsupported
    from relax_eg.rules.verify_formal.guards import Deadline, OutOfTime
    from relax_eg.rules.verify_formal.prove import why_not_equal

    region = question.region
    try:
        target = sum_of_products(region, Deadline(time.thread_time() + _READING))
    except (Unsupported, OutOfTime, RelaxEgError):
        return
    tried = {region.root}
    asked: set[tuple[bool, tuple[int, ...]]] = set()
    for by_flops, values in ((False, question.sizes), (True, question.sizes), (False, question.largest)):
        extent = partial(_extent, dict(values))
        key = by_flops, tuple(map(extent, target.extents.values()))
        if key in asked:
            continue
        asked.add(key)
        price = _flops if by_flops else seconds
        extents = dict(target.extents)
        planner = Planner(extents, extent, price, region.root.dtype, question.is_known_ahead)
        plan = planner.best(target) if target.terms else None
        if plan is not None and not _is_cheaper(plan, question, extent, price):
            continue
        try:
            form = Emitter(target, extents).expression(plan)
        except RelaxEgError:  # an operator that does not exist at this dtype
            continue
        if form not in tried:
            tried.add(form)
            if not why_not_equal(region.root, form, region.leaves, _PROVING):
                yield form


def _extent(values: Mapping[str, int], size: Dim) -> int:
    return int(size.evaluate(values))


def _flops(flops: float, moved: float, contracts: bool) -> float:
    return flops


def _is_cheaper(plan: Node, question: _Question, extent: Extent, price: Price) -> bool:
    """Whether a plan costs less than a region as written by enough, or with fewer steps by anything."""
    cost, steps = _cost_as_written(question, extent, price)
    return plan.cost < (cost if len(plan.costs) < steps else _CHEAPER * cost)


def _cost_as_written(question: _Question, extent: Extent, price: Price) -> tuple[float, int]:
    """What the operators of a region cost in the terms of its plans, and the number of those that compute. A value that
    others read too is paid by each of its readers in part, so that it is not computed a second time where that costs
    more than it saves."""
    total, steps = 0.0, 0
    for e, share in zip(question.region.nodes, question.shares, strict=True):
        made = program_of(site_of(e)) if e.op in TABLE and TABLE[e.op].moves is None else None
        if made is None or not made.inputs or e.dtype != question.region.root.dtype or not share:
            continue  # positions and conditions cost next to nothing, here as in plans
        (stage,) = made.stages
        elements = [math.prod(map(extent, x.shape)) for x in (e, *e.args)]
        contracts = len(made.inputs) > 1 and isinstance(stage.value, Reduce)
        total += share * price(extent(stage_flops(stage)), sum(elements) * itemsize(e.dtype), contracts)
        steps += 1
    return total, steps


def _prove(left: Expr, right: Expr, facts: FactsOf) -> str:
    from relax_eg.rules.verify_formal.prove import why_not_equal

    there = set(postorder((right,)))
    shared: dict[Expr, None] = {}
    for e in postorder((left,), stop=lambda e: e is not left and (e in there or terms_of(e) is None)):
        if e is not left and (terms_of(e) is None or (e in there and e.args)):
            shared[e] = None
    why = why_not_equal(left, right, tuple(shared), _CHECKING)
    region = region_of(left, lambda x: False) if why else None
    return why_not_equal(left, right, region.leaves, _CHECKING) if region is not None else why


sum_products = RuleSet(
    "sum_products",
    schemas=(
        Schema(
            "same_sum_of_products",
            "sums of products with the same terms are equal",
            "reassociate",
            frozenset(("sum_products",)),
            _propose,
            _OPERATORS,
            (sums_of_products,),
            asks_again=True,
            prove=_prove,
        ),
    ),
)
