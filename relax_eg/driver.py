"""The conductor: `optimize`, stage by stage."""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import geometric_mean
from typing import Any, Literal

from relax_eg.backend.family import Variant, guards
from relax_eg.backend.kernels import InKernels
from relax_eg.backend.lower import run_function
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.program import Program
from relax_eg.backend.steps import InSteps
from relax_eg.cache import Choice, Found, Place, place_of, version_of
from relax_eg.debug import dump as dump_stages
from relax_eg.debug import dump_folder, tell
from relax_eg.egraph import Budget, RuleFigures, Saturation, StopReason
from relax_eg.errors import OptionError
from relax_eg.explaining import explained
from relax_eg.extract.cost import CostModel
from relax_eg.extract.profile import AS_USUAL, Profile
from relax_eg.extract.report import CostReport, LibraryRow, Opaque, RuleRow, RunnerUp
from relax_eg.frontends import Source
from relax_eg.frontends.jax_trace import Traced, trace_function
from relax_eg.frontends.modules import written
from relax_eg.ir.expr import CALL_DPS_LIBRARY, postorder
from relax_eg.ir.module import Module
from relax_eg.ir.wellformed import check as check_module
from relax_eg.limited import limited
from relax_eg.measured import Candidate, Decision, Search, check_measurable, decided, searched_with
from relax_eg.ops.libraries import LIBRARIES, library_of
from relax_eg.ops.library_needs import version
from relax_eg.ops.record import TABLE
from relax_eg.options import Bounds, Execution, Facts, Options, Progress, Sizes, check_kinds, read_options
from relax_eg.prices import NEVER_SLOWER, Prices, moves_less, pays, price
from relax_eg.rules import NUMERICS, Numerics, RuleSet
from relax_eg.units import Outcome

_pausing = threading.Lock()
_paused: list[bool] = []  # whether the collector ran before; then one for each block that wants it at rest
_TOLERANCES: dict[str, float] = {"exact": 0.0, "reassociate": 2e-5, "approximate": 1e-2}


def optimize(
    program: Callable[..., Any] | Module,
    *specs: Any,
    rules: RuleSet | None = None,
    target: str | Profile | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    assume: str | Sequence[str] = (),
    weights: Sequence[str | int] = (),
    numerics: Numerics = "reassociate",
    facts: Facts | None = None,
    budget: Budget | None = None,
    progress: Progress | None = None,
    sharing: Literal["on", "off"] = "on",
    cache: bool = True,
    measure: int = 0,
    cost: CostModel | None = None,
    execution: Execution = "whole",
    memory_limit: int | str | None = None,
    **kwspecs: Any,
) -> Optimized:
    """Optimize a JAX function, or a module, for a device.

    `specs`, `kwspecs`: one spec per argument of the function ("b s 768", an array, a pytree of these); none for a
    module, which knows its own. `rules`: the rules that may be used (default: `relax_eg.rules.default`).
    `target`: a device profile or its name (default: the one of JAX's device). `at`: the sizes to be best at, one
    binding of the size variables or several; sizes left out are assumed and the report says so. `bounds`: what sizes
    may ever be, inclusive; outside, a call raises. `assume`: what else holds of sizes, as `rx.prove` takes it: `["s %
    8 == 0", "b*s <= 4096"]`; rules may rest on it, a call that breaks it raises. `weights`: arguments known ahead of
    the calls, by name or position: what depends on them alone is computed once. `numerics`: the loosest class of
    rules allowed. `facts`: what is known of the values of arguments, by name or position, or of single arrays in
    them: `{"S": "positive definite", "w": ["nonnegative", "finite"]}` (`docs/rules.md` lists the facts); rules may
    rely on it. `budget`: limits of the search. `progress`: called with (phase, e-graph nodes, rule matches) as the
    search goes on. `sharing`: whether repeated blocks of a large program (the layers of a transformer) are found and
    optimized once. `cache`: whether what an earlier search found for this very program and these options is taken
    from disk (`relax_eg.cache`). `measure`: how many programs are timed, at each of `at` and on random arguments,
    beside the one as written, each as XLA compiles it as usual or in one of the profile's modes; a call then runs
    what was fastest at the nearest of `at`. With 0, price decides. `cost`: a cost model in place of the profile's
    (`docs/devices.md`). `execution`: "whole", one XLA program; or "kernels", one executable for each kernel, which
    fusion then is a matter of (`docs/kernels.md`). `memory_limit`: the bytes that a call may need beside its
    arguments at each of `at`, a number or a text such as "512 MiB": the fastest program found that keeps it
    (`docs/memory.md`).

    Raises TraceError, SpecError, BoundsError, OptionError, RuleError; ExtractionError where no program keeps
    `memory_limit`.
    """
    check_kinds(rules, at, bounds, assume, weights, facts, budget, progress)
    with _collector_paused():
        statements = (assume,) if isinstance(assume, str) else tuple(assume)
        traced = traced_program(program, specs, kwspecs, bounds, statements)
    limits = budget or Budget()
    options = read_options(
        traced, rules, target, at, bounds, weights, facts, numerics, limits, progress, sharing, measure, cost,
        execution, memory_limit,
    )  # fmt: skip
    started = time.perf_counter()
    with _collector_paused():
        place = place_of(traced, options) if cache else None
        # Who asks for the stages of a search is to have one.
        found = place.read() if place is not None and dump_folder() is None else None
    if found is not None:
        seconds = {"total": time.perf_counter() - started}
        known = (replace(c, report=replace(c.report, cached=True, seconds=seconds)) for c in found.choices)
        return _optimized(traced, options, replace(found, choices=tuple(known)))
    with _collector_paused():
        found = _search(traced, options, place)
    return _optimized(traced, options, found)


