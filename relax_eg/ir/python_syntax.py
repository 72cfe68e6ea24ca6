"""Expressions written as in Python with the operator functions: `R.op.sum(x, axis=-1)`, `x[:, 1:]`, `x > 0`.

The reader applies each part as Python would. Only names of the program, sizes and numbers have values, so no code of
the text runs.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from relax_eg.argument_checks import did_you_mean
from relax_eg.errors import RelaxEgError, UndecidedError
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import Expr, const, tuple_, tuple_get
from relax_eg.ir.host_calls import is_host_call
from relax_eg.ir.reader import dotted_name, unqualified_name
from relax_eg.ir.reading import Functions, ReadingState
from relax_eg.ir.steps import is_data_dependent
from relax_eg.plain_data import DAMAGED
from relax_eg.shapes import Dim
from relax_eg.tir.values import COMPARED

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.MatMult: "matmul",
    ast.Pow: "power", ast.Mod: "remainder", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor", ast.LShift: "left_shift", ast.RShift: "right_shift", ast.FloorDiv: "R.floor_divide",
}  # fmt: skip
_OF_BOOLS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor"}
# Arithmetic on numbers and sizes, done at read time without an operator.
_EARLY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
METHODS = ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin", "reshape", "astype", "transpose",
           "squeeze", "swapaxes")  # fmt: skip
PROPERTIES = ("shape", "ndim", "dtype", "T")
_WRAPPED = ("prim_value", "dtype", "str")  # what stands in them is the argument
_LARGEST_POWER = 1024  # limit: exponent in a program text


class PythonExpressionReader:
    """A reader of expressions written as in Python, for the `values` of one function."""

    def __init__(self, values: ReadingState, functions: Functions) -> None:
        self.values = values
        self.functions = functions
        self.source = values.source

    def reads(self, at: ast.expr) -> bool:
        """Whether `at` has a form that this class reads."""
        if isinstance(at, ast.Call):
            path = dotted_name(at.func)
            if path is not None and "." in path.removeprefix("op.") and self._function(at) is None:
                return True
            return self._function(at) is not None or self._method(at) is not None
        if isinstance(at, ast.Attribute):
            return at.attr in PROPERTIES and unqualified_name(at) is None
        return isinstance(at, (ast.BinOp, ast.Compare, ast.UnaryOp, ast.Subscript))

    def value(self, at: ast.expr, declared: Annotation | None) -> Expr:
        """Returns the value of an expression that `reads` accepts."""
        found = self.argument(at)
        if isinstance(found, tuple) and all(isinstance(f, Expr) for f in cast("tuple[Any, ...]", found)):
            found = tuple_(cast("tuple[Expr, ...]", found))
        if isinstance(found, (int, float, complex)):
            found = const(found, declared.dtype if isinstance(declared, Tensor) else None)
        if not isinstance(found, Expr):
            what = "a size" if isinstance(found, Dim) else "no tensor"
            raise self.source.error(at, f"this is {what}, not a value", "R.op.full((), size), or a size in an operator")
        self.values.check_declared(at, found.annotation, declared)
        return found

    def argument(self, at: ast.expr) -> Any:
        """Returns an argument of an operator function, as Python would pass it."""
        number = self.values.reader.number(at)
        if number is not None:
            return number
        if isinstance(at, ast.Constant) and (at.value is None or at.value is ... or isinstance(at.value, str)):
            return at.value
        if isinstance(at, (ast.Tuple, ast.List)):
            return tuple(map(self.argument, at.elts))
        if isinstance(at, ast.Slice):
            return slice(*[None if part is None else self.argument(part) for part in (at.lower, at.upper, at.step)])
        if isinstance(at, ast.Name):
            is_size = at.id not in self.values.names and at.id in self.values.sizes
            return Dim.var(at.id) if is_size else self.values.expression(at)
        if isinstance(at, ast.Attribute) and at.attr in PROPERTIES and unqualified_name(at) is None:
            return self._property(at)
        if isinstance(at, ast.Subscript):
            return self._subscript(at)
        if isinstance(at, ast.UnaryOp):
            return self._unary(at)
        if isinstance(at, ast.BinOp):
            return self._binary(at)
        if isinstance(at, ast.Compare):
            if len(at.ops) > 1 or type(at.ops[0]) not in COMPARED:
                raise self.source.error(at, "this comparison has no operator", "one of < <= > >= == != of two values")
            sides = self.argument(at.left), self.argument(at.comparators[0])
            return self._applied(at, COMPARED[type(at.ops[0])], sides, {})
        path = dotted_name(at.func) if isinstance(at, ast.Call) else None
        if isinstance(at, ast.Call) and path in _WRAPPED and len(at.args) == 1 and not at.keywords:
            return self.argument(at.args[0])
        if isinstance(at, ast.Call) and unqualified_name(at.func, "T") is not None:
            return self.values.reader.size(at)
        if isinstance(at, ast.Call) and path is not None and "." in path and self._function(at) is None:
            return self.called_as_upstream(at, path)
        if isinstance(at, ast.Call) and (name := self._function(at)) is not None:
            if name not in self.functions:
                problem = f"there is no operator function R.op.{name}{did_you_mean(name, self.functions)}"
                raise self.source.error(at, problem, "a function of `relax_eg.op`")
            return self._called(at, name, ())
        if isinstance(at, ast.Call) and (name := self._method(at)) is not None:
            assert isinstance(at.func, ast.Attribute)
            return self._called(at, name, (self.values.expression(at.func.value),))
        return self.values.expression(at)

    def called_as_upstream(self, at: ast.Call, path: str) -> Any:
        """Returns the result of an operator with Relax's arguments. `path`: its name, as `nn.conv2d`."""
        name = f"R.{path.removeprefix('op.')}"
        if name not in self.functions:
            near = did_you_mean(name, [n for n in self.functions if n.startswith("R.")])
            raise self.source.error(at, f"there is no operator {name}{near}", "an operator of docs/ops.md")
        return self._called(at, name, ())

    def _function(self, at: ast.Call) -> str | None:
        """Returns `name` if `at` calls `R.op.name`, else None."""
        func = at.func
        return func.attr if isinstance(func, ast.Attribute) and unqualified_name(func.value) == "op" else None

    def _method(self, at: ast.Call) -> str | None:
        func = at.func
        is_method = isinstance(func, ast.Attribute) and func.attr in METHODS and unqualified_name(func) is None
        return func.attr if is_method and isinstance(func, ast.Attribute) and not self._is_module(func.value) else None

    def _is_module(self, at: ast.expr) -> bool:
        return isinstance(at, ast.Name) and at.id in self.values.scope.classes

    def _property(self, at: ast.Attribute) -> Any:
        of = self.values.expression(at.value)
        try:
            return getattr(of, at.attr)
        except (RelaxEgError, TypeError) as error:
            wanted = "a tensor of known sizes; R.match_cast(value, annotation) before says them"
            raise self.source.at_position(at, error, wanted) from None

    def _subscript(self, at: ast.Subscript) -> Any:
        of, key = self.argument(at.value), self.argument(at.slice)
        if isinstance(of, tuple):
            items = cast("tuple[Any, ...]", of)
            if isinstance(key, slice) or (isinstance(key, int) and -len(items) <= key < len(items)):
                return items[key]
            raise self._no_field(at, len(items))
        if isinstance(of, Expr) and isinstance(of.annotation, Tuple):
            fields = of.annotation.fields
            if type(key) is not int or not 0 <= key < len(fields):
                raise self._no_field(at, len(fields))
            return tuple_get(of, key)
        return self._applied(at, "getitem", (of, key), {})

    def _no_field(self, at: ast.Subscript, count: int) -> RelaxEgError:
        accepted = f"an index from 0 to {count - 1}" if count else "a tuple with fields"
        return self.source.error(at, f"the tuple has no field {ast.unparse(at.slice)}", accepted)

    def _unary(self, at: ast.UnaryOp) -> Any:
        of = self.argument(at.operand)
        if not isinstance(of, (bool, int, float, complex, Dim, Expr)):
            raise self.source.error(at, "text and tuples have no arithmetic here", "a value, a number or a size")
        if isinstance(at.op, ast.USub):
            return self._applied(at, "negative", (of,), {}) if isinstance(of, Expr) else -of
        if isinstance(at.op, ast.UAdd):
            return of
        return self._applied(at, "logical_not" if _is_bool(of) else "bitwise_not", (of,), {})

    def _binary(self, at: ast.BinOp) -> Any:
        left, right = self.argument(at.left), self.argument(at.right)
        if not isinstance(left, Expr) and not isinstance(right, Expr) and type(at.op) in _EARLY:
            try:
                if not all(isinstance(x, (bool, int, float, complex, Dim)) for x in (left, right)):
                    raise TypeError("text and tuples have no arithmetic here")
                if isinstance(at.op, ast.Pow) and abs(right) > _LARGEST_POWER:
                    raise ValueError(f"the power {right} is too large")
                return _EARLY[type(at.op)](left, right)
            except (RelaxEgError, ArithmeticError, TypeError, ValueError) as error:
                raise self.source.at_position(at, error, "arithmetic that numbers and sizes have") from None
        if type(at.op) not in BINARY:
            raise self.source.error(at, "values have no such operator", "+ - * / // @ % ** & | ^ << >>")
        name = BINARY[type(at.op)]
        if name in _OF_BOOLS and (_is_bool(left) or _is_bool(right)):
            name = _OF_BOOLS[name]
        return self._applied(at, name, (left, right), {})

    def _called(self, at: ast.Call, name: str, first: tuple[Any, ...]) -> Any:
        if any(isinstance(a, ast.Starred) for a in at.args):
            raise self.source.error(at, "`*` has no meaning here", "arguments written out")
        args = (*first, *map(self.argument, at.args))
        if first and name in ("reshape", "transpose") and len(args) > 2:  # x.reshape(2, 3), as in numpy
            args = (args[0], args[1:])
        keywords = {k: self.argument(v) for k, v in self.values.reader.keywords(at).items()}
        if name.startswith("R."):
            keywords = _with_own_names(keywords, list(inspect.signature(self.functions[name]).parameters))
        return self._applied(at, name, args, keywords)

    def _applied(self, at: ast.expr, name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if name in ("arange", "R.arange") and len(args) == 1 and isinstance(args[0], Expr):
            name = "arange_of"  # of a number that only values tell
        function = self.functions[name]
        shown = name if name.startswith("R.") else f"R.op.{name}"
        try:
            inspect.signature(function).bind(*args, **keywords)
        except TypeError as error:
            wanted = f"{shown}{_signature(function)}"
            raise self.source.at_position(at, TypeError(f"{shown}: {error}"), wanted) from None
        try:
            found = function(*args, **keywords)
        except UndecidedError as error:
            wanted = "R.match_cast(value, annotation) before, which checks the sizes when it runs"
            raise self.source.at_position(at, error, wanted) from None
        except DAMAGED as error:
            raise self.source.at_position(at, error, f"what {shown} takes: {_signature(function)}") from None
        # Its size depends on values, or it runs on the host: it is a step, wherever it is written.
        is_step = isinstance(found, Expr) and (is_host_call(found) or is_data_dependent(found))
        return self.values.step(at, found) if is_step else found


# Relax's names of the first and of the second operand.
_OPERANDS = ({"data", "x", "x1", "lhs", "a", "expr", "input"}, {"x2", "rhs", "b", "weight", "indices"})


def _with_own_names(keywords: Mapping[str, Any], parameters: Sequence[str]) -> dict[str, Any]:
    """The keywords, with operands by the names that they have here."""

    def own(name: str) -> str:
        place = next((i for i, names in enumerate(_OPERANDS) if name in names and i < len(parameters)), None)
        return name if name in parameters or place is None else parameters[place]

    return {own(k): v for k, v in keywords.items()}


def _is_bool(x: Any) -> bool:
    return isinstance(x, Expr) and isinstance(x.annotation, Tensor) and x.annotation.dtype == "bool"


def _signature(function: Callable[..., Any]) -> str:
    """Returns a function's parameter names with defaults, without annotations."""
    parameters = [
        p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters))
