"""Lowering of a function of a module to a JAX computation, for `execution="whole"`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from relax_eg.backend.calls.checks import Fit, cast_fits, signature_fit
from relax_eg.backend.lowering.convolutions import CONVOLUTIONS, convolution_in_a_loop, is_last_in_loops
from relax_eg.backend.lowering.jax_library import run_library
from relax_eg.backend.lowering.libraries import run_registered
from relax_eg.backend.lowering.one_kernel import in_one_kernel
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.backend.lowering.transposed_products import held_apart
from relax_eg.contexts import holding
from relax_eg.errors import DeviceError, OperatorError, ShapeError, TraceError
from relax_eg.ir.annotations import Tensor, Tuple
from relax_eg.ir.control import Parts, functions_of, group_arguments, is_one_kernel
from relax_eg.ir.devices import copied_to, mesh_of
from relax_eg.ir.expr import (
    COND,
    SHARD_MAP,
    VAR,
    WHILE,
    Expr,
    constant_value,
)
from relax_eg.ir.heads import LOOPS, Evaluator
from relax_eg.ir.host_calls import is_host_call
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ir.placements import DeviceMesh
from relax_eg.ops import deduce, get
from relax_eg.ops.data_dependent import BY_LIBRARY
from relax_eg.ops.host_functions import run_host_call
from relax_eg.ops.libraries import library_of
from relax_eg.ops.placing import jax_mesh
from relax_eg.ops.record import is_proved_applicable, may_be_met, preconditions
from relax_eg.shapes import Dim, Scope
from relax_eg.tir import TensorProgram

Sizes = Mapping[str, Any]

_programs: ContextVar[Callable[..., Any]] = ContextVar("relax_eg_programs", default=lower_program)


def lowering_programs_by(lower: Callable[..., Any]) -> AbstractContextManager[None]:
    """A context in which `lower`, like `lower_program`, lowers the tensor programs of whole functions."""
    return holding(_programs, lower)


def run_function(
    module: Module,
    function: Function,
    arrays: Sequence[Any],
    control: Mapping[Expr, Callable[..., Any]] | None = None,
) -> Any:
    """The result of `function` for JAX arrays or tracers: an array or a tuple of arrays.

    The size variables are bound once, from the arrays' shapes. ShapeError where these contradict the signature.
    `control`: what computes certain control nodes from the values of their operands.
    """
    run = _Run(module)
    run.own_control = control or {}
    return run.at(function, arrays, signature_fit(function.name, function.params).bind(arrays))


def run_at(module: Module, function: Function, arrays: Sequence[Any], sizes: Sizes, scope: Scope | None = None) -> Any:
    """As `run_function`, with the size variables given.

    `scope`: bounds and assumptions, checked of the sizes that a `match_cast` binds.
    """
    return _Run(module).at(function, arrays, sizes, scope)


def run_block(
    module: Module,
    block: Block,
    env: Mapping[Expr, Any],
    sizes: Sizes,
    programs: Callable[..., Any] = lower_program,
) -> tuple[Any, ...]:
    """The values of the bindings of a block.

    - `env`: the values of variables.
    - `programs`: the function that lowers tensor programs.
    """
    run, inner = _Run(module, programs), dict(env)
    return tuple(run.value(b.value, inner, sizes) for b in block.bindings)


class _Run(Evaluator):
    """One evaluation of a module's functions on JAX values. JAX traces a function with several call sites once."""

    def __init__(self, module: Module, programs: Callable[..., Any] | None = None) -> None:
        self.module = module
        self.programs = programs or _programs.get()
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.running: Function | None = None
        self.own_control: Mapping[Expr, Callable[..., Any]] = {}
        self._is_in_loop = self._is_in_one_kernel = False
        self.mesh = ""  # on which a value was placed

    def function(self, name: str, args: Sequence[Any]) -> Any:
        function = self.module[name]
        return self.at(function, args, signature_fit(name, function.params).bind(args))

    def at(self, function: Function, args: Sequence[Any], given: Sizes, scope: Scope | None = None) -> Any:
        caller, self.running = self.running, function
        try:
            return self._at(function, args, given, scope)
        finally:
            self.running = caller

    def _at(self, function: Function, args: Sequence[Any], given: Sizes, scope: Scope | None) -> Any:
        env: dict[Expr, Any] = dict(zip(function.params, args, strict=True))
        sizes, casts = dict(given), cast_fits(function)
        for block in function.blocks:
            for b in block.bindings:
                if not block.dataflow and b.value.op != VAR:
                    # Outside dataflow blocks a binding runs even if an equal expression has a value.
                    env.pop(b.value, None)
                if b.var in casts:
                    env[b.value] = self.value(b.value.args[0], env, sizes)
                    new_sizes(casts[b.var], env[b.value], sizes, scope, function.name)
                made = function.origins.get(b.value)
                line = str(made.lines[0]) if made is not None and made.lines else ""
                with jax.named_scope(line) if line else nullcontext():  # for those who look at what XLA compiled
                    env[b.var] = self.value(b.value, env, sizes)
        return self.value(function.result, env, sizes)

    def constant(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        return jnp.asarray(constant_value(e))

    def library(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        return library_call(e, args, sizes)

    def tensor_program(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        return tensor_program_call(e, args, sizes, self.programs)

    def operator(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        operands = tuple(a.annotation for a in e.args)
        args = held_apart(e, args)
        try:
            if not is_proved_applicable(e.op, operands, e.attrs) or any(
                not may_be_met(c, sizes) for c in preconditions(e.op, operands, e.attrs)
            ):
                _need_to_apply(e, args, sizes)
            attrs = {k: _resolved(v, sizes) for k, v in e.attrs}
            if (mesh := mesh_of(e)) is not None and isinstance(args[0], Tracer):
                self._note_mesh(e, mesh)
            try:
                if self._is_in_loop and e.op in CONVOLUTIONS and is_last_in_loops(args[1].shape, attrs["groups"]):
                    return convolution_in_a_loop(*args, **attrs)
                return get(e.op).jax_function()(*args, **attrs)
            except (TypeError, ValueError):
                _need_to_apply(e, args, sizes)  # raises our own error for what JAX refuses
                raise
        except OperatorError as error:
            raise type(error)(self._where(e) + str(error)) from None

    def _note_mesh(self, e: Expr, mesh: str) -> None:
        """Notes a mesh on which the XLA program places a value. DeviceError for one of other devices than before."""
        one, two = DeviceMesh.of(self.mesh or mesh), DeviceMesh.of(mesh)
        if {*jax_mesh(one).devices.flat} != {*jax_mesh(two).devices.flat}:
            raise DeviceError(
                f"{self._where(e)}one XLA program places values on the mesh {one} and on the mesh {two}, which have "
                "other devices\n  accepted: meshes of the same devices"
            )
        self.mesh = mesh

    def _where(self, e: Expr) -> str:
        """The running function and the source line of `e` where it is known, as the beginning of an error message."""
        origin = self.running.origins.get(e) if self.running is not None else None
        return "" if self.running is None else f"{self.running.name}(){f' ({origin})' if origin else ''}: "

    @functools.cached_property
    def _often(self) -> frozenset[str]:
        """The functions that are referred to more than once."""
        named = Counter(n for f in self.module for e in f.expressions() for n in functions_of(e))
        return frozenset(n for n, count in named.items() if count > 1)

    def call(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        """The result of a call of a function.

        A function with several call sites is called in the XLA program too, until XLA inlines it. Only these are, as
        JAX takes twenty Python stack frames for each nested call of that kind.
        """
        name, *args = args
        if name not in self._often:
            return self.function(name, args)
        arrays, fixed = _arrays_and_others(args)
        try:
            compiled = self.compiled.get((name, fixed, self._is_in_loop))
        except TypeError:  # an argument is not hashable: a tuple of arrays
            return self.function(name, args)
        if compiled is None:

            def run(*given: Any) -> Any:
                full = dict(fixed) | dict(zip(arrays, given, strict=True))
                return self.function(name, [full[i] for i in range(len(args))])

            compiled = self.compiled[name, fixed, self._is_in_loop] = jax.jit(run)
        return compiled(*(args[i] for i in arrays))

    def control(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        """The result of a control node, by JAX's operator for it.

        Values from outside that its functions read are closed over, so that they may be of any kind, such as shapes.
        """
        if e in self.own_control:
            return self.own_control[e](*args)
        attrs = dict(e.attrs)
        if is_one_kernel(attrs) and not self._is_in_one_kernel:
            return self.one_kernel(e, args, sizes)
        p = group_arguments(e.op, args, attrs)
        if e.op == SHARD_MAP:
            return self.shard_map(e, p.functions[0], p.constants)

        def run(i: int, *operands: Any) -> Any:
            around, self._is_in_loop = self._is_in_loop, self._is_in_loop or e.op in LOOPS
            try:
                return self.function(p.functions[i], operands)
            finally:
                self._is_in_loop = around

        return run_control(e, p, run, lambda d: _resolved(d, sizes))

    def one_kernel(self, e: Expr, args: list[Any], sizes: Sizes) -> Any:
        """The result of a loop that is one kernel."""
        arrays, fixed = _arrays_and_others(args)

        def loop(*given: Any) -> Any:
            full = dict(fixed) | dict(zip(arrays, given, strict=True))
            self._is_in_one_kernel = True
            try:
                return self.control(e, [full[i] for i in range(len(args))], sizes)
            finally:
                self._is_in_one_kernel = False

        given = tuple(args[i] for i in arrays)
        inside_others = any(hasattr(x, "dtype") for _, a in fixed for x in jax.tree_util.tree_leaves(a))
        return loop(*given) if inside_others else in_one_kernel(loop, given)

    def shard_map(self, e: Expr, name: str, operands: Sequence[Any]) -> Any:
        placed = {k: e.attr(k).value for k in ("mesh", "in_specs", "out_specs", "manual_axes")}
        shapes = [a for a in operands if not hasattr(a, "dtype")]  # they come before all arrays
        body = jax.shard_map(
            lambda *arrays: self.function(name, (*shapes, *arrays)),
            mesh=placed["mesh"],
            in_specs=placed["in_specs"],
            out_specs=placed["out_specs"],
            axis_names=placed["manual_axes"],
            check_vma=e.attr("check_vma"),
        )
        return body(*operands[len(shapes) :])


def _arrays_and_others(args: Sequence[Any]) -> tuple[list[int], tuple[tuple[int, Any], ...]]:
    """The places of arrays among arguments; and the places of names and shapes, with their values."""
    arrays = [i for i, a in enumerate(args) if hasattr(a, "dtype")]
    return arrays, tuple((i, a) for i, a in enumerate(args) if not hasattr(a, "dtype"))


def run_control(e: Expr, p: Parts, run: Callable[..., Any], length: Callable[[Dim], Any]) -> Any:
    """The result of a `cond`, `while_loop` or `scan` with operands `p`, by JAX's operator for it.

    - `run(i, *operands)`: the result of the node's function number `i`.
    - `length(size)`: the value of a size.
    """
    if e.op == COND:
        # A boolean condition becomes 0 or 1, the number of its branch in JAX.
        branches = [functools.partial(run, i, *p.constants) for i in range(len(p.functions))]
        try:
            return jax.lax.switch(jnp.asarray(p.index, jnp.int32), branches)
        except TypeError:
            _refuse_branches(functions_of(e), branches)
            raise
    if e.op == WHILE:
        return jax.lax.while_loop(
            lambda carry: run(0, *p.condition_constants, *carry), lambda carry: run(1, *p.constants, *carry), p.carry
        )
    # If there are xs, they determine the length: JAX would compare it with one given beside them, which fails for a
    # symbolic length.
    steps = None if p.xs else length(e.attr("length"))
    last, ys = jax.lax.scan(scan_step(p, run), p.carry, p.xs, steps, reverse=e.attr("reverse"), unroll=e.attr("unroll"))
    return (*last, *ys)


def scan_step(p: Parts, run: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """One step of a `scan`, as `jax.lax.scan` takes it."""

    def step(carry: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        result = run(0, *p.constants, *carry, *xs)
        return result[: len(carry)], result[len(carry) :]

    return step


def tensor_program_call(
    e: Expr, args: Sequence[Any], sizes: Sizes, programs: Callable[..., Any] = lower_program
) -> Any:
    """The result of a `call_tir` on JAX values. `programs`: the function that lowers its tensor program."""
    program: TensorProgram = e.attr("program").value
    call_sizes = {v: d.evaluate(sizes) for v, d in e.attr("sizes")}
    buffers = [(b.name, Tensor(b.shape, b.dtype)) for b in program.parameters]
    fit = Fit(f"call_tir of `{program.name}`", buffers, {v: f"the size `{v}`" for v in call_sizes})
    results = programs(program, {**call_sizes, **fit.bind(args, call_sizes)})(*args)
    return results if isinstance(e.annotation, Tuple) else results[0]


def library_call(e: Expr, args: Sequence[Any], sizes: Sizes) -> Any:
    """The result of a library call on JAX values.

    TraceError under a trace for a routine whose result size depends on values, which no XLA program can contain.
    """
    device = copied_to(e)
    if device is not None:
        return jax.device_put(args[0], device_named(device))
    if is_host_call(e):
        return _host_call(e, args, sizes)
    name = e.attr("name")
    routine, library = BY_LIBRARY.get(name), library_of(e)
    if library is not None:
        return run_registered(library, e, args, sizes)
    if routine is None:
        return run_library(name, dict(e.attr("attrs")), sizes, args)
    if any(isinstance(a, Tracer) for a in args):
        raise TraceError(
            f"`{routine.name}` cannot run under jax.jit, grad or vmap: how large its result is depends on values\n"
            "  accepted: a call of the optimized function itself, which runs block by block"
        )
    # On the host, which needs the size in any case. XLA would compile a program for each size that occurs.
    return _from_host(routine.compute(np, *map(_to_host, args), **dict(e.attr("attrs"))))


def device_named(name: str) -> Any:
    """The device that a program names, as "cpu:1". DeviceError where this process has none."""
    platform, _, number = name.partition(":")
    try:
        return jax.devices(platform)[int(number)]
    except (RuntimeError, IndexError):
        here = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise DeviceError(
            f"the program is on {name}, and this process has {here}\n"
            "  accepted: devices that JAX finds; XLA_FLAGS=--xla_force_host_platform_device_count=2 makes two of a CPU"
        ) from None


def _host_call(e: Expr, args: Sequence[Any], sizes: Sizes) -> Any:
    """The result of a function of the host. TraceError under a trace."""
    if any(isinstance(x, Tracer) for x in jax.tree_util.tree_leaves(args)):
        raise TraceError(
            f"`{e.attr('name')}` cannot run under jax.jit, grad or vmap: it is a function of the host\n"
            "  accepted: a call of the optimized function itself, which runs block by block"
        )
    return _from_host(run_host_call(e, [_to_host(a) for a in args], dict(sizes)))


def _to_host(value: Any) -> Any:
    if isinstance(value, jax.Array):
        return np.asarray(value)
    return tuple(map(_to_host, value)) if isinstance(value, tuple) else value  # type: ignore[reportUnknownArgumentType]


def _from_host(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return jnp.asarray(value)
    return tuple(map(_from_host, value)) if isinstance(value, tuple) else value  # type: ignore[reportUnknownArgumentType]


def new_sizes(fit: Fit, value: Any, sizes: dict[str, Any], scope: Scope | None, where: str) -> None:
    """Adds to `sizes` those that a `match_cast` of `value` binds. ShapeError or BoundsError where it does not fit."""
    bound_sizes = fit.bind_inside([value], sizes)
    fit.need_inside(bound_sizes, where)
    sizes.update({v: n for v, n in bound_sizes.items() if v not in sizes})
    if scope is not None and all(isinstance(n, int) for n in sizes.values()):
        scope.check(sizes, where)  # all sizes: an assumption may relate new ones to known ones


def _need_to_apply(e: Expr, args: Sequence[Any], sizes: Sizes) -> None:
    """Raises OperatorError where an operator does not apply to these arrays.

    Annotations do not decide that where operands are known in part or it depends on sizes.
    """
    env = {v: n for v, n in sizes.items() if isinstance(n, int)}
    if not all(isinstance(n, int) for a in args for n in getattr(a, "shape", (None,))):
        return
    attrs = {k: _at(v, env) for k, v in e.attrs}
    deduce(e.op, tuple(Tensor(a.shape, str(a.dtype)) for a in args), attrs, strict=True)


def _at(value: Any, env: Mapping[str, int]) -> Any:
    """An attribute of an operator with known sizes substituted."""
    if isinstance(value, tuple):
        return tuple(_at(v, env) for v in value)  # type: ignore[reportUnknownVariableType]
    return Dim.of(int(value.evaluate(env))) if isinstance(value, Dim) and value.variables <= env.keys() else value


def _refuse_branches(names: Sequence[str], branches: Sequence[Any]) -> None:
    """Raises ShapeError where the branches of a `cond` have results of different shapes or dtypes."""
    found = (jax.tree_util.tree_leaves(jax.eval_shape(b)) for b in branches)
    first, *others = ([f"{x.shape} {x.dtype}" for x in values] for values in found)
    for name, values in zip(names[1:], others, strict=True):
        if values != first:
            raise ShapeError(
                f"cond: branch `{names[0]}` gives {', '.join(first)}, branch `{name}` gives {', '.join(values)}\n"
                "  accepted: branches that agree, or a cond outside dataflow blocks, of which only one branch runs"
            )


def _resolved(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, Dim):
        return value.value if value.is_const else value.evaluate(sizes)
    if isinstance(value, tuple):
        return tuple(_resolved(v, sizes) for v in value)  # type: ignore[reportUnknownVariableType]
    return value
