"""`optimize(..., measure=k)`: times the programs of lowest price and the program as written.

An alternative is the program that the search finds without one of the rules that the best program needs. So
alternatives differ in a rule that matters, and each is the best without it. XLA's compilation mode is chosen together
with the program, because which layout of a weight is read fast depends on it: each program stands for one variant per
mode of the profile. At each of the sizes asked for, the variants of lowest price in each mode are timed. The decisions
are kept in the cache.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import jax

from relax_eg.backend.family import KERNELS, WHOLE, SearchSpec
from relax_eg.backend.gpu.devices import GPUS
from relax_eg.backend.kernels import why_not_in_kernels
from relax_eg.driver.clock.learning import observe
from relax_eg.driver.limits.arranging import Arranger
from relax_eg.driver.limits.checkpointed import Checkpoints
from relax_eg.driver.limits.fissioned import Fissions
from relax_eg.driver.options import AUTO, Options, Sizes, scope_allows, weight_names
from relax_eg.driver.prices import (
    EXECUTION_DOUBT,
    MODE_DOUBT,
    NO_WORSE,
    OWN_KERNELS_DOUBT,
    PAYS_MEMORY,
    call_seconds,
    device_cost,
    is_lowered_otherwise,
    is_no_dearer,
    is_sparing,
    is_worthwhile,
    kinds_at,
    least_gain,
    modes_under_limit,
    price_at,
)
from relax_eg.driver.units import SearchResult, Units
from relax_eg.egraph import StopReason
from relax_eg.errors import OptionError
from relax_eg.extract.costs.numbers import TINY
from relax_eg.extract.costs.pricing import Pricing
from relax_eg.extract.profiles.profile import AS_USUAL, Mode
from relax_eg.extract.report import AS_WRITTEN, MeasuredRow
from relax_eg.extract.selection.clock import Clock
from relax_eg.figures import binding_text
from relax_eg.frontends import Source
from relax_eg.ir.module import Module
from relax_eg.logs import log_at, report_progress
from relax_eg.measure.choice import fastest, random_argument
from relax_eg.rules.answer_cache import write_answers

if TYPE_CHECKING:
    from relax_eg.backend.gpu.target import GpuTarget

# The rules by which an extracted program is ordered, and keeps values on the host (`rules.book.pieces`).
COMPUTED_AGAIN, KEPT_ON_HOST = "computed_again", "kept_on_host"
ALIKE = 1.01  # chosen: programs whose prices differ by less at all sizes are timed last
_SAME = 1.0 + 1e-6  # chosen: prices that differ by less are sums of the same terms in another order
# chosen: seconds for compiling programs under a limit or for a front, as a multiple of those of the budget's extraction
_COMPILING = 2.0
CUTS = 3  # limit: bisections by timing between two sizes with different winners


@dataclass(frozen=True)
class Entry:
    """A program that a search found.

    - `spec`: what was searched for.
    - `units`: the search.
    - `found`: what this run of the search found.
    - `seconds`: how long it took.
    - `at`: the single binding it was priced at; None: all that were asked for.
    """

    spec: SearchSpec
    units: Units
    found: SearchResult
    seconds: float
    at: Sizes | None = None

    @property
    def module(self) -> Module:
        return self.found.module

    @property
    def label(self) -> str:
        return self.spec.label

    @property
    def runs(self) -> tuple[Module, str]:
        """The module, and how it is executed."""
        return self.module, self.spec.execution

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that made its nodes, those that made most first."""
        made: Counter[str] = Counter()
        for o in self.found.outcomes:
            made.update(o.nodes_by_rule)
        made.update(self.after_extraction)
        return tuple(r for r, _ in made.most_common())

    @property
    def after_extraction(self) -> dict[str, int]:
        """How often rules were applied to the program after it had been extracted."""
        f = self.found
        again = {} if f.again is None else {COMPUTED_AGAIN: f.loops.get(COMPUTED_AGAIN, 0) + f.again}
        return {**f.loops, **again} | ({KEPT_ON_HOST: len(f.kept)} if f.kept else {})


@dataclass(frozen=True)
class CandidateProgram:
    """A program and how XLA compiles it. It is executed as it was searched for.

    - `entry`: the program; None: the program as written.
    - `mode`: the compilation mode.
    """

    entry: Entry | None
    mode: Mode = AS_USUAL

    @property
    def label(self) -> str:
        program = AS_WRITTEN if self.entry is None else self.entry.label
        return f"{program}, {self.mode.name}" if self.mode.name else program


