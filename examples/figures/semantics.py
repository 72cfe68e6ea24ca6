"""The meaning of `call_tir`: the caller allocates the output, the program fills it, and the call returns it.

The caller says what is filled and passes the sizes that no axis of an argument tells. The reference interpreter does
just that: it binds the sizes, runs the program on the arguments, and hands back the outputs.
"""

# The loop variables of tensor programs need not exist: their text is read, and never run.
# ruff: noqa: F821

from __future__ import annotations

import numpy as np

import relax_eg as rx
from relax_eg import ir
from relax_eg.ops.interpret import evaluate


@rx.tensor_program
def unflatten(X: rx.Buffer("n*m"), Y: rx.Buffer("n m"), n: int, m: int):
    Y[i, j] = X[i * m + j]


def module() -> rx.types.Module:
    """A call that passes the sizes, because the length of `x` determines only their product."""
    x = ir.var("x", rx.Tensor("2*k"))
    call = rx.call_tir(unflatten, [x], out=rx.Tensor("k 2", "float32"), sizes={"n": "k", "m": 2})
    return rx.types.Module((ir.pure_function("main", [x], [call]),))


def shown() -> str:
    filled = evaluate(module(), [np.arange(6, dtype=np.float32)])
    return f"{module()}\nmain([0, 1, 2, 3, 4, 5]) =\n{filled}\n"
