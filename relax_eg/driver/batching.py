"""Batches a function of a module over slices, for rules about loops."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.backend.lowering.lower import run_function
from relax_eg.frontends.jax.batch import batch_function as by_jax
from relax_eg.ir.module import Function, Module
from relax_eg.ir.partition import missing_sizes
from relax_eg.shapes import Dim


def batch_function(module: Module, function: Function, mapped: Sequence[bool], length: Dim) -> Function | None:
    """`function` of `module` applied to each of `length` slices of its `mapped` parameters, by JAX's own batching. None
    if it needs sizes that no parameter determines, or if JAX cannot batch it."""
    if missing_sizes(function):
        return None
    return by_jax(lambda *arrays: run_function(module, function, arrays), function, mapped, length)
