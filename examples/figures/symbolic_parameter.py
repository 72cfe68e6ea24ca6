"""A fused kernel whose parameters have an expression as their size is passed the variable in it.

Both operators work on 2*n elements, so no axis of the fused kernel is n itself. The size is a parameter of its own, and
what the kernel computes may mention it.
"""

# The loop variables of tensor programs need not exist: their text is read, and never run.
# ruff: noqa: F821

from __future__ import annotations

import relax_eg as rx
from relax_eg import ir


@rx.tensor_program
def fused_add_relu(X: rx.Buffer("2*n"), Y: rx.Buffer("2*n"), Z: rx.Buffer("2*n"), n: int):
    Z[i] = rx.maximum(X[i] + Y[i], 0)


def module() -> rx.types.Module:
    """The call, in a function whose signature determines n."""
    x, y = (ir.var(name, rx.Tensor("n 2")) for name in "xy")
    flat = [rx.op.reshape(v, ("2*n",)) for v in (x, y)]
    call = rx.call_tir(fused_add_relu, flat, sizes={"n": "n"})
    return rx.types.Module((ir.pure_function("main", [x, y], [call]),))


def shown() -> str:
    return str(module())
