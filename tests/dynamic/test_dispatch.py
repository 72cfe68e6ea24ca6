"""What a call costs once its sizes were seen: nothing of ours is entered but the way to the executable."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.calls.bound import BoundFamily
from relax_eg.backend.calls.call_keys import UnseenError, check_traced_arguments, size_key_function
from relax_eg.backend.calls.known import MOST_REFUSED, KnownCalls
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.program import Program
from relax_eg.backend.calls.statistics import Tally
from relax_eg.backend.calls.whole import Whole
from relax_eg.driver.jitting.jitted import Jitted
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.dynamic.runtime import TIMED, TIMED_EVERY, Sized
from relax_eg.errors import ShapeError

Array = Any
W, X, ODD = jnp.arange(8.0), jnp.ones((8, 8)), jnp.ones((6, 8))


def scaled(w: Array, x: Array) -> Array:
    """Kept as written."""
    return jnp.tanh(x * w)


def adapted(w: Array, a: Array, b: Array, x: Array) -> Array:
    """Two programs, for few rows and for many."""
    return x @ (w + a @ b)


def optimized(**options: Any) -> Any:
    given: dict[str, Any] = {"bounds": {"n": (1, 64)}, **options}
    return rx.optimize(scaled, "8", "n 8", **given)


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what is done per call where nothing is known yet."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for owner, names in {
        Program: ("bind", "call_arrays", "check", "sizes", "run_as_written", "differentiable"),
        Sized: ("run", "_check_arguments", "_executable_for"),
        Whole: ("run_whole", "flat_arguments"),
        BoundFamily: ("call_arrays",),
        Jitted: ("_split", "_path", "_trace"),
    }.items():
        for name in names:
            count(owner, name)
    return counts


def of_family(**options: Any) -> tuple[Any, list[Array]]:
    given = [jnp.asarray(np.random.default_rng(i).standard_normal(s), jnp.float32) for i, s in enumerate(SHAPES)]
    options = {"bounds": {"n": (1, 4096)}, "at": [{"n": 4}, {"n": 4096}], "target": "cpu", **options}
    best = rx.optimize(adapted, "32 32", "32 2", "2 32", "n 32", weights=("w", "a", "b"), **options)
    assert len(best.variants) == len(options["at"])
    return best, given


SHAPES = (32, 32), (32, 2), (2, 32), (4, 32)


def families(**options: Any) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    best, given = of_family(**options)
    return best, adapted, tuple(given)


def prepared(**options: Any) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    best, given = of_family(**options)
    return best.prepare(*given[:3]), lambda x: adapted(*given[:3], x), (given[3],)


def loaded(folder: Path) -> Any:
    optimized(at={"n": 8}).save(folder / "scaled.rxe")
    return rx.load(folder / "scaled.rxe")


def met(fast: Any) -> Any:
    for n in (3, 5, 4, 8):
        fast(W, jnp.ones((n, 8)))
    return fast


WAYS: dict[str, Callable[[Path], tuple[Callable[..., Any], Any, tuple[Any, ...]]]] = {
    "fixed": lambda _: (rx.optimize(scaled, "8", "8 8"), scaled, (W, X)),
    "named": lambda _: (optimized(at={"n": 8}), scaled, (W, X)),
    "numpy": lambda _: (optimized(at={"n": 8}), scaled, (np.asarray(W), np.asarray(X))),
    "first": lambda _: (optimized(), scaled, (W, ODD)),
    "exact": lambda _: (optimized(dynamic="exact"), scaled, (W, ODD)),
    "capacity": lambda _: (optimized(dynamic="capacity"), scaled, (W, X)),
    "loaded": lambda folder: (loaded(folder), scaled, (W, X)),
    "prepared": lambda _: (optimized(at={"n": 8}, weights=("w",)).prepare(W), lambda x: scaled(W, x), (X,)),
    "family": lambda _: families(),
    "family, exact": lambda _: families(dynamic="exact"),
    "family, prepared": lambda _: prepared(),
    "family, prepared, exact": lambda _: prepared(dynamic="exact"),
    "rx.jit": lambda _: (rx.jit(scaled), scaled, (W, X)),
    "rx.jit of many sizes": lambda _: (met(rx.jit(scaled)), scaled, (W, X)),
    "rx.jit of many sizes, the first": lambda _: (met(rx.jit(scaled)), scaled, (W, jnp.ones((3, 8)))),
    "rx.jit with dims": lambda _: (rx.jit(scaled, dims=["8", "n 8"], at={"n": 8}), scaled, (W, X)),
}


@pytest.mark.parametrize("way", WAYS)
def test_sizes_that_were_seen_go_straight(way: str, tmp_path: Path, entered: Counter[str]) -> None:
    run, written, args = WAYS[way](tmp_path)
    for _ in range(TIMED + 2):
        found = run(*args)
    np.testing.assert_allclose(found, written(*args), rtol=1e-5, atol=1e-5)
    assert entered
    before = _calls(run)
    entered.clear()
    for _ in range(20):
        found = run(*args)
    np.testing.assert_allclose(found, written(*args), rtol=1e-5, atol=1e-5)
    assert not entered, entered
    assert _calls(run) == (None if before is None else before + (0 if way.endswith("the first") else 20))


@pytest.mark.parametrize("way", ["fixed", "named", "first", "exact", "capacity", "prepared"])
def test_calls_that_are_all_alike_look_nothing_up(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, written, args = WAYS[way](tmp_path)
    for _ in range(TIMED + 2):
        run(*args)
    with monkeypatch.context() as patch:
        for owner, name in ((run.strategy, "call_known"), (KnownCalls, "call"), (Whole, "run"), (AtCapacity, "run")):
            patch.setattr(owner, name, None)
        np.testing.assert_allclose(run(*args), written(*args), rtol=1e-6)
    if way != "fixed":
        other = (*args[:-1], jnp.ones((7, 8)))
        for given in (other, args, other):
            np.testing.assert_allclose(run(*given), written(*given), rtol=1e-6)


def test_an_executable_that_was_evicted_is_compiled_again_and_counted() -> None:
    """One that calls begin with; another function of the same program takes its place."""
    best = optimized(dynamic=rx.Dynamic(mode="exact", executables=1), weights=("w",))
    one, two = best.prepare(W), best.prepare(2 * W)
    for n in (8, 6, 8, 6):
        x = jnp.ones((n, 8))
        np.testing.assert_allclose(warm(one, x)(x), scaled(W, x), rtol=1e-6)
        np.testing.assert_allclose(warm(two, x)(x), scaled(2 * W, x), rtol=1e-6)


def _calls(run: Any) -> int | None:
    """The calls that statistics count, of sizes and of executables; None where there are none."""
    varies = isinstance(run, Optimized) and isinstance(run.strategy, AtCapacity)
    if not varies and not isinstance(run, Jitted):
        return None
    found = run.statistics()
    assert found is None or found.calls == sum(r.calls for r in found.executables)
    return found.calls if found is not None and found.executables else None


def test_several_sizes_go_straight_beside_each_other(entered: Counter[str]) -> None:
    best = optimized(at=[{"n": 8}, {"n": 6}])
    for _ in range(TIMED + 3):
        best(W, X), best(W, x=ODD)
    entered.clear()
    for _ in range(5):
        assert best(W, X).shape == (8, 8) and best(W, x=ODD).shape == best(x=ODD, w=W).shape == (6, 8)
    assert not entered, entered
    rows = {r.sizes["n"]: r.calls for r in best.statistics().sizes}
    assert rows == {8: TIMED + 8, 6: TIMED + 13}


def warm(best: Any, *args: Any) -> Any:
    for _ in range(TIMED + 2):
        best(*args)
    return best


@pytest.mark.parametrize("rows", [6, 8])
def test_derivatives_of_calls_at_capacity_are_those_of_the_function_as_written(rows: int) -> None:
    @jax.custom_vjp
    def special(w: Array) -> Array:
        return w * 2

    special.defvjp(lambda w: (w * 2, None), lambda _, g: (g * 10,))
    best = rx.optimize(lambda w, x: (special(w) + x).sum(), "8", "n 8", bounds={"n": (1, 64)}, dynamic="capacity")
    x = jnp.ones((rows, 8))
    for _ in range(MOST_REFUSED + 1):
        warm(best, W, x)
        np.testing.assert_array_equal(jax.grad(lambda w: best(w, x))(W), np.full(8, 10.0 * rows))


@pytest.mark.parametrize("others", [False, True])
def test_what_looks_like_sizes_that_were_seen_is_checked(others: bool) -> None:
    """Whether all calls or those of some sizes go straight: only one array tells the sizes."""
    best = rx.optimize(lambda x, y: x + y, "n", "n", bounds={"n": (1, 64)}, at=[{"n": 8}, {"n": 6}])
    warm(best, W, W)
    if others:
        warm(best, W[:6], W[:6])
    for _ in range(2 * MOST_REFUSED):
        with pytest.raises(
            ShapeError, match=re.escape("argument `y`, axis 0 should be n = 8 (from argument `x`), got 7")
        ):
            best(W, W[:7])
        with pytest.raises(ShapeError, match="argument `y` should be float32, got int32"):
            best(W, jnp.arange(8))
        with pytest.raises(ShapeError, match="argument `y` is of type str; an array or number is accepted"):
            best(W, "eight")
        with pytest.raises(ShapeError, match="missing a required argument: 'y'"):
            best(W)
        with pytest.raises(ShapeError, match="argument `y` should be an array"):
            best(W, (W, W))
        np.testing.assert_array_equal(best(W, W), 2 * W)


def test_padded_calls_go_straight_but_for_one_in_so_many(entered: Counter[str]) -> None:
    best = warm(optimized(dynamic="capacity", weights=("w",)).prepare(W), ODD)
    given = [(i + 1.0) * (ODD if i % 2 else np.asarray(ODD)) for i in range(2 * TIMED_EVERY)]
    warm(best, given[0])
    entered.clear()
    found = [best(x) for x in given]
    assert entered["_executable_for"] == 2  # of arrays of JAX and of numpy one each
    given[0][:] = 0
    for i, y in enumerate(found):  # no call wrote over the result or the argument of another
        np.testing.assert_allclose(y, scaled(W, (i + 1.0) * ODD), rtol=1e-6)
    statistics = best.strategy.statistics()
    (size,), (executable,) = statistics.sizes, statistics.executables
    assert size.calls == executable.calls == len(given) + 2 * (TIMED + 2) and executable.kind == "capacity"


def test_arrays_fit_on_a_device_as_on_the_host() -> None:
    best = rx.optimize(lambda x: (x * 2, x.sum(0)), "n 8", bounds={"n": (1, 64)}, dynamic="capacity")
    best.strategy.sized._on_host = False
    for x in (ODD, np.asarray(ODD)):
        for _ in range(TIMED + 2):  # also where calls go straight
            both, total = best(x)
            np.testing.assert_array_equal(both, 2 * x)
            np.testing.assert_array_equal(total, np.full(8, 6.0))


def test_arrays_that_padding_would_accept_are_refused() -> None:
    """Numpy would broadcast or convert them."""
    best = rx.optimize(lambda x, y: (x + y, [y.sum()]), "n", "n", bounds={"n": (1, 64)}, dynamic="capacity")
    x = W[:6]
    warm(best, x, x)
    for _ in range(2 * MOST_REFUSED):
        with pytest.raises(
            ShapeError, match=re.escape("argument `y`, axis 0 should be n = 6 (from argument `x`), got 1")
        ):
            best(x, x[:1])
        with pytest.raises(ShapeError, match="argument `y` should be float32, got int32"):
            best(x, jnp.arange(6))
        with pytest.raises(ShapeError, match="argument `y` is of type str; an array or number is accepted"):
            best(x, "six")
        with pytest.raises(ShapeError, match="missing a required argument: 'y'"):
            best(x)
        both, (total,) = best(x, x)
        np.testing.assert_array_equal(both, 2 * x)
        assert total == x.sum()


def test_padded_calls_under_a_trace_and_where_nan_is_looked_for() -> None:
    best = warm(rx.optimize(lambda x: x / x, "n", bounds={"n": (1, 64)}, dynamic="capacity"), W[1:7])
    np.testing.assert_array_equal(jax.jit(lambda k: best(W[1:7]) * k)(2.0), np.full(6, 2.0))
    np.testing.assert_array_equal(jax.vmap(best)(jnp.ones((3, 6))), np.ones((3, 6)))
    with jax.debug_nans(True):
        np.testing.assert_array_equal(best(W[1:7]), np.ones(6))  # in the padding it is 0 / 0
        with pytest.raises(FloatingPointError):
            best(W[:6])


def test_what_has_to_be_converted_does_not_try_to_go_straight_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    best = rx.optimize(lambda x, k: x * k, "n", "", bounds={"n": (1, 64)}, at={"n": 8})
    tried = list[int]()

    def counted(*args: Any) -> Any:
        tried.append(1)
        return check_traced_arguments(*args)

    monkeypatch.setattr("relax_eg.dynamic.bodies.check_traced_arguments", counted)
    for _ in range(20):
        np.testing.assert_array_equal(best(W, 2.0), 2 * W)
    assert len(tried) <= 3 + MOST_REFUSED  # compiled once; what calls began with refused once
    found = best.statistics()
    assert found.compilations == 1 and found.calls == found.executables[0].calls == 20


def test_what_jax_traces_may_go_straight() -> None:
    best = warm(optimized(at={"n": 8}), W, X)
    np.testing.assert_allclose(jax.jit(lambda k: best(W, X) * k)(2.0), 2 * scaled(W, X), rtol=1e-6)
    many = jnp.stack([X, 2 * X])
    np.testing.assert_allclose(jax.vmap(lambda x: best(W, x))(many), jax.vmap(lambda x: scaled(W, x))(many), rtol=1e-6)
    mine, theirs = (jax.grad(lambda w, f=f: f(w, X).sum())(W) for f in (best, scaled))
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_derivatives_are_those_of_the_function_as_written() -> None:
    @jax.custom_vjp
    def special(x: Array) -> Array:
        return x * 2

    special.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 10,))

    def chain(a: Array, b: Array, v: Array) -> Array:
        return (a @ b) @ special(v)

    best = rx.optimize(chain, "n n", "n n", "n", at={"n": 64}, bounds={"n": (1, 64)})
    assert not best.report.kept_as_written
    args = jnp.ones((64, 64)), jnp.ones((64, 64)), jnp.ones(64)
    warm(best, *args)
    np.testing.assert_allclose(jax.grad(lambda v: best(*args[:2], v).sum())(args[2]), np.full(64, 10 * 64 * 64.0))


def test_settings_of_jax_are_those_of_the_call() -> None:
    best = warm(optimized(at={"n": 8}), W, X)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(best(W, X), scaled(W, X), rtol=1e-6)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        best(W, X * np.nan)
    found = best.statistics()
    assert (found.compilations, found.calls) == (1, TIMED + 3)


@pytest.mark.parametrize("sizes", ["8", "n"])
@pytest.mark.parametrize("dynamic", ["auto", "exact", "capacity"])
def test_calls_of_programs_of_64_bits_stay_in_that_mode(sizes: str, dynamic: str) -> None:
    """Nothing of the arguments tells it: these have 32 bits."""
    if (sizes, dynamic) == ("8", "capacity"):
        pytest.skip("no size varies")
    with jax.enable_x64(True):
        best = rx.optimize(lambda x: x.astype(jnp.float64) / 3, sizes, bounds={"n": (1, 64)} if sizes == "n" else None,
                           dynamic=dynamic)  # fmt: skip
    for _ in range(TIMED + 4):
        found = np.asarray(best(W))
        np.testing.assert_allclose(found, np.arange(8.0) / 3, rtol=1e-14)
        assert found.dtype == np.float64


@pytest.mark.parametrize("options", [{"dynamic": "exact"}, {"dynamic": "capacity"}, {"execution": "kernels"}])
def test_what_weights_were_prepared_to_goes_with_them(options: dict[str, Any]) -> None:
    best, (w, a, b, x) = of_family(at=[{"n": 4}], **options)
    for scale in (1, 2):
        held = [scale * y for y in (w, a, b)]
        warm(best, *held, x)
        np.testing.assert_allclose(best(*held, x), adapted(*held, x), rtol=1e-4, atol=1e-4)
        grown = weakref.ref(best._serving._bound.latest)
        assert grown() is not None
        del held
        gc.collect()
        assert grown() is None


def test_a_straight_call_is_a_use() -> None:
    """The executable that was not used for longest goes, and calls that went to it go elsewhere."""
    best = optimized(dynamic=rx.Dynamic(mode="capacity", executables=2))
    eight, four = jnp.ones((8, 8)), jnp.ones((4, 8))
    warm(warm(best, W, eight), W, four)
    assert [r.at["n"] for r in best.statistics().executables] == [8, 4]
    best(W, eight)
    best(W, jnp.ones((16, 8)))
    found = best.statistics()
    assert [r.at["n"] for r in found.executables] == [8, 16] and found.evicted == 1
    np.testing.assert_allclose(best(W, four), scaled(W, four), rtol=1e-6)
    found = best.statistics()
    assert (found.compilations, found.evicted, found.calls) == (4, 2, 2 * (TIMED + 2) + 3)


def test_donated_arrays_are_used_up_by_straight_calls() -> None:
    fast = rx.jit(lambda state, x: (state - x.sum(0), x * 2), donate_argnums=0)
    for n in (3, 4, *[8] * (TIMED + 3)):
        state = jnp.ones(4)
        out, _ = fast(state, jnp.ones((n, 4)))
        assert state.is_deleted() and out[0] == 1 - n


def test_threads_are_counted_all() -> None:
    best = optimized(at={"n": 8})

    def work() -> None:
        for _ in range(100):
            best(W, X)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found = best.statistics()
    assert found.calls == found.executables[0].calls == 800 and found.compilations == 1


def test_reading_a_tally_counts_nothing() -> None:
    tally = Tally()
    assert [tally.total, tally.total] == [0, 0]
    for _ in range(3):
        tally.tick()
    assert [tally.total, tally.total] == [3, 3]


@jax.tree_util.register_dataclass
@dataclass
class Pair:
    left: Any
    right: Any


class Odd:
    """A pytree that only JAX can take apart."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


