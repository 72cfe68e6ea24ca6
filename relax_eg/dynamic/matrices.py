"""Matrix decompositions and solves at capacity: the matrix is bordered by an identity or by zeros.

Row and column operations on [[A, 0], [0, I]] act on A, so its triangular factor begins with that of A, and its solution
with that of A if the right side is zero beyond. Pivots are found among the valid elements of a column, because those
beyond are zero. Reflectors that annihilate zeros do nothing. Eigenvalues and singular values do not work this way: they
are ordered over the whole matrix, and their vectors are determined only up to a sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from relax_eg.dynamic.moving import Rule, plain_result
from relax_eg.dynamic.native import mask_unless_filled, native_lowering, unmasked_step
from relax_eg.dynamic.step import CapacityStep, InnerMask, NotPredicated, OperandMask, OperatorUse, StepSizes
from relax_eg.shapes import Dim


def _bordered(x: Any, size: Dim, at: StepSizes) -> Any:
    """A square matrix of true size `size`, bordered by an identity."""
    counts = at.valid_mask(size, x.shape[-1])
    return jnp.where(counts[:, None] & counts, x, jnp.eye(x.shape[-1], dtype=x.dtype))


def _zeros(use: OperatorUse, operand: int, *axes: int) -> list[OperandMask]:
    """Masks with zeros beyond the true size, for those of `axes` (counted from the end) that vary."""
    shape = use.site.shape(operand)
    found = [
        mask_unless_filled(use, operand, len(shape) + a, 0, f"matrices of {shape[a]}")
        for a in axes
        if use.moves(shape[a])
    ]
    return [m for masks in found for m in masks]


def _square_rule(*zero: tuple[int, int]) -> Rule:
    """A rule for an operator whose first operand is bordered by an identity; the (operand, axis) pairs `zero` are
    bordered by zeros."""

    def rule(use: OperatorUse) -> CapacityStep | None:
        run, size = native_lowering(use), use.site.shape()[-1]
        masks = [m for operand, axis in zero for m in _zeros(use, operand, axis)]
        if use.site.shape()[-2] is not size:
            raise NotPredicated("its matrices are not square, and which of their sides is the shorter one varies")
        if not use.moves(size):
            return unmasked_step(use)

        def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
            first, *others = arrays
            return run(at, [_bordered(first, size, at) if at.applies_inner_mask(0) else first, *others])

        return CapacityStep(
            compute, plain_result(use), tuple(masks), use.merged_operands, (InnerMask(size, f"matrices of {size}"),)
        )

    return rule


def cholesky(use: OperatorUse) -> CapacityStep | None:
    return _square_rule()(use)


def cholesky_update(use: OperatorUse) -> CapacityStep | None:
    return _square_rule((1, -1))(use)


def lu(use: OperatorUse) -> CapacityStep | None:
    m, n = use.site.shape()[-2:]
    if use.moves(m) or use.moves(n):
        return _square_rule()(use)
    return unmasked_step(use)


def qr(use: OperatorUse) -> CapacityStep | None:
    masks = _zeros(use, 0, -2, -1)
    if masks and use.site["pivoting"]:
        raise NotPredicated("which of its columns comes first depends on all of them")
    return unmasked_step(use, *masks)


def triangular_solve(use: OperatorUse) -> CapacityStep | None:
    return _square_rule((1, -2 if use.site["left_side"] else -1))(use)


def geqrf(use: OperatorUse) -> CapacityStep | None:
    return unmasked_step(use, *_zeros(use, 0, -2, -1))


def householder_product(use: OperatorUse) -> CapacityStep | None:
    m, n = use.site.shape()[-2:]
    if use.moves(n) and n is not m:
        raise NotPredicated(f"its matrices have {m} rows and {n} columns, which at capacity may be more than rows")
    masks = [*_zeros(use, 0, -2, -1), *_zeros(use, 1, -1)]
    if len(use.operand_layouts) == 3:  # what the product is multiplied with
        masks += _zeros(use, 2, -2 if use.site["left"] else -1)
    return unmasked_step(use, *masks)


def tridiagonal_solve(use: OperatorUse) -> CapacityStep | None:
    size = use.site.shape(3)[-2]
    run = native_lowering(use)
    if not use.moves(size):
        return unmasked_step(use)
    ones = mask_unless_filled(use, 1, len(use.site.shape(1)) - 1, 1, f"matrices of {size}")
    masks = [*_zeros(use, 0, -1), *ones, *_zeros(use, 3, -2)]

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        lower, diagonal, upper, b = arrays
        # The last valid row has no element above the diagonal, so that element is set to zero.
        upper = jnp.where(at.valid_mask(size - 1, upper.shape[-1]), upper, 0) if at.applies_inner_mask(0) else upper
        return run(at, [lower, diagonal, upper, b])

    return CapacityStep(
        compute, plain_result(use), tuple(masks), use.merged_operands, (InnerMask(size, f"matrices of {size}"),)
    )


def permutation(use: OperatorUse) -> CapacityStep | None:
    size = use.site.shape()[-1]
    run = native_lowering(use)
    if not use.moves(size):
        return unmasked_step(use)

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        (pivots,) = arrays
        places = pivots.shape[-1]
        if at.applies_inner_mask(0):  # padding is exchanged with itself
            pivots = jnp.where(at.valid_mask(size, places), pivots, jnp.arange(places, dtype=pivots.dtype))
        return run(at, [pivots])

    return CapacityStep(compute, plain_result(use), (), use.merged_operands, (InnerMask(size, f"exchanges of {size}"),))


def _batched_rule(*last: int) -> Rule:
    """A rule for an operator that treats each of many matrices alike: the `last` axes of each operand must be fixed."""

    def rule(use: OperatorUse) -> CapacityStep | None:
        for i, count in enumerate(last):
            shape = use.site.shape(i)
            for a in use.moving_axes(i):
                if a >= len(shape) - count:
                    raise NotPredicated(f"it looks at all of axis {a} of operand {i}, whose size is {shape[a]}")
        return unmasked_step(use)

    return rule


def fft(use: OperatorUse) -> CapacityStep | None:
    return _batched_rule(len(use.site["lengths"]))(use)


def whole_matrices(use: OperatorUse) -> CapacityStep | None:
    return _batched_rule(2)(use)


MATRICES: tuple[Rule, ...] = (
    cholesky, cholesky_update, lu, triangular_solve, geqrf, qr, householder_product, tridiagonal_solve, permutation,
    fft, whole_matrices,
)  # fmt: skip
