"""Models that onnxruntime's own quantizer makes, beside onnxruntime: equal within one step."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_models import FLOAT, model, node, results
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import relax_eg as rx

RNG = np.random.default_rng(8)
STEPS = 255  # given: the steps of the range of an 8-bit number
SAMPLES = 8


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def network() -> Any:
    """A network of products: layers with a bias, a sum of two paths, a concatenation."""
    nodes = [
        node("Gemm", "x a b", "h"), node("LeakyRelu", "h", "r", alpha=0.1), node("MatMul", "r c", "m"),
        node("Add", "m r", "s"), node("Sigmoid", "s", "g"), node("Mul", "g s", "t"), node("Concat", "t r", "u", axis=1),
        node("MatMul", "u d", "y"),
    ]  # fmt: skip
    weights = {"a": floats(12, 16), "b": floats(16), "c": floats(16, 16) / 4, "d": floats(32, 5) / 5}
    return model(nodes, {"x": (("n", 12), FLOAT)}, weights=weights)


def convolutions() -> Any:
    """A network of convolutions: grouped and with steps, pools, and a last layer."""
    nodes = [
        node("Conv", "x k p", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Relu", "c", "r"),
        node("Conv", "r l", "e", kernel_shape=[3, 3], strides=[2, 2], group=8),
        node("MaxPool", "e", "m", kernel_shape=[2, 2], strides=[1, 1]), node("GlobalAveragePool", "m", "g"),
        node("Flatten", "g", "f"), node("Gemm", "f a b", "y"),
    ]  # fmt: skip
    weights = {"k": floats(8, 3, 3, 3) / 4, "p": floats(8), "l": floats(8, 1, 3, 3), "a": floats(8, 5), "b": floats(5)}
    return model(nodes, {"x": (("n", 3, 9, 9), FLOAT)}, weights=weights)


class Samples(CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rows = iter([{"x": floats(4, *shape)} for _ in range(SAMPLES)])

    def get_next(self) -> Any:
        return next(self.rows, None)


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "network": (network, (12,)),
    "convolutions": (convolutions, (3, 9, 9)),
}
STATIC = list(itertools.product(MODELS, QuantFormat, (QuantType.QUInt8, QuantType.QInt8), (False, True)))
DYNAMIC = list(itertools.product(MODELS, (QuantType.QUInt8, QuantType.QInt8)))


def agree(path: Path, shape: tuple[int, ...], activations: QuantType = QuantType.QUInt8) -> None:
    proto = onnx.load(path)
    x = floats(16, *shape)
    options = onnxruntime.SessionOptions()
    if activations == QuantType.QUInt8:
        # On processors with AVX2 only, sums of two products with signed weights are cut at 16 bits, but for an
        # optimization that makes the weights unsigned.
        options.add_session_config_entry("session.x64quantprecision", "1")
    else:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    (found,) = results(rx.from_onnx(proto), x)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    step = float(np.ptp(wanted)) / STEPS
    assert float(np.abs(found - wanted).max()) <= step * 1.01
    assert float(np.abs(found - wanted).mean()) <= step / 4


@pytest.mark.parametrize(("name", "form", "activations", "channels"), STATIC)
def test_static(name: str, form: QuantFormat, activations: QuantType, channels: bool, tmp_path: Path) -> None:
    made, shape = MODELS[name]
    logging.disable()
    quantize_static(made(), tmp_path / "q.onnx", Samples(shape), quant_format=form, per_channel=channels,
                    activation_type=activations, weight_type=QuantType.QInt8)  # fmt: skip
    agree(tmp_path / "q.onnx", shape, activations)


@pytest.mark.parametrize(("name", "weights"), DYNAMIC)
def test_dynamic(name: str, weights: QuantType, tmp_path: Path) -> None:
    made, shape = MODELS[name]
    logging.disable()
    path = tmp_path / "q.onnx"
    quantize_dynamic(made(), path, weight_type=weights, op_types_to_quantize=["MatMul", "Gemm", "Conv"])
    agree(path, shape)
