"""Products of parts: concatenated operands, Kronecker products, factors that are one row or column, and sums that are
products."""

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


@_rule("a: m k, b: n k, c: k p", both=True, phase="merge", tags=("matmul", "concat"), check=False)
def rows_of_two_matmuls(a: Any, b: Any, c: Any) -> Any:
    """[A C; B C] = [A; B] C: two batches of rows in one matmul, or in two"""
    return op.concat([a @ c, b @ c], 0), op.concat([a, b], 0) @ c


@_rule("a: *b m k, w: k n, v: k p", tags=("matmul", "concat"), check=False)
def columns_of_two_matmuls(a: Any, w: Any, v: Any) -> Any:
    """[A W, A V] = A [W, V]: two matmuls of one operand as one"""
    last = a.ndim - 1
    return op.concat([a @ w, a @ v], last), a @ op.concat([w, v], 1)


@_rule("a: *b m k, c: *b m j, w: k n, v: j n", tags=("matmul", "concat"), check=False)
def block_product(a: Any, c: Any, w: Any, v: Any) -> Any:
    """[A, C] [W; V] = A W + C V: nothing is concatenated"""
    return op.concat([a, c], a.ndim - 1) @ op.concat([w, v], 0), a @ w + c @ v


@_rule("a: *b m k, c: *b m j, w: k n, v: j n", phase="merge", tags=("matmul", "concat", "merge"), check=False)
def sum_of_two_products(a: Any, c: Any, w: Any, v: Any) -> Any:
    """A W + C V = [A, C] [W; V]: two products in one matmul"""
    return a @ w + c @ v, op.concat([a, c], a.ndim - 1) @ op.concat([w, v], 0)


@_rule("a: *b m k, c: *b m j, w: k+j n", tags=("matmul", "concat"), check=False)
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


@_rule("a: m n, b: p q, x: n q", when=("p >= 1", "q >= 1"), tags=("matmul", "kron"), check=False)
def kron_times_flattened(a: Any, b: Any, x: Any) -> Any:
    """kron(A, B) vec(X) = vec(A X B')"""
    (m, n), (p, q) = a.shape, b.shape
    return kron(a, b) @ op.reshape(x, (n * q,)), op.reshape((a @ x) @ b.T, (m * p,))


@_rule("a: m n, b: p q, x: n*q", when=("p >= 1", "q >= 1"), tags=("matmul", "kron"), check=False)
def kron_times_vector(a: Any, b: Any, x: Any) -> Any:
    """kron(A, B) x = vec(A X B') with x as the rows of X"""
    (m, n), (p, q) = a.shape, b.shape
    return kron(a, b) @ x, op.reshape((a @ op.reshape(x, (n, q))) @ b.T, (m * p,))


@_rule("a: m n, b: p q, c: n r, d: q s", when=("p >= 1", "q >= 1", "s >= 1"), tags=("matmul", "kron"), check=False)
def product_of_krons(a: Any, b: Any, c: Any, d: Any) -> Any:
    """kron(A, B) kron(C, D) = kron(A C, B D)"""
    return kron(a, b) @ kron(c, d), kron(a @ c, b @ d)


@_rule("a: m n, b: p q", when=("p >= 1", "q >= 1"), numerics="exact", tags=("kron", "transpose"), check=False)
def transpose_of_kron(a: Any, b: Any) -> Any:
    """kron(A, B)' = kron(A', B')"""
    return kron(a, b).T, kron(a.T, b.T)


@_rule("a: m n, b: p q", when=("p >= 1", "q >= 1"), tags=("sum", "kron"), check=False)
def sum_of_kron(a: Any, b: Any) -> Any:
    """sum(kron(A, B)) = sum(A) sum(B)"""
    return op.sum(kron(a, b), (0, 1)), op.sum(a, (0, 1)) * op.sum(b, (0, 1))


# --- one row or column ---


@_rule("a: *b m 1, c: 1 n", tags=("matmul", "outer"), check=False)
def product_over_one(a: Any, c: Any) -> Any:
    """A C = A * C for a contracted axis of size 1: an outer product"""
    return a @ c, a * c


@_rule("a: *b m k, v: k", tags=("matmul",), check=False)
def matmul_of_one_column(a: Any, v: Any) -> Any:
    """A [v] = [A v] for one column"""
    return a @ op.expand_dims(v, 1), op.expand_dims(a @ v, a.ndim - 1)


