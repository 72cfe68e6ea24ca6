"""Facts given to `optimize`: what they let it do, what `check` finds, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import OptionError
from relax_eg.ops import TABLE

Array = Any


# Arithmetic takes longer than memory, so that an operator less in a chain is a gain.
SLOW = replace(rx.types.PROFILES["cpu"], name="slow arithmetic", vector_rate=1e8)


def optimized(fn: Any, *specs: Any, **options: Any) -> rx.types.Optimized:
    return rx.optimize(fn, *specs, **options)


def definite(n: int) -> Array:
    a = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    return a @ a.T + np.eye(n, dtype=np.float32)


def symmetrized(a: Array) -> Array:
    return (a + a.T) / 2


def ops_of(best: rx.types.Optimized) -> set[str]:
    return {e.op for e in best.module.main.expressions()}


# --- programs of linear algebra, as people write them ---


def test_a_definite_system_is_solved_by_its_cholesky_factor() -> None:
    for specs in (("d d", "d"), ("512 512", "512")):
        at = {"d": 512} if specs[1] == "d" else None
        best = optimized(jnp.linalg.solve, *specs, at=at, facts={"a": "positive definite"})
        assert "solve_definite" in best.report.rules
        assert "definite_solve" in ops_of(best) and "lu" not in ops_of(best)
        n = 512 if specs[1] == "512" else 20
        assert best.check(symmetrized(definite(n)), np.ones(n, np.float32)).passed


def test_a_determinant_shares_the_factor() -> None:
    """As in the likelihood of a Gaussian process."""

    def likelihood(k: Array, y: Array) -> Array:
        return y @ jnp.linalg.solve(k, y) + 2 * jnp.log(jnp.diag(jnp.linalg.cholesky(k))).sum()

    best = optimized(likelihood, "n n", "n", at={"n": 500}, facts={"k": "positive definite"})
    used = [e.op for e in best.module.main.expressions()]
    assert used.count("cholesky") == used.count("definite_solve") == 1 and "lu" not in used
    assert best.check(symmetrized(definite(20)), np.ones(20, np.float32)).passed


def test_without_the_fact_it_is_not() -> None:
    for facts in (None, {"a": "symmetric"}, {"b": "positive"}):
        best = optimized(jnp.linalg.solve, "n n", "n", at={"n": 512}, facts=facts)
        assert "lu" in ops_of(best)


def ridge(x: Array, y: Array, c: float = 0.1) -> Array:
    return jnp.linalg.solve(x.T @ x + c * jnp.eye(x.shape[1], dtype=x.dtype), x.T @ y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ridge_regression_is_solved_by_a_cholesky_factor(dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        best = optimized(ridge, f"m n @{dtype}", f"m @{dtype}", at={"m": 600, "n": 500})
        assert "definite_solve" in ops_of(best) and "lu" not in ops_of(best)
        x = np.random.default_rng(0).standard_normal((30, 20)).astype(dtype)
        assert best.check(x, x[:, 0]).passed


def test_least_squares_stay_numbers_where_rounding_hides_the_ridge() -> None:
    """X'X + 1e-6 I is positive definite, and what float32 makes of it is not: its Cholesky factor is NaN."""
    at = np.linspace(0, 1, 2000, dtype=np.float32)
    powers, values = at[:, None] ** np.arange(200, dtype=np.float32), np.sin(6 * at)
    best = optimized(lambda x, y: ridge(x, y, 1e-6), "2000 200", "2000")
    assert "definite_solve" in ops_of(best)
    assert np.abs(powers @ best(powers, values) - values).mean() < 0.1


