"""How long a program waits for copies to the memory of the host and back (`ops.transfers`).

They run beside its kernels. It is the time of all tasks on three engines, one for the kernels and one for each
direction of the link, beyond the time of the kernels alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.walk import walk
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function
from relax_eg.ops import bytes_of
from relax_eg.ops.ordering import AFTER
from relax_eg.ops.transfers import ON_HOST, TRANSFERS, Engine, last_end


def waiting_seconds(function: Function, model: WholeCost, skip: set[Expr] | None = None) -> float:
    """Seconds for which the kernels of a function wait for copies, at one binding of its sizes. `skip`: nodes that run
    ahead of the call."""
    rate = model.profile.host_rate
    if not rate:
        return 0.0
    expressions = list(function.expressions())
    if not any(e.op in TRANSFERS for e in expressions):
        return 0.0
    seconds = {v.node: float(v.cost.seconds) for v in walk(function, model, skip, deep=False)}
    number = {e: i for i, e in enumerate(expressions)}

    def tasks() -> Iterator[tuple[Engine | None, float, list[int]]]:
        for e in expressions:
            needs = [number[a] for a in e.args if a in number]
            if e.op in TRANSFERS:
                yield (
                    "to host" if e.op == ON_HOST else "from host",
                    model.representative(bytes_of(e.annotation)) / rate,
                    needs,
                )
            else:
                yield "compute" if e in seconds and e.op != AFTER else None, seconds.get(e, 0.0), needs

    computing = sum(s for e, s in seconds.items() if e.op not in TRANSFERS and e.op != AFTER)
    return max(0.0, last_end(tasks()) - computing)
