"""Running traced functions on the reference interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relax_eg.backend.lowering.jax_library import run_library
from relax_eg.frontends import Traced
from relax_eg.ir.expr import CALL_DPS_LIBRARY, Expr
from relax_eg.ir.module import Function
from relax_eg.ops.interpret import evaluate


def libraries(call: Expr, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    return run_library(call.attr("name"), dict(call.attr("attrs")), sizes, operands)


def sample(traced: Traced, sizes: Mapping[str, int], seed: int = 0) -> list[Any]:
    """Arrays for the leaves of a traced function."""
    rng = np.random.default_rng(seed)
    found: list[Any] = []
    for leaf in traced.leaves:
        dtype = str(leaf.annotation.dtype)
        shape = tuple(int(d.evaluate(sizes)) for d in leaf.annotation.shape or ())
        if dtype.startswith("key"):
            found.append(jax.random.key(seed))
        elif dtype == "bool":
            found.append(jnp.asarray(rng.random(shape) < 0.5))
        elif "int" in dtype:
            found.append(jnp.asarray(rng.integers(0, 6, shape), dtype))
        else:
            found.append(jnp.asarray(rng.normal(size=shape), dtype))
    return found


def interpret(traced: Traced, leaves: list[Any]) -> list[Any]:
    """The output leaves, by the reference interpreter."""
    results = evaluate(traced.module, leaves, libraries=libraries)
    return list(results) if isinstance(results, tuple) else [results]


def routines(function: Function) -> set[str]:
    """Names of the library routines that a function calls."""
    return {str(e.attr("name")) for e in function.expressions() if e.op == CALL_DPS_LIBRARY}


def assert_close(got: Any, want: Any, tolerance: float, what: str = "") -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    if got.dtype.kind not in "biu":
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)
