"""Expressions of any size as one line of mathematics."""

from __future__ import annotations

from relax_eg.ir.expr import CALL_DPS_LIBRARY, FUNCTION, TUPLE_GET, VAR, Expr, node, var
from relax_eg.ops import TABLE
from relax_eg.rules.format import expression_text

# limit: operands shown of a node that is no operator; characters of a line
_MOST_OPERANDS, _LONGEST = 6, 100
_WITH_NOTATION = frozenset((TUPLE_GET, CALL_DPS_LIBRARY))  # heads that `expression_text` has a notation for


def infix_text(e: Expr, depth: int = 2) -> str:
    """Returns `e` in infix notation, with functions of the module by name. Nodes deeper than `depth` are shown as
    `...`."""
    return expression_text(_clipped(e, depth))


def short_infix_text(e: Expr, depth: int = 2) -> str:
    """Returns `infix_text`, clipped to `_LONGEST` characters."""
    text = infix_text(e, depth)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _clipped(e: Expr, depth: int) -> Expr:
    if e.op == FUNCTION:
        return var(str(e.attr("name")), e.annotation)
    if not e.args or e.op == VAR:
        return e
    if depth == 0:
        return var("...", e.annotation)
    args = [_clipped(a, depth - 1) for a in e.args]
    if e.op in TABLE or e.op in _WITH_NOTATION:
        return node(e.op, args, e.attrs, e.annotation)
    texts = [expression_text(a) for a in args[:_MOST_OPERANDS]] + ["..."] * (len(args) > _MOST_OPERANDS)
    return var(f"{e.op}({', '.join(texts)})", e.annotation)
