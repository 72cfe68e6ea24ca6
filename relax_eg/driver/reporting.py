"""Builds the report of a choice: what the search did, and the costs of the resulting program in detail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from relax_eg.cache_folder import version_of
from relax_eg.driver.clock.measured import Entry, Search
from relax_eg.driver.options import Options, Sizes
from relax_eg.driver.prices import Prices, expected_of, with_details
from relax_eg.driver.units import Outcome
from relax_eg.egraph import RuleFigures, Saturation
from relax_eg.extract.report import (
    AtSizes,
    DeviceRow,
    GrowthRow,
    LibraryRow,
    OpaqueCall,
    RuleRow,
    RunnerUp,
)
from relax_eg.frontends import Source
from relax_eg.frontends.modules import PreparedModule
from relax_eg.frontends.sources import text_of_line
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr, postorder
from relax_eg.ir.module import Module
from relax_eg.ops import site_of
from relax_eg.ops.libraries import LIBRARIES, library_of
from relax_eg.ops.library_needs import version
from relax_eg.ops.record import TABLE, program_of
from relax_eg.reports import CostReport
from relax_eg.rules import NUMERICS
from relax_eg.rules.checking.certificates import not_proved
from relax_eg.rules.rule import instances
from relax_eg.tir import Apply, Reduce, Select, walk
from relax_eg.vm.folds import folds_of

MOST_LETTERS = 160  # limit: letters of a source line that a report quotes
PACKAGES = ("relax-eg", "jax", "egglog", "numpy")


def report_of(
    search: Search,
    entry: Entry,
    inside: Options,
    kept: bool,
    found: Sequence[tuple[Sizes, Prices]],
    seconds: float,
) -> CostReport:
    """The report of the program of `entry`, or with `kept` of the one as written.

    - `inside`: the options with the profile of its compilation mode, and its execution.
    - `found`: the prices at each binding; the first is that of the report.
    - `seconds`: the total time of the work.
    """
    traced, options, outcomes = search.traced, search.options, entry.found.outcomes
    module = traced.module if kept else entry.module
    matches: dict[str, int] = {}
    used: dict[str, int] = {}
    phases: dict[str, float] = {}
    for o in outcomes:
        searched = o.saturation
        for total, part in (
            (matches, searched.matches),
            (used, {} if kept else o.nodes_by_rule),
            (phases, searched.seconds),
        ):
            for k, v in part.items():
                total[k] = total.get(k, 0) + v  # type: ignore[assignment]
    for rule, n in ({} if kept else entry.after_extraction).items():
        used[rule] = used.get(rule, 0) + n
    classes = {s.numerics for s in options.rules.schemas if s.name in used}
    # If rules over the reals are allowed, facts may hold over the reals only.
    classes |= {
        "reassociate" if r.required_facts and r.numerics == "exact" and not options.is_exact else r.numerics
        for r in options.rules
        if r.name in used
    }
    searched, peak = _searched([o.saturation for o in outcomes])
    stops = list(dict.fromkeys(o.saturation.stop.value for o in outcomes))
    if entry.found.extraction.ran_out:
        stops.append("extraction time limit")
    here, *others = _in_detail(search, entry, inside, kept, found)
    quoted = dict.fromkeys(line for side in (here.before, here.after) for p in side.parts for line in p.lines)
    known = {str(line): line for f in traced.module for o in f.origins.values() for line in o.lines}
    return CostReport(
        name=traced.name,
        target=options.profile.label,
        execution="in steps" if traced.in_steps else inside.execution,
        at=here.at,
        before=here.before,
        after=here.after,
        rules=dict(sorted(used.items(), key=lambda kv: (-kv[1], kv[0]))),
        matches=matches,
        numerics=tuple(n for n in NUMERICS if n in classes),
        stop=", ".join(stops) or "nothing to optimize",
        nodes=sum(o.saturation.nodes for o in outcomes),
        rounds=sum(o.saturation.rounds for o in outcomes),
        seconds={**phases, "total": seconds},
        kept_as_written=kept,
        assumed_at=options.assumed and bool(here.at),
        opaque=_opaque(module),
        versions={p: version_of(p) for p in PACKAGES},
        searched=searched,
        peak=peak,
        selected=tuple(o.block.selected for o in outcomes),
        runner_up=_runner_up(traced.name, found[0][1], kept, outcomes),
        libraries=_libraries(traced.module, module, options),
        kernels=() if kept else tuple(row for o in outcomes for row in o.block.kernels),
        device=DeviceRow.of(inside.profile) if options.cost is None else None,
        growth=tuple(
            GrowthRow(o.block.selected.function, n, r.phase, r.nodes, r.matches)
            for o in outcomes
            for n, r in enumerate(o.saturation.growth)
        ),
        unproved=tuple(dict.fromkeys(u for o in outcomes for u in o.saturation.unproved)),
        others=tuple(others),
        signature=_signature(traced.module),
        rule_set=options.rules.name,
        language=_language(traced),
        expected=None if kept else expected_of(here.before, here.after, inside.profile),
        refused=dict(sum((Counter(o.block.refused) for o in outcomes), Counter[str]())),
        not_proved=not_proved(r for r in (*options.rules, *options.rules.schemas) if r.name in used),
        code={line: text[:MOST_LETTERS] for line in quoted if line in known and (text := text_of_line(known[line]))},
    )


def _language(traced: Source) -> dict[str, str]:
    """What became of recursion, function values and data."""
    if not isinstance(traced, PreparedModule):
        return {}
    told = {name: "its recursion is a loop" for name in traced.looped}
    if traced.in_steps:
        told |= {name: "runs by depth, for all values at once" for name in folds_of(traced.module)}
    if traced.evaluated:
        told[traced.name] = f"{traced.evaluated} calls and choices are evaluated ahead of the calls"
    return told


def _in_detail(
    search: Search, entry: Entry, inside: Options, kept: bool, found: Sequence[tuple[Sizes, Prices]]
) -> list[AtSizes]:
    """Both programs at every binding, by kernel, source line and rule."""
    written, chosen, options = search.traced.module, entry.module, search.options
    options = replace(options, execution=inside.execution) if kept else options
    kernels = {row.name: row.operators for o in entry.found.outcomes for row in o.block.kernels}
    rows: list[AtSizes] = []
    for at, (before, after) in found:
        old = with_details(before, written, options, at)
        new = old if kept else with_details(after, chosen, inside, at, kernels, search.weights)
        rows.append(AtSizes(dict(at), old, new))
    return rows


def _signature(module: Module) -> str:
    """Parameters and result of the entry, as text."""
    main = module.main
    return f"({', '.join(str(p.annotation) for p in main.params)}) -> {main.annotation}"


def _libraries(as_written: Module, module: Module, options: Options) -> tuple[LibraryRow, ...]:
    """The routines that `module` calls, then the missing routines whose operators the program has."""
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
    return (*rows, *_missing(as_written, options))


def _missing(as_written: Module, options: Options) -> Iterator[LibraryRow]:
    """Yields the missing routines that a program might call. One for another platform is told where the program has the
    operators of its pattern; others where it computes what these compute, as a softmax is traced to what it is made
    of."""
    written = {e.op: e for f in as_written for e in f.expressions()}
    platform = options.profile.platform
    near = [r for r in options.missing if r.library and platform in (r.library.requires.platforms or (platform,))]
    computed = frozenset[str]().union(*map(_computed, written.values())) if near else frozenset[str]()
    why = {name: text for name, _, text in options.libraries}
    for rule in options.missing:
        library = rule.library
        assert library is not None
        wanted = library.operators()
        here = bool(wanted) and wanted <= written.keys()
        if not here and wanted and rule in near:
            pattern = next(iter(instances(rule, limit=1))).left
            here = frozenset[str]().union(*map(_computed, postorder(pattern))) <= computed
        if here:
            yield LibraryRow(library.name, version(library), 0, 0, why[library.name])


def _computed(e: Expr) -> frozenset[str]:
    """The functions, selections and reductions of an operator's equations; none where a shape is not known."""
    known = e.op in TABLE and all(getattr(a.annotation, "shape", ()) is not None for a in e.args)
    program = program_of(site_of(e)) if known else None
    terms = [t for stage in program.stages for t in walk(stage.value)] if program is not None else []
    applied = {t.fn if isinstance(t, Apply) else t.kind for t in terms if isinstance(t, Apply | Reduce)}
    return frozenset(applied | {"select" for t in terms if isinstance(t, Select)})


