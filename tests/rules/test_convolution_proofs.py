"""Proofs of rules about convolutions: places are compared one by one, and what is wrong is not shown."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, postorder, var
from relax_eg.ops import api as op
from relax_eg.rules.schemas import ModuleAnswers, Schema
from relax_eg.rules.shared_parts import why_not_equal_over_shared
from relax_eg.rules.windows import winograd
from relax_eg.rules.windows.channels_last import to_first, to_last

SECONDS = 60.0
WINDOWS = {s.name: s for s in rx.rules.windows.schemas}


def conv(image: tuple[int, ...], kernel: tuple[int, ...], *attrs: Any, **more: Any) -> Expr:
    x, w = var("x", Tensor(image, "float32")), var("w", Tensor(kernel, "float32"))
    return op.conv(x, w, *attrs, **more)


def proposals(schema: Schema, node: Expr) -> tuple[Expr, ...]:
    if node.op not in schema.operators:
        return ()
    return schema.proposals(node, ModuleAnswers({}, (), postorder((node,))))


def why_not(left: Expr, right: Expr, numerics: rx.rules.Numerics = "reassociate") -> str:
    return why_not_equal_over_shared(left, right, SECONDS, numerics)


SAME = [(1, 1), (1, 1)]
CASES = {
    "one axis of size 1": ("conv_of_fewer_axes", conv((2, 8, 1, 14), (4, 8, 3, 3), 1, SAME)),
    "taps": ("depthwise_by_taps", conv((2, 32, 14, 20), (32, 1, 5, 3), [2, 1], [(2, 2), (0, 1)], groups=32)),
    "taps apart": ("depthwise_by_taps", conv((2, 32, 14, 20), (32, 1, 3, 3), 1, [(2, 2)] * 2, [2, 2], groups=32)),
    "patches": ("patches_as_matmul", conv((2, 16, 14, 20), (32, 16, 3, 3), 1, SAME)),
    "patches with strides": ("patches_as_matmul", conv((2, 16, 15, 20), (32, 16, 3, 2), [2, 3], SAME)),
    "blocks": ("conv_of_blocks", conv((1, 3, 32, 30), (24, 3, 4, 3), 2, [(1, 1), (0, 1)])),
    "blocks as rows": ("blocks_as_matmul", conv((1, 3, 32, 32), (24, 3, 4, 4), 4, [(0, 0), (2, 2)])),
    "phases": ("conv_by_phases", conv((2, 8, 14, 9), (4, 8, 4, 3), 1, [(2, 2), (1, 1)], input_dilation=[2, 3])),
    "tiles of two": ("winograd_by_twos", conv((2, 8, 14, 15), (4, 8, 3, 3), 1, SAME)),
    "tiles of four, one axis": ("winograd_by_fours", conv((2, 8, 37), (4, 8, 3), 1, [(1, 1)])),
}


@pytest.mark.parametrize("name", CASES)
def test_a_proposal_is_proved(name: str) -> None:
    rule, node = CASES[name]
    found = proposals(WINDOWS[rule], node)
    assert found
    prove = WINDOWS[rule].prove
    assert prove is not None
    for proposed in found:
        assert prove(node, proposed, lambda _: frozenset(), {}) == ""


@pytest.mark.slow  # about 5 s
def test_tiles_of_four_over_two_axes_are_proved() -> None:
    node = conv((1, 8, 14, 14), (4, 8, 3, 3), 1, SAME)
    (proposed,) = proposals(WINDOWS["winograd_by_fours"], node)
    assert why_not(node, proposed, "approximate") == ""


def _network() -> Expr:
    """Two convolutions with a gate and a pooling, and a third by one element."""
    x = var("x", Tensor((2, 8, 16, 16), "float32"))
    e = op.relu(op.conv(x, var("w0", Tensor((12, 8, 3, 3), "float32")), 2, SAME))
    e = op.reduce_window(e, "max", (1, 1, 2, 2), (1, 1, 1, 1), [(0, 0), (0, 0), (0, 1), (0, 1)])
    e = op.multiply(e, op.sum(e, (2, 3), keepdims=True))
    e = op.conv(e, var("w1", Tensor((12, 1, 3, 3), "float32")), 1, SAME, groups=12)
    return op.conv(e, var("w2", Tensor((4, 12, 1, 1), "float32")))


def test_a_network_with_channels_last_is_proved_image_by_image() -> None:
    rule, node = WINDOWS["channels_last"], _network()
    (proposed,) = proposals(rule, node)
    assert rule.prove is not None
    assert rule.prove(node, proposed, lambda _: frozenset(), {}) == ""
    wrong = op.flip(proposed, 2)
    assert rule.prove(node, wrong, lambda _: frozenset(), {})
    # A step in the middle is wrong: what is proposed for another network.
    x, w = node.args
    other = op.conv(op.add(x, x), w)
    assert rule.prove(other, proposed, lambda _: frozenset(), {})


def test_a_product_of_kernels_is_proved_and_its_rounded_factors_are_not() -> None:
    u, v = var("u", Tensor((6, 1, 5, 1), "float32")), var("v", Tensor((6, 1, 1, 3), "float32"))
    x = var("x", Tensor((2, 6, 20, 20), "float32"))
    node = op.conv(x, op.multiply(u, v), 1, [(2, 2), (1, 1)], groups=6)
    for proposed in proposals(WINDOWS["separable_conv"], node):
        assert why_not(node, proposed) == ""
    thirds = (np.outer([1, 2, 3], [1, 2, 1]) / 3).astype(np.float32)[None, None]
    known = op.conv(x, const(np.repeat(thirds, 6, 0)), 1, SAME, groups=6)
    found = proposals(WINDOWS["separable_conv"], known)
    assert found and all(why_not(known, proposed) for proposed in found)


def _with(tile: winograd.Tile, node: Expr) -> Expr:
    x = op.permute_dims(node.args[0], to_last(node.ndim))
    return op.permute_dims(winograd.convolution(node, x, tile), to_first(node.ndim))


WRONG = {
    "a divisor": replace(winograd.TWO, divisors=(1, 2, 2, 2)),
    "a number of the image": replace(winograd.TWO, image=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, 1))),
    "a number of the result": replace(winograd.TWO, result=((1, 1, 1, 0), (0, 1, 1, -1))),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_tile_with_a_wrong_number_is_not_shown(what: str) -> None:
    node = conv((2, 8, 15), (4, 8, 3), 1, [(1, 1)])
    assert why_not(node, _with(winograd.TWO, node), "approximate") == ""
    assert "not shown equal" in why_not(node, _with(WRONG[what], node), "approximate")


OTHERS = {
    "padding": (conv((2, 8, 15), (4, 8, 3), 1, [(1, 1)]), conv((2, 8, 15), (4, 8, 3), 1, [(0, 2)])),
    "strides": (conv((2, 8, 14), (4, 8, 4), 2, [(1, 1)]), conv((2, 8, 14), (4, 8, 4), 2, [(2, 0)])),
    "dilation": (conv((2, 8, 15), (4, 8, 3), 1, [(1, 1)]), conv((2, 8, 15), (4, 8, 3), 1, [(2, 2)], 2)),
    "phases": (CASES["phases"][1], conv((2, 8, 14, 9), (4, 8, 4, 3), 1, [(1, 3), (1, 1)], input_dilation=[2, 3])),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_proposed_for_another_convolution_is_not_shown(what: str) -> None:
    node, other = OTHERS[what]
    assert node.annotation == other.annotation
    made = [p for s in WINDOWS.values() if s.numerics == "reassociate" for p in proposals(s, node)]
    assert made and all(why_not(node, p) == "" for p in made)
    assert all("not shown equal" in why_not(other, p) for p in made)


def test_the_highest_precision_may_stand_for_another_but_not_the_other_way() -> None:
    a, b = var("a", Tensor("n k")), var("b", Tensor("k m"))
    usual, highest = op.matmul(a, b), op.matmul(a, b, precision="highest")
    assert why_not(usual, highest) == ""
    assert "precision" in why_not(highest, usual)
    assert "precision" in why_not(usual, highest, "exact")


def test_a_derivation_says_that_a_step_is_proved() -> None:
    def blurred(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), SAME, feature_group_count=64)

    specs = rx.Tensor((1, 64, 56, 56), "float32"), rx.Tensor((64, 1, 3, 3), "float32")
    best = rx.optimize(blurred, *specs)
    assert set(best.report.rules) & set(WINDOWS)
    assert "equal over the reals: proved for these shapes" in str(best.explain())
