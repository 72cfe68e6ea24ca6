"""How index equations read as text: `Y[i, j] = sum(X[i, k] * W[k, j], over=(k, 2048))`."""

from __future__ import annotations

import numpy as np

from relax_eg.shapes import Dim
from relax_eg.tir.expr import INDEX_DTYPE, Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, is_loop

_INFIX = {
    "bitwise_or": ("|", 2), "bitwise_xor": ("^", 3), "bitwise_and": ("&", 4),
    "less": ("<", 1), "less_equal": ("<=", 1), "greater": (">", 1), "greater_equal": (">=", 1),
    "equal": ("==", 1), "not_equal": ("!=", 1),
    "shift_left": ("<<", 5), "add": ("+", 6), "subtract": ("-", 6),
    "multiply": ("*", 7), "divide": ("/", 7), "floor_divide": ("//", 7), "floor_mod": ("%", 7),
}  # fmt: skip
_PREFIX = {"negative": "-", "bitwise_not": "~"}
_COMPARISON = 1
_COMPARISONS = frozenset(fn for fn, (_, level) in _INFIX.items() if level == _COMPARISON)
_UNARY, _POWER, _ATOM = 8, 9, 10


def index_text(dim: Dim) -> str:
    """A size or an index, loop variables without their mark."""
    plain: dict[str, Dim | int] = {name: Dim.var(name[:-1]) for name in dim.variables if is_loop(name)}
    # A size of the same name would be confused with the loop variable: then the mark stays.
    clash = any(name[:-1] in dim.variables for name in plain)
    return str(dim if clash else dim.substitute(plain))


def scalar_text(expr: Scalar) -> str:
    """`expr` as mathematics, with Python's operators and precedence."""
    return _text(expr)[0]


def constant_text(expr: Const) -> str:
    """The shortest text that gives the constant's value back in its dtype."""
    return repr(expr.value) if isinstance(expr.value, (bool, int)) else str(np.dtype(expr.dtype).type(expr.value))


def _text(expr: Scalar) -> tuple[str, int]:
    """The text and how tightly its outermost operator binds."""
    match expr:
        case Const():
            return f'const({constant_text(expr)}, "{expr.dtype}")', _ATOM
        case Index():
            dtype = "" if expr.dtype == INDEX_DTYPE else f', "{expr.dtype}"'
            return f"index({index_text(expr.dim)}{dtype})", _ATOM
        case Read():
            at = ", ".join(index_text(i) if isinstance(i, Dim) else _text(i)[0] for i in expr.indices)
            return f"{expr.buffer}[{at or '()'}]", _ATOM
        case Cast():
            return f'cast({_text(expr.arg)[0]}, "{expr.dtype}")', _ATOM
        case Select():
            then, other = _siblings((expr.then, expr.other), False)
            return f"select({_text(expr.cond)[0]}, {then[0]}, {other[0]})", _ATOM
        case Reduce():
            pairs = [f"({index_text(var)}, {index_text(extent)})" for var, extent in expr.over]
            over = pairs[0] if len(pairs) == 1 else f"({', '.join(pairs)})"
            return f"{expr.kind}({_text(expr.body)[0]}, over={over})", _ATOM
        case Apply():
            return _apply_text(expr)
        case _:
            raise TypeError(f"not a scalar expression: {type(expr).__name__}")


def _apply_text(expr: Apply) -> tuple[str, int]:
    if expr.fn == "integer_pow" and isinstance(expr.args[1], Const):
        base, level = _text(expr.args[0])
        return f"{base if level > _POWER else f'({base})'}**{expr.args[1].value}", _POWER
    args = _siblings(expr.args, expr.fn in _COMPARISONS)
    if expr.fn in _PREFIX:
        text, level = args[0]
        return _PREFIX[expr.fn] + (text if level >= _UNARY else f"({text})"), _UNARY
    if expr.fn not in _INFIX:
        return f"{expr.fn}({', '.join(text for text, _ in args)})", _ATOM
    symbol, mine = _INFIX[expr.fn]
    (left, left_level), (right, right_level) = args
    chains = mine > _COMPARISON  # a < b < c would mean something else
    left = left if left_level > mine or (left_level == mine and chains) else f"({left})"
    right = right if right_level > mine else f"({right})"
    return f"{left} {symbol} {right}", mine


def _siblings(args: tuple[Scalar, ...], comparison: bool) -> list[tuple[str, int]]:
    """The arguments' texts; numbers and indices are bare where a neighbour, or being compared, tells their dtype."""
    typed = {arg.dtype for arg in args if not isinstance(arg, (Const, Index))}
    if comparison and not typed and any(isinstance(arg, Index) for arg in args):
        typed = {INDEX_DTYPE}
    bare: list[tuple[str, int]] = []
    for arg in args:
        if isinstance(arg, Const) and arg.dtype in typed:
            text = constant_text(arg)
            bare.append((text, _UNARY if text.startswith("-") else _ATOM))
        elif isinstance(arg, Index) and arg.dtype in typed:
            text = index_text(arg.dim)
            bare.append((text, _ATOM if text.isidentifier() or text.isdecimal() else 0))
        else:
            bare.append(_text(arg))
    return bare
