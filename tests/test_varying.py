"""`rx.jit` where sizes vary: found out from the calls, or said by `dims`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.jitting import varying
from relax_eg.dynamic import fitting
from relax_eg.dynamic.fitting import CapacityFit
from relax_eg.errors import BoundsError, OptionError, ShapeError

Array = Any

pytestmark = pytest.mark.usefixtures("no_fallback")


def values(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def same(x: Any, y: Any) -> None:
    assert jax.tree_util.tree_structure(x) == jax.tree_util.tree_structure(y)
    for p, q in zip(jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y), strict=True):
        assert jax.typeof(p) == jax.typeof(q)
        np.testing.assert_allclose(p, q, rtol=1e-4, atol=1e-4)


def layer(p: dict[str, Array], x: Array, scale: float = 1.0) -> dict[str, Array]:
    """Softmax over a size."""
    return {"y": jax.nn.softmax((x @ p["w"]).sum(-1) * scale)}


P = {"w": values(4, 4)}


def jitted(fn: Any, **options: Any) -> Any:
    """`rx.jit` without rules: when what was found serves a call is tested, not what is found."""
    return rx.jit(fn, rules=rx.RuleSet("none"), **options)


def test_a_second_size_is_optimized_for_all() -> None:
    fast = jitted(layer)
    same(fast(P, values(3, 4)), jax.jit(layer)(P, values(3, 4)))
    assert len(fast.optimized) == 1 and fast.statistics().dynamic == "exact"
    for n in (5, 6, 3, 7, 9, 8):
        same(fast(P, values(n, 4)), jax.jit(layer)(P, values(n, 4)))
    assert len(fast.optimized) == 2
    found = fast.statistics()
    assert found is not None and found.calls == 5 and found.compilations == 2
    assert {r.kind for r in found.executables} == {"capacity"}


def test_what_the_function_raises_for_symbolic_sizes_alone_concerns_nobody(recwarn: pytest.WarningsRecorder) -> None:
    """Such a function is compiled for each size, as one that JAX cannot trace for symbolic sizes: without a warning."""

    def padded(x: Array) -> Array:
        if not isinstance(x.shape[0], int):
            raise ValueError("a number is needed")
        return jnp.pad(x, (0, (1 << (x.shape[0] - 1).bit_length()) - x.shape[0]))

    for fn in (padded, lambda x: np.zeros(x.shape[0]) + x, lambda x: x * x.shape[0].bit_length()):
        fast = jitted(fn)
        for n in (3, 5, 6):
            same(fast(values(n)), jax.jit(fn)(values(n)))
        assert not recwarn


def test_axes_that_change_together_are_one_size() -> None:
    fast = jitted(lambda x, y: x @ y)
    for n in (3, 5, 7):
        same(fast(values(2, n), values(n, 2)), values(2, n) @ values(n, 2))
    (found,) = [b for b in fast.optimized[1:]]
    assert len(found.module.main.size_variables) == 1


def test_axes_that_part_later_are_sizes_of_their_own() -> None:
    fast = jitted(lambda x, y: jnp.concatenate([x, y]).sum())
    for n, m in ((3, 3), (5, 5), (5, 7), (4, 9), (6, 6)):
        same(fast(np.ones(n, np.float32), np.ones(m, np.float32)), jnp.float32(n + m))
    assert [len(b.module.main.size_variables) for b in fast.optimized] == [0, 1, 2]


def test_other_ranks_and_dtypes_are_other_functions() -> None:
    fast = jitted(lambda x: x + x)
    for x in (values(3), values(3, 4), values(5), values(5, 4), values(3).astype(np.int32)):
        same(fast(x), x + jnp.asarray(x))
    assert len(fast.optimized) == 5


def test_static_arguments_keep_functions_apart() -> None:
    def power(x: Array, k: int, *, flip: bool = False) -> Array:
        return (-x if flip else x) ** k

    fast = jitted(power, static_argnums=1, static_argnames="flip")
    for k in (1, 2):
        for flip in (False, True):
            for n in (3, 4, 6):
                same(fast(values(n), k, flip=flip), power(jnp.asarray(values(n)), k, flip=flip))
    assert len(fast.optimized) == 8


def test_a_function_that_differs_by_size_is_compiled_for_each() -> None:
    fast = jitted(lambda x: x * 2 if x.shape[0] > 4 else x * 3)
    for n, factor in ((3, 3), (6, 2), (4, 3)):
        same(fast(values(n)), factor * jnp.asarray(values(n)))
    assert len(fast.optimized) == 3


def test_broadcasting_that_a_size_of_one_had() -> None:
    fast = jitted(lambda x, y: x + y)
    for n in (1, 4, 1):
        same(fast(values(n, 4)[:, 0], values(4)), jnp.asarray(values(n, 4)[:, 0]) + values(4))


def test_what_jax_traces_is_compiled_for_its_shapes() -> None:
    fast = jitted(layer)
    for n in (3, 5):
        fast(P, values(n, 4))
    grad = jax.grad(lambda x, f: f(P, x)["y"][0])
    np.testing.assert_allclose(grad(values(7, 4), fast), grad(values(7, 4), layer), rtol=1e-4, atol=1e-6)
    same(jax.jit(fast)(P, values(6, 4)), layer(P, values(6, 4)))
    same(jax.vmap(lambda x: fast(P, x))(values(2, 8, 4)), jax.vmap(lambda x: layer(P, x))(values(2, 8, 4)))
    assert fast.lower(P, values(9, 4)).compile() is not None


def test_exact_compiles_for_each_combination() -> None:
    fast = jitted(layer, dynamic="exact")
    for n in (3, 5, 6):
        same(fast(P, values(n, 4)), jax.jit(layer)(P, values(n, 4)))
    assert len(fast.optimized) == 3 and fast.statistics().dynamic == "exact"


def test_dims_say_it_beforehand() -> None:
    fast = jitted(
        layer,
        dims=[{"w": "4 4"}, "s 4", None],
        static_argnames="scale",
        dynamic=rx.Dynamic(mode="capacity", capacities=4),
    )
    for n in (3, 5, 6, 8):
        same(fast(P, values(n, 4), scale=2.0), jax.jit(layer)(P, values(n, 4), 2.0))
    found = fast.statistics()
    assert len(fast.optimized) == 1 and found is not None
    assert [dict(r.at) for r in found.executables] == [{"s": 4}, {"s": 8}]


def test_calls_are_checked_against_dims_and_bounds() -> None:
    fast = jitted(lambda x, y: x * y, dims=["s", "s"], bounds={"s": (1, 9)})
    with pytest.raises(ShapeError, match=re.escape("argument `y`, axis 0 should be s = 4 (from argument `x`), got 5")):
        fast(values(4), values(5))
    with pytest.raises(BoundsError, match="s = 10 exceeds its bound 9"):
        fast(values(10), values(10))


def test_options_refused_where_they_are_written() -> None:
    with pytest.raises(
        OptionError, match="dynamic='often': one of 'exact', 'capacity', 'auto', or a Dynamic is accepted"
    ):
        jitted(layer, dynamic="often")
    with pytest.raises(OptionError, match="names sizes, and without dims there are no names; pass dims"):
        jitted(layer, dynamic=rx.Dynamic(capacities={"s": 8}))


def test_a_function_that_differs_by_size_is_optimized_for_each_side() -> None:
    fast = jitted(lambda x: jnp.cumsum(x @ x.T) * 2 if x.shape[0] > 4 else jnp.cumsum(x @ x.T))
    for n in (3, 6, 4, 2, 9, 7, 3, 5):
        x = values(n, 4)
        same(fast(x), jnp.cumsum(x @ x.T) * (2 if n > 4 else 1))
    assert len(fast.optimized) == 3  # the first call's sizes, and one program for each side


def test_a_size_that_is_singled_out_is_a_program_of_its_own() -> None:
    """JAX takes sizes that it cannot tell to be equal to differ."""

    def singled(x: Array, y: Array) -> Array:
        x = x[0] if x.shape[0] == 3 else x.sum(0)
        return x * 2 if x.shape != y.shape else x

    fast = jitted(singled)
    for n in (5, 7, 3, 4, 6, 3):
        same(fast(values(n, 4, 2), values(4, n)), singled(jnp.asarray(values(n, 4, 2)), values(4, n)))
        same(fast(values(n, 4, 2), values(4, 2)), singled(jnp.asarray(values(n, 4, 2)), values(4, 2)))


def test_a_slice_that_reaches_no_end_of_its_array() -> None:
    def embedded(p: Array, x: Array) -> Array:
        return jax.nn.softmax(x + p[: x.shape[0]])

    fast = jitted(embedded)
    for n in (3, 9, 16, 4):
        same(fast(values(16, 4), values(n, 4)), embedded(values(16, 4), values(n, 4)))
    assert len(fast.optimized) == 2
    with pytest.raises(TypeError, match="incompatible shapes"):  # as without us
        fast(values(16, 4), values(17, 4))
    same(fast(values(16, 4), values(5, 4)), embedded(values(16, 4), values(5, 4)))


def framed(x: Array) -> Array:
    """Chunks, as many as there are, and rows of a number of chunks."""
    padded = jnp.pad(x, ((0, -x.shape[0] % 4), (0, 0)))
    return jax.nn.softmax(padded.reshape(-1, 4, 3).sum(1), axis=0)


DIVIDING: list[tuple[Any, Any, int]] = [
    # The function, sizes of calls, and programs beside that for the first sizes.
    (lambda x: x.reshape(4, -1).sum(1), (8, 12, 4, 20, 12, 36), 1),
    (lambda x: jnp.add(*jnp.split(jax.nn.softmax(x, 0), 2)), (6, 8, 2, 14, 10), 1),
    (lambda x: jnp.concatenate([x, x[:1]]).reshape(-1, 4, 3).max(1), (7, 11, 3, 15, 19, 27), 1),  # 4*n - 1
    (lambda x: x.reshape(6, -1).mean(0) if x.shape[0] > 2 else x * 2, (8, 4, 6, 12, 14), 1),  # 3 of each row: 2*n
    (lambda x: jnp.stack(jnp.split(x.reshape(-1, 2, 3).sum(1), 3)), (6, 12, 18, 24), 1),  # a division after another
    (framed, (7, 12, 5, 8, 1), 1),  # holds for all sizes
]


@pytest.mark.parametrize(("fn", "sizes", "programs"), DIVIDING, ids=range(len(DIVIDING)))
def test_divisions_without_a_remainder(fn: Any, sizes: tuple[int, ...], programs: int) -> None:
    fast = jitted(fn)
    for n in sizes:
        same(fast(values(n, 3)), fn(jnp.asarray(values(n, 3))))
    assert len(fast.optimized) == 1 + programs
    found = fast.statistics()
    assert found is not None and not found.exact and found.compilations < found.calls
    assert {r.kind for r in found.executables} == {"capacity"}


def test_sizes_with_a_remainder_run_as_they_would_without_us() -> None:
    def halves(x: Array) -> Array:
        return x if x.shape[0] % 2 else jnp.add(*jnp.split(x, 2))

    fast = jitted(halves)
    for n in (4, 8, 3, 6, 7):
        same(fast(values(n)), halves(jnp.asarray(values(n))))
    with pytest.raises(ValueError, match="equal division"):
        fast_split = jitted(lambda x: jnp.split(x, 2))
        for n in (4, 8, 5):
            fast_split(values(n))


def test_a_function_of_numbers_is_made_from_traces_for_two_sizes() -> None:
    def graph(x: Array, source: Array, target: Array) -> Array:
        degrees = jax.ops.segment_sum(jnp.ones(len(source)), target, num_segments=len(x))
        return jax.ops.segment_sum(x[source], target, num_segments=len(x)) / jnp.maximum(degrees, 1)[:, None]

    fast = jitted(graph)
    for n, m in ((5, 9), (7, 14), (6, 12), (8, 10), (5, 16), (7, 9)):
        edges = np.random.default_rng(n).integers(0, n, (2, m)).astype(np.int32)
        same(fast(values(n, 3), *edges), graph(jnp.asarray(values(n, 3)), *jnp.asarray(edges)))
    assert len(fast.optimized) == 2
    found = fast.statistics()
    assert found is not None and found.compilations == 1 and found.calls == 5


def test_sizes_at_which_a_program_is_another_have_one_in_common() -> None:
    """JAX finds no symbolic size even."""

    def mirrored(x: Array) -> Array:
        return jnp.cumsum(x) if x.shape[0] % 2 else jnp.sort(x) * x.shape[0]

    fast = jitted(mirrored)
    for n in (3, 5, 4, 8, 6, 7, 10, 12):
        same(fast(values(n)), mirrored(jnp.asarray(values(n))))
    assert len(fast.optimized) == 3
    trusting = jitted(lambda x: x * len(x), dynamic=rx.Dynamic(trust=True))
    for n in (3, 5, 4, 8):
        same(trusting(values(n)), jnp.asarray(values(n)) * n)


def test_a_call_that_raises_says_nothing_of_other_sizes() -> None:
    fast = jitted(lambda x, y: jax.nn.softmax(x @ y))
    for n, m in ((3, 3), (7, 8), (5, 5), (6, 6), (7, 6), (7, 7), (9, 8), (8, 8)):
        x, y = values(2, n), values(m, 2)
        if n == m:
            same(fast(x, y), jax.nn.softmax(jnp.asarray(x) @ y))
            continue
        with pytest.raises(TypeError, match="dot_general"):
            fast(x, y)
    assert len(fast.optimized) == 2
    found = fast.statistics()
    assert found is not None and found.compilations == 1 and found.calls == 4


def test_an_empty_array_says_nothing_of_other_sizes() -> None:
    fast = jitted(lambda x: jax.nn.softmax(x @ x.T).sum(0))
    for n in (3, 0, 5, 0, 6, 7):
        same(fast(values(n, 4)), jax.nn.softmax(jnp.asarray(values(n, 4)) @ values(n, 4).T).sum(0))
    assert len(fast.optimized) == 2
    found = fast.statistics()
    assert found is not None and found.calls == 3 and found.compilations == 1


def test_sizes_that_nothing_serves_are_searched_for_when_hot() -> None:
    """At eight sizes the function means eight things: four programs, and the rest as written until they are hot."""

    def odd(x: Array) -> Array:
        for k in (2, 4, 6, 8, 10, 12, 14):
            if x.shape[0] <= k:
                return x * k
        return x

    fast = jitted(odd)
    for n in (1, 3, 5, 7, 9, 11, 13, 15):
        same(fast(values(n)), odd(jnp.asarray(values(n))))
    programs = len(fast.optimized)
    assert programs == 1 + varying._MOST_PROGRAMS
    for _ in range(varying._HOT + 1):
        same(fast(values(13)), odd(jnp.asarray(values(13))))
    assert len(fast.optimized) == programs + 1


def test_typed_keys_among_the_arguments() -> None:
    def noisy(key: Array, keys: Array, x: Array) -> tuple[Array, Array, Array]:
        rows = jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys)
        return rows + x.sum(), jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0), keys

    fast = jitted(noisy)
    for n in (5, 7, 3, 6):
        given = (jax.random.key(n), jax.random.split(jax.random.key(n), n), values(n, 4))
        ours, wanted = fast(*given), noisy(*given)
        same(ours[:2], wanted[:2])
        assert (jax.random.key_data(ours[2]) == jax.random.key_data(wanted[2])).all()
    found = fast.statistics()
    assert found is not None and {r.kind for r in found.executables} == {"capacity"}


@pytest.mark.parametrize("jit", [None, jax.jit])
def test_keys_are_padded_and_cut_wherever_they_are(jit: Any) -> None:
    keys, inside = jax.random.split(jax.random.key(1), 3), (slice(3),)
    fit = CapacityFit(((0, (5,), inside), (1, (5, 2), (slice(3), slice(2)))), ((0, inside),))
    grown = fit.pad([keys, jnp.ones((3, 2))], jit)
    assert [x.shape for x in grown] == [(5,), (5, 2)] and grown[0].dtype == keys.dtype
    assert np.asarray(grown[1]).sum() == 6
    (back,) = fit.cut(grown[:1], jit)
    assert (jax.random.key_data(back) == jax.random.key_data(keys)).all()


@pytest.mark.parametrize("short", [True, False])
def test_results_are_cut_to_arrays_as_device_put_makes_them(short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitting._put is not None
    if not short:
        monkeypatch.setattr(fitting, "_put", None)
    for dtype in ("float32", "bfloat16", "int8", "bool"):
        whole = jnp.asarray(values(8, 3) > 0).astype(dtype)
        for rows in (7, 2, 0):
            (found,) = CapacityFit((), ((0, (slice(rows), slice(3))),)).cut([whole], None)
            wanted = jax.device_put(np.asarray(whole)[:rows])
            assert jax.typeof(found) == jax.typeof(wanted) and found.sharding == wanted.sharding
            assert found.committed == wanted.committed
            np.testing.assert_array_equal(found, wanted)


def test_functions_of_jax_that_decide_by_a_size_of_one() -> None:
    """`jnp.linspace` has a case of its own for a single point."""
    fast = jitted(lambda x: x * jnp.linspace(0, 1, x.shape[0]))
    for n in (5, 7, 1, 3, 1):
        same(fast(values(n)), jnp.asarray(values(n)) * jnp.linspace(0, 1, n))


@pytest.mark.parametrize("given", [{}, {"dims": ["32 4", "n 4"]}, {"static_argnames": "rate"}])
@pytest.mark.parametrize("donated", [{"donate_argnums": (0, 1)}, {"donate_argnames": ("state", "x")}])
def test_donated_arguments_are_used_up(given: dict[str, Any], donated: dict[str, Any]) -> None:
    def step(state: Array, x: Array, rate: float = 0.5) -> tuple[Array, Array]:
        return state - jnp.cumsum(x, 0)[-1] * rate, x * 2

    if "dims" in given:
        given = {"dims": [*given["dims"], None]}
    fast = jitted(step, **given, **donated)
    state = other = jnp.ones((32, 4))
    for n in (3, 6, 8, 5):
        before, x = state, jnp.asarray(values(n, 4))
        wanted = step(other, x)
        state, doubled = fast(state, x) if n > 3 else fast(x=x, state=state)
        same((state, doubled), wanted)
        assert before.is_deleted()
        other = wanted[0]
    found = fast.statistics()
    assert found is not None and "capacity" in {r.kind for r in found.executables}


def test_a_step_of_training_for_texts_of_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of slices are scatters of windows whose length varies."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    monkeypatch.setattr("examples.training.LAYERS", 1)
    from examples import training

    p = training.params()
    state = (p, p, jax.tree.map(jnp.ones_like, p))
    fast, written = jitted(training.step, budget=rx.Budget(seconds=4)), jax.jit(training.step)
    for n in (20, 27, 31, 29):
        text = (np.arange(n) * 7 % 256).astype(np.int32)
        for a, b in zip(*(jax.tree.leaves(run(state, text)) for run in (fast, written)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    found = fast.statistics()
    assert found is not None and not found.exact
    assert [(r.kind, dict(r.at)) for r in found.executables] == [("capacity", {"n0": 32})]


@pytest.mark.slow
def test_the_training_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    monkeypatch.setattr("examples.training.LAYERS", 1)
    from examples import training

    training.main(steps=3)
    shown = capsys.readouterr().out
    assert "3 steps of training on texts of 3 lengths" in shown and "executable" in shown


def test_an_argument_that_is_none_is_not_one_that_was_left_out() -> None:
    fast = jitted(lambda x, k=2.0: x + 1 if k is None else x * k)
    for n in (3, 4, 5, 5):
        np.testing.assert_array_equal(fast(jnp.ones(n), k=None), np.full(n, 2.0))
    np.testing.assert_array_equal(fast(jnp.full(5, 5.0, jnp.float32)), np.full(5, 10.0))


@pytest.mark.parametrize("options", [{}, {"weights": ["w"]}, {"dims": ["8 8", "n 8"]}], ids=["", "weights", "dims"])
def test_each_mode_of_64_bits_has_functions_of_its_own(options: dict[str, Any]) -> None:
    def counted(w: Array, x: Array) -> tuple[Array, Array]:
        return (x @ w) @ w, jnp.arange(x.shape[0]).sum()

    fast, w = jitted(counted, **options), jnp.asarray(values(8, 8))
    for wide in (True, False, True):
        with jax.enable_x64(wide):
            for n in (3, 4, 5):
                x = jnp.asarray(values(n, 8))
                same(fast(w, x), jax.jit(counted)(w, x))
