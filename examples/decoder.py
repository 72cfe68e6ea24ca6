"""A decoder shaped like Llama, with a key/value cache that grows by one position a step.

Nothing in it knows of capacities or padding: `prefill` reads a prompt of any length, `step` one token more, and their
arrays are as long as what they hold. `layers.generate` is what a server does with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from examples.layers import (
    Cache,
    Join,
    Params,
    Weights,
    attend,
    causal,
    first,
    grown,
    rms_norm,
    rotated,
    split_heads,
    stored,
    unfilled,
)


@dataclass(frozen=True)
class Decoder:
    """A decoder's sizes, and its functions.

    - `layers`, `width`, `hidden`: the layers, the width of the residual stream, and that of the MLP.
    - `heads`, `groups`, `size`: the heads of queries, those of keys and values, and their width.
    - `vocabulary`: the number of tokens.
    """

    layers: int = 2
    width: int = 32
    hidden: int = 64
    heads: int = 4
    groups: int = 2
    size: int = 8
    vocabulary: int = 50

    def params(self, w: Weights | None = None) -> Params:
        """Random weights."""
        w, queries, keys = w or Weights(), self.heads * self.size, self.groups * self.size

        def layer() -> Params:
            return {
                "q": w.matrix(self.width, queries), "k": w.matrix(self.width, keys), "v": w.matrix(self.width, keys),
                "o": w.matrix(queries, self.width), "gate": w.matrix(self.width, self.hidden),
                "up": w.matrix(self.width, self.hidden), "down": w.matrix(self.hidden, self.width),
                "norm1": w.array(self.width, scale=0.02, mean=1.0), "norm2": w.array(self.width, scale=0.02, mean=1.0),
            }  # fmt: skip

        layers = [layer() for _ in range(self.layers)]
        ends = {"embedding": w.array(self.vocabulary, self.width), "head": w.matrix(self.width, self.vocabulary)}
        return {**ends, "layers": layers, "norm": w.array(self.width, scale=0.02, mean=1.0)}

    def caches(self, length: str | int, batch: str | int = "b", dtype: str = "float32") -> list[Any]:
        """Specs of the caches of all layers."""
        one = f"{batch} {self.groups} {length} {self.size} @ {dtype}"
        return [(one, one)] * self.layers

    def prefill(self, params: Params, tokens: jax.Array) -> tuple[jax.Array, list[Cache]]:
        """Logits (b, s, vocabulary) at every position of prompts (b, s), and the caches."""
        x, caches = self.read(params, params["embedding"][tokens])
        return x @ params["head"], caches

    def step(self, params: Params, token: jax.Array, caches: list[Cache]) -> tuple[jax.Array, list[Cache]]:
        """Logits (b, vocabulary) after one token more (b,); the caches, (b, groups, t, size) each, one longer."""
        t = caches[0][0].shape[2]
        x = params["embedding"][token][:, None]
        x, caches = self.blocks(params, x, jnp.arange(t, t + 1), grown(caches))
        return (x @ params["head"])[:, 0], caches

    def step_at(
        self, params: Params, token: jax.Array, position: jax.Array, caches: list[Cache]
    ) -> tuple[jax.Array, list[Cache]]:
        """`step` by hand for one executable: caches have a fixed length, and `position` says what is filled."""
        x = params["embedding"][token][:, None]
        bias = unfilled(caches[0][0].shape[2], position)
        x, caches = self.blocks(params, x, position[None], stored(caches, position), bias)
        return (x @ params["head"])[:, 0], caches

    def read(self, params: Params, x: jax.Array) -> tuple[jax.Array, list[Cache]]:
        """The last layer's values (b, s, width) at every position of embedded prompts, and the caches."""
        positions = jnp.arange(x.shape[1])
        return self.blocks(params, x, positions, first, causal(positions))

    def blocks(
        self, params: Params, x: jax.Array, positions: jax.Array, join: Join, bias: jax.Array | float = 0.0
    ) -> tuple[jax.Array, list[Cache]]:
        """All layers on embedded tokens (b, s, width) at `positions` (s,); normalised values, and the caches."""
        caches: list[Cache] = []
        for i, p in enumerate(params["layers"]):
            y = rms_norm(p["norm1"], x)
            q = rotated(split_heads(y @ p["q"], self.heads), positions)
            k = rotated(split_heads(y @ p["k"], self.groups), positions)
            caches.append(join(i, k, split_heads(y @ p["v"], self.groups)))
            x = x + attend(q, *caches[-1], bias) @ p["o"]
            y = rms_norm(p["norm2"], x)
            x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
        return rms_norm(params["norm"], x), caches
