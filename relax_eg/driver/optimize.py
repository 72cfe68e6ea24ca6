"""`optimize`, stage by stage: trace, read the options, search or read the cache, choose, and build the `Optimized`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from relax_eg.argument_checks import accepts
from relax_eg.backend.calls.held_arrays import HeldArrays
from relax_eg.backend.calls.held_weights import with_weights
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.family import KERNELS, STEPS, WHOLE, Variant
from relax_eg.backend.width import width_context
from relax_eg.contexts import fewer_collections
from relax_eg.driver.cache import CachedResult, EntryPlace, place_of
from relax_eg.driver.clock.measured import CandidateProgram, Entry, Search, check_measurable, time_candidates
from relax_eg.driver.clock.settling import OFF, Settle, SettleMode
from relax_eg.driver.families import BY_CLOCK, family, nearest_guards
from relax_eg.driver.limits.limited import fastest_within_limit, smallest_within_time
from relax_eg.driver.options import KINDS, Execution, Facts, Options, Sizes, Target, read_options
from relax_eg.driver.prices import closed_forms, moves_less, price_at
from relax_eg.driver.program_ends import optimized_of, traced_program
from relax_eg.driver.reporting import report_of
from relax_eg.dynamic.policy import Dynamic, Mode, Policy, check_one_program, read_policy
from relax_eg.egraph import Budget
from relax_eg.errors import OptionError
from relax_eg.extract.costs.numbers import TINY
from relax_eg.extract.profiles.profile import AS_USUAL
from relax_eg.frontends import Source
from relax_eg.frontends.clashes import explain_clashes, specs_by_name
from relax_eg.frontends.model import ModelModule
from relax_eg.ir.expr import CALL_TIR
from relax_eg.ir.module import Module
from relax_eg.ir.wellformed import check as check_module
from relax_eg.logs import dump as dump_stages
from relax_eg.logs import dump_folder, log_at, notice_if_long
from relax_eg.rules import Numerics, RuleSet
from relax_eg.shapes.relation import Bounds
from relax_eg.traversal import grouped

# chosen: how many times as long as another program one may take that stores a small part. Kernels through Pallas took
# 1.1 to 2.4 times as long as the model of blocks says (docs/kernels.md), so predictions differ by more.
_AS_LONG = 1.25
_LARGE = 1 << 26  # chosen: temporary bytes from which on a program that stores less is searched for
_MOVED = 2  # given: times that a byte that is stored goes through memory


def sparing_program(
    search: Search, candidates: Sequence[CandidateProgram], best: CandidateProgram, bindings: Sequence[Sizes]
) -> CandidateProgram:
    """The program that takes the place of `best`, the fastest of the candidates that pay, or `best`.

    On GPUs, one with kernels through Pallas that stores a small part of what `best` stores does, if it is predicted to
    take hardly longer: memory is saved for certain, and times are predicted.
    """
    if not search.is_priced_on_gpu or search.is_sparing(best, bindings):
        return best
    if max(search.on_device(best, b)[1] for b in bindings) < _LARGE or not any(map(_has_kernels, candidates)):
        return best
    usual = search.by_price if search.options.execution == KERNELS else search.own_kernels[0]
    less = replace(usual, held=_MOVED / search.options.profile.bandwidth)

    def seconds(v: CandidateProgram) -> list[float]:
        return [search.doubted_seconds(v, b) for b in bindings]

    usually = seconds(best)
    paying = [
        v for v in (*candidates, CandidateProgram(search.entry(less)))
        if search.is_sparing(v, bindings)
        and search.is_worthwhile(v, bindings)
        and all(s <= _AS_LONG * t for s, t in zip(seconds(v), usually, strict=True))
    ]  # fmt: skip
    return min(paying, key=lambda v: sum(seconds(v)), default=best)


def _has_kernels(v: CandidateProgram) -> bool:
    """Whether a candidate may have kernels through Pallas."""
    if v.entry is None or not v.entry.spec.has_kernels:
        return False
    return any(e.op == CALL_TIR for f in v.entry.module for e in f.expressions())


@explain_clashes
@accepts(**KINDS)
def optimize(
    program: Callable[..., Any] | Module,
    /,
    *args: Any,
    specs: Mapping[str, Any] | None = None,
    rules: RuleSet | None = None,
    target: Target | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    weights: Sequence[str | int] = (),
    numerics: Numerics = "reassociate",
    facts: Facts | None = None,
    execution: Execution = "whole",
    dynamic: Mode | Dynamic = "auto",
    memory_limit: int | str | None = None,
    time_limit: float | str | None = None,
    measure: SettleMode | int | Settle | None = None,
    budget: Budget | None = None,
    mesh: Any = None,
    **kwspecs: Any,
) -> Optimized:
    """Optimize a JAX function, or a module, for a device.

    - `args`, `kwspecs`: one spec per argument of the function ("b s 768", an array, a pytree of these); none for a
      module, which has its own.
    - `specs`: specs by name, for arguments whose name is that of an option here: `specs={"target": "n 4"}`.
    - `rules`: the rules that may be used (default: `relax_eg.rules.default`).
    - `target`: a device profile, its name or file (default: that of the machine at hand, which is measured once, in two
      to three seconds; `docs/devices.md`); or a cost model, whose prices
      decide in place of a profile's (`docs/devices.md`).
    - `at`: the sizes to be best at, one binding of the size variables or several. Missing sizes are assumed, and the
      report says so.
    - `bounds`: the range of a size, `(low, high)`, inclusive, or one integer that fixes it; a call outside raises. With
      bounds and no single `at`, several programs may be found, each for the sizes at which it is best
      (`docs/families.md`). Or a statement about sizes, as `rx.prove` takes it, such as "b*s <= 4096"; or a list of
      both: `[{"s": (1, 4096)}, "s % 8 == 0"]`. Rules may rely on statements; a call that violates them raises.
    - `weights`: arguments known ahead of the calls, by name or position; what depends on them alone is computed once.
      Their values may be given later, so rules do not see them: a function closes over a kernel whose values matter,
      such as one of low rank (`docs/rules.md`). Those of a model (`rx.from_onnx`) need not be named, and calls need not
      pass them.
    - `numerics`: the loosest class of rules allowed.
    - `facts`: what is known of the values of arguments, by name or position, or of single arrays in them:
      `{"S": "positive definite", "w": ["nonnegative", "finite"]}` (`docs/rules.md` lists the facts). Rules may rely on
      it.
    - `execution`: "whole", one XLA program; "kernels", one executable per kernel, so that fusion is chosen by the
      search; or "auto", the one of the two that is predicted, or with `measure` timed, to be faster
      (`docs/kernels.md`).
    - `memory_limit`: the bytes that a call may need beside its arguments at each of `at`, and at the largest sizes if
      all have bounds: a number or a text such as "512 MiB". The fastest program found within it is chosen
      (`docs/memory.md`).
    - `time_limit`: how long a call may take, as predicted: "+10%", that much longer than what would be chosen without a
      limit; seconds; or a text such as "2 ms". The program found within it that needs least memory is chosen.
    - `dynamic`: "exact", an executable for each combination of sizes that is called; "capacity", executables for few
      capacities, which take the true sizes as arguments; "auto", capacities for sizes that are neither in `at` nor
      called often; or a `Dynamic`, which also says which capacities, how many executables are kept, and whether they
      are compiled in the background (`docs/dynamic.md`).
    - `measure`: what is decided by the clock. With "auto" (usual) the first calls find out if the chosen program is
      faster than the one as written, where the interval of the predicted gain (`report.expected`) contains 1: the
      program as written is compiled in a thread, and the two take turns on the calls until it is known. "always": they
      do so for any gain; "off": the prediction decides; a `Settle` also limits the calls and seconds. What was found is
      in `best.report` and `best.statistics()`. The environment variable `RELAX_EG_MEASURE` sets the usual mode
      (`docs/devices.md`). With a number, so many programs are timed ahead, beside the one as written, at each of `at`
      and on random arguments, each compiled by XLA as usual or in one of the profile's modes; 0 is "off". A call then
      runs what was fastest at the nearest of `at`, as the guards of `best.variants` say; if two sizes have different
      winners, a few sizes between them are timed, too.
    - `budget`: limits of the search.
    - `mesh`: a mesh of devices, `{"data": 4, "model": 2}`: placements are chosen together with the algebra, and the
      result is a `Spread`. `memory_limit` is then that of each device, all its bytes together. `rx.spread` does the
      same with given placements, state, stages and more (`docs/spread.md`).

    `rx.debug.options` reports progress and turns the disk cache off. Raises TraceError, SpecError, BoundsError,
    OptionError, RuleError; ExtractionError if no program keeps `memory_limit` or
    `time_limit`.
    """
    if mesh is not None:
        from relax_eg.driver.spreads.spreading import spread  # the search on meshes is imported by nothing else here

        check_with_mesh(weights, execution, time_limit, measure)
        return spread(
            program, *args, mesh=mesh, specs=specs_by_name(specs, kwspecs), rules=rules, target=target, at=at,
            bounds=bounds, numerics=numerics, facts=facts, memory_limit=memory_limit, budget=budget,
        )  # fmt: skip
    traced = traced_program(program, args, specs_by_name(specs, kwspecs), bounds)
    options = read_options(
        traced, rules=rules, target=target, at=at, bounds=bounds, weights=weights_of(program, traced, weights),
        facts=facts, numerics=numerics, budget=budget, measure=measure if isinstance(measure, int) else 0,
        execution=execution, memory_limit=memory_limit, time_limit=time_limit,
    )  # fmt: skip
    named: Sequence[Sizes] = [] if at is None else [at] if isinstance(at, Mapping) else at
    chosen = Dynamic.of(dynamic)
    settling = Settle.of(measure) if memory_limit is None and time_limit is None else OFF
    found = traced.cast_variables if traced.in_steps else ()
    policy = read_policy(traced.name, traced.size_variables, options.scope, chosen, named, found)
    given = [a for a in traced.arguments.names if a not in options.weights]
    check_one_program(traced.name, policy, "steps" if traced.in_steps else execution, given)
    with width_context(traced.wide):
        best = _cached_or_searched(traced, options, policy, bool(chosen.trust), settling)
    return holding_weights(best, program)


def check_with_mesh(weights: Any, execution: str, time_limit: Any, measure: Any) -> None:
    """OptionError for options that a program on a mesh does not have."""
    for name, is_given in (
        ("weights", bool(weights)),
        (f"execution={execution!r}", execution != "whole"),
        ("time_limit", time_limit is not None),
        (f"measure={measure!r}", measure not in (None, "auto", "off", 0)),
    ):
        if is_given:
            raise OptionError(f"mesh= and {name}: one of them is accepted")


def weights_of(
    program: Callable[..., Any] | Module, traced: Source, weights: Sequence[str | int]
) -> Sequence[str | int]:
    """The arguments known ahead of the calls: `weights`, or else those of a model."""
    return weights or (tuple(program.weights) if isinstance(program, ModelModule) and not traced.in_steps else ())


def holding_weights(best: Optimized, program: Callable[..., Any] | Module) -> Optimized:
    """`best`, which holds the weights of a model, so that calls pass its inputs alone."""
    if not isinstance(program, ModelModule):
        return best
    inputs = len(program.main.params) - len(program.weights)
    return with_weights(best, HeldArrays(program.weights, inputs, program.outputs))


def _cached_or_searched(traced: Source, options: Options, policy: Policy, trust: bool, settle: Settle) -> Optimized:
    """The optimized function, from the cache or from a search."""
    started = time.perf_counter()
    place = place_of(traced, options)
    # Dumping the stages needs a search, so the cache is not read.
    found = place.read() if place is not None and dump_folder() is None else None
    if found is not None:
        known = found.as_cached(time.perf_counter() - started)
        return optimized_of(traced, options, known, policy, trust, settle)
    with notice_if_long(f"searching for a faster program of {traced.name} (RELAX_EG_DEBUG=2 shows the phases)"):
        found = _search(traced, options, place)
    return optimized_of(traced, options, found, policy, trust, settle)


@fewer_collections()
def _search(traced: Source, options: Options, place: EntryPlace | None) -> CachedResult:
    """The result of a search. It is written to the cache unless the clock stopped the search: another run might find
    more."""
    if options.measure:
        check_measurable(traced, options)  # before the search, to fail early
    search = Search(traced, options)
    if options.family:
        variants = _family(search)
    elif options.measure:
        variants = _measured(search)
    else:
        is_limited = options.memory_limit is not None or options.time_limit is not None
        variants = (_within_limit(search) if is_limited else _predicted(search),)
    found = CachedResult(variants, traced.effectful)
    stopped = search.was_stopped or (found.report.family is not None and found.report.family.stop == BY_CLOCK)
    if place is not None and stopped:
        log_at(1, f"{traced.name} is not cached: the clock stopped the search")
    elif place is not None:
        place.write(found)
    chosen = found.variants[0].module
    dump_stages(
        traced.name,
        {
            "1_traced.txt": lambda: str(traced.module),
            "2_candidate.txt": lambda: str(search.entry().module),
            "3_chosen.txt": lambda: str(chosen),
            "report.txt": lambda: str(found.report),
            "report.json": found.report.to_json,
        },
    )
    return found


def _predicted(search: Search) -> Variant:
    """The program of lowest price, if replacing the one as written pays. A mode other than usual is chosen only if the
    profile was calibrated."""
    options, traced = search.options, search.traced
    modes = options.profile.modes if options.profile.calibrated and not traced.in_steps else ()
    candidates = [
        CandidateProgram(search.entry(replace(spec, mode=mode.name)), mode)
        for spec in (search.by_price, *search.other_executions)
        for mode in (AS_USUAL, *modes)
    ]
    best = sparing_program(search, candidates, _cheapest(search, candidates), options.bindings)
    return _variant(search, best, options.bindings, candidates)


def _cheapest(search: Search, candidates: Sequence[CandidateProgram]) -> CandidateProgram:
    """The fastest of the candidates that pay, else the first. One in another mode or execution has to be faster beyond
    the doubt about it."""
    bindings = search.options.bindings

    def seconds(v: CandidateProgram) -> float:
        # A program without work takes no time, of which there is no geometric mean.
        return geometric_mean([max(search.doubted_seconds(v, b), TINY) for b in bindings])

    return min([v for v in candidates if search.is_worthwhile(v, bindings)] or candidates[:1], key=seconds)


def _family(search: Search) -> tuple[Variant, ...]:
    """One variant per member of a family."""
    found = family(search)
    variants: list[Variant] = []
    for i, m in enumerate(found.members):
        bindings = (m.at, *(b for b in m.served if b != m.at))
        variant = _variant(search, m.candidate, bindings, found.programs, always=True)
        report = replace(
            variant.report,
            seconds={**variant.report.seconds, "total": found.row.seconds},
            extracted_at={} if m.candidate.entry is None else m.candidate.entry.at or {},
            family=found.row,
            variants=found.variants,
            curves=found.curves,
        )
        variants.append(replace(variant, report=report, at=m.served, guard=str(m.guard), fallback=i == found.fallback))
    return tuple(variants)


def _within_limit(search: Search) -> Variant:
    """The program of lowest price within the memory limit, or of least memory within the time limit."""
    binding = search.options.bindings[0]

    def unlimited() -> Entry | None:
        candidates = [CandidateProgram(search.entry(spec)) for spec in (search.by_price, *search.own_kernels)]
        best = _cheapest(search, candidates)
        return best.entry if _variant(search, best, (binding,)).chosen is not None else None

    within = fastest_within_limit if search.options.time_limit is None else smallest_within_time
    candidate, row = within(search, unlimited)
    variant = _variant(search, candidate, (binding,), always=candidate.entry is not None)
    return replace(variant, report=replace(variant.report, memory=row))


def _measured(search: Search) -> tuple[Variant, ...]:
    """One variant per candidate that was the fastest at some binding."""
    timed = time_candidates(search, functools.partial(optimized, search))
    groups = grouped((d.candidate.label, d) for d in timed)
    compared = [CandidateProgram(e) for e in search.entries]
    variants: list[Variant] = []
    for decisions in groups.values():
        first = decisions[0]
        others = (b for b in search.options.bindings if b != first.at)
        variant = _variant(search, first.candidate, (first.at, *others), compared, always=True)
        rows = tuple(r for d in decisions for r in d.rows)
        at = tuple(d.at for d in decisions if d.at in search.options.bindings)
        variants.append(replace(variant, report=replace(variant.report, measured=rows), at=at))
    guards = nearest_guards([[d.at for d in decisions] for decisions in groups.values()])
    return tuple(replace(v, guard=str(g), fallback=v is variants[0]) for v, g in zip(variants, guards, strict=True))


def optimized(search: Search, candidate: CandidateProgram) -> Optimized:
    """What `optimize` returns when it chooses this program, whatever it costs."""
    variant = _variant(search, candidate, search.options.bindings[:1], always=True)  # little of the report is read
    return optimized_of(search.traced, search.options, CachedResult((variant,), search.traced.effectful))


def _variant(
    search: Search,
    candidate: CandidateProgram,
    bindings: Sequence[Sizes],
    compared: Sequence[CandidateProgram] = (),
    always: bool = False,
) -> Variant:
    """A candidate with its report at bindings. The program as written is kept if the candidate does not pay there,
    unless `always`. `compared`: the candidates among which it was chosen."""
    traced, options = search.traced, search.options
    started = time.perf_counter()
    entry = candidate.entry or search.entry()
    inside, weights = search.candidate_options(candidate), search.weights
    written = CandidateProgram(None)
    found = [(price_at(traced.module, options, b), price_at(entry.module, inside, b, weights)) for b in bindings]
    moves = options.execution == KERNELS and moves_less(found) and search.is_no_dearer(candidate, bindings)
    better = always or moves or search.is_worthwhile(candidate, bindings)
    kept = candidate.entry is None or not better
    if kept:
        inside = search.candidate_options(replace(written, mode=candidate.mode))
        if search.is_in_kernels_on_gpu:  # the function as written runs as one XLA program there
            inside = options = replace(inside, execution=WHOLE)
            found = [(cost, cost) for cost in (price_at(traced.module, inside, b) for b in bindings)]
    module = traced.module if kept else entry.module
    check_module(module)
    before = closed_forms(traced.module, options, bindings[0])
    after = before if kept else closed_forms(entry.module, inside, bindings[0], weights)
    seconds = time.perf_counter() - started + sum(e.seconds for e in search.entries)
    report = replace(
        report_of(search, entry, inside, kept, list(zip(bindings, found, strict=True)), seconds),
        searched_for=candidate.label,
        compiler_options=dict(candidate.mode.options),
        expressions={"before": before, "after": after},
        executions=search.least_seconds([written, *compared], bindings[0]),
    )
    execution = STEPS if traced.in_steps else inside.execution
    # Lazy: a module kept as written is built only if it is read.
    return Variant(
        None if kept else module,
        lambda: traced.module,
        report,
        execution,
        dict(candidate.mode.options),
        spec=search.by_price if candidate.entry is None else candidate.entry.spec,
    )
