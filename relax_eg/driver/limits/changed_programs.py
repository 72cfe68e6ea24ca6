"""The programs of a search, in loops over pieces of a dimension (`driver.limits.fissioned`), or with the steps of loops
computed again in segments (`driver.limits.checkpointed`), as further programs of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from relax_eg.driver.clock.measured import COMPUTED_AGAIN, Entry, Search
from relax_eg.driver.limits.checkpointed import CheckpointedLoop, Checkpoints
from relax_eg.driver.limits.fissioned import ACCUMULATED, IN_PIECES, Fissions, rule_of
from relax_eg.ir.module import Module
from relax_eg.ir.outline import SMALLEST_PROGRAM
from relax_eg.rules.pieces.regions import CutRegion


def in_loops(search: Search, entry: Entry | None) -> Iterator[Iterator[Entry]]:
    """A program, or the one as written (None), in loops over pieces where the rules say that these compute the same:
    for each of its regions, in few pieces first. In kernels a loop is one of these."""
    options = search.options
    rules = {s.name for s in options.rules.schemas} & {IN_PIECES, ACCUMULATED}
    if not rules or options.cost is not None:
        return
    base = entry or search.as_written
    if base.module not in search.fissions:
        search.fissions[base.module] = Fissions(base.module, options.bindings[0], rules)
    of = search.fissions[base.module]

    def entries(region: CutRegion) -> Iterator[Entry]:
        for pieces, is_finest in of.ways(region):
            with search.limit_clock.running():
                made = of.cut(region, pieces, is_finest)
            if made is not None:
                loops = {rule_of(region): len(region.outputs)}
                yield replace(base, found=replace(base.found, module=made, loops=loops))

    with search.limit_clock.running():
        regions = of.regions
    yield from map(entries, regions)


def in_segments(search: Search, entry: Entry | None) -> Iterator[Iterator[Entry]]:
    """A program, or the one as written (None), in which gradients of loops compute the steps of these again, segment by
    segment: of one loop, of two, and so on, with the segments first that are predicted to need most bytes."""
    options = search.options
    if COMPUTED_AGAIN not in options.steps or options.cost is not None:
        return
    base = entry or search.as_written
    if base.module not in search.checkpoints:
        search.checkpoints[base.module] = Checkpoints(base.module, options.bindings[0])
    of = search.checkpoints[base.module]

    def entries(ways: Sequence[Mapping[CheckpointedLoop, int]]) -> Iterator[Entry]:
        with search.limit_clock.running():
            cut = [(made, len(segments)) for segments in ways if (made := of.cut(segments)) is not None]
        found = [replace(base, found=replace(base.found, module=m, loops={COMPUTED_AGAIN: n})) for m, n in cut]
        return iter(sorted(found, key=lambda e: -search.predicted_peak(e, options.bindings)))

    with search.limit_clock.running():
        ways = of.ways()
    yield from map(entries, ways)


def is_large(module: Module) -> bool:
    """Whether loops of a program are tried before its e-graph is made."""
    return sum(len(f.expressions()) for f in module) >= SMALLEST_PROGRAM
