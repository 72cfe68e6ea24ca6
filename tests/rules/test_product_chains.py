"""Long chains of matrix products: the order is the cheapest one, steps are proved, and searches grow with the chain."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.egraph import Budget, EGraph
from relax_eg.ir import Expr, postorder
from relax_eg.ir.expr import var
from relax_eg.ops import api as op
from relax_eg.rules.book.product_chains import factors_of, product_chains, why_not_same_chain
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.shapes import Scope

(CHEAPEST,) = product_chains.schemas


def sizes_of(n: int, seed: int = 0) -> list[int]:
    return [int(d) for d in np.random.default_rng(seed).integers(1, 60, n + 1)]


def factors(*shapes: str) -> list[Expr]:
    return [var(f"x{i}", rx.Tensor(s)) for i, s in enumerate(shapes)]


def product(of: Sequence[Expr]) -> Expr:
    """The product from the left to the right."""
    made = of[0]
    for x in of[1:]:
        made = op.matmul(made, x)
    return made


def proposals(root: Expr) -> tuple[Expr, ...]:
    return CHEAPEST.proposals(root, ModuleAnswers({}, nodes=postorder((root,))))


def flops(root: Expr) -> int:
    def own(e: Expr) -> int:
        depth = e.args[0].shape[-1]
        return 2 * int(np.prod([d.value for d in (*e.shape, depth)]))

    return sum(own(e) for e in postorder((root,)) if e.args)


def least_flops(sizes: Sequence[int]) -> int:
    """The flops of the best order, by its textbook recurrence."""
    n = len(sizes) - 1
    best = {(i, i): 0 for i in range(n)}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            best[i, j] = min(
                best[i, k] + best[k + 1, j] + 2 * sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)
            )
    return best[0, n - 1]


@pytest.mark.parametrize("n", [17, 40])
def test_the_order_is_the_cheapest(n: int) -> None:
    sizes = sizes_of(n)
    chain = factors(*(f"{a} {b}" for a, b in pairwise(sizes)))
    written = product(chain)
    (form,) = proposals(written)  # here a second costs as much as a flop
    assert flops(form) == least_flops(sizes) < flops(written)
    assert factors_of(form) == chain and not why_not_same_chain(written, form, lambda e: frozenset(), {})


def test_chains_longer_than_the_limit_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[CHEAPEST.propose.__module__], "_MOST_FACTORS", 20)
    sizes = sizes_of(45)
    written = product(factors(*(f"{a} {b}" for a, b in pairwise(sizes))))
    (form,) = proposals(written)
    parts = [least_flops(sizes[i : i + 21]) for i in (0, 20, 40)]
    assert flops(form) == sum(parts) + least_flops([sizes[i] for i in (0, 20, 40, 45)])


def test_where_chains_end() -> None:
    """A column in a chain, a product that others read, and batches of other sizes are factors as a whole, or none."""
    v, a, b, w, c = factors("4", "4 5", "5 6", "6", "4 3")
    assert factors_of((v @ a) @ (b @ w)) == [v, a, b, w]
    assert factors_of((a @ (b @ w)) @ c) == [a @ (b @ w), c]  # a column becomes a row
    x, y, z = factors("3 4 5", "5 6", "6")
    assert factors_of((x @ y) @ z) is None  # x @ (y @ z) is a matrix, not a batch of columns
    p, q = factors("3 4 4", "2 1 4 4")
    assert factors_of((p @ p) @ q) is None
    assert factors_of((p @ p) @ a) == [p, p, a]
    assert proposals(product([a, *factors(*["5 5"] * 15)])) == ()  # `same_sum_of_products` plans it


def test_other_factors_are_refused() -> None:
    a, b, c = factors("n n", "n n", "n n")
    none = lambda e: frozenset[str]()  # noqa: E731
    assert why_not_same_chain((a @ b) @ c, a @ (b @ c), none, {}) == ""
    assert why_not_same_chain((a @ b) @ c, a @ (c @ b), none, {}) == "products of other factors"
    x, y, z = factors("3 4 5", "5 6", "6")
    assert "another meaning" in why_not_same_chain((x @ y) @ z, (x @ y) @ z, none, {})


def test_an_optimized_chain_is_explained() -> None:
    n = 18
    sizes = sizes_of(n, 1)

    def chain(xs: list[jax.Array]) -> jax.Array:
        made = xs[0]
        for x in xs[1:]:
            made = made @ x
        return made

    best = rx.optimize(chain, [f"{8 * a} {8 * b}" for a, b in pairwise(sizes)], rules=product_chains)
    assert best.report.after.flops == 8**3 * least_flops(sizes)
    assert [s.rule for s in best.explain().steps] == [CHEAPEST.name]


def test_the_search_grows_with_the_chain() -> None:
    """Associativity finds the cube of the length of a chain, of which `Budget.growth` lets it find a multiple."""

    def nodes(n: int) -> int:
        root = product(factors(*["n n"] * n))
        with EGraph([root], rx.rules.contraction, Scope()) as egraph:
            return egraph.saturate(Budget()).nodes

    assert nodes(16) == 17 * 16 * 15 // 6 + 16  # all parts, all halves, and the matrices
    assert nodes(256) < 4.5 * nodes(64)


def test_where_all_orders_cost_the_same_nothing_is_searched_for_long() -> None:
    def chain(x: jax.Array, ws: list[jax.Array]) -> jax.Array:
        for w in ws:
            x = x @ w
        return x

    report = rx.optimize(chain, "4 16 16", ["4 16 16"] * 20, rules=rx.rules.contraction).report
    assert report.stop == "phase plan completed"  # HiGHS took the 20 seconds of extraction, which the stop then says
