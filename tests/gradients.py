"""Random losses with their gradients, as hypothesis draws them: layers over rows and over images, some of them in loops
of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Layer = Callable[..., Any]
ROWS, IMAGES = (0, 1), (0, 2, 3)  # the axes over which a value is normalised with its batch


def attention(x: Any, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    scores = (x @ q) @ jnp.swapaxes(x @ k, 1, 2)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e9)
    return x + jax.nn.softmax(scores) @ (x @ v)


def normalised(x: Any, scale: Any, axes: Sequence[int]) -> Any:
    mean = jnp.mean(x, axes, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.mean((x - mean) ** 2, axes, keepdims=True) + 1e-2) * scale


def recurrent(x: Any, w: Any) -> Any:
    def step(h: Any, row: Any) -> tuple[Any, Any]:
        h = jnp.tanh(h @ w + row)
        return h, h

    return jnp.swapaxes(lax.scan(step, x[:, 0], jnp.swapaxes(x, 0, 1))[1], 0, 1)


def convolved(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", feature_group_count=groups)


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "SAME")


def enlarged(x: Any, w: Any) -> Any:
    b, c, rows, columns = x.shape
    return jnp.tanh(convolved(jax.image.resize(x, (b, c, 2 * rows, 2 * columns), "nearest"), w))


# By name, a layer and the shapes of its weights for a width d.
OF_ROWS: Mapping[str, tuple[Layer, Callable[[int], list[tuple[int, ...]]]]] = {
    "dense": (lambda x, w: jnp.tanh(x @ w), lambda d: [(d, d)]),
    "gated": (lambda x, up, down: x + jax.nn.gelu(x @ up) @ down, lambda d: [(d, 3 * d), (3 * d, d)]),
    "attention": (attention, lambda d: [(d, d)] * 3),
    "causal": (lambda *a: attention(*a, causal=True), lambda d: [(d, d)] * 3),
    "layer norm": (lambda x, g: normalised(x, g, (2,)), lambda d: [(d,)]),
    "batch norm": (lambda x, g: normalised(x, g, ROWS), lambda d: [(d,)]),
    "recurrent": (recurrent, lambda d: [(d, d)]),
    "stacked": (lambda x, ws: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0], lambda d: [(3, d, d)]),
    "one by one": (lambda x, w: lax.map(lambda row: jax.nn.softmax(row @ w), x), lambda d: [(d, d)]),
    "checkpointed": (jax.checkpoint(lambda x, w: jnp.sin(x @ w)), lambda d: [(d, d)]),
}  # fmt: skip
OF_IMAGES: Mapping[str, tuple[Layer, Callable[[int], list[tuple[int, ...]]]]] = {
    "convolution": (lambda x, w: jax.nn.relu(convolved(x, w)), lambda c: [(c, c, 3, 3)]),
    "strided": (lambda x, w: jnp.tanh(convolved(x, w, 2)), lambda c: [(c, c, 3, 3)]),
    "grouped": (lambda x, w: jnp.tanh(convolved(x, w, 1, x.shape[1])), lambda c: [(c, 1, 3, 3)]),
    "pooled": (pooled, lambda c: []),
    "batch norm": (lambda x, g: normalised(x, g[:, None, None], IMAGES), lambda c: [(c,)]),
    "one by one": (lambda x, w: lax.map(lambda y: jnp.tanh(convolved(y[None], w)[0]), x), lambda c: [(c, c, 3, 3)]),
    "refined": (
        lambda x, w: lax.scan(lambda y, _: (jnp.tanh(convolved(y, w) + x), None), x, None, length=3)[0],
        lambda c: [(c, c, 3, 3)],
    ),
    "enlarged": (enlarged, lambda c: [(c, c, 3, 3)]),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A loss with its gradients.

    - `layers`: the names of its layers.
    - `fn`: the function of weights and of what they are applied to.
    - `shapes`: of the weights, one after the other.
    - `batch`, `shape`: of what they are applied to.
    """

    layers: tuple[str, ...]
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    batch: int
    shape: tuple[int, ...]

    @property
    def specs(self) -> tuple[Any, ...]:
        return [" ".join(map(str, s)) for s in self.shapes], " ".join(map(str, (self.batch, *self.shape)))

    def arguments(self, seed: int) -> tuple[Any, ...]:
        rng = np.random.default_rng(seed)
        weights = [rng.standard_normal(s) * (1.5 / np.prod(s[1:]) ** 0.5 if len(s) > 1 else 1.0) for s in self.shapes]
        x = rng.standard_normal((self.batch, *self.shape))
        return [jnp.asarray(w, jnp.float32) for w in weights], jnp.asarray(x, jnp.float32)


@st.composite
def steps(draw: st.DrawFn, most: int = 4) -> Step:
    """Losses of one to `most` layers, with their gradients."""
    is_image = draw(st.booleans())
    known = OF_IMAGES if is_image else OF_ROWS
    names = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=most))
    width = draw(st.sampled_from((2, 4) if is_image else (4, 8, 16)))
    shape = (width, *([draw(st.integers(6, 12))] * 2)) if is_image else (draw(st.integers(3, 24)), width)
    each = [known[n][1](width) for n in names]
    squared = draw(st.booleans())

    def loss(weights: Any, x: Any) -> Any:
        left = list(weights)
        for name, own in zip(names, each, strict=True):
            x = known[name][0](x, *(left.pop(0) for _ in own))
        return jnp.mean(x**2) if squared else -jnp.mean(jax.nn.log_softmax(x.reshape(len(x), -1))[:, 0])

    shapes = tuple(s for own in each for s in own)
    return Step(tuple(names), jax.value_and_grad(loss, (0, 1)), shapes, draw(st.integers(2, 9)), shape)
