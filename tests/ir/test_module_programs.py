"""Modules hold the tensor programs they call: in text, and packed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from test_packed import Held

import relax_eg as rx
from relax_eg import ir
from relax_eg.errors import ModuleTextError
from relax_eg.ir.packed import pack, unpack
from relax_eg.ops.interpret import evaluate
from relax_eg.tir import PatternKind, TensorProgram, classify, parse_program

FIGURE_4 = """
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
    def main(x: R.Tensor(("n", 128)), w: R.Tensor((128, 256))):
        with R.dataflow():
            lv0: R.Tensor(("n", 256)) = R.call_tir(mm, [x, w], R.Tensor(("n", 256)))
            lv1 = R.relu(lv0)
            R.output(lv1)
        return lv1
"""


def test_a_module_with_a_program_as_in_figure_4() -> None:
    module = rx.parse(FIGURE_4)
    (mm,) = module.programs
    assert classify(mm) is PatternKind.OUTPUT_EWISE_FUSIBLE
    text = str(module)
    assert (
        '    @R.tensor_program\n    def mm(X: R.Buffer("n 128"), W: R.Buffer("128 256"), Y: R.Buffer("n 256")):' in text
    )
    assert "        Y[i, j] = sum(X[i, k] * W[k, j], over=(k, 128))" in text
    assert 'R.call_tir(Module.mm, (x, w), out=R.Tensor(("n", 256)))' in text
    assert rx.parse(text) == module and str(rx.parse(text)) == text
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 128)).astype("f"), rng.normal(size=(128, 256)).astype("f")
    np.testing.assert_allclose(evaluate(module, [x, w]), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)


def _program(factor: int, name: str = "scale") -> TensorProgram:
    text = f'def scale(X: rx.Buffer("n"), Y: rx.Buffer("n")):\n    Y[i] = X[i] * {factor}.0'
    return parse_program(text if name == "scale" else f"@rx.tensor_program(name={name!r})\n{text}")


@pytest.mark.parametrize("second", [_program(3), _program(3, "main"), _program(3, "no name"), _program(3, "def")])
def test_names_in_text_are_each_others_own(second: TensorProgram) -> None:
    x = ir.var("x", rx.Tensor("n"))
    call = ir.call_tir(second, [ir.call_tir(_program(2), [x])])
    module = rx.types.Module((ir.pure_function("main", [x], [call]),))
    assert rx.parse(str(module)) == module
    assert [p.name for p in rx.parse(str(module)).programs] == ["scale", second.name]
    held = Held()
    data, blob = pack((module,), held)
    (again,) = unpack(json.loads(json.dumps(data)), blob, held)
    assert again == module and not held.objects


REFUSED: list[tuple[str, str]] = [
    ("R.call_tir(mmm, [x, w])", "no tensor program `mmm` in the module; did you mean `mm`?"),
    ("R.call_tir(Module.main, [x, w])", "no tensor program `Module.main` in the module"),
    ("R.call_tir(mm, [x])", "call_tir: `mm` takes 2 arguments"),
    ("R.call_tir(mm)", "this call of a tensor program cannot be read"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_refused(call: str, text: str) -> None:
    with pytest.raises(ModuleTextError) as error:
        rx.parse(FIGURE_4.replace('R.call_tir(mm, [x, w], R.Tensor(("n", 256)))', call))
    assert text in str(error.value)


def test_a_program_that_makes_no_sense_is_refused_with_its_line() -> None:
    with pytest.raises(ModuleTextError) as error:
        rx.parse(FIGURE_4.replace("Y[i, j] += X[i, k] * W[k, j]", "Y[i, i] = X[i, k]"))
    told: Any = str(error.value)
    assert told.startswith("line 10: a race: the index of axis 1 in Y[i, i] is used twice") and "expected: " in told
