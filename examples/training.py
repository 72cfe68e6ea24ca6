"""Training on texts of every length: a step of Adam on a small transformer, one sentence a step.

    python -m examples.training [--steps 120]

`jax.jit` compiles the step for each length it meets. `rx.jit`, in its place, sees that lengths vary and compiles for a
few capacities; the gradients are those of the true length, with no mask in the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relax_eg as rx

Params = dict[str, Any]

LAYERS, WIDTH, HEADS, LONGEST, BYTES = 2, 64, 4, 192, 256
RATE, KEPT, KEPT_SQUARES = 3e-3, 0.9, 0.99  # of Adam


def params(seed: int = 0) -> Params:
    """Random weights."""
    random = np.random.default_rng(seed)

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape) / shape[0] ** 0.5, jnp.float32)

    def layer() -> Params:
        return {
            "qkv": array(WIDTH, 3 * WIDTH), "out": array(WIDTH, WIDTH), "up": array(WIDTH, 4 * WIDTH),
            "down": array(4 * WIDTH, WIDTH), "scale1": jnp.ones(WIDTH), "scale2": jnp.ones(WIDTH),
        }  # fmt: skip

    layers = [layer() for _ in range(LAYERS)]
    return {"embedding": array(BYTES, WIDTH), "position": array(LONGEST, WIDTH) * 0.1, "layers": layers}


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def logits(p: Params, text: jax.Array) -> jax.Array:
    """(s, 256) scores of the byte that follows each of the `s` bytes of `text`."""
    s = text.shape[0]
    x = p["embedding"][text] + p["position"][:s]
    for layer in p["layers"]:
        q, k, v = jnp.split(normed(x, layer["scale1"]) @ layer["qkv"], 3, -1)
        q, k, v = (y.reshape(s, HEADS, -1).swapaxes(0, 1) for y in (q, k, v))
        seen = jnp.tril(jnp.ones((s, s), bool))
        weights = jax.nn.softmax(jnp.where(seen, q @ k.swapaxes(1, 2) / (WIDTH / HEADS) ** 0.5, -jnp.inf))
        x = x + (weights @ v).swapaxes(0, 1).reshape(s, WIDTH) @ layer["out"]
        x = x + jax.nn.gelu(normed(x, layer["scale2"]) @ layer["up"]) @ layer["down"]
    return x @ p["embedding"].T


def loss(p: Params, text: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of each byte after the first."""
    scores = jax.nn.log_softmax(logits(p, text[:-1]))
    return -jnp.take_along_axis(scores, text[1:, None], 1).mean()


def step(state: tuple[Params, Params, Params], text: jax.Array) -> tuple[tuple[Params, Params, Params], jax.Array]:
    """Returns weights and the two moving averages of Adam after a step on one text, and the loss before the step."""
    p, mean, square = state
    value, gradient = jax.value_and_grad(loss)(p, text)
    mean = jax.tree.map(lambda m, g: KEPT * m + (1 - KEPT) * g, mean, gradient)
    square = jax.tree.map(lambda s, g: KEPT_SQUARES * s + (1 - KEPT_SQUARES) * g**2, square, gradient)
    p = jax.tree.map(lambda w, m, s: w - RATE * m / (jnp.sqrt(s) + 1e-6), p, mean, square)
    return (p, mean, square), value


def texts(steps: int) -> list[np.ndarray]:
    """Sentences as bytes, in a fixed random order."""
    lines = (Path(__file__).parent / "data" / "sentences.txt").read_text().splitlines()
    whole = [np.frombuffer(x.encode()[:LONGEST], np.uint8).astype(np.int32) for x in lines if x and x[0] != "#"]
    return [whole[i % len(whole)] for i in np.random.default_rng(0).permutation(steps)]


def train(step: Callable[..., Any], stream: list[np.ndarray], label: str) -> tuple[np.ndarray, float]:
    """The losses, and the seconds of all of it, compiling included."""
    p = params()
    state, losses = (p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)), list[float]()
    started = time.perf_counter()
    for text in track(stream, label, transient=True):
        state, value = step(state, text)
        losses.append(float(value))
    return np.array(losses), time.perf_counter() - started


def main(steps: Annotated[int, typer.Option(min=2, help="Texts to train on.")] = 120) -> None:
    """Train on sentences of many lengths under jax.jit and under rx.jit."""
    stream = texts(steps)
    lengths = len({len(x) for x in stream})
    plain, fast = jax.jit(step, donate_argnums=0), rx.jit(step, donate_argnums=0)
    written, seconds = train(plain, stream, "jax.jit")
    ours, ours_seconds = train(fast, stream, "rx.jit")
    np.testing.assert_allclose(ours, written, rtol=5e-3)
    found = fast.statistics()
    table = Table(title=f"{steps} steps of training on texts of {lengths} lengths")
    for column in ("", "executables", "seconds", "first loss", "last ten"):
        table.add_column(column, justify="left" if not column else "right")
    for name, executables, took, losses in (
        ("jax.jit", plain._cache_size(), seconds, written),
        ("rx.jit", 1 + (0 if found is None else found.compilations), ours_seconds, ours),
    ):
        table.add_row(name, str(executables), f"{took:.1f}", f"{losses[0]:.3f}", f"{losses[-10:].mean():.3f}")
    Console().print(table)
    if found is not None:
        print(found)


if __name__ == "__main__":
    typer.run(main)
