"""Parser of dimension expressions: folds the text over values that the caller supplies.

It does not depend on `Dim`, so that `Dim.of` can use it. Every error shows the source line with a caret under the wrong
place and says what is accepted.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from relax_eg.errors import SpecError
from relax_eg.limits import EXPRESSION_PARTS, INTEGER_DIGITS, POWER

ACCEPTED = "integers, names, + - * // % **, parentheses, max(a, b), min(a, b), ceildiv(a, b), select(n <= m, a, b)"

_CONTEXT_CHARACTERS = 120  # limit: characters shown before and after the place an error points at

COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.LtE: "<=",
    ast.Lt: "<",
    ast.GtE: ">=",
    ast.Gt: ">",
}

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,  # operator.floordiv has no full type
    ast.Mod: operator.mod,
}


class Arithmetic(Protocol):
    """The operations that a value needs for `fold_expression`."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...
    def __mul__(self, other: Self, /) -> Self: ...
    def __floordiv__(self, other: Self, /) -> Self: ...
    def __mod__(self, other: Self, /) -> Self: ...
    def __pow__(self, exponent: int, /) -> Self: ...
    def __neg__(self) -> Self: ...


T = TypeVar("T", bound=Arithmetic)


def refusal(source: str, position: int, problem: str, accepted: str) -> SpecError:
    """Returns the error for a `source` that cannot be read at `position`: the problem, the line, a caret, what is
    accepted."""
    position = max(0, min(position, len(source)))
    start = source.rfind("\n", 0, position) + 1
    end = source.find("\n", position)
    start, end = (
        max(start, position - _CONTEXT_CHARACTERS),
        min(end if end >= 0 else len(source), position + _CONTEXT_CHARACTERS),
    )
    line = source[start:end]
    indent = "".join("\t" if c == "\t" else " " for c in source[start:position])
    return SpecError(f"{problem}\n  {line}\n  {indent}^\n  accepted: {accepted}")


def check_integers(source: str, start: int, text: str) -> None:
    """Raises SpecError if `text`, at `start` in `source`, contains an integer that is too long."""
    if long := re.search(rf"(?<!\d)\d{{{INTEGER_DIGITS + 1},}}", text):
        problem = f"an integer of {len(long[0])} digits"
        raise refusal(source, start + long.start(), problem, f"integers of at most {INTEGER_DIGITS} digits")


def fold_expression(
    text: str,
    constant: Callable[[int], T],
    variable: Callable[[str], T],
    functions: Mapping[str, Callable[..., T]],
    *,
    source: str | None = None,
    start: int = 0,
) -> T:
    """Returns the value of `text`. `source` and `start` locate `text` in the user's input, for the caret."""
    reader = _Reader(text, text if source is None else source, start, constant, variable, functions)
    return reader.read()


