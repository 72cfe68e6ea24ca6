"""Runs modules that cannot be one XLA program: dataflow blocks are compiled, the steps between them are instructions.

A dataflow block, or a function without steps, becomes one XLA program per combination of sizes. A step is a binding
outside dataflow blocks that depends on values: a library call whose result sizes are not declared, a `match_cast`, an
effect, a call of a function that has steps, or a control node, such as a `cond`, of which only the taken branch runs.
`vm` has the instructions and the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from relax_eg.backend.calls.checks import Fit, cast_fits, signature_fit
from relax_eg.backend.calls.executables import PARTS, Executables
from relax_eg.backend.calls.program import Program, convert_argument
from relax_eg.backend.calls.runtime import Strategy
from relax_eg.backend.calls.statistics import Statistics
from relax_eg.backend.folds import FoldRunner
from relax_eg.backend.lowering.lower import device_named, library_call, new_sizes, run_at, run_block
from relax_eg.backend.width import convert_for_x64
from relax_eg.dtypes import is_key, numpy_dtype
from relax_eg.errors import OptionError, ShapeError, TraceError
from relax_eg.ir.annotations import Annotation, Data, Shape, Tensor, Tuple
from relax_eg.ir.annotations import Callable as Signature
from relax_eg.ir.control import group_arguments, run_control_on_values
from relax_eg.ir.data import map_annotated
from relax_eg.ir.devices import mesh_in
from relax_eg.ir.expr import CALL_DPS_LIBRARY, FUNCTION, SHARD_MAP, TUPLE_GET, VAR, Expr, constant_value, postorder
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ir.partition import missing_sizes
from relax_eg.ir.placements import REPLICATED, DeviceMesh, MeshPlacement
from relax_eg.ir.steps import general_functions, is_data_dependent, stepped_functions
from relax_eg.limits import KEPT
from relax_eg.memo import Memo
from relax_eg.ops.placing import jax_sharding
from relax_eg.shapes import Scope
from relax_eg.vm.compile import Advances, Bind, ModuleCompiler, Programs, RegionProgram
from relax_eg.vm.folds import Fold
from relax_eg.vm.instructions import Code
from relax_eg.vm.machine import HostSteps, InstructionProfile, VirtualMachine


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
    """`run(values, sizes)` under `jax.jit`: one XLA program per combination of shapes, sizes and static values.

    - `donated`: the places of values whose memory results may take over. They are not read again.
    """

    def __init__(
        self,
        executables: Executables,
        run: Callable[[tuple[Any, ...], dict[str, int]], Any],
        donated: tuple[int, ...] = (),
    ) -> None:
        def traced(sizes: _Static, *values: Any) -> Any:
            return _packed(run(_unpacked(values), dict(sizes.value)))

        def options(first: int) -> dict[str, Any]:
            return {"donate_argnums": tuple(first + i for i in donated)} if donated else {}

        self._made = executables, run
        self._jitted = executables.jit(traced, part=True, **options(1))
        # A call of arrays alone whose sizes are all known from them takes a tenth of the time.
        self._of_arrays = executables.jit(lambda *values: run(values, {}), part=True, **options(0))

    def planned(self, donated: tuple[int, ...], kept: tuple[int, ...]) -> _Compiled:
        """The same program, which gives the operands at the places `donated` away."""
        return _Compiled(*self._made, donated) if donated else self

    def __call__(self, values: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        if not sizes and all([isinstance(v, jax.Array) for v in values]):
            return self._of_arrays(*values)
        return _unpacked(self._jitted(_Static(tuple(sorted(sizes.items()))), *_packed(tuple(values))))


def without_aliases(results: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """Results of a block, each an array of its own: an operand that is also a result, or one array that is two, would
    have two owners, and one of them may give it away."""
    seen = {id(x) for x in jax.tree_util.tree_leaves(given)}

    def own(x: Any) -> Any:
        made = jnp.copy(x) if isinstance(x, jax.Array) and id(x) in seen else x
        seen.add(id(x))
        return made

    return jax.tree_util.tree_map(own, tuple(results))


class OnDevice:
    """A program that runs on a device or a mesh, "" for that of the operand that is on most devices. What is elsewhere
    is copied, to a mesh whole."""

    def __init__(self, run: Callable[[list[Any], Mapping[str, int]], Any], device: str) -> None:
        self.run, self.device = run, device

    def __call__(self, values: list[Any], sizes: Mapping[str, int]) -> Any:
        arrays = [v for v in jax.tree_util.tree_leaves(values) if isinstance(v, jax.Array)]
        where = self._where(arrays)

        def there(v: Any) -> Any:
            if isinstance(v, tuple):
                return tuple(map(there, v))  # type: ignore[reportUnknownArgumentType]
            return v if not isinstance(v, jax.Array) or v.devices() == where.device_set else jax.device_put(v, where)

        with jax.default_device(min(where.device_set, key=lambda d: d.id)):
            return self.run(list(map(there, values)), sizes)

    def _where(self, arrays: Sequence[jax.Array]) -> Any:
        """The sharding of what is copied."""
        if self.device:
            mesh = DeviceMesh.of(self.device)
            if mesh.axes:
                return jax_sharding(mesh, MeshPlacement((REPLICATED,) * len(mesh.axes)), 0)
            return SingleDeviceSharding(device_named(self.device))
        most = max(arrays, key=lambda a: len(a.devices()), default=None)
        if most is not None and isinstance(most.sharding, NamedSharding):
            return NamedSharding(most.sharding.mesh, PartitionSpec())
        return SingleDeviceSharding(jax.devices()[0] if most is None else next(iter(most.devices())))


class StepPrograms(Programs):
    """Makes the XLA programs of one module's functions and blocks, and their checks.

    - `reorder_tolerance`: relative tolerance for the order in which sums are taken.
    """

    reorder_tolerance = 0.0  # given: the order is the program's own

    def __init__(self, module: Module, scope: Scope, executables: Executables) -> None:
        self.module = module
        self.scope = scope
        self.executables = executables
        self.casts: dict[str, dict[Expr, Fit]] = {}
        self.call: Callable[[str, list[Any]], Any]  # runs a function of the module by its instructions

    def region(
        self, function: Function, block: Block, known: Sequence[str], device: str | None = None
    ) -> RegionProgram:
        values = block.values
        reads = [e for e in postorder(values) if e.op == VAR]
        inside = Function("block", (), (block,), values[0])
        sizes = sorted(missing_sizes(inside, known))

        def run(given: tuple[Any, ...], bound: dict[str, int]) -> Any:
            return without_aliases(run_block(self.module, block, dict(zip(reads, given, strict=True)), bound), given)

        compiled = _Compiled(self.executables, run)
        if device is not None:
            return RegionProgram(OnDevice(compiled, device), reads, sizes)
        return RegionProgram(compiled, reads, sizes, compiled.planned)

    def whole(self, function: Function) -> Callable[[list[Any], Mapping[str, int]], Any]:
        scope = self.scope if function is self.module.main else None
        run = _Compiled(self.executables, lambda given, known: run_at(self.module, function, given, known, scope))
        mesh = mesh_in(function)
        return OnDevice(run, mesh) if mesh else run

    def constant(self, e: Expr) -> Any:
        return jnp.asarray(constant_value(e))

    def fit(self, function: Function) -> Callable[[Sequence[Any]], Mapping[str, int]]:
        return signature_fit(function.name, function.params).bind

    def advance(self, function: Function) -> Advances | None:
        return None

    def at_exact_sizes(self) -> Mapping[str, str]:
        """What cannot run at capacity, with the reason."""
        return {}

    def statistics(self, name: str) -> Statistics:
        """Statistics of the executables of the function `name`."""
        return Statistics(name, "exact", {}, (), (), 0, 0.0, self.executables.evicted, {})

    def fold(self, fold: Fold) -> FoldRunner:
        return FoldRunner(self.module, fold, self.executables, lambda args: self.call(fold.name, args))

    def cast(self, function: Function, bound: Expr) -> Bind:
        fits = self.casts.setdefault(function.name, {})
        if not fits:
            fits.update(cast_fits(function))
        scope = self.scope if function is self.module.main else None
        where = f"{function.name}(), match_cast `{bound.attr('name')}`{_origin_of(function, bound)}"

        def bind(values: list[Any], known: Mapping[str, int]) -> Mapping[str, int]:
            sizes = dict(known)
            new_sizes(fits[bound], values[0], sizes, scope, where)
            return sizes

        return bind

    def data_check(self, call: Expr) -> Bind:
        callee = call.args[0]
        assert isinstance(callee.annotation, Signature)
        name = str(callee.attr("name")) if callee.op in (FUNCTION, VAR) else "a function"
        fit = Fit(name, [(f"argument {i}", p) for i, p in enumerate(callee.annotation.params)])
        return lambda values, _: fit.bind_inside(values)


def _origin_of(function: Function, bound: Expr) -> str:
    """Of which library call the value is that a `match_cast` checks, as a part of an error."""
    values = {b.var: b.value for b in function.bindings}
    source = values[bound].args[0]
    while source in values or source.op == TUPLE_GET:
        source = values[source] if source in values else source.args[0]
    return f", the result of `{source.attr('name').rpartition('.')[2]}`" if source.op == CALL_DPS_LIBRARY else ""


MakePrograms = Callable[[Module, Scope, Executables], StepPrograms]


class Runner(HostSteps):
    """Runs the entry of a module, instruction by instruction.

    - `scope`: bounds and assumptions that the sizes must satisfy.
    - `executables`: the cache in which the compiled blocks count.
    - `make`: makes what instructions run.
    """

    def __init__(
        self, module: Module, scope: Scope, executables: Executables, make: MakePrograms = StepPrograms
    ) -> None:
        self.module = module
        self.scope = scope
        self.stepped = stepped_functions(module)
        self.programs = programs = make(module, scope, executables)
        self.compiler = ModuleCompiler(module, self.stepped, programs)
        codes = Memo[str, Code](len(module.functions))
        self.machine = VirtualMachine(lambda name: codes.get_or_make(name, lambda: self.compiler.code(name)), self)
        programs.call = self.machine.call

    def run(self, args: Sequence[Any]) -> Any:
        """The result of the entry for arrays, shapes, data and tuples of them.

        ShapeError or BoundsError for arguments that do not fit, before anything runs.
        """
        main = self.module.main
        sizes = signature_fit(main.name, main.params).bind_inside(args)
        self.scope.check(sizes, main.name)
        return self.machine.call(main.name, args, sizes)

    def profiled(
        self, args: Sequence[Any], traced: Callable[[str], None] | None = None
    ) -> tuple[Any, InstructionProfile]:
        """The result of the entry, and what each instruction took. `traced`: is told each when it has run."""
        self.machine.profile = found = InstructionProfile(traced)
        try:
            return self.run(args), found
        finally:
            self.machine.profile = None

    def waited(self, values: Any) -> None:
        jax.block_until_ready(list(values))

    def copied(self, value: Any, device: str) -> Any:
        return jax.device_put(value, device_named(device))

    def library(self, call: Expr, args: list[Any], sizes: Mapping[str, int]) -> Any:
        return library_call(call, args, dict(sizes))

    def loop(
        self, loop: Expr, args: list[Any], sizes: Mapping[str, int], run: Callable[[str, Sequence[Any]], Any]
    ) -> Any:
        if loop.op == SHARD_MAP:
            raise TraceError(f"{loop.op}: a function that has steps cannot run on several devices")
        functions = group_arguments(loop.op, args, dict(loop.attrs)).functions
        return run_control_on_values(
            loop,
            args,
            lambda i, given: run(functions[i], given),
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

    - `make`: makes the XLA programs of the blocks: for exact sizes, or (`dynamic.steps`) for capacities.
    """

    default_limit = PARTS

    def __init__(self, program: Program, make: MakePrograms = StepPrograms) -> None:
        self.program = program
        kept = self.executables = self.new_executables(program)
        self._written = Runner(program.written(), program.scope, kept)
        chosen = program.written() if program.module is None else program.module
        is_written = program.module is None and make is StepPrograms
        self._chosen = self._written if is_written else Runner(chosen, program.scope, kept, make)
        self.reorder_tolerance = self._chosen.programs.reorder_tolerance

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
            for b in f.bindings:
                if is_data_dependent(b.value):
                    what = b.value.attr("name").rpartition(".")[2]
                    return (
                        f"{name}() runs in steps and is no JAX function: how large `{b.name}`, the result of `{what}`"
                        f"{'' if f.name == name else f' in {f.name}()'}, is depends on values{accepted}"
                    )
        if name in general_functions(runner.module):
            return (
                f"{name}() runs in steps and is no JAX function: it recurs, or has function values, data or cells, or "
                f"runs on several devices; it has no derivatives and is no part of a jax.jit{accepted}; for "
                "derivatives, recursion on tensors that ends in one call of itself, which becomes a while_loop"
            )
        if name in runner.stepped:
            why = "which branch runs, or how often a loop does, decides about sizes or what is checked"
            return f"{name}() runs in steps and is no JAX function: {why}{accepted}"
        return f"{name}() is no JAX function: it takes or returns shapes, or what is known in part only{accepted}"

    def profiled(
        self, arguments: list[Any], traced: Callable[[str], None] | None = None
    ) -> tuple[Any, InstructionProfile]:
        """The result of a call, and what each instruction took. What XLA runs is waited for at each. `traced`: is told
        each instruction when it has run, with the shapes of what it made."""
        checked = self.check_arguments(arguments)
        return self._chosen.profiled(checked, traced)

    def instructions(self) -> list[Code]:
        """The instructions of the functions."""
        return [self._chosen.compiler.code(f.name) for f in self._chosen.module]

    def at_exact_sizes(self) -> Mapping[str, str]:
        return self._chosen.programs.at_exact_sizes()

    def statistics(self) -> Statistics:
        return self._chosen.programs.statistics(self.program.name)

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


