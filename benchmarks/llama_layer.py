"""A layer of a Llama-shaped decoder, in halves and whole: prefill of a prompt, and a step with kept keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import relax_eg as rx
from relax_eg.shapes import Dim, parse_spec

Params = dict[str, Any]


@dataclass(frozen=True)
class Widths:
    """The sizes of a layer.

    - `width`: the width of the residual stream.
    - `heads`, `groups`: the heads of queries, and those of keys and values.
    - `inner`: the width of the MLP.
    """

    width: int = 1024
    heads: int = 16
    groups: int = 8
    inner: int = 2816

    @property
    def head(self) -> int:
        return self.width // self.heads


def rms_norm(x: Any, weight: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@dataclass(frozen=True)
class Layer:
    """The functions of a layer, and the specs of their arguments.

    - `widths`: the sizes of the layer.
    - `dtype`: the dtype of activations and weights.
    """

    widths: Widths = Widths()
    dtype: str = "float32"

    def projected(self, p: Params, x: Any, cos: Any, sin: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values of the tokens of `x`, heads before positions."""
        w, (b, s, _) = self.widths, x.shape

        def heads(y: Any, count: int) -> Any:
            return y.reshape(b, s, count, w.head).transpose(0, 2, 1, 3)

        h = rms_norm(x, p["norm1"])
        q, k, v = (heads(h @ p[n], count) for n, count in (("q", w.heads), ("k", w.groups), ("v", w.groups)))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def attended(self, p: Params, x: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """The residual stream after attention to all keys that the mask, if there is one, lets through."""
        w, (b, s, d) = self.widths, x.shape
        k, v = (jnp.repeat(y, w.heads // w.groups, axis=1) for y in (k, v))
        # Half precision has its logits in float32, as in jax.nn.
        made = jnp.matmul(q, k.transpose(0, 1, 3, 2), preferred_element_type=jnp.float32)
        logits = made * w.head**-0.5
        logits = logits if mask is None else jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
        weights = jax.nn.softmax(logits, axis=-1).astype(x.dtype)
        return x + (weights @ v).transpose(0, 2, 1, 3).reshape(b, s, d) @ p["o"]

    def attention_half(self, p: Params, x: Any, cos: Any, sin: Any) -> Any:
        s = x.shape[1]
        q, k, v = self.projected(p, x, cos, sin)
        return self.attended(p, x, q, k, v, jnp.tril(jnp.ones((s, s), bool)))

    def mlp_half(self, p: Params, x: Any) -> Any:
        h = rms_norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def prefill(self, p: Params, x: Any, cos: Any, sin: Any) -> Any:
        """All tokens of a prompt."""
        return self.mlp_half(p, self.attention_half(p, x, cos, sin))

    def decode(self, p: Params, x: Any, cos: Any, sin: Any, keys: Any, values: Any) -> Any:
        """One token after those whose keys and values are kept; gives these with its own."""
        q, k, v = self.projected(p, x, cos, sin)
        keys, values = jnp.concatenate([keys, k], 2), jnp.concatenate([values, v], 2)
        return self.mlp_half(p, self.attended(p, x, q, keys, values, None)), keys, values

    def params(self, *names: str) -> dict[str, str]:
        """Specs of the weights of these names, or of all."""
        w = self.widths
        d, narrow = w.width, w.groups * w.head
        found = {
            "norm1": f"{d}", "norm2": f"{d}", "q": f"{d} {d}", "k": f"{d} {narrow}", "v": f"{d} {narrow}",
            "o": f"{d} {d}", "gate": f"{d} {w.inner}", "up": f"{d} {w.inner}", "down": f"{w.inner} {d}",
        }  # fmt: skip
        return {n: f"{found[n]} @ {self.dtype}" for n in names or found}

    def specs(self, name: str) -> tuple[Any, ...]:
        """Specs of the arguments of the function called so."""
        w, t = self.widths, f" @ {self.dtype}"
        x, angle = f"b s {w.width}" + t, f"s {w.head // 2}" + t
        if name == "mlp_half":
            return self.params("norm2", "gate", "up", "down"), x
        if name == "attention_half":
            return self.params("norm1", "q", "k", "v", "o"), x, angle, angle
        if name == "prefill":
            return self.params(), x, angle, angle
        one, kept = f"1 {w.head // 2}" + t, f"b {w.groups} t {w.head}" + t
        return self.params(), f"b 1 {w.width}" + t, one, one, kept, kept


def arguments(specs: Any, at: Mapping[str, int], seed: int = 0) -> list[Any]:
    """Random arguments for specs (a spec, or dictionaries and sequences of them), small enough for a softmax of a
    product; whole numbers are below 16 bits."""
    rng = np.random.default_rng(seed)

    def array(text: str) -> Any:
        dims, _, dtype = text.partition("@")
        shape = tuple(_size(d, at) for d in dims.split())
        if dtype.strip().startswith(("int", "uint")):
            return jnp.asarray(rng.integers(0, 1 << 16, shape), dtype.strip())
        scale = 1.0 if len(shape) != 2 else shape[0] ** -0.5
        return jnp.asarray(scale * rng.standard_normal(shape), dtype.strip() or "float32")

    return [jax.tree.map(array, s) for s in specs]


def _size(text: str, at: Mapping[str, int]) -> int:
    (dim,) = parse_spec(text).dims
    assert isinstance(dim, Dim)
    return dim.evaluate(at)


@dataclass(frozen=True)
class Case:
    """A program.

    - `fn`, `specs`: the function, and a spec for each argument.
    - `at`: the sizes to optimize for.
    """

    fn: Callable[..., Any] | rx.types.Module
    specs: tuple[Any, ...]
    at: Mapping[str, int]


def layer_cases(layer: Layer, tokens: int, kept: int) -> dict[str, Case]:
    """Prefill of `tokens` tokens, and a step after `kept` tokens."""
    return {
        f"Llama layer, prefill of {tokens}": Case(layer.prefill, layer.specs("prefill"), {"b": 1, "s": tokens}),
        f"Llama layer, decode after {kept}": Case(layer.decode, layer.specs("decode"), {"b": 1, "t": kept}),
    }
