"""`rx.quantize`: codes within half a step, products of bytes, reports, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relax_eg as rx
from relax_eg.driver.quantizing.ranges import entropy_range, percentile_range
from relax_eg.errors import OptionError
from relax_eg.extract.profiles.devices import CPU
from relax_eg.ir.expr import const
from relax_eg.ops.codes import Scheme, decoded, encoded, spread
from relax_eg.ops.interpret import evaluate_expr

TARGET = "cpu"
RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 64)).astype(np.float32)
PARAMS = {
    "w": RNG.standard_normal((64, 48)).astype(np.float32),
    "v": RNG.standard_normal((32, 48)).astype(np.float32),
    "b": np.ones(48, np.float32),
}


def layers(x: Any, params: Any) -> Any:
    return jnp.tanh(x @ params["w"] * 0.1 + params["b"]) @ params["v"].T


def relative(x: Any, y: Any) -> float:
    return float(np.linalg.norm(np.asarray(x) - np.asarray(y)) / np.linalg.norm(np.asarray(y)))


def quantized(**options: Any) -> Any:
    return rx.quantize(layers, [(X, PARAMS)], weights=("params",), target=TARGET, **options)


SCHEMES = (
    *(Scheme("int8", per, s) for per in ("tensor", "channel") for s in (True, False)),
    *(Scheme("int4", "channel", s, g) for s in (True, False) for g in (2, 32)),
    Scheme("fp8", "channel"),
)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@settings(max_examples=10)
@given(
    columns=st.integers(1, 5), groups=st.integers(1, 3), turned=st.booleans(), seed=st.integers(0, 99),
    size=st.sampled_from([1e-7, 0.02, 1.0, 300.0]), offset=st.sampled_from([0.0, 1.0, -5.0]), zeros=st.booleans(),
)  # fmt: skip
def test_each_weight_is_within_half_a_step(
    scheme: Scheme, columns: int, groups: int, turned: bool, seed: int, size: float, offset: float, zeros: bool
) -> None:
    w = ((np.random.default_rng(seed).standard_normal((columns, 32 * groups)) + offset) * size).astype(np.float32)
    if zeros:
        w[0] = 0
    axis = 1 if turned else 0
    w = w if turned else w.T.copy()
    e = const(w)
    c = encoded(e, scheme, (axis,))
    back = evaluate_expr(decoded(c, e, scheme, (axis,)), {}, {})
    assert back.shape == w.shape and back.dtype == w.dtype
    scale, zero, codes = (None if x is None else evaluate_expr(x, {}, {}) for x in (c.scale, c.zero, c.codes))
    if scheme.kind == "fp8":
        unit = np.abs(w) / scale
        half = scale * np.maximum(unit * 2.0**-4, 2.0**-10)  # three bits of fraction; the smallest step is 2**-9
    else:
        half = np.abs(spread(w, scale, zero, axis, scheme)[0]) / 2
    assert np.all(np.abs(back - w) <= half * (1 + 1e-4))
    held = {"int4": w.size // 2, "int8": w.size, "fp8": w.size}[scheme.kind]
    assert codes.nbytes == held


@pytest.mark.parametrize(
    ("options", "bound", "ratio"),
    [
        ({}, 0.01, 3.6),
        ({"per": "tensor", "symmetric": False}, 0.02, 3.9),
        ({"scheme": "fp8"}, 0.05, 3.6),
        ({"scheme": "int4", "group": 16}, 0.2, 6.3),
        ({"activations": "dynamic"}, 0.02, 3.6),
        ({"activations": "static", "symmetric": False}, 0.03, 3.6),
    ],
)
def test_reports_tell_errors_and_bytes(options: dict[str, Any], bound: float, ratio: float) -> None:
    made = quantized(**options)
    report = made.report
    expected = layers(X, PARAMS)
    assert 0 < relative(made(X), expected) < bound
    assert relative(made(X), expected) == pytest.approx(report.error, rel=1e-3)
    before, after = report.layer_bytes
    assert before / after > ratio and report.before == sum(a.nbytes for a in PARAMS.values())
    assert report.after == sum(a.nbytes for a in made.weights.values())
    assert [x.name for x in report.layers] == ["params['w']", "params['v']"]
    assert all(0 < x.error < bound for x in report.layers)
    assert report.seconds_before > 0 and "relative error of the results on the calibration data" in str(report)


def test_bytes_are_multiplied_where_the_device_gains() -> None:
    """The same module for a device with units for bytes, and for one without."""
    made = rx.quantize(
        layers, [(X, PARAMS)], "n 64", PARAMS, weights=("params",), activations="dynamic", target=TARGET
    )  # fmt: skip
    best = rx.optimize(made, at={"n": 256}, target=TARGET)
    assert best.report.rules["integer_product"] and 'out_dtype="int32"' in str(best.module)
    slow = {**CPU.matmul_rate, "int8": CPU.matmul_rate["int32"] / 100}
    from dataclasses import replace

    floats = rx.optimize(made, at={"n": 256}, target=replace(CPU, matmul_rate=slow))
    assert "integer_product" not in floats.report.rules and "out_dtype" not in str(floats.module)
    for n in (1, 6):  # a family of sizes
        np.testing.assert_allclose(best(X[:n]), made(X[:n]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rx.jit(made)(X), made(X), rtol=1e-4, atol=1e-4)


def test_quantized_programs_are_saved_and_loaded(tmp_path: Any) -> None:
    made = quantized(scheme="int4")
    best = rx.optimize(made, target=TARGET)
    best.save(tmp_path / "m.rxe")
    loaded = rx.load(tmp_path / "m.rxe")
    np.testing.assert_allclose(loaded(X), made(X), rtol=1e-4, atol=1e-4)


def test_the_class_is_not_used_unless_it_is_asked_for() -> None:
    def product(x: Any, w: Any) -> Any:
        return x @ w

    options: dict[str, Any] = {"weights": (1,), "at": {"n": 256}, "target": TARGET}
    plain = rx.optimize(product, "n 512", "512 512", numerics="approximate", **options)
    asked = rx.optimize(product, "n 512", "512 512", numerics="quantised", **options)
    assert "int8" not in str(plain.module) and asked.report.rules["bytes_for_operands"]
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 512), (512, 512)))
    assert relative(plain(x, w), x @ w) < 1e-5 < relative(asked(x, w), x @ w) < 0.02


def test_calibrated_rounding_is_nearer_on_the_data() -> None:
    mixed = RNG.standard_normal((200, 64)) @ RNG.standard_normal((64, 64))  # correlated inputs
    data = [(mixed[i : i + 100].astype(np.float32), PARAMS) for i in (0, 100)]
    nearest, calibrated = (
        rx.quantize(layers, data, weights=("params",), scheme="int4", rounding=r, target=TARGET).report.layers[0].error
        for r in ("nearest", "calibrated")
    )  # fmt: skip
    assert calibrated < 0.7 * nearest


def test_layers_stay_in_float() -> None:
    by_name = quantized(keep=["*'w'*"]).report
    assert [x.kept for x in by_name.layers] == ["by its name", ""]
    by_error = quantized(scheme="int4", max_error=1e-4).report
    assert not by_error.quantized and by_error.before == by_error.after and by_error.error < 1e-6
    by_size = quantized(scheme="int4").report
    assert by_size.layers[1].kept == "its contracted size 48 is no multiple of the group's 32"
    assert "params['v'] is kept in float: its contracted size" in str(by_size)


def test_tables_convolutions_and_left_weights() -> None:
    table, kernel, left = (RNG.standard_normal(s).astype(np.float32) for s in ((10, 8), (4, 3, 3, 3), (5, 9)))

    def program(i: Any, x: Any, weights: Any) -> Any:
        y = jax.lax.conv(x, weights[1], (1, 1), "SAME")
        return weights[0][i], y, weights[2] @ y.reshape(4, 9, -1)[0]

    i, x = np.array([1, 3, 3]), RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)
    given_weights = [table, kernel, left]
    made = rx.quantize(program, [(i, x, given_weights)], weights=("weights",), target=TARGET)
    assert [x.operator for x in made.report.layers] == ["take", "conv", "matmul"]
    for a, b in zip(made(i, x), program(i, x, given_weights), strict=True):
        assert 0 < relative(a, b) < 0.02


@pytest.mark.parametrize("symmetric", [True, False])
def test_tables_of_four_bits(symmetric: bool) -> None:
    """A table in groups along its rows, and one that is a product's weight, too."""
    table = RNG.standard_normal((50, 64)).astype(np.float32)
    i = np.array([[1, 3], [49, 3]])

    def rows(i: Any, table: Any) -> Any:
        return table[i]

    def tied(i: Any, table: Any) -> Any:
        return table[i] @ table.T

    errors: list[float] = []
    for tables in ("int8", "int4"):
        options: dict[str, Any] = {"scheme": "int4", "tables": tables, "symmetric": symmetric, "target": TARGET}
        made = rx.quantize(rows, [(i, table)], weights=("table",), **options)
        errors.append(relative(made(i), rows(i, table)))
        before, after = made.report.layer_bytes
        assert before / after > (6.7 if tables == "int4" else 3.6) and f"{tables} tables" in str(made.report)
        both = rx.quantize(tied, [(i, table)], weights=("table",), **options)
        assert relative(both(i), tied(i, table)) < 0.15
        best = rx.optimize(both, target=TARGET)
        np.testing.assert_allclose(best(i), both(i), rtol=1e-4, atol=1e-3)
    assert errors[0] < 0.01 < 4 * errors[0] < errors[1] < 0.15


