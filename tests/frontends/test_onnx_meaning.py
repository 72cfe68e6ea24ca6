"""ONNX models mean here what ONNX says: dtypes, precision, attributes, names. What is not understood is refused."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import FLOAT, INT64, agrees, ints, model, node, results, runs_alike

import relax_eg as rx
from relax_eg.errors import OnnxError

RNG = np.random.default_rng(11)
HALF = TensorProto.FLOAT16


# --- precision ---

STEPS = np.array([-400, 0, 400, 800], np.float16)  # whose squares are beyond half precision
NORMALISED = np.array([-1.3416, -0.4472, 0.4472, 1.3416])  # with mean 200 taken away


@pytest.mark.parametrize("kind", ["LayerNormalization", "InstanceNormalization", "GroupNormalization"])
def test_half_precision_is_normalised_in_float32(kind: str) -> None:
    space = kind != "LayerNormalization"
    x = STEPS.reshape(1, 1, 4) if space else STEPS
    ones = np.ones(1 if space else 4, np.float16)
    attributes = {"num_groups": 1} if kind == "GroupNormalization" else {}
    proto = model(
        [node(kind, "x s b", **attributes)], {"x": (x.shape, HALF)}, weights={"s": ones, "b": ones * 0}, opset=21
    )
    (found,) = results(rx.from_onnx(proto), x)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.reshape(-1), NORMALISED, rtol=2e-3)


@pytest.mark.parametrize("scale", [np.float16, np.float32])
def test_root_mean_squares_of_half_precision(scale: Any) -> None:
    proto = model([node("RMSNormalization", "x s")], {"x": ([4], HALF)}, weights={"s": np.ones(4, scale)}, opset=23)
    (found,) = results(rx.from_onnx(proto), STEPS)
    assert found.dtype == scale  # the result's dtype is that of the scale
    np.testing.assert_allclose(found, STEPS.astype(np.float64) / np.sqrt(240000), rtol=2e-3)


def test_sums_of_half_precision_are_taken_in_float32() -> None:
    x = np.full((1, 4096), 0.25, np.float16)
    for kind, wanted in (("ReduceSum", 1024.0), ("ReduceL2", 16.0), ("ReduceSumSquare", 256.0)):
        (found,) = results(rx.from_onnx(model([node(kind, "x")], {"x": (x.shape, HALF)}, opset=13)), x)
        assert found.dtype == np.float16 and found.item() == wanted


def test_statistics_of_a_normalisation_are_outputs() -> None:
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    nodes = [node("LayerNormalization", "x s", "y m i", axis=-1)]
    weights = {"s": np.ones(8, np.float32)}
    agrees(model(nodes, {"x": (["n", 8], FLOAT)}, ["y", "m", "i"], weights), x)
    agrees(model(nodes, {"x": (["n", 8], FLOAT)}, ["y"], weights), x)  # unread, they refuse nothing


def test_what_a_stash_type_names_is_a_float() -> None:
    proto = model(
        [node("LayerNormalization", "x s", stash_type=11)], {"x": ([4], FLOAT)}, weights={"s": np.ones(4, np.float32)}
    )
    with pytest.raises(OnnxError, match=r"stash_type=11\n  accepted: stash_type=1, stash_type=16"):
        rx.from_onnx(proto)


def test_infinities_are_summed_as_logarithms() -> None:
    x = np.array([[-np.inf, -np.inf], [0, -np.inf], [np.inf, 0]], np.float32)
    for keepdims in (0, 1):
        proto = model([node("ReduceLogSumExp", "x", axes=[1], keepdims=keepdims)], {"x": (x.shape, FLOAT)})
        (found,) = results(rx.from_onnx(proto), x)  # the reference takes -inf from -inf
        np.testing.assert_array_equal(found.reshape(-1), [-np.inf, 0, np.inf])


# --- dtypes ---


def test_long_integers_are_as_long_as_in_the_model() -> None:
    many = np.arange(40, dtype=np.int64) + 2**40
    proto = model([node("Add", "x w")], {"x": ([40], INT64)}, weights={"w": many})
    module = rx.from_onnx(proto)
    assert {p.annotation.dtype for p in module.main.params} == {"int64"}
    np.testing.assert_array_equal(module.weights["w"], many)
    np.testing.assert_array_equal(results(module, many)[0], many + many)
    inside = rx.from_onnx(proto, constants=True)
    np.testing.assert_array_equal(results(inside, many)[0], many + many)


def test_doubles_are_doubles() -> None:
    x = np.array([1 + 2.0**-40, 3.0])
    proto = model([node("Mul", "x w")], {"x": ([2], TensorProto.DOUBLE)}, weights={"w": x})
    agrees(proto, x, rtol=1e-15)


@pytest.mark.parametrize("x64", [False, True])
def test_positions_and_sizes_are_int64_in_all_settings(x64: bool) -> None:
    nodes = [
        node("Shape", "x", "a"), node("Size", "x", "b"), node("ArgMax", "x", "c", axis=1),
        node("ArgMin", "x", "d", axis=1, select_last_index=1), node("TopK", "x k", "v e"),
    ]  # fmt: skip
    with jax.enable_x64(x64):
        proto = model(nodes, {"x": (["n", 4], FLOAT)}, ["a", "b", "c", "d", "e"], {"k": ints(2)})
        module = rx.from_onnx(proto)
    fields = module.main.annotation.fields
    assert [f.dtype for f in fields] == ["int64"] * 5
    agrees(proto, RNG.integers(0, 3, (3, 4)).astype(np.float32))


def test_known_arrays_keep_their_dtype() -> None:
    weights = {
        "bytes": np.array([250, 3, 9], np.uint8), "i": ints(0, 2), "s": ints(2, 1), "zero": ints(0), "two": ints(2),
    }  # fmt: skip
    nodes = [
        node("Gather", "bytes i", "g"), node("Add", "g g", "sum"), node("Reshape", "sum s", "r"),
        node("Slice", "bytes zero two", "t"), node("Cast", "g", "c", to=TensorProto.INT32),
    ]  # fmt: skip
    proto = model(nodes, {}, ["g", "sum", "r", "t", "c"], weights)
    module = agrees(proto)
    assert [f.dtype for f in module.main.annotation.fields] == ["uint8", "uint8", "uint8", "uint8", "int32"]


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("to", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_narrow_floats_saturate_as_asked(to: int, saturate: int) -> None:
    x = np.array([1, 447, 449, 1e6, -1e6, np.inf, -np.inf, np.nan, 57000, 70000], np.float32)
    proto = model([node("Cast", "x", to=to, saturate=saturate)], {"x": (x.shape, FLOAT)}, opset=19)
    (found,) = results(rx.from_onnx(proto), x)
    kind = ml_dtypes.float8_e4m3fn if to == TensorProto.FLOAT8E4M3FN else ml_dtypes.float8_e5m2
    most = float(ml_dtypes.finfo(kind).max)
    wanted = (np.clip(x, -most, most) if saturate else x).astype(kind)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_an_output_has_the_dtype_that_is_declared() -> None:
    proto = model([node("Shape", "x")], {"x": ([2], FLOAT)})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [1]))
    with pytest.raises(OnnxError, match="g: output `y` is int64, and declared float32"):
        rx.from_onnx(proto)


# --- attributes and inputs ---

WAYS = ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric", "tf_crop_and_resize"]


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("way", WAYS)
def test_resize_reads_its_attributes(way: str, rounding: str) -> None:
    x = RNG.standard_normal((1, 2, 4, 6)).astype(np.float32)
    common = {"coordinate_transformation_mode": way, "nearest_mode": rounding, "extrapolation_value": 7.0}
    weights = {"roi": np.array([0.1, -0.2, 0.8, 1.3], np.float32), "s": np.array([2, 0.5], np.float32), "z": ints(7, 9)}

    def resized(inputs: str, axes: list[int], **attributes: Any) -> Any:
        made = node("Resize", inputs, axes=axes, **common, **attributes)
        held = {n: weights[n] for n in inputs.split() if n in weights}
        return model([made], {"x": (x.shape, FLOAT)}, weights=held, opset=19)

    if way == "tf_crop_and_resize":
        uses = [("x roi - z", "stretch")]
    else:
        uses = [("x - s", "stretch"), *(("x - - z", p) for p in ("stretch", "not_larger", "not_smaller"))]
    for inputs, policy in uses:
        found = runs_alike(resized(inputs, [2, 3], keep_aspect_ratio_policy=policy), x)
        # Of negative axes with a policy onnxruntime makes nothing.
        assert found == rx.from_onnx(resized(inputs, [-2, -1], keep_aspect_ratio_policy=policy))


def test_resize_of_symbolic_sizes_repeats_or_refuses() -> None:
    x = RNG.standard_normal((1, 1, 4, 6)).astype(np.float32)
    weights = {"s": np.array([1, 1, 2, 3], np.float32)}

    def resized(**attributes: Any) -> Any:
        return model([node("Resize", "x - s", **attributes)], {"x": ([1, 1, "h", "w"], FLOAT)}, weights=weights)

    runs_alike(resized(), x)
    runs_alike(resized(coordinate_transformation_mode="asymmetric", nearest_mode="floor"), x)
    for way, rounding in (("half_pixel", "floor"), ("half_pixel", "ceil"), ("asymmetric", "round_prefer_floor")):
        with pytest.raises(OnnxError, match=f"coordinate_transformation_mode='{way}' and nearest_mode='{rounding}'"):
            rx.from_onnx(resized(coordinate_transformation_mode=way, nearest_mode=rounding))


@pytest.mark.parametrize("limits", [(0.0, 1.0, 0.25), (1.5, -1.0, -0.5), (0.0, 3.0, 1.0), (2.0, 1.0, 1.0)])
def test_ranges_of_floats(limits: tuple[float, float, float]) -> None:
    weights = {n: np.array(v, np.float32) for n, v in zip("abc", limits, strict=True)}
    agrees(model([node("Range", "a b c")], {}, weights=weights))


def test_ranges_of_floats_up_to_a_size() -> None:
    """YOLO's exporters cast sizes to floats for the centres of a grid."""
    nodes = [node("Shape", "x", "s"), node("Gather", "s i", "n"), node("Cast", "n", "f", to=FLOAT)]
    weights = {"i": np.array(0), "a": np.float32(1), "c": np.float32(2), "h": np.float32(0.5)}
    grid = [*nodes, node("Range", "a f c", "r"), node("Add", "r h", "y")]
    agrees(model(grid, {"x": (["n", 2], FLOAT)}, weights=weights), np.zeros((6, 2), np.float32))
    with pytest.raises(OnnxError, match=r"the limit or step 0.5 beside a size\n  accepted: whole numbers beside sizes"):
        rx.from_onnx(model([*nodes, node("Range", "a f h")], {"x": (["n", 2], FLOAT)}, weights=weights))


