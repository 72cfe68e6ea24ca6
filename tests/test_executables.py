"""`executables=` is how many a function keeps, however it runs: counted where XLA keeps them."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.calls.executables import Executables

LIMIT = 6
SIZES = {"kernels": 40}  # of the others 12: a size takes 0.1 s
W = np.ones((4, 4), np.float32)


def live() -> int:
    """Executables that XLA has in this process."""
    return len(jax.devices()[0].client.live_executables())


def scores(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) @ w


STEPS = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(ndim=2, dtype="float32"):
    with R.dataflow():
        y = R.matmul(x, w)
        R.output(y)
    z = R.match_cast(y, R.Tensor(("k", 4), "float32"))
    with R.dataflow():
        u = R.exp(z)
        R.output(u)
    return u
"""

MODES: dict[str, Callable[..., Any]] = {
    "whole": lambda **o: rx.optimize(scores, "n 4", "4 4", dynamic=rx.Dynamic(mode="exact", trust=True, **o)),
    "capacity": lambda **o: rx.optimize(
        scores, "n 4", "4 4", dynamic=rx.Dynamic(mode="capacity", capacities=3, trust=True, **o)
    ),
    "auto": lambda **o: rx.optimize(
        scores, "n 4", "4 4", dynamic=rx.Dynamic(mode="auto", capacities=3, trust=True, **o)
    ),
    "weights": lambda **o: rx.optimize(
        scores, "n 4", "4 4", dynamic=rx.Dynamic(mode="exact", trust=True, **o), weights=["w"]
    ),
    "family": lambda **o: rx.optimize(
        scores, "n 4", "4 4", dynamic=rx.Dynamic(mode="exact", trust=True, **o), at=[{"n": 2}, {"n": 32}]
    ),
    "kernels": lambda **o: rx.optimize(scores, "n 4", "4 4", dynamic=rx.Dynamic(trust=True, **o), execution="kernels"),
    "kernels, weights": lambda **o: rx.optimize(
        scores, "n 4", "4 4", dynamic=rx.Dynamic(trust=True, **o), execution="kernels", weights=["w"]
    ),
    "steps": lambda **o: rx.optimize(rx.parse(STEPS), dynamic=rx.Dynamic(**o)),
    "jit": lambda **o: rx.jit(scores, dynamic=rx.Dynamic(trust=True, **o)),
    "jit, exact": lambda **o: rx.jit(scores, dynamic=rx.Dynamic(mode="exact", trust=True, **o)),
    "jit, dims": lambda **o: rx.jit(scores, dynamic=rx.Dynamic(trust=True, **o), dims=["n 4", "4 4"]),
}


@pytest.mark.parametrize("mode", MODES)
def test_no_more_executables_are_kept_than_asked_for(mode: str) -> None:
    w = jax.device_put(W)
    gc.collect()
    before, most = live(), 0
    fast = MODES[mode](executables=LIMIT)
    for n in [*range(1, SIZES.get(mode, 12) + 1), 1, 2, 3]:
        x = np.full((n, 4), 0.5, np.float32)
        given = fast(x, w)
        most = max(most, live() - before)
        if n % 10 == 0:  # by numpy: JAX would compile each operator
            np.testing.assert_allclose(given, np.exp(x @ W) if mode == "steps" else np.tanh(x @ W) @ W, rtol=1e-5)
    assert 0 < most <= LIMIT


def test_what_was_used_last_is_kept() -> None:
    traced: list[int] = []

    def counted(x: Any) -> Any:
        traced.append(x.shape[0])
        return x + 1

    kept = Executables(3)
    first, second = kept.jit(counted), kept.jit(counted)
    for run, n in ((first, 1), (second, 2), (second, 3), (second, 2)):
        run(np.ones(n))
    assert traced == [1, 2, 3] and kept.executable_count == 3
    second(np.ones(4))  # `first` was not traced for longest
    second(np.ones(3))
    assert traced == [1, 2, 3, 4] and (
        first.executable_count,
        second.executable_count,
        kept.executable_count,
        kept.evicted,
    ) == (0, 3, 3, 1)


def test_each_part_of_a_call_has_an_executable() -> None:
    """However few are to be kept, a call does not let go of what it runs itself."""
    kept, traced = Executables(1), []
    parts = [kept.jit(lambda x, i=i: traced.append(i) or x + i, part=True) for i in range(3)]
    for _ in range(3):
        assert [float(p(1.0)) for p in parts] == [1, 2, 3]
    assert traced == [0, 1, 2]
    assert [p(np.ones(2)).shape for p in parts] == [(2,)] * 3 and kept.executable_count <= 3


def test_what_fails_while_it_is_traced_is_not_counted() -> None:
    kept = Executables(2)

    def fails(x: Any) -> Any:
        raise ValueError("no")

    run = kept.jit(fails)
    for _ in range(5):
        with pytest.raises(ValueError, match="no"):
            run(1.0)
    assert kept.executable_count == 0 and kept.evicted == 0


def test_a_function_among_others_fits_there_too() -> None:
    outer, inner = Executables(2), Executables(2)
    outer.register(inner)
    one, other = outer.jit(lambda x: x + 1), inner.jit(lambda x: x + 2)
    for n in range(1, 6):
        one(np.ones(n))
        other(np.ones(n))
        assert outer.executable_count <= 2
    assert inner.executable_count <= 1


@pytest.mark.parametrize("error", [MemoryError("all of it"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory")])
@pytest.mark.parametrize("options", [{}, {"dims": ["n 4", "4 4"]}])
def test_memory_that_ran_out_is_no_reason_to_run_as_written(
    error: Exception, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("relax_eg.driver.jitting.jitted.optimize", fails)
    with pytest.raises(type(error), match=str(error)):
        rx.jit(scores, **options)(W, W)


def test_what_fails_beside_the_calls_is_told() -> None:
    kept = Executables(2)

    def fails() -> Any:
        raise TypeError("no such lowering")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        kept.compile_in_thread("key", fails)
        for t in threading.enumerate():
            if t.name == "relax_eg compile":
                t.join()
    assert [str(w.message) for w in told] == [
        "an executable was not compiled in the background: internal TypeError: no such lowering"
    ]
