"""What timed programs teach about prices: factors by kind of kernel, and how sure predictions are.

A program's predicted seconds are the sum over its kinds of kernel (`extract.profiles.kinds`). `learn` finds the factors
on these that explain the measured seconds of many programs, and of pairs of programs that do the same. Few programs
move the factors little: each has a prior of 1. Single wrong measurements have little effect.

What is not known of a kind is its doubt: the standard deviation of the logarithm of its seconds. `expect` turns doubts
into the interval of a predicted gain. What two programs share cancels: a gain between programs of the same kinds is
surer than one between a matmul and a sort.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from relax_eg.extract.profiles.kinds import features
from relax_eg.traversal import grouped

Array = np.ndarray[Any, np.dtype[np.float64]]

# chosen: confidence of the interval of a predicted gain. What lies outside is not settled, so it has to be high.
CERTAINTY = 0.99
PROGRAMS = "programs"  # the doubt about the ratio of two programs of the same kinds
KINDS = "kinds"  # the doubt about a kind of which nothing was learned
# chosen: doubts where nothing is known of the machine: twice as long or half as long, in two of three kinds. Of
# programs of the same kinds, gains of 1.5 were measured as 0.75 to 1 on two kinds of machines, and gains of 2 were all
# gains (`examples.demo`, MiniLM with 17 tokens).
UNKNOWN: Mapping[str, float] = {KINDS: 0.7, PROGRAMS: 0.268}
QUICK: Mapping[str, float] = {KINDS: 0.45, PROGRAMS: 0.2}  # chosen: doubts after a quick calibration
CALIBRATED: Mapping[str, float] = {KINDS: 0.3, PROGRAMS: 0.15}  # chosen: doubts after a whole calibration

_PRIOR = 0.8  # chosen: standard deviation of a factor's logarithm before anything is learned
_NOISE = 0.1  # chosen: least standard deviation of the logarithm of measured over predicted seconds
_PAIRS = 2.0  # chosen: weight of the ratio of two programs that do the same, in times that of one program
_FAR = 1.5  # chosen: errors, in standard deviations, beyond which a measurement counts less (Huber)
_ROUNDS = 30  # limit: rounds of the fit
_LEAST_PAIRS = 5  # chosen: pairs of programs from which on the doubt about their ratios is learned
_STEP = 0.05  # chosen: factors and doubts are rounded to this step of their logarithm, so that they change rarely


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """A program that was timed.

    - `group`: programs of the same group do the same at the same sizes.
    - `kinds`: predicted seconds by kind of kernel, without corrections.
    - `seconds`: measured seconds of a call.
    """

    group: str
    kinds: Mapping[str, float]
    seconds: float

    def __post_init__(self) -> None:
        values = (*self.kinds.values(), self.seconds)
        if not self.kinds or not all(0 < x < math.inf for x in values):
            raise ValueError("seconds > 0 are accepted")


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned.

    - `corrections`: by feature of a kind, the factor on predicted seconds.
    - `doubts`: by kind, the standard deviation of the logarithm of its seconds; and the doubts `KINDS` and `PROGRAMS`.
    """

    corrections: Mapping[str, float] = field(default_factory=dict[str, float])
    doubts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a call of the chosen program, in place of the one as written.

    - `gain`: how many times faster it is, as predicted.
    - `low`, `high`: the interval of the true gain, with a confidence of 99%.
    - `sure`: the probability that it is faster.
    """

    gain: float
    low: float
    high: float
    sure: float

    def __str__(self) -> str:
        return f"{self.gain:.2f} times as fast ({self.low:.2f} to {self.high:.2f}), faster with {100 * self.sure:.0f}%"


def corrected(kinds: Mapping[str, float], corrections: Mapping[str, float]) -> float:
    """The seconds of a program with these predicted seconds by kind."""
    return sum(s * math.prod(corrections.get(f, 1.0) for f in features(k)) for k, s in kinds.items())


def expect(
    gain: float,
    before: Mapping[str, float],
    after: Mapping[str, float],
    corrections: Mapping[str, float],
    doubts: Mapping[str, float],
) -> Expected:
    """What is expected of a predicted gain.

    - `before`, `after`: predicted seconds by kind of the program as written and of the chosen one, without
      corrections; empty if they are unknown.
    """
    known = {**UNKNOWN, **doubts}
    shares = [_shares(kinds, corrections) for kinds in (before, after)]
    variance = known[PROGRAMS] ** 2
    for k in shares[0].keys() | shares[1].keys():
        variance += (known.get(k, known[KINDS]) * (shares[0].get(k, 0.0) - shares[1].get(k, 0.0))) ** 2
    deviation, middle = math.sqrt(variance), math.log(max(gain, 1e-9))
    reach = NormalDist().inv_cdf((1 + CERTAINTY) / 2) * deviation
    sure = NormalDist(middle, max(deviation, 1e-9)).cdf(0.0)
    return Expected(gain, math.exp(middle - reach), math.exp(middle + reach), 1 - sure)


def _shares(kinds: Mapping[str, float], corrections: Mapping[str, float]) -> dict[str, float]:
    """The share of a program's seconds by kind."""
    total = corrected(kinds, corrections)
    return {k: corrected({k: s}, corrections) / total for k, s in kinds.items()}