@contextmanager
def _collector_paused() -> Generator[None]:
    """The collector of cyclic garbage at rest, in this block and those of other threads.

    Tracing leaves many objects that stay: each time there are a quarter more of them, the collector looks at all that
    was ever imported. In a short run that doubles the time.
    """
    with _pausing:
        if not _paused:
            _paused.append(gc.isenabled())
            gc.disable()
        _paused.append(True)
    try:
        yield
    finally:
        with _pausing:
            _paused.pop()
            if len(_paused) == 1 and _paused.pop():
                gc.enable()


def traced_program(
    program: Callable[..., Any] | Module,
    specs: tuple[Any, ...],
    kwspecs: Mapping[str, Any],
    bounds: Bounds | None,
    assume: tuple[str, ...],
) -> Source:
    """A function or module as what is optimized. TraceError, SpecError, OptionError."""
    # JAX can use bounds that have both sides; the others, and wrong ones, are for the scope to look at.
    decided = {k: (b[0] or 1, b[1]) for k, b in (bounds or {}).items() if isinstance(b, tuple) and _is_pair(b)}
    if isinstance(program, Module):
        if specs or kwspecs:
            raise OptionError("optimize(module) takes no specs: a module's parameters say their own shapes")
        return written(program, run_function, assume)
    if not callable(program):
        raise OptionError(f"optimize takes a function or a module, got {type(program).__name__}")
    pairs = {k: (a, b) for k, (a, b) in decided.items() if b is not None}
    return trace_function(program, specs, kwspecs, bounds=pairs, assume=assume)


def _is_pair(b: Any) -> bool:
    return isinstance(b, tuple) and len(b) == 2 and all(x is None or isinstance(x, int) for x in b)  # type: ignore[reportUnknownVariableType]


def _optimized(traced: Source, options: Options, found: Found) -> Optimized:
    program = Program(
        traced.fn,
        traced.identifier,
        traced.params,
        found.choices[0].module,
        traced.leaf_names,
        tuple(leaf.argument for leaf in traced.leaves),
        traced.in_tree,
        traced.out_tree,
        traced.arguments.signature,
        tuple(leaf.weak_type for leaf in traced.leaves),
        tuple(bool(getattr(a, "weak_type", False)) for a in traced.out_avals),
        options.scope,
        found.effectful,
        tuple(tuple(sorted(dict(options.facts).get(leaf.name, ()))) for leaf in traced.leaves),
        lambda: traced.module,
        isinstance(traced, Traced),
    )
    source = ", from the cache" if found.report.cached else ""
    seconds = found.report.seconds["total"]
    tell(1, f"{traced.name}: {found.report.predicted_gain:.2f}x predicted, {seconds:.2f} s{source}")
    # What was kept as written is walked only if somebody looks at it.
    variants = tuple(
        Variant(
            guard,
            functools.partial(lambda c: traced.module if c.module is None else c.module, c),
            c.report,
            c.compiler_options,
            c.module,
            c.at,
        )
        for guard, c in zip(guards([c.at for c in found.choices]), found.choices, strict=True)
    )
    tolerance = _TOLERANCES[options.numerics[-1]]
    searched = searched_with(options, found.report.searched_for)
    explain = functools.partial(explained, traced, searched, found.choices[0].module)
    if options.execution == "kernels":
        program = replace(program, module=variants[0].module)
        return InKernels(program, variants, options.weights, tolerance, explain)
    if traced.in_steps:
        return InSteps(program, variants, tolerance, traced.module, explain)
    return Optimized(program, variants, options.weights, tolerance, explain)


