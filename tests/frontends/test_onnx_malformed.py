"""Malformed and hostile ONNX models: an OnnxError that names the node, soon, and nothing read from elsewhere."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import FLOAT, ints, model, node, results

import relax_eg as rx
from relax_eg.errors import OnnxError

SOON = 5.0  # seconds in which any model of a few nodes is read or refused


def refused(proto: Any, said: str) -> None:
    begun = time.process_time()
    with pytest.raises(OnnxError, match=said):
        rx.from_onnx(proto)
    assert time.process_time() - begun < SOON


# --- initializers and attributes ---


def stored(kind: int = FLOAT, shape: tuple[int, ...] = (3,), raw: bytes | None = None) -> Any:
    """An initializer `w` that holds one float."""
    tensor = TensorProto()
    tensor.name, tensor.data_type = "w", kind
    tensor.dims.extend(shape)
    if raw is None:
        tensor.float_data.append(1)
    else:
        tensor.raw_data = raw
    return tensor


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (stored(), r"g: initializer `w`: no float32 of shape \(3\) .*\n  accepted: as many numbers as the shape has"),
        (stored(raw=b"abc"), r"g: initializer `w`: no float32 of shape \(3\)"),
        (stored(99), "g: initializer `w`: elements of type number 99\n  accepted: bool, int4"),
        (stored(TensorProto.STRING), "g: initializer `w`: elements of type STRING"),
        (stored(0), "g: initializer `w`: elements of type UNDEFINED"),
        (stored(shape=(-1,)), r"g: initializer `w`: sizes \[-1\]"),
        (stored(shape=(2**40,)), r"g: initializer `w`: no float32 of shape \(1099511627776\)"),
    ],
)
def test_initializers_that_are_none(tensor: Any, said: str) -> None:
    proto = model([node("Add", "x w")], {"x": ([3], FLOAT)})
    proto.graph.initializer.append(tensor)
    refused(proto, said)


MALFORMED = [
    ([node("Cast", "x", to=99)], "elements of type number 99"),
    ([node("Cast", "x")], "Required attribute 'to' is missing"),
    ([node("Cast", "x", to="a")], "Mismatched attribute type"),
    ([node("Softmax", "x", foo=7)], "Unrecognized attribute: foo"),
    ([node("Relu", "x x")], "has input size 2 not in range"),
    ([node("Sum", "")], "has input size 0 not in range"),
    ([node("Range", "k0 k5 k0")], "a step of 0"),
    ([node("Constant", "", value_int=1, value_float=2.0)], "2 attributes"),
    ([node("Constant", "", value_string="a")], "value_string"),
    ([node("Add", "x k5")], "one dtype is needed"),
    ([node("Reshape", "x v")], "sizes -8|sizes 8 and -8 differ"),
    ([node("Reshape", "x f")], "the shape, float32\n  accepted: whole numbers"),
    ([node("Slice", "x v k5")], "2 starts and 1 ends"),
    ([node("Tile", "x k5")], "1 repeats for rank 2"),
    ([node("MaxPool", "x", kernel_shape=[2, 2])], r"kernel_shape=\[2, 2\] for 0 axes of space"),
    ([node("DepthToSpace", "x", blocksize=0)], "blocksize=0"),
    ([node("Transpose", "x", perm=[0, 0])], "axes must name each of 0 to 1 once"),
    ([node("Expand", "x v")], "sizes 2 and -2 differ"),
    ([node("Relu", "x", "x")], "`x` is given twice"),
    ([node("Split", "x", "y", num_outputs=10**9)], "num_outputs=1000000000 with 1 outputs"),
    ([node("If", "x", then_branch=helper.make_graph([], "t", [], []))], "Required attribute 'else_branch' is missing"),
]


@pytest.mark.parametrize("case", MALFORMED, ids=lambda c: f"{c[0][0].op_type}-{c[1][:12]}")
def test_malformed_nodes_are_named(case: Any) -> None:
    nodes, said = case
    weights = {"k0": np.array(0), "k5": ints(5), "v": ints(-2, 4), "f": np.array([2, 4], np.float32)}
    refused(
        model(nodes, {"x": ([2, 4], FLOAT)}, weights=weights, opset=18), rf"^g: node 0 \(\w+, opset 18\).*(?:{said})"
    )


def test_names_are_given_once_and_operators_are_onnx_own() -> None:
    inputs = {"x": ([2], FLOAT)}
    refused(model([node("Relu", "x"), node("Abs", "x")], inputs), r"node 1 \(Abs, opset 17\): `y` is given twice")
    twice = model([node("Add", "x w")], inputs, weights={"w": np.ones(2, np.float32)})
    twice.graph.initializer.append(twice.graph.initializer[0])
    refused(twice, "g: `w` is given twice")
    own = model([node("Relu", "x")], inputs)
    own.functions.append(helper.make_function("", "Relu", ["x"], ["y"], [node("Abs", "x")], own.opset_import))
    refused(own, r"node 0 \(Relu, opset 17\) is a function of the model's own")
    own.functions[0].name = own.functions[0].node[0].op_type = own.graph.node[0].op_type = "Again"
    refused(own, "functions inside each other without end")
    for opset in (-5, 0, 99):
        refused(model([node("Relu", "x")], inputs, opset=opset), rf"\(Relu, opset {opset}\) is not supported\n  .*7 to")
    rx.from_onnx(model([node("Add", "x x")], inputs, opset=6))  # ONNX converts it to opset 7
    rx.from_onnx(model([node("Relu", "x")], inputs, opset=6))  # its definition is the same in opset 7
    image, slope = {"x": ([1, 4, 4], FLOAT)}, np.ones(4, np.float32)
    computed = [node("Abs", "c", "s"), node("PRelu", "x s")]  # slopes of channels, which ONNX leaves to the last axis
    refused(model(computed, image, weights={"c": slope}, opset=6), r"opset 6\) is not supported\n  .*7 to")
    shared = [node("PRelu", "x c", "z"), node("Add", "z c")]
    refused(model(shared, image, weights={"c": slope}, opset=6), r"opset 6\) is not supported\n  .*7 to")


def test_values_that_nothing_gives_in_time() -> None:
    inputs = {"x": ([2, 4], FLOAT)}
    late = r"node 0 \(Add, opset 17\): `b` is given by node 1 `late`, which is not before it\n  accepted: .* no cycles"
    cycle = [node("Add", "x b", "a"), node("Relu", "a", "b", name="late"), node("Relu", "b")]
    refused(model(cycle, inputs), late)
    refused(model([node("Add", "x y")], inputs), "`y` is given by node 0, which is not before it")
    refused(model([node("Add", "x q")], inputs), r"node 0 \(Add, opset 17\): nothing gives `q`")


def test_dtypes_that_contradict() -> None:
    inputs = {"x": ([2, 4], FLOAT)}
    proto = model([node("Relu", "x", "h"), node("Relu", "h")], inputs)
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.INT64, [2, 4]))
    refused(proto, "g: `h` is float32, and declared int64\n  accepted: the dtype that its node gives")
    proto = model([node("Relu", "x")], inputs)
    proto.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.INT64, [2, 4]))
    refused(proto, "g: output `y` is float32, and declared int64")
    refused(model([node("Add", "x q")], {**inputs, "q": ([2, 4], TensorProto.INT64)}), "one dtype is needed")


def test_operators_of_unknown_domains_are_listed_once() -> None:
    nodes = [("Foo", "x", "a"), ("Bar", "a", "b"), ("Foo", "b", "y")]
    made = [helper.make_node(kind, [x], [y], domain="my.own") for kind, x, y in nodes]
    said = r"g: 2 operators are not supported\n +my\.own\.Foo: 2 nodes, the first is node 0 \(my\.own\.Foo, opset 0\)"
    refused(model(made, {"x": ([2], FLOAT)}), rf"{said}\n +my\.own\.Bar: 1 node, node 1 \(my\.own\.Bar, opset 0\)\n")


def test_mutated_models_are_read_or_refused() -> None:
    nodes = [node("Shape", "x", "s"), node("Gather", "s i", "n"), node("Concat", "n m", "t", axis=0),
             node("Reshape", "x t", "r"), node("Softmax", "r", axis=-1)]  # fmt: skip
    proto = model(nodes, {"x": (["n", 4], FLOAT)}, weights={"i": ints(0), "m": ints(2, 2)})
    data, drawn = proto.SerializeToString(), random.Random(5)
    read = 0
    for _ in range(300):
        mutated = bytearray(data)
        for _ in range(drawn.randint(1, 3)):
            mutated[drawn.randrange(len(data))] = drawn.randrange(256)
        try:
            rx.from_onnx(bytes(mutated))
            read += 1
        except OnnxError:
            pass
    assert 0 < read < 300


# --- endless work ---

LONG = numpy_helper.from_array(np.zeros(60000, np.int64), "long")


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Range", "k0 k2e9 k1")],
        [node("Range", "f0 f2e9 f1")],
        [node("Expand", "k1 huge")],
        [node("Tile", "v1 k40")],
        [node("ConstantOfShape", "huge")],
        [node("OneHot", "v1 k40 two")],
        [node("Pad", "x pads")],
        [node("Reshape", "long row", "a"), node("Gather", "a long")],
        [node("Reshape", "long column", "a"), node("Add", "a long")],
        [node("Reshape", "long column", "a"), node("Equal", "long long", "c"), node("Where", "c a long")],
        [node("Concat", " ".join(["long"] * 3000), axis=0)],
    ],
    ids=lambda nodes: nodes[-1].op_type,
)
def test_what_is_large_is_left_to_the_program(nodes: Any) -> None:
    weights = {
        "k0": np.array(0), "k1": np.array(1), "k2e9": np.array(2 * 10**9), "f0": np.float32(0), "f1": np.float32(1),
        "f2e9": np.float32(2e9), "huge": ints(2**31, 2**31), "k40": ints(2**40), "v1": ints(1), "two": ints(0, 1),
        "pads": ints(0, 0, 2**40, 2**40), "row": ints(1, -1), "column": ints(-1, 1),
    }  # fmt: skip
    proto = model(nodes, {"x": ([2, 4], FLOAT)}, weights=weights)
    proto.graph.initializer.append(LONG)
    begun = time.process_time()
    rx.from_onnx(proto)
    assert time.process_time() - begun < SOON


def test_what_is_too_large_names_the_bound() -> None:
    inputs = {"x": ([2, 4], FLOAT)}
    huge = {
        "p": ints(0, 0, 0, 2**40),
        "s": ints(2, 2**40),
        "a": np.array(-(2**62)),
        "b": np.array(2**62),
        "c": np.array(1),
    }
    refused(model([node("Pad", "x p", mode="edge")], inputs, weights=huge), "accepted: up to 65536 elements")
    refused(model([node("Resize", "x - - s")], inputs, weights=huge), "accepted: up to 65536")
    wide = {"a": np.array(-(2**62) - 9), "b": np.array(2**62), "c": np.array(1)}
    refused(model([node("Range", "a b c")], inputs, weights=wide), r"accepted: fewer than 2\*\*63")


@pytest.mark.parametrize("steps", ["Mul Add", "Div Add"])
def test_sizes_that_grow_with_every_node(steps: str) -> None:
    first, second = steps.split()
    nodes = [node("Shape", "x", "s0")]
    for i in range(60):
        nodes += [node(first, f"s{i} {'three' if first == 'Div' else f's{i}'}", f"m{i}")]
        nodes += [node(second, f"m{i} s{i}", f"s{i + 1}")]
    nodes.append(node("Reshape", "x s60"))
    proto = model(nodes, {"x": (["n", "m"], FLOAT)}, weights={"three": ints(3)})
    refused(
        proto, r"g: node \d+ \(\w+, opset 17\): a size of more than 200 terms\n  accepted: sizes of up to 200 terms"
    )


def test_numbers_that_grow_with_every_node() -> None:
    nodes = [node("Shape", "x", "s0")]
    nodes += [node("Mul", f"s{i} c", f"s{i + 1}") for i in range(80)]
    nodes.append(node("Reshape", "x s80"))
    proto = model(nodes, {"x": (["n", "m"], FLOAT)}, weights={"c": ints(3)})
    refused(proto, r"node \d+ \(Mul, opset 17\): a size with a number beyond 64 bits")


def test_thousands_of_nodes_in_a_row() -> None:
    nodes = [node("Relu", f"x{i}", f"x{i + 1}") for i in range(3000)]
    module = rx.from_onnx(model(nodes, {"x0": (["n"], FLOAT)}, ["x3000"]))
    assert len(module.main.expressions()) > 2


# --- data in other files ---


def test_data_of_other_files_is_read_of_paths_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.arange(64, dtype=np.float32)
    proto = model([node("Add", "x w")], {"x": ([64], FLOAT)}, weights={"w": w})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (found,) = results(rx.from_onnx(tmp_path / "m.onnx"), w)
    np.testing.assert_array_equal(found, w + w)
    whole = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(whole[:5])
    refused(
        tmp_path / "m.onnx", r"data of .*m\.onnx cannot be read \(.*\)\n  accepted: the files of its data beside it"
    )
    (tmp_path / "w.bin").unlink()
    missing = r"data of .*m\.onnx cannot be read \(there is no w\.bin, which holds `w`\)\n  accepted: the files of its"
    refused(tmp_path / "m.onnx", missing)
    (tmp_path / "w.bin").write_bytes(whole)
    monkeypatch.chdir(tmp_path)  # where a reader of bytes would look
    outside = onnx.load("m.onnx", load_external_data=False)
    said = "initializer `w`: its data is in another file, which bytes and protos do not name\n  accepted: a path to the"
    refused(outside, said)
    refused((tmp_path / "m.onnx").read_bytes(), said)
    held = outside.graph.initializer[0]
    constant = helper.make_node("Constant", [], ["w"], value=held)
    named = model([constant, node("Add", "x w")], {"x": ([64], FLOAT)})
    refused(named, r"node 0 \(Constant, opset 17\): its data is in another file")


def test_only_binary_files_are_read(tmp_path: Path) -> None:
    nested = tmp_path / "m.onnxtxt"  # ONNX's reader of this recurses until the process ends
    body = "y = Relu(x)"
    for _ in range(3000):
        body = f"y = If <then_branch = g (float[N] x) => (float[N] y) {{ {body} }}> (c)"
    nested.write_text(f'<ir_version: 7, opset_import: ["" : 10]>\nagraph (float[N] x) => (float[N] y) {{ {body} }}')
    with pytest.raises(OnnxError, match=r"m\.onnxtxt is no ONNX model"):
        rx.from_onnx(nested)
