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

from relax_eg.backend.lower import run_function
from relax_eg.backend.optimized import Optimized, Program, Variant
from relax_eg.backend.steps import InSteps
from relax_eg.cache import Found, Place, place_of, version_of
from relax_eg.debug import dump as dump_stages
from relax_eg.debug import dump_folder, tell
from relax_eg.egraph import Budget, RuleFigures, Saturation, StopReason
from relax_eg.errors import OptionError
from relax_eg.explaining import explained
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.profile import Profile
from relax_eg.extract.report import CostReport, MeasuredRow, Opaque, ProgramCost, RuleRow, RunnerUp, price_program
from relax_eg.extract.weights import prepared_bytes
from relax_eg.frontends import Source
from relax_eg.frontends.jax_trace import Traced, trace_function
from relax_eg.frontends.modules import written
from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.ir.module import Module
from relax_eg.ir.partition import split, static_expressions
from relax_eg.ir.wellformed import check as check_module
from relax_eg.measured import BY_PRICE, Entry, alternatives, check_measurable, searched_with, timed
from relax_eg.options import Bounds, Facts, Options, Progress, Sizes, check_kinds, read_options
from relax_eg.rules import NUMERICS, Numerics, RuleSet
from relax_eg.units import Outcome, Units

NEVER_SLOWER = 1.05  # without measuring, a program replaces the one as written only above this predicted gain
_pausing = threading.Lock()
_paused: list[bool] = []  # whether the collector ran before; then one for each block that wants it at rest
_TOLERANCES: dict[str, float] = {"exact": 0.0, "reassociate": 2e-5, "approximate": 1e-2}


def optimize(
    program: Callable[..., Any] | Module,
    *specs: Any,
    rules: RuleSet | None = None,
    target: str | Profile = "cpu",
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
    **kwspecs: Any,
) -> Optimized:
    """Optimize a JAX function, or a module, for a device.

    `specs`, `kwspecs`: one spec per argument of the function ("b s 768", an array, a pytree of these); none for a
    module, which knows its own. `rules`: the rules that may be used (default: `relax_eg.rules.default`).
    `target`: a device profile or its name. `at`: the sizes to be best at, one binding of the size variables or
    several; sizes left out are assumed and the report says so. `bounds`: what sizes may ever be, inclusive;
    outside, a call raises. `assume`: what else holds of sizes, as `rx.prove` takes it: `["s % 8 == 0", "b*s <=
    4096"]`; rules may rest on it, a call that breaks it raises. `weights`: arguments known ahead of the calls, by name
    or position: what depends on them alone is computed once. `numerics`: the loosest class of rules allowed. `facts`:
    what is known of the values of arguments, by name or position, or of single arrays in them: `{"S": "positive
    definite", "w": ["nonnegative", "finite"]}` (`docs/rules.md` lists the facts); rules may rely on it. `budget`:
    limits of the search. `progress`: called with (phase, e-graph nodes, rule matches) as the search goes on.
    `sharing`: whether repeated blocks of a large program (the layers of a transformer) are found and optimized once.
    `cache`: whether what an earlier search found for this very program and these options is taken from disk
    (`relax_eg.cache`). `measure`: how many programs are timed, at the first of `at` and on random arguments, beside the
    one as written; with 0, price decides.

    Raises TraceError, SpecError, BoundsError, OptionError, RuleError.
    """
    check_kinds(rules, at, bounds, assume, weights, facts, budget, progress)
    with _collector_paused():
        statements = (assume,) if isinstance(assume, str) else tuple(assume)
        traced = traced_program(program, specs, kwspecs, bounds, statements)
    limits = budget or Budget()
    options = read_options(
        traced, rules, target, at, bounds, weights, facts, numerics, limits, progress, sharing, measure
    )
    started = time.perf_counter()
    with _collector_paused():
        place = place_of(traced, options) if cache else None
        # Who asks for the stages of a search is to have one.
        found = place.read() if place is not None and dump_folder() is None else None
    if found is not None:
        report = replace(found.report, cached=True, seconds={"total": time.perf_counter() - started})
        return _optimized(traced, options, replace(found, report=report))
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
        found.module,
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
    chosen = found.module
    # What was kept as written is walked only if somebody looks at it.
    variant = Variant("all sizes", (lambda: traced.module) if chosen is None else (lambda: chosen), found.report)
    tolerance = _TOLERANCES[options.numerics[-1]]
    explain = functools.partial(explained, traced, searched_with(options, found.report), chosen)
    if traced.in_steps:
        return InSteps(program, (variant,), tolerance, traced.module, explain)
    return Optimized(program, (variant,), options.weights, tolerance, explain)