class Search:
    """The searches for one program; each is made on first use and kept.

    - `executions`: the executions among which extraction chooses; the program as written is executed in the first.
    - `by_price`: the specification of the search for the best program, executed like the one as written.
    """

    def __init__(self, traced: Source, options: Options) -> None:
        self.traced, self.options = traced, options
        runs_in_kernels = options.execution != AUTO or not why_not_in_kernels(traced.module)
        self.executions = options.executions if runs_in_kernels else options.executions[:1]
        self.by_price = SearchSpec(execution=self.executions[0])
        self.weights = weight_names(traced, options)
        self._entries_by_spec: dict[SearchSpec, Entry] = {}
        self.entries: list[Entry] = []  # the programs found so far
        self._predicted: dict[tuple[Module | None, str, str, tuple[tuple[str, int], ...]], float] = {}
        self._on_device: dict[tuple[Module | None, str, tuple[tuple[str, int], ...]], tuple[float, int]] = {}
        self._held: Units | None = None  # the search whose e-graphs have what saves memory
        self._arrangers: dict[tuple[Module, float, tuple[tuple[str, int], ...]], Arranger] = {}
        self.arranging_clock = Clock(options.budget.extraction)  # shared by all calls of `arranged`
        self.limit_clock = Clock(options.budget.extraction)  # shared by all calls of `entry_at_byte_price`
        self.compiling = Clock(_COMPILING * options.budget.extraction, timer=time.process_time)  # XLA has own threads
        self.footprints: dict[tuple[Any, ...], Any] = {}  # of compiled programs, by mode and sizes
        self.fissions: dict[Module, Fissions] = {}
        self.checkpoints: dict[Module, Checkpoints] = {}
        self.was_interrupted = False  # whether a search for less memory ended by an interruption

    @property
    def was_stopped(self) -> bool:
        """Whether the clock or an interruption ended one of the searches: another run might find more."""
        saturated = (o.saturation for e in self.entries for o in e.found.outcomes)
        is_cut = any(e.found.extraction.ran_out for e in self.entries)
        stopped = self.was_interrupted or self.compiling.ran_out or is_cut
        return stopped or any(s.stop is StopReason.TIME_LIMIT for s in saturated)

    def entry(self, spec: SearchSpec | None = None) -> Entry:
        """The program that a search finds, by default the one by price. Programs for all executions and prices of a
        byte are extracted from the same e-graphs."""
        spec = spec or self.by_price
        if spec not in self._entries_by_spec:
            first = replace(spec, execution=self.executions[0], own_kernels=False, as_written=False, held=None)
            if spec == first:
                self._entries_by_spec[spec] = self._searched(spec)
            else:
                self._entries_by_spec[spec] = self._extracted(self.entry(first).units, spec)
                self.entries.append(self._entries_by_spec[spec])
        return self._entries_by_spec[spec]

    @functools.cached_property
    def as_written(self) -> Entry:
        """The program as written, as one that a search found; nothing is searched for it."""
        module = self.traced.module
        units = Units(module, replace(self.options.searched(self.by_price), sharing=False), self.weights)
        return Entry(self.by_price, units, SearchResult(module, {f.name: f for f in module}, Clock(0.0)), 0.0)

    def _searched(self, spec: SearchSpec, **more: Any) -> Entry:
        """A new search; `more`: further fields of its `Units`."""
        started = time.perf_counter()
        units = Units(self.traced.module, self.options.searched(spec), self.weights, **more)
        found = units.run()
        write_answers()
        self.entries.append(Entry(spec, units, found, time.perf_counter() - started))
        return self.entries[-1]

    @property
    def other_executions(self) -> list[SearchSpec]:
        """The searches by price for the other executions, and for one XLA program with kernels through Pallas."""
        return [*(replace(self.by_price, execution=e) for e in self.executions[1:]), *self.own_kernels]

    @property
    def own_kernels(self) -> list[SearchSpec]:
        """The searches by price for one XLA program with kernels through Pallas, where there may be any: with the best
        algebra, which XLA's fusions may make dearer, and as written."""
        o = self.options
        priced = o.profile.pallas and o.cost is None and not o.is_exact
        may = priced and bool(o.steps) and self.executions[0] == WHOLE and not self.traced.in_steps
        return [replace(self.by_price, own_kernels=True, as_written=x) for x in (False, True)] if may else []

    def entry_at(self, binding: Sizes, spec: SearchSpec, share: float = 1.0) -> Entry:
        """The program of lowest price at one binding, for a mode and an execution, from the e-graphs of `entry()`.
        `share`: how much of the bytes that may be prepared."""
        return self._extracted(self.entry().units, spec, share, binding)

    def _extracted(self, units: Units, spec: SearchSpec, share: float = 1.0, at: Sizes | None = None) -> Entry:
        """A program from the e-graphs of a search that was made before."""
        started = time.perf_counter()
        options = self.options.searched(spec)
        found = units.extract_again(options if at is None else replace(options, bindings=(dict(at),)), share)
        return Entry(spec, units, found, time.perf_counter() - started, None if at is None else dict(at))

    def entry_at_byte_price(
        self, spec: SearchSpec, held: float, bytes_cost: Mapping[tuple[str, int], Pricing]
    ) -> Entry:
        """The program that a search finds if a byte in memory costs `held`.

        `bytes_cost`: prices known more exactly, by function and block.
        """
        cost = {place: replace(c, held=held) for place, c in bytes_cost.items()}
        at_price = replace(spec, held=held)
        if self._held is None:
            made = self._searched(at_price, bytes_cost=cost, clock=self.limit_clock)
            self._held = made.units
            return made
        self.entries.append(self._extracted(self._held.at_byte_prices(cost), at_price))
        return self.entries[-1]

    @functools.cached_property
    def absent_gpu(self) -> GpuTarget | None:
        """The GPU that the program is for, if it is not here and XLA compiles for it here."""
        name = self.options.profile.name
        if name not in GPUS or jax.default_backend() == "gpu":
            return None
        from relax_eg.backend.gpu.target import target_for  # which programs for the CPU never need

        try:
            return target_for(name)
        except OptionError:
            return None

    @property
    def host_rates(self) -> tuple[float, ...]:
        """The rates of the link to the host with which programs are arranged; 0: nothing is kept there. Values are kept
        there only where the bytes are those of executables of the device."""
        is_device = self.absent_gpu is not None or jax.default_backend() == self.options.profile.platform
        rate = self.options.profile.host_rate if KEPT_ON_HOST in self.options.steps and is_device else 0.0
        return (rate, 0.0) if rate else (0.0,)

    def arranged(self, entry: Entry | None, limit: int, sizes: Sizes, rate: float) -> tuple[Entry, int] | None:
        """A program (None: as written) with an order and values computed again or kept on the host, so that it is
        predicted to need `limit` bytes, or as few as were found; and these bytes. None if no order can be stated."""
        with self.arranging_clock.running():
            made = self._arranger(entry, sizes, rate).within(limit, self.arranging_clock)
        if made is None:
            return None
        base = entry or self.as_written
        found = replace(base.found, module=made.module, again=made.again, kept=made.kept)
        return replace(base, found=found), made.peak

    def predicted_peak(self, entry: Entry | None, sizes: Sequence[Sizes]) -> int:
        """The bytes that a program is predicted to need beside its arguments in one XLA program, at the sizes at which
        it needs most; 0 where that is not predicted."""
        return max(self._arranger(entry, at, 0.0).peak for at in sizes)

    def _arranger(self, entry: Entry | None, sizes: Sizes, rate: float) -> Arranger:
        module, weights = (self.traced.module, set[str]()) if entry is None else (entry.module, self.weights)
        key = module, rate, tuple(sizes.items())
        if key not in self._arrangers:
            o = self.candidate_options(CandidateProgram(entry, modes_under_limit(self.options.profile)[-1]))
            self._arrangers[key] = Arranger(module, o, sizes, weights, rate)
        return self._arrangers[key]

    def alternatives(self, count: int) -> list[Entry]:
        """At most `count` programs: the best one, then those for other compilation modes, then those found when one of
        its rules is missing, cheapest first. Programs priced like an earlier one at all sizes asked for go to the end;
        programs of equal costs count as one."""
        found = [self.entry()]
        if count > 1:
            self._add(found, [replace(self.by_price, mode=m.name) for m in self.options.profile.modes])
            first = len(found)
            self._add(found, [replace(self.by_price, without=rule) for rule in found[0].rules[: 2 * count]])
            costs = {e.spec: self._costs(e) for e in found}
            found[first:] = sorted(found[first:], key=lambda e: costs[e.spec][0])
            different, alike = list[Entry](), list[Entry]()
            for e in found:
                nearest = min((_largest_ratio(costs[e.spec], costs[o.spec]) for o in different), default=math.inf)
                if nearest > ALIKE:
                    different.append(e)
                elif min(_largest_ratio(costs[e.spec], costs[o.spec]) for o in (*different, *alike)) > _SAME:
                    alike.append(e)
            found = [*different, *alike]
        return found[:count]

    def _costs(self, entry: Entry) -> list[float]:
        """Seconds of a call at all bindings, in all compilation modes."""
        modes = (AS_USUAL, *self.options.profile.modes)
        return [self.predicted_seconds(CandidateProgram(entry, m), b) for m in modes for b in self.options.bindings]

    def _add(self, found: list[Entry], more: Sequence[SearchSpec]) -> None:
        for spec in more:
            entry = self.entry(spec)
            if all(entry.module != e.module for e in found):
                found.append(entry)

    def predicted_seconds(self, v: CandidateProgram, binding: Sizes) -> float:
        """Predicted seconds of a call of a candidate at a binding.

        The program as written computes what depends on weights at every call.
        """
        inside = self.candidate_options(v)
        key = (None if v.entry is None else v.entry.module, inside.execution, v.mode.name, tuple(binding.items()))
        if key not in self._predicted:
            module, weights = (self.traced.module, None) if v.entry is None else (v.entry.module, self.weights)
            self._predicted[key] = call_seconds(price_at(module, inside, binding, weights), inside)
        return self._predicted[key]

    def priced_as(self, v: CandidateProgram) -> tuple[Module, Options]:
        """The module of a candidate, and the options by which it is priced."""
        return self.traced.module if v.entry is None else v.entry.module, self.candidate_options(v)

    def candidate_options(self, v: CandidateProgram) -> Options:
        """The options as a candidate runs: with the profile of its compilation mode, and its execution."""
        spec = self.by_price if v.entry is None else v.entry.spec
        return replace(self.options, profile=self.options.profile.in_mode(v.mode), execution=spec.execution)

    def doubt(self, v: CandidateProgram) -> float:
        """The factor on the predicted seconds of a candidate where it is compared with programs in the usual mode,
        executed like the one as written."""
        spec = self.by_price if v.entry is None else v.entry.spec
        is_other = spec.execution != self.executions[0]
        doubt = EXECUTION_DOUBT if is_other else OWN_KERNELS_DOUBT if spec.own_kernels else 1.0
        return doubt * (MODE_DOUBT if v.mode.name else 1.0)

    def doubted_seconds(self, v: CandidateProgram, binding: Sizes) -> float:
        """The predicted seconds of a call times the doubt about them, by which candidates are compared."""
        return self.predicted_seconds(v, binding) * self.doubt(v)

    def is_worthwhile(self, v: CandidateProgram, bindings: Sequence[Sizes]) -> bool:
        """Whether replacing the program as written by a candidate pays."""
        sparing, doubt = self.is_sparing(v, bindings), self.doubt(v)
        if sparing and v.entry is not None and v.entry.spec.own_kernels:
            doubt /= OWN_KERNELS_DOUBT  # memory is saved for certain
        seconds = self.predicted_seconds
        calls = [(seconds(CandidateProgram(None), b), doubt * seconds(v, b)) for b in bindings]
        least = 1 / NO_WORSE if sparing else least_gain(self.options)
        if not self.is_no_dearer(v, bindings):
            if self.is_in_kernels_on_gpu:
                return False
            least = max(least, PAYS_MEMORY)
        return is_worthwhile(calls, least)

    @property
    def is_in_kernels_on_gpu(self) -> bool:
        """Whether a program in kernels was asked for, for a GPU whose profile prices it."""
        return self.options.execution == KERNELS and self.is_priced_on_gpu

    @property
    def is_priced_on_gpu(self) -> bool:
        """Whether programs are priced by the kernels that XLA makes of them on a GPU."""
        return self.options.profile.platform == "gpu" and self.options.cost is None

    def on_device(self, v: CandidateProgram, binding: Sizes) -> tuple[float, int]:
        """`device_cost` of a candidate; of the program as written as one XLA program, which runs where no candidate is
        chosen."""
        module, execution, weights = self.traced.module, WHOLE, None
        if v.entry is not None:
            module, execution, weights = v.entry.module, v.entry.spec.execution, self.weights
        key = (None if v.entry is None else module), execution, tuple(binding.items())
        if key not in self._on_device:
            self._on_device[key] = device_cost(module, self.options, execution, binding, weights)
        return self._on_device[key]

    def is_no_dearer(self, v: CandidateProgram, bindings: Sequence[Sizes]) -> bool:
        """Whether a candidate needs no more temporary memory on a GPU than the function as written, and in kernels
        takes no longer (`is_no_dearer`). True on other devices."""
        if not self.is_priced_on_gpu or v.entry is None:
            return True
        in_kernels = v.entry.spec.execution == KERNELS
        pairs = [(self.on_device(v, b), self.on_device(CandidateProgram(None), b)) for b in bindings]
        if not in_kernels:  # one XLA program has to gain more than that
            pairs = [((0.0, ours), written) for (_, ours), written in pairs]
        return all(is_no_dearer(*pair, in_kernels) for pair in pairs)

    def is_sparing(self, v: CandidateProgram, bindings: Sequence[Sizes]) -> bool:
        """Whether a candidate with kernels through Pallas needs a small part of the temporary memory on a GPU that the
        function as written needs (`is_sparing`)."""
        if not self.is_priced_on_gpu or v.entry is None or not v.entry.spec.has_kernels:
            return False
        return all(is_sparing(*(self.on_device(x, b)[1] for x in (v, CandidateProgram(None)))) for b in bindings)

    def least_seconds(self, compared: Sequence[CandidateProgram], binding: Sizes) -> dict[str, float]:
        """The least predicted seconds of a call in each execution, where there is a choice of executions."""
        found: dict[str, float] = {}
        for v in compared if len(self.executions) > 1 else ():
            execution, seconds = self.candidate_options(v).execution, self.predicted_seconds(v, binding)
            found[execution] = min(seconds, found.get(execution, seconds))
        return found


