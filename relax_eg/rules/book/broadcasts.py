"""Operands without broadcasts: operators that broadcast need none written out.

JAX writes each broadcast out, and gives operands with fewer axes axes of size 1 in front. Rules are stated over the
spelling without them.
"""

from __future__ import annotations

from collections.abc import Iterator

from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr
from relax_eg.ops.record import TABLE, call
from relax_eg.rules.checking.value_trials import broadcast_operands
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, schema
from relax_eg.tir.functions import FUNCTIONS

_CHOICE = "where"
# given: a function of one operand broadcasts nothing.
_BROADCASTING = frozenset(n for n, f in FUNCTIONS.items() if n in TABLE and f.arity > 1) | {_CHOICE}


def operands_without_broadcasts(e: Expr, queries: ProgramQueries) -> Expr | None:
    """f(x, broadcast(y)) = f(x, y) for each operator f that broadcasts its operands"""
    args = list(e.args)
    for i, a in enumerate(e.args):
        for x in _narrower(a):
            fewer = (*args[:i], x, *args[i + 1 :])
            if _keeps_annotation(e, fewer):
                args[i] = x
    return None if tuple(args) == e.args else call(e.op, tuple(args), dict(e.attrs))


def _narrower(e: Expr) -> Iterator[Expr]:
    """The values of which `e` is a broadcast as an operator would make it, the narrowest last."""
    while e.op == "broadcast_to" or (e.op == "expand_dims" and e.attr("axes") == tuple(range(len(e.attr("axes"))))):
        (e,) = e.args
        yield e


def _keeps_annotation(e: Expr, args: tuple[Expr, ...]) -> bool:
    try:
        return call(e.op, args, dict(e.attrs)).annotation == e.annotation
    except RelaxEgError:  # an operand that this operator does not broadcast
        return False


broadcasts = RuleSet(
    "broadcasts",
    schemas=(
        schema(
            operands_without_broadcasts, "exact", ("broadcasts",), _BROADCASTING, (broadcast_operands,), asks_again=True
        ),
    ),
)
