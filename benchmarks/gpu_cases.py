"""The programs of `benchmarks.gpu`: attention, layers of a decoder, MiniLM, 4-bit matmuls, models, small patterns."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import relax_eg as rx
from benchmarks import cases as patterns
from benchmarks import models
from benchmarks.kernels import attention, dequantised, quantised
from benchmarks.llama_layer import Layer, Widths
from relax_eg.shapes import Dim, parse_spec

# How programs are executed: as one XLA program; in kernels; and as one XLA program without routines of cuDNN.
WHOLE, KERNELS, OWN = WAYS = ("whole", "kernels", "own")
OWN_RULES = rx.rules.default
for _rule in [r.name for r in rx.rules.default if r.name.startswith("cudnn")]:
    OWN_RULES = OWN_RULES - _rule
DTYPES = ("bfloat16", "float32")
LLAMA_3_8B = Widths(4096, 32, 8, 14336)
PATTERN_SIZE = 4096  # of n in the patterns
_CAUSAL_HEAD = 128
_WORDS = 30522  # of MiniLM's vocabulary


@dataclass(frozen=True)
class Subject:
    """A program to be compiled and timed.

    - `name`, `dtype`: its name, and the dtype of its floats.
    - `fn`: the function as written.
    - `specs`: a spec for each argument; for MiniLM's weights the arrays themselves.
    - `at`: the sizes of calls.
    - `given`: what is optimized: the function, unless a module stands for it.
    - `weights`: the first argument, where it is known ahead of the calls.
    - `positive`: whether random floats are above 0, as variances and second moments are.
    - `forms`: the function as rewritten by hand, by name.
    """

    name: str
    dtype: str
    fn: Callable[..., Any]
    specs: tuple[Any, ...]
    at: Mapping[str, int] = field(default_factory=dict[str, int])
    given: Callable[..., Any] | rx.types.Module | None = None
    weights: tuple[str, ...] = ()
    positive: bool = False
    forms: Mapping[str, patterns.Form] = field(default_factory=dict[str, patterns.Form])

    @property
    def file_name(self) -> str:
        """A name for files about it, which no other program has."""
        return re.sub(r"\W+", "-", f"{self.name} {self.dtype}").strip("-").lower()

    def arguments(self) -> list[Any]:
        """Random arguments of a call, made on the device: matrices and more are small enough for a softmax of a
        product, whole numbers below all sizes of the program. Arrays among the specs are arguments themselves."""
        sizes = [n for n in self.at.values() if n > 1]
        keys = map(jax.random.key, itertools.count())

        def array(spec: Any) -> Any:
            if not isinstance(spec, str):
                return spec
            dims, _, dtype = spec.partition("@")
            shape, dtype = tuple(_size(d, self.at) for d in dims.split()), dtype.strip()
            if dtype == "uint32":
                return jax.random.bits(next(keys), shape, "uint32")
            if dtype == "int32":
                return jax.random.randint(next(keys), shape, 0, min(sizes))
            scale = shape[0] ** -0.5 if len(shape) == 2 else 1.0
            drawn = jax.random.normal(next(keys), shape, "float32")
            return (scale * (jnp.abs(drawn) if self.positive else drawn)).astype(dtype or "float32")

        return jax.tree.map(array, list(self.specs))

    def optimize(self, way: str, target: Any, rules: rx.RuleSet | None = None) -> rx.types.Optimized:
        """The program that is chosen for a device, in one of `WAYS`, by these rules in place of the usual ones. Its
        first calls are not timed by it."""
        given = self.given or self.fn
        specs = () if isinstance(given, rx.types.Module) else self.specs
        options: Any = {
            "rules": rules if rules is not None else OWN_RULES if way == OWN else rx.rules.default,
            "execution": KERNELS if way == KERNELS else WHOLE,
            "target": target,
            "at": self.at or None,
            "measure": "off",
            "dynamic": "exact",
        }
        return rx.optimize(given, *specs, weights=self.weights, **options)


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    """Attention to the places before; logits in float32, as in jax.nn."""
    s = q.shape[2]
    logits = jnp.matmul(q, k.transpose(0, 1, 3, 2), preferred_element_type=jnp.float32) * _CAUSAL_HEAD**-0.5
    logits = jnp.where(jnp.tril(jnp.ones((s, s), bool)), logits, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(logits, axis=-1).astype(v.dtype) @ v


def subjects(dtypes: tuple[str, ...] = DTYPES) -> Iterator[Subject]:
    """Yields the programs, those first in which kernels matter most."""
    for dtype in dtypes:
        yield from _attentions(dtype)
    for dtype in dtypes:
        yield from _layers(dtype)
    for dtype in dtypes:
        yield from _minilm(dtype)
    if "float32" in dtypes:
        yield from _four_bits()
    for dtype in dtypes:
        yield from _models(dtype)
    for dtype in dtypes:
        yield from _patterns(dtype)


def _attentions(dtype: str) -> Iterator[Subject]:
    for places in (2048, 8192):
        plain, causal = f"b 16 s 64 @ {dtype}", f"b 16 s {_CAUSAL_HEAD} @ {dtype}"
        at = {"b": 1, "s": places}
        yield Subject(f"attention, {places:,} places", dtype, attention, (plain,) * 3, at)
        one = f"b 1 s 64 @ {dtype}"
        yield Subject(f"attention of one head, {places:,} places", dtype, attention, (one,) * 3, at)
        yield Subject(f"causal attention, {places:,} places", dtype, causal_attention, (causal,) * 3, at)


def _layers(dtype: str) -> Iterator[Subject]:
    layer = Layer(LLAMA_3_8B, dtype)
    for tokens in (128, 2048):
        at = {"b": 1, "s": tokens}
        yield Subject(f"Llama layer, prefill of {tokens:,}", dtype, layer.prefill, layer.specs("prefill"), at)
    for rows in (1, 8, 64):
        at = {"b": rows, "t": 1024}
        yield Subject(f"Llama layer, {rows} decoded after 1,024", dtype, layer.decode, layer.specs("decode"), at)


def _minilm(dtype: str) -> Iterator[Subject]:
    try:
        from examples import minilm
    except ModuleNotFoundError as e:
        print(f"MiniLM is left out: {e} (extra: demo)", flush=True)
        return
    try:
        params, _ = minilm.load()
    except (OSError, ModuleNotFoundError):
        print("MiniLM's weights are not installed: random ones of their shapes stand in", flush=True)
        params = _drawn_params()
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    for batch, tokens in ((1, 128), (64, 128)):
        ids = jax.random.randint(jax.random.key(0), (batch, tokens), 0, _WORDS)
        specs = (params, ids, jnp.ones_like(ids))
        yield Subject(f"MiniLM, {batch} of {tokens} tokens", dtype, minilm.encode, specs, weights=("params",))


def _drawn_params() -> dict[str, Any]:
    """Random weights of MiniLM's shapes, where the package of the real ones is not installed."""
    rng, width, inner = np.random.default_rng(0), 384, 1536

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(0.05 * rng.standard_normal(shape), jnp.float32)

    def pair(*shape: int) -> dict[str, Any]:
        return {"weight": array(*shape), "bias": array(shape[0])}

    square = ("query", "key", "value", "output")
    norms = {"attention_norm": (width,), "norm": (width,)}
    shapes = {**dict.fromkeys(square, (width, width)), **norms, "up": (inner, width), "down": (width, inner)}
    return {
        "word": array(_WORDS, width),
        "position": array(512, width),
        "type": array(2, width),
        "norm": pair(width),
        "layers": [{name: pair(*shape) for name, shape in shapes.items()} for _ in range(6)],
    }


