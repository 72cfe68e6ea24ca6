"""ONNX nodes as JAX functions, which the JAX frontend turns into operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax

from relax_eg.dtypes import numpy_dtype
from relax_eg.frontends.jax.trace import trace_function
from relax_eg.frontends.jax.walk import Walk, constant, with_jax_annotation
from relax_eg.frontends.onnx.nodes import OnnxNode
from relax_eg.ir.expr import Expr

_WIDE_BYTES = 8  # given: the bytes of the numbers that JAX has in its 64-bit mode only


def traced(n: OnnxNode, f: Callable[..., Any], *operands: Expr | None) -> list[Expr]:
    """The results of a JAX function on `operands`, as operators; the function gets None for one that is left out. Its
    loops become functions of the module."""
    xs = [x for x in operands if x is not None]

    def of_all(*arrays: Any) -> Any:
        given = iter(arrays)
        return f(*(None if x is None else next(given) for x in operands))

    wide = any(numpy_dtype(x.dtype).itemsize >= _WIDE_BYTES for x in xs)
    with jax.enable_x64(True) if wide else nullcontext():
        found = trace_function(of_all, tuple(x.annotation for x in xs), name=n.kind)
        walk = Walk(found.sizes, {f"x{i}" for i in range(len(xs))}, n.functions)
        closed = found.jaxpr
        forms = [with_jax_annotation(x, walk.annotation_of(v.aval), found.sizes)
                 for x, v in zip(xs, closed.jaxpr.invars, strict=True)]  # fmt: skip
        given = [x if form is None else form for x, form in zip(xs, forms, strict=True)]
        return walk.run(closed.jaxpr, [constant(c) for c in closed.consts], given)


def traced_one(n: OnnxNode, f: Callable[..., Any], *operands: Expr | None) -> Expr:
    """The only result of a JAX function on `operands`."""
    (result,) = traced(n, f, *operands)
    return result