def learn(timed: Sequence[TimedProgram], known: Mapping[str, float] = UNKNOWN) -> Learned:
    """The factors that explain the seconds of timed programs, and the doubts that are left.

    - `known`: the doubts before.
    """
    if not timed:
        return Learned()
    kinds = sorted({k for t in timed for k in t.kinds})
    names = sorted({f for k in kinds for f in features(k)})
    seconds = np.array([[t.kinds.get(k, 0.0) for k in kinds] for t in timed])
    has = np.array([[f in features(k) for f in names] for k in kinds], np.float64)
    measured = np.log([t.seconds for t in timed])
    pairs = _pairs(timed)
    weights = np.array([1.0] * len(timed) + [_PAIRS] * len(pairs))
    at, spread = np.zeros(len(names)), 0.5
    hessian = np.eye(len(names))
    for _ in range(_ROUNDS):
        errors, slopes = _linearised(seconds, has, measured, pairs, at)
        spread = max(_NOISE, 1.4826 * float(np.median(np.abs(errors))))  # of a normal law: that of its median
        w = weights * np.minimum(1.0, _FAR * spread / np.maximum(np.abs(errors), 1e-12)) / spread**2
        hessian = slopes.T @ (w[:, None] * slopes) + np.eye(len(names)) / _PRIOR**2
        step = np.linalg.solve(hessian, slopes.T @ (w * errors) - at / _PRIOR**2)
        at = at + np.clip(step, -1.0, 1.0)
        if float(np.max(np.abs(step))) < 1e-3:
            break
    covariance = np.linalg.inv(hessian)
    deviations = np.sqrt(np.einsum("kf,fg,kg->k", has, covariance, has))
    errors, _ = _linearised(seconds, has, measured, pairs, at)
    # What a factor leaves unexplained of a kind: the errors of programs, each by the share of its seconds that it has.
    parts = seconds * np.exp(has @ at)
    shares = parts / parts.sum(axis=1, keepdims=True)
    unexplained = (shares * errors[: len(timed), None] ** 2).sum(axis=0) / shares.sum(axis=0)
    spreads = np.sqrt(np.minimum(deviations, known[KINDS]) ** 2 + unexplained)
    doubts = {k: _rounded(float(d)) for k, d in zip(kinds, spreads, strict=True)}
    ratio = known[PROGRAMS]
    if len(pairs) >= _LEAST_PAIRS:
        # Errors have longer tails than a normal law; of programs that were not timed they are larger by the share of
        # the measurements that the factors use up.
        far, left = float(np.quantile(np.abs(errors[len(timed) :]), CERTAINTY)), len(errors) - _used(hessian)
        normal = NormalDist().inv_cdf((1 + CERTAINTY) / 2)
        ratio = max(_STEP, _rounded(far / normal * math.sqrt(len(errors) / max(left, 1.0))))
    doubts |= {KINDS: known[KINDS], PROGRAMS: ratio}
    factors = {f: math.exp(_rounded(float(x))) for f, x in zip(names, at, strict=True)}
    return Learned({f: x for f, x in factors.items() if x != 1.0}, doubts)


def _used(hessian: Array) -> float:
    """How many factors the measurements determine, rather than the prior: that many measurements explain themselves."""
    return len(hessian) - float(np.trace(np.linalg.inv(hessian))) / _PRIOR**2


def _rounded(x: float) -> float:
    return round(x / _STEP) * _STEP


def _pairs(timed: Sequence[TimedProgram]) -> list[tuple[int, int]]:
    """Neighbours among the programs of each group, by measured seconds."""
    groups = grouped((t.group, i) for i, t in enumerate(timed))
    return [p for g in groups.values() for p in pairwise(sorted(g, key=lambda i: timed[i].seconds))]


def _linearised(
    seconds: Array, has: Array, measured: Array, pairs: Sequence[tuple[int, int]], at: Array
) -> tuple[Array, Array]:
    """The errors of the programs and of the pairs, as logarithms, and their derivatives by the factors' logarithms."""
    parts = seconds * np.exp(has @ at)
    total = parts.sum(axis=1)
    errors = measured - np.log(total)
    slopes = (parts / total[:, None]) @ has
    if not pairs:
        return errors, slopes
    a, b = np.array(pairs).T
    return np.concatenate([errors, errors[b] - errors[a]]), np.concatenate([slopes, slopes[b] - slopes[a]])
