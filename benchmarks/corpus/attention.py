"""Attention and transformer blocks."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from benchmarks import scale
from benchmarks.corpus.program import program

PROJECTIONS = {"q": "64 64", "k": "64 64", "v": "64 64", "o": "64 64"}


@program("b h s 64", "b h t 64", "b h t d")
def attention(q, k, v):
    """Scaled dot-product attention."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return jax.nn.softmax(scores, axis=-1) @ v


@program("b h s 16", "b h s 16", "b h s 16")
def causal_attention(q, k, v):
    """Attention with a causal mask, by einsum."""
    s = q.shape[2]
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 16**-0.5
    mask = jnp.tril(jnp.ones((s, s), dtype=bool))
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1), v)


@program([{**PROJECTIONS, "up": "64 256", "down": "256 64"}] * 6, "s 64", weights=("blocks",))
def six_blocks_without_norms(blocks, x):
    """An encoder of six blocks on a residual stream that nothing normalizes."""
    for p in blocks:
        q, k, v = (x @ p[name] for name in "qkv")
        x = x + jax.nn.softmax(q @ k.T / 8, axis=-1) @ v @ p["o"]
        x = x + jax.nn.gelu(x @ p["up"]) @ p["down"]
    return x


@program(PROJECTIONS, "b s 64", weights=("params",))
def multi_head_attention(params, x):
    """A multi-head self-attention block with separate projections."""
    b, s, d = x.shape

    def heads(y):
        return y.reshape(b, s, 4, d // 4).transpose(0, 2, 1, 3)

    q, k, v = (heads(x @ params[name]) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / jnp.sqrt(d // 4), axis=-1)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(b, s, d) @ params["o"]


@program("b 8 s 16", "b 2 t 16", "b 2 t 16")
def grouped_query_attention(q, k, v):
    """Grouped-query attention: two key heads for eight query heads, repeated."""
    k, v = jnp.repeat(k, 4, axis=1), jnp.repeat(v, 4, axis=1)
    scores = q @ jnp.swapaxes(k, 2, 3) * 16**-0.5
    return jax.nn.softmax(scores, axis=-1) @ v


@program("b h s d", "b h t d", "b h t d", "b t @ bool")
def masked_attention(q, k, v, padding):
    """Attention that leaves padding out, its softmax written by hand."""
    scores = q @ k.swapaxes(-1, -2)
    scores = jnp.where(padding[:, None, None, :], scores, -1e30)
    e = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)) @ v


@program("b s d", "b t d", "b t e")
def naive_softmax_attention(q, k, v):
    """Attention of a notebook: exponentials divided by their sum, nothing subtracted."""
    weights = jnp.exp(q @ k.swapaxes(1, 2))
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return weights @ v


@program("b s d", "b t d", "b t e")
def linear_attention(q, k, v):
    """Linear attention (Katharopoulos et al., 2020) as the definition reads."""
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    scores = q @ k.swapaxes(1, 2)
    return (scores @ v) / scores.sum(axis=-1, keepdims=True)


@program("s 64", "t 64", "t e")
def single_head_linear_attention(q, k, v):
    """Attention without softmax for one head."""
    return (q * q.shape[-1] ** -0.5) @ k.T @ v


@program("b s h 32", "s 16", "s 16")
def rotary_embedding(x, cos, sin):
    """Rotary position embedding, halves rotated."""
    x1, x2 = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([-x2, x1], axis=-1)
    cos, sin = (jnp.concatenate([a, a], axis=-1)[None, :, None, :] for a in (cos, sin))
    return x * cos + rotated * sin


@program("b h 1 d", "b h t d", "b h t d", "b h 1 d", "b h 1 d")
def cached_decoding_step(q, cached_k, cached_v, k, v):
    """One decoding step: the new key and value joined to the cache."""
    k, v = jnp.concatenate([cached_k, k], axis=2), jnp.concatenate([cached_v, v], axis=2)
    return jax.nn.softmax(q @ k.swapaxes(2, 3), axis=-1) @ v, k, v


@program("b s 64", "64 1000")
def last_token_logits(h, head):
    """Logits of the last position, cut out of those of all."""
    return (h @ head)[:, -1, :]


@program("b s h d", "b s h d")
def alibi_scores(q, k):
    """Attention weights with linear biases (ALiBi)."""
    s = q.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    distance = jnp.arange(s)[None, :] - jnp.arange(s)[:, None]
    return jax.nn.softmax(scores + distance.astype(scores.dtype) * 0.5, axis=-1)


@program("b s d", "b s d", "s s @ bool")
def attention_entropy(q, k, mask):
    """The entropy of attention weights, from log-softmax and its exponential."""
    log_weights = jax.nn.log_softmax(jnp.where(mask, q @ k.swapaxes(1, 2), -1e9), axis=-1)
    return -jnp.sum(jnp.exp(log_weights) * log_weights, axis=-1)


@program("b s 64", {"gate": "64 128", "up": "64 128", "down": "128 64"}, weights=("p",))
def swiglu(x, p):
    """The gated feed-forward block of Llama."""
    return (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]


@program("b s d", "k d")
def flattened_tokens(x, table):
    """Tokens as rows, then as one long vector: what a locality sensitive hash of a batch is made of."""
    rows = x.reshape(-1, x.shape[2])
    return rows.reshape(-1), rows @ table.T


@program("b s 64", "64 128", "128", "128 64", "64")
def feed_forward(x, w1, b1, w2, b2):
    """The feed-forward block of the first transformer, over rows of tokens."""
    b, s, d = x.shape
    rows = x.reshape(b * s, d)
    return (jax.nn.relu(rows @ w1 + b1) @ w2 + b2).reshape(b, s, d)


@program("b s d", "e d", "d")
def expert_gates(x, w, prior):
    """Gates of a mixture of experts, normalised again after softmax."""
    gates = jax.nn.softmax(x @ w.T, axis=-1)
    return gates / gates.sum(axis=-1, keepdims=True), x * prior


@program("b s d", "b t d")
def shifted_softmax(q, k):
    """Softmax of scores whose maximum was subtracted by hand, as before libraries did it."""
    scores = q @ k.swapaxes(1, 2)
    return jax.nn.softmax(scores - jnp.max(scores, axis=-1, keepdims=True), axis=-1)


@program("b s d", "b s 1", "b s 1")
def biased_router(logits, bias, offset):
    """Router probabilities and log-probabilities with an offset for each token."""
    return jax.nn.softmax(logits + bias, axis=-1), jax.nn.log_softmax(logits + offset, axis=-1)


@program("b h s d", "b h d d", "d e")
def per_head_weights(x, w, shared):
    """Weights per head and a shared one broadcast to every head and item by hand."""
    b, h, _, d = x.shape
    return (x @ w) @ jnp.broadcast_to(shared, (b, h, d, shared.shape[1]))


@program("b s 64", "64 n")
def merged_heads(x, w):
    """Heads split, joined and joined again with the batch on the way through a projection."""
    b, s, width = x.shape
    y = x.reshape(b, s, 4, width // 4)
    return y.reshape(b, s, width).reshape(b * s, width) @ w


@program(scale.decoder_specs(4), "b s @ int32", weights=("params",), at={"b": 8, "s": 64})
def four_layer_decoder(params, ids):
    """The next token's logits from a Llama-shaped decoder of four layers."""
    return scale.decoder(params, ids)
