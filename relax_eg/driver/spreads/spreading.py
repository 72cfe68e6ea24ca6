"""`spread`, and `optimize(mesh=...)`: placements on a mesh of devices, chosen together with the algebra."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relax_eg.argument_checks import FLAG, Kind, accepts, short_repr
from relax_eg.backend.family import WHOLE, Variant
from relax_eg.backend.spread import Spread
from relax_eg.backend.width import width_context
from relax_eg.byte_units import parse_bytes
from relax_eg.driver.batching import batch_function
from relax_eg.driver.cache import CachedResult, place_of
from relax_eg.driver.clock.measured import Search
from relax_eg.driver.options import KINDS, Facts, Options, Sizes, Target, read_options
from relax_eg.driver.origins import origins_of
from relax_eg.driver.prices import price_at
from relax_eg.driver.program_ends import optimized_of, traced_program
from relax_eg.driver.reporting import report_of
from relax_eg.driver.spreads.families import variants_of, with_equal_placements
from relax_eg.driver.spreads.given_placements import GivenPlacement, scope_of_padded, wanted_of
from relax_eg.driver.spreads.pipelining import pipelined, pipelines
from relax_eg.driver.units import Units
from relax_eg.dynamic.over_mesh import PaddedSpread
from relax_eg.egraph import Budget, Dump, EGraph, dump
from relax_eg.errors import ExtractionError, OptionError
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.numbers import LEAST_SECONDS
from relax_eg.extract.report import OperatorRow, ProgramCost, figures_by_key
from relax_eg.frontends import Source
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.frontends.jax.shard_maps import on_global_view
from relax_eg.frontends.jax.trace import Traced
from relax_eg.ir.annotations import dims_of
from relax_eg.ir.calls import callees_first
from relax_eg.ir.expr import Expr
from relax_eg.ir.heads import LEAVES
from relax_eg.ir.module import Function, Module
from relax_eg.ir.origin import UNKNOWN, SourceLine
from relax_eg.ir.placements import DeviceMesh, MeshPlacement, part_text
from relax_eg.ir.wellformed import check as check_module
from relax_eg.logs import log_at
from relax_eg.meshes.emit import module_of
from relax_eg.meshes.peak import order_of
from relax_eg.meshes.program import FunctionGraph, SpreadProgram, join_graphs
from relax_eg.meshes.proofs import evidence_of
from relax_eg.meshes.rings import add_rings
from relax_eg.meshes.search import Spreading, Wanted, spread_over
from relax_eg.meshes.sums import drop_useless_sums, join_sums
from relax_eg.reports.spread import HeldRow, SentRow, SpreadReport
from relax_eg.rules import Numerics, RuleSet
from relax_eg.rules.answer_cache import write_answers
from relax_eg.shapes import Dim, Scope
from relax_eg.shapes.relation import Bounds

_MOST_BYTES = 1 << 60  # limit: bytes of a device's memory; a float holds them
SECONDS = 60.0  # limit: seconds of the search for placements
_PLAIN = 0.6  # limit: share of them for programs without stages, where there may be stages
_LEFT = 0.2  # limit: share of them that has to be left for a program with stages
# given: XLA joins a small matmul with large ones that read the same; for that it copies all their weights in each call.
_ON_GPUS = {"xla_gpu_dot_merger_threshold_mb": "0"}
_PROVING = 0.1  # limit: share of the seconds of a search for proofs of its strategies, after it
AS_WRITTEN = RuleSet("none")  # the rules of `spread`, if others are not given: the algebra stays as it is

_KINDS: Mapping[str, Kind] = {
    "mesh": Kind(
        lambda x: isinstance(x, (str, Mapping, DeviceMesh)) or hasattr(x, "shape"),
        "{'data': 8}, 'data=4, model=2', or a mesh of JAX,",
    ),
    "inputs": Kind(lambda x: x is None or isinstance(x, Mapping), "{'x': 'S[0]'}, placements by argument,"),
    "outputs": Kind(
        lambda x: x is None or not isinstance(x, (int, float)), "a placement, or {0: 'R'}, placements by result,"
    ),
    "pipeline": Kind(
        lambda x: (
            isinstance(x, bool)
            or (
                isinstance(x, Mapping)
                and len(x) == 1
                and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in x.values())
            )
        ),
        "True, False, or {'stage': 16}, microbatches for stages over an axis,",
    ),
    "free_shard_maps": FLAG,
    "padded": Kind(
        lambda x: isinstance(x, (list, tuple)) and all(isinstance(v, str) for v in x), "('b',), names of sizes,"
    ),
    "state": Kind(
        lambda x: isinstance(x, (list, tuple, Mapping)), "('params',), or {'params': 1}, arguments and their results,"
    ),
}


@explain_clashes
@accepts(
    **{k: v for k, v in KINDS.items() if k in ("rules", "target", "at", "bounds", "numerics", "facts", "budget")},
    **_KINDS,
    seconds=Kind(
        lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and 0 < x <= 1e9, "seconds, 0 to 1e9"
    ),
)
def spread(
    program: Callable[..., Any] | Module,
    /,
    *args: Any,
    mesh: Any,
    specs: Mapping[str, Any] | None = None,
    rules: RuleSet | None = AS_WRITTEN,
    target: Target | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    numerics: Numerics = "reassociate",
    facts: Facts | None = None,
    inputs: Mapping[str, GivenPlacement] | None = None,
    outputs: GivenPlacement | Mapping[int, GivenPlacement] | None = None,
    state: Sequence[str] | Mapping[str, int] = (),
    memory_limit: int | str | None = None,
    seconds: float = SECONDS,
    free_shard_maps: bool = False,
    pipeline: bool | Mapping[str, int] = True,
    padded: Sequence[str] = (),
    budget: Budget | None = None,
    **kwspecs: Any,
) -> Spread:
    """Spread a JAX function, or a module, over a mesh of devices: choose where each tensor is.

    - `args`, `kwspecs`, `specs`, `target`, `bounds`, `numerics`, `facts`, `budget`: as those of `optimize`. An array of
      the specs that has a `NamedSharding` over axes of the mesh keeps it.
    - `at`: the sizes to be best at. Of several bindings each has placements of its own, which serve the calls whose
      sizes are nearest; arguments whose sizes do not vary (weights) are placed alike for all of them.
    - `rules`: the rules that may change the algebra, which is then chosen together with the placements; by default
      none. None: `relax_eg.rules.default`.
    - `mesh`: the names and sizes of its axes, `{"data": 4, "model": 2}`, or a mesh of JAX. The devices of the last axis
      are neighbours.
    - `inputs`: given placements of arguments, by name: "S[0], R" is split along dimension 0 over the first axis of the
      mesh and replicated over the second; a `PartitionSpec` or `NamedSharding` too. All others are chosen.
    - `outputs`: the placement of all results, or placements by the position of a result; otherwise chosen.
    - `state`: arguments whose new values are results: `("params", "moments")` are results 0 and 1, or by position,
      `{"params": 1}`. They go out where they came in, so that the next call takes them.
    - `memory_limit`: bytes that a device may have in memory, such as "70 GiB"; by default those of the target.
    - `seconds`: after which the search for placements begins nothing new.
    - `free_shard_maps`: whether the body of a `shard_map` is read on the global view and placed anew. Otherwise it
      stays as written, its operands and results where its specs say.
    - `pipeline`: whether loops over layers may run as stages over an axis of the mesh, through which the batch passes
      in microbatches; `{"stage": 16}` says over which, with how many microbatches.
    - `padded`: sizes that calls pad to the next multiple of the number of devices, so that arrays may be split along
      them without a proof that the devices divide them.

    OptionError for a mesh or placements that do not fit; ExtractionError if nothing keeps the memory limit;
    TraceError, SpecError, BoundsError as `optimize`.
    """
    started = time.monotonic()
    where = DeviceMesh.of(mesh)
    if not where.axes:
        raise OptionError(
            f"mesh={short_repr(mesh)} is one device\n  accepted: a mesh with axes, {{'data': 8}} or 'gpu:4, data=4'"
        )
    if budget is None and rules is AS_WRITTEN:
        budget = Budget(nodes=0, seconds=0.0)
    with on_global_view(free_shard_maps):
        named = specs_by_name(specs, kwspecs)
        traced = traced_program(program, args, named, bounds)
        _check_spreadable(traced)

    def options_of(traced: Source) -> Options:
        found = read_options(
            traced, rules=rules, target=target, at=at, bounds=bounds, facts=facts, numerics=numerics, budget=budget
        )
        return replace(found, family=False, sharing=False)  # a function's parameters have one placement for all calls

    options = options_of(traced)
    known = scope_of_padded(traced, options, padded, where)
    limit = (
        options.profile.memory
        if memory_limit is None
        else float(min(parse_bytes(memory_limit, "memory_limit"), _MOST_BYTES))
    )
    wanted = wanted_of(traced, known, where, args, inputs or {}, outputs, state, limit)
    microbatches = pipeline if isinstance(pipeline, Mapping) else {}
    with width_context(traced.wide):
        staged = list(pipelines(traced, where, microbatches)) if pipeline and isinstance(traced, Traced) else []

        def cheapest(at: Sizes, given: Mapping[int, MeshPlacement], seconds: float) -> CachedResult:
            """The cheapest program found at a binding, with these placements of inputs."""
            started = time.monotonic()
            best: CachedResult | None = None
            failed: ExtractionError | None = None
            asked = _Asked(where, replace(wanted, inputs=given), known, free_shard_maps)
            plain = seconds * (_PLAIN if staged else 1.0)
            if not isinstance(pipeline, Mapping):
                try:
                    best = _spread(traced, replace(options, bindings=(dict(at),)), asked, plain)
                except ExtractionError as e:
                    failed = e
            for p in staged:
                # The other program computes as much on a device, without the bubble.
                if best is not None and _report_of(best).computing * p.longer >= _report_of(best).total:
                    break
                left = seconds - (time.monotonic() - started)
                if left <= _LEFT * seconds and best is not None:
                    break
                made = traced_program(pipelined(traced, p, where), args, named, bounds)
                assert isinstance(made, Traced)
                made = replace(made, fn=traced.fn, name=traced.name)
                left = seconds - (time.monotonic() - started)  # tracing counts
                own = replace(options_of(made), bindings=(dict(at),))
                try:
                    found = _spread(made, own, replace(asked, pipeline=str(p)), max(left, 1.0))
                except ExtractionError as e:
                    failed = failed or e
                    continue
                if best is None or _report_of(found).total < _report_of(best).total:
                    best = found
            if best is None:
                raise failed or AssertionError("no program was tried")
            return best

        fixed = [i for i, x in enumerate(traced.leaves) if not any(d.variables for d in dims_of(x.annotation))]
        each = with_equal_placements(
            cheapest, options.bindings, wanted.inputs, fixed, seconds - (time.monotonic() - started)
        )
        best = optimized_of(traced, options, CachedResult(variants_of(each, options.bindings), False))
    reports = [_report_of(x) for x in each]
    return PaddedSpread.padded_over(best, where, reports, padded) if padded else Spread.of(best, where, reports)


def _report_of(found: CachedResult) -> SpreadReport:
    report = found.report.spread
    assert report is not None
    return report


def _check_spreadable(traced: Source) -> None:
    if traced.effectful:
        raise OptionError(
            f"{traced.name}() has effects, whose order across devices is not known\n  accepted: a function without "
            "effects, such as prints and callbacks"
        )
    if traced.in_steps:
        raise OptionError(
            f"{traced.name}() runs in steps (recursion, or sizes that depend on values)\n  accepted: a function that "
            "is one XLA program"
        )


# --- search ---


@dataclass(frozen=True)
class _Asked:
    """What is asked of the placements of a program.

    - `mesh`, `wanted`: the mesh, and what has to be kept.
    - `scope`: what is known of the sizes of arrays.
    - `free_shard_maps`: as of `spread`.
    - `pipeline`: the stages of the program; "": none.
    """

    mesh: DeviceMesh
    wanted: Wanted
    scope: Scope
    free_shard_maps: bool
    pipeline: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """All of it as plain data."""
        w = self.wanted
        given = [sorted((i, str(p)) for i, p in each.items()) for each in (w.inputs, w.outputs)]
        return (
            str(self.mesh),
            *given,
            tuple(w.state),
            w.memory,
            self.scope.statements,
            self.free_shard_maps,
            self.pipeline,
        )


def _spread(traced: Source, options: Options, asked: _Asked, seconds: float) -> CachedResult:
    """A program with placements, from the cache or from a search."""
    started = time.perf_counter()
    place = place_of(traced, options, ("spread", *asked.key))
    known = None if place is None else place.read()
    if known is not None:
        return known.as_cached(time.perf_counter() - started)
    known, is_whole = _searched(traced, options, asked, seconds)
    if place is not None and is_whole:
        place.write(known)
    elif place is not None:
        log_at(1, f"{traced.name} is not cached: the clock stopped the search")
    return known


def _searched(traced: Source, options: Options, asked: _Asked, seconds: float) -> tuple[CachedResult, bool]:
    """A program with placements from a search, and whether the clock let it end."""
    started = time.perf_counter()
    mesh, wanted = asked.mesh, asked.wanted
    search = Search(traced, options)
    entry = search.entry()
    taken = {o.place[0]: o.block.taken for o in entry.found.outcomes}
    program, dumps = _joined(entry.units, entry.found.module, taken, mesh)
    drop_useless_sums(program)
    join_sums(program)
    add_rings(program, mesh, options.profile)
    left = max(1.0, seconds - (time.perf_counter() - started))
    found = spread_over(program, mesh, options.profile, options.bindings[0], asked.scope, wanted, left)

    def with_origins(name: str, classes: dict[Expr, int]) -> Function:
        return _with_origins(entry.units, dumps[name], program.graphs[name].function, found, classes)

    def batched(function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        return batch_function(Module((function,)), function, mapped, length)

    module = module_of(found, entry.found.module, with_origins, batched)
    check_module(module)
    report = _report(traced, options, search, found, wanted.memory)
    known = evidence_of(program, [c.chosen for c in found.choices], _PROVING * seconds)
    write_answers()
    report = replace(report, proved=known.proved, tested=known.tested)
    if asked.pipeline:  # whose own constraints are nobody's
        report = replace(report, pipeline=asked.pipeline, kept={})
    after = ProgramCost(_rows(found))
    before = price_at(traced.module, options, options.bindings[0])
    cost = replace(
        report_of(search, entry, options, False, [(options.bindings[0], (before, before))],
                  time.perf_counter() - started),
        after=after, expected=None, target=f"{options.profile.label}, mesh {mesh}", rules=report.rules, spread=report,
    )  # fmt: skip
    ran_out = found.seconds >= left or any(c.ran_out for c in found.choices)
    is_whole = not ran_out and not (options.budget.seconds and search.was_stopped)
    compiled = _ON_GPUS if options.profile.platform == "gpu" else {}
    return CachedResult((Variant(module, lambda: traced.module, cost, WHOLE, compiled),), False), is_whole


def _joined(
    units: Units, chosen: Module, taken: Mapping[str, Mapping[int, int]], mesh: DeviceMesh
) -> tuple[SpreadProgram, dict[str, Dump]]:
    """All values of a program that was searched, and the e-graph of each function."""
    functions = {f.name: f for f in (*units.functions.best.values(), *units.module)}
    order = [f.name for f in reversed(callees_first(chosen))]
    main = chosen.main.name
    dumps: dict[str, Dump] = {}
    graphs: dict[str, FunctionGraph] = {}
    for name in order:
        read = units.graph_of(name)
        function = functions[name]
        if read is None:  # a function that a rule made: as it is
            function = chosen[name]
            if not function.is_one_block:
                continue
            with EGraph(function.values, AS_WRITTEN, units.options.scope) as egraph:
                read = dump(egraph)
        dumps[name] = read
        picked = taken.get(name) or {c: max(0, k) for c, k in enumerate(read.graph.as_written)}
        graphs[name] = FunctionGraph(function, read.graph, _leaf_of(read), read.build, picked)
    model = WholeCost(units.options.profile, units.options.bindings[0], units.functions.best)
    return join_graphs(graphs, [main, *(n for n in order if n != main and n in graphs)], model, mesh), dumps


def _leaf_of(read: Dump) -> Callable[[int, int], Expr | None]:
    def leaf(c: int, k: int) -> Expr | None:
        payload = read.payloads[read.graph.candidates[c][k].payload]
        return payload if isinstance(payload, Expr) else None

    return leaf


def _with_origins(
    units: Units, read: Dump, function: Function, found: Spreading, classes: Mapping[Expr, int]
) -> Function:
    """`function` with the origins of the expressions chosen for it."""
    makers: dict[Expr, tuple[str, ...]] = {}
    numbers = {v.number: i for i, v in enumerate(found.program.values) if v.function == function.name}
    for e, c in classes.items():
        v = numbers[c]
        chosen = found.choices[0].chosen.get(v)
        rule = "" if chosen is None else found.program.values[v].ways[chosen.way].made_by
        if rule:
            makers[e] = (rule,)
    lines = {r.name: r.where for r in (*units.options.rules, *units.options.rules.schemas)}
    places: dict[Expr, tuple[int, ...]] = {e: (c,) for e, c in classes.items()}
    new = origins_of(list(classes), places, makers, read.written, function.origins, lines.get)
    return replace(function, origins={**function.origins, **new})


# --- report ---


def _rows(found: Spreading) -> tuple[OperatorRow, ...]:
    """The cost of a call on each device: each operator, each kind of collective, and slices of what is whole."""
    values = found.program.values
    ways = {v: values[v].ways[c.way] for v, c in found.choices[0].chosen.items()}
    costs = ((way.op, found.own_cost(v)) for v, way in ways.items() if way.candidate >= 0 and way.op not in LEAVES)
    rows = [OperatorRow(op, *figures) for op, figures in figures_by_key(costs).items()]
    sliced = found.computing - sum(r.seconds for r in rows)
    if sliced > LEAST_SECONDS:
        rows.append(OperatorRow("slice of a whole value", 0, 0, 0, 0, sliced))
    sent = found.sent()
    for kind in dict.fromkeys(s.kind for s in sent):
        mine = [s for s in sent if s.kind == kind]
        moved = sum(int(s.bytes * s.times) for s in mine)
        rows.append(OperatorRow(kind, len(mine), 0, moved, sum(int(s.times) for s in mine),
                                sum(s.seconds for s in mine)))  # fmt: skip
    return tuple(sorted(rows, key=lambda r: -r.seconds))


def _report(traced: Source, options: Options, search: Search, found: Spreading, limit: float) -> SpreadReport:
    program, mesh = found.program, found.mesh
    held = [
        HeldRow(leaf.path, program.values[v].annotation.short, str(p), int(found.local_bytes(v, p)))  # type: ignore[union-attr]
        for leaf, v in zip(traced.leaves, program.inputs, strict=True)
        for p in [found.placement(v)]
    ]
    results = [
        HeldRow(f"result {i}", program.values[v].annotation.short, str(p), int(found.local_bytes(v, p)))  # type: ignore[union-attr]
        for i, v in enumerate(program.outputs)
        for p in [MeshPlacement(tuple(c.outputs[i] for c in found.choices))]
    ]
    sent: list[SentRow] = []
    for s in found.sent():
        value = program.values[s.value]
        way = value.ways[found.choices[0].chosen[s.value].way]
        line = _line(search.entry().units, value.function, value.number)
        what = f"{way.op} {value.annotation.short}"  # type: ignore[union-attr]
        axes = ", ".join(mesh.names[a] for a in s.axes)
        before, after = part_text(s.before), part_text(s.after)
        sent.append(SentRow(s.kind, axes, what, line, before, after, math.ceil(s.bytes), s.times, s.seconds))
    values = program.values
    rules = Counter(
        rule
        for v in order_of(program, found.choices[0])
        if (rule := values[v].ways[found.choices[0].chosen[v].way].made_by)
    )
    alone = price_at(traced.module, options, options.bindings[0]).seconds
    return SpreadReport(
        traced.name, options.profile.label, str(mesh), mesh.devices, options.bindings[0], tuple(held), tuple(results),
        tuple(sent), found.computing, found.sending, found.bound, alone, found.peak.bytes, limit, dict(rules),
        program.opaque, found.seconds, program.kept,
    )  # fmt: skip


def _line(units: Units, function: str, number: int) -> str:
    """The first source line of a class of a function as written; "" if it is not known."""
    read = units.graph_of(function)
    written: Function | None = next((f for f in units.module if f.name == function), None)
    if read is None or written is None or number < 0:
        return ""
    lines: list[SourceLine] = [
        line for e in read.written.get(number, ()) for line in written.origins.get(e, UNKNOWN).lines
    ]
    return str(lines[0]) if lines else ""
