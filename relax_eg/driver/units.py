"""`Units`: optimizes the functions of a module, callees first, with one e-graph per dataflow block.

A caller sees a function as a call, or as a loop over it. Expressions that schemas (`rules.schemas`) propose stand
beside the node as written when the caller's e-graph is made; extraction decides between them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from relax_eg.driver.accuracy import accurate_choice
from relax_eg.driver.extracting import (
    BlockRequest,
    ExtractedBlock,
    ValuesByRule,
    extract_kernels,
    extract_operators,
)
from relax_eg.driver.fixed import with_fixed_sizes
from relax_eg.driver.options import Options
from relax_eg.driver.origins import origins_of
from relax_eg.driver.prices import least_gain
from relax_eg.driver.proposals import BlockQueries, Proposal, SearchedFunctions, extent_at, large_bytes, proposals
from relax_eg.driver.repeated import Repeated, ahead_params, loop_functions
from relax_eg.egraph import Budget, Dump, EGraph, Saturation, StopReason, dump, recording
from relax_eg.explain.record import Recording
from relax_eg.extract.costs.hoisting import PLATFORMS
from relax_eg.extract.costs.pricing import Pricing
from relax_eg.extract.kernels.build import Names
from relax_eg.extract.selection.clock import Clock
from relax_eg.extract.selection.search import GAIN
from relax_eg.extract.selection.weights import Preparable
from relax_eg.ir.calls import callees_first, reachable_functions
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr, fresh_name, postorder
from relax_eg.ir.heads import CONTROL
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ir.origin import Origin, Origins, SourceLine
from relax_eg.ir.outline import outline
from relax_eg.ir.scopes import scopes_of
from relax_eg.logs import log_at, report_progress
from relax_eg.ops.record import operators_run_as
from relax_eg.rules.checking.schema_answers import Answers
from relax_eg.rules.facts.parameter_facts import DeclaredFacts, Facts, facts_of_functions, known_facts
from relax_eg.rules.facts.propagation import KnownFacts
from relax_eg.rules.schemas import MEMORY, Schema
from relax_eg.shapes import Scope
from relax_eg.traversal import reached

Place = tuple[str, int]  # a function, and the number of a block in it

# limit: rounds in which schemas are asked about the values that were chosen, each after a gain of the one before
_MOST_ROUNDS = 3
_ASKING = 0.7  # chosen: share of the budget's seconds after which no schema is asked any more
_AT_LEAST = 0.05  # chosen: share of the budget's seconds that an e-graph gets once the budget is spent
_POINTWISE = "pointwise"  # the tag of schemas that shorten terms of each element
_CONVOLUTIONS = operators_run_as("conv")
_IMAGE_RANK = 4  # given: axes of an image: batch, channels, height, width


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one e-graph.

    - `place`: the block it is of.
    - `saturation`: the figures of its saturation.
    - `block`: what was extracted for the block.
    """

    place: Place
    saturation: Saturation
    block: ExtractedBlock

    @property
    def nodes_by_rule(self) -> Mapping[str, int]:
        """How many chosen nodes each rule made."""
        return self.block.nodes_by_rule


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """The recorded e-graph of a block.

    - `function`: name of the function that has the block.
    - `block`: the number of the block in it.
    - `written`: its values as written.
    - `chosen`: its values as chosen.
    - `alternatives`: the proposals of schemas, with the answers they were given.
    - `scope`: what was known of sizes.
    - `declared_facts`: the declared facts of parameters.
    - `recording`: the matches.
    """

    function: str
    block: int
    written: tuple[Expr, ...]
    chosen: tuple[Expr, ...]
    alternatives: Mapping[Proposal, Answers]
    scope: Scope
    declared_facts: DeclaredFacts
    recording: Recording


@dataclass(frozen=True, slots=True)
class _Saturated:
    """The saturated e-graph of one block. A program for any binding can be extracted from it.

    - `read`: its tables.
    - `saturation`: the figures of its saturation.
    - `alternatives`: the proposals of schemas, with the answers they were given.
    - `recording`: the matches; None where they are not kept.
    """

    read: Dump
    saturation: Saturation
    alternatives: Mapping[Proposal, Answers]
    recording: Recording | None


