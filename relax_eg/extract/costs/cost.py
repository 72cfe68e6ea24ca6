"""Prices operators on a device inside one XLA program (`execution="whole"`).

By itself, an operator has its price by `extract.costs.operator_cost`. In a program (`extract.costs.walk`) its price is
that of its place in the kernels that XLA makes (`extract.fusions`). The cost of a call is that of its function at the
sizes of the call. The cost of a loop is that of its body times its number of steps.
"""

from __future__ import annotations

from dataclasses import replace

from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.numbers import maximum, truncate
from relax_eg.extract.costs.operator_cost import OperatorCost, has_known_types, is_map
from relax_eg.extract.costs.walk import walk
from relax_eg.extract.fusions.in_place import cost_in_place
from relax_eg.extract.fusions.place import KernelPlace, is_placed
from relax_eg.extract.fusions.seconds import LEAST
from relax_eg.ir.annotations import Annotation
from relax_eg.ir.expr import CALL, COND
from relax_eg.ir.heads import LOOPS
from relax_eg.ops import Site

# chosen: factor on the work of a call inside a loop's steps, because XLA makes smaller library fusions inside loops.
# The factors seen are 1.1 to 1.3.
_IN_A_LOOP = 1.15
# chosen: share by which a call is cheaper than the same code inlined, because the program with the call is shorter
_SHORTER = 1e-4


class WholeCost(OperatorCost):
    """The prices of operators in their programs, and of calls, loops and choices."""

    def in_place(self, site: Site, result: Annotation, cost: NodeCost, place: KernelPlace) -> NodeCost:
        """The cost of an operator in its place in the kernels of its function. `cost`: by itself."""
        is_priced_there = is_placed(site.op) and has_known_types(site, result)
        return cost_in_place(self, site, result, cost, place) if is_priced_there else cost

    def run_cost(self, site: Site, result: Annotation) -> NodeCost:
        """The cost of a call or control node, including everything that its functions do."""
        found, steps = NodeCost(), 1.0
        for function, times, model in self.trips(site):
            found += sum((v.cost for v in walk(function, model, deep=False)), NodeCost()).scaled(times)
            steps = maximum(steps, times)
        seconds = found.seconds
        if site.op in LOOPS:
            slower = _IN_A_LOOP if self.profile.platform == "cpu" and is_map(site) else 1.0
            own = self.loop_amounts(site, result)
            launches, moved = self.evaluate(own.launches), self.evaluate(own.bytes)
            found = replace(found, bytes=found.bytes + moved, launches=found.launches + launches)
            seconds = slower * seconds + steps * self.profile.step + launches * self.profile.launch
            seconds += self.profile.move(moved)
        elif site.op == COND:
            seconds += self.profile.step
        elif site.op == CALL:
            seconds *= 1 - _SHORTER
        amounts = truncate(found.flops), truncate(found.bytes), truncate(found.launches)
        return NodeCost(*amounts, LEAST + seconds, found.wakes)
