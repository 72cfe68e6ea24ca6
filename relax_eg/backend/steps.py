"""Runs modules that cannot be one XLA program: dataflow blocks are compiled, the steps between them run one by one.

A dataflow block, or a function without steps, becomes one XLA program per combination of sizes. A step is a binding
outside dataflow blocks that depends on values: a library call whose result sizes are not declared, a `match_cast`, an
effect, a call of a function that has steps, or a control node, such as a `cond`, of which only the taken branch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from relax_eg.backend.checks import Fit, cast_fits, signature_fit
from relax_eg.backend.executables import PARTS, Executables
from relax_eg.backend.lower import library_call, new_sizes, run_at, run_block
from relax_eg.backend.program import Program, convert_argument
from relax_eg.backend.runtime import UNSEEN, Strategy
from relax_eg.backend.width import convert_for_x64
from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import OptionError, ShapeError, TraceError
from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple
from relax_eg.ir.control import group_arguments, run_control_on_values
from relax_eg.ir.expr import CALL, MATCH_CAST, SHARD_MAP, VAR, Expr, postorder
from relax_eg.ir.heads import CONTROL
from relax_eg.ir.module import Binding, Block, Function, Module
from relax_eg.ir.partition import missing_sizes
from relax_eg.ir.steps import is_data_dependent, stepped_functions
from relax_eg.memo import Memo
from relax_eg.shapes import Scope


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    """A value that is static while JAX traces.

    - `value`: a size, a shape, or the name of a function.
    """

    value: Any


def _packed(value: Any) -> Any:
    """`value` as an argument of `jax.jit`: arrays as they are, everything else as `_Static`."""
    if hasattr(value, "dtype"):
        return value
    return tuple(map(_packed, value)) if isinstance(value, tuple) else _Static(value)  # type: ignore[reportUnknownArgumentType]


def _unpacked(value: Any) -> Any:
    if isinstance(value, _Static):
        return value.value
    return tuple(map(_unpacked, value)) if isinstance(value, tuple) else value  # type: ignore[reportUnknownArgumentType]


class _Compiled:
    """`run(values, sizes)` under `jax.jit`: one XLA program per combination of shapes, sizes and static values."""

    def __init__(self, executables: Executables, run: Callable[[tuple[Any, ...], dict[str, int]], Any]) -> None:
        def traced(values: tuple[Any, ...], sizes: _Static) -> Any:
            return _packed(run(_unpacked(values), dict(sizes.value)))

        self._jitted = executables.jit(traced, part=True)

    def __call__(self, values: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        return _unpacked(self._jitted(_packed(tuple(values)), _Static(tuple(sorted(sizes.items())))))


class _Block:
    """A compiled dataflow block."""

    def __init__(self, executables: Executables, module: Module, block: Block, known: Sequence[str]) -> None:
        values = [b.value for b in block.bindings]
        self.reads = [e for e in postorder(values) if e.op == VAR]
        inside = Function("block", (), (block,), values[0])
        self.sizes = sorted(missing_sizes(inside, known))
        reads = self.reads

        def run(given: tuple[Any, ...], sizes: dict[str, int]) -> Any:
            return run_block(module, block, dict(zip(reads, given, strict=True)), sizes)

        self.run = _Compiled(executables, run)


class _Plan:
    """A function that has steps, prepared to run: its compiled blocks, and the checks of arguments and casts."""

    def __init__(self, executables: Executables, module: Module, function: Function) -> None:
        self.function = function
        self.fit = signature_fit(function.name, function.params)
        self.casts: dict[Expr, Fit] = cast_fits(function)
        known = (*function.size_variables, *function.cast_variables)
        self.blocks = [
            _Block(executables, module, b, known) if b.dataflow and b.bindings else None for b in function.blocks
        ]


class Runner:
    """Runs the entry of a module, step by step.

    - `scope`: bounds and assumptions that the sizes must satisfy.
    - `executables`: the cache in which the compiled blocks count.
    """

    def __init__(self, module: Module, scope: Scope, executables: Executables) -> None:
        self._executables = executables
        self.module = module
        self.scope = scope
        self.stepped = stepped_functions(module)
        self._functions = {f.name: f for f in module}
        self._plans = Memo[str, _Plan](len(self._functions))
        self._whole = Memo[str, _Compiled](len(self._functions))

    def run(self, args: Sequence[Any]) -> Any:
        """The result of the entry for arrays, shapes and tuples of them.

        ShapeError or BoundsError for arguments that do not fit, before anything runs.
        """
        return self._function(self.module.main, args, self.scope)

    def _function(self, f: Function, args: Sequence[Any], scope: Scope | None = None) -> Any:
        sizes = signature_fit(f.name, f.params).bind(args)
        if scope is not None:
            scope.check(sizes, f.name)
        if f.name in self.stepped:
            return self._steps(f, args, sizes, scope)
        module = self.module
        whole = self._whole.get_or_make(
            f.name,
            lambda: _Compiled(self._executables, lambda given, known: run_at(module, f, given, known, scope)),
        )
        return whole(args, sizes)

    def _steps(self, f: Function, args: Sequence[Any], sizes: dict[str, int], scope: Scope | None) -> Any:
        plan = self._plans.get_or_make(f.name, lambda: _Plan(self._executables, self.module, f))
        env: dict[Expr, Any] = dict(zip(f.params, args, strict=True))
        for block, compiled in zip(f.blocks, plan.blocks, strict=True):
            if compiled is not None:
                known = {v: sizes[v] for v in compiled.sizes if v in sizes}
                values = compiled.run([env[e] for e in compiled.reads], known)
                env.update(zip((b.var for b in block.bindings), values, strict=True))
                continue
            for b in block.bindings:
                env[b.var] = self._step(plan, b, env, sizes, scope)
        return self._value(f.result, env, sizes)

    def _step(self, plan: _Plan, b: Binding, env: dict[Expr, Any], sizes: dict[str, int], scope: Scope | None) -> Any:
        e = b.value
        if e.op == MATCH_CAST:
            value = self._value(e.args[0], env, sizes)
            new_sizes(plan.casts[b.var], value, sizes, scope, plan.function.name)
            return value
        args = [self._value(a, env, sizes) for a in e.args]
        if e.op == CALL:
            return self._function(self._functions[args[0]], args[1:])
        if e.op in CONTROL:
            return self._control(e, args, sizes)
        return library_call(e, args, sizes)

    def _value(self, e: Expr, env: dict[Expr, Any], sizes: dict[str, int]) -> Any:
        """The value of an operand of a step, or of a result; mostly a variable that is in `env`."""
        if e in env:
            return env[e]
        (value,) = run_block(self.module, Block((Binding(e, e),)), env, sizes)
        return value

    def _control(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Any:
        if e.op == SHARD_MAP:
            raise TraceError(f"{e.op}: a function that has steps cannot run on several devices")
        functions = [self._functions[name] for name in group_arguments(e.op, args, dict(e.attrs)).functions]
        return run_control_on_values(
            e,
            args,
            lambda i, given: self._function(functions[i], given),
            lambda d: int(d.evaluate(sizes)),
            lambda values, a: _stacked(values, a, sizes),
        )


def _stacked(values: Sequence[Any], a: Annotation, sizes: Mapping[str, int]) -> Any:
    if values:
        return jnp.stack(values)
    if not isinstance(a, Tensor) or a.shape is None or a.dtype is None:
        raise ShapeError(f"scan: no step is made, and how large its result {a} would be is not known")
    return jnp.zeros([int(d.evaluate(sizes)) for d in a.shape], numpy_dtype(a.dtype))


class InSteps(Strategy):
    """Runs a module whose entry cannot be one XLA program, block by block.

    A size that does not fit and that only a step determines raises ShapeError or BoundsError as soon as it is known.
    """

    default_limit = PARTS

    def __init__(self, program: Program) -> None:
        self.program = program
        kept = self.executables = self.new_executables(program)
        self._written = Runner(program.written(), program.scope, kept)
        self._chosen = self._written if program.module is None else Runner(program.module, program.scope, kept)

    def call_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return UNSEEN

    def run(self, arguments: list[Any]) -> Any:
        return self._chosen.run(self.check_arguments(arguments))

    def flat_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        p = self.program
        try:
            positional, named = p.bind(args, kwargs)
        except TypeError as e:
            raise ShapeError(f"{p.name}(): {e}") from None
        values = [*positional, *named.values()]
        if len(values) != len(p.params):
            raise ShapeError(f"{p.name}() takes {len(p.params)} arguments, got {len(values)}")
        if any(isinstance(x, Tracer) for x in jax.tree_util.tree_leaves(values)):
            raise TraceError(self._no_jax_function_message())
        if not p.needs_x64_mode:
            return values
        return [_convert_for_x64(q.annotation, x) for q, x in zip(p.params, values, strict=True)]

    def call_arguments(self, arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(arguments), {}

    def check_arguments(self, arguments: Sequence[Any]) -> list[Any]:
        p = self.program
        named_values = zip(p.params, arguments, strict=True)
        return [_convert_value(f"{p.name}(): argument `{q.attr('name')}`", q.annotation, x) for q, x in named_values]

    def _no_jax_function_message(self) -> str:
        """The message of the error that says why the program is no JAX function."""
        runner, name = self._chosen, self.program.name
        accepted = f"\n  accepted: a call of what optimize returned, {name}(...), outside of jax.jit, grad and vmap"
        for f in runner.module:
            for b in (b for block in f.blocks for b in block.bindings):
                if is_data_dependent(b.value):
                    what = b.value.attr("name").rpartition(".")[2]
                    return (
                        f"{name}() runs in steps and is no JAX function: how large `{b.name}`, the result of `{what}`"
                        f"{'' if f.name == name else f' in {f.name}()'}, is depends on values{accepted}"
                    )
        if name in runner.stepped:
            why = "which branch runs, or how often a loop does, decides about sizes or what is checked"
            return f"{name}() runs in steps and is no JAX function: {why}{accepted}"
        return f"{name}() is no JAX function: it takes or returns shapes, or what is known in part only{accepted}"

    def to_jax(self) -> Callable[..., Any]:
        raise TraceError(self._no_jax_function_message())

    def run_as_written(self, checked: list[Any]) -> Any:
        return self._written.run(checked)

    @property
    def unbindable_reason(self) -> str:
        return "what runs in steps is not prepared; call it with all its arguments"

    def bind(self, indices: Sequence[int], weights: list[Any]) -> Strategy:
        raise OptionError(f"prepare(): {self.unbindable_reason}")


def _convert_for_x64(a: Annotation, value: Any) -> Any:
    """An argument of a call made outside JAX's x64 mode, as JAX takes it there."""
    if isinstance(a, Tuple) and isinstance(value, (tuple, list)) and len(value) == len(a.fields):  # type: ignore[reportUnknownArgumentType]
        return tuple(_convert_for_x64(f, x) for f, x in zip(a.fields, value, strict=True))  # type: ignore[reportUnknownArgumentType]
    return convert_for_x64(value, a.dtype) if isinstance(a, Tensor) else value


def _convert_value(where: str, a: Annotation, value: Any) -> Any:
    """An argument converted to what its parameter's annotation declares. ShapeError where it cannot be."""
    if isinstance(a, Tuple) and isinstance(value, (tuple, list)) and len(value) == len(a.fields):  # type: ignore[reportUnknownArgumentType]
        fields = enumerate(zip(a.fields, value, strict=True))  # type: ignore[reportUnknownArgumentType]
        return tuple(_convert_value(f"{where}[{i}]", f, x) for i, (f, x) in fields)
    if isinstance(a, Shape) and isinstance(value, (tuple, list)):
        sizes = list[Any](value)  # type: ignore[reportUnknownArgumentType]
        if all(isinstance(n, (int, np.integer)) for n in sizes):
            return tuple(int(n) for n in sizes)
    return convert_argument(where, a, value) if isinstance(a, Tensor) else value
