"""Sizes deduced across calls, from signatures alone: the result of `subfn` follows from its arguments."""

from __future__ import annotations

import relax_eg as rx


@rx.function
def subfn(s: rx.Shape(["n", "m"])) -> rx.Tensor(("n * m",), "f32"):
    return rx.op.ones(("n * m",))


@rx.function
def main(x: rx.Tensor(("n",), "f32"), y: rx.Shape(ndim=2)):
    n = rx.script.sym_var()
    f0: rx.Callable([rx.Shape(["n", "m"])], rx.Tensor(("n * m",), "f32")) = subfn
    lv0 = f0(rx.script.shape(n, 4))
    lv1 = subfn(rx.script.shape(3, 4))
    lv2 = subfn(rx.script.shape(n + 1, 4))
    lv3 = subfn(y)
    return x, lv0, lv1, lv2, lv3


def module() -> rx.types.Module:
    return main


def shown() -> str:
    return str(main)
