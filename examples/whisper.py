"""Whisper-tiny's architecture with random weights: sound of any length, then tokens one by one.

    python -m examples.whisper [--tokens 56] [--seconds 6.4]

The program is plain JAX: a log-mel spectrogram, an encoder, and a decoder whose key/value cache grows by one position
a token. `jax.jit` compiles a step for every length of the cache, unless somebody writes the step for a cache of a fixed
length. relax_eg compiles the step as it is for a few capacities; nothing in the model knows of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console

import relax_eg as rx
from benchmarks.timing import duration
from examples.layers import (
    Cache,
    Join,
    Params,
    Weights,
    attend,
    causal,
    first,
    grown,
    layer_norm,
    linear,
    split_heads,
    stored,
    unfilled,
)
from examples.serving import Part, Way, show_choices, show_memory, show_speed, with_fixed_caches

RATE = 16_000  # samples a second
WINDOW, HOP = 400, 160  # samples of a frame of the spectrogram, and from one frame to the next
PLACE = 2 * HOP  # samples of a place of the encoder: the second convolution takes every other frame


@dataclass(frozen=True)
class Whisper:
    """The sizes of Whisper-tiny, and its functions.

    - `mels`: bands of the spectrogram.
    - `width`, `heads`, `layers`: of the encoder and of the decoder each; an MLP is four times as wide.
    - `places`: the most places of the encoder; 1,500 are 30 seconds.
    - `context`: the most tokens.
    - `vocabulary`: the number of tokens.
    """

    mels: int = 80
    width: int = 384
    heads: int = 6
    layers: int = 4
    places: int = 1500
    context: int = 448
    vocabulary: int = 51_865

    def params(self) -> Params:
        """Random weights."""
        w, d = Weights(), self.width

        def attention() -> Params:
            return {name: w.linear(d, d) for name in ("query", "key", "value", "output")} | {"norm": w.norm(d)}

        def layer(*attentions: str) -> Params:
            mlp = {"norm": w.norm(d), "up": w.linear(d, 4 * d), "down": w.linear(4 * d, d)}
            return {name: attention() for name in attentions} | {"mlp": mlp}

        def convolution(channels: int) -> Params:
            return {"weight": w.array(d, channels, 3, scale=(3 * channels) ** -0.5), "bias": w.array(d, scale=0.02)}

        encoder = {
            "conv1": convolution(self.mels), "conv2": convolution(d), "norm": w.norm(d),
            "layers": [layer("own") for _ in range(self.layers)],
        }  # fmt: skip
        decoder = {
            "embedding": w.array(self.vocabulary, d, scale=d**-0.5), "positions": w.array(self.context, d, scale=3.0),
            "layers": [layer("own", "cross") for _ in range(self.layers)], "norm": w.norm(d),
        }  # fmt: skip
        return {"encoder": encoder, "decoder": decoder}

    def caches(self, length: str | int, batch: str | int = 1) -> list[Any]:
        """Specs of keys and values of all layers."""
        one = f"{batch} {self.heads} {length} {self.width // self.heads}"
        return [(one, one)] * self.layers

    def encode(self, params: Params, audio: jax.Array) -> list[Cache]:
        """Keys and values (1, heads, p, d) by which each layer of the decoder hears the samples (320 * p,)."""
        p = params["encoder"]
        x = log_mel(audio, self.mels)[None]
        x = jax.nn.gelu(convolved(p["conv1"], x), approximate=False)
        x = jax.nn.gelu(convolved(p["conv2"], x, stride=2), approximate=False).transpose(0, 2, 1)
        x = x + sinusoids(x.shape[1], self.width)
        for layer in p["layers"]:
            x = x + self._own(layer["own"], x, 0, first)[0]
            x = x + mlp(layer["mlp"], x)
        x = layer_norm(p["norm"], x)
        cross = [layer["cross"] for layer in params["decoder"]["layers"]]
        return [
            (split_heads(linear(c["key"], x), self.heads), split_heads(linear(c["value"], x), self.heads))
            for c in cross
        ]

    def prefill(self, params: Params, tokens: jax.Array, heard: list[Cache]) -> tuple[jax.Array, list[Cache]]:
        """Logits (b, s, vocabulary) at every position of prompts (b, s), and the caches."""
        positions = jnp.arange(tokens.shape[1])
        return self._decode(params["decoder"], tokens, positions, heard, first, causal(positions))

    def step(
        self, params: Params, token: jax.Array, caches: list[Cache], heard: list[Cache]
    ) -> tuple[jax.Array, list[Cache]]:
        """Logits (b, vocabulary) after one token more (b,); the caches, (b, heads, t, d) each, one longer."""
        t = caches[0][0].shape[2]
        join = grown(caches)
        logits, caches = self._decode(params["decoder"], token[:, None], jnp.arange(t, t + 1), heard, join)
        return logits[:, 0], caches

    def step_at(
        self, params: Params, token: jax.Array, position: jax.Array, caches: list[Cache], heard: list[Cache]
    ) -> tuple[jax.Array, list[Cache]]:
        """`step` by hand for one executable: caches have a fixed length, and `position` says what is filled."""
        bias, join = unfilled(caches[0][0].shape[2], position), stored(caches, position)
        logits, caches = self._decode(params["decoder"], token[:, None], position[None], heard, join, bias)
        return logits[:, 0], caches

    def _decode(
        self, p: Params, tokens: jax.Array, positions: jax.Array, heard: list[Cache], join: Join,
        bias: jax.Array | float = 0.0,
    ) -> tuple[jax.Array, list[Cache]]:  # fmt: skip
        x = p["embedding"][tokens] + p["positions"][positions]
        caches: list[Cache] = []
        for i, layer in enumerate(p["layers"]):
            found, cache = self._own(layer["own"], x, i, join, bias)
            caches.append(cache)
            x = x + found
            cross = layer["cross"]
            q = split_heads(linear(cross["query"], layer_norm(cross["norm"], x)), self.heads)
            x = x + linear(cross["output"], attend(q, *heard[i]))
            x = x + mlp(layer["mlp"], x)
        return layer_norm(p["norm"], x) @ p["embedding"].T, caches

    def _own(
        self, p: Params, x: jax.Array, i: int, join: Join, bias: jax.Array | float = 0.0
    ) -> tuple[jax.Array, Cache]:
        """What tokens find among themselves and, where there is a cache, those before them; the cache with them."""
        y = layer_norm(p["norm"], x)
        q, k, v = (split_heads(linear(p[name], y), self.heads) for name in ("query", "key", "value"))
        cache = join(i, k, v)
        return linear(p["output"], attend(q, *cache, bias)), cache


def mlp(p: Params, x: jax.Array) -> jax.Array:
    return linear(p["down"], jax.nn.gelu(linear(p["up"], layer_norm(p["norm"], x)), approximate=False))


def convolved(p: Params, x: jax.Array, stride: int = 1) -> jax.Array:
    """(b, channels, n) -> (b, outputs, n / stride), each place from itself and its two neighbours."""
    found = jax.lax.conv_general_dilated(x, p["weight"], (stride,), [(1, 1)], dimension_numbers=("NCH", "OIH", "NCH"))
    return found + p["bias"][:, None]


def sinusoids(places: int, width: int) -> jax.Array:
    """(places, width) sines, then cosines, of wave lengths from 2 pi to 20,000 pi."""
    rates = jnp.exp(-np.log(10_000) / (width // 2 - 1) * jnp.arange(width // 2))
    angles = jnp.arange(places)[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


def log_mel(audio: jax.Array, mels: int) -> jax.Array:
    """(mels, n / 160) logarithms of the energy in bands, from samples (n,); scaled as Whisper has it."""
    padded = jnp.pad(audio, WINDOW // 2, mode="reflect")
    starts = HOP * jnp.arange(audio.shape[0] // HOP)
    frames = padded[starts[:, None] + jnp.arange(WINDOW)] * np.hanning(WINDOW + 1)[:-1].astype(np.float32)
    power = jnp.abs(jnp.fft.rfft(frames)) ** 2
    bands = jnp.log10(jnp.maximum(mel_filters(mels) @ power.T, 1e-10))
    return (jnp.maximum(bands, bands.max() - 8.0) + 4.0) / 4.0


def mel_filters(mels: int) -> np.ndarray:
    """(mels, 201) weights: triangles of equal area, evenly spaced on Slaney's mel scale, over the frequencies."""
    linear_part, least, step = 200 / 3, 1000.0, np.log(6.4) / 27  # Hz a mel below 1 kHz; the logarithm's step above

    def hertz(mel: np.ndarray) -> np.ndarray:
        corner = least / linear_part
        return np.where(mel < corner, linear_part * mel, least * np.exp(step * (mel - corner)))

    top = least / linear_part + np.log(RATE / 2 / least) / step
    edges = hertz(np.linspace(0.0, top, mels + 2))
    at = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)
    rising = (at - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - at) / np.diff(edges)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * 2.0 / (edges[2:] - edges[:-2])[:, None]).astype(np.float32)


