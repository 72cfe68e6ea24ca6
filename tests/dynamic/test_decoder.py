"""A decoder with a key/value cache that generates from prompts of many lengths in two executables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from examples.decoder import Decoder
from examples.layers import generate
from relax_eg.errors import BoundsError

MOST = 96
MODEL = Decoder()


def made(capacities: Any) -> tuple[Any, Any, Any]:
    """Weights; the two functions."""
    options: dict[str, Any] = {"weights": ("params",), "dynamic": rx.Dynamic(mode="capacity", capacities=capacities)}
    params = MODEL.params()
    read = rx.optimize(MODEL.prefill, params, "b s @ int32", bounds={"b": (1, 4), "s": (1, 32)}, **options)
    bounds = {"b": (1, 4), "t": (1, MOST)}
    more = rx.optimize(MODEL.step, params, "b @ int32", MODEL.caches("t"), bounds=bounds, **options)
    return params, read, more


def check(lengths: Sequence[int], batches: Sequence[int], count: int) -> None:
    params, read, more = made("bound")
    first, later = read.prepare(params), more.prepare(params)
    without_cache = jax.jit(MODEL.prefill)
    random = np.random.default_rng(0)
    for s in lengths:
        for b in batches:
            prompts = random.integers(0, MODEL.vocabulary, (b, s)).astype(np.int32)
            tokens, logits = generate(functools.partial(first, prompts), later, count)
            # All positions at once, without a cache: no later token is looked at, so more of them do not matter.
            whole = np.zeros((max(batches), max(lengths) + count), np.int32)
            whole[:b, : s + count] = np.concatenate([prompts, tokens], axis=1)
            again = np.asarray(without_cache(params, whole)[0])[:b, s - 1 : s + count - 1]
            np.testing.assert_allclose(logits, again, rtol=1e-3, atol=1e-3)
    assert read.statistics().compilations == more.statistics().compilations == 1
    full = np.zeros((1, MODEL.groups, MOST + 1, MODEL.size), np.float32)
    with pytest.raises(BoundsError, match=rf"step\(\): t = {MOST + 1} exceeds its bound {MOST}"):
        later(np.zeros(1, np.int32), [(full, full)] * MODEL.layers)
    assert sum(r.calls for r in more.statistics().executables) == len(lengths) * len(batches) * (count - 1)


def test_some_prompts() -> None:
    check((1, 9, 32), (1, 3), 5)


@pytest.mark.slow
def test_twenty_lengths_and_64_tokens() -> None:
    check([*range(1, 17), 20, 25, 31, 32], (1, 2, 4), 64)
