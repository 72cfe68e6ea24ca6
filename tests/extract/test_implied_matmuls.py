"""Sums of products that XLA's CPU backend computes as matmuls are priced as matmuls; others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.extract.costs.implied_matmuls import implied_matmuls
from relax_eg.extract.profiles.devices import CPU, WITHOUT_YNN
from relax_eg.extract.profiles.profile import Profile

NONE = rx.RuleSet("none")
SPECS = ("2048 512", "2048 16")


def outer(x: Any, y: Any) -> Any:
    return y[:, :, None] * x[:, None, :]


def seconds(fn: Callable[..., Any], *specs: Any, profile: Profile = CPU) -> float:
    return rx.optimize(fn, *specs, rules=NONE, target=profile).report.before.seconds


MATMULS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[str, ...]]] = {
    "outer products": (lambda x, y: outer(x, y).sum(0), lambda x, y: y.T @ x, SPECS),
    "rows by columns": (
        lambda a, b: (a[:, :, None] * b[None]).sum(1), lambda a, b: a @ b, ("300 512", "512 64"),
    ),
    "batches": (
        lambda a, b: (a[:, :, :, None] * b[:, None]).sum(2), lambda a, b: a @ b, ("8 128 128", "8 128 128"),
    ),
    "broadcast by hand": (
        lambda x, y: (jnp.broadcast_to(y[:, :, None], (2048, 16, 512)) * x[:, None, :]).sum(0),
        lambda x, y: y.T @ x, SPECS,
    ),
    "symbolic": (lambda x, y: outer(x, y).sum(0), lambda x, y: y.T @ x, ("n 512", "n 16")),
}  # fmt: skip

# Measured on a CPU with jax 0.10.2: 6 to 300 times slower than the matmul.
LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "two axes": (
        lambda a, b: (a[:, :, :, None] * b[:, :, None, :]).sum((0, 1)), ("16 128 16", "16 128 512"),
    ),
    "three factors": (lambda x, y: (outer(x, y) * x[:, None, :1]).sum(0), SPECS),
    "a function of products": (lambda x, y: jnp.exp(outer(x, y)).sum(0), SPECS),
    "read twice": (lambda x, y: (lambda m: (m.sum(0), m.max(0)))(outer(x, y)), SPECS),
    "an axis of one operand": (lambda x, y: outer(x, y).sum((1,)), SPECS),
    "no product": (lambda x, y: jax.lax.top_k(x, 4)[0].sum(0), SPECS),
    "integers": (
        lambda x, y: outer(x, y).sum(0),
        (jax.ShapeDtypeStruct((2048, 512), jnp.int32), jax.ShapeDtypeStruct((2048, 16), jnp.int32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MATMULS)
def test_a_summed_product_is_priced_as_the_matmul_that_runs(name: str) -> None:
    written, matmul, specs = MATMULS[name]
    assert seconds(written, *specs) == pytest.approx(seconds(matmul, *specs), rel=0.1)
    assert seconds(written, *specs, profile=CPU.in_mode(WITHOUT_YNN)) > 2 * seconds(matmul, *specs)


def test_a_large_one_along_another_axis_than_the_last_takes_longer() -> None:
    written, _, _ = MATMULS["rows by columns"]
    last = seconds(lambda a, b: (a[:, None] * b[None]).sum(-1), "512 512", "512 512")
    assert seconds(written, "512 512", "512 512") > 1.5 * last


@pytest.mark.parametrize("name", LOOPS)
def test_other_sums_are_priced_as_loops(name: str) -> None:
    fn, specs = LOOPS[name]
    main = rx.optimize(fn, *specs, rules=NONE, target="cpu").module.main
    matmuls, _ = implied_matmuls(main, list(main.expressions()), True, lambda rows: False, lambda size: 1024.0)
    assert not matmuls


def test_what_runs_as_a_matmul_is_no_reason_to_choose_another_program() -> None:
    def gradient(x: Any, w: Any, y: Any) -> Any:
        return jnp.mean(outer(x, x @ w - y), 0)

    best = rx.optimize(gradient, "8192 512", "512 16", "8192 16", target="cpu")
    assert best.report.predicted_gain < 1.05


@pytest.mark.xla_defaults
def test_one_row_and_a_bias_do_not_copy_the_weight_at_every_call() -> None:
    """XLA copies the transpose of `x @ w.T + b` for one row, which is priced; the program that is chosen does not."""

    def layer(x: Any, w: Any, b: Any) -> Any:
        return jnp.tanh(x @ w.T + b)

    specs, width = ("n 256", "512 256", "512"), 4 * 512 * 256
    best = rx.optimize(layer, *specs, at={"n": 1}, target="cpu")
    assert best.report.rules["transposed_weight_as_stored"] == 1 and best.report.predicted_gain > 1.05
    given = jnp.ones((1, 256)), jnp.ones((512, 256)), jnp.ones(512)

    def temporary(fn: Any) -> int:
        return jax.jit(fn).lower(*given).compile().memory_analysis().temp_size_in_bytes

    assert temporary(layer) >= width > 10 * temporary(best.to_jax())
    assert jnp.allclose(best(*given), layer(*given))
    assert rx.optimize(layer, *specs, at={"n": 2}, target="cpu").report.kept_as_written


def test_truth_values_are_contracted_too() -> None:
    """The transpose of an operand is priced as XLA reads it, whatever the dtype."""
    x = jnp.arange(12).reshape(3, 4) % 5 == 0
    best = rx.optimize(lambda x, y: x @ y.T, x, x, target="cpu")
    assert (best(x, x) == x @ x.T).all() and best(x, x).dtype == bool