# Formants of vowels in Hz (after Peterson and Barney, 1952, men), and noise of fricatives: its middle in Hz.
VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "u": (300, 870, 2240), "e": (530, 1840, 2480)}
FRICATIVES = {"s": 6000.0, "h": 2500.0}
HARMONICS = 27  # of the voice: up to 4 kHz at the highest pitch


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """Samples (n,), float32, n a multiple of 320: syllables of a fricative and a vowel, with a melody, by adding
    harmonics of the voice as loud as the vowel's formants make them."""
    random = np.random.default_rng(seed)
    n = round(seconds * RATE / PLACE) * PLACE
    time = np.arange(n) / RATE
    pitch = 110.0 + 25.0 * np.sin(2 * np.pi * 0.4 * time) + 10.0 * np.sin(2 * np.pi * 1.7 * time)  # Hz
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    sound, start = np.zeros(n), 0
    while start < n:
        noisy, voiced, silent = (round(RATE * s) for s in random.uniform((0.05, 0.12, 0.02), (0.12, 0.30, 0.15)))
        middle = random.choice(list(FRICATIVES.values()))
        noise = slice(start, min(start + noisy, n))
        sound[noise] += hiss(random.standard_normal(noise.stop - noise.start), middle) * 0.1
        vowel = slice(noise.stop, min(noise.stop + voiced, n))
        formants = VOWELS[random.choice(list(VOWELS))]
        sound[vowel] += sung(phase[vowel], pitch[vowel], formants)
        start = vowel.stop + silent
    return (sound / np.abs(sound).max()).astype(np.float32)


