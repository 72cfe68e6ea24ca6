"""`Relation`: a comparison of two sizes. Also the parser of statements such as `"n % 8 == 0"` or `"0 <= y < 32"`."""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from relax_eg.argument_checks import short_repr
from relax_eg.errors import BoundsError, SpecError
from relax_eg.limits import KEPT, STATEMENT_CHARACTERS
from relax_eg.shapes.dim import Atom, Dim
from relax_eg.shapes.expression import COMPARISONS, check_integers, fold_expression, refusal
from relax_eg.shapes.piecewise import FUNCTIONS, dim_select, select

# An option `bounds`: ranges by size (an integer fixes one; None leaves a side open), statements about sizes, or a list
# of both.
Bound = tuple[int | None, int | None] | int
Bounds = Mapping[str, Bound] | str | Sequence[Mapping[str, Bound] | str]

OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
# The operator of the same comparison with the sides exchanged, where it is another one.
MIRRORED: Mapping[str, str] = {"<=": ">=", "<": ">", ">=": "<=", ">": "<"}
_ACCEPTED = "two sizes compared by == != <= < >= >, a chain such as 0 <= y < 32, several joined by `and`"

# Statements may also use JAX's names for division.
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
    "select": lambda op, left, right, then, otherwise: then() if OPERATORS[op](left, right) else otherwise(),
}


@dataclass(frozen=True, slots=True)
class Relation:
    """The comparison `left op right`.

    - `divisors`: expressions that the relation divides by as written. It has a value where none of them is zero. They
      are kept apart, because the canonical form of a Dim may have dropped a division or a variable.
    - `source_text`: the text as the user wrote it.
    - `sides`: texts that `values` and `holds` evaluate.
    - `side_variables`: variables of `sides`.
    """

    left: Dim
    op: str
    right: Dim
    divisors: tuple[Dim, ...] = ()
    source_text: str = field(default="", compare=False)
    sides: tuple[str, str] | None = field(default=None, compare=False)
    side_variables: frozenset[str] = field(default=frozenset(), compare=False)

    @staticmethod
    def of(left: Dim | int | str, op: str, right: Dim | int | str) -> Relation:
        """Returns the relation of two sizes. Its divisors are those of their canonical forms."""
        if op not in OPERATORS:
            raise SpecError(f"`{op}` does not compare sizes; accepted: {' '.join(OPERATORS)}")
        a, b = Dim.of(left), Dim.of(right)
        return Relation(a, op, b, divisors_of(a, b), f"{a} {op} {b}")

    def substitute(self, env: Mapping[str, Dim]) -> Relation:
        """Returns the relation with variables replaced by sizes. Its divisors are those of this one, and those of the
        new sides."""
        moved = Relation.of(self.left.substitute(env), self.op, self.right.substitute(env))
        return replace(moved, divisors=(*moved.divisors, *(d.substitute(env) for d in self.divisors)))

    @property
    def variables(self) -> frozenset[str]:
        names = self.left.variables | self.right.variables | self.side_variables
        return names.union(*(divisor.variables for divisor in self.divisors))

    def values(self, env: Mapping[str, int]) -> tuple[int, int] | None:
        """Returns both sides at `env`, by integer arithmetic on the text as written; None if a divisor is zero."""
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
        """Whether the relation holds at `env`; None if it has no value."""
        found = self.values(env)
        return None if found is None else OPERATORS[self.op](*found)

    def __str__(self) -> str:
        return self.source_text or f"{self.left} {self.op} {self.right}"


def split_bounds(bounds: Bounds | None) -> tuple[dict[str, Bound], tuple[str, ...]]:
    """Returns the ranges by size name, and the statements, in an option `bounds`.

    BoundsError if a size has two ranges.
    """
    ranges: dict[str, Bound] = {}
    statements: list[str] = []
    for part in [bounds] if isinstance(bounds, (str, Mapping)) else bounds or ():
        if isinstance(part, str):
            statements.append(part)
            continue
        for name, bound in part.items():
            if name in ranges:
                raise BoundsError(f"bounds: `{name}` has two ranges, {ranges[name]} and {bound}; one is accepted")
            ranges[name] = bound
    return ranges, tuple(statements)


