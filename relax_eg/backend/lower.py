"""Lowering: a function of a module as a JAX computation, for `execution="whole"`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from relax_eg.backend.jax_library import run_library
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple
from relax_eg.ir.control import parts
from relax_eg.ir.expr import (
    CALL,
    CALL_DPS_LIBRARY,
    COND,
    CONSTANT,
    CONTROL,
    FUNCTION,
    MATCH_CAST,
    SHAPE,
    SHARD_MAP,
    TUPLE,
    TUPLE_GET,
    VAR,
    WHILE,
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
    return _Run(module).at(function, arrays, bind_sizes(function.name, function.params, [_shape_of(a) for a in arrays]))


def bind_sizes(name: str, params: Sequence[Expr], shapes: Sequence[Any]) -> dict[str, Any]:
    """Values of the size variables when the parameters of function `name` have these shapes; of a parameter that is a
    shape that shape itself, of a tuple the list of its fields'.

    While JAX traces for symbolic sizes a size may itself be symbolic; then variables are read off axes without checks.
    """
    flat = [
        found
        for p, shape in zip(params, shapes, strict=True)
        for found in _patterns(str(p.attr("name")), p.annotation, shape)
    ]
    patterns = [dims for _, dims, _ in flat]
    shapes = [shape for _, _, shape in flat]
    if all(isinstance(n, int) for shape in shapes for n in shape):
        return Binder(patterns, [path for path, _, _ in flat], name).bind(shapes)
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


def _shape_of(value: Any) -> Any:
    """The shape of an array; a shape itself; the list of the shapes in a tuple of values."""
    if isinstance(value, tuple):
        fields: tuple[Any, ...] = value
        return fields if all(not hasattr(f, "shape") for f in fields) else [_shape_of(f) for f in fields]
    return value.shape


def _patterns(name: str, a: Annotation, shape: Any) -> Iterator[tuple[str, tuple[Dim, ...], Sequence[Any]]]:
    """Names, dims and shapes of the tensors and shape values in a parameter whose dims are known."""
    if isinstance(a, Tuple):
        for i, (field, inner) in enumerate(zip(a.fields, shape, strict=True)):
            yield from _patterns(f"{name}[{i}]", field, inner)
    elif isinstance(a, (Tensor, Shape)):
        dims = a.shape if isinstance(a, Tensor) else a.dims
        if dims is not None:
            yield name, dims, shape


def run_at(module: Module, function: Function, arrays: Sequence[Any], sizes: Sizes) -> Any:
    """As `run_function`, with the size variables given."""
    return _Run(module).at(function, arrays, sizes)


class _Run:
    """One evaluation of a module's functions on JAX values. What it calls more than once JAX traces once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def function(self, name: str, args: Sequence[Any]) -> Any:
        function = self.module[name]
        return self.at(function, args, bind_sizes(name, function.params, [_shape_of(a) for a in args]))

    def at(self, function: Function, args: Sequence[Any], sizes: Sizes) -> Any:
        env: dict[Expr, Any] = dict(zip(function.params, args, strict=True))
        for block in function.blocks:
            for b in block.bindings:
                if not block.dataflow:
                    # A step is run each time it is written, even where an equal one ran before.
                    env.pop(b.value, None)
                env[b.var] = self.value(b.value, env, sizes)
        return self.value(function.result, env, sizes)

    def value(self, root: Expr, env: dict[Expr, Any], sizes: Sizes) -> Any:
        for e in postorder((root,), stop=env.__contains__):
            if e not in env:
                env[e] = self.node(e, [env[a] for a in e.args], sizes)
        return env[root]

    def node(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
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
            return self.call(args[0], args[1:])
        if e.op in CONTROL:
            return self.control(e, args, sizes)
        if e.op == MATCH_CAST:
            raise RelaxEgError("match_cast of data-dependent sizes cannot run inside one XLA program")
        if e.op == VAR:
            raise RelaxEgError(f"variable `{e.attr('name')}` is used before it is defined")
        attrs = {k: _resolved(v, sizes) for k, v in e.attrs}
        return get(e.op).jax_function()(*args, **attrs)

    def call(self, name: str, args: Sequence[Any]) -> Any:
        """A call of a function, which is a call in XLA's program too until XLA inlines it."""
        arrays = [i for i, a in enumerate(args) if hasattr(a, "dtype")]
        fixed = tuple((i, a) for i, a in enumerate(args) if not hasattr(a, "dtype"))
        try:
            compiled = self.compiled.get((name, fixed))
        except TypeError:  # a tuple of arrays among the arguments
            return self.function(name, args)
        if compiled is None:

            def run(*given: Any) -> Any:
                full = dict(fixed) | dict(zip(arrays, given, strict=True))
                return self.function(name, [full[i] for i in range(len(args))])

            compiled = self.compiled[name, fixed] = jax.jit(run)
        return compiled(*(args[i] for i in arrays))

    def control(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        """A control node as JAX's own. What the functions take of their surroundings is closed over, so that it may be
        anything, a shape included."""
        p = parts(e.op, args, dict(e.attrs))

        def run(i: int, *operands: Any) -> Any:
            return self.function(p.functions[i], operands)

        if e.op == COND:
            # A boolean counts as 0 or 1, which is how JAX numbers the branches.
            branches = [functools.partial(run, i, *p.constants) for i in range(len(p.functions))]
            return jax.lax.switch(jnp.asarray(p.index, jnp.int32), branches)
        if e.op == WHILE:
            return jax.lax.while_loop(
                lambda carry: run(0, *p.condition_constants, *carry),
                lambda carry: run(1, *p.constants, *carry),
                p.carry,
            )
        if e.op == SHARD_MAP:
            return self.shard_map(e, p.functions[0], p.constants)

        def step(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            result = run(0, *p.constants, *carry, *xs)
            return result[: len(carry)], result[len(carry) :]

        # The xs tell how many; JAX looks at a number given beside them, which a symbolic one does not survive.
        length = None if p.xs else _resolved(e.attr("length"), sizes)
        last, ys = jax.lax.scan(step, p.carry, p.xs, length, reverse=e.attr("reverse"), unroll=e.attr("unroll"))
        return (*last, *ys)

    def shard_map(self, e: Expr, name: str, operands: Sequence[Any]) -> Any:
        placed = {k: e.attr(k).value for k in ("mesh", "in_specs", "out_specs", "manual_axes")}
        shapes = [a for a in operands if not hasattr(a, "dtype")]  # first of all, if any
        body = jax.shard_map(
            lambda *arrays: self.function(name, (*shapes, *arrays)),
            mesh=placed["mesh"],
            in_specs=placed["in_specs"],
            out_specs=placed["out_specs"],
            axis_names=placed["manual_axes"],
            check_vma=e.attr("check_vma"),
        )
        return body(*operands[len(shapes) :])


def _resolved(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, Dim):
        return value.value if value.is_const else value.evaluate(sizes)
    if isinstance(value, tuple):
        return tuple(_resolved(v, sizes) for v in value)  # type: ignore[reportUnknownVariableType]
    return value
