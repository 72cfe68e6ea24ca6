"""Seconds of operators in their places in the kernels that XLA makes of a function."""

from __future__ import annotations

import math
from dataclasses import replace

from relax_eg.dtypes import itemsize
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.numbers import Number, choose, maximum, minimum
from relax_eg.extract.costs.operator_cost import OperatorCost
from relax_eg.extract.fusions.place import KernelPlace
from relax_eg.extract.fusions.seconds import (
    ARITHMETIC,
    LEAST,
    PLAIN_SUMS,
    STORED,
    elements_of,
    is_shared,
    loop_flops,
    one_by_one,
    operations,
    wakes_library,
)
from relax_eg.extract.profiles.profile import PAGE
from relax_eg.ir.annotations import Annotation, dims_of
from relax_eg.ops import Site, bytes_of, pattern_kind, site_of
from relax_eg.ops.movement import interleaves, moves_last_axis
from relax_eg.shapes import Dim
from relax_eg.tir.functions import TRANSCENDENTAL

# chosen: share of the traffic between the operators of a kernel of YNN, through the innermost cache, of what it would
# take through the cache that the profile measures
_BLOCKED = 0.5
_IN_LOOPS = 2.0  # chosen: how many times as long as in kernels of YNN exp, tanh and the like take in XLA's own loops
# chosen: how many times as long arithmetic takes one element after the other (5 to 6 on an Intel Xeon, jax 0.10.2)
_IN_TURN = 5.0
# given: pages whose places the second-level buffer of an x86-64 server's processor holds, at least
_PAGES_KNOWN = 1536
_FAR = 4.0  # chosen: how many times as long a transpose over more pages takes


def cost_in_place(model: OperatorCost, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace) -> NodeCost:
    """The cost of an operator in its place in the kernels of its function. `cost`: by itself."""
    p, moved = model.profile, model.evaluate(place.bytes)
    if p.platform == "cpu":
        if site.op in STORED:  # whatever else is in its kernel is priced there
            copied = p.move(2 * model.evaluate(place.workspace))
            seconds = cost.seconds + (place.launches - 1) * p.launch + copied
            return replace(cost, bytes=moved, launches=place.launches, seconds=seconds)
        seconds, wakes = _seconds_on_cpu(model, site, result, cost, place)
        cost = replace(cost, wakes=wakes)
    else:
        seconds = place.launches * p.launch
        if site.op in STORED:
            seconds = seconds + model.stored_seconds(site, result, cost.flops, moved)
        elif site.op in p.scalar_rate:
            seconds = seconds + cost.flops / p.scalar_rate[site.op] + p.move(moved)
        else:
            seconds = seconds + LEAST + cost.flops / p.vector_rate + p.move(moved)
    if model.corrections:
        seconds = seconds * model.kind(site, cost).factor(model.corrections)
    return replace(cost, bytes=moved, launches=place.launches, seconds=seconds)


def _seconds_on_cpu(
    model: OperatorCost, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace
) -> tuple[Number, Number]:
    """Seconds of an operator in its place in a kernel of XLA's compiler for CPUs, without corrections, and whether it
    ends a kernel that wakes other cores.

    A kernel takes the time of its arithmetic, or of its memory traffic if that takes longer. What the traffic takes
    longer counts for the operator that ends the kernel."""
    work = LEAST + _loop_seconds(model, site, result, cost, place, place.computed)
    if not place.launches:
        return work, False
    others: Number = 0.0
    flops, functions = operations(cost.flops, elements_of(model, result))
    for e, computed in place.inside:
        inner = site_of(e)
        if inner.op not in STORED:
            found, elements = model.price(inner, e.annotation), elements_of(model, e.annotation)
            others = others + _loop_seconds(model, inner, e.annotation, found, place, computed)
            share = model.evaluate(computed) / maximum(1, elements)
            more = operations(found.flops, elements)
            flops, functions = flops + share * more[0], functions + share * more[1]
    p, moved = model.profile, model.evaluate(place.bytes)
    waits = maximum(0, p.move(moved) - others - work)
    launched = place.launches * p.launch + (p.library_launch if place.is_library else 0.0)
    wakes = wakes_library(model, site, result) if place.is_library else is_shared(flops, functions, moved)
    return launched + work + waits + p.fresh(model.evaluate(bytes_of(result))), wakes


def _loop_seconds(
    model: OperatorCost, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace, computed: Dim | None
) -> Number:
    """Seconds of the arithmetic of an operator in a kernel. `computed`: the elements that are computed; None: those
    of the result."""
    p, elements = model.profile, elements_of(model, result)
    share = 1.0 if computed is None else model.evaluate(computed) / maximum(1, elements)
    flops = loop_flops(model, site, result, cost.flops)
    if place.is_library:
        moved = sum((model.evaluate(bytes_of(a)) for a in site.operands), model.evaluate(bytes_of(result)))
        return maximum(flops / p.vector_rate, _BLOCKED * moved / p.cache_bandwidth)
    is_expanded = model.expansion(site.op, site.operands) is not None
    is_vectorised = (is_expanded or site.op not in p.scalar_rate) and pattern_kind(site) in ARITHMETIC
    if is_vectorised and not is_expanded:
        flops = choose(flops >= TRANSCENDENTAL * elements, _IN_LOOPS, 1.0) * flops
    seconds = share * flops / model.loop_rate(site.op, site.operands)
    if is_vectorised and place.in_turn:
        seconds = _IN_TURN * seconds
    if site.op in PLAIN_SUMS:
        seconds = seconds + one_by_one(model, share * flops)
    if p.transpose_rate and moves_last_axis(site) and not place.in_order:
        seconds = seconds + share * elements / p.transpose_rate * _far(model, site, result)
    if p.transpose_rate and interleaves(site):
        seconds = seconds + share * elements / p.transpose_rate
    return seconds


def _far(model: OperatorCost, site: Site, result: Annotation) -> Number:
    """How many times as long as `transpose_rate` says a transpose takes: longer where the elements of a row of its
    result are on more pages than a processor knows the places of."""
    shape = [model.evaluate(d) for d in dims_of(site.operands[0])]
    axis = site["axes"][-1]
    step = math.prod(shape[axis + 1 :]) * itemsize(site.dtype(0))
    return choose(shape[axis] * minimum(1, step / PAGE) >= _PAGES_KNOWN, _FAR, 1.0)
