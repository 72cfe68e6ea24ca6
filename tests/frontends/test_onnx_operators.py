"""Every ONNX operator that is read, with random attributes, dtypes, shapes and versions, against onnxruntime."""

from __future__ import annotations

import pytest
import typer

from benchmarks.onnx_fused_cases import DRAWN_FUSED
from benchmarks.onnx_operators import KINDS, compared, main
from relax_eg.frontends.onnx.ops import HANDLERS

FEW, FEW_FUSED = 3, 2


def test_only_operators_that_are_read_are_drawn() -> None:
    assert set(KINDS) <= HANDLERS.keys()  # ONNX's own node tests use the others: test_onnx_nodes.py


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_sets_agree(kind: str) -> None:
    few = FEW_FUSED if kind in DRAWN_FUSED else FEW
    result = compared(kind, few)
    assert not result.differ, "\n".join(result.differ)
    assert result.agree == few


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_sets_agree(kind: str) -> None:
    result = compared(kind, 50, first=1000)
    assert not result.differ, "\n".join(result.differ)
    assert result.agree >= 40  # of some operators onnxruntime has few kernels, and the reference is no help


def test_an_operator_that_is_not_drawn_is_named() -> None:
    with pytest.raises(
        typer.BadParameter, match=r"no sets are drawn for Convolve, If; accepted: Abs, .*, com\.microsoft"
    ):
        main(only="Abs,Convolve,If")
