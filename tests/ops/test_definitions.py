"""Equations that define operators without index equations, against what the operators compute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relax_eg.ir.annotations import Tensor
from relax_eg.ops.record import Site, definition_of
from relax_eg.tir import evaluate

NUMBERS = ("update_window_dims", "inserted_window_dims", "operand_batching_dims", "scatter_indices_batching_dims",
           "scatter_dims_to_operand_dims")  # fmt: skip
CASES = {
    "rows": (("5 3", "4 1", "4 3"), ((1,), (0,), (), (), (0,))),
    "one of each row": (("4 6", "4 2 1", "4 2"), ((), (1,), (0,), (0,), (1,))),
    "batches behind": (("6 4 3", "2 4 1", "2 4 3"), ((2,), (0,), (1,), (1,), (0,))),
    "two batches": (("2 3 5", "3 2 1", "3 2"), ((), (2,), (0, 1), (1, 0), (2,))),
    "rows of images": (("3 5 4", "6 1", "3 6 4"), ((0, 2), (1,), (), (), (1,))),
    "one row": (("5 3", "1", "3"), ((0,), (0,), (), (), (0,))),
    "parts of rows": (("5 4", "6 1", "6 2"), ((1,), (0,), (), (), (0,))),
    "whole along what is indexed": (("3 5", "4 1", "4 3 5"), ((1, 2), (), (), (), (0,))),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("name", CASES)
def test_a_scatter_is_defined_as_it_is_computed(name: str, mode: str) -> None:
    specs, numbers = CASES[name]
    rng = np.random.default_rng(0)
    x, i, u = (tuple(map(int, s.split())) for s in specs)
    arrays: list[Any] = [rng.standard_normal(x), rng.integers(-1, 7, i), rng.standard_normal(u)]
    arrays = [a.astype(t) for a, t in zip(arrays, ("float32", "int32", "float32"), strict=True)]
    attrs = {
        "kind": "add",
        "mode": mode.removesuffix("_in_bounds"),
        "sorted": False,
        "unique": False,
        **dict(zip(NUMBERS, numbers, strict=True)),
    }
    site = Site("scatter", (Tensor(x, "float32"), Tensor(i, "int32"), Tensor(u, "float32")), attrs)
    program = definition_of(site)
    assert program is not None
    (found,) = evaluate(program, arrays, {})
    dims = jax.lax.ScatterDimensionNumbers(**dict(zip(NUMBERS, numbers, strict=True)))
    operand, indices, updates = map(jnp.asarray, arrays)
    assert np.allclose(found, jax.lax.scatter_add(operand, indices, updates, dims, mode=mode), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_sort_is_defined_as_it_is_computed(dtype: str, axis: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (5, 7)).astype(dtype)
    if dtype == "float32":
        x.flat[rng.permutation(x.size)[:9]] = np.repeat([np.nan, -np.inf, np.inf], 3)
    y = np.arange(x.size, dtype="int32").reshape(x.shape)
    attrs = {"axis": axis, "num_keys": 1, "stable": True}
    operands = Tensor(x.shape, dtype), Tensor(y.shape, "int32")
    program = definition_of(Site("sort", operands, attrs))
    assert program is not None
    wanted = jax.lax.sort((jnp.asarray(x), jnp.asarray(y)), dimension=axis)
    for found, values in zip(evaluate(program, [x, y], {}), wanted, strict=True):
        np.testing.assert_array_equal(found, np.asarray(values))
    assert definition_of(Site("sort", operands, {**attrs, "stable": False})) is None
    assert definition_of(Site("sort", operands, {**attrs, "num_keys": 2})) is None
