"""Three levels in one module: an operator, a loop-level program by `call_tir`, a routine by `call_dps_library`."""

from __future__ import annotations

import relax_eg as rx

TEXT = """
@I.ir_module
class Module:
    @R.tensor_program
    def mm(X: R.Buffer(("n", 128), "f32"), W: R.Buffer((128, 256), "f32"), Y: R.Buffer(("n", 256), "f32")):
        for i, j, k in grid(n, 256, 128):
            with block():
                with init():
                    Y[i, j] = 0
                Y[i, j] += X[i, k] * W[k, j]

    @R.function
    def main(x: R.Tensor(("n", 128), "float32"), w: R.Tensor((128, 256), "float32")):
        with R.dataflow():
            lv0: R.Tensor(("n", 256), "float32") = R.call_tir(mm, [x, w], R.Tensor(("n", 256), "float32"))
            lv1: R.Tensor(("n", 256), "float32") = R.relu(lv0)
            lv2 = R.call_dps_library("cutlass.rms_norm", [lv1], R.Tensor(("n", 256), "float32"))
            R.output(lv2)
        return lv2
"""


def module() -> rx.Module:
    """The module of the figure; the loops of `mm` become an equation."""
    return rx.parse(TEXT)


def shown() -> str:
    return str(module())