def test_one_hot_of_negative_indices() -> None:
    x = np.array([[-1, 0, 3], [-4, 4, -5]], np.int64)
    weights = {"d": np.array(4), "v": np.array([0.5, 2.0], np.float32)}
    for axis in (-1, 0, 1):
        runs_alike(model([node("OneHot", "x d v", axis=axis)], {"x": (["n", 3], INT64)}, weights=weights), x)


def test_sums_without_their_own_element() -> None:
    x = np.array([[1e8, 1, 2, 3]], np.float32)
    for reverse in (0, 1):
        made = node("CumSum", "x a", exclusive=1, reverse=reverse)
        runs_alike(model([made], {"x": (["n", "m"], FLOAT)}, weights={"a": ints(1)}), x)


def test_fewer_indices_than_data_along_other_axes() -> None:
    x = RNG.standard_normal((4, 5)).astype(np.float32)
    weights = {"i": RNG.integers(-5, 5, (2, 7))}
    runs_alike(model([node("GatherElements", "x i", axis=1)], {"x": (x.shape, FLOAT)}, weights=weights), x)


def test_what_a_dropout_left_is_all() -> None:
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    agrees(model([node("Dropout", "x", "y mask")], {"x": (["n", 3], FLOAT)}, ["y", "mask"]), x)
    agrees(model([node("Dropout", "x", "y mask")], {"x": (["n", 3], FLOAT)}), x)


