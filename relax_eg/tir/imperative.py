"""Tensor programs that are no index equations: statements in order, on arrays that they change.

What Relax's `T.prim_func` says beyond index equations (stores in place, loops that carry values, `while`) is kept as
its text, and means what its statements do. `check_program` reads the text once; `run_program` runs it on numpy arrays.
The text is interpreted, never executed as Python.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from relax_eg.dtypes import RECORDS, dtype_of, names_where, numpy_dtype
from relax_eg.errors import RelaxEgError, ShapeError
from relax_eg.limits import FEW_KEPT
from relax_eg.shapes import Binder, Dim
from relax_eg.shapes.spec import parse_dtype
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.tir.source_text import SourceText
from relax_eg.tir.values import BINARY, COMPARED, SYNONYMS, last_name

Array = np.ndarray[Any, Any]
Run = Callable[["_Frame"], Any]

SIZES = names_where(lambda d: d.kind == "i" and d.bits >= 32)  # the dtypes of size parameters
LOOPS = ("grid", "serial", "parallel", "vectorized", "unroll", "thread_binding", "range")
BLOCKS = ("block", "sblock", "init")
IGNORED = ("reads", "writes", "block_attr", "sblock_attr", "func_attr", "evaluate")
ALLOCATED = ("alloc_buffer", "sblock_alloc_buffer", "decl_buffer", "alloc_shared", "alloc_local")
STATEMENT = (
    "loops over T.grid, T.serial or range, T.block, T.init, `if`, `while`, stores `A[i] = value`, values `x = ...`, "
    "T.match_buffer and T.alloc_buffer"
)
VALUE = "numbers, indices, reads `A[i, j]`, arithmetic, comparisons, T.float32(x) and functions such as T.exp"


class _Frame:
    """The state of a run: arrays and numbers by name."""

    __slots__ = ("reduced", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.reduced: list[int] = []  # the values of the block's variables that it reduces over


class ImperativeProgram:
    """A checked program.

    - `name`: its name.
    - `params`: its parameters, in order.
    """

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        (definition,) = [s for s in tree.body if isinstance(s, ast.FunctionDef)]
        self.name = definition.name
        self.params = [a.arg for a in definition.args.args]
        reader = _Reader(SourceText(text), definition)
        self.buffers = reader.buffers
        self.body = reader.body
        shapes = [self.buffers[p][1] for p in self.params if p in self.buffers]
        self.arrays = [p for p in self.params if p in self.buffers]
        self.numbers = [p for p in self.params if p not in self.buffers]
        patterns = [*((Dim.var(n),) for n in self.numbers), *shapes]
        self.binder = Binder(patterns, [*self.numbers, *self.arrays], self.name)

    def run(self, args: Sequence[Any]) -> None:
        """Runs the program on arrays, which it changes, and on tuples of the sizes that are parameters."""
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        sizes = [n for a in args if isinstance(a, tuple) for n in a]  # type: ignore[reportUnknownVariableType]
        if len(arrays) != len(self.arrays) or len(sizes) != len(self.numbers):
            wanted = f"{len(self.arrays)} arrays and {len(self.numbers)} sizes"
            raise ShapeError(f"{self.name} takes {wanted}, got {len(arrays)} and {len(sizes)}")
        named: dict[str, Any] = dict(zip((*self.arrays, *self.numbers), (*arrays, *sizes), strict=True))
        frame = _Frame()
        shapes = [*((int(named[n]),) for n in self.numbers), *(named[a].shape for a in self.arrays)]
        frame.values.update(self.binder.bind(shapes))
        for p in self.arrays:
            name, _, dtype = self.buffers[p]
            if named[p].dtype != numpy_dtype(dtype):
                raise ShapeError(f"{self.name}: `{name}` should be {dtype}, got {named[p].dtype}")
            frame.values[name] = named[p]
        for step in self.body:
            step(frame)


@lru_cache(FEW_KEPT)
def check_program(text: str) -> ImperativeProgram:
    """Returns the program of a text. TensorProgramError, with the line, for a text that cannot be read."""
    return ImperativeProgram(text)


def run_program(*args: Any) -> None:
    """Runs a program on arrays. The first argument is its text."""
    text, *given = args
    with np.errstate(all="ignore"):
        check_program(text).run(given)


class _Reader:
    """Turns the statements of a definition into functions of a frame."""

    def __init__(self, source: SourceText, definition: ast.FunctionDef) -> None:
        self.source = source
        source.name = definition.name
        self.buffers: dict[str, tuple[str, tuple[Dim, ...], str]] = {}  # by parameter: name, shape, dtype
        self.known: set[str] = set()
        for a in definition.args.args:
            note = a.annotation
            if isinstance(note, ast.Call) and last_name(note.func) == "Buffer":
                self.buffers[a.arg] = (a.arg, *self._buffer(note, note.args))
            elif note is None or last_name(note) not in ("handle", "int", *SIZES):
                text = ast.unparse(note) if note is not None else "nothing"
                self._fail(
                    a, f"the parameter {a.arg} is annotated {text}", "T.handle, T.Buffer(...), T.int32 or T.int64"
                )
            self.known.add(a.arg)
        self.known.update(v for _, shape, _ in self.buffers.values() for d in shape for v in d.variables)
        self.body = self._statements(definition.body)

    def _fail(self, at: ast.AST, problem: str, expected: str) -> NoReturn:
        raise self.source.error(at, problem, expected)

    def _buffer(self, call: ast.Call, args: Sequence[ast.expr]) -> tuple[tuple[Dim, ...], str]:
        given = dict(zip(("shape", "dtype"), args, strict=False)) | {str(k.arg): k.value for k in call.keywords}
        shape, dtype = given.get("shape"), given.get("dtype")
        parts = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape] if shape is not None else []
        try:
            sizes = tuple(size_of(p) for p in parts)
            name = dtype.value if isinstance(dtype, ast.Constant) else last_name(dtype) if dtype else "float32"
            return sizes, parse_dtype(str(name))
        except RelaxEgError as error:
            raise self.source.at_position(call, error, "a shape and a dtype") from None

    # --- statements ---

    def _statements(self, body: Sequence[ast.stmt]) -> list[Run]:
        return [run for s in body if (run := self._statement(s)) is not None]

    def _statement(self, s: ast.stmt) -> Run | None:
        match s:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                return None
            case ast.Expr(value=ast.Call(func=func)) if last_name(func) in IGNORED:
                return None
            case ast.Expr(value=ast.Call(func=func, args=[condition])) if last_name(func) == "where":
                return self._predicate(self._value(condition))
            case ast.For():
                return self._loop(s)
            case ast.While(test=test, body=body, orelse=[]):
                return _while(self._value(test), self._statements(body))
            case ast.If(test=test, body=body, orelse=orelse):
                return _if(self._value(test), self._statements(body), self._statements(orelse))
            case ast.With(items=[ast.withitem(context_expr=ast.Call(func=func))], body=body) if (
                last_name(func) in BLOCKS
            ):
                inner = self._statements(body)
                return _init(inner) if last_name(func) == "init" else _block(inner)
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                return self._store(target, self._value(value))
            case ast.AugAssign(target=ast.Subscript() as target, op=op, value=value) if type(op) in BINARY:
                read = ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
                whole = ast.copy_location(ast.BinOp(read, op, value), target)
                return self._store(target, self._value(ast.fix_missing_locations(whole)))
            case ast.Assign(targets=[target], value=value):
                return self._assign(target, value)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                return self._assign(target, value)
            case _:
                self._fail(s, f"`{ast.unparse(s).splitlines()[0]}` is no statement of a tensor program", STATEMENT)

    def _loop(self, s: ast.For) -> Run:
        call, targets = s.iter, s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]
        kind = last_name(call.func) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or kind not in LOOPS or s.orelse:
            self._fail(s, f"the loop over `{ast.unparse(s.iter)}` cannot be read", STATEMENT)
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        bounds = [self._value(a) for a in call.args]
        self.known.update(names)
        body = self._statements(s.body)
        if kind == "grid" and len(names) == len(bounds):
            return _loops(names, [(b,) for b in bounds], body)
        if len(names) != 1 or len(bounds) not in (1, 2):
            self._fail(s, f"{len(targets)} loop variables and {len(bounds)} extents", STATEMENT)
        return _loops(names, [bounds], body)

    def _predicate(self, condition: Run) -> Run:
        def run(frame: _Frame) -> None:
            if not condition(frame):
                raise _Skipped

        return run

    def _assign(self, target: ast.expr, value: ast.expr) -> Run | None:
        kind = last_name(value.func) if isinstance(value, ast.Call) else None
        if isinstance(value, ast.Call) and isinstance(target, ast.Name):
            if kind in SIZES and not value.args:
                self.known.add(target.id)
                return None
            if kind == "match_buffer" and isinstance(value.args[0], ast.Name) and value.args[0].id in self.known:
                found = self._buffer(value, value.args[1:])
                self.buffers[value.args[0].id] = (target.id, *found)
                self.known.update((target.id, *(v for d in found[0] for v in d.variables)))
                return None
            if kind in ALLOCATED:
                shape, dtype = self._buffer(value, value.args)
                self.known.add(target.id)
                return _allocation(target.id, shape, dtype)
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and last_name(value.func.value) == "axis"
        ):
            return self._axes(value, target)
        if isinstance(target, ast.Name):
            found = self._value(value)
            self.known.add(target.id)
            return _let(target.id, found)
        self._fail(target, f"`{ast.unparse(target)}` is not what a tensor program binds", STATEMENT)

    def _axes(self, call: ast.Call, target: ast.expr) -> Run:
        """Reads `vi, vj = T.axis.remap("SR", [i, j])`, or `vi = T.axis.spatial(n, i)`."""
        kind, args = last_name(call.func), call.args
        names = [t.id for t in (target.elts if isinstance(target, ast.Tuple) else [target]) if isinstance(t, ast.Name)]
        if kind == "remap" and len(args) == 2 and isinstance(args[0], ast.Constant) and isinstance(args[1], ast.List):
            kinds, written = str(args[0].value), args[1].elts
        else:
            kinds, written = {"spatial": "S", "S": "S", "reduce": "R", "R": "R"}.get(str(kind), ""), args[-1:]
        if len(names) != len(kinds) or len(written) != len(kinds):
            self._fail(call, f"`{ast.unparse(call)}` binds no axes", 'T.axis.remap("SR", [i, k]), T.axis.spatial(n, i)')
        values = [self._value(w) for w in written]
        self.known.update(names)
        return _axes(names, kinds, values)

    def _store(self, target: ast.Subscript, value: Run) -> Run:
        if not isinstance(target.value, ast.Name) or target.value.id not in self.known:
            self._fail(target, f"`{ast.unparse(target.value)}` is no buffer", "a parameter, or T.alloc_buffer before")
        return _store(target.value.id, self._indices(target), value)

    def _indices(self, at: ast.Subscript) -> Run:
        parts = at.slice.elts if isinstance(at.slice, ast.Tuple) else [at.slice]
        return _tuple([self._value(p) for p in parts])

    # --- values ---

    def _value(self, at: ast.expr) -> Run:
        match at:
            case ast.Constant(value=bool() | int() | float() as number):
                return lambda frame: number
            case ast.Name(id=name):
                if name not in self.known:
                    self._fail(at, f"`{name}` is not known here", "a loop variable, a size, a buffer or a value before")
                return lambda frame: frame.values[name]
            case ast.Subscript(value=ast.Name(id=name)):
                if name not in self.known:
                    self._fail(at, f"the buffer `{name}` is not known here", "a parameter, or T.alloc_buffer before")
                return _read(name, self._indices(at))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return _applied(BINARY[type(op)], [self._value(left), self._value(right)])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _applied("negative", [self._value(operand)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._value(operand)
                return lambda frame: not inner(frame)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                return _applied(COMPARED[type(op)], [self._value(left), self._value(right)])
            case ast.BoolOp(op=op, values=values):
                parts = [self._value(v) for v in values]
                if isinstance(op, ast.And):
                    return lambda frame: all(p(frame) for p in parts)
                return lambda frame: any(p(frame) for p in parts)
            case ast.IfExp(test=test, body=then, orelse=other):
                return _choice(self._value(test), self._value(then), self._value(other))
            case ast.Call(func=func):
                return self._call(at, last_name(func) or "")
            case _:
                self._fail(at, f"`{ast.unparse(at)}` is no value of a tensor program", VALUE)

    def _call(self, at: ast.Call, name: str) -> Run:
        args = at.args
        if name in ("if_then_else", "Select") and len(args) == 3:
            return _choice(*map(self._value, args))
        if name in ("Cast", "cast") and len(args) == 2:
            first, second = args if isinstance(args[0], ast.Constant) and isinstance(args[0].value, str) else args[::-1]
            dtype = str(first.value) if isinstance(first, ast.Constant) else ""
            return _cast(self._dtype(at, dtype), self._value(second))
        if name in ("min_value", "max_value", "infinity") and len(args) == 1 and isinstance(args[0], ast.Constant):
            limit = limit_of(name, self._dtype(at, str(args[0].value)))
            return lambda frame: limit
        if name == "likely" and len(args) == 1:
            return self._value(args[0])
        if name == "bool" and len(args) == 1:
            return _cast("bool", self._value(args[0]))
        if name in RECORDS and len(args) == 1:
            return _cast(name, self._value(args[0]))
        fn = _WORDS.get(name) or SYNONYMS.get(name, name)
        if fn not in FUNCTIONS or FUNCTIONS[fn].arity != len(args) or at.keywords:
            self._fail(at, f"`{ast.unparse(at)}` is no function of numbers", VALUE)
        return _applied(fn, [self._value(a) for a in args])

    def _dtype(self, at: ast.expr, name: str) -> str:
        try:
            return parse_dtype(name)
        except RelaxEgError as error:
            raise self.source.at_position(at, error, 'a dtype such as "float32"') from None


_WORDS = {
    "max": "maximum", "min": "minimum", "floordiv": "floor_divide", "floormod": "floor_mod", "truncdiv": "int_divide",
    "truncmod": "remainder", "And": "bitwise_and", "Or": "bitwise_or", "Not": "bitwise_not", "nearbyint": "round",
}  # fmt: skip


class _Skipped(Exception):
    """Ends a block whose predicate does not hold."""


def size_of(at: ast.expr) -> Dim:
    """Returns a size, in which `T.int64(4)` stands for 4. SpecError for what is no size."""
    plain = at
    if any(isinstance(n, ast.Call) for n in ast.walk(at)):
        plain = PlainSizes().visit(ast.parse(ast.unparse(at), mode="eval")).body
    return Dim.of(plain.value if isinstance(plain, ast.Constant) else ast.unparse(plain))  # type: ignore[arg-type]


class PlainSizes(ast.NodeTransformer):
    """Writes `T.int64(x)` as `x`, and functions of sizes under `T` as Python's."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name = last_name(node.func)
        if name in SIZES and len(node.args) == 1:
            return node.args[0]
        if name in ("floordiv", "floormod", "truncdiv") and len(node.args) == 2:
            op = ast.Mod() if name == "floormod" else ast.FloorDiv()
            return ast.copy_location(ast.BinOp(node.args[0], op, node.args[1]), node)
        if isinstance(node.func, ast.Attribute) and name in ("min", "max", "ceildiv"):
            node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return node


