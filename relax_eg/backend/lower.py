"""Lowering: a function of a module as a JAX computation, for `execution="whole"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from relax_eg.backend.jax_library import run_library
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import (
    CALL,
    CALL_DPS_LIBRARY,
    CONSTANT,
    FUNCTION,
    MATCH_CAST,
    SHAPE,
    TUPLE,
    TUPLE_GET,
    VAR,
    Expr,
    constant_value,
    postorder,
)
from relax_eg.ir.module import Function, Module
from relax_eg.ops import get
from relax_eg.shapes import Binder, Dim

Sizes = Mapping[str, Any]


def run_function(module: Module, function: Function, arrays: Sequence[Any]) -> Any:
    """`function` applied to JAX arrays or tracers: one array, or a tuple of them.

    The size variables are bound from the arrays' shapes once; ShapeError where they contradict the signature.
    """
    return run_at(module, function, arrays, bind_sizes(function, [a.shape for a in arrays]))


def bind_sizes(function: Function, shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Values of the size variables when the parameters have these shapes.

    While JAX traces for symbolic sizes a size may itself be symbolic; then variables are read off axes without checks.
    """
    patterns = [_dims(p.annotation) for p in function.params]
    if all(isinstance(n, int) for shape in shapes for n in shape):
        names = [str(p.attr("name")) for p in function.params]
        return Binder(patterns, names, function.name).bind(shapes)
    sizes: dict[str, Any] = {}
    axes = [(d, n) for dims, shape in zip(patterns, shapes, strict=True) for d, n in zip(dims, shape, strict=True)]
    # Axes of one variable first, as the rest may mention further ones.
    for d, n in sorted(axes, key=lambda axis: (len(axis[0].variables), len(str(axis[0])))):
        unknown = [v for v in d.variables if v not in sizes]
        if len(unknown) == 1:
            (v,) = unknown
            rest, scale = (d.evaluate({**sizes, v: 0}), d.evaluate({**sizes, v: 1}) - d.evaluate({**sizes, v: 0}))
            sizes[v] = (n - rest) // scale
    return sizes


def _dims(a: Annotation) -> tuple[Dim, ...]:
    return (a.shape or ()) if isinstance(a, Tensor) else ()


def run_at(module: Module, function: Function, arrays: Sequence[Any], sizes: Sizes) -> Any:
    """As `run_function`, with the size variables given."""
    env: dict[Expr, Any] = dict(zip(function.params, arrays, strict=True))
    for block in function.blocks:
        for b in block.bindings:
            if not block.dataflow:
                # A step is run each time it is written, even where an equal one ran before.
                env.pop(b.value, None)
            env[b.var] = _value(module, b.value, env, sizes)
    return _value(module, function.result, env, sizes)


def _value(module: Module, root: Expr, env: dict[Expr, Any], sizes: Sizes) -> Any:
    for e in postorder((root,), stop=env.__contains__):
        if e not in env:
            env[e] = _node(module, e, [env[a] for a in e.args], sizes)
    return env[root]


def _node(module: Module, e: Expr, args: list[Any], sizes: Sizes) -> Any:
    if e.op == CONSTANT:
        return jnp.asarray(constant_value(e))
    if e.op == TUPLE:
        return tuple(args)
    if e.op == TUPLE_GET:
        return args[0][e.attr("index")]
    if e.op == CALL_DPS_LIBRARY:
        return run_library(e.attr("name"), dict(e.attr("attrs")), sizes, args)
    if e.op == SHAPE:
        return tuple(d.evaluate(sizes) for d in e.attr("dims"))
    if e.op == FUNCTION:
        return e.attr("name")
    if e.op == CALL:
        return run_function(module, module[args[0]], args[1:])
    if e.op == MATCH_CAST:
        raise RelaxEgError("match_cast of data-dependent sizes cannot run inside one XLA program")
    if e.op == VAR:
        raise RelaxEgError(f"variable `{e.attr('name')}` is used before it is defined")
    attrs = {k: _resolved(v, sizes) for k, v in e.attrs}
    return get(e.op).jax_function()(*args, **attrs)


def _resolved(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, Dim):
        return value.value if value.is_const else value.evaluate(sizes)
    if isinstance(value, tuple):
        return tuple(_resolved(v, sizes) for v in value)  # type: ignore[reportUnknownVariableType]
    return value