def _search(traced: Source, options: Options, place: Place | None) -> Found:
    """What a search finds. It is left in the cache unless the clock stopped it: another run might find more."""
    if options.measure:
        check_measurable(traced, options)  # before a search that would be for nothing
    search = Search(traced, options)
    if options.measure:
        choices = _measured(search)
    else:
        choices = (_predicted(search) if options.memory_limit is None else _within_limit(search),)
    found = Found(choices, traced.effectful)
    stopped = any(o.saturation.stop is StopReason.TIME_LIMIT for e in search.made for o in e.units.outcomes)
    if place is not None and stopped:
        tell(1, f"{traced.name} is not cached: the clock stopped the search")
    elif place is not None:
        place.write(found)
    candidate, chosen = search.entry().module, found.choices[0].module or traced.module
    dump_stages(
        traced.name,
        {
            "1_traced.txt": lambda: str(traced.module),
            "2_candidate.txt": lambda: str(candidate),
            "3_chosen.txt": lambda: str(chosen),
            "report.txt": lambda: str(found.report),
            "report.json": found.report.to_json,
        },
    )
    return found


def _predicted(search: Search) -> Choice:
    """The program of lowest price, where that pays; compiled otherwise than usual only where a profile that was
    measured says that this pays once more."""
    best, gain = Candidate(search.entry(), AS_USUAL), 1.0
    if search.options.profile.calibrated and not search.traced.in_steps:
        for mode in search.options.profile.modes:
            found = Candidate(search.entry(mode=mode), mode)
            faster = geometric_mean(
                [search.predicted(best, b) / search.predicted(found, b) for b in search.options.bindings]
            )
            if faster > max(gain, NEVER_SLOWER):
                best, gain = found, faster
    return _choice(search, best, search.options.bindings[0])


def _within_limit(search: Search) -> Choice:
    """The program of lowest price that keeps the memory limit."""
    binding = search.options.bindings[0]
    usual = _choice(search, Candidate(search.entry(), AS_USUAL), binding)
    candidate, row = limited(search, unlimited=usual.module is not None)
    choice = _choice(search, candidate, binding, always=candidate.entry is not None)
    return replace(choice, report=replace(choice.report, memory=row))


def _measured(search: Search) -> tuple[Choice, ...]:
    """A choice for each variant that was the fastest at some binding."""
    groups: dict[str, list[Decision]] = {}

    for d in decided(search, functools.partial(optimized, search)):
        groups.setdefault(d.variant.label, []).append(d)
    choices: list[Choice] = []
    for decisions in groups.values():
        first = decisions[0]
        choice = _choice(search, first.variant, first.at, always=True)
        rows = tuple(r for d in decisions for r in d.rows)
        at = tuple(d.at for d in decisions)
        choices.append(replace(choice, report=replace(choice.report, measured=rows), at=at))
    return tuple(choices)


def optimized(search: Search, candidate: Candidate) -> Optimized:
    """What `optimize` returns where it chooses this program, whatever it costs."""
    choice = _choice(search, candidate, search.options.bindings[0], always=True)
    return _optimized(search.traced, search.options, Found((choice,), search.traced.effectful))


def _choice(search: Search, variant: Candidate, binding: Sizes, always: bool = False) -> Choice:
    """A variant with its report at a binding. Kept as written if it does not pay, unless it is to be `always`."""
    traced, options = search.traced, search.options
    started = time.perf_counter()
    entry = variant.entry or search.entry()
    inside, weights = search.in_mode(variant.mode), search.weights
    bindings = [binding, *(b for b in options.bindings if b != binding)]
    found = [(price(traced.module, options, b), price(entry.module, inside, b, weights)) for b in bindings]
    better = always or pays(found, options) or (options.execution == "kernels" and moves_less(found))
    kept = variant.entry is None or not better
    module = traced.module if kept else entry.module
    check_module(module)
    seconds = time.perf_counter() - started + sum(e.seconds for e in search.made)
    report = replace(
        _report(traced, module, found[0], kept, options, entry.units.outcomes, seconds),
        at=binding,
        searched_for=variant.label,
        compiler_options=dict(variant.mode.options),
    )
    return Choice(None if kept else module, report, (), dict(variant.mode.options))