@dataclass(slots=True)
class SearchResult:
    """What a run of `Units` found.

    - `module`: the optimized module.
    - `functions`: every function in its best form, including those that rules made.
    - `extraction`: the clock of extraction, which may be that of other runs as well.
    - `outcomes`: the result of each e-graph.
    - `recorded`: what explaining the outcome needs, if it is kept; `module` then has operators in place of kernels.
    - `again`: the values that `module` computes again, if it states an order; `kept`: those kept on the host then.
    - `loops`: by rule, the values that it computes in a loop over pieces that no e-graph has.
    """

    module: Module
    functions: Mapping[str, Function]
    extraction: Clock
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    recorded: list[RecordedBlock] = field(default_factory=list[RecordedBlock])
    again: int | None = None
    kept: tuple[tuple[str, int], ...] = ()
    loops: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Run:
    """A run under way.

    - `options`: those of the search, or with other bindings, another device or another execution.
    - `unusable`: the library routines that may not be called: those of the rules that need another execution, unless
      the program as written calls them.
    - `preparable`: how much may be prepared from weights.
    - `loop_functions`: the functions that a loop repeats.
    - `started`: CPU seconds of this thread when the run began.
    - `extraction_before`: seconds of extraction on the clock when the run began.
    - `result`: what the run found so far.
    """

    options: Options
    unusable: frozenset[str]
    preparable: Preparable
    loop_functions: Mapping[str, Repeated]
    started: float
    extraction_before: float
    result: SearchResult