def _largest_ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest ratio between the costs of two programs."""
    return max(max(x, y) / max(min(x, y), TINY) for x, y in zip(a, b, strict=True))


def check_measurable(traced: Source, options: Options) -> None:
    """OptionError if there is nothing that `measure` could time."""
    if traced.in_steps or traced.effectful:
        why = "runs in steps" if traced.in_steps else "does more than compute"
        raise OptionError(f"measure: {traced.name}() {why}, and is not timed; leave measure out")
    if options.assumed and options.bindings[0]:
        raise OptionError(f"measure: sizes to time at are needed: at={{...}} with {', '.join(options.bindings[0])}")
    if jax.process_count() > 1:
        raise OptionError("measure: of several processes each would decide for itself; leave measure out")


def random_arguments(
    traced: Source, declared: Mapping[str, frozenset[str]], binding: Sizes, same: dict[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a program at a binding, with the `declared` facts. `same`: keeps the arguments whose shape is
    the same at all bindings, by name, for later calls, so that what is prepared from weights is prepared once."""
    kept, made = {} if same is None else same, list[Any]()
    for seed, leaf in enumerate(traced.leaves):
        found = kept.get(leaf.name)
        if found is None:
            found = random_argument(leaf.annotation, binding, declared.get(leaf.name, ()), seed)
            if all(d.is_const for d in leaf.annotation.shape or ()):
                kept[leaf.name] = found
        made.append(found)
    return jax.tree_util.tree_unflatten(traced.in_tree, made)


