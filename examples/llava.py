"""LLaVA's architecture with random weights: pictures and a question, then an answer token by token.

    python -m examples.llava [--tokens 32] [--pictures 1] [--size small]

A vision transformer shaped like CLIP's sees each picture as 576 patches; two layers project them to the width of a
Llama-shaped decoder (`examples.decoder`), which reads them between the words before and after. How many pictures and
words there are is open. `--size 8b` has the widths of LLaVA-NeXT on Llama3-8B: nothing runs, and the memory of its
functions and their time on an H100 are predicted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console

import relax_eg as rx
from benchmarks.timing import duration
from examples.decoder import Decoder
from examples.layers import Cache, Params, Weights, attend, layer_norm, linear, split_heads
from examples.serving import Part, Way, show_choices, show_memory, show_speed, with_fixed_caches

OUT = Path("build/llava")


@dataclass(frozen=True)
class Tower:
    """The sizes of a vision transformer, and its functions.

    - `side`, `patch`: the side of a picture and of a patch, in pixels.
    - `layers`, `width`, `hidden`, `heads`: as in `Decoder`.
    """

    side: int = 336
    patch: int = 14
    layers: int = 4
    width: int = 256
    hidden: int = 1024
    heads: int = 4

    @property
    def patches(self) -> int:
        """The number of patches of a picture."""
        return (self.side // self.patch) ** 2

    def params(self, w: Weights) -> Params:
        """Random weights."""
        d = self.width

        def layer() -> Params:
            attention = {name: w.linear(d, d) for name in ("query", "key", "value", "output")}
            mlp = {"up": w.linear(d, self.hidden), "down": w.linear(self.hidden, d)}
            return {**attention, **mlp, "norm1": w.norm(d), "norm2": w.norm(d)}

        return {
            "patches": w.array(d, 3, self.patch, self.patch, scale=(3 * self.patch**2) ** -0.5),
            "class": w.array(d), "positions": w.array(self.patches + 1, d), "norm": w.norm(d),
            "layers": [layer() for _ in range(self.layers)],
        }  # fmt: skip

    def see(self, p: Params, pictures: jax.Array) -> jax.Array:
        """(i, patches, width) from pictures (i, 3, side, side), without the place of the class."""
        i, d = pictures.shape[0], self.width
        x = jax.lax.conv_general_dilated(pictures, p["patches"], (self.patch, self.patch), "VALID")
        x = x.reshape(i, d, self.patches).transpose(0, 2, 1)
        x = jnp.concatenate([jnp.broadcast_to(p["class"], (i, 1, d)), x], axis=1) + p["positions"]
        x = layer_norm(p["norm"], x)
        for layer in p["layers"]:
            y = layer_norm(layer["norm1"], x)
            q, k, v = (split_heads(linear(layer[name], y), self.heads) for name in ("query", "key", "value"))
            x = x + linear(layer["output"], attend(q, k, v))
            y = linear(layer["up"], layer_norm(layer["norm2"], x))
            x = x + linear(layer["down"], y * jax.nn.sigmoid(1.702 * y))
        return x[:, 1:]


@dataclass(frozen=True)
class Llava:
    """A vision transformer, two layers that project what it sees, and a decoder."""

    tower: Tower = field(default_factory=Tower)
    decoder: Decoder = field(default_factory=lambda: Decoder(4, 512, 1408, 8, 4, 64, 32_000))

    def params(self, w: Weights | None = None) -> Params:
        """Random weights."""
        w, d = w or Weights(), self.decoder.width
        projector = {"first": w.linear(self.tower.width, d), "second": w.linear(d, d)}
        return {"tower": self.tower.params(w), "projector": projector, "decoder": self.decoder.params(w)}

    def see(self, params: Params, pictures: jax.Array) -> jax.Array:
        """What the decoder reads of pictures (i, 3, side, side): (i * patches, width)."""
        x = self.tower.see(params["tower"], pictures)
        p = params["projector"]
        x = linear(p["second"], jax.nn.gelu(linear(p["first"], x), approximate=False))
        return x.reshape(-1, self.decoder.width)

    def prefill(
        self, params: Params, before: jax.Array, seen: jax.Array, after: jax.Array
    ) -> tuple[jax.Array, list[Cache]]:
        """Logits (1, vocabulary) after tokens (f,), what was seen (v, width), and tokens (g,); and the caches."""
        p = params["decoder"]
        x = jnp.concatenate([p["embedding"][before], seen, p["embedding"][after]])[None]
        x, caches = self.decoder.read(p, x)
        return x[:, -1] @ p["head"], caches

    def step(self, params: Params, token: jax.Array, caches: list[Cache]) -> tuple[jax.Array, list[Cache]]:
        """`Decoder.step` of the decoder."""
        return self.decoder.step(params["decoder"], token, caches)

    def step_at(
        self, params: Params, token: jax.Array, position: jax.Array, caches: list[Cache]
    ) -> tuple[jax.Array, list[Cache]]:
        """`Decoder.step_at` of the decoder."""
        return self.decoder.step_at(params["decoder"], token, position, caches)


SIZES = {
    "small": Llava(),
    "8b": Llava(Tower(layers=23, width=1024, hidden=4096, heads=16), Decoder(32, 4096, 14336, 32, 8, 128, 128_256)),
}


def picture(side: int, seed: int = 0) -> np.ndarray:
    """(3, side, side) numbers of about the size that CLIP's scaling gives: coloured discs on a slope."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    found = np.stack([x - y, y, x * y]) * 2.0 - 1.0
    for _ in range(6):
        cx, cy, radius = *random.random(2), random.uniform(0.05, 0.25)
        inside = (x - cx) ** 2 + (y - cy) ** 2 < radius**2
        found[:, inside] = random.normal(size=(3, 1))
    return found.astype(np.float32)


