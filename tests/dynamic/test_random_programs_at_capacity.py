"""Random programs at capacity: whatever the padding holds, they give what they give at exact sizes.

`RELAX_EG_PROGRAMS=2000 pytest tests/dynamic/test_random_programs_at_capacity.py` runs more of them.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from compiling import QUICKLY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from padding import POISONS, capacities, padded, within
from programs import arguments, programs, size_bindings

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.dynamic import plan
from relax_eg.ir import Module

PROGRAMS = int(os.environ.get("RELAX_EG_PROGRAMS", "60"))
# Of values of a few dozen products, relative to the largest of a result.
TOLERANCES = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}


def examples(share: float) -> Any:
    count = max(1, round(PROGRAMS * share))
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


@examples(0.8)
@given(programs(), st.integers(0, 2**32 - 1))
def test_a_program_at_capacity(module: Module, seed: int) -> None:
    assert_right(module, seed)


@examples(0.2)
@given(programs(), st.integers(0, 2**32 - 1))
def test_a_program_of_tensor_programs_at_capacity(module: Module, seed: int) -> None:
    # Index equations do not repeat what a program promises of positions, so these are drawn for the program as written.
    assert_right(rx.debug.legalize(module), seed, module)


def assert_right(module: Module, seed: int, written: Module | None = None) -> None:
    rng = np.random.default_rng(seed)
    p = plan(module)
    assert not p.exact, f"{p}\n{module}"
    (sizes,) = size_bindings(module, rng, 1)
    args = arguments(written or module, sizes, rng)
    wanted = jax.tree.leaves(run_function(module, module.main, args))
    room = capacities(sizes, rng)
    run = jax.jit(p.lower(room), compiler_options=QUICKLY)
    at = {v: np.int32(n) for v, n in sizes.items()}
    for kind in POISONS[:2]:
        leaves = [padded(x, s, kind, rng) for x, s in zip(args, p.input_shapes(room), strict=True)]
        for want, have in zip(wanted, jax.tree.leaves(run(leaves, at)), strict=True):
            assert_close(within(np.asarray(have), want.shape), np.asarray(want), f"{sizes} of {room}\n{module}\n{p}")


def assert_close(have: Any, want: Any, what: str) -> None:
    assert have.dtype == want.dtype and have.shape == want.shape, what
    x, y = have.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(y)
    assert np.array_equal(np.where(finite, 0, x), np.where(finite, 0, y), equal_nan=True), f"{x}\n{y}\n{what}"
    scale = np.max(np.abs(y[finite]), initial=1)
    error = np.max(np.abs(np.where(finite, x - y, 0)), initial=0)
    assert error <= TOLERANCES.get(want.dtype.name, 0) * scale, f"{x}\n{y}\n{what}"