jax.tree_util.register_pytree_node(Odd, lambda o: (o.parts, None), lambda _, parts: Odd(*parts))


@pytest.mark.parametrize("kind", [Pair, Odd, lambda x, y: {"a": x, "b": y}, lambda x, y: (y, [x])])
@pytest.mark.parametrize("named", [False, True])
def test_sizes_are_read_off_wherever_they_are(
    kind: Callable[[Any, Any], Any], named: bool, entered: Counter[str]
) -> None:
    def total(p: Any, k: Array) -> Array:
        return sum(x.sum() for x in jax.tree_util.tree_leaves(p)) * k

    specs, options = (kind("n", "m 2"), ""), {"at": [{"n": 3, "m": 4}, {"n": 5, "m": 4}]}
    best = rx.optimize(total, **dict(zip("pk", specs)), **options) if named else rx.optimize(total, *specs, **options)  # noqa: B905
    k = jnp.float32(2)

    def call(n: int) -> Any:
        p = kind(jnp.ones(n), jnp.ones((4, 2)))
        return best(p=p, k=k) if named else best(p, k)

    for n in (3, 5) * (TIMED + 2):
        assert call(n) == 2 * (n + 8)
    entered.clear()
    assert [call(3), call(5)] == [22, 26] and not entered


def test_sizes_that_are_no_axis_are_told_by_all_arrays() -> None:
    best = rx.optimize(lambda x, y: (x.sum(), y.sum()), "n+m", "2*m")
    tells = size_key_function(best.module.main.params, jax.tree_util.tree_structure(((0, 0), {})))
    shapes = [((3,), (2,)), ((3,), (4,)), ((5,), (2,))]
    keys = [tells(tuple(np.ones(s, np.float32) for s in pair), {}) for pair in shapes]
    assert len(set(keys)) == 3
    with pytest.raises(LookupError):
        tells((np.ones(3),), {})
    with pytest.raises(LookupError):
        tells((np.ones(3), 2.0), {})


def test_an_executable_is_for_its_arguments_alone() -> None:
    x = jax.ShapeDtypeStruct((3,), np.float32)
    tree = jax.tree_util.tree_structure((0,))
    assert check_traced_arguments([x], tree, (W[:3],))[0].shape == (3,)
    for given in (((W[:4],)), (jnp.arange(3),), (W[:3], W[:3]), W[:3], (jnp.asarray(1.0) * np.ones(()),)):
        with pytest.raises(UnseenError):
            check_traced_arguments([x], tree, given)


def test_one_way_to_write_a_call_is_traced(entered: Counter[str]) -> None:
    best: Optimized = rx.optimize(scaled, "8", "8 8")
    for _ in range(2):
        best(W, X), best(W, x=X), best(x=X, w=W)
    assert entered["check"] == 1
    ready = rx.optimize(adapted, "4 4", "4 2", "2 4", "3 4", weights=("w", "a")).prepare(
        jnp.ones((4, 4)), jnp.ones((4, 2))
    )
    b, x = jnp.ones((2, 4)), jnp.ones((3, 4))
    entered.clear()
    for _ in range(2):
        ready(b, x), ready(b, x=x), ready(x=x, b=b)
    assert entered["sizes"] == 1