@dataclass
class Units:
    """The search over the functions of a module.

    - `module`: the module that is searched; with `sharing`, its repeated blocks are functions.
    - `options`: the options of the search.
    - `weights`: the entry's parameters that are known ahead of the calls.
    - `record`: whether what explaining the outcome needs is kept.
    - `bytes_cost`: price of bytes in memory, by function and block.
    - `watch`: called with each e-graph: function name, graph, and the candidate chosen for each computed class.
    - `clock`: bounds the seconds of extraction; by default each run has its own.
    - `written`: the module with fixed sizes as numbers.
    - `functions`: the functions in their best forms so far.
    """

    module: Module
    options: Options
    weights: set[str]
    record: bool = False
    bytes_cost: Mapping[Place, Pricing] = field(default_factory=dict[Any, Any])
    watch: Callable[[str, Dump, Mapping[int, int]], None] | None = None
    clock: Clock | None = None
    written: Module = field(init=False)
    functions: SearchedFunctions = field(init=False)
    _names: Names = field(default_factory=Names)
    _saturated: dict[Place, _Saturated] = field(default_factory=dict[Any, _Saturated])
    _is_cut_short: bool = False  # whether time ran out before schemas were asked about all nodes

    def __post_init__(self) -> None:
        self.module = self.written = with_fixed_sizes(self.module, self.options.scope)
        if self.options.sharing:
            self.module = _shared(self.module)
        self.functions = SearchedFunctions(self.module, ahead_params(self.module.main, self.weights))

    @property
    def candidates(self) -> int:
        """The number of candidates in all e-graphs together."""
        return sum(s.read.graph.node_count for s in self._saturated.values())

    def graph_of(self, function: str) -> Dump | None:
        """The e-graph of a function of one block; None if it was not searched."""
        return self._saturated[function, 0].read if (function, 0) in self._saturated else None

    def run(self) -> SearchResult:
        """The optimized module, with the functions that its entry needs."""
        return self._run(self.options)

    def extract_again(self, options: Options, share: float = 1.0) -> SearchResult:
        """What `run`, called before, finds for other bindings, another device or another execution: the same e-graphs
        are priced again, and nothing is saturated. `share`: how much of the bytes that may be prepared."""
        return self._run(options, share)

    def at_byte_prices(self, bytes_cost: Mapping[Place, Pricing]) -> Units:
        """The same e-graphs, from which programs are extracted at other prices of bytes in memory."""
        other = copy(self)
        other.bytes_cost, other.functions = bytes_cost, self.functions.copied()
        return other

    def _run(self, options: Options, share: float = 1.0) -> SearchResult:
        clock, entry = self.clock or Clock(options.budget.extraction), self.module.main
        loops = loop_functions(self.module, partial(extent_at, options))
        called = {str(e.attr("name")) for f in self.module for e in f.expressions() if e.op == CALL_DPS_LIBRARY}
        run = _Run(
            options,
            options.unusable - called,
            options.preparable.scaled(share),
            loops,
            time.thread_time(),
            clock.spent,
            SearchResult(self.module, {}, clock),
        )
        for f in callees_first(self.module):
            if f.name == entry.name:
                continue
            flags, once = self.functions.ahead.get(f.name, ()), None
            loop = loops.get(f.name)
            if loop is not None and not any(flags):
                flags, once = [i < loop.constants for i in range(len(f.params))], 1 / loop.steps
            same = {str(p.attr("name")) for p, flag in zip(f.params, flags, strict=False) if flag}
            self.functions.best[f.name] = self._optimized(f, run, set(), same, once)
            log_at(2, f"function {f.name}: {len(f.expressions())} nodes as written")
        main = self._optimized(entry, run, self.weights)
        needed = [f for f in reachable_functions(main.expressions(), self.functions.best) if f.name != main.name]
        return replace(run.result, module=Module((main, *needed)), functions=dict(self.functions.best))

    @cached_property
    def _facts(self) -> Mapping[str, Facts]:
        options = self.options
        return facts_of_functions(self.module, dict(options.facts), options.rules, options.is_exact)

    @cached_property
    def _scopes(self) -> Mapping[str, list[Scope]]:
        return scopes_of(self.module, self.options.scope)

    def _optimized(
        self, function: Function, run: _Run, weights: set[str], same: set[str] | None = None, once: float | None = None
    ) -> Function:
        """`function` with the cheapest values. If some parameters are the `same` at every step, a second form is kept:
        the best one if what follows from them is nearly free, or costs the share `once`."""
        blocks: list[Block] = []
        origins = dict(function.origins)
        outside: list[Block] = []
        for n, (block, scope) in enumerate(zip(function.blocks, self._scopes[function.name], strict=True)):
            if not block.dataflow or not block.bindings:
                blocks.append(block)
                continue
            flags = zip(function.params, self.functions.ahead.get(function.name, ()), strict=False)
            ahead = {str(p.attr("name")) for p, flag in flags if flag}
            known = DeclaredFacts(self._facts.get(function.name, {}), frozenset(weights | ahead), self.options.is_exact)
            place = (function.name, n)
            forms, new_origins = self._forms(block, place, run, scope, weights, same or set(), once, known, origins)
            blocks.append(block.with_values(forms[0]))
            origins |= new_origins
            if len(forms) > 1 and len(function.blocks) == 1:
                outside.append(block.with_values(forms[1]))
        all_origins = MappingProxyType(origins)
        if outside:
            self.functions.second[function.name] = replace(function, blocks=tuple(outside), origins=all_origins)
        return replace(function, blocks=tuple(blocks), origins=all_origins)

    @cached_property
    def _rule_lines(self) -> dict[str, SourceLine]:
        """The line of each rule."""
        return {r.name: r.where for r in (*self.options.rules, *self.options.rules.schemas)}

    def _forms(
        self, block: Block, place: Place, run: _Run, scope: Scope, weights: set[str], same: set[str],
        once: float | None, known: DeclaredFacts, origins: Origins,
    ) -> tuple[list[list[Expr]], dict[Expr, Origin]]:  # fmt: skip
        """The block's cheapest values; if something is the `same` at every step, also the values that are cheapest when
        what follows from it is nearly free. Then the origins of them all; `origins`: those known before."""
        name, found, roots = place[0], run.result, block.values
        is_again, facts = place in self._saturated, known_facts(known.facts, known.exact, scope)
        if not is_again:
            asked = self._alternatives(roots, facts, known.weights, run)
            self._saturated[place] = self._saturate(place, roots, scope, known, run, asked)
        # XLA hoists loop-invariant code out of the body of a loop.
        loop = run.loop_functions.get(name)
        is_hoisted = loop is not None and loop.is_body and run.options.profile.platform in PLATFORMS
        pricing = self.bytes_cost.get(place, Pricing(held=run.options.held, limit=run.options.memory_limit or 1))
        request = BlockRequest(
            name, block, run.options, self.functions.best, run.unusable, weights, same, once, is_hoisted,
            run.preparable, pricing, found.extraction, self._names, is_again,
        )  # fmt: skip
        in_kernels = run.options.has_kernels and name not in self._in_loops
        extract = extract_kernels if in_kernels else extract_operators
        chosen = extract(self._saturated[place].read, request)

        def cost_alone(read: Dump) -> float:
            return extract(read, replace(request, is_again=True, names=Names())).selected.cost

        least = chosen.written_cost
        for n in range(0 if is_again else _MOST_ROUNDS):
            if least_gain(run.options) * chosen.selected.cost >= least:
                break
            least, best = chosen.selected.cost, chosen.forms[0]
            made = [(best.operators, best.makers), *(chosen.without_rules() if not n else ())]
            more = self._more_alternatives(place, [values for values, _ in made], roots, facts, known.weights, run)
            if not more:
                break
            if not self._may_gain(place, made, more, scope, known, cost_alone, least):
                break
            makers = {e: rules[0] for _, by in reversed(made) for e, rules in by.items() if rules}
            self._saturated[place] = self._saturate(place, roots, scope, known, run, more, makers)
            chosen = extract(self._saturated[place].read, request)
        saturated = self._saturated[place]
        if run.options.bounds_errors:
            found_with = partial(extract, request=request)
            read, chosen = accurate_choice(saturated.read, chosen, found_with, facts.among, scope.statements)
            self._saturated[place] = saturated = replace(saturated, read=read)
        if self.watch is not None:
            self.watch(name, saturated.read, chosen.taken)
        found.outcomes.append(Outcome(place, saturated.saturation, chosen))
        new_origins: dict[Expr, Origin] = {}
        for i, form in enumerate(chosen.forms):
            if i == 0 or form is not chosen.forms[0]:
                before = {**origins, **new_origins}
                new_origins |= origins_of(
                    form.values, form.classes, form.makers, saturated.read.written, before, self._rule_lines.get
                )
        if saturated.recording is None:
            return [f.values for f in chosen.forms], new_origins
        # Derivations are between operators, not kernels.
        equal = tuple(roots), tuple(chosen.forms[0].operators), saturated.alternatives
        found.recorded.append(RecordedBlock(*place, *equal, scope, known, saturated.recording))
        return [f.operators for f in chosen.forms], new_origins

    def _saturate(
        self, place: Place, roots: list[Expr], scope: Scope, known: DeclaredFacts, run: _Run,
        alternatives: Mapping[Proposal, Answers], makers: Mapping[Expr, str] | None = None,
    ) -> _Saturated:  # fmt: skip
        options = self.options
        left = max(options.budget.seconds - self._spent(run), _AT_LEAST * options.budget.seconds)
        budget = replace(options.budget, seconds=min(options.budget.seconds, left))
        with EGraph(roots, options.rules, scope, list(alternatives), known, self.record, makers) as egraph:
            saturation = egraph.saturate(budget)
            if self._is_cut_short:
                saturation = replace(saturation, stop=StopReason.TIME_LIMIT)
            read = dump(egraph)
            kept = recording(egraph) if self.record else None
        report_progress("extract", saturation.nodes, sum(saturation.matches.values()))
        return _Saturated(read, saturation, alternatives, kept)

    def _may_gain(
        self, place: Place, made: Sequence[ValuesByRule], more: Mapping[Proposal, Answers], scope: Scope,
        known: DeclaredFacts, cost_with: Callable[[Dump], float], least: float,
    ) -> bool:  # fmt: skip
        """Whether one of the programs found is made cheaper than `least`, the cost of the first, by what `more` adds to
        the proposals, with no rule applied. Rules that are applied to these proposals save something where the
        proposals do."""
        (best, _), *others = made
        before = self._saturated[place].alternatives
        equal = [(a, b, "") for values, _ in others for a, b in zip(best, values, strict=True) if a is not b]
        with EGraph(best, self.options.rules, scope, [*equal, *(p for p in more if p not in before)], known) as egraph:
            egraph.saturate(Budget(nodes=0))
            return cost_with(dump(egraph)) < (1 - GAIN) * least

    @cached_property
    def _in_loops(self) -> set[str]:
        """The functions that run inside a loop or branch, which is one executable."""

        def below(name: str) -> list[str]:
            f = self.functions.best.get(name)
            return [] if f is None else [n for e in f.expressions() for n in functions_of(e)]

        run = (n for f in self.module for e in f.expressions() if e.op in CONTROL for n in functions_of(e))
        return self.functions.best.keys() & reached(run, below).keys()

    def _alternatives(
        self, roots: Sequence[Expr], facts: KnownFacts, weights: frozenset[str], run: _Run
    ) -> dict[Proposal, Answers]:
        """The proposals of schemas for a block, each with the answers that it was given; none without a budget."""
        schemas = [
            s for s in self.options.rules.schemas if MEMORY not in s.tags or large_bytes(self.options) < math.inf
        ]
        has_budget = self.options.budget.nodes > 0 and self.options.budget.seconds > 0
        return self._proposals(postorder(roots), schemas, facts, weights, run) if schemas and has_budget else {}

    def _more_alternatives(
        self, place: Place, programs: Sequence[Sequence[Expr]], roots: Sequence[Expr], facts: KnownFacts,
        weights: frozenset[str], run: _Run,
    ) -> dict[Proposal, Answers]:  # fmt: skip
        """The proposals for a block with those for programs found of it; empty if nothing is new. The first is the
        cheapest, the others are without one of its rules, which hides what schemas make of the values without it."""
        schemas = [s for s in self.options.rules.schemas if s.asks_again]
        before = self._saturated[place].alternatives
        asked = {*postorder(roots), *(new for _, new, _ in before)}
        if not schemas or all(e in asked for e in programs[0]):
            return {}
        found = dict(before)
        for nodes in map(postorder, programs):
            found = self._proposals(nodes, schemas, facts, weights, run, asked) | found
            asked.update(nodes)
            schemas = [s for s in schemas if _POINTWISE in s.tags]  # forms of sums cost too much to ask for again
        return found if len(found) > len(before) else {}

    def _proposals(
        self, nodes: Sequence[Expr], schemas: Sequence[Schema], facts: KnownFacts, weights: frozenset[str],
        run: _Run, asked: Container[Expr] = (),
    ) -> dict[Proposal, Answers]:  # fmt: skip
        """The proposals for `nodes`, all of a block, except those that were `asked` about before."""
        needed = frozenset[str]().union(*(s.facts for s in schemas))
        queries = BlockQueries(self.options, self.functions, nodes, weights, partial(facts.among, needed))
        deadline = time.thread_time() + _ASKING * self.options.budget.seconds - self._spent(run)
        found, is_all = proposals([e for e in nodes if e not in asked], schemas, queries, deadline)
        self._is_cut_short = self._is_cut_short or not is_all
        return found

    def _spent(self, run: _Run) -> float:
        """Seconds of processor time of a run without extraction."""
        return time.thread_time() - run.started - (run.result.extraction.spent - run.extraction_before)


def _shared(module: Module) -> Module:
    """`module` with repeated blocks as functions, so that each is searched once."""
    functions, taken = {f.name: f for f in module}, {f.name for f in module}
    for f in module:
        functions[f.name], made = outline(f, partial(fresh_name, taken=taken), _has_layout)
        for block in made:
            functions[block.name] = block
            calls = sum(block.name in functions_of(e) for e in functions[f.name].expressions())
            log_at(2, f"repeated block {block.name}: {len(block.expressions())} nodes, {calls} calls in {f.name}")
    return Module(tuple(functions.values()))


def _has_layout(e: Expr) -> bool:
    """Whether the layout of a convolution of images is chosen with that of its neighbours, across blocks."""
    return e.op in _CONVOLUTIONS and e.ndim >= _IMAGE_RANK
