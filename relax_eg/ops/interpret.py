"""The reference interpreter: evaluates a module from its operators' index equations on numpy or exact arrays."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from relax_eg.argument_checks import short_repr
from relax_eg.contexts import holding
from relax_eg.dtypes import is_key, numpy_dtype
from relax_eg.errors import OperatorError, ShapeError
from relax_eg.ir import heads
from relax_eg.ir.annotations import Annotation, Data, DataValue, Shape, Tensor, Tuple
from relax_eg.ir.control import group_arguments, run_control_on_values
from relax_eg.ir.data import Cell, FunctionValue, map_annotated, map_data, sizes_in_data, unknown_size_error
from relax_eg.ir.expr import Expr, constant_value, postorder
from relax_eg.ir.host_calls import is_host_call
from relax_eg.ir.module import Function, Module
from relax_eg.ir.steps import general_functions
from relax_eg.limits import KEPT
from relax_eg.ops.data_dependent import BY_LIBRARY
from relax_eg.ops.host_functions import run_host_call
from relax_eg.ops.keys import dtype_name
from relax_eg.ops.keys import from_jax as keys_from_jax
from relax_eg.ops.keys import to_jax as keys_to_jax
from relax_eg.ops.libraries import Library, library_of
from relax_eg.ops.record import TABLE, Site, counts, deduce, get, is_proved_applicable, program_of
from relax_eg.shapes import Binder, Dim, Scope
from relax_eg.tir import Counts, TensorProgram, count
from relax_eg.tir import evaluate as evaluate_program
from relax_eg.tir.points import POINTS, batch_over_points

Array: TypeAlias = np.ndarray[Any, Any]
Value: TypeAlias = "Array | tuple[Any, ...] | str"  # a tensor, a tuple or shape, the name of a function
Arithmetic = Literal["numpy", "exact"]
SPOILED = 0xFF  # given: the byte in memory that holds no value; NaN when read as a float
Libraries = Callable[[Expr, list[Any], dict[str, int]], Any]


# Number of loop steps still allowed, in a list of one; None without a bound.
_STEPS_LEFT: ContextVar[list[int] | None] = ContextVar("left", default=None)


def step_limit(steps: int) -> AbstractContextManager[None]:
    """Inside, all loops and calls of recursive functions together make at most `steps` steps; one more raises
    OperatorError."""
    return holding(_STEPS_LEFT, [steps])


def _count_step() -> None:
    left = _STEPS_LEFT.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            raise OperatorError("loops and calls make more steps than are evaluated")


def evaluate(
    program: Function | Module,
    args: Sequence[Any],
    *,
    sizes: Mapping[str, int] | None = None,
    arithmetic: Arithmetic = "numpy",
    ordered: bool = False,
    libraries: Libraries | None = None,
) -> Any:
    """Returns the result of `program`: an array or a tuple of arrays.

    - `program`: a module, whose entry function runs, or a function that calls no other.
    - `sizes`: values of the size variables that no argument's shape determines.
    - `arithmetic`, `ordered`: as in `tir.evaluate`.
    - `libraries(call, operands, sizes)`: computes a `call_dps_library` of a routine that is not registered; a
      registered routine is evaluated by its definition.

    Arguments, results and the operands of `libraries` hold PRNG keys as JAX key arrays.
    """
    module = program if isinstance(program, Module) else Module((program,))
    run = _Interpreter(module, arithmetic, ordered, libraries)
    given = [map_data(a, as_arrays) if isinstance(a, DataValue) else a for a in args]
    return _to_caller(run.function(program.main if isinstance(program, Module) else program, given, sizes or {}))


def evaluate_within(program: Module, args: Sequence[Any], most: int) -> Any:
    """As `evaluate`; None where flops plus bytes moved exceed `most`, or where an OperatorError is raised, as for a
    routine that is not registered."""
    try:
        return _to_caller(
            _BoundedInterpreter(program, "numpy", False, None, [float(most)]).function(program.main, args, {})
        )
    except (_WorkLimitError, OperatorError):
        return None


def evaluate_expr(
    expr: Expr,
    env: Mapping[Expr, Any],
    sizes: Mapping[str, int],
    *,
    arithmetic: Arithmetic = "numpy",
    ordered: bool = False,
) -> Any:
    """Returns the value of `expr`; `env` gives the values of some nodes, usually variables."""
    return _Interpreter(Module(()), arithmetic, ordered, None).value(expr, dict(env), dict(sizes))


def evaluate_points(
    roots: Sequence[Expr], env: Mapping[Expr, Array], sizes: Mapping[str, int], count: int, *, ordered: bool = False,
    kept: Callable[[Expr, Any], Any] = lambda _, value: value,
) -> list[Any]:  # fmt: skip
    """Returns the values of `roots` at `count` >= 1 points at once.

    The arrays in `env` and the results have the points as first axis. `ordered`: as in `tir.evaluate`. `kept`: what is
    kept of the value of an operator or a tensor program, such as the value after a rounding.
    Nodes whose value depends on `env` must be operators, tensor programs or tuples; any other raises OperatorError. A
    read out of range at one point raises BoundsError for all points.
    """
    plain = _Interpreter(Module(()), "numpy", ordered, None)
    known: dict[Expr, Any] = dict(env)
    still: dict[Expr, Any] = {}  # values that do not depend on the point
    for e in postorder(roots, stop=known.__contains__):
        if e in known:
            continue
        if e.op != heads.VAR and all(a in still for a in e.args):
            still[e] = plain.node(e, [still[a] for a in e.args], dict(sizes))
            continue
        args = [known[a] if a in known else _repeat_for_points(still[a], count) for a in e.args]
        if e.op in heads.TUPLES:
            known[e] = plain.node(e, args, dict(sizes))
        elif e.op in TABLE or e.op == heads.CALL_TIR:
            known[e] = kept(e, _operator_at_points(plain, e, args, dict(sizes), count, ordered))
        else:
            raise OperatorError(f"{e.op} is not evaluated at many points at once")
    return [known[r] if r in known else _repeat_for_points(still[r], count) for r in roots]


def _repeat_for_points(value: Any, count: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_repeat_for_points(v, count) for v in value)  # type: ignore[reportUnknownVariableType]
    return np.broadcast_to(value, (count, *value.shape))


def _operator_at_points(
    plain: _Interpreter, e: Expr, args: list[Any], sizes: dict[str, int], count: int, ordered: bool
) -> Any:
    shown, program = _equations(e.op, tuple(a.annotation for a in e.args), e.attrs, repr(e.attrs))
    if not shown:
        program = program_of(plain.site_at(e, [a[0] for a in args], sizes))
    if program is not None:
        found = evaluate_program(batch_over_points(program), args, {**sizes, POINTS: count}, ordered=ordered)
        return tuple(found) if isinstance(e.annotation, Tuple) else found[0]
    each = [plain.operator(e, [a[i] for a in args], sizes) for i in range(count)]
    if isinstance(e.annotation, Tuple):
        return tuple(np.stack(field) for field in zip(*each, strict=True))
    return np.stack(each)


class SharedValues:
    """An evaluator of expressions that computes each shared subexpression once and keeps its value.

    - `module`: the functions that expressions run.
    - `env`: values of leaves, such as variables.

    PRNG keys are held as numpy key arrays.
    """

    def __init__(
        self, module: Module, env: Mapping[Expr, Any], sizes: Mapping[str, int], libraries: Libraries | None = None
    ) -> None:
        self._run = _Interpreter(module, "numpy", False, libraries)
        self._known: dict[Expr, Any] = {e: as_arrays(v) for e, v in env.items()}
        self._sizes = dict(sizes)

    def of(self, e: Expr) -> Any:
        """Returns the value of `e`."""
        return self._run.value(e, self._known, self._sizes)


@dataclass(frozen=True)
class _Interpreter(heads.Evaluator):
    """An evaluator on numpy or exact arrays. PRNG keys are numpy key arrays.

    - `module`: the functions that expressions run.
    - `arithmetic`, `ordered`: as in `tir.evaluate`.
    - `libraries`: computes library calls of routines that are not registered.
    """

    module: Module
    arithmetic: Arithmetic
    ordered: bool
    libraries: Libraries | None

    def function(self, function: Function, args: Sequence[Any], given: Mapping[str, int]) -> Any:
        sizes = dict(given)
        if function.name in self.general:
            return self.general_call(function, args, given)
        env = self.environment(function, args, sizes)
        for block in function.blocks:
            for binding in block.bindings:
                if not block.dataflow and binding.value.op != heads.VAR:
                    env.pop(binding.value, None)  # outside dataflow blocks every binding runs, even of an equal node
                env[binding.var] = self.value(binding.value, env, sizes)
        return self.value(function.result, env, sizes)

    @cached_property
    def general(self) -> frozenset[str]:
        """The functions that recur or have values beyond tensors."""
        return general_functions(self.module)

    def general_call(self, function: Function, args: Sequence[Any], given: Mapping[str, int]) -> Any:
        """Returns the result of a general function. Calls among such functions are as deep as memory allows: each runs
        in a generator, which asks for the results of the functions that it calls."""
        running = [self.steps(function, args, given)]
        value: Any = None
        while True:
            try:
                name, called = running[-1].send(value)
                running.append(self.steps(self.module[name], called, {}))
                value = None
                _count_step()
            except StopIteration as end:
                running.pop()
                value = end.value
                if not running:
                    return value

    def steps(
        self, function: Function, args: Sequence[Any], given: Mapping[str, int]
    ) -> Generator[tuple[str, tuple[Any, ...]], Any, Any]:
        """Runs a function, and yields each function that it calls, with the arguments, to be sent the result."""
        sizes = dict(given)
        env = self.environment(function, args, sizes)
        for block in function.blocks:
            for binding in block.bindings:
                e = binding.value
                if block.dataflow or e.op not in (heads.CALL, heads.COND, heads.MATCH):
                    if e.op != heads.VAR and not block.dataflow:
                        env.pop(e, None)
                    env[binding.var] = self.value(e, env, sizes)
                    continue
                operands = [self.value(a, env, sizes) for a in e.args]
                parts = group_arguments(e.op, operands, dict(e.attrs))
                if e.op == heads.CALL:
                    called, last = _callee(operands[0])
                    env[binding.var] = yield called, (*operands[1:], *last)
                elif e.op == heads.MATCH:
                    called = parts.functions[parts.index.index]
                    env[binding.var] = yield called, (*parts.constants, *parts.index.fields)
                else:
                    called = parts.functions[min(max(int(parts.index), 0), len(parts.functions) - 1)]
                    env[binding.var] = yield called, parts.constants
        return self.value(function.result, env, sizes)

    def environment(self, function: Function, args: Sequence[Any], sizes: dict[str, int]) -> dict[Expr, Any]:
        """Returns the values of the parameters, and adds the size variables that they bind to `sizes`."""
        if len(args) != len(function.params):
            raise ShapeError(f"{function.name}() takes {len(function.params)} arguments, got {len(args)}")
        env: dict[Expr, Any] = {}
        fit: list[tuple[str, Annotation, Any]] = []
        for param, arg in zip(function.params, args, strict=True):
            env[param] = _argument_arrays(param.annotation, arg)
            fit.append((str(param.attr("name")), param.annotation, env[param]))
        self.bind(function.name, fit, sizes)
        if function.assume:
            scope = Scope(assume=function.assume)
            scope.check({v: n for v, n in sizes.items() if v in scope.names}, function.name)
        return env

    def bind(self, where: str, fit: Sequence[tuple[str, Annotation, Any]], sizes: dict[str, int]) -> None:
        """Checks that each named value fits its annotation, and adds the size variables that this binds to `sizes`."""
        known = {name: Dim.of(size) for name, size in sizes.items()}
        patterns: list[list[Dim]] = []
        names: list[str] = []
        shapes: list[tuple[int, ...]] = []
        todo = list(reversed(fit))
        while todo:
            name, annotation, value = todo.pop()
            if isinstance(annotation, Tuple):
                if not isinstance(value, tuple) or len(value) != len(annotation.fields):
                    raise ShapeError(f"{where}: `{name}` should be a tuple of {len(annotation.fields)}")
                parts = zip(annotation.fields, value, strict=True)
                todo.extend(reversed([(f"{name}[{i}]", a, v) for i, (a, v) in enumerate(parts)]))
                continue
            dims, shape = None, ()
            if isinstance(annotation, Tensor):
                dims, shape = annotation.shape, value.shape
                if annotation.ndim not in (None, value.ndim):
                    raise ShapeError(f"{where}: `{name}` should have rank {annotation.ndim}, got {value.ndim}")
                if self.arithmetic == "numpy" and annotation.dtype not in (None, dtype_name(value)):
                    raise ShapeError(f"{where}: `{name}` should be {annotation.dtype}, got {dtype_name(value)}")
            elif isinstance(annotation, Shape):
                dims, shape = annotation.dims, value
            elif isinstance(annotation, Data) and getattr(value, "definition", None) != annotation.definition:
                raise ShapeError(f"{where}: `{name}` should be a {annotation.definition}, got {short_repr(value)}")
            if dims is not None:
                patterns.append([d.substitute(known) for d in dims])
                names.append(name)
                shapes.append(shape)
        sizes.update(Binder(patterns, names, where).bind(shapes))

    def constant(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        return constant_value(e)

    def call(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        name, last = _callee(args[0])
        return self.function(self.module[name], (*args[1:], *last), {})

    def match_cast(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        found: dict[tuple[Tensor, tuple[int, ...]], tuple[str, Tensor, Any]] = {}

        def keep(place: str, a: Tensor, x: Any) -> Any:
            return found.setdefault((a, x.shape), (place, a, x))[2]

        inside = sizes_in_data(e.annotation)
        if inside:
            map_annotated("value", e.annotation, args[0], keep)
        self.bind("match_cast", [("value", e.annotation, args[0]), *found.values()], sizes)
        if inside - sizes.keys():
            raise unknown_size_error("match_cast", "value", min(inside - sizes.keys()))
        return args[0]

    def library(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        if is_host_call(e):
            return run_host_call(e, args, sizes)
        routine = BY_LIBRARY.get(e.attr("name"))
        if routine is not None:
            return as_arrays(routine.compute(np, *args, **dict(e.attr("attrs"))))
        library = library_of(e)
        if library is not None:
            return self.run_definition(library, e, args, sizes)
        if self.libraries is None:
            raise OperatorError(f"library call `{e.attr('name')}`: pass `libraries` to evaluate it")
        return as_arrays(self.libraries(e, [_to_caller(a) for a in args], sizes))

    def control(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        """Returns the result of a control node, whose functions run one after the other."""
        functions = [self.module[name] for name in group_arguments(e.op, args, dict(e.attrs)).functions]
        if e.op == heads.SHARD_MAP:
            raise OperatorError("shard_map: what a part of it computes on several devices has no value here")

        def run(i: int, given: tuple[Any, ...]) -> Any:
            if e.op in heads.LOOPS and i == len(functions) - 1:
                _count_step()
            return self.function(functions[i], given, {})

        return run_control_on_values(
            e, args, run, lambda d: int(d.evaluate(sizes)), lambda values, a: self.stack_results(values, a, sizes)
        )

    def stack_results(self, values: list[Any], annotation: Annotation, sizes: dict[str, int]) -> Array:
        if values:
            return np.stack(values)
        assert isinstance(annotation, Tensor) and annotation.shape is not None and annotation.dtype is not None
        shape = tuple(int(d.evaluate(sizes)) for d in annotation.shape)
        return np.zeros(shape, object if self.arithmetic == "exact" else numpy_dtype(annotation.dtype))

    def operator(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        shown, program = _equations(e.op, tuple(a.annotation for a in e.args), e.attrs, repr(e.attrs))
        if not shown:
            program = program_of(self.site_at(e, args, sizes))
        if program is not None:
            results = evaluate_program(program, args, sizes, arithmetic=self.arithmetic, ordered=self.ordered)
            return tuple(results) if isinstance(e.annotation, Tuple) else results[0]
        reference = get(e.op).reference
        if reference is None or self.arithmetic == "exact":
            raise OperatorError(f"{e.op} has no index equations and so no value in {self.arithmetic} arithmetic")
        dims = {a.name for a in get(e.op).attributes if a.kind == "dims"}
        attrs = {k: tuple(d.evaluate(sizes) for d in v) if k in dims else v for k, v in e.attrs}
        return as_arrays(reference(*args, **attrs))

    def run_definition(self, library: Library, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        """Returns the result of a registered routine, computed by its definition."""
        shapes = [Tensor(a.shape, x.tensor.dtype) for a, x in zip(args, e.args, strict=True)]
        attrs = {k: tuple(Dim.of(d.evaluate(sizes)) for d in v) if k in library.size_names else v
                 for k, v in e.attr("attrs")}  # fmt: skip
        definition, told = library.sizes_at(shapes, attrs)
        env = dict(zip(definition.params, args, strict=True))
        known = {v: d.value for v, d in told.items()}
        values = tuple(self.value(r, env, known) for r in definition.results)
        return values if definition.is_tuple else values[0]

    def tensor_program(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        called: TensorProgram = e.attr("program").value
        told = [(v, d.evaluate(sizes)) for v, d in e.attr("sizes")]
        patterns = [*((Dim.var(v),) for v, _ in told), *(b.shape for b in called.parameters)]
        names = [*(v for v, _ in told), *(b.name for b in called.parameters)]
        shapes = [*((n,) for _, n in told), *(x.shape for x in args)]
        bound = Binder(patterns, names, called.name).bind(shapes)
        results = evaluate_program(called, args, bound, arithmetic=self.arithmetic, ordered=self.ordered)
        return tuple(results) if isinstance(e.annotation, Tuple) else results[0]

    def memory(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        """Executes a node of explicit memory. A storage is an array of bytes, and a tensor is a view of a part of it.
        Killed memory is overwritten with `SPOILED`, so that a later read of it does not pass unnoticed."""
        if self.arithmetic == "exact":
            raise OperatorError(f"{e.op}: memory holds no exact numbers; numpy arithmetic is accepted")
        if e.op == heads.ALLOC_STORAGE:
            return np.full(int(e.attr("size").evaluate(sizes)), SPOILED, np.uint8)
        if e.op == heads.ALLOC_TENSOR:
            a, start = e.tensor, int(e.attr("offset").evaluate(sizes))
            shape, dtype = tuple(int(d.evaluate(sizes)) for d in e.shape), numpy_dtype(a.dtype or "")
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            if start < 0 or start + size > args[0].size:
                raise ShapeError(f"alloc_tensor: bytes {start} to {start + size} of a storage that has {args[0].size}")
            return args[0][start : start + size].view(dtype).reshape(shape)
        if e.op == heads.CALL_INTO:
            values = list(args[:1])
            while any(isinstance(v, tuple) for v in values):
                values = [w for v in values for w in (v if isinstance(v, tuple) else (v,))]
            # All values are copied before the first write: an in-place kernel reads each element before it writes it.
            for into, value in zip(args[1:], [np.array(v) for v in values], strict=True):
                into[...] = value
            return ()
        args[0][...] = np.full(args[0].dtype.itemsize, SPOILED, np.uint8).view(args[0].dtype)[0]
        return ()

    def site_at(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Site:
        """Returns the site of `e` with the shapes of these arrays. OperatorError where the operator rejects them."""
        known = zip(args, (a.tensor.dtype for a in e.args), strict=True)
        operands = tuple(Tensor(x.shape, dtype or dtype_name(x)) for x, dtype in known)
        env = {v: Dim.of(n) for v, n in sizes.items()}
        dims = {a.name for a in get(e.op).attributes if a.kind == "dims"}
        attrs = {k: tuple(d.substitute(env) for d in v) if k in dims else v for k, v in e.attrs}
        deduce(e.op, operands, attrs, strict=True)
        return Site(e.op, operands, attrs)


@lru_cache(KEPT)
def _equations(
    op: str, operands: tuple[Annotation, ...], attrs: tuple[tuple[str, Any], ...], _text: str
) -> tuple[bool, TensorProgram | None]:
    """Returns whether an operator provably applies at all sizes and, if so, its index equations. `_text` is the text
    of the attributes: it keeps 1 and True apart in the cache, as they compare equal."""
    shown = op == heads.CALL_TIR or is_proved_applicable(op, operands, attrs)
    return shown, program_of(Site(op, operands, dict(attrs))) if shown else None


class _WorkLimitError(Exception):
    """The evaluation exceeds its work limit."""


@dataclass(frozen=True)
class _BoundedInterpreter(_Interpreter):
    """An interpreter with a work limit.

    - `left`: flops and bytes moved that are still allowed, in a list of one.
    """

    left: list[float]

    def operator(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        self.spend(counts(self.site_at(e, args, sizes)), sizes)
        return super().operator(e, args, sizes)

    def tensor_program(self, e: Expr, args: list[Any], sizes: dict[str, int]) -> Value:
        called: TensorProgram = e.attr("program").value
        told = {v: int(d.evaluate(sizes)) for v, d in e.attr("sizes")}
        patterns, shapes = [b.shape for b in called.parameters], [x.shape for x in args]
        known = {v: Dim.of(n) for v, n in told.items()}
        bound = Binder([[d.substitute(known) for d in p] for p in patterns], [b.name for b in called.parameters],
                       called.name).bind(shapes)  # fmt: skip
        self.spend(count(called), {**told, **bound})
        return super().tensor_program(e, args, sizes)

    def spend(self, work: Counts, sizes: Mapping[str, int]) -> None:
        self.left[0] -= sum(int(d.evaluate(sizes)) for d in (work.flops, work.bytes_read, work.bytes_written))
        if self.left[0] < 0:
            raise _WorkLimitError


def _callee(value: Any) -> tuple[str, tuple[Any, ...]]:
    """Returns the function that a value is, and its last arguments."""
    return (value.name, value.captured) if isinstance(value, FunctionValue) else (value, ())


def _argument_arrays(a: Annotation, value: Any) -> Any:
    """Returns an argument as arrays; sizes in a shape become plain numbers."""
    if isinstance(value, (DataValue, FunctionValue, Cell, str)):
        return value
    if isinstance(a, Tuple) and isinstance(value, (tuple, list)) and len(value) == len(a.fields):  # type: ignore[reportUnknownArgumentType]
        return tuple(map(_argument_arrays, a.fields, cast("Sequence[Any]", value)))
    if isinstance(a, Shape) and isinstance(value, (tuple, list)):
        return tuple(n.item() if isinstance(n, np.ndarray) else n for n in cast("Sequence[Any]", value))
    return as_arrays(value)


def as_arrays(value: Any) -> Any:
    """Returns numbers and JAX arrays, also in tuples, as numpy arrays. Keys of a kind that numpy cannot hold stay."""
    if isinstance(value, (tuple, list)):
        return tuple(map(as_arrays, value))
    if isinstance(value, (DataValue, FunctionValue, Cell, str)):
        return value
    if isinstance(getattr(value, "dtype", np.dtype(bool)), np.dtype):
        return np.asarray(value)
    return keys_from_jax(value) if is_key(str(value.dtype.name)) else value


def _to_caller(value: Any) -> Any:
    """Returns a result as the caller gets it: key arrays become JAX key arrays."""
    if isinstance(value, tuple):
        return tuple(map(_to_caller, value))  # type: ignore[reportUnknownArgumentType]
    return keys_to_jax(value) if getattr(getattr(value, "dtype", None), "names", None) else value
