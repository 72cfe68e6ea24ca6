"""Prices of single operators: what the cost model knows of the device's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import relax_eg as rx
from relax_eg import op
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.profiles.devices import CPU
from relax_eg.ir.expr import CALL_TIR, Expr, postorder, var
from relax_eg.ops import site_of
from relax_eg.rules.schemas import ModuleAnswers

MODEL = WholeCost(CPU, {})


def seconds(e: Expr) -> float:
    return MODEL.price(site_of(e), e.annotation).seconds


def conv(x: str, weight: str, **attrs: Any) -> float:
    """Of a convolution that keeps the image's size."""
    return seconds(op.conv(var("x", rx.Tensor(x)), var("w", rx.Tensor(weight)), **{"padding": "same", **attrs}))


@pytest.mark.parametrize("size", [14, 56])
def test_a_convolution_is_priced_as_the_matmul_of_its_windows(size: int) -> None:
    windows, weight = var("a", rx.Tensor(f"{size * size} {64 * 9}")), var("b", rx.Tensor(f"{64 * 9} 128"))
    assert conv(f"1 64 {size} {size}", "128 64 3 3") == pytest.approx(CPU.conv_factor * seconds(windows @ weight), 0.1)


def test_a_convolution_of_few_channels_is_slower_per_flop() -> None:
    """Measured: 31 Gflop/s from one channel to 32, 194 from 128 to 128."""
    assert conv("4 1 28 28", "32 1 3 3") * 128 * 4 > 2 * conv("4 128 28 28", "128 128 3 3")


def test_rows_of_windows_are_gathered_but_for_kernels_of_one_element() -> None:
    """Measured, from 3 channels to 16, strides of 2: 2.0 ms at a side of 320."""
    assert conv("1 3 320 320", "16 3 3 3", strides=2, padding=((1, 1), (1, 1))) == pytest.approx(2e-3, 0.5)
    rows = 320 * 320
    less = WholeCost(replace(CPU, window_row=0.0), {})
    for weight, gathered in (("16 3 3 3", 3), ("16 3 3 1", 3), ("16 3 1 3", 1), ("16 3 1 1", 0)):
        e = op.conv(var("x", rx.Tensor("1 3 320 320")), var("w", rx.Tensor(weight)), padding="same")
        without = less.price(site_of(e), e.annotation).seconds
        assert seconds(e) - without == pytest.approx(gathered * rows * CPU.window_row)


def test_a_depthwise_convolution_is_not_cheap() -> None:
    """Measured: 0.8 Gflop/s, where dense ones reach 200; so 128 times fewer flops take about as long."""
    dense = conv("1 128 28 28", "128 128 3 3")
    depthwise = conv("1 128 28 28", "128 1 3 3", groups=128)
    assert dense / 4 < depthwise < 8 * dense
    assert conv("1 128 28 28", "128 16 3 3", groups=8) < depthwise


def test_taps_with_channels_last_are_cheaper() -> None:
    """Measured in a network, 88 channels of 3 x 96, window 5 x 5: 180 us with channels first, 46 with channels last."""
    e = op.conv(var("x", rx.Tensor("1 88 3 96")), var("w", rx.Tensor("88 1 5 5")), padding="same", groups=88)
    ways = {s.name: s for s in rx.rules.windows.schemas}

    def taps(way: str) -> float:
        (made,) = ways[way].proposals(e, ModuleAnswers({}))
        return sum(seconds(x) for x in postorder((made,)) if x.op == CALL_TIR)  # of few rows, one for each band

    assert taps("depthwise_by_taps") == pytest.approx(180e-6, 0.3) and taps("channels_last") == pytest.approx(
        46e-6, 0.3
    )


def test_zeros_between_the_elements_of_an_image_cost_nothing() -> None:
    plain = conv("1 64 28 28", "64 64 3 3")
    assert conv("1 64 14 14", "64 64 3 3", input_dilation=2, padding=((2, 1), (2, 1))) < plain / 3


def test_sorting_is_not_vectorised() -> None:
    x = var("x", rx.Tensor("100000"))
    assert seconds(op.sort(x)) > 100 * seconds(x + x)


def matrix(rows: int, columns: int) -> Expr:
    return var("a", rx.Tensor(f"{rows} {columns}"))


def test_factorisations_come_near_the_matmul_rate_where_they_are_large() -> None:
    """Measured: lu of 64 rows 5 Gflop/s, of 256 40, of 768 83, where matmuls reach 330; flops as its record has."""
    rates = [n**3 / seconds(op.lu(matrix(n, n))[0].args[0]) for n in (64, 256, 768, 100_000)]
    assert rates == sorted(rates)
    assert rates[0] < rates[2] / 5 and rates[3] == pytest.approx(CPU.factor_share * CPU.rate("float32"), 0.05)


def test_triangular_systems_cost_little_more_for_a_few_more_right_sides() -> None:
    """Measured at 512 rows: 230 us for one right-hand side, 277 for 16, 1190 for 512."""
    one, some, many = (seconds(op.triangular_solve(matrix(512, 512), matrix(512, k))) for k in (1, 16, 512))
    assert one < some < 1.5 * one and many > 3 * one
    right = op.triangular_solve(matrix(512, 512), matrix(16, 512), left_side=False)
    assert seconds(right) == pytest.approx(some)


def test_one_matmul_is_faster_than_several_of_its_columns() -> None:
    """Measured: three products of 12 rows with 320 x 320 take 28 us more than the one with 320 x 960."""

    def saved(rows: int, n: int) -> float:
        return 3 * seconds(matrix(rows, n) @ matrix(n, n)) - seconds(matrix(rows, n) @ matrix(n, 3 * n))

    assert saved(12, 320) > 2 * CPU.join
    assert saved(12, 64) < CPU.join  # small weights are multiplied by one core
    assert saved(1, 320) < CPU.join  # and so is a single row
