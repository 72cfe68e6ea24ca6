"""`Relation`: a comparison of two sizes, and the reading of statements such as `"n % 8 == 0"` or `"0 <= y < 32"`."""

from __future__ import annotations

import ast
import operator
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from relax_eg.errors import BoundsError, SpecError
from relax_eg.shapes.dim import Atom, Dim
from relax_eg.shapes.division import FUNCTIONS
from relax_eg.shapes.expression import fold_expression, refusal

OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_SPELLED: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.LtE: "<=",
    ast.Lt: "<",
    ast.GtE: ">=",
    ast.Gt: ">",
}
_ACCEPTED = "two sizes compared by == != <= < >= >, a chain such as 0 <= y < 32, several joined by `and`"

# Statements may use JAX's spelling of division too.
DIM_FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    **FUNCTIONS,
    "floordiv": lambda a, b: Dim.of(a) // b,
    "mod": lambda a, b: Dim.of(a) % b,
}
_INT_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "max": max,
    "min": min,
    "ceildiv": lambda a, b: -(-a // b),
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}


@dataclass(frozen=True, slots=True)
class Relation:
    """`left op right`.

    `divisors` are the expressions that the relation divides by as it was written: it has a value where none of them
    is zero. (The canonical form of a Dim may have dropped a division, or a variable, so they are kept apart.) `words`
    is how the user said it; `sides` are the texts that `holds` evaluates, over variables `written`.
    """

    left: Dim
    op: str
    right: Dim
    divisors: tuple[Dim, ...] = ()
    words: str = field(default="", compare=False)
    sides: tuple[str, str] | None = field(default=None, compare=False)
    written: frozenset[str] = field(default=frozenset(), compare=False)

    @staticmethod
    def of(left: Dim | int | str, op: str, right: Dim | int | str) -> Relation:
        """The relation of two sizes; it divides by what their canonical forms divide by."""
        if op not in OPERATORS:
            raise SpecError(f"`{op}` does not compare sizes; accepted: {' '.join(OPERATORS)}")
        a, b = Dim.of(left), Dim.of(right)
        return Relation(a, op, b, divisors_of(a, b), f"{a} {op} {b}")

    @property
    def variables(self) -> frozenset[str]:
        names = self.left.variables | self.right.variables | self.written
        return names.union(*(divisor.variables for divisor in self.divisors))

    def values(self, env: Mapping[str, int]) -> tuple[int, int] | None:
        """Both sides where the variables have the values `env`, by plain integer arithmetic on what was written; None
        where a divisor is zero."""
        try:
            if self.sides is None:
                if any(divisor.evaluate(env) == 0 for divisor in self.divisors):
                    return None
                return self.left.evaluate(env), self.right.evaluate(env)
            a, b = (fold_expression(side, int, env.__getitem__, _INT_FUNCTIONS) for side in self.sides)
            return a, b
        except (ZeroDivisionError, BoundsError):
            return None

    def holds(self, env: Mapping[str, int]) -> bool | None:
        """Whether it holds at `env`; None where it has no value."""
        found = self.values(env)
        return None if found is None else OPERATORS[self.op](*found)

    def __str__(self) -> str:
        return self.words or f"{self.left} {self.op} {self.right}"


@lru_cache(1 << 12)
def read_statement(text: str) -> tuple[Relation, ...]:
    """The comparisons in `text`, all of which it states: a chain gives several, and so does `and`."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise SpecError(f"a statement is text such as 'n*4 == 4*n', got {text!r} ({type(text).__name__})")
    body = text.strip()
    lead = len(text) - len(text.lstrip())
    try:
        tree = ast.parse(body, mode="eval").body
    except SyntaxError as error:
        offset = lead + (error.offset or 1) - 1
        hint = "; equality is `==`" if "=" in body and not any(op in body for op in OPERATORS) else ""
        raise refusal(text, offset, f"cannot read the statement{hint}", _ACCEPTED) from None
    except (ValueError, RecursionError, MemoryError):
        raise refusal(text, lead, "cannot read the statement: too long, too deep or not text", _ACCEPTED) from None
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    found: list[Relation] = []
    for part in parts:
        if not isinstance(part, ast.Compare):
            raise refusal(text, lead + _column(body, part), "a statement compares two sizes", _ACCEPTED)
        terms = [part.left, *part.comparators]
        for a, op, b in zip(terms, part.ops, terms[1:], strict=False):
            spelled = _SPELLED.get(type(op))
            if spelled is None:
                raise refusal(text, lead + _column(body, a), f"cannot read `{ast.unparse(part)}`", _ACCEPTED)
            found.append(_compared(text, lead, body, a, spelled, b, len(parts) == 1 and len(part.ops) == 1))
    return tuple(found)


def _compared(text: str, lead: int, body: str, a: ast.expr, op: str, b: ast.expr, whole: bool) -> Relation:
    dims: list[Dim] = []
    sides: list[str] = []
    divisors: list[Dim] = []
    written: set[str] = set()
    for node in (a, b):
        side = ast.get_source_segment(body, node) or ""
        start = lead + _column(body, node)
        dims.append(fold_expression(side, Dim.of, Dim.var, DIM_FUNCTIONS, source=text, start=start))
        sides.append(side)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                written.add(unicodedata.normalize("NFKC", inner.id))
            by = _divisor(inner)
            if by is not None:
                divisors.append(fold_expression(ast.unparse(by), Dim.of, Dim.var, DIM_FUNCTIONS))
    words = body if whole else f"{sides[0]} {op} {sides[1]}"
    kept = tuple(dict.fromkeys(divisor for divisor in divisors if not divisor.is_const))
    return Relation(dims[0], op, dims[1], kept, words, (sides[0], sides[1]), frozenset(written - DIM_FUNCTIONS.keys()))


def _divisor(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=right):
            return right
        case ast.Call(func=ast.Name(id="ceildiv" | "floordiv" | "mod"), args=[_, by]):
            return by
        case _:
            return None


def _column(body: str, node: ast.expr) -> int:
    """Where `node` starts in `body`, in characters; `ast` counts UTF-8 bytes of a line."""
    lines = body.splitlines(keepends=True)
    line = lines[node.lineno - 1]
    return sum(map(len, lines[: node.lineno - 1])) + len(line.encode()[: node.col_offset].decode(errors="ignore"))


def atoms_of(*dims: Dim) -> tuple[Atom, ...]:
    """All atoms in the Dims at any depth, inner ones first."""
    found: dict[Atom, None] = {}
    for dim in dims:
        for monomial, _ in dim.terms:
            for atom in monomial:
                if atom not in found:
                    found.update(dict.fromkeys(atoms_of(*atom.args)))
                    found[atom] = None
    return tuple(found)


def divisors_of(*dims: Dim) -> tuple[Dim, ...]:
    """What the canonical forms divide by, constants left out."""
    by = (atom.args[1] for atom in atoms_of(*dims) if atom.op in ("floordiv", "ceildiv"))
    return tuple(dict.fromkeys(divisor for divisor in by if not divisor.is_const))
