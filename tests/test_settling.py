"""`measure`: the first calls find out which of two programs is faster, and later calls run only that one."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.clock.settling import Settling
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.ops import counts

N = 256  # a product of two matrices takes many times as long as a product with a vector
ALWAYS = rx.types.Settle(mode="always", calls=40)


class Wrong:
    """A cost model that takes products of two matrices for cheaper than products with a vector."""

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        return NodeCost(seconds=0.3 if counts(site).flops.evaluate(sizes) > 8 * N**2 else 1.0)


def cheap(a: Any, b: Any, v: Any) -> Any:
    return a @ (b @ v)


def dear(a: Any, b: Any, v: Any) -> Any:
    return (a @ b) @ v


def arguments(n: int = N) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(n)
    return tuple(jnp.asarray(rng.standard_normal(s), jnp.float32) / n for s in ((n, n), (n, n), (n,)))  # type: ignore[return-value]


def call_until(is_done: Callable[[], bool], call: Callable[[], Any], seconds: float = 60.0) -> list[Any]:
    """The results of calls, repeated until something is so."""
    results: list[Any] = []
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, "it was not settled"
        results.append(call())
        time.sleep(0.001)
    return results


def settled(best: Any) -> Callable[[], bool]:
    return lambda: any(r.chosen for r in best.report.measured)


def was_timed_at(best: Any, n: int) -> bool:
    return any(dict(r.at) == {"n": n} for r in best.report.measured)


def winner(best: Any) -> str:
    (label,) = {r.label for r in best.report.measured if r.chosen}
    return label


SPECS = (f"{N} {N}", f"{N} {N}", f"{N}")


def test_a_wrong_prediction_is_found_out() -> None:
    best = rx.optimize(cheap, *SPECS, target=Wrong())
    assert 1 < best.report.predicted_gain < 2
    best = rx.optimize(cheap, *SPECS, target=Wrong(), measure="auto")
    args = arguments()
    results = call_until(settled(best), lambda: best(*args))
    assert winner(best) == "as written"
    for y in (*results, best(*args)):
        np.testing.assert_allclose(y, cheap(*args), rtol=1e-3, atol=1e-5)
    written, chosen = best.report.measured
    assert chosen.speedup < 1 and written.seconds < chosen.seconds
    assert "as written" in str(best.report) and "by price" in str(best.report)
    statistics = best.statistics()
    (row,) = statistics.settled
    assert (row.runs, row.how, row.speedup) == ("as written", "timed", chosen.speedup)
    assert 10 <= row.calls <= 80 and row.seconds > 0 and not statistics.is_settling
    line = f"settled in {row.calls} calls and "
    assert sum(x.startswith(line) for x in str(statistics).splitlines()) == 1
    assert best.check(*args).passed  # of the chosen program, which no longer runs


def test_a_right_prediction_stays() -> None:
    best = rx.optimize(dear, *SPECS, measure=ALWAYS)
    call_until(settled(best), lambda: best(*arguments()))
    assert winner(best) == "by price"


def test_large_gains_cost_nothing() -> None:
    best = rx.optimize(dear, *SPECS, measure="auto")
    assert best.report.predicted_gain > 2
    threads = threading.active_count()
    best(*arguments())
    assert threading.active_count() == threads and not best.report.measured
    assert not best.statistics().is_settling and best.statistics().settled == ()


def test_jit_settles_its_first_sizes() -> None:
    fast = rx.jit(cheap, target=Wrong(), measure="auto")
    args = arguments()
    call_until(lambda: fast.report is not None and any(r.chosen for r in fast.report.measured), lambda: fast(*args))
    assert winner(fast) == "as written"
    statistics = fast.statistics()
    assert statistics is not None and [r.runs for r in statistics.settled] == ["as written"]
    assert not statistics.is_settling
    for n in (N, 33, N, 34, 35, N):  # other sizes are the optimizer's
        np.testing.assert_allclose(fast(*arguments(n)), cheap(*arguments(n)), rtol=1e-3, atol=1e-5)
    g = jax.grad(lambda v: fast(*args[:2], v).sum())(args[2])
    np.testing.assert_allclose(g, jax.grad(lambda v: cheap(*args[:2], v).sum())(args[2]), rtol=1e-3, atol=1e-5)


def test_the_first_sizes_run_the_winner_after_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = rx.jit(cheap, target=Wrong(), measure="auto")
    args = arguments()
    call_until(lambda: fast.report is not None and any(r.chosen for r in fast.report.measured), lambda: fast(*args))
    fast(*arguments(33))

    def fails(*_: Any) -> Any:
        raise AssertionError("the program that lost runs")

    monkeypatch.setattr(fast, "_exactly", fails)
    np.testing.assert_allclose(fast(*args), cheap(*args), rtol=1e-3, atol=1e-5)


def test_exact_sizes_under_jit_after_settling() -> None:
    fast = rx.jit(cheap, target=Wrong(), measure="auto", dynamic="exact")
    args = arguments()
    call_until(lambda: fast.report is not None and any(r.chosen for r in fast.report.measured), lambda: fast(*args))
    for n in (N, 33, N, 33):
        np.testing.assert_allclose(fast(*arguments(n)), cheap(*arguments(n)), rtol=1e-3, atol=1e-5)
    g = jax.grad(lambda v: fast(*args[:2], v).sum())(args[2])
    np.testing.assert_allclose(g, jax.grad(lambda v: cheap(*args[:2], v).sum())(args[2]), rtol=1e-3, atol=1e-5)


def test_prepared_weights_and_capacities_settle(tmp_path: Path) -> None:
    """Each executable has a trial of its own; after three that agree, all sizes are settled."""
    best = rx.optimize(cheap, "n n", "n n", "n", at={"n": N}, weights=("a",), target=Wrong(), measure="auto")
    best.save(tmp_path / "cheap.rxa")
    loaded = rx.load(tmp_path / "cheap.rxa", measure="auto")
    of = {n: arguments(n) for n in (N, 2 * N, 3 * N)}
    for function in (best, loaded):
        for n, args in of.items():
            call_until(functools.partial(was_timed_at, function, n), functools.partial(function, *args))
        assert {r.label for r in function.report.measured if r.chosen} == {"as written"}
        ready = function.prepare(of[N][0])
        np.testing.assert_allclose(ready(*of[N][1:]), cheap(*of[N]), rtol=1e-3, atol=1e-5)
    for n in (5, N, 100):
        np.testing.assert_allclose(best(*arguments(n)), cheap(*arguments(n)), rtol=1e-3, atol=1e-5)


def test_calls_of_sizes_that_are_settled_look_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of other sizes, and those that JAX traces, are still told apart."""
    for dynamic in ("exact", "auto"):
        best = rx.optimize(cheap, "n n", "n n", "n", at={"n": N}, target=Wrong(), measure="auto", dynamic=dynamic)
        args = arguments()
        call_until(functools.partial(was_timed_at, best, N), functools.partial(best, *args))
        for _ in range(3):  # other calls do not end it
            np.testing.assert_allclose(jax.jit(best)(*args), cheap(*args), rtol=1e-3, atol=1e-5)
            best(*args)
            with monkeypatch.context() as patch:
                patch.setattr(Settling, "__call__", None)
                np.testing.assert_allclose(best(*args), cheap(*args), rtol=1e-3, atol=1e-5)
        for n in (N // 2, N // 4):
            others = arguments(n)
            call_until(functools.partial(was_timed_at, best, n), functools.partial(best, *others))
            np.testing.assert_allclose(best(*args), cheap(*args), rtol=1e-3, atol=1e-5)


class Timed:
    """A program whose calls take so many seconds, by size; it counts them."""

    def __init__(self, label: str, seconds: Mapping[int, float]) -> None:
        self.label, self.predicted, self.seconds = label, 1.0, seconds
        self.calls: list[int] = []

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        self.calls.append(args[0])
        time.sleep(self.seconds[args[0]])
        return args[0]

    def compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None: ...


def settle_at(chosen: Mapping[int, float], as_written: Mapping[int, float], most: int) -> tuple[Any, list[Any]]:
    """Settles sizes one after the other; returns `settling` and what it ended with, if it ended."""
    ended: list[Any] = []
    ours, theirs = Timed("chosen", chosen), Timed("as written", as_written)
    limits = rx.types.Settle(calls=40)
    settling = Settling(
        ours, theirs, limits, lambda args, _: args[0], lambda args, _: {"n": args[0]}, ended.append, most=most
    )
    for n in list(chosen)[:most]:
        call_until(lambda: bool(ended) or any(r.at == {"n": n} for r in settling.settled), lambda: settling((n,), {}))  # noqa: B023
    return settling, ended


@pytest.mark.parametrize(("mode", "predicted", "made"), [("auto", 2e-3, 25), ("auto", 2e-4, 100), ("always", 2e-3, 1)])
def test_a_trial_begins_once_calls_took_as_long_as_the_first(
    mode: Any, predicted: float, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that calls less compiles one program, not two. Calls of other sizes with the same key count, too."""
    clock, begun = itertools.count(step=0.05), list[int]()  # the first call takes one tick
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    seconds = dict.fromkeys(range(40), 0.0)
    ours, theirs = Timed("chosen", seconds), Timed("as written", seconds)
    ours.predicted = predicted

    def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if args[0] not in ours.calls:
            raise LookupError
        return "at capacity"

    settling = Settling(
        ours, theirs, rx.types.Settle(mode=mode), key, lambda *_: {}, lambda _: None, most=2,
        start=lambda work: begun.append(len(ours.calls)),
    )  # fmt: skip
    for n in (*range(20), *range(40), *range(40), *range(40)):
        settling((n,), {})
    assert begun == [made] and settling.is_begun


def test_a_program_that_is_alike_at_three_sizes_is_tried_at_a_fourth() -> None:
    written = dict.fromkeys((1, 2, 4, 8), 2e-3)
    settling, ended = settle_at({1: 1.9e-3, 2: 1.9e-3, 4: 1.9e-3, 8: 6e-3}, written, most=5)
    assert not ended and {r.at["n"]: r.runs for r in settling.settled}[8] == "as written"


def test_three_sizes_settle_all_where_the_gain_is_clear_or_there_is_none() -> None:
    written = dict.fromkeys((1, 2, 4), 3e-3)
    _, (winner,) = settle_at({1: 1e-3, 2: 1e-3, 4: 1e-3}, written, most=9)
    assert winner.label == "chosen"
    _, (winner,) = settle_at({1: 9e-3, 2: 9e-3, 4: 9e-3}, written, most=9)
    assert winner.label == "as written"


def test_sizes_without_a_trial_run_what_the_nearest_runs() -> None:
    settling, ended = settle_at(
        {10: 1e-3, 1000: 6e-3, 7: 0.0, 600: 0.0}, dict.fromkeys((10, 1000, 7, 600), 3e-3), most=2
    )
    assert not ended
    ours, theirs = settling._contestants
    for n in (7, 600, 7):
        settling((n,), {})
    assert ours.calls[-2:] == [7, 7] and theirs.calls[-1] == 600


def test_arrays_may_be_given_away() -> None:
    fast = rx.jit(lambda x, y: (x + y) * 2.0 - y, donate_argnums=0, measure=ALWAYS)
    y = jnp.ones(1000)
    results = [fast(jnp.full(1000, float(i)), y) for i in range(60)]
    for i, r in enumerate(results):
        np.testing.assert_allclose(r, 2.0 * i + 1.0)


def test_threads() -> None:
    best = rx.optimize(cheap, *SPECS, target=Wrong(), measure="auto")
    args = arguments()
    expected, wrong = np.asarray(cheap(*args)), list[Any]()

    def work() -> None:
        for _ in range(40):
            if not np.allclose(best(*args), expected, rtol=1e-3, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_nothing_is_tried_under_a_trace_or_when_off(monkeypatch: pytest.MonkeyPatch) -> None:
    best = rx.optimize(cheap, *SPECS, target=Wrong(), measure="always")
    args = arguments()
    np.testing.assert_allclose(jax.jit(best)(*args), cheap(*args), rtol=1e-3, atol=1e-5)
    off = rx.optimize(cheap, *SPECS, target=Wrong(), measure="off")
    monkeypatch.setenv("RELAX_EG_MEASURE", "off")
    by_environment = rx.optimize(cheap, *SPECS, target=Wrong())
    none_ahead = rx.optimize(cheap, *SPECS, target=Wrong(), measure=0)
    for function in (best, off, by_environment, none_ahead):
        for _ in range(3 if function is not best else 0):
            function(*args)
        assert not function.report.measured
    assert all(f._settling is None for f in (off, by_environment, none_ahead))  # type: ignore[reportPrivateUsage]


def test_wrong_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for call, text in (
        (
            lambda: rx.optimize(cheap, *SPECS, measure="sometimes"),  # type: ignore[reportArgumentType]
            "measure='sometimes': one of 'auto', 'always', 'off', how many programs to time ahead, 0 to 16, or",
        ),
        (
            lambda: rx.jit(cheap, measure=3),  # type: ignore[reportArgumentType]
            "measure=3: one of 'auto', 'always', 'off', or a Settle, is accepted",
        ),
        (
            lambda: rx.load("cheap.rxe", measure=3),  # type: ignore[reportArgumentType]
            "measure=3: one of 'auto', 'always', 'off', or a Settle, is accepted",
        ),
        (
            lambda: rx.types.Settle(mode="sometimes"),  # type: ignore[reportArgumentType]
            "Settle(mode='sometimes'): one of auto, always, off is accepted",
        ),
        (lambda: rx.types.Settle(calls=3), "Settle(calls=3): a number >= 10 is accepted"),
        (lambda: rx.types.Settle(seconds=0), "Settle(seconds=0): a number above 0 is accepted"),
    ):
        with pytest.raises(rx.errors.OptionError) as raised:
            call()
        assert text in str(raised.value)
    monkeypatch.setenv("RELAX_EG_MEASURE", "3")
    with pytest.raises(rx.errors.OptionError, match="RELAX_EG_MEASURE=3: one of auto, always, off is accepted"):
        rx.jit(cheap)


def test_what_was_settled_is_known_to_the_next_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    args = arguments()
    with rx.debug.options(cache=True):
        best = rx.optimize(cheap, *SPECS, target=Wrong(), measure="auto")
        call_until(settled(best), lambda: best(*args))
        again = rx.optimize(cheap, *SPECS, target=Wrong(), measure="auto")
        again(*args)
        call_until(settled(again), lambda: None)  # after one call, once the program as written is compiled
        assert again.report.measured == best.report.measured
        fast = rx.jit(cheap, target=Wrong(), measure="auto")
        fast(*args)
        assert fast.report is not None
        call_until(settled(fast), lambda: None)
        fast(*args)
        assert fast._straight is fast._rival  # the function as written, which refused no call
        for entry in tmp_path.iterdir():  # what is damaged is measured again
            entry.write_bytes(entry.read_bytes()[:-1] + b"?")
        with pytest.warns(UserWarning, match="is ignored: its checksum does not fit"):
            third = rx.optimize(cheap, *SPECS, target=Wrong(), measure="auto")
            third(*args)
        assert not third.report.measured


def test_the_first_calls_of_several_threads_settle_once() -> None:
    fast = rx.jit(dear, measure="auto")  # a large gain: nothing is tried after the first call
    args, failed = arguments(), list[BaseException]()

    def work() -> None:
        try:
            np.testing.assert_allclose(fast(*args), dear(*args), rtol=1e-3, atol=1e-5)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
