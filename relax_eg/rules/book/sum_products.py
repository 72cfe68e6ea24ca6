"""The same sum of products, with common factors taken out and tensors contracted in the cheapest order found.

One rule in place of many spelled laws: associativity, distribution, sums and slices pushed into products, identity and
one-hot matrices, traces and diagonals of products, whichever operators the program writes them with. The plans are made
for the device's rates and for the fewest flops, at the sizes for which the program is optimized.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ops.record import TABLE
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schema_trials import sums_of_products
from relax_eg.rules.schemas import Functions, Schema
from relax_eg.rules.sum_products.region import Region, region_of, terms_of
from relax_eg.shapes import Dim

_SECONDS = 1.0  # limit: processor time of reading a region, and of a proof

_OPERATORS = frozenset(name for name, o in TABLE.items() if o.equations is not None)


def _propose(e: Expr, known: Functions) -> tuple[Expr, ...] | None:
    if terms_of(e) is None or not _is_root(e, known):
        return None
    found: dict[Expr, None] = {}
    for region in _regions(e, known):
        found.update(dict.fromkeys(_forms(region, known)))
    return tuple(found) or None


def _is_root(e: Expr, known: Functions) -> bool:
    """Whether `e` has a reader that does not add or multiply, no reader, or several."""
    readers = known.readers(e)
    return len(readers) != 1 or terms_of(readers[0]) is None


def _regions(e: Expr, known: Functions) -> Iterator[Region]:
    """The region in which values with several readers are leaves, and the one in which they are not."""
    cut = region_of(e, lambda x: len(known.readers(x)) > 1)
    if cut is not None and cut.may_gain:
        yield cut
    through = region_of(e, lambda x: False)
    if through is not None and through.may_gain and (cut is None or through.leaves != cut.leaves):
        yield through


def _forms(region: Region, known: Functions) -> Iterator[Expr]:
    """The forms of a region that are shown equal to it, without its own."""
    # z3 and the prover are imported by nothing else here.
    from relax_eg.rules.sum_products.emit import Emitter
    from relax_eg.rules.sum_products.letters import sum_of_products
    from relax_eg.rules.sum_products.plan import Planner
    from relax_eg.rules.verify_formal.compose import Unsupported
    from relax_eg.rules.verify_formal.guards import Deadline, OutOfTime
    from relax_eg.rules.verify_formal.prove import why_not_equal

    try:
        target = sum_of_products(region, Deadline(time.process_time() + _SECONDS))
    except (Unsupported, OutOfTime):
        return
    tried = {region.root}
    for extent, price in _objectives(known):
        extents = dict(target.extents)
        plan = Planner(extents, extent, price, region.root.dtype).best(target) if target.terms else None
        try:
            form = Emitter(target, extents).expression(plan)
        except RelaxEgError:  # an operator that does not exist at this dtype
            continue
        if form not in tried:
            tried.add(form)
            if not why_not_equal(region.root, form, region.leaves, _SECONDS):
                yield form


def _objectives(known: Functions) -> Iterator[tuple[Callable[[Dim], int], Callable[[float, float, bool], float]]]:
    """What plans are made for: sizes and prices."""
    yield known.extent, known.seconds
    yield known.extent, lambda flops, moved, contracts: flops
    yield known.most, known.seconds


def _prove(left: Expr, right: Expr) -> str:
    from relax_eg.rules.verify_formal.prove import why_not_equal

    there = set(postorder((right,)))
    leaves: dict[Expr, None] = {}
    for e in postorder((left,), stop=lambda e: e is not left and (e in there or terms_of(e) is None)):
        if e is not left and (terms_of(e) is None or (e in there and e.args)):
            leaves[e] = None
    return why_not_equal(left, right, tuple(leaves), _SECONDS)


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
            _prove,
        ),
    ),
)
