"""Feed-forward layers: equinox, flax (linen and nnx), haiku. The batch is symbolic where the layer allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.library_cases.case import Case, Size, Use, case, filled, integers

LAYERS: list[Case] = []
KEY = jax.random.key(0)


def of_equinox(make: Callable[[], Any], specs: tuple[Any, ...], run: Callable[..., Any] | None = None) -> Use:
    """An equinox model, its arrays the first argument; `run(model, *args)` is a vmap of the model if not given."""
    arrays, static = eqx.partition(filled(eqx.filter_eval_shape(make)), eqx.is_inexact_array)

    def fn(arrays: Any, *args: Any) -> Any:
        model = eqx.combine(arrays, static)
        return jax.vmap(model)(*args) if run is None else run(model, *args)

    return Use(fn, (arrays, *specs))


def of_linen(model: nn.Module, example: jax.Array, spec: str, **kwargs: Any) -> Use:
    """A linen module applied to its variables."""
    variables = filled(jax.eval_shape(model.init, KEY, example))

    def fn(variables: Any, x: jax.Array) -> Any:
        return model.apply(variables, x, **kwargs)

    return Use(fn, (variables, spec))


def of_nnx(make: Callable[[], nnx.Module], spec: str) -> Use:
    """An nnx module, split into its graph and its state."""
    graph, state = nnx.split(nnx.eval_shape(make))

    def fn(state: Any, x: jax.Array) -> Any:
        return nnx.merge(graph, state)(x)

    return Use(fn, (filled(state), spec))


def of_haiku(run: Callable[..., Any], example: Any, spec: Any) -> Use:
    """A function that uses haiku modules, transformed; state, if it has any, is a result."""
    made = hk.transform_with_state(run)
    params, state = filled(jax.eval_shape(made.init, KEY, example))

    def fn(params: Any, state: Any, x: Any) -> Any:
        return made.apply(params, state, None, x)

    return Use(fn, (params, state, spec))


# -- equinox


@case(LAYERS, "equinox", "MLP")
def equinox_mlp(size: Size) -> Use:
    widths = size((6, 3, 16), (784, 10, 512))
    return of_equinox(lambda: eqx.nn.MLP(*widths, 2, activation=jax.nn.gelu, key=KEY), (size("b 6", "128 784"),))


@case(LAYERS, "equinox", "MLP in bfloat16, its parameters in float32")
def equinox_mixed(size: Size) -> Use:
    def run(model: Any, x: jax.Array) -> jax.Array:
        narrow = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if eqx.is_inexact_array(a) else a, model)
        return jax.vmap(narrow)(x.astype(jnp.bfloat16)).astype(jnp.float32)

    widths = size((6, 3, 16), (784, 10, 512))
    made = of_equinox(lambda: eqx.nn.MLP(*widths, 1, key=KEY), (size("b 6", "128 784"),), run)
    return replace(made, tolerance=5e-2)


@case(LAYERS, "equinox", "convolutions, group norm, pooling")
def equinox_convolutions(size: Size) -> Use:
    def make() -> eqx.Module:
        channels = size(8, 32)
        layers = [
            eqx.nn.Conv2d(3, channels, 3, key=KEY),
            eqx.nn.GroupNorm(size(2, 8), channels),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.ConvTranspose2d(channels, channels // 2, 2, 2, key=KEY),
            eqx.nn.AdaptiveAvgPool2d(2),
        ]
        return eqx.nn.Sequential(layers)

    return of_equinox(make, (size("b 3 10 10", "8 3 66 66"),))


@case(LAYERS, "equinox", "transformer block")
def equinox_transformer(size: Size) -> Use:
    def make() -> Any:
        heads, width, hidden = size((2, 8, 16), (4, 256, 1024))
        return {
            "attention": eqx.nn.MultiheadAttention(heads, width, key=KEY),
            "rotary": eqx.nn.RotaryPositionalEmbedding(width // heads),
            "norms": [eqx.nn.LayerNorm(width), eqx.nn.RMSNorm(width)],
            "mlp": eqx.nn.MLP(width, width, hidden, 1, activation=jax.nn.silu, key=KEY),
        }

    def block(model: Any, x: jax.Array) -> jax.Array:
        def rotate(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            turn = jax.vmap(model["rotary"], in_axes=1, out_axes=1)
            return turn(q), turn(k), v

        def one(x: jax.Array) -> jax.Array:
            y = jax.vmap(model["norms"][0])(x)
            mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
            x = x + model["attention"](y, y, y, mask=mask, process_heads=rotate)
            return x + jax.vmap(model["mlp"])(jax.vmap(model["norms"][1])(x))

        return jax.vmap(one)(x)

    return of_equinox(make, (size("b 6 8", "4 128 256"),), block)


@case(LAYERS, "equinox", "embedding, batch norm, spectral norm")
def equinox_stateful(size: Size) -> Use:
    words, width, out = size((7, 6, 4), (10_000, 256, 256))

    def make() -> Any:
        return (
            eqx.nn.Embedding(words, width, key=KEY),
            eqx.nn.BatchNorm(width, "batch", mode="batch"),
            eqx.nn.SpectralNorm(eqx.nn.Linear(width, out, key=KEY), "weight", key=KEY),
        )

    model, state = filled(eqx.filter_eval_shape(eqx.nn.make_with_state(make)))

    def run(model: Any, state: Any, ids: jax.Array) -> Any:
        embed, norm, linear = model

        def one(i: jax.Array, state: Any) -> Any:
            x, state = norm(embed(i), state)
            return linear(x, state)

        return jax.vmap(one, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(ids, state)

    return of_equinox(lambda: model, (state, size("4 @ int32", integers(5, words, 512))), run)


# -- flax


class Convolutional(nn.Module):
    """Two convolutions with batch normalisation, in training."""

    features: tuple[int, int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in self.features:
            x = nn.Conv(features, (3, 3), strides=(2, 2))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
        return nn.Dense(3)(nn.avg_pool(x, x.shape[1:3]).reshape(x.shape[0], features))


class Encoder(nn.Module):
    """A block of a transformer."""

    heads: int
    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.heads)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(self.hidden)(nn.RMSNorm()(x))))


class Mixer(nnx.Module):
    """Linear layers over tokens and over channels, with a group norm and a low-rank adapter."""

    def __init__(self, tokens: int, width: int, rank: int, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Linear(tokens, tokens, rngs=rngs)
        linear = nnx.Linear(width, width, rngs=rngs)
        self.channels = nnx.LoRA(width, rank, width, base_module=linear, rngs=rngs)
        self.norm = nnx.GroupNorm(width, 4, rngs=rngs)
        self.conv = nnx.Conv(width, width, (3,), feature_group_count=4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.tokens(self.norm(x).mT).mT
        return self.conv(x + nnx.swish(self.channels(x)))


@case(LAYERS, "flax", "linen: dense, dropout off, softmax")
def linen_dense(size: Size) -> Use:
    inputs, hidden, out = size((6, 16, 3), (784, 1024, 10))
    drop = nn.Dropout(0.5, deterministic=True)
    layers = [nn.Dense(hidden), nn.elu, nn.LayerNorm(), drop, nn.Dense(out), nn.softmax]
    return of_linen(nn.Sequential(layers), jnp.ones((1, inputs)), size("b 6", "128 784"))


@case(LAYERS, "flax", "linen: convolutions, batch norm in training")
def linen_convolutions(size: Size) -> Use:
    model, example = Convolutional(size((4, 8), (32, 64))), jnp.ones((1, *size((8, 8, 3), (32, 32, 3))))
    return of_linen(model, example, size("b 8 8 3", "32 32 32 3"), mutable=["batch_stats"])


@case(LAYERS, "flax", "linen: attention block")
def linen_attention(size: Size) -> Use:
    example = jnp.ones((1, *size((5, 8), (128, 256))))
    return of_linen(Encoder(*size((2, 16), (4, 1024))), example, size("b 5 8", "4 128 256"))


@case(LAYERS, "flax", "nnx: mixer with an adapter")
def nnx_mixer(size: Size) -> Use:
    return of_nnx(lambda: Mixer(*size((4, 8, 2), (196, 256, 8)), nnx.Rngs(0)), size("b 4 8", "8 196 256"))


@case(LAYERS, "flax", "nnx: attention")
def nnx_attention(size: Size) -> Use:
    heads, width = size((2, 8), (4, 256))
    made = lambda: nnx.MultiHeadAttention(heads, width, width, decode=False, rngs=nnx.Rngs(0))  # noqa: E731
    use = of_nnx(made, size("b 5 8", "4 128 256"))
    return replace(use, tolerance=size(1e-4, 1e-3))  # the gradient of the keys' bias is 0 but for rounding


# -- haiku


@case(LAYERS, "haiku", "MLP, layer norm")
def haiku_mlp(size: Size) -> Use:
    def run(x: jax.Array) -> jax.Array:
        return hk.LayerNorm(-1, True, True)(hk.nets.MLP(size([16, 4], [512, 256]))(x))

    return of_haiku(run, jnp.ones((1, size(6, 784))), size("b 6", "128 784"))


@case(LAYERS, "haiku", "residual block, batch norm in training")
def haiku_residual(size: Size) -> Use:
    def run(x: jax.Array) -> jax.Array:
        norm = {"create_scale": True, "create_offset": True, "decay_rate": 0.9}
        block = hk.nets.ResNet.BlockGroup(*size((4, 1), (64, 2)), 2, norm, True, True, True, "group")
        return hk.avg_pool(block(x, True, False), (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    return of_haiku(run, jnp.ones((1, *size((8, 8, 3), (32, 32, 32)))), size("b 8 8 3", "8 32 32 32"))


@case(LAYERS, "haiku", "attention, vector quantizer")
def haiku_attention(size: Size) -> Use:
    heads, width, codes = size((2, 8, 5), (4, 128, 512))

    def run(x: jax.Array) -> Any:
        start = hk.initializers.VarianceScaling(1.0)
        y = hk.MultiHeadAttention(heads, width // heads, w_init=start, model_size=width)(x, x, x)
        return hk.nets.VectorQuantizer(width, codes, 0.25)(x + y, True)["quantize"]

    return of_haiku(run, jnp.ones((1, size(4, 64), width)), size("b 4 8", "8 64 128"))
