"""Tensor programs as JAX functions give what the reference evaluator gives."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings

from relax_eg.backend.tensor_programs import lower_program
from relax_eg.errors import BoundsError
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    TensorProgram,
    evaluate,
    loops,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "tir"))
from tir_strategies import SIZES, arrays_for, programs

M, K, N = map(Dim.var, "mkn")
A = Buffer("A", (M, K), "float32")
B = Buffer("B", (K, N), "float32")
R, S = loops("r s")
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def run(p: TensorProgram, arrays: Sequence[Any], sizes: Mapping[str, int], **options: Any) -> list[np.ndarray[Any, Any]]:
    lowered = jax.jit(lower_program(p, sizes, **options), compiler_options=QUICKLY)
    return [np.asarray(x) for x in lowered(*arrays)]


def same(p: TensorProgram, sizes: Mapping[str, int], seed: int = 0, **options: Any) -> None:
    """Lowering and reference agree on random arrays, on whole numbers exactly."""
    arrays = arrays_for(p, dict(sizes), seed)
    for got, want in zip(run(p, arrays, sizes, **options), evaluate(p, arrays, sizes), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(p))


def primitives(p: TensorProgram, sizes: Mapping[str, int], **options: Any) -> set[str]:
    """The names of what the lowering is made of."""
    structs = [
        jax.ShapeDtypeStruct(tuple(int(d.evaluate(sizes)) for d in b.shape), np.dtype(b.dtype)) for b in p.parameters
    ]
    found: set[str] = set()
    todo = [jax.make_jaxpr(lower_program(p, sizes, **options))(*structs).jaxpr]
    while todo:
        for equation in todo.pop().eqns:
            found.add(equation.primitive.name)
            todo += [x.jaxpr for x in equation.params.values() if hasattr(x, "jaxpr")]
    return found


@settings(max_examples=40)
@given(programs())
def test_random_programs(p: TensorProgram) -> None:
    for sizes in (*SIZES, {"n": 1, "m": 1}, {"n": 0, "m": 2}, {"n": 2, "m": 0}):
        arrays = arrays_for(p, sizes)
        try:
            wanted = evaluate(p, arrays, sizes)
        except BoundsError:
            continue
        for got, want in zip(run(p, arrays, sizes), wanted, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{p} at {sizes}")