def sung(phase: np.ndarray, pitch: np.ndarray, formants: tuple[int, ...]) -> np.ndarray:
    """Harmonics of a voice, under the resonances of a vowel; swelling and fading."""
    number = np.arange(1, HARMONICS + 1)[:, None]
    frequency = number * pitch
    loud = sum(1.0 / (1.0 + ((frequency - f) / (50.0 + 0.05 * f)) ** 2) for f in formants)
    fade = np.sin(np.pi * np.linspace(0.0, 1.0, len(phase))) ** 0.5
    return fade * np.sum(loud * np.sin(number * phase) / number, axis=0)


def hiss(noise: np.ndarray, middle: float) -> np.ndarray:
    """White noise, of which frequencies near `middle` in Hz remain."""
    frequency = np.fft.rfftfreq(len(noise), 1 / RATE)
    return np.fft.irfft(np.fft.rfft(noise) * np.exp(-(((frequency - middle) / 1500.0) ** 2)), len(noise))


START = np.array([[50258, 50259, 50359, 50363]], np.int32)  # of a transcript, in English, to be written, without times
ROOM = 64  # chosen: positions by which the capacities of the cache grow
CLIP = 500  # chosen: places, 10 seconds, by which the capacities of sound grow
OUT = Path("build/whisper")


