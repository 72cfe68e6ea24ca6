"""ONNX's recurrent nodes, control flow, functions and quantization beside onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import FLOAT, INT64, agrees, ints, model, node, results, runs_alike

import relax_eg as rx
from relax_eg.errors import OnnxError

RNG = np.random.default_rng(3)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 2


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def value_info(name: str, kind: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


RECURRENT = [
    *itertools.product(GATES, ("forward", "reverse", "bidirectional"), (False, True), ({},)),
    ("GRU", "bidirectional", True, {"linear_before_reset": 1}),
    ("LSTM", "bidirectional", False, {"input_forget": 1}),
    ("GRU", "forward", True, {"clip": 0.5}),
    ("RNN", "reverse", False, {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
]


@pytest.mark.parametrize(("kind", "direction", "lengths", "more"), RECURRENT)
def test_recurrent_nodes(kind: str, direction: str, lengths: bool, more: dict[str, Any]) -> None:
    count, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    weights = {
        "w": floats(count, gates * HIDDEN, INPUTS), "r": floats(count, gates * HIDDEN, HIDDEN),
        "b": floats(count, 2 * gates * HIDDEN), "h": floats(count, BATCH, HIDDEN),
    }  # fmt: skip
    names = "x w r b - h"
    if lengths:
        weights["n"], names = np.array([5, 2, 3], np.int32), "x w r b n h"
    if kind == "LSTM":
        weights |= {"c": floats(count, BATCH, HIDDEN), "p": floats(count, 3 * HIDDEN)}
        names += " c p"
    outputs = ["y", "last", "cell"][: 3 if kind == "LSTM" else 2]
    made = node(kind, names, " ".join(outputs), hidden_size=HIDDEN, direction=direction, **more)
    module = runs_alike(model([made], {"x": ((STEPS, BATCH, INPUTS), FLOAT)}, outputs, weights), floats(5, 3, 4))
    assert sum(e.op == "scan" for f in module.functions for e in f.expressions()) == count


def test_recurrent_nodes_of_symbolic_length_are_optimized() -> None:
    weights = {"w": floats(1, 4, 4), "r": floats(1, 4, 4)}
    made = model([node("RNN", "x w r", hidden_size=4)], {"x": (("steps", "batch", 4), FLOAT)}, weights=weights)
    module = rx.from_onnx(made)
    x = floats(6, 2, 4)
    agrees(made, x)
    found = rx.optimize(module)(x, *module.weights.values())
    state = np.zeros((2, 4), np.float32)
    for step in x:
        state = np.tanh(step @ weights["w"][0].T + state @ weights["r"][0].T)
    np.testing.assert_allclose(np.asarray(found)[-1, 0], state, rtol=1e-5, atol=1e-6)


def branches(*kinds: str) -> dict[str, Any]:
    """The two branches of an If: each applies an operator to `x` of the graph outside and to its own weight."""
    made = [
        helper.make_graph([node(k, "x own", "out")], k, [], [helper.make_empty_tensor_value_info("out")],
                          [numpy_helper.from_array(np.arange(3, dtype=np.float32), "own")])
        for k in kinds
    ]  # fmt: skip
    return {"then_branch": made[0], "else_branch": made[1]}


@pytest.mark.parametrize("condition", [True, False])
def test_if(condition: bool) -> None:
    x = floats(2, 3)
    made = [node("If", "c", **branches("Add", "Mul"))]
    inputs = {"x": (("n", 3), FLOAT), "c": ((), TensorProto.BOOL)}
    run = runs_alike(model(made, inputs), x, np.array(condition))
    assert len(run.functions) == 3
    known = runs_alike(model(made, {"x": (("n", 3), FLOAT)}, weights={"c": np.array(condition)}), x)
    assert len(known.functions) == 1


def test_a_branch_inside_a_branch_reads_what_both_have_outside() -> None:
    """What the inner branch gives itself is no value outside of the outer one."""
    inner = helper.make_graph([node("Add", "x h", "t"), node("Exp", "t", "z")], "inner", [],
                              [helper.make_empty_tensor_value_info("z")])  # fmt: skip
    outer = [
        helper.make_graph([node(kind, "x", "h"), node("If", "c", "y", then_branch=inner, else_branch=inner)], kind, [],
                          [helper.make_empty_tensor_value_info("y")])
        for kind in ("Neg", "Abs")
    ]  # fmt: skip
    made = model([node("If", "c", then_branch=outer[0], else_branch=outer[1])],
                 {"x": ((2, 3), FLOAT), "c": ((), TensorProto.BOOL)})  # fmt: skip
    runs_alike(made, floats(2, 3), np.array(False))


def test_branches_of_different_shapes_are_refused() -> None:
    made = branches("Add", "Mul")
    made["then_branch"].node[0].op_type = "MatMul"
    with pytest.raises(OnnxError, match=r"branches that give .* and .*\n  accepted: branches that give the same"):
        rx.from_onnx(model([node("If", "c", **made)], {"x": ((2, 3), FLOAT), "c": ((), TensorProto.BOOL)}))


def loop(limit: str | None, scans: bool = True, grows: bool = False) -> Any:
    """A model that adds the step number and a weight to a running sum, in a loop that ends where the sum is large."""
    end = node("Less", "m top", "go_on") if limit else node("Identity", "go", "go_on")
    body = [
        node("Cast", "i", "f", to=FLOAT), node("Add", "s f", "t"), node("Add", "t w", "u"),
        node("ReduceMax", "u", "m", keepdims=0), end,
    ]  # fmt: skip
    if grows:
        body.append(node("Concat", "u u", "v", axis=0))
    carried = "v" if grows else "u"
    outputs = ["go_on", carried, *(["u"] if scans else [])]
    kinds = [value_info("i", INT64, ()), value_info("go", TensorProto.BOOL, ()), value_info("s", FLOAT, None)]
    graph = helper.make_graph(body, "body", kinds, [helper.make_empty_tensor_value_info(o) for o in outputs])
    return node("Loop", "count go0 x", "last rows" if scans else "last", body=graph)


W = np.array([1, 0.5, 2], np.float32)


def test_a_loop_of_known_length_is_a_scan() -> None:
    known = {"count": np.array(4), "go0": np.array(True), "w": W}
    made = model([loop(None)], {"x": ((3,), FLOAT)}, ["last", "rows"], known)
    module = runs_alike(made, floats(3))
    assert [e.op for e in module.main.expressions() if e.op in ("scan", "while_loop")] == ["scan"]
    del known["w"]
    sized = model([loop(None)], {"x": (("n",), FLOAT), "w": (("n",), FLOAT)}, ["last", "rows"], known)
    runs_alike(sized, floats(4), floats(4))


def test_a_loop_that_changes_shapes_is_unrolled() -> None:
    known = {"count": np.array(3), "go0": np.array(True), "w": W[:1]}
    module = runs_alike(model([loop(None, False, True)], {"x": ((3,), FLOAT)}, ["last"], known), floats(3))
    assert len(module.functions) == 1 and str(module.main.result.shape[0]) == "24"


@pytest.mark.parametrize("count", [3, 100])
def test_a_loop_with_a_condition_is_a_while_loop(count: int) -> None:
    given = {"x": ((3,), FLOAT), "count": ((), INT64)}
    made = model([loop("top", False)], given, ["last"], {"go0": np.array(True), "w": W, "top": np.float32(20)})
    module = runs_alike(made, floats(3), np.array(count))
    assert "while_loop" in {e.op for e in module.main.expressions()}
    with pytest.raises(OnnxError, match="outputs of each step, of which there are as many as the loop finds"):
        rx.from_onnx(model([loop("top")], given, ["last", "rows"], {"go0": np.array(True), "w": W, "top": W[0]}))


@pytest.mark.parametrize(("backward", "axis"), [(0, 0), (1, 1)])
def test_scan(backward: int, axis: int) -> None:
    body = helper.make_graph(
        [node("Mul", "x y", "p"), node("Add", "s p", "t"), node("Identity", "t", "row")], "body",
        [value_info("s", FLOAT, (2,)), value_info("y", FLOAT, (2,))],
        [value_info("t", FLOAT, (2,)), value_info("row", FLOAT, (2,))],
    )  # fmt: skip
    made = node(
        "Scan", "s0 ys", "last rows", body=body, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[backward], scan_output_axes=[axis], scan_output_directions=[backward],
    )  # fmt: skip
    shape = (2, 4) if axis else (4, 2)
    inputs = {"s0": ((2,), FLOAT), "ys": (shape, FLOAT), "x": ((2,), FLOAT)}
    runs_alike(model([made], inputs, ["last", "rows"]), floats(2), floats(*shape), floats(2))


def test_functions_of_the_model() -> None:
    inner = helper.make_function(
        "own", "Scaled", ["a"], ["b"], [node("LeakyRelu", "a", "b")], [helper.make_opsetid("", 17)], ["alpha"]
    )
    inner.node[0].attribute.append(onnx.AttributeProto(name="alpha", type="FLOAT", ref_attr_name="alpha"))
    call = helper.make_node("Scaled", ["x"], ["y"], domain="own", alpha=0.25)
    proto = model([call], {"x": ((2, 3), FLOAT)})
    proto.functions.append(inner)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    runs_alike(proto, floats(2, 3))


def test_functions_have_constants_of_their_own() -> None:
    proto = model(
        [helper.make_node(f, [], [f], domain="own") for f in "FG"] + [node("Add", "F G", "s"), node("Mul", "s x")],
        {"x": ((3,), FLOAT)},
    )
    proto.opset_import.append(helper.make_opsetid("own", 1))
    for name in "FG":
        value = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(floats(3)))
        made = helper.make_function("own", name, [], ["c"], [value], [helper.make_opsetid("", 17)])
        proto.functions.append(made)
    runs_alike(proto, floats(3))


def test_quantized_products() -> None:
    a, b = (RNG.integers(0, 255, s).astype(np.uint8) for s in ((2, 3), (3, 4)))
    weights = {
        "s": np.float32(0.02), "z": np.uint8(7), "b": b, "t": np.float32(0.05), "u": np.float32(0.3),
        "v": np.uint8(100),
    }  # fmt: skip
    runs_alike(
        model([node("QLinearMatMul", "x s z b t z u v")], {"x": ((2, 3), TensorProto.UINT8)}, weights=weights), a
    )
    runs_alike(
        model([node("DynamicQuantizeLinear", "x", "y s z")], {"x": ((2, 3), FLOAT)}, ["y", "s", "z"]), floats(2, 3)
    )


def test_global_lp_pool() -> None:
    runs_alike(model([node("GlobalLpPool", "x", p=3)], {"x": ((2, 3, 4, 5), FLOAT)}), floats(2, 3, 4, 5), rtol=1e-4)


def test_gradients_pass_through_a_scan() -> None:
    known = {"count": np.array(4), "go0": np.array(True), "w": W}
    module = rx.from_onnx(model([loop(None, False)], {"x": ((3,), FLOAT)}, ["last"], known))
    run = rx.optimize(module)
    x, w = floats(3), list(module.weights.values())
    np.testing.assert_allclose(jax.grad(lambda x: run(x, *w).sum())(x), np.ones(3), rtol=1e-6)


def test_a_repeated_window() -> None:
    made = [node("CenterCropPad", "x s", axes=[1]), node("Shrink", "y", "z", lambd=0.1)]
    runs_alike(model(made, {"x": ((2, 5), FLOAT)}, ["z"], {"s": ints(3)}, opset=18), floats(2, 5))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_an_axis_of_any_size_is_padded_with_itself(mode: str) -> None:
    proto = model([node("Pad", "x p", mode=mode)], {"x": (["n", 3], FLOAT)}, weights={"p": ints(3, 0, 2, 1)}, opset=19)
    module = runs_alike(proto, floats(5, 3))
    (found,) = results(module, floats(4, 3))
    assert found.shape == (9, 4)


def test_a_branch_that_cannot_be_read_says_what_decides() -> None:
    """A squeeze as PyTorch exports it: a branch that other sizes need."""
    last = node("Gather", "s one", "d")
    squeezed = helper.make_graph([node("Squeeze", "x axes", "t")], "t", [], [helper.make_empty_tensor_value_info("t")])
    whole = helper.make_graph([node("Identity", "x", "e")], "e", [], [helper.make_empty_tensor_value_info("e")])
    nodes = [node("Shape", "x", "s"), last, node("Equal", "d one", "c"),
             node("If", "c", then_branch=squeezed, else_branch=whole)]  # fmt: skip
    proto = model(nodes, {"x": (["n", "m"], FLOAT)}, weights={"one": np.array(1), "axes": ints(1)})
    with pytest.raises(OnnxError, match=r"\(Squeeze, .*\n  accepted: .*; or what decides the If: specs .* the size m"):
        rx.from_onnx(proto)
    assert rx.from_onnx(proto, inputs={"x": "n 1"}).main.params[0].tensor.ndim == 2
