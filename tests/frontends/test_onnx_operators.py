"""Every ONNX operator that is read, with random attributes, dtypes, shapes and versions, against onnxruntime."""

from __future__ import annotations

import pytest

from benchmarks.onnx_cases import DRAWN
from benchmarks.onnx_operators import compared
from relax_eg.frontends.onnx.ops import HANDLERS

FEW = 3


def test_only_operators_that_are_read_are_drawn() -> None:
    assert DRAWN.keys() <= HANDLERS.keys()  # ONNX's own node tests use the others: test_onnx_nodes.py


@pytest.mark.parametrize("kind", sorted(DRAWN))
def test_a_few_sets_agree(kind: str) -> None:
    result = compared(kind, FEW)
    assert not result.differ, "\n".join(result.differ)
    assert result.agree == FEW


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(DRAWN))
def test_fifty_sets_agree(kind: str) -> None:
    result = compared(kind, 50, first=1000)
    assert not result.differ, "\n".join(result.differ)
    assert result.agree >= 40  # of some operators onnxruntime has few kernels, and the reference is no help
