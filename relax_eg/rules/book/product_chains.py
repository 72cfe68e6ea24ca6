"""A long chain of matrix products, multiplied in the cheapest order.

`sum_products` plans a product of up to `MOST_ALONE` factors together with sums, views and masks. A longer product is
planned here if it is a chain of matmuls: the best order of each part of the chain follows from those of shorter parts,
so all orders are compared in time cubic in the factors. Associativity alone would add as many nodes to the e-graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import itemsize
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.ops.record import operators_run_as
from relax_eg.rules.checking.value_trials import chains_of_products
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, schema
from relax_eg.rules.sums_of_products.region import MOST_ALONE
from relax_eg.shapes import Dim
from relax_eg.traversal import leaves

(MATMUL,) = operators_run_as("matmul")
# limit: factors of which all orders are compared, in 0.3 s; longer chains are cut into parts of as many
_MOST_FACTORS = 256
_CHEAPER = 0.999  # limit: share of the cost as written below which an order is proposed
_CACHED = 0.25  # chosen: what a byte of a value in a cache costs, as a share of one in memory
_MANY = 1e12  # given: flops and bytes whose price is a rate and next to nothing else

Array = np.ndarray[Any, np.dtype[Any]]


def _is_inside(outer: Expr, i: int) -> bool:
    """Whether operand `i` of a matmul is a matmul whose factors are factors of `outer`. A matrix times a column is a
    column, and a row times a matrix is a row, so only the ends of a chain are vectors."""
    e = outer.args[i]
    if e.op != MATMUL or e.attrs != outer.attrs or e.dtype != outer.dtype:
        return False
    if any(a.dtype != e.dtype for a in e.args):
        return False
    near, far = e.args[1 - i], e.args[i]  # `near` is the operand beside the other one of `outer`
    return near.ndim >= 2 and (far.ndim >= 2 or near.ndim == 2)


def factors_of(root: Expr, is_cut: Callable[[Expr], bool] = lambda e: False) -> list[Expr] | None:
    """The factors of a chain of matmuls, in order; None if other orders of them do not have a matmul's meaning.
    `is_cut`: holds for matmuls that are factors as a whole."""

    def parts(at: tuple[Expr, bool]) -> list[tuple[Expr, bool]] | None:
        e, is_product = at
        return [(a, _is_inside(e, i) and not is_cut(a)) for i, a in enumerate(e.args)] if is_product else None

    found = [e for e, _ in leaves((root, root.op == MATMUL), parts)]
    batches = {x.shape[:-2] for x in found if x.ndim > 2}
    has_vectors = any(x.ndim == 1 for x in found)
    return None if len(batches) > 1 or (batches and has_vectors) else found


def cheapest_order_of_product(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """a chain of matrix products is the same in every order of multiplication"""
    readers = queries.readers(e)
    if (
        len(readers) == 1
        and readers[0].op == MATMUL
        and any(x is e and _is_inside(readers[0], i) for i, x in enumerate(readers[0].args))
    ):
        return None
    factors = factors_of(e, lambda x: len(queries.readers(x)) > 1)
    if factors is None or len(factors) <= MOST_ALONE:
        return None
    found: dict[Expr, None] = {}
    flop, byte, each = _rates(queries)
    asked: set[tuple[int, ...]] = set()
    for extent in (queries.extent, queries.largest_value):
        sizes = tuple(extent(d) for x in factors for d in x.shape)
        if sizes in asked:
            continue
        asked.add(sizes)
        for share in (1.0, _CACHED, 0.0):
            planner = _Planner(queries, extent, (flop, share * byte, each), dict(e.attrs))
            form = planner.cheapest(factors)
            if planner.cost(form, factors) < _CHEAPER * planner.cost(e, factors):
                found[form] = None
    return tuple(found) or None


def _rates(queries: ProgramQueries) -> tuple[float, float, float]:
    """What a flop, a byte and a matmul cost."""
    each = queries.seconds(0.0, 0.0, True)
    return (queries.seconds(_MANY, 0.0, True) - each) / _MANY, (queries.seconds(0.0, _MANY, True) - each) / _MANY, each


@dataclass(frozen=True)
class _Planner:
    """Orders chains at the sizes that `extent` says.

    - `prices`: what a flop, a byte and a matmul cost.
    - `attributes`: the attributes of each matmul.
    """

    queries: ProgramQueries
    extent: Callable[[Dim], int]
    prices: tuple[float, float, float]
    attributes: Mapping[str, Any]

    def cost(self, root: Expr, factors: Sequence[Expr]) -> float:
        """What the matmuls of a chain cost."""
        total = 0.0
        for e in postorder((root,), stop=set(factors).__contains__):
            if e.op == MATMUL and e not in factors and not self.queries.is_known_ahead(e):
                sizes = [self._elements(x) for x in (*e.args, e)]
                flop, byte, each = self.prices
                flops = 2 * sizes[2] * self.extent(e.args[0].shape[-1])
                total += flop * flops + byte * itemsize(e.dtype) * sum(sizes) + each
        return total

    def _elements(self, e: Expr) -> float:
        return math.prod(float(self.extent(d)) for d in e.shape)

    def cheapest(self, factors: Sequence[Expr]) -> Expr:
        """The product of the factors in the cheapest order; of long chains, of each part and then of the parts."""
        while len(factors) > _MOST_FACTORS:
            parts = range(0, len(factors), _MOST_FACTORS)
            factors = [self.cheapest(factors[i : i + _MOST_FACTORS]) for i in parts]
        halves, made = self._halves(factors), {(i, i): x for i, x in enumerate(factors)}
        needed = [(0, len(factors) - 1)]
        for i, j in needed:  # grows
            if i < j:
                needed += [(i, int(halves[i, j])), (int(halves[i, j]) + 1, j)]
        for i, j in reversed(needed):
            if i < j:
                k = int(halves[i, j])
                made[i, j] = op.matmul(made[i, k], made[k + 1, j], **self.attributes)
        return made[0, len(factors) - 1]

    def _halves(self, factors: Sequence[Expr]) -> Array:
        """For each part of a chain, by its first and last factor: the last factor of its left half. O(factors cubed),
        in one step of array arithmetic for all parts of a length."""
        n, (flop, byte, each) = len(factors), self.prices
        element = byte * itemsize(factors[0].dtype)
        rows = [1 if x.ndim == 1 and i == 0 else self.extent(x.shape[-min(x.ndim, 2)]) for i, x in enumerate(factors)]
        last = factors[-1]
        ends = np.array([*rows, 1 if last.ndim == 1 else self.extent(last.shape[-1])], float)
        batch = max(math.prod(float(self.extent(d)) for d in x.shape[:-2]) for x in factors)
        batched = np.cumsum([0, *(x.ndim > 2 for x in factors)])
        ahead = np.cumsum([0, *(self.queries.is_known_ahead(x) for x in factors)])
        costs, elements, halves = (np.zeros((n, n)) for _ in range(3))
        elements[range(n), range(n)] = [self._elements(x) for x in factors]
        for length in range(2, n + 1):
            i = np.arange(n - length + 1)
            j = i + length - 1
            many = np.where(batched[j + 1] > batched[i], batch, 1.0)
            elements[i, j] = many * ends[i] * ends[j + 1]
            first, k, end = i[:, None], i[:, None] + np.arange(length - 1), j[:, None]
            moved = elements[first, k] + elements[k + 1, end] + elements[first, end]
            price = 2 * flop * elements[first, end] * ends[k + 1] + element * moved + each
            is_free = (ahead[j + 1] - ahead[i] == length)[:, None]
            total = np.where(is_free, 0.0, price) + costs[first, k] + costs[k + 1, end]
            best = np.argmin(total, axis=1)
            costs[i, j], halves[i, j] = total[i, best], i + best
        return halves


def why_not_same_chain(left: Expr, right: Expr, facts: FactsOf, functions: Mapping[str, Function]) -> str:
    """Why two expressions are not shown to be the product of the same chain; empty if they are."""
    one, other = factors_of(left), factors_of(right)
    if one is None or other is None:
        return "a chain in which another order has another meaning"
    if left.attrs != right.attrs or left.dtype != right.dtype:
        return f"products of other attributes: {left.attrs} and {right.attrs}"
    return "" if one == other else "products of other factors"


product_chains = RuleSet(
    "product_chains",
    schemas=(
        schema(
            cheapest_order_of_product,
            "reassociate",
            ("matmul",),
            (MATMUL,),
            (chains_of_products,),
            prove=why_not_same_chain,
        ),
    ),
)
