"""Sums of products as contractions and convolutions of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.backend.loop_values import Indices, Value, pointwise
from relax_eg.backend.scalar_functions import convert
from relax_eg.shapes import Dim
from relax_eg.tir import Apply, Cast, Reduce, Scalar, is_loop
from relax_eg.tir.functions import kind


class Frame(Protocol):
    """Where terms are computed; see `tensor_programs`."""

    @property
    def extents(self) -> dict[str, Any]: ...
    @property
    def fixed(self) -> dict[str, Any]: ...
    @property
    def indices(self) -> Indices: ...
    def dim(self, dim: Dim) -> Dim: ...


Term = Callable[[Scalar, Any], Value]
_MOST = 16  # factors: of more, the product is formed


def contracted(expr: Reduce, inner: Any, wide: str, term: Term) -> Value | None:
    """The sum of a product (or "any" of a conjunction), summed in dtype `wide`, as a contraction of its factors over
    the loops that it binds. None where nothing is gained: all factors depend on the same loops."""
    logical = expr.kind == "any"
    if logical and expr.dtype != "bool":
        return None
    factors = factors_of(expr.body, "bitwise_and" if logical else "multiply")
    if not 2 <= len(factors) <= _MOST:
        return None
    over = [name for name in inner.extents if name in expr.bound]
    # Loops of one step count, too: the product of a matrix and a single row is a contraction like that of more rows.
    groups = grouped([(f, frozenset(v for v in f.free if is_loop(v))) for f in factors])
    if len(groups) < 2 or not over:
        return None
    order, extents = inner.indices.order, inner.extents
    combine = lax.bitwise_and if logical else lax.mul
    operands: list[Value] = []
    for group in unwidened(groups):
        values = [term(f, inner) for f in group]
        arrays = [Value(jnp.asarray(v.array), v.loops) for v in values]
        product = arrays[0]
        for more in arrays[1:]:
            product = pointwise(combine, (product, more), order, extents)
        operands.append(product)
    if expr.dtype in ("int4", "uint4"):  # of which XLA has no contractions on every device
        operands = [Value(convert(v.array, wide), v.loops) for v in operands]
    if logical:
        wide = "float32"  # sums of ones: whether there is any is exact
        operands = [Value(convert(v.array, wide), v.loops) for v in operands]
    kept = tuple(n for n in extents if n not in over and any(n in v.loops for v in operands))
    total = _einsum(operands, kept, order, wide)
    for name in over:
        if not any(name in v.loops for v in operands) and not logical:
            total = total * jnp.asarray(extents[name]).astype(total.dtype)
    return Value(lax.gt(total, lax.full_like(total, 0)) if logical else total, kept)


def _einsum(operands: list[Value], kept: tuple[str, ...], order: dict[str, int], wide: str) -> Any:
    row = next((v for v in operands if not set(v.loops) & set(kept)), None)
    if row is not None and len(operands) == 2:
        other = operands[operands[0] is row]
        summed = [n for n in other.loops if n not in kept]
        if set(summed) == set(row.loops) and tuple(n for n in other.loops if n in kept) == kept:
            # Of one row, and not a vector: what computes an operand XLA takes into a product of a vector, as plain
            # loops that are slow on a CPU.
            dims = [1 + row.loops.index(n) for n in summed], [other.loops.index(n) for n in summed]
            rows = lax.dot_general(row.array[None], other.array, (dims, ([], [])), None, np.dtype(wide))
            return lax.squeeze(rows, (0,))
    given: list[Any] = []
    for v in operands:
        given += [v.array, [order[n] for n in v.loops]]
    result = [order[n] for n in kept]
    return jnp.einsum(*given, result, preferred_element_type=np.dtype(wide), optimize="auto")


def unwidened(groups: list[list[Scalar]]) -> list[list[Scalar]]:
    """Two operands without the casts that widen them both, where the contraction widens them by itself."""
    pair = [group[0] for group in groups if len(group) == 1 and isinstance(group[0], Cast)]
    if len(groups) != 2 or len(pair) != 2:
        return groups
    args = [cast.arg for cast in pair if isinstance(cast, Cast)]
    if args[0].dtype == args[1].dtype and _widens(args[0].dtype, pair[0].dtype):
        return [[arg] for arg in args]
    return groups


def _widens(source: str, target: str) -> bool:
    """Whether all numbers of dtype `source`, of at least a byte, are numbers of the same kind in `target`."""
    same = kind(source) == kind(target) and kind(source) in "iuf" and not source.endswith("int4")
    return same and "float8" not in source and np.dtype(source).itemsize < np.dtype(target).itemsize


def factors_of(body: Scalar, fn: str) -> list[Scalar]:
    """The factors of a product, in order. A cast of a product of floats to wider ones is one of its factors: the
    product then is not rounded before it is summed."""
    factors, at = [body], 0
    while at < len(factors) <= _MOST:
        factor = factors[at]
        if isinstance(factor, Apply) and factor.fn == fn:
            factors[at : at + 1] = factor.args
        elif _widens_a_product(factor, fn):
            assert isinstance(factor, Cast)
            factors[at : at + 1] = [Cast(part, factor.dtype) for part in factor.arg.children]
        else:
            at += 1
    return factors


def _widens_a_product(factor: Scalar, fn: str) -> bool:
    if not (isinstance(factor, Cast) and isinstance(factor.arg, Apply) and factor.arg.fn == fn):
        return False
    return kind(factor.dtype) == "f" and _widens(factor.arg.dtype, factor.dtype)


def grouped(factors: list[tuple[Scalar, frozenset[str]]]) -> list[list[Scalar]]:
    """The factors in groups, to be multiplied before anything is summed: each with one whose loops include its own."""
    groups: list[tuple[list[Scalar], frozenset[str]]] = []
    for factor, loops in sorted(factors, key=lambda f: -len(f[1])):
        for members, all_loops in groups:
            if loops <= all_loops:
                members.append(factor)
                break
        else:
            groups.append(([factor], loops))
    return [members for members, _ in groups]
