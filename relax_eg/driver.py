"""The conductor: `optimize`, stage by stage."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import geometric_mean
from typing import Any

from relax_eg.backend.lower import run_function
from relax_eg.backend.optimized import Optimized, Program, Variant
from relax_eg.debug import dump as dump_stages
from relax_eg.debug import tell
from relax_eg.egraph import Budget, EGraph, Saturation, dump
from relax_eg.errors import BoundsError, OptionError
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.plan import prepared_bytes, split, static_expressions
from relax_eg.extract.profile import Profile, profile
from relax_eg.extract.report import CostReport, Opaque, price_program
from relax_eg.extract.weights import cheapest
from relax_eg.frontends.jax_trace import Traced, trace_function
from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.wellformed import check as check_module
from relax_eg.rules import NUMERICS, Numerics, Rule, RuleSet
from relax_eg.rules.book import default as default_rules
from relax_eg.rules.certificates import status
from relax_eg.shapes import Scope

Progress = Callable[[str, int, int], None]
Sizes = Mapping[str, int]
Bounds = Mapping[str, tuple[int | None, int | None] | int]

NEVER_SLOWER = 1.05  # without measuring, a program replaces the one as written only above this predicted gain
ASSUMED_SIZE = 128
_TOLERANCES: dict[str, float] = {"exact": 0.0, "reassociate": 2e-5, "approximate": 1e-2}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `optimize`, checked."""

    rules: RuleSet
    profile: Profile
    bindings: tuple[dict[str, int], ...]
    assumed: bool
    scope: Scope
    weights: tuple[str, ...]
    numerics: tuple[Numerics, ...]
    budget: Budget
    progress: Progress | None


def optimize(
    program: Callable[..., Any] | Module,
    *specs: Any,
    rules: RuleSet | None = None,
    target: str | Profile = "cpu",
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    weights: Sequence[str | int] = (),
    numerics: Numerics = "reassociate",
    budget: Budget | None = None,
    progress: Progress | None = None,
    **kwspecs: Any,
) -> Optimized:
    """Optimize a JAX function, or a module, for a device.

    `specs`, `kwspecs`: one spec per argument of the function ("b s 768", an array, a pytree of these); none for a
    module, which knows its own. `rules`: the rules that may be used (default: `relax_eg.rules.default`).
    `target`: a device profile or its name. `at`: the sizes to be best at, one binding of the size variables or
    several; sizes left out are assumed and the report says so. `bounds`: what sizes may ever be, inclusive;
    outside, a call raises. `weights`: arguments known ahead of the calls, by name or position: what depends on
    them alone is computed once. `numerics`: the loosest class of rules allowed. `budget`: limits of the search.
    `progress`: called with (phase, e-graph nodes, rule matches) as the search goes on.

    Raises TraceError, SpecError, BoundsError, OptionError, RuleError.
    """
    _check_kinds(rules, at, bounds, weights, budget, progress)
    traced = _traced(program, specs, kwspecs, bounds)
    options = _options(traced, rules, target, at, bounds, weights, numerics, budget or Budget(), progress)
    return _optimize(traced, options)


def _check_kinds(rules: Any, at: Any, bounds: Any, weights: Any, budget: Any, progress: Any) -> None:
    """OptionError for an option that is no such thing at all; what is in it is looked at later."""
    many = at if isinstance(at, (list, tuple)) else [at]
    for option, value, fits, accepted in (
        ("rules", rules, rules is None or isinstance(rules, RuleSet), "a RuleSet"),
        ("at", at, at is None or all(isinstance(b, Mapping) for b in many), "{'n': 128}, or a list of such,"),
        ("bounds", bounds, bounds is None or isinstance(bounds, Mapping), "{'n': (1, 4096)}"),
        ("weights", weights, isinstance(weights, (str, list, tuple)), "a list of argument names or positions"),
        ("budget", budget, budget is None or isinstance(budget, Budget), "a Budget"),
        ("progress", progress, progress is None or callable(progress), "a function (phase, nodes, matches)"),
    ):
        if not fits:
            raise OptionError(f"{option}={value!r}: {accepted} is accepted")


def _traced(
    program: Callable[..., Any] | Module,
    specs: tuple[Any, ...],
    kwspecs: Mapping[str, Any],
    bounds: Bounds | None,
) -> Traced:
    # JAX can use bounds that have both sides; the others, and wrong ones, are for the scope to look at.
    decided = {k: (b[0] or 1, b[1]) for k, b in (bounds or {}).items() if isinstance(b, tuple) and _is_pair(b)}
    if isinstance(program, Module):
        if specs or kwspecs:
            raise OptionError("optimize(module) takes no specs: a module's parameters say their own shapes")
        module, main = program, program.main
        check_module(module)

        def run(*arrays: Any) -> Any:
            return run_function(module, main, arrays)

        # The module's own names: weights, errors and the optimized module speak of them.
        names = [str(p.attr("name")) for p in main.params]
        signature = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
        run.__signature__ = signature  # type: ignore[reportFunctionMemberAccess]
        return trace_function(run, tuple(p.annotation for p in main.params), name=main.name)
    if not callable(program):
        raise OptionError(f"optimize takes a function or a module, got {type(program).__name__}")
    return trace_function(program, specs, kwspecs, bounds={k: (a, b) for k, (a, b) in decided.items() if b is not None})


