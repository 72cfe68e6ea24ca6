"""Decoders of published language models, at their sizes, without weights: Llama3-8B and its relatives.

One function serves prefill and decode: `decoder(params, caches, ids)` gives the logits of each sequence's last token.
The key/value cache is outside: attention is a routine of a library that rotates queries and keys, appends to the cache
and attends, as paged caches have it. Nothing here is run: parameters are specs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive

from relax_eg.ir import Tensor
from relax_eg.memory.steps import Step, kernel_name
from relax_eg.shapes import Dim

Params = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """A decoder's published sizes. `bias`: whether the projections to queries, keys and values have one; `tied`:
    whether the embedding is the head too; `act`: what gates the inner layer."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    act: str = "silu"
    bias: bool = False
    tied: bool = False


MODELS = {
    "llama3-8b": Sizes(32, 4096, 14336, 32, 8, 128, 128256),
    "gemma1.1-7b": Sizes(28, 3072, 24576, 16, 16, 256, 256000, act="gelu", tied=True),
    "qwen2-7b": Sizes(28, 3584, 18944, 28, 4, 128, 152064, bias=True),
}

# attention(qkv, cache): (b, s, heads and twice kv_heads) and what came before -> (b, s, heads)
attention_p = Primitive("paged_attention")
ROUTINE = "jax.paged_attention"


@attention_p.def_abstract_eval
def _attention_shape(qkv: Any, keys: Any, values: Any, *, width: int) -> Any:
    return ShapedArray((*qkv.shape[:-1], width), qkv.dtype)


SPLITS = 8  # parts of the cache that a decode step attends to at once


def attention_workspace(step: Step) -> Dim | None:
    """Bytes that the attention routine needs beside its operands, by the rows that it attends for: the logarithms of
    the sums in float32; in a decode step (one token of each sequence) that and partial results, for each part of the
    cache."""
    if kernel_name(step.kernel) != ROUTINE:
        return None
    qkv, keys, _ = (a.annotation for a in step.kernel.args)
    assert isinstance(qkv, Tensor) and isinstance(keys, Tensor) and qkv.shape and keys.shape
    width, head_width = step.kernel.attr("attrs")[0][1], keys.shape[-1].value
    rows = (qkv.shape[0] * qkv.shape[1]).substitute(dict(step.sizes))
    lines = rows * (width // head_width) * 4
    return lines * (head_width + 1) * SPLITS if qkv.shape[1] == 1 else lines


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def layer(p: Params, x: jax.Array, cache: tuple[jax.Array, jax.Array], sizes: Sizes) -> jax.Array:
    qkv = rms_norm(x, p["norm1"]) @ p["qkv"]
    if "bias" in p:
        qkv = qkv + p["bias"]
    x = x + attention_p.bind(qkv, *cache, width=sizes.heads * sizes.head_width) @ p["out"]
    h = rms_norm(x, p["norm2"])
    act = jax.nn.silu if sizes.act == "silu" else jax.nn.gelu
    return x + (act(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def decoder(params: Params, caches: list[tuple[jax.Array, jax.Array]], ids: jax.Array, sizes: Sizes) -> jax.Array:
    """Logits (b, vocabulary), float32, of the last of the tokens `ids` (b, s)."""
    x = params["embedding"][ids]
    for p, cache in zip(params["layers"], caches, strict=True):
        x = layer(p, x, cache, sizes)
    last = rms_norm(x[:, -1], params["norm"])
    head = params["embedding"].T if sizes.tied else params["head"]
    return jnp.matmul(last, head, preferred_element_type=jnp.float32)


def specs(sizes: Sizes, rows: str, layers: int | None = None) -> tuple[Any, ...]:
    """Specs of the arguments of `decoder` after `params` come the caches of t tokens and ids of `rows`, "b s"."""
    wide = sizes.heads * sizes.head_width
    both = wide + 2 * sizes.kv_heads * sizes.head_width
    w, n = sizes.width, layers or sizes.layers
    one = {"norm1": f"{w} @ float16", "norm2": f"{w} @ float16", "qkv": f"{w} {both} @ float16"}
    one |= {"out": f"{wide} {w} @ float16", "down": f"{sizes.inner} {w} @ float16"}
    one |= {name: f"{w} {sizes.inner} @ float16" for name in ("gate", "up")}
    if sizes.bias:
        one["bias"] = f"{both} @ float16"
    ends = {"embedding": f"{sizes.vocabulary} {w} @ float16", "norm": f"{w} @ float16"}
    if not sizes.tied:
        ends["head"] = f"{w} {sizes.vocabulary} @ float16"
    pages = f"{rows.split()[0]} t {sizes.kv_heads} {sizes.head_width} @ float16"
    return {**ends, "layers": [one] * n}, [(pages, pages)] * n, f"{rows} @ int32"
