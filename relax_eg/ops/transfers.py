"""The operators that keep a value in the memory of the host, and the time that a program waits for its copies.

`from_host(after(on_host(x), t))` is `x`, which has no memory on the device from the end of its copy to the host until
`t` exists. XLA copies beside its kernels where the device has engines of its own for that. A CPU is its own host, so
nothing is copied there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.record import Operator, Site, first_operand, register

ON_HOST, FROM_HOST = "on_host", "from_host"
TRANSFERS = frozenset((ON_HOST, FROM_HOST))
# What takes the time of a task: the device computes and copies in both directions at the same time.
Engine = Literal["compute", "to host", "from host"]


def last_end(tasks: Iterable[tuple[Engine | None, float, Iterable[int]]]) -> float:
    """The seconds after which all tasks are done, each with its engine, its seconds and the numbers of earlier tasks
    that it waits for. An engine does its tasks one after the other, in the order given; a task without one only waits.
    """
    free: dict[Engine, float] = {}
    ends: list[float] = []
    for engine, seconds, needs in tasks:
        end = max((ends[i] for i in needs), default=0.0)
        if engine is not None:
            end = free[engine] = max(end, free.get(engine, 0.0)) + seconds
        ends.append(end)
    return max(ends, default=0.0)


def _same(site: Site) -> Annotation:
    return Tensor(site.shape(0), site.dtype(0))


def _jax_on_host(x: Any) -> Any:
    import jax

    return jax.device_put(x, jax.memory.Space.Host)


def _jax_from_host(x: Any) -> Any:
    import jax

    return jax.device_put(x, jax.memory.Space.Device)


register(
    Operator(
        ON_HOST, ("x",), _same, _jax_on_host, first_operand, kernel="transfer", doc="`x`, in the memory of the host"
    )
)
register(
    Operator(
        FROM_HOST, ("x",), _same, _jax_from_host, first_operand, kernel="transfer",
        doc="`x`, from the memory of the host in that of the device",
    )
)  # fmt: skip