def optimized(model: Whisper, params: Params, places: int) -> dict[str, Part]:
    """The functions of the model, optimized for a cache of `ROOM` tokens and sound of `places`."""
    context, sound = (1, model.context), (1, model.places)
    cases: dict[str, tuple[Any, tuple[Any, ...], dict[str, tuple[int, int]], dict[str, int]]] = {
        "encode": (model.encode, (f"{PLACE}*p",), {"p": sound}, {"p": places}),
        "prefill": (
            model.prefill, ("1 s @ int32", model.caches("p")), {"s": context, "p": sound},
            {"s": START.shape[1], "p": places},
        ),
        "step": (
            model.step, ("1 @ int32", model.caches("t"), model.caches("p")), {"t": context, "p": sound},
            {"t": ROOM, "p": places},
        ),
    }  # fmt: skip
    capacities = {"s": "powers of two", "t": ROOM, "p": CLIP}
    found: dict[str, Part] = {}
    for name, (fn, specs, bounds, at) in cases.items():
        dynamic = rx.Dynamic(
            mode="capacity", capacities={v: capacities[v] for v in bounds}, padded=True,
            donated=["caches"] if name == "step" else None,
        )  # fmt: skip
        best = rx.optimize(fn, params, *specs, weights=("params",), bounds=bounds, at=at, dynamic=dynamic)
        found[name] = Part(best, best.prepare(params), at, bounds)
    return found


def main(
    tokens: Annotated[int, typer.Option(min=2, max=440, help="Tokens to generate.")] = 56,
    seconds: Annotated[float, typer.Option(min=1, max=30, help="Length of the sound.")] = 6.4,
    recompiled: Annotated[int, typer.Option(min=2, help="Tokens for which jax.jit compiles every length.")] = 6,
    pictures: Annotated[bool, typer.Option(help="Draw the memory.")] = True,
) -> None:
    """Whisper-tiny with random weights under jax.jit and under relax_eg."""
    console = Console()
    model, audio = Whisper(), speech(seconds)
    params = model.params()
    started = time.perf_counter()
    parts = optimized(model, params, len(audio) // PLACE)
    console.print(f"three functions optimized in {duration(time.perf_counter() - started)}")
    show_choices(console, parts)
    show_memory(console, parts, OUT if pictures else None)

    encode, read, more = (parts[name].ready for name in ("encode", "prefill", "step"))
    heard = encode(audio)
    whole, wanted = jax.tree.map(jnp.asarray, heard), jax.jit(model.encode)(params, audio)
    worst = max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (whole, wanted)), strict=True))
    console.print(f"{seconds:g} s of sound heard; keys and values differ from those of jax.jit by {worst:.1g} at most")
    step, in_place = parts["step"].best, jax.jit(model.step_at, donate_argnums=3)
    read_plain, more_plain = jax.jit(model.prefill), jax.jit(model.step)
    ways = {
        "jax.jit, cache of fixed length": with_fixed_caches(
            lambda: read_plain(params, START, whole), lambda t, at, c: in_place(params, t, at, c, whole),
            START.shape[1], tokens, ROOM, in_place._cache_size,
        ),
        "jax.jit, growing cache": Way(
            lambda: read_plain(params, START, whole), lambda t, c: more_plain(params, t, c, whole),
            min(recompiled, tokens), more_plain._cache_size,
        ),
        "relax_eg, growing cache": Way(
            lambda: read(START, heard), lambda t, c: more(t, c, heard), tokens,
            lambda: step.statistics().compilations,
        ),
    }  # fmt: skip
    show_speed(console, f"{tokens} tokens after {seconds:g} s of sound", ways)
    for row in step.statistics().settled:
        console.print(str(row))


if __name__ == "__main__":
    typer.run(main)
