"""Interleaved timing of several callables in one process, with paired ratios.

A machine that others use drifts by more than the differences to be measured. So the callables take turns: each round
times every one of them once, in a new order, and a ratio is formed within a round, where the machine was the same for
both sides. What is reported is the median over the rounds, with an interval that holds the true median with at least
95% probability (the order statistics of the binomial law, so no assumption about how times are distributed).

A limit is kept (`WITHIN`) where the whole interval is at or below it, and broken (`BEYOND`) where the whole interval is
above; else it is `UNSURE`, which counts as neither. `settled` measures a case again if an interval
contains its limit, on whichever side the median is; a case that is decided, either way, is not measured again. The
samples of both measurements count, so that with two measurements at 95% at least 90% of the verdicts are right.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from benchmarks import CHOSEN
from relax_eg.measure.timing import median_ranks, time_interleaved
from relax_eg.processor import cores

if not CHOSEN:
    os.environ["RELAX_EG_CACHE"] = "machine"

Verdict = Literal["within", "unsure", "beyond"]
WITHIN: Verdict = "within"
UNSURE: Verdict = "unsure"
BEYOND: Verdict = "beyond"
SETTLING_SECONDS, SETTLING_CALLS = 20.0, 4000  # chosen: after which calls that settle end
QUICK_SECONDS = 0.02  # of timing a program where only that it runs matters (`--quick`)
AGAIN = 4  # what is unsure is measured so many times as long besides


@dataclass(frozen=True)
class Estimate:
    """The median of samples, often of paired ratios.

    - `value`: the median.
    - `low`, `high`: its interval, which contains the true median with at least 95% probability.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: np.ndarray) -> Estimate:
        """ValueError where there are too few samples for an interval."""
        low, high = median_ranks(len(samples))
        ordered = np.sort(samples)
        return cls(float(np.median(ordered)), float(ordered[low]), float(ordered[high]))

    @property
    def inverse(self) -> Estimate:
        """The estimate of the inverse ratios."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low)

    def against(self, limit: float) -> Verdict:
        """Returns whether the true median is at most `limit`, by the interval."""
        return WITHIN if self.high <= limit else BEYOND if self.low > limit else UNSURE

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Timings:
    """Seconds per call, by name; entry i of every array was taken in round i."""

    seconds: Mapping[str, np.ndarray]

    def median(self, name: str) -> float:
        return float(np.median(self.seconds[name]))

    def fastest(self, names: Iterable[str]) -> str:
        return min(names, key=self.median)

    def speedup(self, name: str, over: str) -> Estimate:
        """Returns the time of `over` divided by that of `name`."""
        return Estimate.of(self.seconds[over] / self.seconds[name])

    def __add__(self, more: Timings) -> Timings:
        """The rounds of both, which must have timed the same callables."""
        return Timings({name: np.concatenate([s, more.seconds[name]]) for name, s in self.seconds.items()})


def measure(calls: Mapping[str, Callable[[], Any]], seconds: float = 1.0, seed: int = 0) -> Timings:
    """Times all `calls`, interleaved, for about `seconds` in all; each is called without arguments and waited for."""
    return Timings(time_interleaved(calls, seconds, seed))


def settled(
    calls: Mapping[str, Callable[[], Any]],
    seconds: float,
    judged: Callable[[Timings], Iterable[tuple[Estimate, float]]],
) -> Timings:
    """Times `calls` for about `seconds`, and `AGAIN` times as long besides where one of the estimates that are
    `judged`, each against its limit, is unsure."""
    timings = measure(calls, seconds)
    if any(found.against(limit) == UNSURE for found, limit in judged(timings)):
        timings += measure(calls, AGAIN * seconds, seed=1)
    return timings


def settle(best: Any, call: Callable[[], Any], at: Mapping[str, int] | None = None) -> int:
    """Calls until the first calls have settled which program runs, at the sizes `at` if they are given.

    - `best`: what was optimized or jitted, whose `statistics()` say so.
    - `call`: a call of it.

    Returns the number of calls.
    """
    calls, end = 0, time.perf_counter() + SETTLING_SECONDS
    while True:
        for _ in range(8 if calls else 1):
            jax.block_until_ready(call())
            calls += 1
        found = best.statistics()
        if found is None or not found.is_settling or any(at is None or dict(r.at) == dict(at) for r in found.settled):
            return calls
        if calls > SETTLING_CALLS or time.perf_counter() > end:
            return calls
        time.sleep(1e-3)  # the other program is compiled in a thread


def tally(verdicts: Iterable[Verdict], beyond: str = BEYOND) -> str:
    """Returns the number of each verdict as text; `beyond`: the word for a broken limit."""
    count = Counter(verdicts)
    return f"{count[WITHIN]} within, {count[UNSURE]} unsure, {count[BEYOND]} {beyond} of {count.total()}"


def told(verdict: Verdict | None, beyond: str = BEYOND) -> str:
    """Returns a verdict as text for a cell; `beyond`: the word for a broken limit."""
    if verdict == BEYOND:
        return f"[red]{beyond}[/]"
    return f"[yellow]{verdict}[/]" if verdict == UNSURE else verdict or ""


def geometric_mean(found: Iterable[Estimate]) -> Estimate:
    """Returns the geometric mean of estimates. Its interval is made of all lower and of all upper ends, so it contains
    the true mean if each interval contains its true value."""
    logs = np.log([(e.value, e.low, e.high) for e in found])
    return Estimate(*(math.exp(float(x)) for x in np.mean(logs, axis=0)))


def duration(seconds: float) -> str:
    """A time in the unit that suits it, in three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * scale:  # what rounds up to the unit belongs to it
            return f"{seconds / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e9:.0f} ns"


@lru_cache(1)
def commit() -> str:
    """Returns the commit that runs, with its time and whether files differ from it; "" where there is no repository."""

    def told_by_git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()

    found = told_by_git("log", "-1", "--format=%h of %cd", "--date=format:%Y-%m-%d %H:%M")
    return f"{found}, changed" if found and told_by_git("status", "--porcelain", "--untracked-files=no") else found


def machine() -> str:
    """Returns a line that describes the setup: device, versions, layouts, compile options."""
    device = jax.devices()[0]
    precision = jax.config.jax_default_matmul_precision or "default"
    options = f"XLA_FLAGS={flags}" if (flags := os.environ.get("XLA_FLAGS")) else "default compile options"
    return (
        f"{device.platform} ({device.device_kind}), {cores()} cores, jax {jax.__version__}; "
        f"float32, {precision} matmul precision, row-major arrays, {options}"
    )
