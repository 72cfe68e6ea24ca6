"""Operators commute with index maps: what is proposed, what it computes, and what is not proposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.rules.book import index_maps
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.shapes import Dim

(SCHEMA,) = index_maps.schemas
SIZES: dict[str, int] = {}


def tensor(name: str, *shape: int | str, dtype: str = "float32") -> Expr:
    return var(name, Tensor(tuple(map(Dim.of, shape)), dtype))


class Moves(ModuleAnswers):
    """Answers for a device on which arithmetic and moving bytes take time."""

    def seconds(self, flops: float, moved: float, contracts: bool) -> float:
        return flops + moved


def forms(e: Expr, *others: Expr) -> tuple[Expr, ...]:
    """What is proposed for `e` in a program with results `e` and `others`."""
    return SCHEMA.proposals(e, Moves({}, (), postorder((e, *others))))


def operators(e: Expr) -> list[str]:
    return [x.op for x in postorder((e,)) if x.args]


X, Y = tensor("x", 64, 8), tensor("y", 64, 8)
N = tensor("n", "n", "m")
INDICES = tensor("i", 4, dtype="int32")


def rows(x: Expr, begin: int, end: int, step: int = 1) -> Expr:
    return op.strided_slice(x, (begin, 0), (end, x.shape[1]), (step, 1))


def softmax(x: Expr) -> Expr:
    e = op.exp(x - op.max(x, 1, keepdims=True))
    return e / op.sum(e, 1, keepdims=True)


@pytest.mark.parametrize(
    "written",
    [
        rows(softmax(X), 3, 7),
        rows(op.tanh(X * 2.0 + Y), 0, 64, 4),
        op.take(op.exp(op.matmul(X, Y.T)), INDICES, 1, mode="clip"),
        op.take(op.sum(X, 1), INDICES, 0, mode="clip"),
        rows(op.flip(op.exp(X), 0), 0, 2),
        op.strided_slice(op.reshape(op.exp(X), (512,)), (16,), (80,)),
        rows(op.concat([op.exp(X), op.exp(Y)], 0), 70, 80),
        rows(op.pad(op.exp(X), ((5, 5), (0, 0)), 0.0), 2, 9),
        rows(op.pad(op.exp(X), ((5, 5), (0, 0)), 3.0), 0, 4),
        op.tanh(op.reshape(op.broadcast_to(op.expand_dims(X, 1), (64, 9, 8)), (576, 8))),
        op.exp(op.broadcast_to(op.strided_slice(X, (0, 0), (1, 8)), (64, 8))),
        op.exp(op.pad(X, ((0, 200), (0, 0)), 1.0)),
        op.pad(op.pad(X, ((1, 0), (0, 0)), 1.0), ((2, 3), (0, 0)), 1.0),
        op.flip(op.exp(op.flip(X, 0)), 0),
        op.permute_dims(op.where(op.less(X.T, Y.T), X.T, Y.T)),
        op.concat([op.exp(rows(X, 0, 16)), op.exp(rows(X, 16, 40)), op.exp(rows(X, 40, 64))], 0),
        op.where(op.less(X, Y), op.exp(X), op.exp(Y)),
        op.where(op.less(X, Y), op.sin(X) * op.exp(X), op.exp(X) * op.cos(X)),
        op.where(op.less(X, Y), op.exp(X * X), op.exp(Y * Y)),
        (X * op.sum(X, 1, keepdims=True)) * op.sum(Y, 1, keepdims=True),
    ],
    ids=lambda e: " ".join(operators(e)[-4:]),
)
def test_forms_compute_the_same(written: Expr) -> None:
    """Each program has a form, and all forms have the value of the program."""
    found = forms(written)
    assert found
    rng = np.random.default_rng(0)
    params = [e for e in postorder((written,)) if e.op == X.op]
    values = {
        p: rng.integers(-3, 70, 4).astype("int32") if p is INDICES else rng.normal(size=(64, 8)).astype("float32")
        for p in params
    }
    before = evaluate_expr(written, values, SIZES)
    for form in found:
        np.testing.assert_allclose(evaluate_expr(form, values, SIZES), before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "written",
    [
        rows(op.cumsum(X, 0), 3, 7),  # rows depend on rows before
        op.take(op.exp(X), tensor("i", 500, dtype="int32"), 0, mode="clip"),  # more would be computed
        op.exp(op.take(X, INDICES, 0, mode="clip")),  # as well
        op.flip(op.exp(X), 0),  # flips do not meet
        op.where(op.less(X, Y), op.exp(X), op.sin(Y)),  # two functions
        op.concat([op.exp(X), op.sin(Y)], 0),
        op.concat([op.sum(X, 0, keepdims=True), op.sum(Y, 0, keepdims=True)], 0),  # sums over the joined axis
        (X * Y) * op.broadcast_to(op.exp(Y), (64, 8)),  # no operand has fewer axes
    ],
    ids=lambda e: " ".join(operators(e)[-4:]),
)
def test_nothing_is_proposed(written: Expr) -> None:
    assert not forms(written)


def test_rows_of_a_value_that_others_read_whole() -> None:
    """A function of all rows that is computed anyway is not computed again for most of them."""
    whole = op.exp(X)
    assert not forms(rows(whole, 0, 60), op.sum(whole, 0))
    assert forms(rows(whole, 0, 2), rows(whole, 2, 4))


def test_forms_of_many_operators_are_not_proved() -> None:
    """A form and its value have 79 operators together, and with one more function 81; 80 are the limit."""
    e = X + Y
    for _ in range(37):
        e = op.tanh(e)
    (form,) = forms(rows(e, 0, 4))
    assert operators(form).count("tanh") == 37
    assert not forms(rows(op.tanh(e), 0, 4))


def test_values_that_are_read_along_many_paths() -> None:
    """Each value of a chain is read twice by the next, so there are 2**100 paths through it."""
    x, y = X, Y
    for _ in range(100):
        x, y = x * x + x, y * y + y
    assert not forms(x)
    assert all(f.op != "where" for f in forms(op.where(op.less(X, Y), x, y)))


def test_symbolic_sizes() -> None:
    n, m = N.shape
    part = op.strided_slice(op.concat([op.exp(N), op.sin(N)], 0), (n, 0), (2 * n, m))
    assert {tuple(operators(f)) for f in forms(part)} == {("sin",)}
    # Where the parts lie depends on sizes.
    undecided = op.strided_slice(op.concat([op.exp(N), op.sin(N)], 0), (4, 0), (8, m))
    assert not any("exp" not in operators(f) for f in forms(undecided))


def test_rows_out_of_range_are_filled_after_the_function() -> None:
    """cos(NaN) is NaN, and a fill of the result is NaN; for NaN == x it is not."""
    filled = op.equal(op.take(X, tensor("i", 4096, dtype="int32"), 0, mode="fill"), 1.0)
    for form in forms(filled):
        values = {X: np.ones((64, 8), "float32"), filled.args[0].args[1]: np.full(4096, 100, "int32")}
        np.testing.assert_array_equal(evaluate_expr(form, values, SIZES), evaluate_expr(filled, values, SIZES))


def test_integers_wrap_and_empty_axes() -> None:
    x = tensor("x", "n", 8, dtype="int32")
    both = (x + op.broadcast_to(op.sum(x, 0), x.shape)) + op.broadcast_to(op.max(x, 1, keepdims=True), x.shape)
    for form in forms(both):
        for count in (0, 3):
            values = {x: np.full((count, 8), 2**30, "int32")}
            before, after = (evaluate_expr(e, values, {"n": count}) for e in (both, form))
            np.testing.assert_array_equal(after, before)


def one_by_one(count: int, piece: Callable[..., Any], axis: int = 0) -> Callable[..., Any]:
    return lambda *xs: jnp.stack([piece(i, *xs) for i in range(count)], axis)


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (one_by_one(12, lambda i, x, w: x[i] @ w), ((12, 32), (32, 32))),
        (one_by_one(40, lambda i, x, w: (x[i] - jnp.mean(x[i])) * w), ((40, 32), (32,))),
        (one_by_one(9, lambda i, x, w: x[19 - 2 * i] @ w), ((20, 32), (32, 32))),
        (one_by_one(9, lambda i, x, w: w @ x[:, i], axis=1), ((32, 9), (32, 32))),
        (one_by_one(4, lambda i, q, k: q[:, 8 * i : 8 * i + 8] @ k[:, 8 * i : 8 * i + 8].T), ((64, 32), (64, 32))),
        (
            lambda x, w: jnp.concatenate([x[:, 8 * i : 8 * i + 8] @ w[i] for i in range(6)], 1),
            ((64, 48), (6, 8, 8)),
        ),
    ],
    ids=["rows times a matrix", "rows without mean", "every other row", "columns", "heads", "groups"],
)
def test_pieces_that_the_same_operators_compute(f: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> None:
    """Pieces that read parts of one array are computed at once, and the program has no join."""
    best = rx.optimize(f, *(" ".join(map(str, s)) for s in shapes), target="cpu")
    assert best.report.after.seconds < 0.95 * best.report.before.seconds
    assert "concat" not in {e.op for e in best.module.main.expressions()}
    rng = np.random.default_rng(0)
    assert best.check(*(rng.normal(size=s).astype("float32") for s in shapes)).passed


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: jnp.stack([*(x[i] @ w for i in range(8)), jnp.sin(x[8])]),  # one piece is another function
        lambda x, w: jnp.stack([x[i * i] @ w for i in range(3)]),  # rows at unequal distances
    ],
)
def test_pieces_that_differ_stay_apart(f: Callable[..., Any]) -> None:
    best = rx.optimize(f, "9 32", "32 32", target="cpu")
    rng = np.random.default_rng(0)
    assert best.check(rng.normal(size=(9, 32)).astype("float32"), rng.normal(size=(32, 32)).astype("float32")).passed


def rowwise(x: Any, w: Any) -> Any:
    return jnp.stack([jnp.tanh(x[i] + w) for i in range(16)])


@pytest.mark.parametrize(
    ("f", "specs", "absent"),
    [
        (lambda x: jax.nn.softmax(x)[:64], ("1024 p",), ()),
        (lambda x: jnp.exp(jnp.tile(x, 16)), ("4096",), ()),
        (lambda x: jnp.roll(jnp.roll(x, 2, 1), 3, 1), ("p 1024",), ()),
        (lambda x: jnp.concatenate(jnp.split(jnp.exp(x), 4, 1), 1), ("p 1024",), ("concat", "strided_slice")),
        (rowwise, ("16 p", "p"), ("concat", "strided_slice")),
        (lambda x: jnp.take(x, jnp.arange(x.shape[0])[::-1], 0), ("p 64",), ("take",)),
        (lambda c, x, y: jnp.where(c.T, x.T, y.T).T, ("p 64 @ bool", "p 64", "p 64"), ("permute_dims",)),
    ],
)
def test_whole_programs(f: Callable[..., Any], specs: tuple[str, ...], absent: tuple[str, ...]) -> None:
    best = rx.optimize(f, *specs, at={"p": 256} if any("p" in s for s in specs) else {}, target="cpu")
    sizes = {"p": 6}
    shapes = [[sizes.get(d, d) if d == "p" else int(d) for d in s.partition("@")[0].split()] for s in specs]
    args = [rng.normal(size=shape).astype("float32") for rng in [np.random.default_rng(1)] for shape in shapes]
    assert best.check(*(a > 0 if "bool" in s else a for a, s in zip(args, specs, strict=True))).passed
    assert best.report.after.seconds < 0.95 * best.report.before.seconds
    assert not {e.op for e in best.module.main.expressions()} & set(absent)
