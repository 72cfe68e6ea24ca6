"""Products in other spellings: Kronecker products, factors that are one row or column, and sums that are products."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.book.contraction import eye_mask
from relax_eg.rules.rule_set import RuleSet

blocks = RuleSet("blocks")
_rule = blocks.rule


def diagonal(x: Any, places: Any) -> Any:
    """`jnp.diagonal(x)` as JAX traces it, of the places (i, i)."""
    return call("gather", (x, places), {
        "slice_sizes": (1, 1), "mode": "clip", "offset_dims": (), "collapsed_slice_dims": (0, 1),
        "start_index_map": (0, 1), "operand_batching_dims": (), "start_indices_batching_dims": (),
    })  # fmt: skip


# --- concatenated operands ---


@_rule("a: *b m k, c: *b m j, w: k+j n", tags=("matmul", "concat"))
def joined_features_times_weight(a: Any, c: Any, w: Any) -> Any:
    """[A, C] W = A W[:k] + C W[k:]: the features are not concatenated"""
    k, n = a.shape[-1], w.shape[1]
    top, rest = op.strided_slice(w, (0, 0), (k, n)), op.strided_slice(w, (k, 0), w.shape)
    return op.concat([a, c], a.ndim - 1) @ w, a @ top + c @ rest


# --- Kronecker products, as jax.numpy.kron is traced ---


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product of matrices."""
    (m, n), (p, q) = a.shape, b.shape
    return op.reshape(op.expand_dims(a, (1, 3)) * op.expand_dims(b, (0, 2)), (m * p, n * q))


@_rule("a: m n, b: p q", when=("p >= 1", "q >= 1"), numerics="exact", tags=("kron", "transpose"))
def transpose_of_kron(a: Any, b: Any) -> Any:
    """kron(A, B)' = kron(A', B')"""
    return kron(a, b).T, kron(a.T, b.T)


# --- one row or column ---


@_rule("a: *b m 1, c: 1 n", tags=("matmul", "outer"))
def product_over_one(a: Any, c: Any) -> Any:
    """A C = A * C for a contracted axis of size 1: an outer product"""
    return a @ c, a * c


# --- sums in which a product hides ---


@_rule("a: n k, b: k n", tags=("matmul", "diagonal"))
def diagonal_of_product(a: Any, b: Any) -> Any:
    """diag(A B) = rowsum(A * B')"""
    return op.sum(op.where(eye_mask(a.shape[0]), a @ b, 0.0), 1), op.sum(a * b.T, 1)


@_rule("x: n n", tags=("diagonal",))
def diagonal_gathered(x: Any) -> Any:
    """diag(X) = rowsum(X * I), as jax.numpy.diagonal is traced: the other elements of a product need not be computed"""
    n = x.shape[0]
    i = op.expand_dims(op.iota((n,), dtype="int32"), 1)
    return diagonal(x, op.concat([i, i], 1)), op.sum(op.where(eye_mask(n), x, 0.0), 1)
