"""`Units`: optimizes the functions of a module, callees first, with one e-graph per dataflow block.

A caller sees a function as a call, or as a loop over it. Expressions that schemas (`rules.schemas`) propose stand
beside the node as written when the caller's e-graph is made; extraction decides between them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from relax_eg.debug import tell
from relax_eg.driver.batching import batched
from relax_eg.driver.fixed import with_fixed_sizes
from relax_eg.driver.options import ASSUMED_SIZE, Options
from relax_eg.driver.origins import origins_of, origins_told, source_text
from relax_eg.driver.proposals import Proposal, proposals
from relax_eg.driver.repeated import Repeated, known_ahead, repeated
from relax_eg.egraph import Dump, EGraph, Saturation, dump, recording
from relax_eg.errors import NotExecutableError
from relax_eg.explain.record import Recording
from relax_eg.extract.clock import Clock
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.detail import Origin
from relax_eg.extract.hoisting import PLATFORMS
from relax_eg.extract.kernels.build import Built, Names
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.weights import ChosenKernels, cheapest_kernels
from relax_eg.extract.pricing import Pricing
from relax_eg.extract.profile import Profile
from relax_eg.extract.report import KernelRow, RunnerUp, SelectedRow
from relax_eg.extract.select import problem_of, second_best
from relax_eg.extract.sensitivity import sensitivity
from relax_eg.extract.weights import PREPARED_SHARE, cheapest
from relax_eg.ir.calls import callees_first, needed_by
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL, CONTROL, Expr, postorder
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.outline import outline
from relax_eg.ir.partition import missing_sizes
from relax_eg.ir.scopes import scopes_of
from relax_eg.rules import Schema
from relax_eg.rules.parameter_facts import Given, facts_of_functions
from relax_eg.rules.replacements import advice
from relax_eg.rules.schema_answers import Answers
from relax_eg.rules.schemas import MEMORY
from relax_eg.shapes import Dim, Scope

_AT_LEAST = 0.05  # chosen: share of the budget's seconds that an e-graph gets once the budget is spent


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one e-graph: its saturation, how many chosen nodes each rule made, how near the choice is to the
    best, the runner-up, and the kernels that hold several operators."""

    saturation: Saturation
    made: Mapping[str, int]
    selected: SelectedRow
    runner_up: RunnerUp | None
    kernels: tuple[KernelRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Searched:
    """A recorded e-graph: block `block` of `function`, its values as written and as chosen, the proposals of schemas
    with the answers they were given, and what was known."""

    function: str
    block: int
    written: tuple[Expr, ...]
    chosen: tuple[Expr, ...]
    alternatives: Mapping[Proposal, Answers]
    scope: Scope
    known: Given
    recording: Recording


@dataclass(frozen=True, slots=True)
class _Saturated:
    """The e-graph of one block, read out: a program for any binding can be extracted from it. `alternatives`: the
    proposals of schemas; `recording`: the matches, if they are kept."""

    read: Dump
    saturation: Saturation
    alternatives: Mapping[Proposal, Answers]
    recording: Recording | None


@dataclass
class Units:
    """The search over the functions of a module; it also answers what schemas ask (`rules.schemas.Functions`).

    - `record`: keep in `searched` what explaining the outcome needs. `run` then returns operators in place of kernels,
      and `in_kernels[f, n]` holds the values in kernels of block `n` of function `f`.
    - `bytes_cost`: price of bytes in memory, by function and block.
    - `grown`: saturated e-graphs of other searches for the same program, by what they were made from.
    - `watch`: called with each e-graph: function name, graph, and the candidate chosen for each computed class.
    - `clock`: bounds the seconds of extraction; by default each run has its own.
    - `written`: the module with fixed sizes as numbers.
    - `functions`: every function in its best form so far, including those that rules made.
    - `outcomes`, `built`, `stored`: of the latest run: the result of each e-graph; by block, the kernels, and the
      values that may be in memory with their classes.
    - `origins`: of the latest run, by function: each expression's source lines and the rules that made it.
    """

    module: Module
    options: Options
    record: bool = False
    bytes_cost: Mapping[tuple[str, int], Pricing] = field(default_factory=dict[Any, Any])
    grown: dict[Any, _Saturated] | None = None
    built: dict[tuple[str, int], Built] = field(default_factory=dict[Any, Any])
    stored: dict[tuple[str, int], Mapping[Expr, int]] = field(default_factory=dict[Any, Any])
    searched: list[Searched] = field(default_factory=list[Searched])
    watch: Callable[[str, Dump, Mapping[int, int]], None] | None = None
    clock: Clock | None = None
    extraction: Clock = field(default_factory=Clock)  # of the latest run
    written: Module = field(init=False)
    functions: dict[str, Function] = field(init=False)
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    in_kernels: dict[tuple[str, int], tuple[Expr, ...]] = field(default_factory=dict[tuple[str, int], tuple[Expr, ...]])
    origins: dict[str, dict[Expr, Origin]] = field(default_factory=dict[str, dict[Expr, Origin]])
    _outside: dict[str, Function] = field(default_factory=dict[str, Function])
    _scopes: dict[str, list[Scope]] = field(default_factory=dict[str, list[Scope]])
    _ahead: dict[str, tuple[bool, ...]] = field(default_factory=dict[str, tuple[bool, ...]])
    _loops: dict[str, Repeated] = field(default_factory=dict[str, Repeated])
    _made: dict[str, list[Function]] = field(default_factory=dict[str, list[Function]])
    _given: set[str] = field(default_factory=set[str])  # names taken, also by functions still being made
    _facts: dict[str, Mapping[str, frozenset[str]]] = field(default_factory=dict[str, Mapping[str, frozenset[str]]])
    _readers: dict[Expr, list[Expr]] = field(default_factory=dict[Expr, list[Expr]])
    _names: Names = field(default_factory=Names)
    corner: int = 0  # the corner that `most` refers to, while schemas propose
    _started: float = 0.0  # CPU seconds of this thread when the latest run began
    _extracted: float = 0.0  # seconds of extraction that `clock` had counted then
    _share_prepared: float = PREPARED_SHARE
    _saturated: dict[tuple[str, int], _Saturated] = field(default_factory=dict[tuple[str, int], _Saturated])

    def __post_init__(self) -> None:
        self.module = self.written = with_fixed_sizes(self.module, self.options.scope)
        self.functions = {f.name: f for f in self.module}
        if self.options.sharing == "on":
            self._share()

    def _share(self) -> None:
        """Turn repeated blocks into functions, so that each is searched once."""
        for f in self.module:
            self.functions[f.name], made = outline(f, self._fresh)
            for block in made:
                self.functions[block.name] = block
                calls = sum(block.name in functions_of(e) for e in self.functions[f.name].expressions())
                tell(2, f"repeated block {block.name}: {len(block.expressions())} nodes, {calls} calls in {f.name}")
        self.module = Module(tuple(self.functions.values()))

    def _fresh(self, stem: str) -> str:
        taken = self.functions.keys() | self._given
        name = next(n for i in itertools.count() if (n := f"{stem}{i or ''}") not in taken)
        self._given.add(name)
        return name

    @property
    def candidates(self) -> int:
        """The number of candidates in all e-graphs together."""
        return sum(s.read.graph.node_count for s in self._saturated.values())

    def again(
        self, weights: set[str], binding: Mapping[str, int], profile: Profile, share: float = PREPARED_SHARE
    ) -> Module:
        """What `run`, called before, finds for another binding or device: the same e-graphs are priced again, and
        nothing is saturated. `share`: how much may be prepared, as a multiple of the weights' bytes."""
        given = self.options, self._share_prepared
        self.options, self._share_prepared = replace(given[0], bindings=(dict(binding),), profile=profile), share
        try:
            return self.run(weights)
        finally:
            self.options, self._share_prepared = given

    def run(self, weights: set[str]) -> Module:
        """The optimized module, with the functions that its entry needs. `weights`: the entry's parameters that are
        known ahead of the calls."""
        self._started = time.thread_time()
        self.extraction = self.clock or Clock(self.options.budget.extraction)
        self._extracted = self.extraction.spent
        # New containers: a copy of this object keeps the results of the previous run.
        self.outcomes, self.searched, self.built, self.stored, self.in_kernels = [], [], {}, {}, {}
        self.functions, self.origins = dict(self.functions), dict(self.origins)
        entry = self.module.main
        self._ahead = known_ahead(entry, weights)
        self._facts = facts_of_functions(
            self.module, dict(self.options.facts), self.options.rules, self.options.is_exact
        )
        self._loops = repeated(self.module, self.extent)
        self._scopes = scopes_of(self.module, self.options.scope)
        for f in callees_first(self.module):
            if f.name == entry.name:
                continue
            flags, once = self._ahead.get(f.name, ()), None
            loop = self._loops.get(f.name)
            if loop is not None and not any(flags):
                flags, once = [i < loop.constants for i in range(len(f.params))], 1 / loop.steps
            same = {str(p.attr("name")) for p, flag in zip(f.params, flags, strict=False) if flag}
            self.functions[f.name] = self._optimized(f, set(), same, once)
            tell(2, f"function {f.name}: {len(f.expressions())} nodes as written")
        main = self._optimized(entry, weights)
        return Module((main, *needed_by(main, self.functions)))

    def _optimized(
        self, function: Function, weights: set[str], same: set[str] | None = None, once: float | None = None
    ) -> Function:
        """`function` with the cheapest values. If some parameters are the `same` at every step, a second form is kept:
        the best one if what follows from them is nearly free, or costs the share `once`."""
        blocks: list[Block] = []
        sources = dict(function.sources)
        self.origins[function.name] = origins_told(function)
        outside: list[Block] = []
        for n, (block, scope) in enumerate(zip(function.blocks, self._scopes[function.name], strict=True)):
            if not block.dataflow or not block.bindings:
                blocks.append(block)
                continue
            flags = zip(function.params, self._ahead.get(function.name, ()), strict=False)
            ahead = {str(p.attr("name")) for p, flag in flags if flag}
            known = Given(self._facts.get(function.name, {}), frozenset(weights | ahead), self.options.is_exact)
            forms = self._choices(block, (function.name, n), scope, weights, same or set(), once, known)
            new = [
                Block(tuple(Binding(b.var, v) for b, v in zip(block.bindings, values, strict=True))) for values in forms
            ]
            blocks.append(new[0])
            told = {e: source_text(o, self._where(o)) for e, o in self.origins[function.name].items()}
            sources = {**told, **sources}
            if len(new) > 1 and len(function.blocks) == 1:
                outside.append(new[1])
        sources = MappingProxyType(sources)
        if outside:
            self._outside[function.name] = replace(function, blocks=tuple(outside), sources=sources)
        return replace(function, blocks=tuple(blocks), sources=sources)

    def _where(self, origin: Origin) -> str:
        """File and line of the rule that made an expression; empty if the rule is not in the set."""
        rule = origin.rule.partition(", ")[0]
        if not rule:
            return ""
        try:
            return (self._schemas[rule] if rule in self._schemas else self.options.rules[rule]).where
        except KeyError:  # the module was optimized before, with other rules
            return ""

    @cached_property
    def _schemas(self) -> dict[str, Schema]:
        return {s.name: s for s in self.options.rules.schemas}

    def _choices(
        self,
        block: Block,
        place: tuple[str, int],
        scope: Scope,
        weights: set[str],
        same: set[str],
        once: float | None,
        known: Given,
    ) -> list[list[Expr]]:
        """The block's cheapest values; if something is the `same` at every step, also the values that are cheapest when
        what follows from it is nearly free."""
        options = self.options
        roots = [b.value for b in block.bindings]
        saturated = self._saturated.get(place)
        is_again = saturated is not None
        if saturated is None:
            saturated = self._saturated[place] = self._saturate(place, roots, scope, known)
        read, saturation, kept = saturated.read, saturated.saturation, saturated.recording
        if options.execution == "kernels" and place[0] not in self._in_loops:
            found = read.settled(lambda: self._kernels(read, block, place, weights))
            forms = [found.built]
            if same and not is_again:  # callers have their proposals from the first run
                forms.append(read.settled(lambda: self._kernels(read, block, place, same, once)).built)
            self.outcomes.append(self._of_kernels(found, read, block, place[0], saturation))
            for f in forms:
                self._tell_origins(place[0], read, f.roots, f.classes, f.rules)
            if kept is None:
                return [f.roots for f in forms]
            # Derivations are between operators, not kernels.
            self.in_kernels[place] = tuple(found.built.roots)
            equal = tuple(roots), tuple(found.built.operators), saturated.alternatives
            self.searched.append(Searched(*place, *equal, scope, known, kept))
            return [f.operators for f in forms]
        sizes = [self._sizes(block, b) for b in options.bindings]
        models = [WholeCost(options.profile, s, self.functions, options.cost) for s in sizes]
        clock = self.extraction
        with self._advised(), clock.running():
            share, pricing = self._share_prepared, self._pricing(place)
            leaves = once is not None and self._hoisted(place[0])
            known_once, ahead = (same, once) if leaves else (weights, None)
            chosen = cheapest(read.graph, read.decode, known_once, models, ahead, share, pricing, clock)
        selection = chosen.selection
        if self.watch is not None:
            self.watch(place[0], read, {c: k for c, k in enumerate(selection.choice) if k >= 0})
        made: dict[str, int] = {}
        for c, k in enumerate(selection.choice):
            rule = read.graph.candidates[c][k].made_by if k >= 0 else ""
            if rule:
                made[rule] = made.get(rule, 0) + 1
        fewer = () if is_again else sensitivity(problem_of(read.graph, chosen.costs), selection.cost)
        row = SelectedRow(place[0], selection.how, selection.cost, selection.bound, read.graph.node_count, fewer)
        second = second_best(read.graph, chosen.costs, selection)
        runner_up = None
        if second is not None:
            # Over several bindings, costs are sums of shares of the program as written; report their mean.
            why = tuple((op, x / len(models), y / len(models)) for op, x, y in second.why)
            runner_up = RunnerUp(place[0], second.without, second.with_rule, second.extra, why, len(models) == 1)
        self.outcomes.append(Outcome(saturation, made, row, runner_up))
        cheap, makers, classes = read.decode_with_rules(selection.choice)
        self.stored[place] = classes
        self._tell_origins(place[0], read, cheap, {e: (c,) for e, c in classes.items()}, makers)
        values = [cheap]
        if kept is not None:
            equal = tuple(roots), tuple(values[0]), saturated.alternatives
            self.searched.append(Searched(*place, *equal, scope, known, kept))
        if leaves and not is_again:
            values.append(cheap)
        elif same and not is_again:  # callers have their proposals from the first run
            with clock.running():
                apart = cheapest(read.graph, read.decode, same, models, once, clock=clock).selection.choice
            other, made_by, classes = read.decode_with_rules(apart)
            self._tell_origins(place[0], read, other, {e: (c,) for e, c in classes.items()}, made_by)
            values.append(other)
        return values

    def _hoisted(self, name: str) -> bool:
        """Whether the function is a loop body from which XLA hoists loop-invariant code."""
        return name in self._loops and self._loops[name].is_body and self.options.profile.platform in PLATFORMS

    def _saturate(self, place: tuple[str, int], roots: list[Expr], scope: Scope, known: Given) -> _Saturated:
        options = self.options
        spent = time.thread_time() - self._started - (self.extraction.spent - self._extracted)
        left = max(options.budget.seconds - spent, _AT_LEAST * options.budget.seconds)
        budget = replace(options.budget, seconds=min(options.budget.seconds, left))
        alternatives = self._alternatives(roots)
        key = (place, tuple(roots), tuple(alternatives), self.record)
        grown = (self.grown or {}).get(key)
        if grown is None:
            with EGraph(roots, options.rules, scope, list(alternatives), known, self.record) as egraph:
                saturation = egraph.saturate(budget, options.progress)
                read = dump(egraph)
                kept = recording(egraph) if self.record else None
            grown = _Saturated(read, saturation, alternatives, kept)
            if self.grown is not None:
                self.grown[key] = grown
        if options.progress is not None:
            options.progress("extract", grown.saturation.nodes, sum(grown.saturation.matches.values()))
        return grown

    def _kernels(
        self, read: Dump, block: Block, place: tuple[str, int], weights: set[str], once: float | None = None
    ) -> ChosenKernels:
        """The cheapest kernels for the block's values."""
        models, steps, clock = self._kernel_models(block), self.options.steps, self.extraction
        cost, share = self._pricing(place), self._share_prepared
        with self._advised(), clock.running():
            found = cheapest_kernels(
                read.graph, read.build, models, steps, self._names, weights, once, cost, share, clock
            )
        if once is None:
            self.built[place], self.stored[place] = found.built, found.built.stored
        return found

    def _pricing(self, place: tuple[str, int]) -> Pricing:
        """The price of bytes in a block."""
        return self.bytes_cost.get(place, Pricing(held=self.options.held, limit=self.options.memory_limit or 1))

    def _kernel_models(self, block: Block) -> list[KernelCost]:
        options = self.options
        bindings = [self._sizes(block, b) for b in options.bindings]
        return [KernelCost(options.profile, b, self.functions, options.cost) for b in bindings]

    def _of_kernels(
        self, found: ChosenKernels, read: Dump, block: Block, function: str, saturation: Saturation
    ) -> Outcome:
        selection, built = found.selection, found.built
        if self.watch is not None:
            inside = [w.state.members for w in selection.ways.values() if w.state is not None]
            own = {c: w.candidate for c, w in selection.ways.items()}
            self.watch(function, read, {c: k for m in (own, *inside) for c, k in m.items()})
        how = selection.how, selection.cost, selection.bound, selection.kept, selection.fewer
        row = SelectedRow(function, *how)
        rows = built.rows(function, self._kernel_models(block)[0])
        return Outcome(saturation, dict(built.made), row, None, rows)

    def _tell_origins(
        self,
        function: str,
        read: Dump,
        values: Sequence[Expr],
        classes: Mapping[Expr, Sequence[int]],
        makers: Mapping[Expr, str],
    ) -> None:
        mine = self.origins[function]
        lines = {e: origin.lines for e, origin in mine.items()}
        mine.update(origins_of(values, classes, makers, read.written, lines))

    @contextmanager
    def _advised(self) -> Generator[None]:
        """Adds to a NotExecutableError which rule sets would help."""
        try:
            yield
        except NotExecutableError as e:
            raise NotExecutableError(f"{e}; {advice(e.operators, self.options.rules)}", e.operators) from None

    @cached_property
    def _in_loops(self) -> set[str]:
        """The functions that run inside a loop or branch, which is one executable."""
        found: set[str] = set()
        work = [n for f in self.module for e in f.expressions() if e.op in CONTROL for n in functions_of(e)]
        while work:
            name = work.pop()
            if name not in found and name in self.functions:
                found.add(name)
                work += [n for e in self.functions[name].expressions() for n in functions_of(e)]
        return found

    def _sizes(self, block: Block, binding: Mapping[str, int]) -> dict[str, int]:
        """`binding` with an assumed size for each size variable of the function that the entry does not have."""
        names = missing_sizes(Function("block", (), (block,), block.bindings[0].value))
        return {**{v: ASSUMED_SIZE for v in sorted(names)}, **binding}

    def _alternatives(self, roots: Sequence[Expr]) -> dict[Proposal, Answers]:
        """The proposals of schemas for a block, each with the answers that it was given."""
        schemas = [s for s in self.options.rules.schemas if MEMORY not in s.tags or self.large < math.inf]
        written = postorder(roots) if schemas else []
        self._readers = {}
        for e in written:
            for a in e.args:
                self._readers.setdefault(a, []).append(e)
        return proposals(written, schemas, self)

    # The answers to schemas (`rules.schemas.Functions`).

    def extent(self, size: Dim) -> int:
        """See `rules.schemas.Functions`."""
        known = self.options.bindings[0]
        return int(size.evaluate({v: known.get(v, ASSUMED_SIZE) for v in size.variables}))

    def most(self, size: Dim) -> int:
        return self.options.most(size, self.corner)

    @property
    def corners(self) -> int:
        return self.options.corners

    @property
    def large(self) -> float:
        """See `rules.schemas.Functions`. Infinity in kernels, whose storages are kept, and for custom cost models."""
        if self.options.held:
            return 0.0
        fresh = self.options.execution == "whole" and self.options.cost is None
        return self.options.profile.fresh_bytes if fresh else math.inf

    def readers(self, e: Expr) -> Sequence[Expr]:
        return self._readers.get(e, ())

    def best(self, name: str, outside: bool = False) -> Function | None:
        found = self._outside.get(name) if outside else None
        found = found or self.functions.get(name)
        pure = found is not None and len(found.blocks) == 1 and found.blocks[0].dataflow
        return found if pure else None

    def as_written(self, name: str) -> Function | None:
        found = next((f for f in self.module if f.name == name), None)
        pure = found is not None and len(found.blocks) == 1 and found.blocks[0].dataflow
        return found if pure else None

    def calls(self, name: str) -> int:
        return self._calls[name]

    @cached_property
    def _calls(self) -> Counter[str]:
        return Counter(n for f in self.module for e in f.expressions() if e.op == CALL for n in functions_of(e))

    def known_ahead(self, name: str) -> Sequence[bool]:
        return self._ahead.get(name) or (False,) * len(self.functions[name].params)

    def add(self, function: Function, suffix: str) -> Function:
        stem = f"{function.name}_{suffix}"
        for known in self._made.get(stem, ()):
            if replace(known, name=function.name) == function:
                return known
        made = replace(function, name=self._fresh(stem))
        self._made.setdefault(stem, []).append(made)
        self.functions[made.name] = made
        return made

    def batched(self, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
        others = (f for f in self.functions.values() if f.name != function.name)
        return batched(Module((function, *others)), function, mapped, length)
