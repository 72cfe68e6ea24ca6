"""Optimized functions whose sizes vary: which executables serve their calls, and what is told of it."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.dynamic.bodies import Body
from relax_eg.dynamic.fitting import CapacityFit
from relax_eg.dynamic.runtime import TIMED_EVERY
from relax_eg.errors import BoundsError, OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("shared_searches")

Array = Any
W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def attend(w: Array, x: Array) -> Array:
    """Sums over a size, and keeps it: (b, s, 8) -> (b, s, 8), (b, 8)."""
    y = jax.nn.softmax(x @ w @ jnp.swapaxes(x, 1, 2), axis=-1) @ x
    return y, jnp.mean(y, axis=1)


def values(b: int, s: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((b, s, 8)).astype(np.float32)


def same(x: Any, y: Any) -> None:
    assert jax.tree_util.tree_structure(x) == jax.tree_util.tree_structure(y)
    for p, q in zip(jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y), strict=True):
        assert jax.typeof(p) == jax.typeof(q)
        np.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-4)


def optimized(fn: Any = attend, *specs: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"dynamic": "capacity", "bounds": {"b": (1, 4), "s": (1, 20)}, **options}
    best = rx.optimize(fn, *(specs or ("8 8", "b s 8")), **given)
    assert isinstance(best.strategy, AtCapacity)
    return best


def test_many_sizes_in_few_executables() -> None:
    best = optimized()
    for b, s in [(1, 5), (1, 8), (2, 3), (1, 6), (2, 4), (1, 7)]:
        same(best(W, values(b, s)), jax.jit(attend)(W, values(b, s)))
        same(best(W, jnp.asarray(values(b, s))), jax.jit(attend)(W, values(b, s)))
    found = best.statistics()
    assert [dict(r.at) for r in found.executables] == [{"b": 2, "s": 4}, {"b": 1, "s": 8}]
    assert (found.compilations, found.evicted, found.calls) == (2, 0, 12)
    assert {r.kind for r in found.executables} == {"capacity"} and sum(r.calls for r in found.executables) == 12
    assert {r.sizes["s"]: r.waste for r in found.sizes if r.sizes["b"] == 1} == {5: 0.375, 8: 0, 6: 0.25, 7: 0.125}


def test_what_a_capacity_holds_besides_is_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_nan(self: CapacityFit, operands: list[Any], jit: Any, done: Any = ()) -> list[Any]:
        grown = list(operands)
        for i, shape, inside in self.pads:
            grown[i] = np.full(shape, np.nan, np.float32)
            grown[i][inside] = operands[i]
        return grown

    monkeypatch.setattr(CapacityFit, "pad", with_nan)
    same(optimized()(W, values(3, 5)), jax.jit(attend)(W, values(3, 5)))


def test_a_scan_over_all_but_one_element() -> None:
    """Its stacked results are weakly typed, and of one element there is no step."""

    def decayed(x: Array) -> Array:
        return jax.lax.scan(lambda c, v: (0.9 * c + v, c), 0.0, x[1:])

    best = optimized(decayed, "s", bounds={"s": (1, 20)})
    for s in (9, 1, 2, 6):
        same(best(np.arange(s, dtype=np.float32)), jax.jit(decayed)(np.arange(s, dtype=np.float32)))
    assert {r.kind for r in best.statistics().executables} == {"capacity"}


def test_sizes_outside_the_bounds_are_refused_before_anything_runs() -> None:
    best = optimized()
    with pytest.raises(BoundsError, match=r"attend\(\): s = 21 exceeds its bound 20 \(declared in optimize\(bounds="):
        best(W, values(1, 21))
    with pytest.raises(BoundsError, match=r"attend\(\): s = 0 is below its bound 1"):
        best(W, values(1, 0))
    with pytest.raises(ShapeError, match=r"attend\(\): argument `x`, axis 2 should be 8, got 7"):
        best(W, values(1, 4)[..., :7])
    with pytest.raises(ShapeError, match=r"attend\(\): argument `x` should be float32, got int32"):
        best(W, np.ones((1, 4, 8), np.int32))
    assert best.statistics().compilations == 0


def test_dims_that_must_agree() -> None:
    best = optimized(lambda x, y: x + y, "s", "s", bounds={"s": (1, 9)})
    with pytest.raises(ShapeError, match=re.escape("argument `y`, axis 0 should be s = 4 (from argument `x`), got 5")):
        best(np.ones(4, np.float32), np.ones(5, np.float32))


def test_weights_are_prepared_once_for_all_capacities() -> None:
    best = optimized(weights=("w",))
    ready, other = best.prepare(jnp.asarray(W)), best.prepare(jnp.asarray(2 * W))
    for s in (3, 4, 7, 8):
        same(ready(values(1, s)), jax.jit(attend)(W, values(1, s)))
        same(other(values(1, s)), jax.jit(attend)(2 * W, values(1, s)))
        same(best(jnp.asarray(W), values(1, s)), jax.jit(attend)(W, values(1, s)))
    assert len({id(ready.strategy.sized), id(other.strategy.sized)}) == 1


def test_programs_that_differ_from_what_was_written() -> None:
    def chain(a: Array, b: Array, x: Array) -> Array:
        return jnp.sum((a @ b) @ x, axis=1)

    given = [np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) for i in range(2)]
    best = optimized(chain, "64 64", "64 64", "64 n", bounds={"n": (1, 32)}, at={"n": 2}, weights=("a", "b"))
    assert not best.report.kept_as_written
    ready = best.prepare(*map(jnp.asarray, given))
    for n in (3, 4, 5):
        x = np.random.default_rng(n).standard_normal((64, n)).astype(np.float32)
        np.testing.assert_allclose(ready(x), given[0] @ given[1] @ x.sum(1), rtol=1e-3, atol=1e-2)
    assert [dict(r.at) for r in best.statistics().executables] == [{"n": 4}, {"n": 8}]


def test_auto_runs_the_first_sizes_exactly_and_others_at_capacity() -> None:
    best = optimized(dynamic="auto")
    for s in (5, 6, 7, 5):
        same(best(W, values(1, s)), jax.jit(attend)(W, values(1, s)))
    rows = {r.kind: dict(r.at) for r in best.statistics().executables}
    assert rows == {"exact": {"b": 1, "s": 5}, "capacity": {"b": 1, "s": 8}}


def test_sizes_that_were_named_have_executables_of_their_own() -> None:
    best = optimized(dynamic=rx.Dynamic(mode="auto", executables=3), at=[{"b": 2, "s": 5}, {"b": 1, "s": 8}])
    for b, s in [(2, 6), (2, 5), (1, 8), (1, 7), (2, 5)]:
        same(best(W, values(b, s)), jax.jit(attend)(W, values(b, s)))
    found = best.statistics()
    assert [(r.kind, r.why, tuple(r.at.values()), r.calls) for r in found.executables] == [
        ("exact", "named", (1, 8), 1),
        ("capacity", "call", (1, 8), 1),
        ("exact", "named", (2, 5), 2),
    ]
    assert (found.compilations, found.evicted) == (4, 1)
    assert {tuple(r.sizes.values()): (r.exact, r.waste) for r in found.sizes} == {
        (2, 6): (False, 0.25),
        (2, 5): (True, 0),
        (1, 8): (True, 0),
        (1, 7): (False, 0.125),
    }


def test_what_is_named_is_compiled_ahead_too() -> None:
    best = optimized(dynamic=rx.Dynamic(mode="auto", capacities="bound"), at={"b": 4, "s": 9})
    best.compile_ahead()
    assert [(r.kind, r.why, dict(r.at)) for r in best.statistics().executables] == [
        ("exact", "ahead", {"b": 4, "s": 9}),
        ("capacity", "ahead", {"b": 4, "s": 20}),
    ]
    same(best(W, values(4, 9)), jax.jit(attend)(W, values(4, 9)))
    assert best.statistics().compilations == 2


def test_sizes_are_named_where_all_are() -> None:
    """Of some sizes `at` tells nothing; those of the weights are known once these are bound."""
    given: dict[str, Any] = {"dynamic": "auto", "bounds": {}, "weights": ("w",)}
    partly = optimized(attend, "8 8", "b s 8", at={"s": 5}, **given)
    assert partly.strategy.sized.named_sizes == []
    best = optimized(lambda w, x: jnp.sum(x @ w, axis=0), "d d", "s d", at=[{"s": 5}, {"s": 6, "d": 4}], **given)
    ready = best.prepare(jnp.asarray(W))
    for s in (5, 6):
        np.testing.assert_allclose(ready(values(1, s)[0]), (values(1, s)[0] @ W).sum(0), rtol=1e-4, atol=1e-5)
    assert [(r.kind, dict(r.at)) for r in best.statistics().executables] == [
        ("exact", {"d": 8, "s": 5}),
        ("capacity", {"d": 8, "s": 8}),
    ]
    # Who asks for capacities has them everywhere.
    assert optimized(at={"b": 2, "s": 5}).strategy.sized.named_sizes == []


def test_hot_sizes_get_an_executable_of_their_own_and_keep_it_if_it_is_faster() -> None:
    for own, mode in ((0.5, "hot"), (2.0, "settled")):
        best = optimized(dynamic="auto")
        best(W, values(1, 8))
        sized = best.strategy.sized
        for _ in range(4):
            best(W, values(1, 5))
        call = next(c for c in sized._calls.values() if c.sizes["s"] == 5)
        ((_, at_capacity),) = [i for i in best._executables.items() if not i[1].exact]
        assert call.mode == "capacity"
        at_capacity.seconds, call.share = 1.0, 0.5  # far more than compiling takes
        while call.mode == "capacity":  # one call in so many looks at what it could save
            best(W, values(1, 5))
        assert call.mode == "trial"
        at_capacity.seconds = 1.0
        ((_, mine),) = [i for i in best._executables.items() if i[1].why == "hot"]
        for _ in range(3):
            best(W, values(1, 5))
        mine.seconds = own
        same(best(W, values(1, 5)), jax.jit(attend)(W, values(1, 5)))
        best(W, values(1, 5))
        assert call.mode == mode
        assert best.statistics().compilations == 3


def test_sizes_are_hot_where_padding_arrays_takes_long() -> None:
    best = optimized(dynamic="auto", at={"b": 1, "s": 8})
    best.strategy.sized._predict = lambda variant, at: 1.0
    _ = [best(W, values(1, 5)) for _ in range(4)]
    ((_, at_capacity),) = best._executables.items()
    assert 0 < at_capacity.handled < at_capacity.seconds
    for handled, kinds in ((0.0, {"capacity"}), (5e2, {"capacity", "exact"})):
        at_capacity.seconds, at_capacity.handled = 1e3, handled
        _ = [best(W, values(1, 5)) for _ in range(TIMED_EVERY)]
        assert {r.kind for r in best.statistics().executables} == kinds


def test_padding_is_priced_when_that_could_matter() -> None:
    """Pricing a program takes longer than most calls of it."""
    best = optimized(dynamic="auto", at={"b": 1, "s": 8})
    sized, asked = best.strategy.sized, list[int]()
    predict = sized._predict
    sized._predict = lambda variant, at: (asked.append(at["s"]), predict(variant, at))[1]
    for s in (5, 6, 7):
        for _ in range(6):
            best(W, values(1, s))
    assert asked == [] and best.statistics().compilations == 1
    ((_, at_capacity),) = best._executables.items()
    at_capacity.seconds = 1e3
    _ = [best(W, values(1, 5)) for _ in range(TIMED_EVERY)]
    assert asked == [5, 8]


def test_executables_are_bounded() -> None:
    best = optimized(dynamic=rx.Dynamic(mode="capacity", executables=2))
    for s in (2, 4, 8, 16, 2):
        same(best(W, values(1, s)), jax.jit(attend)(W, values(1, s)))
    found = best.statistics()
    assert [r.at["s"] for r in found.executables] == [16, 2]
    assert (found.compilations, found.evicted) == (5, 3)


def test_ahead_of_calls() -> None:
    best = optimized(dynamic=rx.Dynamic(mode="capacity", capacities={"b": "bound", "s": 8}), weights=("w",))
    best.compile_ahead()
    ahead = best.statistics()
    assert [dict(r.at) for r in ahead.executables] == [{"b": 4, "s": 8}, {"b": 4, "s": 16}, {"b": 4, "s": 20}]
    assert all(r.memory is not None and r.memory[0] > 4 * 4 * 8 * r.at["s"] and r.calls == 0 for r in ahead.executables)
    ready = best.prepare(jnp.asarray(W))
    for b, s in [(1, 3), (2, 17), (4, 9)]:
        same(ready(values(b, s)), jax.jit(attend)(W, values(b, s)))
    assert best.statistics().compilations == 3
    ready.compile_ahead({"b": 1, "s": 5})
    assert best.statistics().compilations == 3


def test_ahead_refused() -> None:
    best = optimized()
    with pytest.raises(
        OptionError, match=re.escape("compile_ahead({'s': 4}): sizes of attend(), {'b': 128, 's': 128}")
    ):
        best.compile_ahead({"s": 4})
    with pytest.raises(BoundsError, match="s = 400 exceeds its bound 20"):
        best.compile_ahead({"b": 1, "s": 400})
    with pytest.raises(OptionError, match=r"s of attend\(\) has no upper bound"):
        optimized(bounds={"b": (1, 4)}, at={"b": 1, "s": 8}).compile_ahead()


def test_in_the_background_a_wider_executable_serves_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    best = optimized(dynamic=rx.Dynamic(mode="capacity", background=True))
    best.compile_ahead({"b": 4, "s": 20})
    held: list[Any] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: held.append(thread))
    same(best(W, values(1, 5)), jax.jit(attend)(W, values(1, 5)))
    same(best(W, values(1, 6)), jax.jit(attend)(W, values(1, 6)))
    assert best.statistics().compilations == 1 and len(held) == 2
    for thread in held:
        thread.run()
    same(best(W, values(1, 5)), jax.jit(attend)(W, values(1, 5)))
    assert [(dict(r.at), r.calls) for r in best.statistics().executables] == [
        ({"b": 4, "s": 20}, 2),
        ({"b": 1, "s": 8}, 1),
    ]


def test_what_cannot_run_at_capacity_runs_exactly_and_says_why() -> None:
    def lengths(x: Array) -> Array:
        return jnp.linalg.svd(x, compute_uv=False)

    best = optimized(lengths, "n 3", bounds={"n": (3, 16)})
    assert best.report.at_exact_sizes and "runs at its very sizes: " in str(best.report)
    x = values(1, 5)[0, :, :3]
    np.testing.assert_allclose(best(x), lengths(x), rtol=1e-4, atol=1e-5)
    found = best.statistics()
    assert [r.kind for r in found.executables] == ["exact"] and found.exact
    assert "runs at its very sizes: " in str(found) and "test_at_capacity.py" in str(found)


def test_what_jax_traces_runs_at_its_very_sizes() -> None:
    best = optimized()
    many = np.stack([values(2, 5, seed) for seed in range(3)])
    same(jax.vmap(lambda x: best(W, x))(many), jax.vmap(lambda x: attend(W, x))(many))
    same(jax.grad(lambda w: best(w, values(1, 3))[1].sum())(W), jax.grad(lambda w: attend(w, values(1, 3))[1].sum())(W))
    same(jax.jit(best)(W, values(1, 3)), jax.jit(attend)(W, values(1, 3)))
    same(jax.jit(lambda k: best(W, values(1, 3))[1] * k)(2.0), attend(W, values(1, 3))[1] * 2)
    assert best.statistics().compilations == 0


def test_settings_of_jax_are_those_of_the_call() -> None:
    best = optimized(lambda x: x @ x.T, "s 8", bounds={"s": (1, 20)})
    x = values(1, 6)[0]
    plain = best(x)
    with jax.default_matmul_precision("highest"):
        same(best(x), plain)
    assert best.statistics().compilations == 1


def test_no_padding_costs_no_copy() -> None:
    best = optimized(lambda x: x * 2, "s 8", bounds={"s": (1, 20)}, dynamic=rx.Dynamic(mode="capacity", capacities=[6]))
    x = jnp.asarray(values(1, 6)[0])
    same(best(x), 2 * x)
    (call,) = best.strategy.sized._calls.values()
    assert call.fit == CapacityFit((), ()) and call.fit.pad([x], None)[0] is x


def test_statistics_as_text_and_data() -> None:
    best = optimized()
    best(W, values(3, 5))
    found = best.statistics()
    text = str(found)
    assert "attend   dynamic='capacity', capacities b: powers of two; s: powers of two" in text
    assert "1 call of 1 size, 53% padding; 1 executable compiled in " in text
    assert re.search(r"capacity b=4, s=8 +call +1 ", text) and re.search(r"b=3, s=5 +b=4, s=8 +1 +53%", text)
    data = json.loads(found.to_json())
    assert data["schema"] == "relax_eg.dynamic/1" and data["sizes"][0]["sizes"] == {"b": 3, "s": 5}


def test_exact_is_as_jax_compiles() -> None:
    best = rx.optimize(attend, "8 8", "b s 8", dynamic="exact")
    assert not isinstance(best.strategy, AtCapacity)
    same(best(W, values(1, 5)), jax.jit(attend)(W, values(1, 5)))


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        (("8 8", "b s 8"), {"dynamic": "exact"}),
        (("8 8", "b s 8"), {"numerics": "exact"}),
        (("8 8", "b s 8"), {"execution": "kernels"}),
        (("8 8", "2 4 8"), {}),
    ],
)
def test_what_runs_at_its_very_sizes_has_no_executables_of_its_own(specs: Any, options: dict[str, Any]) -> None:
    best = rx.optimize(attend, *specs, rules=rx.RuleSet("none"), **options)
    with pytest.raises(OptionError) as e:
        best.compile_ahead()
    text = str(e.value)
    assert text.startswith("compile_ahead(): attend() runs at its very sizes, for each of which JAX compiles it")
    tells = "accepted: a function with sizes that vary, optimized with dynamic='auto' or 'capacity'" in text
    assert tells
    found = best.statistics()
    assert (found.executables, found.sizes) == ((), ())


def test_axes_whose_lengths_are_expressions() -> None:
    """A capacity is one of n; the axis has 2*n + 1 elements, of which so many count as n says."""

    def odd(x: Array) -> Array:
        return jnp.sum(x), jnp.cumsum(x)[::-1], jnp.argmax(x), jnp.concatenate([x, x[:2]]).reshape(-1, 1) * x[-1]

    best = optimized(odd, "2*n+1", bounds={"n": (1, 6)})
    for n in (3, 1, 4, 5, 6):
        x = -1 - np.abs(values(1, 2 * n + 1)[0, :, 0])  # a zero of the padding would be the largest
        same(best(x), jax.jit(odd)(x))
    found = best.statistics()
    assert sorted(r.at["n"] for r in found.executables) == [1, 4, 6] and not found.exact
    assert {r.kind for r in found.executables} == {"capacity"}
    with pytest.raises(BoundsError, match=r"odd\(\): n = 7 exceeds its bound 6"):
        best(np.ones(15, np.float32))
    with pytest.raises(BoundsError, match=r"odd\(\): n = 0 is below its bound 1"):
        best(np.ones(1, np.float32))
    with pytest.raises(ShapeError, match=r"axis 0 should be 2\*n \+ 1 for some n >= 0, got 8"):
        best(np.ones(8, np.float32))
    assert best.statistics().compilations == 3


def test_capacity_refused_where_there_is_not_one_program() -> None:
    with pytest.raises(OptionError, match=r"dynamic='capacity': attend\(\) runs kernel by kernel; 'auto' and 'exact'"):
        rx.optimize(attend, "8 8", "b s 8", dynamic="capacity", execution="kernels")


def test_what_cannot_be_compiled_at_capacity_runs_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    best = optimized()

    def broken(*_: Any) -> Any:
        raise TypeError("no such lowering")

    monkeypatch.setattr("relax_eg.dynamic.bodies.Body.at_capacity", broken)
    for s in (3, 5):
        same(best(W, values(1, s)), jax.jit(attend)(W, values(1, s)))
    found = best.statistics()
    assert [r.kind for r in found.executables] == ["exact", "exact"]
    assert found.exact == {"attend": "internal TypeError: no such lowering"}


def test_jax_that_looks_for_nan_sees_no_padding() -> None:
    best = optimized(lambda x: 1 / x, "s", bounds={"s": (1, 20)})
    with jax.debug_nans(True), jax.debug_infs(True):
        same(best(np.ones(5, np.float32)), jnp.ones(5))
    assert best.statistics().compilations == 0


def test_every_bit_is_kept_where_that_is_asked_for() -> None:
    assert not isinstance(rx.optimize(attend, "8 8", "b s 8", numerics="exact").strategy, AtCapacity)


def test_what_nobody_expected_is_told_and_memory_that_ran_out_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> Any:
        def at_capacity(*_: Any) -> Any:
            raise error

        return at_capacity

    best = optimized()
    monkeypatch.setattr(Body, "at_capacity", fails(MemoryError("no room")))
    with pytest.raises(MemoryError, match="no room"):
        best(W, values(1, 5))
    monkeypatch.setattr(Body, "at_capacity", fails(TypeError("boom")))
    with pytest.warns(UserWarning, match="attend runs at its very sizes: internal TypeError: boom") as told:
        same(best(W, values(1, 5)), jax.jit(attend)(W, values(1, 5)))
        same(best(W, values(1, 6)), jax.jit(attend)(W, values(1, 6)))
    assert len(told) == 1
    assert "internal TypeError: boom" in str(best.statistics())


# --- arrays that stay at capacity ---


def remember(cache: Array, x: Array) -> Array:
    """One row more, and what it finds among all rows: (t, 8), (8,) -> (t + 1, 8), (8,)."""
    cache = jnp.concatenate([cache, x[None]])
    return cache, jax.nn.softmax(cache @ x) @ cache


def remembering(**options: Any) -> Any:
    dynamic = rx.Dynamic(**{"mode": "capacity", "capacities": 8, "padded": True, "donated": ["cache"], **options})
    return optimized(remember, "t 8", "8", bounds={"t": (1, 100)}, dynamic=dynamic, measure="off")


def test_a_cache_stays_where_it_is_until_its_capacity_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    padded: list[int] = []
    whole = CapacityFit.pad

    def counted(self: CapacityFit, operands: Any, jit: Any, done: Any = ()) -> Any:
        padded.append(len(self.pads) - len(done))
        return whole(self, operands, jit, done)

    best, rows = remembering(), values(1, 30)[0]
    monkeypatch.setattr(CapacityFit, "pad", counted)
    cache, plain, places = rows[:1], jnp.asarray(rows[:1]), list[int]()
    for x in rows[1:20]:
        before = cache
        cache, found = best(cache, x)
        plain, wanted = jax.jit(remember)(plain, x)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(cache, plain)
        if isinstance(before, rx.types.PaddedArray):
            assert before.is_deleted()
        if isinstance(cache, rx.types.PaddedArray):
            places.append(cache.array.unsafe_buffer_pointer())
            assert cache.shape == plain.shape and cache.array.shape[0] % 8 == 1
    # PaddedArray for 1 row, and where 9 and 17 rows fill the places: 8 of them, and one that a call adds.
    assert [i for i, n in enumerate(padded) if n] == [0, 8, 16] and best.statistics().compilations == 3
    assert len(set(places[:7])) == 1 == len(set(places[7:14]))


def test_a_padded_array_is_taken_by_any_function_and_copied_by_other_code() -> None:
    best, rows = remembering(donated=None), values(1, 30)[0]
    cache, _ = best(rows[:3], rows[3])
    assert isinstance(cache, rx.types.PaddedArray) and cache.dtype == np.float32 and cache.ndim == 2
    wanted = np.asarray(rows[:4])
    for other in (
        rx.optimize(lambda x: x * 2, "t 8", dynamic="exact"),
        rx.optimize(lambda x: x * 2, "t 8", dynamic=rx.Dynamic(mode="capacity", capacities=16)),
        rx.optimize(lambda x: x * 2, "4 8"),
    ):
        np.testing.assert_array_equal(other(cache), 2 * wanted)
    np.testing.assert_array_equal(jnp.asarray(cache), wanted)
    np.testing.assert_array_equal(cache.cut(), wanted)
    assert not cache.is_deleted()
    with pytest.raises(ShapeError, match=r"argument `x` should be int32, got float32"):
        rx.optimize(lambda x: x * 2, "t 8 @ int32", dynamic="capacity")(cache)
    with pytest.raises(ValueError, match=r"the value of a padded array is always a copy"):
        np.array(cache, copy=False)


def test_what_was_cut_outlives_the_call_that_uses_the_array_up() -> None:
    best, rows = remembering(), values(1, 30)[0]
    cache, _ = best(rows[:1], rows[1])
    kept = np.asarray(cache), cache.cut()
    best(cache, rows[2])
    for x in kept:
        np.testing.assert_array_equal(x, rows[:2])
    with pytest.raises(RuntimeError, match=r"deleted"):
        cache.cut()


def test_exact_calls_and_traced_ones_return_arrays() -> None:
    rows = values(1, 30)[0]
    best = remembering()
    cache, _ = best(rows[:3], rows[3])
    with jax.debug_nans(True):
        again, _ = best(cache, rows[4])
    assert isinstance(again, jax.Array) and not cache.is_deleted()
    np.testing.assert_array_equal(again, rows[:5])
    traced, _ = jax.jit(lambda c, x: best(c, x))(jnp.asarray(rows[:3]), rows[3])
    np.testing.assert_array_equal(traced, rows[:4])


def test_options_of_arrays_that_stay_at_capacity_are_checked() -> None:
    with pytest.raises(OptionError, match=r"calls of remember\(\) give no argument 'caches'; they give cache, x"):
        remembering(donated=["caches"])
    with pytest.raises(OptionError, match=r"Dynamic\(donated=3\): a list of names of arguments is accepted"):
        rx.Dynamic(donated=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"Dynamic\(padded='yes'\): True or False is accepted"):
        rx.Dynamic(padded="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"jit: Dynamic\(padded=, donated=\): rx.optimize takes them"):
        rx.jit(remember, dynamic=rx.Dynamic(padded=True))
    with pytest.raises(OptionError, match=r"Dynamic\(padded=\.\.\.\): remember\(\) runs kernel by kernel"):
        rx.optimize(remember, "t 8", "8", execution="kernels", dynamic=rx.Dynamic(mode="exact", padded=True))


def test_a_saved_function_leaves_arrays_at_capacity_as_it_was_told(tmp_path: Any) -> None:
    best, rows = remembering(), values(1, 30)[0]
    best.save(tmp_path / "m.rxe")
    cache, _ = rx.load(tmp_path / "m.rxe")(rows[:1], rows[1])
    assert isinstance(cache, rx.types.PaddedArray)
    again, _ = best(cache, rows[2])
    assert cache.is_deleted()
    np.testing.assert_array_equal(again, rows[:3])
    plain, _ = rx.load(tmp_path / "m.rxe", dynamic=rx.Dynamic(padded=False))(rows[:1], rows[1])
    assert isinstance(plain, jax.Array)
