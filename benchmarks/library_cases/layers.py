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

from benchmarks.library_cases.case import Case, Use, case, filled

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
def equinox_mlp() -> Use:
    return of_equinox(lambda: eqx.nn.MLP(6, 3, 16, 2, activation=jax.nn.gelu, key=KEY), ("b 6",))


@case(LAYERS, "equinox", "MLP in bfloat16, its parameters in float32")
def equinox_mixed() -> Use:
    def run(model: Any, x: jax.Array) -> jax.Array:
        narrow = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if eqx.is_inexact_array(a) else a, model)
        return jax.vmap(narrow)(x.astype(jnp.bfloat16)).astype(jnp.float32)

    made = of_equinox(lambda: eqx.nn.MLP(6, 3, 16, 1, key=KEY), ("b 6",), run)
    return replace(made, tolerance=5e-2)


@case(LAYERS, "equinox", "convolutions, group norm, pooling")
def equinox_convolutions() -> Use:
    def make() -> eqx.Module:
        layers = [
            eqx.nn.Conv2d(3, 8, 3, key=KEY),
            eqx.nn.GroupNorm(2, 8),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.ConvTranspose2d(8, 4, 2, 2, key=KEY),
            eqx.nn.AdaptiveAvgPool2d(2),
        ]
        return eqx.nn.Sequential(layers)

    return of_equinox(make, ("b 3 10 10",))


@case(LAYERS, "equinox", "transformer block")
def equinox_transformer() -> Use:
    def make() -> Any:
        return {
            "attention": eqx.nn.MultiheadAttention(2, 8, key=KEY),
            "rotary": eqx.nn.RotaryPositionalEmbedding(4),
            "norms": [eqx.nn.LayerNorm(8), eqx.nn.RMSNorm(8)],
            "mlp": eqx.nn.MLP(8, 8, 16, 1, activation=jax.nn.silu, key=KEY),
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

    return of_equinox(make, ("b 6 8",), block)


@case(LAYERS, "equinox", "embedding, batch norm, spectral norm")
def equinox_stateful() -> Use:
    def make() -> Any:
        return (
            eqx.nn.Embedding(7, 6, key=KEY),
            eqx.nn.BatchNorm(6, "batch", mode="batch"),
            eqx.nn.SpectralNorm(eqx.nn.Linear(6, 4, key=KEY), "weight", key=KEY),
        )

    model, state = filled(eqx.filter_eval_shape(eqx.nn.make_with_state(make)))

    def run(model: Any, state: Any, ids: jax.Array) -> Any:
        embed, norm, linear = model

        def one(i: jax.Array, state: Any) -> Any:
            x, state = norm(embed(i), state)
            return linear(x, state)

        return jax.vmap(one, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(ids, state)

    return of_equinox(lambda: model, (state, "4 @ int32"), run)


# -- flax


class Convolutional(nn.Module):
    """Two convolutions with batch normalisation, in training."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in (4, 8):
            x = nn.Conv(features, (3, 3), strides=(2, 2))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
        return nn.Dense(3)(nn.avg_pool(x, (2, 2)).reshape(x.shape[0], 8))


class Encoder(nn.Module):
    """A block of a transformer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.RMSNorm()(x))))


class Mixer(nnx.Module):
    """Linear layers over tokens and over channels, with a group norm and a low-rank adapter."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Linear(4, 4, rngs=rngs)
        self.channels = nnx.LoRA(8, 2, 8, base_module=nnx.Linear(8, 8, rngs=rngs), rngs=rngs)
        self.norm = nnx.GroupNorm(8, 4, rngs=rngs)
        self.conv = nnx.Conv(8, 8, (3,), feature_group_count=4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.tokens(self.norm(x).mT).mT
        return self.conv(x + nnx.swish(self.channels(x)))


@case(LAYERS, "flax", "linen: dense, dropout off, softmax")
def linen_dense() -> Use:
    layers = [nn.Dense(16), nn.elu, nn.LayerNorm(), nn.Dropout(0.5, deterministic=True), nn.Dense(3), nn.softmax]
    return of_linen(nn.Sequential(layers), jnp.ones((1, 6)), "b 6")


@case(LAYERS, "flax", "linen: convolutions, batch norm in training")
def linen_convolutions() -> Use:
    return of_linen(Convolutional(), jnp.ones((1, 8, 8, 3)), "b 8 8 3", mutable=["batch_stats"])


@case(LAYERS, "flax", "linen: attention block")
def linen_attention() -> Use:
    return of_linen(Encoder(), jnp.ones((1, 5, 8)), "b 5 8")


@case(LAYERS, "flax", "nnx: mixer with an adapter")
def nnx_mixer() -> Use:
    return of_nnx(lambda: Mixer(nnx.Rngs(0)), "b 4 8")


@case(LAYERS, "flax", "nnx: attention")
def nnx_attention() -> Use:
    return of_nnx(lambda: nnx.MultiHeadAttention(2, 8, 8, decode=False, rngs=nnx.Rngs(0)), "b 5 8")


# -- haiku


@case(LAYERS, "haiku", "MLP, layer norm")
def haiku_mlp() -> Use:
    def run(x: jax.Array) -> jax.Array:
        return hk.LayerNorm(-1, True, True)(hk.nets.MLP([16, 4])(x))

    return of_haiku(run, jnp.ones((1, 6)), "b 6")


@case(LAYERS, "haiku", "residual block, batch norm in training")
def haiku_residual() -> Use:
    def run(x: jax.Array) -> jax.Array:
        norm = {"create_scale": True, "create_offset": True, "decay_rate": 0.9}
        block = hk.nets.ResNet.BlockGroup(4, 1, 2, norm, True, True, True, "group")
        return hk.avg_pool(block(x, True, False), (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    return of_haiku(run, jnp.ones((1, 8, 8, 3)), "b 8 8 3")


@case(LAYERS, "haiku", "attention, vector quantizer")
def haiku_attention() -> Use:
    def run(x: jax.Array) -> Any:
        y = hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling(1.0), model_size=8)(x, x, x)
        return hk.nets.VectorQuantizer(8, 5, 0.25)(x + y, True)["quantize"]

    return of_haiku(run, jnp.ones((1, 4, 8)), "b 4 8")
