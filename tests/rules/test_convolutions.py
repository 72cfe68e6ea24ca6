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
from relax_eg.ir.expr import CALL_TIR, Expr, postorder, var
from relax_eg.rules.schema_trials import first_difference
from relax_eg.rules.schemas import ModuleAnswers

WAYS = {s.name: s for s in rx.rules.windows.schemas}


def conv(x: str, w: str, dtype: str = "float32", **attrs: Any) -> Expr:
    return op.conv(var("x", rx.Tensor(x, dtype)), var("w", rx.Tensor(w, dtype)), **attrs)


def proposed(way: str, e: Expr) -> list[str]:
    """The operators of the proposals."""
    return [x.op for p in WAYS[way].proposals(e, ModuleAnswers({})) for x in postorder((p,)) if x.op != "var"]


@pytest.mark.parametrize("name", WAYS)
def test_proposals_are_equal_on_random_convolutions(name: str) -> None:
    right, wrong = first_difference(WAYS[name], programs=120)
    assert not wrong and right >= 10


def test_a_depthwise_convolution_is_one_program_over_the_padded_image() -> None:
    e = conv("n 8 h w", "8 1 3 3", groups=8, padding="same", strides=2)
    assert proposed("depthwise_by_taps", e) == ["constant", "pad", CALL_TIR]
    assert proposed("depthwise_by_taps", conv("2 8 20", "8 1 5", groups=8)) == [CALL_TIR]


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


def test_windows_that_overlap_are_no_sub_pixels() -> None:
    apart = {"input_dilation": 2, "padding": [(1, 1), (1, 1)]}
    assert proposed("conv_as_sub_pixels", conv("n 4 5 6", "3 4 2 2", **apart))
    assert not proposed("conv_as_sub_pixels", conv("n 4 5 6", "3 4 3 3", **apart))
    assert not proposed("conv_as_sub_pixels", conv("n 4 h w", "3 4 2 2", **apart))  # h = 0 gives one pixel


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