def _runner_up(name: str, prices: Prices, kept: bool, outcomes: Sequence[Outcome]) -> RunnerUp | None:
    """The runner-up: the nearest of the functions' runners-up; or, if the search found another program and the one as
    written was kept, that program."""
    before, after = prices
    rules = sorted({rule for o in outcomes for rule in o.nodes_by_rule})
    if not kept or not rules:
        found = (o.block.runner_up() for o in outcomes)
        return min((r for r in found if r is not None), key=lambda r: r.extra, default=None)
    old, new = ({r.op: r.seconds for r in p.rows} for p in (before, after))
    differing = [(op, old.get(op, 0.0), new.get(op, 0.0)) for op in sorted(old.keys() | new.keys())]
    why = sorted((d for d in differing if d[1] != d[2]), key=lambda d: -abs(d[1] - d[2]))[:3]
    extra = after.seconds / before.seconds - 1 if before.seconds > 0 else 0.0
    return RunnerUp(name, "", ", ".join(rules), extra, tuple(why))


def _searched(saturations: Sequence[Saturation]) -> tuple[tuple[RuleRow, ...], int]:
    """The totals of each rule over all e-graphs, by name, and the nodes of the largest e-graph."""
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


def _opaque(module: Module) -> tuple[OpaqueCall, ...]:
    found: dict[tuple[str, str], int] = {}
    for function in module:
        for e in function.expressions():
            if e.op == CALL_DPS_LIBRARY and library_of(e) is None:
                key = (str(e.attr("name")), str(function.origins.get(e, "")))
                found[key] = found.get(key, 0) + 1
    return tuple(OpaqueCall(name, source, n) for (name, source), n in found.items())