def _is_pair(b: Any) -> bool:
    return isinstance(b, tuple) and len(b) == 2 and all(x is None or isinstance(x, int) for x in b)  # type: ignore[reportUnknownVariableType]


def _options(
    traced: Traced,
    rules: RuleSet | None,
    target: str | Profile,
    at: Sizes | Sequence[Sizes] | None,
    bounds: Bounds | None,
    weights: Sequence[str | int],
    numerics: str,
    budget: Budget,
    progress: Progress | None,
) -> Options:
    name, known = traced.name, traced.module.main.size_variables
    if numerics not in NUMERICS:
        raise OptionError(f"numerics={numerics!r}: one of {', '.join(NUMERICS)} is accepted")
    _known_names(name, "bounds", bounds or {}, known)
    scope = Scope(bounds)
    for v in bounds or {}:
        low, _ = scope.bounds(v)
        if low is not None and low < 1:
            raise BoundsError(f"{name}(): the lower bound of {v} is {low}; a traced program takes sizes >= 1")
    given: list[Sizes] = [] if at is None else [at] if isinstance(at, Mapping) else list(at)
    assumed = False
    bindings: list[dict[str, int]] = []
    for binding in given or [{}]:
        _known_names(name, "at", binding, known)
        for v, size in binding.items():
            if not isinstance(size, int) or isinstance(size, bool):
                raise BoundsError(f"{name}(): at {v} = {size!r}; an integer is accepted")
        full = dict(binding)
        for v in known:
            if v not in full:
                assumed = True
                low, high = scope.bounds(v)
                full[v] = max(low or 1, min(ASSUMED_SIZE, high if high is not None else ASSUMED_SIZE))
        scope.check(full, name)
        bindings.append({v: full[v] for v in known})
    chosen = rules if rules is not None else default_rules
    allowed = NUMERICS[: NUMERICS.index(numerics) + 1]  # type: ignore[arg-type]
    return Options(
        RuleSet(chosen.name, _trusted(r for r in chosen if r.numerics in allowed)),
        profile(target),
        tuple(bindings),
        assumed,
        scope,
        _weights(traced, weights),
        allowed,
        budget,
        progress,
    )


