"""Prices operators on a device inside one XLA program (`execution="whole"`).

By itself, an operator has its price by `extract.costs.operator_cost`. In a program (`extract.costs.walk`) its price is
that of its place in the kernels that XLA makes (`extract.fusions`). The cost of a call is that of its function at the
sizes of the call. The cost of a loop is that of its body times its number of steps.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.numbers import Number, choose, maximum, truncate
from relax_eg.extract.costs.operator_cost import OperatorCost, has_known_types, is_map
from relax_eg.extract.costs.walk import Visit, walk
from relax_eg.extract.fusions.in_place import cost_in_place
from relax_eg.extract.fusions.place import KernelPlace, is_placed
from relax_eg.extract.fusions.seconds import LEAST
from relax_eg.ir.annotations import Annotation
from relax_eg.ir.control import is_one_kernel
from relax_eg.ir.expr import CALL, COND
from relax_eg.ir.heads import LOOPS
from relax_eg.ops import Site
from relax_eg.ops.record import operators_run_as

# chosen: factor on the work of a call inside a loop's steps, because XLA makes smaller library fusions inside loops.
# The factors seen are 1.1 to 1.3.
_IN_A_LOOP = 1.15
# chosen: how many times as long the work of a loop takes in one kernel, which XLA generates in other ways: it took 0.9
# to 1.3 times as long where one kernel was not worth it, and 4 times where padded values are added (jax 0.10.2)
_GENERATED = 1.3
_SMALL_BYTES = 1024  # given: XLA makes one kernel of a loop whose step reads and writes fewer bytes (jax 0.10.2)
_HASHES = operators_run_as("hash")  # of many small values, which no price counts
# chosen: share by which a call is cheaper than the same code inlined, because the program with the call is shorter, and
# a loop that is one kernel anyway than one that says so
_SHORTER = 1e-4


class WholeCost(OperatorCost):
    """The prices of operators in their programs, and of calls, loops and choices."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._small: dict[tuple[object, ...], bool] = {}  # loops of which XLA makes one kernel by itself

    def in_place(self, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace) -> NodeCost:
        """The cost of an operator in its place in the kernels of its function. `cost`: by itself."""
        is_priced_there = is_placed(site.op) and has_known_types(site, result)
        return cost_in_place(self, site, result, cost, place) if is_priced_there else cost

    def is_one_kernel(self, site: Site) -> bool:
        """Whether the functions run at this site are parts of one kernel, and nothing around them is: because the loop
        says so, or because it is so small that XLA does that by itself."""
        if super().is_one_kernel(site):
            return True
        p = self.profile
        if site.op not in LOOPS or p.platform != "cpu" or p.is_in_one_kernel or self.cost is not None:
            return False
        key = site.op, site.operands, tuple(site.attrs.items())
        if key not in self._small:
            self._small[key] = self._is_small(site)
        return self._small[key]

    def _is_small(self, site: Site) -> bool:
        """Whether XLA for CPUs makes one kernel of a loop by itself, at all bindings."""
        if np.any(self.evaluate(self.times(site)) <= 1):
            return False
        names = [n for n in site.attrs["functions"] if n in self.functions and n not in self._running]
        functions = [self.functions[n] for n in names]

        def visits(in_one_kernel: bool) -> list[Visit]:
            return [v for f in functions for v in walk(f, self.inside(f, site, in_one_kernel), deep=False)]

        def moved(v: Visit) -> Number:
            steps = v.model.evaluate(v.model.times(v.site)) if v.site is not None and v.node.op in LOOPS else 1
            return v.cost.bytes / maximum(1, steps)  # XLA counts one step of a loop inside

        as_kernels = visits(False)
        if any(v.node.op in _HASHES for v in as_kernels) or np.any(sum(map(moved, as_kernels)) >= _SMALL_BYTES):
            return False
        return all(np.all(v.cost.seconds < math.inf) for v in visits(True))

    def run_cost(self, site: Site, result: Annotation) -> NodeCost:
        """The cost of a call or control node, including everything that its functions do."""
        found, steps = NodeCost(), 1.0
        is_kernel, is_marked = self.is_one_kernel(site), is_one_kernel(site.attrs)
        for function, times, model in self.trips(site):
            each = sum((v.cost for v in walk(function, model, deep=False)), NodeCost())
            found += each.scaled(maximum(1, times) if is_marked else times)  # without steps inf * 0 is no number
            steps = maximum(steps, times)
        seconds = found.seconds
        if site.op in LOOPS:
            slower = _IN_A_LOOP if self.profile.platform == "cpu" and is_map(site) else 1.0
            own = self.loop_amounts(site, result)
            launches, moved = self.evaluate(own.launches), self.evaluate(own.bytes)
            found = replace(found, bytes=found.bytes + moved, launches=found.launches + launches)
            slower = _GENERATED if is_kernel else slower
            seconds = slower * seconds + steps * self.profile.step + launches * self.profile.launch
            seconds += self.profile.move(moved)
            if is_kernel:
                cannot = self.profile.platform != "cpu" or self.cost is not None
                # XLA makes no loop of a single step.
                seconds = self.profile.launch + choose(found.wakes | (steps <= 1) | cannot, math.inf, seconds)
                found = replace(found, launches=1, wakes=False)
            seconds *= 1 + _SHORTER * is_marked
        elif site.op == COND:
            seconds += self.profile.step
        elif site.op == CALL:
            seconds *= 1 - _SHORTER
        amounts = truncate(found.flops), truncate(found.bytes), truncate(found.launches)
        return NodeCost(*amounts, LEAST + seconds, found.wakes)
