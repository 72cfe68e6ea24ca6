"""Cost reports of published decoders, whose weights nobody has here; their roofline by hand arithmetic."""

from __future__ import annotations

import pytest

import relax_eg as rx
from benchmarks.decoders import CACHED, MODELS, cost_report

# Of Llama3-8B, by hand: what one layer multiplies by (q, k and v, out, gate, up, down), and the head.
LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
HEAD = 4096 * 128256


@pytest.mark.parametrize("name", MODELS)
def test_two_layers_without_weights(name: str) -> None:
    report = cost_report(name, "h100", (1, 64), layers=2)
    one, many = report.at_each()
    assert one.roofline is not None and many.roofline is not None
    assert one.roofline.bound == "memory" and one.roofline.dtype == "bfloat16"
    assert one.after.seconds < many.after.seconds < 64 * one.after.seconds
    assert one.predicted_gain >= 1.0


@pytest.mark.parametrize("batch", [1, 64])
def test_the_roofline_by_hand(batch: int) -> None:
    layers = 2
    report = cost_report("llama3-8b", "h100", (batch,), layers, rules=rx.RuleSet("none"))
    found = [p for p in report.before.parts if p.what in ("matmul", "linear")]
    # A multiply and an add for each weight and sequence; scores and mixing: 32 heads of 128 over the tokens before.
    attention = 2 * 2 * 32 * 128 * CACHED
    flops = batch * (layers * (2 * LAYER + attention) + 2 * HEAD)
    assert sum(p.flops for p in found) == pytest.approx(flops, rel=0.01)
    # Weights are read once whatever the batch, keys and values of 8 heads once for each sequence; two bytes each.
    least = 2 * (layers * LAYER + HEAD) + 2 * batch * layers * 2 * 8 * 128 * CACHED
    # The kernel that appends values to the cache computes them, if there is one token.
    moved = sum(p.bytes for p in report.before.parts if p.what in ("matmul", "linear", "concat"))
    assert least <= moved <= 1.05 * least + 2 * batch * layers * 8 * 14336 * 2
    roof = report.roofline
    assert roof is not None and roof.bandwidth == 3.35e12
    assert 0.99 * 989e12 < roof.peak < 989e12  # norms and angles are computed in float32, which has half the peak
    assert roof.bytes == report.after.bytes >= moved and roof.bound == roof.source == "memory"
    assert roof.streaming == roof.bytes / 3.35e12 >= least / 3.35e12
    # Kernel by kernel: those whose bytes memory can have delivered in the time stream, the others read the cache.
    moving = 0.0
    for p in report.after.parts:
        if p.bytes <= p.seconds * 3.35e12 * (1 + 1e-6):
            moving += p.bytes / 3.35e12
        elif p.bytes <= p.seconds * 3 * 3.35e12 * (1 + 1e-6):
            moving += p.bytes / (3 * 3.35e12)
    assert roof.moving == pytest.approx(moving) and roof.least == max(roof.flops / roof.peak, roof.moving)
    assert 0.5 < roof.share <= 1 and roof.reached <= roof.roof <= roof.peak
    # What streams from memory cannot be predicted to take less than the data sheet's bandwidth allows.
    assert report.before.seconds >= least / 3.35e12


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_whole_models(name: str) -> None:
    report = cost_report(name, "a100")
    assert [r.at["b"] for r in report.at_each()] == [1, 2, 4, 8, 16, 32, 64]
    weights = {"llama3-8b": 7.5e9, "gemma1.1-7b": 8.5e9, "qwen2-7b": 7.1e9}[name]  # those that a step multiplies by
    assert report.after.seconds >= 0.95 * 2 * weights / 2.039e12