KERNELS = [RNG.standard_normal(s).astype(np.float32) / 8 for s in ((32, 16, 3, 3), (24, 32, 1, 1))]


def image_layers(x: Any, kernels: Any) -> Any:
    y = jax.nn.relu(jax.lax.conv(x, kernels[0], (1, 1), "SAME"))
    return jax.lax.conv(y, kernels[1], (2, 2), "VALID")


@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_images_are_bytes_too(activations: str) -> None:
    x = RNG.standard_normal((2, 16, 12, 12)).astype(np.float32)
    x[1] *= 10  # with "dynamic", each image has a range of its own
    made = rx.quantize(
        image_layers, [(x, KERNELS)], "n 16 12 12", KERNELS, weights=("kernels",), activations=activations,
        symmetric=activations == "dynamic", target=TARGET,
    )  # fmt: skip
    wanted = image_layers(x, KERNELS)
    assert 0 < relative(made(x), wanted) < 0.02
    if activations == "dynamic":
        assert all(0 < relative(made(x)[i], wanted[i]) < 0.02 for i in range(2))
    best = rx.optimize(made, at={"n": 64}, target=TARGET)
    assert best.report.rules["integer_convolution"] and str(best.module).count('out_dtype="int32"') >= 1
    np.testing.assert_allclose(best(x), made(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activations", ["dynamic", "static"])
@pytest.mark.parametrize(("groups", "out"), [(4, 32), (16, 16)], ids=["in groups", "depthwise"])
def test_images_of_convolutions_in_groups_are_bytes_too(groups: int, out: int, activations: str) -> None:
    """The layers of ResNeXt and of MobileNet."""

    def layer(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=groups)

    x = RNG.standard_normal((2, 16, 28, 28)).astype(np.float32)
    x[1] *= 10  # with "dynamic", each image has a range of its own
    w = RNG.standard_normal((out, 16 // groups, 3, 3)).astype(np.float32)
    made = rx.quantize(
        layer, [(x, w)], weights=("w",), activations=activations, symmetric=activations == "dynamic", target=TARGET
    )
    assert "R.round" in str(made)
    wanted = layer(x, w)
    assert 0 < relative(made(x), wanted) < 0.02
    if activations == "dynamic":
        assert all(0 < relative(made(x)[i], wanted[i]) < 0.02 for i in range(2))
    best = rx.optimize(made, target=TARGET)
    if groups == 4:  # taps of a few channels are floats where that is cheaper
        assert best.report.rules["integer_convolution"] and "R.conv(" not in str(best.module)
    np.testing.assert_allclose(best(x), made(x), rtol=1e-4, atol=1e-4)


def encoded_image(x: Any, scale: Any) -> Any:
    return jnp.clip(jnp.round(x / scale), -128, 127).astype("int8")


def test_codes_that_are_decoded_moved_and_encoded_again_are_moved() -> None:
    scale = np.float32(0.07)

    def program(codes: Any) -> Any:
        x = codes.astype("float32") * scale
        return encoded_image(jnp.concatenate([x.T, x.T[::-1]]).reshape(-1, 4), scale)

    best = rx.optimize(program, "512 256 @ int8", target=TARGET)
    assert "codes_of_codes" in best.report.rules and "R.round" not in str(best.module)
    codes = RNG.integers(-128, 128, (512, 256)).astype(np.int8)
    np.testing.assert_array_equal(best(codes), program(codes))

    def rescaled(codes: Any) -> Any:
        return encoded_image(codes.astype("float32") * scale, 2 * scale)

    assert "codes_of_codes" not in rx.optimize(rescaled, "512 256 @ int8", target=TARGET).report.rules


def test_codes_with_a_scale_for_each_channel_are_moved() -> None:
    scale = RNG.uniform(0.01, 1, 8).astype(np.float32)

    def program(codes: Any, again: Any) -> Any:
        x = codes.astype("float32") * scale.reshape(8, 1, 1)
        return encoded_image(x.transpose(0, 2, 3, 1), again)

    codes = RNG.integers(-128, 128, (2, 8, 5, 6)).astype(np.int8)
    best = rx.optimize(lambda x: program(x, scale), "2 8 5 6 @ int8", target=TARGET)
    assert "R.round" not in str(best.module)
    np.testing.assert_array_equal(best(codes), codes.transpose(0, 2, 3, 1))
    other = np.roll(scale, 1)  # the scales of other channels
    kept = rx.optimize(lambda x: program(x, other), "2 8 5 6 @ int8", target=TARGET)
    assert "R.round" in str(kept.module)
    np.testing.assert_array_equal(kept(codes), program(codes, other))


def test_depthwise_convolutions_of_codes_are_of_integers() -> None:
    def program(x: Any, w: Any, scale: Any) -> Any:
        image, kernel = (x.astype("float32") - 3.0) * 0.05, w.astype("float32") * scale.reshape(16, 1, 1, 1)
        return jax.lax.conv_general_dilated(image, kernel, (2, 1), "SAME", feature_group_count=16)

    best = rx.optimize(program, "1 16 28 28 @ int8", "16 1 3 3 @ int8", "16", target=TARGET)
    assert "integer_convolution" in best.report.rules and "R.conv(" not in str(best.module)
    x, w = (RNG.integers(-128, 128, s).astype(np.int8) for s in ((1, 16, 28, 28), (16, 1, 3, 3)))
    scale = RNG.uniform(0.01, 0.1, 16).astype(np.float32)
    wanted = program(x, w, scale)
    np.testing.assert_allclose(best(x, w, scale), wanted, rtol=1e-5, atol=1e-4)


def test_a_real_model_of_convolutions() -> None:
    """rapidocr's classifier of turned lines, where that is installed: its inputs alone are given."""
    from importlib.util import find_spec

    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("rapidocr_onnxruntime is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    model = rx.from_onnx(root / "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", inputs={"x": "n 3 48 192"})
    x = RNG.standard_normal((2, 3, 48, 192)).astype(np.float32)
    made = rx.quantize(model, [x], activations="static", target=TARGET)
    assert len(made.report.quantized) == len(made.report.layers) == 54 and made.report.error < 0.05
    assert made.report.before / made.report.after > 3
    assert list(made(x).shape) == [2, 2]


def test_ranges() -> None:
    counts = np.zeros(2048)
    counts[1000:1048], counts[-1] = 100, 1  # one element far out
    low, high = percentile_range(counts, -1.0, 1.0, 99.0)
    assert -0.05 < low < 0 < high < 0.05
    normal = np.histogram([*RNG.standard_normal(100_000), -40.0], 2048, (-40.0, 40.0))[0]
    low, high = entropy_range(normal, -40.0, 40.0)
    assert 2.5 < high < 10.0 and low == -high
    assert entropy_range(np.zeros(2048), 0.0, 0.0) == (0.0, 0.0)
    whole = np.ones(2048)
    assert percentile_range(whole, 0.0, 1.0, 100.0) == (0.0, 1.0)


NAN = np.full_like(X, math.nan)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: quantized(scheme="int3"), "scheme='int3': one of int8, int4, fp8 is accepted"),
        (lambda: quantized(scheme="int4", activations="dynamic"), "activations='dynamic' with scheme='int4'"),
        (lambda: quantized(tables="int4"), "tables='int4' with scheme='int8': scheme='int4' is accepted"),
        (lambda: quantized(scheme="int4", group=3), "group=3: an even number of elements is accepted"),
        (lambda: quantized(keep=["none"]), "keep: no layer is named 'none'; there are params['w'], params['v']"),
        (lambda: rx.quantize(layers, [], weights=(1,)), "data: no calls; a list of one or more is accepted"),
        (lambda: rx.quantize(layers, [(NAN, PARAMS)], weights=(1,)), "data[0]: `x` has elements that are not finite"),
        (
            lambda: rx.quantize(layers, [(X, PARAMS), (X[:, :3], PARAMS)], weights=(1,)),
            "data[1]: layers(): argument `x`",
        ),
        (lambda: rx.quantize(layers, [(X, PARAMS)]), "weights: layers holds none; the arguments that hold weights"),
        (lambda: rx.quantize(layers, [(X, PARAMS)], weights=("q",)), "weights: layers has no argument 'q'"),
        (lambda: rx.quantize(layers, [(X,)], X, PARAMS, weights=(1,)), "data[0]: it does not have the structure"),
        (
            lambda: rx.quantize(layers, [(X, PARAMS), (X, {**PARAMS, "b": PARAMS["b"] * 2})], weights=(1,)),
            "data[1]: `params['b']` is a weight and differs from that of data[0]",
        ),
        (
            lambda: rx.quantize(lambda x, w: x @ w, [(np.ones((2, 2), "int32"),) * 2], weights=(1,)),
            "has no layer with a weight",
        ),
        (lambda: rx.quantize(lambda x, w: x + w, [(X, X)], weights=(1,)), "alone; it has no product"),
    ],
)
def test_what_is_refused(make: Any, text: str) -> None:
    with pytest.raises(OptionError) as error:
        make()
    assert text in str(error.value)