def limit_of(name: str, dtype: str) -> Any:
    """Returns the least or greatest value of a dtype, or infinity (`min_value`, `max_value`, `infinity`)."""
    made = numpy_dtype(dtype)
    if name == "infinity":
        return made.type(float("inf"))
    record = dtype_of(dtype)
    if record.kind == "f":
        import ml_dtypes

        info = ml_dtypes.finfo(made)
        return made.type(info.max if name == "max_value" else info.min)
    return made.type(np.iinfo(made).max if name == "max_value" else np.iinfo(made).min)


# --- what statements and values do ---


def _run(body: Sequence[Run], frame: _Frame) -> None:
    for step in body:
        step(frame)


def _block(body: Sequence[Run]) -> Run:
    def run(frame: _Frame) -> None:
        outer, frame.reduced = frame.reduced, []
        try:
            _run(body, frame)
        except _Skipped:
            pass
        finally:
            frame.reduced = outer

    return run


def _init(body: Sequence[Run]) -> Run:
    def run(frame: _Frame) -> None:
        if not any(frame.reduced):  # the first step of the reduction
            _run(body, frame)

    return run


def _loops(names: Sequence[str], ranges: Sequence[Sequence[Run]], body: Sequence[Run]) -> Run:
    """Nested loops, the last one innermost. `ranges`: the arguments of each loop's range."""

    def run(frame: _Frame) -> None:
        for at in itertools.product(*(range(*(int(b(frame)) for b in bounds)) for bounds in ranges)):
            frame.values.update(zip(names, at, strict=True))
            _run(body, frame)

    return run


