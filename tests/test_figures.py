"""The figures of the paper: their modules have the structure that the paper prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import OperatorError, OptionError
from relax_eg.ir import CALL_DPS_LIBRARY, CALL_TIR, Tensor, call_tir, var
from relax_eg.ops.interpret import evaluate


@pytest.fixture(autouse=True)
def _examples_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))


def _lines(module: rx.types.Module) -> list[str]:
    assert rx.parse(str(module)) == module
    return [line.strip() for line in str(module).splitlines()]


def test_figure_4_has_three_levels_in_one_module() -> None:
    from examples.figures import cross_level

    module = cross_level.module()
    lines = _lines(module)
    assert "Y[i, j] = sum(X[i, k] * W[k, j], over=(k, 128))" in lines
    assert [e.op for e in module.main.expressions() if e.op != "var"] == [CALL_TIR, "relu", CALL_DPS_LIBRARY]
    assert all(e.annotation == Tensor("n 256", "float32") for e in module.main.expressions() if e.op == CALL_TIR)


def test_figure_4_names_the_routine_that_is_not_there() -> None:
    from examples.figures import cross_level

    best = rx.optimize(cross_level.module(), at={"n": 4})
    assert "opaque: cutlass.rms_norm at cross_level.py:" in str(best.report)
    accepted = "accepted: the name of one that `RuleSet.library` registered, or `jax.` and a primitive"
    with pytest.raises(OptionError, match=f"^no library routine `cutlass.rms_norm` in this process\n  {accepted}"):
        best(np.ones((2, 128), np.float32), np.ones((128, 256), np.float32))


def test_figure_5_allocates_fills_and_gives_back() -> None:
    from examples.figures import semantics

    assert 'def unflatten(X: R.Buffer("m*n"), Y: R.Buffer("n m"), n: int, m: int):' in _lines(semantics.module())
    assert "[[0. 1.]\n [2. 3.]\n [4. 5.]]" in semantics.shown()


def test_figure_7_deduces_across_calls() -> None:
    from examples.figures import deduction

    module = deduction.module()
    assert _lines(module)
    given = {b.name: b.var.annotation for block in module.main.blocks for b in block.bindings}
    wanted = {"lv0": Tensor("4*n"), "lv1": Tensor("12"), "lv2": Tensor("4*n+4"), "lv3": Tensor(ndim=1, dtype="float32")}
    assert {name: given[name] for name in wanted} == wanted
    best = rx.optimize(module)
    results = best(np.zeros(3, np.float32), (2, 5))
    assert [r.shape for r in results] == [(3,), (12,), (12,), (16,), (10,)]


def test_figure_8_passes_the_size_that_no_axis_is() -> None:
    from examples.figures import symbolic_parameter

    assert any('sizes={"n": R.dim("n")}' in line for line in _lines(symbolic_parameter.module()))
    flat = [var(name, Tensor("2*n")) for name in "xy"]
    with pytest.raises(OperatorError, match=r"no argument tells its size `n`; sizes=\{'n': \.\.\.\} passes it"):
        call_tir(symbolic_parameter.fused_add_relu, flat)


def test_figure_9_finds_the_kinds() -> None:
    from examples.figures import decode

    assert [p.name for p in decode.module().programs] == ["decode_q4", "mm"]
    assert "decode_q4: Injective\nmm: OutputWiseFusible\n" in decode.shown()
    assert _lines(decode.module())


def test_figure_9_fuses_the_decoder_into_the_matmul() -> None:
    from examples.figures import decode

    module = decode.fused()
    lines = _lines(module)
    (program,) = module.programs
    assert program.name == "fused_decode_q4_mm" and len(program.stages) == 1
    assert [e.op for e in module.main.expressions() if e.op != "var"] == [CALL_TIR]
    assert {str(b) for b in program.inputs} == {"p0: (128, 32) uint32", "p1: (128, 8) float32", "p2: (n, 128) float32"}
    (equation,) = (line for line in lines if line.startswith("T_mm[i, j] = "))
    assert equation.startswith("T_mm[i, j] = sum(p2[i, k] * ")
    assert "p0[k, j//8]" in equation and "p1[k, j//32]" in equation
    rng = np.random.default_rng(0)
    x, scales = (rng.normal(size=s).astype(np.float32) for s in ((3, 128), (128, 8)))
    words = rng.integers(0, 2**32, (128, 32), dtype=np.uint32)
    before, after = (evaluate(m, [x, words, scales]) for m in (decode.module(), module))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-4)


def test_figure_11_moves_the_allocation_to_the_caller() -> None:
    from examples.figures import workspace

    before, after = _lines(workspace.before()), _lines(workspace.after())
    assert 'P = R.workspace("8 n 4096")' in before and not any("R.full" in line for line in before)
    assert any(line.startswith("def mm_split_k(") and 'P: R.workspace("8 n 4096"), Y:' in line for line in after)
    assert any("R.full(" in line and 'shape=(8, "n", 4096)' in line for line in after)


def test_they_print() -> None:
    from examples.figures.__main__ import FIGURES, main

    main([])
    with pytest.raises(SystemExit, match="no figure 6; there are: 4, 5, 7, 8, 9, 11"):
        main(["6"])
    assert all(module.shown() for module in FIGURES.values())
