"""Sorts by packed integers give what `jax.lax.sort` gives, for every dtype, with its derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import relax_eg as rx
from relax_eg.ops import get
from relax_eg.ops.packed_sorts import packed_bits

SORT = get("sort").jax_function()
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32")
WIDE = ("float64", "int64", "uint64")


def drawn(dtype: str, shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    """Values with many equal ones, and all that floats have besides numbers, NaN of both signs too."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "biu":
        low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return jnp.asarray(rng.choice(np.array([low, high, 0, 1, low + 1, high - 1], object), shape).astype(dtype))
    values = rng.choice([np.nan, np.inf, 0.0, 1.5, 1e-3, *rng.normal(size=6)], shape)
    return jnp.asarray(np.where(rng.random(shape) < 0.5, -values, values), dtype)


def assert_same(one: Any, two: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(*(np.asarray(x).astype("float64") if x.dtype.kind == "V" else x for x in (a, b)))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((5, 33), 1), ((33, 5), 0), ((300,), 0), ((0, 3), 0)])
def test_results_are_those_of_lax_sort(shape: tuple[int, ...], axis: int, wide: bool) -> None:
    with jax.enable_x64(wide):
        cases: list[tuple[tuple[jax.Array, ...], int]] = []  # operands, of which so many are keys
        for dtype in DTYPES + (WIDE if wide else ()):
            x, places, y = drawn(dtype, shape), drawn("int32", shape, 1), drawn("float32", shape, 2)
            cases += [((x,), 1), ((x, places), 1)]
            if dtype in ("bool", "int16", "bfloat16", "int64"):
                cases += [((x, y, places), 1), ((x, places, y), 2), ((y, x), 2)]
        operands, keys = zip(*cases, strict=True)

        def sorted_by(sort: Any) -> Any:
            return jax.jit(lambda of: [sort(xs, num_keys=n) for xs, n in zip(of, keys, strict=True)])(operands)

        ours = sorted_by(lambda xs, num_keys: SORT(*xs, axis=axis, num_keys=num_keys, stable=True))
        assert_same(ours, sorted_by(lambda xs, num_keys: lax.sort(xs, axis, num_keys=num_keys)))


def test_numbers_below_the_normal_ones_are_sorted_too() -> None:
    """XLA's comparisons on CPUs take them for 0; the order of their bits does not."""
    x = np.float32([3e-42, -1e-42, 0.0, 1e-42, -3e-42, np.nan, -2e-42])
    assert_same(jax.jit(lambda x: SORT(x, axis=0, num_keys=1, stable=True))(x), np.sort(x))


def test_keys_that_have_no_integer_of_64_bits_are_left() -> None:
    assert packed_bits(["float32"], 1, None) == 32
    assert packed_bits(["float32", "int32"], 1, None) == 63 and packed_bits(["float32", "int32"], 1, 1000) == 42
    assert packed_bits(["float64"], 1, 10) == 64 and packed_bits(["float64", "int32"], 1, 10) is None
    assert packed_bits(["bool", "int8", "float32"], 2, 8) == 12 and packed_bits(["float32"] * 3, 2, 8) is None
    assert packed_bits(["int32"], 1, 10) is None  # XLA itself sorts integers
    assert packed_bits(["complex64"], 1, 10) is None and packed_bits(["float8_e4m3fn"], 1, 10) is None


def _few_unique(x: Any) -> Any:
    return jnp.unique(x, size=9)


def places(x: Any) -> Any:
    return SORT(x, jnp.broadcast_to(jnp.arange(x.shape[-1]), x.shape), axis=x.ndim - 1, num_keys=1, stable=True)[1]


def test_under_transformations() -> None:
    x, y = (jax.random.normal(jax.random.key(i), (4, 40)) for i in range(2))
    weights = jnp.arange(40.0)

    def loss(sort: Any, x: Any, y: Any) -> Any:
        one, two = sort(x, y)
        return (one**2 @ weights + two @ weights).sum()

    ours = jax.tree_util.Partial(loss, lambda x, y: SORT(x, y, axis=1, num_keys=1, stable=True))
    theirs = jax.tree_util.Partial(loss, lambda x, y: lax.sort((x, y), num_keys=1))
    assert_same(jax.grad(ours, (0, 1))(x, y), jax.grad(theirs, (0, 1))(x, y))
    assert_same(jax.jit(jax.grad(jax.jit(ours)))(x, y), jax.grad(theirs)(x, y))
    assert_same(jax.jit(jax.vmap(jax.jit(places)))(x), jnp.argsort(x, axis=1))
    assert_same(lax.scan(lambda c, row: (c, places(row)), 0, x)[1], jnp.argsort(x, axis=1))
    exported = jax.export.export(jax.jit(places))(jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, n"), jnp.float32))
    assert_same(exported.call(x), jnp.argsort(x, axis=1))


@pytest.mark.parametrize("fn", [jnp.sort, jnp.argsort, lambda x: jnp.median(x, axis=1), _few_unique])
def test_programs_that_sort_replace_those_as_written(fn: Any) -> None:
    best, x = rx.optimize(fn, "64 256", target="cpu"), jax.random.normal(jax.random.key(0), (64, 256))
    assert best.report.predicted_gain > 3 and not best.report.kept_as_written
    assert_same(best(x), fn(x))
    assert rx.optimize(jnp.sort, "64 256 @ int32", target="cpu").report.kept_as_written


def test_rows_of_any_length_at_capacity() -> None:
    best = rx.optimize(lambda x: (jnp.sort(x), jnp.argsort(x)), "b n", dynamic="capacity", target="cpu")
    for n in (1, 7, 30):
        x = drawn("float32", (3, n), n)
        assert_same(best(x), (jnp.sort(x), jnp.argsort(x)))
