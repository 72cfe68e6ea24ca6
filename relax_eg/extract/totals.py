"""The totals of a whole program as expressions in its sizes: the closed forms in a report."""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.extract.amounts import Amounts
from relax_eg.extract.cost import ASSUMED_SIZE, WholeCost, sites
from relax_eg.ir.expr import CALL, COND, CONTROL, SCAN, WHILE, Expr
from relax_eg.ir.module import Function
from relax_eg.shapes import Dim


def total_amounts(function: Function, model: WholeCost, skip: set[Expr] | None = None) -> Amounts:
    """The amounts of `function` in all, as expressions in its sizes; nodes in `skip` are left out.

    A model of any binding will do. Values are assumed for sizes inside functions that no operand determines, and for
    the steps of a `while_loop`. A loop in which something is done once is assumed to make at least one step."""
    total = Amounts()
    for (_, share), found in _by_loop(function, model, skip, frozenset()).items():
        flops, moved, launches = (d // share for d in (found.flops, found.bytes, found.launches))
        total = total + Amounts(flops, moved, launches, found.workspace)
    return total


def _by_loop(
    function: Function, model: WholeCost, skip: set[Expr] | None, running: frozenset[str]
) -> dict[tuple[int, int], Amounts]:
    """The amounts of each step of `function`, by the number of enclosing loops that they are hoisted out of, and by a
    divisor.

    The divisor is the number of branches of the choices around them, because one branch runs."""
    totals: dict[tuple[int, int], Amounts] = {}

    def add(found: Amounts, far: int, share: int) -> None:
        totals[far, share] = totals.get((far, share), Amounts()) + found

    for e, site, far in sites(function, model, skip):
        if site is None:
            continue
        if site.op not in CONTROL and site.op != CALL:
            add(model.amounts(site, e.annotation), far, 1)
            continue
        names = [n for n in site.attrs.get("functions", ()) if n in model.functions and n not in running]
        times, branches = model.times(site), len(names) if site.op == COND and names else 1
        for n in names:
            callee = model.functions[n]
            sizes = model.sizes_inside(callee, site)
            for (k, share), told in _by_loop(callee, model.inside(callee, site), None, running | {n}).items():
                found = _placed(told, sizes)
                if k and site.op in (SCAN, WHILE):  # hoisted out of this loop, and of others around it
                    add(found, far + k - 1, share)
                    continue
                flops, moved, launches = (d * times for d in (found.flops, found.bytes, found.launches))
                add(Amounts(flops, moved, launches, found.workspace), far + k, share * branches)
    return totals


def _placed(found: Amounts, sizes: Mapping[str, Dim]) -> Amounts:
    """The amounts in the caller's sizes."""
    return found.each(lambda d: d.substitute({**dict.fromkeys(d.variables, ASSUMED_SIZE), **sizes}))
