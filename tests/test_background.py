"""`rx.jit(..., search="background")`: calls run as written until a thread has found and compiled a program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.jitting import jitted

SECONDS = 120.0  # limit: of a search in these tests


def trace_of_product(a: Any, b: Any) -> Any:
    return jnp.trace(a @ b)


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Searches of other threads than this one wait until it is set."""
    event, optimize, here = threading.Event(), jitted.optimize, threading.current_thread()

    def waiting(*args: Any, **options: Any) -> Any:
        if threading.current_thread() is not here:
            assert event.wait(SECONDS)
        return optimize(*args, **options)

    monkeypatch.setattr(jitted, "optimize", waiting)
    yield event
    event.set()


def serves_chosen(fast: Any, *args: Any) -> bool:
    """Whether calls run neither of the two functions as written."""
    fast._written = None
    fast(*args)
    return fast._settling is None and fast._first is fast._jitted


def test_the_first_call_does_not_wait(gate: threading.Event) -> None:
    fast = rx.jit(trace_of_product, search="background")
    a, b = arrays((32, 16), (16, 32))
    wanted = trace_of_product(a, b)
    for _ in range(3):
        assert np.allclose(fast(a, b), wanted, rtol=1e-4)
    assert fast.report is None and not fast.wait(0.01)
    gate.set()
    assert fast.wait(SECONDS)
    assert "same_sum_of_products" in fast.report.rules
    assert np.allclose(fast(a, b), wanted, rtol=1e-4)
    assert serves_chosen(fast, a, b) and len(fast.optimized) == 1


@pytest.mark.parametrize("measure", ["off", "auto", "always"])
def test_what_follows_the_search_is_what_settles(measure: Any, gate: threading.Event) -> None:
    fast = rx.jit(trace_of_product, search="background", measure=measure)
    a, b = arrays((64, 64), (64, 64))
    wanted = fast(a, b)
    gate.set()
    assert fast.wait(SECONDS)
    fast._written = None  # what is timed as the chosen program is not the function as written
    for _ in range(120):
        assert np.allclose(fast(a, b), wanted, rtol=1e-3)
    assert fast._settling is None
    assert not [r for r in fast.statistics().settled if r.how == "failed"]
    if measure != "auto":  # by the expected gain, which is uncertain for such small matrices
        assert bool(fast.statistics().settled) == (measure == "always")


def test_one_program_for_all_lengths(gate: threading.Event) -> None:
    fast = rx.jit(
        lambda x, w: jax.nn.softmax(x @ w), dims=["n 16", "16 16"], bounds={"n": (1, 64)}, search="background"
    )
    w = arrays((16, 16))[0]
    for n in (3, 5):
        x = arrays((n, 16))[0]
        assert np.allclose(fast(x, w), jax.nn.softmax(x @ w), atol=1e-5)
    assert not fast.optimized
    gate.set()
    assert fast.wait(SECONDS)
    for n in (3, 5, 7, 9):
        x = arrays((n, 16))[0]
        assert np.allclose(fast(x, w), jax.nn.softmax(x @ w), atol=1e-5)
    assert fast.wait(SECONDS) and len(fast.optimized) == 1


def test_sizes_that_come_later_do_not_wait_either(gate: threading.Event) -> None:
    fast = rx.jit(trace_of_product, search="background")
    gate.set()
    for n in (4, 5, 6, 7):
        a, b = arrays((n, 8), (8, n))
        for _ in range(2):
            assert np.allclose(fast(a, b), trace_of_product(a, b), rtol=1e-4)
            assert fast.wait(SECONDS)
    assert len(fast.optimized) == 2  # for the first sizes, and for all others
    assert {v for best in fast.optimized for v in best.module.main.size_variables}


def test_weights_are_prepared_once_they_may(gate: threading.Event) -> None:
    fast = rx.jit(lambda w, x: x @ (w @ w), weights=["w"], search="background")
    w, x = arrays((32, 32), (4, 32))
    wanted = x @ (w @ w)
    assert np.allclose(fast(w, x), wanted, atol=1e-3)
    assert not fast.optimized
    gate.set()
    assert fast.wait(SECONDS)
    assert np.allclose(fast(w, x), wanted, atol=1e-3)
    fast._written = None
    assert np.allclose(fast(w, x), wanted, atol=1e-3)
    assert len(fast.optimized) == 1


