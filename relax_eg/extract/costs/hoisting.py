"""The expressions that XLA hoists out of loops, so that they run once for all steps.

XLA's CPU compiler hoists an expression that depends only on constants of a loop out of the loop's body, at any size,
and out of further enclosing loops as far as its operands allow. An expression that only moves or repeats values stays
with its reader, unless the reader is hoisted. Nothing is hoisted out of conditions of loops and branches of choices. A
loop or choice whose operands are all constants of the enclosing loop is hoisted as a whole. XLA's GPU compiler is not
known to hoist.
"""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.extract.costs.numbers import Number
from relax_eg.ir.control import runs_of
from relax_eg.ir.expr import CALL, VAR, Expr
from relax_eg.ir.heads import LOOPS, RUNNING, TUPLES
from relax_eg.ir.module import Function
from relax_eg.ops import Site
from relax_eg.ops.record import movement_operators

PLATFORMS = frozenset(("cpu",))  # the platforms on which XLA hoists

# The attribute of the site of a loop or call inside a loop: the number of loops that it is hoisted out of, and for each
# operand the number of further loops in which that is constant.
_OUTWARD = "outward"
_STAYS = movement_operators("view", "order", "part", "repeat", "make") | TUPLES


def hoisted_loops(function: Function, params: Mapping[str, int]) -> dict[Expr, int]:
    """For each expression of `function` that XLA hoists, the number of enclosing loops that it is hoisted out of.

    - `params`: per parameter name, the number of enclosing loops, from the innermost on, in which the parameter is
      constant.
    """
    most = max(params.values(), default=0)
    if not most:
        return {}
    # Bindings outside dataflow blocks run in order.
    done = {b.value for b in function.steps}
    expressions = list(function.expressions())
    free: dict[Expr, int] = {}
    for e in expressions:
        if e.op == VAR:
            free[e] = params.get(str(e.attr("name")), 0)
        else:
            free[e] = 0 if e in done else min((free[a] for a in e.args), default=most)
    readers = {b.value: 0 for b in function.bindings} | {function.result: 0}
    found: dict[Expr, int] = {}
    for e in reversed(expressions):
        far = free[e]
        if e.op in _STAYS:
            far = min(far, readers.get(e, far))
        if far and e.op not in (VAR, CALL):  # a call is inlined, and its body is hoisted expression by expression
            found[e] = far
        for a in e.args:
            readers[a] = min(readers.get(a, far), far)
    return found


def with_hoisting(e: Expr, site: Site, left: Mapping[Expr, int], params: Mapping[str, int]) -> Site:
    """`site`; for a loop, choice or call inside loops with the attribute `_OUTWARD`.

    - `left`: the number of loops that each expression of the function is hoisted out of.
    - `params`: as in `hoisted_loops`.
    """
    if not params or e.op not in RUNNING:
        return site
    far = left.get(e, 0)
    free = (params.get(str(a.attr("name")), 0) if a.op == VAR else left.get(a, 0) for a in e.args)
    operands = tuple(max(0, n - far) for n in free)
    return Site(site.op, site.operands, {**site.attrs, _OUTWARD: (far, operands)})


def enclosing_loops(site: Site, times: Number, outside: tuple[Number, ...]) -> tuple[Number, ...]:
    """The numbers of steps of the loops out of which expressions inside this site may be hoisted, innermost first.

    - `times`: number of steps of the site itself.
    - `outside`: numbers of steps of the loops around the site.
    """
    outside = outside[site.attrs.get(_OUTWARD, (0,))[0] :]
    if site.op == CALL:
        return outside
    return (times, *outside) if site.op in LOOPS else ()


def constants(site: Site, function: Function) -> dict[str, int]:
    """For each parameter of a function that this site runs, the number of enclosing loops in which it is constant.
    Parameters that are constant in none are left out."""
    outer = site.attrs.get(_OUTWARD, (0, (0,) * len(site.operands)))[1]
    is_loop = site.op in LOOPS
    if site.op != CALL and not (is_loop and function.name == site.attrs["functions"][-1]):
        return {}
    body = runs_of(site.op, range(len(site.operands)), site.attrs)[-1]
    found = [is_loop + outer[i] for i in body.constants]
    return {str(p.attr("name")): n for p, n in zip(function.params, found, strict=False) if n}
