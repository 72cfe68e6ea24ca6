"""A product over a long axis as a sum of products of its parts (split-K).

A matmul of few rows and columns over a long depth has few blocks of results, and most cores of a device have none of
them. Parts of the depth are a batch of matmuls, and one more reduction adds them up; what is computed before and after
stays with them. Where that wins is a matter of prices: libraries cut the depth of plain matmuls by themselves.
"""

from __future__ import annotations

from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.rules.rule import RuleSet
from relax_eg.rules.schemas import Functions, Schema
from relax_eg.shapes import Dim

_SIDE = 64  # of a block of the result
_BLOCKS = 256  # that keep the cores of a large device busy
_LEAST = 512  # elements of the depth in a part
_HALF = ("float16", "bfloat16")


def _split(e: Expr, known: Functions) -> Expr | None:
    x, w = e.args
    if x.ndim != 2 or w.ndim != 2 or e.dtype not in ("float32", *_HALF):
        return None
    rows, depth, columns = x.shape[0], x.shape[1], w.shape[1]
    blocks = -(-known.extent(rows) // _SIDE) * -(-known.extent(columns) // _SIDE)
    parts = _BLOCKS // 2
    while parts > 1 and (
        parts * blocks > _BLOCKS or known.extent(depth) < _LEAST * parts or depth % parts != Dim.of(0)
    ):
        parts //= 2
    # A few parts gain nothing that a longer pipeline would not.
    if parts < 8 or not blocks:
        return None
    each = depth // parts
    first = op.permute_dims(op.reshape(x, (rows, Dim.of(parts), each)), (1, 0, 2))
    second = op.reshape(w, (Dim.of(parts), each, columns))
    # Partial sums are added before anything is rounded.
    products = op.matmul(first, second, precision=e.attr("precision"), out_dtype="float32")
    total = op.sum(products, 0)
    return op.astype(total, e.dtype) if e.dtype in _HALF else total


splitting = RuleSet(
    "splitting",
    schemas=(
        Schema(
            "matmul_splits",
            "a product over a long axis is the sum of the products of its parts",
            "reassociate",
            frozenset(("splitting",)),
            _split,
            frozenset(("matmul",)),
        ),
    ),
)
