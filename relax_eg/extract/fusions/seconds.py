"""Kernels and seconds of operators of which nothing else is in their kernels."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from relax_eg.dtypes import kind
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.implied_matmuls import LEAST_ELEMENTS
from relax_eg.extract.costs.numbers import Number, choose, maximum
from relax_eg.extract.costs.sized_device import SizedDevice
from relax_eg.extract.fusions.operators import MATMULS
from relax_eg.ir.annotations import Annotation, dims_of
from relax_eg.ops import Site
from relax_eg.ops.random import is_unrolled_hash
from relax_eg.ops.record import TABLE, operators_run_as
from relax_eg.tir import PatternKind
from relax_eg.tir.functions import TRANSCENDENTAL

DENSE = operators_run_as("factorisation", "solve", "guarded_solve")  # every operator here contains blocked arithmetic
# XLA may keep the results of other operators inside the kernel that reads them.
STORED = DENSE | MATMULS | operators_run_as("conv")
ARITHMETIC = frozenset((PatternKind.ELEMENT_WISE, PatternKind.BROADCAST))
LEAST = 1e-9  # chosen: seconds: least price of a node; at price 0 the choice would collect useless nodes
_WINDOW = 32  # given: elements that one kernel adds where XLA's own code for CPUs reduces in several
LIBRARY_SUMS = frozenset(("sum", "max", "min"))  # given: the reductions that YNN has
PLAIN_SUMS = LIBRARY_SUMS | {"prod", "any", "all"}  # given: the reductions that XLA's own code splits
# chosen: additions/s of XLA's own reductions, which add one element after the other (0.3 to 0.5 ns each on an Intel
# Xeon, jax 0.10.2)
_ONE_BY_ONE = 3e9
# measured: operations of a hash that CPUs run in the time in which the profile counts one flop of elementwise code
# (`python -m benchmarks.patterns --cases random`)
_OF_HASH = 6.0
_EXPONENTIALS = frozenset(("exp", "log"))
# measured: how many times as long as of float32 these functions of float16 take on CPUs, where XLA's compiler
# vectorises them in some kernels only: 0.8 to 4 times (`python -m benchmarks.patterns --cases float16`)
_OF_FLOAT16 = 2.5
# given: elements from which on a kernel of YNN's reduces with several cores (31,684 do not, 33,856 do; jax 0.10.2)
SHARED_ELEMENTS = 32768
_POOLING = frozenset(("reduce_window",))
# measured: share of the time for an element of a window that it takes where windows overlap along one axis alone
# (`python -m benchmarks.patterns --cases window`)
_ALONG_ONE_AXIS = 0.25
# given: when XLA divides a loop among the cores of a CPU (`ParallelTaskAssigner`, by what jax 0.10.2 compiles): from so
# many bytes read and written on, if it has at most one flop for each; else from a cost on, with so much for a byte and
# for a function such as exp
SHARED_BYTES, _SHARED_COST, _OF_BYTE, _OF_FUNCTION = 512 << 10, 200_000, 10, 2


def sum_steps(length: float) -> int:
    """The kernels in which XLA's own code for CPUs adds the `length` elements along an axis."""
    found = 1
    while length > _WINDOW:
        length, found = length / _WINDOW, found + 1
    return found


def reduced_alone(model: SizedDevice, site: Site, result: Annotation, cost: NodeCost) -> NodeCost:
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
            reduced = (model.representative(site.shape()[i]) for i in site["axes"])
            launches, library = max(map(sum_steps, reduced), default=1), 0.0
            serial = one_by_one(model, cost.flops)
    else:
        return cost
    seconds = cost.seconds + (launches - 1) * p.launch + library + serial
    return replace(cost, launches=launches, seconds=seconds)


def one_by_one(model: SizedDevice, flops: Number) -> Number:
    """How much longer a reduction by XLA's own code takes than vectorised arithmetic."""
    return maximum(0, flops / _ONE_BY_ONE - flops / model.profile.vector_rate)


def wakes_alone(model: SizedDevice, site: Site, result: Annotation, cost: NodeCost) -> Number:
    """Whether an operator of which nothing else is in its kernel wakes other cores. `cost`: by itself."""
    p = model.profile
    if p.platform != "cpu" or site.op not in TABLE or site.op in STORED:
        return cost.flops >= p.fork_flops
    if p.sums_as_matmuls and site.op in LIBRARY_SUMS and kind(site.dtype(0)) == "f":
        return wakes_library(model, site, result)
    return is_shared(*operations(cost.flops, elements_of(model, result)), cost.bytes)


def wakes_library(model: SizedDevice, site: Site, result: Annotation) -> Number:
    """Whether a kernel of YNN's that ends with an operator wakes other cores."""
    return functools.reduce(maximum, (elements_of(model, a) for a in (result, *site.operands))) >= SHARED_ELEMENTS


def is_shared(flops: Number, functions: Number, moved: Number) -> Number:
    """Whether XLA divides a loop among the cores of a CPU, which computes and moves so much."""
    cost = flops + _OF_FUNCTION * functions + _OF_BYTE * moved
    return choose(flops > moved, cost >= _SHARED_COST, moved >= SHARED_BYTES)


def operations(flops: Number, elements: Number) -> tuple[Number, Number]:
    """The arithmetic, and the functions such as exp, of an operator that has `flops` for so many elements."""
    functions = flops // (TRANSCENDENTAL * maximum(1, elements)) * elements
    return flops - TRANSCENDENTAL * functions, functions


def elements_of(model: SizedDevice, a: Annotation) -> Number:
    return math.prod(map(model.evaluate, dims_of(a)))


def _share_on_cpu(model: SizedDevice, site: Site) -> float:
    """How many flops of elementwise code take as long on CPUs as a flop of an operator: fewer of a hash, and of windows
    that overlap along one axis, which are read in vectors; more of some functions of float16."""
    if site.op in _POOLING:
        each = [(n, s) for n, s in zip(site["window"], site["strides"], strict=True) if n != 1]
        is_vectorised = len(each) == 1 and model.representative(each[0][0]) > each[0][1]
        return _ALONG_ONE_AXIS if is_vectorised else 1.0
    if is_unrolled_hash(site):
        return 1 / _OF_HASH
    return _OF_FLOAT16 if site.op in _EXPONENTIALS and site.dtype() == "float16" else 1.0


def loop_flops(model: SizedDevice, site: Site, result: Annotation, flops: Number) -> Number:
    """The flops of an operator in a loop. XLA turns division by a broadcast divisor into multiplication by its
    reciprocal."""
    if model.profile.platform == "cpu" and (share := _share_on_cpu(model, site)) != 1.0:
        return flops * share
    if site.op != "divide" or site.shape(1) == tuple(dims_of(result)):
        return flops
    return math.prod(map(model.evaluate, dims_of(result)))
