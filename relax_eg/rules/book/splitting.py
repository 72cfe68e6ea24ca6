"""A matmul as a sum: of the products of parts of a long axis (split-K), or of products of elements.

A matmul of few rows and columns over a long depth has few result blocks, so most cores of a device have none. The parts
of the depth form a batch of matmuls, and one more reduction adds them up; operators before and after can be fused with
them. Prices decide where that is faster: libraries cut the depth of plain matmuls by themselves.

A matmul of a few hundred elements takes a library less time than to be called. XLA's own loops compute it as a sum of
products of elements, and operators before and after can be fused with these.
"""

from __future__ import annotations

import math

from relax_eg.dtypes import HALF, kind
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.record import operators_run_as
from relax_eg.rules.book.sum_products import why_not_same_sum
from relax_eg.rules.checking.schema_trials import long_products, small_products
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, schema
from relax_eg.shapes import Dim

(MATMUL,), (LINEAR,) = operators_run_as("matmul"), operators_run_as("transposed_matmul")
_SIDE = 64  # chosen: rows and columns of a result block
_BLOCKS = 256  # chosen: result blocks that keep the cores of a large device busy
_LEAST = 512  # chosen: least elements of the depth in a part
_FEWEST = 8  # chosen: fewest parts; fewer parts are not faster than one longer pipeline


def matmul_splits(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a product over a long axis is the sum of the products of its parts"""
    x, w = e.args
    if x.ndim != 2 or w.ndim != 2 or e.dtype not in ("float32", *HALF):
        return None
    rows, depth, columns = x.shape[0], x.shape[1], w.shape[1]
    blocks = -(-queries.extent(rows) // _SIDE) * -(-queries.extent(columns) // _SIDE)
    parts = _BLOCKS // 2
    while parts > 1 and (
        parts * blocks > _BLOCKS or queries.extent(depth) < _LEAST * parts or depth % parts != Dim.of(0)
    ):
        parts //= 2
    if parts < _FEWEST or not blocks:
        return None
    each = depth // parts
    first = op.permute_dims(op.reshape(x, (rows, Dim.of(parts), each)), (1, 0, 2))
    second = op.reshape(w, (Dim.of(parts), each, columns))
    # Partial sums are in float32, so that they are added before anything is rounded.
    products = op.matmul(first, second, precision=e.attr("precision"), out_dtype="float32")
    total = op.sum(products, 0)
    return op.astype(total, e.dtype) if e.dtype in HALF else total


def small_product(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a product of small matrices is a sum of products of their elements"""
    x, y = e.args
    if not x.dtype == y.dtype == e.dtype or kind(e.dtype) != "f" or e.dtype in HALF:
        return None
    flops = 2.0 * queries.largest_value(math.prod(e.shape, start=x.shape[-1]))
    launch, called = (queries.seconds(0.0, 0.0, contracts) for contracts in (False, True))
    if called <= launch:
        return None
    # Products with a vector are XLA's own loops, in which nothing is fused: a launch is what fusion saves.
    limit = launch + called if min(x.ndim, y.ndim) == 1 else queries.seconds(flops, 0.0, True)
    if queries.seconds(flops, 0.0, False) >= limit:
        return None
    if y.ndim == 1:
        return op.sum(op.multiply(x, y), -1)
    if e.op == LINEAR:
        return op.sum(op.multiply(op.expand_dims(x, -2), y), -1)
    columns = y if x.ndim == 1 else op.expand_dims(y, -3)
    return op.sum(op.multiply(op.expand_dims(x, -1), columns), -2)


splitting = RuleSet(
    "splitting",
    schemas=(
        schema(matmul_splits, "reassociate", ("splitting",), (MATMUL,), (long_products,)),
        schema(
            small_product,
            "reassociate",
            ("splitting",),
            (MATMUL, LINEAR),
            (small_products,),
            asks_again=True,
            prove=why_not_same_sum,
        ),
    ),
)
