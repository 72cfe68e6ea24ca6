"""The choice by the clock: programs that compute the same, timed in turns on random arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from relax_eg.extract.report import MeasuredRow
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import np_dtype
from relax_eg.measure.timing import interleaved, median_ranks

SECONDS = 0.6  # of timing, for each program
# Of a choice as a whole. In 11 rounds, the fewest there are, the winner has to win 10 where up to four others are timed
# beside the first, else all; in 200 rounds 58% to 61% of them.
CERTAINTY = 0.95
_LARGEST = 16  # integers are below it, so that they may be positions in most axes
_MATRICES = {"lower_triangular": np.tril, "upper_triangular": np.triu}


def fastest(programs: Mapping[str, tuple[Callable[[], Any], float]]) -> tuple[MeasuredRow, ...]:
    """Every program's predicted and measured seconds. `programs`: by label the call and its predicted seconds, the
    program to beat first. Chosen is the one of the least median, if it is faster than the first beyond doubt: the
    interval of their paired ratio lies above 1. All intervals together hold the true medians with `CERTAINTY`, so each
    by itself with more: of several programs no faster than the first, one may well seem so."""
    calls = {label: call for label, (call, _) in programs.items()}
    samples = interleaved(calls, SECONDS * len(calls))
    first = next(iter(programs))
    certainty = 1.0 - (1.0 - CERTAINTY) / max(1, len(calls) - 1)
    rows: list[MeasuredRow] = []
    for label, (_, predicted) in programs.items():
        ratios = np.sort(samples[first] / samples[label])
        low, high = median_ranks(len(ratios), certainty)
        ends = float(ratios[low]), float(ratios[high])
        rows.append(MeasuredRow(label, predicted, float(np.median(samples[label])), float(np.median(ratios)), *ends))
    best = min(rows, key=lambda r: r.seconds)
    chosen = best.label if best.low > 1.0 else first
    return tuple(replace(r, chosen=r.label == chosen) for r in rows)


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
