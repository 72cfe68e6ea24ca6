"""Many threads call one function with random sizes."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend import kernels
from relax_eg.backend.calls.executables import Executable, Executables

LOW, HIGH = 1, 40


def scores(w: Any, x: Any) -> Any:
    """(n, 4) -> (n,), and a number that says which rows were there."""
    return jax.nn.softmax((x @ w).sum(1)), jnp.sum(x, axis=0)


def run(threads: int, work: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as e:
            failed.append(e)

    running = [threading.Thread(target=guarded, args=(i,)) for i in range(threads)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    if failed:
        raise failed[0]


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def calls_of(best: Any, calls: int) -> Callable[[int], None]:
    w = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)

    def work(i: int) -> None:
        random = np.random.default_rng(i)
        for _ in range(calls):
            x = random.standard_normal((int(random.integers(LOW, HIGH + 1)), 4)).astype(np.float32)
            share, total = best(w, x)
            e = np.exp((x @ w).sum(1) - (x @ w).sum(1).max())
            np.testing.assert_allclose(share, e / e.sum(), rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(total, x.sum(0), rtol=1e-3, atol=1e-4)

    return work


@pytest.mark.parametrize("dynamic", ["capacity", "auto"])
def test_eight_threads(dynamic: Any) -> None:
    best = rx.optimize(scores, "4 4", "n 4", bounds={"n": (LOW, HIGH)}, dynamic=dynamic)
    run(8, calls_of(best, 40))
    gc.collect()
    before = len(jax.live_arrays())
    run(8, calls_of(best, 460))
    gc.collect()
    found = best.statistics()
    assert found.calls == sum(r.calls for r in found.executables) == 8 * 500
    at_capacity = [r.at["n"] for r in found.executables if r.kind == "capacity"]
    assert sorted(at_capacity) == [1, 2, 4, 8, 16, 32, 40] and found.evicted == 0
    hot = [r for r in found.executables if r.kind == "exact"]
    assert found.compilations == 7 + len(hot) and len({r.at["n"] for r in hot}) == len(hot)
    # A size that is seen for the first time is kept as an array; nothing else is.
    assert len(jax.live_arrays()) <= before + HIGH


@pytest.mark.parametrize(
    "options",
    [
        {"dynamic": "auto", "at": {"n": 8}},
        {"dynamic": "capacity"},
        {"execution": "kernels"},
        {"execution": "kernels", "dynamic": rx.Dynamic(executables=1)},
    ],
    ids=str,
)
def test_first_calls_of_threads_compile_once(options: Any, often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, plan = [], kernels.plan
    monkeypatch.setattr(kernels, "plan", lambda *args: plans.append(args) or plan(*args))
    best, start = rx.optimize(scores, "4 4", "n 4", bounds={"n": (LOW, HIGH)}, **options), threading.Barrier(8)
    w, x = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((4, 4), (8, 4)))

    def work(_: int) -> None:
        start.wait()
        for _ in range(20):
            np.testing.assert_allclose(best(w, x)[1], x.sum(0), rtol=1e-3, atol=1e-4)

    run(8, work)
    if "execution" in options:
        assert len(plans) == 1
    else:
        found = best.statistics()
        assert found.calls == found.executables[0].calls == 160 and found.compilations == 1


def test_first_calls_of_threads_optimize_once(often: None) -> None:
    best, start = rx.jit(scores, dims=("4 4", "n 4"), bounds={"n": (LOW, HIGH)}), threading.Barrier(8)
    w, x = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((4, 4), (8, 4)))

    def work(_: int) -> None:
        start.wait()
        np.testing.assert_allclose(best(w, x)[1], x.sum(0), rtol=1e-3, atol=1e-4)

    run(8, work)
    assert len(best.optimized) == 1 and best.optimized[0].statistics().calls == 8


def test_what_all_ask_for_at_once_is_made_once() -> None:
    kept, made, start = Executables(4), [], threading.Barrier(8)

    def make() -> Executable:
        made.append(1)
        threading.Event().wait(0.05)
        return Executable(jax.jit(lambda x: x), {}, False, "call", 0.0, None)

    def work(_: int) -> None:
        start.wait()
        kept.get_or_compile("key", make)

    run(8, work)
    assert len(made) == kept.compilations == 1 and [e.calls for _, e in kept.items()] == [8]


def test_who_waits_for_what_cannot_be_made_meets_the_error() -> None:
    kept, start = Executables(4), threading.Barrier(4)

    def make() -> Executable:
        threading.Event().wait(0.05)
        raise ValueError("no such program")

    met: list[str] = []

    def work(_: int) -> None:
        start.wait()
        try:
            kept.get_or_compile("key", make)
        except ValueError as e:
            met.append(str(e))

    run(4, work)
    assert met == ["no such program"] * 4 and kept.items() == []
