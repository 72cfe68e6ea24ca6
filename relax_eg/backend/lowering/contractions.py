"""Lowers sums of products to contractions of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.backend.lowering.loop_values import Indices, LoopValue, pointwise
from relax_eg.backend.lowering.scalar_functions import convert
from relax_eg.dtypes import dtype_of, kind
from relax_eg.shapes import Dim
from relax_eg.tir import Apply, Cast, Read, Reduce, Scalar, is_loop, walk
from relax_eg.traversal import leaves


class Frame(Protocol):
    """A scope in which terms are computed; `tensor_programs` implements it."""

    @property
    def extents(self) -> dict[str, Any]: ...
    @property
    def fixed(self) -> dict[str, Any]: ...
    @property
    def indices(self) -> Indices: ...
    def dim(self, dim: Dim) -> Dim: ...


Term = Callable[[Scalar, Any], LoopValue]
_MOST = 16  # limit: factors of a contraction; of more, the product is computed


def lower_contraction(expr: Reduce, inner: Any, wide: str, term: Term) -> LoopValue | None:
    """The sum of a product (or "any" of a conjunction) as a contraction of its factors, accumulated in dtype `wide`.

    None where the body is no product of 2 to `_MOST` factors, or a contraction gains nothing: the loops of one factor
    include those of all others.
    """
    logical = expr.kind == "any"
    if logical and expr.dtype != "bool":
        return None
    factors = factors_of(expr.body, "bitwise_and" if logical else "multiply")
    if not 2 <= len(factors) <= _MOST:
        return None
    over = [name for name in inner.extents if name in expr.bound]
    # Loops of extent 1 count, too: a matrix times a single row is a contraction, like a matrix times several rows.
    groups = group_factors([(f, frozenset(v for v in f.free if is_loop(v))) for f in factors])
    if len(groups) < 2 or not over:
        return None
    order, extents = inner.indices.order, inner.extents
    combine = lax.bitwise_and if logical else lax.mul
    operands: list[LoopValue] = []
    for group in strip_widening_casts(groups):
        values = [term(f, inner) for f in group]
        arrays = [LoopValue(jnp.asarray(v.array), v.loops) for v in values]
        product = arrays[0]
        for more in arrays[1:]:
            product = pointwise(combine, (product, more), order, extents)
        operands.append(product)
    if dtype_of(expr.dtype).bits < 8:  # not every device has contractions of these in XLA
        operands = [LoopValue(convert(v.array, wide), v.loops) for v in operands]
    if logical:
        wide = "float32"  # whether a sum of ones is 0 is exact
        operands = [LoopValue(convert(v.array, wide), v.loops) for v in operands]
    if is_widened(expr):
        held = lax.optimization_barrier(tuple(convert(v.array, wide) for v in operands))
        operands = [LoopValue(a, v.loops) for a, v in zip(held, operands, strict=True)]
    kept = tuple(n for n in extents if n not in over and any(n in v.loops for v in operands))
    total = _einsum(operands, kept, order, wide)
    for name in over:
        if not any(name in v.loops for v in operands) and not logical:
            total = total * jnp.asarray(extents[name]).astype(total.dtype)
    return LoopValue(lax.gt(total, lax.full_like(total, 0)) if logical else total, kept)


def is_widened(expr: Scalar) -> bool:
    """Whether elements are read of which XLA has no contraction. Without a barrier it puts their conversions into the
    contraction, and then refuses it (`Dtype.is_contracted`)."""
    return any(isinstance(e, Read) and not dtype_of(e.dtype).is_contracted for e in walk(expr))


def _einsum(operands: list[LoopValue], kept: tuple[str, ...], order: dict[str, int], wide: str) -> Any:
    row = next((v for v in operands if not set(v.loops) & set(kept)), None)
    if row is not None and len(operands) == 2:
        other = operands[operands[0] is row]
        summed = [n for n in other.loops if n not in kept]
        if set(summed) == set(row.loops) and tuple(n for n in other.loops if n in kept) == kept:
            # A matrix of one row instead of a vector: XLA fuses the computation of an operand into a product with a
            # vector, as plain loops, which are slow on a CPU.
            dims = [1 + row.loops.index(n) for n in summed], [other.loops.index(n) for n in summed]
            rows = lax.dot_general(row.array[None], other.array, (dims, ([], [])), None, np.dtype(wide))
            return lax.squeeze(rows, (0,))
    given: list[Any] = []
    for v in operands:
        given += [v.array, [order[n] for n in v.loops]]
    result = [order[n] for n in kept]
    return jnp.einsum(*given, result, preferred_element_type=np.dtype(wide), optimize="auto")


def strip_widening_casts(groups: list[list[Scalar]]) -> list[list[Scalar]]:
    """Two operands without the casts that widen both of them, where the contraction accumulates in the wider dtype
    anyway; other groups unchanged."""
    pair = [group[0] for group in groups if len(group) == 1 and isinstance(group[0], Cast)]
    if len(groups) != 2 or len(pair) != 2:
        return groups
    args = [cast.arg for cast in pair if isinstance(cast, Cast)]
    if args[0].dtype == args[1].dtype and _widens(args[0].dtype, pair[0].dtype):
        return [[arg] for arg in args]
    return groups


def _widens(source: str, target: str) -> bool:
    """Whether `target` is a wider dtype of the same kind as `source`; False for 4-bit integers and float8."""
    narrow, wide = dtype_of(source), dtype_of(target)
    return narrow.kind == wide.kind and narrow.kind in "iuf" and not narrow.is_narrow and narrow.bits < wide.bits


def factors_of(body: Scalar, fn: str) -> list[Scalar]:
    """The factors of the product `body` of function `fn`, in order.

    A cast of a product to wider floats is taken as a product of casts: it is not rounded before it is summed.
    """

    def parts(factor: Scalar) -> Sequence[Scalar] | None:
        if isinstance(factor, Cast) and _widens_a_product(factor, fn):
            return [Cast(part, factor.dtype) for part in factor.arg.children]
        return factor.args if isinstance(factor, Apply) and factor.fn == fn else None

    return leaves(body, parts, _MOST + 1)


def _widens_a_product(factor: Scalar, fn: str) -> bool:
    if not (isinstance(factor, Cast) and isinstance(factor.arg, Apply) and factor.arg.fn == fn):
        return False
    return kind(factor.dtype) == "f" and _widens(factor.arg.dtype, factor.dtype)


def group_factors(factors: list[tuple[Scalar, frozenset[str]]]) -> list[list[Scalar]]:
    """The factors in groups that are multiplied before the sum: each joins a factor whose loops include its own."""
    groups: list[tuple[list[Scalar], frozenset[str]]] = []
    for factor, loops in sorted(factors, key=lambda f: -len(f[1])):
        for members, all_loops in groups:
            if loops <= all_loops:
                members.append(factor)
                break
        else:
            groups.append(([factor], loops))
    return [members for members, _ in groups]
