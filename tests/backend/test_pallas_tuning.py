"""Blocks chosen by the clock: which one is taken, and that it is remembered."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.backend.pallas.plan import Chosen, pallas_plan
from relax_eg.backend.pallas.programs import lower_pallas
from relax_eg.backend.pallas.tuning import MOST_TIMED, XLA, Tuned, Tuner, of_rank, random_array, seconds_of
from relax_eg.cache_folder import store
from relax_eg.ops.multiprocessors import MULTIPROCESSORS
from relax_eg.store import StoreWarning
from relax_eg.tir import TensorProgram, evaluate

DEVICE = MULTIPROCESSORS["h100"]
SIZES = {"n": 70, "m": 96}


@rx.tensor_program
def average(X: rx.Buffer("n m"), V: rx.Buffer("m 40"), Y: rx.Buffer("n 40")):
    M = rx.script.local("n")
    M[i] = rx.max(X[i, j], over=(j, m))  # noqa: F821
    E = rx.script.local("n m")
    E[i, j] = exp(X[i, j] - M[i])  # noqa: F821
    T = rx.script.local("n")
    T[i] = rx.sum(E[i, j], over=(j, m))  # noqa: F821
    Y[i, k] = rx.sum(E[i, j] / T[i] * V[j, k], over=(j, m))  # noqa: F821


def interpreted(program: TensorProgram, sizes: Mapping[str, int], chosen: Chosen) -> Callable[..., Any]:
    return lower_pallas(program, sizes, DEVICE, interpret=True, chosen=chosen).run


class Clock:
    """Tells the given seconds, and counts how often it is asked. `ran`: the results of what it was asked to time."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.asked = seconds, 0
        self.ran: list[Any] = []

    def __call__(self, functions: Sequence[Callable[..., Any]], arrays: Sequence[Any]) -> list[float]:
        self.asked += 1
        self.ran = [np.asarray(f(*arrays)[0]) for f in functions]
        self.arrays = arrays
        return [*self.seconds, *[self.seconds[-1]] * (len(functions) - len(self.seconds))]


def test_all_choices_compute_the_program_and_differ() -> None:
    clock = Clock(3.0, 2.0, 1.0, 2.0)
    found = Tuner(interpreted, clock).tuned(average, SIZES)
    assert found is not None and found.rank == 2
    assert len(clock.ran) == MOST_TIMED + 1
    (wanted,) = evaluate(average, [np.asarray(x) for x in clock.arrays], SIZES)
    for got in clock.ran:
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    chosen = [str(pallas_plan(average, SIZES, DEVICE, of_rank(r)).kernels[0].tiles) for r in range(MOST_TIMED)]
    assert len(set(chosen)) == MOST_TIMED


def test_it_is_remembered_for_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    clock = Clock(2.0, 1.0)
    tuner = Tuner(interpreted, clock)
    first = tuner.tuned(average, SIZES)
    assert tuner.tuned(average, SIZES) == first and clock.asked == 1
    assert Tuner(interpreted, clock).tuned(average, SIZES) == first and clock.asked == 1  # from the disk
    tuner.tuned(average, {**SIZES, "n": 71})
    assert clock.asked == 2


def test_a_broken_entry_is_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    clock = Clock(2.0, 1.0)
    Tuner(interpreted, clock).tuned(average, SIZES)
    ((path, _),) = store().entries()
    store().write(path.stem, json.dumps({"rank": 99, "seconds": [1.0], "xla": 1.0}).encode())
    with pytest.warns(StoreWarning, match="no times of kernels .*the choice 99 of 1"):
        Tuner(interpreted, clock).tuned(average, SIZES)
    assert clock.asked == 2


@pytest.mark.parametrize(
    ("seconds", "xla", "rank"),
    [
        ((1.0, 0.99, 2.0), 1.0, 0),  # not clearly faster
        ((1.0, 0.5, 2.0), 0.49, 1),
        ((1.0, 0.5), 0.4, XLA),
        ((math.inf, 0.5), 1.0, 1),  # the first does not compile
        ((math.inf, math.inf), 1.0, XLA),
    ],
)
def test_the_choice_by_the_clock(seconds: tuple[float, ...], xla: float, rank: int) -> None:
    assert Tuned.of(seconds, xla).rank == rank


def test_where_xla_is_faster_it_has_the_program() -> None:
    pallas = Pallas(interpret=True, device=DEVICE)
    pallas.tuner = Tuner(interpreted, Clock(*[2.0] * MOST_TIMED, 1.0))
    x, v = (random_array(b.dtype, s, 0) for b, s in zip(average.parameters, ((70, 96), (96, 40)), strict=True))
    # Inside of a trace, in which the clock has to run nevertheless.
    got = jax.jit(lambda x, v: pallas.lower_inside(average, SIZES)(x, v)[0])(x, v)
    np.testing.assert_allclose(got, jax.nn.softmax(x) @ v, rtol=1e-5, atol=1e-6)
    assert pallas.left == {"average": "XLA is faster: 1000000.0 us by XLA, 2000000.0 us through Pallas, timed"}


def test_arrays_that_are_too_large_are_not_made() -> None:
    clock = Clock(1.0)
    assert Tuner(interpreted, clock).tuned(average, {"n": 1 << 20, "m": 1 << 14}) is None
    assert not clock.asked


def test_the_clock_tells_functions_apart() -> None:
    small, large = jax.jit(lambda x: x[:1] + 1), jax.jit(lambda x: x @ x @ x)

    def fails(x: Any) -> Any:
        raise ValueError("it does not compile")

    fast, slow, none = seconds_of([small, large, fails], [np.ones((800, 800), np.float32)])
    assert fast < slow and math.isinf(none)


def test_nothing_is_timed_where_the_machine_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "off")
    assert Pallas(tunes=True).tuner is None
    monkeypatch.setenv("RELAX_EG_CALIBRATE", "auto")
    assert Pallas(tunes=True).tuner is not None
