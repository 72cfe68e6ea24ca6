"""Other ways to write a convolution: what is proposed, what is not, and what is chosen, which computes the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import relax_eg as rx
from relax_eg import op
from relax_eg.ir.expr import CALL_TIR, Expr, const, postorder, var
from relax_eg.ops import counts, program_of, site_of
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.low_rank import MOST_RANK, NEAR, factors
from relax_eg.rules.checking.schema_answers import RecordingAnswers
from relax_eg.rules.checking.schema_trials import first_difference
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.rules.windows.channels_last import depthwise
from relax_eg.tir.analyze import stage_flops

WAYS = {s.name: s for s in rx.rules.windows.schemas}


def conv(x: str, w: str, dtype: str = "float32", **attrs: Any) -> Expr:
    return op.conv(var("x", rx.Tensor(x, dtype)), var("w", rx.Tensor(w, dtype)), **attrs)


def proposed(way: str, e: Expr) -> list[str]:
    """The operators of the proposals."""
    return [x.op for p in WAYS[way].proposals(e, ModuleAnswers({})) for x in postorder((p,)) if x.op != "var"]


@pytest.mark.parametrize("name", WAYS)
def test_proposals_are_equal_on_random_convolutions(name: str) -> None:
    right, wrong = first_difference(WAYS[name], programs=25 if name.startswith("winograd") else 120)
    assert not wrong and right >= 10


def test_a_depthwise_convolution_is_one_program_over_the_padded_image() -> None:
    e = conv("n 8 h w", "8 1 3 3", groups=8, padding="same", strides=2)
    assert proposed("depthwise_by_taps", e) == ["constant", "pad", CALL_TIR]
    assert proposed("depthwise_by_taps", conv("2 8 20", "8 1 5", groups=8)) == [CALL_TIR]


def test_rows_of_a_low_image_leave_out_the_taps_that_meet_padding() -> None:
    """Of five taps along an axis of three, three or fewer meet the image."""
    rng = np.random.default_rng(0)
    for height, window, stride, pads in ((3, 5, 1, (2, 2)), (2, 5, 1, (2, 2)), (3, 5, 2, (2, 2)), (4, 3, 1, (1, 1))):
        e = conv(f"2 8 {height} 9", f"8 1 {window} 3", groups=8, strides=(stride, 1), padding=[pads, (1, 1)])
        image = op.pad(op.permute_dims(e.args[0], (0, 2, 3, 1)), [(0, 0), pads, (1, 1), (0, 0)], 0.0)
        made = depthwise(e, image, [window, 3])
        calls = [x for x in postorder((made,)) if x.op == CALL_TIR]
        products = sum(int(stage_flops(program_of(site_of(x)).stages[0]).evaluate({})) for x in calls)
        whole = counts(site_of(e)).flops.evaluate({})
        assert made.op == "concat" and products < whole * (0.7 if window == 5 else 1)
        given = {e.args[0]: rng.integers(-3, 4, (2, 8, height, 9)), e.args[1]: rng.integers(-3, 4, (8, 1, window, 3))}
        given = {x: a.astype(np.float32) for x, a in given.items()}
        wanted = np.transpose(evaluate_expr(e, given, {}), (0, 2, 3, 1))
        np.testing.assert_array_equal(evaluate_expr(made, given, {}), wanted)
    high = conv("2 8 20 9", "8 1 5 3", groups=8, padding="same")
    assert depthwise(high, op.pad(op.permute_dims(high.args[0], (0, 2, 3, 1)), [(0, 0), (2, 2), (1, 1), (0, 0)], 0.0),
                     [5, 3]).op == CALL_TIR  # fmt: skip


def test_what_is_not_written_by_taps() -> None:
    not_depthwise = conv("1 8 9 9", "8 2 3 3", groups=4)
    large, rounded = conv("1 8 9 9", "8 1 8 8", groups=8), conv("1 8 9 9", "8 1 3 3", "bfloat16", groups=8)
    apart = conv("1 8 9 9", "8 1 3 3", groups=8, input_dilation=2)
    assert not any(proposed("depthwise_by_taps", e) for e in (not_depthwise, large, rounded, apart))


def test_the_precision_of_a_convolution_is_that_of_its_matmul() -> None:
    e = conv("1 3 8 8", "4 3 3 3", precision="highest")
    (made,) = WAYS["patches_as_matmul"].proposals(e, ModuleAnswers({}))
    assert [x.attr("precision") for x in postorder((made,)) if x.op == "matmul"] == ["highest"]


def test_of_a_window_on_an_axis_of_size_1_the_place_that_meets_the_image_is_kept() -> None:
    assert proposed("conv_of_fewer_axes", conv("n 4 1 9", "4 4 3 3", padding="same")).count("conv") == 1
    no_place = conv("1 4 1 9", "4 4 1 3", strides=(2, 1), padding=[(1, 0), (0, 0)])  # the one place is padding
    assert not proposed("conv_of_fewer_axes", no_place)


def test_a_transposed_convolution_is_one_convolution_for_all_phases() -> None:
    apart = {"input_dilation": 2, "padding": [(1, 1), (1, 1)]}
    for window in ("3 4 2 2", "3 4 3 3", "3 4 5 4"):
        (made,) = WAYS["conv_by_phases"].proposals(conv("n 4 h w", window, **apart), ModuleAnswers({}))
        (inner,) = (x for x in postorder((made,)) if x.op == "conv")
        assert inner.shape[1] == 12 and set(inner.attr("input_dilation")) == {1}
    assert not proposed("conv_by_phases", conv("n 4 5 6", "3 4 3 3"))


def test_a_strided_convolution_is_one_of_blocks() -> None:
    (made,) = WAYS["conv_of_blocks"].proposals(conv("n 3 h w", "8 3 7 7", strides=2, padding="same"), ModuleAnswers({}))
    (inner,) = (x for x in postorder((made,)) if x.op == "conv")
    assert [str(d) for d in inner.args[1].shape] == ["8", "12", "4", "4"] and inner.attr("strides") == (1, 1)
    assert not proposed("conv_of_blocks", conv("n 3 h w", "8 3 2 2", strides=2))  # blocks_as_matmul has these


BUMP = np.exp(-(np.linspace(-2, 2, 9) ** 2)).astype(np.float32)


def test_kernels_that_are_separable() -> None:
    x = var("x", rx.Tensor("2 3 20 20"))
    plain = np.random.default_rng(0).standard_normal((4, 3, 9, 9)).astype(np.float32)
    low = np.einsum(
        "rocp,rq->ocpq", *(np.random.default_rng(i).standard_normal(s) for i, s in enumerate([(2, 4, 3, 9), (2, 9)]))
    )
    blur = np.outer(BUMP, BUMP)[None, None]
    low = low.astype(np.float32)
    cases = {"separable_conv": np.tile(blur, (1, 3, 1, 1)), "conv_of_low_rank": low}
    for name, kernel in cases.items():
        made = WAYS[name].proposals(op.conv(x, const(kernel)), ModuleAnswers({}))
        kernels = [e.args[1] for e in postorder(made[:1]) if e.op == "conv"]
        assert [[d.value for d in k.shape[2:]] for k in kernels] == [[1, 9], [9, 1]], name
    for name in cases:
        assert not WAYS[name].proposals(op.conv(x, const(plain)), ModuleAnswers({}))
        assert not WAYS[name].proposals(op.conv(x, var("w", rx.Tensor("4 3 9 9"))), ModuleAnswers({}))
    assert not WAYS["separable_conv"].proposals(op.conv(x, const(low)), ModuleAnswers({}))
    whole = op.conv(var("x", rx.Tensor("1 1 9 9", "int32")), const(np.array([[[[1, 2], [2, 4]]]], np.int32)))
    assert not WAYS["separable_conv"].proposals(whole, ModuleAnswers({}))  # its factors are no integers


def test_a_blur_is_chosen_one_axis_after_the_other() -> None:
    def blur(x: Any, bump: Any) -> Any:
        kernel = jnp.tile(jnp.outer(bump, bump)[None, None], (3, 1, 1, 1))
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", feature_group_count=3)

    best = rx.optimize(blur, "1 3 96 96", "9", target="cpu")
    assert "separable_conv" in best.report.rules and "R.conv(" not in str(best.module)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 3, 96, 96)), "float32")
    np.testing.assert_allclose(best(x, BUMP), blur(x, BUMP), rtol=1e-5, atol=1e-5)


def test_windows_as_large_as_the_image_are_transformed_where_results_may_be_approximate() -> None:
    def large(x: Any, w: Any) -> Any:
        return lax.conv(x, w, (1, 1), "SAME")

    specs = ("1 1 96 96", "1 1 31 31")
    assert "conv_by_transforms" not in rx.optimize(large, *specs, weights=("w",), target="cpu").report.rules
    best = rx.optimize(large, *specs, weights=("w",), target="cpu", numerics="approximate")
    assert "conv_by_transforms" in best.report.rules and "R.conv(" not in str(best.module)
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal([int(d) for d in s.split()]), "float32") for s in specs)
    np.testing.assert_allclose(best(x, w), large(x, w), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("channels", "side", "out", "is_chosen"), [(128, 28, 128, True), (96, 80, 8, False)])
def test_the_price_decides_on_tiles(channels: int, side: int, out: int, is_chosen: bool) -> None:
    def layer(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "OIHW", "NHWC"))

    specs = f"1 {side} {side} {channels}", f"{out} {channels} 3 3"
    best = rx.optimize(layer, *specs, weights=("w",), target="cpu", numerics="approximate")
    assert ("winograd_by_fours" in best.report.rules) is is_chosen
    if is_chosen:
        rng = np.random.default_rng(0)
        x, w = (jnp.asarray(rng.standard_normal([int(d) for d in s.split()]), "float32") for s in specs)
        wanted, found = np.asarray(layer(x, w)), np.asarray(best(x, w))
        assert np.abs(found - wanted).max() < 3e-5 * np.abs(wanted).max()
        assert best.report.after.prepared_bytes == 4 * np.prod((6, 6, channels, out))
    assert not any("winograd" in r for r in rx.optimize(layer, *specs, weights=("w",), target="cpu").report.rules)


def two(x: Any, w: Any, v: Any) -> Any:
    y = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME"))
    return jax.nn.relu(lax.conv_general_dilated(y, v, (1, 1), "SAME"))


def test_tiles_keep_the_layout_of_the_network() -> None:
    module = rx.trace(two, "1 64 28 28", "64 64 3 3", "64 64 3 3")
    last = [e for e in module.main.expressions() if e.op == "conv"][-1]
    made = WAYS["winograd_by_fours"].proposals(last, ModuleAnswers({}, (), list(module.main.expressions())))
    assert len(made) == 3 and all(m.op == "permute_dims" for m in made)
    (first,) = (e for e in postorder((made[1],)) if e.op == "concat" and e.attr("axis") == 3)  # patches of the first
    assert first.shape[-1] == 64 * 9


def test_layers_by_tiles_are_explained() -> None:
    """That they are equal behind no transpose follows from rules about tensor programs that schemas proposed."""
    specs = "1 64 28 28", "65 64 3 3", "66 65 3 3"
    best = rx.optimize(two, *specs, weights=("w", "v"), target="cpu", numerics="approximate")
    assert best.report.rules["winograd_by_fours"] > 1
    tiled = [s for s in best.explain().steps if s.rule == "winograd_by_fours"]
    assert len(tiled) == 2


def test_what_tiles_are_not_made_for() -> None:
    cases = (
        conv("1 8 9 9", "8 8 3 3", strides=2), conv("1 8 9 9", "8 8 3 3", dilation=2), conv("1 8 9 9", "8 8 5 5"),
        conv("1 8 9 9", "8 4 3 3", groups=2), conv("1 8 9 9", "8 8 3 3", "bfloat16"),
        conv("1 8 9 9", "8 8 3 3", "int32"), conv("1 8 9 9", "8 8 3 3", "int32", padding="same"),
    )  # fmt: skip
    assert not any(proposed("winograd_by_fours", e) for e in cases)
    assert proposed("winograd_by_fours", conv("n 8 h w", "8 8 3 3", padding="same"))


@pytest.mark.parametrize("dtype", ["int32", "int8"])
def test_padded_images_of_integers(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.integers(-9, 9, s), dtype) for s in ((2, 4, 9, 9), (4, 4, 3, 3)))

    def twice(x: Any, w: Any) -> Any:
        return lax.conv(lax.conv(x, w, (1, 1), "SAME"), w, (2, 2), "SAME")

    assert jnp.array_equal(rx.optimize(twice, x, w, target="cpu")(x, w), twice(x, w))


def block(x: Any, w: Any, v: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", feature_group_count=48)
    return lax.conv(jax.nn.relu(y), v, (1, 1), "VALID")


def test_a_mobile_block_is_chosen_without_convolutions() -> None:
    best = rx.optimize(block, "1 48 33 40", "48 1 5 5", "16 48 1 1")
    assert not any(e.op == "conv" for e in best.module.main.expressions())
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((1, 48, 33, 40), (48, 1, 5, 5), (16, 48, 1, 1))]
    np.testing.assert_allclose(best(*args), block(*args), rtol=1e-4, atol=1e-4)


def test_at_symbolic_sizes() -> None:
    best = rx.optimize(block, "n 48 h w", "48 1 5 5", "16 48 1 1", at={"n": 1, "h": 33, "w": 40})
    assert "channels_last" in best.report.rules
    rng = np.random.default_rng(0)
    for n, h, w in ((1, 33, 40), (2, 7, 8)):
        shapes = (n, 48, h, w), (48, 1, 5, 5), (16, 48, 1, 1)
        args = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]
        np.testing.assert_allclose(best(*args), block(*args), rtol=1e-4, atol=1e-4)


def network(x: jax.Array, w1: jax.Array, w2: jax.Array, w3: jax.Array) -> jax.Array:
    y = lax.conv_general_dilated(x, w1, (2, 2), "SAME")
    y = jax.nn.hard_swish(lax.conv_general_dilated(y, w2, (1, 1), "SAME", feature_group_count=16))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jax.nn.relu(lax.conv(y, w3, (1, 1), "VALID"))


def test_a_network_with_channels_last_has_one_transpose_at_each_end() -> None:
    module = rx.trace(network, "1 3 32 32", "16 3 3 3", "16 1 3 3", "8 16 1 1")
    e = module.main.blocks[0].bindings[0].value
    (made,) = WAYS["channels_last"].proposals(e, ModuleAnswers({}, (), postorder((e,))))
    new = [x for x in postorder((made,)) if x.op == "permute_dims" and x.args[0].op not in ("reshape", "squeeze")]
    weights = set(module.main.params[1:])
    assert [x.attr("axes") for x in new if x.args[0] not in weights] == [(0, 2, 3, 1), (0, 3, 1, 2)]
    assert not any(x.op == "conv" for x in postorder((made,)))
    inner = next(x for x in postorder((e,)) if x.op == "conv")
    assert not WAYS["channels_last"].proposals(inner, ModuleAnswers({}, (), postorder((e,))))


def test_a_network_is_chosen_as_a_whole_and_computes_the_same() -> None:
    best = rx.optimize(network, "1 3 64 64", "16 3 3 3", "16 1 3 3", "8 16 1 1", weights=("w1", "w2", "w3"))
    rng = np.random.default_rng(0)
    args = [
        jnp.asarray(rng.normal(size=s), "float32")
        for s in ((1, 3, 64, 64), (16, 3, 3, 3), (16, 1, 3, 3), (8, 16, 1, 1))
    ]
    assert "channels_last" in best.report.rules and "R.conv(" not in str(best.module)
    np.testing.assert_allclose(best(*args), network(*args), rtol=1e-4, atol=1e-4)


def test_patches_of_a_whole_stride_are_a_matmul_without_slices() -> None:
    (made,) = WAYS["blocks_as_matmul"].proposals(conv("n 3 64 64", "96 3 16 16", strides=16), ModuleAnswers({}))
    operators = [x.op for x in postorder((made,))]
    assert operators.count("matmul") == 1 and not {"strided_slice", "concat", "conv"} & set(operators)
    assert not WAYS["blocks_as_matmul"].proposals(conv("n 3 64 64", "96 3 3 3", strides=2), ModuleAnswers({}))


def test_a_network_is_written_once_in_a_search_and_each_proposal_has_all_answers() -> None:
    """What a schema keeps between nodes does not keep answers from the record by which its proposal is checked."""
    x, kernels = var("x", rx.Tensor("1 8 20 20")), [var(n, rx.Tensor("8 8 3 3")) for n in "uvw"]
    layers = [x]
    for k in kernels:
        layers.append(op.relu(op.conv(layers[-1], k, padding="same")))
    nodes = postorder((layers[-1],))
    queries = ModuleAnswers({}, (), nodes)
    ends, alone = [RecordingAnswers(queries) for _ in range(2)], RecordingAnswers(ModuleAnswers({}, (), nodes))
    found = [WAYS["channels_last"].proposals(layers[-1], q) for q in (*ends, alone)]
    assert found[0] == found[1] == found[2] and found[0]
    assert ends[0].answers.sizes == ends[1].answers.sizes == alone.answers.sizes
    assert len(alone.answers.sizes) > 0


@pytest.mark.parametrize("is_depthwise", [True, False])
def test_few_rows_refute_only_kernels_of_higher_rank(is_depthwise: bool) -> None:
    """A kernel of low rank is found up to the tolerance, wherever its elements are; a trained one has full rank."""
    rng, (o, k, rank) = np.random.default_rng(0), (24, 1, 1) if is_depthwise else (24, 20, 3)
    left, right = rng.standard_normal((rank, o, 3)), rng.standard_normal((rank, o if is_depthwise else k, 5))
    low = np.einsum("rop,roq->opq" if is_depthwise else "rop,rkq->okpq", left, right).reshape(o, k, 3, 5)
    low[:-1] *= 1e-3  # what is large is in a few places
    largest = np.abs(low).max((1, 2, 3), keepdims=True) if is_depthwise else np.abs(low).max()
    noise = rng.uniform(-1, 1, low.shape) * largest
    for share, is_found in ((0.0, True), (0.3, True), (300.0, False)):
        found = factors(low + share * NEAR * noise, is_depthwise, NEAR, MOST_RANK)
        assert (found is not None) is is_found
    assert factors(noise, is_depthwise, NEAR, MOST_RANK) is None


def pool(shape: str, kind: str, window: tuple[Any, ...], strides: Any = None, dtype: str = "float32") -> Expr:
    return op.reduce_window(var("x", rx.Tensor(shape, dtype)), kind, window, strides, "same")


def test_windows_over_several_axes_are_reduced_along_the_axis_of_the_greatest_stride_first() -> None:
    (made,) = WAYS["windows_along_axes"].proposals(
        pool("1 h 64 3", "max", (1, 3, 5, 1), (1, 1, 2, 1)), ModuleAnswers({})
    )
    (inner,) = made.args
    assert [str(n) for n in inner.attr("window")] == ["1", "1", "5", "1"] and inner.attr("strides") == (1, 1, 2, 1)
    assert [str(n) for n in made.attr("window")] == ["1", "3", "1", "1"] and made.attr("strides") == (1, 1, 1, 1)


@pytest.mark.parametrize(
    "e",
    [
        pool("64 64", "max", (3, 1)),
        pool("64 64", "max", (3, 3), (3, 3)),
        pool("64 64", "max", (2, 2)),
        pool("64 64", "sum", (3, 3), dtype="bfloat16"),
    ],
)
def test_windows_along_one_axis_apart_small_or_summed_in_16_bits_stay(e: Expr) -> None:
    assert not proposed("windows_along_axes", e)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize(("kind", "strides"), [("max", (1, 2, 2, 1)), ("sum", (1, 1, 1, 1))])
def test_pooling_is_along_one_axis_after_the_other(kind: str, strides: tuple[int, ...], dtype: str) -> None:
    def fn(x: Any) -> Any:
        start, combine = (0, lax.add) if kind == "sum" else (-128, lax.max)
        return lax.reduce_window(x, jnp.asarray(start, dtype), combine, (1, 3, 5, 1), strides, "SAME")

    best = rx.optimize(fn, f"2 h 40 8 @ {dtype}", at={"h": 50}, target="cpu")
    is_coarse = (kind, dtype) == ("sum", "bfloat16")
    assert best.report.kept_as_written == is_coarse and ("windows_along_axes" in str(best.report)) == (not is_coarse)
    x = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (2, 50, 40, 8)), dtype)
    assert jnp.array_equal(best(x), fn(x))
    if (kind, dtype) == ("sum", "float32"):
        slopes = [jax.grad(lambda x, f=f: (f(x) ** 2).sum())(x) for f in (best.to_jax(), fn)]
        assert jnp.allclose(*slopes)
