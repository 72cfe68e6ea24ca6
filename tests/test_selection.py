"""What `optimize` chooses where merging pays or does not, how near the best it says that is, and what came second."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.extract.profiles.profile import Profile
from relax_eg.extract.report import RunnerUp, SelectedRow
from relax_eg.reports import CostReport

Array = jax.Array


def device(half: float) -> Profile:
    """A device on which a matmul of `half` columns reaches half its peak: one wide matmul beats narrow ones."""
    return Profile(
        name="made up",
        matmul_rate={"float32": 1e12},
        vector_rate=20e12,
        bandwidth=2e12,
        cache_bandwidth=4e12,
        cache_bytes=4e7,
        launch=1e-8,
        dispatch=1e-5,
        matmul_half=(1.0, half, 1.0),
    )


def projections(x: Array, wq: Array, wk: Array, wv: Array) -> tuple[Array, Array, Array]:
    return jnp.tanh(x @ wq), jnp.exp(x @ wk), x @ wv


def gated(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def adapters(x: Array, a1: Array, a2: Array, b1: Array, b2: Array) -> tuple[Array, Array]:
    return (x @ a1) @ b1, jnp.tanh((x @ a2) @ b2)


CASES: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...], int, int]] = {
    # function, specs, weights, matmuls as written, matmuls merged
    "QKV": (projections, ("b 512", "512 512", "512 512", "512 512"), ("wq", "wk", "wv"), 3, 1),
    "gate|up": (gated, ("b 512", "512 1024", "512 1024", "1024 512"), ("gate", "up", "down"), 3, 2),
    "LoRA pairs": (adapters, ("b 512", "512 16", "512 16", "16 512", "16 512"), ("a1", "a2", "b1", "b2"), 4, 3),
}


def matmuls(best: Any) -> int:
    return sum(r.count for r in best.report.after.rows if r.op in ("matmul", "linear"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch", [1, 32])
def test_merged_products_are_found_where_they_pay(case: str, batch: int) -> None:
    fn, specs, weights, written, merged = CASES[case]
    best = rx.optimize(fn, *specs, at={"b": batch}, weights=weights, target=device(4096.0))
    assert not best.report.kept_as_written
    assert matmuls(best) <= merged
    assert best.report.after.seconds < best.report.before.seconds
    assert {row.how for row in best.report.selected} == {"proved optimal"}
    alone = rx.optimize(
        fn,
        *specs,
        at={"b": batch},
        weights=weights,
        target=device(4096.0),
        rules=rx.rules.default - "merge",
    )
    assert matmuls(alone) <= written
    # More rules never give a dearer program.
    assert best.report.after.seconds <= alone.report.after.seconds * (1 + 1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["rtx4090", "a100", "h100", "h200"])
def test_merged_products_are_found_on_gpus(case: str, target: str) -> None:
    """A launch each is what they save; what takes them apart is read by what follows."""
    fn, specs, weights, _, merged = CASES[case]
    # On the fastest GPUs CUDA graphs leave less than 5% of a call to gain.
    with rx.debug.options(least_gain=1):
        best = rx.optimize(fn, *specs, at={"b": 32}, weights=weights, target=target)
        rest = rx.rules.default - "merge"
        alone = rx.optimize(fn, *specs, at={"b": 32}, weights=weights, target=target, rules=rest)
    assert not best.report.kept_as_written and matmuls(best) == merged
    assert best.report.after.seconds < 0.99 * alone.report.after.seconds


@pytest.mark.parametrize("case", CASES)
def test_products_stay_apart_where_narrow_ones_are_as_fast(case: str) -> None:
    fn, specs, weights, written, _ = CASES[case]
    best = rx.optimize(fn, *specs, at={"b": 4096}, weights=weights, target=device(0.0))
    assert best.report.after.seconds <= best.report.before.seconds
    assert matmuls(best) <= written


def chain(a: Array, b: Array, v: Array) -> Array:
    return (a @ b) @ v


def test_the_runner_up_says_what_came_second_and_why() -> None:
    report = rx.optimize(chain, "n n", "n n", "n", at={"n": 512}).report
    second = report.runner_up
    assert second is not None and second.function == "chain"
    assert second.without in report.rules or second.with_rule != second.without
    assert second.extra > 0
    (row,) = report.selected
    assert (row.function, row.how) == ("chain", "proved optimal")
    assert row.bound <= row.cost and row.gap < 1e-6
    why = dict((op, (x, y)) for op, x, y in second.why)
    assert sum(y - x for x, y in why.values()) == pytest.approx(second.extra * row.cost, rel=1e-6)
    text = str(report)
    assert "1 of 1 proved optimal" in text
    assert "runner-up in chain: without" in text and "dearer: matmul" in text
    again = CostReport.from_json(report.to_json())
    assert again.runner_up == second and again.selected == report.selected


def product_times_vector(a: Array, b: Array, v: Array) -> Array:
    return (a @ b) @ v


@pytest.mark.parametrize(("dispatch", "kept"), [(0.0, False), (1e-9, False), (1e-3, True)])
def test_dispatch_is_on_both_sides_of_what_is_gained(dispatch: float, kept: bool) -> None:
    """A product less is a lot of a small program, and nothing of a call that takes a thousand times as long."""
    target = replace(device(0.0), dispatch=dispatch)
    best = rx.optimize(product_times_vector, "n n", "n n", "n", at={"n": 16}, target=target)
    assert best.report.kept_as_written == kept
    assert kept or best.report.before.seconds > 1.05 * best.report.after.seconds


@pytest.mark.parametrize(("fork", "kept"), [(0.0, True), (1e-3, False)])
def test_waking_other_cores_counts_once_a_call(fork: float, kept: bool) -> None:
    """The product of 16 x 16 matrices is enough work to wake cores, those with a vector are not."""
    target = replace(device(0.0), dispatch=1e-3, fork=fork, fork_flops=4000.0)
    best = rx.optimize(product_times_vector, "n n", "n n", "n", at={"n": 16}, target=target)
    assert best.report.kept_as_written == kept and best.report.before.wakes
    assert best.report.after.wakes == kept
    twice = rx.optimize(lambda a, b, c: a @ b @ c, "n n", "n n", "n n", at={"n": 16}, target=target)
    assert twice.report.before.wakes and twice.report.before.seconds < 1e-5  # what is paid once is in no row


def test_a_program_kept_as_written_tells_what_was_found() -> None:
    # Merging pays, but less than the 5% that are asked for.
    best = rx.optimize(
        projections,
        *CASES["QKV"][1],
        at={"b": 4096},
        weights=("wq", "wk", "wv"),
        target=device(20.0),
    )
    assert best.report.kept_as_written
    second = best.report.runner_up
    assert second is not None and -0.05 < second.extra < 0
    assert "cheaper as predicted, which is less than is asked for" in str(second)


def test_runners_up_in_words() -> None:
    second = RunnerUp("main", "merge", "", 0.25, (("matmul", 1e-3, 1.5e-3), ("add", 2e-6, 1e-6)))
    assert str(second) == (
        "runner-up in main: without merge, 25% dearer: matmul 1.5 ms in place of 1 ms, add 1 us in place of 2 us"
    )
    shares = RunnerUp("main", "", "r", 0.1, (("matmul", 0.25, 0.5),), in_seconds=False)
    assert str(shares).endswith("10% dearer: matmul 50% in place of 25% of the program as written")
    assert str(RunnerUp("main", "", "", 0.1)) == "runner-up in main: with one value more as written, 10% dearer"
    assert str(RunnerUp("main", "", "r", 0.1)) == "runner-up in main: with r, 10% dearer"


def test_a_gap_is_told_for_what_is_not_proved() -> None:
    report = rx.optimize(chain, "n n", "n n", "n", at={"n": 512}).report
    rows = (SelectedRow("f", "ilp", 2.0, 1.9, 10), SelectedRow("g", "proved optimal", 1.0, 1.0, 5))
    data = {**report.as_data(), "selected": [asdict(row) for row in rows]}
    text = str(CostReport.from_data(data))
    assert "selection among the 15 candidates kept: 1 of 2 proved optimal; f ilp, gap 5%" in text
