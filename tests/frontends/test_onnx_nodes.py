"""ONNX's own node tests: of the tests that are in the installed `onnx`, none is wrong, and few are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest

import relax_eg as rx
from benchmarks.onnx_cases import DRAWN
from benchmarks.onnx_fused_cases import DRAWN_FUSED
from benchmarks.onnx_nodes import (
    BEGIN,
    DOCUMENT,
    END,
    LIGHT,
    NodeTest,
    Outcome,
    model_tests,
    node_tests,
    outcome,
    run,
    table,
)
from relax_eg.errors import OnnxError
from relax_eg.frontends.onnx.functions import handler_name
from relax_eg.frontends.onnx.missing import REFUSED
from relax_eg.frontends.onnx.ops import HANDLERS

SAMPLED, SAMPLED_MODELS = 40, 12  # of so many tests, the quick run takes one
LEAST_PASSING = 0.95  # of the tests that are not expanded; the rest are strings, random numbers, files and the like
# Others compare these with onnxruntime: test_onnx_control.py, test_onnx_sequences.py, test_onnx_quantizer.py.
NO_NODE_TEST = {"GlobalLpPool", "ConcatFromSequence", "Optional", "SequenceAt", "SequenceConstruct", "SequenceEmpty"}
NO_NODE_TEST |= (
    {"SequenceErase", "SequenceLength", "com.microsoft.DequantizeLinear", "com.microsoft.DynamicQuantizeLSTM"}
    | {k for k in HANDLERS if k.startswith("com.microsoft.Q")}
    | DRAWN_FUSED.keys()
)


@cache
def all_tests() -> tuple[NodeTest, ...]:
    return tuple(node_tests())


def failed(outcomes: list[Outcome]) -> list[str]:
    return [f"{o.name}: {o.text}" for o in outcomes if o.outcome in ("wrong", "broken")]


def test_every_operator_is_tested() -> None:
    tested = {t.kind for t in all_tests()}
    assert HANDLERS.keys() <= tested | DRAWN.keys() | NO_NODE_TEST
    assert not HANDLERS.keys() & REFUSED.keys()


def test_a_sample_passes() -> None:
    outcomes = run(all_tests()[::SAMPLED])
    assert failed(outcomes) == []
    assert sum(o.outcome != "refused" for o in outcomes) > len(outcomes) / 2


def test_narrow_dtypes_pass() -> None:
    tests = [t for t in all_tests() if not t.expanded and re.search(r"8E8M0|INT2|4E2M1|5M2FNUZ|_int2|float4", t.name)]
    outcomes = run(tests)
    assert len(outcomes) > 40 and {o.outcome for o in outcomes} == {"passed"}, failed(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("expanded", [False, True])
def test_all_pass(expanded: bool) -> None:
    outcomes = run([t for t in all_tests() if t.expanded == expanded])
    assert failed(outcomes) == []
    passed = sum(o.outcome != "refused" for o in outcomes)
    assert expanded or passed > LEAST_PASSING * len(outcomes)


def test_every_operator_of_onnx_is_read_or_refused_with_a_reason() -> None:
    schemas = [
        s for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.preview", "ai.onnx.preview.training")
    ]
    names = {
        handler_name(s.domain, s.name) for s in schemas if not (s.has_function or s.has_context_dependent_function)
    }
    assert len(names) > 150 and names - HANDLERS.keys() - {"Constant"} <= REFUSED.keys()


def test_a_sample_of_the_models_passes() -> None:
    tests = model_tests(("pytorch-converted", "pytorch-operator", "simple"))
    assert {t.kind for t in tests} == {"pytorch-converted", "pytorch-operator", "simple"} and len(tests) > 120
    slopes = [t for t in tests if "PReLU_2d_multiparam" in t.name]  # of channels, in operator set 6
    outcomes = run([*tests[::SAMPLED_MODELS], *slopes])
    assert {o.outcome for o in outcomes if "PReLU_2d_multiparam" in o.name} == {"passed"}
    assert failed(outcomes) == [] and sum(o.outcome != "refused" for o in outcomes) > len(outcomes) / 2


@pytest.mark.slow
def test_all_models_pass() -> None:
    tests = model_tests()
    assert sum(t.kind == LIGHT for t in tests) == 9
    outcomes = run(tests)
    assert failed(outcomes) == []
    refused = [o for o in outcomes if o.outcome == "refused"]  # strings, and the gradients of ONNX's graphs
    assert all(re.match(r"simple/test_(strnorm|gradient)", o.name) for o in refused), refused


def test_a_wrong_result_is_found() -> None:
    test = next(t for t in all_tests() if t.name == "test_add")
    changed = replace(test, outputs=[np.asarray(test.outputs[0]) + 1])
    (found,) = run([changed])
    assert found.outcome == "wrong" and found.text.startswith("output 0: ")
    with pytest.raises(OnnxError):
        rx.from_onnx(next(t for t in all_tests() if t.kind == "ImageDecoder").model)


def test_the_table_has_a_row_for_each_operator() -> None:
    tests = all_tests()
    rows = table([outcome(t, "passed") for t in tests if not t.expanded]).splitlines()
    assert len(rows) == 2 + len({t.kind for t in tests})
    _, _, rest = DOCUMENT.read_text().partition(BEGIN)
    text, mark, _ = rest.partition(END)
    assert mark and all(f"\n| {t.kind} |" in text for t in tests)
