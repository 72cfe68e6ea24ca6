"""Models of PyTorch as files (`make_torch_files.py`): StableHLO, ONNX, and ONNX as onnxruntime fuses it."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_models import results

import relax_eg as rx

FILES = Path(__file__).parent / "torch_files"
KEPT = np.load(FILES / "results.npz")
RULES = rx.RuleSet("none")  # what is read is tested, not what is gained


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}


def bert_agrees(path: Path) -> None:
    best = rx.optimize(rx.from_onnx(path), rules=RULES, at={"batch": 2, "length": 7})
    np.testing.assert_allclose(best(KEPT["ids"], KEPT["mask"])[0], KEPT["bert"], rtol=1e-4, atol=1e-5)
    shorter = KEPT["ids"][:1, :5], KEPT["mask"][:1, :5]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"ids": shorter[0], "mask": shorter[1]})
    for f, w in zip(best(*shorter), wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)


def test_stablehlo_of_torch_xla() -> None:
    module = rx.from_stablehlo(FILES / "encoder.stablehlo")
    arguments = [KEPT[f"argument{i}"] for i in range(len(module.main.params))]
    with jax.enable_x64(True):
        found = rx.optimize(module, rules=RULES)(*arguments)
    np.testing.assert_allclose(found, KEPT["encoder"], rtol=1e-4, atol=1e-5)


def test_onnx_of_torch() -> None:
    best = rx.optimize(rx.from_onnx(FILES / "encoder.onnx"), rules=RULES, at={"batch": 2, "length": 7})
    np.testing.assert_allclose(best(KEPT["ids"]), KEPT["encoder"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(best(KEPT["ids"][:1, :4]), KEPT["encoder"][:1, :4], rtol=1e-4, atol=1e-5)  # it is causal


@pytest.mark.slow
def test_bert_as_onnxruntimes_optimizer_of_transformers_fuses_it() -> None:
    fused = FILES / "bert_fused.onnx"
    assert operators(fused) == {"Attention", "BiasGelu", "EmbedLayerNormalization", "SkipLayerNormalization"}
    bert_agrees(fused)


def test_bert_as_a_session_saves_it(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "session.onnx")
    onnxruntime.InferenceSession(str(FILES / "bert.onnx"), options, providers=["CPUExecutionProvider"])
    assert operators(tmp_path / "session.onnx") == {"BiasGelu", "FusedGemm", "FusedMatMul"}
    (hidden, _) = results(rx.from_onnx(tmp_path / "session.onnx"), KEPT["ids"], KEPT["mask"])
    np.testing.assert_allclose(hidden, KEPT["bert"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_bert_as_torch_exports_it() -> None:
    bert_agrees(FILES / "bert.onnx")
