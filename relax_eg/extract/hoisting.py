"""What XLA takes out of loops by itself, so that it runs once for all steps.

XLA's CPU compiler moves what depends on the constants of a loop alone out of the loop's body, at any size, and out of
loops around that one as far as its operands allow. What only moves or repeats values stays where it is read, unless
what reads it leaves. Conditions of loops and branches of choices keep what they have; a loop or a choice whose
operands are all constants of the loop around it leaves as a whole. XLA's GPU compiler is not known to do any of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.extract.numbers import Number
from relax_eg.ir.control import parts
from relax_eg.ir.expr import CALL, CONTROL, SCAN, TUPLE, TUPLE_GET, VAR, WHILE, Expr
from relax_eg.ir.module import Function
from relax_eg.ops import Site

PLATFORMS = frozenset(("cpu",))  # where XLA does so

_OUTWARD = "outward"  # attribute of the site of a loop or call inside a loop: how far it leaves, and each operand
_STAYS = frozenset(
    ("reshape", "expand_dims", "squeeze", "broadcast_to", "full", "iota", "permute_dims", "strided_slice", "flip")
) | {TUPLE, TUPLE_GET}


def leaving(function: Function, params: Mapping[str, int]) -> dict[Expr, int]:
    """How many of the loops around `function` XLA takes each of its expressions out of; what stays is left out.

    `params`: the same of the parameters, by name: of how many loops, from the innermost on, each is a constant."""
    most = max(params.values(), default=0)
    if not most:
        return {}
    done = {b.value for block in function.blocks if not block.dataflow for b in block.bindings}  # in their order
    expressions = list(function.expressions())
    free: dict[Expr, int] = {}
    for e in expressions:
        if e.op == VAR:
            free[e] = params.get(str(e.attr("name")), 0)
        else:
            free[e] = 0 if e in done else min((free[a] for a in e.args), default=most)
    readers = {b.value: 0 for block in function.blocks for b in block.bindings} | {function.result: 0}
    found: dict[Expr, int] = {}
    for e in reversed(expressions):
        far = free[e]
        if e.op in _STAYS:
            far = min(far, readers.get(e, far))
        if far and e.op not in (VAR, CALL):  # a call is inlined: what it runs leaves by itself
            found[e] = far
        for a in e.args:
            readers[a] = min(readers.get(a, far), far)
    return found


def placed(e: Expr, site: Site, left: Mapping[Expr, int], params: Mapping[str, int]) -> Site:
    """The site of a loop or a call inside loops, which says how far it and its operands leave; others as they are."""
    if not params or (e.op != CALL and e.op not in CONTROL):
        return site
    far = left.get(e, 0)
    free = (params.get(str(a.attr("name")), 0) if a.op == VAR else left.get(a, 0) for a in e.args)
    operands = tuple(max(0, n - far) for n in free)
    return Site(site.op, site.operands, {**site.attrs, _OUTWARD: (far, operands)})


def around(site: Site, times: Number, outside: tuple[Number, ...]) -> tuple[Number, ...]:
    """The steps of the loops that what this site runs can leave, from the innermost on. `times`: the site's own;
    `outside`: those of the loops that the site is in."""
    outside = outside[site.attrs.get(_OUTWARD, (0,))[0] :]
    if site.op == CALL:
        return outside
    return (times, *outside) if site.op in (SCAN, WHILE) else ()


def constants(site: Site, function: Function) -> dict[str, int]:
    """For parameters of a function that this site runs, of how many of the loops `around` it each is a constant; those
    of none are left out."""
    outer = site.attrs.get(_OUTWARD, (0, (0,) * len(site.operands)))[1]
    if site.op == CALL:
        found = list(outer[1:])
    elif site.op == SCAN or (site.op == WHILE and function.name == site.attrs["functions"][-1]):
        found = [1 + outer[i] for i in parts(site.op, range(len(site.operands)), site.attrs).constants]
    else:
        return {}
    return {str(p.attr("name")): n for p, n in zip(function.params, found, strict=False) if n}