def _while(test: Run, body: Sequence[Run]) -> Run:
    def run(frame: _Frame) -> None:
        while test(frame):
            _run(body, frame)

    return run


def _if(test: Run, body: Sequence[Run], orelse: Sequence[Run]) -> Run:
    return lambda frame: _run(body if test(frame) else orelse, frame)


def _let(name: str, value: Run) -> Run:
    def run(frame: _Frame) -> None:
        frame.values[name] = value(frame)

    return run


def _axes(names: Sequence[str], kinds: str, values: Sequence[Run]) -> Run:
    def run(frame: _Frame) -> None:
        for name, kind, value in zip(names, kinds, values, strict=True):
            found = frame.values[name] = value(frame)
            if kind == "R":
                frame.reduced.append(found)

    return run


def _allocation(name: str, shape: tuple[Dim, ...], dtype: str) -> Run:
    def run(frame: _Frame) -> None:
        sizes: Mapping[str, int] = frame.values
        frame.values[name] = np.zeros([int(d.evaluate(sizes)) for d in shape], numpy_dtype(dtype))

    return run


def _tuple(parts: Sequence[Run]) -> Run:
    return lambda frame: tuple([p(frame) for p in parts])


def _at(array: Array, place: tuple[int, ...], name: str) -> tuple[int, ...]:
    if len(place) != array.ndim or any(not 0 <= i < n for i, n in zip(place, array.shape, strict=False)):
        raise ShapeError(f"`{name}` of shape {array.shape} has no element {tuple(map(int, place))}")
    return place


def _read(name: str, indices: Run) -> Run:
    def run(frame: _Frame) -> Any:
        array = frame.values[name]
        return array[_at(array, indices(frame), name)]

    return run


def _store(name: str, indices: Run, value: Run) -> Run:
    def run(frame: _Frame) -> None:
        array = frame.values[name]
        array[_at(array, indices(frame), name)] = value(frame)

    return run


def _choice(test: Run, then: Run, other: Run) -> Run:
    return lambda frame: then(frame) if test(frame) else other(frame)


def _cast(dtype: str, value: Run) -> Run:
    to = numpy_dtype(dtype)
    return lambda frame: np.asarray(value(frame)).astype(to)[()]


def _applied(name: str, args: Sequence[Run]) -> Run:
    compute = FUNCTIONS[name].compute

    def run(frame: _Frame) -> Any:
        values = [a(frame) for a in args]
        if all(type(v) in (int, float, bool) for v in values):  # numbers that have no dtype yet
            return np.asarray(compute(*values)).item()
        dtypes = [v.dtype for v in values if isinstance(v, np.generic)]
        if dtypes:
            values = [v if isinstance(v, np.generic) else dtypes[0].type(v) for v in values]
        return np.asarray(compute(*values))[()]

    return run
