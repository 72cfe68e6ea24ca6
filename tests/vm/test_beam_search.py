"""A GRU encoder-decoder with beam search: the example against numpy, at many lengths, in few executables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax

import relax_eg as rx
from examples.beam_search import BEAMS, END, NOTHING, WORDS, translate, weights
from relax_eg.rules.checking.check import without_checks

Array = Any


def gru(x: Array, h: Array, w: Array, u: Array) -> Array:
    a, c = np.split(x @ w, 3, 1), np.split(h @ u, 3, 1)
    z = expit(a[1] + c[1])
    return (1 - z) * np.tanh(a[2] + expit(a[0] + c[0]) * c[2]) + z * h


def by_hand(words: Array, most: int, table: Array, w: Array, u: Array, out: Array) -> tuple[Array, Array]:
    h = np.zeros((1, 16), np.float32)
    for word in words:
        h = gru(table[word][None], h, w, u)
    h = np.repeat(h, BEAMS, 0)
    written, scores = np.full((BEAMS, 1), END), np.array([0, *[NOTHING] * (BEAMS - 1)], np.float32)
    for step in range(most):
        ended = (written[:, -1] == END) & (step > 0)
        if ended.all():
            break
        h = gru(table[written[:, -1]], h, w, u)
        following = log_softmax(h @ out, 1)
        following[ended] = np.where(np.arange(WORDS) == END, 0, NOTHING)
        total = (scores[:, None] + following).ravel()
        best = np.argsort(-total, kind="stable")[:BEAMS]
        scores, h = total[best], h[best // WORDS]
        written = np.concatenate((written[best // WORDS], (best % WORDS)[:, None]), 1)
    return written, scores


def test_beam_search(tmp_path: Path) -> None:
    with without_checks():
        best = rx.optimize(translate, dynamic=rx.Dynamic(mode="capacity", capacities=16), rules=rx.RuleSet("none"))
    *others, out = weights(1)
    out[:, END] += 0.2  # sentences end after some words
    lengths: set[int] = set()
    for seed, most in ((0, 15), (1, 9), (2, 15), (3, 15)):
        words = np.random.default_rng(seed).integers(1, WORDS, 3 + 2 * seed).astype(np.int32)
        written, scores = best(words, np.int32(most), *others, out)
        wanted = by_hand(words, most, *others, out)
        np.testing.assert_array_equal(written, wanted[0])
        np.testing.assert_allclose(scores, wanted[1], rtol=1e-4)
        lengths.add(written.shape[1])
    assert len(lengths) > 1 and min(lengths) < 15, lengths
    found = best.statistics()
    assert [dict(r.at) for r in found.executables] == [{"s": 16}, {"t": 16}, {"t": 16}], str(found)
    assert best.strategy.executables.executable_count == 3
    best.save(tmp_path / "m.rxe")
    np.testing.assert_array_equal(rx.load(tmp_path / "m.rxe")(words, np.int32(15), *others, out)[0], written)
