"""Inputs spread over eight devices: shardings are kept, and parts are optimized inside. `test_devices.py` runs them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import relax_eg as rx
from relax_eg.ir import SHARD_MAP, functions_of

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "columns"))


def spread(x: Any, *axes: str | None) -> jax.Array:
    return jax.device_put(x, NamedSharding(MESH, P(*axes)))


def array(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def same_place(a: jax.Array, b: jax.Array) -> bool:
    return a.sharding.is_equivalent_to(b.sharding, a.ndim)


def chain(a: jax.Array, b: jax.Array, v: jax.Array) -> jax.Array:
    return (a @ b) @ v


def check_spread() -> None:
    a, b, v = spread(array(64, 32), "rows", None), array(32, 48), array(48)
    best = rx.optimize(chain, "m k", "k n", "n", at={"m": 64, "k": 32, "n": 48})
    assert "same_sum_of_products" in best.report.rules
    for run in (best, jax.jit(best.to_jax()), rx.jit(chain)):
        found = run(a, b, v)
        np.testing.assert_allclose(found, chain(a, b, v), rtol=1e-4, atol=1e-4)
        assert same_place(found, jax.jit(chain)(a, b, v)) and len(found.sharding.device_set) == 8


def check_constrained() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        h = jax.lax.with_sharding_constraint(x @ w, NamedSharding(MESH, P("rows", "columns")))
        return jnp.transpose(jnp.transpose(h + 0.0)) * 2

    best = rx.optimize(fn, "16 8", "8 4", rules=rx.rules.default)
    found, wanted = best(array(16, 8), array(8, 4)), jax.jit(fn)(array(16, 8), array(8, 4))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert same_place(found, wanted)
    assert "jax.sharding_constraint" in str(best.module) or best.report.kept_as_written


def local(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jax.lax.psum(((x @ w) @ v).sum(0), "rows")


def check_mapped() -> None:
    def fn(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return jax.shard_map(local, mesh=MESH, in_specs=(P("rows"), P(), P()), out_specs=P())(x, w, v) + 1

    best = rx.optimize(fn, "64 128", "128 128", "128")
    assert not best.report.kept_as_written
    (node,) = [e for e in best.module.main.expressions() if e.op == SHARD_MAP]
    (body,) = functions_of(node)
    assert [e.op for e in best.module[body].expressions()].count("matmul") == 2
    args = spread(array(64, 128), "rows"), array(128, 128), array(128)
    np.testing.assert_allclose(best(*args), jax.jit(fn)(*args), rtol=1e-4)
    grads = jax.grad(lambda x: best.to_jax()(x, *args[1:]))(args[0])
    np.testing.assert_allclose(grads, jax.grad(lambda x: fn(x, *args[1:]))(args[0]), rtol=1e-4, atol=1e-4)


def check_gathered() -> None:
    def part(x: jax.Array) -> jax.Array:
        whole = jax.lax.all_gather(x, "rows", tiled=True)
        shifted = jax.lax.ppermute(x, "rows", [(i, (i + 1) % 4) for i in range(4)])
        return x + whole.mean() + shifted * jax.lax.axis_index("rows")

    def fn(x: jax.Array) -> jax.Array:
        return jax.shard_map(part, mesh=MESH, in_specs=P("rows"), out_specs=P("rows"))(x)

    best = rx.optimize(fn, "16 4")
    x = spread(array(16, 4), "rows")
    found, wanted = best(x), jax.jit(fn)(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert same_place(found, wanted)


def check_jitted() -> None:
    fn = jax.jit(lambda x: jnp.tanh(x) @ x.T, out_shardings=NamedSharding(MESH, P("rows", "columns")))
    best = rx.optimize(lambda x: fn(x) + 1, "8 16")
    found, wanted = best(array(8, 16)), jax.jit(lambda x: fn(x) + 1)(array(8, 16))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert same_place(found, wanted)
