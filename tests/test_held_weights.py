"""Models that hold their weights are called with their inputs alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import relax_eg as rx
from benchmarks.mutated_formats import artifact_file
from relax_eg.cli import app
from relax_eg.errors import ArtifactError, OnnxError, ShapeError

RNG = np.random.default_rng(5)


def model(path=None, outputs=("y", "top:0")):
    held = {"w": RNG.standard_normal((4, 8)), "v": RNG.standard_normal((8, 8))}
    nodes = [
        helper.make_node("MatMul", ["w", "v"], ["wv"]),
        helper.make_node("MatMul", ["x", "wv"], ["y"]),
        helper.make_node("Mul", ["rate", "rate"], ["square"]),
        helper.make_node("Cast", ["square"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["y", "f"], ["top:0"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4)),
         helper.make_tensor_value_info("rate", TensorProto.INT64, ())],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, ("n", 8)) for o in outputs],
        [numpy_helper.from_array(a.astype(np.float32), k) for k, a in held.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    if path is not None:
        onnx.save(made, str(path))
    return made, held


@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_a_model_is_called_with_its_inputs(tmp_path, execution) -> None:
    _, held = model(tmp_path / "m.onnx")
    best = rx.optimize(rx.from_onnx(tmp_path / "m.onnx"), at={"n": 3}, execution=execution)
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    found = best(x, np.int64(5))
    wanted = x @ (held["w"] @ held["v"]).astype(np.float32)
    assert type(found)._fields == ("y", "top_0")
    np.testing.assert_allclose(found.y, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.top_0, wanted + 25, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(best(rate=np.int64(5), x=x).y, found.y)
    assert best.check(x, np.int64(5)).passed
    whole = best(x, np.int64(5), *rx.from_onnx(tmp_path / "m.onnx").weights.values())
    np.testing.assert_allclose(whole.y, found.y, rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError):
        best(np.ones((3, 5), np.float32), np.int64(5))


def test_an_input_bound_to_a_value_is_no_parameter() -> None:
    proto, held = model()
    module = rx.from_onnx(proto, inputs={"rate": 3, "x": np.ones((2, 4), np.float32)})
    assert {str(p.attr("name")) for p in module.main.params} == {"x", *held}
    bound = rx.from_onnx(proto, inputs={"rate": 3})
    assert str(bound.main.params[0].annotation) == str(rx.Tensor("n 4"))
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(rx.optimize(bound)(x).top_0, rx.optimize(bound)(x).y + 9, rtol=1e-5)
    np.testing.assert_allclose(rx.optimize(module)().y, rx.optimize(bound)(x).y, rtol=1e-5)


def test_weights_that_are_not_prepared_are_held_too() -> None:
    proto, held = model()
    x, wanted = np.ones((3, 4), np.float32), (np.ones((3, 4)) @ held["w"] @ held["v"]).astype(np.float32)
    some = rx.optimize(rx.from_onnx(proto), weights=("v",), at={"n": 3})
    np.testing.assert_allclose(some(x, np.int64(1)).y, wanted, rtol=1e-4, atol=1e-4)
    proto.graph.node.append(helper.make_node("NonZero", ["y"], ["places"]))  # its size depends on values: in steps
    proto.graph.output.append(helper.make_empty_tensor_value_info("places"))
    found = rx.optimize(rx.from_onnx(proto))(x, np.int64(1))
    np.testing.assert_allclose(found.y, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.places, np.nonzero(wanted))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"rate": 1.5}, r"inputs\['rate'\] holds other numbers than int64s"),
        ({"rate": np.ones(3, np.int64)}, r"inputs\['rate'\] has shape \(3,\); the model has ''"),
        ({"x": np.ones((2, 5))}, r"inputs\['x'\] has shape \(2, 5\); the model has '2 4'"),
        ({"x": None}, r"input `x` is a tensor, and inputs\['x'\] = None\n  accepted: a spec, a number or an array"),
        ({"z": 1}, "has no input 'z'"),
    ],
)
def test_values_that_do_not_fit_are_refused(inputs, text) -> None:
    with pytest.raises(OnnxError, match=text):
        rx.from_onnx(model()[0], inputs=inputs)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A model with its weights as a file, an input and its result."""
    path = tmp_path_factory.mktemp("saved") / "m.rxe"
    proto, held = model()
    rx.optimize(rx.from_onnx(proto), at={"n": 3}).save(path)
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    return path, x, x @ (held["w"] @ held["v"]).astype(np.float32)


def test_another_process_runs_a_saved_model_with_its_inputs(saved, tmp_path) -> None:
    path, x, wanted = saved
    np.save(tmp_path / "x.npy", x)
    script = (
        "import numpy as np, relax_eg as rx\n"
        f"found = rx.load({str(path)!r})(np.load({str(tmp_path / 'x.npy')!r}), rate=np.int64(5))\n"
        f"np.savez({str(tmp_path / 'y.npz')!r}, **found._asdict())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent.parent)
    found = np.load(tmp_path / "y.npz")
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["top_0"], wanted + 25, rtol=1e-4, atol=1e-4)
    rx.load(path).save(tmp_path / "again.rxe")
    assert (tmp_path / "again.rxe").read_bytes() == path.read_bytes()
    told = CliRunner().invoke(app, ["info", str(path)]).output
    assert "weights: 384 B in 2 arrays" in told


def test_weights_in_a_file_that_was_changed(saved, tmp_path) -> None:
    data, path = saved[0].read_bytes(), tmp_path / "m.rxe"
    for changed, text in (
        (data[:-1], r"is cut off: \d+ of at least \d+ bytes"),
        (data[:-1] + bytes([data[-1] ^ 1]), "was changed after it was written: its checksum does not fit"),
        (data + b"x", "was changed after it was written"),
    ):
        path.write_bytes(changed)
        with pytest.raises(ArtifactError, match=text):
            rx.load(path)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            '["w","float32",[4,8]',
            '["w","float32",[4,8000000000]',
            r"'w' is float32 of shape \(4, 8000000000\); .* takes",
        ),
        (
            '["w","float32",[4,8]',
            '["w","float16",[4,8]',
            r"'w' is float16 of shape \(4, 8\); the program takes .*float32",
        ),
        (
            '["w","float32",[4,8]',
            '["q","float32",[4,8]',
            "holds an array 'q' of float32, which is no parameter, or twice",
        ),
        ('["w","float32",[4,8]', '["v","float32",[8,8]', "was changed after it was written: its checksum does not fit"),
        ('"outputs":["y","top_0"]', '"outputs":["y","import"]', "field names cannot be a keyword: 'import'"),
    ],
)
def test_what_a_file_says_of_weights_is_checked(saved, tmp_path, old, new, text) -> None:
    data, path = saved[0].read_bytes(), tmp_path / "m.rxe"
    start = data.index(b"\n") + 1
    length = int.from_bytes(data[start : start + 8], "big")
    packed, rest = data[start + 24 : start + 24 + length], data[start + 24 + length :]
    end = 8 + int.from_bytes(packed[:8], "big")
    said = packed[8:end].decode()
    assert old in said
    said = said.replace(old, new).encode()
    path.write_bytes(artifact_file(len(said).to_bytes(8, "big") + said + packed[end:], codes=[rest]))
    with pytest.raises(ArtifactError, match=text):
        rx.load(path)
