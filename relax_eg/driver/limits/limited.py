"""`optimize(..., memory_limit=...)`: the fastest program found that needs no more memory than that.

A byte that a call has in memory gets a price, which is raised until the extracted program fits: cheap values are
computed again where they are read, and algebra that needs less memory is preferred to faster algebra. Each program is
planned and compiled in each compilation mode, so that its bytes are those of what runs; the mode is part of the choice.
If no program fits, the price is raised once more for the values alive at the peak; if that fails, the error names them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from relax_eg.backend.family import KERNELS
from relax_eg.backend.footprint import likely_peak_values
from relax_eg.byte_units import format_bytes
from relax_eg.driver.clock.measured import ALIKE, COMPUTED_AGAIN, CandidateProgram, Entry, Search
from relax_eg.driver.limits.bounds import bound_of, larger_value
from relax_eg.driver.limits.changed_programs import in_loops, in_segments, is_large
from relax_eg.driver.limits.compiled_bytes import CompiledBytes, TriedProgram
from relax_eg.driver.options import SearchSpec
from relax_eg.driver.prices import modes_under_limit
from relax_eg.errors import ExtractionError
from relax_eg.extract.costs.numbers import LEAST_SECONDS
from relax_eg.extract.costs.pricing import Pricing
from relax_eg.extract.footprint import MemoryRow
from relax_eg.extract.profiles.profile import Mode
from relax_eg.figures import binding_text, count_text
from relax_eg.ir.expr import TUPLE_GET, Expr
from relax_eg.ir.module import Module
from relax_eg.logs import log_at, report_progress

MOST = 16  # limit: programs whose memory is determined for one memory limit
# chosen: prices of a byte: the first, as a multiple of (seconds / bytes), the factor between prices, and their number
_FIRST, _FACTOR, _PRICES = 1 / 64, 8.0, 7
# chosen: if nothing fits, the second sweep aims at this share of the least bytes so far
_HALF = 0.5
_CLOSER = 2  # limit: prices tried between the last that was too low and the first that fitted
_FINER = 0.8  # chosen: a loop is tried if it is predicted to need at most that share of the bytes of those before
_HOPELESS = 2.0  # chosen: predicted bytes, as a multiple of the limit, from which a program is not compiled
_ROUNDS, _MORE = 3, 16.0  # chosen: rounds of raising the price at the peak, and the factor of each
_FRONT = 24  # limit: programs tried for a front
_ARRANGED = 4  # limit: programs whose steps are brought into an order
_LESS = 0.97  # chosen: share of the bytes asked for, if XLA needed more than was asked for
# chosen: shares of a program's bytes, predicted or as compiled where these are fewer, asked for along a front
_SHARES = (1.0, 0.85, 0.75, 0.65, 0.55, 0.45, 0.35, 0.25, 0.15)
_ROUGHLY_FITS = 1.05  # chosen: rough bytes, as a multiple of the limit, up to which exact ones are asked for
_NEAR = 1.1  # chosen: the least bytes that an error names are within this factor of what could be reached


class _Limited:
    """The search for a program within a limit.

    - `usual`: the program that would be chosen without a limit; None until it is known.
    - `base`: seconds per byte, from which the prices of a byte are made.
    - `everywhere`: whether bytes are also those at the largest sizes in bounds (`largest`).
    """

    usual: TriedProgram | None = None
    base: float = 0.0

    def __init__(self, search: Search, limit: int, everywhere: bool = True) -> None:
        self.search = search
        self.limit = limit
        self.aim = limit  # bytes aimed at: the limit, or more where no program keeps it
        self.allowed = MOST  # programs that may be tried
        self.tried: list[TriedProgram] = []
        self.looped: set[tuple[Module, int]] = set()  # programs tried in loops, each with the bytes aimed at
        self.aims_at_limit = True  # not for a front, whose programs are arranged at several sizes
        self.modes = modes_under_limit(search.options.profile)
        self.compiled = CompiledBytes(search, everywhere)
        # By function and block: kernel bytes measured, prices raised.
        self.block_pricing: dict[tuple[str, int], Pricing] = {}
        bindings = search.options.bindings
        self.written_seconds = [search.predicted_seconds(CandidateProgram(None), b) for b in bindings]

    def begin(self, unlimited: Entry | None) -> None:
        """Try the program that would be chosen without a limit (None: the one as written)."""
        self.usual = self.try_program(unlimited)
        share, written = self.usual.seconds / max(self.usual.footprint.bytes, 1), self.written_seconds
        self.base = share * (written[0] if len(written) == 1 else len(written))

    def try_program(self, entry: Entry | None, held: float = 0.0) -> TriedProgram:
        """A program compiled in the fastest mode in which it fits, or else in the mode that needs least, in which alone
        a hopeless one is compiled; not at all if another one fits. Programs tried before are not compiled again."""
        found = [t for t in self.tried if self.compiled.module_of(t.entry) == self.compiled.module_of(entry)]
        if not found:
            if (is_hopeless := self._is_hopeless(entry)) and self.fitting_programs:
                seconds = self._relative_seconds(entry, self.modes[-1])
                self.tried.append(self.compiled.predicted(entry, self.modes[-1], held, seconds))
                return self.tried[-1]
            for mode in self.modes[-1:] if is_hopeless else self._modes_in_order(entry):
                found.append(self._compile_and_measure(entry, mode, held))
                if self._decides(found[-1]):
                    break
        fitting = [t for t in found if self.fits(t)]
        if fitting:
            return min(fitting, key=lambda t: (t.seconds, t.footprint.bytes))
        return min(found, key=lambda t: t.footprint.bytes)

    def _modes_in_order(self, entry: Entry | None) -> Sequence[Mode]:
        """The modes in which a program is compiled: as usual first, if it is predicted to fit."""
        if not self.aims_at_limit or self.search.predicted_peak(entry, self.search.options.bindings) <= self.aim:
            return self.modes
        return self.modes[::-1]

    def _decides(self, tried: TriedProgram) -> bool:
        """Whether no other mode is asked: a program fits in none that is faster, or in none at all, as it does not in
        the one that needs least."""
        if self.fits(tried):
            return tried.seconds <= min(self._relative_seconds(tried.entry, m) for m in self.modes)
        return self.aims_at_limit and (tried.mode is self.modes[-1] or tried.footprint.is_predicted)

    def _relative_seconds(self, entry: Entry | None, mode: Mode) -> float:
        """Seconds of a program as shares of those of the program as written, averaged over the bindings."""
        calls = [self.search.predicted_seconds(CandidateProgram(entry, mode), b) for b in self.search.options.bindings]
        return sum(c / max(s, LEAST_SECONDS) for c, s in zip(calls, self.written_seconds, strict=True)) / len(calls)

    def _compile_and_measure(self, entry: Entry | None, mode: Mode, held: float) -> TriedProgram:
        """A program compiled in a mode, as one that was tried: in kernels only if it may fit, and once more as it runs
        if it fits or nearly does when compiled roughly."""
        most = self.aim if self.aims_at_limit else math.inf
        made = self.compiled.of(entry, mode, held, self._relative_seconds(entry, mode), most=most)
        if self.aims_at_limit and made.footprint.bytes <= _ROUGHLY_FITS * self.aim:
            made = self.compiled.confirmed(made)
        if entry is not None and made.private_bytes is not None:
            self._record_kernel_bytes(entry, made.private_bytes)
        least = format_bytes(min(t.footprint.bytes for t in (*self.tried, made)))
        self.tried.append(made)
        report_progress(f"memory: least so far {least} of {format_bytes(self.limit)}", self.count, self.allowed)
        needed = f"{'at least ' if made.footprint.is_predicted else ''}{format_bytes(made.footprint.bytes)}"
        log_at(2, f"memory: {self.compiled.label(made)}: {needed}, {made.seconds:.3g} of the time as written")
        return made

    def confirm(self, tried: TriedProgram) -> TriedProgram:
        """A program that was tried with the bytes of the executable that runs, in place of what it was."""
        made = self.compiled.confirmed(tried)
        self.tried = [made if t is tried else t for t in self.tried]
        if self.usual is tried:
            self.usual = made
        return made

    def confirmed_best(self) -> TriedProgram | None:
        """The fastest program that fits, by the bytes of the executable that runs; None if there is none."""
        while fitting := self.fitting_programs:
            best = min(fitting, key=lambda t: (t.seconds, t.footprint.bytes))
            if best.is_exact:
                return best
            self.confirm(best)
        return None

    def _record_kernel_bytes(self, entry: Entry, own: Mapping[tuple[str, Expr], int]) -> None:
        """Keep the bytes that kernels were found to need inside."""
        for o in entry.found.outcomes:
            place, built = o.place, o.block.priced_form.built
            if built is None:
                continue
            inside = {m: own[place[0], e] for e, m in built.members.items() if (place[0], e) in own}
            old = self.block_pricing.get(place, Pricing(limit=self.aim))
            self.block_pricing[place] = replace(old, inside={**old.inside, **inside})

    def entry_at_price(self, held: float, spec: SearchSpec | None = None) -> Entry:
        return self.search.entry_at_byte_price(spec or self.search.by_price, held, self.block_pricing)

    def fits(self, t: TriedProgram) -> bool:
        return t.footprint.bytes <= self.aim

    @property
    def fitting_programs(self) -> list[TriedProgram]:
        return [t for t in self.tried if self.fits(t)]

    def search_prices(self, within: int) -> None:
        """Try programs at prices of a byte from low to high until one fits, then at prices in between. `within`: the
        limit to which the bytes inside kernels are compared (`Pricing.limit`)."""
        prices = [self.base * _FIRST * _FACTOR**i for i in range(_PRICES)]
        self.block_pricing = {p: replace(c, limit=within) for p, c in self.block_pricing.items()}
        specs = self.search.by_price, *self.search.own_kernels[:1]

        def fits_at(price: float) -> bool:
            entries = (self.entry_at_price(price, s) for s in specs)
            left = [e for e in entries if not self._is_hopeless(e) and not self._is_beaten(e, 0)]
            return any([self.fits(self.try_program(e, price)) for e in left])

        # The highest price first: an interrupted search then has a program within the limit soon, if there is one.
        fits_at(prices[-1])
        at = next((i for i, p in enumerate(prices[:-1]) if self.is_full or fits_at(p)), _PRICES - 1)
        if not self.fitting_programs or not at:
            return
        low, price = prices[at - 1], prices[at]
        high = price
        for _ in range(_CLOSER):
            middle = (low * high) ** 0.5
            if self.is_full:
                return
            if self.fits(self.try_program(self.entry_at_price(middle), middle)):
                high = middle
            else:
                low = middle

    def try_loops(self, entry: Entry | None) -> None:
        """Try a program, or the one as written, with its loops in segments, and in loops over pieces: as few pieces as
        are predicted to be needed, and more until one fits; or any number for a front. Once for bytes aimed at."""
        key = self.compiled.module_of(entry), self.aim
        if key in self.looped:
            return
        self.looped.add(key)
        bindings = self.search.options.bindings
        ways = [(w, self.try_program) for w in in_segments(self.search, entry)]
        for of_region, attempt in itertools.chain(ways, ((w, self._try_frugal) for w in in_loops(self.search, entry))):
            least, loops = math.inf, list(of_region)
            if not loops or self._is_hopeless(loops[-1]):
                continue
            finest = min(self.search.predicted_peak(x, bindings) for x in loops[-2:])
            if all(self._is_beaten(x, finest) for x in (loops[0], *loops[1:][-2:])):
                continue
            for looped in loops:
                if self.is_full:
                    return
                is_last = self.aims_at_limit and looped is loops[-1]
                if not is_last and finest > _FINER * least:
                    continue
                peak = self.search.predicted_peak(looped, bindings)
                if not is_last and (peak > _FINER * least or (self.aims_at_limit and peak > self.aim)):
                    continue
                least = peak
                if not self._is_beaten(looped, peak) and self.fits(attempt(looped)) and self.aims_at_limit:
                    break

    def _is_beaten(self, entry: Entry, peak: int) -> bool:
        """Whether a program is predicted to be slower than one that fits, or that needs no more than its `peak`."""
        return self._is_reached(max(peak, self.aim), self._relative_seconds(entry, self.modes[-1]))

    def _is_hopeless(self, entry: Entry | None) -> bool:
        """Whether a program is predicted to need so much more than the limit, and more than another program, that it
        need not be compiled."""
        options = self.search.options
        if not self.aims_at_limit or options.execution == KERNELS or options.cost is not None:
            return False
        enough = max(_HOPELESS * self.aim, min((t.footprint.bytes for t in self.tried), default=0))
        return self.search.predicted_peak(entry, options.bindings) > enough

    def arrange(self) -> None:
        """Try the programs found so far with their steps in an order and values computed again: those that would be
        chosen if they needed less, the fastest first. XLA stores other values than predicted, so where a program needs
        more than it was asked to, less is asked for."""
        for t, rate in itertools.product(self._worth_arranging(), self.search.host_rates):
            goal, before = self.aim, 0
            for _ in range(_CLOSER + 1):
                has_some = bool(self.fitting_programs)
                if self.search.arranging_clock.is_over() or (has_some and self.search.compiling.is_over()):
                    return
                made = self.search.arranged(t.entry, goal, t.footprint.at, rate)
                if made is None or made[1] == before:
                    break
                before, tried = made[1], self._try_frugal(made[0])
                if self.fits(tried):
                    break
                goal = min(int(_LESS * goal * self.aim / tried.footprint.bytes), made[1] - 1)

    def arrange_at_all_sizes(self) -> None:
        """Try the programs of the front found so far with fewer and fewer bytes asked for."""
        for t, rate in itertools.product(self._worth_arranging(), self.search.host_rates):
            most = min(t.footprint.bytes, self.search.predicted_peak(t.entry, [t.footprint.at]))
            before, least = 0, ALIKE * t.seconds  # an order for fewer bytes takes at least as long as the last one
            if self._is_reached(int(_HALF * most), t.seconds):
                continue
            for goal in (int(share * most) for share in _SHARES):
                if self._is_reached(goal, least):
                    continue
                if self.search.arranging_clock.is_over() or self.search.compiling.is_over():
                    return
                made = self.search.arranged(t.entry, goal, t.footprint.at, rate)
                if made is None:
                    break
                least = max(least, ALIKE * self._relative_seconds(made[0], self.modes[-1]))
                if made[1] != before and not self._is_reached(made[1], least):
                    self._try_frugal(made[0])
                before = made[1]
                if made[1] > goal:
                    break

    def _is_reached(self, goal: int, seconds: float) -> bool:
        """Whether a program was compiled that takes at most these seconds and needs at most so many bytes."""
        fast = (t.footprint for t in self.tried if t.seconds <= seconds)
        return any(f.bytes <= goal and not f.is_predicted for f in fast)

    def _worth_arranging(self) -> list[TriedProgram]:
        """The programs tried so far that are faster than all that fit, and the one as written, the fastest first. Of
        programs of which one is both faster and smaller only that one."""
        options = self.search.options
        if COMPUTED_AGAIN not in options.steps or options.execution == KERNELS or options.cost is not None:
            return []
        fastest = min((t.seconds for t in self.fitting_programs), default=math.inf)
        found: list[TriedProgram] = []
        for t in sorted(self.tried, key=lambda t: (t.seconds, t.footprint.bytes)):
            is_new = all(t.entry is not f.entry for f in found) and (t.entry is None or t.entry.found.again is None)
            smaller = all(t.footprint.bytes < f.footprint.bytes for f in found)
            if is_new and t.seconds < fastest and (smaller or t.entry is None):
                found.append(t)
        return found[:_ARRANGED]

    def _try_frugal(self, entry: Entry) -> TriedProgram:
        """A program that was changed to need less, compiled in the mode that needs least."""
        known = next((t for t in self.tried if t.entry is not None and t.entry.module == entry.module), None)
        if known is not None:
            return known
        return self._compile_and_measure(entry, self.modes[-1], 0.0)

    def raise_at_peak(self) -> None:
        """Raise the price of the values alive at the peak, a few times."""
        found = [t for t in self.tried if t.entry is not None and not _is_changed(t)]
        if not found:
            return  # the program as written is the cheapest at every price of a byte
        least = min(found, key=lambda t: t.footprint.bytes)
        for _ in range(_ROUNDS):
            entry, raised = least.entry, False
            if entry is None or self.is_full:
                return
            alive = least.peak_values or likely_peak_values(entry.module, self.search.weights, least.footprint.at)
            for o in entry.found.outcomes:
                place, stored = o.place, o.block.priced_form.stored
                there = {e for function, e in alive if function == place[0]}
                old = self.block_pricing.get(place, Pricing(limit=self.aim))
                more = {c: old.more.get(c, 1.0) * _MORE for e, c in stored.items() if _kernel_of(e) in there}
                raised |= bool(more)
                self.block_pricing[place] = replace(old, more={**old.more, **more})
            if not raised:
                return
            held = least.held or self.base
            least = self.try_program(self.entry_at_price(held), held)
            if self.fits(least):
                return

    def reach(self) -> bool:
        """Look for a program that fits, if the usual one does not: as written, the best one, those with kernels through
        Pallas, at prices of a byte from low to high, in loops (of large programs first), at higher prices at the peak.
        """
        assert self.usual is not None
        if not self.fits(self.usual):
            programs = {self.compiled.module_of(e): e for e in (None, self.usual.entry)}
            for entry in (e for m, e in programs.items() if is_large(m)):
                self.try_loops(entry)
            for entry in (None, self.search.entry(), *map(self.search.entry, self.search.own_kernels)):
                self.try_program(entry)
            if not self.is_full and not self.is_as_fast_as_usual:
                self.search_prices(self.aim)
            for entry in programs.values():
                self.try_loops(entry)
        if self.aims_at_limit:
            self.arrange()
        if not self.fitting_programs:
            self.search_prices(max(self.aim, int(_HALF * self.smallest.footprint.bytes)))
        if not self.fitting_programs:
            self.raise_at_peak()
        if not self.fitting_programs and self.aims_at_limit:
            self.arrange()
        return bool(self.fitting_programs)

    @contextmanager
    def until_interrupted(self) -> Generator[None]:
        """An interruption of the block ends the search, which keeps the programs tried so far, if one of them is
        within the limit, or if no limit is aimed at."""
        try:
            yield
        except KeyboardInterrupt:
            self.aim = self.limit
            if self.aims_at_limit and not self.fitting_programs:
                raise
            self.search.was_interrupted = True
            log_at(1, f"interrupted: the best of {count_text(self.count, 'program')} is taken")

    def reach_least(self) -> None:
        """If nothing fits: look for programs that need a little less than the least so far, until none is found or one
        is within the limit. A program may be, because what is extracted depends on the bytes aimed at."""
        while self.smallest.footprint.bytes > self.limit and not self.search.limit_clock.is_over():
            self.aim, self.allowed = int(self.smallest.footprint.bytes / _NEAR), self.programs + MOST // 2
            if not self.reach():
                break
        self.aim = self.limit

    @property
    def smallest(self) -> TriedProgram:
        """The program tried that needs least, by the bytes of the executable that runs."""
        while not (least := min(self.tried, key=lambda t: t.footprint.bytes)).is_exact:
            self.confirm(least)
        return least

    @property
    def is_as_fast_as_usual(self) -> bool:
        """Whether a program fits that is predicted to take no longer than the one that would be chosen without a
        limit: a byte with a price makes none faster."""
        return self.usual is not None and any(t.seconds <= self.usual.seconds for t in self.fitting_programs)

    @property
    def programs(self) -> int:
        """The number of different programs tried."""
        return len({id(self.compiled.module_of(t.entry)) for t in self.tried if not _is_changed(t)})

    @property
    def count(self) -> int:
        """The number of programs tried, those in loops and in other orders included."""
        return len({id(self.compiled.module_of(t.entry)) for t in self.tried})

    @property
    def is_full(self) -> bool:
        if self.programs >= self.allowed:
            return True
        has_some = bool(self.fitting_programs) or not self.aims_at_limit
        return has_some and (self.search.limit_clock.is_over() or self.search.compiling.is_over())


def fastest_within_limit(search: Search, unlimited: Callable[[], Entry | None]) -> tuple[CandidateProgram, MemoryRow]:
    """The fastest program within the limit, and how the limit was kept. `unlimited`: looks for the program that would
    be chosen without a limit; None: the one as written. ExtractionError if no program is within the limit.

    A large program is tried in loops over pieces before anything is searched: an interrupted search then has a program
    within the limit.
    """
    limit = search.options.memory_limit
    assert limit is not None
    tries = _Limited(search, limit)
    with tries.until_interrupted():
        if is_large(search.traced.module) and search.predicted_peak(None, search.options.bindings) > limit:
            tries.try_loops(None)
        tries.begin(unlimited())
        if not tries.reach():
            tries.reach_least()
    best = tries.confirmed_best()
    if best is None:
        best = tries.compiled.confirmed(_reachable_least(search, tries))
        if best.footprint.bytes > limit:
            raise _error(search, limit, tries, best)
    return CandidateProgram(best.entry, best.mode), _row(tries, best)


def smallest_within_time(search: Search, unlimited: Callable[[], Entry | None]) -> tuple[CandidateProgram, MemoryRow]:
    """The program that needs least memory among those found within the time limit, and what it needs. `unlimited`: as
    in `fastest_within_limit`. ExtractionError if no program is within the limit."""
    limit, options = search.options.time_limit, search.options
    assert limit is not None
    tries = _tries_along_front(search, unlimited())
    assert tries.usual is not None
    usual = [search.predicted_seconds(CandidateProgram(tries.usual.entry), b) for b in options.bindings]

    def seconds(t: TriedProgram) -> list[float]:
        return [search.predicted_seconds(CandidateProgram(t.entry, t.mode), b) for b in options.bindings]

    def fitting() -> list[TriedProgram]:
        return [t for t in tries.tried if all(map(limit.allows, seconds(t), usual))]

    if not fitting():
        least = min(max(seconds(t)) for t in tries.tried)
        raise ExtractionError(
            f"{search.traced.name}(): time_limit is {limit}, and of {count_text(tries.count, 'program')} the fastest "
            f"is predicted to take {least:.3g} s\n  accepted: time_limit={_rounded_up(least)} or more, or smaller sizes"
        )
    while not (best := min(fitting(), key=lambda t: (t.footprint.bytes, t.seconds))).is_exact:
        tries.confirm(best)
    return CandidateProgram(best.entry, best.mode), replace(_row(tries, best), limit=None, time_limit=str(limit))


def _rounded_up(seconds: float) -> str:
    """Seconds with few digits, not fewer seconds."""
    text = f"{seconds:.3g}"
    return text if float(text) >= seconds else f"{1.01 * seconds:.3g}"


def _row(tries: _Limited, best: TriedProgram) -> MemoryRow:
    m, usual = best.footprint, tries.usual or best
    if tries.search.options.execution == KERNELS or not usual.footprint.is_predicted:
        usual = tries.confirm(usual)  # one XLA program that was predicted is too large to be compiled for its bytes
    slower = best.seconds / usual.seconds if usual.seconds > 0 else 1.0
    kept, largest = () if best.entry is None else best.entry.found.kept, tries.compiled.largest
    module, scope = tries.compiled.module_of(best.entry), tries.search.options.scope
    larger = "" if largest is None else larger_value(module, scope, largest)
    return MemoryRow(
        tries.limit, m.bytes, usual.footprint.bytes, slower, tries.count, m.planned, m.results, m.temporary,
        kept=kept, largest=largest, not_shown=larger, is_predicted=usual.footprint.is_predicted,
    )  # fmt: skip


def front(search: Search, taken: Callable[[Sequence[TriedProgram]], Sequence[TriedProgram]]) -> list[TriedProgram]:
    """Programs tried at prices of a byte from low to high, and at higher prices for what is alive at the peak, each
    compiled in every mode, and some of them with values computed again; the first is the program as written. `taken`:
    those of them that are taken, whose bytes are those of executables that run."""
    tries = _tries_along_front(search, unlimited=None, everywhere=False)
    while rough := [t for t in taken(tries.tried) if not t.is_exact]:
        for t in rough:
            tries.confirm(t)
    return tries.tried


def _tries_along_front(search: Search, unlimited: Entry | None, everywhere: bool = True) -> _Limited:
    tries = _Limited(search, 1, everywhere)
    tries.allowed = _FRONT
    tries.aims_at_limit = False
    tries.begin(unlimited)
    with tries.until_interrupted():
        tries.reach()
        tries.arrange_at_all_sizes()
    return tries


def _reachable_least(search: Search, tried: _Limited) -> TriedProgram:
    """A program that a search with its bytes as the limit finds. What is extracted depends on the limit, so a search
    for fewer bytes may find a program that the search for exactly its bytes does not find."""
    least, usual = tried.smallest, tried.usual
    while not search.limit_clock.is_over():
        tries = _Limited(search, least.footprint.bytes)
        tries.begin(usual and usual.entry)
        if tries.reach():
            break
        least = tries.smallest
    return least


def _is_changed(t: TriedProgram) -> bool:
    return t.entry is not None and bool(t.entry.after_extraction)


def _kernel_of(e: Expr) -> Expr:
    """The kernel that computes `e`, as its result or as one of its results."""
    return e.args[0] if e.op == TUPLE_GET else e


def _error(search: Search, limit: int, tries: _Limited, accepted: TriedProgram) -> ExtractionError:
    least = accepted.footprint
    at = binding_text(least.at)
    shares = Counter(dict[str, int]())
    for value, count in least.peak:
        shares[value] += count
    peak = ", ".join(f"{value} ({format_bytes(count)})" for value, count in shares.most_common())
    place = f" at {at}" if at else ""
    programs = count_text(tries.count, "program")
    seconds = search.options.budget.extraction
    stopped = f"\n  the clock ended extraction: budget=Budget(extraction=...), here {seconds:g} seconds, gives it more"
    return ExtractionError(
        f"{search.traced.name}(): memory_limit is {format_bytes(limit)}, and of {programs} the least that a call needs "
        f"beside its arguments is {format_bytes(least.bytes)}{place}: {format_bytes(least.planned)} for values in "
        f"between, {format_bytes(least.results)} for results, {format_bytes(least.temporary)} inside executables\n"
        f"  at its peak: {peak}\n"
        f"  {bound_of(search, [t.footprint for t in tries.tried])}\n"
        f"  accepted: memory_limit={least.bytes} or more, or smaller sizes"
        f"{stopped if search.limit_clock.ran_out else ''}"
    )
