"""Matrix products: what searches build on besides `sum_products`, which plans whole sums of products: associativity,
scales, transposes, and products side by side."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet

contraction = RuleSet("contraction")
_rule = contraction.rule
SCALES = "scale"  # the tag of rules that move a factor across a sum: no search uses them in floats of a short range


def eye_mask(n: Any) -> Any:
    """The boolean identity matrix as `jnp.eye`, `jnp.diag` and `jnp.trace` build it."""
    return op.equal(op.iota((n, n), axis=0, dtype="int32"), op.iota((n, n), axis=1, dtype="int32"))


@_rule("a: *b m k, b: *b k n, c: *b n p", both=True, tags=("matmul",))
def matmul_associates(a: Any, b: Any, c: Any) -> Any:
    """(A B) C = A (B C), batch by batch"""
    return (a @ b) @ c, a @ (b @ c)


@_rule("a: m k, b: k n, v: n", both=True, tags=("matmul",))
def matmul_vector_associates(a: Any, b: Any, v: Any) -> Any:
    """(A B) v = A (B v)"""
    return (a @ b) @ v, a @ (b @ v)


@_rule("v: m, a: m k, b: k n", both=True, tags=("matmul",))
def vector_matmul_associates(v: Any, a: Any, b: Any) -> Any:
    """v (A B) = (v A) B"""
    return v @ (a @ b), (v @ a) @ b


# Sums of more terms than a region has are factored two terms at a time.
@_rule("a: *b m k, b: k n, c: k n", tags=("matmul",))
def matmul_left_factor(a: Any, b: Any, c: Any) -> Any:
    """A B + A C = A (B + C)"""
    return a @ b + a @ c, a @ (b + c)


@_rule("a: *b m k, b: k n, c: k n", tags=("matmul",))
def matmul_left_factor_subtract(a: Any, b: Any, c: Any) -> Any:
    """A B - A C = A (B - C)"""
    return a @ b - a @ c, a @ (b - c)


@_rule("a: *b m k, c: *b m k, b: k n", tags=("matmul",))
def matmul_right_factor(a: Any, c: Any, b: Any) -> Any:
    """A B + C B = (A + C) B"""
    return a @ b + c @ b, (a + c) @ b


@_rule("a: *b m k, c: *b m k, b: k n", tags=("matmul",))
def matmul_right_factor_subtract(a: Any, c: Any, b: Any) -> Any:
    """A B - C B = (A - C) B"""
    return a @ b - c @ b, (a - c) @ b


@_rule("x: *b k, w: k n, a: k r, b: r n", both=True, tags=("matmul", "adapter"))
def adapter_applies(x: Any, w: Any, a: Any, b: Any) -> Any:
    """x (W + A B) = x W + (x A) B: an adapter applied, or merged into the weight"""
    return x @ (w + a @ b), x @ w + (x @ a) @ b


@_rule("a: *b m k, b: k n, s:", both=True, tags=("matmul", SCALES))
def scalar_out_of_left(a: Any, b: Any, s: Any) -> Any:
    """(A s) B = (A B) s"""
    return (a * s) @ b, (a @ b) * s


@_rule("a: *b m k, b: k n, s:", both=True, tags=("matmul", SCALES))
def scalar_out_of_right(a: Any, b: Any, s: Any) -> Any:
    """A (B s) = (A B) s"""
    return a @ (b * s), (a @ b) * s


@_rule("a: *b m k, c: *b k n", both=True, tags=("matmul", "transpose"), numerics="exact")
def matmul_of_transposes(a: Any, c: Any) -> Any:
    """(A B)' = B' A', batch by batch"""
    return op.swapaxes(a @ c, -1, -2), op.swapaxes(c, -1, -2) @ op.swapaxes(a, -1, -2)


@_rule("a: *b m k, w: k n, v: k p", when="inputs_in_order(w, v)", phase="merge", tags=("matmul", "merge"))
def matmul_merge_parallel(a: Any, w: Any, v: Any) -> Any:
    """A W, A V = the two parts of A [W V]: matmuls that share an input, as one"""
    both = a @ op.concat([w, v], 1)
    n, p = w.shape[1], v.shape[1]
    zeros = (0,) * (a.ndim - 1)
    first = op.strided_slice(both, (*zeros, 0), (*a.shape[:-1], n))
    second = op.strided_slice(both, (*zeros, n), (*a.shape[:-1], n + p))
    return (a @ w, a @ v), (first, second)


@_rule("a: *b m k, w: k n, v: k p, u: k q", when="inputs_in_order(w, v, u)", phase="merge", tags=("matmul", "merge"))
def matmul_merge_three(a: Any, w: Any, v: Any, u: Any) -> Any:
    """A W, A V, A U = the three parts of A [W V U]: queries, keys and values in one matmul"""
    all_ = a @ op.concat([w, v, u], 1)
    zeros = (0,) * (a.ndim - 1)
    n, p, q = w.shape[1], v.shape[1], u.shape[1]

    def part(i: Any, j: Any) -> Any:
        return op.strided_slice(all_, (*zeros, i), (*a.shape[:-1], j))

    return (a @ w, a @ v, a @ u), (part(0, n), part(n, n + p), part(n + p, n + p + q))
