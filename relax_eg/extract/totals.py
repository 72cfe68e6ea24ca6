"""What a whole program does, as expressions in its sizes: the closed forms of the totals of a report."""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.extract.amounts import Amounts
from relax_eg.extract.cost import ASSUMED_SIZE, WholeCost, sites
from relax_eg.ir.expr import CALL, COND, CONTROL, Expr
from relax_eg.ir.module import Function
from relax_eg.shapes import Dim


def total_amounts(
    function: Function, model: WholeCost, skip: set[Expr] | None = None, running: frozenset[str] = frozenset()
) -> Amounts:
    """What `function` does in all, as expressions in its sizes; nodes in `skip` are left out. A model of any binding
    will do. Sizes inside of functions that no operand tells, and the steps of a `while_loop`, are assumed."""
    total = Amounts()
    for e, site in sites(function, model.folds_transposes, skip):
        if site is None:
            continue
        if site.op not in CONTROL and site.op != CALL:
            total = total + model.amounts(site, e.annotation)
            continue
        names = [n for n in site.attrs.get("functions", ()) if n in model.functions and n not in running]
        inside = Amounts()
        for n in names:
            callee = model.functions[n]
            found = total_amounts(callee, model.inside(callee, site), None, running | {n})
            inside = inside + _placed(found, model.sizes_inside(callee, site))
        times, share = model.times(site), len(names) if site.op == COND and names else 1
        flops, moved, launches = (d * times // share for d in (inside.flops, inside.bytes, inside.launches))
        inside = Amounts(flops, moved, launches, inside.workspace)
        total = total + inside
    return total


def _placed(found: Amounts, sizes: Mapping[str, Dim]) -> Amounts:
    """The amounts in a caller's sizes."""
    return found.each(lambda d: d.substitute({**dict.fromkeys(d.variables, ASSUMED_SIZE), **sizes}))
