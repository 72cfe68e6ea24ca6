"""`execution="kernels"` and memory: storages kept from call to call, counted in live arrays and bytes."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.kernels import InKernels, KernelRunner

pytestmark = pytest.mark.xla_defaults

ALONE = rx.rules.default - "fusion" - "library"


@pytest.fixture(autouse=True)
def every_donation_is_used() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*donated.*")
        yield


def optimized(fn: Any, *specs: Any, **options: Any) -> InKernels:
    best = rx.optimize(fn, *specs, execution="kernels", **options)
    assert isinstance(best, InKernels)
    return best


def arrays(*shapes: tuple[int, ...], scale: float = 0.1) -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(s) * scale, jnp.float32) for s in shapes]


def live_bytes() -> int:
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays())


def chain(x: Any, w: Any) -> Any:
    for _ in range(6):
        x = jnp.tanh(x @ w) @ w.T
    return x


def test_after_the_first_call_only_results_are_allocated() -> None:
    with rx.debug.options(sharing=False):
        best = optimized(chain, "n 64", "64 64", at={"n": 64}, rules=ALONE)
    x, w = arrays((64, 64), (64, 64))
    best(x, w)
    before, kept = live_bytes(), best.runner.held_bytes
    for _ in range(3):
        y = best(x, w)
        assert live_bytes() == before + y.nbytes
        assert best.runner.held_bytes == kept
        del y
    assert live_bytes() == before
    assert np.allclose(best(x, w), chain(x, w), atol=1e-5)


def test_what_is_live_during_a_call_is_what_was_planned() -> None:
    with rx.debug.options(sharing=False):
        best = optimized(chain, "n 64", "64 64", at={"n": 64}, rules=ALONE)
    x, w = arrays((48, 64), (64, 64))
    best(x, w)
    call = best.runner.call({"n": 48})
    outside = live_bytes() - best.runner.held_bytes
    seen: list[int] = []
    y = call.run([x, w], lambda _: seen.append(live_bytes() - outside))
    planned = call.plan.bytes_at({"n": 48})
    assert call.held_bytes == planned
    assert max(seen) <= planned + y.nbytes and planned < 5 * y.nbytes
    assert max(call.plan.live.at({"n": 48})) <= planned


def test_results_are_the_callers_for_good() -> None:
    def fn(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        return h, jnp.exp(h) @ w, x

    best = optimized(fn, "n 32", "32 32", at={"n": 32}, rules=ALONE)
    x, w = arrays((32, 32), (32, 32))
    first = best(x, w)
    kept = [np.array(a) for a in first]
    for scale in (2.0, 3.0):
        best(scale * x, w)
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))
    pointers = [a.unsafe_buffer_pointer() for a in (*first, x)]
    assert len(set(pointers)) == 4  # an argument that is handed out is a copy, as from jax.jit


def test_a_result_may_be_donated_by_who_has_it() -> None:
    def fn(x: Any) -> Any:
        y = jnp.exp(x)
        return y, y, y.reshape(-1), jnp.float32(2.0)

    best = optimized(fn, "n 4", at={"n": 8}, rules=ALONE)
    (x,) = arrays((8, 4))
    results = best(x)
    for r in results:
        jax.jit(lambda a: a + 1.0, donate_argnums=0)(r)
    again = best(x)
    assert np.allclose(again[0], np.exp(x)) and np.allclose(again[2], np.exp(x).reshape(-1)) and again[3] == 2.0
    assert not x.is_deleted()


def test_storages_of_other_dtypes_and_shapes_are_used_again() -> None:
    def fn(x: Any, w: Any) -> Any:
        a = jnp.sin(x @ w).reshape(-1)
        b = jnp.argsort(a).astype(jnp.int32)  # elements of as many bytes
        c = jnp.cumsum(b.reshape(16, -1).astype(jnp.float32), axis=1)
        return jnp.sort(jnp.cos(c).reshape(-1))

    best = optimized(fn, "n 32", "32 32", at={"n": 32}, rules=ALONE)
    args = arrays((32, 32), (32, 32))
    assert np.allclose(best(*args), fn(*args), atol=1e-4)
    plan = best.runner.call({"n": 32}).plan
    used = {plan.places[w].storage for s in plan.program.steps for w in s.writes if w in plan.places}
    assert len(used) < len(plan.program.steps) - 1
    before = live_bytes()
    best(*args)
    assert live_bytes() == before


def test_a_layer_called_several_times_shares_its_storages() -> None:
    def fn(x: Any, ps: list[Any]) -> Any:
        for p in ps:
            x = x + jax.nn.silu(x @ p["a"]) @ p["b"]
        return x

    bytes_at: list[int] = []
    for layers in (3, 6):
        best = optimized(fn, "n 32", [{"a": "32 64", "b": "64 32"}] * layers, at={"n": 64}, rules=ALONE)
        x, *ws = arrays((16, 32), *[(32, 64), (64, 32)] * layers)
        ps = [{"a": a, "b": b} for a, b in zip(ws[::2], ws[1::2], strict=True)]
        assert np.allclose(best(x, ps), fn(x, ps), atol=1e-4)
        bytes_at.append(best.runner.held_bytes)
    assert bytes_at[0] == bytes_at[1]


def test_sizes_change_from_call_to_call() -> None:
    best = optimized(chain, "n 32", "32 32", at={"n": 32}, rules=ALONE)
    (w,) = arrays((32, 32))
    most = 0
    for n in (64, 8, 64, 1, 64):
        x = jnp.ones((n, 32)) * 0.1
        assert np.allclose(best(x, w), chain(x, w), atol=1e-5)
        most = max(most, best.runner.call({"n": n}).held_bytes)
        assert best.runner.held_bytes <= 2 * most


def test_calls_of_several_threads_do_not_meet() -> None:
    best = optimized(chain, "n 32", "32 32", at={"n": 32}, rules=ALONE)
    x, w = arrays((32, 32), (32, 32))
    best(x, w)
    wrong: list[float] = []

    def work(scale: float) -> None:
        expected = chain(scale * x, w)
        for _ in range(20):
            if not np.allclose(best(scale * x, w), expected, atol=1e-5):
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(s,)) for s in (1.0, 2.0, 3.0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_random_keys_and_booleans_have_no_storage_of_others() -> None:
    def fn(seed: Any, x: Any) -> Any:
        key = jax.random.split(jax.random.key(seed), 3)
        noise = jax.random.normal(key[0], x.shape) + jax.random.uniform(key[1], x.shape)
        return jnp.where(noise > x, noise, -x), jax.random.key_data(key[2])

    best = optimized(fn, "@ int32", "n 4", at={"n": 8}, rules=rx.RuleSet("none"))
    (x,) = arrays((8, 4))
    for seed in (0, 1, 0):
        ours, theirs = best(seed, x), fn(seed, x)
        assert np.allclose(ours[0], theirs[0], atol=1e-5) and np.array_equal(ours[1], theirs[1])


def test_a_workspace_that_was_lifted_is_no_argument() -> None:
    @rx.tensor_program
    def halves(X: rx.Buffer("n 8"), Y: rx.Buffer("n")):  # type: ignore[no-untyped-def]
        P = rx.script.workspace("2 n")
        P[s, i] = rx.sum(X[i, s * 4 + k], over=(k, 4))  # type: ignore[name-defined]  # noqa: F821
        Y[i] = rx.sum(P[s, i], over=(s, 2))  # type: ignore[name-defined]  # noqa: F821

    @rx.function
    def main(x: rx.Tensor("n 8")):  # type: ignore[no-untyped-def]
        return rx.call_tir(halves, (x,), out=rx.Tensor("n"))

    best = optimized(main, rules=rx.rules.default + rx.rules.workspace, at={"n": 8})
    (x,) = arrays((8, 8))
    assert np.allclose(best(x), x.sum(1), atol=1e-5)


def test_an_argument_that_does_not_fit_is_refused_after_calls_that_did() -> None:
    best = optimized(chain, "n 32", "32 32", at={"n": 32}, bounds={"n": (1, 64)}, rules=ALONE)
    x, w = arrays((32, 32), (32, 32))
    best(x, w)
    best(x, w)
    with pytest.raises(rx.errors.BoundsError, match=r"chain\(\): n = 65 exceeds its bound 64"):
        best(jnp.ones((65, 32)), w)
    with pytest.raises(rx.errors.ShapeError, match="int32"):
        best(x.astype(jnp.int32), w)
    with pytest.raises(rx.errors.ShapeError):
        best(x, w[:31])
    assert np.allclose(best(x, w), chain(x, w), atol=1e-5)


def test_temporaries_of_executables_are_told() -> None:
    best = optimized(lambda q, k: jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2)), "n 8 16", "n 8 16", at={"n": 64})
    args = arrays((64, 8, 16), (64, 8, 16))
    told = best.runner.call({"n": 64}).temporaries(args)
    assert set(told) == {s.name for s in best.runner.call({"n": 64}).plan.program.steps}
    assert max(told.values()) > 0
    assert np.allclose(best(*args), jax.nn.softmax(args[0] @ jnp.swapaxes(args[1], -1, -2)), atol=1e-5)


def test_temporaries_of_a_kernel_without_arrays_that_is_compiled_with_options() -> None:
    best = optimized(lambda x: (jnp.arange(64.0).reshape(8, 8), x @ x), "8 8", rules=ALONE)
    runner = KernelRunner(best.module, {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"})
    call = runner.call({})
    told = call.temporaries(arrays((8, 8)))
    assert len(told) == 2
    assert set(told) == {s.name for s in call.plan.program.steps}
