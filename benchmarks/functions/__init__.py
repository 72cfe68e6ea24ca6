"""Functions of JAX that are traced to see how much of them becomes operators, by group."""

from benchmarks.functions import arrays, networks, numerics, primitives, randomness
from benchmarks.functions.named import Functions

GROUPS: dict[str, Functions] = {
    "jax.nn": arrays.NN,
    "jax.numpy": arrays.NUMPY,
    "linear algebra, fft": numerics.LINEAR,
    "jax.scipy": numerics.SPECIAL,
    "jax.scipy.stats": numerics.STATS,
    "jax.random": randomness.RANDOM,
    "jax.lax": primitives.LAX,
    "convolutions, windows": primitives.WINDOWS,
    "contractions, attention": primitives.CONTRACTIONS,
    "reads and writes": primitives.POSITIONS,
    "jax.image": primitives.IMAGE,
    "models": networks.MODELS,
}

__all__ = ["GROUPS", "Functions"]
