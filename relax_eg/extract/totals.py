"""The totals of a whole program as expressions in its sizes: the closed forms in a report."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.extract.amounts import Amounts
from relax_eg.extract.cost import ASSUMED_SIZE, WholeCost
from relax_eg.extract.walk import Visit, walk
from relax_eg.ir.control import alternatives
from relax_eg.ir.expr import Expr
from relax_eg.ir.heads import LOOPS
from relax_eg.ir.module import Function


def total_amounts(function: Function, model: WholeCost, skip: set[Expr] | None = None) -> Amounts:
    """The amounts of `function` in all, as expressions in its sizes; nodes in `skip` are left out.

    A model of any binding will do. Values are assumed for sizes inside functions that no operand determines, and for
    the steps of a `while_loop`. A loop in which something is done once is assumed to make at least one step."""
    groups: dict[tuple[tuple[Visit, ...], str, int], Amounts] = {}
    for v in walk(function, model, skip):
        if v.site is not None and not v.runs_functions:
            key = v.path, v.function.name, v.far
            groups[key] = groups.get(key, Amounts()) + v.model.amounts(v.site, v.node.annotation)
    shares: dict[int, Amounts] = {}
    for (path, name, far), found in groups.items():
        share, amounts = _in_all(found, name, far, path)
        shares[share] = shares.get(share, Amounts()) + amounts
    total = Amounts()
    for share, found in shares.items():
        total = total + Amounts(found.flops // share, found.bytes // share, found.launches // share, found.workspace)
    return total


def _in_all(found: Amounts, name: str, far: int, path: Sequence[Visit]) -> tuple[int, Amounts]:
    """The amounts of one run of function `name` in all its runs, in the sizes of the program, and a divisor: the number
    of branches of the choices around it, because one branch runs.

    - `far`: number of enclosing loops that the amounts are hoisted out of.
    - `path`: what runs the function.
    """
    share = 1
    for v in reversed(path):
        assert v.site is not None
        sizes = v.model.sizes_inside(v.model.functions[name], v.site)
        found = found.each(lambda d, sizes=sizes: d.substitute({**dict.fromkeys(d.variables, ASSUMED_SIZE), **sizes}))
        if far and v.node.op in LOOPS:
            far -= 1
        else:
            times = v.model.times(v.site)
            found = Amounts(found.flops * times, found.bytes * times, found.launches * times, found.workspace)
        share *= alternatives(v.site.op, v.site.attrs)
        far, name = far + v.far, v.function.name
    return share, found
