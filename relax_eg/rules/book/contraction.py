"""Matrix products: associativity, distribution, diagonals, outer products, low rank, and rows taken early."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet

contraction = RuleSet("contraction")
_rule = contraction.rule


def eye_mask(n: Any) -> Any:
    """The boolean identity matrix as `jnp.eye`, `jnp.diag` and `jnp.trace` build it."""
    return op.equal(op.iota((n, n), axis=0, dtype="int32"), op.iota((n, n), axis=1, dtype="int32"))


@_rule("a: *b m k, b: *b k n, c: *b n p", both=True, tags=("matmul",), check=False)
def matmul_associates(a: Any, b: Any, c: Any) -> Any:
    """(A B) C = A (B C), batch by batch"""
    return (a @ b) @ c, a @ (b @ c)


@_rule("a: *b l m k, b: k n, c: n p", both=True, tags=("matmul",), check=False)
def matmul_associates_weights(a: Any, b: Any, c: Any) -> Any:
    """(A B) C = A (B C) for a batch of A and plain matrices B, C"""
    return (a @ b) @ c, a @ (b @ c)


@_rule("a: m k, b: k n, v: n", both=True, tags=("matmul",), check=False)
def matmul_vector_associates(a: Any, b: Any, v: Any) -> Any:
    """(A B) v = A (B v)"""
    return (a @ b) @ v, a @ (b @ v)


@_rule("v: m, a: m k, b: k n", both=True, tags=("matmul",), check=False)
def vector_matmul_associates(v: Any, a: Any, b: Any) -> Any:
    """v (A B) = (v A) B"""
    return v @ (a @ b), (v @ a) @ b


@_rule("a: *b m k, b: k n, c: k n", tags=("matmul",), check=False)
def matmul_left_factor(a: Any, b: Any, c: Any) -> Any:
    """A B + A C = A (B + C)"""
    return a @ b + a @ c, a @ (b + c)


@_rule("a: *b m k, b: k n, c: k n", tags=("matmul",), check=False)
def matmul_left_factor_subtract(a: Any, b: Any, c: Any) -> Any:
    """A B - A C = A (B - C)"""
    return a @ b - a @ c, a @ (b - c)


@_rule("a: *b m k, c: *b m k, b: k n", tags=("matmul",), check=False)
def matmul_right_factor(a: Any, c: Any, b: Any) -> Any:
    """A B + C B = (A + C) B"""
    return a @ b + c @ b, (a + c) @ b


@_rule("a: *b m k, c: *b m k, b: k n", tags=("matmul",), check=False)
def matmul_right_factor_subtract(a: Any, c: Any, b: Any) -> Any:
    """A B - C B = (A - C) B"""
    return a @ b - c @ b, (a - c) @ b


@_rule("x: *b k, w: k n, a: k r, b: r n", both=True, tags=("matmul", "adapter"), check=False)
def adapter_applies(x: Any, w: Any, a: Any, b: Any) -> Any:
    """x (W + A B) = x W + (x A) B: an adapter applied, or merged into the weight"""
    return x @ (w + a @ b), x @ w + (x @ a) @ b


@_rule("w: m n, u: m r, v: r n, x: n", tags=("matmul",), check=False)
def low_rank_update_times_vector(w: Any, u: Any, v: Any, x: Any) -> Any:
    """(W + U V) x = W x + U (V x)"""
    return (w + u @ v) @ x, w @ x + u @ (v @ x)


# Only for sums with one reader: those of residual connections have more, and each layer would be multiplied out through
# all layers before it, in exponentially many ways.
@_rule("w: m n, u: m r, v: r n, x: n p", when="used_once(w)", tags=("matmul",), check=False)
def low_rank_update_times_matrix(w: Any, u: Any, v: Any, x: Any) -> Any:
    """(W + U V) X = W X + U (V X)"""
    return (w + u @ v) @ x, w @ x + u @ (v @ x)


@_rule("x: n", tags=("matmul", "diagonal"), phase="simplify", check=False)
def identity_times_vector(x: Any) -> Any:
    """I x = x"""
    return op.astype(eye_mask(x.shape[0]), x.dtype) @ x, x


@_rule("x: n p", tags=("matmul", "diagonal"), phase="simplify", check=False)
def identity_times_matrix(x: Any) -> Any:
    """I X = X"""
    return op.astype(eye_mask(x.shape[0]), x.dtype) @ x, x


@_rule("x: *b n", tags=("matmul", "diagonal"), phase="simplify", check=False)
def times_identity(x: Any) -> Any:
    """X I = X"""
    return x @ op.astype(eye_mask(x.shape[-1]), x.dtype), x


@_rule("d: n, a: n p", tags=("matmul", "diagonal"), check=False)
def diagonal_times_matrix(d: Any, a: Any) -> Any:
    """diag(d) A = d[:, None] * A"""
    n = d.shape[0]
    return op.where(eye_mask(n), op.expand_dims(d, 1), 0.0) @ a, op.expand_dims(d, 1) * a


@_rule("d: n, v: n", tags=("matmul", "diagonal"), check=False)
def diagonal_times_vector(d: Any, v: Any) -> Any:
    """diag(d) v = d * v"""
    return op.where(eye_mask(d.shape[0]), op.expand_dims(d, 1), 0.0) @ v, d * v


@_rule("a: *b m n, d: n", tags=("matmul", "diagonal"), check=False)
def matrix_times_diagonal(a: Any, d: Any) -> Any:
    """A diag(d) = A * d"""
    return a @ op.where(eye_mask(d.shape[0]), op.expand_dims(d, 1), 0.0), a * d


@_rule("x: m 1, y: m n, z: n p", both=True, tags=("matmul",), check=False)
def row_scale_commutes(x: Any, y: Any, z: Any) -> Any:
    """(x * Y) Z = x * (Y Z) for one factor x per row"""
    return (x * y) @ z, x * (y @ z)


@_rule("x: m 1, y: n, z: n p", tags=("matmul", "outer"), check=False)
def outer_times_matrix(x: Any, y: Any, z: Any) -> Any:
    """(x y') Z = x (y' Z)"""
    return (x * y) @ z, x * (y @ z)


@_rule("x: m 1, y: n, z: n", tags=("matmul", "outer"), check=False)
def outer_times_vector(x: Any, y: Any, z: Any) -> Any:
    """(x y') z = x (y' z)"""
    return (x * y) @ z, op.squeeze(x, 1) * (y @ z)


@_rule("x: m, y: m n, z: n", tags=("matmul",), check=False)
def row_scale_times_vector(x: Any, y: Any, z: Any) -> Any:
    """(x[:, None] * Y) z = x * (Y z)"""
    return (op.expand_dims(x, 1) * y) @ z, x * (y @ z)


@_rule("x: *b m k, g: k, w: k n", tags=("matmul", "weights"), check=False)
def column_scale_into_weight(x: Any, g: Any, w: Any) -> Any:
    """(x * g) W = x (g[:, None] * W): a norm's scale folded into the next weight"""
    return (x * g) @ w, x @ (op.expand_dims(g, 1) * w)