@lru_cache(KEPT)
def _known_shape(a: Tensor) -> tuple[int, ...] | None:
    """The shape of a tensor, if its annotation gives it in numbers."""
    return tuple(d.value for d in a.shape) if a.shape is not None and all(d.is_const for d in a.shape) else None


@lru_cache(KEPT)
def _numpy_dtype(name: str | None) -> np.dtype[Any] | None:
    return None if name is None or is_key(name) else numpy_dtype(name)


def _element(where: str, a: Tensor, value: Any) -> Any:
    """A tensor inside of data, converted to what its annotation declares. ShapeError where it cannot be."""
    fits = isinstance(value, jax.Array) and value.shape == _known_shape(a) and not value.weak_type
    if fits and value.dtype == _numpy_dtype(a.dtype):  # a tree may have thousands of them
        return value
    found = convert_argument(where, a, value)
    pairs = zip(a.shape or (), found.shape, strict=False)
    if a.ndim not in (None, found.ndim) or any(d.is_const and d.value != n for d, n in pairs):
        raise ShapeError(f"{where} should be {a.short}, got {found.shape} {found.dtype}")
    return found


def _convert_value(where: str, a: Annotation, value: Any) -> Any:
    """An argument converted to what its parameter's annotation declares. ShapeError where it cannot be."""
    if isinstance(a, Data):
        return map_annotated(where, a, value, _element)
    if isinstance(a, Tuple) and isinstance(value, (tuple, list)) and len(value) == len(a.fields):  # type: ignore[reportUnknownArgumentType]
        fields = enumerate(zip(a.fields, value, strict=True))  # type: ignore[reportUnknownArgumentType]
        return tuple(_convert_value(f"{where}[{i}]", f, x) for i, (f, x) in fields)
    if isinstance(a, Shape) and a.ndim == 1 and isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return (int(value),)  # R.Prim
    if isinstance(a, Shape) and isinstance(value, (tuple, list)):
        sizes = list[Any](value)  # type: ignore[reportUnknownArgumentType]
        if all(isinstance(n, (int, np.integer)) for n in sizes):
            return tuple(int(n) for n in sizes)
    return convert_argument(where, a, value) if isinstance(a, Tensor) else value
