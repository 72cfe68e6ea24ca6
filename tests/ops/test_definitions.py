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


@pytest.mark.parametrize("name", CASES)
def test_a_scatter_is_defined_as_it_is_computed(name: str) -> None:
    specs, numbers = CASES[name]
    rng = np.random.default_rng(0)
    x, i, u = (tuple(map(int, s.split())) for s in specs)
    arrays: list[Any] = [rng.standard_normal(x), rng.integers(-1, 7, i), rng.standard_normal(u)]
    arrays = [a.astype(t) for a, t in zip(arrays, ("float32", "int32", "float32"), strict=True)]
    attrs = {
        "kind": "add",
        "mode": "fill",
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
    assert np.allclose(found, jax.lax.scatter_add(operand, indices, updates, dims, mode="fill"), atol=1e-5)
