"""`optimize(..., memory_limit=...)`: the fastest program found that needs no more memory than that.

Bytes that a call has in memory get a price, which is raised until what comes out fits: values that are cheap to compute
are computed again where they are read, and algebra that needs less goes before algebra that is faster. Each program is
planned and compiled, in each way that XLA is told to compile it, so that its bytes are those of what runs; how it is
compiled is part of what is chosen. Where none fits, the price is raised once more for what is there when most is
needed; then the error says what that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from relax_eg.backend.accounting import FRUGAL, is_on_cpu
from relax_eg.backend.footprint import InKernels, in_kernels, in_whole, likely_at_peak
from relax_eg.byte_units import format_bytes
from relax_eg.debug import tell
from relax_eg.driver.measured import Candidate, Entry, Search
from relax_eg.errors import ExtractionError
from relax_eg.extract.figures import counted
from relax_eg.extract.footprint import Footprint, MemoryRow
from relax_eg.extract.pricing import Pricing
from relax_eg.extract.profile import AS_USUAL, Mode, Profile
from relax_eg.ir.expr import TUPLE_GET, Expr
from relax_eg.ir.module import Module

MOST = 16  # programs whose memory is looked at to keep a limit
_FIRST, _FACTOR, _PRICES = 1 / 64, 8.0, 7  # prices of a byte: the first, in times of (seconds / bytes), and the others
_HALF = 0.5  # of the least so far: where nothing fits, how little there might be is looked for with an eye on that
_CLOSER = 2  # prices between the last that was too low and the first that did
_ROUNDS, _MORE = 3, 16.0  # of raising the price at the peak, and how much
_NEAR = 1.1  # times what could be reached: the least bytes that an error names


@dataclass(frozen=True)
class Tried:
    """A program, and what it needs compiled in one way.

    `entry`: the program; None: as written.
    `mode`: how XLA compiles it.
    `held`: the price of a byte that it was found at.
    `seconds`: summed over the bindings, in shares of the program as written.
    `most`: bytes at the binding where it needs most.
    `at_peak`: the values that are there then.
    """

    entry: Entry | None
    mode: Mode
    held: float
    seconds: float
    most: Footprint
    at_peak: frozenset[tuple[str, Expr]]


class _Limited:
    def __init__(self, search: Search, limit: int) -> None:
        self.search = search
        self.limit = limit
        self.aim = limit  # bytes that a program is looked for with: the limit, or more where nothing keeps that
        self.allowed = MOST  # programs that may be looked at
        self.tried: list[Tried] = []
        self.modes = _modes(search.options.profile)
        self.known: dict[tuple[str, int], Pricing] = {}  # what was measured, and raised, by function and block
        written = Candidate(None, AS_USUAL)
        self.shares = [search.predicted(written, b) for b in search.options.bindings]

    def look(self, entry: Entry | None, held: float = 0.0) -> Tried:
        """A program compiled in the fastest way in which it fits, or else in the way that needs least; what was looked
        at before is known."""
        module = self.module_of(entry)
        found = [t for t in self.tried if module == self.module_of(t.entry)]
        if not found:
            for mode in self.modes:
                found.append(self._compiled(entry, mode, held))
                if self.fits(found[-1]) and found[-1].seconds <= min(self._shares(entry, m) for m in self.modes):
                    break
            self.tried += found
        fitting = [t for t in found if self.fits(t)]
        if fitting:
            return min(fitting, key=lambda t: (t.seconds, t.most.bytes))
        return min(found, key=lambda t: t.most.bytes)

    def module_of(self, entry: Entry | None) -> Module:
        return self.search.traced.module if entry is None else entry.module

    def _shares(self, entry: Entry | None, mode: Mode) -> float:
        """Seconds of a program, summed over the bindings in shares of the program as written."""
        calls = [self.search.predicted(Candidate(entry, mode), b) for b in self.search.options.bindings]
        return sum(c / max(s, 1e-12) for c, s in zip(calls, self.shares, strict=True)) / len(calls)

    def _compiled(self, entry: Entry | None, mode: Mode, held: float) -> Tried:
        options, weights = self.search.options, set[str]() if entry is None else self.search.weights
        module = self.module_of(entry)
        at_peak: frozenset[tuple[str, Expr]] = frozenset()
        most: Footprint | None = None
        for sizes in options.bindings:
            if options.execution == "kernels":
                measured: InKernels = in_kernels(module, weights, sizes, mode.options)
                found, there = measured.footprint, measured.at_peak
                if sizes == options.bindings[0] and entry is not None:
                    self._learn(entry, measured.own)
            else:
                found = in_whole(module, weights, sizes, mode.options)
                there = likely_at_peak(module, weights, sizes)
            if most is None or found.bytes > most.bytes:
                most, at_peak = found, there
        assert most is not None
        seconds = self._shares(entry, mode)
        label = Candidate(entry, mode).label
        tell(2, f"memory: {label}: {format_bytes(most.bytes)}, {seconds:.3g} of the time as written")
        return Tried(entry, mode, held, seconds, most, at_peak)

    def _learn(self, entry: Entry, own: Mapping[tuple[str, Expr], int]) -> None:
        """Keep what kernels were found to need for themselves."""
        for place, built in entry.units.built.items():
            inside = {m: own[place[0], e] for e, m in built.members.items() if (place[0], e) in own}
            old = self.known.get(place, Pricing(limit=self.aim))
            self.known[place] = replace(old, inside={**old.inside, **inside})

    def priced(self, held: float) -> Entry:
        return self.search.frugal(held, self.known)

    def fits(self, t: Tried) -> bool:
        return t.most.bytes <= self.aim

    @property
    def fitting(self) -> list[Tried]:
        return [t for t in self.tried if self.fits(t)]

    def sweep(self, base: float, within: int) -> None:
        """Look at what comes out where bytes have a price, from low to high, until that fits; then in between.
        `within`: the bytes that what kernels have for themselves is measured by."""
        low, price = 0.0, base * _FIRST
        self.known = {p: replace(c, limit=within) for p, c in self.known.items()}
        for _ in range(_PRICES):
            if self.full or self.fits(self.look(self.priced(price), price)):
                break
            low, price = price, price * _FACTOR
        if not self.fitting or not low:
            return
        high = price
        for _ in range(_CLOSER):
            middle = (low * high) ** 0.5
            if self.full:
                return
            if self.fits(self.look(self.priced(middle), middle)):
                high = middle
            else:
                low = middle

    def raise_at_peak(self, base: float) -> None:
        """Raise the price of what is there when most is needed, a few times over."""
        found = [t for t in self.tried if t.entry is not None]
        if not found:
            return  # whatever a byte costs, the program as written is the cheapest
        least = min(found, key=lambda t: t.most.bytes)
        for _ in range(_ROUNDS):
            entry, raised = least.entry, False
            if entry is None or self.full:
                return
            for place, stored in entry.units.stored.items():
                there = {e for function, e in least.at_peak if function == place[0]}
                old = self.known.get(place, Pricing(limit=self.aim))
                more = {c: old.more.get(c, 1.0) * _MORE for e, c in stored.items() if _kernel_of(e) in there}
                raised |= bool(more)
                self.known[place] = replace(old, more={**old.more, **more})
            if not raised:
                return
            held = least.held or base
            least = self.look(self.priced(held), held)
            if self.fits(least):
                return

    def reach(self, base: float) -> bool:
        """Look for a program that fits, with prices of a byte from low to high, then with those at the peak raised."""
        self.sweep(base, self.aim)
        if not self.fitting:
            self.sweep(base, max(self.aim, int(_HALF * self.least.most.bytes)))
        if not self.fitting:
            self.raise_at_peak(base)
        return bool(self.fitting)

    def reach_least(self, base: float) -> None:
        """Where nothing fits: look for what needs a little less than the least so far, until nothing does. What comes
        out depends on the bytes that are aimed at, so something may fit after all."""
        while (aim := int(self.least.most.bytes / _NEAR)) > self.limit and not self.search.limiting.is_over():
            self.aim, self.allowed = aim, self.programs + MOST // 2
            if not self.reach(base):
                break
        self.aim = self.limit

    @property
    def least(self) -> Tried:
        """Of what was looked at, what needs least."""
        return min(self.tried, key=lambda t: t.most.bytes)

    @property
    def programs(self) -> int:
        """How many different programs were looked at."""
        return sum(t.mode == self.modes[0] for t in self.tried)

    @property
    def full(self) -> bool:
        return self.programs >= self.allowed or (bool(self.fitting) and self.search.limiting.is_over())


def limited(search: Search, unlimited: bool) -> tuple[Candidate, MemoryRow]:
    """The fastest program within the limit, and how it was kept. `unlimited`: whether the best program would be chosen
    without a limit; else the one as written would. ExtractionError where no program is within it."""
    limit = search.options.memory_limit
    assert limit is not None
    tries = _Limited(search, limit)
    usual = tries.look(search.entry() if unlimited else None)
    if not tries.fits(usual):
        base = usual.seconds / max(usual.most.bytes, 1)
        if len(search.options.bindings) == 1:
            base *= tries.shares[0]
        else:
            base *= len(search.options.bindings)
        tries.look(None if unlimited else search.entry())
        if not tries.reach(base):
            tries.reach_least(base)
    if not tries.fitting:
        raise _error(search, limit, tries)
    best = min(tries.fitting, key=lambda t: (t.seconds, t.most.bytes))
    m = best.most
    slower = best.seconds / usual.seconds if usual.seconds > 0 else 1.0
    row = MemoryRow(
        limit, m.bytes, usual.most.bytes, slower, tries.programs, m.planned, m.results, m.temporary
    )  # fmt: skip
    return Candidate(best.entry, best.mode), row


def _kernel_of(e: Expr) -> Expr:
    """The kernel whose result, or one of whose results, `e` is."""
    return e.args[0] if e.op == TUPLE_GET else e


def _modes(profile: Profile) -> tuple[Mode, ...]:
    """The ways in which programs are compiled under a limit: as usual and, on CPUs, so that all memory is XLA's own and
    little. What that costs in time is known from the profile's mode without XLA's library fusions."""
    if profile.platform != "cpu" or not is_on_cpu():
        return (AS_USUAL,)
    similar = (m for m in profile.modes if m.options.items() <= FRUGAL.items())
    changes = next((m.changes for m in similar), {})
    return AS_USUAL, Mode("for memory", FRUGAL, changes)


def _error(search: Search, limit: int, tries: _Limited) -> ExtractionError:
    least = tries.least.most
    at = ", ".join(f"{v}={n}" for v, n in least.at.items())
    shares = Counter(dict[str, int]())
    for value, count in least.peak:
        shares[value] += count
    peak = ", ".join(f"{value} ({format_bytes(count)})" for value, count in shares.most_common())
    place = f" at {at}" if at else ""
    programs = counted(tries.programs, "program")
    seconds = search.options.budget.extraction
    stopped = f"\n  the clock ended extraction: budget=Budget(extraction=...), here {seconds:g} seconds, gives it more"
    return ExtractionError(
        f"{search.traced.name}(): memory_limit is {format_bytes(limit)}, and of {programs} the least that a call needs "
        f"beside its arguments is {format_bytes(least.bytes)}{place}: {format_bytes(least.planned)} for values in "
        f"between, {format_bytes(least.results)} for results, {format_bytes(least.temporary)} inside executables\n"
        f"  at its peak: {peak}\n"
        f"  accepted: memory_limit={least.bytes} or more, or smaller sizes"
        f"{stopped if search.limiting.ran_out else ''}"
    )
