"""What says where an element stands, and sizes that fill a capacity: both look at how values lie in their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.dynamic import plan
from relax_eg.dynamic.runtime import TIMED
from relax_eg.shapes import Dim, dim_max, dim_min

Array = Any
ROOM = {"n": 6, "m": 5}
SIZES = [(6, 5), (5, 4), (6, 4), (1, 5), (6, 1), (1, 1), (3, 2)]

POSITIONS: dict[str, Callable[[Array], Any]] = {
    "argmax of all": lambda x: jnp.argmax(x),
    "argmax of the transposed": lambda x: jnp.argmax(x.T),
    "argmax of what was merged": lambda x: jnp.argmax(x.reshape(-1)),
    "argmin along what was merged": lambda x: jnp.argmin(x.reshape(1, -1), 1),
    "argmax of one of three": lambda x: jnp.argmax((x[:, None] * jnp.array([[2.0], [-1]])).reshape(-1, x.shape[1]), 0),
    "argmax, then computed on": lambda x: jnp.argmax(x) * x.sum(),
    "unravelled": lambda x: jnp.unravel_index(jnp.argmax(x), x.shape),
    "first of equals": lambda x: jnp.argmax(jnp.sign(x).reshape(-1)),
    "order": lambda x: jnp.argsort(x.reshape(-1)),
    "greatest": lambda x: jax.lax.top_k(x.reshape(-1), 1),
    "running sum": lambda x: jnp.cumsum(x),
    "running sum backwards": lambda x: jax.lax.cumsum(x[1:].reshape(-1), reverse=True),
    "by place": lambda x: x.reshape(-1) * jnp.arange(x.size),
    "last that is positive": lambda x: jnp.where(x.reshape(-1) > 0, jnp.arange(x.size), -1).max(),
    "turned": lambda x: x.reshape(-1)[::-1],
    "rolled": lambda x: jnp.roll(x, 1),
    "places": lambda x: jax.lax.broadcasted_iota(jnp.int32, (x.size, 2), 0),
    "steps over what was merged": lambda x: jax.lax.scan(lambda c, v: (c + v, jnp.float32(c > 0)), 0.0, x.reshape(-1)),
    "none of one axis": lambda x: x[:, 1:].reshape(-1),
}


def given(n: int, m: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n * 10 + m).permutation(np.arange(n * m, dtype=np.float32)).reshape(n, m) - 3


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_along_merged_axes(name: str) -> None:
    fn = POSITIONS[name]
    p = plan(rx.trace(fn, "n m"))
    assert not p.exact
    run = jax.jit(p.lower(ROOM))
    for n, m in SIZES:
        x = given(n, m)
        padded = np.full((ROOM["n"], ROOM["m"]), np.nan, np.float32)
        padded[:n, :m] = x
        found = run([padded], {"n": np.int32(n), "m": np.int32(m)})
        for have, want in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(fn)(x)), strict=True):
            within = np.asarray(have)[tuple(map(slice, want.shape))]
            np.testing.assert_allclose(within, want, rtol=1e-5, err_msg=f"{n}, {m}", strict=True)


FILLING: dict[str, Callable[[Array], Any]] = {
    "merged after a slice": lambda x: x[:, 1:].ravel(),
    "differences": lambda x: jnp.diff(x, axis=1).reshape(-1),
    "made": lambda x: jnp.zeros(x.shape[0] * x.shape[1] - x.shape[0]) + x[0, 0],
    "two results": lambda x: (x + 1, x[1:].ravel()),
}


@pytest.mark.parametrize("name", FILLING)
def test_sizes_that_fill_a_capacity(name: str) -> None:
    """The array of n*m - n elements has room for 15 where n and m are at most 4; at (4, 4) there are 12. Calls that
    pad nothing are to be cut too, the first ones and those that go straight to their executable."""
    fn = FILLING[name]
    run = rx.optimize(fn, "n m", dynamic="capacity")
    for n, m in [(4, 4), (3, 4), (4, 3), (4, 1), (1, 4), (2, 2), (8, 2), (8, 8), (7, 8)]:
        wanted = jax.tree.leaves(jax.jit(fn)(given(n, m)))
        for call in range(TIMED + 2):
            for have, want in zip(jax.tree.leaves(run(given(n, m))), wanted, strict=True):
                np.testing.assert_array_equal(
                    np.asarray(have), np.asarray(want), f"call {call} at {n}, {m}", strict=True
                )
    assert any(not row.exact and row.sizes == {"n": 4, "m": 4} for row in run.statistics().sizes)


@pytest.mark.parametrize(("op", "wanted"), [("max", [3, 3, 4]), ("min", [2, 3, 3])])
def test_the_extreme_of_a_size_that_is_an_array(op: str, wanted: list[int]) -> None:
    dim = {"max": dim_max, "min": dim_min}[op](Dim.of("n"), 3)
    at = jax.jit(lambda n: dim.evaluate({"n": n}))
    assert [int(at(np.int32(n))) for n in (2, 3, 4)] == wanted
    assert dim.evaluate({"n": np.array([2, 3, 4])}).tolist() == wanted


def test_a_clamped_slice_runs_at_capacity() -> None:
    run = rx.optimize(lambda x: (x[3], x[-3:].sum(0), x[1:9:2]), "n m", dynamic="capacity")
    for n, m in [(7, 3), (5, 4), (2, 3), (1, 1)]:
        x = given(n, m)
        for have, want in zip(run(x), (x[min(3, n - 1)], x[-3:].sum(0), x[1:9:2]), strict=True):
            np.testing.assert_array_equal(np.asarray(have), want, strict=True)
    assert not run.statistics().exact and not any(row.exact for row in run.statistics().sizes)
