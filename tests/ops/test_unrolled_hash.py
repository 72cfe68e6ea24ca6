"""Keys and random bits with the hash written out are JAX's, in each of its modes and under transformations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives

import relax_eg as rx
from relax_eg.ops import get

BITS, SPLIT, FOLD_IN, HASH = (
    get(name).jax_function() for name in ("random_bits", "random_split", "random_fold_in", "threefry2x32")
)
KEY = jax.random.key(3)


@pytest.fixture(params=[True, False], ids=["partitionable", "not"])
def mode(request: pytest.FixtureRequest) -> Iterator[bool]:
    with jax.threefry_partitionable(request.param):
        yield request.param


def words(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def assert_same(ours: Any, wanted: Any) -> None:
    assert ours.dtype == wanted.dtype
    np.testing.assert_array_equal(words(ours), words(wanted))


SHAPES = ((), (5,), (3, 4), (0, 3))


@pytest.mark.parametrize("keys", [KEY, jax.random.split(KEY, (2, 3))], ids=["one key", "keys"])
def test_bits_and_keys_are_those_of_jax(mode: bool, keys: jax.Array) -> None:
    data = jnp.arange(keys.size, dtype=jnp.uint32).reshape(keys.shape)

    def bits(width: int) -> list[tuple[Any, Any]]:
        each = [{"shape": shape, "bit_width": width} for shape in SHAPES]
        made = jax.jit(lambda k: [(BITS(k, **how), primitives.random_bits_p.bind(k, **how)) for how in each])
        return made(keys)

    @jax.jit
    def others(keys: Any, data: Any) -> list[tuple[Any, Any]]:
        splits = [(SPLIT(keys, shape=s), primitives.random_split_p.bind(keys, shape=s)) for s in SHAPES]
        return [*splits, (FOLD_IN(keys, data), primitives.random_fold_in_p.bind(keys, data))]

    with jax.enable_x64(True):
        pairs = bits(64)
    for ours, wanted in (*pairs, *(pair for width in (8, 16, 32) for pair in bits(width)), *others(keys, data)):
        assert_same(ours, wanted)


def test_the_hash_is_that_of_jax() -> None:
    x = jnp.arange(6, dtype=jnp.uint32)
    for ours, wanted in zip(
        jax.jit(HASH)(x[0], x[1], x, x[::-1]), primitives.threefry2x32_p.bind(x[0], x[1], x, x[::-1]), strict=True
    ):
        assert_same(ours, wanted)


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_other_generators_are_left_to_jax(kind: str) -> None:
    key = jax.random.key(0, impl=kind)
    text = jax.jit(lambda k: BITS(k, shape=(8,), bit_width=32)).lower(key).as_text()
    assert "inlineable" not in text
    assert_same(jax.jit(lambda k: BITS(k, shape=(8,), bit_width=32))(key), jax.random.bits(key, 8))


def test_under_transformations(mode: bool) -> None:
    def seven(key: Any) -> Any:
        return BITS(key, shape=(7,), bit_width=32)

    def step(key: Any, _: None) -> tuple[Any, Any]:
        key = FOLD_IN(key, jnp.uint32(1))
        return key, seven(key)

    def plain_step(key: Any, _: None) -> tuple[Any, Any]:
        key = jax.random.fold_in(key, 1)
        return key, jax.random.bits(key, 7)

    keys = jax.random.split(KEY, 5)
    assert_same(jax.jit(jax.vmap(seven))(keys), jax.vmap(lambda k: jax.random.bits(k, 7))(keys))
    assert_same(lax.scan(step, KEY, None, length=3)[1], lax.scan(plain_step, KEY, None, length=3)[1])
    assert_same(seven(KEY), jax.random.bits(KEY, 7))
    slope = jax.grad(lambda x: (seven(KEY).astype(jnp.float32) * x).sum())(1.0)
    assert_same(slope, jax.random.bits(KEY, 7).astype(jnp.float32).sum())


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "cuda")])
def test_exported_for_sizes_that_are_not_known(mode: bool, platforms: tuple[str, ...]) -> None:
    sizes = jax.export.symbolic_shape("b, n")
    function = jax.jit(lambda d, x: BITS(jax.random.wrap_key_data(d), shape=x.shape, bit_width=32))
    args = jax.ShapeDtypeStruct((2,), jnp.uint32), jax.ShapeDtypeStruct(sizes, jnp.float32)
    exported = jax.export.export(function, platforms=platforms)(*args)
    assert_same(exported.call(jax.random.key_data(KEY), jnp.ones((4, 6))), jax.random.bits(KEY, (4, 6)))


def test_programs_for_gpus_are_as_before() -> None:
    ours = jax.jit(lambda k: BITS(k, shape=(8,), bit_width=32))
    texts = {p: str(jax.export.export(ours, platforms=(p,))(KEY).mlir_module()) for p in ("cpu", "cuda")}
    assert "inlineable" in texts["cpu"] and "threefry2x32" not in texts["cpu"]
    assert "inlineable" not in texts["cuda"] and "threefry2x32" in texts["cuda"]


@pytest.mark.xla_defaults
def test_readers_of_bits_do_not_compute_them_again() -> None:
    def several(key: Any, x: Any) -> Any:
        kept = BITS(key, shape=x.shape, bit_width=32) < (1 << 30)
        return jnp.where(kept, x @ x, 0), jnp.where(kept, x.T, 0) @ x, kept.sum(0)

    text = jax.jit(several).lower(KEY, jnp.ones((64, 64))).compile().as_text()
    assert text.count("shift-left(") == 20  # one for each round


def test_dropout_replaces_the_program_as_written() -> None:
    def dropout(x: Any, key: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)

    best, x = rx.optimize(dropout, "256 256", KEY, target="cpu"), jnp.ones((256, 256))
    assert best.report.predicted_gain > 1.5 and not best.report.kept_as_written
    assert_same(best(x, KEY), dropout(x, KEY))
    rbg = jax.random.key(0, impl="rbg")
    assert rx.optimize(dropout, "256 256", rbg, target="cpu").report.kept_as_written
