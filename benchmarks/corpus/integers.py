"""Integers, quantisation and conversions."""

from __future__ import annotations

import jax.numpy as jnp

from benchmarks.corpus.program import program


@program("n 64", "64 128 @ int8", "128")
def weight_only_quantization(x, w, scale):
    """A layer with weights in eight bits and a scale for each output."""
    return (x @ w.astype(jnp.float32)) * scale


@program("n 64", "64 128 @ int8", "")
def dequantized_weight(x, w, scale):
    """A layer whose weight is scaled back before it is used."""
    return x @ (w.astype(x.dtype) * scale)


@program("n 256 @ int8", "n", "256 256 @ int8", "256", at={"n": 256})
def layer_of_bytes(x, x_scale, w, w_scale):
    """A layer of which inputs and weight are in eight bits, with a scale for each row and each output (LLM.int8)."""
    return (x.astype(jnp.float32) * x_scale[:, None]) @ (w.astype(jnp.float32) * w_scale)


@program("n")
def fake_quantization(x):
    """Fake quantisation to eight bits."""
    q = jnp.clip(jnp.round(x * 127.0), -127.0, 127.0)
    return jnp.round(q) / 127.0


@program("n @ int32", "n @ int32")
def bucket_ids(ids, offset):
    """Bucket numbers with an offset that was switched off, and a stride of one."""
    return (ids + 0) * 1, jnp.logical_not(ids < offset)


@program("n @ bfloat16", "n @ bfloat16")
def mixed_precision_residual(x, y):
    """A residual added in single precision, which is handed on in bfloat16 twice."""
    z = (x.astype(jnp.float32) + y.astype(jnp.float32)).astype(jnp.bfloat16)
    return z.astype(jnp.float32).astype(jnp.bfloat16)


@program("n", facts={"counts": "integral nonnegative"})
def whole_counts(counts):
    """Counts kept as floats, rounded in every way to be sure."""
    return jnp.floor(counts), jnp.ceil(counts), jnp.round(counts)


@program("n @ int32", "r d")
def wrapped_rows(i, table):
    """Rows by an index into a ring."""
    return table[i % table.shape[0]]


@program("n @ uint8")
def packed_nibbles(x):
    """Two numbers of four bits taken out of a byte."""
    return x & 0xF, (x >> 4) & 0xF


@program("r @ int32", "16 d", facts={"i": "nonnegative"})
def rows_by_index(i, table):
    """Rows of a table by indices that never count from the end."""
    return table[i]


@program("1024 64", "b s 64", bounds={"s": (1, 1024)})
def learned_positions(table, x):
    """Learned positions added to embeddings, looked up by an index that counts up (GPT-2)."""
    return x + table[jnp.arange(x.shape[1])]
