"""The walk over a chosen program: every node that runs or costs something, how often it runs, and its cost.

Prices, reports, closed forms, loops and liveness all read this walk.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from relax_eg.extract.costs.amounts import Amounts
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.hoisting import hoisted_loops, with_hoisting
from relax_eg.extract.costs.implied_matmuls import implied_matmuls
from relax_eg.extract.costs.numbers import Number, truncate
from relax_eg.extract.costs.operator_cost import OperatorCost, Placed
from relax_eg.extract.fusions.cpu import CpuKernels
from relax_eg.extract.fusions.gpu import GpuKernels
from relax_eg.extract.fusions.place import KernelPlace, is_placed
from relax_eg.ir.expr import Expr
from relax_eg.ir.heads import CORE, RUNNING, TUPLES
from relax_eg.ir.module import Function
from relax_eg.ops import Site, site_of
from relax_eg.shapes import Dim

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """A node of a function, where the program runs it.

    - `placed`: the node.
    - `function`: the function that contains it.
    - `model`: the cost model at the sizes of the function.
    - `times`: how often the program runs the function.
    - `path`: the loops, choices and calls around it, outermost first.
    """

    placed: Placed
    function: Function
    model: OperatorCost
    times: Number
    path: tuple[Visit, ...]

    @property
    def node(self) -> Expr:
        return self.placed.node

    @property
    def site(self) -> Site | None:
        return self.placed.site

    @property
    def hoisted_out_of(self) -> int:
        return self.placed.hoisted_out_of

    @property
    def place(self) -> KernelPlace | None:
        return self.placed.place

    @property
    def runs_functions(self) -> bool:
        """Whether the node is a loop, a choice or a call."""
        return self.node.op in RUNNING

    @property
    def is_stored(self) -> bool:
        """Whether its value is predicted to be stored: the node launches a kernel."""
        return self.place.stored if self.place is not None else bool(self.cost.launches > 0)

    @property
    def amounts(self) -> Amounts:
        """The amounts of the node in one run of the function, as expressions in its sizes; it must have a site."""
        assert self.site is not None
        found = self.model.amounts(self.site, self.node.annotation)
        if self.place is None or not is_placed(self.site.op):
            return found
        return replace(found, bytes=self.place.bytes, launches=Dim.of(self.place.launches))

    @property
    def cost(self) -> NodeCost:
        """The cost of the node in one run of the function, with the functions that the node runs."""
        cost = self.placed.cost_by(self.model)
        return cost.scaled(self.model.hoisted_share(self.hoisted_out_of)) if self.hoisted_out_of else cost


def walk(
    function: Function,
    model: OperatorCost,
    skip: set[Expr] | None = None,
    deep: bool = True,
    times: Number = 1.0,
    path: tuple[Visit, ...] = (),
) -> Iterator[Visit]:
    """The nodes of `function` and of the functions that it runs, except leaves and tuples. The nodes that a node runs
    come before it.

    A node is priced as the matmul that XLA makes of it and of nodes that it reads, and these have no site
    (`extract.costs.implied_matmuls`).

    - `skip`: nodes of the function itself that are left out.
    - `deep`: whether to walk the functions that it runs.
    - `times`, `path`: as in `Visit`, for the function.
    """
    nodes = model.known_nodes.get(id(function)) if not skip else None
    if nodes is None:
        nodes = function, _placed(function, model, skip or set())
        if not skip:
            model.known_nodes[id(function)] = nodes
    for placed in nodes[1]:
        v = Visit(placed, function, model, times, path)
        if deep and v.runs_functions:
            assert v.site is not None
            part = model.hoisted_share(v.hoisted_out_of)
            for callee, n, inner in model.trips(v.site):
                yield from walk(callee, inner, None, True, times * (n * part), (*path, v))
        yield v


def _placed(function: Function, model: OperatorCost, skip: set[Expr]) -> list[Placed]:
    """The nodes of a function without those of `skip`, operands first."""
    expressions = [e for e in function.expressions() if e not in skip]
    matmuls: dict[Expr, tuple[Site, float]] = {}
    inside: set[Expr] = set()
    if model.fuses_into_matmuls:
        sums, copied = model.profile.sums_as_matmuls, model.copies_transposed
        matmuls, inside = implied_matmuls(function, expressions, sums, copied, model.representative)
    left = hoisted_loops(function, model.constants)
    places: dict[Expr, KernelPlace] = {}
    if model.knows_fusions:
        p, value = model.profile, model.representative
        if p.platform == "gpu":
            kernels = GpuKernels(function, expressions, p, value, model.sliced)
        else:
            has_library = p.sums_as_matmuls
            kernels = CpuKernels(function, expressions, value, matmuls, inside, left, has_library, model.sliced)
        places = {e: KernelPlace() for e in expressions if is_placed(e.op)} | kernels.places()
    found: list[Placed] = []
    for e in expressions:
        if (e.op in CORE and not e.args) or e.op in TUPLES:
            continue
        site, slower = matmuls.get(e, (with_hoisting(e, site_of(e), left, model.constants), 1.0))
        by_jax = model.as_jax_lowers(e, model.is_in_loop, model.representative)
        site = None if e in inside else site
        found.append(Placed(e, site, left.get(e, 0), places.get(e), slower, by_jax))
    return found


def own_costs(
    function: Function, model: OperatorCost, skip: set[Expr] | None = None
) -> Iterator[tuple[Visit, NodeCost]]:
    """The visits of the walk, each with the cost of the node in all its runs, without that of the nodes that it
    runs."""
    inside: dict[Visit, NodeCost] = {}
    for v in walk(function, model, skip):
        below = inside.pop(v, NodeCost())
        own = v.cost.scaled(v.times).without(below)
        for around in v.path[-1:]:
            inside[around] = inside.get(around, NodeCost()) + below + own
        yield v, own


def figures_by_key(costs: Iterable[tuple[Key, NodeCost]]) -> dict[Key, tuple[int, int, int, int, float]]:
    """The sums of `costs` by key, as a report shows them: count, flops, bytes, launches and seconds."""
    sums: dict[Key, tuple[int, NodeCost]] = {}
    for key, cost in costs:
        count, before = sums.get(key, (0, NodeCost()))
        sums[key] = count + 1, before + cost
    return {
        key: (count, truncate(c.flops), truncate(c.bytes), truncate(c.launches), c.seconds)
        for key, (count, c) in sums.items()
    }
