"""Formatting of expressions as mathematics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, CONSTANT, TUPLE_GET, VAR, Expr, constant_value
from relax_eg.ops.movement import is_transpose

if TYPE_CHECKING:
    from relax_eg.shapes import Dim

# given: infix symbols and precedences
_INFIX = {
    "matmul": ("@", 4), "multiply": ("*", 4), "divide": ("/", 4), "add": ("+", 3), "subtract": ("-", 3),
    "less": ("<", 2), "less_equal": ("<=", 2), "equal": ("==", 2), "greater": (">", 2), "greater_equal": (">=", 2),
}  # fmt: skip
_ATOM = 9  # given: precedence of a name


def expression_text(e: Expr) -> str:
    """`e` in infix notation. Shared nodes are repeated, which is acceptable because rules are small programs."""
    return _text(e)[0]


def _text(e: Expr) -> tuple[str, int]:
    if e.op == VAR:
        return str(e.attr("name")), _ATOM
    if e.op == CONSTANT:
        value = constant_value(e)
        return (f"{value.item()!r}" if value.ndim == 0 else np.array2string(value, threshold=8)), _ATOM
    if e.op == TUPLE_GET:
        return f"{_text(e.args[0])[0]}[{e.attr('index')}]", _ATOM
    if e.op in _INFIX and not any(v is not None for _, v in e.attrs):
        sign, level = _INFIX[e.op]
        left, right = (_text(a) for a in e.args)
        # Every operator is left-associative, so a right operand of the same precedence needs parentheses.
        a = left[0] if left[1] >= level else f"({left[0]})"
        b = right[0] if right[1] > level else f"({right[0]})"
        return f"{a} {sign} {b}", level
    if e.op == "negative":
        text, level = _text(e.args[0])
        return f"-{text if level == _ATOM else f'({text})'}", 8
    if is_transpose(e):
        text, level = _text(e.args[0])
        return f"{text if level == _ATOM else f'({text})'}.T", _ATOM
    idiom = _idiom(e)
    if idiom is not None:
        return idiom
    parts = [_text(a)[0] for a in e.args]
    if e.op == CALL_DPS_LIBRARY:
        parts += [f"{k}={_value(v)}" for k, v in e.attr("attrs")]
        return f"{e.attr('name')}({', '.join(parts)})", _ATOM
    if e.op == CALL_TIR:
        parts += [f"{k}={v}" for k, v in e.attr("sizes")]
        return f"{e.attr('program').value.name}({', '.join(parts)})", _ATOM
    parts += [f"{k}={_value(v)}" for k, v in e.attrs if v is not None and v is not False]
    return f"{e.op}({', '.join(parts)})", _ATOM


_REDUCTIONS = frozenset({"sum", "prod", "max", "min", "mean", "any", "all"})


def _idiom(e: Expr) -> tuple[str, int] | None:
    """The shorter notation of an expression that has one, with its precedence: identity, diagonal, trace, slices,
    sizes, reductions over all axes. None for any other expression."""
    match e.op:
        case "equal" if _is_identity(e):
            return f"eye({e.shape[0]})", _ATOM
        case "where" if _is_identity(e.args[0]) and _is_zero(e.args[2]) and _stretched(e.args[1]).op == "expand_dims":
            return f"diag({_text(_stretched(e.args[1]).args[0])[0]})", _ATOM
        case "sum" if e.args[0].op == "where" and _is_identity(e.args[0].args[0]) and _is_zero(e.args[0].args[2]):
            if e.ndim == 0:
                return f"trace({_text(e.args[0].args[1])[0]})", _ATOM
        case "strided_slice":
            text, level = _text(e.args[0])
            bounds = zip(e.attr("begin"), e.attr("end"), e.attr("strides"), e.args[0].shape, strict=True)
            keys = [_slice_text(*b) for b in bounds]
            return f"{text if level == _ATOM else f'({text})'}[{', '.join(keys)}]", _ATOM
        case "dim_value":
            (dim,) = e.attr("dim")
            return str(dim), _ATOM if dim.is_const or str(dim).isidentifier() else 0
        case _ if e.op in _REDUCTIONS and len(e.attr("axes")) == e.args[0].ndim and not e.attr("keepdims"):
            return f"{e.op}({_text(e.args[0])[0]})", _ATOM
        case _:
            pass
    return None


def _is_identity(e: Expr) -> bool:
    """Whether `e` is the boolean identity matrix as jax.numpy traces it: iota over rows equals iota over columns."""
    if e.op != "equal" or e.ndim != 2 or e.args[1].op != "iota" or e.args[1].attr("axis") != 1:
        return False
    rows = e.args[0].args[0] if e.args[0].op == "add" and _is_zero(e.args[0].args[1]) else e.args[0]
    return rows.op == "iota" and rows.attr("axis") == 0 and rows.shape == e.args[1].shape


def _stretched(e: Expr) -> Expr:
    return e.args[0] if e.op == "broadcast_to" else e


def _is_zero(e: Expr) -> bool:
    while e.op in ("full", "broadcast_to", "astype"):
        e = e.args[0]
    return e.op == CONSTANT and not constant_value(e).any()


def _slice_text(begin: Dim, end: Dim, stride: int, size: Dim) -> str:
    low, high = "" if begin == 0 else str(begin), "" if end == size else str(end)
    return f"{low}:{high}" + (f":{stride}" if stride != 1 else "")


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_value(v) for v in value)}{',' if len(value) == 1 else ''})"  # type: ignore[reportUnknownArgumentType]
    return str(value)