@_rule("x: *b m k, w: k n, g: n", tags=("matmul", "weights"), check=False)
def column_scale_out_of_matmul(x: Any, w: Any, g: Any) -> Any:
    """(x W) * g = x (W * g): a scale after a matmul folded into its weight"""
    return (x @ w) * g, x @ (w * g)


@_rule("a: *b m k, b: k n, s:", both=True, tags=("matmul",), check=False)
def scalar_out_of_left(a: Any, b: Any, s: Any) -> Any:
    """(A s) B = (A B) s"""
    return (a * s) @ b, (a @ b) * s


@_rule("a: *b m k, b: k n, s:", both=True, tags=("matmul",), check=False)
def scalar_out_of_right(a: Any, b: Any, s: Any) -> Any:
    """A (B s) = (A B) s"""
    return a @ (b * s), (a @ b) * s


@_rule("a: *b m k, c: *b k n", both=True, tags=("matmul", "transpose"), numerics="exact", check=False)
def matmul_of_transposes(a: Any, c: Any) -> Any:
    """(A B)' = B' A', batch by batch"""
    return op.swapaxes(a @ c, -1, -2), op.swapaxes(c, -1, -2) @ op.swapaxes(a, -1, -2)


@_rule(
    "a: *b m k, w: k n, i: r @ int32",
    attrs={"mode": "take.mode"},
    when=("k >= 1", "n >= 1"),
    tags=("matmul", "rows"),
    check=False,
)
def rows_taken_before_matmul(a: Any, w: Any, i: Any, mode: str) -> Any:
    """take(A W, i) = take(A, i) W along the rows"""
    axis = a.ndim - 2
    return op.take(a @ w, i, axis, mode=mode), op.take(a, i, axis, mode=mode) @ w