def as_statements(assume: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the statements in an option such as `assume`, which is one statement or several."""
    return (assume,) if isinstance(assume, str) else tuple(assume)  # a str is iterable too, by characters


def read_statement(text: str) -> tuple[Relation, ...]:
    """Returns the comparisons in `text`, all of which it states. A chain or an `and` gives several."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise SpecError(f"a statement is text such as 'n*4 == 4*n', got {short_repr(text)} ({type(text).__name__})")
    return _read(text)


@lru_cache(KEPT)
def _read(text: str) -> tuple[Relation, ...]:
    if len(text) > STATEMENT_CHARACTERS:
        problem = f"the statement has {len(text)} characters"
        raise refusal(text, 0, problem, f"at most {STATEMENT_CHARACTERS}")
    check_integers(text, 0, text)
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
            spelled = COMPARISONS.get(type(op))
            if spelled is None:
                raise refusal(text, lead + _column(body, a), f"cannot read `{ast.unparse(part)}`", _ACCEPTED)
            found.append(_read_comparison(text, lead, body, a, spelled, b, len(parts) == 1 and len(part.ops) == 1))
    return tuple(found)


def _read_comparison(text: str, lead: int, body: str, a: ast.expr, op: str, b: ast.expr, whole: bool) -> Relation:
    sides: list[str] = []
    read: list[_SizeWithDivisors] = []
    names: set[str] = set()

    def variable(name: str) -> _SizeWithDivisors:
        names.add(unicodedata.normalize("NFKC", name))
        return _SizeWithDivisors(Dim.var(name))

    for node in (a, b):
        start, end = _column(body, node), _column(body, node, end=True)
        sides.append(body[start:end])
        read.append(
            fold_expression(
                body[start:end],
                _SizeWithDivisors.of,
                variable,
                _FUNCTIONS_WITH_DIVISORS,
                source=text,
                start=lead + start,
            )
        )
    source_text = body if whole else f"{sides[0]} {op} {sides[1]}"
    left, right = read
    kept = tuple(dict.fromkeys(d for d in left.divisors + right.divisors if not d.is_const))
    return Relation(left.dim, op, right.dim, kept, source_text, (sides[0], sides[1]), frozenset(names))


@dataclass(frozen=True, slots=True)
class _SizeWithDivisors:
    """A size as read, with the expressions it divides by. It has a value where none of `divisors` is zero."""

    dim: Dim
    divisors: tuple[Dim, ...] = ()

    @staticmethod
    def of(value: int) -> _SizeWithDivisors:
        return _SizeWithDivisors(Dim.of(value))

    def __add__(self, other: _SizeWithDivisors) -> _SizeWithDivisors:
        return _SizeWithDivisors(self.dim + other.dim, self.divisors + other.divisors)

    def __sub__(self, other: _SizeWithDivisors) -> _SizeWithDivisors:
        return _SizeWithDivisors(self.dim - other.dim, self.divisors + other.divisors)

    def __mul__(self, other: _SizeWithDivisors) -> _SizeWithDivisors:
        return _SizeWithDivisors(self.dim * other.dim, self.divisors + other.divisors)

    def __floordiv__(self, other: _SizeWithDivisors) -> _SizeWithDivisors:
        return _SizeWithDivisors(self.dim // other.dim, (*self.divisors, *other.divisors, other.dim))

    def __mod__(self, other: _SizeWithDivisors) -> _SizeWithDivisors:
        return _SizeWithDivisors(self.dim % other.dim, (*self.divisors, *other.divisors, other.dim))

    def __pow__(self, exponent: int) -> _SizeWithDivisors:
        return _SizeWithDivisors(self.dim**exponent, self.divisors)

    def __neg__(self) -> _SizeWithDivisors:
        return _SizeWithDivisors(-self.dim, self.divisors)

    @staticmethod
    def select(
        op: str,
        left: _SizeWithDivisors,
        right: _SizeWithDivisors,
        then: Callable[[], _SizeWithDivisors],
        otherwise: Callable[[], _SizeWithDivisors],
    ) -> _SizeWithDivisors:
        a, b = then(), otherwise()

        def chosen(x: Dim | int, y: Dim | int) -> Dim:
            return dim_select(left.dim, op, right.dim, x, y)

        # A divisor of the size that is not chosen is replaced by 1, so it is never zero.
        inside = (*(chosen(d, 1) for d in a.divisors), *(chosen(1, d) for d in b.divisors))
        return _SizeWithDivisors(chosen(a.dim, b.dim), left.divisors + right.divisors + inside)


def _with_divisors(function: Callable[..., Dim], *, divides: bool) -> Callable[..., _SizeWithDivisors]:
    def applied(*args: _SizeWithDivisors) -> _SizeWithDivisors:
        inside = sum((arg.divisors for arg in args), ())
        return _SizeWithDivisors(function(*(arg.dim for arg in args)), (*inside, args[1].dim) if divides else inside)

    return applied


_FUNCTIONS_WITH_DIVISORS: Mapping[str, Callable[..., _SizeWithDivisors]] = {
    **{
        name: _with_divisors(f, divides=name not in ("max", "min"))
        for name, f in DIM_FUNCTIONS.items()
        if name != "select"
    },
    "select": _SizeWithDivisors.select,
}


def _column(body: str, node: ast.expr, end: bool = False) -> int:
    """Returns the start or end of `node` in `body`, in characters. `ast` counts UTF-8 bytes of a line."""
    line, column = (node.end_lineno or 1, node.end_col_offset or 0) if end else (node.lineno, node.col_offset)
    if line == 1 and body.isascii():
        return column
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", body)  # line ends as in Python's parser
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode(errors="ignore"))


def atoms_of(*dims: Dim) -> tuple[Atom, ...]:
    """Returns all atoms in the Dims at any depth, inner ones first."""
    found: dict[Atom, None] = {}
    for dim in dims:
        for monomial, _ in dim.terms:
            for atom in monomial:
                if atom not in found:
                    found.update(dict.fromkeys(atoms_of(*atom.args)))
                    found[atom] = None
    return tuple(found)


def divisors_of(*dims: Dim) -> tuple[Dim, ...]:
    """Returns the nonconstant expressions that the canonical forms divide by, and constant zeros. The Dims have values
    where none of these is zero.

    A divisor inside only one of the two sizes of a select counts as 1 where that size is not chosen.
    """
    found: dict[Dim, None] = {}
    for dim in dims:
        for monomial, _ in dim.terms:
            for atom in monomial:
                if atom.op == "select":
                    condition, then, otherwise = atom.args
                    one = Dim.of(1)
                    found.update(dict.fromkeys(divisors_of(condition)))
                    found.update((select(atom.name, condition, d, one), None) for d in divisors_of(then))
                    found.update((select(atom.name, condition, one, d), None) for d in divisors_of(otherwise))
                    continue
                found.update(dict.fromkeys(divisors_of(*atom.args)))
                if atom.op in ("floordiv", "ceildiv") and not (atom.args[1].is_const and atom.args[1].const):
                    found[atom.args[1]] = None
    return tuple(found)
