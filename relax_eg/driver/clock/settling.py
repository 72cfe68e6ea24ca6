"""Settling: the first calls of a function find out whether its chosen program is faster than the program as written.

Prices are predictions. Where a predicted gain is within the doubt about them, the program as written is compiled in a
thread, and the two programs take turns on the user's own calls, until the ratio of their times is known. From then on
only the faster one is called.

A trial costs a compilation, and what it may save is a part of the calls. So it begins once the calls are predicted to
have taken as long as the first one, which compiles, or after `_WAITING` calls: a process that calls little pays for one
compilation, not for two, and one that calls often settles soon.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

import jax
import numpy as np

from relax_eg.argument_checks import Kind, short_repr, within
from relax_eg.backend.calls.call_keys import MOST_KEYS, NO_KEY, is_tracing
from relax_eg.backend.calls.statistics import SettledRow
from relax_eg.backend.width import has_x64
from relax_eg.driver.jitting.varying import spec_of_any
from relax_eg.errors import OptionError
from relax_eg.extract.costs.numbers import TINY
from relax_eg.extract.profiles.learned import Expected, expect
from relax_eg.extract.report import MeasuredRow
from relax_eg.figures import binding_text
from relax_eg.logs import fallback, log_at
from relax_eg.measure.timing import median_ranks
from relax_eg.memo import Memo
from relax_eg.reports import CostReport

SettleMode = Literal["auto", "always", "off"]
_MODES: tuple[SettleMode, ...] = ("auto", "always", "off")
_MOST_MEASURED = 16  # limit: programs that `measure` may time ahead of the calls
LOOKS = (8, 12, 20)  # chosen: pairs of calls after which the interval of their ratio is looked at, before the last
CERTAINTY = 0.95  # chosen: confidence of the decision as a whole
# chosen: a ratio beyond which, and pairs in a row after which, no interval is needed. Of two equal programs one wins 5
# pairs of 5 in one trial of 16, by ratios near 1.
_FAR, _FEW = 1.5, 5
# chosen: ratios that are no difference: two compilations of one program differ by as much (`measure.choice.GAIN`)
_ALIKE = 1.02
# chosen: first calls of each program that are not timed; the first three at capacity go another way (`dynamic.runtime`)
_UNTIMED = 4
_WAITING = 100  # chosen: calls after which a trial begins, whatever they take
# chosen: seconds before each call of every second pair. Programs whose threads still spin since the call before differ
# by up to a fifth from what they take after a pause; the faster one is faster either way.
_PAUSE = 1e-4
# given: times as fast as the program as written that what runs is at least. At the limits of a trial, a chosen program
# that is faster by the median stays if its interval keeps this, or if it is much faster.
_NO_LOSS = 0.97
_MUCH = 1.1  # chosen: times as fast
MOST_TRIALS = 16  # limit: combinations of sizes for which a function is settled; others run what the nearest one runs
# chosen: combinations of sizes after which a function is settled for all sizes, if all run the program as written, or
# if the chosen one is at least `_MUCH` times as fast at each beyond doubt. One that is about as fast at three sizes may
# be slower at a fourth: MiniLM's is 0.94 times as fast with a text of 11 tokens, 1.16 with 8 texts of 256
# (`benchmarks.minilm`).
_AGREEING = 3

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Key = Callable[[tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Settle:
    """How the first calls find out whether the chosen program is faster: `optimize(..., measure=Settle(...))`.

    - `mode`: "auto", where the interval of the predicted gain (`report.expected`) contains 1; "always"; or "off", the
      prediction decides.
    - `calls`: the most calls that are timed, for each of the first combinations of sizes.
    - `seconds`: the most seconds that calls of the slower program may take more than those of the faster one.

    OptionError for values of another kind.
    """

    mode: SettleMode = "auto"
    calls: int = 80
    seconds: float = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in _MODES:  # type: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"Settle(mode={short_repr(self.mode)}): one of {', '.join(_MODES)} is accepted")
        if type(self.calls) is not int or self.calls < 2 * _FEW:
            raise OptionError(f"Settle(calls={short_repr(self.calls)}): a number >= {2 * _FEW} is accepted")
        if type(self.seconds) not in (int, float) or not 0 < self.seconds < math.inf:  # type: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"Settle(seconds={short_repr(self.seconds)}): a number above 0 is accepted")

    @classmethod
    def of(cls, measure: SettleMode | Settle | int | None) -> Settle:
        """Returns what the first calls do under an option `measure`. A number of programs that are timed ahead leaves
        nothing to them; None is the mode that the environment variable `RELAX_EG_MEASURE` names. OptionError."""
        if isinstance(measure, Settle):
            return measure
        if isinstance(measure, int):
            return OFF
        usual: Any = os.environ.get("RELAX_EG_MEASURE") or "auto"
        if measure is None and usual not in _MODES:
            raise OptionError(f"RELAX_EG_MEASURE={usual}: one of {', '.join(_MODES)} is accepted")
        return cls(mode=measure or usual)

    def doubts(self, reports: Iterable[CostReport]) -> bool:
        """Whether the predicted gains of chosen programs are to be settled."""
        return self.mode == "always" or (self.mode == "auto" and any(_expected(r).low < 1 for r in reports))


def _expected(r: CostReport) -> Expected:
    """What a report expects; of a report of an older release, what is expected on an unknown machine."""
    return r.expected or expect(r.predicted_gain, {}, {}, {}, {})


OFF = Settle(mode="off")


class Contestant(Protocol):
    """A program in a trial.

    - `label`: its name in reports.
    - `predicted`: its predicted seconds of a call.
    """

    @property
    def label(self) -> str: ...

    @property
    def predicted(self) -> float: ...

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
        """Compiles what calls with arguments of these shapes run, as the other program runs those of `key`."""
        ...


C = TypeVar("C", bound=Contestant)


@dataclass(frozen=True)
class TrialOutcome:
    """What a trial found.

    - `is_chosen_faster`: whether the chosen program won.
    - `chosen_seconds`, `written_seconds`: median seconds of a call of the chosen program, and of the one as written.
    - `speedup`, `low`, `high`: how many times faster the chosen program is, and the interval of this ratio.
    - `pairs`: number of pairs of timed calls.
    """

    is_chosen_faster: bool
    chosen_seconds: float
    written_seconds: float
    speedup: float
    low: float
    high: float
    pairs: int


class KnownOutcomes(Protocol):
    """The outcomes of earlier processes (`driver.clock.outcomes`), by sizes and by whether weights are bound."""

    def read(self, at: Mapping[str, int], is_bound: bool) -> TrialOutcome | None: ...

    def write(self, at: Mapping[str, int], is_bound: bool, outcome: TrialOutcome) -> None: ...


@dataclass
class _Trial:
    """The calls with one combination of sizes.

    - `at`: the sizes.
    - `begin`: compiles the program that does not serve; None once it has begun.
    - `waits`: how many more calls are made before.
    - `is_compiled`: whether both programs are compiled.
    - `seconds`: the timed calls of the chosen program, and of the one as written.
    - `untimed`: how many more calls of each are not timed.
    - `turn`: the two in the order in which they take the next two calls.
    - `winner`: which of the two is called from now on.
    - `outcome`: what was found; None if it was given up.
    """

    at: Mapping[str, int]
    most_pairs: int
    begin: Callable[[], None] | None = None
    waits: int = 0
    is_compiled: bool = False
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    untimed: list[int] = field(default_factory=lambda: [_UNTIMED, _UNTIMED])
    turn: list[int] = field(default_factory=list[int])
    winner: int | None = None
    outcome: TrialOutcome | None = None
    random: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def next(self) -> int:
        """Which of the two takes the next call."""
        if not self.turn:
            self.turn = [0, 1]
            self.random.shuffle(self.turn)
        return self.turn[0]

    def record(self, which: int, seconds: float) -> None:
        """Records a call of the one whose turn it was. The first calls of each are not timed."""
        self.turn.pop(0)
        if self.untimed[which]:
            self.untimed[which] -= 1
        else:
            self.seconds[which].append(seconds)

    @property
    def pairs(self) -> int:
        return min(map(len, self.seconds))

    @property
    def ratios(self) -> np.ndarray[Any, Any]:
        """By pair, how many times longer the program as written took."""
        n = self.pairs
        return np.array(self.seconds[1][:n]) / np.maximum(self.seconds[0][:n], 1e-9)

    @property
    def extra(self) -> float:
        """The seconds that the slower program took more than the faster one."""
        mine, other = (sum(s[: self.pairs]) for s in self.seconds)
        return abs(mine - other)

    def interval(self) -> tuple[float, float, float]:
        """The median ratio and its interval; of few pairs, the range of their ratios."""
        found = np.sort(self.ratios)
        certainty = 1 - (1 - CERTAINTY) / (len(LOOKS) + 1)
        try:
            low, high = median_ranks(len(found), certainty)
        except ValueError:
            low, high = 0, len(found) - 1
        return float(np.median(found)), float(found[low]), float(found[high])

    def found(self) -> TrialOutcome:
        mine, other = (float(np.median(s)) for s in self.seconds)
        return TrialOutcome(self.winner == 0, mine, other, *self.interval(), self.pairs)

    def settled(self, runs: str) -> SettledRow:
        """What was found, and what it took. `runs`: the name of the winner."""
        o, calls = self.outcome, sum(map(len, self.seconds))
        if o is None:
            return SettledRow(self.at, runs, "failed", calls, 0.0, 1.0, 1.0, 1.0)
        slower = self.seconds[0 if self.winner else 1]
        faster = min(o.chosen_seconds, o.written_seconds)
        extra = sum(max(0.0, s - faster) for s in slower)
        return SettledRow(self.at, runs, "timed" if calls else "known", calls, extra, o.speedup, o.low, o.high)

    def decide(self, seconds: float) -> None:
        """Decides if enough is known, or if the limits are reached."""
        n, ratios = self.pairs, self.ratios
        if self.turn or n == 0:
            return
        if n >= _FEW and bool(np.all(ratios > _FAR) or np.all(ratios < 1 / _FAR)):
            self.winner = int(ratios[0] < 1)
            return
        is_last = n >= self.most_pairs or self.extra > seconds
        if n in LOOKS or is_last:
            middle, low, high = self.interval()
            if low > 1 or high < 1 or (low > 1 / _ALIKE and high < _ALIKE):
                self.winner = int(middle < 1)
            elif is_last:
                self.winner = int(middle < 1 or (low < _NO_LOSS and middle < _MUCH))


class Settling(Generic[C]):
    """Calls of a function whose chosen program and program as written take turns until it is known which is faster.

    - `settle`: the limits.
    - `key`: a value by which calls that run the same executables are known; raises one of `NO_KEY` for other calls.
    - `sizes`: the sizes of a call, for reports.
    - `settled`: called once, with the program that serves all calls from then on.
    - `most`: the most keys for which a trial is made; with one, it settles all calls.
    - `doubts`: whether a trial is to be made, asked after the first call.
    - `known`: the outcomes that are known; asked after the first call.
    - `is_bound`: whether the calls have weights bound.
    - `begins_as_written`: whether the program as written serves calls until the chosen one is compiled, not the other
      way round; what is asked after the first call is then asked when the chosen one is compiled.
    - `start`: begins work in another thread.
    - `straight_of`: what calls may begin with once a program has won for all sizes so far, the last of this key.
    - `straight`: the same, as long as it has.
    """

    def __init__(
        self,
        chosen: C,
        written: C,
        settle: Settle,
        key: Key,
        sizes: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, int]],
        settled: Callable[[C], None],
        most: int = 1,
        doubts: Callable[[], bool] = lambda: True,
        known: Callable[[], KnownOutcomes | None] = lambda: None,
        is_bound: bool = False,
        begins_as_written: bool = False,
        start: Callable[[Callable[[], None]], None] | None = None,
        straight_of: Callable[[C, Any], Any] = lambda *_: None,
    ) -> None:
        self._contestants = chosen, written
        self._serving, self._start = int(begins_as_written), start or _start
        self._settle, self._key, self._sizes, self._settled = settle, key, sizes, settled
        self._most, self._doubts = most, doubts
        self._known, self._is_bound, self._straight_of = known, is_bound, straight_of
        self.straight: Any = None
        self._trials: dict[Any, _Trial] = {}
        self._untried = Memo[Any, int](MOST_KEYS)  # which of the two runs calls without a trial, by their keys
        self._timing = threading.Lock()  # held during a timed call: of calls at the same time one is timed
        self._finishing, self._is_over = threading.Lock(), False

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        chosen, serving = self._contestants[0], self._contestants[self._serving]
        is_full = len(self._trials) >= self._most
        try:
            key, has_key = self._key(args, kwargs), True
        except NO_KEY:  # among others, of the first call of certain sizes at capacity
            key, has_key = None, False
        trial = self._trials.get(key) if has_key else None
        if trial is not None and trial.winner is not None:
            return self._contestants[trial.winner](args, kwargs)
        if is_tracing() or (not has_key and (is_full or self._serving)):
            return chosen(args, kwargs)
        if trial is None and is_full:
            winner = self._untried.get_or_make(key, lambda: self._nearest_winner(self._sizes(args, kwargs)))
            return self._contestants[winner](args, kwargs)
        if trial is None:
            return self._first_call(args, kwargs)
        if not trial.is_compiled:
            self._begin_if_due(trial)
            return serving(args, kwargs)
        if not self._timing.acquire(blocking=False):
            return serving(args, kwargs)
        try:
            return self._timed(trial, args, kwargs)
        finally:
            self._timing.release()

    def _nearest_winner(self, at: Mapping[str, int]) -> int:
        """Which of the two won at the sizes whose ratios to `at` are least; the chosen one before any trial ended."""

        def distance(trial: _Trial) -> float:
            return sum(abs(math.log(max(at[v], 1) / max(n, 1))) for v, n in trial.at.items())

        won = [(t, t.winner) for t in list(self._trials.values()) if t.winner is not None]
        return min(won, key=lambda w: distance(w[0]))[1] if won else 0

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the program that serves first calls, and begins a trial if its calls can be told from others."""
        # A call may give its arrays away.
        given, named = jax.tree_util.tree_map(spec_of_any, (args, kwargs))
        started = time.perf_counter()
        result = self._contestants[self._serving](args, kwargs)
        seconds = time.perf_counter() - started
        try:
            key = self._key(args, kwargs)
        except NO_KEY:
            return result
        if not self._serving and not self._doubts():
            self._finish(self._contestants[0])
            return result
        trial = _Trial(self._sizes(args, kwargs), self._settle.calls // 2)
        self.straight = None
        first = self._trials.setdefault(key, trial)
        if first is not trial:  # of other sizes at the same capacities, or by another thread
            self._begin_if_due(first)
            return result
        outcome = None if self._serving else self._known_outcome(trial)
        if outcome is not None and outcome.is_chosen_faster:  # the chosen program is compiled
            self._end_as_known(trial, outcome)
            return result
        wide = has_x64()  # a setting of this thread

        def work() -> None:
            try:
                with jax.enable_x64(wide):
                    self._contestants[1 - self._serving].compile(given, named, key)
                if self._serving and not self._doubts():
                    self._finish(self._contestants[0])
                elif (found := self._known_outcome(trial) if self._serving else outcome) is not None:
                    self._end_as_known(trial, found)
                else:
                    trial.is_compiled = True
            except Exception as e:
                self._give_up(trial, e)

        trial.begin = work
        if not self._serving and outcome is None and self._settle.mode != "always":
            trial.waits = min(math.ceil(seconds / max(self._contestants[0].predicted, TINY)), _WAITING)
        self._begin_if_due(trial)
        return result

    def _begin_if_due(self, trial: _Trial) -> None:
        """Begins a trial, unless more calls are to be made before."""
        with self._finishing:
            is_due, trial.waits = trial.waits <= 0, trial.waits - 1
            begin, trial.begin = (trial.begin, None) if is_due else (None, trial.begin)
        if begin is not None:
            self._start(begin)

    def _known_outcome(self, trial: _Trial) -> TrialOutcome | None:
        """What an earlier process found of a trial."""
        known = self._known()
        return None if known is None else known.read(trial.at, self._is_bound)

    def _end_as_known(self, trial: _Trial, outcome: TrialOutcome) -> None:
        """Ends a trial as an earlier process did. The winner is compiled."""
        trial.outcome, trial.winner = outcome, int(not outcome.is_chosen_faster)
        self._end(trial, "as known of an earlier process")

    def _give_up(self, trial: _Trial, error: Exception) -> None:
        trial.winner = self._serving
        other = self._contestants[1 - self._serving]
        fallback(f"the first calls settle nothing; the program {other.label} was not timed beside the other", error)
        self._end(trial, "the other could not be run")

    def _timed(self, trial: _Trial, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if trial.winner is not None:  # another thread ended the trial
            return self._contestants[trial.winner](args, kwargs)
        which = trial.next
        jax.block_until_ready((args, kwargs))
        if trial.pairs % 2:
            time.sleep(_PAUSE)
        started = time.perf_counter()
        try:
            result = jax.block_until_ready(self._contestants[which](args, kwargs))
        except Exception as e:
            if which == self._serving or any(
                getattr(x, "is_deleted", bool)() for x in jax.tree_util.tree_leaves((args, kwargs))
            ):
                raise
            self._give_up(trial, e)
            return self._contestants[self._serving](args, kwargs)
        trial.record(which, time.perf_counter() - started)
        trial.decide(self._settle.seconds)
        if trial.winner is not None:
            trial.outcome = trial.found()
            if (known := self._known()) is not None:
                known.write(trial.at, self._is_bound, trial.outcome)
            self._end(trial, f"in {trial.pairs} pairs of calls")
        return result

    def _end(self, trial: _Trial, how: str) -> None:
        """Ends a trial, and all trials if nothing else is to be known."""
        assert trial.winner is not None
        winner, o = self._contestants[trial.winner], trial.outcome
        self._untried.clear()  # this may be the nearest one
        at = binding_text(trial.at)
        ratio = "" if o is None else f"; the chosen program is {o.speedup:.2f} times as fast as the one as written"
        log_at(1, f"settled{' at ' + at if at else ''}: {winner.label}{ratio}, {how}")
        over = [t for t in list(self._trials.values()) if t.winner is not None]
        agree = len({t.winner for t in over}) == 1
        is_sure = trial.winner == 1 or all(t.outcome is not None and t.outcome.low > _MUCH for t in over)
        if agree and len(over) >= (_AGREEING if is_sure and self._most > 1 else self._most):
            self._finish(winner)
        elif agree and len(over) == len(self._trials):
            key = next(k for k, t in self._trials.items() if t is trial)
            self.straight = self._straight_of(winner, key)

    def _finish(self, winner: C) -> None:
        """Passes on what serves all later calls; several threads may come here."""
        with self._finishing:
            if not self._is_over:
                self._is_over = True
                self._settled(winner)

    @property
    def is_begun(self) -> bool:
        """Whether a trial has begun."""
        return bool(self._trials)

    @property
    def first_key(self) -> Any:
        """The key of the first trial; None before it."""
        return next(iter(self._trials), None)

    @property
    def settled(self) -> tuple[SettledRow, ...]:
        """The trials that ended, with the calls and seconds that they took."""
        over = ((t, t.winner) for t in list(self._trials.values()))
        return tuple(t.settled(self._contestants[w].label) for t, w in over if w is not None)

    @property
    def rows(self) -> tuple[MeasuredRow, ...]:
        """What the trials that ended found."""
        found: list[MeasuredRow] = []
        for trial in list(self._trials.values()):
            o = trial.outcome
            if o is None:
                continue
            ours, theirs = self._contestants
            seconds, is_faster = o.written_seconds, o.is_chosen_faster
            found.append(MeasuredRow(theirs.label, theirs.predicted, seconds, 1.0, 1.0, 1.0, not is_faster, trial.at))
            ratio = o.speedup, o.low, o.high
            found.append(MeasuredRow(ours.label, ours.predicted, o.chosen_seconds, *ratio, is_faster, trial.at))
        return tuple(found)


def _start(work: Callable[[], None]) -> None:
    """Does `work` in a thread, under the caller's `rx.debug.options`."""
    threading.Thread(target=copy_context().run, args=(work,), name="relax_eg settle").start()


# The kinds of the option `measure`: of functions that time no programs ahead of the calls, and of those that do.
FIRST_CALLS = Kind(
    lambda x: x is None or isinstance(x, Settle) or (isinstance(x, str) and x in _MODES),
    f"one of {', '.join(map(repr, _MODES))}, or a Settle,",
)
MEASURE = Kind(
    (FIRST_CALLS | within("programs", 0, _MOST_MEASURED)).fits,
    f"one of {', '.join(map(repr, _MODES))}, how many programs to time ahead, 0 to {_MOST_MEASURED}, or a Settle,",
)