def _known_names(name: str, option: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for v in given:
        if v not in known:
            has = f"its sizes are {', '.join(known)}" if known else "it has no symbolic sizes"
            raise BoundsError(f"{name}(): no size is named `{v}` ({option}={{{v!r}: ...}}); {has}")


def _trusted(rules: Iterable[Rule]) -> Iterable[Rule]:
    """Rules whose verdict is on file or is reached now; RuleError at one that is refuted."""
    for r in rules:
        verdict = status(r)
        if verdict.status == "refuted":
            raise r.error(f"is refuted and does not run: {verdict.counterexample}")
        yield r


def _weights(traced: Traced, weights: Sequence[str | int]) -> tuple[str, ...]:
    names = traced.arg_names
    if isinstance(weights, str):
        weights = (weights,)
    found: list[str] = []
    for w in weights:
        if isinstance(w, int) and -len(names) <= w < len(names):
            found.append(names[w])
        elif w in names:
            found.append(str(w))
        else:
            raise OptionError(
                f"weights: {traced.name} has no argument {w!r}; its arguments are {', '.join(names) or 'none'}"
            )
    return tuple(n for n in names if n in found)


def _optimize(traced: Traced, options: Options) -> Optimized:
    started = time.perf_counter()
    function = traced.module.main
    weights = {leaf.name for leaf in traced.leaves if leaf.argument in options.weights}
    blocks: list[Block] = []
    outcomes: list[tuple[Saturation, dict[str, int]]] = []
    for block in function.blocks:
        if not block.dataflow or not block.bindings:
            blocks.append(block)
            continue
        new, outcome = _optimize_block(block, weights, options)
        blocks.append(new)
        outcomes.append(outcome)
    candidate = Function(function.name, function.params, tuple(blocks), function.result, function.sources)
    kept, chosen = _choose(function, candidate, weights, options)
    module = Module((chosen,))
    check_module(module)
    report = _report(traced, function, chosen, kept, weights, options, outcomes, time.perf_counter() - started)
    program = Program(
        traced.fn,
        module,
        traced.module,
        traced.leaf_names,
        tuple(leaf.argument for leaf in traced.leaves),
        traced.in_tree,
        traced.out_tree,
        traced.arguments.bind,
        tuple(leaf.weak_type for leaf in traced.leaves),
        tuple(bool(getattr(a, "weak_type", False)) for a in traced.out_avals),
        options.scope,
        kept,
        traced.effectful,
    )
    tell(1, f"{traced.name}: {report.predicted_gain:.2f}x predicted, {time.perf_counter() - started:.2f} s")
    dump_stages(
        traced.name,
        {
            "1_traced.txt": lambda: str(traced.module),
            "2_candidate.txt": lambda: str(Module((candidate,))),
            "3_chosen.txt": lambda: str(module),
            "report.txt": lambda: str(report),
            "report.json": report.to_json,
        },
    )
    variant = Variant("all sizes", module, report)
    return Optimized(program, (variant,), options.weights, _TOLERANCES[options.numerics[-1]])


def _optimize_block(
    block: Block, weights: set[str], options: Options
) -> tuple[Block, tuple[Saturation, dict[str, int]]]:
    with EGraph([b.value for b in block.bindings], options.rules, options.scope) as egraph:
        saturation = egraph.saturate(options.budget, options.progress)
        read = dump(egraph)
    if options.progress is not None:
        options.progress("extract", saturation.nodes, sum(saturation.matches.values()))
    selection = cheapest(read.graph, read.decode, weights, [WholeCost(options.profile, b) for b in options.bindings])
    made: dict[str, int] = {}
    for c, k in enumerate(selection.choice):
        rule = read.graph.candidates[c][k].made_by if k >= 0 else ""
        if rule:
            made[rule] = made.get(rule, 0) + 1
    values = read.decode(selection.choice)
    bindings = tuple(Binding(b.var, v) for b, v in zip(block.bindings, values, strict=True))
    return Block(bindings), (saturation, made)


def _choose(function: Function, candidate: Function, weights: set[str], options: Options) -> tuple[bool, Function]:
    """The candidate where it is predicted to gain more than 5%, else the function as written.

    Over several bindings that is the geometric mean; or one of them, if none loses. As written, what depends on the
    weights alone is computed at every call; the candidate computes it once.
    """
    gains: list[float] = []
    for b in options.bindings:
        model = WholeCost(options.profile, b)
        before = price_program(function, model).seconds
        after = price_program(candidate, model, static_expressions(candidate, weights)).seconds
        gains.append(before / after if after > 0 else 1.0)
    pays = geometric_mean(gains) > NEVER_SLOWER or (max(gains) > NEVER_SLOWER and min(gains) >= 1.0)
    return not pays, candidate if pays else function


def _report(
    traced: Traced,
    before: Function,
    after: Function,
    kept: bool,
    weights: set[str],
    options: Options,
    outcomes: list[tuple[Saturation, dict[str, int]]],
    seconds: float,
) -> CostReport:
    binding = options.bindings[0]
    model = WholeCost(options.profile, binding)
    cut = () if kept or not weights else split(after, weights).prepare.result.args
    once = None if kept else static_expressions(after, weights)
    matches: dict[str, int] = {}
    used: dict[str, int] = {}
    phases: dict[str, float] = {}
    for saturation, made in outcomes:
        for total, part in ((matches, saturation.matches), (used, {} if kept else made), (phases, saturation.seconds)):
            for k, v in part.items():
                total[k] = total.get(k, 0) + v  # type: ignore[assignment]
    classes = {options.rules[r].numerics for r in used if r in options.rules}
    return CostReport(
        name=traced.name,
        target=options.profile.name,
        execution="whole",
        at=binding,
        before=price_program(before, model),
        after=price_program(after, model, once, (len(cut), prepared_bytes(cut, binding))),
        rules=dict(sorted(used.items(), key=lambda kv: (-kv[1], kv[0]))),
        matches=matches,
        numerics=tuple(n for n in NUMERICS if n in classes),
        stop=", ".join(dict.fromkeys(s.stop.value for s, _ in outcomes)) or "nothing to optimize",
        nodes=sum(s.nodes for s, _ in outcomes),
        rounds=sum(s.rounds for s, _ in outcomes),
        seconds={**phases, "total": seconds},
        kept_as_written=kept,
        assumed_at=options.assumed and bool(binding),
        opaque=_opaque(after),
        versions={p: _version(p) for p in ("relax-eg", "jax", "egglog", "numpy")},
    )


def _opaque(function: Function) -> tuple[Opaque, ...]:
    found: dict[tuple[str, str], int] = {}
    for e in function.expressions():
        if e.op == CALL_DPS_LIBRARY:
            key = (str(e.attr("name")), function.sources.get(e, ""))
            found[key] = found.get(key, 0) + 1
    return tuple(Opaque(name, source, n) for (name, source), n in found.items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
