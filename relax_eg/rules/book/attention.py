"""Normalisation and attention: row scales and quotients moved through a matmul, shifts that do not change a softmax,
numerically stable exponentials, and keys and values that groups of queries share."""

from __future__ import annotations

from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.book.contraction import SCALES
from relax_eg.rules.rule_set import RuleSet

attention = RuleSet("attention")
_rule = attention.rule


def row_sums(x: Any) -> Any:
    """The sum of each row as a column: `x.sum(axis=-1, keepdims=True)` as JAX traces it."""
    return op.expand_dims(op.sum(x, x.ndim - 1), x.ndim - 1)


# --- rows scaled before a matmul, or after ---


@_rule("x: *b m k, r: *b m 1, w: k n", when="k >= 1", both=True, tags=("matmul", "norm", SCALES))
def row_quotient_through_matmul(x: Any, r: Any, w: Any) -> Any:
    """(x / r) W = (x W) / r for one divisor of each row: a norm divides before the matmul or after it"""
    return (x / r) @ w, (x @ w) / r


@_rule("x: *b m k, r: *b m 1, w: k n", both=True, tags=("matmul", "norm", SCALES))
def row_scale_through_matmul(x: Any, r: Any, w: Any) -> Any:
    """(x * r) W = (x W) * r for one factor of each row"""
    return (x * r) @ w, (x @ w) * r


# --- norms, their scales and shifts folded into the weight that follows ---


@_rule("x: *b n, g: n, c: n, d: *b 1", attrs={"epsilon": "layer_norm.epsilon"}, when="n >= 1", tags=("norm", "sum"))
def layer_norm_of_shifted(x: Any, g: Any, c: Any, d: Any, epsilon: float) -> Any:
    """layer_norm(x + d) = layer_norm(x) for one shift d of each row"""
    return op.layer_norm(x + d, g, c, -1, epsilon), op.layer_norm(x, g, c, -1, epsilon)


# --- softmax ---


@_rule("x: *b n, c: *b 1", when="n >= 1", phase="simplify", tags=("softmax", "sum"))
def softmax_of_shifted(x: Any, c: Any) -> Any:
    """softmax(x + c) = softmax(x) for one shift c of each row"""
    return op.softmax(x + c), op.softmax(x)


@_rule("x: *b n, c: *b 1", when="n >= 1", phase="simplify", tags=("softmax", "sum"))
def softmax_of_shifted_down(x: Any, c: Any) -> Any:
    """softmax(x - c) = softmax(x): a maximum subtracted beforehand"""
    return op.softmax(x - c), op.softmax(x)


@_rule("x: *b n", when="n >= 1", tags=("softmax", "sum"))
def quotient_of_exponentials(x: Any) -> Any:
    """exp(x) / sum(exp(x)) = softmax(x), which does not overflow"""
    return op.exp(x) / row_sums(op.exp(x)), op.softmax(x)


@_rule("x: *b n @ float16", when="n >= 1", tags=("softmax", "sum"))
def softmax_of_float16_as_traced(x: Any) -> Any:
    """jax.nn.softmax of float16, which sums in float32, is that of float32, rounded once"""
    last = x.ndim - 1
    raised = op.exp(x - op.expand_dims(op.max(x, last), last))
    total = op.astype(row_sums(op.astype(raised, "float32")), "float16")
    return raised / total, op.astype(op.softmax(op.astype(x, "float32")), "float16")


@_rule("x: *b n", when="n >= 1", tags=("softmax", "log", "sum"))
def log_softmax_as_traced(x: Any) -> Any:
    """s - log(sum(exp(s))) = log_softmax(x) for s = x - max(x), as jax.nn.log_softmax is traced"""
    last = x.ndim - 1
    s = x - op.expand_dims(op.max(x, last), last)
    return s - op.log(row_sums(op.exp(s))), op.log_softmax(x)


@_rule("x: *b n", when="n >= 1", numerics="approximate", tags=("softmax", "log", "sum"))
def log_of_softmax(x: Any) -> Any:
    """log(softmax(x)) = log_softmax(x): finite where softmax is too small for a float, but a few ulps less exact where
    a row's elements are nearly equal"""
    return op.log(op.softmax(x)), op.log_softmax(x)


@_rule("x: *b n", when="n >= 1", tags=("softmax", "log", "sum"))
def exp_of_log_softmax(x: Any) -> Any:
    """exp(log_softmax(x)) = softmax(x)"""
    return op.exp(op.log_softmax(x)), op.softmax(x)


@_rule("x: *b n", when="n >= 1", phase="simplify", tags=("softmax", "sum"))
def sum_of_softmax(x: Any) -> Any:
    """sum(softmax(x)) = 1"""
    last = x.ndim - 1
    return op.sum(op.softmax(x), last), op.full(x.shape[:-1], 1.0, x.dtype)


@_rule("x: *b n, c: *b 1", when="n >= 1", phase="simplify", tags=("softmax", "log", "sum"))
def log_softmax_of_shifted(x: Any, c: Any) -> Any:
    """log_softmax(x + c) = log_softmax(x) for one shift c of each row"""
    return op.log_softmax(x + c), op.log_softmax(x)


@_rule("x: *b n, c: *b 1", when="n >= 1", phase="simplify", tags=("softmax", "log", "sum"))
def log_softmax_of_shifted_down(x: Any, c: Any) -> Any:
    """log_softmax(x - c) = log_softmax(x): a maximum subtracted beforehand"""
    return op.log_softmax(x - c), op.log_softmax(x)


# --- keys and values that queries share (grouped-query attention, as jax.numpy.repeat is traced) ---


def repeated(x: Any, r: Any) -> Any:
    """Each head of x (batch, heads, positions, width) r times over."""
    b, h, s, d = x.shape
    return op.reshape(op.broadcast_to(op.expand_dims(x, 2), (b, h, r, s, d)), (b, h * r, s, d))


def grouped(q: Any, h: Any, r: Any) -> Any:
    """Heads of q that share a key, as further rows of one head."""
    b, _, s, d = q.shape
    return op.reshape(q, (b, h, r * s, d))


@_rule("q: b h*r s d, k: b h t d", sizes="r", when="r >= 1", tags=("matmul", "attention"))
def shared_keys_are_not_repeated(q: Any, k: Any, r: Any) -> Any:
    """Q repeat(K)' = (queries of a group as rows) K': keys are read once for a group of heads"""
    b, h, t, _ = k.shape
    left = q @ op.permute_dims(repeated(k, r), (0, 1, 3, 2))
    return left, op.reshape(grouped(q, h, r) @ op.permute_dims(k, (0, 1, 3, 2)), (b, h * r, q.shape[2], t))


@_rule("p: b h*r s t, v: b h t d", sizes="r", when="r >= 1", tags=("matmul", "attention"))
def shared_values_are_not_repeated(p: Any, v: Any, r: Any) -> Any:
    """P repeat(V) = (weights of a group as rows) V: values are read once for a group of heads"""
    b, h, _, d = v.shape
    return p @ repeated(v, r), op.reshape(grouped(p, h, r) @ v, (b, h * r, p.shape[2], d))