def _report(
    traced: Source,
    module: Module,
    prices: Prices,
    kept: bool,
    options: Options,
    outcomes: Sequence[Outcome],
    seconds: float,
) -> CostReport:
    binding = options.bindings[0]
    matches: dict[str, int] = {}
    used: dict[str, int] = {}
    phases: dict[str, float] = {}
    for o in outcomes:
        searched = o.saturation
        for total, part in ((matches, searched.matches), (used, {} if kept else o.made), (phases, searched.seconds)):
            for k, v in part.items():
                total[k] = total.get(k, 0) + v  # type: ignore[assignment]
    classes = {s.numerics for s in options.rules.schemas if s.name in used}
    # Where rules over the reals are allowed, facts may hold over the reals only.
    classes |= {
        "reassociate" if r.facts_asked and r.numerics == "exact" and not options.is_exact else r.numerics
        for r in options.rules
        if r.name in used
    }
    searched, peak = _searched([o.saturation for o in outcomes])
    return CostReport(
        name=traced.name,
        target=options.profile.label,
        execution="in steps" if traced.in_steps else options.execution,
        at=binding,
        before=prices[0],
        after=prices[0] if kept else prices[1],
        rules=dict(sorted(used.items(), key=lambda kv: (-kv[1], kv[0]))),
        matches=matches,
        numerics=tuple(n for n in NUMERICS if n in classes),
        stop=", ".join(dict.fromkeys(o.saturation.stop.value for o in outcomes)) or "nothing to optimize",
        nodes=sum(o.saturation.nodes for o in outcomes),
        rounds=sum(o.saturation.rounds for o in outcomes),
        seconds={**phases, "total": seconds},
        kept_as_written=kept,
        assumed_at=options.assumed and bool(binding),
        opaque=_opaque(module),
        versions={p: version_of(p) for p in ("relax-eg", "jax", "egglog", "numpy")},
        searched=searched,
        peak=peak,
        selected=tuple(o.selected for o in outcomes),
        runner_up=_runner_up(traced.name, prices, kept, outcomes),
        libraries=_libraries(traced.module, module, options),
        kernels=() if kept else tuple(row for o in outcomes for row in o.kernels),
    )


def _libraries(as_written: Module, module: Module, options: Options) -> tuple[LibraryRow, ...]:
    """The routines that `module` calls, then those that were missing, of which the program has the operators."""
    calls: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    for function in module:
        for e in function.expressions():
            library = library_of(e)
            if library is not None:
                calls[library.name] += 1
                definition = library.definition([a.annotation for a in e.args], dict(e.attr("attrs")))
                operators[library.name] += sum(x.op in TABLE and bool(x.args) for x in postorder(definition.results))
    rows = [LibraryRow(n, version(LIBRARIES[n]), calls[n], operators[n]) for n in sorted(calls)]
    written_with = {e.op for f in as_written for e in f.expressions()}
    missing = [x for x in options.libraries if x[2] and LIBRARIES[x[0]].operators() <= written_with]
    return (*rows, *(LibraryRow(n, v, 0, 0, why) for n, v, why in missing if LIBRARIES[n].operators()))


def _runner_up(name: str, prices: Prices, kept: bool, outcomes: Sequence[Outcome]) -> RunnerUp | None:
    """What came second: of the functions' runners-up the nearest; or, where the search found another program and the
    one as written was kept, that program."""
    before, after = prices
    rules = sorted({rule for o in outcomes for rule in o.made})
    if not kept or not rules:
        return min((o.runner_up for o in outcomes if o.runner_up), key=lambda r: r.extra, default=None)
    old, new = ({r.op: r.seconds for r in p.rows} for p in (before, after))
    differing = [(op, old.get(op, 0.0), new.get(op, 0.0)) for op in sorted(old.keys() | new.keys())]
    why = sorted((d for d in differing if d[1] != d[2]), key=lambda d: -abs(d[1] - d[2]))[:3]
    extra = after.seconds / before.seconds - 1 if before.seconds > 0 else 0.0
    return RunnerUp(name, "", ", ".join(rules), extra, tuple(why))


def _searched(saturations: Sequence[Saturation]) -> tuple[tuple[RuleRow, ...], int]:
    """What each rule did over all e-graphs, by name, and the nodes of the largest."""
    rows: dict[str, RuleRow] = {}
    none = RuleFigures(0, 0, 0.0)
    for s in saturations:
        left_out = {x.rule: x for x in s.left_out}
        for rule in s.rules.keys() | left_out.keys():
            old, new = rows.get(rule, RuleRow(rule, 0, 0, 0.0)), s.rules.get(rule, none)
            why = old.left_out or str(left_out.get(rule, ""))
            counts = old.matches + new.matches, old.nodes + new.nodes, old.milliseconds + new.milliseconds
            rows[rule] = RuleRow(rule, *counts, why)
    return tuple(rows[r] for r in sorted(rows)), max((s.peak for s in saturations), default=0)


def _opaque(module: Module) -> tuple[Opaque, ...]:
    found: dict[tuple[str, str], int] = {}
    for function in module:
        for e in function.expressions():
            if e.op == CALL_DPS_LIBRARY and library_of(e) is None:
                key = (str(e.attr("name")), function.sources.get(e, ""))
                found[key] = found.get(key, 0) + 1
    return tuple(Opaque(name, source, n) for (name, source), n in found.items())
