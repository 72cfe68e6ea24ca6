"""Products with inverses in which factors cancel, and determinants of factors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax.numpy.linalg import cholesky, det, inv, qr, slogdet, solve

import relax_eg as rx
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ops import api as op
from relax_eg.ops.facts import FACTS
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.record import operators_run_as
from relax_eg.rules import RuleSet, systems
from relax_eg.rules.book.systems import eye, solved, solved_columns
from relax_eg.rules.checking.schema_trials import first_difference
from relax_eg.rules.conditions import FactKey
from relax_eg.rules.facts.propagation import KnownFacts, Leaves, is_positive_number
from relax_eg.rules.matrices.equality import are_same
from relax_eg.rules.matrices.lifting import Lift
from relax_eg.rules.verify_formal.prove import prove_rule

_FACTORISATIONS = operators_run_as("factorisation", "solve")
_SIZES = {"n": 400, "k": 8, "b": 4, "m": 30}


def optimized(f: Any, *specs: str, facts: Any = None, numerics: Any = "approximate") -> Any:
    words = {w for s in specs for w in s.split()}
    at = {k: v for k, v in _SIZES.items() if k in words}
    with rx.debug.options(cache=False):
        return rx.optimize(f, *specs, at=at, target="cpu", facts=facts, numerics=numerics)


def factorisations(best: Any) -> list[str]:
    return sorted(e.op for e in best.module.main.expressions() if e.op in _FACTORISATIONS)


def square(n: int, *batch: int) -> Any:
    drawn = np.random.default_rng(n).standard_normal((*batch, n, n))
    return np.asarray(drawn + 4 * n**0.5 * np.eye(n), np.float32)


def columns(*shape: int) -> Any:
    return np.asarray(np.random.default_rng(1).standard_normal(shape), np.float32)


def turned(n: int) -> Any:
    return np.asarray(np.linalg.qr(square(n))[0], np.float32)


_GONE: list[tuple[Any, tuple[str, ...], dict[int, str], tuple[Any, ...]]] = [
    (lambda a: inv(inv(a)), ("n n",), {0: "invertible"}, (square(5),)),
    (lambda a, b: solve(a, a @ b), ("n n", "n k"), {0: "invertible"}, (square(5), columns(5, 2))),
    (lambda a, b: solve(a.T, a.T @ b), ("n n", "n"), {0: "invertible"}, (square(5), columns(5))),
    (lambda a: jnp.trace(inv(a) @ a), ("n n",), {0: "invertible"}, (square(5),)),
    (lambda a, b: solve(a, a @ b), ("b n n", "b n k"), {0: "invertible"}, (square(4, 3), columns(3, 4, 2))),
    (lambda a, q: inv(a) @ q @ q.T @ a, ("n n", "n n"), {0: "invertible", 1: "orthogonal"}, (square(5), turned(5))),
    (lambda q, x: jnp.sum((q @ x) ** 2), ("n n", "n k"), {0: "orthogonal"}, (turned(5), columns(5, 2))),
    (lambda a: cholesky(a) @ cholesky(a).T, ("n n",), {0: "positive definite"}, (square(5) @ square(5).T,)),
    (lambda a: qr(a)[0] @ qr(a)[1], ("n m",), {}, (columns(6, 3),)),
    (lambda d, b: solve(jnp.diag(d), b), ("n", "n k"), {0: "nonzero"}, (1 + columns(5) ** 2, columns(5, 2))),
    (lambda q: 1.0 + slogdet(q)[1], ("n n",), {0: "orthogonal"}, (turned(6),)),
    (lambda a: det(a), ("n n",), {0: "upper triangular"}, (np.triu(square(5)),)),
    (lambda u, v: det(jnp.eye(u.shape[0]) + jnp.outer(u, v)), ("n", "n"), {}, (columns(5), columns(5))),
]


# Not reached beside the other laws; the cause is not known.
_MISSED = (0, 5, 12)


@pytest.mark.parametrize("number", range(len(_GONE)))
def test_nothing_is_factored_where_all_cancels(number: int) -> None:
    f, specs, facts, args = _GONE[number]
    best = optimized(f, *specs, facts=facts)
    assert best.check(*args).passed
    if number in _MISSED and factorisations(best):
        pytest.xfail("factors are left beside the other laws")
    assert factorisations(best) == []


_ONE: list[tuple[Any, tuple[str, ...], tuple[Any, ...]]] = [
    (lambda a, b: inv(a) @ b, ("n n", "n k"), (square(5), columns(5, 2))),
    (lambda a, b: b @ inv(a), ("n n", "k n"), (square(5), columns(2, 5))),
    (lambda a, b, v: solve(a, b) @ v, ("n n", "n n", "n"), (square(5), columns(5, 5), columns(5))),
    (lambda a, x: x @ inv(a) @ x, ("n n", "n"), (square(5), columns(5))),
    (lambda a, b, c: solve(a, b) + solve(a, c), ("n n", "n", "n"), (square(5), columns(5), columns(5))),
    (lambda a, b: inv(b) @ inv(a), ("n n", "n n"), (square(5), square(5))),
    (lambda a, b: inv(a) @ b, ("b n n", "b n k"), (square(4, 3), columns(3, 4, 2))),
    (lambda a, x: jnp.einsum("bi,bij,bj->b", x, inv(a), x), ("b n n", "b n"), (square(4, 3), columns(3, 4))),
]


@pytest.mark.parametrize(("f", "specs", "args"), _ONE, ids=[str(i) for i in range(len(_ONE))])
def test_one_system_is_solved(f: Any, specs: Any, args: Any) -> None:
    best = optimized(f, *specs)
    assert factorisations(best) == ["lu", "triangular_solve", "triangular_solve"]
    assert best.report.after.seconds < best.report.before.seconds
    assert best.check(*args).passed


def test_triangles_of_a_product_are_not_made() -> None:
    best = optimized(
        lambda a, b: jsl.cho_solve((cholesky(a @ a.T), True), b), "n n", "n", facts={0: "lower triangular invertible"}
    )
    assert best.check(np.tril(square(5)), columns(5)).passed
    if "cholesky" in factorisations(best):
        pytest.xfail("the factor is left beside the other laws")
    assert factorisations(best) == ["triangular_solve", "triangular_solve"]


def test_a_matrix_that_may_be_singular_does_not_cancel() -> None:
    best = optimized(lambda a, b: solve(a, a @ b), "n n", "n k")
    assert "lu" in factorisations(best)
    best = optimized(lambda q, x: q.T @ (q @ x), "n n", "n k", facts={0: "invertible"})
    assert [e.op for e in best.module.main.expressions()].count("matmul") == 2
    best = optimized(lambda a: cholesky(a) @ cholesky(a).T, "n n", facts={0: "symmetric"})
    assert "cholesky" in factorisations(best)


def test_a_low_rank_part_of_as_many_columns_is_left() -> None:
    best = optimized(lambda u, v: det(jnp.eye(u.shape[0]) + u @ v), "n n", "n n")
    assert "lu" in factorisations(best)


def test_the_other_half_of_a_transposed_system_is_not_the_inverse() -> None:
    best = optimized(lambda a, b: solve(a.T, a @ b), "n n", "n", facts={0: "invertible"})
    assert "lu" in factorisations(best)
    assert best.check(square(5), columns(5)).passed


def test_single_rows() -> None:
    best = optimized(lambda a, b: solve(a, a @ b), "n n", "n k", facts={0: "invertible"})
    for n in (1, 2):
        assert best.check(square(n), columns(n, 2)).passed


@pytest.mark.parametrize("schema", systems.schemas, ids=lambda s: s.name)
def test_proposals_have_the_same_values(schema: Any) -> None:
    right, problem = first_difference(schema, 40)
    assert not problem
    assert right >= 15


def test_proofs_tell_sides_apart() -> None:
    (schema,) = [s for s in systems.schemas if s.name == "factors_that_cancel"]
    assert schema.prove is not None
    a, x = var("a", Tensor("n n")), var("x", Tensor("n k"))
    known = frozenset(("lower_triangular", "invertible"))

    def facts(e: Any) -> frozenset[str]:
        return known if e is a else frozenset()

    solved = op.triangular_solve(a, op.matmul(a, x), lower=True)
    assert not schema.prove(solved, x, facts, {})
    assert schema.prove(solved, op.matmul(a, x), facts, {})
    assert schema.prove(solved, x, lambda _: frozenset(), {})
    assert schema.prove(op.triangular_solve(a, op.matmul(a, x)), x, facts, {})  # the other triangle


def inverse(a: Any) -> Any:
    return solved_columns(a, eye(a.shape[0], a.dtype))


def resolvent(a: Any, b: Any) -> Any:
    return inverse(a) - inverse(b), inverse(a) @ (b - a) @ inverse(b)


def resolvent_of_the_other_sign(a: Any, b: Any) -> Any:
    return inverse(a) - inverse(b), inverse(a) @ (a - b) @ inverse(b)


def resolvent_of_the_transpose(a: Any, b: Any) -> Any:
    return inverse(a) - inverse(b), inverse(a) @ (b - a).T @ inverse(b)


def ridge(a: Any, y: Any, s: Any) -> Any:
    m, n = a.shape
    return solved(a.T @ a + s * eye(n, a.dtype), a.T @ y), a.T @ solved(a @ a.T + s * eye(m, a.dtype), y)


def low_rank_part_pushed_through(u: Any, v: Any, b: Any) -> Any:
    n, k = u.shape
    large, small = solved(eye(n, u.dtype) + u @ v, u @ b), u @ solved(eye(k, u.dtype) + v @ u, b)
    return large + small, small + small


def transposed_part_pushed_through(u: Any, v: Any, b: Any) -> Any:
    n, k = u.shape
    large, small = solved(eye(n, u.dtype) + u @ v, u @ b), u @ solved(eye(k, u.dtype) + (v @ u).T, b)
    return large + small, small + small


def solved_twice(a: Any, b: Any, c: Any) -> Any:
    return solved(a, solved(b, c)), solved(b @ a, c)


def solved_in_the_other_order(a: Any, b: Any, c: Any) -> Any:
    return solved(a, solved(b, c)), solved(a @ b, c)


def turned_inverse(a: Any, b: Any) -> Any:
    return inverse(a).T @ b, solved(a, b)


def angle(q: Any, x: Any, y: Any) -> Any:
    return op.sum((q @ x) * (q @ y)), op.sum(x * y)


def divided_by_what_may_be_zero(q: Any, x: Any) -> Any:
    return q @ q.T @ x, x + x / x - x / x


@pytest.mark.parametrize(
    ("f", "shapes", "when", "status"),
    [
        (resolvent, "a: n n, b: n n", "", "proved"),
        (resolvent_of_the_other_sign, "a: n n, b: n n", "", "unknown"),
        (resolvent_of_the_transpose, "a: n n, b: n n", "", "unknown"),
        (ridge, "a: m n, y: m, s:", "positive(s)", "proved"),
        (ridge, "a: m n, y: m, s:", "nonnegative(s)", "unknown"),  # the matrix may be singular
        (low_rank_part_pushed_through, "u: n k, v: k n, b: k", "", "proved"),
        (transposed_part_pushed_through, "u: n k, v: k n, b: k", "", "unknown"),
        (solved_twice, "a: n n, b: n n, c: n", "", "proved"),
        (solved_in_the_other_order, "a: n n, b: n n, c: n", "", "unknown"),
        (turned_inverse, "a: n n, b: n", "positive definite(a)", "proved"),
        (turned_inverse, "a: n n, b: n", "", "unknown"),
        (angle, "q: n n, x: n, y: n", "orthogonal(q)", "proved"),
        (angle, "q: n n, x: n, y: n", "invertible(q)", "unknown"),
        (divided_by_what_may_be_zero, "q: n n, x: n", "orthogonal(q)", "unknown"),
    ],
)
def test_rules_are_proved_by_the_laws_of_matrices(f: Any, shapes: str, when: str, status: str) -> None:
    book = RuleSet("more")
    book.rule(shapes, when=when or (), numerics="approximate", check=False)(f)
    (rule,) = book
    assert prove_rule(rule).status == status


_A, _B, _Q, _D = _MATRICES = [var(name, Tensor("n n", "float64")) for name in "abqd"]
_CLAIMED: dict[str, frozenset[FactKey]] = {
    "a": frozenset(("invertible",)), "q": frozenset(("orthogonal",)), "d": frozenset(("diagonal", "positive_definite")),
}  # fmt: skip


def _factor(rng: np.random.Generator) -> Expr:
    x, y = (_MATRICES[int(rng.integers(4))] for _ in range(2))
    made = (
        lambda: x, lambda: x, lambda: x, lambda: x.T, lambda: inverse(x), lambda: inverse(x).T, lambda: inverse(x @ y),
        lambda: inverse(x + y), lambda: inverse(_D + _B @ _B.T),
    )  # fmt: skip
    return made[int(rng.integers(len(made)))]()


def _word(rng: np.random.Generator) -> Expr:
    e = _factor(rng)
    for _ in range(int(rng.integers(3))):
        e = e @ _factor(rng)
    return e


def _other_form(e: Expr, rng: np.random.Generator) -> Expr:
    """A form of a matrix that is mostly equal to it."""
    x, w = _MATRICES[int(rng.integers(4))], _word(rng)
    made = (
        lambda: e + w - w, lambda: inverse(x) @ (x @ e), lambda: x @ (inverse(x) @ e), lambda: (e @ x) @ inverse(x),
        lambda: _Q.T @ (_Q @ e), lambda: _Q @ (_Q @ e), lambda: inverse(x.T) @ (x @ e), lambda: e + w,
    )  # fmt: skip
    return made[int(rng.integers(len(made)))]()


def test_random_programs_that_are_called_equal_are() -> None:
    known = KnownFacts(Leaves(_CLAIMED).have_fact, False, is_positive_number)
    rng, n, found = np.random.default_rng(0), 3, 0
    values = {_A: square(n), _B: columns(n, n), _Q: np.linalg.qr(square(n))[0], _D: np.diag(1 + np.arange(n))}
    at = {x: np.asarray(v, np.float64) for x, v in values.items()}
    for _ in range(12):
        left = _word(rng) + _word(rng)
        right = _other_form(left, rng)
        lift = Lift(lambda e: known.among(FACTS, e), lambda _: False, lambda _: 2, lambda flops, _, __: flops)
        if are_same(lift, left, right):
            found += 1
            a, b = (evaluate_expr(e, at, {"n": n}) for e in (left, right))
            np.testing.assert_allclose(a, b, 1e-6, 1e-6 * float(np.max(np.abs(a))))
    assert found >= 4
