"""Interleaved timing of several callables in one process, with paired ratios.

A machine that others use drifts by more than the differences to be measured. So the callables take turns: each round
times every one of them once, in a new order, and a ratio is formed within a round, where the machine was the same for
both sides. What is reported is the median over the rounds, with an interval that holds the true median with at least
95% probability (the order statistics of the binomial law, so no assumption about how times are distributed).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from relax_eg.measure.timing import cores, interleaved, median_ranks


@dataclass(frozen=True)
class Ratio:
    """How many times faster one callable is than another: the median of the paired ratios, and its interval."""

    value: float
    low: float
    high: float

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

    def speedup(self, name: str, over: str) -> Ratio:
        """How many times faster `name` is than `over`."""
        ratios = np.sort(self.seconds[over] / self.seconds[name])
        low, high = median_ranks(len(ratios))
        return Ratio(float(np.median(ratios)), float(ratios[low]), float(ratios[high]))

    def __add__(self, more: Timings) -> Timings:
        """The rounds of both, which must have timed the same callables."""
        return Timings({name: np.concatenate([s, more.seconds[name]]) for name, s in self.seconds.items()})


def measure(calls: Mapping[str, Callable[[], Any]], seconds: float = 1.0, seed: int = 0) -> Timings:
    """Times all `calls`, interleaved, for about `seconds` in all; each is called without arguments and waited for."""
    return Timings(interleaved(calls, seconds, seed))


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(float(np.mean(np.log(list(values)))))


def duration(seconds: float) -> str:
    """A time in the unit that suits it, in three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * scale:  # what rounds up to the unit belongs to it
            return f"{seconds / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e9:.0f} ns"


def machine() -> str:
    """One line on what the numbers depend on: device, versions, layouts, compile options."""
    device = jax.devices()[0]
    precision = jax.config.jax_default_matmul_precision or "default"
    options = f"XLA_FLAGS={flags}" if (flags := os.environ.get("XLA_FLAGS")) else "default compile options"
    return (
        f"{device.platform} ({device.device_kind}), {cores()} cores, jax {jax.__version__}; "
        f"float32, {precision} matmul precision, row-major arrays, {options}"
    )