@dataclass(frozen=True)
class Decision:
    """The result of timing candidates at one binding.

    - `at`: the binding.
    - `candidate`: the fastest candidate.
    - `rows`: all timings.
    """

    at: Sizes
    candidate: CandidateProgram
    rows: tuple[MeasuredRow, ...]


def time_candidates(search: Search, call: Callable[[CandidateProgram], Any]) -> list[Decision]:
    """The fastest variant at each binding: the one as written, or one that is faster beyond doubt. Where two bindings
    have different winners, sizes between them are timed, too, to find where the winner changes.

    `call(variant)`: what `optimize` returns for it. The arguments are random and have the declared facts.
    """
    options, traced = search.options, search.traced
    entries = [*search.alternatives(options.measure), *map(search.entry, search.other_executions)]
    # Even the unchanged program differs from the one as written if weights are prepared or loops are lowered otherwise.
    differs = bool(search.weights) or is_lowered_otherwise(traced.module, options)
    entries = [e for e in entries if differs or e.module != e.units.written]
    modes = (AS_USUAL, *options.profile.modes)
    written, *others = (CandidateProgram(e, m) for e in (None, *entries) for m in modes)
    calls: dict[str, Any] = {}
    same: dict[str, Any] = {}
    timed_at, written_text = 0, str(traced.module)

    def fastest_of(variants: Sequence[CandidateProgram], binding: Sizes) -> Decision:
        """The fastest of the program as written and `variants`."""
        nonlocal timed_at
        timed_at += 1
        sizes = binding_text(binding)
        log_at(2, f"measure: {1 + len(variants)} programs at {sizes}")

        def progress(what: str) -> None:
            report_progress(f"measure at {sizes}: {what}", timed_at, max(timed_at, len(options.bindings)))

        args, kwargs = random_arguments(traced, dict(options.facts), binding, same)
        timed = {v.label: v for v in (written, *variants)}
        calls.update({label: call(v) for label, v in timed.items() if label not in calls})
        rows = fastest(
            {
                label: (functools.partial(calls[label], *args, **kwargs), search.predicted_seconds(v, binding))
                for label, v in timed.items()
            },
            progress,
        )
        for r in rows:
            learn(timed[r.label], binding, r.seconds)
        chosen = timed[next(r.label for r in rows if r.chosen)]
        return Decision(binding, chosen, tuple(replace(r, at=binding) for r in rows))

    def learn(v: CandidateProgram, binding: Sizes, seconds: float) -> None:
        """Lets a timing correct prices."""
        if not v.mode.name:
            kinds = kinds_at(*search.priced_as(v), binding, search.weights if v.entry is not None else None)
            group = blake2b(f"{written_text} {sorted(binding.items())}".encode(), digest_size=16).hexdigest()
            observe(options.profile, group, kinds, seconds)

    found: list[Decision] = []
    for binding in options.bindings:
        predicted = {v.label: search.predicted_seconds(v, binding) for v in others}
        # The choice by price is always timed; of each other execution and mode, the cheapest program in it.
        order = sorted(others, key=lambda v: (v.entry != search.entry() or bool(v.mode.name), predicted[v.label]))
        ways: dict[tuple[str, str], list[CandidateProgram]] = {}
        for v in order:
            ways.setdefault((search.candidate_options(v).execution, v.mode.name), []).append(v)
        usual = ways.pop((search.executions[0], AS_USUAL.name), [])
        best = [*usual[: options.measure], *(found[0] for found in ways.values())]
        found.append(fastest_of(best, binding))
    return [*found, *_between(options, found, fastest_of)]


def _between(
    options: Options, found: Sequence[Decision], fastest_of: Callable[[Sequence[CandidateProgram], Sizes], Decision]
) -> list[Decision]:
    """The winners at sizes between two bindings with different winners, if exactly one size varies. It bisects at the
    geometric mean, `CUTS` times at most: a program that wins at 24 rows may lose from 25 on."""
    varying = [v for v in options.bindings[0] if len({b[v] for b in options.bindings}) > 1]
    if len(varying) != 1:
        return []
    (size,) = varying
    made: list[Decision] = []
    for a, b in itertools.pairwise(sorted(found, key=lambda d: d.at[size])):
        for _ in range(CUTS):
            n = round(math.sqrt(a.at[size] * b.at[size]))
            binding = {**a.at, size: n}
            ends = {a.candidate.label: a, b.candidate.label: b}
            if len(ends) == 1 or n in (a.at[size], b.at[size]) or not scope_allows(options.scope, binding):
                break
            middle = fastest_of([d.candidate for d in (a, b) if d.candidate.entry or d.candidate.mode.name], binding)
            made.append(middle)
            if middle.candidate.label not in ends:
                break
            a, b = (middle, b) if ends[middle.candidate.label] is a else (a, middle)
    return made
