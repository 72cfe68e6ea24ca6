"""The totals of a program as expressions in its sizes: the closed forms in a report."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.extract.costs.amounts import Amounts
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.sized_device import ASSUMED_SIZE
from relax_eg.extract.costs.walk import Visit, walk
from relax_eg.ir.control import alternatives
from relax_eg.ir.expr import Expr
from relax_eg.ir.heads import LOOPS
from relax_eg.ir.module import Function


def total_amounts(function: Function, model: WholeCost, skip: set[Expr] | None = None) -> Amounts:
    """The total amounts of `function`, as expressions in its sizes; nodes in `skip` are left out.

    The binding of the model does not matter. Sizes inside functions that no operand determines, and the number of steps
    of a `while_loop`, have assumed values. A loop out of which something is hoisted is assumed to make at least one
    step."""
    groups: dict[tuple[tuple[Visit, ...], str, int], Amounts] = {}
    for v in walk(function, model, skip):
        if v.site is not None:
            found = v.model.loop_amounts(v.site, v.node.annotation) if v.runs_functions else v.amounts
            key = v.path, v.function.name, v.hoisted_out_of
            groups[key] = groups.get(key, Amounts()) + found
    shares: dict[int, Amounts] = {}
    for (path, name, far), found in groups.items():
        share, amounts = _over_all_runs(found, name, far, path)
        shares[share] = shares.get(share, Amounts()) + amounts
    total = Amounts()
    for share, found in shares.items():
        total = total + Amounts(found.flops // share, found.bytes // share, found.launches // share, found.workspace)
    return total


def _over_all_runs(found: Amounts, name: str, far: int, path: Sequence[Visit]) -> tuple[int, Amounts]:
    """A divisor, and the amounts of all runs of function `name` in the sizes of the program. The divisor is the number
    of branches of the choices around the function, because only one branch runs.

    - `found`: the amounts of one run.
    - `far`: the number of enclosing loops out of which they are hoisted.
    - `path`: the loops, choices and calls around the function, outermost first.
    """
    share = 1
    for v in reversed(path):
        assert v.site is not None
        sizes = v.model.sizes_inside(v.model.functions[name], v.site)
        found = found.map(lambda d, sizes=sizes: d.substitute({**dict.fromkeys(d.variables, ASSUMED_SIZE), **sizes}))
        if far and v.node.op in LOOPS:
            far -= 1
        else:
            times = v.model.times(v.site)
            found = Amounts(found.flops * times, found.bytes * times, found.launches * times, found.workspace)
        share *= alternatives(v.site.op, v.site.attrs)
        far, name = far + v.hoisted_out_of, v.function.name
    return share, found
