"""Batches a function of a module over slices, with JAX's own batching, for rules about loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from relax_eg.backend.lowering.lower import run_function
from relax_eg.errors import RelaxEgError
from relax_eg.frontends.jax.trace import trace_function
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.module import Function, Module
from relax_eg.ir.partition import missing_sizes
from relax_eg.shapes import Dim


def batch_function(module: Module, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
    """`function` of `module` applied to each of `length` slices of its `mapped` parameters. None if it needs sizes that
    no parameter determines, if JAX cannot batch it, or if the batched function is not one pure block."""
    if missing_sizes(function):
        return None

    def run(*arrays: Any) -> Any:
        return run_function(module, function, arrays)

    of = [p.annotation for p in function.params]
    specs = [_stacked(a, length) if m else a for a, m in zip(of, mapped, strict=True)]
    over = jax.vmap(run, in_axes=tuple(0 if m else None for m in mapped))
    try:
        traced = trace_function(lambda *xs: over(*xs), tuple(specs), name=f"{function.name}_batched")
    except (RelaxEgError, TypeError, ValueError, NotImplementedError):
        return None
    found = traced.module.main
    pure = len(traced.module.functions) == 1 and found.is_one_block
    return found if pure else None


def _stacked(a: Annotation, length: Dim) -> Annotation:
    assert isinstance(a, Tensor) and a.shape is not None
    return Tensor((length, *a.shape), a.dtype)
