"""The choice by the clock: programs that compute the same, timed in turns on random arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from relax_eg.extract.report import MeasuredRow
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import np_dtype
from relax_eg.measure.timing import Samples, interleaved, median_ranks

# Seconds of timing for each program, look by look: a short first one, in which what is far apart is told apart; then
# on, as long as a program seems faster and it is not beyond doubt.
LOOKS = (0.15, 0.45, 0.6, 1.2)
# Of a choice as a whole. In 12 rounds, the fewest there are, the winner has to win all (but one, where one program is
# timed beside the first); in 200 rounds 60% to 63% of them.
CERTAINTY = 0.95
# Of one and the same program, compiled twice, one was up to 2% faster beyond doubt: where its buffers lie decides that,
# and they lie elsewhere the next time.
GAIN = 1.02
_LARGEST = 16  # integers are below it, so that they may be positions in most axes
_MATRICES = {"lower_triangular": np.tril, "upper_triangular": np.triu}


def fastest(
    programs: Mapping[str, tuple[Callable[[], Any], float]],
    tell: Callable[[str], None] | None = None,
    every: bool = False,
) -> tuple[MeasuredRow, ...]:
    """Every program's predicted and measured seconds. `programs`: by label the call and its predicted seconds, the
    program to beat first, then the others, those to be preferred first. Of what is faster than the program to beat by
    more than 2% beyond doubt (the interval of their paired ratio lies above `GAIN`), chosen is the first, or what beats
    that beyond doubt. All intervals of all looks together hold the true medians with `CERTAINTY`, so each by itself
    with more: of several programs no faster than the first, one may well seem so. What beyond doubt will not be chosen
    is timed no further, unless `every` program is to be. `tell(what)` is called before each look."""
    calls = {label: call for label, (call, _) in programs.items()}
    predicted = {label: seconds for label, (_, seconds) in programs.items()}
    first = next(iter(programs))
    samples: Samples = {}
    rows: list[MeasuredRow] = []
    chosen = first
    for look, seconds in enumerate(LOOKS):
        if tell is not None:
            tell(f"{len(calls)} programs, look {look + 1}")
        for label, times in interleaved(calls, seconds * len(calls), look).items():
            samples[label] = np.concatenate([samples[label], times]) if label in samples else times
        rows = _rows(samples, first, predicted)
        won = [r.label for r in rows if r.low > GAIN and r.label in calls]
        chosen, *others = won or [first]
        for label in others:
            if _ratio(samples, chosen, label)[1] > 1.0:
                chosen = label
        best = min((r for r in rows if r.label in calls), key=lambda r: r.seconds)
        seems_done = best.speedup <= GAIN or best.low > GAIN
        if look == 0:  # few samples: what is left of the others has to seem no faster than what is chosen
            seems_done = bool(won) and all(_ratio(samples, chosen, label)[0] <= 1.0 for label in calls)
        if not every:
            calls = {n: call for n, call in calls.items() if n == first or _may_win(samples, first, n, won)}
        if seems_done or len(calls) == 1 or look == len(LOOKS) - 1:
            break
    return tuple(replace(r, chosen=r.label == chosen) for r in rows)


def _may_win(samples: Samples, first: str, label: str, won: Sequence[str]) -> bool:
    """Whether a program may still be chosen: it is not beyond doubt less than `GAIN` faster than the first, nor slower
    than one of those that `won`."""
    if _ratio(samples, first, label)[2] < GAIN:
        return False
    return not any(_ratio(samples, label, other)[1] > 1.0 for other in won if other != label)


def _rows(samples: Samples, first: str, predicted: Mapping[str, float]) -> list[MeasuredRow]:
    return [
        MeasuredRow(label, predicted[label], float(np.median(times)), *_ratio(samples, first, label))
        for label, times in samples.items()
    ]


def _ratio(samples: Samples, a: str, b: str) -> tuple[float, float, float]:
    """How many times longer the one takes than the other: the median of the paired ratios, and its interval. Of a
    program that is timed no further, the rounds that it was part of."""
    certainty = 1.0 - (1.0 - CERTAINTY) / (len(LOOKS) * max(1, len(samples) - 1))
    rounds = min(len(samples[a]), len(samples[b]))
    ratios = np.sort(samples[a][:rounds] / samples[b][:rounds])
    low, high = median_ranks(len(ratios), certainty)
    return float(np.median(ratios)), float(ratios[low]), float(ratios[high])


def argument(a: Tensor, binding: Mapping[str, int], facts: Collection[str], seed: int) -> jax.Array:
    """A random array of this annotation at a binding, with the facts that were declared of it."""
    rng = np.random.default_rng(seed)
    shape = tuple(d.evaluate(binding) for d in a.shape or ())
    dtype = np.dtype(np_dtype(a.dtype or "float32"))
    if dtype.kind == "b":
        return jax.numpy.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return jax.numpy.asarray(rng.integers(0, _LARGEST, shape).astype(dtype))
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        return jax.numpy.asarray((x + 1j * rng.standard_normal(shape)).astype(dtype))
    return jax.numpy.asarray(_with_facts(x, frozenset(facts)).astype(dtype))


def _with_facts(x: Any, facts: frozenset[str]) -> Any:
    eye = np.eye(x.shape[-1]) if x.ndim >= 2 else None
    if facts & {"positive", "nonnegative"}:
        x = np.abs(x)
    if facts & {"positive", "nonzero", "invertible"}:
        x = x + np.sign(x) * 0.1 if eye is None or "invertible" not in facts else x + x.shape[-1] * eye
    if facts & {"symmetric", "positive_definite", "positive_semidefinite"}:
        x = x @ np.swapaxes(x, -1, -2) / x.shape[-1] + eye
    if "orthogonal" in facts:
        x = np.linalg.qr(x)[0]
    if "diagonal" in facts:
        x = x * eye
    for name, part in _MATRICES.items():
        x = part(x) if name in facts else x
    if "sorted" in facts:
        x = np.sort(x, axis=-1)
    if "integral" in facts:
        x = np.round(x)
    if "constant" in facts:
        x = np.full_like(x, x.flat[0] if x.size else 0.0)
    if "one_hot" in facts:
        x = np.asarray(np.argmax(x, -1)[..., None] == np.arange(x.shape[-1]), np.float64)
    return x
