"""`spread`, and `optimize(mesh=...)`: placements on a mesh of devices, chosen together with the algebra."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from relax_eg.argument_checks import FLAG, Kind, accepts, short_repr
from relax_eg.backend.family import WHOLE, Variant
from relax_eg.backend.spread import Spread
from relax_eg.backend.width import width_context
from relax_eg.byte_units import parse_bytes
from relax_eg.driver.batching import batch_function
from relax_eg.driver.cache import CachedResult, place_of
from relax_eg.driver.measured import Search
from relax_eg.driver.options import KINDS, Facts, Options, Sizes, Target, read_options
from relax_eg.driver.origins import origins_of
from relax_eg.driver.pipelining import pipelined, pipelines
from relax_eg.driver.prices import price_at
from relax_eg.driver.program_ends import optimized_of, traced_program
from relax_eg.driver.reporting import report_of
from relax_eg.driver.units import Units
from relax_eg.egraph import Budget, Dump, EGraph, dump
from relax_eg.errors import ExtractionError, OptionError
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.report import OperatorRow, ProgramCost
from relax_eg.frontends import Source
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.frontends.jax.shard_maps import freeing
from relax_eg.frontends.jax.trace import Traced
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import callees_first
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function, Module
from relax_eg.ir.origin import UNKNOWN, SourceLine
from relax_eg.ir.placements import DeviceMesh, MeshPlacement, Part, part_text
from relax_eg.ir.wellformed import check as check_module
from relax_eg.logs import log_at
from relax_eg.meshes.emit import module_of
from relax_eg.meshes.program import FunctionGraph, SpreadProgram, join_graphs
from relax_eg.meshes.search import Spreading, Wanted, order_of, spread_over
from relax_eg.meshes.sums import drop_useless_sums
from relax_eg.ops.placing import check_placement
from relax_eg.reports.spread import HeldRow, SentRow, SpreadReport
from relax_eg.rules import Numerics, RuleSet
from relax_eg.rules.kept_answers import keep_answers
from relax_eg.shapes import Dim, Scope
from relax_eg.shapes.relation import Bounds, split_bounds

_MOST_BYTES = 1 << 60  # limit: bytes of a device's memory; a float holds them
SECONDS = 60.0  # limit: seconds of the search for placements
_PLAIN = 0.6  # limit: share of them for programs without stages, where there may be stages
_LEFT = 0.2  # limit: share of them that has to be left for a program with stages
AS_WRITTEN = RuleSet("none")  # the rules of `spread`, if others are not given: the algebra stays as it is

# A placement as users give it: text, or a `PartitionSpec`, or a `NamedSharding`.
GivenPlacement = Any
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
    budget: Budget | None = None,
    **kwspecs: Any,
) -> Spread:
    """Spread a JAX function, or a module, over a mesh of devices: choose where each tensor is.

    - `args`, `kwspecs`, `specs`, `target`, `at`, `bounds`, `numerics`, `facts`, `budget`: as those of `optimize`. An
      array of the specs that has a `NamedSharding` over axes of the mesh keeps it.
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

    OptionError for a mesh or placements that do not fit; ExtractionError if nothing keeps the memory limit;
    TraceError, SpecError, BoundsError as `optimize`.
    """
    started = time.monotonic()
    where = DeviceMesh.of(mesh)
    ranges, statements = split_bounds(bounds)
    if budget is None and rules is AS_WRITTEN:
        budget = Budget(nodes=0, seconds=0.0)
    with freeing(free_shard_maps):
        traced = traced_program(program, args, specs_by_name(specs, kwspecs), ranges, statements)
        _check_spreadable(traced)

    def options_of(traced: Source) -> Options:
        found = read_options(
            traced, rules=rules, target=target, at=at, ranges=ranges, facts=facts, numerics=numerics, budget=budget
        )
        return replace(found, family=False, sharing=False)  # a function's parameters have one placement for all calls

    options = options_of(traced)
    if len(options.bindings) > 1:
        raise OptionError(f"{traced.name}(): at has {len(options.bindings)} bindings; one is accepted with mesh=")
    limit = (
        options.profile.memory
        if memory_limit is None
        else float(min(parse_bytes(memory_limit, "memory_limit"), _MOST_BYTES))
    )
    given = {
        **_of_arrays(traced, options.scope, args, where),
        **_given_inputs(traced, options.scope, where, inputs or {}),
    }
    wanted = Wanted(given, _given_outputs(traced, options.scope, where, outputs), _state(traced, state), limit)
    best: Spread | None = None
    failed: ExtractionError | None = None
    microbatches = pipeline if isinstance(pipeline, Mapping) else {}
    with width_context(traced.wide):
        staged = list(pipelines(traced, where, microbatches)) if pipeline and isinstance(traced, Traced) else []
        plain = seconds * (_PLAIN if staged else 1.0)
        if not isinstance(pipeline, Mapping):
            try:
                best = _spread(traced, options, where, wanted, plain, free_shard_maps)
            except ExtractionError as e:
                failed = e
        for p in staged:
            # The other program computes as much on a device, without the bubble.
            if best is not None and best.spreading.computing * p.longer >= best.spreading.total:
                break
            left = seconds - (time.monotonic() - started)
            if left <= _LEFT * seconds and best is not None:
                break
            made = traced_program(pipelined(traced, p, where), args, kwspecs, ranges, statements)
            assert isinstance(made, Traced)
            made = replace(made, fn=traced.fn, name=traced.name)
            left = seconds - (time.monotonic() - started)  # tracing counts
            try:
                found = _spread(made, options_of(made), where, wanted, max(left, 1.0), free_shard_maps, str(p))
            except ExtractionError as e:
                failed = failed or e
                continue
            if best is None or found.spreading.total < best.spreading.total:
                best = found
    if best is None:
        raise failed or AssertionError("no program was tried")
    return best


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


# --- what is given ---


def _placement(mesh: DeviceMesh, given: GivenPlacement, what: str) -> MeshPlacement:
    """A placement as users give it. OptionError if it is none of this mesh."""
    if isinstance(given, MeshPlacement):
        return given
    if isinstance(given, str):
        return MeshPlacement.parse(given)
    spec = getattr(given, "spec", given)
    if not isinstance(spec, (tuple, PartitionSpec)):
        raise OptionError(
            f"{what}: {short_repr(given)}; a text such as 'S[0], R', a PartitionSpec or a NamedSharding is accepted"
        )
    other = getattr(given, "mesh", None)
    if other is not None and DeviceMesh.of(other) != mesh:
        raise OptionError(f"{what}: its sharding is over the mesh {DeviceMesh.of(other)}; the mesh here is {mesh}")
    parts: list[Part] = ["R"] * len(mesh.axes)
    for d, names in enumerate(tuple(spec)):
        for name in (names,) if isinstance(names, str) else names or ():
            if name not in mesh.names:
                raise OptionError(f"{what}: {spec} names the axis {name!r}; the mesh has {', '.join(mesh.names)}")
            parts[mesh.names.index(name)] = d
    return MeshPlacement(tuple(parts))


def _checked(scope: Scope, mesh: DeviceMesh, placement: MeshPlacement, x: Any, what: str) -> MeshPlacement:
    """`placement`, which a tensor has to be able to have with equal pieces, for all sizes. OptionError."""
    assert isinstance(x, Tensor)
    check_placement(mesh, placement, x, what)
    for d, (size, pieces) in enumerate(zip(x.shape or (), placement.splits(x.ndim or 0, mesh), strict=True)):
        if pieces > 1 and scope.equal(size % pieces, 0) is not True:
            known = f"{size} is" if not size.variables else f"it is not proved that {size} is"
            raise OptionError(
                f"{what}: placement {placement} splits dimension {d} of {x.short} over {pieces} devices of the mesh "
                f"{mesh}; {known} {'not ' if not size.variables else ''}a multiple of {pieces}\n  accepted: a size "
                f"that is, by its value or by bounds='{size} % {pieces} == 0', or R"
            )
    return placement


def _given_inputs(traced: Source, scope: Scope, mesh: DeviceMesh, given: Mapping[str, Any]) -> dict[int, MeshPlacement]:
    found: dict[int, MeshPlacement] = {}
    leaves = traced.leaves
    for name, placement in given.items():
        places = [i for i, x in enumerate(leaves) if name in (x.argument, x.path, x.name)]
        if not places:
            known = ", ".join(dict.fromkeys(x.argument for x in leaves))
            raise OptionError(f"{traced.name}(): inputs has {short_repr(name)}; the arguments are {known}")
        what = f"{traced.name}(): inputs[{name!r}]"
        for i in places:
            one = _placement(mesh, placement, what)
            found[i] = _checked(scope, mesh, one, leaves[i].annotation, what)
    return found


def _of_arrays(traced: Source, scope: Scope, args: tuple[Any, ...], mesh: DeviceMesh) -> dict[int, MeshPlacement]:
    """The placements of the arrays among the specs that have a `NamedSharding`."""
    arrays = jax.tree_util.tree_leaves(args)
    if len(arrays) != len(traced.leaves):
        return {}
    found: dict[int, MeshPlacement] = {}
    for i, (x, leaf) in enumerate(zip(arrays, traced.leaves, strict=True)):
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding):
            what = f"{traced.name}(): {leaf.path}"
            found[i] = _checked(scope, mesh, _placement(mesh, sharding, what), leaf.annotation, what)
    return found


def _results(traced: Source) -> tuple[Any, ...]:
    annotation = traced.module.main.annotation
    return tuple(getattr(annotation, "fields", (annotation,)))


def _given_outputs(traced: Source, scope: Scope, mesh: DeviceMesh, given: Any) -> dict[int, MeshPlacement]:
    if given is None:
        return {}
    results = _results(traced)
    each = given if isinstance(given, Mapping) else dict.fromkeys(range(len(results)), given)
    found: dict[int, MeshPlacement] = {}
    for i, placement in each.items():
        if not isinstance(i, int) or not 0 <= i < len(results):
            raise OptionError(
                f"{traced.name}(): outputs has {short_repr(i)}; its results are numbered 0 to {len(results) - 1}"
            )
        what = f"{traced.name}(): outputs[{i}]"
        found[i] = _checked(scope, mesh, _placement(mesh, placement, what), results[i], what)
    return found


def _state(traced: Source, state: Sequence[str] | Mapping[str, int]) -> list[tuple[int, int]]:
    """Pairs (input, output) of arrays of the state. OptionError if an argument and its result differ."""
    wanted = dict(state) if isinstance(state, Mapping) else {name: i for i, name in enumerate(state)}
    results = _results(traced)
    tree = traced.out_tree
    is_tuple = tree.node_data() is not None and tree.node_data()[0] in (tuple, list)
    children = [c.num_leaves for c in tree.children()] if is_tuple else [tree.num_leaves]
    starts = [sum(children[:i]) for i in range(len(children) + 1)]
    found: list[tuple[int, int]] = []
    for name, position in wanted.items():
        mine = [i for i, x in enumerate(traced.leaves) if x.argument == name]
        if not mine:
            known = ", ".join(dict.fromkeys(x.argument for x in traced.leaves))
            raise OptionError(f"{traced.name}(): state has {short_repr(name)}; the arguments are {known}")
        if not isinstance(position, int) or not 0 <= position < len(children):
            raise OptionError(
                f"{traced.name}(): state[{name!r}] is result {short_repr(position)}; it returns {len(children)}"
            )
        theirs = list(range(starts[position], starts[position + 1]))
        differing = [
            (traced.leaves[i].path, traced.leaves[i].annotation, results[o])
            for i, o in zip(mine, theirs, strict=False)
            if traced.leaves[i].annotation != results[o]
        ]
        if len(mine) != len(theirs) or differing:
            text = (
                f"{differing[0][0]} is {differing[0][1].short} and comes back as {differing[0][2].short}"
                if differing
                else f"the argument has {len(mine)} arrays and the result {len(theirs)}"
            )
            raise OptionError(f"{traced.name}(): state[{name!r}] is result {position}, but {text}")
        found += list(zip(mine, theirs, strict=True))
    return found


# --- search ---


def _spread(
    traced: Source,
    options: Options,
    mesh: DeviceMesh,
    wanted: Wanted,
    seconds: float,
    free_shard_maps: bool,
    pipeline: str = "",
) -> Spread:
    """A program with placements, from the cache or from a search."""
    started = time.perf_counter()
    given = [sorted((i, str(p)) for i, p in each.items()) for each in (wanted.inputs, wanted.outputs)]
    asked = str(mesh), *given, tuple(wanted.state), wanted.memory, free_shard_maps, pipeline
    place = place_of(traced, options, ("spread", *asked))
    known = None if place is None else place.read()
    if known is None:
        known, is_whole = _searched(traced, options, mesh, wanted, seconds, pipeline)
        keep_answers()
        if place is not None and is_whole:
            place.write(known)
        elif place is not None:
            log_at(1, f"{traced.name} is not cached: the clock stopped the search")
    else:
        known = known.as_cached(time.perf_counter() - started)
    report = known.report.spread
    assert report is not None
    inputs, outputs = ([MeshPlacement.parse(r.placement) for r in rows] for rows in (report.arguments, report.results))
    return Spread.of(optimized_of(traced, options, known), mesh, report, inputs, outputs)


def _searched(
    traced: Source, options: Options, mesh: DeviceMesh, wanted: Wanted, seconds: float, pipeline: str
) -> tuple[CachedResult, bool]:
    """A program with placements from a search, and whether the clock let it end."""
    started = time.perf_counter()
    search = Search(traced, options)
    entry = search.entry()
    taken = {o.place[0]: o.block.taken for o in entry.found.outcomes}
    program, dumps = _joined(entry.units, entry.found.module, taken, mesh)
    drop_useless_sums(program)
    left = max(1.0, seconds - (time.perf_counter() - started))
    found = spread_over(program, mesh, options.profile, options.bindings[0], options.scope, wanted, left)

    def with_origins(name: str, classes: dict[Expr, int]) -> Function:
        return _with_origins(entry.units, dumps[name], program.graphs[name].function, found, classes)

    def batched(function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        return batch_function(Module((function,)), function, mapped, length)

    module = module_of(found, entry.found.module, with_origins, batched)
    check_module(module)
    report = _report(traced, options, search, found, wanted.memory)
    if pipeline:  # whose own constraints are nobody's
        report = replace(report, pipeline=pipeline, kept={})
    after = ProgramCost(_rows(found))
    before = price_at(traced.module, options, options.bindings[0])
    cost = replace(
        report_of(search, entry, options, False, [(options.bindings[0], (before, before))],
                  time.perf_counter() - started),
        after=after, expected=None, target=f"{options.profile.label}, mesh {mesh}", rules=report.rules, spread=report,
    )  # fmt: skip
    ran_out = found.seconds >= left or any(c.ran_out for c in found.choices)
    is_whole = not ran_out and not (options.budget.seconds and search.was_stopped)
    return CachedResult((Variant(module, lambda: traced.module, cost, WHOLE),), False), is_whole


def _joined(
    units: Units, chosen: Module, taken: Mapping[str, Mapping[int, int]], mesh: DeviceMesh
) -> tuple[SpreadProgram, dict[str, Dump]]:
    """All values of a program that was searched, and the e-graph of each function."""
    functions = {f.name: f for f in (*units.functions.values(), *units.module)}
    order = [f.name for f in reversed(callees_first(chosen))]
    main = chosen.main.name
    dumps: dict[str, Dump] = {}
    graphs: dict[str, FunctionGraph] = {}
    for name in order:
        read = units.graph_of(name)
        function = functions[name]
        if read is None:  # a function that a rule made: as it is
            function = chosen[name]
            if len(function.blocks) != 1 or not function.blocks[0].dataflow:
                continue
            with EGraph([b.value for b in function.blocks[0].bindings], AS_WRITTEN, units.options.scope) as egraph:
                read = dump(egraph)
        dumps[name] = read
        picked = taken.get(name) or {c: max(0, k) for c, k in enumerate(read.graph.as_written)}
        graphs[name] = FunctionGraph(function, read.graph, _leaf_of(read), read.build, picked)
    model = WholeCost(units.options.profile, units.options.bindings[0], units.functions)
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
    """The cost of a call on each device: computing, and each kind of collective."""
    values = found.program.values
    chosen = found.choices[0].chosen
    launches = sum(int(values[v].times * float(values[v].ways[c.way].cost.launches)) for v, c in chosen.items())
    rows = [OperatorRow("computing", len(chosen), 0, 0, launches, found.computing)]
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