def test_an_axis_without_a_name_takes_nobody_elses() -> None:
    inputs = {"x": ([None, 3], FLOAT), "z": (["x_0", 3], FLOAT)}
    module = rx.from_onnx(model([node("Relu", "x")], inputs))
    x, z = (p.annotation.shape for p in module.main.params)
    assert x[0] != z[0] and str(z[0]) == "x_0"
    told = rx.from_onnx(model([node("Relu", "x")], {"x": ([None], FLOAT), "z": ([None], FLOAT)}), inputs={"z": "x_0"})
    x, z = (p.annotation.shape for p in told.main.params)
    assert x != z


REFUSED = [
    (node("Dropout", "x f t"), "dropout in training\n  accepted: a model exported for inference"),
    (node("Resize", "x - z", mode="linear", coordinate_transformation_mode="align_corners"), "align_corners of 5 elem"),
    (node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID", ceil_mode=1), "auto_pad='VALID' with"),
    (node("MaxPool", "x", kernel_shape=[1, 1], strides=[3, 3], auto_pad="SAME_UPPER"), "the stride 3 of a window of 1"),
    (node("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 2], auto_pad="SAME_LOWER"), "with the dilation 2"),
    (node("AveragePool", "x", kernel_shape=[2, 2], auto_pad="SOME"), "auto_pad='SOME'\n  accepted: auto_pad='NOTSET'"),
    (node("AveragePool", "x", kernel_shape=[2, 2], ceil_mode=2), "ceil_mode=2\n  accepted: ceil_mode=0 or ceil_mode=1"),
    (node("Conv", "x w", kernel_shape=[3, 3]), r"kernel_shape=\[3, 3\] with weights of \[2, 2\]"),
    (node("Conv", "x w", auto_pad="SAME_UPPER", pads=[1, 1, 1, 1]), "auto_pad='SAME_UPPER' beside pads"),
    (node("DepthToSpace", "x", blocksize=2, mode="RCD"), "mode='RCD'\n  accepted: mode='DCR', mode='CRD'"),
    (node("Softmax", "x", axis=7), "axis 7 of a value of rank 4\n  accepted: axes from -4 to 3"),
    (node("Split", "x s", "y at", axis=3), "parts of 3, 3 of 5 elements for 2 outputs"),
    (node("PRelu", "x v"), "an operand makes the result larger: 2, 2, 4, 5, 5 instead of 2, 4, 5, 5"),
    (node("Gelu", "x", approximate="some"), "approximate='some'\n  accepted: approximate='none'"),
    (node("TopK", "x k", "y at"), "0 is more than -1"),
    (node("Squeeze", "x"), "no axes, and sizes that may be 1"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[0].op_type)
def test_what_is_not_understood_is_refused(case: Any) -> None:
    refused, said = case
    weights = {
        "w": np.ones((4, 4, 2, 2), np.float32), "s": ints(3, 3), "v": np.ones((2, 1, 1, 1, 1), np.float32),
        "k": ints(-1), "f": np.float32(0.5), "t": np.array(True),
        "z": np.array([1, 1, 0.7, 1], np.float32),
    }  # fmt: skip
    shape = ["n", 4, 5, 5] if refused.op_type == "Squeeze" else [2, 4, 5, 5]
    outputs = [o for o in refused.output if o]
    with pytest.raises(OnnxError, match=r"g: node 0 \(\w+, opset 20\): .*" + said):
        rx.from_onnx(model([refused], {"x": (shape, FLOAT)}, outputs, weights, opset=20))


def test_arrays_in_attributes_are_read_like_initializers() -> None:
    value = numpy_helper.from_array(np.array([2**40], np.int64))
    proto = model([node("ConstantOfShape", "s", value=value)], {}, weights={"s": ints(3, 2)})
    agrees(proto)


def test_inputs_that_are_not_read_may_be_left_out() -> None:
    x = RNG.standard_normal((1, 1, 2, 3)).astype(np.float32)
    weights = {"s": np.array([1, 1, 2, 3], np.float32)}
    made = node("Resize", "x - s", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    found = rx.from_onnx(model([made], {"x": (x.shape, FLOAT)}, weights=weights, opset=11))  # which asks for a region
    np.testing.assert_array_equal(results(found, x)[0], x.repeat(2, 2).repeat(3, 3))
    with pytest.raises(OnnxError, match=r"node 0 \(Reshape, opset 17\): input 1 is left out"):
        rx.from_onnx(model([helper.make_node("Reshape", ["x", ""], ["y"])], {"x": (x.shape, FLOAT)}))


def test_long_integers_are_computed_without_a_switch() -> None:
    many = np.arange(20, dtype=np.int64) + 2**40
    module = rx.from_onnx(model([node("Add", "x w")], {"x": ([20], INT64)}, weights={"w": many}))
    assert not jax.config.jax_enable_x64
    best = rx.optimize(module)
    np.testing.assert_array_equal(best(many, *module.weights.values()), many + many)


# --- operators of onnxruntime ---


def attention(kind: str, inputs: str, shapes: dict[str, tuple[int, ...]], **attributes: Any) -> Any:
    made = helper.make_node(kind, [n if n != "-" else "" for n in inputs.split()], ["y"], domain="com.microsoft",
                            **attributes)  # fmt: skip
    proto = model([made], {n: (s, FLOAT) for n, s in shapes.items()})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return rx.from_onnx(proto)


def test_packed_heads_are_those_given_apart() -> None:
    """onnxruntime has no packed heads for CPUs."""
    b, s, t, heads, d = 2, 3, 4, 2, 4
    q, k, v = (RNG.standard_normal((b, n, heads, d)).astype(np.float32) for n in (s, t, t))
    flat = [x.reshape(b, -1, heads * d) for x in (q, k, v)]
    (wanted,) = results(
        attention("MultiHeadAttention", "q k v", {n: x.shape for n, x in zip("qkv", flat, strict=True)}, num_heads=2),
        *flat,
    )
    both = np.stack([k, v], 3)
    (found,) = results(
        attention("MultiHeadAttention", "q k", {"q": flat[0].shape, "k": both.shape}, num_heads=2), flat[0], both
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    whole = np.stack([q, k[:, :s], v[:, :s]], 3)
    (found,) = results(attention("MultiHeadAttention", "q", {"q": whole.shape}, num_heads=2), whole)
    parts = [x[:, :s].reshape(b, s, heads * d) for x in (q, k, v)]
    (wanted,) = results(attention("MultiHeadAttention", "q k v", {n: (b, s, 8) for n in "qkv"}, num_heads=2), *parts)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "said"),
    [
        ("Attention", "x w", {"num_heads": 5}, r"5 heads of \(2, 3, 8\) float32\n  accepted: .* that the heads divide"),
        ("Attention", "x w", {"num_heads": 2, "do_rotary": 1}, "do_rotary or past_present_share_buffer"),
        ("Attention", "x w", {"num_heads": 2, "qkv_hidden_sizes": [8, 4, 12]}, r"qkv_hidden_sizes=\[8, 4, 12\] of 24"),
        ("MultiHeadAttention", "x", {"num_heads": 2}, "queries alone\n  accepted: queries, keys and values; or packed"),
        ("MultiHeadAttention", "x k k", {"num_heads": 2, "unidirectional": 1}, "with 3 queries and 5 keys"),
        (
            "Attention",
            "x w - k4",
            {"num_heads": 2},
            r"a mask of shape \(2, 1, 3, 3\) for a batch of 2\n  accepted: ends",
        ),
    ],
)
def test_what_is_refused_of_attention(kind: str, inputs: str, attributes: Any, said: str) -> None:
    shapes = {"x": (2, 3, 8), "w": (8, 24), "k": (2, 5, 8), "k4": (2, 1, 3, 3)}
    with pytest.raises(OnnxError, match=rf"node 0 \(com\.microsoft\.{kind}, opset 1\).*(?:{said})"):
        attention(kind, inputs, {n: s for n, s in shapes.items() if n in inputs.split()}, **attributes)


def test_packed_zero_points_of_groups_are_refused() -> None:
    """onnxruntime's documentation subtracts them, and its kernels for CPUs do not."""
    made = helper.make_node("MatMulNBits", ["x", "w", "s", "z", "g"], ["y"], domain="com.microsoft", N=2, K=16,
                            bits=4, block_size=16)  # fmt: skip
    weights = {
        "w": np.zeros((2, 1, 8), np.uint8), "s": np.ones((2, 1), np.float32), "z": np.zeros((2, 1), np.uint8),
        "g": np.zeros(16, np.int32),
    }  # fmt: skip
    with pytest.raises(OnnxError, match="packed zero points with g_idx\n  accepted: zero points as floats, or none"):
        rx.from_onnx(model([made], {"x": ((3, 16), FLOAT)}, weights=weights))


def test_kernels_of_low_rank_are_constants_and_others_are_weights() -> None:
    """A blur of each channel is computed one axis after the other; a kernel that was learned stays a weight."""
    rng = np.random.default_rng(0)
    bump = np.exp(-(np.linspace(-2, 2, 9) ** 2))
    blur = np.tile(np.outer(bump, bump), (4, 1, 1, 1)).astype(np.float32)
    learned = rng.standard_normal((4, 4, 3, 3)).astype(np.float32)
    nodes = [node("Conv", "x k", "y", group=4, pads=[4] * 4), node("Conv", "y w", "z")]
    proto = model(nodes, {"x": ((1, 4, 96, 96), FLOAT)}, ("z",), {"k": blur, "w": learned})
    x = rng.standard_normal((1, 4, 96, 96)).astype(np.float32)
    module = runs_alike(proto, x)
    assert list(module.weights) == ["w"]
    best = rx.optimize(module, target="cpu")
    assert "separable_conv" in best.report.rules
    np.testing.assert_allclose(best(x), results(module, x)[0], rtol=1e-4, atol=1e-4)