def test_many_systems_are_solved_by_one_choice() -> None:
    a, many = definite(3), np.stack([definite(3), -definite(3)])
    solve, b = TABLE["definite_solve"].jax_function(), np.ones((2, 3, 1), np.float32)
    for axes, of in (((0, 0), many), ((None, 0), a), ((0, None), many)):
        factor, right = jnp.linalg.cholesky(of), b if axes[1] == 0 else b[0]
        every = jax.vmap(solve, (*axes, axes[0]))
        assert "cond[" in str(jax.make_jaxpr(every)(factor, right, of))
        found = jax.jit(every)(factor, right, of)
        np.testing.assert_allclose(found, np.linalg.solve(np.broadcast_to(of, (2, 3, 3)), b), 1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_derivatives_are_those_of_solve(sign: int) -> None:
    a, b = sign * definite(5), np.arange(10, dtype=np.float32).reshape(5, 2)

    def ours(a: Array, b: Array) -> Array:
        return TABLE["definite_solve"].jax_function()(jnp.linalg.cholesky(a), b, (a + a.T) / 2)

    def plain(a: Array, b: Array) -> Array:
        return jnp.linalg.solve((a + a.T) / 2, b)

    for derivative in (jax.jacrev, jax.jacfwd):
        for found, wanted in zip(*(derivative(f, (0, 1))(a, b) for f in (ours, plain)), strict=True):
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    best = optimized(ridge, "m n", "m", at={"m": 600, "n": 500})
    x = np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32)
    slopes = (jax.grad(lambda x, f=f: f(x, x[:, 0]).sum())(x) for f in (best.to_jax(), ridge))
    np.testing.assert_allclose(*slopes, 1e-3, 1e-4)


def test_inverses_are_not_taken_to_multiply() -> None:
    best = optimized(
        lambda s, y: jnp.linalg.inv(s) @ y, "n n", "n", at={"n": 400}, facts={"s": "positive definite"},
        numerics="approximate",
    )  # fmt: skip
    assert "factors_that_cancel" in best.report.rules
    assert "approximate" in best.report.numerics
    assert best.check(symmetrized(definite(12)), np.ones(12, np.float32)).passed


@pytest.mark.parametrize(
    ("fact", "rule", "value"),
    [
        (["lower triangular", "invertible"], "solve_lower", np.tril(definite(9))),
        ("upper triangular", "solve_upper", np.triu(definite(9))),
        (["diagonal", "invertible"], "solve_diagonal", np.diag(np.arange(1, 10, dtype=np.float32))),
    ],
)
def test_systems_of_other_matrices(fact: Any, rule: str, value: Array) -> None:
    best = optimized(jnp.linalg.solve, "n n", "n", at={"n": 400}, facts={"a": fact})
    assert best.report.matches[rule] >= 1
    assert "lu" not in ops_of(best)
    assert best.check(value, np.ones(9, np.float32)).passed


def test_a_lookup_instead_of_a_matmul() -> None:
    best = optimized(lambda h, w: h @ w, "m n", "n k", at={"m": 1000, "n": 1000, "k": 500}, facts={"h": "one-hot"})
    assert "one_hot_times_matrix" in best.report.rules
    assert best.check(np.eye(5, dtype=np.float32)[[1, 4, 4]], np.ones((5, 3), np.float32)).passed


# --- elementwise ---


def test_guards_against_nan_are_dropped_where_there_is_none() -> None:
    best = optimized(jax.nn.softplus, "n", at={"n": 1_000_000}, facts={"x": "finite"})
    assert not {"where", "not_equal"} & ops_of(best)
    assert best.check(np.array([-3e38, -1, 0, 5, 3e38], np.float32)).passed
    assert {"where", "not_equal"} <= ops_of(optimized(jax.nn.softplus, "n", at={"n": 1_000_000}))


def test_indices_that_never_count_from_the_end() -> None:
    def rows(x: Array, i: Array) -> Array:
        return x[i]

    specs, options = ("n 8", "k @ int32"), {"at": {"n": 100, "k": 1_000_000}, "target": SLOW}
    assert "where" not in ops_of(optimized(rows, *specs, facts={"i": "nonnegative"}, **options))
    assert "where" in ops_of(optimized(rows, *specs, **options))


def test_facts_reach_functions_that_are_called() -> None:
    @jax.custom_jvp
    def inner(x: Array) -> Array:
        return jnp.abs(x) + jnp.abs(x * 0.5)

    inner.defjvp(lambda primals, tangents: (inner(*primals), tangents[0]))
    best = optimized(lambda x: inner(x * x + x), "n", at={"n": 1_000_000}, target=SLOW, facts={"x": "positive"})
    assert "abs" not in {e.op for f in best.module for e in f.expressions()}


def test_exact_programs_use_what_holds_of_bits_only() -> None:
    def program(x: Array) -> Array:
        return x / x + (x - x)

    both = ["nonzero", "finite"]
    best = optimized(program, "n", at={"n": 1_000_000}, numerics="exact", facts={"x": both})
    assert "divide" not in ops_of(best)
    assert best.check(np.array([1e-37, -3e38, 7], np.float32)).max_error == 0
    # The square of a nonzero number may be 0 in floats.
    square = optimized(lambda x: program(x * x), "n", at={"n": 1_000_000}, numerics="exact", facts={"x": both})
    assert "divide" in ops_of(square)
    real = optimized(lambda x: program(x * x), "n", at={"n": 1_000_000}, facts={"x": both})
    assert "divide" not in ops_of(real)


