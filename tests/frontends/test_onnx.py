"""ONNX models: what modules of them compute is what ONNX's own reference computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import FLOAT, INT64, agrees, ints, model, node, results

import relax_eg as rx
from benchmarks.onnx import spoken, written
from relax_eg.backend.lowering.lower import run_function
from relax_eg.errors import OnnxError
from relax_eg.ir.annotations import Tensor
from relax_eg.ops.interpret import evaluate

RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X = floats(2, 3, 8)
IMAGE = floats(2, 4, 9, 10)

# fmt: off
SINGLE = [
    *[(node(k, "x"), X, {}) for k in (
        "Abs Atan Ceil Cos Cosh Erf Exp Floor Identity Neg Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus "
        "Softsign Tan Tanh HardSwish Elu Selu Celu LeakyRelu HardSigmoid Softmax LogSoftmax Mish Shape Size Flatten"
    ).split()],
    *[(node(k, "x"), np.abs(X), {}) for k in "Log Sqrt".split()],
    *[(node(k, "x w"), X, {"w": np.abs(floats(3, 1)) + 0.5}) for k in
      "Add Sub Mul Div Pow Max Min Sum Mean PRelu Less Greater Equal GreaterOrEqual LessOrEqual".split()],
    (node("Gelu", "x"), X, {}), (node("Gelu", "x", approximate="tanh"), X, {}),
    (node("Clip", "x lo hi"), X, {"lo": np.float32(-0.5), "hi": np.float32(0.25)}),
    (node("Clip", "x - hi"), X, {"hi": np.float32(0.25)}),
    (node("Pow", "x w"), X, {"w": np.float32(2)}),
    (node("Where", "c x w"), X, {"c": np.array([True, False, True]).reshape(3, 1), "w": floats(8)}),
    (node("MatMul", "x w"), X, {"w": floats(8, 5)}),
    (node("Gemm", "x w b", transB=1, alpha=0.5, beta=2.0), X[0], {"w": floats(5, 8), "b": floats(5)}),
    (node("Reshape", "x s"), X, {"s": ints(0, -1, 2)}), (node("Transpose", "x", perm=[2, 0, 1]), X, {}),
    (node("Transpose", "x"), X, {}), (node("Flatten", "x", axis=2), X, {}), (node("Flatten", "x", axis=0), X, {}),
    (node("Unsqueeze", "x a"), X, {"a": ints(0, -1)}), (node("Squeeze", "x a"), X[:1], {"a": ints(0)}),
    (node("Expand", "x s"), X[:, :1], {"s": ints(4, 1, 3, 1)}),
    (node("Concat", "x w", axis=-1), X, {"w": floats(2, 3, 2)}),
    (node("Split", "x s", "y z", axis=2), X, {"s": ints(3, 5)}), (node("Split", "x", "y z", axis=-1), X, {}),
    (node("Slice", "x s e a t"), X, {"s": ints(1, -5), "e": ints(2**40, -1), "a": ints(1, 2), "t": ints(1, 2)}),
    (node("Slice", "x s e a t"), X, {"s": ints(-1), "e": ints(-(2**60)), "a": ints(2), "t": ints(-1)}),
    (node("Gather", "x i", axis=2), X, {"i": ints(0, -1, 3)}), (node("Gather", "x i", axis=1), X, {"i": np.array(-2)}),
    (node("GatherElements", "x i", axis=1), X, {"i": RNG.integers(-3, 3, (2, 2, 8))}),
    (node("Tile", "x r"), X, {"r": ints(1, 2, 3)}),
    (node("Pad", "x p v"), X, {"p": ints(0, 1, 2, 0, 0, 1), "v": np.float32(7)}),
    (node("ReduceSum", "x a", keepdims=0), X, {"a": ints(-1)}), (node("ReduceMean", "x", axes=[1, 2]), X, {}),
    *[(node(k, "x", axes=[1], keepdims=0), X, {}) for k in
      "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp".split()],
    (node("ReduceSum", "x"), X, {}), (node("ArgMax", "x", axis=1, keepdims=0), X, {}),
    (node("ArgMin", "x", axis=-1), X, {}),
    (node("TopK", "x k", "y z", axis=-1), X, {"k": ints(3)}), (node("CumSum", "x a", reverse=1), X, {"a": np.array(1)}),
    (node("Trilu", "x k", upper=0), X, {"k": np.array(1)}), (node("Cast", "x", to=INT64), X * 5, {}),
    (node("Cast", "x", to=TensorProto.BOOL), np.round(X), {}), (node("IsNaN", "x"), X, {}),
    (node("LayerNormalization", "x s b", axis=-1), X, {"s": floats(8), "b": floats(8)}),
    (node("Conv", "x w b", pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]), IMAGE,
     {"w": floats(6, 4, 3, 2), "b": floats(6)}),
    (node("Conv", "x w", group=2, auto_pad="SAME_UPPER", strides=[2, 2]), IMAGE, {"w": floats(6, 2, 3, 3)}),
    (node("ConvTranspose", "x w b", strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 0]), IMAGE,
     {"w": floats(4, 3, 3, 2), "b": floats(3)}),
    (node("MaxPool", "x", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0]), IMAGE, {}),
    (node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), IMAGE, {}),
    (node("AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), IMAGE, {}),
    (node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), IMAGE, {}),
    (node("GlobalAveragePool", "x"), IMAGE, {}), (node("GlobalMaxPool", "x"), IMAGE, {}),
    (node("BatchNormalization", "x s b m v"), IMAGE,
     {"s": floats(4), "b": floats(4), "m": floats(4), "v": np.abs(floats(4)) + 0.1}),
    (node("InstanceNormalization", "x s b"), IMAGE, {"s": floats(4), "b": floats(4)}),
    (node("LRN", "x", size=3), floats(4, 4, 3, 3), {}), (node("DepthToSpace", "x", blocksize=2), IMAGE, {}),
    (node("DepthToSpace", "x", blocksize=2, mode="CRD"), IMAGE, {}),
    (node("Resize", "x - s", mode="nearest"), IMAGE, {"s": np.array([1, 1, 2, 3], np.float32)}),
]  # fmt: skip


@pytest.mark.parametrize("case", SINGLE, ids=lambda c: c[0].op_type)
def test_one_node(case: Any) -> None:
    made, x, weights = case
    opset = 20 if made.op_type in ("Gelu", "Mish") else 17
    inputs = {"x": (x.shape, helper.np_dtype_to_tensor_dtype(x.dtype))}
    agrees(model([made], inputs, [o for o in made.output], weights, opset), x)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(-3, 2**60, 1), (0, -3, 1), (3, 2**60, 1), (1, 3, 1), (1, -1, 2), (3, 5, 2), (5, 2, 1), (-(2**60), 3, 2)],
)
def test_a_slice_of_symbolic_length(start: int, end: int, step: int) -> None:
    """What is out of range at some lengths: the nearest place inside, exactly and at capacity."""
    known = {"s": ints(start), "e": ints(end), "a": ints(0), "t": ints(step)}
    sliced = node("Slice", "x s e a t", "y")
    summed = node("ReduceSum", "y a", "z", keepdims=0)
    made = model([sliced, summed], {"x": (("n", 2), FLOAT)}, ["y", "z"], known)
    module = rx.from_onnx(made)
    at_capacity = rx.optimize(module, dynamic="capacity")
    for n in (2, 3, 8, 1, 5, 4):
        x = np.arange(2 * n, dtype=np.float32).reshape(n, 2) + 1
        wanted = ReferenceEvaluator(made).run(None, {"x": x})
        for way in (at_capacity(x), run_function(module, module.main, [x]), evaluate(module, [x])):
            for have, want in zip(way, wanted, strict=True):
                np.testing.assert_array_equal(np.asarray(have), want, f"{n}", strict=True)
    assert not any(row.exact for row in at_capacity.statistics().sizes)


def test_groups_of_a_transposed_convolution() -> None:
    w = floats(4, 3, 2, 2)
    grouped = rx.from_onnx(
        model([node("ConvTranspose", "x w", group=2, strides=[2, 2])], {"x": (IMAGE.shape, FLOAT)}, weights={"w": w})
    )
    parts = [node("Split", "x", "a b", axis=1)]
    parts += [node("ConvTranspose", f"{k} w{k}", f"y{k}", strides=[2, 2]) for k in "ab"]
    parts.append(node("Concat", "ya yb", axis=1))
    apart = model(parts, {"x": (IMAGE.shape, FLOAT)}, weights={"wa": w[:2], "wb": w[2:]})
    (wanted,) = ReferenceEvaluator(apart).run(None, {"x": IMAGE})
    np.testing.assert_allclose(run_function(grouped, grouped.main, [IMAGE, w]), wanted, rtol=2e-5, atol=1e-5)


def test_mlp_is_optimized_with_its_weights() -> None:
    nodes = [node("Gemm", "x w1 b1", "h"), node("Relu", "h", "r"), node("MatMul", "r w2", "z"), node("MatMul", "z w3")]
    weights = {"w1": floats(8, 16), "b1": floats(16), "w2": floats(16, 32), "w3": floats(32, 4)}
    proto = model(nodes, {"x": (["batch", 8], FLOAT)}, weights=weights)
    module = agrees(proto, floats(5, 8))
    assert list(module.weights) == ["w1", "b1", "w2", "w3"]
    assert module.main.params[0].annotation == Tensor("batch 8")
    best = rx.optimize(module, weights=tuple(module.weights), at={"batch": 64})
    assert not best.report.kept_as_written  # w2 @ w3 once
    x = floats(3, 8)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(best.prepare(**module.weights)(x), wanted, rtol=1e-4, atol=1e-4)
    inside = rx.from_onnx(proto.SerializeToString(), constants=True)
    assert len(inside.main.params) == 1 and not inside.weights
    np.testing.assert_allclose(rx.optimize(inside)(x), wanted, rtol=1e-4, atol=1e-4)


def test_a_residual_block_of_convolutions() -> None:
    nodes = [
        node("Conv", "x w1", "a", pads=[1, 1, 1, 1]), node("BatchNormalization", "a s b m v", "n"),
        node("Relu", "n", "r"),
        node("Conv", "r w2", "c", pads=[1, 1, 1, 1]), node("Add", "c x", "t"), node("GlobalAveragePool", "t", "p"),
        node("Flatten", "p", "f"), node("Gemm", "f wf bf", transB=1),
    ]  # fmt: skip
    weights = {
        "w1": floats(4, 4, 3, 3), "w2": floats(4, 4, 3, 3), "s": floats(4), "b": floats(4), "m": floats(4),
        "v": np.abs(floats(4)) + 0.1, "wf": floats(3, 4), "bf": floats(3),
    }  # fmt: skip
    agrees(model(nodes, {"x": (["n", 4, "h", "w"], FLOAT)}, weights=weights), IMAGE, rtol=1e-3)


def attention_model():
    """Embedding, one attention head group with the shape subgraphs that exporters write, and a mask."""
    c = {"zero": np.array(0), "one": np.array(1), "ax0": ints(0), "two": ints(2), "four": ints(4), "minus": ints(-1)}
    nodes = [
        node("Gather", "table ids", "e"),
        node("Shape", "ids", "sh"), node("Gather", "sh zero", "b"), node("Gather", "sh one", "s"),
        node("Unsqueeze", "b ax0", "b1"), node("Unsqueeze", "s ax0", "s1"),
        node("Slice", "positions ax0 s1 ax1", "p"), node("Add", "e p", "x"),
        node("LayerNormalization", "x g be", "n", axis=-1),
        *[n for k in "qkv" for n in (
            node("MatMul", f"n w{k}", f"{k}0"), node("Concat", "b1 s1 two four", f"{k}s", axis=0),
            node("Reshape", f"{k}0 {k}s", f"{k}1"),
            node("Transpose", f"{k}1", f"{k}2", perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3]),
        )],
        node("MatMul", "q2 k2", "l0"), node("Div", "l0 root", "l1"),
        node("Unsqueeze", "mask ax12", "m0"), node("Cast", "m0", "m1", to=FLOAT), node("Sub", "fone m1", "m2"),
        node("Mul", "m2 big", "m3"), node("Add", "l1 m3", "l2"), node("Softmax", "l2", "a", axis=-1),
        node("MatMul", "a v2", "o0"), node("Transpose", "o0", "o1", perm=[0, 2, 1, 3]),
        node("Concat", "b1 s1 minus", "os", axis=0), node("Reshape", "o1 os", "o2"), node("MatMul", "o2 wo", "o3"),
        node("Add", "o3 x", "y"),
    ]  # fmt: skip
    weights = c | {
        "table": floats(11, 8), "positions": floats(1, 16, 8)[0], "ax1": ints(0), "ax12": ints(1, 2), "g": floats(8),
        "be": floats(8), "root": np.float32(2), "fone": np.float32(1), "big": np.float32(-1e9),
        **{f"w{k}": floats(8, 8) for k in "qkvo"},
    }  # fmt: skip
    inputs = {"ids": (["batch", "seq"], INT64), "mask": (["batch", "seq"], INT64)}
    return model(nodes, inputs, weights=weights)


def test_a_transformer_block_keeps_its_sizes() -> None:
    ids = RNG.integers(0, 11, (3, 5))
    mask = (RNG.random((3, 5)) > 0.3).astype(np.int64)
    mask[:, 0] = 1
    module = agrees(attention_model(), ids, mask, rtol=1e-4)
    assert str(module.main.annotation) == 'R.Tensor(("batch", "seq", 8), dtype="float32")'
    # Nothing of the shape subgraphs is left.
    assert {e.op for e in module.main.expressions()} & {"dim_value", "concat"} == set()


def test_shapes_of_symbolic_sizes_are_known() -> None:
    nodes = [
        node("Shape", "x", "s"), node("ReduceProd", "s", "p", keepdims=0), node("Unsqueeze", "p z", "p1"),
        node("Gather", "s zero", "n"), node("Unsqueeze", "n z", "n1"), node("Div", "p1 n1", "rest"),
        node("Concat", "n1 rest", "t", axis=0), node("Equal", "t minus", "e"), node("Where", "e zero t", "u"),
        node("Reshape", "x u", "y"),
    ]  # fmt: skip
    weights = {"z": ints(0), "zero": np.array(0), "minus": ints(-1)}
    module = agrees(model(nodes, {"x": (["n", 3, "m"], FLOAT)}, weights=weights), floats(2, 3, 4))
    assert str(module.main.annotation) == 'R.Tensor(("n", "3*m"), dtype="float32")'
    assert {e.op for e in module.main.expressions()} == {"var", "reshape"}


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ([node("Neg", "n", "q"), node("Mod", "q four", "y")], "(-n)%4"),
        ([node("Neg", "n", "q"), node("Div", "q four", "p"), node("Neg", "p", "y")], "n//4"),  # Div rounds to 0
        ([node("Sub", "n four", "q"), node("Div", "q four", "p"), node("Add", "p four", "y")], "n//4 + 3"),
        ([node("ReduceSum", "s", "y", keepdims=1)], "m + n"),
        ([node("Slice", "s minus far zero minus", "t"), node("Gather", "t zero", "y")], "m"),
    ],
)
def test_sizes_are_computed_as_their_nodes_say(nodes: list[Any], size: str) -> None:
    weights = {"zero": ints(0), "one": ints(1), "four": ints(4), "minus": ints(-1), "far": ints(-1000)}
    first = [node("Shape", "x", "s"), node("Gather", "s zero", "n")]
    proto = model([*first, *nodes, node("ConstantOfShape", "y", "z")], {"x": (["n", "m"], FLOAT)}, ["z"], weights)
    assert [str(d) for d in rx.from_onnx(proto).main.result.shape] == [size]
    undecided = [node("Less", "n four", "c"), node("Where", "c n four", "y"), node("ConstantOfShape", "y", "z")]
    with pytest.raises(OnnxError, match="the shape computed when the model runs"):
        rx.from_onnx(model([*first, *undecided], {"x": (["n", "m"], FLOAT)}, ["z"], weights))
    out = [node("Gather", "s four", "y"), node("ConstantOfShape", "y", "z")]
    with pytest.raises(OnnxError, match=r"indices \[4\] along 2 elements\n  accepted: indices from -2 to 1"):
        rx.from_onnx(model([*first, *out], {"x": (["n", "m"], FLOAT)}, ["z"], weights))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_known_numbers_are_computed_as_onnx_says(dtype: type) -> None:
    a, b = (np.array(v, dtype) for v in ([-7, -1, 0, 5, 9, -100], [3, -3, 7, -2, 4, 9]))
    weights = {"a": a, "b": b, "m": a.reshape(2, 3), "c": a > 0, "d": b > 0, "i": np.array([[-1, 0], [1, 2]]),
               "s": ints(5, -1), "e": ints(-100, -50), "x": ints(1, 0), "t": ints(-2, -1), "one": ints(1),
               "shape": ints(0, -1), "parts": ints(2, 4)}  # fmt: skip
    two = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    nodes = [node(k, "a b", k) for k in two] + [node(k, "c d", k) for k in ("And", "Or", "Xor")]
    nodes += [node("Not", "c", "not"), node("Neg", "a", "neg"), node("Where", "c a b", "where")]
    nodes += [
        node("Gather", "m i", "taken", axis=1),
        node("Slice", "m s e x t", "part"),
        node("Split", "a parts", "y z"),
    ]
    nodes += [node("Concat", "m m", "both", axis=-1), node("Transpose", "m", "turned", perm=[1, 0])]
    nodes += [
        node("Reshape", "m shape", "flat"),
        node("Unsqueeze", "m shape", "wide"),
        node("ReduceSum", "m one", "sum"),
    ]
    nodes += [node(k, "m", k, axes=[0]) for k in ("ReduceProd", "ReduceMax", "ReduceMin")]
    nodes += [node("Cast", "a", f"to{t}", to=t) for t in (FLOAT, TensorProto.BOOL, TensorProto.UINT8, INT64)]
    module = agrees(model(nodes, {}, [o for n in nodes for o in n.output], weights, opset=17))
    assert {e.op for e in module.main.expressions()} <= {"constant", "tuple", "var"}


def test_sizes_without_names_and_odd_names() -> None:
    proto = model([node("Relu", "in.put:0", "y")], {"in.put:0": (["?", "a.b", "a.b", None], FLOAT)})
    (x,) = rx.from_onnx(proto).main.params
    assert (
        x.attr("name") == "in_put_0"
        and str(x.annotation) == 'R.Tensor(("in_put_0_0", "a_b", "a_b", "in_put_0_3"), dtype="float32")'
    )


def test_files_bytes_and_what_is_none(tmp_path: Path) -> None:
    proto = model([node("Relu", "x")], {"x": (["n"], FLOAT)})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    texts = {str(rx.from_onnx(m)).replace("m.onnx:", "model:").replace("g:", "model:") for m in
             (str(tmp_path / "m.onnx"), tmp_path / "m.onnx", proto.SerializeToString(), proto)}  # fmt: skip
    assert len(texts) == 1
    for wrong, said in (
        (tmp_path / "none.onnx", "cannot read .*No such file"), (b"hello", "these bytes are no ONNX model"),
        (3, "got a int\n  accepted: a path to an ONNX file, its bytes, or an onnx.ModelProto"),
    ):  # fmt: skip
        with pytest.raises(OnnxError, match=said):
            rx.from_onnx(wrong)


def test_what_is_not_supported_says_so() -> None:
    inputs = {"x": ([2, 4], FLOAT)}
    cases = [
        ([node("Relu", "x", "h"), helper.make_node("Foo", ["h"], ["y"], name="foo", domain="my.ops")],
         r"g: node 1 `foo` \(my\.ops\.Foo, opset 1\) is not supported\n  accepted: Abs, "),
        ([node("MaxRoiPool", "x x")], r"g: node 0 \(MaxRoiPool, opset 17\) is not supported: ONNX has no reference"),
        ([node("Reshape", "x s"), ], r"node 0 \(Reshape, opset 17\): nothing gives `s`\n  accepted: inputs"),
        ([node("Cast", "x", "i", to=INT64), node("Reshape", "x i")], r"node 1 \(Reshape, opset 17\): the shape"),
        ([node("MatMul", "x x")], r"node 0 \(MatMul, opset 17\): matmul"),
        ([node("MaxRoiPool", "x x", "a"), node("MaxRoiPool", "x x", "b"),
          helper.make_node("Foo", ["x"], ["y"], domain="my.ops")],
         r"g: 2 operators are not supported\n    MaxRoiPool: 2 nodes, the first is node 0 \(MaxRoiPool, opset 17\): "
         r"ONNX has .*\n    my\.ops\.Foo: 1 node, node 2 \(my\.ops\.Foo, opset 1\)\n  accepted: Abs, "),
        ([node("Resize", "x - s", mode="linear")], r"node 0 \(Resize, opset 17\)"),
    ]  # fmt: skip
    for nodes, said in cases:
        proto = model(nodes, inputs)
        proto.opset_import.append(helper.make_opsetid("my.ops", 1))
        with pytest.raises(OnnxError, match=said):
            rx.from_onnx(proto)
    with pytest.raises(OnnxError, match=r"g has no input 'z'\n  accepted: x"):
        rx.from_onnx(model([node("Relu", "x")], inputs), inputs={"z": "2"})
    with pytest.raises(OnnxError, match=r"inputs\['x'\] = '2 5'; the model has '2 4'"):
        rx.from_onnx(model([node("Relu", "x")], inputs), inputs={"x": "2 5"})


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(OnnxError, match=r"accepted: the package `onnx`: pip install relax-eg\[onnx\]"):
        rx.from_onnx("m.onnx")


# A line of text, and the same line turned around.
LINES = np.concatenate([written("RELAXEG", 48, 192, 4), written("RELAXEG", 48, 192, 4)[:, :, ::-1, ::-1]])
REAL = [
    ("magika", "models/standard_v3_3/model.onnx", {}, RNG.integers(0, 256, (2, 2048)).astype(np.int32)),
    ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {}, LINES),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": "n 3 32*h 32*w"}, written("RELAX", 96, 160, 4)),
    ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": "n 3 48 8*w"}, written("RELAXEG", 48, 224)),
]


def test_a_stream_with_state_of_the_voice_detector() -> None:
    """The main file of `silero_vad`, where that is installed: branches for two rates, and branches in them."""
    from importlib.util import find_spec

    runtime = pytest.importorskip("onnxruntime")
    spec = find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("silero_vad is not installed")
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "silero_vad.onnx"
    session, sound = runtime.InferenceSession(str(path)), np.concatenate([spoken(8 * 512), floats(1, 8 * 512) / 100])
    for rate, kept, new in ((16000, 64, 512), (8000, 32, 256)):
        inputs = {"sr": rate, "input": f"b {kept + new}", "state": "2 b 128"}
        module = rx.from_onnx(path, inputs=inputs)
        run = jax.jit(lambda *xs, m=module: run_function(m, m.main, (*xs, *m.weights.values())))
        wanted_state = state = np.zeros((2, 2, 128), np.float32)
        for i in range(8):
            x = np.pad(sound, ((0, 0), (kept, 0)))[:, i * new : i * new + kept + new]
            wanted, wanted_state = session.run(None, {"input": x, "state": wanted_state, "sr": np.array(rate)})
            found, state = run(x, state)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(state, wanted_state, rtol=1e-3, atol=1e-4)
    # Without its rate, one branch is for other sizes.
    with pytest.raises(
        OnnxError, match=r"else_branch: .*LSTM.*\n.*; or what decides the If: inputs=\{'sr': its value\}"
    ):
        rx.from_onnx(path, inputs={"input": "1 576", "state": "2 1 128"})
    with pytest.raises(OnnxError, match=r"or what decides the If: specs in inputs that say the size input_1"):
        rx.from_onnx(path, inputs={"sr": 16000})


@pytest.mark.slow
@pytest.mark.parametrize("case", REAL, ids=lambda c: Path(c[1]).stem)
def test_models_with_real_weights(case: Any) -> None:
    """Where the packages that carry them are installed (with --no-deps) beside onnxruntime."""
    from importlib.util import find_spec

    runtime = pytest.importorskip("onnxruntime")
    package, file, inputs, x = case
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    path = Path(next(iter(spec.submodule_search_locations))) / file
    module = rx.from_onnx(path, inputs=inputs)
    found = jax.jit(lambda *xs: run_function(module, module.main, xs))(x, *module.weights.values())
    session = runtime.InferenceSession(str(path))
    (wanted,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_initializers_and_constants(linear: bool) -> None:
    places = np.array([1, 5]) if linear else np.array([[0, 1], [1, 2]])
    values = numpy_helper.from_array(np.array([1.5, 2], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places, "i"), [2, 3])
    nodes = [node("Constant", "", "k", sparse_value=sparse), node("Mul", "k two", "l"), node("Add", "x w", "z"),
             node("Add", "z l", "y")]  # fmt: skip
    proto = model(nodes, {"x": ([2, 3], FLOAT)}, weights={"two": np.float32(2)})
    proto.graph.sparse_initializer.append(sparse)
    x = floats(2, 3)
    (found,) = results(rx.from_onnx(proto), x)
    np.testing.assert_allclose(found, x + 3 * np.array([[0, 1.5, 0], [0, 0, 2]]), rtol=1e-6)
    sparse.indices.CopyFrom(numpy_helper.from_array(places + 5, "i"))
    proto.graph.sparse_initializer[0].CopyFrom(sparse)
    with pytest.raises(OnnxError, match=r"sparse `w`: .*\n  accepted: a place of its shape for each value"):
        rx.from_onnx(proto)


def test_sizes_that_a_model_needs_to_be_equal_are_named_by_inputs() -> None:
    proto = model([node("MatMul", "a b")], {"a": (["n", "k"], FLOAT), "b": (["l", "m"], FLOAT)})
    with pytest.raises(OnnxError, match=r"k and l cannot be shown equal\n  accepted: shapes that .* inputs="):
        rx.from_onnx(proto)
    module = rx.from_onnx(proto, inputs={"b": "k m"})
    assert str(module.main.annotation) == 'R.Tensor(("n", "m"), dtype="float32")'


RATIOS = [
    ([node("Div", "f two", "d"), node("Floor", "d", "e")], ["h//2", "w//2"]),
    ([node("Mul", "f third", "d")], ["h//3", "w//3"]),
    ([node("Div", "f four", "d"), node("Ceil", "d", "m"), node("Mul", "m four", "e")],
     ["4*ceildiv(h, 4)", "4*ceildiv(w, 4)"]),
    ([node("Sub", "f two", "d"), node("Div", "d four", "m"), node("Add", "m two", "e")],
     ["(h + 2)//4 + 1", "(w + 2)//4 + 1"]),
    ([node("Mul", "f two", "d"), node("Div", "d f", "m"), node("Mul", "m f", "e")], ["2*h", "2*w"]),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "sizes"), RATIOS)
def test_sizes_that_are_computed_in_floats(nodes: list[Any], sizes: list[str]) -> None:
    numbers = {"two": 2, "four": 4, "third": 1 / 3}
    weights = {n: np.full(2, v, np.float32) for n, v in numbers.items()}
    first = [node("Shape", "x", "s"), node("Cast", "s", "f", to=FLOAT)]
    last = [node("Cast", nodes[-1].output[0], "t", to=INT64), node("ConstantOfShape", "t", "y")]
    proto = model([*first, *nodes, *last], {"x": (["h", "w"], FLOAT)}, weights=weights)
    for shape in ((5, 6), (7, 12)):
        module = agrees(proto, floats(*shape))
    assert [str(d) for d in module.main.result.shape] == sizes


def test_ratios_of_sizes_are_numbers_of_the_program_too() -> None:
    nodes = [node("Shape", "x", "s"), node("Cast", "s", "f", to=FLOAT), node("Div", "f three", "r"),
             node("Sqrt", "r", "q"), node("Mul", "x q", "z"), node("Less", "r three", "l"),
             node("Cast", "l", "k", to=FLOAT), node("Add", "z k", "y")]  # fmt: skip
    agrees(model(nodes, {"x": (["h", 2], FLOAT)}, weights={"three": np.full(2, 3, np.float32)}), floats(7, 2))


def test_resize_to_whole_multiples_of_symbolic_sizes() -> None:
    nodes = [node("Shape", "x", "s"), node("Mul", "s by", "t"), node("Resize", "x - - t", mode="nearest")]
    proto = model(nodes, {"x": (["n", 2, "h", "w"], FLOAT)}, weights={"by": ints(1, 1, 2, 3)})
    module = agrees(proto, floats(1, 2, 3, 4))
    assert str(module.main.annotation) == 'R.Tensor(("n", 2, "2*h", "3*w"), dtype="float32")'
    other = model(nodes, {"x": (["n", 2, "h", "w"], FLOAT)}, weights={"by": ints(1, 1, 2, 0)})
    with pytest.raises(OnnxError, match=r"Resize.*\n  accepted: "):
        rx.from_onnx(other)
