"""Seconds of operators in the kernels that XLA makes of a function."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from relax_eg.dtypes import itemsize, kind
from relax_eg.extract.cost_model import NodeCost
from relax_eg.extract.fusions.operators import MATMULS
from relax_eg.extract.fusions.place import KernelPlace
from relax_eg.extract.implied_matmuls import LEAST_ELEMENTS
from relax_eg.extract.numbers import Number, choose, maximum, minimum
from relax_eg.extract.profile import PAGE
from relax_eg.ir.annotations import Annotation, dims_of
from relax_eg.ops import Site, bytes_of, pattern_kind, site_of
from relax_eg.ops.movement import moves_last_axis
from relax_eg.ops.record import TABLE, operators_run_as
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind
from relax_eg.tir.functions import TRANSCENDENTAL

if TYPE_CHECKING:
    from relax_eg.extract.cost import WholeCost

DENSE = operators_run_as("factorisation", "solve")  # every operator here contains blocked arithmetic
# XLA may keep the results of other operators inside the kernel that reads them.
STORED = DENSE | MATMULS | operators_run_as("conv")
ARITHMETIC = frozenset((PatternKind.ELEMENT_WISE, PatternKind.BROADCAST))
LEAST = 1e-9  # chosen: seconds: least price of a node; at price 0 the choice would collect useless nodes
# chosen: share of the traffic between the operators of a kernel of YNN, through the innermost cache, of what it would
# take through the cache that the profile measures
_BLOCKED = 0.5
_IN_LOOPS = 2.0  # chosen: how many times as long as in kernels of YNN exp, tanh and the like take in XLA's own loops
# given: pages whose places the second-level buffer of an x86-64 server's processor holds, at least
_PAGES_KNOWN = 1536
_WINDOW = 32  # given: elements that one kernel adds where XLA's own code for CPUs reduces in several
LIBRARY_SUMS = frozenset(("sum", "max", "min"))  # given: the reductions that YNN has
PLAIN_SUMS = LIBRARY_SUMS | {"prod", "any", "all"}  # given: the reductions that XLA's own code splits
# chosen: additions/s of XLA's own reductions, which add one element after the other (0.3 to 0.5 ns each on an Intel
# Xeon, jax 0.10.2)
_ONE_BY_ONE = 3e9
_FAR = 4.0  # chosen: how many times as long a transpose over more pages takes
# given: elements from which on a kernel of YNN's reduces with several cores (31,684 do not, 33,856 do; jax 0.10.2)
SHARED_ELEMENTS = 32768
# given: when XLA divides a loop among the cores of a CPU (`ParallelTaskAssigner`, by what jax 0.10.2 compiles): from so
# many bytes read and written on, if it has at most one flop for each; else from a cost on, with so much for a byte and
# for a function such as exp
SHARED_BYTES, _SHARED_COST, _OF_BYTE, _OF_FUNCTION = 512 << 10, 200_000, 10, 2


def sum_steps(length: float) -> int:
    """The kernels in which XLA's own code for CPUs adds `length` elements to one."""
    found = 1
    while length > _WINDOW:
        length, found = length / _WINDOW, found + 1
    return found


def reduced_alone(model: WholeCost, site: Site, result: Annotation, cost: NodeCost) -> NodeCost:
    """The cost of an operator of which nothing else is in its kernels on a CPU, with the kernels in which it reduces.
    `cost`: as one kernel of vectorised arithmetic."""

    def elements(a: Annotation) -> float:
        return math.prod(map(model.representative, dims_of(a)))

    p, serial = model.profile, 0.0
    if site.op in MATMULS and elements(result) == 1:
        launches, library = 1 + sum_steps(model.representative(site.shape(0)[-1])), 0.0
    elif site.op in PLAIN_SUMS:
        read = elements(site.operands[0])
        is_library = p.sums_as_matmuls and read >= LEAST_ELEMENTS and site.op in LIBRARY_SUMS
        if is_library and kind(site.dtype(0)) == "f":
            launches, library = 1, p.library_launch
        else:
            launches, library = sum_steps(read / max(1.0, elements(result))), 0.0
            serial = _one_by_one(model, cost.flops)
    else:
        return cost
    seconds = cost.seconds + (launches - 1) * p.launch + library + serial
    return replace(cost, launches=launches, seconds=seconds)


def _one_by_one(model: WholeCost, flops: Number) -> Number:
    """How much longer a reduction by XLA's own code takes than vectorised arithmetic."""
    return maximum(0, flops / _ONE_BY_ONE - flops / model.profile.vector_rate)


def wakes_alone(model: WholeCost, site: Site, result: Annotation, cost: NodeCost) -> Number:
    """Whether an operator of which nothing else is in its kernel wakes other cores. `cost`: by itself."""
    p = model.profile
    if p.platform != "cpu" or site.op not in TABLE or site.op in STORED:
        return cost.flops >= p.fork_flops
    if p.sums_as_matmuls and site.op in LIBRARY_SUMS and kind(site.dtype(0)) == "f":
        return _wakes_library(model, site, result)
    return _is_shared(*_operations(cost.flops, _elements(model, result)), cost.bytes)