def _search(traced: Source, options: Options, place: Place | None) -> Found:
    """What a search finds. It is left in the cache unless the clock stopped it: another run might find more."""
    started = time.perf_counter()
    if options.measure:
        check_measurable(traced, options)  # before a search that would be for nothing
    weights = {leaf.name for leaf in traced.leaves if leaf.argument in options.weights}
    units, candidate = _searched_for(traced, options, weights)
    prices = [_prices(traced.module, candidate, weights, b, options) for b in options.bindings]
    kept = not _pays(prices)
    measured: tuple[MeasuredRow, ...] = ()
    if options.measure:
        units, candidate, measured = _by_the_clock(traced, options, weights, units, candidate)
        prices = [_prices(traced.module, candidate, weights, b, options) for b in options.bindings]
        kept = measured[0].chosen
    module = traced.module if kept else candidate
    check_module(module)
    report = _report(traced, module, prices[0], kept, options, units.outcomes, time.perf_counter() - started)
    found = Found(None if kept else module, traced.effectful, replace(report, measured=measured))
    if place is not None and any(o.saturation.stop is StopReason.TIME_LIMIT for o in units.outcomes):
        tell(1, f"{traced.name} is not cached: the clock stopped the search")
    elif place is not None:
        place.write(found)
    dump_stages(
        traced.name,
        {
            "1_traced.txt": lambda: str(traced.module),
            "2_candidate.txt": lambda: str(candidate),
            "3_chosen.txt": lambda: str(module),
            "report.txt": lambda: str(report),
            "report.json": report.to_json,
        },
    )
    return found


def _searched_for(traced: Source, options: Options, weights: set[str]) -> tuple[Units, Module]:
    units = Units(traced.module, options)
    return units, units.run(weights)


def _by_the_clock(
    traced: Source, options: Options, weights: set[str], units: Units, candidate: Module
) -> tuple[Units, Module, tuple[MeasuredRow, ...]]:
    """The search and the program that was measured to be the fastest (that of lowest price, where it is the one as
    written), and all that was measured."""
    searches: dict[str, tuple[Units, Module]] = {BY_PRICE: (units, candidate)}
    binding = options.bindings[0]

    def entry(label: str, chosen: Options) -> Entry:
        if label not in searches:
            searches[label] = _searched_for(traced, chosen, weights)
        units, module = searches[label]
        made: Counter[str] = Counter()
        for o in units.outcomes:
            made.update(o.made)
        after = _prices(traced.module, module, weights, binding, options)[1]
        return Entry(label, module, after.seconds, tuple(r for r, _ in made.most_common()))

    def call(module: Module | None) -> Optimized:
        report = _report(traced, traced.module, before_after, module is None, options, units.outcomes, 0.0)
        return _optimized(traced, options, Found(module, traced.effectful, report))

    before_after = _prices(traced.module, candidate, weights, binding, options)
    entries = alternatives(entry(BY_PRICE, options), options, entry)
    rows = timed(traced, options, before_after[0].seconds, entries, call)
    label = next(r.label for r in rows if r.chosen)
    return (*searches.get(label, searches[BY_PRICE]), rows)


def _prices(
    written: Module, candidate: Module, weights: set[str], binding: Sizes, options: Options
) -> tuple[ProgramCost, ProgramCost]:
    """The program as written and the candidate at a binding. As written, what depends on the weights alone is computed
    at every call; the candidate computes it once."""
    before = price_program(written.main, _model(written, binding, options))
    cut = split(candidate.main, weights).prepare.result.args if weights else ()
    prepared = (len(cut), prepared_bytes(cut, binding))
    once = static_expressions(candidate.main, weights)
    return before, price_program(candidate.main, _model(candidate, binding, options), once, prepared)


def _model(module: Module, binding: Sizes, options: Options) -> WholeCost:
    return WholeCost(options.profile, binding, {f.name: f for f in module})


def pays(written: Module, candidate: Module, weights: set[str], options: Options) -> bool:
    """Whether a program is chosen over the one as written."""
    return _pays([_prices(written, candidate, weights, b, options) for b in options.bindings])


def _pays(prices: Sequence[tuple[ProgramCost, ProgramCost]]) -> bool:
    """Whether the candidate is predicted to gain more than 5% over the program as written.

    Over several bindings that is the geometric mean; or one of them, if none loses.
    """
    gains = [before.seconds / after.seconds if after.seconds > 0 else 1.0 for before, after in prices]
    return geometric_mean(gains) > NEVER_SLOWER or (max(gains) > NEVER_SLOWER and min(gains) >= 1.0)


def _report(
    traced: Source,
    module: Module,
    prices: tuple[ProgramCost, ProgramCost],
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
        execution="in steps" if traced.in_steps else "whole",
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
    )


def _runner_up(
    name: str, prices: tuple[ProgramCost, ProgramCost], kept: bool, outcomes: Sequence[Outcome]
) -> RunnerUp | None:
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
            if e.op == CALL_DPS_LIBRARY:
                key = (str(e.attr("name")), function.sources.get(e, ""))
                found[key] = found.get(key, 0) + 1
    return tuple(Opaque(name, source, n) for (name, source), n in found.items())