ROOM = 128  # chosen: positions by which the capacities of the cache grow
WORDS, MOST_WORDS = (9, 23), 256  # tokens before and after the pictures, and the most of each
MOST_PICTURES = 4


def optimized(model: Llava, params: Params, pictures: int, dtype: str = "float32", **options: Any) -> dict[str, Part]:
    """The functions of the model, optimized for so many pictures and `WORDS`."""
    d, tower = model.decoder, model.tower
    (before, after), seen = WORDS, pictures * tower.patches
    words, most_seen = (1, MOST_WORDS), MOST_PICTURES * tower.patches
    most = most_seen + 4 * MOST_WORDS
    cases: dict[str, tuple[Any, tuple[Any, ...], dict[str, tuple[int, int]], dict[str, int]]] = {
        "see": (
            model.see, (f"i 3 {tower.side} {tower.side} @ {dtype}",), {"i": (1, MOST_PICTURES)}, {"i": pictures},
        ),
        "prefill": (
            model.prefill, ("f @ int32", f"v {d.width} @ {dtype}", "g @ int32"),
            {"f": words, "v": (1, most_seen), "g": words}, {"f": before, "v": seen, "g": after},
        ),
        "step": (
            model.step, ("1 @ int32", d.caches("t", 1, dtype)), {"t": (1, most)}, {"t": before + seen + after},
        ),
    }  # fmt: skip
    capacities = {"i": "powers of two", "f": "powers of two", "g": "powers of two", "v": tower.patches, "t": ROOM}
    found: dict[str, Part] = {}
    for name, (fn, specs, bounds, at) in cases.items():
        dynamic = rx.Dynamic(
            mode="capacity", capacities={v: capacities[v] for v in bounds}, padded=True,
            donated=["caches"] if name == "step" else None,
        )  # fmt: skip
        best = rx.optimize(fn, params, *specs, weights=("params",), bounds=bounds, at=at, dynamic=dynamic, **options)
        here = not isinstance(jax.tree.leaves(params)[0], jax.ShapeDtypeStruct)
        found[name] = Part(best, best.prepare(params) if here else best, at, bounds)
    return found


def predicted(console: Console, model: Llava, pictures: int, folder: Path | None) -> None:
    """Prints what is predicted of the model in bfloat16 on an H100, without weights: nothing runs."""
    shapes = model.params(Weights(dtype="bfloat16", shapes_only=True))
    weights = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    console.print(f"{weights / 1e9:.1f} GB of weights in bfloat16, of which only the shapes are here")
    started = time.perf_counter()
    parts = optimized(model, shapes, pictures, "bfloat16", target="h100")
    console.print(f"three functions optimized for an H100 in {duration(time.perf_counter() - started)}")
    show_choices(console, parts)
    show_memory(console, parts, folder)
    step = parts["step"].best.report.after.seconds
    console.print(f"predicted: {1 / step:.0f} tokens/s for one sequence")


def main(
    tokens: Annotated[int, typer.Option(min=2, max=256, help="Tokens to generate.")] = 32,
    pictures: Annotated[int, typer.Option(min=1, max=MOST_PICTURES, help="Pictures in the prompt.")] = 1,
    size: Annotated[str, typer.Option(help=f"Widths: {', '.join(SIZES)}.")] = "small",
    recompiled: Annotated[int, typer.Option(min=2, help="Tokens for which jax.jit compiles every length.")] = 6,
    draw: Annotated[bool, typer.Option(help="Draw the memory.")] = True,
) -> None:
    """LLaVA's architecture with random weights under jax.jit and under relax_eg."""
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r}: one of {', '.join(SIZES)} is accepted", param_hint="--size")
    console, model, folder = Console(), SIZES[size], OUT if draw else None
    if size != "small":
        predicted(console, model, pictures, folder)
        return
    params = model.params()
    started = time.perf_counter()
    parts = optimized(model, params, pictures)
    console.print(f"three functions optimized in {duration(time.perf_counter() - started)}")
    show_choices(console, parts)
    show_memory(console, parts, folder)

    see, read, more = (parts[name].ready for name in ("see", "prefill", "step"))
    random = np.random.default_rng(0)
    before, after = (random.integers(0, model.decoder.vocabulary, n).astype(np.int32) for n in WORDS)
    shown = np.stack([picture(model.tower.side, i) for i in range(pictures)])
    see_plain, read_plain, more_plain = jax.jit(model.see), jax.jit(model.prefill), jax.jit(model.step)
    in_place = jax.jit(model.step_at, donate_argnums=3)

    def prompt() -> tuple[jax.Array, list[Cache]]:
        logits, caches = read_plain(params, before, see_plain(params, shown), after)
        return logits[:, None], caches

    def ours() -> tuple[jax.Array, list[Cache]]:
        logits, caches = read(before, see(shown), after)
        return logits[:, None], caches

    step, filled = parts["step"].best, sum(WORDS) + len(shown) * model.tower.patches
    ways = {
        "jax.jit, cache of fixed length": with_fixed_caches(
            prompt, lambda t, at, c: in_place(params, t, at, c), filled, tokens, ROOM, in_place._cache_size
        ),
        "jax.jit, growing cache": Way(
            prompt, lambda t, c: more_plain(params, t, c), min(recompiled, tokens), more_plain._cache_size
        ),
        "relax_eg, growing cache": Way(ours, more, tokens, lambda: step.statistics().compilations),
    }
    title = f"{tokens} tokens after {pictures} x {model.tower.patches} patches and {sum(WORDS)} words"
    show_speed(console, title, ways)
    for row in step.statistics().settled:
        console.print(str(row))


if __name__ == "__main__":
    typer.run(main)
