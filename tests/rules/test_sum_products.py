"""The same sum of products: what is read, planned and written, and what is left as it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import relax_eg as rx
from benchmarks import laws
from relax_eg.ir import Expr, postorder
from relax_eg.ir.expr import VAR
from relax_eg.ops import api as op
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.rules.book.sum_products import sum_products
from relax_eg.rules.format import expression_text
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.rules.verify_formal.compose import Composer
from relax_eg.shapes import Dim

(SAME_SUM,) = sum_products.schemas
RULES = rx.rules.default
SQUARES = ("n n", "n n", "n n")


def root_of(fn: Callable[..., Any], *specs: str) -> Expr:
    return rx.trace(fn, *map(rx.Tensor, specs)).main.blocks[-1].bindings[-1].value


def proposals(root: Expr) -> list[str]:
    found = SAME_SUM.proposals(root, ModuleAnswers({}, (), postorder([root])))
    return [expression_text(e) for e in found]


def rows_summed(low: int, high: int) -> Callable[..., Any]:
    """A function of a, b, c: the sum of the rows `low` to `high` - 1 of a @ b, of those that exist."""

    def summed(a: Any, b: Any, c: Any) -> Any:
        row = jnp.arange(a.shape[0])
        return jnp.sum(jnp.where(((row >= low) & (row < high))[:, None], a @ b, 0.0), 0)

    return summed


# A program, and what it is proposed to be by the fewest flops where every size is 64.
CASES: list[tuple[Callable[..., Any], str]] = [
    (lambda a, b, c: jnp.trace(a @ b), "sum(a * b.T)"),
    (lambda a, b, c: jnp.sum(a @ b), "sum(a, axes=(0,)) @ sum(b, axes=(1,))"),
    (lambda a, b, c: (a @ b).sum(0), "sum(a, axes=(0,)) @ b"),
    (lambda a, b, c: jnp.sum(a[:, None, :] * b.T[None], -1).sum(0), "sum(a, axes=(0,)) @ b"),
    (lambda a, b, c: jnp.diagonal(a @ b), "sum(a * b.T, axes=(1,))"),
    (lambda a, b, c: a @ b + a @ c, "a @ (b + c)"),
    (lambda a, b, c: jnp.einsum("ij,jk->ik", a, b) - jnp.einsum("ij,jk->ik", c, b), "(a - c) @ b"),
    (lambda a, b, c: jnp.eye(a.shape[0]) @ a @ b.sum(0), "a @ sum(b, axes=(0,))"),
    (lambda a, b, c: a @ b @ c[0], "a @ (b @ squeeze(c[:1, :], axes=(0,)))"),
    (lambda a, b, c: jnp.sum(jnp.kron(a, b)), "sum(a) * sum(b)"),
    (lambda a, b, c: a @ b - a @ b, "full(0.0, shape=(n, n))"),
    (lambda a, b, c: (a - a.sum(0)) @ b, "a @ b - sum(a @ b, axes=(0,))"),
    (rows_summed(0, 100), "sum(a[:min(100, n), :], axes=(0,)) @ b"),
    (rows_summed(5, 100), "sum(a[min(5, n):min(100, n), :], axes=(0,)) @ b"),
    (lambda a, b, c: (a @ b) / jnp.sum(c) @ c[0], "a @ (b @ (squeeze(c[:1, :], axes=(0,)) / sum(c)))"),
]


@pytest.mark.parametrize(("fn", "wanted"), CASES, ids=[w for _, w in CASES])
def test_what_is_proposed(fn: Callable[..., Any], wanted: str) -> None:
    assert wanted in proposals(root_of(fn, *SQUARES))


LEFT: list[Callable[..., Any]] = [
    lambda a, b, c: a @ b,
    lambda a, b, c: a @ b + c,
    lambda a, b, c: jnp.where(a > 0, a @ b, c),
    lambda a, b, c: jnp.maximum(a, b) @ c,
    lambda a, b, c: jnp.where(jnp.tri(a.shape[0], dtype=bool), a, b),  # a choice stays a choice
    lambda a, b, c: jax.lax.dot(a, b, precision="highest") @ c[0],  # equations do not mention the precision
]


@pytest.mark.parametrize("fn", LEFT, ids=range(len(LEFT)))
def test_what_is_left_as_written(fn: Callable[..., Any]) -> None:
    assert proposals(root_of(fn, *SQUARES)) == []


# A program, its arguments, and the form without transposed products that it is proposed to be.
LAYOUTS: list[tuple[Callable[..., Any], tuple[str, ...], str]] = [
    (
        lambda q, k, v: q @ jnp.swapaxes(k, 1, 2) @ v,
        ("b m d", "b n d", "n"),
        "squeeze(q @ expand_dims(v @ k, axes=(2,)), axes=(2,))",
    ),
    (lambda a, b, c: jnp.trace(a @ b @ c), ("n k", "k m", "m n"), "sum(c @ a * b.T)"),
    (lambda a, b, c: jnp.diagonal((a @ b).T @ c), ("m n", "n n", "m n"), "sum(a.T @ c * b, axes=(0,))"),
    (
        lambda a, b, c: jnp.trace(a @ b, axis1=1, axis2=2),
        ("k n m", "k m n", "n"),
        "sum(a * permute_dims(b, axes=(0, 2, 1)), axes=(1, 2))",
    ),
    (lambda a, b, c: jnp.diagonal(a @ b), ("n m", "m n", "n"), "sum(a * b.T, axes=(1,))"),
    (lambda a, b, c: jnp.diagonal(a.T @ b), ("n m", "n m", "n"), "sum(a * b, axes=(0,))"),
]


@pytest.mark.parametrize(("fn", "specs", "wanted"), LAYOUTS, ids=[w for *_, w in LAYOUTS])
def test_layouts(fn: Callable[..., Any], specs: tuple[str, ...], wanted: str) -> None:
    root = root_of(fn, *specs)
    forms = {expression_text(e): e for e in SAME_SUM.proposals(root, ModuleAnswers({}, (), postorder([root])))}
    assert wanted in forms
    sizes = {name: 3 + i for i, name in enumerate(sorted({name for spec in specs for name in spec.split()}))}
    rng = np.random.default_rng(0)
    values = {e: rng.standard_normal([d.evaluate(sizes) for d in e.shape]).astype(np.float32)
              for e in postorder([root]) if e.op == VAR}  # fmt: skip
    expected = evaluate_expr(root, values, sizes)
    np.testing.assert_allclose(evaluate_expr(forms[wanted], values, sizes), expected, rtol=1e-4, atol=1e-4)


def wide_sum_of(fn: Callable[..., Any]) -> Expr:
    """The float32 sum that jax.numpy makes of values in bfloat16, before it is rounded."""
    root = root_of(fn, *("n n @ bfloat16",) * 3)
    return root.args[0] if root.op == "astype" else root


# The module is jax.numpy, or numpy.
UNROUNDED: list[Callable[..., Any]] = [
    lambda m, a, b: m.sum(a @ b),
    lambda m, a, b: m.mean((a @ b).T, 1),
    lambda m, a, b: m.sum((a @ b).astype("float32"), 0),
    lambda m, a, b: m.mean(a @ b + b[0], 0),
    lambda m, a, b: m.trace(a @ b),
    lambda m, a, b: m.sum(m.tril(a @ b), 1),
]


@pytest.mark.parametrize("fn", UNROUNDED, ids=range(len(UNROUNDED)))
def test_what_is_summed_is_not_rounded_before(fn: Callable[..., Any]) -> None:
    """The product of matrices that bfloat16 would round is not computed."""
    root = wide_sum_of(lambda a, b, c: fn(jnp, a, b))
    forms = SAME_SUM.proposals(root, ModuleAnswers({}, (), postorder([root])))
    (form, *_) = [e for e in forms if all(x.ndim < 2 for x in postorder([e]) if x.op == "matmul")]
    assert SAME_SUM.prove is not None and SAME_SUM.prove(root, form, no_facts, {}) == ""
    rng, (a, b) = np.random.default_rng(0), (x for x in postorder([root]) if x.op == VAR)
    values = {x: rng.standard_normal((40, 40)).astype(ml_dtypes.bfloat16) for x in (a, b)}
    precise = fn(np, *(values[x].astype(np.float64) for x in (a, b)))
    far = [np.max(np.abs(evaluate_expr(e, values, {"n": 40}) - precise)) for e in (root, form)]
    assert far[1] <= far[0] and far[1] <= 1e-3 * np.max(np.abs(precise))


def test_one_form_goes_on_rounding_products() -> None:
    """A loop that stores them then stores them in 16 bits."""
    n, (a, b) = Dim.var("n"), root_of(lambda a, b: a * b, *("n n @ bfloat16",) * 2).args
    diagonal = op.equal(op.iota((n,), 0), op.expand_dims(op.iota((n,), 0), 1))
    rows = op.expand_dims(op.sum(op.multiply(a, b), (1,)), 1)
    root = op.sum(op.astype(op.where(diagonal, rows, 0.0), "float32"), (0, 1))
    wide = "sum(astype(a, dtype=float32) * astype(b, dtype=float32))"
    assert {wide, "sum(astype(a * b, dtype=float32))"} <= set(proposals(root))


def test_what_is_widened_is_transposed_before() -> None:
    (form,) = proposals(wide_sum_of(lambda a, b, c: jnp.trace(a @ b)))
    assert form == "sum(astype(a, dtype=float32) * astype(b.T, dtype=float32))"


ROUNDED: list[Callable[..., Any]] = [
    lambda a, b, c: (a @ b).astype("float32"),  # nothing is summed afterwards
    lambda a, b, c: (a @ b).astype("float32") + c.astype("float32"),
    lambda a, b, c: jnp.sum((a + b).astype("float32") * c.astype("float32")),  # nothing is summed before
    lambda a, b, c: jnp.sum((a.astype("float32") @ b.astype("float32")).astype("bfloat16"), dtype="bfloat16"),
]


@pytest.mark.parametrize("fn", ROUNDED, ids=range(len(ROUNDED)))
def test_other_roundings_stay(fn: Callable[..., Any]) -> None:
    root = wide_sum_of(fn)
    assert SAME_SUM.proposals(root, ModuleAnswers({}, (), postorder([root]))) == ()


def test_a_value_that_is_read_rounded_too_is_not_computed_again() -> None:
    root = wide_sum_of(lambda a, b, c: jnp.sum(x := a @ b) + jnp.max(x))
    (summed,) = (e for e in postorder([root]) if e.op == "sum")
    assert SAME_SUM.proposals(summed, ModuleAnswers({}, (), postorder([root]))) == ()


def test_an_expansion_that_cancels_is_not_proposed() -> None:
    """(x - y) (x - y) as x x - 2 x y + y y loses digits where x is near y."""

    def squared(a: Any, b: Any, c: Any) -> Any:
        return jnp.sum((a - b) * (a - b))

    assert all("-" in text for text in proposals(root_of(squared, *SQUARES)))


def test_merged_axes_are_read_at_computed_positions() -> None:
    """The nearest pixels of an image whose channels are in groups: rows of merged axes, at positions that are data."""

    def enlarged(x: Any, scale: Any, bias: Any) -> Any:
        grouped = (x.reshape(2, 16, 2, 3) * scale).reshape(2, 4, 4, 6)
        return jax.image.resize(grouped, (2, 8, 8, 6), "nearest") * bias

    best = rx.optimize(enlarged, "2 16 6", "2 1 2 1", "6")
    numbers = np.random.default_rng(0)
    best.check(*(numbers.standard_normal(shape, np.float32) for shape in ((2, 16, 6), (2, 1, 2, 1), (6,))))


def test_distances_of_what_lies_together_keep_their_digits() -> None:
    """|x|^2 - 2 x m + |m|^2 cancels where x and m are near each other and far from 0: responsibilities were off by
    0.01."""

    def responsibilities(x: Any, means: Any, log_weights: Any) -> Any:
        joint = log_weights - 0.5 * jnp.sum((x[:, None, :] - means[None, :, :]) ** 2, axis=-1)
        return jnp.exp(joint - jax.nn.logsumexp(joint, axis=1, keepdims=True))

    rng = np.random.default_rng(0)
    means = (rng.normal(size=(8, 16)) + 1000).astype(np.float32)
    x = (means[rng.integers(0, 8, 64)] + 0.3 * rng.normal(size=(64, 16))).astype(np.float32)
    weights = rng.normal(size=8).astype(np.float32)
    best = rx.optimize(responsibilities, "n d", "k d", "k", at={"n": 512, "k": 64, "d": 32}, target="cpu")
    np.testing.assert_allclose(best(x, means, weights), responsibilities(x, means, weights), atol=1e-6)


SPELLED: list[Callable[..., Any]] = [
    lambda a, b, v: (a @ b) @ v,
    lambda a, b, v: jnp.einsum("ij,jk,k->i", a, b, v),
    lambda a, b, v: jnp.sum(jnp.sum(a[:, :, None] * b[None], 1) * v, 1),
]


def test_forces_between_points_keep_their_digits() -> None:
    """A weight that is large where a difference is zero multiplies that difference, not each of its summands."""

    def forces(p: jax.Array, m: jax.Array) -> jax.Array:
        d = p[None] - p[:, None]
        weights = m / (jnp.sum(d * d, -1) + 1e-3) ** 1.5
        return jnp.sum(weights[..., None] * d, 1)

    rng = np.random.default_rng(0)
    p, m = rng.standard_normal((60, 3)).astype(np.float32), rng.standard_normal(60).astype(np.float32)
    best = rx.optimize(forces, "n 3", "n", at={"n": 500}, target="cpu")
    d = p.astype(np.float64)[None] - p[:, None]
    truth = np.sum((m / (np.sum(d * d, -1) + 1e-3) ** 1.5)[..., None] * d, 1)
    errors = [np.abs(np.asarray(f(p, m)) - truth).max() for f in (forces, best)]
    assert errors[1] <= 8 * errors[0]


@pytest.mark.parametrize("by_sums", [False, True])
def test_centred_products_keep_their_digits(by_sums: bool) -> None:
    """A mean is near all that it is subtracted from, so products of differences from it are not multiplied out, whether
    the mean is part of the product or, with other readers, a value beside it."""

    def covariance(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        a, b = (z.sum(0) / z.shape[0] if by_sums else z.mean(0) for z in (x, y))
        products = (x - a).T @ (y - b)
        return (products, a * b, a + b) if by_sums else (products, (x - a).sum(0), (y - b).sum(0))

    x, y = (np.random.default_rng(i).standard_normal((40, 8)).astype(np.float32) + np.float32(100) for i in (0, 1))
    best = rx.optimize(covariance, "n 8", "n 8", at={"n": 4000}, target="cpu")
    a, b = (z.astype(np.float64) - z.mean(0, dtype=np.float64) for z in (x, y))
    errors = [np.abs(np.asarray(f(x, y)[0]) - a.T @ b).max() for f in (jax.jit(covariance), best)]
    assert errors[1] <= 8 * errors[0]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s, v: (x * jnp.float16(0.001)) @ v,
        lambda x, s, v: (x * s[:, None]) @ v,
        lambda x, s, v: (x / 1024) @ v,
        lambda x, s, v: (x * s[0] * v).sum(1),
        lambda x, s, v: jax.lax.reduce(x * s[0], jnp.float16(0), jax.lax.add, (0, 1)),
    ],
)
def test_scales_stay_inside_sums_of_float16(fn: Callable[..., Any]) -> None:
    """A factor keeps the sum in range, which ends at 65504."""
    x, v = (np.full(s, 30, np.float16) for s in ((256, 256), (256,)))
    scales = np.full(256, 0.001, np.float16)
    best = rx.optimize(fn, "n n @ float16", "n @ float16", "n @ float16", at={"n": 2048}, target="cpu")
    assert np.isfinite(best(x, scales, v)).all()


def test_spelling_does_not_matter() -> None:
    found = [
        rx.optimize(f, "n m", "m n", "n", at={"n": 48, "m": 32}, target=laws.Flops(), rules=RULES) for f in SPELLED
    ]
    assert {b.report.after.flops for b in found} == {2 * 2 * 48 * 32}
    a, b, v = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((5, 4), (4, 5), (5,)))
    for f, best in zip(SPELLED, found, strict=True):
        np.testing.assert_allclose(best(a, b, v), f(a, b, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "seed", "style"), [
    ("everyday", 59, "matrix"),  # a factor beside a sum that is an outer product of sums
    ("random", 21, "matrix"),  # a factor of three terms that is taken out of two
    ("random", 50, "einsum"),  # as accurate, though one sample's left side has next to no error by luck
])  # fmt: skip
def test_drawn_programs_reach_the_least_flops(kind: str, seed: int, style: str) -> None:
    least, by_spelling = laws.spellings(kind, seed)
    assert by_spelling[style](target=laws.Flops()).after.flops <= least


def one_hot_rows(i: Any, table: Any) -> Any:
    return jax.nn.one_hot(i, table.shape[0]) @ table


def test_one_hot_rows_are_taken() -> None:
    best = rx.optimize(one_hot_rows, rx.Tensor("k", "int32"), "n m", at={"k": 16, "n": 512, "m": 64}, rules=RULES)
    assert "gather" in {r.op for r in best.report.after.rows}
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    index = np.array([0, 3, 4, -1, 2], np.int32)  # positions out of range are rows of zeros
    np.testing.assert_array_equal(best(index, table), one_hot_rows(index, table))


def test_one_hot_rows_of_fixed_sizes_are_taken() -> None:
    """The accuracy of programs with masks is tested at small sizes in place of fixed ones."""
    best = rx.optimize(one_hot_rows, "8192 @ int32", "8192 512", target="cpu")
    assert "gather" in {r.op for r in best.report.after.rows}


@pytest.mark.parametrize("n", [0, 1])
def test_empty_and_single_axes(n: int) -> None:
    def centred(a: Any, b: Any) -> Any:
        return jnp.trace(a @ b) + jnp.sum(jnp.kron(a, b)) + jnp.sum((a - a.sum(0)) @ b)

    best = rx.optimize(centred, f"{n} {n}", f"{n} {n}", rules=RULES)
    a = np.ones((n, n), np.float32)
    np.testing.assert_allclose(best(a, 2 * a), centred(a, 2 * a))


def test_summed_ranges_whose_ends_are_not_ordered() -> None:
    """Whether the mask or the axis ends first is known at a call only."""
    best = rx.optimize(rows_summed(5, 10), *SQUARES, at={"n": 512}, rules=RULES)
    assert "strided_slice" in {r.op for r in best.report.after.rows}
    for n in (1, 5, 8, 12):
        a, b = np.random.default_rng(n).standard_normal((2, n, n)).astype(np.float32)
        np.testing.assert_allclose(best(a, b, a), (a @ b)[5:10].sum(0), rtol=1e-4, atol=1e-5)


def test_a_limit_that_no_axis_has() -> None:
    def first_rows(a: Any, b: Any, c: Any) -> Any:
        return jnp.sum(jnp.where((jnp.arange(a.shape[0]) < c.shape[0])[:, None], a @ b, 0.0), 0)

    best = rx.optimize(first_rows, "n n", "n n", "k", at={"n": 64, "k": 8})
    a, b, c = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((5, 5), (5, 5), (3,)))
    np.testing.assert_allclose(best(a, b, c), first_rows(a, b, c), rtol=1e-4, atol=1e-5)


def test_integers_wrap_as_written() -> None:
    def products(a: Any, b: Any) -> Any:
        return jnp.sum(a @ b)

    best = rx.optimize(products, rx.Tensor("n n", "int32"), rx.Tensor("n n", "int32"), at={"n": 8}, rules=RULES)
    a = np.full((3, 3), 2**20 + 1, np.int32)
    np.testing.assert_array_equal(best(a, a), products(a, a))


def polynomial(x: Any, y: Any) -> Any:
    total = x
    for i in range(60):
        total = total * y + x * float(i)
    return total


def long_sum(x: Any, y: Any) -> Any:
    total = x
    for i in range(1_000):
        total = total + y * float(i)
    return total


@pytest.mark.parametrize("fn", [polynomial, long_sum])
def test_regions_of_many_terms_are_bounded(fn: Callable[..., Any]) -> None:
    root = root_of(fn, "n", "n")
    queries = ModuleAnswers({}, (), postorder([root]))
    began = time.process_time()
    for e in [e for e in postorder([root]) if e.op in SAME_SUM.operators][-50:]:
        SAME_SUM.proposals(e, queries)
    assert time.process_time() - began < 30.0


def chain_of_products(*factors: Any) -> Any:
    """v A B C ... w from the wrong end, by broadcasting; 9 factors are more than every order is tried of."""
    first, *matrices, last = factors
    made = matrices[0]
    for m in matrices[1:]:
        made = (made[:, :, None] * m[None]).sum(1)
    return (made * first[:, None] * last[None]).sum()


def test_a_product_of_more_factors_than_every_order_is_tried_of() -> None:
    n, matrices = 12, 9
    specs = (f"{n}", *[f"{n} {n}"] * matrices, f"{n}")
    best = rx.optimize(chain_of_products, *specs, target=laws.Flops())
    assert best.report.after.flops <= matrices * 2 * n * n + 2 * n
    assert best.report.rules["same_sum_of_products"]
    rng = np.random.default_rng(0)
    args = [rng.standard_normal([int(d) for d in s.split()]).astype(np.float32) for s in specs]
    np.testing.assert_allclose(best(*args), chain_of_products(*map(jnp.asarray, args)), rtol=1e-3)


def test_what_zero_multiplies_is_not_expanded() -> None:
    """Zeros have no terms, so what they multiply could be a product of any number of sums."""

    def zero_times_a_chain(x: Any, y: Any) -> Any:
        for i in range(20):
            x = x * jnp.sin(y + i) + jnp.cos(y + i) + jnp.tan(y + i)
        return x * jnp.zeros(())

    begun = time.thread_time()
    proposals(root_of(zero_times_a_chain, "n", "n"))
    assert time.thread_time() - begun < 20  # it took minutes


def test_a_garbage_collection_does_not_decide_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    collections = iter([0.2])  # seconds of processor time
    element = Composer.element

    def late(self: Composer, e: Expr, at: Sequence[Dim]) -> Any:
        end = time.thread_time() + next(collections, 0.0)
        while time.thread_time() < end:
            pass
        return element(self, e, at)

    monkeypatch.setattr(Composer, "element", late)
    sys.modules["relax_eg.rules.book.sum_products"]._known.forget()
    assert proposals(root_of(lambda a, b, c: a @ b + a @ c, *SQUARES)) == ["a @ (b + c)"]
    assert next(collections, None) is None


def test_a_derivation_proves_the_pair() -> None:
    best = rx.optimize(lambda a, b: jnp.trace(a @ b), "n m", "m n", at={"n": 512, "m": 512}, rules=RULES)
    derivation = best.explain()
    assert "same_sum_of_products" in str(derivation)
    best.certificate().verify(RULES)


def no_facts(e: Expr) -> frozenset[str]:
    return frozenset()


def test_a_pair_that_is_not_equal_is_refused() -> None:
    prove = SAME_SUM.prove
    assert prove is not None
    left, right = (root_of(f, *SQUARES) for f in (lambda a, b, c: a @ b @ c, lambda a, b, c: a @ (c @ b)))
    assert prove(left, right, no_facts, {}).startswith("not shown equal")
    assert prove(left, root_of(lambda a, b, c: a @ (b @ c), *SQUARES), no_facts, {}) == ""
