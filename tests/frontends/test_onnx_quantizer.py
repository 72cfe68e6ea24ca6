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


def masked() -> Any:
    """A network whose other operators have quantized forms, too: an average of windows, a choice, a softmax."""
    nodes = [
        node("Conv", "x k", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("AveragePool", "c", "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], count_include_pad=0),
        node("Where", "mask p low", "w"), node("Flatten", "w", "f"), node("MatMul", "f a", "m"),
        node("Softmax", "m", "y", axis=-1),
    ]  # fmt: skip
    mask = RNG.random((1, 4, 4, 4)) < 0.7
    weights = {"k": floats(4, 3, 3, 3) / 4, "a": floats(64, 5) / 4, "mask": mask, "low": np.float32([-1.0])}
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


@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
def test_other_operators_of_integers(activations: QuantType, tmp_path: Path) -> None:
    logging.disable()
    path = tmp_path / "q.onnx"
    quantize_static(masked(), path, Samples((3, 9, 9)), quant_format=QuantFormat.QOperator, activation_type=activations,
                    weight_type=QuantType.QInt8, extra_options={"ForceQuantizeNoInputCheck": True})  # fmt: skip
    kinds = {n.op_type for n in onnx.load(path).graph.node}
    assert {"QLinearAveragePool", "QLinearWhere", "QLinearSoftmax"} <= kinds
    agree(path, (3, 9, 9), activations)


@pytest.mark.parametrize("activations", [QuantType.QUInt16, QuantType.QInt16])
def test_wide_activations(activations: QuantType, tmp_path: Path) -> None:
    """Operators of onnxruntime's own domain encode them, since ONNX's took no 16 bits before opset 21."""
    logging.disable()
    path = tmp_path / "q.onnx"
    quantize_static(network(), path, Samples((12,)), quant_format=QuantFormat.QDQ, activation_type=activations,
                    weight_type=QuantType.QInt8, extra_options={"UseQDQContribOps": True})  # fmt: skip
    assert any(n.op_type == "QuantizeLinear" and n.domain == "com.microsoft" for n in onnx.load(path).graph.node)
    agree(path, (12,), activations)  # as written: an optimization of onnxruntime's makes the activations bytes


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_of_integers(direction: str, channels: bool, tmp_path: Path) -> None:
    count, size = 2 if direction == "bidirectional" else 1, 16
    nodes = [
        node("LSTM", "x w r b - h c p", "y last cell", hidden_size=size, direction=direction),
        node("Concat", "last cell", "s", axis=0),
    ]  # fmt: skip
    weights = {
        "w": floats(count, 4 * size, 12), "r": floats(count, 4 * size, size) / 4, "b": floats(count, 8 * size),
        "h": floats(count, 1, size), "c": floats(count, 1, size), "p": floats(count, 3 * size),
    }  # fmt: skip
    logging.disable()
    path = tmp_path / "q.onnx"
    # With weights of 7 bits no sum of two products is cut at 16 bits, as onnxruntime does where there is only AVX2.
    proto = model(nodes, {"x": (("n", 1, 12), FLOAT)}, ["y", "s"], weights)
    quantize_dynamic(proto, path, per_channel=channels, reduce_range=True)
    assert [n.op_type for n in onnx.load(path).graph.node] == ["DynamicQuantizeLSTM", "Concat"]
    x = floats(9, 1, 12)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"x": x})
    written = results(rx.from_onnx(model(nodes, {"x": ((9, 1, 12), FLOAT)}, ["y", "s"], weights)), x)
    for f, w, exact in zip(results(rx.from_onnx(path), x), wanted, written, strict=True):
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        # Numbers that fall on the border of two integers may be rounded apart.
        assert np.abs(f - w).max() < np.abs(exact - w).max() / 4
        np.testing.assert_allclose(f, w, atol=0.01)


@pytest.mark.parametrize(("name", "weights"), DYNAMIC)
def test_dynamic(name: str, weights: QuantType, tmp_path: Path) -> None:
    made, shape = MODELS[name]
    logging.disable()
    path = tmp_path / "q.onnx"
    quantize_dynamic(made(), path, weight_type=weights, op_types_to_quantize=["MatMul", "Gemm", "Conv"])
    agree(path, shape)
