"""The matmuls that XLA makes of several nodes of a program as it is written.

A matmul reads a transposed matrix in place. On CPUs there is an exception: if the matmul has one row, and its result is
only added to a vector, or the row is long, XLA copies the transposed matrix at every call (3 to 25 times the time of
the product for weights of 0.6 to 64 MiB, jax 0.10.2).

On CPUs the sum over one axis of a product of two broadcast operands is a matmul, too, if their elements are float32 and
nothing else reads the product (the library YNN finds it). Unless the summed axis is the last one, a large one takes
longer than a matmul.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from relax_eg.dtypes import itemsize
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function
from relax_eg.ops import Site
from relax_eg.ops.movement import is_transpose
from relax_eg.ops.record import movement_operators, operators_run_as
from relax_eg.shapes import Dim

(MATMUL,), (LINEAR,) = operators_run_as("matmul"), operators_run_as("transposed_matmul")
_DTYPE = "float32"  # measured: sums of products of float64, float16, bfloat16 and int32 are loops (jax 0.10.2)
# given: elements of a product from which on its sum is a kernel of YNN's (2,800 are not; jax 0.10.2)
LEAST_ELEMENTS = 4096
# given: bytes of a row from which on XLA's compiler for CPUs does not read the transposed matrix in the kernel of the
# product, and bytes of an element in it, at least (jax 0.10.2)
_LONG_ROW, _WIDENED = 1 << 14, 4
_REPEATED = movement_operators("view", "repeat")
_ONE = Dim.of(1)
# chosen: how many times as long as a matmul a sum over another axis than the last takes, and elements of both other
# axes from which it does (on an Intel Xeon 1.75 to 2.3 times at 256 to 1,024, as long at 128; jax 0.10.2)
_STRIDED, _WIDE = 1.8, 256


def implied_matmuls(
    function: Function,
    expressions: Collection[Expr],
    sums: bool,
    copied: Callable[[Dim], bool],
    size: Callable[[Dim], float],
) -> tuple[dict[Expr, tuple[Site, float]], set[Expr]]:
    """The nodes of `expressions` that XLA computes as matmuls, each with the site of its matmul and how many times as
    long it takes; and the nodes that are computed inside these matmuls.

    - `sums`: whether sums of products are matmuls on the device (`Profile.sums_as_matmuls`).
    - `copied`: whether the device copies the transposed matrix of a matmul with so many rows that is added to a vector,
      or whose rows are long.
    - `size`: the number for a size.
    """
    outputs = {*function.values, function.result}
    readers = Counter(a for e in expressions for a in e.args)
    readers.update(outputs)
    matmuls: dict[Expr, tuple[Site, float]] = {}
    inside = _transposes_in_place(expressions, readers) - outputs
    candidates = {*_added_to_vectors(expressions, readers), *_with_long_rows(expressions, size)}
    inside -= {m.args[1] for m in candidates if copied(math.prod(m.shape[:-1], start=_ONE))}
    for e in expressions:
        if e.op == MATMUL and e.args[1] in inside:
            matmuls[e] = Site(LINEAR, (e.args[0].annotation, e.args[1].args[0].annotation), {}), 1.0
        elif sums and e.op == "sum" and readers[e.args[0]] == 1 and (found := _of_sum(e, size)) is not None:
            matmuls[e] = found
            inside.add(e.args[0])
    return matmuls, inside


def _transposes_in_place(expressions: Collection[Expr], readers: Collection[Expr]) -> set[Expr]:
    """Matrix transposes that at least one matmul reads, and nothing else reads. Where both operands of a matmul are
    transposes, only the second is read in place (`backend.lowering.transposed_products`). `readers`: what is read or
    is a result."""
    found = {e for e in expressions if is_transpose(e) and e in readers}
    for e in expressions:
        for i, a in enumerate(e.args):
            is_left = e.op == MATMUL and i == 0 and e.args[1].ndim > 1 and not is_transpose(e.args[1])
            is_right = e.op == MATMUL and i == 1 and e.args[0].ndim >= 1
            if a in found and not is_left and not is_right:
                found.discard(a)
    return found


def _added_to_vectors(expressions: Collection[Expr], readers: Counter[Expr]) -> Iterator[Expr]:
    """The matmuls whose results are read once, by a sum with a vector."""
    for e in expressions:
        if e.op != "add":
            continue
        for product, other in (e.args, e.args[::-1]):
            while other.ndim > 1 and other.op in _REPEATED:
                other = other.args[0]
            if product.op == MATMUL and readers[product] == 1 and other.ndim == 1:
                yield product


def _with_long_rows(expressions: Collection[Expr], size: Callable[[Dim], float]) -> Iterator[Expr]:
    """The matmuls that read a transposed matrix, and whose rows have `_LONG_ROW` bytes or more."""
    for e in expressions:
        if e.op != MATMUL or not is_transpose(e.args[1]):
            continue
        if size(e.args[0].shape[-1]) * max(itemsize(e.dtype), _WIDENED) >= _LONG_ROW:
            yield e


def _of_sum(total: Expr, size: Callable[[Dim], float]) -> tuple[Site, float] | None:
    """The matmul that a sum of a product is, and how many times as long it takes; None if it is none."""
    product = total.args[0]
    axes: tuple[int, ...] = total.attr("axes")
    if product.op != "multiply" or len(axes) != 1 or total.dtype != _DTYPE:
        return None
    if any(a.tensor.shape is None for a in (product, *product.args)):
        return None
    shape = product.shape
    if math.prod(map(size, shape)) < LEAST_ELEMENTS:
        return None
    left, right = (_axes_of(a, len(shape)) for a in product.args)
    depth = axes[0] % len(shape)
    if depth not in left & right or not left - right or not right - left:
        return None

    def extent(kept: frozenset[int]) -> Dim:
        return math.prod((shape[i] for i in sorted(kept)), start=_ONE)

    batches = tuple(shape[i] for i in sorted((left & right) - {depth}))
    rows, columns = extent(left - right), extent(right - left)
    a = Tensor((*batches, rows, shape[depth]), _DTYPE)
    b = Tensor((*batches, shape[depth], columns), _DTYPE)
    is_wide = depth != len(shape) - 1 and min(size(rows), size(columns)) >= _WIDE
    return Site(MATMUL, (a, b), {"out_dtype": None}), _STRIDED if is_wide else 1.0


def _axes_of(operand: Expr, rank: int) -> frozenset[int]:
    """The axes of a product of `rank` axes that an operand of it has, rather than repeats."""
    while operand.op == "broadcast_to":
        operand = operand.args[0]
    return frozenset(i + rank - operand.ndim for i, d in enumerate(operand.shape) if d != _ONE)
