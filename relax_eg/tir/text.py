"""Text of index equations: `Y[i, j] = sum(X[i, k] * W[k, j], over=(k, 2048))`.

The text reads back to an equal term (`values.py`). A number or an index is bare only if its neighbour determines its
dtype. A loop variable with the same name as a size keeps its mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from relax_eg.dtypes import dtype_of
from relax_eg.shapes import Dim
from relax_eg.tir.expr import INDEX_DTYPE, Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, is_loop, walk
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.traversal import made_from_below

# given: operator precedence, as in Python
_LEVELS = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 1), "|": 2, "^": 3, "&": 4, "<<": 5, "+": 6, "-": 6,
    **dict.fromkeys(("*", "/", "//", "%"), 7),
}  # fmt: skip
_INFIX = {f.name: (f.symbol, _LEVELS[f.symbol]) for f in FUNCTIONS.values() if f.symbol}
_PREFIX = {"negative": "-", "bitwise_not": "~"}
_COMPARISON = 1  # given: the level of comparisons
_COMPARISONS = frozenset(fn for fn, (_, level) in _INFIX.items() if level == _COMPARISON)
_UNARY, _POWER, _ATOM = 8, 9, 10  # given: levels above the operators
_NO_USES: Mapping[Scalar, int] = MappingProxyType({})
_LONG = 60  # limit: characters of a repeated term; a longer one gets a name


def index_text(dim: Dim, sizes: Iterable[str] = ()) -> str:
    """Returns the text of a size or an index. A loop variable has no mark, unless a size in `dim` or `sizes` has its
    name."""
    taken = {*dim.variables, *sizes}
    plain: dict[str, Dim | int] = {
        name: Dim.var(name[:-1]) for name in dim.variables if is_loop(name) and name[:-1] not in taken
    }
    return str(dim.substitute(plain))


def scalar_text(expr: Scalar) -> str:
    """Returns `expr` with Python's operators and precedence."""
    return _Text(frozenset()).text(expr)[0]


def named_text(expr: Scalar, sizes: frozenset[str], names: Iterator[str]) -> tuple[list[str], str]:
    """Returns the lines that define names, and the text of `expr` with long repeated terms replaced by these names.

    The names are taken from `names`. Linear in the number of distinct terms.
    """
    uses = Counter(child for term in walk(expr) for child in term.children)
    text = _Text(sizes, names, uses)
    whole = text.text(expr)[0]
    return text.lines, whole


def constant_text(expr: Const) -> str:
    """Returns the shortest text that reads back to the constant's value in its dtype."""
    if isinstance(expr.value, complex):
        part = dtype_of(expr.dtype).part.name
        return f"complex({', '.join(constant_text(Const(x, part)) for x in (expr.value.real, expr.value.imag))})"
    if isinstance(expr.value, (bool, int)):
        return repr(expr.value)
    text = str(np.dtype(expr.dtype).type(expr.value))
    return text + ".0" if text.lstrip("-").isdigit() else text  # ml_dtypes writes short floats as integers


class _Text:
    """A writer of terms. A term is written once, however often it occurs in the terms above it."""

    def __init__(
        self, sizes: frozenset[str], names: Iterator[str] | None = None, uses: Mapping[Scalar, int] = _NO_USES
    ) -> None:
        self.sizes = sizes
        self.names = names
        self.uses = uses
        self.lines: list[str] = []
        self.written: dict[Scalar, tuple[str, int]] = {}

    def text(self, expr: Scalar) -> tuple[str, int]:
        """Returns the text and the precedence of its outermost operator."""
        return made_from_below(expr, lambda at: at.children, self._named_text, self.written)

    def _named_text(self, expr: Scalar) -> tuple[str, int]:
        text, level = self._text(expr)
        if self.names is None or self.uses.get(expr, 0) < 2 or len(text) <= _LONG:
            return text, level
        name = next(self.names)
        self.lines.append(f"{name} = {text}")
        return name, _ATOM

    def _text(self, expr: Scalar) -> tuple[str, int]:
        match expr:
            case Const():
                return f'const({constant_text(expr)}, "{expr.dtype}")', _ATOM
            case Index():
                dtype = "" if expr.dtype == INDEX_DTYPE else f', "{expr.dtype}"'
                return f"index({self.index(expr.dim)}{dtype})", _ATOM
            case Read():
                at = ", ".join(self.index(i) if isinstance(i, Dim) else self.text(i)[0] for i in expr.indices)
                return f"{expr.buffer}[{at or '()'}]", _ATOM
            case Cast():
                return f'cast({self.text(expr.arg)[0]}, "{expr.dtype}")', _ATOM
            case Select():
                then, other = self._siblings((expr.then, expr.other), False)
                return f"select({self.text(expr.cond)[0]}, {then[0]}, {other[0]})", _ATOM
            case Reduce():
                pairs = [f"({self.index(var)}, {self.index(extent)})" for var, extent in expr.over]
                over = pairs[0] if len(pairs) == 1 else f"({', '.join(pairs)})"
                return f"{expr.kind}({self.text(expr.body)[0]}, over={over})", _ATOM
            case Apply():
                return self._apply(expr)
            case _:
                raise TypeError(f"not a scalar expression: {type(expr).__name__}")

    def index(self, dim: Dim) -> str:
        return index_text(dim, self.sizes)

    def _apply(self, expr: Apply) -> tuple[str, int]:
        power = expr.args[1] if expr.fn == "integer_pow" else None
        if isinstance(power, Const) and power.dtype == "int32":
            base, level = self.text(expr.args[0])
            return f"{base if level > _POWER else f'({base})'}**{power.value}", _POWER
        args = self._siblings(expr.args, expr.fn in _COMPARISONS)
        if expr.fn in _PREFIX:
            text, level = args[0]
            return _PREFIX[expr.fn] + (text if level >= _UNARY else f"({text})"), _UNARY
        if expr.fn not in _INFIX:
            return f"{expr.fn}({', '.join(text for text, _ in args)})", _ATOM
        symbol, mine = _INFIX[expr.fn]
        (left, left_level), (right, right_level) = args
        chains = mine > _COMPARISON  # a < b < c would have another meaning
        left = left if left_level > mine or (left_level == mine and chains) else f"({left})"
        right = right if right_level > mine else f"({right})"
        return f"{left} {symbol} {right}", mine

    def _siblings(self, args: tuple[Scalar, ...], comparison: bool) -> list[tuple[str, int]]:
        """Returns the arguments' texts. A number or index is bare if its dtype is determined: by the first other
        argument, or by the comparison."""
        typed = next((arg.dtype for arg in args if not _can_be_bare(arg)), None)
        if comparison and typed is None and any(isinstance(arg, Index) for arg in args):
            typed = INDEX_DTYPE if all(arg.dtype == INDEX_DTYPE for arg in args) else None
        bare: list[tuple[str, int]] = []
        for arg in args:
            if isinstance(arg, Const) and arg.dtype == typed:
                text = constant_text(arg)
                bare.append((text, _UNARY if text.startswith("-") else _ATOM))
            elif isinstance(arg, Index) and arg.dtype == typed and not arg.dim.is_const:
                text = self.index(arg.dim)
                bare.append((text, _ATOM if text.isidentifier() else 0))
            else:
                bare.append(self.text(arg))
        return bare


def _can_be_bare(arg: Scalar) -> bool:
    return isinstance(arg, Const) or (isinstance(arg, Index) and not arg.dim.is_const)
