"""The accuracy law of whole programs: choices whose error exceeds that of the program as written are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir.expr import Expr, var
from relax_eg.rules.checking import program_accuracy
from relax_eg.rules.checking.judge import Case, PreparedSides, evaluate_sides
from relax_eg.rules.checking.program_accuracy import inaccurate_results
from relax_eg.rules.rule import Instance, equality_rule

BOUND = 64  # of the error as written, or what half an ulp of the inputs changes


def slope(t: jax.Array, y: jax.Array) -> jax.Array:
    """The slope of a trend, with times that begin at zero so that no digits are lost."""
    since = t - t[0]
    rows = t.shape[0]
    top = jnp.sum(since * y) - jnp.sum(since) * jnp.sum(y) / rows
    return top / (jnp.sum(since * since) - jnp.sum(since) ** 2 / rows)


def slope_after_a_loop(t: jax.Array, y: jax.Array) -> jax.Array:
    return slope(jax.lax.while_loop(lambda x: jnp.sum(x) > 1e9, lambda x: x / 2, t), y)


@pytest.mark.parametrize("size", ["n", "64"])
@pytest.mark.parametrize("function", [slope, slope_after_a_loop])
def test_what_loses_digits_step_by_step_is_refused(function: Callable[..., Any], size: str) -> None:
    best = rx.optimize(function, size, size)
    assert sum(best.report.refused.values()) > 0
    assert "refused, because the program would lose digits" in str(best.report)
    rng = np.random.default_rng(0)
    t, y = ((rng.standard_normal(64) + 100).astype(np.float32) for _ in range(2))
    with jax.enable_x64(True):
        exact = float(function(jnp.asarray(t, jnp.float64), jnp.asarray(y, jnp.float64)))
    allowed = max(abs(float(jax.jit(function)(t, y)) - exact), 100 * 2.0**-24 * abs(exact))  # numbers are about 100
    assert abs(float(best(t, y)) - exact) <= BOUND * allowed


def test_without_the_bound_nothing_is_refused() -> None:
    report = rx.optimize(slope, "n", "n", numerics="approximate").report
    assert not report.refused and "same_sum_of_products" in report.rules


def sides(*pairs: tuple[Expr, Expr], params: tuple[Expr, ...]) -> Instance:
    left, right = zip(*pairs, strict=True)
    return Instance(equality_rule("reassociate"), params, left, right)


def test_the_results_that_lose_accuracy_are_told() -> None:
    x = var("x", rx.Tensor("n"))
    mean = rx.op.mean(x)
    centred = rx.op.sum((x - mean) * (x - mean))
    multiplied_out = rx.op.sum(x * x) - mean * rx.op.sum(x)
    same = rx.op.sum(x) + mean, mean + rx.op.sum(x)
    assert inaccurate_results(sides(same, (centred, multiplied_out), params=(x,))) == {1}
    assert not inaccurate_results(sides(same, (multiplied_out, centred), params=(x,)))


def test_exact_values_are_computed_of_what_differs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = var("x", rx.Tensor("n")), var("y", rx.Tensor("n"))
    roots: list[int] = []

    def counted(p: PreparedSides, root: Expr, case: Case) -> Any:
        roots.append(len(root.args))
        return evaluate_sides(p, root, case)

    monkeypatch.setattr(program_accuracy, "evaluate_sides", counted)
    same, other = (x * y, y * x), ((x + y) * y, x * y + y * y)
    assert not inaccurate_results(sides(same, params=(x, y))) and set(roots) == {2}
    roots.clear()
    assert not inaccurate_results(sides(same, other, params=(x, y)))
    assert set(roots) == {4, 2}  # both results rounded, and one of them exactly


def test_no_digit_of_an_ill_conditioned_result_is_asked_for() -> None:
    x, y = var("x", rx.Tensor("n")), var("y", rx.Tensor("n"))
    near = rx.op.log(rx.op.exp(x * 0.001) - rx.op.exp(x * 0.001 * (y / y)))  # the log of zero, but for rounding
    assert not inaccurate_results(sides((near, near + x - x), params=(x, y)))


def test_sides_that_are_the_same_at_their_own_sizes_only_are_compared_there() -> None:
    x = var("x", rx.Tensor("64"))
    centred = x - rx.op.sum(x) / rx.op.full((), 64.0)
    left = rx.op.sum(centred * centred)
    right = rx.op.sum(x * x) - rx.op.sum(x) * rx.op.sum(x) / rx.op.full((), 64.0)
    assert inaccurate_results(sides((left, right), params=(x,))) == {0}
