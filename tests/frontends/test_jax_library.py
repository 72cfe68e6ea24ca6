"""`jax.<primitive>` library routines under the transformations of JAX, at sizes known only at the call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from frontend_calls import CASES
from jax import lax

from relax_eg.backend.lowering.jax_library import run_library
from relax_eg.backend.lowering.lower import run_function
from relax_eg.errors import OptionError
from relax_eg.frontends import trace_function


def compiled(fn, *specs):
    found = trace_function(fn, specs)
    return lambda *leaves: run_function(found.module, found.module.main, leaves)


def loop(x):
    def body(c, row):
        return jnp.tanh(c + row) * x.shape[0], lax.cond(c.sum() > 0, jnp.sin, jnp.cos, row).sum()

    return lax.scan(body, jnp.zeros(x.shape[1]), x)


def test_transformations() -> None:
    run = compiled(loop, "n m")
    x = jnp.asarray(np.random.default_rng(3).normal(size=(3, 4)), jnp.float32)

    def total(f):
        return lambda y: f(y)[0].sum() + f(y)[1].sum()

    np.testing.assert_allclose(jax.jit(run)(x)[1], loop(x)[1], rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(total(run)))(x), jax.jit(jax.grad(total(loop)))(x), rtol=1e-5)
    batch = jnp.stack([x, x + 1])
    np.testing.assert_allclose(jax.jit(jax.vmap(run))(batch)[0], jax.jit(jax.vmap(loop))(batch)[0], rtol=1e-5)


def test_symbolic_sizes_during_a_second_trace() -> None:
    run = compiled(loop, "n m")
    again = trace_function(run, ("p q",))
    x = jnp.ones((3, 2))
    np.testing.assert_allclose(run_function(again.module, again.module.main, [x])[1], loop(x)[1], rtol=1e-5)


def test_routines_are_found_by_name() -> None:
    attrs = {"dimension": 0, "is_stable": True, "num_keys": 1}
    (found,) = run_library("jax.sort", attrs, {}, [np.array([3, 1, 2], np.int32)])
    assert found.tolist() == [1, 2, 3]
    with pytest.raises(OptionError, match=r"no library routine `jax\.nonsense`"):
        run_library("jax.nonsense", (), {}, [])
    with pytest.raises(OptionError, match="no library routine `sort`"):
        run_library("sort", (), {}, [])


def test_closed_over_keys() -> None:
    key = jax.random.key(5)
    run = compiled(lambda x: x + jax.random.bits(key, x.shape), "n @ uint32")
    x = jnp.zeros(4, jnp.uint32)
    np.testing.assert_array_equal(run(x), jax.random.bits(key, (4,)))


OPAQUE = [c for c in CASES if c.opaque]


@pytest.mark.parametrize("case", OPAQUE, ids=lambda c: c.name)
def test_under_jit(case) -> None:
    from frontend_support import assert_close, sample

    found = trace_function(case.fn, case.specs, case.kwspecs)
    leaves = sample(found, {v: 3 + i for i, v in enumerate(found.module.main.size_variables)})
    args, kwargs = jax.tree_util.tree_unflatten(found.in_tree, leaves)
    wanted = jax.tree_util.tree_leaves(jax.jit(case.fn)(*args, **kwargs))
    got = jax.jit(lambda *xs: run_function(found.module, found.module.main, xs))(*leaves)
    got = got if isinstance(got, tuple) else (got,)
    for g, w in zip(got, wanted, strict=True):
        assert_close(g, w, max(case.tolerance, 2e-5))
