"""Kernels where some of the program is computed ahead of the calls, or where bytes have a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relax_eg.extract.clock import Clock
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.build import Build, Built, Names, build_kernels, composed_seconds
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.selection import AS_TIMED, select_kernels
from relax_eg.extract.kernels.ways import KernelSelection
from relax_eg.extract.pricing import ONCE, Pricing
from relax_eg.extract.weights import PREPARED_SHARE, prepared_of, static_classes, weight_bytes

_RAISED = 6  # times that the price of prepared bytes is raised at most


@dataclass(frozen=True, slots=True)
class ChosenKernels:
    """A selection, and what it is built to."""

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
    bytes_cost: Pricing = AS_TIMED,
    share: float = PREPARED_SHARE,
    clock: Clock | None = None,
) -> ChosenKernels:
    """The cheapest kernels over all bindings. What depends on `weights` alone is computed ahead of the calls; its bytes
    get a price, which is raised until they fit into `share` times the weights'. With `once`, `weights` are
    what is the same at every step of a loop: what follows from them costs that share, and takes no bytes to speak of.
    `bytes_cost`: what a byte in memory costs. `names`: of the programs so far, in the end also of those built here.
    `clock`: bounds the seconds of all selections."""
    composed = composed_seconds(graph, build, models)
    static = static_classes(graph, weights) if weights else []
    pricing = replace(bytes_cost, static=static, once=ONCE if once is None else once)

    def chosen(pricing: Pricing) -> tuple[ChosenKernels, Names]:
        selection = select_kernels(graph, models, steps, composed, pricing, clock)
        made = Names(names)
        return ChosenKernels(selection, build_kernels(graph, selection, build, made)), made

    found, made = chosen(pricing)
    if weights and once is None:
        binding = models[0].binding
        limit = share * weight_bytes(graph, weights, binding)
        price = found.selection.written_cost / max(limit, 1.0) / 16
        for _ in range(_RAISED):
            if prepared_of(found.built.roots, weights, binding) <= limit:
                break
            pricing, price = replace(pricing, prepared=price), 8 * price
            found, made = chosen(pricing)
    names.add(made)
    return found