def _four_bits() -> Iterator[Subject]:
    given = ("n 4096", "512 4096 @ uint32", "128 4096")
    for rows in (1, 128):
        name = f"4-bit matmul, width 4,096, {rows} rows"
        yield Subject(name, "float32", dequantised, given, {"n": rows}, quantised(4096, 4096))


def _models(dtype: str) -> Iterator[Subject]:
    """Whole models: ResNet-50, a U-Net, and a training step of GPT-2 with 2 of its 12 layers."""
    of = functools.partial(jax.tree.map, lambda text: text if "@" in text else f"{text} @ {dtype}")
    weights, at = ("params",), {"b": 1}
    images = of((models.resnet_specs(), "b 224 224 3"))
    yield Subject("ResNet-50, 1 image", dtype, models.resnet, images, at, weights=weights, positive=True)
    latents = of((models.unet_specs(), "b 64 64 3", "b"))
    yield Subject("U-Net, 1 latent image", dtype, models.unet, latents, at, weights=weights)
    step = of(models.gpt2_arguments(layers=2))
    yield Subject("GPT-2 step, 2 of 512", dtype, models.gpt2_step, step, {"b": 2, "s": 512}, positive=True)


def _patterns(dtype: str) -> Iterator[Subject]:
    for case in patterns.CASES:
        specs = jax.tree.map(lambda text: text if "@" in text else f"{text} @ {dtype}", case.specs)
        weights = ("params",) if case.weights else ()
        at = case.at(PATTERN_SIZE)
        yield Subject(case.name, dtype, case.written, specs, at, weights=weights, forms=case.forms)


def _size(text: str, at: Mapping[str, int]) -> int:
    (dim,) = parse_spec(text).dims
    assert isinstance(dim, Dim)
    return dim.evaluate(at)