def test_static_numbers_and_donated_arguments(gate: threading.Event) -> None:
    gate.set()
    fast = rx.jit(
        lambda x, n, y: jnp.trace(x @ x) * n + y, static_argnames="n", donate_argnames="y", search="background"
    )
    (x,) = arrays((16, 16))
    for n in (2, 3, 2):
        for _ in range(2):
            y = jnp.ones((16, 16))
            assert np.allclose(fast(x, n, y), jnp.trace(x @ x) * n + 1, rtol=1e-4)
            assert y.is_deleted()
            assert fast.wait(SECONDS)
    assert np.allclose(fast(x, 2, 1.5), jnp.trace(x @ x) * 2 + 1.5, rtol=1e-4)


def test_a_call_that_is_traced_searches_itself(gate: threading.Event) -> None:
    fast = rx.jit(trace_of_product, search="background")
    a, b = arrays((32, 16), (16, 32))
    gate.set()
    assert np.allclose(jax.jit(lambda a, b: fast(a, b) + 1)(a, b), trace_of_product(a, b) + 1, rtol=1e-4)
    assert len(fast.optimized) == 1
    assert np.allclose(jax.grad(fast)(a, b), b.T, atol=1e-4)


def test_settings_of_one_thread(gate: threading.Event) -> None:
    """What holds in the calling thread only is not known to the other: such a call searches when it comes again."""
    fast = rx.jit(trace_of_product, search="background")
    a, b = arrays((32, 16), (16, 32))
    gate.set()
    with jax.default_matmul_precision("float32"):
        for _ in range(2):
            assert np.allclose(fast(a, b), trace_of_product(a, b), rtol=1e-4)
            assert fast.wait(SECONDS)
    assert fast.optimized


def test_a_search_that_fails_leaves_the_function_as_written(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def failing(*args: Any, **options: Any) -> Any:
        raise ValueError("no program")

    monkeypatch.setattr(jitted, "optimize", failing)
    fast = rx.jit(trace_of_product, search="background")
    a, b = arrays((32, 16), (16, 32))
    for _ in range(3):
        assert np.allclose(fast(a, b), trace_of_product(a, b), rtol=1e-4)
        assert fast.wait(SECONDS)
    assert [w for w in recwarn if "runs as written under jax.jit; it was not optimized" in str(w.message)]


def test_errors_of_the_function_are_raised_at_once(gate: threading.Event) -> None:
    fast = rx.jit(lambda x, y: x @ y, search="background")
    gate.set()
    for _ in range(2):
        with pytest.raises(TypeError, match=r"dot_general|matmul"):
            fast(jnp.ones((2, 3)), jnp.ones((4, 5)))
        fast.wait(SECONDS)


def test_several_threads(gate: threading.Event) -> None:
    fast = rx.jit(trace_of_product, search="background")
    a, b = arrays((32, 16), (16, 32))
    wanted = float(trace_of_product(a, b))
    found: list[float] = []

    def calls() -> None:
        found.extend(float(fast(a, b)) for _ in range(20))

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for t in threads:
        t.start()
    gate.set()
    for t in threads:
        t.join()
    assert fast.wait(SECONDS)
    assert len(found) == 80 and np.allclose(found, wanted, rtol=1e-4)
    assert len(fast.optimized) == 1


@pytest.mark.parametrize("given", ["later", None, True])
def test_other_values_are_refused(given: Any) -> None:
    with pytest.raises(rx.errors.OptionError, match=r"search=.*: 'first call', 'background' are accepted"):
        rx.jit(trace_of_product, search=given)


def test_what_is_kept_as_written_with_weights_is_compiled_in_the_background() -> None:
    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    w, x = jnp.ones((64, 64)) / 64, jnp.ones((8, 64))
    fast = rx.jit(layer, weights=["w"], search="background")
    fast(w, x)
    assert fast.wait(60) and fast.report is not None and fast.report.kept_as_written
    rival = fast._rival  # type: ignore[reportPrivateUsage]
    assert rival.executable_count == 1
    np.testing.assert_allclose(fast(w, x), layer(w, x), rtol=1e-5)
    assert fast._first is rival and rival.executable_count == 1  # type: ignore[reportPrivateUsage]
