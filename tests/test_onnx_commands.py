"""`relax-eg inspect` and `relax-eg optimize` of ONNX models."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

import relax_eg as rx
from relax_eg.cli import app

FLOAT = TensorProto.FLOAT


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("Cast", ["rate"], ["r"], to=FLOAT),
        helper.make_node("Mul", ["x", "r"], ["z"]),
        helper.make_node("Concat", ["z", "z"], ["y"], axis=0),
    ]
    return saved(tmp_path / "m.onnx", nodes)


def saved(path: Path, nodes: list[onnx.NodeProto]) -> Path:
    given = [
        helper.make_tensor_value_info("x", FLOAT, ("n", 4)),
        helper.make_tensor_value_info("rate", TensorProto.INT64, ()),
    ]
    result = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(nodes, "g", given, [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(path))
    return path


def test_inspect(path: Path) -> None:
    found = run("inspect", path)
    assert found.exit_code == 0, found.output
    assert found.output.startswith("m.onnx: 3 nodes, 0 initializers of 0 B\n  input x: float32 (n, 4)\n")
    assert "  input rate: int64 ()\n  output y: float32 (2*n, 4)\n" in found.output
    assert re.search(r"Mul +1 +yes", found.output) and found.output.endswith("it is read\n")
    assert "rate" not in run("inspect", path, "--input", "rate=16000").output
    assert "output y: float32 (16*k, 4)" in run("inspect", path, "--input", "x=8*k 4").output


def test_sizes_are_shown_simplified(tmp_path: Path) -> None:
    """A transposed convolution of what a strided one gives has 32*h rows, whatever h is."""
    held = [onnx.numpy_helper.from_array(np.ones((4, 4, 2, 2), np.float32), "w")]
    x = helper.make_tensor_value_info("x", FLOAT, ("n", 4, "s", "t"))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], strides=[2, 2]),
        helper.make_node("ConvTranspose", ["h", "w"], ["y"], strides=[2, 2]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [helper.make_empty_tensor_value_info("y")], held)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(path))
    assert "output y: float32 (n, 4, 32*h, 32*w)" in run("inspect", path, "--input", "x=n 4 32*h 32*w").output


def test_a_model_for_certain_sizes_says_how_to_declare_them(tmp_path: Path) -> None:
    """What is halved and doubled is as large as before if the size is even."""
    held = [onnx.numpy_helper.from_array(np.ones((4, 4, 2, 2), np.float32), "w")]
    x = helper.make_tensor_value_info("x", FLOAT, ("n", 4, "s", "t"))
    held.append(onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "twice"))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], strides=[2, 2]),
        helper.make_node(
            "Resize", ["h", "", "twice"], ["u"], coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ),
        helper.make_node("Concat", ["u", "x"], ["c"], axis=0),
        helper.make_node("Conv", ["c", "w"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [helper.make_empty_tensor_value_info("y")], held)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(path))
    said = " ".join(run("inspect", path).output.split())
    assert "the shape of this concat is not known" in said and '(--input "x=n 3 32*h 32*w") says so of an input' in said
    assert "it is read" in run("inspect", path, "--input", "x=n 4 2*h 2*w").output


def test_inspect_lists_all_that_is_missing(tmp_path: Path) -> None:
    nodes = [helper.make_node("MaxRoiPool", ["x", "x"], ["a"], pooled_shape=[1, 1])] * 2
    nodes += [helper.make_node("Neg", ["x"], ["b"]), helper.make_node("ImageDecoder", ["x"], ["y"])]
    found = run("inspect", saved(tmp_path / "m.onnx", nodes))
    assert found.exit_code == 1
    assert re.search(r"MaxRoiPool +2 +no: ONNX has no reference for it", found.output)
    assert re.search(r"Neg +1 +yes", found.output)
    assert "it is not read: m.onnx: 2 operators are not supported" in found.output
    assert "  input x: float (n, 4)\n" in found.output


def test_optimize(path: Path) -> None:
    found = run("optimize", path, "--at", "n=4", "--input", "rate=3")
    assert found.exit_code == 0, found.output
    assert "at n=4" in found.output
    wrong = run("optimize", path, "--input", "rate")
    assert wrong.exit_code == 1 and "--input 'rate': name=number or name=spec is accepted" in wrong.output
    wrong = run("optimize", "file.py:f", "--input", "rate=3")
    assert wrong.exit_code == 1 and "file.py:f is no ONNX model; --spec says what arguments of a" in wrong.output


def test_commands_that_ask_about_a_program_read_models(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    found = run("why-not", "matmul_vector_associates", path)
    assert found.exit_code == 0 and "the program has no `matmul`" in found.output
    found = run("view", path, "--value", "multiply")
    assert found.exit_code == 0 and found.output.startswith("main: around multiply: ")
    for command in ("ablate", "pareto"):
        assert "OnnxError: from_onnx: cannot read none.onnx" in run(command, "none.onnx").output


def small_layer(path: Path) -> Path:
    held = [onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32), "w")]
    x = helper.make_tensor_value_info("x", FLOAT, ("n", 16))
    result = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [result], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), str(path))
    return path


def test_quantize(tmp_path: Path) -> None:
    model, data, saved_to = small_layer(tmp_path / "m.onnx"), tmp_path / "x.npz", tmp_path / "m.rxe"
    x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    np.savez(data, x=x)
    common = ("quantize", model, "--data", data, "--scheme", "int8", "--target", "cpu")
    found = run(*common, "--activations", "static", "--save", saved_to, "--at", "n=5")
    assert found.exit_code == 0, found.output
    assert "int8 weights, a scale per channel; int8 activations, static" in found.output and "matmul" in found.output
    wanted = rx.quantize(rx.from_onnx(model), [x], activations="static", target="cpu")
    np.testing.assert_allclose(rx.load(saved_to)(x), wanted(x), rtol=1e-4, atol=1e-4)
    np.save(tmp_path / "x.npy", x)
    assert "w " in run("quantize", model, "--data", tmp_path / "x.npy", "--scheme", "fp8", "--target", "cpu").output


def test_quantize_says_what_is_wrong(tmp_path: Path) -> None:
    model, data = small_layer(tmp_path / "m.onnx"), tmp_path / "x.npz"
    np.savez(data, z=np.zeros((5, 16), np.float32))
    np.save(tmp_path / "x.npy", np.zeros((5, 16), np.float32))
    cases = {
        ("--data", data): "has no array x; it has z accepted: an array for each of x",
        ("--data", tmp_path / "none.npz"): "is not read: ",
        ("--data", tmp_path / "none.py:calls"): "no file ",
        ("--data", data, "--at", "n=4"): "--at: --save, for which the result is optimized, is needed with it",
        ("--data", tmp_path / "x.npy", "--scheme", "int3"): "scheme='int3'",
    }
    for args, text in cases.items():
        found = run("quantize", model, *args)
        assert found.exit_code == 1 and text in " ".join(found.output.split()), found.output
