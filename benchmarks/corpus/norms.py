"""Normalisation layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.corpus.program import program


@program({"scale": "64", "w": "64 128"}, "b s 64", weights=("p",))
def rms_norm_linear(p, x):
    """RMSNorm before a projection."""
    normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return (normed * p["scale"]) @ p["w"]


@program("b s 64", "64 128")
def rms_norm_by_division(x, w):
    """RMSNorm without scale, by a division, before a projection."""
    rms = jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)
    return (x / rms) @ w


@program({"scale": "64", "shift": "64", "w": "64 128", "b": "128"}, "n 64", weights=("p",))
def layer_norm_linear(p, x):
    """LayerNorm with scale and shift before a dense layer."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    normed = (x - mean) / jnp.sqrt(variance + 1e-5)
    return (normed * p["scale"] + p["shift"]) @ p["w"] + p["b"]


@program({"mean": "32", "variance": "32", "scale": "32", "shift": "32"}, "n h w 32", weights=("p",))
def batch_norm_inference(p, x):
    """Batch normalisation with the moments that training found."""
    inverse = jax.lax.rsqrt(p["variance"] + 1e-3) * p["scale"]
    return (x - p["mean"]) * inverse + p["shift"]


@program("n d")
def batch_norm_training(x):
    """Batch normalisation with the moments of the batch."""
    mean = jnp.mean(x, axis=0)
    variance = jnp.mean(jnp.square(x), axis=0) - jnp.square(mean)
    return (x - mean) / jnp.sqrt(variance + 1e-5)


@program("n 8 h w", "8", "8")
def group_norm(x, scale, shift):
    """Group normalisation with four groups."""
    n, c, h, w = x.shape
    y = x.reshape(n, 4, c // 4 * h * w)
    mean, variance = y.mean(axis=2, keepdims=True), y.var(axis=2, keepdims=True)
    y = ((y - mean) / jnp.sqrt(variance + 1e-5)).reshape(n, c, h, w)
    return y * scale[:, None, None] + shift[:, None, None]


@program("n c h w")
def instance_norm(x):
    """Instance normalisation, mean and variance one axis after the other."""
    mean = x.mean(axis=3).mean(axis=2)[:, :, None, None]
    variance = jnp.square(x - mean).sum(axis=3).sum(axis=2)[:, :, None, None]
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5)


@program("n d")
def unit_rows(x):
    """Rows divided by their Euclidean norm."""
    return x / jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True))


@program("n d", "m d")
def cosine_similarity(x, y):
    """Cosine similarities of all pairs of rows."""
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    y = y / jnp.linalg.norm(y, axis=1, keepdims=True)
    return jnp.einsum("id,jd->ij", x, y)


@program("o i", "")
def weight_norm(v, g):
    """Weight normalisation: direction and length of a weight apart."""
    return g * v / jnp.sqrt(jnp.sum(v**2))


@program("n i", "i o")
def equalized_linear(x, w):
    """A layer with equalised learning rate (StyleGAN): the weight scaled at run time."""
    return x @ (w * (2.0 / w.shape[0]) ** 0.5)


@program("o i", "o", "i")
def spectral_norm(w, u, v):
    """A weight divided by an estimate of its spectral norm u' W v."""
    sigma = jnp.sum(jnp.outer(u, v) * w)
    return w / sigma


@program("n d", "1 d")
def feature_scaling(x, scale):
    """Min-max scaling of features, then a scale for each."""
    low, high = x.min(axis=0, keepdims=True), x.max(axis=0, keepdims=True)
    return (x - low) / (high - low) * scale