@_rule("v: k, a: k n", tags=("matmul",), check=False)
def matmul_of_one_row(v: Any, a: Any) -> Any:
    """[v] A = [v A] for one row"""
    return op.expand_dims(v, 0) @ a, op.expand_dims(v @ a, 0)


@_rule("a: *b m k, w: k n", tags=("matmul", "broadcast"), phase="simplify", check=False)
def weight_without_batch(a: Any, w: Any) -> Any:
    """A broadcast(W) = A W: the whole batch shares one weight"""
    if a.ndim == 2:
        return None
    return a @ op.broadcast_to(w, (*a.shape[:-2], *w.shape)), a @ w


@_rule("a: *b i j k, w: k n", tags=("matmul", "reshape"), check=False)
def rows_flattened_after_matmul(a: Any, w: Any) -> Any:
    """rows(A) W = rows(A W): the rows of a batch are merged into one axis before a matmul, or after it"""
    *b, i, j, k = a.shape
    n = w.shape[1]
    return op.reshape(a, (*b, i * j, k)) @ w, op.reshape(a @ w, (*b, i * j, n))


# --- sums in which a product hides ---


@_rule("x: n, y: n", tags=("matmul", "sum"), check=False)
def dot_product(x: Any, y: Any) -> Any:
    """sum(x * y) = x y"""
    return op.sum(x * y, 0), x @ y


@_rule("a: *b m k, v: k", tags=("matmul", "sum"), check=False)
def matrix_vector_product(a: Any, v: Any) -> Any:
    """rowsum(A * v) = A v"""
    return op.sum(a * v, a.ndim - 1), a @ v


@_rule("a: m k, b: k n", tags=("matmul", "sum"), check=False)
def matrix_product(a: Any, b: Any) -> Any:
    """sum(A[:, :, None] * B, 1) = A B: the products are not stored"""
    return op.sum(op.expand_dims(a, 2) * op.expand_dims(b, 0), 1), a @ b


@_rule("a: m k, b: n k", tags=("matmul", "sum"), check=False)
def matrix_product_of_rows(a: Any, b: Any) -> Any:
    """sum(A[:, None, :] * B, 2) = A B': all products of rows"""
    return op.sum(op.expand_dims(a, 1) * op.expand_dims(b, 0), 2), a @ b.T


@_rule("u: m r, v: n r", tags=("matmul", "sum"), check=False)
def squared_norm_of_low_rank(u: Any, v: Any) -> Any:
    """sum((U V') ** 2) = sum(U'U * V'V): the norm of a product, from two small matrices"""
    product = u @ v.T
    return op.sum(product * product, (0, 1)), op.sum((u.T @ u) * (v.T @ v), (0, 1))


@_rule("a: n k, b: k n", tags=("matmul", "diagonal"), check=False)
def diagonal_of_product(a: Any, b: Any) -> Any:
    """diag(A B) = rowsum(A * B')"""
    return op.sum(op.where(eye_mask(a.shape[0]), a @ b, 0.0), 1), op.sum(a * b.T, 1)


@_rule("x: n n", tags=("diagonal",), check=False)
def diagonal_gathered(x: Any) -> Any:
    """diag(X) = rowsum(X * I), as jax.numpy.diagonal is traced: the other elements of a product need not be computed"""
    n = x.shape[0]
    i = op.expand_dims(op.iota((n,), dtype="int32"), 1)
    return diagonal(x, op.concat([i, i], 1)), op.sum(op.where(eye_mask(n), x, 0.0), 1)


@_rule("x: m, y: n", tags=("sum", "outer"), check=False)
def sum_of_outer(x: Any, y: Any) -> Any:
    """sum(x y') = sum(x) sum(y)"""
    return op.sum(op.expand_dims(x, 1) * y, (0, 1)), op.sum(x, 0) * op.sum(y, 0)


@_rule("a: m k, b: k n, c: n m", tags=("trace", "matmul"), check=False)
def trace_is_cyclic(a: Any, b: Any, c: Any) -> Any:
    """trace((A B) C) = trace((B C) A)"""

    def trace(x: Any) -> Any:
        return op.sum(op.where(eye_mask(x.shape[0]), x, 0.0), (0, 1))

    return trace((a @ b) @ c), trace((b @ c) @ a)


@_rule("x: n, a: n k, y: k", tags=("matmul", "sum"), check=False)
def bilinear_form(x: Any, a: Any, y: Any) -> Any:
    """sum((x y') * A) = x A y"""
    return op.sum((op.expand_dims(x, 1) * y) * a, (0, 1)), (x @ a) @ y