# --- check ---


def test_a_violated_fact_is_named() -> None:
    best = optimized(
        lambda s, w: s @ w["a"] + w["b"], "n n", {"a": "n", "b": "n"},
        facts={"s": "symmetric", "w": "finite", "w['a']": ["nonnegative", "sorted"]},
    )  # fmt: skip
    s, w = symmetrized(definite(3)), {"a": np.arange(3, dtype=np.float32), "b": np.zeros(3, np.float32)}
    fine = best.check(s, w)
    assert fine.passed
    assert fine.violations == ()
    assert "violated" not in str(fine)
    wrong = best.check(np.arange(9, dtype=np.float32).reshape(3, 3), {"a": w["a"][::-1] - 1, "b": w["b"] + np.inf})
    assert not wrong.passed
    assert wrong.violations == (
        "`s` is declared symmetric, but s[0, 1] = 1.0 and s[1, 0] = 3.0",
        "`w['a']` is declared nonnegative, but w['a'][2] = -1.0",
        "`w['a']` is declared sorted, but w['a'][0] = 1.0 and w['a'][1] = 0.0",
        "`w['b']` is declared finite, but w['b'][0] = inf",
    )
    assert str(wrong).split("\n")[0] == f"fact violated: {wrong.violations[0]}"


def test_facts_of_narrow_floats_are_checked() -> None:
    best = optimized(lambda x: jnp.abs(x), "n @ bfloat16", facts={"x": "positive"})
    assert best.check(jnp.array([1, -2], jnp.bfloat16)).violations == ("`x` is declared positive, but x[1] = -2.0",)


# --- what is refused ---


def program(s: Array, i: Array, *rest: Array, **more: Array) -> Array:
    return s


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"z": "positive"}, "facts: program has no argument 'z'; it has: s, i, w, w['a'], w['b']"),
        ({7: "positive"}, "facts: program has no argument 7; it has: s, i, w, w['a'], w['b']"),
        ({True: "positive"}, "facts: program has no argument True; it has: s, i, w, w['a'], w['b']"),
        ({"s": "postive"}, "'postive' is no fact; did you mean positive? accepted: positive, nonnegative, "),
        ({"s": 3}, "facts['s'] = 3: a fact such as 'positive', or a list of such, is accepted"),
        ({"s": [3]}, "3 is no fact; accepted: positive, "),
        ({"s": "diagonal"}, "facts: program: `s` cannot be diagonal: its matrices are m by n; square ones can be "),
        ({"i": "orthogonal"}, "facts: program: `i` cannot be orthogonal: its dtype is int32; float can be orthogonal"),
        ({"w": "sorted"}, "facts: program: `w['b']` cannot be sorted: its rank is 0; an axis is needed to be sorted"),
        ("positive", "facts='positive': {'x': 'positive'} is accepted"),
    ],
)
def test_facts_that_are_refused(facts: Any, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        rx.optimize(program, "m n", "n n @ int32", w={"a": "n", "b": ""}, facts=facts)
    assert str(caught.value).startswith(says)


def test_facts_by_position_and_path() -> None:
    best = optimized(program, "n n", "n n @ int32", w={"a": "n", "b": ""}, facts={0: "symmetric", "w['a']": "positive"})
    declared = best._program.facts  # pyright: ignore[reportPrivateUsage]
    assert declared == (("symmetric",), (), ("positive",), ())
    best = optimized(program, "n n", "n n @ int32", w={"a": "n", "b": ""}, facts={0: "symmetric invertible"})
    assert best._program.facts[0] == ("invertible", "symmetric")  # pyright: ignore[reportPrivateUsage]


def test_facts_are_part_of_what_a_cached_search_goes_by(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RELAX_EG_CACHE", "1")

    def ops(facts: Any) -> set[str]:
        return ops_of(rx.optimize(lambda x: jnp.abs(x) * 2, "n", at={"n": 1_000_000}, target=SLOW, facts=facts))

    assert "abs" in ops(None)
    assert "abs" not in ops({"x": "positive"})
    assert "abs" in ops({"x": "nonzero"})