def _wakes_library(model: WholeCost, site: Site, result: Annotation) -> Number:
    """Whether a kernel of YNN's that ends with an operator wakes other cores."""
    return functools.reduce(maximum, (_elements(model, a) for a in (result, *site.operands))) >= SHARED_ELEMENTS


def _is_shared(flops: Number, functions: Number, moved: Number) -> Number:
    """Whether XLA divides a loop among the cores of a CPU, which computes and moves so much."""
    cost = flops + _OF_FUNCTION * functions + _OF_BYTE * moved
    return choose(flops > moved, cost >= _SHARED_COST, moved >= SHARED_BYTES)


def _operations(flops: Number, elements: Number) -> tuple[Number, Number]:
    """The arithmetic, and the functions such as exp, of an operator that has `flops` for so many elements."""
    functions = flops // (TRANSCENDENTAL * maximum(1, elements)) * elements
    return flops - TRANSCENDENTAL * functions, functions


def _elements(model: WholeCost, a: Annotation) -> Number:
    return math.prod(map(model.evaluate, dims_of(a)))


def cost_in_place(model: WholeCost, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace) -> NodeCost:
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


def loop_flops(model: WholeCost, site: Site, result: Annotation, flops: Number) -> Number:
    """The flops of an operator in a loop. XLA turns division by a broadcast divisor into multiplication by its
    reciprocal."""
    if site.op != "divide" or site.shape(1) == tuple(dims_of(result)):
        return flops
    return math.prod(map(model.evaluate, dims_of(result)))


def _seconds_on_cpu(
    model: WholeCost, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace
) -> tuple[Number, Number]:
    """Seconds of an operator in its place in a kernel of XLA's compiler for CPUs, without corrections, and whether it
    ends a kernel that wakes other cores.

    A kernel takes the time of its arithmetic, or of its memory traffic if that takes longer. What the traffic takes
    longer counts for the operator that ends the kernel."""
    work = LEAST + _loop_seconds(model, site, result, cost, place, place.computed)
    if not place.launches:
        return work, False
    others: Number = 0.0
    flops, functions = _operations(cost.flops, _elements(model, result))
    for e, computed in place.inside:
        inner = site_of(e)
        if inner.op not in STORED:
            found, elements = model.price(inner, e.annotation), _elements(model, e.annotation)
            others = others + _loop_seconds(model, inner, e.annotation, found, place, computed)
            share = model.evaluate(computed) / maximum(1, elements)
            more = _operations(found.flops, elements)
            flops, functions = flops + share * more[0], functions + share * more[1]
    p, moved = model.profile, model.evaluate(place.bytes)
    waits = maximum(0, p.move(moved) - others - work)
    launched = place.launches * p.launch + (p.library_launch if place.is_library else 0.0)
    wakes = _wakes_library(model, site, result) if place.is_library else _is_shared(flops, functions, moved)
    return launched + work + waits + p.fresh(model.evaluate(bytes_of(result))), wakes


def _loop_seconds(
    model: WholeCost, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace, computed: Dim | None
) -> Number:
    """Seconds of the arithmetic of an operator in a kernel. `computed`: the elements that are computed; None: those
    of the result."""
    p, elements = model.profile, _elements(model, result)
    share = 1.0 if computed is None else model.evaluate(computed) / maximum(1, elements)
    flops = loop_flops(model, site, result, cost.flops)
    if place.is_library:
        moved = sum((model.evaluate(bytes_of(a)) for a in site.operands), model.evaluate(bytes_of(result)))
        return maximum(flops / p.vector_rate, _BLOCKED * moved / p.cache_bandwidth)
    is_vectorised = site.op not in p.scalar_rate and pattern_kind(site) in ARITHMETIC
    if is_vectorised:
        flops = choose(flops >= TRANSCENDENTAL * elements, _IN_LOOPS, 1.0) * flops
    seconds = share * flops / p.scalar_rate.get(site.op, p.vector_rate)
    if site.op in PLAIN_SUMS:
        seconds = seconds + _one_by_one(model, share * flops)
    if p.transpose_rate and moves_last_axis(site) and not place.in_order:
        seconds = seconds + share * elements / p.transpose_rate * _far(model, site, result)
    return seconds


def _far(model: WholeCost, site: Site, result: Annotation) -> Number:
    """How many times as long as `transpose_rate` says a transpose takes: longer where the elements of a row of its
    result are on more pages than a processor knows the places of."""
    shape = [model.evaluate(d) for d in dims_of(site.operands[0])]
    axis = site["axes"][-1]
    step = math.prod(shape[axis + 1 :]) * itemsize(site.dtype(0))
    return choose(shape[axis] * minimum(1, step / PAGE) >= _PAGES_KNOWN, _FAR, 1.0)
