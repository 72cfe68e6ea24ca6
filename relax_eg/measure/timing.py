"""Timing on a shared machine.

Callables that are compared take turns, so that a drift of the machine does not enter their ratio. The time of a single
call is the lower quartile of many samples, because other work on the machine adds to the upper samples.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import scipy

# chosen: one sample repeats a call until it lasts about this long, so that the cost of reading the clock is negligible
SAMPLE_SECONDS = 0.003
FEWEST_ROUNDS, MOST_ROUNDS = 12, 201  # chosen: rounds in which programs take turns
CONFIRMED = 1.1  # chosen: largest factor between the lowest time of a call and that of the pass that confirms it

Call = Callable[[], Any]
Samples = dict[str, "np.ndarray[Any, np.dtype[np.float64]]"]


def time_interleaved(calls: Mapping[str, Call], seconds: float, seed: int = 0) -> Samples:
    """Seconds per call of every callable: arrays with one float64 entry per round. Each round times all callables in a
    new order, and waits for each result. All rounds take about `seconds`."""
    repeats = {name: _repeats(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    shuffle = random.Random(seed).shuffle
    end = time.perf_counter() + seconds
    for done in range(MOST_ROUNDS):
        if done >= FEWEST_ROUNDS and time.perf_counter() > end:
            break
        shuffle(order)
        for name in order:
            samples[name].append(_sample(calls[name], repeats[name]))
    return {name: np.array(times) for name, times in samples.items()}


def time_in_passes(
    calls: Mapping[str, Call], seconds: float, passes: int, progress: Callable[[str], None]
) -> dict[str, float]:
    """The seconds of each call: the lower quartile of samples over about `seconds` for each call, taken in several
    passes over all calls. `progress(name)` is called before each call is timed in each pass."""
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(passes):
        for name, call in calls.items():
            progress(name)
            if name not in repeats:
                repeats[name] = _repeats(call)
            samples[name] += _samples(call, repeats[name], seconds / passes)
    return {name: float(np.quantile(found, 0.25)) for name, found in samples.items()}


def time_until_confirmed(calls: Mapping[str, Call], seconds: float, passes: int) -> tuple[dict[str, float], list[str]]:
    """The seconds of each call, and the names of the calls for which they are unsure.

    The seconds are the lowest of samples over about `seconds` in each pass. A call is timed in two passes or more,
    until another pass confirms the lowest time within `CONFIRMED`; after this many passes it counts as unsure. So
    time is spent on the calls that were disturbed only.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    lowest: dict[str, list[float]] = {name: [] for name in calls}

    def is_unsure(name: str) -> bool:
        first, *others = sorted(lowest[name])
        return not others or others[0] > CONFIRMED * first

    unsure = list(calls)
    for _ in range(passes):
        for name in unsure:
            lowest[name].append(min(_samples(calls[name], repeats[name], seconds)))
        unsure = list(filter(is_unsure, unsure))
    return {name: min(found) for name, found in lowest.items()}, unsure


def median_ranks(count: int, confidence: float = 0.95) -> tuple[int, int]:
    """The ranks of the two of `count` sorted samples that enclose the true median with at least this probability. The
    ranks follow from the binomial law, for any distribution of the samples. ValueError if even the first and the last
    sample do not enclose it."""
    # `below[k]`: the probability that at most `k` samples lie below the median.
    below = scipy.special.bdtr(np.arange(count), count, 0.5)
    low = int(np.searchsorted(below, (1.0 - confidence) / 2, "right")) - 1
    if low < 0:
        fewest = math.ceil(1 - math.log2(1.0 - confidence))
        raise ValueError(f"{count} samples enclose no median with {confidence:.2%}; {fewest} or more do")
    return low, count - 1 - low


def _sample(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        jax.block_until_ready(call())
    return (time.perf_counter() - start) / repeats


def _samples(call: Call, repeats: int, seconds: float) -> list[float]:
    """The seconds of a call in samples that take about `seconds`, two samples or more."""
    end = time.perf_counter() + seconds
    found = [_sample(call, repeats) for _ in range(2)]
    while time.perf_counter() < end:
        found.append(_sample(call, repeats))
    return found


def _repeats(call: Call) -> int:
    # The first call compiles. The quickest of the next ones determines how many calls fit into a sample.
    jax.block_until_ready(call())
    once = min(_sample(call, 1) for _ in range(3))
    return max(1, math.ceil(SAMPLE_SECONDS / once))