@_rule("a: m k, w: k n", sizes="i j", tags=("matmul", "rows"), check=False)
def rows_sliced_before_matmul(a: Any, w: Any, i: Any, j: Any) -> Any:
    """(A W)[i:j] = A[i:j] W"""
    (k, n) = w.shape
    return op.strided_slice(a @ w, (i, 0), (j, n)), op.strided_slice(a, (i, 0), (j, k)) @ w


@_rule("a: b m k, w: k n", sizes="h0 h1 i j", tags=("matmul", "rows"), check=False)
def batched_rows_sliced_before_matmul(a: Any, w: Any, h0: Any, h1: Any, i: Any, j: Any) -> Any:
    """(A W)[h0:h1, i:j] = A[h0:h1, i:j] W for a batch of A: the last token's logits"""
    (k, n) = w.shape
    left = op.strided_slice(a @ w, (h0, i, 0), (h1, j, n))
    return left, op.strided_slice(a, (h0, i, 0), (h1, j, k)) @ w


@_rule("a: *b m k, w: k n", sizes="i j", tags=("matmul", "rows"), check=False)
def columns_sliced_before_matmul(a: Any, w: Any, i: Any, j: Any) -> Any:
    """(A W)[..., i:j] = A W[:, i:j]"""
    zeros = (0,) * (a.ndim - 1)
    left = op.strided_slice(a @ w, (*zeros, i), (*a.shape[:-1], j))
    return left, a @ op.strided_slice(w, (0, i), (w.shape[0], j))


@_rule("a: *b m k, w: k n, v: k p", when="inputs_in_order(w, v)", phase="merge", tags=("matmul", "merge"), check=False)
def matmul_merge_parallel(a: Any, w: Any, v: Any) -> Any:
    """A W, A V = the two parts of A [W V]: matmuls that share an input, as one"""
    both = a @ op.concat([w, v], 1)
    n, p = w.shape[1], v.shape[1]
    zeros = (0,) * (a.ndim - 1)
    first = op.strided_slice(both, (*zeros, 0), (*a.shape[:-1], n))
    second = op.strided_slice(both, (*zeros, n), (*a.shape[:-1], n + p))
    return (a @ w, a @ v), (first, second)


@_rule(
    "a: *b m k, w: k n, v: k p, u: k q",
    when="inputs_in_order(w, v, u)",
    phase="merge",
    tags=("matmul", "merge"),
    check=False,
)
def matmul_merge_three(a: Any, w: Any, v: Any, u: Any) -> Any:
    """A W, A V, A U = the three parts of A [W V U]: queries, keys and values in one matmul"""
    all_ = a @ op.concat([w, v, u], 1)
    zeros = (0,) * (a.ndim - 1)
    n, p, q = w.shape[1], v.shape[1], u.shape[1]

    def part(i: Any, j: Any) -> Any:
        return op.strided_slice(all_, (*zeros, i), (*a.shape[:-1], j))

    return (a @ w, a @ v, a @ u), (part(0, n), part(n, n + p), part(n + p, n + p + q))
