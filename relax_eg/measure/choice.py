"""Chooses the fastest of several equivalent programs by timing them in turns on random arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from relax_eg.dtypes import numpy_dtype
from relax_eg.extract.report import MeasuredRow
from relax_eg.ir.annotations import Tensor
from relax_eg.measure.timing import Samples, median_ranks, time_interleaved
from relax_eg.ops.facts import with_facts

# chosen: seconds of timing for each program in each look. A short first look separates programs that differ much. A
# further look follows if a program seems faster but is not significantly faster.
LOOKS = (0.15, 0.45, 0.6, 1.2)
# chosen: confidence of a choice as a whole. In 12 rounds, the minimum, the winner has to win all rounds (all but one if
# there are only two programs). In 200 rounds it has to win 60% to 63% of them.
CERTAINTY = 0.95
# chosen: factor. Of two compilations of the same program, one was up to 2% faster with significance, because the
# placement of the buffers differs from run to run.
GAIN = 1.02
_LARGEST = 16  # chosen: random integers are below it, so that they are valid positions in most axes


def fastest(
    programs: Mapping[str, tuple[Callable[[], Any], float]],
    progress: Callable[[str], None] | None = None,
    time_all: bool = False,
) -> tuple[MeasuredRow, ...]:
    """The predicted and measured seconds of every program; exactly one row is marked as chosen.

    A program is significantly faster than the first program if the interval of their paired ratio lies above `GAIN`, a
    gain of 2%. The choice is the first of the significantly faster programs, or a later one that is significantly
    faster than that one. If no program is significantly faster, the choice is the first program.

    All intervals of all looks together hold the true medians with `CERTAINTY`, so each interval alone has a higher
    confidence: of several programs that are no faster than the first, one is likely to seem faster by chance.

    - `programs`: by label, the call and its predicted seconds: first the program that the others must beat, then the
      others in order of preference.
    - `progress`: called as `progress(what)` before each look.
    - `time_all`: whether to keep timing programs that, with significance, cannot be chosen any more.
    """
    calls = {label: call for label, (call, _) in programs.items()}
    predicted = {label: seconds for label, (_, seconds) in programs.items()}
    first = next(iter(programs))
    samples: Samples = {}
    rows: list[MeasuredRow] = []
    chosen = first
    for look, seconds in enumerate(LOOKS):
        if progress is not None:
            progress(f"{len(calls)} programs, look {look + 1}")
        for label, times in time_interleaved(calls, seconds * len(calls), look).items():
            samples[label] = np.concatenate([samples[label], times]) if label in samples else times
        rows = [
            MeasuredRow(label, predicted[label], float(np.median(times)), *_ratio(samples, first, label))
            for label, times in samples.items()
        ]
        won = [r.label for r in rows if r.low > GAIN and r.label in calls]
        chosen, *others = won or [first]
        for label in others:
            if _ratio(samples, chosen, label)[1] > 1.0:
                chosen = label
        best = min((r for r in rows if r.label in calls), key=lambda r: r.seconds)
        seems_done = best.speedup <= GAIN or best.low > GAIN
        if look == 0:  # few samples: no remaining program may seem faster than the chosen one
            seems_done = bool(won) and all(_ratio(samples, chosen, label)[0] <= 1.0 for label in calls)
        if not time_all:
            calls = {n: call for n, call in calls.items() if n == first or _may_win(samples, first, n, won)}
        if seems_done or len(calls) == 1 or look == len(LOOKS) - 1:
            break
    return tuple(replace(r, chosen=r.label == chosen) for r in rows)


def _may_win(samples: Samples, first: str, label: str, won: Sequence[str]) -> bool:
    """Whether a program may still be chosen. It may not if, with significance, its gain over the first is below `GAIN`
    or it is slower than one of the programs in `won`."""
    if _ratio(samples, first, label)[2] < GAIN:
        return False
    return not any(_ratio(samples, label, other)[1] > 1.0 for other in won if other != label)


def _ratio(samples: Samples, a: str, b: str) -> tuple[float, float, float]:
    """How many times longer `a` takes than `b`: the median of the paired ratios, and the ends of its interval. Only
    rounds in which both programs ran count."""
    certainty = 1.0 - (1.0 - CERTAINTY) / (len(LOOKS) * max(1, len(samples) - 1))
    rounds = min(len(samples[a]), len(samples[b]))
    ratios = np.sort(samples[a][:rounds] / samples[b][:rounds])
    low, high = median_ranks(len(ratios), certainty)
    return float(np.median(ratios)), float(ratios[low]), float(ratios[high])


def random_argument(a: Tensor, binding: Mapping[str, int], facts: Collection[str], seed: int) -> jax.Array:
    """A random array with this annotation at a binding of sizes, which satisfies the declared facts."""
    rng = np.random.default_rng(seed)
    shape = tuple(d.evaluate(binding) for d in a.shape or ())
    dtype = np.dtype(numpy_dtype(a.dtype or "float32"))
    if dtype.kind == "b":
        return jax.numpy.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return jax.numpy.asarray(rng.integers(0, _LARGEST, shape).astype(dtype))
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        return jax.numpy.asarray((x + 1j * rng.standard_normal(shape)).astype(dtype))
    return jax.numpy.asarray((with_facts(x, facts, rng) if x.size else x).astype(dtype))
