"""Batches a function of a module over a new first axis, with JAX's own batching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from relax_eg.errors import RelaxEgError
from relax_eg.frontends.jax.trace import trace_function
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.module import Function
from relax_eg.shapes import Dim


def batch_function(
    run: Callable[..., tuple[Any, ...]], function: Function, mapped: Sequence[bool], length: Dim
) -> Function | None:
    """Returns `function` batched over `length` slices of its `mapped` parameters. `run` computes `function` on JAX
    arrays.

    None if JAX cannot batch it, or if the batched function is not one pure block.
    """
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
