"""Seconds to dispatch kernels on devices that compute while the host dispatches further kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.ways import Way


def runs_ahead(models: Sequence[KernelCost]) -> bool:
    """Whether the host dispatches kernels while the device computes."""
    return all(m.cost is None and m.profile.platform != "cpu" and m.profile.dispatch > 0 for m in models)


def dispatch_seconds(
    graph: ExtractionGraph,
    models: Sequence[KernelCost],
    weights: Sequence[float],
    static: Sequence[bool],
    chosen: Iterable[tuple[int, Way]],
) -> float:
    """Seconds that the host takes to dispatch the kernels of `chosen`, summed over `models` with `weights`.

    - `static`: for each class, whether it is computed ahead of the calls and needs no dispatch; empty if none is.
    - `chosen`: pairs of a class and its way.
    """
    several: set[int] = set()
    total = 0.0
    for c, way in chosen:
        if (static and static[c]) or way.several in several:
            continue
        if way.several >= 0:
            several.add(way.several)
        site, annotation = graph.candidates[c][way.candidate].site, graph.annotations[c]
        one = way.state is not None or way.several >= 0
        for w, m in zip(weights, models, strict=True):
            total += w * m.profile.dispatch * (1 if one else m.price(site, annotation).launches)
    return total
