"""Three levels in one module: an operator, a loop-level program by `call_tir`, a routine by `call_dps_library`."""

from __future__ import annotations

import relax_eg as rx


@rx.tensor_program
def mm(X: rx.Buffer(("n", 128), "f32"), W: rx.Buffer((128, 256), "f32"), Y: rx.Buffer(("n", 256), "f32")):
    for i, j, k in rx.grid(n, 256, 128):  # noqa: F821
        with rx.block():
            with rx.init():
                Y[i, j] = 0
            Y[i, j] += X[i, k] * W[k, j]


@rx.function
def main(x: rx.Tensor(("n", 128), "f32"), w: rx.Tensor((128, 256), "f32")):
    n = rx.script.sym_var()
    with rx.dataflow():
        lv0: rx.Tensor((n, 256), "f32") = rx.call_tir(mm, [x, w], rx.Tensor((n, 256), "f32"))
        lv1: rx.Tensor((n, 256), "f32") = rx.op.relu(lv0)
        lv2: rx.Tensor((n, 256), "f32") = rx.call_dps_library("cutlass.rms_norm", [lv1], rx.Tensor((n, 256), "f32"))
    return lv2


def module() -> rx.types.Module:
    """The module of the figure; the loops of `mm` become an equation."""
    return main


def shown() -> str:
    return str(main)
