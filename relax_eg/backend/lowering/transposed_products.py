"""Products of transposed matrices, and transposes of products, on CPUs.

XLA computes the product of two transposed matrices as it is, and the transpose of a product A B as the product B' A'.
Its library YNN has no kernel for that form: XLA's own copies the larger operand, one element after the other (jax
0.10.2). With the product, or the left operand, behind a barrier XLA transposes it alone, and 2 to 64 rows take a half
to a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from relax_eg.dtypes import dtype_of
from relax_eg.ir.expr import Expr
from relax_eg.ops.contraction import LINEARS, MATMULS
from relax_eg.ops.movement import swaps_last_axes
from relax_eg.shapes import Dim

# measured: longer side of a product from which on the form takes longer (`python -m benchmarks.patterns --cases
# transpose`)
_LONG = 128
_FOLDED_BITS = 32  # given: bits of the elements of products into which XLA folds a transpose on CPUs, at least


def held_apart(e: Expr, args: list[Any]) -> list[Any]:
    """The operands of `e`, as JAX arrays, with the first one behind a barrier on CPUs where XLA would compute a product
    of two transposed matrices. It is the product of which `e` is the transpose, or the left one of these matrices: YNN
    has a kernel where only the right one is transposed, and none where only the left one is."""
    if _transposes_product(e):
        product = args[0].shape
    elif _is_of_transposes(e):
        product = (*args[0].shape[:-1], args[1].shape[-1 if e.op in MATMULS else -2])
    else:
        return args
    if not all(isinstance(n, int) for n in product) or not _is_slow(*product[-2:]):
        return args
    held = lax.platform_dependent(args[0], cpu=lax.optimization_barrier, default=lambda x: x)
    return [held, *args[1:]]


def copied_by_jax(e: Expr, size: Callable[[Dim], float]) -> Sequence[Expr]:
    """The two matrices of which XLA for CPUs copies the larger one at every call for `e`, where JAX lowers the program
    as it is written; () for other nodes. `size`: the number for a size."""
    if _transposes_product(e):
        e = e.args[0]
    elif e.op not in MATMULS or not _is_of_transposes(e):
        return ()
    return e.args if _is_slow(*map(size, e.shape[-2:])) else ()


def _is_of_transposes(e: Expr) -> bool:
    """Whether `e` is a product of two transposed matrices."""
    return e.op in MATMULS | LINEARS and all(map(swaps_last_axes, e.args if e.op in MATMULS else e.args[:1]))


def _transposes_product(e: Expr) -> bool:
    """Whether `e` is the transpose of a product whose operands are not transposed."""
    if not swaps_last_axes(e) or e.args[0].op not in MATMULS:
        return False
    a, b = e.args[0].args
    is_folded = dtype_of(a.dtype).bits >= _FOLDED_BITS
    return is_folded and min(a.ndim, b.ndim) > 1 and not swaps_last_axes(a) and not swaps_last_axes(b)


def _is_slow(rows: float, columns: float) -> bool:
    return max(rows, columns) >= _LONG and min(rows, columns) > 1