@dataclass(frozen=True)
class _Reader(Generic[T]):
    """A reader of one expression. It accepts a whitelist of Python's syntax nodes and folds each to a value.

    - `text`: the expression.
    - `source`, `start`: the user's input, and the position of `text` in it.
    - `constant`, `variable`: return the value of an integer, and of a name.
    - `functions`: the functions that the expression may call, by name.
    """

    text: str
    source: str
    start: int
    constant: Callable[[int], T]
    variable: Callable[[str], T]
    functions: Mapping[str, Callable[..., T]]

    def read(self) -> T:
        lead = len(self.text) - len(self.text.lstrip())
        body = self.text.strip()
        if not body:
            raise self._refuse(0, "a dimension expression is missing")
        # Reject these before parsing: Python's parser ignores a comment, and warns about the others before it rejects
        # them.
        if foreign := re.search(r"[#'\"\\]", body):
            raise self._refuse(lead + foreign.start(), f"cannot read `{foreign[0]}` in a dimension expression")
        check_integers(self.source, self.start, self.text)
        if glued := re.search(r"\b\d+[^\W\d]\w*", body):
            raise self._refuse(
                lead + glued.start(), f"`{glued[0]}` is neither a number nor a name; a product needs `*`"
            )
        try:
            tree = ast.parse(body, mode="eval").body
            parts = sum(isinstance(n, (ast.expr, ast.cmpop)) for n in ast.walk(tree))
            if parts > EXPRESSION_PARTS:
                problem = f"the expression has {parts} names, numbers and operations"
                raise refusal(self.source, self.start + lead, problem, f"at most {EXPRESSION_PARTS}")
            return self._fold(tree, body, lead)
        except SyntaxError as error:
            offset = self._position(body, error.lineno or 1, (error.offset or 1) - 1)
            raise self._refuse(lead + offset, f"cannot read the dimension expression `{body:.80}`") from None
        except SpecError:
            raise
        except (ValueError, RecursionError, MemoryError):
            problem = f"too long, too deep or not text; at most {EXPRESSION_PARTS} names, numbers and operations"
            raise self._refuse(lead, f"cannot read the dimension expression: {problem}") from None

    def _fold(self, node: ast.expr, body: str, lead: int) -> T:
        def refused(problem: str) -> SpecError:
            return self._refuse(self._place(node, body, lead), problem)

        def guarded(build: Callable[[], T]) -> T:
            """Returns the result of `build`; its SpecError (a division by zero, a reserved name) gets the position."""
            try:
                return build()
            except SpecError as error:
                raise refused(str(error)) from None

        match node:
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return self.constant(value)
            case ast.Name(id=name):
                return guarded(lambda: self.variable(name))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._fold(operand, body, lead)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._fold(operand, body, lead)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
                if isinstance(power, bool) or power > POWER:
                    raise refused(f"the power {power} is not an integer from 0 to {POWER}")
                base = self._fold(left, body, lead)
                return guarded(lambda: base**power)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                a, b = self._fold(left, body, lead), self._fold(right, body, lead)
                return guarded(lambda: _OPERATORS[type(op)](a, b))
            case ast.BinOp(op=ast.Div()):
                raise refused("`/` is not defined on sizes; use `//` (floor) or ceildiv(a, b)")
            case ast.Call(func=ast.Name(id="select"), args=args, keywords=[]) if "select" in self.functions:
                if len(args) != 3:
                    raise refused(f"`select` takes a comparison and two sizes, got {len(args)}")
                return self._select(args[0], args[1], args[2], body, lead)
            case ast.IfExp(test=test, body=then, orelse=otherwise) if "select" in self.functions:
                return self._select(test, then, otherwise, body, lead)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in self.functions:
                values = [self._fold(arg, body, lead) for arg in args]
                if len(values) < 2 or (name == "ceildiv" and len(values) != 2):
                    raise refused(f"`{name}` takes two arguments, got {len(values)}")
                return guarded(lambda: self.functions[name](*values))
            case ast.Tuple():
                raise refused("dims are separated by spaces, not by commas")
            case _:
                raise refused(f"cannot read `{ast.unparse(node)}` in a dimension expression")

    def _select(self, test: ast.expr, then: ast.expr, otherwise: ast.expr, body: str, lead: int) -> T:
        """Folds `then if test else otherwise`. The function `select` decides which of the two sizes is computed."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in COMPARISONS:
            here = self._place(test, body, lead)
            raise self._refuse(here, f"`{ast.unparse(test)}` does not compare two sizes by == != <= < >= >")
        left, right = self._fold(test.left, body, lead), self._fold(test.comparators[0], body, lead)
        return self.functions["select"](
            COMPARISONS[type(test.ops[0])],
            left,
            right,
            lambda: self._fold(then, body, lead),
            lambda: self._fold(otherwise, body, lead),
        )

    def _refuse(self, offset: int, problem: str) -> SpecError:
        return refusal(self.source, self.start + offset, problem, ACCEPTED)

    def _place(self, node: ast.expr, body: str, lead: int) -> int:
        return lead + self._position(body, node.lineno, self._characters(body, node))

    @staticmethod
    def _characters(body: str, node: ast.expr) -> int:
        """Returns the column of `node` in characters; `ast` counts UTF-8 bytes."""
        line = body.splitlines()[node.lineno - 1]
        return len(line.encode()[: node.col_offset].decode(errors="ignore"))

    @staticmethod
    def _position(body: str, lineno: int, column: int) -> int:
        lines = body.splitlines(keepends=True)
        return sum(len(line) for line in lines[: lineno - 1]) + column
