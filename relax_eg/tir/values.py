"""Reads the right-hand sides of index equations: Python syntax trees become scalar terms and indices.

A value is a number, an index (a `Dim` over loop variables and sizes), or a `Scalar`. Numbers and indices take the dtype
of a Scalar operand beside them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from relax_eg.argument_checks import did_you_mean
from relax_eg.dtypes import kind
from relax_eg.errors import RelaxEgError, ShapeError
from relax_eg.shapes import Dim, ceildiv, dim_max, dim_min
from relax_eg.shapes.spec import parse_dtype
from relax_eg.tir.expr import (
    INDEX_DTYPE,
    Const,
    Index,
    Read,
    Reduce,
    Scalar,
    ScalarLike,
    apply,
    cast,
    const,
    integer_pow,
    is_loop,
    loop,
    scalar,
    select,
    walk,
)
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.tir.program import Buffer
from relax_eg.tir.source_text import SourceText
from relax_eg.tir.text import index_text

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.FloorDiv: "floor_divide",
    ast.Mod: "floor_mod", ast.Pow: "power", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor", ast.LShift: "shift_left", ast.RShift: "shift_right",
}  # fmt: skip
_ON_SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "floor_divide": operator.floordiv,
    "floor_mod": operator.mod, "maximum": dim_max, "minimum": dim_min,
}  # fmt: skip
_ON_NUMBERS = _ON_SIZES | {"divide": operator.truediv, "power": operator.pow, "maximum": max, "minimum": min}
COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal", ast.Eq: "equal",
    ast.NotEq: "not_equal",
}  # fmt: skip
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin")
_BINARY_FORMS = {"max": "maximum", "min": "minimum"}  # binary forms, used when they do not reduce
SYNONYMS = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "absolute": "abs", "fabs": "abs", "pow": "power", "logical_and": "bitwise_and",
    "logical_or": "bitwise_or", "logical_not": "bitwise_not", "logical_xor": "bitwise_xor", "isnan": "is_nan",
    "isfinite": "is_finite", "left_shift": "shift_left", "right_shift": "shift_right", "mod": "floor_mod",
    "true_divide": "divide", "logistic": "sigmoid", "rint": "round", "where": "select",
    "if_then_else": "select", "Select": "select",
}  # fmt: skip
_NUMPYS = ("np", "numpy", "jnp", "jax.numpy")

EXPRESSIONS = (
    "reads X[i, j], numbers, loop variables and sizes, + - * / // % ** << >> & | ^ ~, comparisons, select(cond, a, b), "
    "casts such as float32(x), functions such as exp(x), and reductions such as sum(x, over=(k, 128))"
)
_OVER = "over=(k, 128), over=((k, 128), (l, n)), or over=k where a read X[i, k] tells the extent"

Value: TypeAlias = "Scalar | Dim | bool | int | float | complex"


class ValueReader:
    """A reader of the expressions of one equation.

    - `names`: loop variables and sizes.
    - `buffers`: the buffers that can be read.
    - `named`: named values, read at each use, because only there their loop variables are known.
    - `reads`: syntax node of each read, for later errors about it.
    """

    def __init__(
        self,
        source: SourceText,
        names: Mapping[str, Value],
        buffers: Mapping[str, Buffer],
        named: Mapping[str, ast.expr] = MappingProxyType({}),
    ) -> None:
        self.source = source
        self.names = dict(names)
        self.named = named
        self.values: dict[str, Value] = {}  # values of names under the current loops
        self.outer = self.names, self.values
        self.inner_only: set[str] = set()
        self.buffers = buffers
        self.reads: dict[Scalar, ast.expr] = {}

    def scalar(self, at: ast.expr, dtype: str) -> Scalar:
        """Returns the value at `at`; a number or an index alone takes `dtype`."""
        value = self.value(at)
        return self._guarded(at, lambda: scalar(value, dtype))

    def value(self, at: ast.expr) -> Value:
        """Returns the value at `at`. Long sums and products do not recurse."""
        spine: list[ast.BinOp] = []
        inner = at
        while isinstance(inner, ast.BinOp) and type(inner.op) in BINARY:
            spine.append(inner)
            inner = inner.left
        value = self._value(inner)
        for node in reversed(spine):
            value = self._binary(node, BINARY[type(node.op)], value, self.value(node.right))
        return value

    def dim(self, at: ast.expr, what: str) -> Dim:
        """Returns the index or size at `at`."""
        value = self.value(at)
        if isinstance(value, (Dim, int)) and not isinstance(value, bool):
            return Dim.of(value)
        self.fail(at, f"{what} is `{ast.unparse(at)}`", "a whole number, or arithmetic on sizes and loop variables")

    def fail(self, at: ast.AST, problem: str, expected: str) -> NoReturn:
        raise self.source.error(at, problem, expected)

    def _guarded(self, at: ast.expr, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except RelaxEgError as error:
            raise self.source.at_position(at, error, EXPRESSIONS) from None

    def _value(self, at: ast.expr) -> Value:
        match at:
            case ast.Constant(value=bool() | int() | float() | complex() as number):
                return number
            case ast.Name(id=name):
                return self._named(at, name)
            case ast.Subscript():
                return self._read(at)
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(at, op, self.value(operand))
            case ast.Compare():
                return self._compare(at)
            case ast.BoolOp(op=op, values=parts):
                fn = "bitwise_and" if isinstance(op, ast.And) else "bitwise_or"
                value = self.value(parts[0])
                for part in parts[1:]:
                    value = self._apply(at, fn, value, self.value(part))
                return value
            case ast.IfExp(test=test, body=then, orelse=other):
                return self._select(at, test, then, other)
            case ast.Call():
                return self._call(at)
            case _:
                self.fail(at, f"`{ast.unparse(at)}` is no value of an index equation", EXPRESSIONS)

    def _named(self, at: ast.expr, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        if name in self.values:
            return self.values[name]
        if name in self.named:
            return self._named_value(name)
        if is_loop(name) and name[:-1].isidentifier() and (marked := loop(name[:-1])) in self.names.values():
            return marked
        buffer = self.buffers.get(name)
        if buffer is not None and buffer.rank == 0:
            return self._recorded_read(at, buffer[()])
        if buffer is not None:
            self.fail(at, f"{buffer} is read without indices", f"{name}[{', '.join('ijkl'[: buffer.rank])}]")
        if name in ("inf", "nan"):
            return float(name)
        known = ", ".join(self.names) or "none"
        self.fail(
            at,
            f"`{name}` is no loop variable, size or buffer; names here: {known}",
            f"a loop variable of the buffer written or of over=({name}, extent), or a parameter `{name}: int`",
        )

    def _named_value(self, name: str) -> Value:
        """Returns the value of a name. It is read once outside all reductions if it has a meaning there, else once per
        reduction."""
        inside = self.names, self.values
        if name not in self.inner_only and self.names is not self.outer[0]:
            self.names, self.values = self.outer
            try:
                return self.values[name] if name in self.values else self._named_value(name)
            except RelaxEgError:
                pass
            finally:
                self.names, self.values = inside
        try:
            self.values[name] = self.value(self.named[name])
        except RelaxEgError:
            self.inner_only.add(name)
            raise
        return self.values[name]

    def _recorded_read(self, at: ast.expr, read: Read) -> Read:
        self.reads.setdefault(read, at)
        return read

    def _read(self, at: ast.Subscript) -> Scalar:
        if not isinstance(at.value, ast.Name):
            self.fail(at, f"`{ast.unparse(at.value)}` is no buffer", "a buffer's name and its indices: X[i, j]")
        buffer = self.buffers.get(at.value.id)
        if buffer is None:
            known = ", ".join(self.buffers) or "none"
            wanted = f"a parameter, or {at.value.id} = rx.script.local(...) before; buffers here: {known}"
            self.fail(at, f"the buffer {at.value.id} is unknown", wanted)
        parts = at.slice.elts if isinstance(at.slice, ast.Tuple) else [at.slice]
        for part in parts:
            if isinstance(part, (ast.Slice, ast.Starred)):
                self.fail(part, f"`{ast.unparse(at)}` reads more than one element", "an index for each axis: X[i, j]")
        values = [self.value(part) for part in parts]
        if len(values) != buffer.rank:
            self.fail(at, f"{buffer} is read with {len(values)} indices", f"{buffer.rank} indices, one for each axis")
        indices: list[Dim | Scalar] = []
        for part, value in zip(parts, values, strict=True):
            if isinstance(value, Scalar):
                indices.append(value)
            elif isinstance(value, (Dim, int)) and not isinstance(value, bool):
                indices.append(Dim.of(value))
            else:
                self.fail(part, f"{buffer.name} is indexed by {value}", "an integer")
        return self._recorded_read(at, self._guarded(at, lambda: buffer[tuple(indices)]))

    def _unary(self, at: ast.expr, op: ast.unaryop, value: Value) -> Value:
        if isinstance(op, (ast.USub, ast.UAdd)) and not isinstance(value, Scalar):
            return -value if isinstance(op, ast.USub) else value
        if isinstance(op, ast.UAdd):
            return value
        return self._apply(at, "negative" if isinstance(op, ast.USub) else "bitwise_not", value)

    def _binary(self, at: ast.expr, fn: str, a: Value, b: Value) -> Value:
        if not isinstance(a, Scalar) and not isinstance(b, Scalar):
            return self._on_sizes(at, fn, a, b)
        if fn == "power" and isinstance(a, Scalar) and isinstance(b, int):
            return self._guarded(at, lambda: integer_pow(a, b))
        return self._apply(at, fn, a, b)

    def _on_sizes(self, at: ast.expr, fn: str, a: Value, b: Value) -> Value:
        """Evaluates arithmetic on numbers and indices."""
        whole = all(isinstance(x, (Dim, int)) and not isinstance(x, bool) for x in (a, b))
        if fn == "power" and whole and isinstance(b, int):
            return self._guarded(at, lambda: a**b)  # type: ignore[operator]
        if whole and fn in _ON_SIZES:
            found = self._guarded(at, lambda: _ON_SIZES[fn](Dim.of(a), Dim.of(b)))  # type: ignore[arg-type]
            return found.value if isinstance(a, int) and isinstance(b, int) else found
        if whole and fn.startswith(("bitwise", "shift")):
            return self._apply(at, fn, a, b)
        if isinstance(a, Dim) or isinstance(b, Dim):
            text = ast.unparse(at)
            self.fail(at, f"`{text}` is no arithmetic on indices", "+ - * // %, or a cast: float32(i) / 2.0")
        return self._guarded(at, lambda: self._fold_numbers(fn, a, b))

    def _fold_numbers(self, fn: str, a: Any, b: Any) -> Value:
        if fn not in _ON_NUMBERS:
            raise ShapeError(f"`{fn}` of two numbers has no dtype")
        try:
            return _ON_NUMBERS[fn](a, b)
        except ArithmeticError as error:
            raise ShapeError(f"{a} and {b}: {error}") from None

    def _apply(self, at: ast.expr, fn: str, *args: Value) -> Scalar:
        if fn == "shift_right":
            dtype = next((a.dtype for a in args if isinstance(a, Scalar)), INDEX_DTYPE)
            fn = "shift_right_logical" if kind(dtype) == "u" else "shift_right_arithmetic"
        return self._guarded(at, lambda: apply(fn, *args))

    def _compare(self, at: ast.Compare) -> Scalar:
        sides = [self.value(side) for side in (at.left, *at.comparators)]
        found: Scalar | None = None
        for op, a, b in zip(at.ops, sides, sides[1:], strict=False):
            if type(op) not in COMPARED:
                self.fail(at, f"`{ast.unparse(at)}` is no comparison of numbers", "< <= > >= == !=")
            made = self._apply(at, COMPARED[type(op)], a, b)
            found = made if found is None else self._apply(at, "bitwise_and", found, made)
        assert found is not None
        return found

    def _select(self, at: ast.expr, test: ast.expr, then: ast.expr, other: ast.expr) -> Value:
        values = self.value(then), self.value(other)
        if not any(isinstance(v, Scalar) for v in values):
            # A size by cases is a size; the grammar of sizes parses it.
            if all(isinstance(v, (Dim, int)) for v in values) and any(isinstance(v, Dim) for v in values):
                return self._size_by_cases(at)
            self.fail(at, "select between two numbers", 'const(value, "dtype") for one of them')
        cond = self.value(test)
        if isinstance(cond, (Dim, complex)):
            self.fail(test, f"select on {cond}", "a comparison")
        made: tuple[ScalarLike, ScalarLike] = values
        return self._guarded(at, lambda: select(scalar(cond, "bool"), *made))

    def _size_by_cases(self, at: ast.expr) -> Dim:
        loops = {name: str(value) for name, value in self.names.items() if isinstance(value, Dim)}
        tree = ast.parse(ast.unparse(at), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in loops:
                node.id = f"({loops[node.id]})"
            if isinstance(node, ast.Call):
                node.func = ast.Name(last_name(node.func) or "")
        return self._guarded(at, lambda: Dim.of(ast.unparse(tree)))

    def _call(self, at: ast.Call) -> Value:
        name = last_name(at.func)
        if name == "astype" and isinstance(at.func, ast.Attribute) and len(at.args) == 1 and not at.keywords:
            return self._cast(at, at.func.value, self._dtype(at.args[0]))
        if name is None:
            self.fail(at, f"`{ast.unparse(at.func)}` cannot be called here", EXPRESSIONS)
        over = next((k.value for k in at.keywords if k.arg == "over"), None)
        if name in REDUCTIONS and (over is not None or name not in _BINARY_FORMS):
            return self._reduction(at, name, over)
        if at.keywords:
            self.fail(at, f"`{name}` takes no keyword `{at.keywords[0].arg}`", EXPRESSIONS)
        args = at.args
        match name, len(args):
            case "index", 1 | 2:
                dtype = self._dtype(args[1]) if len(args) == 2 else INDEX_DTYPE
                return self._guarded(at, lambda: Index(self.dim(args[0], "an index"), dtype))
            case "const", 2:
                return self._constant(args[0], self._dtype(args[1]))
            case "cast", 2:
                return self._cast(at, args[0], self._dtype(args[1]))
            case "complex", 2 if (number := self._complex(args)) is not None:
                return number
            case (("select" | "where" | "if_then_else" | "Select"), 3):
                return self._select(at, *args)
            case "ceildiv", 2:
                return self._guarded(at, lambda: ceildiv(*(self.dim(a, "a size") for a in args)))
            case "clip", 3:
                x, low, high = args
                return self._apply(at, "clamp", self.value(low), self.value(x), self.value(high))
            case "float", 1 if isinstance(args[0], ast.Constant) and args[0].value in ("inf", "-inf", "nan"):
                return float(args[0].value)
            case _:
                pass
        if len(args) == 1 and (dtype := _as_dtype(name)) is not None:
            return self._cast(at, args[0], dtype)
        fn = _BINARY_FORMS.get(name) or SYNONYMS.get(name, name)
        if name == "remainder" and isinstance(at.func, ast.Attribute) and ast.unparse(at.func.value) in _NUMPYS:
            fn = "floor_mod"  # numpy's result has the sign of the divisor, XLA's that of the dividend
        if fn not in FUNCTIONS and fn != "shift_right":
            near = did_you_mean(name, [*FUNCTIONS, *REDUCTIONS, *SYNONYMS])
            self.fail(at, f"no function is named `{name}`{near}", f"one of {', '.join(FUNCTIONS)}; {EXPRESSIONS}")
        values = [self.value(a) for a in args]
        if fn in ("maximum", "minimum") and len(values) >= 2:
            found = values[0]
            for value in values[1:]:
                found = self._binary(at, fn, found, value)
            return found
        return self._apply(at, fn, *values)

    def _complex(self, args: list[ast.expr]) -> complex | None:
        """Returns the number of `complex(1.0, -2.0)` if both parts are real numbers, else None."""
        parts = [self.value(a) for a in args]
        if any(isinstance(p, (Scalar, Dim, complex)) for p in parts):
            return None
        return complex(*parts)  # type: ignore[arg-type]

    def _constant(self, at: ast.expr, dtype: str) -> Const:
        value = self.value(at)
        if isinstance(value, (Scalar, Dim)):
            self.fail(at, f"`{ast.unparse(at)}` is no number", 'const(1.5, "float32")')
        return self._guarded(at, lambda: const(value, dtype))

    def _cast(self, at: ast.expr, arg: ast.expr, dtype: str) -> Scalar:
        value = self.value(arg)
        if isinstance(value, Scalar):
            return self._guarded(at, lambda: cast(value, dtype))
        return self._guarded(at, lambda: scalar(value, dtype))

    def _dtype(self, at: ast.expr) -> str:
        name = at.value if isinstance(at, ast.Constant) else last_name(at)
        try:
            return parse_dtype(str(name))
        except RelaxEgError as error:
            raise self.source.at_position(at, error, 'a dtype such as "float32"') from None

    def _reduction(self, at: ast.Call, name: str, over: ast.expr | None) -> Scalar:
        if over is None or len(at.args) != 1 or len(at.keywords) != 1:
            wanted = f"{name}(value, {_OVER.split(',')[0]}, 128)); also {_OVER}"
            self.fail(at, f"the reduction `{ast.unparse(at)}` does not say over what", wanted)
        axes = self._axes(over)
        outside = self.names, self.values
        inner = dict(self.names)
        for written, _ in axes:
            variable = loop_named(ast.unparse(written))
            if variable in inner.values():
                name_of = index_text(variable)
                self.fail(written, f"{name} binds {name_of}, which is bound already", "another name")
            inner[str(ast.unparse(written))] = variable
        self.names, self.values = inner, {}
        try:
            body = self.value(at.args[0])
        finally:
            self.names, self.values = outside
        if not isinstance(body, Scalar):
            self.fail(at, f"{name} of `{ast.unparse(at.args[0])}`, which has no dtype", "a cast: float32(i)")
        pairs = [(inner[ast.unparse(w)], self.extent(w, inner[ast.unparse(w)], body, e)) for w, e in axes]
        return self._guarded(at, lambda: Reduce(name, tuple(pairs), body))  # type: ignore[arg-type]

    def _axes(self, over: ast.expr) -> list[tuple[ast.expr, ast.expr | None]]:
        """Returns the loop variables of a reduction with their extents, None where not given."""
        parts = over.elts if isinstance(over, (ast.Tuple, ast.List)) else [over]
        if isinstance(over, ast.Tuple) and len(parts) == 2 and isinstance(parts[0], ast.Name):
            return [(parts[0], parts[1])]
        axes: list[tuple[ast.expr, ast.expr | None]] = []
        for part in parts:
            if isinstance(part, ast.Name):
                axes.append((part, None))
            elif isinstance(part, ast.Tuple) and len(part.elts) == 2 and isinstance(part.elts[0], ast.Name):
                axes.append((part.elts[0], part.elts[1]))
            else:
                self.fail(part, f"`{ast.unparse(part)}` is no loop variable with its extent", _OVER)
        if not axes:
            self.fail(over, "a reduction over nothing", _OVER)
        return axes

    def extent(self, at: ast.expr, variable: Value, body: Scalar, given: ast.expr | None) -> Dim:
        """Returns the extent of a loop variable: `given`, or the size of the axes that the variable alone indexes."""
        if given is not None:
            return self.dim(given, "the extent")
        found = axes_of(variable, body, self.buffers)
        name = ast.unparse(at)
        if not found:
            self.fail(
                at,
                f"nothing tells the extent of {name}: it is the whole index of no axis",
                f"the extent beside it: over=({name}, 128)",
            )
        (first, where), *others = found.items()
        for size, other in others:
            if size != first:
                problem = f"two extents are told of {name}: {first} by {where}, {size} by {other}"
                self.fail(at, problem, f"the extent beside it: over=({name}, {first}), if that is meant")
        return first


def axes_of(variable: Value, body: Scalar, buffers: Mapping[str, Buffer]) -> dict[Dim, str]:
    """Returns the sizes of the axes that `variable` alone indexes in `body`, with the place of each."""
    found: dict[Dim, str] = {}
    for term in walk(body):
        if isinstance(term, Read):
            for axis, index in enumerate(term.indices):
                if isinstance(index, Dim) and index == variable:
                    found.setdefault(buffers[term.buffer].shape[axis], f"axis {axis} of {term.buffer}")
    return found


def loop_named(name: str) -> Dim:
    """Returns the loop variable of a name, with or without the mark that distinguishes it from a size."""
    return loop(name[:-1] if is_loop(name) else name)


def last_name(func: ast.expr) -> str | None:
    """Returns the last name of `rx.exp`, `jnp.exp` or `exp`."""
    if isinstance(func, ast.Name):
        return func.id
    return func.attr if isinstance(func, ast.Attribute) else None


def _as_dtype(name: str) -> str | None:
    """Returns `name` if it is the full name of a dtype, else None. Short names are not accepted here."""
    try:
        return name if name != "key" and parse_dtype(name) == name else None
    except RelaxEgError:
        return None
