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
    calls: Mapping[str, Call], seconds: float, passes: int, progress: Callable[[str], None], quantile: float = 0.25
) -> dict[str, float]:
    """The seconds of each call: the lower quartile of samples, or another quantile, over about `seconds` for each call,
    taken in several passes over all calls. `progress(name)` is called before each call is timed in each pass."""
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(passes):
        for name, call in calls.items():
            progress(name)
            if name not in repeats:
                repeats[name] = _repeats(call)
            end = time.perf_counter() + seconds / passes
            samples[name] += [_sample(call, repeats[name]) for _ in range(2)]
            while time.perf_counter() < end:
                samples[name].append(_sample(call, repeats[name]))
    return {name: float(np.quantile(found, quantile)) for name, found in samples.items()}


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


def _repeats(call: Call) -> int:
    # The first call compiles. The quickest of the next ones determines how many calls fit into a sample.
    jax.block_until_ready(call())
    once = min(_sample(call, 1) for _ in range(3))
    return max(1, math.ceil(SAMPLE_SECONDS / once))
