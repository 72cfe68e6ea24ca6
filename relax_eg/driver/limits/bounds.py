"""What holds of bytes beyond the programs that were tried: at the largest sizes, and of every program of a search; and
the ways in which XLA compiles them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from relax_eg.driver.clock.measured import Search
from relax_eg.driver.options import Options
from relax_eg.extract.footprint import Footprint
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.least_memory import KNOWN, NOTHING, RESULTS, LeastBytes, LeastMemory, most_of
from relax_eg.ir.module import Function, Module
from relax_eg.memory.plan import corner_of
from relax_eg.memory.steps import program_of
from relax_eg.shapes import Dim, Proved, Scope, prove
from relax_eg.shapes.relation import Relation


def largest_sizes(options: Options) -> dict[str, int] | None:
    """The largest of all sizes; None if a size has no bound, all are known, or they may not be the largest together."""
    at, scope = options.bindings[0], options.scope
    if not at or any(scope.bounds(v)[1] is None for v in at):
        return None
    corner = corner_of(scope, at)
    return None if corner is None else dict(corner)


def larger_value(module: Module, scope: Scope, largest: Mapping[str, int]) -> str:
    """The name of a value of a program that is not proved to have at most the bytes that it has at the largest sizes,
    whatever the sizes in `scope`; "" if there is none."""
    sizes = {x.bytes: x.name for x in program_of(module).values}
    for d, name in sizes.items():
        if d is None or not d.variables <= largest.keys():
            return name
        if not isinstance(prove(Relation(d, "<=", Dim.of(int(d.evaluate(largest)))), scope), Proved):
            return name
    return ""


def bound_of(search: Search, tried: Iterable[Footprint]) -> LeastBytes:
    """The bytes that no program needs less than: those of the results, or of an operator that every program has, of
    those in the search's e-graphs and of those in loops over pieces that were made of whole programs."""
    results = LeastBytes(min(t.results for t in tried), RESULTS)
    given = [KNOWN if str(p.attr("name")) in search.weights else NOTHING for p in search.traced.module.main.params]
    is_stored = search.options.profile.platform == "cpu"
    in_segments = any(c.loops for c in search.checkpoints.values())

    def of(graphs: Mapping[str, ExtractionGraph], functions: Mapping[str, Function]) -> LeastBytes:
        least, main = LeastMemory(graphs, functions, is_stored, in_segments), search.traced.module.main.name
        return most_of([least.of_function(main, given, b) for b in search.options.bindings])

    found: dict[tuple[int, ...], LeastBytes] = {}
    for u in (e.units for e in search.entries):
        graphs = {name: read.graph for name in u.functions.best if (read := u.graph_of(name)) is not None}
        key = tuple(map(id, graphs.values()))
        if key not in found:
            found[key] = of(graphs, u.functions.best)
    in_loops = [of({}, {f.name: f for f in m}) for c in search.fissions.values() for m in c.loops]
    return most_of([results, min((*found.values(), *in_loops), key=lambda n: n.bytes, default=NOTHING)])
