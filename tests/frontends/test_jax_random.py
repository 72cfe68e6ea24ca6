"""Random numbers of optimized functions are JAX's, bit for bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontend_support import interpret, sample
from jax import random

import relax_eg as rx
from relax_eg.frontends import trace_function
from relax_eg.ops.keys import from_jax
from relax_eg.ops.record import get


def dropout(key, x, w):
    keep, noise = random.split(key)
    y = x @ w
    return jnp.where(random.bernoulli(keep, 0.8, y.shape), y / 0.8, 0) @ w.T, random.bits(noise, (3,)), keep


def words(value):
    return np.asarray(random.key_data(value) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value)


def test_optimized_and_jitted() -> None:
    key, x, w = random.key(3), jnp.ones((4, 8)), jnp.full((8, 4), 0.25)
    best = rx.optimize(dropout, "@ key", "b 8", "8 4", at={"b": 4})
    for run in (best, rx.jit(dropout)):
        for got, want in zip(run(key, x, w), jax.jit(dropout)(key, x, w), strict=True):
            np.testing.assert_array_equal(words(got), words(want))
    assert best.check(key, x, w).passed


def test_closed_over_keys_and_the_original_threefry() -> None:
    key = random.key(7)

    def noisy(x):
        return x + random.normal(key, x.shape)

    x = jnp.zeros(5)
    np.testing.assert_array_equal(rx.optimize(noisy, "n", at={"n": 5})(x), jax.jit(noisy)(x))

    def every_width(key):
        return [random.bits(key, (7,), f"uint{width}") for width in (8, 16, 32)], random.key_data(random.split(key, 3))

    with jax.threefry_partitionable(False):
        found = trace_function(every_width, ("@ key",))
        leaves = sample(found, {})
        for got, want in zip(interpret(found, leaves), jax.tree.leaves(every_width(*leaves)), strict=True):
            np.testing.assert_array_equal(got, want)


def test_the_interpreter_gives_keys_of_jax() -> None:
    found = trace_function(lambda key: random.split(key, 2), ("@ key",))
    key = random.key(1)
    (got,) = interpret(found, [key])
    assert got.dtype == key.dtype
    np.testing.assert_array_equal(words(got), words(random.split(key, 2)))


@pytest.mark.parametrize(
    ("operator", "operands", "want"),
    [
        ("threefry2x32", (0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
        ("threefry2x32", (2**32 - 1,) * 4, (0x1CB996FC, 0xBB002BE7)),
        ("threefry2x32", (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
        ("rng_bit_generator", (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ],
)
def test_hashes_of_the_publication(operator, operands, want) -> None:
    """The known answers of Random123 (Salmon et al., 2011), for Threefry-2x32-20 and Philox-4x32-10."""
    reference, given = get(operator).reference, np.array(operands, np.uint32)
    assert reference is not None
    if operator == "threefry2x32":
        made = reference(*given)
    else:
        made = reference(given, shape=(4,), dtype="uint32", algorithm="philox")[1]
    assert tuple(map(int, made)) == want


def test_the_reference_is_computed_inside_a_trace() -> None:
    reference, key = get("random_bits").reference, random.key(5)
    assert reference is not None
    held, seen = from_jax(key), []

    @jax.jit
    def traced(x):
        seen.append(reference(held, shape=(3,), bit_width=32))
        return x

    traced(1.0)
    np.testing.assert_array_equal(seen[0], random.bits(key, (3,)))


def test_numbers_that_change_with_each_call_are_not_merged() -> None:
    def twice():
        return jax.lax.rng_uniform(0.0, 1.0, (64,)), jax.lax.rng_uniform(0.0, 1.0, (64,))

    traced = trace_function(twice)
    calls = [b.value for block in traced.module.main.blocks if not block.dataflow for b in block.bindings]
    assert [c.attr("name") for c in calls] == ["jax.rng_uniform"] * 2
    assert traced.effectful
