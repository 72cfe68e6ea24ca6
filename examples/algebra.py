"""Three small programs that are natural to write and do far more work than the result needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


def graph_convolution(adj: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
    """One layer of a graph network: mix every node's features with its neighbours', then project them."""
    return jax.nn.relu(adj @ x @ w)


def lora_layer(x: jax.Array, w: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
    """A linear layer with a low-rank adapter, which may differ between calls."""
    return x @ (w + 2.0 * (down @ up))


def last_token_logits(hidden: jax.Array, vocabulary: jax.Array) -> jax.Array:
    """Scores of the next token only: one row of each sequence."""
    return (hidden @ vocabulary.T)[:, -1]


@dataclass(frozen=True)
class Program:
    title: str
    fn: Callable[..., jax.Array]
    specs: tuple[str, ...]
    at: dict[str, int]

    def arguments(self) -> list[jax.Array]:
        """Returns random arguments of the sizes in `at`."""
        rng = np.random.default_rng(0)
        shapes = [[self.at[d] if d in self.at else int(d) for d in spec.split()] for spec in self.specs]
        return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


PROGRAMS = [
    Program("graph convolution", graph_convolution, ("n n", "n 512", "512 16"), {"n": 2048}),
    Program("LoRA layer", lora_layer, ("b 1024", "1024 1024", "1024 16", "16 1024"), {"b": 8}),
    Program("last-token logits", last_token_logits, ("b s 384", "30522 384"), {"b": 1, "s": 128}),
]
