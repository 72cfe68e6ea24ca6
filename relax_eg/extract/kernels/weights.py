"""Selection of kernels if part of the program is computed ahead of the calls, or if bytes have a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relax_eg.extract.costs.pricing import FREE, ONCE, Pricing
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.build import Build, Built, Names, build_kernels, composed_seconds
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.selection import select_kernels
from relax_eg.extract.kernels.ways import KernelSelection
from relax_eg.extract.selection.clock import Clock
from relax_eg.extract.selection.weights import PREPARABLE, Preparable, PreparedLimit, static_classes
from relax_eg.ir.expr import Expr

_RAISED = 6  # limit: how often the price of prepared bytes is raised
_DEARER = 8  # chosen: factor by which the price is raised


@dataclass(frozen=True, slots=True)
class ChosenKernels:
    """A selection of kernels.

    - `selection`: the selection.
    - `built`: the expressions built from it.
    """

    selection: KernelSelection
    built: Built


def cheapest_kernels(
    graph: ExtractionGraph,
    build: Build,
    models: Sequence[KernelCost],
    steps: frozenset[str],
    names: Names,
    weights: set[str],
    once: float | None = None,
    bytes_cost: Pricing = FREE,
    preparable: Preparable = PREPARABLE,
    clock: Clock | None = None,
    own_only: bool = False,
    as_written: bool = False,
) -> ChosenKernels:
    """The cheapest kernels over all bindings.

    Values that depend only on `weights` are computed ahead of the calls. Their bytes have a price, which is raised
    until they fit into what is `preparable`.

    - `build`: makes the expression of a candidate.
    - `models`: the cost model of each binding.
    - `steps`: the allowed fusion steps.
    - `names`: the names of the programs so far; those of the programs built here are added.
    - `weights`: the names of the parameters that are weights.
    - `once`: if given, `weights` are the values that are the same at every step of a loop. Values that depend on them
      cost this share of their seconds, and their bytes have no price.
    - `bytes_cost`: the price of a byte in memory.
    - `clock`: limits the seconds of all selections.
    - `own_only`: whether only kernels through Pallas are built; the operators of all others stay operators.
    - `as_written`: as in `select_kernels`.
    """
    composed = composed_seconds(graph, build, models)
    static = static_classes(graph, weights) if weights else []
    pricing = replace(bytes_cost, static=static, once=ONCE if once is None else once)

    def is_own(call: Expr) -> bool:
        return all(m.is_own_call(call) for m in models)

    def choose(price: float) -> tuple[ChosenKernels, Names]:
        selection = select_kernels(graph, models, steps, composed, replace(pricing, prepared=price), clock, as_written)
        made = Names(names)
        return ChosenKernels(
            selection, build_kernels(graph, selection, build, made, is_own if own_only else None)
        ), made

    def results_of(found: tuple[ChosenKernels, Names]) -> tuple[Sequence[Expr], float]:
        return found[0].built.roots, found[0].selection.written_cost

    if weights and once is None:
        limit = PreparedLimit.of(graph, weights, models[0].binding, preparable)
        found, made = limit.choose_within(choose, results_of, _DEARER, _RAISED)
    else:
        found, made = choose(0.0)
    names.add(made)
    return found
